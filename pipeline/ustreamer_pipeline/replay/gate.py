# SPDX-License-Identifier: Apache-2.0
"""The throttle's decision for many messages at once: what `ustreamer_throttle.gate.Gate` would have said of each.

The gate decides one message after the other, which costs 0.1 us each in Python. But where no gap between two messages is
longer than a period (a publisher faster than the limit, the case in which most messages are), its due times are a fixed
grid: after A messages have passed, due = d0 + A * period. Message i comes in slot s_i = (t_i - d0 + early) // period, it
passes if s_i >= A, and so

    A_i = min(A_(i-1) + 1, s_i + 1)  =  i + 1 + min(0, min over k <= i of (s_k - k))

which is a running minimum. Why nothing else can happen there: if the message before was dropped it was early, and one gap
later it is at most a period late; if it passed, due moved on by a period, and one gap later it is at most a gap late.
What is more than a period late, where the grid starts anew, therefore comes only after a longer gap, and is decided alone.
So a stretch without long gaps costs some 10 ns a message, and a message after a long gap what it costs in Python.

`tests/replay/test_gate.py` compares all of it with the gate itself, on any arrivals, cut anywhere into batches.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from ustreamer_throttle.gate import LONG_AGO, PAUSE

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SHORT: Final = 48
"""Stretches of fewer messages are decided in Python: ten numpy calls take as long as so many messages there."""


class Limit(NamedTuple):
    """A period and its bounds of lateness, computed as the gate computes them."""

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
    """Which of the messages at `times` (ns, ascending) pass a gate that is due at `due`, and when it is due after them.

    `due` is the gate's own due time without the tolerance; `LONG_AGO` for a gate that has not seen a message.
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
    """Decide messages of a publisher that is never faster than the limit: after the first, all pass."""
    due = _decide_one_by_one(times[:1], due, limit, passed[:1])
    passed[1:] = True
    # After so long a gap the grid starts anew, whatever it was: only what follows the last of them need be gone through.
    pauses = np.flatnonzero(gaps > limit.pause + limit.period + limit.early)
    first = int(pauses[-1]) + 1 if len(pauses) else 0
    if first:
        due = int(times[first]) + limit.period
    return _decide_one_by_one(times[first + 1 :], due, limit, passed[first + 1 :])


def _decide_stretch(times: Times, due: int, limit: Limit, passed: Mask) -> int:
    """Decide messages of which only the first may come after a long gap."""
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
    """As the gate does it. Its calls would be half of the time, so they are written out."""
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


def retuned(due: int, before: Limit, after: Limit, now: int) -> int:
    """When the gate is due after its limit has changed at `now`; see `Gate.retune`."""
    return due if before.period == after.period else now - (now - due) * after.period // before.period


__all__ = ["LONG_AGO", "Limit", "Mask", "Times", "decide", "retuned"]
