# SPDX-License-Identifier: Apache-2.0
"""Rules on the time to live: `expired` and `early`. Both allow for the clocks that the streamer may have read."""

from typing import ClassVar, Final

import numpy as np

from ustreamer_pipeline.gold.rules.run import TARGET, Columns, Mask, Row, RunRows, RunRule, take_rows
from ustreamer_pipeline.replay.rows import Ints

GRACE_NS: Final = 600_000_000_000
"""For this time after a clock step, or for its ttl, a message may look too old (core/delivery/expiry.py)."""

MIN_CLOCK_STEP_MS: Final = 1_000
"""The streamer treats a smaller step as drift and does not remember the clock before it (core/delivery/expiry.py)."""

UNSEEN_NS: Final = 70_000_000_000
"""Maximum delay until the recorder notices a clock step: the longest flush interval, and a margin."""

DRIFT_MS: Final = 50
"""Maximum difference between the wall clock and the recorded one without an anchor (docs/recordings.md)."""

CLOCK_STEP_NS: Final = 600_000_000_000
"""Around a step of the wall clock, for this time, ages are not judged by `early`."""

_MS: Final = 1_000_000


class Expired(RunRule):
    """No message is handed to a transport after its ttl: made + ttl, and at most ttl after its arrival.

    The rule uses the most favourable clock that the streamer may have read (core/delivery/expiry.py): the wall clock,
    the clock before a recent step, and the clock after a step that the recorder had not noticed. It skips retried
    messages, whose recorded attempt is not the successful one.
    """

    PROMISES: ClassVar = {"expired": "nothing is sent after its ttl"}
    COLUMNS = (
        *("seq", "id_msb", "received_us", "received_ns", "ttl_ms", "queue_wait_us", "attempts", "verdict"),
        *TARGET,
    )

    def feed(self, rows: RunRows) -> None:
        at = np.flatnonzero(rows.is_verdict("DELIVERED") & (rows["ttl_ms"] > 0) & (rows["attempts"] == 1))
        # The gateway reads its wall clock in whole ms, after it has recorded the arrival.
        age_ms = rows["received_us"][at] // 1_000 - _made_ms(rows["id_msb"][at])
        left_ms = _left_ms(rows["ttl_ms"][at], age_ms)
        for index in np.flatnonzero(_is_too_late(rows["queue_wait_us"][at], left_ms)).tolist():
            row = int(at[index])
            if any(self._was_unexpired_after(step, rows, row) for step in self.run.leaps):
                continue
            expected = f"sent within {left_ms[index] * 1_000} us (ttl {rows['ttl_ms'][row]} ms)"
            found = f"sent after {rows['queue_wait_us'][row]} us"
            self._add_row(rows, row, rows.target(row), expected, found)

    def _was_unexpired_after(self, step: Row, rows: RunRows, at: int) -> bool:
        """Whether the message was unexpired by the clock before or after this step."""
        names = "id_msb", "received_ns", "ttl_ms", "queue_wait_us"
        id_msb, received_ns, ttl_ms, wait_us = (int(rows[name][at]) for name in names)
        since_ns = received_ns - step["time_ns"]
        is_remembered = abs(step["leap_ms"]) > MIN_CLOCK_STEP_MS
        is_remembered &= 0 <= since_ns <= max(GRACE_NS, ttl_ms * _MS) + UNSEEN_NS
        is_unseen = -UNSEEN_NS <= since_ns < 0
        shown_ms = (step["time_us"] + since_ns // 1_000) // 1_000
        made_ms = (id_msb % (1 << 64)) >> 16
        age_ms = shown_ms - (step["leap_ms"] if is_remembered else 0) - made_ms
        # Made after any time the old clock showed: the maker has another clock, and the old one proves nothing.
        is_excused = is_unseen or (is_remembered and age_ms >= -MIN_CLOCK_STEP_MS)
        left_ms = min(ttl_ms + DRIFT_MS - age_ms, ttl_ms)
        return bool(is_excused and left_ms >= 0 and wait_us <= left_ms * 1_000)


class Early(RunRule):
    """A message expires at the earliest `ttl` after it was made; made in the future counts as made on arrival.

    Messages that an earlier run kept on disk are not judged, nor those around a step of the clock.
    """

    PROMISES: ClassVar = {"early": "nothing expires before its ttl"}
    COLUMNS = (
        *("seq", "id_msb", "received_us", "received_ns", "arrived_ns", "settled_ns", "ttl_ms", "verdict"),
        *("source", "delivery", "tuned_ns"),
    )

    def feed(self, rows: RunRows) -> None:
        at = np.flatnonzero(rows.is_verdict("EXPIRED") & (rows["ttl_ms"] > 0) & ~is_from_disk(rows))
        if not len(at):
            return
        here = take_rows({name: rows[name] for name in self.COLUMNS}, at)
        arrived_ms = here["received_us"] // 1_000 - (here["received_ns"] - here["arrived_ns"]) // _MS
        settled_ms = arrived_ms + (here["settled_ns"] - here["arrived_ns"]) // _MS
        age_ms = settled_ms - np.minimum(_made_ms(here["id_msb"]), arrived_ms)
        early = age_ms + DRIFT_MS < here["ttl_ms"]
        for step in self.run.leaps:
            early &= np.abs(here["settled_ns"] - step["time_ns"]) > CLOCK_STEP_NS
        for index in np.flatnonzero(early).tolist():
            expected = f"not before its age is {here['ttl_ms'][index]} ms"
            row = int(at[index])
            self._add_row(rows, row, rows.text("source", row), expected, f"expired at {age_ms[index]} ms")


def _made_ms(id_msb: Ints) -> Ints:
    """Time of creation of messages, ms since 1970, of 48 bits."""
    made: Ints = (id_msb.view(np.uint64) >> np.uint64(16)).view(np.int64)
    return made


def _left_ms(ttl_ms: Ints, age_ms: Ints) -> Ints:
    """Time to live that is left at this age, at most all of it. Negative: expired."""
    left_ms: Ints = np.minimum(ttl_ms + DRIFT_MS - age_ms, ttl_ms)
    return left_ms


def _is_too_late(wait_us: Ints, left_ms: Ints) -> Mask:
    """Whether messages waited for longer than their time to live allowed, or had expired on arrival."""
    return (wait_us > left_ms * 1_000) | (left_ms < 0)


def is_from_disk(rows: "RunRows | Columns") -> Mask:
    """Messages that an earlier run accepted and kept: their targets never got a limit, or the lack of one."""
    kept: Mask = (rows["delivery"] > 0) & (rows["tuned_ns"] == 0)
    return kept
