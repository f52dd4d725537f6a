# SPDX-License-Identifier: Apache-2.0
"""One row for each message of a topic, with a column for each of its signals.

In: batches of a file of signals, in the order of the file. Out: batches of messages. The signals of one payload are
decoded together, so their rows follow each other: a message is complete in one pass, and no row is shuffled.

Memory: a batch, and the rows of the last arrival time of the batch before.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary, int_column
from ustreamer_pipeline.groups import Ints, starts_of_equal
from ustreamer_pipeline.lake.snapshot import TableFile
from ustreamer_pipeline.lake.tables import date_of
from ustreamer_pipeline.schemas import SIGNALS

NUMBERS: Final = ("run", "time_us", "time_ns", "id_msb", "id_lsb")
"""Columns that are equal in all rows of a message, as its gateway is. A file has one date."""


class WideColumn(NamedTuple):
    """The column of one signal: its values are those of the column `value` of the table."""

    signal: str
    value: str


class _Rows(NamedTuple):
    """Rows of one topic: columns that name the message, the position of the signal among the wide columns, values.

    A gateway is its number in the dictionary. The position of a signal without a column is -1.
    """

    key: dict[str, Ints]
    signal: Ints
    values: dict[str, pa.Array]

    def __len__(self) -> int:
        return len(self.signal)

    def part(self, start: int, end: int) -> "_Rows":
        key = {name: column[start:end] for name, column in self.key.items()}
        values = {name: column.slice(start, end - start) for name, column in self.values.items()}
        return _Rows(key, self.signal[start:end], values)

    def in_order(self, order: Ints) -> "_Rows":
        key = {name: column[order] for name, column in self.key.items()}
        values = {name: column.take(pa.array(order)) for name, column in self.values.items()}
        return _Rows(key, self.signal[order], values)

    def followed_by(self, more: "_Rows") -> "_Rows":
        key = {name: np.concatenate([column, more.key[name]]) for name, column in self.key.items()}
        values = {name: pa.concat_arrays([each, more.values[name]]) for name, each in self.values.items()}
        return _Rows(key, np.concatenate([self.signal, more.signal]), values)


class WideMessages:
    """The messages of one topic in one file, which has rows of one gateway or, without a gateway, of several."""

    def __init__(self, topic: str, columns: Sequence[WideColumn], file: TableFile) -> None:
        self._columns, self._gateway = columns, file.gateway
        self._date = date_of(file.day)
        self._dictionary = Dictionary()
        self._topic = self._dictionary.number(topic)
        self._table = self._dictionary.number(SIGNALS.name)
        self._signals = [self._dictionary.number(column.signal) for column in columns]

    @property
    def reads(self) -> list[str]:
        """Columns of the file to read."""
        return [*self.encoded, *NUMBERS, *dict.fromkeys(column.value for column in self._columns)]

    @property
    def encoded(self) -> list[str]:
        """Those of them that stay encoded with a dictionary."""
        return ["table", "topic", "signal", *([] if self._gateway else ["gateway"])]

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of messages, with the columns of `wide_names`."""
        waiting: _Rows | None = None
        for batch in batches:
            rows = self._rows(batch)
            if not len(rows):
                continue
            times = rows.key["time_ns"]
            if waiting is not None:
                # Messages of one arrival time may be mixed, and more of them may follow.
                more = _count_equal(times, waiting.key["time_ns"][-1])
                waiting = waiting.followed_by(rows.part(0, more))
                if more == len(rows):
                    continue
                yield self._messages(waiting)
                rows, times = rows.part(more, len(rows)), times[more:]
            end = len(rows) - _count_equal(times[::-1], times[-1])
            if end:
                yield self._messages(rows.part(0, end))
            waiting = rows.part(end, len(rows))
        if waiting is not None:
            yield self._messages(waiting)

    def _rows(self, batch: pa.RecordBatch) -> _Rows:
        """The rows of the topic."""
        dictionary = self._dictionary
        is_mine = dictionary.codes(batch.column("table")) == self._table
        is_mine &= dictionary.codes(batch.column("topic")) == self._topic
        rows = batch if is_mine.all() else batch.filter(pa.array(is_mine))
        signals = dictionary.codes(rows.column("signal"))
        gateways = (
            np.full(rows.num_rows, dictionary.number(self._gateway))
            if self._gateway
            else dictionary.codes(rows.column("gateway")).astype(np.int64)
        )
        positions = np.full(len(dictionary.texts), -1, dtype=np.int64)
        positions[self._signals] = np.arange(len(self._signals))
        return _Rows(
            {"gateway": gateways, **{name: int_column(rows, name) for name in NUMBERS}},
            positions[signals],
            {name: rows.column(name) for name in dict.fromkeys(each.value for each in self._columns)},
        )

    def _messages(self, rows: _Rows) -> pa.RecordBatch:
        key = tuple(rows.key.values())
        starts = starts_of_equal(*key)
        if bool((np.diff(rows.key["time_ns"][starts]) <= 0).any()):  # a message may have rows in two places
            rows = rows.in_order(np.lexsort(key))
            key = tuple(rows.key.values())
            starts = starts_of_equal(*key)
        gateways = (
            pa.repeat(self._gateway, len(starts))
            if self._gateway
            else pa.array([self._dictionary.text(code) for code in rows.key["gateway"][starts].tolist()])
        )
        numbers = [pa.array(rows.key[name][starts]) for name in NUMBERS]
        arrays = [gateways, pa.repeat(pa.scalar(self._date), len(starts)), *numbers]
        return pa.RecordBatch.from_arrays(
            [*arrays, *self._values(rows, starts)], names=wide_names(self._columns)
        )

    def _values(self, rows: _Rows, starts: Ints) -> list[pa.Array]:
        """The first value of each signal in each message; null for a message without one."""
        message = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows)))
        cell = message * len(self._columns) + rows.signal
        # The row of each message and signal, for each type of values.
        places: dict[str, Ints] = {}
        for name, values in rows.values.items():
            is_value = rows.signal >= 0
            if values.null_count:
                is_value &= values.is_valid().to_numpy(zero_copy_only=False)
            at = np.flatnonzero(is_value)[::-1]
            place = np.full(len(starts) * len(self._columns), -1, dtype=np.int64)
            place[cell[at]] = at  # of several the first one is assigned last
            places[name] = place.reshape(-1, len(self._columns))
        found = []
        for number, column in enumerate(self._columns):
            place = places[column.value][:, number]
            found.append(rows.values[column.value].take(pa.array(place, mask=place < 0)))
        return found


def wide_names(columns: Sequence[WideColumn]) -> list[str]:
    """Names of the columns of a batch of messages. A signal may have any name, so its column has a number."""
    return ["gateway", "date", *NUMBERS, *(f"_{number}" for number in range(len(columns)))]


def _count_equal(times: Ints, time: int) -> int:
    """Number of times that are equal to `time`, at the beginning."""
    differs = times != time
    return int(differs.argmax()) if bool(differs.any()) else len(times)
