# SPDX-License-Identifier: Apache-2.0
"""Sends messages into the networks of a configuration from outside, as their nodes do: for tools that replay traffic.

In: a configuration and messages. Out: the same bytes on the networks as from the applications and ECUs, which a running
streamer of this configuration receives. Zenoh networks, and the events of SOME/IP services with a fixed `remote`.
"""

import re
import socket
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Final, Self

import msgspec

from ustreamer.core.routing.router import AuthorityTable
from ustreamer.host.runtime import process
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.protocol.addresses import open_socket, parse_address
from ustreamer.transports.someip.protocol.codec import (
    MessageType,
    ReturnCode,
    SomeIpMessage,
    encode,
    next_session,
)
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol import UCode, UMessage, UPayloadFormat, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uuri import ANY

_CONNECT_NS: Final = 10_000_000_000
_QUIET_NS: Final = 2_000_000_000
_SETTLE_NS: Final = 30_000_000_000
_ANY_HOST: Final = re.compile(r"/(0\.0\.0\.0|\[::\])(?=:)")


class NetworkSender:
    """Open connections to the networks of one configuration. A context manager; one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a wrong configuration."""
        config = process.load(path).config
        self.authority = config.authority
        """The streamer's own authority."""
        self.clock = SYSTEM_CLOCK
        self._endpoints = config.endpoints
        self._table = AuthorityTable(
            {authority: name for name, each in config.endpoints.items() for authority in each.authorities}
        )
        self._ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self._zenoh: dict[str, ZenohTransport] = {}
        self._ecus: dict[str, socket.socket] = {}
        self._sessions: dict[UUri, int] = {}
        self._clients: dict[UUri, RpcClient] = {}
        self._opened = ExitStack()
        self._last_received_ns = 0

    def __enter__(self) -> Self:
        """Connect to the Zenoh networks. Raises UStatusError(UNAVAILABLE) where no node answers."""
        try:
            for name, endpoint in self._endpoints.items():
                if isinstance(endpoint, ZenohEndpoint):
                    self._zenoh[name] = self._connect(name, endpoint)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def _connect(self, name: str, endpoint: ZenohEndpoint) -> ZenohTransport:
        """A client of the streamer's own session, or of the router that it connects to."""
        nodes = tuple(_ANY_HOST.sub("/127.0.0.1", each) for each in endpoint.listen or endpoint.connect or ())
        client = msgspec.structs.replace(
            endpoint, mode="client", listen=None, connect=nodes, peers=False, receipts=False
        )
        transport = ZenohTransport(client, EndpointContext(name, endpoint.authorities[0], SYSTEM_CLOCK))
        self._opened.callback(transport.close)
        transport.register_listener(ANY, None, self._on_publication)
        transport.open()
        deadline_ns, pause = SYSTEM_CLOCK.monotonic_ns() + _CONNECT_NS, Event()
        while not transport.statistics()["links"]:
            if SYSTEM_CLOCK.monotonic_ns() > deadline_ns:
                raise UStatusError(
                    UCode.UNAVAILABLE, f"endpoints.{name}: no Zenoh node at {', '.join(nodes)}"
                )
            pause.wait(0.01)
        return transport

    def _on_publication(self, message: UMessage) -> None:
        """Publications have a receiver, as with the applications."""
        self._last_received_ns = SYSTEM_CLOCK.monotonic_ns()

    def settle(self) -> None:
        """Wait until no publication has come for 2 s, at most 30 s: the streamer has delivered what was sent."""
        pause, since_ns = Event(), SYSTEM_CLOCK.monotonic_ns()
        now_ns = since_ns
        while now_ns - max(since_ns, self._last_received_ns) < _QUIET_NS and now_ns - since_ns < _SETTLE_NS:
            pause.wait(0.05)
            now_ns = SYSTEM_CLOCK.monotonic_ns()

    def publish(self, message: UMessage) -> None:
        """Send a publication from the network behind which its source lives.

        Raises UStatusError: UNIMPLEMENTED where its node cannot be replaced, UNAVAILABLE for an ECU's address in use.
        """
        source = message.attributes.source
        name = self._endpoint_of(source)
        endpoint = self._endpoints[name]
        if name in self._zenoh:
            self._zenoh[name].send(message)
        elif isinstance(endpoint, SomeipEndpoint):
            self._send_event(name, endpoint, source, message.payload)
        else:
            raise _unimplemented(source)

    def call(self, source: UUri, method: UUri, payload: bytes) -> None:
        """Call a method as `source`, a uEntity on a Zenoh network, and wait for the response. Raises UStatusError."""
        name = self._endpoint_of(source)
        if name not in self._zenoh:
            raise _unimplemented(source)
        if source not in self._clients:
            self._clients[source] = RpcClient(self._zenoh[name], source, self._ids)
        self._clients[source].call(method, payload, UPayloadFormat.PROTOBUF)

    def _endpoint_of(self, source: UUri) -> str:
        name = self._table.endpoint_of(source)
        if name is None or name not in self._endpoints:
            raise _unimplemented(source)
        return name

    def _send_event(self, name: str, endpoint: SomeipEndpoint, topic: UUri, payload: bytes) -> None:
        remote = next(
            (
                each.remote
                for each in endpoint.services
                if (each.service, each.instance, each.major) in _ids_of(topic) and not each.offered
            ),
            None,
        )
        if remote is None or endpoint.sd:
            raise _unimplemented(topic)
        if remote not in self._ecus:
            self._ecus[remote] = self._bind(name, remote)
        session = self._sessions[topic] = next_session(self._sessions.get(topic, 0))
        event = SomeIpMessage(
            topic.ue_type,
            topic.resource_id,
            0,
            session,
            topic.ue_version_major,
            MessageType.NOTIFICATION,
            ReturnCode.E_OK,
            payload,
        )
        self._ecus[remote].sendto(encode(event), (endpoint.bind, endpoint.port))

    def _bind(self, name: str, remote: str) -> socket.socket:
        address = parse_address(remote)
        opened = open_socket(address[0], socket.SOCK_DGRAM)
        opened.setblocking(True)
        self._opened.callback(opened.close)
        try:
            opened.bind(address)
        except OSError as error:
            text = f"endpoints.{name}: the address {remote} of the ECU: {error.strerror}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error
        return opened


def _ids_of(topic: UUri) -> tuple[tuple[int, int, int], ...]:
    """Service, instance and version; instance 0 of a UUri is instance 1 of a service."""
    version = topic.ue_version_major
    return ((topic.ue_type, topic.ue_instance, version), (topic.ue_type, topic.ue_instance or 1, version))


def _unimplemented(source: UUri) -> UStatusError:
    return UStatusError(UCode.UNIMPLEMENTED, f"{source}: its node cannot be replaced")
