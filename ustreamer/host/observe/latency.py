# SPDX-License-Identifier: Apache-2.0
"""Histograms of latency and of the wait in queues (`[observe] latency`). Verdicts in, metric families out.

They are the only metrics that need work for each message: a tap, 0.5 us. So they are off by default, and then nothing
of this module is attached to the path.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus

BOUNDS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
_NS_PER_S: Final = 1_000_000_000
_BOUNDS_NS: Final = tuple(round(each * _NS_PER_S) for each in BOUNDS_S)
_LABELS_LE: Final = (*(f"{each:g}" for each in BOUNDS_S), "+Inf")

Route = tuple[str, str]
"""Ingress and egress endpoint."""


class _Histogram:
    """Counts by bucket and the sum, written by one thread."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_NS) + 1)
        self.sum_ns = 0

    def add(self, value_ns: int) -> None:
        self.counts[bisect_left(_BOUNDS_NS, value_ns)] += 1
        self.sum_ns += value_ns


class LatencyTap:
    """The tap of one ingress.

    A histogram has one writer: its key has the thread. Endpoints and their threads bound the number of keys.
    """

    def __init__(self, ingress: str, monotonic_ns: Callable[[], int]) -> None:
        self.ingress = ingress
        self._monotonic_ns = monotonic_ns
        self.latencies: dict[tuple[str, int], _Histogram] = {}
        """From arrival to the end of the send."""
        self.waits: dict[tuple[str, int], _Histogram] = {}
        """From the filters to the end of the send, of messages that were queued."""

    def __call__(
        self,
        message: UMessage,
        delivery: Delivery | None,
        verdict: Verdict,
        reason: UStatus | None,
        attempts: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
    ) -> None:
        if verdict is not Verdict.DELIVERED or delivery is None:
            return
        key = delivery.endpoint, get_ident()
        # A message that is sent at once is settled at its arrival: no clock is read for it on the path.
        end_ns = settled_ns if settled_ns != received_ns else self._monotonic_ns()
        _histogram(self.latencies, key).add(end_ns - arrived_ns)
        if settled_ns != received_ns:
            _histogram(self.waits, key).add(settled_ns - received_ns)

    def on_delivered_batch(
        self, messages: Sequence[UMessage], delivery: Delivery, times_ns: Sequence[int]
    ) -> None:
        """See `BatchTap`: all are sent at once, and none was queued."""
        histogram = _histogram(self.latencies, (delivery.endpoint, get_ident()))
        end_ns = self._monotonic_ns()
        for each in times_ns:
            histogram.add(end_ns - each)


def _histogram(histograms: dict[tuple[str, int], _Histogram], key: tuple[str, int]) -> _Histogram:
    found = histograms.get(key)
    if found is None:
        found = histograms[key] = _Histogram()
    return found


class LatencyHistograms:
    """The histograms of one streamer: `tap_at` is called for each ingress, `families` for each scrape."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._taps: list[LatencyTap] = []

    def tap_at(self, ingress: str) -> LatencyTap:
        """The tap of one ingress."""
        tap = LatencyTap(ingress, self._monotonic_ns)
        self._taps.append(tap)
        return tap

    def families(self) -> Iterator[Metric]:
        yield _family(
            "ustreamer_delivery_latency_seconds",
            "From the arrival of a message to the end of its send.",
            _added((tap.ingress, tap.latencies) for tap in self._taps),
        )
        yield _family(
            "ustreamer_queue_wait_seconds",
            "Time in the egress queue, of delivered messages that were queued.",
            _added((tap.ingress, tap.waits) for tap in self._taps),
        )


def _added(taps: Iterator[tuple[str, dict[tuple[str, int], _Histogram]]]) -> dict[Route, _Histogram]:
    """One histogram for each route, from those of all threads."""
    found: dict[Route, _Histogram] = {}
    for ingress, histograms in taps:
        for (endpoint, _), each in list(histograms.items()):  # one atomic step: the threads go on
            total = found.setdefault((ingress, endpoint), _Histogram())
            total.counts = [one + other for one, other in zip(total.counts, each.counts, strict=True)]
            total.sum_ns += each.sum_ns
    return found


def _family(name: str, text: str, histograms: dict[Route, _Histogram]) -> Metric:
    family = Metric(name, text, "histogram")
    for (ingress, endpoint), each in sorted(histograms.items()):
        labels = {"ingress": ingress, "endpoint": endpoint}
        below = 0
        for le, count in zip(_LABELS_LE, each.counts, strict=True):
            below += count
            family.samples.append(Sample(f"{name}_bucket", labels | {"le": le}, below))
        family.samples.append(Sample(f"{name}_count", labels, below))
        family.samples.append(Sample(f"{name}_sum", labels, each.sum_ns / _NS_PER_S))
    return family
