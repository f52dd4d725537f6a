# SPDX-License-Identifier: Apache-2.0
"""Deliveries of one run as arrays, for the tables of a report."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ustreamer_pipeline.columns import Codes, Dictionary, int_column
from ustreamer_pipeline.replay.rows import TEXTS, Ints
from ustreamer_pipeline.schemas import VERDICTS

COLUMNS: Final = (
    *("run", "id_msb", "id_lsb", "received_us", "received_ns", "arrived_ns", "settled_ns", "delivery"),
    *("period_ns", "latency_us", "queue_wait_us", "size", "code", "reason", *TEXTS),
)
"""Columns of deliveries that a report reads."""

DELIVERED, THROTTLED, EXPIRED, DEAD_LETTERED, *_ = range(len(VERDICTS))
"""Numbers of verdicts."""
PUBLISH: Final = len(VERDICTS)
"""Number of the type of a publication."""


def report_texts() -> Dictionary:
    """The numbers of texts for one gateway. Those of verdicts and of PUBLISH are the constants above."""
    texts = Dictionary()
    for text in (*VERDICTS, "PUBLISH"):
        texts.number(text)
    return texts


def text_array(texts: Dictionary, numbers: Codes) -> pa.Array:
    """The texts of these numbers; null for -1."""
    return pa.array([texts.text(number) for number in numbers.tolist()], pa.string())


class DeliveryColumns:
    """Deliveries of one run in the order of silver. Texts are numbers of `texts`, where -1 is null."""

    def __init__(self, batch: pa.RecordBatch, texts: Dictionary) -> None:
        self.texts = texts
        self._batch = batch
        self.id_msb, self.id_lsb = int_column(batch, "id_msb"), int_column(batch, "id_lsb")
        self.received_us, self.received_ns = (
            int_column(batch, "received_us"),
            int_column(batch, "received_ns"),
        )
        self.arrived_ns, self.settled_ns = int_column(batch, "arrived_ns"), int_column(batch, "settled_ns")
        self.delivery, self.period_ns = int_column(batch, "delivery"), int_column(batch, "period_ns")
        self.latency_us, self.queue_wait_us = (
            int_column(batch, "latency_us"),
            int_column(batch, "queue_wait_us"),
        )
        self.size = int_column(batch, "size")
        self.source, self.subscriber, self.ingress, self.egress, self.type, self.verdict = (
            texts.codes(batch.column(name)) for name in TEXTS
        )
        self.unknown_verdict: str | None = None
        """The text of the first verdict that is none of VERDICTS."""
        unknown = np.flatnonzero((self.verdict < 0) | (self.verdict >= len(VERDICTS)))
        if len(unknown):
            self.unknown_verdict = repr(texts.text(int(self.verdict[unknown[0]])))

    def codes(self, rows: Ints) -> Ints:
        """The UCode of some rows; -1 is null."""
        return int_column(self._batch.select(["code"]).take(pa.array(rows)), "code", -1)

    def reasons(self, rows: Ints) -> pa.DictionaryArray:
        """The reason of some rows."""
        return pc.dictionary_encode(self._batch.column("reason").take(pa.array(rows)))
