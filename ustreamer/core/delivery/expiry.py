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
from ustreamer.uprotocol.batch import Run
from ustreamer.uprotocol.umessage import UMessage

log = logging.getLogger("ustreamer.clock")

LEAP_MS: Final = 1_000
"""Wall and monotonic clock that drift apart by more than this between two observations: a leap."""

SOON_MS: Final = 100
"""What is sent together is sent within this time, or looked at again."""

GRACE_NS: Final = 600_000_000_000
"""How long after a leap the old time counts at least: so long others may take to leap too (10 min; or the ttl)."""

MAX_EPOCHS: Final = 8
"""Old times that are remembered; the oldest goes."""

CREDIBLE_MS: Final = 1_577_836_800_000
"""A wall clock that shows less, 2020-01-01, was never set: this program is younger."""

_NS_PER_MS: Final = 1_000_000
_SLOW_READING_NS: Final = (
    100 * _NS_PER_MS
)  # stopped between two readings of clocks: they do not belong together


class Epoch(NamedTuple):
    """A time that the wall clock showed up to a leap: what it was ahead of the monotonic clock, and when that ended."""

    ahead_ms: int
    ended_ns: int


def left_after_reboot_ms(allowed_ms: int, deadline_ms: int, wall_ms: int) -> int:
    """What is left of a wait that began in an earlier boot, `allowed_ms` long, and was to end at `deadline_ms`; negative: nothing.

    Only the wall clock knows how long the machine was off. If it was not set then, or is behind that time now, nobody does:
    then all of it is left. It is never more than that.
    """
    began_ms = deadline_ms - allowed_ms
    if began_ms < CREDIBLE_MS or wall_ms < began_ms:
        return allowed_ms
    return min(deadline_ms - wall_ms, allowed_ms)


class Expiry:
    """Remembers how the wall clock of this machine has leapt. One for each streamer; safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic_ns, self._wall_ms = clock
        self._lock = Lock()  # a leaf: nothing is called under it but the clock
        self._ahead_ms = self._wall_ms() - self._monotonic_ns() // _NS_PER_MS
        self._past: tuple[Epoch, ...] = ()
        self.leaps = 0

    def observe(self) -> None:
        """Look at the clocks. To be called once a second; a leap and its reversal in between go unseen."""
        with self._lock:
            before_ns = self._monotonic_ns()
            ahead_ms = self._wall_ms() - before_ns // _NS_PER_MS
            now_ns = self._monotonic_ns()
            if now_ns - before_ns > _SLOW_READING_NS:
                return
            leap_ms = ahead_ms - self._ahead_ms
            if abs(leap_ms) > LEAP_MS:
                self._past = (Epoch(self._ahead_ms, now_ns), *self._past)[:MAX_EPOCHS]
                self.leaps += 1
            self._ahead_ms = ahead_ms
        if abs(leap_ms) > LEAP_MS:
            log.warning("clock_leapt", extra={"seconds": leap_ms / 1000})

    def is_expired(self, made_ms: int, ttl: int) -> bool:
        """Whether a message that arrives now, made at `made_ms` with `ttl` > 0 (both ms), must not go on (DSP-27, X-23)."""
        # Most are not, and then neither an observation nor the past is needed.
        return self._wall_ms() > made_ms + ttl and self._left_ms(made_ms, ttl) < 0

    def in_time(self, messages: Iterable[UMessage]) -> Iterable[UMessage]:
        """Messages up to the first that is expired, each looked at when it is asked for: `is_expired`, 0.3 us cheaper.

        A run stays one if no message of it is expired within SOON_MS: then whoever sends it has so long.
        """
        if type(messages) is Run and messages and self._lasts(messages):
            return messages
        return self._each_in_time(messages)

    def _lasts(self, run: Run) -> bool:
        ttl = run.attributes.ttl
        return not ttl or self._wall_ms() + SOON_MS <= (min(run.ids.halves()[0]) >> 16) + ttl

    def _each_in_time(self, messages: Iterable[UMessage]) -> Iterator[UMessage]:
        wall_ms, is_expired = self._wall_ms, self.is_expired
        for message in messages:
            ttl = message.attributes.ttl
            if ttl:
                made_ms = message.id.msb >> 16
                if wall_ms() > made_ms + ttl and is_expired(made_ms, ttl):
                    return
            yield message

    def deadline_ns(self, message: UMessage, now_ns: int, max_age_ns: int) -> int:
        """Until when, on the monotonic clock, a message that arrived at `now_ns` may wait: it is expired above that.

        `max_age_ns` bounds messages without ttl. For one that is expired already, the moment before now.
        """
        ttl = message.attributes.ttl
        if not ttl:
            return now_ns + max_age_ns
        made_ms, wall_ms = message.id.time_ms, self._wall_ms()
        if self._is_calm(now_ns, wall_ms, ttl):
            left_ms = min(made_ms + ttl - wall_ms, ttl)
        else:
            left_ms = self._left_ms(made_ms, ttl)
        return now_ns + left_ms * _NS_PER_MS if left_ms >= 0 else now_ns - 1

    def calm_wall_ms(self, now_ns: int, ttl: int) -> int | None:
        """The wall clock, by which alone a ttl (ms) can be judged now; None if a leap of late has to be thought of."""
        wall_ms = self._wall_ms()
        return wall_ms if self._is_calm(now_ns, wall_ms, ttl) else None

    def _is_calm(self, now_ns: int, wall_ms: int, ttl: int) -> bool:
        """Whether no leap of late can make a message look older than it is."""
        if abs(wall_ms - now_ns // _NS_PER_MS - self._ahead_ms) > LEAP_MS:
            return False
        past = self._past
        return not past or now_ns - past[0].ended_ns > max(GRACE_NS, ttl * _NS_PER_MS)

    def _left_ms(self, made_ms: int, ttl: int) -> int:
        """What is left of a ttl, by the time that is kindest to it of now and of before; negative if it has run out."""
        self.observe()
        now_ns = self._monotonic_ns()
        left_ms = min(made_ms + ttl - self._wall_ms(), ttl)
        asked = [self._ahead_ms]
        for epoch in self._past:
            if now_ns - epoch.ended_ns > max(GRACE_NS, ttl * _NS_PER_MS):
                break  # those behind ended earlier
            # Back where it was, but for what a clock is set by now and then: the later of the two knows better.
            if any(abs(epoch.ahead_ms - each) <= LEAP_MS for each in asked):
                continue
            asked.append(epoch.ahead_ms)
            age_ms = now_ns // _NS_PER_MS + epoch.ahead_ms - made_ms
            # Not from the future of that time: then it was made by another clock, and this one says nothing about it.
            if -LEAP_MS <= age_ms <= ttl:
                left_ms = max(left_ms, min(ttl - age_ms, ttl))
        return left_ms
