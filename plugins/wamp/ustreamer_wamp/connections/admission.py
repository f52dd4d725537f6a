# SPDX-License-Identifier: Apache-2.0
"""Admission: which connections get a place, and which one ends so that others have their share.

In: addresses at accept, the bytes that each connection holds unfinished, and its end. Out: a reason to refuse, or the
connections to end. No I/O; the time is passed in.

A share is all connections of one address, of one IPv6 network of 64 bits, or of the Unix sockets. One host can have any
address of such a network.

    limit                        at the limit
    connections of a share       a further one is refused
    connects of a share per s    a further one is refused
    CPU time of a share's input  its connections are not read for a while
    connections                  the largest share ends its newest connection without a session, else an anonymous one;
                                 if no share is larger than that of the new connection, the new one is refused
    bytes held unfinished        the share that holds the most ends the connection that holds the most
"""

from collections import OrderedDict
from enum import IntEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple, Protocol

MAX_TRACKED_SHARES: Final = 4096
"""Shares that are limited by rate; above, the one that is silent for the longest time starts again."""
CPU_BURST_NS: Final = 500_000_000
"""CPU time that the input of a share takes before its rate counts."""
_NS_PER_S: Final = 10**9
_SHARE_BITS: Final = 64  # of an IPv6 address


class Precedence(IntEnum):
    """What a connection has reached. The lowest ends first."""

    UNFINISHED = 0
    ANONYMOUS = 1
    USER = 2


class Admitted(Protocol):
    """A connection as the admission sees it."""

    share: str

    @property
    def precedence(self) -> Precedence:
        """What it has reached."""

    def evict(self, reason: str) -> None:
        """End at once."""


class AdmissionLimits(NamedTuple):
    """The limits of the listeners of one section.

    `connects_per_s` is the rate of a share, after `per_share` or `connects_per_s` connects at once. `cpu_percent` of one
    core is for the input of a share, except that of users.
    """

    connections: int = 1000
    per_share: int = 256
    connects_per_s: int = 50
    unfinished_bytes: int = 32 << 20
    cpu_percent: int = 25


class Allowance:
    """A token bucket: `burst` at once, then `per_s`."""

    __slots__ = ("_burst", "_per_ns", "_since_ns", "_tokens")

    def __init__(self, burst: int, per_s: int, now_ns: int) -> None:
        self._burst = self._tokens = float(burst)
        self._per_ns = per_s / _NS_PER_S
        self._since_ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Take one token; False if there is none."""
        self._refill(now_ns)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def overdraw(self, tokens: int, now_ns: int) -> int:
        """Take tokens, of which some may be missing; the time in ns until they are there."""
        self._refill(now_ns)
        self._tokens -= tokens
        return max(0, round(-self._tokens / self._per_ns))

    def _refill(self, now_ns: int) -> None:
        self._tokens = min(self._burst, self._tokens + (now_ns - self._since_ns) * self._per_ns)
        self._since_ns = now_ns


class _ShareRates(NamedTuple):
    """The connects of a share, and the CPU time of its input in ns."""

    connects: Allowance
    cpu_ns: Allowance


class Admission:
    """The connections that have a place, by share, with the bytes that each holds unfinished."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._shares: dict[str, dict[Admitted, int]] = {}
        self._rates: OrderedDict[str, _ShareRates] = OrderedDict()
        self._count = 0
        self.unfinished_bytes = 0

    def __len__(self) -> int:
        return self._count

    def may_connect(self, share: str, now_ns: int) -> bool:
        """Whether a share connects within its rate. Called once for each connection, before anything else."""
        # A Unix socket has no share: its file permissions decide who connects.
        return not share or self._rates_of(share, now_ns).connects.take(now_ns)

    def spend_cpu(self, share: str, spent_ns: int, now_ns: int) -> int:
        """Note the CPU time that input of a share took; for how long, in ns, none of it is to be read."""
        return self._rates_of(share, now_ns).cpu_ns.overdraw(spent_ns, now_ns) if share else 0

    def _rates_of(self, share: str, now_ns: int) -> _ShareRates:
        rates = self._rates.get(share)
        if rates is not None:
            self._rates.move_to_end(share)
            return rates
        limits = self._limits
        burst = max(limits.per_share, limits.connects_per_s)
        rates = self._rates[share] = _ShareRates(
            Allowance(burst, limits.connects_per_s, now_ns),
            Allowance(CPU_BURST_NS, limits.cpu_percent * _NS_PER_S // 100, now_ns),
        )
        if len(self._rates) > MAX_TRACKED_SHARES:
            self._rates.popitem(last=False)
        return rates

    def has_share(self, share: str) -> bool:
        """Whether a share may have one more connection."""
        return not share or len(self._shares.get(share, ())) < self._limits.per_share

    def is_full(self) -> bool:
        return self._count >= self._limits.connections

    def largest(self, share: str) -> Admitted | None:
        """The connection that gives its place to one more of `share`; None if no share is larger."""
        fewest = len(self._shares.get(share, ())) + 1
        for precedence in (Precedence.UNFINISHED, Precedence.ANONYMOUS):
            found, most = None, fewest
            for each in self._shares.values():
                if len(each) > most:
                    newest = next((one for one in reversed(each) if one.precedence <= precedence), None)
                    if newest is not None:
                        found, most = newest, len(each)
            if found is not None:
                return found
        return None

    def add(self, connection: Admitted) -> None:
        self._shares.setdefault(connection.share, {})[connection] = 0
        self._count += 1

    def remove(self, connection: Admitted) -> None:
        """Release its place and its bytes. May be repeated."""
        share = self._shares.get(connection.share, {})
        held = share.pop(connection, None)
        if held is None:
            return
        self._count -= 1
        self.unfinished_bytes -= held
        if not share:
            del self._shares[connection.share]

    def charge(self, connection: Admitted, size: int) -> Admitted | None:
        """Set the bytes that a connection holds unfinished; the one to end if all hold too many."""
        share = self._shares.get(connection.share, {})
        if connection not in share:  # it has no place: its end is near
            return None
        self.unfinished_bytes += size - share[connection]
        share[connection] = size
        if self.unfinished_bytes <= self._limits.unfinished_bytes:
            return None
        largest = max(self._shares.values(), key=lambda each: sum(each.values()))
        return max(largest, key=largest.__getitem__)


def share_of(address: str) -> str:
    """The share of an address: itself, or its network if it is an IPv6 address; "" for a Unix socket."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address) or parsed.is_loopback or parsed.is_link_local:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, _SHARE_BITS), strict=False))
