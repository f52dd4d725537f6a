# SPDX-License-Identifier: Apache-2.0
"""Columns of silver as arrays, for the replay."""

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary, int_column
from ustreamer_pipeline.replay.gate import Mask
from ustreamer_pipeline.replay.target_replay import ReplayTarget

Ints = npt.NDArray[np.int64]

TEXTS: Final = ("source", "subscriber", "ingress", "egress", "type", "verdict")
COLUMNS: Final = (
    *(
        "run",
        "seq",
        "delivery",
        "received_ns",
        "arrived_ns",
        "settled_ns",
        "period_ns",
        "tuned_ns",
        "epoch",
        "size",
        "code",
        "id_msb",
    ),
    *TEXTS,
)
"""Columns that every replay reads."""
QUEUE_COLUMNS: Final = ("id_lsb", "received_us", "ttl_ms")
"""Further columns for scenarios with added subscribers or queue questions."""

_UNAVAILABLE: Final = 14
"""UCode of messages that a stop abandoned."""


class Rows:
    """Deliveries of one batch that a filter has processed, in the order of silver."""

    def __init__(self, batch: pa.RecordBatch, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self.seq = int_column(batch, "seq")
        self.delivery = int_column(batch, "delivery")
        self.received = int_column(batch, "received_ns")
        self.arrived = int_column(batch, "arrived_ns")
        self.period = int_column(batch, "period_ns")
        self.tuned = int_column(batch, "tuned_ns")
        self.size = int_column(batch, "size")
        self.id_msb = int_column(batch, "id_msb")
        self.source, self.subscriber, self.ingress, self.egress, self.type, self.verdict = (
            dictionary.codes(batch.column(name)) for name in TEXTS
        )
        self.passed: Mask = self.verdict != dictionary.number("THROTTLED")
        # A denial by a filter is not a verdict of the throttle. A message that a stop removed from a filter has no
        # verdict of it. The filter's last decision is then the end; one that waited for a link had left the filter before.
        odd = self.verdict == dictionary.number("DENIED")
        odd |= (
            (self.arrived != self.received)
            & (int_column(batch, "code") == _UNAVAILABLE)
            & (int_column(batch, "settled_ns") == self.received)
        )
        self.decided: Mask = (self.delivery > 0) & ~odd

    def by_delivery(self) -> tuple[Ints, Ints]:
        """Permutation that groups the rows by delivery, and the start of each group."""
        rows = np.arange(len(self.delivery)) if self.decided.all() else np.flatnonzero(self.decided)
        key = self.delivery[rows]
        if not len(key):
            return rows, rows
        # Two bytes are sorted by radix, 10 ns per row; eight bytes take 60 ns.
        narrow = key.astype(np.uint16) if int(key.max()) < 1 << 16 else key
        order = rows[np.argsort(narrow, kind="stable")]
        starts = np.flatnonzero(np.diff(self.delivery[order], prepend=-1))
        return order, starts

    def reorder(self, order: Ints) -> None:
        """Reorder the rows; rows outside the permutation are dropped."""
        # Arrays that identify targets are read once per target. Arrival times differ only in mode `latest`.
        same = self.arrived is self.received or bool((self.arrived == self.received).all())
        self.order = order
        self.received, self.passed = self.received[order], self.passed[order]
        self.arrived = self.received if same else self.arrived[order]
        self.size, self.egress = self.size[order].astype(np.int64, copy=False), self.egress[order]
        self.period, self.id_msb = self.period[order], self.id_msb[order]

    def target(self, at: int) -> ReplayTarget:
        """Values of the row at position `at` of the permutation."""
        row = int(self.order[at])
        ingress, egress, source, kind = (
            self._dictionary.text(int(codes[at if codes is self.egress else row]))
            for codes in (self.ingress, self.egress, self.source, self.type)
        )
        assert ingress is not None
        assert egress is not None
        topic = source if kind == "PUBLISH" else None
        subscriber = self._dictionary.text(int(self.subscriber[row])) if topic is not None else None
        return ReplayTarget(ingress, egress, topic, subscriber)

    def split_by_limit(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Slices of the rows of a delivery with one period, and the time at which the gate got it."""
        periods = self.period[start:end]
        if int(periods[0]) == int(periods[-1]) and bool((periods == periods[0]).all()):
            yield start, end, int(self.tuned[self.order[start]])
            return
        cuts = [start, *(np.flatnonzero(np.diff(periods)) + 1 + start).tolist(), end]
        for a, b in itertools.pairwise(cuts):
            yield a, b, int(self.tuned[self.order[a]])
