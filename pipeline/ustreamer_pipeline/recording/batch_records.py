# SPDX-License-Identifier: Apache-2.0
"""Expands BATCH records into one DELIVERY record per row. Pure, numpy only, 0.1 us per row.

After the expansion no BATCH is left: each row is at the position of its BATCH, with the bytes of a single DELIVERY
record.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.recording.layout import (
    BATCH,
    CELL,
    DELIVERY,
    MAX_BATCH_ROWS,
    NO_CODE,
    SIZES,
    TIMES,
    TYPES,
    Ints,
    Records,
)

Bools = npt.NDArray[np.bool_]

_DELIVERED: Final = 0
_COPIED_FIELDS: Final = (
    "flags",
    "type",
    "priority",
    "settled_ns",
    "target",
    "source",
    "sink",
    "ttl_ms",
    "epoch",
)
_WORDS: Final = CELL // 8
_HALVES: Final = CELL // 4


def expand_batches(cells: Records, offsets: Ints) -> tuple[Records, Ints]:
    """Records without BATCH records, and the offset of each.

    An inconsistent BATCH stays as it is, for the quarantine, and the records after it in its block are dropped: they
    may be records or numbers.
    """
    at, lengths, whole = _find_batches(cells, offsets)
    if not len(at):
        return cells, offsets
    heads = cells[at].view(TYPES[BATCH])
    counts = np.where(whole, heads["rows"], 1).astype(np.int64)
    # Every other record stays, a BATCH becomes its rows, and its columns are dropped.
    becomes = np.ones(len(cells), np.int64)
    becomes[_column_positions(at, lengths)] = 0
    becomes[at] = counts
    comes_from = np.repeat(np.arange(len(cells)), becomes)
    records = cells[comes_from]
    rows = np.repeat(whole, counts)
    places = np.flatnonzero(np.isin(comes_from, at))[rows]
    records[places] = _delivery_records(cells, heads[whole], at[whole]).view(records.dtype)
    return records, offsets[comes_from]


def _find_batches(cells: Records, offsets: Ints) -> tuple[Ints, Ints, Bools]:
    """Positions of BATCH records, the number of their column records, and whether each is consistent."""
    kinds = cells.view(np.uint8).reshape(-1, CELL)[:, 0] if len(cells) else np.zeros(0, np.uint8)
    candidates = np.flatnonzero(kinds == BATCH)
    ends = np.append(np.flatnonzero(np.diff(offsets) != CELL) + 1, len(cells))  # of blocks
    heads = cells[candidates].view(TYPES[BATCH])
    stops, ends = candidates + 1 + heads["records"], ends[np.searchsorted(ends, candidates, side="right")]
    whole = _is_consistent(heads) & (stops <= ends)
    stops = np.where(whole, stops, ends)
    real, following = [], 0
    for number, (candidate, stop) in enumerate(zip(candidates.tolist(), stops.tolist(), strict=True)):
        if candidate >= following:  # otherwise it is a number in a column
            real.append(number)
            following = stop
    return candidates[real], (stops - candidates - 1)[real], whole[real]


def _is_consistent(heads: Records) -> Bools:
    """Whether the number of column records fits the number of rows."""
    rows, flags = heads["rows"].astype(np.int64), heads["flags"]
    width = 16 + np.where(flags & TIMES, 8, 0) + np.where(flags & SIZES, 4, 0)
    agrees: Bools = (rows > 0) & (rows <= MAX_BATCH_ROWS) & (heads["records"] == -(-rows * width // CELL))
    return agrees


def _column_positions(at: Ints, lengths: Ints) -> Ints:
    """Positions of all column records."""
    return np.repeat(at + 1, lengths) + _ranges(lengths)


def _ranges(lengths: Ints) -> Ints:
    """Concatenated ranges: for lengths 2 and 3 it is 0, 1, 0, 1, 2."""
    begins = np.cumsum(lengths) - lengths
    counted: Ints = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    return counted


def _delivery_records(cells: Records, heads: Records, at: Ints) -> Records:
    """The DELIVERY records for these BATCH records, in order."""
    counts = heads["rows"].astype(np.int64)
    which, number = np.repeat(np.arange(len(heads)), counts), _ranges(counts)
    head, rows = heads[which], counts[which]
    words, halves = cells.view("<i8"), cells.view("<u4")
    msb = (at[which] + 1) * _WORDS + number
    has_times, has_sizes = (head["flags"] & TIMES) != 0, (head["flags"] & SIZES) != 0
    made = np.zeros(len(which), TYPES[DELIVERY])
    for name in _COPIED_FIELDS:
        made[name] = head[name]
    made["kind"], made["verdict"], made["code"], made["attempts"] = DELIVERY, _DELIVERED, NO_CODE, 1
    made["flags"] &= ~np.uint8(TIMES | SIZES)
    made["seq"] = head["seq"] + number
    made["id_msb"], made["id_lsb"] = words[msb], words[msb + rows]
    times = head["time_ns"].copy()
    times[has_times] = words[(msb + 2 * rows)[has_times]]
    for name in ("arrived_ns", "received_ns", "first_attempt_ns"):
        made[name] = times
    size = head["size"].copy()
    sizes_at = (at[which] + 1) * _HALVES + 2 * rows * np.where(has_times, 3, 2) + number
    size[has_sizes] = halves[sizes_at[has_sizes]]
    made["size"] = size
    return made
