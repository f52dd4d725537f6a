# SPDX-License-Identifier: Apache-2.0
"""The peers of service discovery: a bounded table with session numbers and rate limits."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.sessions import PeerSessions, session_and_reboot_flag

_NS: Final = 1_000_000_000


MAX_PORTS_PER_HOST: Final = 16
"""Maximum known ports per host. A host may send from any port, so the rate limit applies to the host."""


class HostRateLimiter:
    """The rate limit of a host over all its ports, and its known ports, least recently active first."""

    def __init__(self, entries: float, now_ns: int) -> None:
        self.peers: OrderedDict[Address, None] = OrderedDict()
        self._tokens = entries
        self._refilled_ns = now_ns

    def allow(self, entries: int, rate: int, burst: int, now_ns: int) -> bool:
        """Consume tokens for `entries`, refilled with `rate` per s up to `burst`; False if too few are left."""
        earned = (now_ns - self._refilled_ns) * rate / _NS
        self._tokens = min(float(burst), self._tokens + max(earned, 0.0))
        self._refilled_ns = now_ns
        if self._tokens < entries:
            return False
        self._tokens -= entries
        return True


class SdPeer:
    """One peer: its received session numbers and the count of messages sent to it."""

    def __init__(self, address: Address, limiter: HostRateLimiter, sent: int) -> None:
        self.address = address
        self.limiter = limiter
        self.sessions = PeerSessions()
        self.sent = sent
        self.allow = limiter.allow


class SdPeers:
    """At most `limit` peers. A new peer replaces the least recently active one that is not `in_use`.

    A new port above MAX_PORTS_PER_HOST replaces another port of the same host.
    """

    def __init__(self, limit: int, burst: int, in_use: Callable[[Address], bool]) -> None:
        self._limit = limit
        self._burst = burst
        self._in_use = in_use
        self._peers: OrderedDict[Address, SdPeer] = OrderedDict()
        self._limiters: dict[str, HostRateLimiter] = {}
        # An evicted peer still remembers the own session numbers. A new peer therefore starts above all numbers sent to
        # evicted
        # peers; a smaller number would look like a reboot to a returning peer.
        self._evicted_sent = 0

    def on_message(self, address: Address, now_ns: int) -> SdPeer | None:
        """The peer at `address`; None if the table is full."""
        peer = self._peers.get(address)
        if peer is None:
            peer = self._add_peer(address, now_ns)
        else:
            self._peers.move_to_end(address)
            peer.limiter.peers.move_to_end(address)
        return peer

    def _add_peer(self, address: Address, now_ns: int) -> SdPeer | None:
        limiter = self._limiters.get(address[0])
        if limiter is not None and len(limiter.peers) >= MAX_PORTS_PER_HOST:
            if not self._evict_one(limiter.peers):
                return None
        elif len(self._peers) >= self._limit and not self._evict_one(self._peers):
            return None
        # After the eviction: the evicted peer may be the last one of this host, and its rate limit must stay.
        limiter = self._limiters.setdefault(address[0], limiter or HostRateLimiter(self._burst, now_ns))
        limiter.peers[address] = None
        peer = self._peers[address] = SdPeer(address, limiter, self._evicted_sent)
        return peer

    def _evict_one(self, candidates: Iterable[Address]) -> bool:
        for address in candidates:
            if not self._in_use(address):
                peer = self._peers.pop(address)
                self._evicted_sent = max(self._evicted_sent, peer.sent)
                del peer.limiter.peers[address]
                if not peer.limiter.peers:
                    del self._limiters[address[0]]
                return True
        return False

    # [impl->SD-765, SD-813]
    def next_session(self, address: Address) -> tuple[int, bool]:
        """Session number and reboot flag of the next unicast to `address`."""
        peer = self._peers.get(address)
        if peer is None:  # evicted since the peer's request
            self._evicted_sent += 1
            return session_and_reboot_flag(self._evicted_sent)
        peer.sent += 1
        return session_and_reboot_flag(peer.sent)

    def __len__(self) -> int:
        return len(self._peers)
