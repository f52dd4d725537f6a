# SPDX-License-Identifier: Apache-2.0
"""Session numbers of service discovery. Own numbers announce a reboot; received numbers reveal a peer's reboot.

A sender counts from 1 to 0xFFFF and again from 1, separately for its multicasts and for each unicast peer. The reboot
flag is set until the number wraps for the first time. The standard detects a reboot by:

    flag 0, then 1                          a counter that had wrapped restarts
    flag 1, then 1 with no higher number    a counter that had not wrapped restarts

Literally applied, every duplicated or reordered datagram is a reboot. So this module keeps the last numbers:

    duplicate   the same number with the same bytes within REORDER_NS           dropped
    late        a new number, up to WINDOW behind, within REORDER_NS            dropped: newer messages were processed
    late        within REORDER_NS after a reboot, a number that continues the previous life     dropped

Limits of the protocol:
* A reboot stays undetected if the first received number is higher than the last one of the previous life.
* Two reboots without a received message in between count as one.
* A reboot that repeats a datagram, number and bytes, within REORDER_NS is a duplicate until the next datagram.
* A datagram that more than WINDOW others, or more than REORDER_NS, overtook counts as a reboot.

A peer has two channels, and each of them detects the same reboot. Only the first detection is reported. Times are
arrival times, not read times: a busy reader must not look like a slow network.
"""

from collections import deque
from enum import StrEnum
from typing import Final, NamedTuple

from ustreamer.transports.someip.protocol.codec import MAX_SESSION

WINDOW: Final = 32
"""Maximum distance of a late datagram, in numbers."""
REORDER_NS: Final = 50_000_000
"""Maximum age of a late datagram: longer than network reordering, shorter than the boot of an ECU."""
_MAX_REPORTED: Final = 8


class SessionVerdict(StrEnum):
    """The classification of a message by its session number."""

    NEW = "new"
    REBOOT = "reboot"
    LATE = "late"
    DUPLICATE = "duplicate"


# [impl->SD-41]
def session_and_reboot_flag(count: int) -> tuple[int, bool]:
    """Session number and reboot flag of message number `count`, from 1, on its channel."""
    return (count - 1) % MAX_SESSION + 1, count <= MAX_SESSION


class _SeenMessage(NamedTuple):
    session: int
    reboot: bool
    digest: int
    at_ns: int


class _RebootSpan(NamedTuple):
    """The arrival times of a message before a reboot and of the first one after it, on one channel.

    Two channels detect the same reboot if their spans overlap, give or take a reordered datagram. The rule needs no order between the channels: a backlog is
    read one socket after the other, so either channel may be ahead by the whole backlog.
    """

    after_ns: int
    until_ns: int


