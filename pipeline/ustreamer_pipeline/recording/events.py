# SPDX-License-Identifier: Apache-2.0
"""All records except deliveries, as rows of the small tables. Pure; plain Python loops, as these records are few."""

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ustreamer_pipeline.recording.layout import (
    ANCHOR,
    BATCH,
    CONFIG,
    COUNTERS,
    DEAD_LETTER,
    ENDS,
    GAP,
    GAP_CAUSES,
    NO_CODE,
    PAYLOAD,
    PAYLOAD_BYTES,
    PAYLOAD_KEPT,
    SUBSCRIPTION,
    TYPES,
)
from ustreamer_pipeline.recording.rows import DAY_US, EPOCH
from ustreamer_pipeline.recording.samples import SamplesFault, dropped_samples, read_samples
from ustreamer_pipeline.recording.segments import RAW_MAX, Segment, clipped_ms
from ustreamer_pipeline.schemas import (
    CHANGES,
    DEAD_LETTERS,
    EPOCHS,
    GAPS,
    LEAPS,
    QUARANTINE,
    SEGMENTS,
    SUBSCRIPTIONS,
    VERDICTS,
    WIDE,
    Table,
)
from ustreamer_pipeline.schemas import (
    COUNTERS as COUNTERS_TABLE,
)

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
EventRow = tuple[Table, int, Row]
"""A table, the wall clock that decides the date, and the values of the columns."""

_VERDICTS: Final = tuple(verdict.lower() for verdict in VERDICTS)


class _UnresolvedReference(LookupError):
    """A record refers to a string or target that is not in the file."""


