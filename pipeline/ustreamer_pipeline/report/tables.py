# SPDX-License-Identifier: Apache-2.0
"""The queries of a report: each is a frame from silver, small enough to be read or plotted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.schemas import VERDICTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 21_600, 86_400)
"""Time steps with common names."""
STEPS: Final = 120
"""Maximum time steps of a plot; narrower steps are noise."""
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)


def bucket_s(seconds: float) -> int:
    """The narrowest step that divides `seconds` into at most STEPS steps."""
    return next((width for width in BUCKETS_S if seconds / width <= STEPS), BUCKETS_S[-1])


def _counts() -> "list[Column]":
    from pyspark.sql import functions as f

    return [
        f.sum(f.when(f.col("verdict") == verdict, 1).otherwise(0)).alias(verdict.lower())
        for verdict in VERDICTS
    ]


def over_time(deliveries: "DataFrame", width_s: int) -> "DataFrame":
    """Rows by time step, gateway and verdict."""
    from pyspark.sql import functions as f

    step = f.floor(f.col("received_us") / (width_s * 1_000_000)) * width_s
    return (
        deliveries.groupBy(step.alias("time_s"), "gateway")
        .agg(
            f.count("*").alias("rows"),
            *_counts(),
            f.sum(f.when(f.col("verdict") == "DELIVERED", f.col("size")).otherwise(0)).alias(
                "delivered_bytes"
            ),
        )
        .orderBy("time_s", "gateway")
    )


def fleet_over_time(by_gateway: "DataFrame") -> "DataFrame":
    """`over_time`, summed over all gateways."""
    from pyspark.sql import functions as f

    sums = [name for name in by_gateway.columns if name not in ("time_s", "gateway")]
    return by_gateway.groupBy("time_s").agg(*(f.sum(name).alias(name) for name in sums)).orderBy("time_s")


def fleet(by_gateway: "DataFrame") -> "DataFrame":
    """`gateways`, summed over all gateways: one row."""
    from pyspark.sql import functions as f

    sums = ("rows", *(verdict.lower() for verdict in VERDICTS), "bytes", "saved_bytes")
    return by_gateway.agg(
        f.count("*").alias("gateways"),
        *(f.sum(name).alias(name) for name in sums),
        f.min("from_us").alias("from_us"),
        f.max("until_us").alias("until_us"),
    )


def gateways(deliveries: "DataFrame") -> "DataFrame":
    """Rows of each gateway by verdict, and its delivery ratio; the worst gateway first."""
    from pyspark.sql import functions as f

    meant = f.col("delivered") + f.col("expired") + f.col("dead_lettered")
    return (
        deliveries.groupBy("gateway")
        .agg(
            f.count("*").alias("rows"),
            *_counts(),
            f.sum("size").alias("bytes"),
            f.sum(f.when(f.col("verdict") == "THROTTLED", f.col("size")).otherwise(0)).alias("saved_bytes"),
            f.min("received_us").alias("from_us"),
            f.max("received_us").alias("until_us"),
            f.countDistinct("run").alias("runs"),
        )
        .withColumn("delivery_ratio", f.when(meant > 0, f.col("delivered") / meant))
        .orderBy(f.col("delivery_ratio").asc_nulls_last(), "gateway")
    )


def throttle(deliveries: "DataFrame") -> "DataFrame":
    """Published, limit and delivered Hz of each limited target; the most throttled first."""
    from pyspark.sql import functions as f

    # The monotonic clock belongs to a run: seconds are summed per run, then over runs.
    by_run = (
        deliveries.where("period_ns > 0 AND delivery > 0 AND type = 'PUBLISH'")
        .groupBy("gateway", "run", "source", "egress", "subscriber", "period_ns")
        .agg(
            f.count("*").alias("published"),
            f.sum(f.when(f.col("verdict") != "THROTTLED", 1).otherwise(0)).alias("passed"),
            f.sum(f.when(f.col("verdict") == "THROTTLED", f.col("size")).otherwise(0)).alias("saved_bytes"),
            ((f.max("arrived_ns") - f.min("arrived_ns")) / 1e9).alias("seconds"),
        )
    )
    return (
        by_run.groupBy("gateway", "source", "egress", "subscriber", "period_ns")
        .agg(*(f.sum(name).alias(name) for name in ("published", "passed", "saved_bytes", "seconds")))
        .where("seconds > 0")
        .withColumn("published_hz", f.col("published") / f.col("seconds"))
        .withColumn("limit_hz", 1e9 / f.col("period_ns"))
        .withColumn("delivered_hz", f.col("passed") / f.col("seconds"))
        .orderBy((f.col("published") - f.col("passed")).desc(), "gateway", "source", "egress", "subscriber")
    )


def latency(deliveries: "DataFrame") -> "DataFrame":
    """Percentiles in us of delivered messages, per link: of the fleet (gateway null), then of every gateway."""
    from pyspark.sql import functions as f

    points = f.array(*(f.lit(each) for each in PERCENTILES))
    found = (
        deliveries.where("verdict = 'DELIVERED'")
        .rollup("egress", "gateway")
        .agg(
            f.count("*").alias("delivered"),
            f.percentile_approx("latency_us", points, 10_000).alias("latency"),
            f.percentile_approx("queue_wait_us", points, 10_000).alias("wait"),
            f.max("latency_us").alias("max_us"),
        )
        .where("egress IS NOT NULL")
    )
    names = [f"p{each * 100:g}".replace(".", "_") for each in PERCENTILES]
    return found.select(
        "egress",
        "gateway",
        "delivered",
        *(f.col("latency")[at].alias(f"{name}_us") for at, name in enumerate(names)),
        "max_us",
        *(f.col("wait")[at].alias(f"wait_{name}_us") for at, name in enumerate(names)),
    ).orderBy(f.col("gateway").asc_nulls_first(), "egress")


def queues(deliveries: "DataFrame") -> "DataFrame":
    """Maximum number of queued or sending messages of each link, and its time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    taken = deliveries.where(
        "egress IS NOT NULL AND verdict IN ('DELIVERED', 'EXPIRED', 'DEAD_LETTERED') AND settled_ns > received_ns"
    )
    enter = taken.select(
        "gateway",
        "run",
        "egress",
        f.col("received_ns").alias("at_ns"),
        "received_us",
        f.lit(1).alias("one"),
        "size",
    )
    leave = taken.select(
        "gateway",
        "run",
        "egress",
        f.col("settled_ns").alias("at_ns"),
        "received_us",
        f.lit(-1).alias("one"),
        -f.col("size"),
    )
    # At equal times departures come first.
    line = (
        Window.partitionBy("gateway", "run", "egress")
        .orderBy("at_ns", "one")
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    return (
        enter.union(leave)
        .select(
            "gateway",
            "egress",
            "received_us",
            f.sum("one").over(line).alias("messages"),
            f.sum("size").over(line).alias("bytes"),
        )
        .groupBy("gateway", "egress")
        .agg(
            f.max("messages").alias("peak_messages"),
            f.max("bytes").alias("peak_bytes"),
            f.max_by("received_us", "messages").alias("peak_us"),
        )
        .orderBy(f.col("peak_messages").desc(), "gateway", "egress")
    )


def losses(deliveries: "DataFrame") -> "DataFrame":
    """Undelivered messages by cause, the most frequent first. Numbers are removed from reasons."""
    from pyspark.sql import functions as f

    return (
        deliveries.where("verdict IN ('EXPIRED', 'DEAD_LETTERED')")
        .withColumn("cause", f.regexp_replace(f.coalesce("reason", f.lit("no reason given")), r"\d+", "N"))
        .groupBy("verdict", "code", "cause", f.coalesce("egress", "ingress").alias("endpoint"))
        .agg(
            f.count("*").alias("rows"),
            f.countDistinct("gateway").alias("gateways"),
            f.min("received_us").alias("from_us"),
            f.max("received_us").alias("until_us"),
        )
        .orderBy(f.col("rows").desc(), "cause", "endpoint")
    )


def talkers(deliveries: "DataFrame") -> "DataFrame":
    """Traffic by source: each message once, for any number of targets. The most bytes first."""
    from pyspark.sql import functions as f

    messages = deliveries.groupBy("gateway", "run", "source", "type", "id_msb", "id_lsb").agg(
        f.max("size").alias("size")
    )
    return (
        messages.groupBy("source", "type")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            f.countDistinct("gateway").alias("gateways"),
        )
        .orderBy(f.col("bytes").desc(), f.col("messages").desc(), "source")
    )


