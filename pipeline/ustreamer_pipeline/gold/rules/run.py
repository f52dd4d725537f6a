# SPDX-License-Identifier: Apache-2.0
"""What a rule of the audit gets of one run: its rows in order, batch by batch, and its rows of the small tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary, int_column
from ustreamer_pipeline.gold.predicted_targets import Endpoints
from ustreamer_pipeline.replay.rows import TEXTS
from ustreamer_pipeline.replay.target_replay import ThrottleSettings

Finding = dict[str, Any]
"""A violation, with the columns of `FINDINGS`. `seq` is None for a finding about a whole run."""

FINDINGS: Final = ("rule", "gateway", "run", "seq", "time_us", "subject", "expected", "found")

TARGET: Final = ("source", "egress", "subscriber")
"""Columns of the name of a target, see `RunRows.target`."""

Row = Mapping[str, Any]
Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]

_TEXTS: Final = frozenset((*TEXTS, "sink", "topic"))


@dataclass(frozen=True)
class RunTables:
    """Rows of the small tables of one run, and what its gateway's rows showed so far.

    `settings` are those of the throttle, by epoch. `unread_ns`: first and last received_ns of rows of other dates,
    which are not read. Where the clock was set back over midnight, rows that are read may be between them.
    """

    gateway: str
    run: int
    subscriptions: Sequence[Row] = ()
    dead_letters: Sequence[Row] = ()
    gaps: Sequence[Row] = ()
    segments: Sequence[Row] = ()
    counters: Sequence[Row] = ()
    epochs: Sequence[Row] = ()
    leaps: Sequence[Row] = ()
    settings: Mapping[int, ThrottleSettings | float | None] = field(default_factory=dict)
    unread_ns: Sequence[tuple[int, int]] = ()
    dictionary: Dictionary = field(default_factory=Dictionary)
    endpoints: Endpoints = field(default_factory=Endpoints)

    @property
    def is_cut(self) -> bool:
        """Whether the run may have rows of other dates, which are not read."""
        return bool(self.unread_ns)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are there: no gap, and no missing recording."""
        numbers = {row["number"] for row in self.segments}
        return not self.gaps and numbers == set(range(len(numbers)))

    @property
    def is_stopped(self) -> bool:
        """Whether the run ended with a regular stop."""
        return any(row["end"] == "STOPPED" for row in self.segments)

    @property
    def is_emptied(self) -> bool:
        """Whether the run stopped with empty queues."""
        return self.is_stopped and any(row["final"] and not row["queued"] for row in self.counters)


class BatchColumns:
    """Columns of one batch. A column is decoded when the first rule reads it.

    Integers and booleans have their type (null: -1). Texts are numbers of the gateway's dictionary (null: -1).
    """

    def __init__(self, batch: pa.RecordBatch, dictionary: Dictionary) -> None:
        self.dictionary = dictionary
        self._batch = batch
        self._decoded: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._decoded:
            self._decoded[name] = (
                self.dictionary.codes(self._batch.column(name))
                if name in _TEXTS
                else int_column(self._batch, name, -1)
            )
        return self._decoded[name]


class RunRows:
    """Rows of one run from one batch, with the columns of `BatchColumns`."""

    def __init__(self, columns: BatchColumns, start: int, end: int) -> None:
        self._columns = columns
        self._dictionary = columns.dictionary
        self._start, self._end = start, end

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name][self._start : self._end]

    def number(self, text: str) -> int:
        """The number of a text in the gateway's dictionary; a new text gets the next one."""
        return self._dictionary.number(text)

    def text(self, name: str, at: int) -> str | None:
        """The text of a column in the row at this position."""
        return self._dictionary.text(int(self[name][at]))

    def is_verdict(self, *verdicts: str) -> Mask:
        """Which rows have one of these verdicts."""
        found = self["verdict"]
        mask: Mask = found == self.number(verdicts[0])
        for verdict in verdicts[1:]:
            mask |= found == self.number(verdict)
        return mask

    def is_type(self, type_name: str) -> Mask:
        """Which rows have this type of message."""
        mask: Mask = self["type"] == self.number(type_name)
        return mask

    def target(self, at: int) -> str:
        """`SOURCE -> EGRESS SUBSCRIBER`; a multicast domain has no subscriber."""
        source, egress, subscriber = (self.text(name, at) for name in TARGET)
        return f"{source} -> {egress or ''}{'' if subscriber is None else f' {subscriber}'}"


class RunRule:
    """A rule on one run. `feed` gets all rows in order, then `end` is called.

    A rule that needs the rows a second time, to name those that violate it, sets `reads_again` in `end`. It gets them
    in `feed_again`, followed by `end_again`. So most rules hold suspicious rows only.
    """

    PROMISES: ClassVar[Mapping[str, str]] = {}
    """The promises that it checks, by the name of the rule."""
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    """Columns that it reads."""

    reads_again = False

    def __init__(self, run: RunTables) -> None:
        self.run = run
        self._found: list[Finding] = []

    def feed(self, rows: RunRows) -> None:
        """Check the next rows."""

    def end(self) -> None:
        """The run has no more rows."""

    def feed_again(self, rows: RunRows) -> None:
        """Check the next rows of the second read."""

    def end_again(self) -> None:
        """The second read is complete."""

    def take(self) -> list[Finding]:
        """The findings since the last call."""
        found, self._found = self._found, []
        return found

    def _add(
        self, rule: str, seq: int | None, time_us: int | None, subject: str | None, expected: str, found: str
    ) -> None:
        values = rule, self.run.gateway, self.run.run, seq, time_us, subject, expected, found
        self._found.append(dict(zip(FINDINGS, values, strict=True)))

    def _add_row(self, rows: RunRows, at: int, subject: str | None, expected: str, found: str) -> None:
        """A finding about one row, of a class with one rule."""
        (rule,) = self.PROMISES
        seq, time_us = int(rows["seq"][at]), int(rows["received_us"][at])
        self._add(rule, seq, time_us, subject, expected, found)


def take_rows(rows: Columns, where: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The rows at these positions, or where this mask is true, in every column."""
    return {name: column[where] for name, column in rows.items()}
