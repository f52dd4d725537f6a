# SPDX-License-Identifier: Apache-2.0
"""The ledger law, checked against the recording: every delivery has one row, and the rows add up to the dispatcher's
counters.

received = delivered + throttled + expired + dead_lettered + denied + no_subscriber + queued
"""

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.gold.audit_rules import Tables
from ustreamer_pipeline.recording.segments import NO_HEADER
from ustreamer_pipeline.schemas import UNKNOWN_GATEWAY, VERDICTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COUNTS: Final = tuple(verdict.lower() for verdict in VERDICTS)


def sequence(tables: Tables) -> "DataFrame":
    """Numbers of a run are contiguous: a missing number was announced as a gap, or belongs to a missing segment."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # One row after the last one, with the next number by the last segment, so that a gap at the end is found.
    ends = tables.segments.groupBy("gateway", "run").agg(
        f.max("next_seq").alias("seq"), f.max("began_us").alias("received_us")
    )
    rows = tables.deliveries.select("gateway", "run", "seq", "received_us", f.lit(True).alias("row"))
    in_run = Window.partitionBy("gateway", "run").orderBy("seq", f.col("row").desc())
    holes = (
        rows.unionByName(ends.withColumn("row", f.lit(False)))
        .withColumn("before", f.lag("seq", 1, -1).over(in_run))
        .withColumn("missing", f.col("seq") - f.col("before") - 1)
        .where("missing > 0 OR (missing < 0 AND row)")
    )
    known = _announced(tables).withColumnRenamed("rows", "known_rows")
    explained = (
        holes.join(known, ["gateway", "run"], "left")
        .withColumn("inside", (f.col("first_seq") > f.col("before")) & (f.col("first_seq") < f.col("seq")))
        .groupBy("gateway", "run", "seq", "received_us", "missing")
        .agg(f.sum(f.when(f.col("inside"), f.col("known_rows")).otherwise(0)).alias("known"))
    )
    return explained.where("missing < 0 OR known < missing").select(
        f.lit("sequence").alias("rule"),
        "gateway",
        "run",
        "seq",
        f.col("received_us").alias("time_us"),
        f.lit("rows of the run").alias("subject"),
        f.when(f.col("missing") < 0, f.lit("each seq once"))
        .otherwise(
            f.format_string(
                "rows %d to %d, or a gap that says so", f.col("seq") - f.col("missing"), f.col("seq") - 1
            )
        )
        .alias("expected"),
        f.when(f.col("missing") < 0, f.lit("twice"))
        .otherwise(f.format_string("%d rows missing, %d of them announced", "missing", "known"))
        .alias("found"),
    )


def readable(tables: Tables) -> "DataFrame":
    """No recording was refused as a whole, and no row of one: a row with an impossible value, or with the number of
    another row.

    The gateway and date of a refused recording are unknown, so its rows are missing anywhere. A file without a header
    was created at the moment of a power cut, and has no rows.
    """
    from pyspark.sql import functions as f

    is_refused_file = (
        (f.col("gateway") == UNKNOWN_GATEWAY)
        & f.col("offset").isNull()
        & ~f.col("reason").contains(NO_HEADER)
    )
    refused = tables.quarantine.where(is_refused_file | (f.col("rows") > 0))
    return refused.select(
        f.lit("readable").alias("rule"),
        "gateway",
        f.lit(None).cast("long").alias("run"),
        f.lit(None).cast("long").alias("seq"),
        f.lit(None).cast("long").alias("time_us"),
        f.col("file").alias("subject"),
        f.when(f.col("rows") > 0, "a row").otherwise("a recording").alias("expected"),
        f.col("reason").alias("found"),
    )


def _announced(tables: Tables) -> "DataFrame":
    """gateway, run, first_seq, rows: ranges that are known to be missing."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    in_run = Window.partitionBy("gateway", "run").orderBy("number")
    lost = (
        tables.segments.select(
            "gateway",
            "run",
            f.lag("next_seq", 1, 0).over(in_run).alias("from_seq"),
            (f.col("number") - f.lag("number", 1, -1).over(in_run)).alias("step"),
            f.col("first_seq").alias("until_seq"),
        )
        .where("step > 1 AND until_seq > from_seq")
        .select(
            "gateway",
            "run",
            f.col("from_seq").alias("first_seq"),
            (f.col("until_seq") - f.col("from_seq")).alias("rows"),
        )
    )
    return tables.gaps.select("gateway", "run", "first_seq", "rows").unionByName(lost)


def ledger(tables: Tables) -> "DataFrame":
    """Rows and announced gaps equal the dispatcher's counters at its stop, verdict by verdict, and the ledger balances.

    A killed run has no exact counters. A run with deleted segments has no rows to compare; `sequence` reports it.
    """
    from pyspark.sql import functions as f

    final = (
        tables.counters.where("final")
        .groupBy("gateway", "run")
        .agg(*(f.max(name).alias(name) for name in ("received", *_COUNTS, "queued", "time_us")))
    )
    rows = tables.deliveries.groupBy("gateway", "run").agg(
        *(
            f.sum(f.when(f.col("verdict") == verdict, 1).otherwise(0)).alias(f"rows_{name}")
            for verdict, name in zip(VERDICTS, _COUNTS, strict=True)
        )
    )
    gaps = tables.gaps.groupBy("gateway", "run").agg(
        *(f.sum(name).alias(f"gap_{name}") for name in _COUNTS),
        f.sum(f.when(f.col(_COUNTS[0]).isNull(), f.col("rows"))).alias("blind"),
    )
    lost = tables.segments.groupBy("gateway", "run").agg(
        (f.max("number") + 1 - f.countDistinct("number")).alias("lost")
    )
    balances = (
        final.join(rows, ["gateway", "run"], "left")
        .join(gaps, ["gateway", "run"], "left")
        .join(lost, ["gateway", "run"], "left")
        .na.fill(0)
        .where("lost = 0")
    )
    counted = [
        f.struct(
            f.lit(f"ledger: {name}").alias("subject"),
            f.col(name).alias("counter"),
            (f.col(f"rows_{name}") + f.col(f"gap_{name}")).alias("rows"),
            f.col("blind").alias("blind"),
        )
        for name in _COUNTS
    ]
    settled = reduce(add, (f.col(name) for name in _COUNTS), f.col("queued"))
    law = f.struct(
        f.lit("ledger law").alias("subject"),
        f.col("received").alias("counter"),
        settled.alias("rows"),
        f.lit(0).cast("long").alias("blind"),
    )
    each = balances.select(
        "gateway", "run", "time_us", f.explode(f.array(*counted, law)).alias("each")
    ).select("gateway", "run", "time_us", "each.*")
    # The verdicts of rows in damaged bytes are unknown: `blind` rows may be missing, none may be in excess.
    return each.where("rows > counter OR counter - rows > blind").select(
        f.lit("ledger").alias("rule"),
        "gateway",
        "run",
        f.lit(None).cast("long").alias("seq"),
        "time_us",
        "subject",
        f.format_string("%d, by the dispatcher's counters", "counter").alias("expected"),
        f.format_string("%d", "rows").alias("found"),
    )
