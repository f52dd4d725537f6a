# SPDX-License-Identifier: Apache-2.0
"""The rule `echo`: where a message may go."""

from typing import ClassVar

import numpy as np

from ustreamer_pipeline.gold.rules.run import TARGET, RunRows, RunRule


class Echo(RunRule):
    """A message never returns to the endpoint it came from."""

    PROMISES: ClassVar = {"echo": "nothing goes back where it came from"}
    COLUMNS = ("seq", "received_us", "verdict", "ingress", *TARGET)

    def feed(self, rows: RunRows) -> None:
        returned = (rows["egress"] == rows["ingress"]) & (rows["egress"] >= 0) & rows.is_verdict("DELIVERED")
        for at in np.flatnonzero(returned).tolist():
            back = f"back to {rows.text('egress', at)}"
            self._add_row(rows, at, rows.target(at), "any other endpoint", back)
