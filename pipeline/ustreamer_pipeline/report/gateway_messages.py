# SPDX-License-Identifier: Apache-2.0
"""The tables of a report for one gateway that compare rows: traffic by source, and queues (see gateway_tables.py)."""

from collections import deque
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary
from ustreamer_pipeline.replay.rows import Ints
from ustreamer_pipeline.report.delivery_columns import (
    DEAD_LETTERED,
    DELIVERED,
    EXPIRED,
    DeliveryColumns,
    text_array,
)
from ustreamer_pipeline.report.gateway_tables import GatewayTable
from ustreamer_pipeline.report.grouped_rows import GroupedRows

MAX_HOLD_NS: Final = 60_000_000_000
"""A message that a filter holds for longer than this is counted again."""

_MIX: Final = (0x9E3779B97F4A7C15 - (1 << 64), 0xC2B2AE3D27D4EB4F - (1 << 64), 0x165667B19E3779F9)
"""Odd constants of hash functions (golden ratio; xxHash)."""


class _Messages(NamedTuple):
    """Messages of a batch, each at its first row."""

    received_ns: Ints
    keys: Ints


class Talkers(GatewayTable):
    """Traffic by source and type: each message once, for any number of targets.

    A message is an id and its time of arrival in a run: the same id at two times counts twice. Its rows share
    `received_ns`, except those that a filter held (mode `latest`), which come up to MAX_HOLD_NS later. So the messages
    of this time are in memory, and no others. Two messages count as one with a probability of 2^-64.
    """

    name = "talkers"

    def __init__(self, texts: Dictionary) -> None:
        self._texts = texts
        self._groups = GroupedRows(("source", "type"), {"messages": "sum", "bytes": "sum"})
        self._recent: deque[_Messages] = deque()

    def add(self, rows: DeliveryColumns) -> None:
        key = rows.id_msb * _MIX[0] + rows.id_lsb * _MIX[1] + rows.arrived_ns * _MIX[2]
        first = np.flatnonzero(np.diff(key, prepend=~key[:1]))
        first = first[_first_of_each(key[first])]
        received_ns = rows.received_ns[first]
        # Rows of a message of an earlier batch: at the instant where it ended, or held. Never empty: row 0 is one.
        doubtful = (received_ns == rows.received_ns[0]) | (rows.arrived_ns[first] != received_ns)
        known = self._known_since(int(rows.arrived_ns[first][doubtful].min()))
        doubtful[doubtful] = np.isin(key[first][doubtful], known)
        first = first[~doubtful]
        self._remember(_Messages(rows.received_ns[first], key[first]), int(rows.received_ns[-1]))
        self._groups.add(
            {
                "source": rows.source[first],
                "type": rows.type[first],
                "messages": np.ones(len(first), np.int64),
                "bytes": rows.size[first],
            }
        )

    def _known_since(self, time_ns: int) -> Ints:
        """Keys of messages in memory that were received at this time or later."""
        parts = [each.keys[np.searchsorted(each.received_ns, time_ns) :] for each in self._recent]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _remember(self, messages: _Messages, now_ns: int) -> None:
        if len(messages.keys):
            self._recent.append(messages)
        while self._recent and int(self._recent[0].received_ns[-1]) < now_ns - MAX_HOLD_NS:
            self._recent.popleft()

    def end_run(self) -> None:
        self._recent.clear()

    def table(self) -> pa.Table:
        found = self._groups.table()
        texts = {name: text_array(self._texts, found[name].to_numpy()) for name in ("source", "type")}
        return pa.table({**texts, "messages": found["messages"], "bytes": found["bytes"]})


def _first_of_each(keys: Ints) -> Ints:
    """Positions of the first one of each different key."""
    # Arrow numbers the keys as they appear.
    numbers = pa.array(keys).dictionary_encode().indices.to_numpy()
    first: Ints = np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1))
    return first


class _Queue(NamedTuple):
    """Messages of a link that were received and not yet settled, in order of `settled_ns`."""

    settled_ns: Ints
    size: Ints


class _Peak(NamedTuple):
    """Maxima of a link; `time_us` is that of the messages."""

    messages: int
    bytes: int
    time_us: int


_EMPTY: Final = _Queue(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Queues(GatewayTable):
    """Maximum number and bytes of messages that are queued or being sent on each link, and the time of the number.

    A message enters at `received_ns` and leaves at `settled_ns`. At equal times messages leave first.
    """

    name = "queues"

    def __init__(self, texts: Dictionary) -> None:
        self._texts = texts
        self._queues: dict[int, _Queue] = {}
        self._peaks: dict[int, _Peak] = {}

    def add(self, rows: DeliveryColumns) -> None:
        verdict = rows.verdict
        taken = (verdict == DELIVERED) | (verdict == EXPIRED) | (verdict == DEAD_LETTERED)
        taken &= (rows.egress >= 0) & (rows.settled_ns > rows.received_ns)
        entered = np.flatnonzero(taken)
        if not len(entered):
            return
        egress = rows.egress[entered]
        by_link = entered[np.argsort(egress, kind="stable")]
        links, starts = np.unique(np.sort(egress), return_index=True)
        for link, mine in zip(links.tolist(), np.split(by_link, starts[1:]), strict=True):
            peak, self._queues[link] = _peak(self._queues.get(link, _EMPTY), rows, mine)
            before = self._peaks.get(link, peak)
            most = peak if peak.messages > before.messages else before
            self._peaks[link] = most._replace(bytes=max(peak.bytes, before.bytes))

    def end_run(self) -> None:
        self._queues.clear()

    def table(self) -> pa.Table:
        peaks = list(self._peaks.values())
        return pa.table(
            {
                "egress": text_array(self._texts, np.array(list(self._peaks), np.int32)),
                "peak_messages": pa.array([peak.messages for peak in peaks], pa.int64()),
                "peak_bytes": pa.array([peak.bytes for peak in peaks], pa.int64()),
                "peak_us": pa.array([peak.time_us for peak in peaks], pa.int64()),
            }
        )


def _peak(queue: _Queue, rows: DeliveryColumns, mine: Ints) -> tuple[_Peak, _Queue]:
    """The maxima while these messages enter a queue, and the queue after the last of them."""
    entered_ns, size = rows.received_ns[mine], rows.size[mine]
    settled_ns = np.concatenate([queue.settled_ns, rows.settled_ns[mine]])
    order = np.argsort(settled_ns, kind="stable")  # nearly sorted, for which this kind is quick
    settled_ns, sizes = settled_ns[order], np.concatenate([queue.size, size])[order]
    left = np.searchsorted(settled_ns, entered_ns, side="right")
    messages = len(queue.size) + np.arange(1, len(mine) + 1) - left
    left_bytes = np.concatenate([[0], np.cumsum(sizes)])
    in_queue = int(queue.size.sum()) + np.cumsum(size) - left_bytes[left]
    longest = int(messages.argmax())
    peak = _Peak(int(messages[longest]), int(in_queue.max()), int(rows.received_us[mine[longest]]))
    # Copies: a slice would keep the arrays of the batch.
    return peak, _Queue(settled_ns[left[-1] :].copy(), sizes[left[-1] :].copy())
