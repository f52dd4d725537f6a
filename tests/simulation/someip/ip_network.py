# SPDX-License-Identifier: Apache-2.0
"""A simulated IP network: hosts, cables, and the kernel's side of UDP sockets.

    send -> the cable: latency, loss, copies, reordering -> the receive buffer of each socket -> read
                                                             full: dropped and counted, as SO_MEMINFO reports it

Each host has one IPv4 address. All hosts are on one link, so a multicast reaches each host that has joined the group.
The code runs in timers, too, so it never blocks. Addresses are (host, port). Times are ns of virtual time.
"""

import errno
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.scheduler import NS_PER_MS, Scheduler

if TYPE_CHECKING:
    from tests.simulation.someip.tcp_stream import TcpListener, TcpSocket

IpAddress = tuple[str, int]
ANY_HOST: Final = "0.0.0.0"
DEFAULT_BUFFER: Final = 212_992
_OVERHEAD_BYTES: Final = 768
"""Bytes of a receive buffer that a datagram takes besides its data: the kernel's `truesize`."""
_MAX_DATAGRAM: Final = 65_507
_FIRST_EPHEMERAL: Final = 40_000


def error_of(code: int) -> OSError:
    """The OSError of an errno."""
    return OSError(code, os.strerror(code))


class Datagram(NamedTuple):
    """A datagram in a receive buffer: its data, its sender, and when the host received it."""

    data: bytes
    sender: IpAddress
    at_ns: int


class Quality(NamedTuple):
    """How bad the network is: shares of datagrams of UDP, 0 to 1."""

    loss: float = 0.0
    copies: float = 0.0
    late: float = 0.0
    """Datagrams that come up to 20 ms late, so that others overtake them."""


class UdpSocket:
    """The kernel's side of a UDP socket. `on_ready` runs when something can be read."""

    def __init__(self, host: "SimIpHost") -> None:
        self.host = host
        self.address: IpAddress | None = None
        self.peer: IpAddress | None = None
        """The only sender of a connected socket."""
        self.groups: set[str] = set()
        self.shares_address = False
        self.buffer_bytes = DEFAULT_BUFFER
        self.used_bytes = 0
        self.queue: deque[Datagram] = deque()
        self.dropped = 0
        self.reports_unreachable = False
        self.unreachable: deque[IpAddress] = deque()
        """Addresses without a socket that ICMP has reported: the error queue of the socket."""
        self.error = 0
        self.on_ready: Callable[[], None] = lambda: None

    def bind(self, address: IpAddress) -> None:
        host, port = address
        if host not in (self.host.ip, ANY_HOST) and not IPv4Address(host).is_multicast:
            raise error_of(errno.EADDRNOTAVAIL)
        taken = [each for each in self.host.udp if each.address == address]
        if port and not all(self.shares_address and each.shares_address for each in taken):
            raise error_of(errno.EADDRINUSE)
        self.address = host, port or self.host.free_port()
        self.host.udp.append(self)

    def send(self, data: bytes, to: IpAddress) -> None:
        """Send a datagram. Raises OSError as the kernel does: for a late ICMP error, a link that is down, a firewall."""
        if self.error:
            code, self.error = self.error, 0
            raise error_of(code)
        if len(data) > _MAX_DATAGRAM:
            raise error_of(errno.EMSGSIZE)
        self.host.check_sending()
        if self.address is None:
            self.bind((ANY_HOST, 0))
        assert self.address is not None
        self.host.network.transmit(data, (self.host.ip, self.address[1]), to)

    def accepts(self, sender: IpAddress, to: IpAddress) -> bool:
        if self.address is None or self.address[1] != to[1] or self.address[0] not in (to[0], ANY_HOST):
            return False
        if to[0] != self.host.ip and to[0] not in self.groups:
            return False
        return self.peer is None or self.peer == sender

    def put(self, datagram: Datagram) -> None:
        size = len(datagram.data) + _OVERHEAD_BYTES
        if self.used_bytes + size > self.buffer_bytes:
            self.dropped += 1
            return
        self.used_bytes += size
        self.queue.append(datagram)
        self.on_ready()

    def pop(self) -> Datagram:
        """Read a datagram, or the error of an earlier send. Raises OSError(EAGAIN) if there is none."""
        if self.error:
            code, self.error = self.error, 0
            raise error_of(code)
        if not self.queue:
            raise error_of(errno.EAGAIN)
        datagram = self.queue.popleft()
        self.used_bytes -= len(datagram.data) + _OVERHEAD_BYTES
        return datagram

    def on_unreachable(self, address: IpAddress) -> None:
        """ICMP reports that no socket is at an address to which this host has sent."""
        if self.reports_unreachable:
            self.unreachable.append(address)
        if self.reports_unreachable or self.peer is not None:
            self.error = errno.ECONNREFUSED
            self.on_ready()

    def pop_unreachable(self) -> IpAddress:
        if not self.unreachable:
            raise error_of(errno.EAGAIN)
        address = self.unreachable.popleft()
        if not self.unreachable:
            self.error = 0
        return address

    def close(self) -> None:
        if self in self.host.udp:
            self.host.udp.remove(self)
        self.on_ready = lambda: None


