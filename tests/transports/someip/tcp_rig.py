# SPDX-License-Identifier: Apache-2.0
"""The rig of the TCP tests: `TcpConnections` on real sockets with a thread of their own, and plain peer sockets."""

import os
import socket
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any, Final

from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.io.poller import Poller
from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks, TcpConnections
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import MalformedMessage, MessageType, SomeIpMessage, encode
from ustreamer.transports.someip.protocol.stream import StreamReader
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig

WITHIN_S: Final = 30.0  # a generous limit: only a failing test waits for it
HOME: Final = ip_network("127.0.0.0/24")


def numbered(number: int, size: int = 0) -> bytes:
    """A message whose payload starts with its number."""
    payload = number.to_bytes(4, "big") + bytes(size)
    return encode(SomeIpMessage(0x1234, 0x8001, 0, 1, 1, MessageType.NOTIFICATION, 0, payload))


def number_of(message: SomeIpMessage) -> int:
    return int.from_bytes(message.payload[:4], "big")


class TcpRig:
    """Connections with their receiving thread, and all callbacks that they made."""

    def __init__(self, *, now_ns: Callable[[], int] = time.monotonic_ns, **limits: Any) -> None:
        self._now_ns = now_ns
        self._sockets: list[socket.socket] = []
        self.received: list[tuple[SomeIpMessage, TcpAddress]] = []
        self.malformed: list[MalformedMessage] = []
        self.refused: list[str] = []
        self.opened_routes: list[Hashable] = []
        self.connects: list[tuple[TcpAddress, bool]] = []
        self.disconnects: list[tuple[TcpAddress, bool]] = []
        settings = {"retry_first_ms": 2, "retry_max_ms": 20} | limits
        self.connections = TcpConnections(
            TcpConfig(**settings),
            now_ns,
            lambda: 0.5,
            lambda host: ip_address(host) in HOME,
            TcpCallbacks(
                self._on_messages,
                self._on_refused,
                self.opened_routes.append,
                self._on_connected,
                self._on_disconnected,
            ),
        )
        self.answer: Callable[[SomeIpMessage, TcpAddress], None] = lambda message, peer: None
        self._poller = Poller()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller.add(self._wake_fd, self._on_wake)
        self._stopping = False
        self.failure: BaseException | None = None
        self.connections.open("127.0.0.1", self._poller, self.wake)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _on_wake(self, events: int) -> None:
        os.eventfd_read(self._wake_fd)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.connections.on_timer()
                due_ns = self.connections.next_deadline_ns
                timeout = None if due_ns is None else max(0, due_ns - self._now_ns()) / 1e9
                self._poller.wait(timeout)
        except BaseException as error:  # so that the test fails, and not only its thread
            self.failure = error
            raise

    def _on_messages(
        self, messages: list[SomeIpMessage], malformed: list[MalformedMessage], peer: TcpAddress
    ) -> None:
        self.malformed += malformed
        for message in messages:
            self.received.append((message, peer))
            self.answer(message, peer)

    def _on_refused(self, reason: str, peer: Address, detail: object) -> None:
        self.refused.append(str(reason))

    def _on_connected(self, peer: TcpAddress, *, inbound: bool) -> None:
        self.connects.append((peer, inbound))

    def _on_disconnected(self, peer: TcpAddress, *, inbound: bool) -> None:
        self.disconnects.append((peer, inbound))

    def statistic(self, name: str) -> int:
        return self.connections.statistics()[f"tcp_{name}"]

    def listen(self) -> TcpAddress:
        self.connections.listen(0)
        return TcpAddress("127.0.0.1", self.connections.port)

    def ecu(self, to: TcpAddress, host: str = "127.0.0.1", buffer: int = 0) -> socket.socket:
        """Connect to `address` as a client of the endpoint."""
        opened = socket.socket()
        self._sockets.append(opened)
        if buffer:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        opened.settimeout(WITHIN_S)
        opened.bind((host, 0))
        with suppress(ConnectionResetError):  # a refused peer is reset at once
            opened.connect(to)
        return opened

    def acknowledged(self, peer: TcpAddress) -> int:
        """Bytes in the kernel of `peer`, read or unread."""
        connection = self.connections._connection(peer)
        return connection._acked_offset() if connection is not None else 0

    def send_all(self, messages: list[bytes], to: TcpAddress) -> None:
        """Send in order, each message as soon as it is accepted."""
        for data in messages:
            self.send(data, to)

    def send(self, data: bytes, to: TcpAddress, **how: Any) -> None:
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                self.connections.send(data, to, **how)
            except RouteUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.0005)
            else:
                return

    def fill(self, to: TcpAddress, size: int) -> tuple[int, RouteUnavailable]:
        """Send numbered messages until one is refused; returns how many were accepted, and the refusal."""
        for number in range(1_000_000):
            try:
                self.connections.send(numbered(number, size), to)
            except RouteUnavailable as refused:
                return number, refused
        raise AssertionError("it takes everything")

    def stop(self) -> None:
        """Stop the receiving thread."""
        self._stopping = True
        self.wake()
        self._thread.join(WITHIN_S)

    def close(self) -> None:
        self.stop()
        self.connections.close()
        self.connections.close()
        self._poller.close()
        os.close(self._wake_fd)
        for each in self._sockets:
            each.close()
        assert self.failure is None


class RestartableService:
    """A TCP server on loopback, as on an ECU: it can be killed and restarted at the same port."""

    def __init__(self) -> None:
        self._accepted: list[socket.socket] = []
        self.listener = self._listening(0)
        self.address = TcpAddress(*self.listener.getsockname())

    @staticmethod
    def _listening(port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # less than the replay window
        listener.bind(("127.0.0.1", port))
        listener.settimeout(WITHIN_S)
        listener.listen()
        return listener

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        self._accepted.append(connection)
        connection.settimeout(WITHIN_S)
        return connection

    def kill(self) -> None:
        """Stop listening; the owners of accepted connections close them."""
        self.listener.close()

    def close(self) -> None:
        self.kill()
        for each in self._accepted:
            each.close()

    def restart(self) -> None:
        self.listener = self._listening(self.address.port)


def read_messages(connection: socket.socket, count: int) -> list[SomeIpMessage]:
    """Read until `count` whole messages are there."""
    reader = StreamReader()
    found: list[SomeIpMessage] = []
    while len(found) < count:
        data = connection.recv(65_536)
        assert data, f"the stream ended after {len(found)} of {count}"
        found += reader.feed(data).messages
    return found


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of the stream, or a reset."""
    try:
        return not connection.recv(1)
    except OSError:
        return True
