# SPDX-License-Identifier: Apache-2.0
"""One pass over the rows of each gateway in order, on Spark: the rules of `gateway_audit`, without a shuffle.

Spark distributes file names, as for a what-if. A task reads the small tables of a gateway, then its deliveries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ustreamer_pipeline.gold.gateway_audit import COLUMNS, GatewayAudit, SmallTables
from ustreamer_pipeline.replay.files import read_gateway, read_small_tables, task_count
from ustreamer_pipeline.replay.gate_inputs import EVENT_COLUMNS, gate_inputs
from ustreamer_pipeline.schemas import COUNTERS, DEAD_LETTERS, GAPS, LEAPS, SEGMENTS, SUBSCRIPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = (SUBSCRIPTIONS, DEAD_LETTERS, GAPS, SEGMENTS, COUNTERS, LEAPS)
"""The small tables, in the order of `SmallTables`."""

_EVENT_COLUMNS: Final = (
    *EVENT_COLUMNS,
    *("time_ns", "topic", "subscriber", "change", "period_ns", "seq", "changes"),
    *("time_us", "first_change", "next_change"),
)

FOUND: Final = pa.schema(
    [
        ("rule", pa.string()),
        ("gateway", pa.string()),
        ("run", pa.int64()),
        ("seq", pa.int64()),
        ("time_us", pa.int64()),
        ("subject", pa.string()),
        ("expected", pa.string()),
        ("found", pa.string()),
    ]
)
_DDL: Final = ", ".join(f"{each.name} {'bigint' if each.type == pa.int64() else 'string'}" for each in FOUND)


def audit_gateway(
    gateway: str,
    events: Sequence[Mapping[str, Any]],
    batches: Iterable[pa.RecordBatch],
    since: str = "",
) -> list[dict[str, Any]]:
    """Findings of one gateway, from rows of its small tables and batches of its deliveries in order."""
    rows: dict[str, list[Mapping[str, Any]]] = {table.name: [] for table in TABLES}
    for row in events:
        if row["table"] in rows:
            rows[row["table"]].append(row)
    audited = GatewayAudit(gateway, SmallTables(*rows.values()), gate_inputs(gateway, events, since))
    for batch in batches:
        audited.feed(batch)
    audited.finish()
    return audited.findings


def _audit_task(since: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: a gateway, its files of deliveries and of small tables per row."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                events = list(read_small_tables(row["events"] or (), _EVENT_COLUMNS))
                found = audit_gateway(row["gateway"], events, read_gateway(row["files"], COLUMNS), since)
                yield pa.RecordBatch.from_pylist(found, schema=FOUND)

    return work


def findings_in_order(
    spark: "SparkSession",
    files: Mapping[str, Sequence[str]],
    events: Mapping[str, Sequence[str]],
    since: str = "",
) -> "DataFrame":
    """Findings of all gateways; `files` have the deliveries of a gateway in order, `events` its small tables.

    Deliveries before the date `since` are not in `files`.
    """
    rows = [(gateway, list(names), list(events.get(gateway, ()))) for gateway, names in files.items()]
    table = spark.createDataFrame(rows, "gateway string, files array<string>, events array<string>")
    return table.repartition(task_count(spark, files)).mapInArrow(_audit_task(since), _DDL)
