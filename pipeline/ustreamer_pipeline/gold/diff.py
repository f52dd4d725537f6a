# SPDX-License-Identifier: Apache-2.0
"""What changed between two releases: rates, losses and latencies of each address and link, with their significance.

In: deliveries, and the release of each configuration. Out: one row per address, link and metric. The sample of a test
is one value per gateway, because the messages of one gateway are not independent of each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.gold.rank_test import Values, holm, mann_whitney
from ustreamer_pipeline.lake.snapshot import snapshot_of
from ustreamer_pipeline.schemas import DELIVERIES, EPOCHS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession

SIGNIFICANT: Final = 0.05
MIN_FOR_P99: Final = 100
"""With fewer messages the 99th percentile is the maximum, which grows with their number."""
BEFORE, AFTER = "before", "after"

METRICS: Final = {
    "rate": "delivered messages/s",
    "throttled": "% of all messages",
    "lost": "% of delivered, expired and failed messages",
    "latency_p50": "us",
    "latency_p99": "us",
}
"""Unit of each metric, by name."""

_COMPARED: Final = (
    "address string, egress string, metric string, before double, after double, gateways_before bigint, "
    "gateways_after bigint, p double"
)


@dataclass(frozen=True)
class Side:
    """One release: its gateways and deliveries."""

    release: str
    gateways: int
    deliveries: int


@dataclass(frozen=True)
class MetricChange:
    """One metric of an address at a link: its median over the gateways of each release.

    `p_adjusted` is the p-value after Holm's correction; None with too few gateways.
    """

    address: str
    egress: str
    metric: str
    unit: str
    before: float | None
    after: float | None
    gateways_before: int
    gateways_after: int
    p: float | None
    p_adjusted: float | None = None

    @property
    def is_significant(self) -> bool:
        return self.p_adjusted is not None and self.p_adjusted < SIGNIFICANT


@dataclass(frozen=True)
class Difference:
    before: Side
    after: Side
    changes: list[MetricChange]


def diff(
    spark: "SparkSession", lake: str, before: str, after: str, since: str = "", until: str = LAST_DATE
) -> Difference:
    """Compare two releases in these days. Raises UsageError if the lake has no deliveries of one of them."""
    from pyspark.sql import functions as f

    snapshot = snapshot_of(lake)
    days = f"date >= '{since or '0001-01-01'}' AND date <= '{until}'"
    chosen = f.col("release").isin(before, after)
    releases = release_of_epochs(EPOCHS.read_table(spark, snapshot))
    rows = (
        DELIVERIES.read_table(spark, snapshot)
        .where(days)
        .join(f.broadcast(releases.where(chosen)), ["gateway", "run", "epoch"])
        .withColumn("side", f.when(f.col("release") == before, BEFORE).otherwise(AFTER))
    )
    per_gateway = gateway_values(rows).persist()
    try:
        found = {row.side: row for row in sides(per_gateway).collect()}
        for side, release in ((BEFORE, before), (AFTER, after)):
            if side not in found:
                known = sorted(row.release for row in releases.select("release").distinct().collect())
                raise UsageError(f"--{side} {release}: no deliveries; expected one of {', '.join(known)}")
        gateways = {side: int(row.gateways) for side, row in found.items()}
        compared = compare(per_gateway, gateways).collect()
    finally:
        per_gateway.unpersist()
    one, other = (
        Side(name, gateways[side], int(found[side].deliveries))
        for side, name in ((BEFORE, before), (AFTER, after))
    )
    return Difference(one, other, _changes([row.asDict() for row in compared]))


def release_of_epochs(epochs: "DataFrame") -> "DataFrame":
    """gateway, run, epoch, release; configurations without a release are left out."""
    from pyspark.sql import functions as f

    named = epochs.select(
        "gateway", "run", "epoch", f.get_json_object("settings", "$.release").alias("release")
    )
    return named.where("release IS NOT NULL").dropDuplicates(["gateway", "run", "epoch"])


def address() -> "Column":
    """The topic of a publication, or the sink of another message, without its authority: vehicles differ in it."""
    from pyspark.sql import functions as f

    place = f.when(f.col("type") == "PUBLISH", f.col("source")).otherwise(f.coalesce("sink", "source"))
    return f.regexp_replace(place, "^(up:)?//[^/]*", "//*")


def gateway_values(rows: "DataFrame") -> "DataFrame":
    """side, gateway, address, egress, seconds, and each metric: the values of one gateway."""
    from pyspark.sql import functions as f

    def count(*verdicts: str) -> "Column":
        return f.sum(f.when(f.col("verdict").isin(*verdicts), 1).otherwise(0))

    spans = rows.groupBy("side", "gateway", "run").agg(
        (f.max("received_ns") - f.min("received_ns")).alias("span_ns")
    )
    seconds = spans.groupBy("side", "gateway").agg((f.sum("span_ns") / 1e9).alias("seconds"))
    latency = f.when(f.col("verdict") == "DELIVERED", f.col("latency_us"))
    counted = (
        rows.where("egress IS NOT NULL")
        .groupBy("side", "gateway", address().alias("address"), "egress")
        .agg(
            f.count("*").alias("messages"),
            count("DELIVERED").alias("delivered"),
            count("THROTTLED").alias("throttled_messages"),
            count("EXPIRED", "DEAD_LETTERED").alias("lost_messages"),
            f.percentile_approx(latency, [0.5, 0.99], 1_000).alias("latency"),
        )
        .join(seconds, ["side", "gateway"])
    )
    kept = f.col("delivered") + f.col("lost_messages")
    return counted.select(
        *("side", "gateway", "address", "egress", "messages", "seconds"),
        f.when(f.col("seconds") > 0, f.col("delivered") / f.col("seconds")).alias("rate"),
        (f.col("throttled_messages") * 100 / f.col("messages")).alias("throttled"),
        f.when(kept > 0, f.col("lost_messages") * 100 / kept).alias("lost"),
        f.col("latency")[0].cast("double").alias("latency_p50"),
        f.when(f.col("delivered") >= MIN_FOR_P99, f.col("latency")[1].cast("double")).alias("latency_p99"),
    )


def sides(per_gateway: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return per_gateway.groupBy("side").agg(
        f.countDistinct("gateway").alias("gateways"), f.sum("messages").alias("deliveries")
    )


def compare(per_gateway: "DataFrame", gateways: dict[str, int]) -> "DataFrame":
    """One row per address, link and metric. Spark collects the values of one address and link in one task."""
    return per_gateway.groupBy("address", "egress").applyInPandas(_compare_task(gateways), _COMPARED)


def _compare_task(gateways: dict[str, int]) -> "Callable[[pd.DataFrame], pd.DataFrame]":
    def work(group: "pd.DataFrame") -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(list(compared_values(group, gateways)), columns=_COMPARED_NAMES)

    return work


_COMPARED_NAMES: Final = [part.split()[0] for part in _COMPARED.split(", ")]


def compared_values(group: "pd.DataFrame", gateways: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """The metrics of one address at one link. A gateway without a message of it has the rate 0."""
    for metric in METRICS:
        one, other = (_values(group, side, metric, gateways[side]) for side in (BEFORE, AFTER))
        if len(one) or len(other):
            medians = (float(np.median(values)) if len(values) else None for values in (one, other))
            names = group["address"].iloc[0], group["egress"].iloc[0], metric
            yield *names, *medians, len(one), len(other), mann_whitney(one, other)


def _values(group: "pd.DataFrame", side: str, metric: str, gateways: int) -> Values:
    column = group.loc[group["side"] == side, metric].dropna()
    values: Values = column.to_numpy(dtype=np.float64)
    missing = gateways - len(values) if metric == "rate" else 0
    return np.concatenate([values, np.zeros(max(0, missing))])


def _changes(rows: list[dict[str, Any]]) -> list[MetricChange]:
    """The changes with corrected p-values, the most significant first."""
    for row in rows:
        for name in ("before", "after", "p"):  # pandas has NaN for a missing number
            row[name] = None if row[name] is None or np.isnan(row[name]) else row[name]
    adjusted = holm([row["p"] for row in rows])
    found = [
        MetricChange(unit=METRICS[row["metric"]], p_adjusted=p, **row)
        for row, p in zip(rows, adjusted, strict=True)
    ]

    def order(change: MetricChange) -> tuple[Any, ...]:
        p = 2.0 if change.p is None else change.p
        return p, change.address, change.egress, change.metric

    return sorted(found, key=order)
