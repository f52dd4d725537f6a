# SPDX-License-Identifier: Apache-2.0
"""Whether the ttl of a message has run out, also when the wall clock leaps.

A message says by its id when it was made, on the wall clock of who made it. An ECU boots in 2000, its clock leaps to today,
and everything on the way looks 26 years old. So:

* On arrival a message is expired if it is by the wall clock, unless it is young by what the wall clock was before a recent
  leap: it may have been made before it, or by somebody whose clock has not leapt yet.
* From then on its deadline is on the monotonic clock, and no leap can touch it. It is never more than its ttl away: an id
  from the future counts as made now.

A monotonic clock that stands still while the machine sleeps makes waking up look like a leap. What was on the way then is
not lost, and what waited has as much time left as before.
"""

import logging
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Final, NamedTuple

from ustreamer.core.base.clock import Clock
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage

log = logging.getLogger("ustreamer.clock")

CLOCK_STEP_MS: Final = 1_000
"""Wall and monotonic clock that drift apart by more than this between two observations: a leap."""

BATCH_SEND_MS: Final = 100
"""What is sent together is sent within this time, or looked at again."""

STEP_GRACE_NS: Final = 600_000_000_000
"""How long after a leap the old time counts at least: so long others may take to leap too (10 min; or the ttl)."""

MAX_CLOCK_STEPS: Final = 8
"""Old times that are remembered; the oldest goes."""

MIN_PLAUSIBLE_WALL_MS: Final = 1_577_836_800_000
"""A wall clock that shows less, 2020-01-01, was never set: this program is younger."""

_NS_PER_MS: Final = 1_000_000
_SLOW_READING_NS: Final = (
    100 * _NS_PER_MS
)  # stopped between two readings of clocks: they do not belong together


class ClockStep(NamedTuple):
    """A time that the wall clock showed up to a leap: what it was ahead of the monotonic clock, and when that ended."""

    offset_before_ms: int
    at_ns: int


def remaining_after_reboot_ms(allowed_ms: int, deadline_ms: int, wall_ms: int) -> int:
    """What is left of a wait that began in an earlier boot, `allowed_ms` long, and was to end at `deadline_ms`; negative: nothing.

    Only the wall clock knows how long the machine was off. If it was not set then, or is behind that time now, nobody does:
    then all of it is left. It is never more than that.
    """
    began_ms = deadline_ms - allowed_ms
    if began_ms < MIN_PLAUSIBLE_WALL_MS or wall_ms < began_ms:
        return allowed_ms
    return min(deadline_ms - wall_ms, allowed_ms)


