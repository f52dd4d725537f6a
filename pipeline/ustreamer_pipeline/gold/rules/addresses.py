# SPDX-License-Identifier: Apache-2.0
"""Rules on addresses: `echo`, where a message may go; `valid`, whether addresses, verdicts and settings are ones."""

from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from ustreamer_throttle.gate import MAX_PERIOD_NS

from ustreamer_pipeline.gold.predicted_targets import is_address
from ustreamer_pipeline.gold.rules.run import TARGET, RunRows, RunRule, RunTables
from ustreamer_pipeline.groups import FEW_ROWS
from ustreamer_pipeline.replay.gate_inputs import settings_fault
from ustreamer_pipeline.schemas import TYPES, VERDICTS

_ADDRESSES: Final = ("source", "sink", "subscriber")
_NAMES: Final = {"verdict": VERDICTS, "type": TYPES}
_EXPECTED: Final = "a UUri, as up://authority/1234/1/8001"


class Echo(RunRule):
    """A message never returns to the endpoint it came from."""

    PROMISES: ClassVar = {"echo": "nothing goes back where it came from"}
    COLUMNS = ("seq", "received_us", "verdict", "ingress", *TARGET)

    def feed(self, rows: RunRows) -> None:
        returned = (rows["egress"] == rows["ingress"]) & (rows["egress"] >= 0) & rows.is_verdict("DELIVERED")
        for at in np.flatnonzero(returned).tolist():
            back = f"back to {rows.text('egress', at)}"
            self._add_row(rows, at, rows.target(at), "any other endpoint", back)


class Valid(RunRule):
    """Every address is a UUri, verdicts and types are known, and a gateway accepts periods and settings of the throttle.

    No gateway writes another value, so a finding means other bytes or another program. Each text is one finding. The
    rule `decided` does not judge a run with invalid settings, nor rows with an impossible target.
    """

    PROMISES: ClassVar = {"valid": "every address, verdict, type and setting is one that a gateway has"}
    COLUMNS = ("seq", "received_us", "period_ns", *_ADDRESSES, *_NAMES)

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._known: dict[str, set[int]] = {}

    def feed(self, rows: RunRows) -> None:
        for name in (*_ADDRESSES, *_NAMES):
            known = self._known.setdefault(name, {-1})
            for code in _distinct_codes(rows[name]) - known:
                known.add(code)
                expected = _fault_of(name, self.run.dictionary.text(code) or "")
                if expected is not None:
                    at = int(np.flatnonzero(rows[name] == code)[0])
                    self._add_row(rows, at, f"{name} of a message", expected, repr(rows.text(name, at)))
        absurd = np.flatnonzero((rows["period_ns"] < 0) | (rows["period_ns"] > MAX_PERIOD_NS))
        if len(absurd):
            expected, found = f"0 to {MAX_PERIOD_NS} ns", f"{rows['period_ns'][absurd[0]]} ns"
            self._add_row(rows, int(absurd[0]), "period of a target", expected, found)

    def end(self) -> None:
        for row in self.run.subscriptions:
            for name in ("topic", "subscriber"):
                if row[name] is None or not is_address(row[name]):
                    subject = f"{name} of change {row['number']} of the subscriptions"
                    self._add("valid", None, row["time_us"], subject, _EXPECTED, repr(row[name]))
        for row in self.run.epochs:
            fault = settings_fault(row)
            if fault is not None:
                self._add(
                    "valid", None, None, f"settings of epoch {row['epoch']}", fault, repr(row["settings"])
                )


def _fault_of(name: str, text: str) -> str | None:
    """What was expected instead of the text of a column; None if it is valid."""
    if name in _ADDRESSES:
        return None if is_address(text) else _EXPECTED
    return None if text in _NAMES[name] else f"one of {', '.join(_NAMES[name])}"


def _distinct_codes(codes: npt.NDArray[Any]) -> set[int]:
    """The numbers of a column, from -1 on. A table takes a tenth of the time of a sort."""
    if len(codes) <= FEW_ROWS:
        return set(codes.tolist())
    return set((np.flatnonzero(np.bincount(codes + 1)) - 1).tolist())
