# SPDX-License-Identifier: Apache-2.0
"""The tables of a report for one gateway from the small tables of silver: lives of subscriptions, and missing rows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from ustreamer_pipeline.schemas import GAPS, SUBSCRIPTIONS

TABLES: Final = (SUBSCRIPTIONS.name, GAPS.name)
COLUMNS: Final = (
    *("table", "run", "number", "time_us", "time_ns", "topic", "subscriber", "change", "period_ns"),
    *("cause", "rows"),
)
"""Columns of the small tables that a report reads."""

_LIVES: Final = pa.schema(
    [
        ("run", pa.int64()),
        ("topic", pa.string()),
        ("subscriber", pa.string()),
        ("from_us", pa.int64()),
        ("seconds", pa.float64()),
        ("period_ns", pa.int64()),
        ("changes", pa.int64()),
    ]
)

Row = Mapping[str, Any]


@dataclass
class _Life:
    """A subscription from start to end."""

    run: int
    topic: str
    subscriber: str
    from_us: int
    from_ns: int
    period_ns: int = 0
    changes: int = 0
    until_ns: int | None = None

    def add(self, row: Row) -> None:
        self.from_us = min(self.from_us, row["time_us"])
        self.period_ns = row["period_ns"]
        self.changes += row["change"] == "CHANGED"
        if row["change"] == "UNSUBSCRIBED":
            self.until_ns = row["time_ns"]

    @property
    def seconds(self) -> float | None:
        return None if self.until_ns is None else (self.until_ns - self.from_ns) / 1e9


def lifetimes(subscriptions: Iterable[Row]) -> pa.Table:
    """Each subscription from start to end; `seconds` is null if it was active at the end of the recording.

    A changed period is the same subscription: only an end starts a new one.
    """
    lives: list[_Life] = []
    latest: dict[tuple[int, str, str], _Life] = {}
    for row in sorted(subscriptions, key=itemgetter("run", "time_ns", "number")):
        key = row["run"], row["topic"], row["subscriber"]
        life = latest.get(key)
        if row["change"] != "UNSUBSCRIBED" and (life is None or life.until_ns is not None):
            life = latest[key] = _Life(*key, row["time_us"], row["time_ns"])
            lives.append(life)
        if life is not None:
            life.add(row)
    return pa.Table.from_pylist(
        [{name: getattr(life, name) for name in _LIVES.names} for life in lives], _LIVES
    )


def missing(gaps: Iterable[Row]) -> pa.Table:
    """Rows known to be missing from the recordings, by cause."""
    rows: Counter[str] = Counter()
    for gap in gaps:
        rows[gap["cause"]] += gap["rows"]
    return pa.table({"cause": pa.array(rows, pa.string()), "rows": pa.array(rows.values(), pa.int64())})


def small_tables(rows: Iterable[Row]) -> dict[str, pa.Table]:
    """The tables of one gateway, by name, from the rows of TABLES."""
    of: dict[str, list[Row]] = {name: [] for name in TABLES}
    for row in rows:
        of[row["table"]].append(row)
    return {"subscriptions": lifetimes(of[SUBSCRIPTIONS.name]), "missing": missing(of[GAPS.name])}
