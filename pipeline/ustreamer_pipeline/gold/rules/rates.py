# SPDX-License-Identifier: Apache-2.0
"""Rules of the throttle: `rate` and `never_throttled`."""

from math import floor
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from ustreamer_throttle.gate import DEFAULT_TOLERANCE, MAX_TOLERANCE

from ustreamer_pipeline.gold.rules.run import TARGET, Mask, RunRows, RunRule, RunTables
from ustreamer_pipeline.groups import stable_order, starts_of_equal, stretches
from ustreamer_pipeline.replay.rows import Ints
from ustreamer_pipeline.replay.target_replay import ThrottleSettings

_LARGEST = 1 << 62
"""Above it a product may leave 64 bits: the period is absurd, or 10^9 messages passed an hour each."""

_UNAVAILABLE = 14
"""UCode of messages that a stop abandoned."""


class _Limit(NamedTuple):
    """One limit of one gate. A change of the limit starts a new one."""

    delivery: int
    period_ns: int
    tuned_ns: int
    tolerance: float

    @property
    def slack_ns(self) -> int:
        return self.period_ns + floor(self.tolerance * self.period_ns) if self.tolerance else 0


class _Window(NamedTuple):
    """The message that begins the strictest window so far: the least lead, and of equal ones the first."""

    lead_ns: int
    number: int
    received_ns: int


class Rate(RunRule):
    """No target above its max_frequency: any window T has at most T / period + 2 + tolerance messages.

    For N messages from first to last this is (N - 1) * period - (period + early) <= T, all in whole ns; with
    tolerance 0 every gap is at least a period. Where messages of a bunch may wait, T / period + 2.5 holds.

    The lead of message n of a limit is n * period - received_ns. A window from message m to n violates the promise
    exactly if lead(n) - lead(m) > period + early. So each message is compared with the least lead before it, which
    begins its strictest window. Memory: one such window for each limit.
    """

    PROMISES: ClassVar = {"rate": "no target above its max_frequency"}
    COLUMNS = (
        *("seq", "received_us", "received_ns", "settled_ns", "delivery", "period_ns", "tuned_ns", "epoch"),
        *("verdict", "held", "code", *TARGET),
    )

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._passed: dict[_Limit, tuple[int, _Window]] = {}

    def feed(self, rows: RunRows) -> None:
        passed = np.flatnonzero(_has_passed(rows))
        if not len(passed):
            return
        order = passed[stable_order(rows["delivery"][passed])]
        columns = [rows[name][order] for name in ("delivery", "period_ns", "tuned_ns")]
        columns.append(self._tolerances(rows["epoch"][order]))
        received = rows["received_ns"][order]
        for start, end in stretches(starts_of_equal(*columns), len(order)):
            limit = _Limit(*(column[start].item() for column in columns))
            self._check(limit, rows, order[start:end], received[start:end])

    def _check(self, limit: _Limit, rows: RunRows, at: Ints, received: Ints) -> None:
        first, window = self._passed.get(limit, (0, None))
        number = np.arange(first, first + len(at))
        if (first + len(at) + 2) * limit.period_ns > _LARGEST:  # integers of Python, 50 times slower
            number, received = number.astype(object), received.astype(object)
        lead = number * limit.period_ns - received
        least = np.minimum.accumulate(
            lead if window is None else np.append(np.array([window.lead_ns], lead.dtype), lead)
        )[-len(at) :]

        def strictest(index: int) -> _Window:
            value = int(least[index])
            if window is not None and window.lead_ns <= value:
                return window
            place = int(np.searchsorted(-least, -value))  # the least lead so far never increases
            return _Window(value, first + place, int(received[place]))

        for index in np.flatnonzero(lead - least > limit.slack_ns).tolist():
            begin = strictest(index)
            count = first + index - begin.number + 1
            least_ns = (count - 1) * limit.period_ns - limit.slack_ns
            expected = f"{count} messages in at least {least_ns} ns (period {limit.period_ns} ns)"
            found = f"{int(received[index]) - begin.received_ns} ns"
            self._add_row(rows, int(at[index]), rows.target(int(at[index])), expected, found)
        self._passed[limit] = first + len(at), strictest(len(at) - 1)

    def _tolerances(self, epochs: Ints) -> npt.NDArray[np.float64]:
        found = np.empty(len(epochs))
        for epoch in np.unique(epochs).tolist() if epochs.min() < epochs.max() else [int(epochs[0])]:
            found[epochs == epoch] = _tolerance(self.run.settings.get(epoch))
        return found


def _has_passed(rows: RunRows) -> Mask:
    """Messages with a limit that passed it. Those that a stop removed from a filter did not; those that waited for a
    link had left the filter before.
    """
    passed = (rows["period_ns"] > 0) & (rows["delivery"] > 0)
    passed &= rows.is_verdict("DELIVERED", "EXPIRED", "DEAD_LETTERED")
    removed = (
        rows.is_verdict("DEAD_LETTERED") & (rows["code"] == _UNAVAILABLE) & rows["held"].astype(np.bool_)
    )
    passed &= ~(removed & (rows["settled_ns"] == rows["received_ns"]))
    return passed


def _tolerance(settings: ThrottleSettings | float | None) -> float:
    """Tolerance of the throttle in a configuration; where messages of a bunch may wait, the greatest one."""
    if settings is None:
        return DEFAULT_TOLERANCE
    if not isinstance(settings, ThrottleSettings):
        return settings
    return MAX_TOLERANCE if settings.tolerance > 0 and settings.max_delay_ns > 0 else settings.tolerance


class NeverThrottled(RunRule):
    """Requests, responses and notifications are never throttled, nor are publications without a limit."""

    PROMISES: ClassVar = {"never_throttled": "only publications with a limit are throttled"}
    COLUMNS = ("seq", "received_us", "verdict", "type", "period_ns", *TARGET)

    def feed(self, rows: RunRows) -> None:
        throttled = rows.is_verdict("THROTTLED") & (~rows.is_type("PUBLISH") | (rows["period_ns"] == 0))
        for at in np.flatnonzero(throttled).tolist():
            found = f"{rows.text('type', at)} with period {rows['period_ns'][at]} ns"
            (expected,) = self.PROMISES.values()
            self._add_row(rows, at, rows.target(at), expected, found)
