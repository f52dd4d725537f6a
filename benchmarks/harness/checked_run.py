# SPDX-License-Identifier: Apache-2.0
"""A run of a traffic model with its checks: loss, order, limits, calls and memory."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.harness import measure
from benchmarks.harness.checkouts import STREAMERS
from benchmarks.harness.measure import Load
from benchmarks.harness.shared_counters import SENT, SWITCH_ENABLED
from benchmarks.harness.testbed import Direction, Rig
from benchmarks.traffic.checks import TopicChecks, check_topics
from benchmarks.traffic.models import TrafficModel
from benchmarks.traffic.subscriber import SWITCH_PAUSE_S

SHARE: Final = 0.7
"""The pace of a checked run, relative to the messages/s at saturation."""

_CALLS_S: Final = 10.0
_POLL_S: Final = 0.1
_MB: Final = 1 << 20
_NS_PER_S: Final = 1_000_000_000


class RunChecks(msgspec.Struct, frozen=True):
    """The results of a run. `calls` is empty if the model has none."""

    topics: TopicChecks
    sent: int
    calls: dict[str, Any]
    switches: int

    @property
    def passed(self) -> bool:
        calls = self.calls
        all_answered = not calls or not (calls["unanswered"] or calls["unexpected"] or calls["missing"])
        return self.topics.passed and all_answered

    def text(self) -> str:
        topics, calls = self.topics, self.calls
        parts = [f"{self.sent} sent, lost {topics.lost}, disorder {topics.out_of_order}"]
        if topics.limited:
            parts.append(
                f"{topics.limited} limits: rate {topics.worst_rate:.4f} of the limit at worst, "
                f"{topics.inaccurate} off by more than 1 %, {topics.above_limit} topics above"
            )
        if calls:
            parts.append(
                f"{calls['answered']} calls answered, {calls['unanswered'] + calls['missing']} not, "
                f"{calls['unexpected']} twice, p50/p99 {calls['p50_us']:.0f}/{calls['p99_us']:.0f} us"
            )
        if self.switches:
            parts.append(f"{self.switches} subscriptions ended and began again")
        return "; ".join(parts)


class CheckedRun:
    """The messages of a rig from now on; `finish` compares what was sent with what arrived."""

    def __init__(self, rig: Rig, model: TrafficModel) -> None:
        self._rig, self._model = rig, model
        measure.wait_quiet(rig.counters)
        self._switches = rig.sink.request_report().get("switches", 0)
        rig.generator.request_report()
        self._first = rig.counters[SENT]
        rig.counters[SWITCH_ENABLED] = 1

    def finish(self) -> RunChecks:
        """Wait for the last messages and responses."""
        rig, model = self._rig, self._model
        rig.counters[SWITCH_ENABLED] = 0
        time.sleep(2 * SWITCH_PAUSE_S)
        measure.wait_quiet(rig.counters)
        sent = model.counts(self._first, rig.counters[SENT])
        report = rig.sink.request_report()
        is_streamer = rig.subject in STREAMERS
        topics = check_topics(
            model,
            sent,
            report,
            limits=is_streamer,
            switched=is_streamer and rig.direction is not Direction.ZENOH_TO_SOMEIP,
        )
        calls = self._calls(sent[model.call]) if model.calls else {}
        return RunChecks(topics, sum(sent), calls, report.get("switches", 0) - self._switches)

    def _calls(self, sent: int) -> dict[str, Any]:
        calls = dict(self._rig.generator.request_report())
        deadline = time.monotonic() + _CALLS_S
        while calls["unanswered"] and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            more = self._rig.generator.request_report()
            calls["answered"] += more["answered"]
            calls["unexpected"] += more["unexpected"]
            calls["unanswered"] = more["unanswered"]
        return {**calls, "missing": max(0, sent - calls["answered"] - calls["unanswered"])}


class Soak(msgspec.Struct, frozen=True):
    """A long run at a share of the saturation. `ages_us` are p50, p99 and p99.9 of its worst part.

    `core_wait_s` is the time that the forwarder was ready to run and had no core: a busy machine, not the forwarder,
    causes ages and wrong rates.
    """

    hz: float
    sent_hz: float
    seconds: float
    ages_us: tuple[float, float, float]
    cpu_us: float
    cpu_s: float
    core_wait_s: float
    first_mb: float
    last_mb: float
    most_mb: float
    checks: RunChecks

    def text(self) -> str:
        ages = "/".join(f"{each:.0f}" for each in self.ages_us)
        return (
            f"{self.seconds:.0f} s at {self.hz:.0f}/s ({self.sent_hz:.0f}/s sent), CPU {self.cpu_us:.1f} us, "
            f"{self.cpu_s:.1f} s of CPU after {self.core_wait_s:.1f} s of waiting for a core, "
            f"p50/p99/p99.9 {ages} us in the worst part, "
            f"memory {self.first_mb:.1f} MB at first, {self.last_mb:.1f} at last, {self.most_mb:.1f} at most\n"
            f"    {'passed' if self.checks.passed else 'FAILED'}: {self.checks.text()}"
        )


def saturation_hz(rig: Rig, load: Load, repeats: int = 3) -> float:
    """Messages/s at saturation: the median of some rounds after a warm-up."""
    return median([measure.at_saturation(rig, load)[1] for _ in range(repeats + 1)][1:])


def soak(
    rig: Rig,
    model: TrafficModel,
    hz: float,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> Soak:
    """Send at a pace for some seconds and check every message. Raises ChildError if a process ends."""
    assert rig.forwarder is not None
    for _ in measure.ages_for(rig, hz, min(2.0, seconds)):
        pass  # warm-up
    run = CheckedRun(rig, model)
    first_mb = most_mb = rig.forwarder.resident_bytes / _MB
    sent, began_s = rig.counters[SENT], time.monotonic()
    cpu_ns, core_wait_ns = rig.forwarder.cpu_ns, rig.forwarder.core_wait_ns
    worst = [0.0, 0.0, 0.0]
    for ages in measure.ages_for(rig, hz, seconds):
        found = [measure.percentile(ages, part) / 1_000 for part in (0.5, 0.99, 0.999)] if ages else worst
        worst = [max(pair) for pair in zip(worst, found, strict=True)]
        memory_mb = rig.forwarder.resident_bytes / _MB
        most_mb = max(most_mb, memory_mb)
        progress(f"{time.monotonic() - began_s:.0f} s: p99 {found[1]:.0f} us, {memory_mb:.1f} MB")
    took_s = time.monotonic() - began_s
    cpu_ns, core_wait_ns = rig.forwarder.cpu_ns - cpu_ns, rig.forwarder.core_wait_ns - core_wait_ns
    sent = rig.counters[SENT] - sent
    last_mb = rig.forwarder.resident_bytes / _MB
    return Soak(
        hz,
        sent / took_s,
        took_s,
        (worst[0], worst[1], worst[2]),
        cpu_ns / sent / 1_000,
        cpu_ns / _NS_PER_S,
        core_wait_ns / _NS_PER_S,
        first_mb,
        last_mb,
        most_mb,
        run.finish(),
    )
