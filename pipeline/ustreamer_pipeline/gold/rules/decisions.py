# SPDX-License-Identifier: Apache-2.0
"""The rule `decided`: a second gate decides about each message with a limit."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pyarrow as pa
from ustreamer_throttle.gate import DEFAULT_TOLERANCE

from ustreamer_pipeline.gold.rules.run import FINDINGS, Finding
from ustreamer_pipeline.replay.gate_inputs import GateInputs
from ustreamer_pipeline.replay.replay import GatewayReplay
from ustreamer_pipeline.replay.rows import COLUMNS


class Decisions:
    """Every limit passes the messages that a second gate passes: the replay with the recorded settings of a what-if.

    It takes all runs of a gateway, as the replay does.
    """

    PROMISES: ClassVar[Mapping[str, str]] = {
        "decided": "every limit passes the messages that a second gate passes"
    }
    COLUMNS = COLUMNS

    def __init__(self, gateway: str, began_us: Mapping[int, int], inputs: GateInputs) -> None:
        """`began_us`: the beginning of each run."""
        self._gateway = gateway
        self._began_us = began_us
        self._gates = GatewayReplay([], inputs.tolerances, DEFAULT_TOLERANCE, inputs.losses, inputs.cut_off)

    def feed(self, batch: pa.RecordBatch) -> None:
        self._gates.feed(batch)

    def end(self) -> Iterator[Finding]:
        """Verdicts of limits that the replay does not give (replay/gate.py)."""
        self._gates.finish()
        for run, delivery, time_ns, seq in self._gates.check.examples:
            subject = f"the limit of delivery {delivery} at {time_ns} ns"
            found = f"another one, {self._gates.check.differing} of this gateway"
            time_us = self._began_us.get(run, 0)
            values = "decided", self._gateway, run, seq, time_us, subject, "the verdict of a gate", found
            yield dict(zip(FINDINGS, values, strict=True))
