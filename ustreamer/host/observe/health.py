# SPDX-License-Identifier: Apache-2.0
"""Whether the process is alive, and whether it can do its work. A `MetricsSnapshot` and the time in, reports out.

alive    the process answers, and each receiving thread waits for input or makes progress
ready    alive, each endpoint is up, no message waits for a receiver that stopped, and each store accepts writes
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ustreamer.host.observe.snapshot import MetricsSnapshot
from ustreamer.transport_port import ReceivingThread

HANGING_NS: Final = 10_000_000_000
"""A receiving thread may wait for 5 s in a put of Zenoh, and 0.1 s for a backlog."""
_NS_PER_S: Final = 1_000_000_000
_WAITING: Final = -1
"""In place of the turns of a thread that waits: its next turn begins later."""


class HealthReport(msgspec.Struct, frozen=True):
    """The answer to a health check, as JSON. `reasons` has a sentence for each thing that is wrong.

    `notices` are signs of a problem that a busy machine shows, too: they do not change the status.
    """

    status: str
    reasons: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.reasons


class ThreadWatch:
    """Finds receiving threads without progress between two checks. A single check finds none."""

    def __init__(self) -> None:
        # By endpoint and thread: the turns, and when they were first seen.
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}

    def hanging(
        self, threads: Iterable[tuple[str, ReceivingThread]], now_ns: int, after_ns: int = HANGING_NS
    ) -> list[str]:
        """A sentence for each thread, with its endpoint, that has made no progress for `after_ns`. One call a check."""
        self._seen = {
            (endpoint, each.name): self._first_seen((endpoint, each.name), each, now_ns)
            for endpoint, each in threads
        }
        return [
            f"receiving thread {name!r} of endpoint {endpoint!r} makes no progress for "
            f"{(now_ns - since_ns) // _NS_PER_S} s"
            for (endpoint, name), (_, since_ns) in self._seen.items()
            if now_ns - since_ns >= after_ns
        ]

    def _first_seen(self, key: tuple[str, str], thread: ReceivingThread, now_ns: int) -> tuple[int, int]:
        before = self._seen.get(key)
        turns = _WAITING if thread.waiting else thread.turns
        if thread.waiting or before is None or before[0] != turns:
            return turns, now_ns
        return before


def liveness(hanging: Iterable[str]) -> HealthReport:
    """The report of /healthz."""
    reasons = tuple(hanging)
    return HealthReport("hanging" if reasons else "alive", reasons)


def readiness(snapshot: MetricsSnapshot, hanging: Iterable[str]) -> HealthReport:
    """The report of /readyz."""
    reasons = (*hanging, *_closed_links(snapshot), *_stalled_receivers(snapshot), *_refusing_stores(snapshot))
    return HealthReport("not_ready" if reasons else "ready", reasons, tuple(_suspect_links(snapshot)))


def _closed_links(snapshot: MetricsSnapshot) -> Iterable[str]:
    for each in snapshot.endpoints:
        if not each.link.up:
            lost = "reaches no receiver any more" if each.link.up_count else "has reached no receiver yet"
            if each.link_problem:
                lost = "has a receiver that stopped reading"
            waiting = f"; {each.queue.queued} messages wait" if each.queue.queued else ""
            yield f"endpoint {each.name!r} {lost}{waiting}"


def _stalled_receivers(snapshot: MetricsSnapshot) -> Iterable[str]:
    """Receivers that stopped reading while others behind the same endpoint read."""
    for each in snapshot.endpoints:
        if each.link.up and each.link_problem and each.queue.blocked:
            yield (
                f"endpoint {each.name!r} has a receiver that stopped reading, next to others that read; "
                f"{each.queue.blocked} messages wait"
            )


def _suspect_links(snapshot: MetricsSnapshot) -> Iterable[str]:
    for each in snapshot.endpoints:
        if each.link.up and each.link_suspicion:
            yield f"endpoint {each.name!r}: {each.link_suspicion}; a node may be frozen or cut off"


def _refusing_stores(snapshot: MetricsSnapshot) -> Iterable[str]:
    for each in snapshot.stores:
        if each.state.degraded:
            yield f"store {each.name!r} accepts no writes: {each.state.degraded}"
