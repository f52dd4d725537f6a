# SPDX-License-Identifier: Apache-2.0
"""The recorder with its thread and a real disk: shared directory, full disk, kills."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.events import Damage, End, Event, Gap, Row
from ustreamer_recorder.journal import Journal
from ustreamer_recorder.layout import EndCause, GapCause, segment_name
from ustreamer_recorder.note_queue import NoteQueue
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.recorder import BUSY_ROWS, Recorder
from ustreamer_recorder.segments import list_segments

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, LedgerSnapshot, Verdict
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
SMALLEST = 4 * 96 * 2049
DEADLINE_S = 30.0
CLOCK = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)


def eventually(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.002)


class Running:
    """A recorder, and a caller that records one row after the other."""

    def __init__(self, directory: Path, **config: object) -> None:
        settings = {
            "flush_ms": 10,
            "segment_bytes": SMALLEST,
            "max_bytes": 4 * SMALLEST,
            "keep_free_bytes": 0,
        }
        made = RecorderConfig(**{**settings, **config})  # type: ignore[arg-type]
        self.directory = directory
        self.note_queue = NoteQueue(made.buffer_rows, CLOCK.monotonic_ns, UUri("hpc", 4, 1, 0x8000))
        self.recorder = Recorder(made, directory, "hpc", CLOCK, self.note_queue, lambda: EMPTY_LEDGER)
        self._tap = self.note_queue.tap("chassis")
        self._ids = UuidSource(CLOCK.wall_ms)

    def note(self, rows: int = 1) -> None:
        for _ in range(rows):
            now_ns = CLOCK.monotonic_ns()
            message = publish(self._ids.next(), TOPIC)
            self._tap(message, None, Verdict.NO_SUBSCRIBER, None, 0, now_ns, now_ns, 0, now_ns)

    def close(self) -> None:
        self.recorder.close(DEADLINE_S)


@contextmanager
def running(directory: Path, **config: object) -> Iterator[Running]:
    made = Running(directory, **config)
    made.recorder.open()
    try:
        yield made
    finally:
        made.close()


def read(directory: Path) -> tuple[list[Event], list[Damage]]:
    found = [
        event
        for file in list_segments(directory)
        for event in read_segment(file.path.read_bytes(), file.path.name)
    ]
    return [e for e in found if not isinstance(e, Damage)], [e for e in found if isinstance(e, Damage)]


def rows_in(directory: Path) -> list[Row]:
    return [event for event in read(directory)[0] if isinstance(event, Row)]


# ------------------------------------------------------------------------------------------------- life cycle


def test_notes_are_soon_in_the_file_and_its_end_is_marked(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "recordings"
    made = Running(directory)
    assert not directory.exists()
    made.note(3)  # before it begins
    made.recorder.open()
    eventually(lambda: directory.exists() and len(rows_in(directory)) == 3, "what was noted before")
    made.note(4)
    eventually(lambda: len(rows_in(directory)) == 7, "what was noted since")
    made.note(5)
    made.close()
    events, damage = read(directory)
    assert ([row.seq for row in rows_in(directory)], damage) == (list(range(12)), [])
    assert [event.cause for event in events if isinstance(event, End)] == [EndCause.STOPPED]
    made.close()


def test_closing_an_unopened_recorder_touches_no_file(tmp_path: Path) -> None:
    Running(tmp_path / "none").close()
    assert list(tmp_path.iterdir()) == []


def test_threads_note_concurrently(tmp_path: Path) -> None:
    with running(tmp_path) as made:
        # Each with a source of ids of its own, which is not locked.
        def note() -> None:
            ids = UuidSource(CLOCK.wall_ms)
            for _ in range(3000):
                now_ns = CLOCK.monotonic_ns()
                made._tap(
                    publish(ids.next(), TOPIC), None, Verdict.DENIED, None, 0, now_ns, now_ns, 0, now_ns
                )

        threads = [threading.Thread(target=note) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = rows_in(tmp_path)
    assert [row.seq for row in rows] == list(range(12_000))
    assert len({row.id for row in rows}) == 12_000


def test_each_run_has_a_greater_number(tmp_path: Path) -> None:
    for _ in range(5):
        with running(tmp_path) as made:
            made.note()
    runs = [file.run for file in list_segments(tmp_path)]
    assert len(set(runs)) == 5
    assert all(0 < run < 2**63 for run in runs)
    assert runs == [file.run for file in sorted(list_segments(tmp_path), key=lambda file: file.modified_ms)]


def test_runs_rise_also_when_the_wall_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest segments are deleted first, and their numbers identify them."""
    clock = CLOCK
    for rows, days_back in enumerate((0, 1, 9_000, 5), 1):
        wall_ms = clock.wall_ms() - days_back * 86_400_000
        monkeypatch.setattr(sys.modules[__name__], "CLOCK", Clock(time.monotonic_ns, partial(int, wall_ms)))
        with running(tmp_path) as made:
            made.note(rows)
    runs = {file.run for file in list_segments(tmp_path)}
    assert (len(runs), max(runs) < 2**63) == (4, True)
    assert [row.seq for row in rows_in(tmp_path)] == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]


