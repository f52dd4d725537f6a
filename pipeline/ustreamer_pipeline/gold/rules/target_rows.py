# SPDX-License-Identifier: Apache-2.0
"""Rows of publications, grouped in columns for the rules on targets. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.gold.rules.run import Columns, RunRows
from ustreamer_pipeline.groups import Groups, distinct, stable_order, starts_of_equal, stretches
from ustreamer_pipeline.replay.rows import Ints


class Example(NamedTuple):
    """The first row of a stretch: its place, and the number of its rows."""

    seq: int
    time_us: int
    arrived_ns: int
    rows: int

    def merge(self, other: "Example") -> "Example":
        """The example of both stretches together."""
        first, second = sorted((self, other), key=lambda each: each.seq)
        return first._replace(
            rows=first.rows + second.rows, arrived_ns=min(first.arrived_ns, second.arrived_ns)
        )


MESSAGE_KEY: Final = ("id_msb", "id_lsb", "ingress", "source")
"""Columns with equal values in the rows of one message."""


def message_starts(rows: Columns) -> tuple[Ints, Ints]:
    """Start of each message, and the message of each row. Rows of a message are together."""
    starts = starts_of_equal(*(rows[name] for name in MESSAGE_KEY))
    return starts, np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows["source"])))


def places_by_value(column: npt.NDArray[Any]) -> Iterator[tuple[int, Ints]]:
    """Each value of a column, 0 or more, and the places of its rows in their order."""
    if len(column) and bool((column == column[0]).all()):
        yield int(column[0]), np.arange(len(column))
        return
    order = stable_order(column)
    values = column[order]
    for start, end in stretches(starts_of_equal(values), len(order)):
        yield int(values[start]), order[start:end]


def distinct_values(rows: RunRows, where: npt.NDArray[np.bool_], *names: str) -> Iterable[tuple[int, ...]]:
    """Distinct values of these columns in the chosen rows."""
    at = np.flatnonzero(where)
    return distinct([rows[name][at] for name in names])


def _first_by_seq(seq: Ints, order: Ints, starts: Ints, counts: Ints) -> Ints:
    """The position of the least seq in each group of `order`."""
    if not len(starts):
        return starts
    ordered = seq[order]
    least = np.repeat(np.minimum.reduceat(ordered, starts), counts)
    places = np.flatnonzero(ordered == least)
    # A number may be there twice: the first one counts.
    found: Ints = order[places[starts_of_equal(np.repeat(np.arange(len(starts)), counts)[places])]]
    return found


def examples(
    columns: Sequence[npt.NDArray[Any]], rows: Columns
) -> Iterator[tuple[tuple[int, ...], int, Example]]:
    """Rows with equal values of these columns: the values, the position of the first by seq, and the example."""
    groups = Groups()
    number = groups.numbers(columns)
    order = stable_order(number)
    starts = starts_of_equal(number[order])
    counts = np.diff(starts, append=len(order))
    arrived = np.minimum.reduceat(rows["arrived_ns"][order], starts) if len(starts) else starts
    first = _first_by_seq(rows["seq"], order, starts, counts)
    places = (
        each.tolist() for each in (first, rows["seq"][first], rows["received_us"][first], arrived, counts)
    )
    for values, (at, *example) in zip(groups.combinations, zip(*places, strict=True), strict=True):
        yield values, at, Example(*example)
