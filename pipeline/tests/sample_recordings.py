# SPDX-License-Identifier: Apache-2.0
"""Recordings for tests, from the writer of the recorder."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from ustreamer_recorder.events import Event, Row, Target
from ustreamer_recorder.layout import EndCause, SegmentHeader
from ustreamer_recorder.writer import SegmentWriter

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID

NOON_MS = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000
"""12:00 of 14 November 2023: time 0 of the monotonic clock in these recordings."""
MS = 1_000_000
TOPIC = "//chassis.vin1/10A0/1/8001"
TARGET = Target(1, 1, "chassis", "backbone", TOPIC, None, 0, 0)
ROW = Row(
    seq=0,
    id=UUID(NOON_MS << 16 | 0x7001, 0b10 << 62 | 5),
    verdict=Verdict.DELIVERED,
    target=TARGET,
    type=UMessageType.PUBLISH,
    source=TOPIC,
    sink=None,
    priority=1,
    size=20,
    arrived_ns=0,
    received_ns=0,
    first_attempt_ns=1_000,
    settled_ns=2_000,
    attempts=1,
)

Record = Callable[..., Path]


def make_row(seq: int, at_ms: float = 1.0, **changed: Any) -> Row:
    """A valid row, received at a time of the monotonic clock."""
    ns = int(at_ms * MS)
    times = {"arrived_ns": ns, "received_ns": ns, "first_attempt_ns": ns + 1_000, "settled_ns": ns + 2_000}
    row: Row = msgspec.structs.replace(ROW, **{"seq": seq, **times, **changed})
    return row


def write_recording(
    place: Path,
    events: Iterable[Event],
    *,
    folder: str = "recordings",
    gateway: str = "hpc.vin1",
    run: int = 1,
    number: int = 0,
    first_seq: int = 0,
    block: int = 100,
    cause: EndCause | None = EndCause.STOPPED,
    still_open: bool = False,
) -> Path:
    """Write a file below `place` with `block` events per block."""
    (place / folder).mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(place / folder, SegmentHeader(gateway, run, number, 0, NOON_MS, first_seq, 0))
    for index, event in enumerate(events):
        if index % block == 0:
            writer.flush(0, NOON_MS)
        writer.add_event(event)
    writer.flush(0, NOON_MS)
    return writer.abandon() if still_open else writer.close(cause)


def signed(value: int) -> int:
    return value - (value >> 63 << 64)


def expected(row: Row) -> dict[str, object]:
    """Expected row of the frame RECORDED, for a file without clock steps."""
    target = row.target
    return {
        "seq": row.seq,
        "id_msb": signed(row.id.msb),
        "id_lsb": signed(row.id.lsb),
        "verdict": row.verdict,
        "type": row.type,
        "source": row.source,
        "sink": row.sink,
        "priority": row.priority,
        "size": row.size,
        "arrived_ns": row.arrived_ns,
        "received_ns": row.received_ns,
        "received_us": NOON_MS * 1000 + row.received_ns // 1000,
        "first_attempt_ns": row.first_attempt_ns,
        "settled_ns": row.settled_ns,
        "attempts": row.attempts,
        "flags": row.held + 2 * (row.ttl_ms is not None),
        "ttl_ms": row.ttl_ms or 0,
        "code": 255 if row.code is None else row.code,
        "reason": row.reason,
        "epoch": row.epoch,
        "request_msb": signed(row.request.msb) if row.request else 0,
        "request_lsb": signed(row.request.lsb) if row.request else 0,
        "ingress": target.ingress,
        "egress": target.egress,
        "topic": target.topic,
        "subscriber": target.subscriber,
        "delivery": target.delivery,
        "period_ns": target.period_ns,
        "tuned_ns": target.tuned_ns,
        "fault": None,
    }
