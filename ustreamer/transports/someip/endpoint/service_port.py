# SPDX-License-Identifier: Apache-2.0
"""A port of offered services that do not use the port of their endpoint: a header names no instance, the port does.

In: requests that arrive here. Out: events and responses of these services. Service discovery, subscribers and the
receiving thread are those of the endpoint.
"""

import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.inbound import Inbound
from ustreamer.transports.someip.endpoint.listeners import Listeners
from ustreamer.transports.someip.endpoint.outbound import Outbound
from ustreamer.transports.someip.io.adaptive_reader import make_reader
from ustreamer.transports.someip.io.poller import Poller
from ustreamer.transports.someip.io.receive_times import receive_times_of
from ustreamer.transports.someip.io.recvmmsg import DatagramBatch
from ustreamer.transports.someip.io.tcp_connection import open_listener
from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks, TcpConnections
from ustreamer.transports.someip.io.udp import bind_udp, report_unreachable
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.rpc.exchange import Exchange
from ustreamer.uprotocol.ustatus import UStatusError


class LoopPort(msgspec.Struct, frozen=True):
    """What a port needs of the receive loop."""

    wake: Callable[[], None]
    wake_by: Callable[[int], None]


# [impl->RPC-49, RPC-648, SD-850, SD-858, SD-758, SD-797, SD-782]
class ServicePort:
    """One UDP port and, if a service here uses TCP, one TCP port. Threads as for the endpoint."""

    def __init__(
        self,
        port: int,
        config: SomeipEndpoint,
        context: EndpointContext,
        listeners: Listeners,
        loop: LoopPort,
        callbacks: TcpCallbacks,
    ) -> None:
        """`callbacks` are those of the endpoint; the messages over TCP are read here."""
        services = [each for each in config.services if each.port == port]
        self.providers = frozenset(
            each.provider_uuri.with_authority(context.authority)
            for each in services
            if each.provider_uuri is not None
        )
        self.exchange = Exchange(
            config, context.authority, context.clock, context.sibling_authorities, port=port
        )
        self._port, self._bind = port, config.bind
        self._uses_tcp = any(each.uses_protocol("tcp") for each in services)
        self._tcp_port = next((each.port_tcp for each in services if each.port_tcp is not None), port)
        self._receive_times = config.receive_times
        self._receive_buffer, self._marks = config.receive_buffer, config.socket_marks
        self._clock, self._loop = context.clock, loop
        self._inbound = Inbound(
            context.name, self.exchange, listeners, config.peer_streamer_addresses, self._send_best_effort
        )
        self.connections = TcpConnections(
            config.tcp,
            context.clock.monotonic_ns,
            random.random,
            self.exchange.services.is_known_host,
            callbacks._replace(on_messages=self._inbound.on_stream, on_refused=self._inbound.count_refusal),
        )
        self.outbound = Outbound(
            config.tp,
            self.connections,
            context.clock,
            loop.wake_by,
            self.exchange.services.no_event_error,
            context.sibling_authorities,
            refuses_oversized=config.oversized == "refuse",
        )
        self._socket: socket.socket | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def problems(self) -> Iterable[str]:
        """Reasons why `open` would fail."""
        try:
            bind_udp((self._bind, self._port), self._marks).close()
        except UStatusError as error:
            yield f"services: port: {error.message}"
        if self._uses_tcp:
            try:
                open_listener((self._bind, self._tcp_port)).close()
            except OSError as error:
                yield f"services: port_tcp: cannot listen at TCP {self._bind}:{self._tcp_port}: {error.strerror}"

    def open(
        self,
        poller: Poller,
        shared_batch: Callable[[], DatagramBatch | None],
        on_icmp: Callable[[socket.socket], None],
    ) -> None:
        """Bind and receive; `on_icmp` reads the ICMP errors of the socket. Raises UStatusError(UNAVAILABLE)."""
        opened = self._socket = bind_udp((self._bind, self._port), self._marks)
        report_unreachable(opened)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self.outbound.open(opened)
        read = make_reader(
            opened,
            None,
            shared_batch,
            self._inbound.on_batch,
            self._inbound.on_datagram,
            self._clock.monotonic_ns,
            lambda: on_icmp(opened),
            receive_times_of(opened, self._clock) if self._receive_times else None,
        )
        poller.add(opened.fileno(), read)
        self.connections.open(self._bind, poller, self._loop.wake, self._marks)
        if self._uses_tcp:
            self.connections.listen(self._tcp_port)

    def close(self, timeout_s: float) -> None:
        """Send what waits, fail the open requests, close. Idempotent."""
        if self._socket is not None:
            self.outbound.flush(timeout_s)
            for datagram, address in self.exchange.abort_requests():
                self._send_best_effort(datagram, address)
        self.outbound.close()
        self.connections.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- the receiving thread -----------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        parts = (self.exchange, self.outbound, self.connections)
        return min((due for part in parts if (due := part.next_deadline_ns) is not None), default=None)

    def on_tick(self) -> None:
        """Run all due work."""
        for datagram, address in self.exchange.expire_requests().datagrams:
            self._send_best_effort(datagram, address)
        for each in self.exchange.expire_segments():
            self._inbound.count_refusal(each.reason, each.peer, each.detail)
        self.outbound.on_tick()
        self.connections.on_timer()

    def _send_best_effort(self, datagram: bytes, address: Address) -> None:
        try:
            self.outbound.send_raw(datagram, address)
        except UStatusError:
            return  # the client repeats its request

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        return self._inbound.refused_by_host.counts()

    def statistics(self) -> Mapping[str, int]:
        """Counters as those of the endpoint."""
        return {
            **self._inbound.statistics(),
            **self.exchange.statistics(),
            **self.outbound.statistics(),
            **self.connections.statistics(),
            **self._inbound.refusals(),
        }


class InboundStreams:
    """The TCP connections of an endpoint and of its service ports, for subscriptions of ECUs."""

    def __init__(self, connections: Sequence[TcpConnections]) -> None:
        self._connections = connections

    def is_connected(self, address: TcpAddress, /) -> bool:
        """Whether `address` has an open connection. Receiving thread."""
        if any(each.is_connected(address) for each in self._connections):
            return True
        # The client's connection is open before it is accepted here, and its Subscribe may be read first.
        for each in self._connections:
            each.accept_waiting()
        return any(each.is_connected(address) for each in self._connections)

    def exempt_from_idle(self, address: TcpAddress, /) -> None:
        for each in self._connections:
            if each.is_connected(address):
                each.exempt_from_idle(address)

    def drop_host(self, host: str, /) -> None:
        """Close all connections with `host`, which rebooted or whose link is lost."""
        for each in self._connections:
            each.drop_host(host)
