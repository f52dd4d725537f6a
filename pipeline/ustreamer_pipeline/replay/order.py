# SPDX-License-Identifier: Apache-2.0
"""The files of a gateway in the order of their rows: (run, received_ns, seq), not the order of the wall clock.

A file is a date by the wall clock. Most files of a gateway follow one another. Files interleave where the clock was
set back over midnight: the old day continues in the middle of the next one. They also interleave where a run stopped
on one day and the next run began on the day before. Such files are read in parallel and merged, with one batch of
each in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ustreamer_pipeline.columns import int_column
from ustreamer_pipeline.replay.rows import Ints

KEY: Final = ("run", "received_ns", "seq")
_FIRST: Final = (-(1 << 63), -(1 << 63))
_LAST: Final = ((1 << 63) - 1, (1 << 63) - 1)

F = TypeVar("F")


class Span(NamedTuple):
    """All rows of a file are between `first` and `last`, both (run, received_ns)."""

    first: tuple[int, int]
    last: tuple[int, int]

    def times_of(self, run: int) -> tuple[int, int] | None:
        """Least and greatest received_ns that rows of a run may have in the file; None without rows of it."""
        if not self.first[0] <= run <= self.last[0]:
            return None
        least = self.first[1] if run == self.first[0] else _FIRST[1]
        return least, self.last[1] if run == self.last[0] else _LAST[1]

    def covers(self, run: Ints, received_ns: Ints) -> npt.NDArray[np.bool_]:
        """Which of these rows are between `first` and `last`."""
        (first_run, first_ns), (last_run, last_ns) = self
        begun: npt.NDArray[np.bool_] = (run > first_run) | ((run == first_run) & (received_ns >= first_ns))
        begun &= (run < last_run) | ((run == last_run) & (received_ns <= last_ns))
        return begun


def span_of(file: pq.FileMetaData) -> Span | None:
    """Span from the statistics of the row groups; None for a file without rows. Without statistics the span is
    unlimited.
    """
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
    """Groups of files, the earliest first. Groups follow one another; files inside a group overlap."""
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
    """Rows that were read from a file and not yet returned."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        self._keys: tuple[Ints, ...] = ()
        self.fill()

    def fill(self) -> None:
        """Read rows, if any are left."""
        while self.batch is None or not self.batch.num_rows:
            self.batch = next(self._batches, None)
            if self.batch is None:
                return
            self._keys = tuple(int_column(self.batch, name) for name in KEY)

    @property
    def last(self) -> tuple[int, ...]:
        return tuple(int(key[-1]) for key in self._keys)

    def rows_until(self, until: tuple[int, ...]) -> pa.RecordBatch:
        """Rows up to and including a key."""
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
    """Merge files that are each in order of KEY and have these columns into one sequence in order of KEY."""
    heads = [_Head(file()) for file in files]
    while heads := [head for head in heads if head.batch is not None]:
        # Unread rows come after the end of the batch that ends first.
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
