# SPDX-License-Identifier: Apache-2.0
"""A gateway's files in the order in which its rows came to be: (run, received_ns, seq), never that of the wall clock.

A file is a date, and a date is what the wall clock showed. Mostly the files of a gateway follow one another. Where the clock was
set back over midnight they interleave: the day that is over goes on, in the middle of the next, and so they do
where a run was stopped on one day and another was begun on the one before. Such files are read side by side and merged; a batch
of each is in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ustreamer_pipeline.replay.rows import Ints, int_column

KEY: Final = ("run", "received_ns", "seq")
_FIRST: Final = (-(1 << 63), -(1 << 63))
_LAST: Final = ((1 << 63) - 1, (1 << 63) - 1)

F = TypeVar("F")


class Span(NamedTuple):
    """No row of a file is before `first` or behind `last`, both (run, received_ns)."""

    first: tuple[int, int]
    last: tuple[int, int]


def span_of(file: pq.FileMetaData) -> Span | None:
    """From the statistics of its row groups; None if it has no rows. Without statistics it may be anywhere."""
    if not file.num_rows:
        return None
    columns = {file.schema.column(index).name: index for index in range(file.num_columns)}
    first, last = _LAST, _FIRST
    for number in range(file.num_row_groups):
        group = file.row_group(number)
        run, received = (group.column(columns[name]).statistics for name in KEY[:2])
        if run is None or received is None or not (run.has_min_max and received.has_min_max):
            return Span(_FIRST, _LAST)
        first = min(first, (run.min, received.min))
        last = max(last, (run.max, received.max))
    return Span(first, last)


def group_in_order(spans: Sequence[tuple[F, Span | None]]) -> list[list[F]]:
    """Files that can be read one after the other, those that cannot be parted together; the earliest first."""
    found: list[list[F]] = []
    until = _FIRST
    for file, span in sorted(
        ((file, span) for file, span in spans if span is not None), key=lambda each: each[1]
    ):
        if not found or span.first > until:
            found.append([])
        found[-1].append(file)
        until = max(until, span.last)
    return found


class _Head:
    """What has been read of a file, and not given away yet."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        self._keys: tuple[Ints, ...] = ()
        self.fill()

    def fill(self) -> None:
        """Have rows, if there are any left."""
        while self.batch is None or not self.batch.num_rows:
            self.batch = next(self._batches, None)
            if self.batch is None:
                return
            self._keys = tuple(int_column(self.batch, name) for name in KEY)

    @property
    def last(self) -> tuple[int, ...]:
        return tuple(int(key[-1]) for key in self._keys)

    def rows_until(self, until: tuple[int, ...]) -> pa.RecordBatch:
        """The rows up to a key, itself included."""
        assert self.batch is not None
        run, received, seq = self._keys
        here = (run < until[0]) | (
            (run == until[0]) & ((received < until[1]) | ((received == until[1]) & (seq <= until[2])))
        )
        count = int(np.count_nonzero(here))
        taken, self.batch = self.batch.slice(0, count), self.batch.slice(count)
        self._keys = tuple(key[count:] for key in self._keys)
        return taken


def merge_files(files: Sequence[Callable[[], Iterator[pa.RecordBatch]]]) -> Iterator[pa.RecordBatch]:
    """The rows of files that are each in order of KEY, and have these columns, in order of KEY."""
    heads = [_Head(file()) for file in files]
    while heads := [head for head in heads if head.batch is not None]:
        # Nothing that was not read yet comes before the end of the batch that ends first.
        until = min(head.last for head in heads)
        parts = [part for part in (head.rows_until(until) for head in heads) if part.num_rows]
        yield parts[0] if len(parts) == 1 else _merge_batches(parts)
        for head in heads:
            head.fill()


def _merge_batches(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
    run, received, seq = (table.column(name).to_numpy() for name in KEY)
    order: npt.NDArray[np.int64] = np.lexsort((seq, received, run))
    (batch,) = table.take(order).combine_chunks().to_batches()
    return batch
