# SPDX-License-Identifier: Apache-2.0
"""Sums, minima and maxima of rows by key, over any number of batches. In memory is one row for each key."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

_WAITING_ROWS: Final = 1 << 16
"""Groups of later batches that wait, at least, before they are merged: a merge costs as much as all groups."""


class GroupedRows:
    """`keys` are the columns that rows are grouped by. `aggregates` are `sum`, `min` or `max` of the other columns."""

    def __init__(self, keys: Sequence[str], aggregates: Mapping[str, str]) -> None:
        self._keys, self._aggregates = list(keys), dict(aggregates)
        self._parts: list[pa.Table] = []
        self._waiting = 0

    def add(self, columns: Mapping[str, Any]) -> None:
        """Add the rows of a batch: a numpy or Arrow array for each key and each other column."""
        part = self._group(pa.table({name: columns[name] for name in (*self._keys, *self._aggregates)}))
        if self._parts:
            self._waiting += part.num_rows
        self._parts.append(part)
        if self._waiting > max(self._parts[0].num_rows, _WAITING_ROWS):
            self.table()

    def table(self) -> pa.Table:
        """One row for each key, without an order. Keys and other columns are int64 if there was no row."""
        if len(self._parts) > 1:
            self._parts = [self._group(pa.concat_tables(self._parts))]
            self._waiting = 0
        if not self._parts:
            nothing = pa.array([], pa.int64())
            return pa.table(dict.fromkeys((*self._keys, *self._aggregates), nothing))
        return self._parts[0]

    @property
    def num_rows(self) -> int:
        """Rows in memory: at least one for each key."""
        return sum(part.num_rows for part in self._parts)

    def _group(self, rows: pa.Table) -> pa.Table:
        grouped = rows.group_by(self._keys, use_threads=False).aggregate(list(self._aggregates.items()))
        names = [f"{name}_{function}" for name, function in self._aggregates.items()]
        return grouped.select([*self._keys, *names]).rename_columns([*self._keys, *self._aggregates])
