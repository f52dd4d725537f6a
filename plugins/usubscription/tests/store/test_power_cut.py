# SPDX-License-Identifier: Apache-2.0
"""A power cut loses no acknowledged change.

A kill does not test that: the page cache keeps the writes of a dead process. So a writer runs under strace. Its
writes and syncs give images of the disk at the moment of a power cut: every synced write, and a random choice of the
other pages. Each image is opened as at a start.

The same with sync off is the negative control: the harness must find losses there.
"""

import io
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import pytest
from lmdb import verify
from ustreamer_usubscription.events import SubscriptionEvent as Happened
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.store import records
from ustreamer_usubscription.store.history import EventHistory
from ustreamer_usubscription.store.store import (
    RecordChange,
    SubscriptionStore,
    delete_subscription,
    put_subscription,
)

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage import verify_process
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import LAYOUT_KEY
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("device2", 0x10AB, 3, 0x80CD)
PAGE: Final = 4096
MAP: Final = 1 << 22
SUBSCRIBERS: Final = 150
HISTORY: Final = 50

# --- the writer -------------------------------------------------------------------------------------------------------


def commits(seed: int, count: int) -> list[list[RecordChange]]:
    """Group commits under load: each of 1 to 8 clients subscribes, changes its subscription, or leaves."""
    rng = random.Random(seed)
    result = []
    for _ in range(count):
        clients = rng.sample(range(SUBSCRIBERS), rng.randint(1, 8))
        result.append([_change(rng, UUri("device1", number, 1, 0)) for number in clients])
    return result


def _change(rng: random.Random, client: UUri) -> RecordChange:
    if rng.random() < 0.3:
        return delete_subscription(TOPIC, client)
    return put_subscription(
        SubscriptionRecord(TOPIC, client, rng.randrange(10**9), None, b"d" * rng.randrange(300))
    )


class UnsyncedStore(SubscriptionStore):
    """The negative control."""

    def open(self) -> None:
        super().open()
        self._store._environment().close()
        self._store._env = lmdb.open(str(self.path), map_size=self._store.map_size, sync=False)


def events_of(changes: list[RecordChange]) -> list[Happened]:
    """The history events for these changes."""
    return [
        Happened(number, TOPIC, TOPIC, Status.SUBSCRIBED, repr(change.key))
        for number, change in enumerate(changes)
    ]


def write(kind: type[SubscriptionStore], path: Path, seed: int, count: int) -> None:
    """The program that runs under strace: a byte on stdout acknowledges a commit."""
    store = kind(path, MAP, history=HISTORY)
    store.open()
    for changes in commits(seed, count):
        store.commit(changes, events_of(changes))
        os.write(1, b".")
    store.close()


def states(seed: int, count: int) -> list[frozenset[tuple[bytes, bytes]]]:
    """The content of the store before the first commit and after each commit."""
    now: dict[bytes, bytes] = {}
    result = [frozenset(now.items())]
    history = EventHistory(HISTORY)
    for changes in commits(seed, count):
        notified = history.changes_for(events_of(changes))
        history.on_committed(events_of(changes))
        for key, value in (*changes, *notified):
            now.pop(key, None)
            if value is not None:
                now[key] = value
        result.append(frozenset(now.items()))
    return result


# --- from a trace to images -------------------------------------------------------------------------------------------


class DiskWrite(NamedTuple):
    at: int
    data: bytes
    synced: bool
    """Whether the call returned only when the bytes were on disk (O_DSYNC)."""


SYNC: Final = "sync"
ACK: Final = "ack"
TraceEvent = DiskWrite | str

_HEX: Final = r'"((?:\\x[0-9a-f]{2})*)"'
_OPEN: Final = re.compile(r"openat\(.*, (O_[A-Z_|]+)[^)]*\) = (\d+)<[^>]*>$")
_SEEK: Final = re.compile(r"lseek\((\d+)<[^>]*>, (\d+), SEEK_SET\)")
_PWRITE: Final = re.compile(rf"pwrite64\((\d+)<([^>]*)>, {_HEX}, \d+, (\d+)\) = \d+$")
_WRITEV: Final = re.compile(r"writev\((\d+)<([^>]*)>, \[(.*)\], \d+\) = (\d+)$")
_SYNC: Final = re.compile(r"(?:fdatasync|fsync|msync)\((\d+)<([^>]*)>\) = 0$")
_BASE: Final = re.compile(rf"iov_base={_HEX}")
_CALLS: Final = "trace=openat,lseek,pwrite64,pwritev,pwritev2,writev,fdatasync,fsync,msync,ftruncate,write"


def unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def events(trace: Path, data: Path) -> Iterator[TraceEvent]:
    """The system calls of a trace for one file, and the times of output to stdout."""
    places: dict[str, int] = {}
    synced: set[str] = set()
    with trace.open(encoding="ascii") as lines:
        for line in map(str.rstrip, lines):
            if line.startswith("write(1<"):
                yield ACK
            elif found := _OPEN.search(line):
                flags, descriptor = found.groups()
                (synced.add if "O_DSYNC" in flags else synced.discard)(descriptor)
            elif found := _SEEK.match(line):
                places[found[1]] = int(found[2])
            elif (found := _PWRITE.match(line)) and unescaped(found[2]) == bytes(data):
                yield DiskWrite(int(found[4]), unescaped(found[3]), found[1] in synced)
            elif (found := _WRITEV.match(line)) and unescaped(found[2]) == bytes(data):
                written = b"".join(map(unescaped, _BASE.findall(found[3])))
                assert len(written) == int(found[4])
                yield DiskWrite(places[found[1]], written, found[1] in synced)
            elif (found := _SYNC.match(line)) and unescaped(found[2]) == bytes(data):
                yield SYNC
            else:
                # An unknown call on this file would make every image wrong.
                named = "".join(f"\\x{byte:02x}" for byte in bytes(data))
                assert not line.startswith(("pwrite", "writev", "ftruncate", "msync")) or named not in line, (
                    line[:200]
                )


class Disk:
    """A file with some writes that may not have reached the disk."""

    def __init__(self, base: bytes) -> None:
        self._safe = bytearray(base)
        self._pending: list[tuple[int, bytes]] = []

    def write(self, event: DiskWrite) -> None:
        if event.synced:
            _put(self._safe, event.at, event.data)
            return
        for start in range(0, len(event.data), PAGE):  # LMDB writes at the borders of pages
            self._pending.append((event.at + start, event.data[start : start + PAGE]))

    def sync(self) -> None:
        for at, data in self._pending:
            _put(self._safe, at, data)
        self._pending.clear()

    def image(self, rng: random.Random, most: float = 1.0) -> bytes:
        """The disk after a power cut now, with at most the part `most` of the unsynced writes."""
        found, likely = bytearray(self._safe), rng.random() * most
        for at, data in self._pending:
            if rng.random() < likely:
                _put(found, at, data)
        return bytes(found)


def _put(file: bytearray, at: int, data: bytes) -> None:
    file.extend(bytes(max(at + len(data) - len(file), 0)))
    file[at : at + len(data)] = data


# --- reading images, in a process that an image can crash ---------------------------------------------------


def look() -> None:
    """Read directory names from stdin. For each, print one line: the content of the store, or its error."""
    for line in sys.stdin:
        directory = line.rstrip("\n")
        try:
            problems = verify.verify(directory)  # type: ignore[no-untyped-call]
            assert not problems, problems[0]
            assert verify_process.main("walk", directory, io.BytesIO()) == 0, "the reader finds damage"
            with (
                lmdb.open(directory, map_size=MAP) as env,
                env.begin(write=True) as txn,
                txn.cursor() as all_,
            ):
                found = []
                for key, value in all_:
                    records.check_record(key, value)
                    found += [key.hex() + ":" + value.hex()] if key != LAYOUT_KEY else []
                txn.put(b"s/probe", b"can be written to")
            print("ok", *found, flush=True)
        except (lmdb.Error, verify.VerifyError, StoreDamaged, AssertionError) as error:
            print("bad", repr(str(error)), flush=True)


