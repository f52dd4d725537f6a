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
_MOST_ANNOUNCED: Final = 8


class Heard(StrEnum):
    """What a message's session number says of it."""

    NEW = "new"
    REBOOT = "reboot"
    LATE = "late"
    DUPLICATE = "duplicate"


def numbered(count: int) -> tuple[int, bool]:
    """Session number and reboot flag of the message with this `count`, from 1, on its channel."""
    return (count - 1) % MAX_SESSION + 1, count <= MAX_SESSION


class _Seen(NamedTuple):
    session: int
    reboot: bool
    digest: int
    at_ns: int


class _Channel:
    """The multicasts or the unicasts of one peer."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=2 * WINDOW)
        self._highest: _Seen | None = None
        self._before: _Seen | None = None  # the highest of the life before, and when the new one was noticed
        self._reborn_ns = 0
        # When reboots were heard of that the other channel has told. Not a flag: a backlog is read one channel after the
        # other, and there may be several in it.
        self.announced: deque[int] = deque(maxlen=_MOST_ANNOUNCED)

    @property
    def known(self) -> bool:
        return self._highest is not None

    def judge(self, new: _Seen) -> Heard:
        """Say what `new` is, without taking it in."""
        highest = self._highest
        if highest is None:
            return Heard.NEW
        if self._goes_on_before(new, highest):
            return Heard.LATE
        if highest.reboot and not new.reboot:
            return Heard.NEW  # it has wrapped
        ahead = (new.session - highest.session) % MAX_SESSION
        behind = (highest.session - new.session) % MAX_SESSION
        if new.reboot and not highest.reboot:
            # Unless it is one of the last before the wrap.
            overtaken = new.session > highest.session and behind < WINDOW
            return self._old(new, highest) if overtaken else Heard.REBOOT
        if new.reboot:
            return Heard.NEW if new.session > highest.session else self._old(new, highest)
        verdict = self._old(new, highest) if behind < WINDOW and behind <= ahead else Heard.NEW
        return Heard.NEW if verdict is Heard.REBOOT else verdict  # with flag 0 there is no sign of one

    def _old(self, new: _Seen, highest: _Seen) -> Heard:
        for seen in reversed(self._seen):
            if (seen.session, seen.reboot) == (new.session, new.reboot):
                again = seen.digest == new.digest and new.at_ns - seen.at_ns <= REORDER_NS
                return Heard.DUPLICATE if again else Heard.REBOOT
        behind = (highest.session - new.session) % MAX_SESSION
        late = behind < WINDOW and new.at_ns - highest.at_ns <= REORDER_NS
        return Heard.LATE if late else Heard.REBOOT

    def _goes_on_before(self, new: _Seen, highest: _Seen) -> bool:
        before = self._before
        if before is None or new.at_ns - self._reborn_ns > REORDER_NS or new.reboot != before.reboot:
            return False
        if new.reboot == highest.reboot and abs(new.session - highest.session) <= WINDOW:
            return False  # it goes on in the new life just as well
        apart = (new.session - before.session) % MAX_SESSION
        return min(apart, MAX_SESSION - apart) <= WINDOW

    def advance(self, new: _Seen) -> None:
        self._highest = new
        self._seen.append(new)

    def note(self, new: _Seen) -> None:
        """Remember a late one, so that it is not late twice."""
        self._seen.append(new)

    def restart(self, new: _Seen) -> bool:
        """Begin a new life; whether the other channel has told of it."""
        self._before, self._reborn_ns = self._highest, new.at_ns
        self._seen.clear()
        self.advance(new)
        told = False
        while self.announced and self.announced[0] <= new.at_ns + REORDER_NS:
            self.announced.popleft()
            told = True
        return told


class PeerSessions:
    """The session numbers heard of one peer: bounded, about 10 kB at most."""

    def __init__(self) -> None:
        self._unicast = _Channel()
        self._multicast = _Channel()

    def heard(self, session: int, reboot: bool, multicast: bool, digest: int, now_ns: int) -> Heard:
        """Take in a message of the peer; `digest` is a checksum of its bytes. REBOOT comes once for each reboot."""
        if session == 0:
            return Heard.NEW  # its sender does not count
        channel, other = (self._multicast, self._unicast) if multicast else (self._unicast, self._multicast)
        new = _Seen(session, reboot, digest, now_ns)
        verdict = channel.judge(new)
        if verdict is Heard.NEW:
            channel.advance(new)
        elif verdict is Heard.LATE:
            channel.note(new)
        elif verdict is Heard.REBOOT:
            if channel.restart(new):
                return Heard.NEW
            if other.known:
                other.announced.append(now_ns)
        return verdict
