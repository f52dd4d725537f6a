# SPDX-License-Identifier: Apache-2.0
"""The frames that a streamer sends to `ustreamer top`, as values. `ustreamer.host.runtime.top_stream` makes them."""

import msgspec

from ustreamer.core.base.intrusions import Intrusion


class TopTarget(msgspec.Struct, frozen=True):
    """A target of a topic: counters since its first subscription, and the latency in the interval (None: no message)."""

    topic: str
    ingress: str
    endpoint: str
    subscriber: str | None
    subscribers: tuple[str, ...]
    period_ns: int
    received: int
    delivered: int
    throttled: int
    p50_ms: float | None
    p99_ms: float | None


class TopQueue(msgspec.Struct, frozen=True):
    """Messages that wait for one subscriber, `blocked` of them for a closed route.

    `failures` counts the refused sends in a row.
    """

    subscriber: str
    queued: int
    blocked: int
    failures: int


class TopEndpoint(msgspec.Struct, frozen=True):
    """An endpoint, or `self`: its link, its counters since the start, and its egress queue."""

    name: str
    transport: str
    up: bool
    link_ms: int | None
    peers: int
    received: int
    delivered: int
    lost: int
    queued: int
    blocked: int
    oldest_age_ms: int
    queues: tuple[TopQueue, ...]
    verdicts: tuple[int, ...] = ()
    """By `Verdict`."""
    link_problem: str = ""
    """Why the link is down, if it is known: `receiver_stalled`."""


class TopProblem(msgspec.Struct, frozen=True):
    """A warning, an error, or a kind of dead letters."""

    time_ms: int
    text: str


class TopFrame(msgspec.Struct, frozen=True, tag="frame", tag_field="line"):
    """The state of a streamer at `time_ms`. Rates are differences of two frames."""

    time_ms: int
    since_ms: int
    unaccounted: int
    endpoints: tuple[TopEndpoint, ...]
    targets: tuple[TopTarget, ...]
    problems: tuple[TopProblem, ...]
    intrusions: tuple[Intrusion, ...] = ()
