# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.recorder`: cost of a recorded verdict, on the path of messages and in total.

A verdict is `Delivery.settle`, which ends every delivery, or `Delivery.settle_delivered` for messages that leave
together, here 64. It is measured without a tap, with an empty tap, with a tap that appends a tuple to a list (the
minimum that keeps everything), and with the tap of the recorder. The rest of a row's path, from note to bytes to
file, runs on another thread and is measured separately.
Rounds are short and alternate; the fastest of each counts. For comparison one block is written by `pwrite`, as in the
recorder, and through a mapping. Exit code 1 if a row costs PATH_LIMIT_US or more on the path.
"""

import argparse
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.journal import Journal
from ustreamer_recorder.layout import MAX_RECORDS, RECORD
from ustreamer_recorder.note_queue import NoteQueue, Skipped

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, Ledger, Verdict
from ustreamer.core.delivery.ports import BackloggedEgress, Filter, SendOne, Tap
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

PATH_LIMIT_US: Final = 1.0

_ROWS: Final = 1_920
_BATCH_SIZE: Final = 64
_BLOCKS: Final = 40
_TOPIC: Final = UUri("chassis", 0x1234, 1, 0x8001)
_CLOCK: Final = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)


class _Ingress:
    """The part of an ingress that a delivery needs to settle."""

    name = "chassis"
    held = 0

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.taps: tuple[Tap, ...] = ()

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None: ...
    def on_filter_stop(
        self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus
    ) -> None: ...
    def on_filter_error(self, plugin: object, error: BaseException) -> None: ...
    def on_tap_error(self, tap: Tap, error: BaseException) -> None: ...

    def on_backlog(self, egress: BackloggedEgress) -> None: ...

    def is_paused(self, delivery: Delivery) -> bool:
        return False


class _Egress:
    name = "backbone"
    unicast = False

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None: ...

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None


class SettleBench:
    """Messages of one topic for one target, settled repeatedly."""

    def __init__(self) -> None:
        ids = UuidSource(_CLOCK.wall_ms)
        attributes = publish(ids.next(), _TOPIC).attributes
        self._messages = [UMessage(ids.next(), attributes, bytes(100)) for _ in range(_ROWS)]
        self._batches = [self._messages[at : at + _BATCH_SIZE] for at in range(0, _ROWS, _BATCH_SIZE)]
        self._ingress = _Ingress()
        self._delivery = Delivery(self._ingress, _Egress(), _TOPIC)

    def settle_us(self, *taps: Tap) -> float:
        """Microseconds per settled delivery."""
        self._ingress.taps = taps
        settle, ledger, now_ns = self._delivery.settle, self._ingress.ledger, _CLOCK.monotonic_ns()
        began_ns = time.perf_counter_ns()
        for message in self._messages:
            settle(ledger, message, Verdict.DELIVERED, now_ns, now_ns + 9, None, 1, now_ns + 5)
        return (time.perf_counter_ns() - began_ns) / 1_000 / _ROWS

    def batch_us(self, *taps: Tap) -> float:
        """The same for messages that leave together."""
        self._ingress.taps = taps
        settle, ledger = self._delivery.settle_delivered, self._ingress.ledger
        times_ns = [_CLOCK.monotonic_ns()] * _BATCH_SIZE
        began_ns = time.perf_counter_ns()
        for messages in self._batches:
            settle(ledger, messages, times_ns)
        return (time.perf_counter_ns() - began_ns) / 1_000 / _ROWS


def _idle_tap(*_: object, **__: object) -> None: ...


def _appending_tap() -> Tap:
    rows: list[object] = []
    append = rows.append

    def tap(
        message: UMessage,
        delivery: Delivery | None,
        verdict: Verdict,
        reason: UStatus | None,
        attempts: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
    ) -> None:
        append((message.id, message.attributes, delivery, verdict, reason, attempts, received_ns, settled_ns))

    return tap


def _written_us(journal: Journal, note_queue: NoteQueue, rows: int) -> float:
    """Microseconds per row, from its note to the file."""
    notes = note_queue.notes
    began_ns = time.perf_counter_ns()
    journal.write(notes, len(notes), note_queue)
    journal.tick(Skipped())
    return (time.perf_counter_ns() - began_ns) / 1_000 / rows


def _block_us(directory: Path) -> tuple[float, float]:
    """Microseconds per full block: `pwrite`, and a mapping, into allocated but unwritten space."""
    length = RECORD * (1 + MAX_RECORDS)
    block = os.urandom(length)
    descriptor = os.open(directory / "blocks", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(descriptor, 0, 2 * _BLOCKS * length)
        pwrite = _fastest(lambda at: os.pwrite(descriptor, block, at * length), range(_BLOCKS))
        with mmap.mmap(descriptor, 2 * _BLOCKS * length) as mapped:

            def copy(at: int) -> None:
                mapped[at * length : (at + 1) * length] = block

            return pwrite, _fastest(copy, range(_BLOCKS, 2 * _BLOCKS))
    finally:
        os.close(descriptor)


def _fastest(action: Callable[[int], object], arguments: Sequence[int]) -> float:
    fastest = float("inf")
    for argument in arguments:
        began_ns = time.perf_counter_ns()
        action(argument)
        fastest = min(fastest, (time.perf_counter_ns() - began_ns) / 1_000)
    return fastest


def measured(directory: Path, rounds: int) -> dict[str, float]:
    """The fastest of `rounds` rounds, in us per row, and the derived figures."""
    settle_bench = SettleBench()
    config = RecorderConfig(keep_free_bytes=0, max_bytes=64_000_000)
    note_queue = NoteQueue(2 * _ROWS, _CLOCK.monotonic_ns, UUri("hpc", 4, 1, 0x8000))
    journal = Journal(config, directory, "hpc", _CLOCK, 1)
    journal.tick(Skipped())
    recorder_tap = note_queue.tap("chassis")
    best: dict[str, float] = {}

    def keep_minimum(name: str, us: float) -> None:
        best[name] = min(best.get(name, us), us)

    for _ in range(rounds):
        keep_minimum("no_tap", settle_bench.settle_us())
        keep_minimum("idle_tap", settle_bench.settle_us(_idle_tap))
        keep_minimum("append", settle_bench.settle_us(_appending_tap()))
        keep_minimum("recorder", settle_bench.settle_us(recorder_tap))
        keep_minimum("writing", _written_us(journal, note_queue, _ROWS))
        keep_minimum("batches", settle_bench.batch_us())
        keep_minimum("batches_recorded", settle_bench.batch_us(recorder_tap))
        keep_minimum("batches_writing", _written_us(journal, note_queue, _ROWS))
    pwrite, mapped = _block_us(directory)
    journal.finish(EMPTY_LEDGER)
    on_the_path = best["recorder"] - best["no_tap"]
    return {
        **best,
        "on_the_path": on_the_path,
        "in_all": on_the_path + best["writing"],
        "batches_on_the_path": best["batches_recorded"] - best["batches"],
        "batches_in_all": best["batches_recorded"] - best["batches"] + best["batches_writing"],
        "times_append": on_the_path / max(best["append"] - best["no_tap"], 1e-9),
        "pwrite_block": pwrite,
        "mmap_block": mapped,
    }


def table(figures: dict[str, float]) -> str:
    def line(text: str, name: str, unit: str = "us") -> str:
        return f"{text:<58}{figures[name]:9.3f} {unit}"

    return "\n".join(
        [
            line("a delivery's end, without a tap", "no_tap"),
            line("with a tap that does nothing", "idle_tap"),
            line("with one that appends a tuple to a list", "append"),
            line("with the recorder's", "recorder"),
            line(f"a row on the path (limit {PATH_LIMIT_US:g} us)", "on_the_path"),
            line("the same, in times of the append", "times_append", "x"),
            line("a row on the writer's thread, to the file", "writing"),
            line("a row in all", "in_all"),
            line("a row of a batch on the path", "batches_on_the_path"),
            line("a row of a batch on the writer's thread, to the file", "batches_writing"),
            line("a row of a batch in all", "batches_in_all"),
            line(f"a block of {MAX_RECORDS} rows with pwrite, others may run", "pwrite_block"),
            line("the same through a mapping, for comparison", "mmap_block"),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorder", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ustreamer-bench-") as directory:
        figures = measured(Path(directory), arguments.rounds)
    print(json.dumps(figures) if arguments.json else table(figures))
    return int(figures["on_the_path"] >= PATH_LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