class SimIpHost:
    """A machine with one address. Its cable may be cut, its link may be down, its power may be off."""

    def __init__(self, network: "SimIpNetwork", ip: str) -> None:
        self.network = network
        self.ip = ip
        self.udp: list[UdpSocket] = []
        self.listeners: dict[int, TcpListener] = {}
        self.streams: dict[tuple[IpAddress, IpAddress], TcpSocket] = {}
        """TCP sockets by their own and their peer's address."""
        self.is_on = True
        self.is_link_up = True
        self.is_cut = False
        self.refusal = 0
        """The errno of each send while a firewall or a full queue refuses it; 0 is none."""
        self.on_link_change: Callable[[], None] = lambda: None
        self._next_port = _FIRST_EPHEMERAL

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def check_sending(self) -> None:
        if self.refusal:
            raise error_of(self.refusal)
        if not self.is_link_up:
            raise error_of(errno.ENETUNREACH)

    @property
    def is_reachable(self) -> bool:
        return self.is_on and self.is_link_up and not self.is_cut

    def set_link(self, *, up: bool) -> None:
        """The interface goes down or up: sends fail, and the kernel reports it to netlink sockets."""
        self.is_link_up = up
        self.on_link_change()

    def on_datagram(self, datagram: Datagram, to: IpAddress) -> None:
        found = [each for each in self.udp if each.accepts(datagram.sender, to)]
        if to[0] != self.ip:
            for each in found:
                each.put(datagram)
        elif found:
            # The kernel prefers the socket that is connected to the sender.
            max(found, key=lambda each: each.peer is not None).put(datagram)
        else:
            self.network.report_unreachable(datagram.sender, to)

    def on_icmp(self, own: IpAddress, about: IpAddress) -> None:
        """ICMP reports `about` to the socket that would receive from there."""
        found = [each for each in self.udp if each.accepts(about, own)]
        if found:
            max(found, key=lambda each: each.peer is not None).on_unreachable(about)

    def cut_power(self) -> None:
        """All sockets vanish, and no peer is informed."""
        self.is_on = False
        for each in list(self.udp):
            each.close()
        for stream in list(self.streams.values()):
            stream.vanish()
        self.listeners.clear()


class SimIpNetwork:
    """The link between all hosts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rng = Random(scheduler.rng.getrandbits(64))
        self.hosts: dict[str, SimIpHost] = {}
        self.quality = Quality()
        self.notes: Counter[str] = Counter()
        self._last_arrival_ns: dict[tuple[str, str], int] = {}

    def add_host(self, ip: str) -> SimIpHost:
        host = self.hosts[ip] = SimIpHost(self, ip)
        return host

    def latency_ns(self) -> int:
        return 60_000 + int(self.rng.random() * 200_000)

    def is_path_open(self, one: str, other: str) -> bool:
        return all(host in self.hosts and self.hosts[host].is_reachable for host in (one, other))

    def transmit(self, data: bytes, sender: IpAddress, to: IpAddress) -> None:
        """Put a datagram on the wire. From here on nothing is promised."""
        for host in self._receivers(sender[0], to[0]):
            for delay_ns in self._delays(sender[0], host.ip):
                self._call_later(delay_ns, data, sender, to, host)

    def _call_later(
        self, delay_ns: int, data: bytes, sender: IpAddress, to: IpAddress, host: SimIpHost
    ) -> None:
        def arrive() -> None:
            if self.is_path_open(sender[0], host.ip):
                host.on_datagram(Datagram(data, sender, self.scheduler.now_ns), to)

        self.scheduler.call_after(delay_ns, arrive)

    def _receivers(self, sender: str, to: str) -> Iterator[SimIpHost]:
        if not IPv4Address(to).is_multicast:
            if to in self.hosts and self.is_path_open(sender, to):
                yield self.hosts[to]
            else:
                self.notes["a datagram was sent to an unreachable host"] += 1
            return
        for host in self.hosts.values():  # the sender as well: the kernel loops its multicasts back
            if self.is_path_open(sender, host.ip) and any(to in each.groups for each in host.udp):
                yield host

    def _delays(self, sender: str, receiver: str) -> Iterator[int]:
        """The delay of each copy of a datagram; none if it is lost. Datagrams keep their order, unless one is late."""
        quality, rng, now_ns = self.quality, self.rng, self.scheduler.now_ns
        if quality.loss and rng.random() < quality.loss:
            self.notes["a datagram was lost"] += 1
            return
        number = 2 if quality.copies and rng.random() < quality.copies else 1
        for _ in range(number):
            if quality.late and rng.random() < quality.late:
                yield self.latency_ns() + rng.randrange(20 * NS_PER_MS)
                continue
            last_ns = self._last_arrival_ns.get((sender, receiver), 0)
            at_ns = max(now_ns + self.latency_ns(), last_ns + 1)
            self._last_arrival_ns[sender, receiver] = at_ns
            yield at_ns - now_ns

    def report_unreachable(self, sender: IpAddress, about: IpAddress) -> None:
        """ICMP: no socket is at `about`."""

        def arrive() -> None:
            if self.is_path_open(sender[0], about[0]):
                self.hosts[sender[0]].on_icmp(sender, about)

        self.scheduler.call_after(self.latency_ns(), arrive)

    def release(self) -> None:
        """Cut the references between all objects."""
        for host in self.hosts.values():
            for stream in list(host.streams.values()):
                stream.vanish()
            vars(host).clear()
        vars(self).clear()
