# SPDX-License-Identifier: Apache-2.0
"""Rules on the numbers of rows, recordings and changes in a run: `sequence`, `segments`, `changes`."""

from itertools import pairwise
from typing import ClassVar

import numpy as np

from ustreamer_pipeline.gold.change_numbers import change_faults
from ustreamer_pipeline.gold.rules.run import Mask, RunRows, RunRule, RunTables
from ustreamer_pipeline.groups import starts_of_equal
from ustreamer_pipeline.replay.rows import Ints

_SUBJECT = "rows of the run"


class SequenceNumbers(RunRule):
    """Numbers of a run are contiguous: a missing number was announced as a gap, or belongs to a missing segment.

    Rows come nearly in the order of their numbers. Memory: the ranges of numbers that were there so far, each with the
    time of its first row. In a run without a violation these are the announced gaps and a few rows in flight. In a run of
    which only some dates are read, only numbers that come twice are found.
    """

    PROMISES: ClassVar = {"sequence": "every row is there, or announced as missing"}
    COLUMNS = ("seq", "received_us")

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._first: Ints = np.empty(0, dtype=np.int64)
        self._until: Ints = np.empty(0, dtype=np.int64)
        self._time_us: Ints = np.empty(0, dtype=np.int64)

    def feed(self, rows: RunRows) -> None:
        order = np.argsort(rows["seq"], kind="stable")
        seq, time_us = rows["seq"][order], rows["received_us"][order]
        is_again = np.append(False, seq[1:] == seq[:-1]) | self._is_known(seq)
        if is_again.any():
            twice = dict.fromkeys(zip(seq[is_again].tolist(), time_us[is_again].tolist(), strict=True))
            for number, time in twice:
                self._add("sequence", number, time, _SUBJECT, "each seq once", "twice")
            seq, time_us = seq[~is_again], time_us[~is_again]
        starts = starts_of_equal(seq - np.arange(len(seq)))
        until = seq[np.append(starts[1:], len(seq)) - 1] + 1 if len(seq) else seq
        self._add_ranges(seq[starts], until, time_us[starts])

    def _is_known(self, seq: Ints) -> Mask:
        """Which of these numbers, in order, were in an earlier batch."""
        known: Mask = np.zeros(len(seq), dtype=np.bool_)
        if len(self._first):
            before = seq[: np.searchsorted(seq, self._until[-1])]
            place = np.searchsorted(self._first, before, side="right") - 1
            known[: len(before)] = (place >= 0) & (before < self._until[place])
        return known

    def _add_ranges(self, first: Ints, until: Ints, time_us: Ints) -> None:
        """Add disjoint ranges; adjacent ones become one."""
        first = np.concatenate([self._first, first])
        order = np.argsort(first, kind="stable")
        first, until = first[order], np.concatenate([self._until, until])[order]
        starts = np.flatnonzero(np.append(True, first[1:] != until[:-1])[: len(first)])
        self._first, self._time_us = first[starts], np.concatenate([self._time_us, time_us])[order][starts]
        self._until = until[np.append(starts[1:], len(first)) - 1] if len(first) else until

    def end(self) -> None:
        if self.run.is_cut:
            return  # its other rows have some of the numbers
        first, until, time_us = self._first, self._until, self._time_us
        if self.run.segments:
            # One row after the last one, with the next number by the last segment: so a gap at the end is found.
            end = max(row["next_seq"] for row in self.run.segments)
            if end > (until[-1] if len(until) else 0):
                first = np.append(first, end)
                time_us = np.append(time_us, max(row["began_us"] for row in self.run.segments))
        ended = np.append(0, until)[: len(first)]
        missing = first - ended
        known = self._announced(ended, first)
        for at in np.flatnonzero((missing > 0) & (known < missing)).tolist():
            expected = f"rows {ended[at]} to {first[at] - 1}, or a gap that says so"
            found = f"{missing[at]} rows missing, {known[at]} of them announced"
            self._add("sequence", int(first[at]), int(time_us[at]), _SUBJECT, expected, found)

    def _announced(self, begin: Ints, end: Ints) -> Ints:
        """How many rows of each range are known to be missing, by gaps and by missing segments."""
        announced = [(row["first_seq"], row["rows"]) for row in self.run.gaps]
        in_order = sorted(self.run.segments, key=lambda row: row["number"])
        next_number = next_seq = 0
        for row in in_order:
            if row["number"] > next_number and row["first_seq"] > next_seq:
                announced.append((next_seq, row["first_seq"] - next_seq))
            next_number, next_seq = row["number"] + 1, row["next_seq"]
        announced.sort()
        sums = np.cumsum([0, *(rows for _, rows in announced)])
        firsts = np.array([first for first, _ in announced], dtype=np.int64)
        known: Ints = sums[np.searchsorted(firsts, end)] - sums[np.searchsorted(firsts, begin)]
        return known


class Segments(RunRule):
    """A gateway deletes its oldest recordings first, so only the first ones of a run may be missing."""

    PROMISES: ClassVar = {"segments": "no recording is missing between two of its run"}

    def end(self) -> None:
        found = {row["number"]: row for row in self.run.segments}
        for before, after in pairwise(sorted(found)):
            if before + 1 < after:
                row = found[after]
                expected = f"numbers {before + 1} to {after - 1}"
                self._add("segments", row["first_seq"], row["began_us"], "recordings", expected, "none")


class Changes(RunRule):
    """The changes of subscriptions have contiguous numbers, each once (gold/change_numbers.py)."""

    PROMISES: ClassVar = {"changes": "every change of a subscription is there, or announced as missing"}

    def end(self) -> None:
        if not self.run.segments:
            return
        for fault in change_faults(self.run.segments, self.run.subscriptions, self.run.gaps):
            self._add("changes", None, fault.time_us, "subscriptions", fault.expected, fault.found)
