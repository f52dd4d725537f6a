# SPDX-License-Identifier: Apache-2.0
"""One round on one rig: first at saturation, then at a pace, measured from outside."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.harness.child_process import ChildError
from benchmarks.harness.shared_counters import (
    AGE_COUNT,
    AGES_ENABLED,
    MAX_AGES,
    RECEIVED,
    SEND_ENABLED,
    SENT,
    SharedCounters,
)
from benchmarks.harness.testbed import Rig

_NS_PER_S: Final = 1_000_000_000
_US: Final = 1_000.0
_QUIET_S: Final = 0.01
_QUIET_POLLS: Final = 100  # unchanged readings in sequence that prove that no message is in transit
_SETTLE_S: Final = 10.0
_SWITCH_S: Final = 0.005  # ten readings of a counting sink
_REPLY_TIMEOUT_S: Final = 30.0
_WARM_UP_FRACTION: Final = 20  # untimed share of a paced round: its first messages find cold caches


class Load(msgspec.Struct, frozen=True):
    """Load and duration. `window` is the maximum number of messages in transit at saturation."""

    # Below 1 024, the limit of both forwarders for Zenoh. A channel that stays full costs a wake-up of Zenoh per
    # message: at 2 048 the bare forwarder took 6.6 us instead of 4.9, the streamer 19 instead of 13.
    window: int = 960
    warm_up_s: float = 0.5
    saturated_s: float = 2.5
    paced_hz: float = 1_000.0
    paced_messages: int = 2_500
    fast_hz: float = 10_000.0
    fast_messages: int = 10_000

    def __post_init__(self) -> None:
        for name in ("paced_messages", "fast_messages"):
            if not _WARM_UP_FRACTION <= (number := getattr(self, name)) <= MAX_AGES:
                raise ValueError(
                    f"{name} {number}: expected {_WARM_UP_FRACTION}..{MAX_AGES}, which the shared counters can hold"
                )


class Round(msgspec.Struct, frozen=True):
    """The results of one round. `cpu_us` is the forwarder's user and system time per message received by the sink
    (with no forwarder: generator and sink together). `*_cores` is the load of each process at saturation; 1 is one
    whole core. `fast_*` are ages at `fast_hz`. `other_cores` is the load of all other processes on this machine and
    of the kernel.
    """

    messages_per_s: float
    cpu_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    fast_p50_us: float
    fast_p99_us: float
    fast_p999_us: float
    lost: int
    sent: int
    forwarder_cores: float
    generator_cores: float
    sink_cores: float
    other_cores: float
    paced_cpu_us: float


class CpuSample(msgspec.Struct, frozen=True):
    """Counters at one moment; CPU times of forwarder, generator, sink and the whole machine."""

    at_ns: int
    received: int
    cpu_ns: tuple[int, int, int, int]


def run_round(rig: Rig, load: Load) -> Round:
    """Run one round. Raises ChildError if a process ended or nothing arrives."""
    sent, received = rig.counters[SENT], rig.counters[RECEIVED]
    before, after = _saturated(rig, load)
    paced_before, paced_ages, paced_after = _paced(rig, load.paced_hz, load.paced_messages)
    ages, fast_ages = _warm(paced_ages), _warm(_paced(rig, load.fast_hz, load.fast_messages)[1])
    seconds = (after.at_ns - before.at_ns) / _NS_PER_S
    messages = after.received - before.received
    if not messages or not ages or not fast_ages:
        raise ChildError(
            f"{rig.direction}, {rig.subject}: {messages} messages in {seconds:.1f} s of full flow and {len(ages)} of "
            f"{load.paced_messages} paced ones{rig.generator.log_tail()}{rig.sink.log_tail()}"
        )
    spent = _cpu_spent(before, after)
    paced = _cpu_spent(paced_before, paced_after)
    work = slice(0, 1) if rig.forwarder else slice(1, 3)
    return Round(
        messages_per_s=messages / seconds,
        cpu_us=sum(spent[work]) / messages / _US,
        p50_us=percentile(ages, 0.50) / _US,
        p99_us=percentile(ages, 0.99) / _US,
        p999_us=percentile(ages, 0.999) / _US,
        fast_p50_us=percentile(fast_ages, 0.50) / _US,
        fast_p99_us=percentile(fast_ages, 0.99) / _US,
        fast_p999_us=percentile(fast_ages, 0.999) / _US,
        lost=(rig.counters[SENT] - sent) - (rig.counters[RECEIVED] - received),
        sent=rig.counters[SENT] - sent,
        forwarder_cores=spent[0] / seconds / _NS_PER_S,
        generator_cores=spent[1] / seconds / _NS_PER_S,
        sink_cores=spent[2] / seconds / _NS_PER_S,
        other_cores=max(0.0, (spent[3] - sum(spent[:3])) / seconds / _NS_PER_S),
        paced_cpu_us=sum(paced[work]) / load.paced_messages / _US,
    )


def at_saturation(rig: Rig, load: Load) -> tuple[float, float]:
    """CPU us per message of the forwarder, and messages/s. Raises ChildError if nothing arrives."""
    before, after = _saturated(rig, load)
    messages = after.received - before.received
    if not messages:
        raise ChildError(f"{rig.direction}, {rig.subject}: nothing in {load.saturated_s:g} s of full flow")
    cpu_us = _cpu_spent(before, after)[0] / messages / _US
    return cpu_us, messages * _NS_PER_S / (after.at_ns - before.at_ns)


def at_pace(rig: Rig, hz: float, count: int) -> tuple[float, float]:
    """CPU us per message of the forwarder, and the p50 of message ages in us.

    Raises ChildError if nothing arrives.
    """
    before, arrivals, after = _paced(rig, hz, count)
    ages = _warm(arrivals)
    if not ages:
        raise ChildError(f"{rig.direction}, {rig.subject}: none of {count} paced messages arrived")
    return _cpu_spent(before, after)[0] / count / _US, percentile(ages, 0.50) / _US


def ages_at_pace(rig: Rig, hz: float, count: int) -> list[int]:
    """The ages of `count` messages in ns, ascending, the first ones included."""
    return sorted(arrivals_at_pace(rig, hz, count))


def arrivals_at_pace(rig: Rig, hz: float, count: int) -> list[int]:
    """The ages of `count` messages in ns, in order of arrival, the first ones included."""
    return _paced(rig, hz, count)[1]


def ages_for(rig: Rig, hz: float, seconds: float) -> Iterator[list[int]]:
    """A pace for some seconds, in parts of as many messages as the counters can note. Yields the ages of each part."""
    rig.counters[AGES_ENABLED] = 1
    count = min(MAX_AGES, round(hz * seconds))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        rig.counters[AGE_COUNT] = 0
        rig.generator.send_command(f"pace {hz} {count}")
        rig.generator.wait_line("DONE", _REPLY_TIMEOUT_S + 2 * count / hz)
        yield sorted(rig.counters.ages_ns())


def _cpu_spent(before: CpuSample, after: CpuSample) -> tuple[int, ...]:
    return tuple(now - then for then, now in zip(before.cpu_ns, after.cpu_ns, strict=True))


def _sample(rig: Rig) -> CpuSample:
    forwarder = rig.forwarder.cpu_ns if rig.forwarder else 0
    cpu_ns = (forwarder, rig.generator.cpu_ns, rig.sink.cpu_ns, _machine_cpu_ns())
    return CpuSample(time.monotonic_ns(), rig.counters[rig.progress], cpu_ns)


def _machine_cpu_ns() -> int:
    """CPU time of all processors (proc(5), /proc/stat), in steps of 10 ms."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * _NS_PER_S // os.sysconf("SC_CLK_TCK")


