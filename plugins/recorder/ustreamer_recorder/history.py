# SPDX-License-Identifier: Apache-2.0
"""What the files of a streamer state about each message: events of recordings and stored messages in, a `History` out.

No I/O. `proof.py` joins a history with the logs of senders and receivers.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.hooks import StoredMessage, StoredMessages
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.events import Anchor, Config, Counters, Damage, End, Event, Gap, Row
from ustreamer_recorder.layout import EndCause

FLUSH_MS: Final = 1_000
"""Rows of the last `flush_ms` before a kill are missing: 200 ms by default, and more on a slow disk."""
STOP_MS: Final = 30_000
"""A stop refuses messages for up to this time: the drain, 5 s by default, and closing, 10 s in an outage."""
DEFAULT_MAX_AGE_MS: Final = 30_000
BEFORE: Final = "before the first recording"


class RecordedVerdict(NamedTuple):
    """The verdict on one message for one target, with wall times. `address`: the topic, or the sink.

    `sent_ms`: the send was not earlier. The verdict may be much later on a busy machine.
    """

    verdict: Verdict
    egress: str | None
    subscriber: UUri | None
    address: UUri
    arrived_ms: int
    settled_ms: int
    sent_ms: int
    reason: str


class Window(NamedTuple):
    """A time in which a message can leave no trace in the files, and the cause."""

    since_ms: float
    until_ms: float
    cause: str


class Run(msgspec.Struct):
    """One life of the streamer. A run without `is_stopped` was killed, or still runs."""

    begin_ms: int
    last_ms: int
    """The time of the last event."""
    created_ms: dict[UUri, int] = {}
    """By topic or sink: when the last accepted message was created. It may have been on its way for some time."""
    is_stopped: bool = False
    queued: int = 0
    """Messages in the queues at the stop: they have no row."""
    max_age_ms: dict[str, int] = {}
    """By endpoint, of messages without ttl."""


class History:
    """All rows by message, the runs, and the messages in stores."""

    def __init__(self, stored: StoredMessages) -> None:
        self.rows: dict[UUID, list[RecordedVerdict]] = {}
        self.runs: dict[int, Run] = {}
        self.gaps: list[Window] = []
        self.durable_endpoints = frozenset(stored.spooled)
        self.spooled = _by_id(each for spool in stored.spooled.values() for each in spool)
        self.dead_letters = _by_id(stored.dead_letters)
        self._uuris: dict[str, UUri] = {}

    # --- recordings ---------------------------------------------------------------------------------------------------

    def add_segment(self, number: int, begin: Anchor, events: Iterable[Event | Damage]) -> None:
        """Add the events of one file of a run. Files come in their order. `begin` has the times of its header."""
        anchors = [begin]
        run = self.runs.setdefault(number, Run(begin.wall_ms, begin.wall_ms))
        for event in events:
            match event:
                case Anchor():
                    anchors.append(event)
                case Row():
                    self._add_row(run, event, anchors)
                case Gap():
                    since_ms, until_ms = (_wall_ms(anchors, each) for each in (event.from_ns, event.until_ns))
                    self.gaps.append(
                        Window(since_ms - FLUSH_MS, until_ms + FLUSH_MS, event.cause.name.lower())
                    )
                case Counters():
                    run.last_ms = _wall_ms(anchors, event.mono_ns)
                    run.queued = event.ledger.queued
                case Config():
                    limits = json.loads(event.text).get("egress") or {}
                    run.max_age_ms = {
                        name: each.get("max_age_ms", DEFAULT_MAX_AGE_MS) for name, each in limits.items()
                    }
                case End():
                    run.last_ms = event.wall_ms
                    run.is_stopped = event.cause is EndCause.STOPPED

    def _add_row(self, run: Run, row: Row, anchors: list[Anchor]) -> None:
        address = row.source if row.type is UMessageType.PUBLISH or row.sink is None else row.sink
        target, uuri = row.target, self._uuri(address)
        arrived_ms, settled_ms = _wall_ms(anchors, row.arrived_ns), _wall_ms(anchors, row.settled_ns)
        run.created_ms[uuri] = max(run.created_ms.get(uuri, 0), min(row.id.time_ms, arrived_ms))
        run.last_ms = max(run.last_ms, settled_ms)
        self.rows.setdefault(row.id, []).append(
            RecordedVerdict(
                row.verdict,
                target.egress,
                None if target.subscriber is None else self._uuri(target.subscriber),
                uuri,
                arrived_ms,
                settled_ms,
                _wall_ms(anchors, row.first_attempt_ns) if row.attempts == 1 else settled_ms,
                row.reason or "",
            )
        )

    def _uuri(self, text: str) -> UUri:
        known = self._uuris.get(text)
        if known is None:
            known = self._uuris[text] = UUri.parse(text)
        return known

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def not_in_spool(self) -> int:
        """Messages that were queued at a stop and are in no spool. They have no row, so no name.

        With a durable endpoint only the last stop counts: the next start restores those of an earlier one.
        """
        queued = [run.queued if run.is_stopped else 0 for run in self.runs.values()]
        counted = queued[-1:] if self.durable_endpoints else queued
        return max(0, sum(counted) - sum(map(len, self.spooled.values())))

    def ids(self) -> Iterator[UUID]:
        """All messages of the files."""
        yield from dict.fromkeys([*self.rows, *self.spooled, *self.dead_letters])

    def address_of(self, id: UUID) -> UUri | None:
        """The topic of a publication, the sink of any other message."""
        if rows := self.rows.get(id):
            return rows[0].address
        for each in (*self.spooled.get(id, ()), *self.dead_letters.get(id, ())):
            return address_of(each)
        return None

    def windows(self, endpoint: str, address: UUri) -> Iterator[Window]:
        """The times at which a message for this endpoint could end without a trace.

        In a stop: only after the last accepted message of the same topic or sink. Each input stops at its own time.
        """
        yield self._before
        for run, next_ms in self._runs_and_next():
            if run.is_stopped:
                created_ms = run.created_ms.get(address, run.begin_ms)
                yield Window(max(created_ms, run.last_ms - STOP_MS), next_ms, "streamer_down")
                continue
            killed_ms = run.last_ms - FLUSH_MS
            yield Window(killed_ms, next_ms, "streamer_down")
            if endpoint not in self.durable_endpoints:
                max_age_ms = run.max_age_ms.get(endpoint, DEFAULT_MAX_AGE_MS)
                yield Window(max(run.begin_ms, killed_ms - max_age_ms), killed_ms, "in_memory_at_kill")

    def unrecorded_windows(self) -> Iterator[Window]:
        """The times of which rows are missing: gaps, and the end of each run that was killed."""
        yield self._before
        yield from self.gaps
        for run, next_ms in self._runs_and_next():
            if not run.is_stopped:
                yield Window(run.last_ms - FLUSH_MS, next_ms, "killed")

    @property
    def _before(self) -> Window:
        begin_ms = next((run.begin_ms - 1 for run in self.runs.values()), math.inf)
        return Window(-math.inf, begin_ms, BEFORE)

    def _runs_and_next(self) -> Iterator[tuple[Run, float]]:
        """Each run, and the begin of the next one."""
        begins_ms: list[float] = [run.begin_ms for run in self.runs.values()]
        yield from zip(self.runs.values(), [*begins_ms, math.inf][1:], strict=False)


def address_of(message: StoredMessage) -> UUri:
    """The topic of a publication, the sink of any other message."""
    attributes = message.attributes
    return attributes.source if attributes.sink is None else attributes.sink


def _by_id(messages: Iterable[StoredMessage]) -> dict[UUID, list[StoredMessage]]:
    found: defaultdict[UUID, list[StoredMessage]] = defaultdict(list)
    for each in messages:
        found[each.id].append(each)
    return dict(found)


def _wall_ms(anchors: list[Anchor], time_ns: int) -> int:
    anchor = next((each for each in reversed(anchors) if each.mono_ns <= time_ns), anchors[0])
    return anchor.wall_us(time_ns) // 1000
