# SPDX-License-Identifier: Apache-2.0
"""The decision of the throttle for many messages at once. The oracle is `ustreamer_throttle.gate.Gate`.

The gate decides message by message, 0.1 us each in Python. Where no gap between two messages exceeds a period (a
publisher faster than the limit, the most frequent case), the due times are a fixed grid: after A messages have
passed, due = d0 + A * period. Message i is in slot s_i = (t_i - d0 + early) // period. It passes if s_i >= A, and so

    A_i = min(A_(i-1) + 1, s_i + 1)  =  i + 1 + min(0, min over k <= i of (s_k - k))

which is a running minimum. The grid restarts only for a message that is more than one period late. Within a stretch
that is impossible. After a dropped message, which was early, the next one is at most one period late. After an
admitted message the due time moved by a period, so the next one is at most one gap late.
A message after a longer gap is decided alone. A stretch without long gaps costs some 10 ns per message, a message
after a long gap as much as in Python.

Messages that the network delivered in a bunch are decided by `Gate` itself: see `may_lag`.

`tests/replay/test_gate.py` compares the result with the gate for any arrivals, split at any place into batches.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from ustreamer_throttle.gate import LONG_AGO, NS_PER_MS, PAUSE, REFERENCE_NS, TIME_BITS, GateMemory

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LAST_MS: Final = (1 << 63) // NS_PER_MS - 1
"""Creation times up to here, in 2262, are computed in ns."""

_SHORT: Final = 48
"""Shorter stretches are decided in Python: ten numpy calls take as long as this many messages."""


class Limit(NamedTuple):
    """A period and its tolerances, computed as the gate computes them."""

    period: int
    early: int
    carry: int
    pause: int

    @classmethod
    def for_period(cls, period_ns: int, tolerance: float) -> "Limit":
        if not tolerance:
            return cls(period_ns, 0, 0, 0)
        return cls(period_ns, int(tolerance * period_ns), period_ns, int(PAUSE * period_ns))


def decide(times: Times, due: int, limit: Limit) -> tuple[Mask, int]:
    """Mask of the admitted messages at `times` (ns, ascending) for a gate due at `due`, and the due time after them.

    `due` is the due time of the gate without tolerance; `LONG_AGO` for a new gate.
    """
    count = len(times)
    passed = np.zeros(count, dtype=np.bool_)
    if not count:
        return passed, due
    if not limit.carry or count < _SHORT:
        return passed, _decide_one_by_one(times, due, limit, passed)
    gaps = np.diff(times)
    shortest = int(gaps.min())
    if shortest < 0:
        return passed, _decide_one_by_one(times, due, limit, passed)
    if shortest >= limit.period:
        return passed, _decide_slow_publisher(times, gaps, due, limit, passed)
    long_gaps = np.flatnonzero(gaps > limit.period) + 1
    if (len(long_gaps) + 1) * _SHORT > count:
        return passed, _decide_one_by_one(times, due, limit, passed)
    starts = [0, *long_gaps.tolist()]
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        due = _decide_stretch(times[start:end], due, limit, passed[start:end])
    return passed, due


def _decide_slow_publisher(times: Times, gaps: Times, due: int, limit: Limit, passed: Mask) -> int:
    """Decide messages of a publisher that is never faster than the limit: all after the first pass."""
    due = _decide_one_by_one(times[:1], due, limit, passed[:1])
    passed[1:] = True
    # After such a gap the grid restarts whatever its state was: only the messages after the last such gap need a
    # loop.
    pauses = np.flatnonzero(gaps > limit.pause + limit.period + limit.early)
    first = int(pauses[-1]) + 1 if len(pauses) else 0
    if first:
        due = int(times[first]) + limit.period
    return _decide_one_by_one(times[first + 1 :], due, limit, passed[first + 1 :])


def _decide_stretch(times: Times, due: int, limit: Limit, passed: Mask) -> int:
    """Decide messages of which only the first may follow a long gap."""
    due = _decide_one_by_one(times[:1], due, limit, passed[:1])
    rest = times[1:]
    if len(rest) < _SHORT:
        return _decide_one_by_one(rest, due, limit, passed[1:])
    slots = (rest - (due - limit.early)) // limit.period
    number = np.arange(len(rest), dtype=np.int64)
    slots -= number
    admitted = np.minimum(np.minimum.accumulate(slots), 0)
    admitted += number
    admitted += 1
    passed[1] = admitted[0] > 0
    np.greater(admitted[1:], admitted[:-1], out=passed[2:])
    return due + int(admitted[-1]) * limit.period


def _decide_one_by_one(times: Times, due: int, limit: Limit, passed: Mask) -> int:
    """The algorithm of the gate, inlined: its calls would take half of the time."""
    period, early, carry, pause = limit
    early, farthest = -early, -(period + early)
    hits: list[int] = []
    hit = hits.append
    for index, now in enumerate(times.tolist()):
        late = now - due
        if late < early:
            if late < farthest:
                due = now - farthest
            continue
        hit(index)
        if late <= carry:
            due += period
        elif late <= pause:
            due = now
        else:
            due = now + period
    passed[hits] = True
    return due


def may_lag(times: Times, msbs: Times, memory: GateMemory, period: int) -> bool:
    """Whether a message may lag so far behind an earlier one, half a period, that the gate considers its creation time.

    False means that `decide` equals `Gate.admit` of each message. The gate's reference is some earlier message.
    """
    # An id may claim any time of 48 bits, so the differences are taken modulo 2 ** 64.
    made = (msbs.view(np.uint64) >> np.uint64(TIME_BITS)) * np.uint64(NS_PER_MS)
    offsets = (times.view(np.uint64) - made).view(np.int64)
    if memory.msb:
        first = (memory.seen_ns - (memory.msb >> TIME_BITS) * NS_PER_MS) % (1 << 64)
        offsets = np.concatenate([np.array([first], dtype=np.uint64).view(np.int64), offsets])
    # The gate shifts the difference of two ids, which may be 1 ms less.
    return bool((offsets - np.minimum.accumulate(offsets) > (period >> 1) - NS_PER_MS).any())


def reference_after(times: Times, msbs: Times, memory: GateMemory) -> GateMemory:
    """`memory` with the reference after these messages, all admitted, of which none lags (`may_lag`)."""
    latest = int(msbs.view(np.uint64).max(initial=np.uint64(memory.msb)))
    if latest >> TIME_BITS > _LAST_MS:
        return _reference_one_by_one(times.tolist(), msbs.view(np.uint64).tolist(), memory)
    at, reference, seen = 0, memory.msb, memory.seen_ns
    while at < len(times):
        old = at + int(np.searchsorted(times[at:], seen + REFERENCE_NS, side="right"))
        made_ns = (msbs[at:old] - reference >> TIME_BITS) * NS_PER_MS
        less_lag = np.flatnonzero(times[at:old] - seen < made_ns)
        at = at + int(less_lag[0]) if len(less_lag) else old
        if at < len(times):
            reference, seen = int(msbs[at]), int(times[at])
        at += 1
    return memory._replace(msb=reference, seen_ns=seen)


def _reference_one_by_one(times: list[int], msbs: list[int], memory: GateMemory) -> GateMemory:
    """The definition of `reference_after`: as the gate compares, for ids of any time."""
    reference, seen = memory.msb, memory.seen_ns
    for now, msb in zip(times, msbs, strict=True):
        age = now - seen
        if age < (msb - reference >> TIME_BITS) * NS_PER_MS or age > REFERENCE_NS:
            reference, seen = msb, now
    return memory._replace(msb=reference, seen_ns=seen)


def retuned(due: int, before: Limit, after: Limit, now: int) -> int:
    """Due time of the gate after a change of its limit at `now`; see `Gate.retune`."""
    return due if before.period == after.period else now - (now - due) * after.period // before.period


__all__ = ["LONG_AGO", "Limit", "Mask", "Times", "decide", "may_lag", "reference_after", "retuned"]