class ImageReader:
    """A process that checks images; restarted when an image crashed it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def read_image(self, image: bytes) -> frozenset[tuple[bytes, bytes]] | str:
        """The records, or why there are none to be had."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir()
        (self._directory / "data.mdb").write_bytes(image)
        if self._process is None:
            self._process = run("look()", stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(self._directory, file=self._process.stdin, flush=True)
        verdict, *rest = self._process.stdout.readline().split() or ["crashed"]
        if verdict == "crashed":
            code = self._process.wait()
            self.close()
            return f"the process that opened it ended with {code}"
        if verdict == "bad":
            return " ".join(rest)
        pairs = (record.split(":") for record in rest)
        return frozenset((bytes.fromhex(key), bytes.fromhex(value)) for key, value in pairs)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def run(call: str, *before: str, stdin: int | None = None) -> "subprocess.Popen[str]":
    """A process in which the names of this file are there."""
    code = "import runpy, sys; from pathlib import Path; exec(sys.argv[2], runpy.run_path(sys.argv[1]))"
    return subprocess.Popen(
        [*before, sys.executable, "-c", code, __file__, call],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if "look" in call else None,
        text=True,
    )


# --- the test ---------------------------------------------------------------------------------------------------------


class PowerCutResult(NamedTuple):
    images: int
    lost: int
    """Images without a change that had been acknowledged, or with a state that never was."""
    unopenable: int

    @property
    def bad(self) -> int:
        return self.lost + self.unopenable


def recorded(directory: Path, kind: str, seed: int, count: int) -> tuple[bytes, list[TraceEvent]]:
    """The file before the writer opened it, and the changes by the writer."""
    store = SubscriptionStore(directory / "store", MAP)
    store.open()
    store.close()
    data = directory / "store" / "data.mdb"
    base, trace = data.read_bytes(), directory / "trace"
    strace = ["strace", "-y", "-xx", "-s", "1000000", "-e", _CALLS, "-e", "signal=none", "-o", str(trace)]
    call = f"write({kind}, Path({str(directory / 'store')!r}), {seed}, {count})"
    with run(call, *strace) as writer:
        printed, _ = writer.communicate(timeout=100)
    assert (writer.returncode, printed) == (0, "." * count)
    found = list(events(trace, data))
    assert found.count(ACK) == count
    return base, found


@contextmanager
def image_reader(directory: Path) -> Iterator[ImageReader]:
    reader = ImageReader(directory)
    try:
        yield reader
    finally:
        reader.close()


def cut(
    directory: Path, kind: str, images: int, seed: int, *, after: float = 0.0, most: float = 1.0
) -> PowerCutResult:
    """Cut the power that many times, at random moments of one history.

    Of that `after` passes before the first cut; `most` as for `Disk.image`.
    """
    rng, count = random.Random(seed), 60
    base, history = recorded(directory, kind, seed, count)
    moments = sorted(rng.choices(range(1 + int(after * len(history)), len(history) + 1), k=images))
    known, disk, acknowledged, past = states(seed, count), Disk(base), 0, 0
    lost = unopenable = 0
    with image_reader(directory / "image") as reader:
        for moment in moments:
            for event in history[past:moment]:
                if isinstance(event, DiskWrite):
                    disk.write(event)
                elif event == SYNC:
                    disk.sync()
                else:
                    acknowledged += 1
            past = moment
            found = reader.read_image(disk.image(rng, most))
            if isinstance(found, str):
                unopenable += 1
            elif found not in known[acknowledged : acknowledged + 2]:  # one may be on its way
                lost += 1
    return PowerCutResult(images, lost, unopenable)


def needs_strace() -> None:
    if (
        shutil.which("strace") is None
        or subprocess.run(["strace", "true"], capture_output=True, check=False).returncode
    ):
        assert os.environ.get("CI") != "true", "strace is not there, or may not trace"
        pytest.skip("needs strace, which records when the store writes and syncs")


@pytest.mark.parametrize(
    ("synced", "unsynced"),
    [(120, 40), pytest.param(10_000, 400, marks=pytest.mark.soak)],
    ids=["some", "many"],
)
def test_a_power_cut_loses_no_acknowledged_change_unless_sync_is_off(
    tmp_path: Path, synced: int, unsynced: int
) -> None:
    """[utest->req~usubscription-subscribe~1] [utest->req~usubscription-subscribe-persistency~1]"""
    needs_strace()
    (tmp_path / "synced").mkdir()
    (tmp_path / "unsynced").mkdir()
    result = cut(tmp_path / "synced", "SubscriptionStore", synced, seed=1)
    # With the parameters above, one in six of the control's images is right: everything or nothing was written, or
    # almost every write reached the disk by chance. Such an image does not test the harness.
    control = cut(tmp_path / "unsynced", "UnsyncedStore", unsynced, seed=1, after=0.3, most=0.7)
    print(f"\nimages={synced} lost={result.lost} unopenable={result.unopenable}")
    print(f"without sync: control_images={unsynced} control_bad_percent={100 * control.bad / unsynced:.0f}")
    assert result.bad == 0, result
    assert control.bad > 0.9 * unsynced, control
    assert control.unopenable > 0, control


def test_the_disk_model_keeps_synced_writes_and_some_of_the_others() -> None:
    disk = Disk(b"o" * 2 * PAGE)
    disk.write(DiskWrite(0, b"a" * PAGE, synced=False))
    disk.sync()
    disk.write(DiskWrite(PAGE, b"b" * 2 * PAGE, synced=False))
    disk.write(DiskWrite(32, b"meta", synced=True))
    images = {disk.image(random.Random(seed)) for seed in range(100)}
    assert {image[:PAGE] for image in images} == {b"a" * 32 + b"meta" + b"a" * (PAGE - 36)}
    assert {image[PAGE :: PAGE // 2][::2] for image in images} == {b"o", b"b", b"bb", b"ob"}
    disk.sync()
    assert {disk.image(random.Random(seed))[PAGE:] for seed in range(9)} == {b"b" * 2 * PAGE}
