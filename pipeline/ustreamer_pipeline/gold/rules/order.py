# SPDX-License-Identifier: Apache-2.0
"""The rule `order`: messages of one stream leave in the order of their arrival."""

from typing import ClassVar, Final, NamedTuple

import numpy as np

from ustreamer_pipeline.gold.rules.run import RunRows, RunRule, RunTables
from ustreamer_pipeline.groups import Groups, stable_order, starts_of_equal, stretches
from ustreamer_pipeline.replay.rows import Ints

_STREAM: Final = ("ingress", "source", "sink", "priority", "egress", "subscriber")
_NONE: Final = -(1 << 63)


class _Overtakers(NamedTuple):
    """Messages of a stream that overtook another one, in order of arrival. `least_seq`: of it and all after it."""

    seq: Ints
    received_ns: Ints
    least_seq: Ints


class Order(RunRule):
    """Messages keep their order of arrival per source, sink, class and target.

    Row numbers follow the order of verdicts. A delivered message violates the promise if a message of its stream that
    arrived later has a smaller number: it was overtaken. Rows come in the order of arrival (received_ns, seq). So each
    overtaker has a number below the greatest one before it, and only these are remembered: for each stream the greatest
    number, and the overtakers. If there are any, a second read names the overtaken messages. The least number among an
    overtaker and those after it never decreases, so the last overtaker with a number below that of a message is
    found by bisection. It is the latest one, and overtook the message exactly if it arrived later.
    """

    PROMISES: ClassVar = {"order": "order per source, sink, class and target"}
    COLUMNS = ("seq", "received_us", "received_ns", "verdict", *_STREAM)

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._streams = Groups()
        self._greatest: Ints = np.empty(0, dtype=np.int64)
        self._found_overtakers: dict[int, list[tuple[Ints, Ints]]] = {}
        self._overtakers: dict[int, _Overtakers] = {}

    def feed(self, rows: RunRows) -> None:
        at, stream = self._delivered(rows)
        if not len(at):
            return
        seq, starts = rows["seq"][at], starts_of_equal(stream)
        new = np.full(len(self._streams) - len(self._greatest), _NONE, dtype=np.int64)
        self._greatest = np.append(self._greatest, new)
        before = self._greatest[stream[starts]]
        is_first = np.zeros(len(at), dtype=np.bool_)
        is_first[starts] = True
        descends = ~is_first
        descends[1:] &= seq[1:] < seq[:-1]
        descends[starts] = seq[starts] < before
        if descends.any():
            received = rows["received_ns"][at]
            suspicious = set(stream[descends].tolist())
            for index, (start, end) in enumerate(stretches(starts, len(at))):
                if int(stream[start]) in suspicious:
                    here = seq[start:end]
                    overtook = here < np.maximum.accumulate(np.append(before[index], here))[:-1]
                    parts = self._found_overtakers.setdefault(int(stream[start]), [])
                    parts.append((here[overtook], received[start:end][overtook]))
        self._greatest[stream[starts]] = np.maximum(before, np.maximum.reduceat(seq, starts))

    def end(self) -> None:
        for stream, parts in self._found_overtakers.items():
            seq, received = (np.concatenate(each) for each in zip(*parts, strict=True))
            least = np.minimum.accumulate(seq[::-1])[::-1]
            self._overtakers[stream] = _Overtakers(seq, received, least)
        self.reads_again = bool(self._overtakers)

    def feed_again(self, rows: RunRows) -> None:
        at, stream = self._delivered(rows)
        for start, end in stretches(starts_of_equal(stream), len(at)):
            overtakers = self._overtakers.get(int(stream[start]))
            if overtakers is None:
                continue
            here = at[start:end]
            seq, received = rows["seq"][here], rows["received_ns"][here]
            last = np.searchsorted(overtakers.least_seq, seq) - 1
            late = overtakers.received_ns[last] - received  # of -1, the last overtaker: not counted
            for index in np.flatnonzero((last >= 0) & (late > 0)).tolist():
                other = int(overtakers.seq[last[index]])
                expected = f"before seq {other}, which came {late[index]} ns later"
                row = int(here[index])
                self._add_row(rows, row, rows.target(row), expected, "delivered after it")

    def _delivered(self, rows: RunRows) -> tuple[Ints, Ints]:
        """Places of the delivered rows, those of a stream together and in order, and the number of their stream."""
        at = np.flatnonzero(rows.is_verdict("DELIVERED"))
        stream = self._streams.numbers([rows[name][at] for name in _STREAM])
        order = stable_order(stream)
        return at[order], stream[order]