def lifetimes(subscriptions: "DataFrame") -> "DataFrame":
    """Each subscription from start to end; `seconds` is null if it was active at the end of the recording."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_one = Window.partitionBy("gateway", "run", "topic", "subscriber")
    in_order = of_one.orderBy("time_ns", "number")
    # A changed period is the same subscription: only an end starts a new one.
    ended_before = f.coalesce(f.lag("change").over(in_order) == "UNSUBSCRIBED", f.lit(True))
    numbered = subscriptions.withColumn(
        "begins", (f.col("change") != "UNSUBSCRIBED") & ended_before
    ).withColumn("life", f.sum(f.col("begins").cast("int")).over(in_order))
    ended = f.when(f.col("change") == "UNSUBSCRIBED", f.col("time_ns"))
    return (
        numbered.where("life > 0")
        .groupBy("gateway", "run", "topic", "subscriber", "life")
        .agg(
            f.min("time_us").alias("from_us"),
            ((f.max(ended) - f.min("time_ns")) / 1e9).alias("seconds"),
            f.max_by("period_ns", "time_ns").alias("period_ns"),
            f.sum(f.when(f.col("change") == "CHANGED", 1).otherwise(0)).alias("changes"),
        )
        .drop("life")
        .orderBy("gateway", "from_us", "topic", "subscriber")
    )


def missing(gaps: "DataFrame") -> "DataFrame":
    """Rows known to be missing from the recordings, by gateway and cause."""
    from pyspark.sql import functions as f

    return (
        gaps.groupBy("gateway", "cause")
        .agg(f.sum("rows").alias("rows"))
        .orderBy(f.col("rows").desc(), "gateway")
    )


def signals(samples: "DataFrame", chosen: "Sequence[tuple[str, str]]", width_s: int) -> "DataFrame":
    """Chosen signals, as (topic, signal), by time step: average, extremes, values and gateways. Empty topic: any."""
    from pyspark.sql import functions as f

    wanted = f.lit(False)
    for topic, name in chosen:
        wanted = wanted | ((f.col("signal") == name) & (f.lit(not topic) | (f.col("topic") == topic)))
    step = f.floor(f.col("time_us") / (width_s * 1_000_000)) * width_s
    return (
        samples.where(wanted & f.col("value_double").isNotNull())
        .groupBy("topic", "signal", step.alias("time_s"))
        .agg(
            f.max("unit").alias("unit"),
            f.avg("value_double").alias("average"),
            f.min("value_double").alias("lowest"),
            f.max("value_double").alias("highest"),
            f.count("*").alias("values"),
            f.countDistinct("gateway").alias("gateways"),
        )
        .orderBy("topic", "signal", "time_s")
    )