class _Channel:
    """The multicasts or the unicasts of one peer."""

    def __init__(self) -> None:
        self._seen: deque[_SeenMessage] = deque(maxlen=2 * WINDOW)
        self._highest: _SeenMessage | None = None
        self._previous_highest: _SeenMessage | None = None  # the highest message of the previous life
        self._restarted_ns = 0
        # Reboots that the other channel detected first. A queue and not a flag: a backlog is read one channel after the
        # other and may contain several reboots.
        self.reported_reboots: deque[_RebootSpan] = deque(maxlen=_MAX_REPORTED)

    def classify(self, new: _SeenMessage) -> SessionVerdict:
        """Classify `new` without storing it."""
        highest = self._highest
        if highest is None:
            return SessionVerdict.NEW
        if self._continues_previous(new, highest):
            return SessionVerdict.LATE
        if highest.reboot and not new.reboot:
            return SessionVerdict.NEW  # the number has wrapped
        ahead = (new.session - highest.session) % MAX_SESSION
        behind = (highest.session - new.session) % MAX_SESSION
        if new.reboot and not highest.reboot:
            # Unless the message is one of the last before the wrap.
            overtaken = new.session > highest.session and behind < WINDOW
            return self._classify_old(new, highest) if overtaken else SessionVerdict.REBOOT
        if new.reboot:
            return SessionVerdict.NEW if new.session > highest.session else self._classify_old(new, highest)
        verdict = (
            self._classify_old(new, highest) if behind < WINDOW and behind <= ahead else SessionVerdict.NEW
        )
        # Without the reboot flag, a reboot is not detectable.
        return SessionVerdict.NEW if verdict is SessionVerdict.REBOOT else verdict

    def _classify_old(self, new: _SeenMessage, highest: _SeenMessage) -> SessionVerdict:
        for seen in reversed(self._seen):
            if (seen.session, seen.reboot) == (new.session, new.reboot):
                is_duplicate = seen.digest == new.digest and new.at_ns - seen.at_ns <= REORDER_NS
                return SessionVerdict.DUPLICATE if is_duplicate else SessionVerdict.REBOOT
        behind = (highest.session - new.session) % MAX_SESSION
        late = behind < WINDOW and new.at_ns - highest.at_ns <= REORDER_NS
        return SessionVerdict.LATE if late else SessionVerdict.REBOOT

    def _continues_previous(self, new: _SeenMessage, highest: _SeenMessage) -> bool:
        previous = self._previous_highest
        if previous is None or new.at_ns - self._restarted_ns > REORDER_NS or new.reboot != previous.reboot:
            return False
        if new.reboot == highest.reboot and abs(new.session - highest.session) <= WINDOW:
            return False  # the number also continues the new life
        apart = (new.session - previous.session) % MAX_SESSION
        return min(apart, MAX_SESSION - apart) <= WINDOW

    def advance(self, new: _SeenMessage) -> None:
        self._highest = new
        self._seen.append(new)

    def remember(self, new: _SeenMessage) -> None:
        """Store a late message, so that its repetition is a duplicate."""
        self._seen.append(new)

    def restart(self, new: _SeenMessage) -> _RebootSpan | None:
        """Start a new life; returns the span of the reboot, or None if the other channel has already reported it."""
        highest = self._highest
        assert highest is not None  # `classify` compared with it
        # The same number in the previous life is the safe bound: `highest` may be of the new life, if it overtook `new`.
        number = (new.session, new.reboot)
        same = next((each for each in reversed(self._seen) if (each.session, each.reboot) == number), highest)
        span = _RebootSpan(same.at_ns, new.at_ns)
        self._previous_highest, self._restarted_ns = highest, new.at_ns
        self._seen.clear()
        self.advance(new)
        reported = self.reported_reboots
        while reported and reported[0].until_ns < span.after_ns - REORDER_NS:
            reported.popleft()  # a reboot that this channel missed
        if reported and reported[0].after_ns <= span.until_ns:
            reported.popleft()
            return None
        return span


# [impl->SD-765, SD-813]
class PeerSessions:
    """The received session numbers of one peer: bounded, at most about 10 kB."""

    def __init__(self) -> None:
        self._unicast = _Channel()
        self._multicast = _Channel()

    # [impl->SD-863]
    def observe(
        self, session: int, reboot: bool, multicast: bool, digest: int, now_ns: int
    ) -> SessionVerdict:
        """Classify and store a message; `digest` is a checksum of its bytes. Each reboot returns REBOOT once."""
        if session == 0:
            return SessionVerdict.NEW  # the sender does not count sessions
        channel, other = (self._multicast, self._unicast) if multicast else (self._unicast, self._multicast)
        new = _SeenMessage(session, reboot, digest, now_ns)
        verdict = channel.classify(new)
        if verdict is SessionVerdict.NEW:
            channel.advance(new)
        elif verdict is SessionVerdict.LATE:
            channel.remember(new)
        elif verdict is SessionVerdict.REBOOT:
            span = channel.restart(new)
            if span is None:
                return SessionVerdict.NEW
            other.reported_reboots.append(span)
        return verdict
