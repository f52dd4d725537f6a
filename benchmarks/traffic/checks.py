# SPDX-License-Identifier: Apache-2.0
"""Checks of a run with a traffic model: loss, order, limits, and calls. Pure: callers pass numbers and times."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from benchmarks.traffic.models import TrafficModel

RATE_TOLERANCE: Final = 0.01
_ENOUGH: Final = 10.0
"""The rate of a topic is compared with its limit if it is published this many times as fast: pauses do not matter then.

The topic must also have had time for this many messages.
"""
_EARLY: Final = 2.1
"""Messages above `limit * time` that a throttle may pass: 2 + tolerance (plugins/throttle/README.md)."""
_JITTER_S: Final = 0.05
"""By how much the time between two messages may change on their way to the sink."""
_NS_PER_S: Final = 1_000_000_000


class TopicCounts:
    """Messages that a sink received on each topic since the last report."""

    def __init__(self, model: TrafficModel) -> None:
        self._sequence, self._length = model.sequence, len(model.sequence)
        self._newest = [-1] * model.topics
        self._steady = model.steady
        self.steady_count = 0
        """Messages of steady topics since the start."""
        self._limited = [model.limit_hz(topic) is not None for topic in range(model.topics)]
        self._clear()

    def _clear(self) -> None:
        self._received = [0] * len(self._newest)
        self._times_ns: dict[int, list[int]] = {}
        self._disordered = 0

    def on_message(self, number: int, now_ns: int) -> bool:
        """Count a message. Returns True if it is out of order: not newer than the last one of its topic."""
        topic = self._sequence[number % self._length]
        is_old = number <= self._newest[topic]
        self._newest[topic] = number
        self._received[topic] += 1
        self._disordered += is_old
        self.steady_count += self._steady[topic]
        if self._limited[topic]:
            self._times_ns.setdefault(topic, [now_ns, now_ns])[1] = now_ns
        return is_old

    def report(self) -> dict[str, Any]:
        """The counts, and the first and last time of each limited topic, as JSON. Sets all counts to 0."""
        found = {
            "received": self._received,
            "times_ns": {str(topic): times for topic, times in self._times_ns.items()},
            "out_of_order": self._disordered,
        }
        self._clear()
        return found


class CallCounts:
    """Requests without a response, and the counts of responses since the last report."""

    def __init__(self) -> None:
        self._pending: set[int] = set()
        self._clear()

    def _clear(self) -> None:
        self._answered = self._unexpected = 0
        self._ages_ns: list[int] = []

    def on_request(self, number: int) -> None:
        self._pending.add(number)

    def on_response(self, number: int, age_ns: int | None) -> None:
        """Count a response; a second one of the same request is unexpected."""
        if number not in self._pending:
            self._unexpected += 1
            return
        self._pending.remove(number)
        self._answered += 1
        if age_ns is not None:
            self._ages_ns.append(age_ns)

    def report(self) -> dict[str, Any]:
        """The counts as JSON. Sets all counts to 0, except that of requests without a response."""
        ages = sorted(self._ages_ns)
        found = {
            "answered": self._answered,
            "unanswered": len(self._pending),
            "unexpected": self._unexpected,
            "p50_us": ages[len(ages) // 2] / 1_000 if ages else 0.0,
            "p99_us": ages[len(ages) * 99 // 100] / 1_000 if ages else 0.0,
        }
        self._clear()
        return found


class TopicChecks(msgspec.Struct, frozen=True):
    """The results of a run: `lost` is the loss of topics that are neither throttled nor switched.

    `limited` counts the throttled topics that are published fast enough to reach their limit. Of these, `inaccurate`
    differ from the limit by more than 1 %, after an allowance of one message and `_JITTER_S`. `worst_rate` is the rate
    farthest from its limit, divided by the limit. `above_limit` counts the topics above their limit.
    """

    lost: int
    out_of_order: int
    limited: int = 0
    inaccurate: int = 0
    above_limit: int = 0
    worst_rate: float = 1.0

    @property
    def passed(self) -> bool:
        return not (self.lost or self.out_of_order or self.inaccurate or self.above_limit)


def check_topics(
    model: TrafficModel, sent: Sequence[int], report: dict[str, Any], *, limits: bool, switched: bool
) -> TopicChecks:
    """Compare the sent messages of each topic with the report of the sink.

    `limits` is False if the forwarder does not throttle. `switched` is False if no subscription comes and goes.
    """
    lost = inaccurate = above = 0
    rates: list[float] = []
    for topic, received in enumerate(report["received"]):
        limit_hz = model.limit_hz(topic) if limits else None
        if limit_hz is None:
            lost += 0 if switched and model.is_switched(topic) else sent[topic] - received
            continue
        if received < 2:
            continue
        first_ns, last_ns = report["times_ns"][str(topic)]
        expected = limit_hz * (last_ns - first_ns) / _NS_PER_S
        above += received > expected * (1 + RATE_TOLERANCE) + _EARLY + limit_hz * _JITTER_S
        if expected >= _ENOUGH and sent[topic] >= _ENOUGH * expected:
            rates.append((received - 1) / expected)
            inaccurate += (
                abs(received - 1 - expected) > RATE_TOLERANCE * expected + 1.1 + limit_hz * _JITTER_S
            )
    worst = max(rates, key=lambda rate: abs(rate - 1), default=1.0)
    return TopicChecks(lost, report["out_of_order"], len(rates), inaccurate, above, worst)
