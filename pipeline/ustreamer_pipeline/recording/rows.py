# SPDX-License-Identifier: Apache-2.0
"""DELIVERY records to rows of the frame RECORDED: ids resolved, rows of one gateway in order of time. Pure, numpy only.

A segment has its rows in the order of verdicts; the tables have them in the order of decisions, (received_ns, seq). A
row waits only until no later segment of its run can have an earlier one. Memory holds one segment and its overlap
with the next, not a day.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.recording.layout import ANSWER, DELIVERY, STRINGS_MAX, Ints, Records
from ustreamer_pipeline.recording.segments import Segment
from ustreamer_pipeline.schemas import RECORDED

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 100_000
DAY_US: Final = 86_400_000_000
EPOCH: Final = dt.date(1970, 1, 1)

_TEXTS: Final = ("source", "sink", "topic", "subscriber", "ingress", "egress", "reason", "fault", "file")
_ROW: Final = np.dtype(
    [
        (column.name, "V96" if column.name == "raw" else "<i4" if column.name in _TEXTS else "<i8")
        for column in RECORDED.columns[: -len(RECORDED.partitioned_by)]
    ]
)
"""A row during the sort: texts are numbers in a `TextPool`, -1 is null."""
_BYTES: Final = np.dtype(f"V{_ROW.itemsize}")

_COPIED: Final = (
    *(
        "seq",
        "id_msb",
        "id_lsb",
        "received_ns",
        "arrived_ns",
        "first_attempt_ns",
        "settled_ns",
        "type",
        "priority",
    ),
    *("flags", "ttl_ms", "size", "verdict", "code", "attempts", "epoch"),
)

Texts = npt.NDArray[np.int32]


class TextPool:
    """Texts by number, shared by the segments of one gateway: every distinct text once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: pa.Array | None = None

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def column(self, numbers: Texts) -> "pa.Array":
        """A column of texts; -1 is null."""
        import pyarrow as pa

        if self._texts is None or len(self._texts) < len(self._numbers):
            self._texts = pa.array(list(self._numbers), pa.string())
        indices = pa.array(numbers, mask=numbers < 0)
        return pa.DictionaryArray.from_arrays(indices, self._texts).cast(pa.string())


@dataclass(frozen=True)
class SegmentSource:
    """One segment of a day: a function to load it, and the limits from adjacent segments.

    `floor` is the lowest seq that earlier segments do not have. `later_from_ns` is the earliest received_ns of all
    later segments of the run, None for the last.
    """

    load: Callable[[], Segment]
    file: str
    floor: int
    later_from_ns: int | None


def day_of(wall_us: Ints) -> Ints:
    """Days since 1970, UTC."""
    days: Ints = wall_us // DAY_US
    return days


def day_text(day: int) -> str:
    """Folder name of a day."""
    return (EPOCH + dt.timedelta(days=day)).isoformat()


def rows_of(segment: Segment, pool: TextPool, file: str, floor: int, *, detail: bool) -> Records:
    """Rows of a segment in order of seq. `detail` adds file, offset and bytes, for the quarantine."""
    where = segment.positions_of(DELIVERY)
    cells = segment.cells[where]
    records = segment.records(DELIVERY)
    rows = np.zeros(len(records), _ROW)
    for name in _COPIED:
        rows[name] = records[name]
    rows["run"] = segment.header.run
    rows["received_us"] = segment.wall_us(records["received_ns"])
    rows["fault"] = -1
    rows["file"] = pool.number(file) if detail else -1
    if detail:
        rows["offset"] = segment.offsets[where]
        rows["raw"] = cells
    strings = _Strings(segment, pool)
    for name in ("source", "sink", "reason"):
        rows[name] = strings.numbers(records[name])
        _set_fault(
            rows,
            rows[name] == _Strings.UNKNOWN,
            records[name],
            f"{name}: string {{}} is not in the file",
            pool,
        )
    _fill_targets(rows, records, segment, strings, pool)
    _fill_responses(rows, segment, where)
    _set_fault(rows, _not_rising(rows["seq"], floor), rows["seq"], "seq {}: was there already", pool)
    return rows


class _Strings:
    """Map string ids of one file to numbers in a pool."""

    NONE: Final = -1
    UNKNOWN: Final = -2

    def __init__(self, segment: Segment, pool: TextPool) -> None:
        self._table = np.full(STRINGS_MAX + 2, self.UNKNOWN, np.int32)
        self._table[0] = self.NONE
        for key, text in segment.strings.items():
            self._table[key] = pool.number(text)

    def numbers(self, ids: npt.NDArray[np.uint32]) -> Texts:
        found: Texts = self._table[np.minimum(ids, STRINGS_MAX + 1)]
        return found


