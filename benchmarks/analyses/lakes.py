# SPDX-License-Identifier: Apache-2.0
"""Generated lakes: deliveries of a fleet, one gateway of which has defects, and signals."""

import datetime as dt
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from ustreamer_pipeline.bronze.manifest import Manifest
from ustreamer_pipeline.lake.snapshot import load_snapshot
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import FileWriter, file_schema, unit_name
from ustreamer_pipeline.schemas import DELIVERIES, SAMPLED

from benchmarks.analyses.answers import SIGNALS
from benchmarks.whatif import generate_lake

LOST_EVERY: Final = 1_009
SWAPPED_EVERY: Final = 997
PASSED_EVERY: Final = 50
MESSAGES_PER_GATEWAY: Final = 50_000
TOPIC: Final = "//chassis/1234/1/8001"
_DAY: Final = dt.date(2026, 11, 21)
_BATCH_MESSAGES: Final = 10_000


def lake_of_deliveries(spark: SparkSession, count: int, directory: Path, cores: int) -> Path:
    """The lake of a fleet with about this many rows, with findings for the rules of the audit."""
    lake = generate_lake(spark, count, directory, cores)
    add_defects(lake)
    return lake


def add_defects(lake: Path) -> None:
    """Change the rows of the first gateway, in place."""
    snapshot = load_snapshot(lake)
    first = snapshot.files_of(DELIVERIES.name)[0]
    path = Path(snapshot.storage.path(first.name))
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(with_defects(rows), path, compression="zstd")


def with_defects(rows: pa.Table) -> pa.Table:
    """The rows with some lost, some numbers of delivered ones swapped, and some throttled ones passed."""
    numbers = rows["seq"].to_numpy().copy()
    verdicts = np.array(rows["verdict"].to_pylist(), dtype=object)
    delivered = np.flatnonzero((verdicts == "DELIVERED") & (rows["type"].to_numpy() == "PUBLISH"))
    for stream in (rows["delivery"].to_numpy()[delivered] == one for one in (1, 2, 3)):
        mine = delivered[stream]
        for at in range(0, len(mine) - 1, SWAPPED_EVERY):
            numbers[mine[at : at + 2]] = numbers[mine[at : at + 2]][::-1]
    throttled = np.flatnonzero(verdicts == "THROTTLED")[::PASSED_EVERY]
    verdicts[throttled] = "DELIVERED"
    changed = {"seq": pa.array(numbers), "verdict": pa.array(verdicts, pa.string())}
    for name, column in changed.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), column.cast(rows.schema.field(at).type))
    kept = np.ones(len(rows), dtype=np.bool_)
    kept[LOST_EVERY::LOST_EVERY] = False
    return rows.filter(pa.array(kept))


def lake_of_signals(count: int, directory: Path) -> Path:
    """A lake with about this many values of signals, four in each message, of many gateways."""
    lake = directory / f"signals-{count}"
    storage = storage_of(str(lake))
    manifest = Manifest()
    messages = max(count // len(SIGNALS), 1)
    day = (_DAY - dt.date(1970, 1, 1)).days
    for number, begin in enumerate(range(0, messages, MESSAGES_PER_GATEWAY)):
        gateway = f"v{number:07d}.hpc"
        writer = FileWriter(storage, SAMPLED, unit_name(SAMPLED, gateway, day))
        rng = np.random.default_rng(number)
        end = min(begin + MESSAGES_PER_GATEWAY, messages)
        for first in range(begin, end, _BATCH_MESSAGES):
            writer.add(_signal_rows(first - begin, min(_BATCH_MESSAGES, end - first), rng))
        manifest.tables[gateway, day] = [writer.close(gateway, day)]
    if not manifest.save(storage):
        raise SystemExit(f"{lake} has a manifest already")
    return lake


def _signal_rows(first: int, messages: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Rows of SAMPLED of a topic of 10 Hz: one for each signal of each message."""
    at = np.repeat(np.arange(first, first + messages), len(SIGNALS))
    midnight_us = int(dt.datetime.combine(_DAY, dt.time(), dt.UTC).timestamp()) * 1_000_000
    known: dict[str, Any] = {
        "table": ["signals"] * len(at),
        "run": np.ones(len(at), np.int64),
        "time_us": midnight_us + at * 100_000,
        "time_ns": at * 100_000_000,
        "id_msb": (midnight_us // 1_000 + at * 100) << 16,
        "id_lsb": at,
        "topic": [TOPIC] * len(at),
        "signal": list(SIGNALS) * messages,
        "value_double": rng.normal(50.0, 10.0, len(at)),
    }
    schema = file_schema(SAMPLED)
    columns = [
        pa.array(known[field.name], field.type) if field.name in known else pa.nulls(len(at), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
