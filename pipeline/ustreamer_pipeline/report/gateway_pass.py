# SPDX-License-Identifier: Apache-2.0
"""One pass over the deliveries of each gateway in order, on Spark: the tables of each gateway, without a shuffle.

Spark distributes file names, as for a what-if. A task reads the small tables and the deliveries of its gateways, one
gateway after the other. It emits the rows of all tables in one schema, PARTIALS. tables.py adds them up over gateways.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.columns import int_column
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.replay.files import BATCH_ROWS, read_gateway, read_small_tables, spread
from ustreamer_pipeline.report import latency_bins, small_tables
from ustreamer_pipeline.report.delivery_columns import COLUMNS, DeliveryColumns, report_texts
from ustreamer_pipeline.report.gateway_messages import Queues, Talkers
from ustreamer_pipeline.report.gateway_tables import GatewayTable, Latency, Losses, OverTime, Throttle, Totals
from ustreamer_pipeline.report.grouped_rows import GroupedRows
from ustreamer_pipeline.schemas import VERDICTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TEXTS: Final = ("source", "topic", "type", "egress", "subscriber", "verdict", "cause", "endpoint")
_NUMBERS: Final = (
    *("run", "changes"),
    *(
        "rows",
        *map(str.lower, VERDICTS),
        "bytes",
        "saved_bytes",
        "delivered_bytes",
        "from_us",
        "until_us",
        "runs",
    ),
    *("time_s", "period_ns", "published", "passed", "messages", "peak_messages", "peak_bytes", "peak_us"),
    *(f"{prefix}{name}_us" for prefix in latency_bins.MEASURES.values() for name in latency_bins.NAMES),
    *("max_us", "measure", "bin", "top_us"),
)
PARTIALS: Final = pa.schema(
    [
        ("table", pa.string()),
        ("gateway", pa.string()),  # null in `bins`, which are of all gateways of a task
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.int64()) for name in _NUMBERS),
        ("code", pa.int32()),
        ("seconds", pa.float64()),
    ]
)
"""The columns of all tables; a row has those of its table, and null in the others."""
_DDL: Final = ", ".join(
    f"`{field.name}` {({'int64': 'bigint', 'int32': 'int', 'double': 'double', 'string': 'string'})[str(field.type)]}"
    for field in PARTIALS
)

BINS: Final = "bins"
"""Name of the counts of bins of latencies, over all gateways of a task."""
_EMITTED_ROWS: Final = 10_000
"""Rows of all tables that a task holds; it then emits them."""
_MAX_BINS: Final = 200_000
"""Bins of latencies that a task holds; it then emits them."""


class GatewayReport:
    """The tables of one gateway. Pass its batches in order, then call `finish` and read `tables`."""

    def __init__(self, gateway: str = "") -> None:
        self._gateway = gateway
        self._texts = texts = report_texts()
        self.latency = Latency(texts)
        self.tables: tuple[GatewayTable, ...] = (
            *(Totals(), OverTime(), Losses(texts), self.latency, Throttle(texts), Queues(texts)),
            Talkers(texts),
        )
        self._run: int | None = None

    def feed(self, batch: pa.RecordBatch) -> None:
        """The next rows. Raises DamagedError for a verdict that this version does not know."""
        runs = int_column(batch, "run")
        cuts = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]
        for start, end in pairwise(cuts):
            if start == end:
                continue
            if self._run not in (None, int(runs[start])):
                self.finish()
            self._run = int(runs[start])
            rows = DeliveryColumns(batch.slice(start, end - start), self._texts)
            if rows.unknown_verdict is not None:
                place = f"deliveries: {self._gateway}, run {self._run}"
                expected = f"expected one of {', '.join(VERDICTS)}"
                raise DamagedError(f"{place}: verdict {rows.unknown_verdict}: {expected}")
            for table in self.tables:
                table.add(rows)

    def finish(self) -> None:
        """The present run has no more rows. Call it once after the last batch."""
        if self._run is not None:
            for table in self.tables:
                table.end_run()


class _Emitter:
    """Tables of the gateways of a task, put together to batches of PARTIALS."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {}
        self._rows = 0
        self._bins = GroupedRows(latency_bins.KEYS, latency_bins.AGGREGATES)

    def add(
        self, gateway: str, made: GatewayReport, small: Mapping[str, pa.Table]
    ) -> Iterator[pa.RecordBatch]:
        """Add the tables of one gateway. Yields batches when enough rows are waiting."""
        tables = {table.name: table.table() for table in made.tables}
        for name, rows in {**tables, **small}.items():
            self._add(name, gateway, rows)
        bins = made.latency.bins()
        if bins.num_rows:
            self._bins.add({name: bins[name] for name in bins.column_names})
        if self._bins.num_rows >= _MAX_BINS:
            self._flush_bins()
        if self._rows >= _EMITTED_ROWS:
            yield from self._flush()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The task has no more gateways. Yields the rest."""
        self._flush_bins()
        yield from self._flush()

    def _add(self, name: str, gateway: str | None, rows: pa.Table) -> None:
        if rows.num_rows:
            names = pa.repeat(pa.scalar(gateway, pa.string()), rows.num_rows)
            self._tables.setdefault(name, []).append(rows.append_column("gateway", names))
            self._rows += rows.num_rows

    def _flush_bins(self) -> None:
        self._add(BINS, None, self._bins.table())
        self._bins = GroupedRows(latency_bins.KEYS, latency_bins.AGGREGATES)

    def _flush(self) -> Iterator[pa.RecordBatch]:
        for name, tables in self._tables.items():
            rows = pa.concat_tables(tables).combine_chunks()
            columns = {each: rows[each] for each in rows.column_names} | {"table": pa.repeat(name, len(rows))}
            yield from pa.table(
                [
                    columns[field.name].cast(field.type)
                    if field.name in columns
                    else pa.nulls(len(rows), field.type)
                    for field in PARTIALS
                ],
                schema=PARTIALS,
            ).to_batches()
        self._tables, self._rows = {}, 0


def report_gateway(batches: Iterable[pa.RecordBatch], gateway: str = "") -> GatewayReport:
    """The tables of one gateway from its deliveries in order. Raises DamagedError, which names the gateway."""
    made = GatewayReport(gateway)
    for batch in batches:
        made.feed(batch)
    made.finish()
    return made


def report_task(batch_rows: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: a gateway, its files of deliveries and of small tables per row."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        emitter = _Emitter()
        for batch in batches:
            for row in batch.to_pylist():
                made = report_gateway(read_gateway(row["files"], COLUMNS, batch_rows), row["gateway"])
                events = read_small_tables(row["events"], small_tables.COLUMNS, small_tables.TABLES)
                yield from emitter.add(row["gateway"], made, small_tables.small_tables(events))
        yield from emitter.finish()

    return work


def partial_tables(
    spark: "SparkSession",
    files: Mapping[str, Sequence[str]],
    events: Mapping[str, Sequence[str]],
    batch_rows: int = BATCH_ROWS,
    counts: Mapping[str, int] | None = None,
) -> "DataFrame":
    """The tables of all gateways, as PARTIALS; `files` have the deliveries of a gateway, `events` its small tables.

    `counts` has the number of deliveries of each gateway, so that the largest are the first.
    """
    rows: list[Any] = [
        (gateway, list(files.get(gateway, ())), list(events.get(gateway, ())))
        for gateway in dict.fromkeys((*files, *events))
    ]
    weights = [(counts or {}).get(gateway, 0) for gateway, *_ in rows]
    table = spread(spark, rows, "gateway string, files array<string>, events array<string>", weights)
    return table.mapInArrow(report_task(batch_rows), _DDL)
