# SPDX-License-Identifier: Apache-2.0
"""The queries of a report: each is a frame, small enough to be read or plotted.

They add up the tables of gateways, PARTIALS (gateway_pass.py). series.py has the query that reads signals.
"""

from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.report.gateway_pass import BINS
from ustreamer_pipeline.report.latency_bins import MEASURES, NAMES, PER_MILLE
from ustreamer_pipeline.schemas import VERDICTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COUNTS: Final = tuple(verdict.lower() for verdict in VERDICTS)
"""Columns with rows by verdict."""


def _of(partials: "DataFrame", table: str) -> "DataFrame":
    """The rows of one table."""
    return partials.where(f"`table` = '{table}'")


def _sums(*names: str) -> "list[Column]":
    from pyspark.sql import functions as f

    return [f.sum(name).alias(name) for name in names]


def over_time(partials: "DataFrame", width_s: int) -> "DataFrame":
    """Rows by time step, gateway and verdict."""
    from pyspark.sql import functions as f

    step = (f.floor(f.col("time_s") / width_s) * width_s).alias("time_s")
    return (
        _of(partials, "over_time")
        .groupBy(step, "gateway")
        .agg(*_sums("rows", *COUNTS, "delivered_bytes"))
        .orderBy("time_s", "gateway")
    )


def fleet_over_time(partials: "DataFrame", width_s: int) -> "DataFrame":
    """`over_time`, summed over all gateways."""
    by_gateway = over_time(partials, width_s)
    return by_gateway.groupBy("time_s").agg(*_sums("rows", *COUNTS, "delivered_bytes")).orderBy("time_s")


def fleet(partials: "DataFrame") -> "DataFrame":
    """`gateways` and `missing`, summed over all gateways: one row."""
    from pyspark.sql import functions as f

    is_missing = f.col("table") == "missing"
    rows = partials.where("`table` IN ('gateways', 'missing')").select(
        *(*COUNTS, "bytes", "saved_bytes", "from_us", "until_us"),
        f.when(is_missing, 0).otherwise(1).alias("gateways"),
        f.when(is_missing, 0).otherwise(f.col("rows")).alias("rows"),
        f.when(is_missing, f.col("rows")).otherwise(0).alias("missing"),
    )
    return rows.agg(
        *_sums("gateways", "rows", *COUNTS, "bytes", "saved_bytes", "missing"),
        f.min("from_us").alias("from_us"),
        f.max("until_us").alias("until_us"),
    )


def gateways(partials: "DataFrame") -> "DataFrame":
    """Rows of each gateway by verdict, and its delivery ratio; the worst gateway first."""
    from pyspark.sql import functions as f

    meant = f.col("delivered") + f.col("expired") + f.col("dead_lettered")
    names = ("gateway", "rows", *COUNTS, "bytes", "saved_bytes", "from_us", "until_us", "runs")
    return (
        _of(partials, "gateways")
        .select(*names, f.when(meant > 0, f.col("delivered") / meant).alias("delivery_ratio"))
        .orderBy(f.col("delivery_ratio").asc_nulls_last(), "gateway")
    )


def throttle(partials: "DataFrame") -> "DataFrame":
    """Published, limit and delivered Hz of each limited target; the most throttled first."""
    from pyspark.sql import functions as f

    names = ("gateway", "source", "egress", "subscriber", "period_ns")
    return (
        _of(partials, "throttle")
        .where("seconds > 0")
        .select(
            *(*names, "published", "passed", "saved_bytes", "seconds"),
            (f.col("published") / f.col("seconds")).alias("published_hz"),
            (1e9 / f.col("period_ns")).alias("limit_hz"),
            (f.col("passed") / f.col("seconds")).alias("delivered_hz"),
        )
        .orderBy((f.col("published") - f.col("passed")).desc(), "gateway", "source", "egress", "subscriber")
    )


