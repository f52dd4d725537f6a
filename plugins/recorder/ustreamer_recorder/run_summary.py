# SPDX-License-Identifier: Apache-2.0
"""The events of segment files, and the totals of the segments of a run."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer_recorder.events import Counters, Damage, End, Event, Gap, Letter, Row, SubscriptionChange
from ustreamer_recorder.layout import CountersCause, Damaged, EndCause
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import SegmentInfo


def segment_events(file: SegmentInfo) -> Iterator[Event | Damage]:
    """The events of a file. One that cannot be read is a damage."""
    try:
        yield from read_segment(file.path.read_bytes(), file.path.name)
    except Damaged as error:
        yield Damage(error.offset, 0, f"{file.path.name}: {error.reason}")
    except OSError as error:
        yield Damage(0, 0, f"{file.path.name}: {error.strerror}")


_FINAL: Final = [verdict.name.lower() for verdict in Verdict if verdict is not Verdict.QUEUED]


class RunSummary:
    """The totals of the segments of a run."""

    def __init__(self, first: int) -> None:
        self._rows = [0] * len(Verdict)
        self.segments = self.letters = self.changes = self.skipped = 0
        self.unannounced = 0
        self.damaged = 0
        self.torn = self.torn_bytes = 0
        self.deleted = first
        self.has_ended = False
        """Whether the last segment has an end: its writer finished it."""
        self.end = "killed, or still running"
        self.last_counters: Counters | None = None
        self._next_number = first
        self._next_seq: int | None = None

    @property
    def verdicts(self) -> Counter[str]:
        """The number of rows by verdict."""
        return Counter({verdict.name.lower(): self._rows[verdict] for verdict in Verdict})

    def count_events(self, file: SegmentInfo) -> Iterator[Event | Damage]:
        """Add the next file of the run, and pass its events on."""
        self.segments += 1
        self.deleted += file.number - self._next_number
        if file.number != self._next_number:
            self._next_seq = None  # rows of deleted segments are not missing
        self._next_number = file.number + 1
        self.has_ended = False
        for event in segment_events(file):
            self._count(event)
            yield event

    def _count(self, event: Event | Damage) -> None:
        match event:
            case Row():
                self._rows[event.verdict] += 1
                if event.seq != self._next_seq:
                    self._expect(event.seq, 1)
                else:
                    self._next_seq = event.seq + 1
            case Gap():
                self.skipped += sum(event.rows)
                self._expect(event.first_seq, sum(event.rows))
            case Letter():
                self.letters += 1
            case SubscriptionChange():
                self.changes += 1
            case Counters():
                self.last_counters = event
            case End():
                self.has_ended = True
                self.end = "stopped" if event.cause is EndCause.STOPPED else "rotated"
            case Damage():
                self.torn += event.torn
                self.torn_bytes += event.length * event.torn
                self.damaged += not event.torn

    def _expect(self, seq: int, rows: int) -> None:
        if self._next_seq is not None and seq != self._next_seq:
            self.unannounced += max(0, seq - self._next_seq)
        self._next_seq = seq + rows

    @property
    def ledger_agrees(self) -> bool | None:
        """Whether rows and gaps match the dispatcher's ledger; None if segments are missing or damaged."""
        last = self.last_counters
        whole = not (self.deleted or self.damaged or self.unannounced)
        if last is None or last.cause is not CountersCause.STOPPED or not whole:
            return None
        return self._agrees_with(last.ledger)

    def _agrees_with(self, ledger: LedgerSnapshot) -> bool:
        """Whether the rows are those that the ledger counts.

        A stop can take delivered messages back that may not have arrived. Their rows stay `delivered`, and the ledger
        counts them as dead-lettered, or as queued on disk.
        """
        counted = msgspec.to_builtins(ledger)
        verdicts = self.verdicts
        more = {name: verdicts[name] - counted[name] for name in _FINAL}
        persisted = sum(more.values()) + self.skipped
        if not 0 <= persisted <= ledger.queued:
            return False
        if self.skipped:
            return True
        # Those taken back are exactly the sum of these two.
        del more["delivered"]
        return more.pop("dead_lettered") <= 0 and not any(more.values())

    @property
    def is_complete(self) -> bool:
        """False for damage, rows that are missing without a GAP, or a ledger that does not agree."""
        return not (self.damaged or self.unannounced or self.ledger_agrees is False)

    def missing(self) -> list[str]:
        """A sentence about each part of the run that is not in the files, although that is no damage."""
        found = []
        if self.deleted:
            found.append(f"{self.deleted} segments were deleted or are elsewhere: their messages are missing")
        if self.torn:
            found.append(
                f"{self.torn_bytes} bytes behind the last whole block are torn: their messages are missing"
            )
        if not self.has_ended:
            found.append(
                "the last segment has no end: the recorder was killed or still runs, or the file was cut"
            )
        return found

    def line(self, run: int) -> dict[str, Any]:
        return {
            "run": f"{run:016x}",
            "segments": self.segments,
            "deleted": self.deleted,
            "rows": sum(self.verdicts.values()),
            **{
                verdict.name.lower(): self.verdicts[verdict.name.lower()]
                for verdict in Verdict
                if verdict < 6
            },
            "changes": self.changes,
            "letters": self.letters,
            "skipped": self.skipped,
            "unannounced": self.unannounced,
            "damaged": self.damaged,
            "torn": self.torn,
            "end": self.end,
            "ledger_agrees": self.ledger_agrees,
        }
