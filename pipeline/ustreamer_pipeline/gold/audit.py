# SPDX-License-Identifier: Apache-2.0
"""The audit: checks the promises of the streamer against recordings and names the rows that violate them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from ustreamer_pipeline.gold import audit_ledger, audit_rules, gateway_audit
from ustreamer_pipeline.gold.audit_rules import FINDINGS, Rule, Tables
from ustreamer_pipeline.gold.ordered_pass import findings_in_order
from ustreamer_pipeline.lake.snapshot import snapshot_of
from ustreamer_pipeline.replay.files import event_files_of, files_of
from ustreamer_pipeline.schemas import (
    COUNTERS,
    DEAD_LETTERS,
    DELIVERIES,
    EPOCHS,
    GAPS,
    LEAPS,
    QUARANTINE,
    SEGMENTS,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RULES: Final[Mapping[str, tuple[str, Rule]]] = {
    "rate": ("no target above its max_frequency", audit_rules.rate),
    "never_throttled": ("only publications with a limit are throttled", audit_rules.never_throttled),
    "order": ("order per source, sink, class and target", audit_rules.order),
    "expired": ("nothing is sent after its ttl", audit_rules.expired),
    "echo": ("nothing goes back where it came from", audit_rules.echo),
    "letters": ("dead letters only of what expired or failed", audit_rules.letters),
    "answers": ("one Response to each request that failed, never two", audit_rules.answers),
    "readable": ("every recording that arrived, and every row of it, could be read", audit_ledger.readable),
    "sequence": ("every row is there, or announced as missing", audit_ledger.sequence),
    "ledger": ("rows add up to the dispatcher's own counters", audit_ledger.ledger),
}
"""The promise of each rule that is a query over all gateways, and its query, by name."""

PROMISES: Final[Mapping[str, str]] = {
    **{name: promise for name, (promise, _) in RULES.items()},
    **gateway_audit.PROMISES,
}
"""The promise of each rule, by name; those of `gateway_audit` are checked in one pass over each gateway."""


@dataclass(frozen=True)
class AuditResult:
    """Number of violations per rule, and the first violating rows."""

    rows: int
    gateways: int
    counts: dict[str, int]
    examples: list[dict[str, Any]]

    @property
    def clean(self) -> bool:
        return not any(self.counts.values())


def load(spark: "SparkSession", lake: str, since: str = "", until: str = "9999-12-31") -> Tables:
    """Tables of silver for these days. Raises UnavailableError without deliveries."""
    snapshot = snapshot_of(lake)
    tables = [
        table.read_table(spark, snapshot).where(f"date >= '{since or '0001-01-01'}' AND date <= '{until}'")
        for table in (DELIVERIES, EPOCHS, GAPS, COUNTERS, SEGMENTS, DEAD_LETTERS, LEAPS, QUARANTINE)
    ]
    files, events = files_of(snapshot, since, until), event_files_of(snapshot)
    return replace(Tables(*tables), in_order=findings_in_order(spark, files, events, since))


def findings(tables: Tables, rules: Collection[str] = tuple(PROMISES)) -> "DataFrame":
    """All rows that violate one of the rules, with the columns FINDINGS."""
    frames = [RULES[name][1](tables).select(*FINDINGS) for name in rules if name in RULES]
    in_order = [name for name in rules if name in gateway_audit.PROMISES]
    if tables.in_order is not None and in_order:
        found = tables.in_order.select(*FINDINGS)
        frames.append(found.where(found["rule"].isin(in_order)))
    return reduce(lambda one, other: one.unionByName(other), frames)


def audit(tables: Tables, examples: int = 20, rules: Collection[str] = tuple(PROMISES)) -> AuditResult:
    """Apply the rules. `examples` limits the rows listed per rule."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    found = findings(tables, rules).persist()
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
    looked_at = tables.deliveries.agg(
        f.count("*").alias("rows"), f.countDistinct("gateway").alias("gateways")
    )
    total = looked_at.collect()[0]
    return AuditResult(
        total.rows,
        total.gateways,
        {name: counts.get(name, 0) for name in rules},
        [row.asDict() for row in named],
    )