def latency(partials: "DataFrame") -> "DataFrame":
    """Percentiles in us of delivered messages, per link: of the fleet (gateway null), then of every gateway.

    They are those of latency_bins.py: at most 0.1 % above the exact ones.
    """
    from pyspark.sql import functions as f

    names = [f"{prefix}{name}_us" for prefix in MEASURES.values() for name in NAMES]
    names.insert(len(NAMES), "max_us")
    of_gateways = _of(partials, "latency").select("egress", "gateway", "delivered", *names)
    of_fleet = _fleet_latency(partials).select(
        "egress", f.expr("CAST(NULL AS string) gateway"), "delivered", *names
    )
    return of_fleet.union(of_gateways).orderBy(f.col("gateway").asc_nulls_first(), "egress")


def _fleet_latency(partials: "DataFrame") -> "DataFrame":
    """The same as latency_bins.percentiles, over all gateways."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_one = Window.partitionBy("egress", "measure")
    bins = (
        _of(partials, BINS)
        .groupBy("egress", "measure", "bin")
        .agg(f.sum("rows").alias("rows"), f.max("top_us").alias("top_us"))
        .withColumn("until", f.sum("rows").over(of_one.orderBy("bin")))
        .withColumn("all", f.sum("rows").over(of_one))
    )
    points = [
        f.min(
            f.expr(f"CASE WHEN measure = {number} AND until >= (all * {each} + 999) DIV 1000 THEN top_us END")
        ).alias(f"{prefix}{name}_us")
        for number, prefix in enumerate(MEASURES.values())
        for name, each in zip(NAMES, PER_MILLE, strict=True)
    ]
    is_latency = f.col("measure") == 0
    return bins.groupBy("egress").agg(
        f.sum(f.when(is_latency, f.col("rows"))).alias("delivered"),
        f.max(f.when(is_latency, f.col("top_us"))).alias("max_us"),
        *points,
    )


def queues(partials: "DataFrame") -> "DataFrame":
    """Maximum number of queued or sending messages of each link, and its time."""
    from pyspark.sql import functions as f

    return (
        _of(partials, "queues")
        .select("gateway", "egress", "peak_messages", "peak_bytes", "peak_us")
        .orderBy(f.col("peak_messages").desc(), "gateway", "egress")
    )


def losses(partials: "DataFrame") -> "DataFrame":
    """Undelivered messages by cause, the most frequent first. A cause is a reason without numbers and ids."""
    from pyspark.sql import functions as f

    return (
        _of(partials, "losses")
        .groupBy("verdict", "code", "cause", "endpoint")
        .agg(
            f.sum("rows").alias("rows"),
            f.count("*").alias("gateways"),
            f.min("from_us").alias("from_us"),
            f.max("until_us").alias("until_us"),
        )
        .orderBy(f.col("rows").desc(), "cause", "endpoint")
    )


def talkers(partials: "DataFrame") -> "DataFrame":
    """Traffic by source: each message once, for any number of targets. The most bytes first."""
    from pyspark.sql import functions as f

    return (
        _of(partials, "talkers")
        .groupBy("source", "type")
        .agg(*_sums("messages", "bytes"), f.count("*").alias("gateways"))
        .orderBy(f.col("bytes").desc(), f.col("messages").desc(), "source")
    )


def lifetimes(partials: "DataFrame") -> "DataFrame":
    """Each subscription from start to end; `seconds` is null if it was active at the end of the recording."""
    names = ("gateway", "run", "topic", "subscriber", "from_us", "seconds", "period_ns", "changes")
    return _of(partials, "subscriptions").select(*names).orderBy("gateway", "from_us", "topic", "subscriber")


def missing(partials: "DataFrame") -> "DataFrame":
    """Rows known to be missing from the recordings, by gateway and cause."""
    from pyspark.sql import functions as f

    return (
        _of(partials, "missing").select("gateway", "cause", "rows").orderBy(f.col("rows").desc(), "gateway")
    )
