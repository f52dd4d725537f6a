# SPDX-License-Identifier: Apache-2.0
"""What happened to a topic or to a subscriber, across gateways: its subscriptions, its messages, its dead letters.

In: a lake and an address. Out: events in order of time. Messages of one target with one limit are one event, with the
number of each verdict. Without Spark.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.export.trace import TraceEvent
from ustreamer_pipeline.lake.snapshot import Snapshot, load_snapshot
from ustreamer_pipeline.lake.tables import read_file
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.schemas import DEAD_LETTERS, DELIVERIES, SUBSCRIPTIONS, WIDE, Table

Row = dict[str, Any]
_KEY: Final = ("gateway", "run", "source", "sink", "ingress", "egress", "subscriber", "delivery", "period_ns")


class Stretch(NamedTuple):
    """Messages of one source for one target with one limit."""

    gateway: str
    run: int
    source: str
    sink: str | None
    ingress: str
    egress: str | None
    subscriber: str | None
    delivery: int
    period_ns: int


@dataclass
class _Span:
    """The first and last time of a stretch, and its messages by verdict."""

    from_us: int
    until_us: int
    verdicts: Counter[str] = field(default_factory=Counter)


def trace_address(lake: str, text: str, since: str = "", until: str = LAST_DATE) -> list[TraceEvent]:
    """The events of a topic, or of a subscriber. Raises UsageError for a text that is no address."""
    try:
        address = UUri.parse(text)
    except UStatusError as error:
        raise UsageError(
            f"{text}: expected the UUID of a message, a topic or a subscriber: {error.message}"
        ) from error
    snapshot = load_snapshot(lake)
    small = [row for batch in _batches(snapshot, WIDE, since, until) for row in _small_rows(batch)]
    topics = _Addresses(address)
    if address.resource_id == 0:  # an entity, which subscribes
        mine = [
            row for row in small if row["table"] == SUBSCRIPTIONS.name and topics.match(row["subscriber"])
        ]
        patterns = [UUri.parse(row["topic"]) for row in mine]
        subscribed = _Addresses(*patterns)
        letters = [row for row in small if row["table"] == DEAD_LETTERS.name and topics.match(row["sink"])]
        spans = _spans(_batches(snapshot, DELIVERIES, since, until), subscribed, topics)
    else:
        mine = [
            row for row in small if row["table"] == SUBSCRIPTIONS.name and topics.covered_by(row["topic"])
        ]
        letters = [row for row in small if row["table"] == DEAD_LETTERS.name and topics.match(row["source"])]
        spans = _spans(_batches(snapshot, DELIVERIES, since, until), topics, None)
    events = [_subscription_event(row) for row in mine] + [_letter_event(row) for row in letters]
    return sorted(events + [_stretch_event(stretch, span) for stretch, span in spans.items()])


class _Addresses:
    """Whether an address matches one of some patterns; each text is parsed once."""

    def __init__(self, *patterns: UUri) -> None:
        self._patterns = list(dict.fromkeys(patterns))
        self._known: dict[str, bool] = {}

    def match(self, text: str | None) -> bool:
        if text is None:
            return False
        if text not in self._known:
            uuri = UUri.parse(text)
            self._known[text] = any(pattern.matches(uuri) for pattern in self._patterns)
        return self._known[text]

    def covered_by(self, pattern: str) -> bool:
        """Whether a subscription of `pattern` leads to one of the addresses."""
        covers = UUri.parse(pattern)
        return any(covers.matches(each) or each.matches(covers) for each in self._patterns)

    def mask(self, column: pa.Array) -> pa.Array:
        """Rows whose address matches."""
        encoded = column.dictionary_encode()
        found = pa.array([self.match(text) for text in encoded.dictionary.to_pylist()], pa.bool_())
        return pc.fill_null(found.take(encoded.indices), False)


def _batches(snapshot: Snapshot, table: Table, since: str, until: str) -> Iterator[pa.RecordBatch]:
    for file in snapshot.files_of(table.name):
        if since <= day_text(file.day) <= until:
            yield from read_file(snapshot.storage, file, table)


def _small_rows(batch: pa.RecordBatch) -> list[Row]:
    wanted = pa.array([SUBSCRIPTIONS.name, DEAD_LETTERS.name])
    rows: list[Row] = batch.filter(pc.is_in(batch.column("table"), wanted)).to_pylist()
    return rows


def _spans(
    batches: Iterable[pa.RecordBatch], sources: _Addresses, subscriber: _Addresses | None
) -> dict[Stretch, _Span]:
    """Stretches of these sources; with a subscriber, those for it or for all listeners, and messages to it."""
    found: dict[Stretch, _Span] = {}
    for batch in batches:
        mask = sources.mask(batch.column("source"))
        if subscriber is not None:
            to_it = subscriber.mask(batch.column("subscriber"))
            for_all = pc.and_(
                pc.is_null(batch.column("subscriber")), pc.equal(batch.column("type"), "PUBLISH")
            )
            mask = pc.or_(pc.and_(mask, pc.or_(to_it, for_all)), subscriber.mask(batch.column("sink")))
        chosen = pa.Table.from_batches([batch.filter(mask)])
        grouped = chosen.group_by([*_KEY, "verdict"]).aggregate(
            [("received_us", "min"), ("received_us", "max"), ("received_us", "count")]
        )
        for row in grouped.to_pylist():
            span = found.setdefault(
                Stretch(*(row[name] for name in _KEY)), _Span(row["received_us_min"], row["received_us_max"])
            )
            span.from_us = min(span.from_us, row["received_us_min"])
            span.until_us = max(span.until_us, row["received_us_max"])
            span.verdicts[row["verdict"]] += row["received_us_count"]
    return found


def _limit(period_ns: int) -> str:
    return f"at most {1e9 / period_ns:.4g} Hz" if period_ns else "without a limit"


def _subscription_event(row: Row) -> TraceEvent:
    limit = "" if row["change"] == "UNSUBSCRIBED" else f", {_limit(row['period_ns'])}"
    text = f"{row['change']} {row['topic']} by {row['subscriber']}{limit}"
    return TraceEvent(row["time_us"], row["gateway"], text)


def _letter_event(row: Row) -> TraceEvent:
    text = f"dead letter of {row['source']} at {row['endpoint']}: {row['reason'] or 'no reason given'}"
    return TraceEvent(row["time_us"], row["gateway"], text)


def _stretch_event(stretch: Stretch, span: _Span) -> TraceEvent:
    target = stretch.egress or "no target"
    if stretch.subscriber or stretch.sink:
        target = f"{target} {stretch.subscriber or stretch.sink}"
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(span.verdicts.items()))
    text = (
        f"{stretch.source}, {stretch.ingress} -> {target}, {_limit(stretch.period_ns)}, "
        f"for {(span.until_us - span.from_us) / 1e6:.1f} s: {verdicts}"
    )
    return TraceEvent(span.from_us, stretch.gateway, text)
