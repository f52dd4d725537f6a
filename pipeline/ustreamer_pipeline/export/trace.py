# SPDX-License-Identifier: Apache-2.0
"""What happened to one message, across gateways: its rows, those of its response, its dead letters and its signals.

In: a lake and the UUID of a message. Out: events in order of time. Without Spark: the id has the day of its creation.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ustreamer_pipeline.export.messages import signal_value
from ustreamer_pipeline.lake.snapshot import Snapshot, load_snapshot
from ustreamer_pipeline.lake.tables import read_file
from ustreamer_pipeline.recording.rows import DAY_US
from ustreamer_pipeline.schemas import DEAD_LETTERS, DELIVERIES, SAMPLED, SIGNALS, WIDE, Table

_DAYS_AROUND: Final = 1
"""A message is looked for on the day of its creation, by its sender's clock, and on the days next to it."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

Row = dict[str, Any]
Ids = tuple[int, int]


class TraceEvent(NamedTuple):
    """What happened to the message at a time: UTC in us, gateway, text."""

    time_us: int
    gateway: str
    text: str


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def trace(lake: str, id: str) -> list[TraceEvent]:
    """The events of a message, and of the response to it."""
    bits = int(id.replace("-", ""), 16)
    ids = _signed(bits >> 64), _signed(bits & 0xFFFF_FFFF_FFFF_FFFF)
    day = (bits >> 80) * 1_000 // DAY_US
    snapshot = load_snapshot(lake)
    events = [_delivery_event(row) for row in _rows(snapshot, DELIVERIES, day, ids, ("id", "request"))]
    found = [*_rows(snapshot, WIDE, day, ids, ("id",)), *_rows(snapshot, SAMPLED, day, ids, ("id",))]
    events += [_small_event(row) for row in found if row["table"] in (DEAD_LETTERS.name, SIGNALS.name)]
    return sorted(events)


def _signed(value: int) -> int:
    return value - (value >> 63 << 64)


def _rows(snapshot: Snapshot, table: Table, day: int, ids: Ids, names: tuple[str, ...]) -> Iterator[Row]:
    """Rows with this id in one of the named columns."""
    import pyarrow.compute as pc

    for file in snapshot.files_of(table.name):
        if abs(file.day - day) > _DAYS_AROUND:
            continue
        for batch in read_file(snapshot.storage, file, table):
            found = None
            for name in names:
                upper, lower = (batch.column(f"{name}_{half}") for half in ("msb", "lsb"))
                same = pc.and_(pc.equal(upper, ids[0]), pc.equal(lower, ids[1]))
                same = pc.fill_null(same, False)
                found = same if found is None else pc.or_(found, same)
            yield from batch.filter(found).to_pylist()


def _small_event(row: Row) -> TraceEvent:
    """A dead letter or a signal."""
    if row["table"] == DEAD_LETTERS.name:
        text = f"dead letter at {row['endpoint']}: {row['reason'] or 'no reason given'}"
    else:
        text = f"signal {row['signal']} = {signal_value(row)} {row['unit'] or ''}".rstrip()
    return TraceEvent(row["time_us"], row["gateway"], text)


def _delivery_event(row: Row) -> TraceEvent:
    address = row["sink"] or row["source"]
    target = row["subscriber"] or row["egress"] or "no target"
    reason = f": {row['reason']}" if row["reason"] else ""
    text = (
        f"{row['verdict']} {row['type']} {address}, {row['ingress']} -> {target}, "
        f"{row['latency_us']} us, {row['size']} B{reason}"
    )
    return TraceEvent(row["received_us"], row["gateway"], text)