@pytest.mark.parametrize("taken", [2**63 - 1, 2**64 - 1])
def test_a_run_with_the_last_number_stops_no_other(tmp_path: Path, taken: int) -> None:
    (tmp_path / segment_name(taken, 0)).write_bytes(b"")
    with running(tmp_path) as made:
        made.note()
    assert 0 < min(file.run for file in list_segments(tmp_path)) < 2**63 - 1


def test_a_run_that_was_drawn_before_is_not_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock of an ECU may start at the same value with every start."""
    monkeypatch.setattr("os.urandom", bytes)
    monkeypatch.setattr(sys.modules[__name__], "CLOCK", Clock(time.monotonic_ns, lambda: 946_684_800_000))
    for _ in range(3):
        with running(tmp_path) as made:
            made.note()
    assert [len(rows_in(tmp_path)), len({file.run for file in list_segments(tmp_path)})] == [3, 3]


def test_an_exception_in_the_recorder_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted, mistakes = Journal.count, iter([True])

    def count(self: Journal, ledger: LedgerSnapshot) -> None:
        if next(mistakes, False):
            raise ZeroDivisionError("count")
        counted(self, ledger)

    monkeypatch.setattr(Journal, "count", count)
    with running(tmp_path) as made:
        made.note(5)
    assert len(rows_in(tmp_path)) == 5
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["recorder.failed"]


# --------------------------------------------------------------------------------------------- adjacent files


def test_a_second_streamer_on_the_directory_is_refused_by_name(tmp_path: Path) -> None:
    with running(tmp_path):
        second = Running(tmp_path)
        with pytest.raises(
            UStatusError, match=f"held by process {os.getpid()}: expected no other"
        ) as refusal:
            second.recorder.open()
        assert refusal.value.code is UCode.UNAVAILABLE
        second.close()
        third = Running(tmp_path)  # a rejected process has not taken the lock
        with pytest.raises(UStatusError):
            third.recorder.open()
    with running(tmp_path) as made:
        made.note()
    assert len(rows_in(tmp_path)) == 1


def test_a_directory_that_cannot_be_created_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ustreamer_recorder.journal.RETRY_NS", 1)
    in_the_way = tmp_path / "recordings"
    in_the_way.write_text("no directory")
    with running(in_the_way) as made:
        made.note(5)
        eventually(lambda: not made.note_queue.notes, "the notes to be taken")
        assert "recorder.disk" in [record.message for record in caplog.records]
        in_the_way.unlink()
        eventually(lambda: in_the_way.is_dir() and bool(list_segments(in_the_way)), "the directory")
        made.note(2)
    events, damage = read(in_the_way)
    assert [(gap.cause, sum(gap.rows)) for gap in events if isinstance(gap, Gap)] == [(GapCause.DISK, 5)]
    assert ([row.seq for row in rows_in(in_the_way)], damage) == ([5, 6], [])


# --------------------------------------------------------------------------------------------------------------- limits


def test_the_oldest_segments_are_deleted_at_the_quota(tmp_path: Path) -> None:
    foreign = tmp_path / "of-another-owner.useg"
    foreign.write_bytes(bytes(1_000_000))
    most = 0
    with running(tmp_path) as made:
        for _ in range(12):
            made.note(4000)
            eventually(lambda: not made.note_queue.notes, "the notes to be taken")
            most = max(most, sum(file.bytes for file in list_segments(tmp_path)))
    assert most <= 4 * SMALLEST
    rows = rows_in(tmp_path)
    assert [row.seq for row in rows] == list(range(rows[0].seq, 48_000))
    assert rows[0].seq > 10_000
    assert foreign.exists()


def test_the_oldest_runs_are_deleted_first(tmp_path: Path) -> None:
    made_runs = []
    for _ in range(6):
        with running(tmp_path, max_bytes=2 * SMALLEST) as made:
            made.note(3000)
        made_runs.append(list_segments(tmp_path)[-1].run)
    # On a slow machine the same rows have more blocks and more bytes, so one row fewer may fit.
    left = sorted({file.run for file in list_segments(tmp_path)})
    assert left in (made_runs[-2:], made_runs[-3:])
    assert [row.seq for row in rows_in(tmp_path)] == list(range(3000)) * len(left)


# ----------------------------------------------------------------------------------------------------------------- full

CHILD = """
import runpy, sys
from pathlib import Path
names = runpy.run_path(sys.argv[1])
Running, eventually, rows_in, read = (names[n] for n in ("Running", "eventually", "rows_in", "read"))
directory = Path(sys.argv[2])
"""

LIMITED = (
    CHILD
    + """
