# SPDX-License-Identifier: Apache-2.0
"""Session numbers of service discovery: ours, which tell others of our reboots, and theirs, which tell us.

A sender counts 1 to 0xFFFF and again from 1, for its multicasts and for each unicast peer on their own, and has the
reboot flag set until the number wraps for the first time. The standard takes for a reboot:

    flag 0, then 1                          a counter that had wrapped starts anew
    flag 1, then 1 with no higher number    a counter that had not wrapped starts anew

Taken at its word, that makes a reboot of every duplicated or overtaken datagram. So here the last numbers are kept:

    duplicate   the same number with the same bytes within REORDER_NS           dropped
    late        a number not seen yet, up to WINDOW behind, within REORDER_NS   dropped: what came after it is newer
    late        within REORDER_NS after a reboot, a number that goes on where the old life ended     dropped

What cannot be told apart, by anybody:
* a reboot of which nothing is heard until a number is reached that is higher than the old one: no reboot is seen;
* two reboots with nothing heard in between: one is seen;
* a reboot that repeats a datagram, number and bytes, within REORDER_NS: taken for a duplicate, until the next one;
* a datagram that was overtaken by more than WINDOW others or by more than REORDER_NS: taken for a reboot.

A peer has two channels, and each of them notices the same reboot. The one that is second says nothing.
"""

from collections import deque
from enum import StrEnum
from typing import Final, NamedTuple

from ustreamer.transports.someip.protocol.codec import MAX_SESSION

WINDOW: Final = 32
"""How far back, in numbers, a datagram may be late."""
REORDER_NS: Final = 50_000_000
"""How far back, in time: above what a network needs to overtake, below what an ECU needs to boot."""
_MAX_REPORTED: Final = 8


class SessionVerdict(StrEnum):
    """What a message's session number says of it."""

    NEW = "new"
    REBOOT = "reboot"
    LATE = "late"
    DUPLICATE = "duplicate"


def session_and_reboot_flag(count: int) -> tuple[int, bool]:
    """Session number and reboot flag of the message with this `count`, from 1, on its channel."""
    return (count - 1) % MAX_SESSION + 1, count <= MAX_SESSION


class _SeenMessage(NamedTuple):
    session: int
    reboot: bool
    digest: int
    at_ns: int


class _Channel:
    """The multicasts or the unicasts of one peer."""

    def __init__(self) -> None:
        self._seen: deque[_SeenMessage] = deque(maxlen=2 * WINDOW)
        self._highest: _SeenMessage | None = None
        self._previous_highest: _SeenMessage | None = (
            None  # the highest of the life before, and when the new one was noticed
        )
        self._restarted_ns = 0
        # When reboots were heard of that the other channel has told. Not a flag: a backlog is read one channel after the
        # other, and there may be several in it.
        self.reported_reboots_ns: deque[int] = deque(maxlen=_MAX_REPORTED)

    @property
    def is_known(self) -> bool:
        return self._highest is not None

    def classify(self, new: _SeenMessage) -> SessionVerdict:
        """Say what `new` is, without taking it in."""
        highest = self._highest
        if highest is None:
            return SessionVerdict.NEW
        if self._continues_previous(new, highest):
            return SessionVerdict.LATE
        if highest.reboot and not new.reboot:
            return SessionVerdict.NEW  # it has wrapped
        ahead = (new.session - highest.session) % MAX_SESSION
        behind = (highest.session - new.session) % MAX_SESSION
        if new.reboot and not highest.reboot:
            # Unless it is one of the last before the wrap.
            overtaken = new.session > highest.session and behind < WINDOW
            return self._classify_old(new, highest) if overtaken else SessionVerdict.REBOOT
        if new.reboot:
            return SessionVerdict.NEW if new.session > highest.session else self._classify_old(new, highest)
        verdict = (
            self._classify_old(new, highest) if behind < WINDOW and behind <= ahead else SessionVerdict.NEW
        )
        return (
            SessionVerdict.NEW if verdict is SessionVerdict.REBOOT else verdict
        )  # with flag 0 there is no sign of one

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
            return False  # it goes on in the new life just as well
        apart = (new.session - previous.session) % MAX_SESSION
        return min(apart, MAX_SESSION - apart) <= WINDOW

    def advance(self, new: _SeenMessage) -> None:
        self._highest = new
        self._seen.append(new)

    def remember(self, new: _SeenMessage) -> None:
        """Remember a late one, so that it is not late twice."""
        self._seen.append(new)

    def restart(self, new: _SeenMessage) -> bool:
        """Begin a new life; whether the other channel has told of it."""
        self._previous_highest, self._restarted_ns = self._highest, new.at_ns
        self._seen.clear()
        self.advance(new)
        was_reported = False
        while self.reported_reboots_ns and self.reported_reboots_ns[0] <= new.at_ns + REORDER_NS:
            self.reported_reboots_ns.popleft()
            was_reported = True
        return was_reported


class PeerSessions:
    """The session numbers heard of one peer: bounded, about 10 kB at most."""

    def __init__(self) -> None:
        self._unicast = _Channel()
        self._multicast = _Channel()

    def observe(
        self, session: int, reboot: bool, multicast: bool, digest: int, now_ns: int
    ) -> SessionVerdict:
        """Take in a message of the peer; `digest` is a checksum of its bytes. REBOOT comes once for each reboot."""
        if session == 0:
            return SessionVerdict.NEW  # its sender does not count
        channel, other = (self._multicast, self._unicast) if multicast else (self._unicast, self._multicast)
        new = _SeenMessage(session, reboot, digest, now_ns)
        verdict = channel.classify(new)
        if verdict is SessionVerdict.NEW:
            channel.advance(new)
        elif verdict is SessionVerdict.LATE:
            channel.remember(new)
        elif verdict is SessionVerdict.REBOOT:
            if channel.restart(new):
                return SessionVerdict.NEW
            if other.is_known:
                other.reported_reboots_ns.append(now_ns)
        return verdict