def _fill_targets(
    rows: Records, records: Records, segment: Segment, strings: _Strings, pool: TextPool
) -> None:
    """Fields of the TARGET of each row: endpoints, topic, subscriber, gate and limit."""
    known = segment.targets
    numbers, at = np.unique(records["target"], return_inverse=True)
    missing = np.array([int(number) not in known for number in numbers], np.bool_)
    _set_fault(rows, missing[at], records["target"], "target {} is not in the file", pool)
    found = [known[int(number)] for number in numbers if int(number) in known]
    for name in ("delivery", "period_ns", "tuned_ns"):
        values = np.zeros(len(numbers), np.int64)
        values[~missing] = [int(target[name]) for target in found]
        rows[name] = values[at]
    for name in ("ingress", "egress", "topic", "subscriber"):
        texts = np.full(len(numbers), _Strings.NONE, np.int32)
        texts[~missing] = strings.numbers(np.array([target[name] for target in found], np.uint32))
        rows[name] = texts[at]
        _set_fault(
            rows,
            rows[name] == _Strings.UNKNOWN,
            records["target"],
            f"{name} of target {{}} is not in the file",
            pool,
        )


def _fill_responses(rows: Records, segment: Segment, where: Ints) -> None:
    """An ANSWER directly follows its row."""
    positions = segment.positions_of(ANSWER)
    answers = segment.records(ANSWER)
    at = np.searchsorted(where, positions - 1)
    at = np.minimum(at, max(len(where) - 1, 0))
    if len(where):
        theirs = (where[at] == positions - 1) & (rows["seq"][at] == answers["seq"])
        for name in ("request_msb", "request_lsb"):
            rows[name][at[theirs]] = answers[name][theirs]


def _not_rising(seq: Ints, floor: int) -> npt.NDArray[np.bool_]:
    before = np.maximum.accumulate(np.concatenate(([floor - 1], seq)))[:-1]
    stale: npt.NDArray[np.bool_] = seq <= before
    return stale


def _set_fault(
    rows: Records, bad: npt.NDArray[np.bool_], values: Records, reason: str, pool: TextPool
) -> None:
    """Set the fault of rows without one. Distinct values are few relative to rows."""
    bad = bad & (rows["fault"] < 0)
    if bad.any():
        distinct, at = np.unique(values[bad], return_inverse=True)
        rows["fault"][bad] = np.array([pool.number(reason.format(value)) for value in distinct], np.int32)[at]


def merge_day(
    parts: Iterable[SegmentSource], pool: TextPool, day: int, *, detail: bool = False
) -> Iterator[Records]:
    """Rows of one day in order of (run, received_ns, seq), in pieces. `parts` are in order of run and number."""
    waiting = np.zeros(0, _ROW)
    for part in parts:
        segment = part.load()
        rows = rows_of(segment, pool, part.file, part.floor, detail=detail)
        # As bytes: numpy moves structured rows field by field, which takes ten times as long.
        here = rows.view(_BYTES)[day_of(rows["received_us"]) == day]
        rows = np.concatenate((waiting.view(_BYTES), here)).view(_ROW)
        # A stable sort keeps the order of seq for equal received_ns: later segments have later rows.
        rows = rows.view(_BYTES)[np.argsort(rows["received_ns"], kind="stable")].view(_ROW)
        ready = (
            len(rows)
            if part.later_from_ns is None
            else int(np.searchsorted(rows["received_ns"], part.later_from_ns, side="left"))
        )
        yield rows[:ready]
        waiting = rows[ready:]
    yield waiting


def record_batches(rows: Records, pool: TextPool, day: int, gateway: str) -> "Iterator[pa.RecordBatch]":
    """Rows as batches of the frame RECORDED."""
    import pyarrow as pa

    schema = RECORDED.arrow_schema()
    for start in range(0, len(rows), BATCH_ROWS):
        piece = rows[start : start + BATCH_ROWS]
        columns = [_column(piece, name, pool, schema.field(name).type) for name in _ROW.names or ()]
        columns.append(pa.repeat(pa.scalar(EPOCH + dt.timedelta(days=day), pa.date32()), len(piece)))
        columns.append(pa.repeat(pa.scalar(gateway, pa.string()), len(piece)))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(rows: Records, name: str, pool: TextPool, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    if name in _TEXTS:
        return pool.column(np.maximum(rows[name], _Strings.NONE))
    if name == "raw":
        none = rows["file"] < 0
        return (
            pa.nulls(len(rows), kind)
            if none.all()
            else pa.array([row.tobytes() for row in rows["raw"]], kind)
        )
    values = np.ascontiguousarray(rows[name])
    if name == "offset":
        return pa.array(values, kind, mask=rows["file"] < 0)
    return pa.array(values).cast(kind, safe=False)