import resource, signal
import ustreamer_recorder.journal as journal
journal.RETRY_NS = 1
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
none = resource.RLIM_INFINITY
made = Running(directory)
made.recorder.open()
made.note(10)
eventually(lambda: bool(rows_in(directory)), "the first rows")
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, none))   # smaller than a segment, which is reserved already
made.note(10_000)
eventually(lambda: not made.note_queue.notes, "the notes to be taken")
made.note(7)
eventually(lambda: not made.note_queue.notes, "the notes to be taken")
resource.setrlimit(resource.RLIMIT_FSIZE, (none, none))
made.note(3)
made.close()
print("done")
"""
)

FULL = (
    CHILD
    + """
import os
import ustreamer_recorder.journal as journal
journal.RETRY_NS = 1
ballast = directory / "ballast"
made = Running(directory, max_bytes=100_000_000)
made.recorder.open()
for _ in range(10):                                          # 3 MB hold three segments, not ten
    made.note(8_000)
    eventually(lambda: not made.note_queue.notes, "the notes to be taken")
eventually(lambda: rows_in(directory)[-1].seq > 70_000, "the last rows")
descriptor = os.open(ballast, os.O_CREAT | os.O_RDWR)
for file in directory.glob("*.useg"):                        # another program uses the remaining space
    file.unlink()
try:
    while True:
        os.write(descriptor, bytes(65536))
except OSError:
    pass
made.note(20_000)
eventually(lambda: not made.note_queue.notes, "the notes to be taken")
made.note(5)
eventually(lambda: not made.note_queue.notes, "the notes to be taken")
os.close(descriptor)
ballast.unlink()
def resumed():
    made.note(1)
    return rows_in(directory)[-1].seq > 100_010
eventually(resumed, "the disk to be used again")
made.close()
print("done")
"""
)


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        [*command, __file__, str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_full_disk_stops_only_the_recording(tmp_path: Path) -> None:
    assert run([sys.executable, "-c", LIMITED], tmp_path) == "done\n"
    events, damage = read(tmp_path)
    gaps = [event for event in events if isinstance(event, Gap)]
    assert damage == []
    assert {gap.cause for gap in gaps} == {GapCause.DISK}
    rows = [row.seq for row in rows_in(tmp_path)]
    assert len(rows) + sum(sum(gap.rows) for gap in gaps) == 10_020
    missing = {seq for gap in gaps for seq in range(gap.first_seq, gap.first_seq + sum(gap.rows))}
    assert sorted([*rows, *missing]) == list(range(10_020))


def test_recording_resumes_when_a_full_file_system_has_space(tmp_path: Path) -> None:
    unshare = [
        "unshare",
        "-Urm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=3m none "$0" && exec "$@"',
        str(tmp_path),
    ]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs `unshare -Urm` to mount a small file system")
    assert run([*unshare, sys.executable, "-c", FULL], tmp_path) == "done\n"


# ----------------------------------------------------------------------------------------------------------------- kill

KILLED = (
    CHILD
    + """
