# SPDX-License-Identifier: Apache-2.0
"""Rules on dead letters: `dead_letters` and `missing_dead_letters`."""

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.gold.rules.run import TARGET, Finding, Row, RunRows, RunRule, RunTables
from ustreamer_pipeline.replay.rows import Ints


def dead_letter_topic(gateway: str) -> str:
    """The topic of a gateway's dead letters."""
    return f"up://{gateway}/4/1/8000"


def _dead_letter_rows(run: RunTables) -> Ints:
    """Numbers of the rows with a dead letter, in order."""
    return np.array(sorted({row["seq"] for row in run.dead_letters}), dtype=np.int64)


def _are_in(numbers: Ints, letters: Ints) -> npt.NDArray[np.bool_]:
    """Which numbers have a dead letter. `letters` are sorted: one search per row takes half the time of `np.isin`."""
    if not len(letters):
        return np.zeros(len(numbers), dtype=np.bool_)
    at = np.searchsorted(letters, numbers)
    at[at == len(letters)] = 0
    found: npt.NDArray[np.bool_] = letters[at] == numbers
    return found


class DeadLetters(RunRule):
    """A dead letter stands for an expired or failed message, never for a throttled one. It has the id, the addresses
    and the code of its message, and is the only one.
    """

    PROMISES: ClassVar = {"dead_letters": "dead letters only of what expired or failed, one of each"}
    COLUMNS = ("seq", "received_us", "verdict", "id_msb", "id_lsb", "sink", "code", *TARGET)

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._letters = _dead_letter_rows(run)
        self._letter_of = {row["seq"]: row for row in run.dead_letters}
        for seq, count in Counter(row["seq"] for row in run.dead_letters).items():
            if count > 1:
                letter = self._letter_of[seq]
                self._add(
                    "dead_letters",
                    seq,
                    letter.get("time_us"),
                    letter.get("source"),
                    "one dead letter",
                    f"{count}",
                )

    def feed(self, rows: RunRows) -> None:
        with_letter = np.flatnonzero(_are_in(rows["seq"], self._letters))
        for row in with_letter.tolist():
            self._compare(rows, row, self._letter_of[int(rows["seq"][row])])
        failed = rows.is_verdict("EXPIRED", "DEAD_LETTERED")
        for row in with_letter[~failed[with_letter]].tolist():
            expected, found = (
                "dead letters of EXPIRED or DEAD_LETTERED",
                f"one of {rows.text('verdict', row)}",
            )
            self._add_row(rows, row, rows.target(row), expected, found)

    def _compare(self, rows: RunRows, at: int, letter: Row) -> None:
        """The letter against its row. A letter of a test or of an earlier version may lack a field."""
        if letter.get("id_msb") is None:
            return
        code = int(rows["code"][at])
        of_row = {
            "id": (int(rows["id_msb"][at]), int(rows["id_lsb"][at])),
            "source": rows.text("source", at),
            "sink": rows.text("sink", at),
            "code": None if code < 0 else code,
        }
        of_letter: dict[str, Any] = {"id": (letter["id_msb"], letter["id_lsb"])}
        of_letter |= {name: letter[name] for name in ("source", "sink", "code")}
        for name, value in of_row.items():
            if of_letter[name] != value:
                expected, found = f"a dead letter with {name} {value}", f"{name} {of_letter[name]}"
                self._add_row(rows, at, rows.target(at), expected, found)


class MissingDeadLetters(RunRule):
    """Each expired or failed message has a dead letter, except a dead letter itself.

    A run with missing rows may lack letters too. In a run without a regular stop the last row may have lost its letter
    with the end of the file.
    """

    PROMISES: ClassVar = {"missing_dead_letters": "everything that expired or failed has a dead letter"}
    COLUMNS = ("seq", "received_us", "verdict", "source")

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._letters = _dead_letter_rows(run)
        self._is_whole = run.is_whole
        self._last_seq = -1
        self._of_last: list[Finding] = []

    def feed(self, rows: RunRows) -> None:
        if not self._is_whole:
            return
        failed = rows.is_verdict("EXPIRED", "DEAD_LETTERED")
        failed &= rows["source"] != rows.number(dead_letter_topic(self.run.gateway))
        at = np.flatnonzero(failed)
        for row in at[~_are_in(rows["seq"][at], self._letters)].tolist():
            verdict = rows.text("verdict", row)
            self._add_row(rows, row, rows.text("source", row), f"a dead letter of {verdict}", "none")
        self._last_seq = max(self._last_seq, int(rows["seq"].max(initial=-1)))

    def take(self) -> list[Finding]:
        """The findings since the last call, except one about the last row so far."""
        found = [*self._of_last, *super().take()]
        self._of_last = [each for each in found if each["seq"] == self._last_seq]
        return [each for each in found if each["seq"] != self._last_seq]

    def end(self) -> None:
        if self.run.is_emptied:
            self._last_seq = -1
        else:
            self.take()
