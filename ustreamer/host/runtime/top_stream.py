# SPDX-License-Identifier: Apache-2.0
"""The frames of `ustreamer top`: a streamer and the verdicts of its messages in, one `TopFrame` per interval out.

Counters are read without a lock of the message path. Latencies come from a tap, which costs 0.4 us for each delivered
message while a reader is connected.
"""

from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Final, NamedTuple

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Tap
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.host.admin.taps import MAX_SUBSCRIBERS
from ustreamer.host.admin.top_frame import TopEndpoint, TopFrame, TopProblem, TopQueue, TopTarget
from ustreamer.host.diagnosis.recent import RecentLetters, RecentLogLine
from ustreamer.host.observe.snapshot import EndpointSnapshot, MetricsSnapshot
from ustreamer.host.runtime.recent_events import RecentEvents, recent_log
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuri import UUri

MAX_TARGETS: Final = 200
"""The busiest targets of a frame."""
MAX_PROBLEMS: Final = 20
_MAX_HISTOGRAMS: Final = 1_024
_BUCKETS: Final = 128
_MAX_QUEUES: Final = 20
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_Key = tuple[str, str, UUri, UUri | None]
"""Ingress, endpoint, topic and subscriber of a target."""


# --- latencies -------------------------------------------------------------------------------------------------------


def bucket_of(latency_us: int) -> int:
    """The bucket of a latency: four for each power of two, so a quantile is exact to a quarter."""
    bits = latency_us.bit_length()
    if bits <= 2:
        return latency_us
    return min(_BUCKETS - 1, (bits - 2) * 4 + (latency_us >> (bits - 3) & 3))


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """The upper end of the bucket that holds this share of the latencies; None without one."""
    rank = sum(counts) * share
    if not rank:
        return None
    below = 0
    for bucket, count in enumerate(counts):
        below += count
        if below >= rank:
            return _upper_us(bucket) / 1_000
    return None


def _upper_us(bucket: int) -> int:
    if bucket < 4:
        return bucket + 1
    shift = bucket // 4 - 1
    return (5 + bucket % 4) << shift


