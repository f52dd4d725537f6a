# SPDX-License-Identifier: Apache-2.0
"""When to call the uSubscription of another device about which topic. Decides; does not send, and is given the time.

What is to be true there is stated for each topic once (`require`) and holds until it is stated otherwise. It is called
for until it is answered: again when no answer came in 5 minutes, after a pause when the call was not delivered, at once
when the link comes up, and never while the link is known to be down.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import msgspec

from ustreamer.core.base.links import Link
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import Tracked
from ustreamer_usubscription.store.deadlines import Deadlines

TIMEOUT_MS: Final = 300_000
"""[impl->req~usubscription-remote-max-timeout~1] [impl->LIF-16] At least and at most 5 minutes, so exactly these (X-1)."""

WINDOW: Final = 64
"""Calls under way to one device at most: after a restart there may be as many to make as there are remote topics."""

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 60_000

DOUBTS_AT_ONCE: Final = 16
DOUBTS_PAUSE_MS: Final = 10_000
"""How often a topic is asked about because its device says something else: so often in a row, and then once in this time.

An ECU that goes and comes is two doubts. Without this bound one that does nothing else was asked 2 to 4 times a second for each
of its topics, each answer a commit to the disk.
"""

_NS_PER_MS: Final = 1_000_000


class Method(IntEnum):
    """What is called; the numbers are those of both versions of the interface."""

    SUBSCRIBE = 1
    UNSUBSCRIBE = 2


class Errand(msgspec.Struct, eq=False):
    """What the uSubscription of a topic's device is to be told, and how far that has come.

    `wish` is the subscription that is wanted there, None for an Unsubscribe; `asked` is what the last call said. `open`
    is the call under way; `due_ns` is when it times out or, if there is none, when the next one is to be made.
    """

    topic: UUri
    wish: Tracked | None
    asked: Tracked | None = None
    open: UUID | None = None
    due_ns: int | None = None
    failures: int = 0
    done: bool = False
    doubts: int = 0
    doubted_ns: int | None = None
    doubts_paid_ns: int = 0

    @property
    def method(self) -> Method:
        return Method.UNSUBSCRIBE if self.wish is None else Method.SUBSCRIBE


class _Peer:
    """One device: its errands, and which of them are ready to be called, in order."""

    def __init__(self, times_up: int) -> None:
        self.errands: dict[UUri, Errand] = {}
        # Not a dict, whose first key takes O(n) to find once n have gone.
        self.ready: OrderedDict[UUri, None] = OrderedDict()
        self.open = 0
        self.times_up = times_up


class Calls:
    """The errands to all devices. Belongs to one thread, but for `is_open`."""

    def __init__(self, link_of: Callable[[str], Link], refresh_ms: int = 0) -> None:
        """`link_of` tells of an authority whether it can be reached; `refresh_ms` later an answer is confirmed, 0: never."""
        self._link_of = link_of
        self._refresh_ms = refresh_ms
        self._peers: dict[str, _Peer] = {}
        self._callable: dict[str, None] = {}  # authorities of which something may be ready to be called
        self._turned = False  # whether a link has changed since it was last looked
        self._open: dict[UUID, Errand] = {}
        self._deadlines: Deadlines[UUri] = Deadlines(self._due_of, self._all_due)
        self.counts: Counter[str] = Counter()

    # --- what is to be true -------------------------------------------------------------------------------------------

    def require(self, topic: UUri, wish: Tracked | None, *, again: bool = False) -> None:
        """Have `topic` subscribed as `wish` says, or (None) unsubscribed; `again` even if that was granted before.

        A call of the other kind that is under way is given up: the new one comes after it and outdoes it. One of the same
        kind is waited for, then it shows whether what it asked for is still what is wanted.
        [impl->LIF-20] A changed wish is called for like a new one.
        """
        peer = self._peer(topic.authority_name)
        errand = peer.errands.get(topic)
        if errand is None or (errand.wish is None) is not (wish is None):
            self.release(topic)
            peer = self._peer(topic.authority_name)
            errand = peer.errands[topic] = Errand(topic, wish)
            self._make_ready(errand)
            return
        errand.wish = wish
        if errand.done and (again or errand.asked != wish):
            self._make_ready(errand)

    def release(self, topic: UUri) -> None:
        """Nothing is to be said about `topic` any more; an answer to a call under way is not waited for.

        [impl->req~usubscription-remote-retry-indefinitely~1] [impl->LIF-17] That is what ends retrying.
        """
        peer = self._peers.get(topic.authority_name)
        if peer is None or (errand := peer.errands.pop(topic, None)) is None:
            return
        self._close(errand)
        peer.ready.pop(topic, None)
        if not peer.errands:
            del self._peers[topic.authority_name]

    # --- answers ------------------------------------------------------------------------------------------------------

    def is_open(self, reqid: UUID) -> bool:
        """Whether this answers a call that is under way. Safe from any thread."""
        return reqid in self._open

    def answered(self, reqid: UUID, authority: str) -> Errand | None:
        """The errand whose call `reqid` was, which is not under way any more.

        None if nobody waits for this answer, or not from `authority`: its own uSubscription speaks for a topic.
        """
        errand = self._open.get(reqid)
        if errand is None or errand.topic.authority_name != authority:
            return None
        self._close(errand)
        return errand

    def succeeded(
        self, errand: Errand, now_ns: int, jitter: float, *, pending: bool = False, news: bool = False
    ) -> None:
        """The answer to the last call has been taken in.

        If another is wanted by now, that is called for at once; else the same once more some day, sooner by up to half of
        the time for `jitter` (0 to 1): a device may lose what it granted without a link that tells of it. `pending` says that
        it waits for another device in turn; what comes of that is asked after the time that a call has. `news`: it says
        something else than the one before, so whatever doubt there was of that was right.
        """
        if not self._is_current(errand):
            return
        errand.failures = 0
        if news:
            errand.doubts = 0
        errand.done = errand.asked == errand.wish
        if not errand.done:
            self._make_ready(errand)
        elif refresh_ms := TIMEOUT_MS if pending else self._refresh_ms:
            self._set_due(errand, now_ns + _earlier(refresh_ms, jitter))

    def failed(self, errand: Errand, now_ns: int, jitter: float, least_ms: int = 0) -> None:
        """The last call was not delivered, or what it led to could not be kept: call again after a pause, of `least_ms` or more.

        The pause doubles up to a minute; `jitter` (0 to 1) takes up to half of it off, so that a fleet which lost its
        cloud does not come back all at once.
        """
        if not self._is_current(errand):
            return
        self.counts["remote_retries"] += 1
        pause_ms = min(FIRST_PAUSE_MS << min(errand.failures, 16), LONGEST_PAUSE_MS)
        errand.failures += 1
        errand.done = False
        self._close(errand)
        self._set_due(errand, now_ns + max(_earlier(pause_ms, jitter), least_ms * _NS_PER_MS))

    def doubt(self, topic: UUri, now_ns: int, jitter: float, *, awaited: bool = False) -> None:
        """The other side says something else than it answered: ask again, though not at once.

        The pause is that of `failed`, and doubles as long as doubts come that are wrong: one who contradicts every answer of
        his is not asked once a second for ever, and an ECU that reboots once a minute is believed each time. What is `awaited`, an
        answer to come after SUBSCRIBE_PENDING, is asked for at once the first time: an ECU is subscribed within milliseconds.
        Right or wrong, there are no more of them than DOUBTS_AT_ONCE and DOUBTS_PAUSE_MS allow.
        """
        errand = self._find(topic)
        if errand is None or not errand.done:
            return
        if errand.doubted_ns is None or now_ns - errand.doubted_ns > 2 * LONGEST_PAUSE_MS * _NS_PER_MS:
            errand.doubts = 0
        errand.failures, errand.doubted_ns = errand.doubts, now_ns
        errand.doubts += 1
        least_ms = _price(errand, now_ns)
        if awaited and errand.doubts == 1 and not least_ms:
            self._make_ready(errand)
        else:
            self.failed(errand, now_ns, jitter, least_ms)

    def awaits(self, topic: UUri) -> bool:
        """Whether a call about `topic` is under way."""
        errand = self._find(topic)
        return errand is not None and errand.open is not None

    # --- calling ------------------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> Iterator[Errand]:
        """The errands to call for now; each must be passed to `called` before the next is taken.

        [impl->LIF-18] None to a device whose link is down, and all anew to one whose link has come up: what was on its
        way may be lost, and a device that was gone may have forgotten what it had granted.
        """
        for topic in self._deadlines.pop_before(now_ns + 1):
            errand = self._peers[topic.authority_name].errands[topic]
            self.counts["remote_timeouts"] += errand.open is not None
            self._make_ready(errand)
        if self._turned:
            self._turned = False  # before the look: what changes meanwhile is looked at again
            self._look_at_links()
        for authority in list(self._callable):
            del self._callable[authority]
            peer = self._peers.get(authority)
            while peer and peer.ready and peer.open < WINDOW and self._link_of(authority).up:
                topic, _ = peer.ready.popitem(last=False)
                yield peer.errands[topic]

    def link_turned(self) -> None:
        """Some link has come up or was lost. Safe from any thread; `due` is to be asked then."""
        self._turned = True

    def _look_at_links(self) -> None:
        for authority, peer in self._peers.items():
            link = self._link_of(authority)
            if link.times_up != peer.times_up:
                peer.times_up = link.times_up
                for errand in peer.errands.values():
                    errand.failures = 0
                    self._make_ready(errand)
            if peer.ready:
                self._callable[authority] = None

    def called(self, errand: Errand, reqid: UUID, now_ns: int) -> None:
        """The call for `errand` is on its way as `reqid`. To be said before it is sent: the answer may be there at once."""
        self.counts["remote_calls"] += 1
        errand.open, errand.asked, errand.done = reqid, errand.wish, False
        self._open[reqid] = errand
        self._peers[errand.topic.authority_name].open += 1
        self._set_due(errand, now_ns + TIMEOUT_MS * _NS_PER_MS)

    def next_ns(self) -> int | None:
        """When something is due by the clock; answers and links come by themselves."""
        return self._deadlines.next()

    @property
    def open(self) -> int:
        """Calls under way."""
        return len(self._open)

    # --- one errand ---------------------------------------------------------------------------------------------------

    def _peer(self, authority: str) -> _Peer:
        peer = self._peers.get(authority)
        if peer is None:
            peer = self._peers[authority] = _Peer(self._link_of(authority).times_up)
        return peer

    def _find(self, topic: UUri) -> Errand | None:
        peer = self._peers.get(topic.authority_name)
        return None if peer is None else peer.errands.get(topic)

    def _is_current(self, errand: Errand) -> bool:
        return self._find(errand.topic) is errand

    def _make_ready(self, errand: Errand) -> None:
        self._close(errand)
        errand.done = False
        authority = errand.topic.authority_name
        self._peers[authority].ready[errand.topic] = None
        self._callable[authority] = None

    def _close(self, errand: Errand) -> None:
        """Wait for nothing: neither for an answer nor for a time."""
        if errand.open is not None:
            authority = errand.topic.authority_name
            del self._open[errand.open]
            self._peers[authority].open -= 1
            self._callable[authority] = None  # there is room for another
            errand.open = None
        errand.due_ns = None

    def _set_due(self, errand: Errand, due_ns: int) -> None:
        errand.due_ns = due_ns
        self._deadlines.add(due_ns, errand.topic)

    def _due_of(self, topic: UUri) -> int | None:
        errand = self._find(topic)
        return None if errand is None else errand.due_ns

    def _all_due(self) -> Iterator[tuple[int, UUri]]:
        for peer in self._peers.values():
            for topic, errand in peer.errands.items():
                if errand.due_ns is not None:
                    yield errand.due_ns, topic


def _price(errand: Errand, now_ns: int) -> int:
    """How many ms one more doubt about this topic has to wait; it is one more from now on."""
    pause_ns = DOUBTS_PAUSE_MS * _NS_PER_MS
    paid_ns = max(errand.doubts_paid_ns, now_ns)
    errand.doubts_paid_ns = paid_ns + pause_ns
    return max(0, paid_ns - now_ns - (DOUBTS_AT_ONCE - 1) * pause_ns) // _NS_PER_MS


def _earlier(ms: int, jitter: float) -> int:
    """So many ms in ns, or up to half as many."""
    return round(ms * (1 - jitter / 2) * _NS_PER_MS)
