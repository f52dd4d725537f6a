# SPDX-License-Identifier: Apache-2.0
"""The rule `decided`: a second gate decides about each message with a limit."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar

import numpy as np
import pyarrow as pa
from ustreamer_throttle.gate import DEFAULT_TOLERANCE, MAX_PERIOD_NS

from ustreamer_pipeline.columns import int_column
from ustreamer_pipeline.gold.rules.run import FINDINGS, Finding, Mask
from ustreamer_pipeline.replay.gate_inputs import GateInputs
from ustreamer_pipeline.replay.order import Span
from ustreamer_pipeline.replay.replay import GatewayReplay
from ustreamer_pipeline.replay.rows import COLUMNS


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
        self,
        gateway: str,
        began_us: Mapping[int, int],
        inputs: GateInputs,
        unread: Sequence[Span] = (),
        unjudged: Collection[int] = (),
    ) -> None:
        """`began_us`: the beginning of each run, in us since 1970. `unread`: the files that are not read. `unjudged`:
        runs whose settings are invalid.
        """
        self._gateway = gateway
        self._began_us = began_us
        self._unread = unread
        self._unjudged = np.array(sorted(unjudged), dtype=np.int64)
        losses = {run: set(times) for run, times in inputs.losses.items()}
        for run, received_ns in chain.from_iterable(unread):
            losses.setdefault(run, set()).add(received_ns)
        self._gates = GatewayReplay([], inputs.tolerances, DEFAULT_TOLERANCE, losses, inputs.cut_off)

    def feed(self, batch: pa.RecordBatch) -> None:
        """The next rows of the gateway, of any number of runs. Those among rows that are not read are left out."""
        left_out = self._left_out(batch)
        self._gates.feed(batch.filter(pa.array(~left_out)) if left_out.any() else batch)

    def _left_out(self, batch: pa.RecordBatch) -> Mask:
        """Rows among unread ones, of runs with invalid settings, and with a target that no gateway has."""
        period_ns = int_column(batch, "period_ns")
        left_out: Mask = (period_ns < 0) | (period_ns > MAX_PERIOD_NS)
        no_egress = batch.column("egress").is_null().to_numpy(zero_copy_only=False)
        left_out |= no_egress & (int_column(batch, "delivery") > 0)
        if self._unread or len(self._unjudged):
            runs, received_ns = int_column(batch, "run"), int_column(batch, "received_ns")
            left_out |= np.isin(runs, self._unjudged)
            for span in self._unread:
                left_out |= span.covers(runs, received_ns)
        return left_out

    def end(self) -> Iterator[Finding]:
        """The first recorded verdicts that differ from those of the replay. Each finding has the number of all."""
        self._gates.finish()
        for run, delivery, time_ns, seq in self._gates.check.examples:
            subject = f"the limit of delivery {delivery} at {time_ns} ns"
            found = f"another one, {self._gates.check.differing} of this gateway"
            time_us = self._began_us.get(run, 0)
            values = "decided", self._gateway, run, seq, time_us, subject, "the verdict of a gate", found
            yield dict(zip(FINDINGS, values, strict=True))
