# SPDX-License-Identifier: Apache-2.0
"""A model of the egress queues: their lengths, and the messages lost in them.

The model of a link is one server, first come first served. A message occupies the link as long as in the recording:
from the time it could be sent (it had arrived, and the previous one was done) to the time it was sent.
A message that was not sent takes the median of its link in that batch. With `bytes_per_s` the size of a message
decides. Queue limits, ttl and maximum age come from the scenario.

The model has no priorities and no blocked routes. A stopped link does not stop by the clock: a pause belongs to the
message it was recorded with, and disappears with that message. The model answers questions on queue sizes and slow
links, not on the minutes of an outage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary, int_column
from ustreamer_pipeline.replay.added_subscribers import AddedArrivals
from ustreamer_pipeline.replay.gate import Mask
from ustreamer_pipeline.replay.rows import Ints, Rows
from ustreamer_pipeline.replay.whatif_scenarios import Scenario, ScenarioLink

QUEUE_MESSAGES: Final = 10_000
QUEUE_BYTES: Final = 16_000_000
MAX_AGE_MS: Final = 30_000
"""Limits of a gateway whose configuration has none."""
OVERHEAD_BYTES: Final = 200
"""Bytes that a message occupies in a queue in addition to its payload."""

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_MIN_SEND_NS: Final = 1_000
"""ns; the minimum time of a send without a recorded one."""


def is_modelled(scenario: Scenario) -> bool:
    """Whether a scenario changes queues; other scenarios skip the model at no cost."""
    return bool(scenario.links or scenario.ttl)


@dataclass
class LinkTotals:
    """Verdicts of the messages forwarded to one egress."""

    egress: str
    delivered: int = 0
    dead_lettered: int = 0
    expired: int = 0
    bytes: int = 0
    peak_messages: int = 0
    peak_bytes: int = 0
    longest_wait_us: int = 0


class LinkArrivals(NamedTuple):
    """Messages for one link, in order of time."""

    at: Ints
    size: Ints
    service: Ints
    deadline: Ints


class LinkModel:
    """All links of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._queues: dict[int, LinkQueue] = {}
        self._settled: dict[int, int] = {}
        self._ttl: dict[tuple[int, int, int], int | None] = {}

    @property
    def totals(self) -> list[LinkTotals]:
        return [queue.totals for queue in self._queues.values()]

    def begin_run(self) -> None:
        self._settled = {}
        for queue in self._queues.values():
            queue.reset()

    def feed(
        self,
        batch: pa.RecordBatch,
        rows: Rows,
        dictionary: Dictionary,
        mask: Mask,
        added: Sequence[AddedArrivals],
    ) -> None:
        """Queue the admitted messages: `mask` in the order of `rows`, and those of `added`."""
        passed = np.zeros(batch.num_rows, dtype=np.bool_)
        passed[rows.order[mask]] = True
        service = self._service(batch, rows, dictionary)
        egress_of = dictionary.codes(batch.column("egress"))
        at = int_column(batch, "received_ns")
        size = int_column(batch, "size").astype(np.int64)
        links = {
            *np.unique(egress_of[passed]).tolist(),
            *(dictionary.number(each.target.egress) for each in added),
        }
        for egress in sorted(links):
            name = dictionary.texts[egress]
            row = np.flatnonzero(passed & (egress_of == egress))
            new = [each for each in added if each.target.egress == name]
            row = np.concatenate([row, *(each.row[each.passed] for each in new)])
            when = np.concatenate(
                [
                    at[row[: len(row) - sum(int(e.passed.sum()) for e in new)]],
                    *(e.received[e.passed] for e in new),
                ]
            )
            order = np.argsort(when, kind="stable")
            row, when = row[order], when[order]
            link = self._scenario.link(name) or ScenarioLink(name)
            queue = self._queues.get(egress)
            if queue is None:
                queue = self._queues[egress] = LinkQueue(link)
            deadline = when + self._left_ns(batch, rows, dictionary, row, egress, queue.max_age_ns)
            mine = service[row]
            if link.bytes_per_s:
                mine = (size[row] * (_NS_PER_S / link.bytes_per_s)).astype(np.int64)
            queue.feed(LinkArrivals(when, size[row], mine, deadline))

    def _service(self, batch: pa.RecordBatch, rows: Rows, dictionary: Dictionary) -> Ints:
        """Time that each message occupied its link, ns."""
        settled = int_column(batch, "settled_ns")
        received = int_column(batch, "received_ns")
        egress_of = dictionary.codes(batch.column("egress"))
        delivered = rows.verdict == dictionary.number("DELIVERED")
        service = np.full(len(settled), _MIN_SEND_NS, dtype=np.int64)
        for egress in np.unique(egress_of[egress_of >= 0]).tolist():
            row = np.flatnonzero((egress_of == egress) & delivered)
            if not len(row):
                continue
            row = row[np.argsort(settled[row], kind="stable")]
            before = np.concatenate([[self._settled.get(egress, 0)], settled[row][:-1]])
            mine = np.maximum(settled[row] - np.maximum(received[row], before), 0)
            self._settled[egress] = max(int(settled[row][-1]), self._settled.get(egress, 0))
            service[egress_of == egress] = int(np.median(mine))
            service[row] = mine
        return service

    def _left_ns(
        self,
        batch: pa.RecordBatch,
        rows: Rows,
        dictionary: Dictionary,
        row: Ints,
        egress: int,
        max_age_ns: int,
    ) -> Ints:
        """Maximum wait of each message: its remaining ttl, at most the ttl, as in `core.delivery.expiry`."""
        made_ms = int_column(batch, "id_msb")[row].view(np.uint64) >> np.uint64(16)
        age_ms = int_column(batch, "received_us")[row] // 1_000 - made_ms.astype(np.int64)
        ttl = int_column(batch, "ttl_ms")[row].astype(np.int64)
        if self._scenario.ttl:
            ttl = ttl.copy()
            for source in np.unique(rows.source[row]).tolist():
                for subscriber in np.unique(rows.subscriber[row]).tolist():
                    scenario_ttl = self._scenario_ttl(dictionary, source, egress, subscriber)
                    if scenario_ttl is not None:
                        ttl[(rows.source[row] == source) & (rows.subscriber[row] == subscriber)] = (
                            scenario_ttl
                        )
        left_ms = np.minimum(ttl - age_ms, ttl)
        left_ns: Ints = np.where(ttl > 0, np.where(left_ms >= 0, left_ms * _NS_PER_MS, -1), max_age_ns)
        return left_ns

    def _scenario_ttl(self, dictionary: Dictionary, source: int, egress: int, subscriber: int) -> int | None:
        key = source, egress, subscriber
        if key not in self._ttl:
            self._ttl[key] = self._scenario.ttl_ms(
                dictionary.texts[source], dictionary.texts[egress], dictionary.text(subscriber)
            )
        return self._ttl[key]


