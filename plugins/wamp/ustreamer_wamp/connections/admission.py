# SPDX-License-Identifier: Apache-2.0
"""Admission: which connections get a place, and which one ends so that others have their share.

In: addresses at accept, the bytes that each connection holds unfinished, and its end. Out: a reason to refuse, or the
connections to end. No I/O; the time is passed in.

An address group is all connections of one address, of one IPv6 network of 64 bits, or of the Unix sockets. One host can
have any address of such a network.

    limit                        at the limit
    connections of a group       a further one is refused
    connects of a group per s    a further one is refused
    CPU time of a group's input  its connections are not read for a while
    connections                  the largest group ends its newest connection without a session, else an anonymous one;
                                 if no group is larger than that of the new connection, the new one is refused
    bytes held unfinished        the group that holds the most ends the connection that holds the most
"""

from collections import OrderedDict
from enum import IntEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple, Protocol

MAX_TRACKED_GROUPS: Final = 4096
"""Shares that are limited by rate; above, the one that is silent for the longest time starts again."""
CPU_BURST_NS: Final = 500_000_000
"""CPU time that the input of a group takes before its rate counts."""
_NS_PER_S: Final = 10**9
_NETWORK_BITS: Final = 64  # of an IPv6 address


class Precedence(IntEnum):
    """What a connection has reached. The lowest ends first."""

    UNFINISHED = 0
    ANONYMOUS = 1
    USER = 2


class Admitted(Protocol):
    """A connection as the admission sees it."""

    address_group: str

    @property
    def precedence(self) -> Precedence:
        """What it has reached."""

    def evict(self, reason: str) -> None:
        """End at once."""


class AdmissionLimits(NamedTuple):
    """The limits of the listeners of one section.

    `connects_per_s` is the rate of an address group, after `per_address_group` or `connects_per_s` connects at once.
    `cpu_percent` of one core is for the input of a group, except that of users.
    """

    connections: int = 1000
    per_address_group: int = 256
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


class _GroupRates(NamedTuple):
    """The connects of a group, and the CPU time of its input in ns."""

    connects: Allowance
    cpu_ns: Allowance


class Admission:
    """The connections that have a place, by group, with the bytes that each holds unfinished."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._groups: dict[str, dict[Admitted, int]] = {}
        self._rates: OrderedDict[str, _GroupRates] = OrderedDict()
        self._count = 0
        self.unfinished_bytes = 0

    def __len__(self) -> int:
        return self._count

    def may_connect(self, group: str, now_ns: int) -> bool:
        """Whether a group connects within its rate. Called once for each connection, before anything else."""
        # A Unix socket has no group: its file permissions decide who connects.
        return not group or self._rates_of(group, now_ns).connects.take(now_ns)

    def spend_cpu(self, group: str, spent_ns: int, now_ns: int) -> int:
        """Note the CPU time that input of a group took; for how long, in ns, none of it is to be read."""
        return self._rates_of(group, now_ns).cpu_ns.overdraw(spent_ns, now_ns) if group else 0

    def _rates_of(self, group: str, now_ns: int) -> _GroupRates:
        rates = self._rates.get(group)
        if rates is not None:
            self._rates.move_to_end(group)
            return rates
        limits = self._limits
        burst = max(limits.per_address_group, limits.connects_per_s)
        rates = self._rates[group] = _GroupRates(
            Allowance(burst, limits.connects_per_s, now_ns),
            Allowance(CPU_BURST_NS, limits.cpu_percent * _NS_PER_S // 100, now_ns),
        )
        if len(self._rates) > MAX_TRACKED_GROUPS:
            self._rates.popitem(last=False)
        return rates

    def has_room(self, group: str) -> bool:
        """Whether an address group may have one more connection."""
        return not group or len(self._groups.get(group, ())) < self._limits.per_address_group

    def is_full(self) -> bool:
        return self._count >= self._limits.connections

    def largest(self, group: str) -> Admitted | None:
        """The connection that gives its place to one more of `group`; None if no group is larger."""
        fewest = len(self._groups.get(group, ())) + 1
        for precedence in (Precedence.UNFINISHED, Precedence.ANONYMOUS):
            found, most = None, fewest
            for each in self._groups.values():
                if len(each) > most:
                    newest = next((one for one in reversed(each) if one.precedence <= precedence), None)
                    if newest is not None:
                        found, most = newest, len(each)
            if found is not None:
                return found
        return None

    def add(self, connection: Admitted) -> None:
        self._groups.setdefault(connection.address_group, {})[connection] = 0
        self._count += 1

    def remove(self, connection: Admitted) -> None:
        """Release its place and its bytes. May be repeated."""
        group = self._groups.get(connection.address_group, {})
        held = group.pop(connection, None)
        if held is None:
            return
        self._count -= 1
        self.unfinished_bytes -= held
        if not group:
            del self._groups[connection.address_group]

    def charge(self, connection: Admitted, size: int) -> Admitted | None:
        """Set the bytes that a connection holds unfinished; the one to end if all hold too many."""
        group = self._groups.get(connection.address_group, {})
        if connection not in group:  # it has no place: its end is near
            return None
        self.unfinished_bytes += size - group[connection]
        group[connection] = size
        if self.unfinished_bytes <= self._limits.unfinished_bytes:
            return None
        largest = max(self._groups.values(), key=lambda each: sum(each.values()))
        return max(largest, key=largest.__getitem__)


def address_group_of(address: str) -> str:
    """The address group: itself, or its network if it is an IPv6 address; "" for a Unix socket."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address) or parsed.is_loopback or parsed.is_link_local:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, _NETWORK_BITS), strict=False))
