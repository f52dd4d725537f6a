# SPDX-License-Identifier: Apache-2.0
"""The audit: checks the promises of the streamer against recordings and names the rows that violate them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.gold import rules as row_rules
from ustreamer_pipeline.gold.ordered_pass import findings_in_order
from ustreamer_pipeline.gold.readable import PROMISE, readable
from ustreamer_pipeline.lake.snapshot import Snapshot, snapshot_of
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.replay.files import event_files_of, files_of, rows_of
from ustreamer_pipeline.schemas import DELIVERIES, QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROMISES: Final[Mapping[str, str]] = {**row_rules.PROMISES, "readable": PROMISE}
"""The promise of each rule, by name. All but `readable` are checked in one pass over the rows of each gateway."""


@dataclass(frozen=True)
class AuditResult:
    """Number of findings per rule, and the first of them. `rows` is the number of deliveries.

    A finding of `decided` or of a rule on targets may stand for several messages.
    """

    rows: int
    gateways: int
    counts: dict[str, int]
    examples: list[dict[str, Any]]

    @property
    def clean(self) -> bool:
        """Whether there is no finding."""
        return not any(self.counts.values())


@dataclass(frozen=True)
class AuditedLake:
    """A snapshot of a lake, and the dates to audit: `YYYY-MM-DD`, both inclusive; an empty `since` is no limit."""

    spark: "SparkSession"
    snapshot: Snapshot
    since: str
    until: str
    files: Mapping[str, list[str]]
    """Files of deliveries, by gateway."""

    @property
    def unread(self) -> dict[str, list[str]]:
        """Files of deliveries of other dates, by gateway."""
        read = {uri for uris in self.files.values() for uri in uris}
        return {
            gateway: [uri for uri in uris if uri not in read]
            for gateway, uris in files_of(self.snapshot).items()
        }

    @property
    def rows(self) -> int:
        """Number of deliveries."""
        files = self.snapshot.files_of(DELIVERIES.name)
        return sum(file.rows for file in files if self.since <= day_text(file.day) <= self.until)


def load(spark: "SparkSession", lake: str, since: str = "", until: str = LAST_DATE) -> AuditedLake:
    """The lake for these days. Raises UnavailableError without deliveries."""
    snapshot = snapshot_of(lake)
    return AuditedLake(spark, snapshot, since, until, files_of(snapshot, since, until))


def findings(lake: AuditedLake, rules: Collection[str] = tuple(PROMISES)) -> "DataFrame":
    """All rows that violate one of the rules, with the columns FINDINGS."""
    found = findings_in_order(
        lake.spark,
        lake.files,
        event_files_of(lake.snapshot),
        [name for name in rules if name in row_rules.PROMISES],
        lake.since,
        lake.unread,
        rows_of(lake.snapshot, lake.since, lake.until),
    )
    if "readable" not in rules:
        return found
    quarantine = QUARANTINE.read_table(lake.spark, lake.snapshot)
    in_dates = f"date >= '{lake.since or '0001-01-01'}' AND date <= '{lake.until}'"
    return found.unionByName(readable(quarantine.where(in_dates)))


def audit(lake: AuditedLake, examples: int = 20, rules: Collection[str] = tuple(PROMISES)) -> AuditResult:
    """Apply the rules. `examples` limits the rows listed per rule."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    found = findings(lake, rules).persist()
    try:
        counts = {row.rule: row["count"] for row in found.groupBy("rule").count().collect()}
        first = Window.partitionBy("rule").orderBy("gateway", "run", "seq")
        named = (
            found.withColumn("place", f.row_number().over(first))
            .where(f.col("place") <= examples)
            .orderBy("rule", "place")
            .drop("place")
            .collect()
            if counts
            else []
        )
    finally:
        found.unpersist()
    return AuditResult(
        lake.rows,
        len(lake.files),
        {name: counts.get(name, 0) for name in rules},
        [row.asDict() for row in named],
    )