def _saturated(rig: Rig, load: Load) -> tuple[CpuSample, CpuSample]:
    """Saturation for a while. Returns the samples at both ends of the measured part."""
    missing = rig.counters[rig.expected] - rig.counters[RECEIVED]
    rig.counters[AGES_ENABLED] = 0
    rig.counters[SEND_ENABLED] = 1
    rig.generator.send_command(f"flow {load.window} {load.warm_up_s + load.saturated_s + _REPLY_TIMEOUT_S}")
    time.sleep(load.warm_up_s)
    before = _sample(rig)
    time.sleep(load.saturated_s)
    after = _sample(rig)
    deadline = time.monotonic() + _SETTLE_S
    while (
        after.received == before.received and time.monotonic() < deadline
    ):  # a busy machine stops all for a while
        time.sleep(_QUIET_S)
        after = _sample(rig)
    rig.counters[SEND_ENABLED] = 0
    rig.generator.wait_line("DONE", _REPLY_TIMEOUT_S)
    _wait_settled(rig.counters, missing, rig.expected)
    return before, after


def _warm(arrivals: Sequence[int]) -> list[int]:
    """The ages without those of the warm-up, ascending."""
    return sorted(arrivals[len(arrivals) // _WARM_UP_FRACTION :])


def _paced(rig: Rig, hz: float, count: int) -> tuple[CpuSample, list[int], CpuSample]:
    """Single messages. Returns their ages at the sink in ns, in order of arrival, and two samples."""
    missing = rig.counters[rig.expected] - rig.counters[RECEIVED]
    rig.counters[AGES_ENABLED] = 1
    time.sleep(_SWITCH_S)
    rig.counters[AGE_COUNT] = 0
    before = _sample(rig)
    rig.generator.send_command(f"pace {hz} {count}")
    rig.generator.wait_line("DONE", _REPLY_TIMEOUT_S + count / hz)
    _wait_settled(rig.counters, missing, rig.expected)
    after = _sample(rig)
    return before, rig.counters.ages_ns(), after


def wait_quiet(counters: SharedCounters) -> None:
    """Wait until no more messages arrive."""
    _wait_settled(counters, -(1 << 62))


def _wait_settled(counters: SharedCounters, already_lost: int, expected: int = SENT) -> None:
    """Wait until all sent messages have arrived, except `already_lost` earlier ones, or no more arrive."""
    deadline = time.monotonic() + _SETTLE_S
    received, quiet = counters[RECEIVED], 0
    while (
        counters[expected] - received > already_lost and quiet < _QUIET_POLLS and time.monotonic() < deadline
    ):
        time.sleep(_QUIET_S)
        now = counters[RECEIVED]
        quiet = quiet + 1 if now == received else 0
        received = now


def percentile(ascending: Sequence[int], part: float) -> float:
    """The smallest value that at least `part` (0..1) of the values do not exceed. Needs at least one value."""
    rank = max(0, -int(-part * len(ascending) // 1) - 1)
    return float(ascending[rank])