class _Reader:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.run = segment.header.run

    def text(self, key: Any, what: str) -> str | None:
        if not key:
            return None
        text = self.segment.strings.get(int(key))
        if text is None:
            raise _UnresolvedReference(f"{what}: string {key} is not in the file")
        return text

    def required_text(self, key: Any, what: str) -> str:
        text = self.text(key, what)
        if text is None:
            raise _UnresolvedReference(f"{what}: expected one")
        return text

    def us(self, mono_ns: Any) -> int:
        return int(self.segment.wall_us(np.array([mono_ns], np.int64))[0])

    def subscription(self, record: Any, position: int) -> EventRow:
        time_us = self.us(record["time_ns"])
        if record["change"] >= len(CHANGES):
            raise _UnresolvedReference(f"change {record['change']}: expected 0 to {len(CHANGES) - 1}")
        row = {
            "number": int(record["number"]),
            "time_us": time_us,
            "time_ns": int(record["time_ns"]),
            "topic": self.required_text(record["topic"], "topic"),
            "subscriber": self.required_text(record["subscriber"], "subscriber"),
            "change": CHANGES[record["change"]],
            "period_ns": int(record["period_ns"]),
        }
        return SUBSCRIPTIONS, time_us, row

    def dead_letter(self, record: Any, position: int) -> EventRow:
        time_us = self.us(record["time_ns"])
        target = self.segment.targets.get(int(record["target"]))
        if target is None:
            raise _UnresolvedReference(f"target {record['target']} is not in the file")
        row = {
            "seq": int(record["seq"]),
            "time_us": time_us,
            "id_msb": int(record["id_msb"]),
            "id_lsb": int(record["id_lsb"]),
            "source": self.text(record["source"], "source"),
            "sink": self.text(record["sink"], "sink"),
            "code": None if record["code"] == NO_CODE else int(record["code"]),
            "reason": self.text(record["reason"], "reason"),
            "endpoint": self.text(target["egress"] or target["ingress"], "endpoint"),
            "attempts": int(record["attempts"]),
            "size": int(record["size"]),
            "payload": self._payload(record, position) if record["flags"] & PAYLOAD_KEPT else None,
        }
        return DEAD_LETTERS, time_us, row

    def _payload(self, record: Any, position: int) -> bytes:
        kept, parts = int(record["kept"]), int(record["parts"])
        behind = slice(position + 1, position + 1 + parts)
        found = self.segment.cells[behind].view(TYPES[PAYLOAD])
        whole = (
            len(found) == parts == -(-kept // PAYLOAD_BYTES)
            and np.all(found["kind"] == PAYLOAD)
            and np.all(found["seq"] == record["seq"])
            and np.array_equal(found["part"], np.arange(parts))
        )
        if not whole:
            raise _UnresolvedReference(f"payload: expected {kept} bytes in {parts} records behind it")
        return b"".join(part.tobytes() for part in found["bytes"])[:kept]

    def config(self, record: Any, position: int) -> EventRow:
        since_us = self.us(record["since_ns"])
        row = {
            "epoch": int(record["epoch"]),
            "since_us": since_us,
            "since_ns": int(record["since_ns"]),
            "settings": self.text(record["text"], "text"),
        }
        return EPOCHS, since_us, row

    def gap(self, record: Any, position: int) -> EventRow:
        from_us = self.us(record["from_ns"])
        if record["cause"] >= len(GAP_CAUSES):
            raise _UnresolvedReference(f"cause {record['cause']}: expected 0 to {len(GAP_CAUSES) - 1}")
        row = {
            "cause": GAP_CAUSES[record["cause"]],
            "first_seq": int(record["first_seq"]),
            "rows": int(record["rows"].sum()),
            "from_us": from_us,
            "until_us": self.us(record["until_ns"]),
            "from_ns": int(record["from_ns"]),
            "until_ns": int(record["until_ns"]),
            **dict(zip(_VERDICTS, record["rows"].tolist(), strict=True)),
            "changes": int(record["changes"]),
            "letters": int(record["letters"]),
        }
        return GAPS, from_us, row

    def counters(self, record: Any, position: int) -> EventRow:
        time_us = self.us(record["mono_ns"])
        row = {
            "time_us": time_us,
            "final": bool(record["cause"]),
            **dict(zip(("received", *_VERDICTS, "queued"), record["ledger"].tolist(), strict=True)),
            "next_seq": int(record["next_seq"]),
            "skipped": int(record["skipped"]),
        }
        return COUNTERS_TABLE, time_us, row

    def batch(self, record: Any, position: int) -> EventRow:
        """A BATCH that could not be expanded."""
        raise _UnresolvedReference(
            f"{record['rows']} rows in {record['records']} records: no BATCH is like that"
        )


_KINDS: Final = {
    SUBSCRIPTION: _Reader.subscription,
    DEAD_LETTER: _Reader.dead_letter,
    CONFIG: _Reader.config,
    GAP: _Reader.gap,
    COUNTERS: _Reader.counters,
    BATCH: _Reader.batch,
}


def find_event_rows(segment: Segment, file: str, rows: int) -> Iterator[EventRow]:
    """All rows of the small tables from a segment; `rows` is its number of deliveries."""
    reader = _Reader(segment)
    for kind, read in _KINDS.items():
        for position, record in zip(segment.positions_of(kind).tolist(), segment.records(kind), strict=True):
            try:
                table, wall_us, row = read(reader, record, position)
            except _UnresolvedReference as error:
                began_us = segment.header.wall_ms * 1_000
                yield _quarantine_row(
                    began_us, file, int(segment.offsets[position]), str(error), record.tobytes()
                )
            else:
                yield table, wall_us, {"run": reader.run, **row}
    for bad in read_samples(segment):
        if isinstance(bad, SamplesFault):
            raw = segment.cells[bad.position].tobytes()
            at = int(segment.offsets[bad.position])
            yield _quarantine_row(segment.header.wall_ms * 1_000, file, at, bad.reason, raw)
    yield from _clock_steps(segment)
    yield _segment_row(segment, rows)
    for fault in segment.faults:
        yield _quarantine_row(fault.from_us, file, fault.offset, fault.reason, fault.raw)
        yield (
            GAPS,
            fault.from_us,
            {
                "run": reader.run,
                "cause": "DAMAGED",
                "first_seq": fault.first_seq,
                "rows": fault.rows,
                "from_us": fault.from_us,
                "until_us": fault.until_us,
                "from_ns": fault.from_ns,
                "until_ns": fault.until_ns,
            },
        )


def _clock_steps(segment: Segment) -> Iterator[EventRow]:
    """ANCHOR records with a step of the wall clock since the previous anchor, also across files."""
    anchors = segment.records(ANCHOR)
    for anchor in anchors[anchors["leap_ms"] != 0]:
        time_us = clipped_ms(int(anchor["wall_ms"])) * 1_000
        row = {
            "run": segment.header.run,
            "time_us": time_us,
            "time_ns": int(anchor["mono_ns"]),
            "leap_ms": int(anchor["leap_ms"]),
        }
        yield LEAPS, time_us, row


def _quarantine_row(wall_us: int, file: str, offset: int, reason: str, raw: bytes) -> EventRow:
    return (
        QUARANTINE,
        wall_us,
        {"file": file, "offset": offset, "rows": 0, "reason": reason, "raw": raw[:RAW_MAX]},
    )


def _segment_row(segment: Segment, rows: int) -> EventRow:
    header, end = segment.header, segment.end
    began_us = header.wall_ms * 1_000
    row = {
        "run": header.run,
        "number": header.number,
        "began_us": began_us,
        "began_ns": header.mono_ns,
        "first_seq": header.first_seq,
        "next_seq": segment.next_seq,
        "first_change": header.first_change,
        "next_change": None if end is None else int(end["next_change"]),
        "rows": rows,
        "end": None if end is None else ENDS[min(end["cause"], len(ENDS) - 1)],
        "ended_us": None if end is None else clipped_ms(int(end["wall_ms"])) * 1_000,
        "dropped": dropped_samples(segment),
    }
    return SEGMENTS, began_us, row


def event_batch(rows: list[EventRow], day: int, gateway: str) -> "pa.RecordBatch":
    """The rows of one day, as a batch of the frame WIDE."""
    import pyarrow as pa

    date = EPOCH + dt.timedelta(days=day)
    listed = [
        {**row, "table": table.name, "date": date, "gateway": gateway}
        for table, wall_us, row in rows
        if wall_us // DAY_US == day
    ]
    return pa.RecordBatch.from_pylist(listed, schema=WIDE.arrow_schema())
