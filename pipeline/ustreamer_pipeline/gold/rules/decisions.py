# SPDX-License-Identifier: Apache-2.0
"""The rule `decided`: a second gate decides about each message with a limit."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar

import numpy as np
import pyarrow as pa
from ustreamer_throttle.gate import DEFAULT_TOLERANCE

from ustreamer_pipeline.gold.rules.run import FINDINGS, Finding
from ustreamer_pipeline.replay.gate_inputs import GateInputs
from ustreamer_pipeline.replay.order import Span
from ustreamer_pipeline.replay.replay import GatewayReplay
from ustreamer_pipeline.replay.rows import COLUMNS, int_column


class Decisions:
    """Every limit passes the messages that a second gate passes.

    The second gate is the replay of a what-if with the recorded settings. It takes all runs of a gateway. After rows of
    other dates, which are not read, its state is unknown until the next pause of a topic.
    """

    PROMISES: ClassVar[Mapping[str, str]] = {
        "decided": "every limit passes the messages that a second gate passes"
    }
    COLUMNS = COLUMNS

    def __init__(
        self, gateway: str, began_us: Mapping[int, int], inputs: GateInputs, unread: Sequence[Span] = ()
    ) -> None:
        """`began_us`: the beginning of each run, in us since 1970. `unread`: the files that are not read."""
        self._gateway = gateway
        self._began_us = began_us
        self._unread = unread
        losses = {run: set(times) for run, times in inputs.losses.items()}
        for run, received_ns in chain.from_iterable(unread):
            losses.setdefault(run, set()).add(received_ns)
        self._gates = GatewayReplay([], inputs.tolerances, DEFAULT_TOLERANCE, losses, inputs.cut_off)

    def feed(self, batch: pa.RecordBatch) -> None:
        """The next rows of the gateway, of any number of runs. Those among rows that are not read are left out."""
        if self._unread:
            place = int_column(batch, "run"), int_column(batch, "received_ns")
            left_out = np.logical_or.reduce([span.covers(*place) for span in self._unread])
            batch = batch.filter(pa.array(~left_out)) if left_out.any() else batch
        self._gates.feed(batch)

    def end(self) -> Iterator[Finding]:
        """The first recorded verdicts that differ from those of the replay. Each finding has the number of all."""
        self._gates.finish()
        for run, delivery, time_ns, seq in self._gates.check.examples:
            subject = f"the limit of delivery {delivery} at {time_ns} ns"
            found = f"another one, {self._gates.check.differing} of this gateway"
            time_us = self._began_us.get(run, 0)
            values = "decided", self._gateway, run, seq, time_us, subject, "the verdict of a gate", found
            yield dict(zip(FINDINGS, values, strict=True))
