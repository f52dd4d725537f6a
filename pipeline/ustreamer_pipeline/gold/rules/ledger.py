# SPDX-License-Identifier: Apache-2.0
"""The rule `ledger`: the ledger law, checked against the recording.

received = delivered + throttled + expired + dead_lettered + denied + no_subscriber + queued
"""

from collections import Counter
from typing import ClassVar, Final

import numpy as np

from ustreamer_pipeline.gold.rules.run import RunRows, RunRule, RunTables
from ustreamer_pipeline.schemas import VERDICTS

_COUNTS: Final = tuple(verdict.lower() for verdict in VERDICTS)


class LedgerLaw(RunRule):
    """Rows and announced gaps equal the dispatcher's counters at its stop, verdict by verdict, and the ledger balances.

    A killed run has no exact counters. A run with deleted segments has no rows to compare; `sequence` reports it. Nor
    has a run of which only some dates are read.
    """

    PROMISES: ClassVar = {"ledger": "rows add up to the dispatcher's own counters"}
    COLUMNS = ("verdict",)

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._rows: Counter[str] = Counter()

    def feed(self, rows: RunRows) -> None:
        for verdict, name in zip(VERDICTS, _COUNTS, strict=True):
            self._rows[name] += int(np.count_nonzero(rows.is_verdict(verdict)))

    def end(self) -> None:
        final = [row for row in self.run.counters if row["final"]]
        numbers = {row["number"] for row in self.run.segments}
        if not final or self.run.is_cut or numbers != set(range(len(numbers))):
            return
        counters = {name: max(row[name] for row in final) for name in ("received", "queued", *_COUNTS)}
        time_us = max(row["time_us"] for row in final)
        # The verdicts of rows in damaged bytes are unknown: these rows may be missing, none may be in excess.
        unknown = sum(row["rows"] for row in self.run.gaps if row[_COUNTS[0]] is None)
        for name in _COUNTS:
            counted = self._rows[name] + sum(row[name] or 0 for row in self.run.gaps)
            self._compare(f"ledger: {name}", counters[name], counted, unknown, time_us)
        settled = sum(counters[name] for name in ("queued", *_COUNTS))
        self._compare("ledger law", counters["received"], settled, 0, time_us)

    def _compare(self, subject: str, counter: int, counted: int, unknown: int, time_us: int) -> None:
        if not 0 <= counter - counted <= unknown:
            expected = f"{counter}, by the dispatcher's counters"
            self._add("ledger", None, time_us, subject, expected, f"{counted}")
