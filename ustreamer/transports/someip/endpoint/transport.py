# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP endpoint: one UDP socket, one receiving thread, and senders on any thread.

Further sockets only receive, each from one ECU that the configuration names (`io.connected_sockets`). `rpc.exchange`
decides the meaning of a message. `io.receive_loop` is the thread, `io.adaptive_reader` reads its sockets, `inbound`
leads from bytes to listeners, `outbound` from messages to bytes. This module connects them. Peers come from the
configuration and, with `sd`, from service discovery (`discovery.sd_driver`).
"""

import errno
import logging
import random
import socket
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from ustreamer.core.base.decoder import min_payload_bytes
from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.core.routing.subscriptions import Subscription, SubscriptionDirectory
from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION
from ustreamer.transport_port import (
    EndpointContext,
    EndpointTransport,
    PeerTransport,
    ReceivingThread,
    SubscriberEnded,
    Unconfirmed,
)
from ustreamer.transports.someip.config import EventConfig, ServiceConfig, SomeipEndpoint, added_services
from ustreamer.transports.someip.discovery.service_registry import ServiceRegistry
from ustreamer.transports.someip.endpoint.inbound import Inbound
from ustreamer.transports.someip.endpoint.listeners import Listeners
from ustreamer.transports.someip.endpoint.outbound import Outbound
from ustreamer.transports.someip.io.adaptive_reader import make_reader
from ustreamer.transports.someip.io.connected_sockets import PerPeerSockets
from ustreamer.transports.someip.io.multicast_groups import MulticastGroups
from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.receive_loop import (
    JOIN_TIMEOUT_S,
    MAX_SLEEP_NS,
    LoopCallbacks,
    ReceiveLoop,
)
from ustreamer.transports.someip.io.receive_times import receive_times_of
from ustreamer.transports.someip.io.udp import (
    bind_udp,
    dropped_datagrams,
    pop_unreachable,
    report_unreachable,
)
from ustreamer.transports.someip.protocol.addresses import Address, Network, TcpAddress, is_ipv6
from ustreamer.transports.someip.protocol.field_values import FieldValues
from ustreamer.transports.someip.protocol.mapping import (
    REQUEST_ID_BITS,
    EventReceiver,
    id_with_request_id,
)
from ustreamer.transports.someip.protocol.tp_config import MAX_UNSEGMENTED_BYTES
from ustreamer.transports.someip.rpc.exchange import Exchange
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

# Imported where they are created: an endpoint without service discovery does not need its 27 modules, one without TCP
# not those of its connections.
if TYPE_CHECKING:
    from ustreamer.transports.someip.discovery.event_publisher import EventPublisher
    from ustreamer.transports.someip.discovery.eventgroup_checks import EventTimes
    from ustreamer.transports.someip.discovery.field_file import FieldFile
    from ustreamer.transports.someip.discovery.sd_driver import SdDriver
    from ustreamer.transports.someip.discovery.usubscription_proxy import EventgroupKey
    from ustreamer.transports.someip.endpoint.service_port import ServicePort
    from ustreamer.transports.someip.io.recvmmsg import DatagramBatch
    from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks, TcpConnections
    from ustreamer.transports.someip.sd.offered_groups import OfferedEventgroups
    from ustreamer.transports.someip.sd.settings import ServiceKey

log = logging.getLogger("ustreamer.someip")

_NS_PER_MS: Final = 1_000_000
_MAX_DATAGRAM_BYTES: Final = 65_535
_MAX_EARLY: Final = 100_000
"""The most datagrams to read at the start, in a flood from other senders."""
_ACKS_NS: Final = 2_000_000_000
"""For acknowledgements over TCP at a stop."""


class SomeipTransport(EndpointTransport, PeerTransport):
    """UTransport on SOME/IP over UDP; every receiver is a delivery target of its own, and sending never waits."""

    unicast: ClassVar[bool] = True
    inline: ClassVar[bool] = True
    loss_counters: ClassVar[Sequence[str]] = (
        "answers_lost",
        "tcp_dropped",
        "tp_expired",
        "tp_unsent",
        "udp_dropped",
    )

    def __init__(self, config: SomeipEndpoint, context: EndpointContext) -> None:
        self._config = self._running_config = config
        self._name = context.name
        self._clock, self._monotonic_ns = context.clock, context.clock.monotonic_ns
        bridged = context.sibling_authorities
        self._exchange = Exchange(config, context.authority, context.clock, bridged)
        self._field_values = FieldValues(_fields_of_ecus(config))
        self._ids = UuidSource(context.clock.wall_ms)
        self._event_times = self._make_event_times(config)
        self._listeners = Listeners(context.authority, self._field_values, self._event_times)
        self._find_decoder, self._own_authority = context.decoder, context.authority
        self._inbound = Inbound(
            self._name,
            self._exchange,
            self._listeners,
            config.peer_streamer_addresses,
            self._send_reply_best_effort,
            _sd_drop_reasons(config),
            request_deadlines_are_late=config.request_ttl_ms * _NS_PER_MS >= MAX_SLEEP_NS,
        )
        callbacks = LoopCallbacks(self._read_early, self._on_tick, self._next_deadline_ns, self._on_stop)
        self._receive_loop = receive_loop = ReceiveLoop(self._name, callbacks, self._monotonic_ns)
        self._on_route_opened: Callable[[Hashable], None] = lambda route: None
        self._connections = self._make_connections(config)
        self._service_ports = self._make_service_ports(config, context)
        self._port_of = {provider: port for port in self._service_ports for provider in port.providers}
        services = self._exchange.services
        self._outbound = Outbound(
            config.tp,
            self._connections,
            context.clock,
            receive_loop.wake_by,
            services.no_event_error,
            bridged,
            refuses_oversized=config.oversized == "refuse",
        )
        self._receivers = {each.subscriber: each for each in services.receivers}
        self._groups = MulticastGroups(
            config.bind, config.receive_buffer, self._make_reader, config.socket_marks
        )
        self._peer_sockets = PerPeerSockets()
        self._event_publisher: EventPublisher | None = None
        self._field_file: FieldFile | None = None
        self._field_subscriptions: list[Subscription] = []
        self._state_dir, self._store_states = context.state_dir, context.stores
        self._offered: dict[ServiceKey, OfferedEventgroups] = {}
        self._reconfigured: deque[SomeipEndpoint] = deque()
        self._sd_driver = self._make_sd_driver(context)
        self._fast_outbound = self._exchange.fast_out(
            self._outbound.send_equal_sized, self.send, receive_loop.wake_by, self._is_for_discovery
        )
        self._transmitters = {
            each.subscriber: self._event_transmitter(each) for each in self._receivers.values()
        }
        self._socket: socket.socket | None = None
        self._closed = False
        self._answers_lost = 0
        self._unreachable = 0
        self._udp_dropped_at_close = 0
        self._expect_tcp_peers()

    def _make_connections(self, config: SomeipEndpoint) -> "TcpConnections | None":
        if not config.may_use_tcp:
            return None
        from ustreamer.transports.someip.io.tcp_connections import TcpConnections

        return TcpConnections(
            config.tcp,
            self._monotonic_ns,
            random.random,
            self._exchange.services.is_known_host,
            self._tcp_callbacks(),
        )

    def _tcp_callbacks(self) -> "TcpCallbacks":
        from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks

        return TcpCallbacks(
            self._inbound.on_stream,
            self._inbound.count_refusal,
            self._notify_route_opened,
            self._on_tcp_connected,
            self._on_tcp_disconnected,
        )

    def _make_service_ports(
        self, config: SomeipEndpoint, context: EndpointContext
    ) -> "Sequence[ServicePort]":
        """The ports that offered services name, each once."""
        numbers = dict.fromkeys(each.port for each in config.services if each.port is not None)
        if not numbers:
            return ()
        from ustreamer.transports.someip.endpoint.service_port import LoopPort, ServicePort

        loop = LoopPort(self._receive_loop.wake, self._receive_loop.wake_by)
        callbacks = self._tcp_callbacks()
        return [ServicePort(each, config, context, self._listeners, loop, callbacks) for each in numbers]

    def _make_event_times(self, config: SomeipEndpoint) -> "EventTimes | None":
        if config.sd is False:
            return None
        from ustreamer.transports.someip.discovery.eventgroup_checks import EventTimes

        times = EventTimes(self._monotonic_ns)
        times.add_topics(_limited_events(config))
        return times

    def _make_sd_driver(self, context: EndpointContext) -> "SdDriver | None":
        if self._config.sd is False:
            return None
        from ustreamer.transports.someip.discovery.event_publisher import EventPublisher
        from ustreamer.transports.someip.discovery.eventgroup_checks import EventgroupFacts
        from ustreamer.transports.someip.discovery.sd_driver import SdCallbacks, SdDriver
        from ustreamer.transports.someip.endpoint.service_port import InboundStreams
        from ustreamer.transports.someip.sd.offered_groups import offered_eventgroups

        assert self._connections is not None  # `may_use_tcp`
        offered = self._offered = offered_eventgroups(
            self._config.services, context.authority, self._config.dscp_of
        )
        self._event_publisher = EventPublisher(
            offered, lambda receiver: self._outbound_of(receiver).event_transmitter(receiver)
        )
        self._keep_fields(offered.values(), self._event_publisher)
        return SdDriver(
            self._config,
            context,
            self._exchange.services,
            offered,
            self._event_publisher,
            self._connections,
            InboundStreams([self._connections, *(each.connections for each in self._service_ports)]),
            SdCallbacks(
                self._inbound.deliver,
                self._notify_route_opened,
                self._on_service_gone,
                self._inbound.count_refusal,
                self._make_reader,
                self._receive_loop.wake,
                self._trust_networks,
                self._on_events_ended,
                EventgroupFacts(self._lacks_values, self._max_silences_ms, self._last_event_ns),
            ),
        )

    def _port_for(self, receiver: EventReceiver) -> "ServicePort | None":
        """The service port that sends events to a receiver; None: the endpoint's own. All events have one provider."""
        topic = next(iter(receiver.events), None)
        return None if topic is None else self._port_of.get(topic.with_resource(0))

    def _outbound_of(self, receiver: EventReceiver) -> Outbound:
        port = self._port_for(receiver)
        return self._outbound if port is None else port.outbound

    def _trust_networks(self, networks: Sequence[Network]) -> None:
        for each in (self._exchange, *(port.exchange for port in self._service_ports)):
            each.services.trust_networks(networks)

    def _keep_fields(self, offered: "Iterable[OfferedEventgroups]", events: "EventPublisher") -> None:
        """Keep the values of offered fields from the first message on, and on disk."""
        from ustreamer.transports.someip.discovery.ecu_subscribers import field_keeper
        from ustreamer.transports.someip.discovery.field_file import DIRECTORY, FieldFile

        for offer in offered:
            keeper = field_keeper(self._config.authority, offer.key)
            self._field_subscriptions += [Subscription(topic, keeper) for topic in sorted(offer.fields)]
            events.add_field_keeper(keeper)
        if self._field_subscriptions and self._state_dir is not None and self._field_file is None:
            path = self._state_dir / DIRECTORY / self._name
            self._field_file = FieldFile(path, events.values, self._store_states)

    # --- life ---------------------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        found = [] if self._sd_driver is None else self._sd_driver.problems()
        try:
            bind_udp((self._config.bind, self._config.port), self._config.socket_marks).close()
        except UStatusError as error:
            found.append(f"{_refused_key(error)}: {error.message}")
        if self._config.listens_over_tcp:
            from ustreamer.transports.someip.io.tcp_connection import open_listener

            address = (self._config.bind, self._config.tcp_port)
            try:
                open_listener(address).close()
            except OSError as error:
                found.append("port_tcp: cannot listen at TCP {}:{}: {}".format(*address, error.strerror))
        for port in self._service_ports:
            found += port.problems()
        return found

    def warnings(self) -> Sequence[str]:
        """The offered events over UDP without `tp` whose described payload is above MAX_UNSEGMENTED_BYTES."""
        return [
            f"services[{index}].events: {event.id:#06x} has at least {size} bytes of payload and no tp; above "
            f"{MAX_UNSEGMENTED_BYTES} bytes it leaves in IP fragments"
            for index, service in enumerate(self._config.services)
            for event in (service.events if service.offered else ())
            if service.protocol_of(event) == "udp" and service.segmentation_of(event) is None
            if (size := self._min_payload_bytes(service, event)) > MAX_UNSEGMENTED_BYTES
        ]

    def _min_payload_bytes(self, service: ServiceConfig, event: EventConfig) -> int:
        provider = service.provider_uuri
        assert provider is not None  # offered
        topic = provider.with_authority(self._own_authority).with_resource(event.id)
        return min_payload_bytes(self._find_decoder(topic))

    # [impl->SD-1182]
    def open(self) -> None:
        """As `EndpointTransport.open`; at most once."""
        if self._closed:
            raise UStatusError(UCode.UNAVAILABLE, f"endpoint {self._name!r} was closed; make a new one")
        if self._socket is not None:
            return
        self._load_fields()
        opened = bind_udp((self._config.bind, self._config.port), self._config.socket_marks)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer)
        report_unreachable(opened)
        self._socket = opened
        self._outbound.open(opened)
        poller = self._receive_loop.open()
        senders = self._exchange.services.event_senders
        self._peer_sockets.open(opened, senders, self._config.receive_buffer, poller, self._make_peer_reader)
        poller.add(opened.fileno(), self._make_reader(opened, on_error=lambda: self._on_icmp(opened)))
        self._groups.open(poller)
        try:
            self._groups.join_all(self._exchange.services.static_groups)
            for port in self._service_ports:
                port.open(poller, lambda: self._batch, self._on_icmp)
            self._open_tcp(poller)
            if self._sd_driver is not None:
                self._sd_driver.open(poller, self.address, self.tcp_address)
        except UStatusError:
            self.close()
            raise
        self._receive_loop.start()
        if self._field_file is not None:
            self._field_file.start()

    def _load_fields(self) -> None:
        """Take the values that an earlier process kept. They are older than any value of this one."""
        events, file = self._event_publisher, self._field_file
        if events is None or file is None:
            return
        for each in file.load():
            if each.attributes.source in events.values.fields:
                events.values.keep_if_newer(each)

    def _open_tcp(self, poller: Poller) -> None:
        config, connections = self._config, self._connections
        if connections is None:
            return
        connections.open(config.bind, poller, self._receive_loop.wake, config.socket_marks)
        if config.listens_over_tcp:
            connections.listen(config.tcp_port)
        self._connect_to(config.services, connections)

    def _expect_tcp_peers(self) -> None:
        """Let messages for peers over TCP wait. A durable queue sends what it restored before the endpoint is open."""
        connections = self._connections
        if connections is None:
            return
        for receiver in self._receivers.values():
            if receiver.over_tcp:
                port = self._port_for(receiver)
                (connections if port is None else port.connections).expect_host(receiver.address[0])
        for address in _remote_tcp_addresses(self._config.services):
            connections.expect_service(address)

    @staticmethod
    def _connect_to(services: Iterable[ServiceConfig], connections: "TcpConnections") -> None:
        """Open the connections to services of the network whose address over TCP is configured."""
        for address in _remote_tcp_addresses(services):
            connections.connect(address)

    @property
    def tcp_address(self) -> TcpAddress:
        """The TCP listening address while open; port 0 if no offered service uses TCP."""
        return TcpAddress(self._config.bind, 0 if self._connections is None else self._connections.port)

    @property
    def address(self) -> Address:
        """The UDP address while open: the bound port where the configured port is 0."""
        if self._socket is None:
            return (self._config.bind, self._config.port)
        host, port, *_ = self._socket.getsockname()
        return (host, port)

    def stop_receiving(self) -> None:
        """As `EndpointTransport.stop_receiving`. Callers with open calls get UNAVAILABLE: no response will be read."""
        self._receive_loop.stop()
        for response in self._exchange.abort_calls():
            self._inbound.deliver(response)

    def finish(self) -> Unconfirmed:
        """Send the waiting segments, and count the messages that a stop may lose: those without their segments, or TCP.

        Over TCP it waits up to 2 s for acknowledgements. It opens no connection, and `close` closes them, after error
        Responses.
        """
        own = () if self._connections is None else (self._connections,)
        streams = (*own, *(port.connections for port in self._service_ports))
        outputs = (self._outbound, *(port.outbound for port in self._service_ports))
        forgotten = sum(each.flush(JOIN_TIMEOUT_S) for each in outputs)
        until_ns = self._monotonic_ns() + _ACKS_NS
        return Unconfirmed(forgotten=forgotten + sum(each.lost_count(until_ns) for each in streams))

    def close(self) -> None:
        self._closed = True
        self.stop_receiving()
        if self._socket is not None:
            self._outbound.flush(JOIN_TIMEOUT_S)
            for datagram, address in self._exchange.abort_requests():
                self._send_reply_best_effort(datagram, address)
        self._outbound.close()
        if self._sd_driver is not None:
            self._sd_driver.close()
        if self._field_file is not None:
            self._field_file.close()
        if self._connections is not None:
            self._connections.close()
        for port in self._service_ports:
            port.close(JOIN_TIMEOUT_S)
        self._groups.close()
        self._peer_sockets.close()
        self._receive_loop.close()
        if self._socket is not None:
            self._udp_dropped_at_close = dropped_datagrams(self._socket)
            self._socket.close()
            self._socket = None

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        """As `EndpointTransport.watch_routes`, for receivers with too many waiting segments, TCP connections, and
        services.
        """
        for outbound in (self._outbound, *(port.outbound for port in self._service_ports)):
            outbound.watch_routes(opened)
        self._on_route_opened = opened

    def _notify_route_opened(self, route: Hashable) -> None:
        self._on_route_opened(route)

    def _on_service_gone(self, service: UUri, addresses: list[Address], reason: str) -> None:
        """Fail the open calls of the service at once instead of at their ttl."""
        for response in self._exchange.on_service_gone(service, addresses, reason):
            self._inbound.deliver(response)

    def _on_events_ended(self, key: "ServiceKey", eventgroup: int) -> None:
        """Forget the values of fields whose changes are not received any more."""
        self._field_values.forget(self._fields_of_group(key, eventgroup))

    def _lacks_values(self, group: "EventgroupKey") -> bool:
        """Whether a field of an event group has no value."""
        fields = self._fields_of_group(group.service, group.eventgroup)
        return any(self._field_values.find(each) is None for each in fields)

    def _max_silences_ms(self, group: "EventgroupKey") -> Mapping[UUri, int]:
        """The limits of the events of a group whose silence is limited."""
        events = self._events_of_group(group.service, group.eventgroup)
        return {topic: event.max_silence_ms for topic, event in events if event.max_silence_ms}

    def _last_event_ns(self, topic: UUri) -> int:
        return 0 if self._event_times is None else self._event_times.last_ns(topic)

    def _fields_of_group(self, key: "ServiceKey", eventgroup: int) -> Iterable[UUri]:
        """The topics of the fields in an event group of a service of the network."""
        return (topic for topic, event in self._events_of_group(key, eventgroup) if event.field)

    def _events_of_group(self, key: "ServiceKey", eventgroup: int) -> Iterable[tuple[UUri, EventConfig]]:
        """The topics of an event group of a service of the network, with their configuration."""
        return (
            (UUri(self._config.authority, each.ue_id, each.major, event.id), event)
            for each in self._config.services
            if (each.service, each.instance, each.major) == (key.service, key.instance, key.major)
            for event in each.events
            if not each.offered and eventgroup in event.eventgroup_ids
        )

    # --- listeners ----------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.register(source_filter, sink_filter, listener)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.unregister(source_filter, sink_filter, listener)
        self._receive_loop.wait_for_listener_calls()

    # --- another configuration ----------------------------------------------------------------------------------------

    def reconfigure(self, config: SomeipEndpoint) -> None:
        """As `EndpointTransport.reconfigure`: take further services. The receiving thread offers and finds them."""
        added = added_services(self._config, config)
        self._config = config
        self._field_values.add_fields(_fields_of_ecus(config))
        if self._event_times is not None:
            self._event_times.add_topics(_limited_events(config))
        self._listeners.clear_cache()
        if self._event_publisher is not None:
            self._add_offers(added, self._event_publisher)
        self._add_receivers(config)
        self._reconfigured.append(config)
        self._receive_loop.wake()

    def _add_offers(self, added: Iterable[ServiceConfig], events: "EventPublisher") -> None:
        """Know the event groups and the fields of further offered services."""
        from ustreamer.transports.someip.sd.offered_groups import offered_eventgroups

        offered = offered_eventgroups(added, self._own_authority, self._config.dscp_of)
        events.values.add_fields(topic for each in offered.values() for topic in each.fields)
        had_file = self._field_file is not None
        self._keep_fields(offered.values(), events)
        if self._field_file is not None and not had_file:
            self._load_fields()
            self._field_file.start()
        self._offered |= offered

    def _add_receivers(self, config: SomeipEndpoint) -> None:
        receivers = ServiceRegistry(config, self._own_authority).receivers
        added = {each.subscriber: each for each in receivers if each.subscriber not in self._receivers}
        for each in added.values():
            if each.over_tcp:
                assert self._connections is not None  # `services_restart_reason`
                self._connections.expect_host(each.address[0])
        self._transmitters |= {each.subscriber: self._event_transmitter(each) for each in added.values()}
        self._receivers = self._receivers | added

    def _add_services(self, old: SomeipEndpoint, config: SomeipEndpoint) -> None:
        """Take further services, on the receiving thread."""
        added, sd_driver = added_services(old, config), self._sd_driver
        located = () if sd_driver is None else sd_driver.located_services
        self._exchange.set_configured_services(config, located)
        if self._connections is not None:
            self._connect_to(added, self._connections)
        if sd_driver is not None:
            from ustreamer.transports.someip.discovery.located_services import service_key

            offers = {
                key: self._offered[key] for key in (service_key(each) for each in added if each.offered)
            }
            sd_driver.add_services([each for each in added if each.needs_discovery], offers)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        """Run all due work."""
        while self._reconfigured:
            self._running_config, old = self._reconfigured.popleft(), self._running_config
            self._add_services(old, self._running_config)
        if self._sd_driver is not None:
            self._sd_driver.on_tick()
        responses, datagrams = self._exchange.expire_requests()
        for datagram, address in datagrams:
            self._send_reply_best_effort(datagram, address)
        for response in responses:
            self._inbound.deliver(response)
        for each in self._exchange.expire_segments():
            self._inbound.count_refusal(each.reason, each.peer, each.detail)
        self._outbound.on_tick()
        if self._connections is not None:
            self._connections.on_timer()
        for port in self._service_ports:
            port.on_tick()

    def _next_deadline_ns(self) -> int | None:
        deadlines = [
            self._exchange.next_deadline_ns,
            self._outbound.next_deadline_ns,
            *(port.next_deadline_ns for port in self._service_ports),
        ]
        if self._connections is not None:
            deadlines.append(self._connections.next_deadline_ns)
        if self._sd_driver is not None:
            deadlines.append(self._sd_driver.next_deadline_ns)
        return min((each for each in deadlines if each is not None), default=None)

    def _read_early(self) -> None:
        """Read what the own socket received before the sockets of single senders were open: it is older than theirs."""
        opened = self._socket
        if opened is None or not len(self._peer_sockets):
            return
        for _ in range(_MAX_EARLY):
            try:
                datagram, sender = opened.recvfrom(_MAX_DATAGRAM_BYTES)
            except OSError:  # no more
                return
            self._inbound.on_datagram(datagram, sender, 0)

    def _on_stop(self) -> None:
        if self._sd_driver is not None:
            self._sd_driver.leave_network()

    @cached_property
    def _batch(self) -> "DatagramBatch | None":
        """The memory for datagrams that arrive together, made when the first do; None if there is no recvmmsg."""
        from ustreamer.transports.someip.io.recvmmsg import DatagramBatch

        try:
            return DatagramBatch(ipv6=is_ipv6(self._config.bind))
        except OSError as error:
            log.warning("someip.no_batches", extra={"endpoint": self._name, "reason": str(error)})
            return None

    def _make_reader(
        self,
        opened: socket.socket,
        sender: Address | None = None,
        on_error: Callable[[], None] | None = None,
    ) -> Handler:
        return make_reader(
            opened,
            sender,
            lambda: self._batch,
            self._inbound.on_batch,
            self._inbound.on_datagram,
            self._monotonic_ns,
            on_error,
            receive_times_of(opened, self._clock) if self._config.receive_times else None,
        )

    def _make_peer_reader(self, opened: socket.socket, sender: Address) -> Handler:
        """The kernel reports an ICMP error about `sender` to its own socket, although the other one has sent."""
        return self._make_reader(opened, sender, lambda: self._on_peer_error(opened, sender))

    def _on_peer_error(self, opened: socket.socket, sender: Address) -> None:
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
            self._on_unreachable(sender)

    def _on_icmp(self, opened: socket.socket) -> None:
        for address in dict.fromkeys(pop_unreachable(opened)):
            self._on_unreachable(address)

    def _on_unreachable(self, address: Address) -> None:
        """Nothing listens at `address`, to which this endpoint has sent."""
        self._unreachable += 1
        self._exchange.on_unreachable(address)
        if self._sd_driver is not None:
            self._sd_driver.on_unreachable(address)

    def _on_tcp_connected(self, peer: TcpAddress, *, inbound: bool) -> None:
        if self._sd_driver is not None:
            self._sd_driver.on_tcp_connected(peer, inbound=inbound)

    def _on_tcp_disconnected(self, peer: TcpAddress, *, inbound: bool) -> None:
        if not inbound:
            assert self._connections is not None
            for response in self._exchange.on_connection_closed(
                peer, self._connections.unsent_messages(peer)
            ):
                self._inbound.deliver(response)
        if self._sd_driver is not None:
            self._sd_driver.on_tcp_disconnected(peer, inbound=inbound)

    def _send_reply_best_effort(self, datagram: bytes, address: Address) -> None:
        """Send a reply of this endpoint. A failure is not retried here: the client retries after its own timeout."""
        try:
            self._outbound.send_raw(datagram, address)
        except UStatusError:
            self._answers_lost += 1

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        """As `EndpointTransport.send`. A Publish goes to every receiver of its topic; a Notification is not
        supported.
        """
        message.check(strict=False)
        kind = message.attributes.type
        if kind is not UMessageType.PUBLISH and self._handled_by_discovery(message):
            return
        if kind is UMessageType.REQUEST:
            self._send_request(message)
        elif kind is UMessageType.RESPONSE:
            self._send_response(message)
        elif kind is UMessageType.PUBLISH:
            self._send_publish(message)
        else:
            raise UStatusError(
                UCode.UNIMPLEMENTED,
                f"{kind.name} {message.id} to {message.attributes.sink}: SOME/IP has no notification to one receiver",
            )

    def _is_for_discovery(self, message: UMessage) -> bool:
        return self._sd_driver is not None and self._sd_driver.is_for_local_entity(message)

    def _handled_by_discovery(self, message: UMessage) -> bool:
        """Pass a message for a uEntity of service discovery to `SdDriver`; returns whether it was one."""
        sd_driver = self._sd_driver
        if sd_driver is None or not sd_driver.is_for_local_entity(message):
            return False
        sd_driver.submit(message)
        self._receive_loop.wake()
        return True

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        """The sender of events to one receiver, or (None) of messages with a sink. It raises NOT_FOUND when called."""
        if subscriber is None:
            return self._fast_outbound.transmit
        known = self._transmitters.get(subscriber)
        if known is not None:
            return known
        if self._event_publisher is not None:
            return self._event_publisher.event_sender(subscriber)

        def refuse(message: UMessage) -> None:
            raise UStatusError(
                UCode.NOT_FOUND, f"subscriber {subscriber}: not a receiver of endpoint {self._name!r}"
            )

        return refuse

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        if subscriber is None:
            return self._fast_outbound.transmit_batch
        # Configured receivers only: a dynamic subscriber may have moved or left by the next batch.
        receiver = self._receivers.get(subscriber)
        transmit_batch = None if receiver is None else self._outbound_of(receiver).batch_transmitter(receiver)
        if receiver is None or transmit_batch is None:
            return super().batch_transmitter(subscriber)
        return self._unless_served_elsewhere(receiver, transmit_batch)

    def _event_transmitter(self, receiver: EventReceiver) -> SendOne:
        """The sender to a configured receiver; with service discovery, unless another streamer serves the receiver."""
        transmit = self._outbound_of(receiver).event_transmitter(receiver, with_batch=True)
        if self._sd_driver is None:
            return transmit
        is_elsewhere = self._sd_driver.served_by_peer_check(receiver)

        def transmit_ours(message: UMessage) -> None:
            if is_elsewhere():
                raise SubscriberEnded(receiver.subscriber)
            transmit(message)

        return transmit_ours

    def _unless_served_elsewhere(self, receiver: EventReceiver, transmit_batch: SendBatch) -> SendBatch:
        if self._sd_driver is None:
            return transmit_batch
        is_elsewhere = self._sd_driver.served_by_peer_check(receiver)
        return lambda messages: 0 if is_elsewhere() else transmit_batch(messages)

    def _send_publish(self, message: UMessage) -> None:
        topic = message.attributes.source
        subscribers = [each.subscriber for each in self._receivers.values() if topic in each.events]
        if self._event_publisher is not None:
            subscribers += self._event_publisher.subscribers_of(topic)
        if not subscribers:
            raise self._exchange.services.no_event_error(topic)
        for subscriber in subscribers:
            self.transmitter(subscriber)(message)

    def _send_request(self, message: UMessage) -> None:
        outgoing = self._exchange.open_call(message)
        try:
            self._outbound.send(
                outgoing.datagram, outgoing.address, outgoing.segmentation, outgoing.deadline_ns
            )
        except UStatusError:
            if self._exchange.cancel_call(outgoing.request_id):
                raise  # the caller retries or answers; not if `abort_calls` answered meanwhile
        self._receive_loop.wake_by(self._exchange.on_sent(outgoing))

    def _send_response(self, message: UMessage) -> None:
        port = self._port_of.get(message.attributes.source.with_resource(0))
        exchange, outbound = (
            (self._exchange, self._outbound) if port is None else (port.exchange, port.outbound)
        )
        try:
            response = exchange.build_reply(message)
        except UStatusError as error:
            if (
                error.code is UCode.NOT_FOUND
                and self._sd_driver is not None
                and self._sd_driver.peers.has_peers
            ):
                raise SubscriberEnded(
                    message.attributes.source
                ) from error  # a request of a client of another streamer
            raise
        if response is not None:
            outbound.send(*response)
            exchange.on_response_sent(message)

    # --- peer streamers -----------------------------------------------------------------------------------------------

    def announce(self, announcements: frozenset[Announcement]) -> None:
        """As `EndpointTransport.announce`, with service discovery."""
        if self._sd_driver is not None:
            self._sd_driver.peers.announce(announcements)

    def watch_peers(self, changed: Callable[[frozenset[Announcement]], None]) -> None:
        """As `EndpointTransport.watch_peers`, with service discovery."""
        if self._sd_driver is not None:
            self._sd_driver.peers.add_announcement_listener(changed)

    def trust_peers(self, is_trusted: Callable[[RouterId, str], bool]) -> None:
        """As the port says, with service discovery: of several that offer a service here, one does."""
        if self._sd_driver is not None:
            self._sd_driver.peers.set_trust_check(is_trusted)

    # --- configuration and counters -----------------------------------------------------------------------------------

    def subscriptions(self) -> Sequence[Subscription]:
        """A subscription of every receiver for every event of its service.

        A receiver is the subscriber //<authority>/<n << 16 | service>/<major>/0: n is 0 for the first one of the
        service, which is its `remote` where it has one, then 1, 2, ... With service discovery, the subscriber with
        n = 0xFFFE keeps the values of offered fields.
        """
        of_receivers = [
            Subscription(topic, receiver.subscriber, receiver.period_ns)
            for receiver in self._receivers.values()
            for topic in receiver.events
        ]
        return of_receivers + self._field_subscriptions

    def topics(self) -> Sequence[UUri]:
        """The events of the configured services that this endpoint does not offer."""
        return [
            UUri(self._config.authority, each.ue_id, each.major, event.id)
            for each in self._config.services
            if not each.offered
            for event in each.events
        ]

    def receives_topic(self, topic: UUri) -> bool:
        """As `EndpointTransport.receives_topic`: only configured events are received."""
        return self._has_dynamic_services or topic in self.topics()

    @property
    def _has_dynamic_services(self) -> bool:
        sd = self._config.sd
        return not isinstance(sd, bool) and sd.dynamic_services_limits is not None

    def knows_method(self, method: UUri) -> bool | None:
        """As `EndpointTransport.knows_method`: only configured methods are called, but for dynamic services."""
        is_remote = method.authority_name == self._config.authority
        if method.ue_id == USUBSCRIPTION or (is_remote and self._has_dynamic_services):
            return None
        entity = method.with_resource(0)
        return any(
            each.offered is not is_remote
            and method.resource_id in each.method_ids
            and self._entity_of(each) == entity
            for each in self._config.services
        )

    def _entity_of(self, service: ServiceConfig) -> UUri:
        if service.provider_uuri is None:
            return UUri(self._config.authority, service.ue_id, service.major, 0)
        return service.provider_uuri.with_authority(self._own_authority)

    def field_values(self, topic: UUri) -> Sequence[UMessage]:
        """As `EndpointTransport.field_values`: the fields of the configured services of the network."""
        return [
            UMessage(
                id_with_request_id(self._ids.next(), each.id.lsb & REQUEST_ID_BITS),
                each.attributes,
                each.payload,
            )
            for each in self._field_values.matching(topic)
        ]

    def sends_field(self, topic: UUri) -> bool:
        """As `EndpointTransport.sends_field`: ECUs get the kept value of an offered field after their Ack."""
        return self._event_publisher is not None and self._event_publisher.values.find(topic) is not None

    def input_problem(self, topic: UUri) -> str:
        return self._exchange.input_problem(topic)

    def recent_failures(self, address: UUri) -> Sequence[RecentFailure]:
        """As `EndpointTransport.recent_failures`: by service, method or event, and host."""
        exchanges = [self._exchange, *(port.exchange for port in self._service_ports)]
        found = [failure for each in exchanges for failure in each.recent_failures(address)]
        services = self._exchange.services
        if self._sd_driver is not None and services.is_missing(address.with_resource(0)):
            found.append(self._sd_driver.missing_offer(address.ue_id & 0xFFFF))
        return found

    def subscription_directory(self, changed: Callable[[], None]) -> SubscriptionDirectory | None:
        """Subscriptions of other devices to ECUs here, at the uSubscription proxy of service discovery."""
        return None if self._sd_driver is None else self._sd_driver.directory(changed)

    @property
    def _udp_dropped(self) -> int:
        opened = self._socket  # once: another thread may close it
        own = self._udp_dropped_at_close if opened is None else dropped_datagrams(opened)
        return own + self._peer_sockets.dropped + self._groups.dropped

    def receiving_threads(self) -> Sequence[ReceivingThread]:
        """Never waiting: also without input the thread has a turn each second."""
        loop = self._receive_loop
        return (
            (ReceivingThread(f"someip {self._name}", loop.turns, waiting=False),) if loop.is_running else ()
        )

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        found = Counter(self._inbound.refused_by_host.counts())
        for port in self._service_ports:
            found.update(port.refused_by_peer())
        return found

    def statistics(self) -> Mapping[str, int]:
        """Counters since the start.

        * `datagrams`: received. `received`: messages delivered to a listener; `listener_errors`: exceptions of
          listeners; `no_listener`: messages without one.
        * `udp_dropped`: datagrams that the kernel dropped because the streamer did not read them in time.
        * `sent`: messages. `answers_lost`: replies that the kernel rejected. `oversized`: messages above 1 400 bytes of
          payload that were sent over UDP without segments.
        * `unreachable`: reports by ICMP that nothing listens at an address to which the endpoint has sent.
        * `calls_open`, `calls_expired`: calls of ours. `calls_service_gone`: their service, or the connection to it,
          closed.
        * `requests_open`, `requests_expired`: requests of clients. `responses_not_wanted`: responses to
          REQUEST_NO_RETURN.
        * `tp_open` with `tp_bytes` of memory: incomplete messages. `tp_completed`: messages; `tp_duplicates`:
          segments.
        * `tp_segmented`: long messages sent. `tp_waiting` with `tp_waiting_bytes` of payload: not sent completely.
          `tp_unsent`: abandoned after a part was sent, or at a stop. `tp_expired`: dropped at their ttl before that.
        * With TCP: `tcp_open`: connections now; `tcp_accepted`: opened by peers; `tcp_established`: in total; `tcp_ended`.
        * `tcp_waiting`: messages to send again after a connection ended; `tcp_sent_again`; `tcp_dropped`: possibly
          lost.
        * `field_file_errors`: reads and writes of the file with the values of offered fields that failed.
        """
        counters: Counter[str] = Counter()
        for port in self._service_ports:
            counters.update(port.statistics())
        counters.update(self._own_statistics())
        return counters

    def _own_statistics(self) -> dict[str, int]:
        return {
            **self._inbound.statistics(),
            "udp_dropped": self._udp_dropped,
            "answers_lost": self._answers_lost,
            "unreachable": self._unreachable,
            **self._exchange.statistics(),
            **self._outbound.statistics(),
            **({} if self._sd_driver is None else self._sd_driver.statistics()),
            **({} if self._field_file is None else {"field_file_errors": self._field_file.errors}),
            **({} if self._connections is None else self._connections.statistics()),
            **self._inbound.refusals(),
        }


