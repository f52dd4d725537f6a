# SPDX-License-Identifier: Apache-2.0
"""One pass over the rows of each gateway in order, on Spark: the rules of `gateway_audit`, without a shuffle.

Spark distributes file names, as for a what-if. A task reads the small tables of a gateway, then its deliveries.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ustreamer_pipeline.gold.gateway_audit import audit_gateway
from ustreamer_pipeline.gold.rules import PROMISES
from ustreamer_pipeline.gold.rules.run import FINDINGS
from ustreamer_pipeline.gold.rules.targets import PublicationTargets
from ustreamer_pipeline.replay.files import cores_of, file_span, read_gateway, read_small_tables, spread
from ustreamer_pipeline.replay.gate_inputs import EVENT_COLUMNS
from ustreamer_pipeline.schemas import COUNTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENT_COLUMNS: Final = tuple(
    dict.fromkeys(
        (
            *EVENT_COLUMNS,
            *("time_ns", "topic", "subscriber", "change", "period_ns", "seq", "rows", "changes", "leap_ms"),
            *("time_us", "first_change", "next_change", "id_msb", "id_lsb", "source", "sink", "code"),
            *(column.name for column in COUNTERS.columns if column.name not in COUNTERS.partitioned_by),
        )
    )
)

_NUMBERS: Final = ("run", "seq", "time_us")
FOUND: Final = pa.schema([(name, pa.int64() if name in _NUMBERS else pa.string()) for name in FINDINGS])
_DDL: Final = ", ".join(f"{name} {'bigint' if name in _NUMBERS else 'string'}" for name in FINDINGS)


SPLIT_ROWS: Final = 500_000
"""A gateway with fewer deliveries is one task: to read its rows twice would cost more than it saves."""


def _audit_task(
    since: str,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: a gateway, its files of deliveries and of small tables, and rules per row."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                events = list(read_small_tables(row["events"], _EVENT_COLUMNS))
                read = partial(read_gateway, row["files"])
                unread = list(filter(None, map(file_span, row["unread"])))
                for found in audit_gateway(row["gateway"], events, read, row["rules"], since, unread):
                    yield pa.RecordBatch.from_pylist(found, schema=FOUND)

    return work


def findings_in_order(
    spark: "SparkSession",
    files: Mapping[str, Sequence[str]],
    events: Mapping[str, Sequence[str]],
    rules: Collection[str] = tuple(PROMISES),
    since: str = "",
    unread: Mapping[str, Sequence[str]] | None = None,
    counts: Mapping[str, int] | None = None,
) -> "DataFrame":
    """Findings of all gateways; `files` have the deliveries of a gateway in order, `events` its small tables.

    Deliveries of other dates are in `unread`; those before the date `since` are among them. `counts` has the number of
    deliveries of each gateway: one with more than its share is split by rules, into two tasks of about the same cost.
    """
    parts = [files, events, unread or {}]
    gateways = dict.fromkeys(chain.from_iterable(parts))
    counts = counts or {}
    share = max(SPLIT_ROWS, sum(counts.values()) // cores_of(spark))
    rows: list[tuple[Any, ...]] = []
    weights: list[int] = []
    for gateway in gateways:
        names = [list(part.get(gateway, ())) for part in parts]
        of_tasks = _split(rules) if counts.get(gateway, 0) > share else [list(rules)]
        rows += [(gateway, *names, of_task) for of_task in of_tasks]
        weights += [counts.get(gateway, 0) // len(of_tasks)] * len(of_tasks)
    arrays = ("files", "events", "unread", "rules")
    schema = ", ".join(["gateway string", *(f"{name} array<string>" for name in arrays)])
    return spread(spark, rows, schema, weights).mapInArrow(_audit_task(since), _DDL)


def _split(rules: Collection[str]) -> list[list[str]]:
    """The rules in parts of about the same cost: those on targets take half of the time of all."""
    on_targets = [rule for rule in rules if rule in PublicationTargets.PROMISES]
    others = [rule for rule in rules if rule not in PublicationTargets.PROMISES]
    return [part for part in (on_targets, others) if part]
