# SPDX-License-Identifier: Apache-2.0
"""Signals as one table, in a CSV file or an Arrow IPC stream: one row per value."""

import csv
import datetime as dt
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ustreamer_pipeline.export.messages import SampledMessage

COLUMNS: Final = ("gateway", "time", "id", "topic", "signal", "value", "unit")
_BATCH_MESSAGES: Final = 10_000


def write_csv(messages: Iterator[SampledMessage], path: Path) -> int:
    """Times are ISO 8601 in UTC, with microseconds."""
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for message in messages:
            count += 1
            time = dt.datetime.fromtimestamp(message.time_us // 1_000_000, dt.UTC).replace(
                microsecond=message.time_us % 1_000_000
            )
            shared = (message.gateway, time.isoformat(timespec="microseconds"), message.id, message.topic)
            writer.writerows((*shared, name, value, unit or "") for name, value, unit in message.signals)
    return count


def write_arrow(messages: Iterator[SampledMessage], path: Path) -> int:
    """An IPC stream with dictionaries for texts that repeat. A number is in value_double, a text in value_string."""
    import pyarrow as pa

    repeated = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [
            ("gateway", repeated),
            ("time", pa.timestamp("us", "UTC")),
            ("id", pa.string()),
            ("topic", repeated),
            ("signal", repeated),
            ("value_double", pa.float64()),
            ("value_string", pa.string()),
            ("unit", repeated),
        ]
    )
    count = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        while chunk := list(islice(messages, _BATCH_MESSAGES)):
            count += len(chunk)
            rows = [_row(message, *signal) for message in chunk for signal in message.signals]
            columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
            arrays = [
                pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return count


def _row(message: SampledMessage, name: str, value: Any, unit: str | None) -> tuple[Any, ...]:
    text = value if isinstance(value, str) else None
    number = None if isinstance(value, str) else float(value)
    return (message.gateway, message.time_us, message.id, message.topic, name, number, text, unit)