class Expiry:
    """Remembers how the wall clock of this machine has leapt. One for each streamer; safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic_ns, self._wall_ms = clock
        self._lock = Lock()  # a leaf: nothing is called under it but the clock
        self._offset_ms = self._wall_ms() - self._monotonic_ns() // _NS_PER_MS
        self._steps: tuple[ClockStep, ...] = ()
        self.clock_steps = 0

    def observe_clock(self) -> None:
        """Look at the clocks. To be called once a second; a leap and its reversal in between go unseen."""
        with self._lock:
            before_ns = self._monotonic_ns()
            offset_ms = self._wall_ms() - before_ns // _NS_PER_MS
            now_ns = self._monotonic_ns()
            if now_ns - before_ns > _SLOW_READING_NS:
                return
            step_ms = offset_ms - self._offset_ms
            if abs(step_ms) > CLOCK_STEP_MS:
                self._steps = (ClockStep(self._offset_ms, now_ns), *self._steps)[:MAX_CLOCK_STEPS]
                self.clock_steps += 1
            self._offset_ms = offset_ms
        if abs(step_ms) > CLOCK_STEP_MS:
            log.warning("clock.stepped", extra={"seconds": step_ms / 1000})

    def is_expired(self, created_ms: int, ttl: int) -> bool:
        """Whether a message that arrives now, made at `made_ms` with `ttl` > 0 (both ms), must not go on (DSP-27, X-23)."""
        # Most are not, and then neither an observation nor the past is needed.
        return self._wall_ms() > created_ms + ttl and self._remaining_ms(created_ms, ttl) < 0

    def unexpired(self, messages: Iterable[UMessage]) -> Iterable[UMessage]:
        """Messages up to the first that is expired, each looked at when it is asked for: `is_expired`, 0.3 us cheaper.

        A run stays one if no message of it is expired within SOON_MS: then whoever sends it has so long.
        """
        if type(messages) is MessageBatch and messages and self._lasts_for_send(messages):
            return messages
        return self._each_unexpired(messages)

    def _lasts_for_send(self, batch: MessageBatch) -> bool:
        ttl = batch.attributes.ttl
        return not ttl or self._wall_ms() + BATCH_SEND_MS <= (min(batch.ids.msb_lsb_columns()[0]) >> 16) + ttl

    def _each_unexpired(self, messages: Iterable[UMessage]) -> Iterator[UMessage]:
        wall_ms, is_expired = self._wall_ms, self.is_expired
        for message in messages:
            ttl = message.attributes.ttl
            if ttl:
                created_ms = message.id.msb >> 16
                if wall_ms() > created_ms + ttl and is_expired(created_ms, ttl):
                    return
            yield message

    def deadline_ns(self, message: UMessage, now_ns: int, max_age_ns: int) -> int:
        """Until when, on the monotonic clock, a message that arrived at `now_ns` may wait: it is expired above that.

        `max_age_ns` bounds messages without ttl. For one that is expired already, the moment before now.
        """
        ttl = message.attributes.ttl
        if not ttl:
            return now_ns + max_age_ns
        created_ms, wall_ms = message.id.time_ms, self._wall_ms()
        if self._is_stable(now_ns, wall_ms, ttl):
            remaining_ms = min(created_ms + ttl - wall_ms, ttl)
        else:
            remaining_ms = self._remaining_ms(created_ms, ttl)
        return now_ns + remaining_ms * _NS_PER_MS if remaining_ms >= 0 else now_ns - 1

    def wall_ms_if_stable(self, now_ns: int, ttl: int) -> int | None:
        """The wall clock, by which alone a ttl (ms) can be judged now; None if a leap of late has to be thought of."""
        wall_ms = self._wall_ms()
        return wall_ms if self._is_stable(now_ns, wall_ms, ttl) else None

    def _is_stable(self, now_ns: int, wall_ms: int, ttl: int) -> bool:
        """Whether no leap of late can make a message look older than it is."""
        if abs(wall_ms - now_ns // _NS_PER_MS - self._offset_ms) > CLOCK_STEP_MS:
            return False
        steps = self._steps
        return not steps or now_ns - steps[0].at_ns > max(STEP_GRACE_NS, ttl * _NS_PER_MS)

    def _remaining_ms(self, created_ms: int, ttl: int) -> int:
        """What is left of a ttl, by the time that is kindest to it of now and of before; negative if it has run out."""
        self.observe_clock()
        now_ns = self._monotonic_ns()
        remaining_ms = min(created_ms + ttl - self._wall_ms(), ttl)
        seen_offsets = [self._offset_ms]
        for step in self._steps:
            if now_ns - step.at_ns > max(STEP_GRACE_NS, ttl * _NS_PER_MS):
                break  # those behind ended earlier
            # Back where it was, but for what a clock is set by now and then: the later of the two knows better.
            if any(abs(step.offset_before_ms - each) <= CLOCK_STEP_MS for each in seen_offsets):
                continue
            seen_offsets.append(step.offset_before_ms)
            age_ms = now_ns // _NS_PER_MS + step.offset_before_ms - created_ms
            # Not from the future of that time: then it was made by another clock, and this one says nothing about it.
            if -CLOCK_STEP_MS <= age_ms <= ttl:
                remaining_ms = max(remaining_ms, min(ttl - age_ms, ttl))
        return remaining_ms
