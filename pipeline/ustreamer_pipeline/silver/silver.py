# SPDX-License-Identifier: Apache-2.0
"""Bronze to silver: frames in, frames out. The meaning of a record is expressed in functions of Spark.

`recorded` and `event_rows` read bronze. A task has whole units (a gateway and a day) and yields the rows of each unit
in order. Spark sorts or shuffles no row, here and in readers of the table.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ustreamer_throttle.gate import MAX_PERIOD_NS

from ustreamer_pipeline.bronze.landing import SegmentSummary, read_bronze, segment_file
from ustreamer_pipeline.bronze.manifest import Manifest, Unit
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.recording import events, rows
from ustreamer_pipeline.recording.layout import DELIVERY, HAS_TTL, HELD, NO_CODE
from ustreamer_pipeline.recording.segments import Segment, read_segment
from ustreamer_pipeline.schemas import DELIVERIES, QUARANTINE, RECORDED, SAMPLED, TYPES, VERDICTS, WIDE, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

TASK_ROWS: Final = 500_000
"""Rows per task: 3 s of work. One gateway day is never split, so a task may have more."""
TASK_UNITS: Final = 64
"""Maximum number of units per task: each has an open file."""
LAST_CODE: Final = 16  # of google.rpc.Code


@dataclass(frozen=True)
class SegmentPart:
    """One segment of a unit: see `rows.SegmentSource`."""

    file: str
    floor: int
    later_from_ns: int | None


@dataclass(frozen=True)
class UnitPlan:
    """One unit and its segments, in order of run and number."""

    gateway: str
    day: int
    parts: tuple[SegmentPart, ...]
    rows: int


def plan_unit(manifest: Manifest, unit: Unit, segments: list[SegmentSummary]) -> UnitPlan:
    """Plan the reading of a unit. A row is released once no later segment of its run has an earlier row."""
    parts: list[SegmentPart] = []
    earliest: dict[int, int] = {}  # received_ns in the later segments, by run
    for segment in reversed(segments):
        later = earliest.get(segment.run)
        parts.append(SegmentPart(segment.file, manifest.first_new_seq(segment), later))
        if segment.rows:
            earliest[segment.run] = segment.min_ns if later is None else min(later, segment.min_ns)
    rows_of_day = sum(segment.rows_of(unit[1]) for segment in segments)
    return UnitPlan(unit[0], unit[1], tuple(reversed(parts)), rows_of_day)


def pack_tasks(units: Iterable[UnitPlan]) -> list[list[UnitPlan]]:
    """Pack units into tasks of about TASK_ROWS, the largest first, so that no long task remains at the end."""
    packed: list[list[UnitPlan]] = []
    room = 0
    for unit in sorted(units, key=lambda unit: (-unit.rows, unit.gateway, unit.day)):
        if room < unit.rows or not packed or len(packed[-1]) >= TASK_UNITS:
            packed.append([])
            room = TASK_ROWS
        packed[-1].append(unit)
        room -= unit.rows
    return packed


def recorded(
    spark: "SparkSession", packed: list[list[UnitPlan]], lake: str, *, detail: bool = False
) -> "DataFrame":
    """Rows as recorded (`RECORDED`), one gateway day after the other, each in order of (run, received_ns, seq)."""
    reader = _read_task(packed, lake, partial(_recorded, detail=detail))
    return spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(reader, RECORDED.ddl)


def event_rows(spark: "SparkSession", packed: list[list[UnitPlan]], lake: str) -> "DataFrame":
    """Rows of all small tables (`WIDE`)."""
    reader = _read_task(packed, lake, _events)
    return spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(reader, WIDE.ddl)


def sample_rows(spark: "SparkSession", packed: list[list[UnitPlan]], lake: str) -> "DataFrame":
    """Payloads that were kept by topic, and their signals (`SAMPLED`)."""
    reader = _read_task(packed, lake, _samples)
    return spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(reader, SAMPLED.ddl)


Read = Callable[[UnitPlan, str], "Iterator[pa.RecordBatch]"]


def _read_task(packed: list[list[UnitPlan]], lake: str, read: Read) -> Any:
    """The function of a `mapInArrow` over task numbers."""

    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for unit in packed[task]:
                    yield from read(unit, lake)

    return run


def _load(lake: str, file: str) -> Segment:
    return read_segment(read_bronze(storage_of(lake), file), segment_file(file))


def _recorded(unit: UnitPlan, lake: str, *, detail: bool) -> "Iterator[pa.RecordBatch]":
    pool = rows.TextPool()
    parts = (
        rows.SegmentSource(
            partial(_load, lake, part.file), segment_file(part.file), part.floor, part.later_from_ns
        )
        for part in unit.parts
    )
    for ready in rows.merge_day(parts, pool, unit.day, detail=detail):
        yield from rows.record_batches(ready, pool, unit.day, unit.gateway)


def _events(unit: UnitPlan, lake: str) -> "Iterator[pa.RecordBatch]":
    for part in unit.parts:
        segment = _load(lake, part.file)
        listed = list(
            events.find_event_rows(segment, segment_file(part.file), len(segment.positions_of(DELIVERY)))
        )
        yield events.event_batch(listed, unit.day, unit.gateway)


def _samples(unit: UnitPlan, lake: str) -> "Iterator[pa.RecordBatch]":
    # The types of payloads are compiled in tasks; only lakes with payloads need them.
    from ustreamer_pipeline.silver.signals import sample_batches

    for part in unit.parts:
        yield from sample_batches(_load(lake, part.file), unit.day, unit.gateway)


# ------------------------------------------------------------------------------------------------------- what it means


def with_bad_reason(frame: "DataFrame") -> "DataFrame":
    """Add `bad`: the reason to reject a row, null for a valid row."""
    from pyspark.sql import functions as f

    def rule(broken: "Column", value: str, expected: str) -> "Column":
        return f.when(
            broken, f.format_string(f"{value} %s: expected {expected}", f.col(value).cast("string"))
        )

    tried = f.col("first_attempt_ns") != 0
    bad = f.coalesce(
        f.col("fault"),
        rule(~f.col("verdict").between(0, len(VERDICTS) - 1), "verdict", f"0 to {len(VERDICTS) - 1}"),
        rule(~f.col("type").between(1, len(TYPES)), "type", f"1 to {len(TYPES)}"),
        rule(f.col("priority") > 6, "priority", "0 to 6"),
        rule(
            (f.col("code") > LAST_CODE) & (f.col("code") != NO_CODE),
            "code",
            f"0 to {LAST_CODE}, or {NO_CODE}",
        ),
        rule(~f.col("period_ns").between(0, MAX_PERIOD_NS), "period_ns", f"0 to {MAX_PERIOD_NS}"),
        rule(
            (f.col("delivery") > 0) & f.col("egress").isNull(), "delivery", "0 for a target without an egress"
        ),
        rule(f.col("received_ns") < f.col("arrived_ns"), "received_ns", "arrived_ns or later"),
        rule(f.col("settled_ns") < f.col("received_ns"), "settled_ns", "received_ns or later"),
        rule(
            tried & ~f.col("first_attempt_ns").between(f.col("received_ns"), f.col("settled_ns")),
            "first_attempt_ns",
            "between received_ns and settled_ns",
        ),
        f.when(f.col("source").isNull(), f.lit("source: expected one")),
        f.when(f.col("ingress").isNull(), f.lit("ingress: expected one")),
    )
    return frame.withColumn("bad", bad)


def deliveries(frame: "DataFrame") -> "DataFrame":
    """The table DELIVERIES, of the valid rows."""
    from pyspark.sql import functions as f

    def named(code: "Column", names: tuple[str, ...]) -> "Column":
        return f.element_at(f.array(*map(f.lit, names)), code)

    answers = f.col("request_msb") != 0
    made = {
        "type": named(f.col("type"), TYPES),
        "ttl_ms": f.when(f.col("flags").bitwiseAND(HAS_TTL) != 0, f.col("ttl_ms")),
        "verdict": named(f.col("verdict") + 1, VERDICTS),
        "code": f.when(f.col("code") != NO_CODE, f.col("code")),
        "queue_wait_us": f.expr("(coalesce(nullif(first_attempt_ns, 0), settled_ns) - received_ns) div 1000"),
        "latency_us": f.expr("(settled_ns - arrived_ns) div 1000"),
        "held": f.col("flags").bitwiseAND(HELD) != 0,
        "request_msb": f.when(answers, f.col("request_msb")),
        "request_lsb": f.when(answers, f.col("request_lsb")),
    }
    good = frame.where(f.col("bad").isNull())
    return good.select(
        *(made.get(c.name, f.col(c.name)).cast(c.type).alias(c.name) for c in DELIVERIES.columns)
    )


def quarantine_rows(frame: "DataFrame") -> "DataFrame":
    """Rows of QUARANTINE from deliveries: needs `recorded(detail=True)`."""
    from pyspark.sql import functions as f

    bad = (
        frame.where(f.col("bad").isNotNull()).withColumn("rows", f.lit(1)).withColumn("reason", f.col("bad"))
    )
    return bad.select(*QUARANTINE.names)


def event_table(frame: "DataFrame", table: Table) -> "DataFrame":
    """One of the small tables, selected from `event_rows`."""
    from pyspark.sql import functions as f

    return frame.where(f.col("table") == table.name).select(*table.names)
