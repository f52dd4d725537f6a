# SPDX-License-Identifier: Apache-2.0
"""The peers of service discovery: as many as are allowed, each at the rate it is allowed, with their session numbers."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.sessions import PeerSessions, numbered

_NS: Final = 1_000_000_000


MAX_PORTS: Final = 16
"""From so many ports may one host speak. It may send from any, so what it is allowed is counted by host."""


class Host:
    """What a host is allowed, whatever ports it speaks from, and which of them are known, the one silent longest first."""

    def __init__(self, entries: float, now_ns: int) -> None:
        self.peers: OrderedDict[Address, None] = OrderedDict()
        self._entries = entries
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


class Peer:
    """One peer: what was heard of it, and how many messages it was sent."""

    def __init__(self, address: Address, host: Host, sent: int) -> None:
        self.address = address
        self.host = host
        self.sessions = PeerSessions()
        self.sent = sent
        self.may = host.may


class Peers:
    """At most `limit` peers. A newcomer takes the place of the one that was silent longest and is not `in_use`.

    One that is above MAX_PORTS of its host takes the place of another of them.
    """

    def __init__(self, limit: int, burst: int, in_use: Callable[[Address], bool]) -> None:
        self._limit = limit
        self._burst = burst
        self._in_use = in_use
        self._peers: OrderedDict[Address, Peer] = OrderedDict()
        self._hosts: dict[str, Host] = {}
        # A peer that is forgotten remembers our numbers. So newcomers get numbers above all that was ever forgotten, or
        # it would take us for rebooted when it is back.
        self._forgotten = 0

    def heard(self, address: Address, now_ns: int) -> Peer | None:
        """The peer at `address`; None if there is no room for it."""
        peer = self._peers.get(address)
        if peer is None:
            peer = self._new(address, now_ns)
        else:
            self._peers.move_to_end(address)
            peer.host.peers.move_to_end(address)
        return peer

    def _new(self, address: Address, now_ns: int) -> Peer | None:
        host = self._hosts.get(address[0])
        if host is not None and len(host.peers) >= MAX_PORTS:
            if not self._forget_one(host.peers):
                return None
        elif len(self._peers) >= self._limit and not self._forget_one(self._peers):
            return None
        # Only now: it may have been the last one of this host that was forgotten, and its allowance is still the same.
        host = self._hosts.setdefault(address[0], host or Host(self._burst, now_ns))
        host.peers[address] = None
        peer = self._peers[address] = Peer(address, host, self._forgotten)
        return peer

    def _forget_one(self, among: Iterable[Address]) -> bool:
        for address in among:
            if not self._in_use(address):
                peer = self._peers.pop(address)
                self._forgotten = max(self._forgotten, peer.sent)
                del peer.host.peers[address]
                if not peer.host.peers:
                    del self._hosts[address[0]]
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