class LatencyRecorder:
    """The latencies of delivered messages by target, since the last `pop`. Any thread adds, one reads."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic_ns = clock.monotonic_ns
        self._counts: BoundedCache[_Key, list[int]] = BoundedCache(_MAX_HISTOGRAMS)

    def tap_at(self, ingress: str) -> Tap:
        """The tap function of one endpoint."""
        monotonic_ns = self._monotonic_ns

        def record(
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
            if verdict is not Verdict.DELIVERED or delivery is None or delivery.topic is None:
                return
            end_ns = monotonic_ns() if settled_ns == received_ns else settled_ns
            counts = self._counts
            key = (ingress, delivery.endpoint, delivery.topic, delivery.subscriber)
            found = counts.get(key)
            if found is None:
                found = [0] * _BUCKETS
                counts.add(key, found)
            found[bucket_of((end_ns - arrived_ns) // 1_000)] += 1

        return record

    def pop(self) -> dict[_Key, list[int]]:
        """The counts since the last call. A latency that is recorded meanwhile may be missing."""
        counts, self._counts = self._counts, BoundedCache(_MAX_HISTOGRAMS)
        return dict(counts)


# --- frames ----------------------------------------------------------------------------------------------------------


class TopSources(NamedTuple):
    """What the frames are made of."""

    snapshot: Callable[[int], MetricsSnapshot]
    dispatcher: Dispatcher
    clock: Clock
    since_ms: int
    events: RecentEvents
    subscribers_of: Callable[[UUri, str], Sequence[UUri]]


class TopStream:
    """A `LineStream` with a frame at once, and then one per interval. `close` may be repeated."""

    def __init__(self, sources: TopSources, interval_s: float, release: Callable[[], None]) -> None:
        """`release` is called by the first `close`."""
        self._sources = sources
        self._interval_ns = round(interval_s * _NS_PER_S)
        self._next_ns = 0
        self._closed = Event()
        self._lock = Lock()
        self._latencies = LatencyRecorder(sources.clock)
        self._release: Callable[[], None] | None = release
        self._detach = sources.dispatcher.attach_taps(self._latencies.tap_at)

    def wait_lines(self, timeout_s: float) -> Sequence[TopFrame]:
        """Wait for the next frame; empty after the timeout or after `close`."""
        left_s = (self._next_ns - self._sources.clock.monotonic_ns()) / _NS_PER_S
        if self._closed.wait(max(0.0, min(timeout_s, left_s))) or left_s > timeout_s:
            return ()
        self._next_ns = self._sources.clock.monotonic_ns() + self._interval_ns
        return (self._frame(),)

    def close(self) -> None:
        with self._lock:  # the end of the server and the end of the client may close it at the same time
            release, self._release = self._release, None
        if release is not None:
            self._detach()
            self._closed.set()
            release()

    def _frame(self) -> TopFrame:
        sources = self._sources
        snapshot = sources.snapshot(MAX_TARGETS)
        link_ms = sources.events.link_times()
        return TopFrame(
            sources.clock.wall_ms(),
            sources.since_ms,
            snapshot.unaccounted,
            tuple(_endpoint(each, link_ms.get(each.name)) for each in snapshot.endpoints),
            self._targets(snapshot),
            problems_of(sources.events.letters(), recent_log().lines()),
            tuple(snapshot.intrusions),
        )

    def _targets(self, snapshot: MetricsSnapshot) -> tuple[TopTarget, ...]:
        latencies, subscribers_of = self._latencies.pop(), self._sources.subscribers_of
        found = []
        for each in snapshot.targets:
            counts = latencies.get((each.ingress, each.endpoint, each.topic, each.subscriber), ())
            shared = () if each.subscriber is not None else subscribers_of(each.topic, each.endpoint)
            found.append(
                TopTarget(
                    str(each.topic),
                    each.ingress,
                    each.endpoint,
                    None if each.subscriber is None else str(each.subscriber),
                    tuple(map(str, shared[:MAX_SUBSCRIBERS])),
                    each.period_ns,
                    each.received,
                    each.delivered,
                    each.throttled,
                    quantile_ms(counts, 0.5),
                    quantile_ms(counts, 0.99),
                )
            )
        return tuple(found)


def _endpoint(snapshot: EndpointSnapshot, link_ms: int | None) -> TopEndpoint:
    verdicts, queue = snapshot.verdicts, snapshot.queue
    return TopEndpoint(
        snapshot.name,
        snapshot.transport,
        snapshot.link.up,
        link_ms,
        snapshot.peers,
        snapshot.received,
        queue.delivered,
        verdicts[Verdict.DEAD_LETTERED] + verdicts[Verdict.EXPIRED] + verdicts[Verdict.DENIED],
        queue.queued,
        queue.blocked,
        snapshot.oldest_age_ns // _NS_PER_MS,
        tuple(
            TopQueue(str(each.subscriber), each.queued, each.blocked, each.failures)
            for each in queue.fullest[:_MAX_QUEUES]
        ),
        tuple(verdicts),
        snapshot.link_problem,
    )


def problems_of(letters: Sequence[RecentLetters], lines: Sequence[RecentLogLine]) -> tuple[TopProblem, ...]:
    """The latest problems, the last one at the end."""
    found = [
        TopProblem(
            each.last_ms, f"{each.count} dead letters of {each.source} at {each.endpoint}: {each.reason}"
        )
        for each in letters
    ]
    for line in lines:
        fields = " ".join(f"{name}={value}" for name, value in line.fields.items())
        found.append(TopProblem(line.time_ms, f"{line.level} {line.event} {fields}"))
    return tuple(sorted(found, key=lambda each: each.time_ms)[-MAX_PROBLEMS:])