from ustreamer_recorder.journal import Journal
tick = Journal.tick
def telling(self, skipped):
    tick(self, skipped)
    print(self.next_seq, flush=True)                         # so many are in the file now
Journal.tick = telling
made = Running(directory, max_bytes=100_000_000)
made.recorder.open()
while True:
    made.note(50)
"""
)


@contextmanager
def victim(directory: Path) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, __file__, str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process, process.stdout
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_keeps_flushed_rows_and_every_file_is_readable(tmp_path: Path, seed: int) -> None:
    """The moment is a random one: in a write, in a rotation, wherever."""
    rng = random.Random(seed)
    with victim(tmp_path) as (process, output):
        flushed = 0
        while flushed < 100:
            flushed = int(output.readline())
        timer = threading.Timer(rng.uniform(0, 0.5), process.send_signal, [signal.SIGKILL])
        timer.start()
        for line in output:
            flushed = int(line) if line.endswith("\n") else flushed
        timer.join()
    events, damage = read(tmp_path)
    assert all(each.torn for each in damage)
    assert not [event for event in events if isinstance(event, End) and event.cause is EndCause.STOPPED]
    missing = {
        seq
        for gap in events
        if isinstance(gap, Gap)
        for seq in range(gap.first_seq, gap.first_seq + sum(gap.rows))
    }
    before = [row.seq for row in events if isinstance(row, Row)]
    there = sorted([*before, *missing])
    assert there == list(range(len(there)))
    assert len(there) >= flushed
    with running(tmp_path, max_bytes=100_000_000) as made:
        made.note()
    events, damage = read(tmp_path)
    assert [row.seq for row in events if isinstance(row, Row)] == [*before, 0]
    assert not [file for file in list_segments(tmp_path) if file.is_open]
    assert damage == []


def test_an_open_file_without_a_header_is_moved_aside(tmp_path: Path) -> None:
    """A power cut at the worst moment; a kill cannot cause this state."""
    for number, content in enumerate([b"", bytes(5000), b"noise" * 100]):
        (tmp_path / f"{number:016x}-000000.useg.open").write_bytes(content)
    (tmp_path / ".0000000000000009-000000.useg.new").write_bytes(bytes(10))
    with running(tmp_path) as made:
        made.note()
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock")
    assert names[0] == "0000000000000002-000000.useg.bad"
    assert len(names) == 2


def test_an_open_file_is_truncated_after_its_last_whole_block(
    tmp_path: Path, build: "Callable[..., Bench]"
) -> None:
    bench = build()
    bench.drain()
    bench.settle()
    bench.drain()
    [path] = tmp_path.iterdir()
    whole = path.read_bytes().rstrip(b"\0")
    with path.open("r+b") as file:
        file.seek(len(whole) + 96)
        file.write(b"UBLK and a half")
    with running(tmp_path) as made:
        made.note()
    first, _ = list_segments(tmp_path)
    data = first.path.read_bytes()
    assert first.path.name == "0000000000000001-000000.useg"
    assert (len(data) - 288) % 96 == 0
    assert data.rstrip(b"\0") == whole
    assert [row.seq for row in rows_in(tmp_path)] == [0, 0]


def test_under_load_the_queue_is_drained_before_the_flush(tmp_path: Path) -> None:
    made = Running(tmp_path, flush_ms=60_000)
    made.note(BUSY_ROWS)
    made.recorder.open()
    try:
        eventually(lambda: not made.note_queue.notes, "all to be taken out")
    finally:
        made.close()
