# SPDX-License-Identifier: Apache-2.0
"""The peers of service discovery: as many as are allowed, each at the rate it is allowed, with their session numbers."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ustreamer.transports.someip.addresses import Address
from ustreamer.transports.someip.sd.sessions import PeerSessions, numbered

_NS: Final = 1_000_000_000


class Peer:
    """One peer: what was heard of it, and how many messages it was sent."""

    def __init__(self, address: Address, sent: int, entries: float, now_ns: int) -> None:
        self.address = address
        self.sessions = PeerSessions()
        self.sent = sent
        self._entries = entries  # of its allowance
        self._at_ns = now_ns

    def may(self, entries: int, rate: int, burst: int, now_ns: int) -> bool:
        """Whether `entries` more are within the allowance of `rate` per s and `burst` at once; if so they are taken."""
        earned = (now_ns - self._at_ns) * rate / _NS
        self._entries = min(float(burst), self._entries + max(earned, 0.0))
        self._at_ns = now_ns
        if self._entries < entries:
            return False
        self._entries -= entries
        return True


class Peers:
    """At most `limit` peers. A newcomer takes the place of the one that was silent longest and is not `in_use`."""

    def __init__(self, limit: int, burst: int, in_use: Callable[[Address], bool]) -> None:
        self._limit = limit
        self._burst = burst
        self._in_use = in_use
        self._peers: OrderedDict[Address, Peer] = OrderedDict()
        # A peer that is forgotten remembers our numbers. So newcomers get numbers above all that was ever forgotten, or
        # it would take us for rebooted when it is back.
        self._forgotten = 0

    def heard(self, address: Address, now_ns: int) -> Peer | None:
        """The peer at `address`; None if there is no room for it."""
        peer = self._peers.get(address)
        if peer is None:
            if len(self._peers) >= self._limit and not self._forget_one():
                return None
            peer = self._peers[address] = Peer(address, self._forgotten, self._burst, now_ns)
        self._peers.move_to_end(address)
        return peer

    def _forget_one(self) -> bool:
        for address, peer in self._peers.items():
            if not self._in_use(address):
                self._forgotten = max(self._forgotten, peer.sent)
                del self._peers[address]
                return True
        return False

    def number(self, address: Address) -> tuple[int, bool]:
        """Session number and reboot flag of the next unicast to `address`."""
        peer = self._peers.get(address)
        if peer is None:  # forgotten since it asked
            self._forgotten += 1
            return numbered(self._forgotten)
        peer.sent += 1
        return numbered(peer.sent)

    def __len__(self) -> int:
        return len(self._peers)
