# SPDX-License-Identifier: Apache-2.0
"""The tables as people query them: times as TIMESTAMP, ids as UUID text, a comment on every column.

In: the schemas of the files. Out: views in the catalogue of a session, and docs/tables.md, which
`python -m ustreamer_pipeline.views` prints.

Files keep a time as microseconds and an id as two numbers: the text of an id would take more space than the rest of
its row. Spark computes the columns of a view from these, and only those that a query reads.
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.lake.snapshot import Snapshot, snapshot_of
from ustreamer_pipeline.schemas import QUARANTINE, SIGNALS, SILVER, Column, Table
from ustreamer_pipeline.signal_counts import VALUE_KINDS, SignalCount
from ustreamer_pipeline.signal_source import find_signals, messages
from ustreamer_pipeline.wide_signals import WideColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = (*SILVER, QUARANTINE)
WIDTH: Final = 118

_MESSAGE: Final = ("gateway", "date", "run", "time", "time_ns", "id")
_UPPER, _LOWER = "_msb", "_lsb"
"""Ends of the names of the two halves of a UUID."""


@dataclass(frozen=True)
class ViewColumn:
    """A column of a view. `expression` computes it in SQL from the columns of the table."""

    name: str
    type: str
    note: str
    nullable: bool
    expression: str


def view_columns(table: Table) -> list[ViewColumn]:
    """Columns of the view of a table, in the order of the table."""
    return [_view_column(column) for column in table.columns if not column.name.endswith(_LOWER)]


def _view_column(column: Column) -> ViewColumn:
    if column.time:
        made = column.time, "timestamp", column.note, f"timestamp_micros({column.name})"
    elif column.name.endswith(_UPPER):
        name = column.name.removesuffix(_UPPER)
        made = name, "string", column.note.replace(", upper half", ""), _uuid_text(name)
    else:
        made = column.name, column.type, column.note, f"`{column.name}`"
    name, kind, note, expression = made
    return ViewColumn(name, kind, note, column.nullable, expression)


def _uuid_text(name: str) -> str:
    """SQL for the text of a UUID, as in RFC 9562; null for a null."""
    upper, lower = (f"lpad(lower(hex({name}{half})), 16, '0')" for half in (_UPPER, _LOWER))
    parts = (upper, 1, 8), (upper, 9, 4), (upper, 13, 4), (lower, 1, 4), (lower, 5, 12)
    texts = [f"substr({half}, {start}, {size})" for half, start, size in parts]
    joined = " || '-' || ".join(texts)  # null if one is null
    return f"({joined})"


def view(spark: "SparkSession", lake: str | Path | Snapshot, table: Table) -> "DataFrame":
    """The content of a table for people. Raises the errors of `Table.read_table`."""
    from pyspark.sql import functions as f

    return table.read_table(spark, lake).select(
        *(
            f.expr(each.expression).alias(each.name, metadata={"comment": each.note})
            for each in view_columns(table)
        )
    )


def register_views(spark: "SparkSession", lake: str | Path) -> list[str]:
    """Make a view of each table, all of one snapshot, in the catalogue of the session, and return their names."""
    snapshot = snapshot_of(lake)
    for table in TABLES:
        view(spark, snapshot, table).createOrReplaceTempView(table.name)
    return [table.name for table in TABLES]


def register_signal_views(spark: "SparkSession", lake: str | Path) -> list[str]:
    """Make a view of each topic with signals, and return the names, such as "signals_chassis_1234_1_8001".

    A view has one row per message, and one column per signal, with its type and its unit as comment.
    """
    from pyspark.sql import functions as f

    snapshot = snapshot_of(lake)
    topics: dict[str, list[SignalCount]] = {}
    for found in find_signals(spark, snapshot):
        topics.setdefault(found.topic, []).append(found)
    columns = {each.name: each for each in view_columns(SIGNALS)}
    about = [
        f.expr(columns[name].expression).alias(name, metadata={"comment": columns[name].note})
        for name in _MESSAGE
    ]
    for topic, signals in topics.items():
        wide = messages(
            spark, snapshot, topic, [WideColumn(each.signal, _value_column(each)) for each in signals]
        )
        described = [
            f.col(f"_{number}").alias(each.signal, metadata={"comment": each.unit} if each.unit else {})
            for number, each in enumerate(signals)
        ]
        wide.select(*about, *described).createOrReplaceTempView(signal_view(topic))
    return [signal_view(topic) for topic in topics]


def _value_column(counts: SignalCount) -> str:
    """The column with the values of a signal. A number that is an integer only sometimes is a double."""
    # Of equal counts the first: an integer has a double too.
    return f"value_{max(VALUE_KINDS, key=lambda kind: getattr(counts, kind))}"


def signal_view(topic: str) -> str:
    """Name of the view of a topic: signals, and the parts of its UUri."""
    return "_".join(["signals", *re.findall(r"\w+", topic.removeprefix("up:"))])


def data_dictionary() -> str:
    """The page docs/tables.md."""
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Generated by `python -m ustreamer_pipeline.views`: edit ustreamer_pipeline/schemas.py instead. -->",
        "# Tables of a lake",
        "",
        *textwrap.wrap(
            "`ustreamer_pipeline.views.register_views(spark, lake)` makes these views in the catalogue of a session. "
            "`DESCRIBE deliveries` shows the same comments. All times of the wall clock are UTC, in microseconds. "
            "A name that ends with `_ns` is a time of the gateway's monotonic clock, or a duration, in nanoseconds. "
            "A query that names a `date` and a `gateway` reads only their files.",
            WIDTH,
        ),
        "",
        *textwrap.wrap(
            "`register_signal_views(spark, lake)` makes one more view for each topic with signals, such as "
            "`signals_chassis_1234_1_8001`: one row per message, one column per signal. The comment of a column is the "
            "unit of its signal.",
            WIDTH,
        ),
    ]
    for table in TABLES:
        lines += ["", f"## {table.name}", "", *textwrap.wrap(table.note, WIDTH), ""]
        for column in view_columns(table):
            null = " or null" if column.nullable else ""
            text = f"* `{column.name}` {column.type}{null}: {column.note}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(data_dictionary(), end="")