def _refused_key(error: UStatusError) -> str:
    """The key of the setting that kept a UDP socket from its address."""
    keys = {errno.EADDRNOTAVAIL: "bind", errno.ENODEV: "interface"}
    cause = error.__cause__
    return keys.get(cause.errno or 0, "port") if isinstance(cause, OSError) else "port"


def _fields_of_ecus(config: SomeipEndpoint) -> Iterable[UUri]:
    """The topics of fields of the network."""
    return (
        UUri(config.authority, each.ue_id, each.major, event.id)
        for each in config.services
        if not each.offered
        for event in each.events
        if event.field
    )


def _limited_events(config: SomeipEndpoint) -> frozenset[UUri]:
    """The topics of events of the network whose silence is limited."""
    return frozenset(
        UUri(config.authority, each.ue_id, each.major, event.id)
        for each in config.services
        for event in each.events
        if event.max_silence_ms and not each.offered
    )


def _sd_drop_reasons(config: SomeipEndpoint) -> Sequence[str]:
    """The reasons for which service discovery drops input; none without service discovery."""
    if config.sd is False:
        return ()
    from ustreamer.transports.someip.sd.drop_reasons import SD_DROP_REASONS

    return SD_DROP_REASONS


def _remote_tcp_addresses(services: Iterable[ServiceConfig]) -> list[TcpAddress]:
    """The configured addresses over TCP of services of the network."""
    return [
        each.tcp_address
        for each in services
        if each.uses_protocol("tcp") and not each.offered and each.tcp_address is not None
    ]