class LinkQueue:
    """One link: the time it becomes free, and its queue at the next arrival."""

    def __init__(self, link: ScenarioLink) -> None:
        self._messages = link.queue_messages or QUEUE_MESSAGES
        self._bytes = link.queue_bytes or QUEUE_BYTES
        self.max_age_ns = (link.max_age_ms or MAX_AGE_MS) * _NS_PER_MS
        self.totals = LinkTotals(link.egress)
        self.reset()

    def reset(self) -> None:
        self._free_ns = 0
        self._begun = np.zeros(
            0, dtype=np.int64
        )  # send times of the messages that were not sent yet at the last arrival
        self._sizes = np.zeros(0, dtype=np.int64)

    def feed(self, waiting: LinkArrivals) -> None:
        """Queue arrivals: at once if all fit and none expires, otherwise one by one, 0.5 us each."""
        if not len(waiting.at):
            return
        done = np.cumsum(waiting.service)
        before = done - waiting.service
        begin = before + np.maximum(np.maximum.accumulate(waiting.at - before), self._free_ns)
        kept = len(self._begun)
        starts = np.concatenate([self._begun, begin])
        sizes = np.cumsum(np.concatenate([[0], self._sizes, waiting.size + OVERHEAD_BYTES]))
        # The queue at an arrival: messages that arrived before it and start after it.
        head = np.searchsorted(starts, waiting.at, side="right")
        tail = np.arange(kept, kept + len(begin))
        depth = np.maximum(tail - head, 0) + (begin > waiting.at)
        held = np.maximum(sizes[tail] - sizes[np.minimum(head, tail)], 0) + (
            waiting.size + OVERHEAD_BYTES
        ) * (begin > waiting.at)
        if (depth > self._messages).any() or (held > self._bytes).any() or (begin > waiting.deadline).any():
            self._one_by_one(waiting)
            return
        self._record(
            len(begin),
            int(waiting.size.sum()),
            int(depth.max()),
            int(held.max()),
            int((begin - waiting.at).max()),
        )
        self._free_ns = int(begin[-1] + waiting.service[-1])
        still = starts > waiting.at[-1]
        self._begun, self._sizes = starts[still], np.diff(sizes)[still]

    def _record(self, delivered: int, size: int, depth: int, held: int, wait_ns: int) -> None:
        totals = self.totals
        totals.delivered += delivered
        totals.bytes += size
        totals.peak_messages = max(totals.peak_messages, depth)
        totals.peak_bytes = max(totals.peak_bytes, held)
        totals.longest_wait_us = max(totals.longest_wait_us, wait_ns // 1_000)

    def _one_by_one(self, waiting: LinkArrivals) -> None:
        totals = self.totals
        queue = _WaitingQueue(self._begun, self._sizes)
        for at, size, service, deadline in zip(*(each.tolist() for each in waiting), strict=True):
            queue.pop_started(at)
            begin = max(at, self._free_ns)
            if begin > at and (
                len(queue.begins) >= self._messages or queue.bytes + size + OVERHEAD_BYTES > self._bytes
            ):
                totals.dead_lettered += 1
                continue
            if begin > deadline:  # it waits until it expires, and nothing is sent
                totals.expired += 1
                continue
            if begin > at:
                queue.enqueue(begin, size + OVERHEAD_BYTES)
            self._free_ns = begin + service
            self._record(1, size, len(queue.begins), queue.bytes, begin - at)
        self._begun, self._sizes = queue.remaining()


class _WaitingQueue:
    """Queued messages in order, and the bytes they occupy."""

    def __init__(self, begins: Ints, sizes: npt.NDArray[np.int64]) -> None:
        from collections import deque

        self.begins = deque(begins.tolist())
        self._sizes = deque(sizes.tolist())
        self.bytes = sum(self._sizes)

    def pop_started(self, now: int) -> None:
        while self.begins and self.begins[0] <= now:
            self.begins.popleft()
            self.bytes -= self._sizes.popleft()

    def enqueue(self, begin: int, size: int) -> None:
        self.begins.append(begin)
        self._sizes.append(size)
        self.bytes += size

    def remaining(self) -> tuple[Ints, Ints]:
        return np.array(self.begins, dtype=np.int64), np.array(self._sizes, dtype=np.int64)
