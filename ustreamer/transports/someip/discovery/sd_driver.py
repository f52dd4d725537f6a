# SPDX-License-Identifier: Apache-2.0
"""Runs service discovery for an endpoint: feeds `Discovery` and executes its actions.

    SD sockets, time, link, service requests  ->  Discovery  ->  actions, executed here:

    Send                                sd/sockets.py
    ServiceFound, ServiceLost           located_services.py: destinations of requests, sources of events
    PeerAnnouncementsChanged,
    OfferRoleChanged                    peer_streamers.py: other streamers and their competing offers
    Eventgroup...                       usubscription_proxy.py: subscriptions to events of the ECUs
    Subscription...                     event_subscriptions.py: subscriptions of ECUs to offered events
    ConnectRequested, PeerRebooted      the TCP connections of the endpoint

All of it belongs to the receiving thread, except `submit`: messages for the uEntities of this module.
"""

import logging
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from ustreamer.core.base.log_limit import limited
from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.routing.subscriptions import SubscriptionDirectory
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import ServiceConfig, SomeipEndpoint
from ustreamer.transports.someip.discovery.dynamic_services import DynamicServices
from ustreamer.transports.someip.discovery.ecu_subscribers import EcuSubscribers
from ustreamer.transports.someip.discovery.event_publisher import EventPublisher
from ustreamer.transports.someip.discovery.event_subscriptions import EventgroupAdmission, EventStreams
from ustreamer.transports.someip.discovery.eventgroup_checks import EventgroupChecks, EventgroupFacts
from ustreamer.transports.someip.discovery.located_services import (
    LocatedServices,
    service_key,
    wanted_service,
)
from ustreamer.transports.someip.discovery.peer_streamers import PeerStreamers, peer_discovery_settings
from ustreamer.transports.someip.discovery.service_registry import ServiceRegistry
from ustreamer.transports.someip.discovery.usubscription_proxy import (
    EcuSubscriptionState,
    EcuUsubscription,
    EventgroupKey,
)
from ustreamer.transports.someip.io.multicast_groups import MulticastGroups
from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.tcp_connections import TcpConnections
from ustreamer.transports.someip.io.udp import dropped_datagrams
from ustreamer.transports.someip.protocol.addresses import Address, Network, TcpAddress
from ustreamer.transports.someip.protocol.codec import MalformedReason, split
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.sd.actions import (
    Action,
    ConnectRequested,
    EndReason,
    EventgroupLost,
    EventgroupRefused,
    EventgroupSubscribed,
    InitialDataRequested,
    OfferRoleChanged,
    PeerAnnouncementsChanged,
    PeerRebooted,
    SdInputRefused,
    SdSubscription,
    Send,
    ServiceFound,
    ServiceLost,
    SubscriptionEnded,
    SubscriptionRequested,
)
from ustreamer.transports.someip.sd.codec import is_sd_message
from ustreamer.transports.someip.sd.config import SdConfig
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.drop_reasons import NOT_DISCOVERY
from ustreamer.transports.someip.sd.interface_monitor import InterfaceMonitor, find_interface
from ustreamer.transports.someip.sd.offered_groups import OfferedEventgroups
from ustreamer.transports.someip.sd.settings import SdSettings, ServiceKey
from ustreamer.transports.someip.sd.sockets import SdSockets
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.someip")

MAX_PENDING_MESSAGES: Final = 4_096
"""Limit of submitted messages that wait for the receiving thread."""

_MESSAGES_PER_DATAGRAM: Final = 32
"""Messages of service discovery in a datagram. The standard has one; a datagram can hold 2 300."""
_DATAGRAMS_PER_WAKE: Final = 32  # datagrams of each SD socket before the data sockets are served


class SdCallbacks(NamedTuple):
    """The functions of the endpoint that service discovery needs."""

    deliver: Callable[[UMessage], None]
    """Gives a message of a local uEntity to the listeners."""
    on_route_open: Callable[[UUri], None]
    """Reports that the service behind a route is available."""
    on_service_lost: Callable[[UUri, list[Address], str], None]
    """Reports that a service is no longer available: its uEntity, its last addresses and the reason."""
    count_refused: Callable[[str, Address, object], None]
    """Counts a dropped input."""
    make_reader: Callable[[socket.socket], Handler]
    """Makes the reader of a socket that receives a multicast group of events."""
    wake: Callable[[], None]
    """Wakes the receiving thread for a tick."""
    trust_networks: Callable[[Sequence[Network]], None]
    """Accepts requests from these networks."""
    on_events_ended: Callable[[ServiceKey, int], None]
    """Reports that the events of an event group are not received any more."""
    eventgroups: EventgroupFacts
    """Missing values and silent events of event groups."""


class InboundConnections(EventStreams, Protocol):
    """The TCP connections of all ports of the endpoint."""

    def drop_host(self, host: str, /) -> None:
        """Close all connections with a host."""


class SdDriver:
    """Service discovery of one endpoint, from `open` to `close`."""

    def __init__(
        self,
        config: SomeipEndpoint,
        context: EndpointContext,
        services: ServiceRegistry,
        offers: Mapping[ServiceKey, OfferedEventgroups],
        events: EventPublisher,
        connections: TcpConnections,
        streams: InboundConnections,
        callbacks: SdCallbacks,
    ) -> None:
        assert isinstance(config.sd, SdConfig)
        name, own_authority, clock = context.name, context.authority, context.clock
        relayed = [service_key(each) for each in config.services if each.accept_relayed]
        self._peer_settings = peer_discovery_settings(config, context, relayed)
        self.peers = PeerStreamers(callbacks.wake)
        self._sd, self._clock, self._name = config.sd, clock, name
        self._services, self._offers, self._events, self._callbacks = services, offers, events, callbacks
        self._connections, self._streams = connections, streams
        marks = replace(config.socket_marks, dscp=0)
        self._sockets = SdSockets(self._sd.own_address, self._sd.group_address, marks)
        self._dropped_at_close = 0
        self._groups = MulticastGroups(
            self._sd.own_address[0], config.receive_buffer, callbacks.make_reader, marks
        )
        self._interface_monitor: InterfaceMonitor | None = None
        self._is_link_up = False
        self._discovery: Discovery | None = None
        self._final_statistics: dict[str, int] = {}  # the last statistics, after `leave_network`
        remote = [each for each in config.services if not each.offered]
        wanted_services = [each for each in remote if each.needs_discovery]
        callbacks_of_services = (callbacks.on_route_open, callbacks.on_service_lost)
        self._located = LocatedServices(
            name, config.authority, wanted_services, services, connections, *callbacks_of_services
        )
        self._pending_messages: deque[UMessage] = deque()
        # The messages of local uEntities. They are delivered after the SD messages of the same turn have left.
        self._outgoing: list[UMessage] = []
        ids = UuidSource(clock.wall_ms)
        self._dynamic = self._make_dynamic_services(config)
        self.usubscription = EcuUsubscription(
            config.authority, own_authority, remote, clock, ids.next, self._dynamic
        )
        self._authority = config.authority
        self._trusts_sd_networks = config.clients is None
        first_free = {key: offer.receivers for key, offer in offers.items()}
        self._subscribers = EcuSubscribers(
            config.authority, own_authority, clock, ids.next, first_free, context.serves
        )
        self._event_subscriptions = EventgroupAdmission(
            offers, self._subscribers, events, streams, self._send_decisions
        )
        self._on_directory_change: Callable[[], None] = _no_directory
        self._directory_version = 0
        self._checks = EventgroupChecks(callbacks.eventgroups, self._sd.timings.initial_event_ms)
        self._times_silent = 0
        self._addresses: tuple[Address, Address] = (("", 0), ("", 0))

    def _make_dynamic_services(self, config: SomeipEndpoint) -> DynamicServices | None:
        limits = self._sd.dynamic_services_limits
        if limits is None:
            return None
        configured = map(service_key, config.services)
        dynamic = DynamicServices(
            config.authority, limits, configured, self._clock.monotonic_ns, self._callbacks.wake
        )
        self._services.set_dynamic_request(dynamic.request_for_method)
        return dynamic

    # --- life cycle ---------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """The problems that would make `open` fail."""
        try:
            self._sockets.open()
        except UStatusError as error:
            return [f"sd: {error.message}"]
        finally:
            self._sockets.close()
        return []

    def open(self, poller: Poller, udp: Address, tcp: Address) -> None:
        """Bind, join and start.

        `udp` and `tcp` are the endpoints for events and requests. Raises UStatusError(UNAVAILABLE).

        Afterwards the object belongs to the receiving thread: `poller` hands it over.
        """
        self._sockets.open()
        networks = self._sd.trusted_networks() or self._own_network()
        if self._trusts_sd_networks:
            self._callbacks.trust_networks(networks)
        settings = SdSettings(
            own=self._sd.own_address,
            networks=networks,
            events=udp,
            initial_data=self._sd.initial_data,
            sd_endpoint_options=self._sd.sd_endpoint_options,
            streamer=self._peer_settings,
            timings=self._sd.timings,
            limits=self._sd.limits,
        )
        self._discovery = discovery = Discovery(settings, random.random)
        self._interface_monitor = InterfaceMonitor(self._sd.own_address[0])
        self._groups.open(poller)
        now_ns = self._clock.monotonic_ns()
        self._addresses = udp, tcp
        for offer in self._offers.values():
            self._execute_all(discovery.offer_service(offer.sd_service_at(udp, tcp), now_ns))
        for key in self._located.wanted:
            self._execute_all(discovery.request_service(wanted_service(key), now_ns))
        self._update_link()
        for fd in self._sockets.fds:
            poller.add(fd, self._on_readable)
        poller.add(self._interface_monitor.fileno(), self._on_link_event)

    def add_services(
        self, remote: Sequence[ServiceConfig], offers: Mapping[ServiceKey, OfferedEventgroups]
    ) -> None:
        """Find and offer further services, on the receiving thread. `offers` are among those of the constructor."""
        discovery = self._discovery
        if discovery is None:
            return
        now_ns = self._clock.monotonic_ns()
        for each in remote:
            self.usubscription.add_service(each)
            key = self._located.add_service(each)
            self._execute_all(discovery.request_service(wanted_service(key), now_ns))
        for key, offer in offers.items():
            self._events.add_offer(key, offer)
            self._subscribers.add_receivers(key, offer.receivers)
            self._execute_all(discovery.offer_service(offer.sd_service_at(*self._addresses), now_ns))

    @property
    def located_services(self) -> Iterable[ServiceConfig]:
        """The services that are available now."""
        return self._located.found

    def _own_network(self) -> tuple[Network, ...]:
        found = find_interface(self._sd.own_address[0])
        if found is None:
            host = self._sd.own_address[0]
            raise UStatusError(UCode.UNAVAILABLE, f"sd.interface: {host} is not an address of this machine")
        return (found.network,)

    def leave_network(self) -> None:
        """Withdraw all offers and subscriptions from network and uSubscription. Last call on the receiving thread."""
        if self._discovery is None:
            return
        self._execute_all(self._discovery.close())
        self._final_statistics = self._discovery.statistics()
        self._outgoing += self._event_subscriptions.pop_requests()
        self._deliver_outgoing()
        self._discovery = None

    def close(self) -> None:
        """Release all resources after the end of the receiving thread. Idempotent."""
        self._dropped_at_close = self._dropped
        self._sockets.close()
        self._groups.close()
        if self._interface_monitor is not None:
            self._interface_monitor.close()
            self._interface_monitor = None

    def directory(self, on_change: Callable[[], None]) -> SubscriptionDirectory:
        """The remote subscribers of events here; `on_change` is called after every change."""
        self._on_directory_change = on_change
        return self.usubscription

    # --- any thread ---------------------------------------------------------------------------------------------------

    def is_for_local_entity(self, message: UMessage) -> bool:
        """Whether a message is for a local uEntity: the ECUs' uSubscription, or one that represents an ECU's endpoint."""
        attributes = message.attributes
        if attributes.type is UMessageType.REQUEST:
            sink = attributes.sink
            return sink is not None and sink.ue_id == 0 and sink.authority_name == self._authority
        return self._subscribers.is_from_usubscription(message)

    def submit(self, message: UMessage) -> None:
        """Queue a message for a local uEntity; the caller wakes the receiving thread. Raises RESOURCE_EXHAUSTED."""
        if len(self._pending_messages) >= MAX_PENDING_MESSAGES:
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED,
                f"{message.id}: {MAX_PENDING_MESSAGES} messages for uSubscription wait",
            )
        self._pending_messages.append(message)

    def served_by_peer_check(self, receiver: EventReceiver) -> Callable[[], bool]:
        """Return a check whether another streamer offers the service whose events a configured receiver gets."""
        keys = [key for key, offer in self._offers.items() if offer.events.keys() & receiver.events.keys()]
        is_served_by_peer = self.peers.is_served_by_peer
        return lambda: any(map(is_served_by_peer, keys))

    # --- the receiving thread -----------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """The next time at which `on_tick` has work without a wake-up."""
        if self._discovery is None:
            return None
        due = (
            self._discovery.next_deadline_ns,
            self._subscribers.next_deadline_ns,
            self.usubscription.next_deadline_ns,
            self._checks.next_deadline_ns,
            None if self._dynamic is None else self._dynamic.next_deadline_ns,
        )
        return min((each for each in due if each is not None), default=None)

    def on_tick(self) -> None:
        """Process due timers and submitted messages."""
        discovery = self._discovery
        if discovery is None:
            return
        now_ns = self._clock.monotonic_ns()
        due_ns = self.next_deadline_ns
        if due_ns is not None and due_ns <= now_ns:
            self.usubscription.expire_subscriptions(now_ns)
            self._subscribers.on_timer(now_ns)
            self._check_eventgroups(discovery, now_ns)
            self._execute_all(discovery.on_timer(now_ns))
        while self._pending_messages:
            self._handle(self._pending_messages.popleft())
        self._reconcile()

    def _handle(self, message: UMessage) -> None:
        match message.attributes.type:
            case UMessageType.REQUEST:
                self._outgoing += self.usubscription.on_request(message)
            case UMessageType.RESPONSE:
                self._subscribers.on_response(message)
            case _:
                self._subscribers.on_update(message)

    def _on_readable(self, events: int) -> None:
        for received in self._sockets.receive(_DATAGRAMS_PER_WAKE):
            messages, malformed = split(received.datagram)
            # Both clocks at once: a preemption between them would shift the arrival time.
            now_ns, wall_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
            waited_ns = received.waited_ns(wall_ms)
            for error in malformed:
                self._callbacks.count_refused(error.reason, received.peer, error)
            if len(messages) > _MESSAGES_PER_DATAGRAM:
                rest = f"{len(messages) - _MESSAGES_PER_DATAGRAM} messages behind the first {_MESSAGES_PER_DATAGRAM}"
                self._callbacks.count_refused(MalformedReason.REFUSAL_LIMIT, received.peer, rest)
            for message in messages[:_MESSAGES_PER_DATAGRAM]:
                if self._discovery is None or not is_sd_message(message):
                    self._callbacks.count_refused(NOT_DISCOVERY, received.peer, message)
                    continue
                self._execute_all(
                    self._discovery.feed(message, received.peer, received.multicast, now_ns, waited_ns)
                )
        self._reconcile()

    def _on_link_event(self, events: int) -> None:
        assert self._interface_monitor is not None
        self._interface_monitor.drain()
        self._update_link()
        self._reconcile()

    # [impl->SD-23]
    def _update_link(self) -> None:
        assert self._interface_monitor is not None
        up = self._interface_monitor.is_up()
        if self._discovery is None or up == self._is_link_up:
            return
        self._is_link_up = up
        log.info("someip.link", extra={"endpoint": self._name, "up": up})
        if up:
            self._sockets.rejoin()
            self._groups.rejoin()
            self._execute_all(self._discovery.link_up(self._clock.monotonic_ns()))
        else:
            self._execute_all(self._discovery.link_down())

    def _reconcile(self) -> None:
        """Apply pending changes between service discovery, the own uSubscription and the ECUs' uSubscription."""
        discovery = self._discovery
        if discovery is None:
            return
        self._execute_all(self.peers.update_discovery(discovery, self._clock.monotonic_ns()))
        if self._dynamic is not None:
            changes = self._dynamic.pop_changes()
            self._execute_all(self._located.apply_changes(changes, discovery, self._clock.monotonic_ns()))
        for group_request in self.usubscription.pop_eventgroup_requests():
            service, number = wanted_service(group_request.group.service), group_request.group.eventgroup
            if group_request.wanted:
                now_ns = self._clock.monotonic_ns()
                self._execute_all(
                    discovery.subscribe(
                        service,
                        number,
                        now_ns,
                        reliable=group_request.reliable,
                        mixed=group_request.mixed,
                    )
                )
            else:
                self._groups.set_membership(group_request.group, None)
                self._on_events_ended(group_request.group)
                self._execute_all(discovery.unsubscribe(service, number))
        self._event_subscriptions.apply_decisions()
        self._outgoing += self._event_subscriptions.pop_requests()
        self._deliver_outgoing()
        if self.usubscription.version != self._directory_version:
            self._directory_version = self.usubscription.version
            self._on_directory_change()

    def _deliver_outgoing(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        for message in outgoing:
            self._callbacks.deliver(message)

    # --- actions ------------------------------------------------------------------------------------------------------

    def _execute_all(self, actions: list[Action]) -> None:
        for action in actions:
            self._execute(action)

    # [impl->SD-872, SD-831, SD-437]
    def _execute(self, action: Action) -> None:
        match action:
            case Send():
                self._sockets.send(action.datagram, action.to)
            case SdInputRefused():
                self._callbacks.count_refused(action.reason, action.peer, action.detail)
            case ServiceFound():
                self._located.on_found(action)
                self.usubscription.set_uses_tcp(action.key, tcp=self._located.is_over_tcp(action.key))
            case ServiceLost():
                self._located.on_lost(action)
            case EventgroupSubscribed():
                group = EventgroupKey(action.key, action.eventgroup)
                self._groups.set_membership(group, action.multicast)
                self._checks.start(group, self._clock.monotonic_ns())
                self._notify_state(action.key, action.eventgroup, EcuSubscriptionState.SUBSCRIBED)
            case EventgroupRefused():
                self._on_events_ended(EventgroupKey(action.key, action.eventgroup))
                self._notify_state(action.key, action.eventgroup, EcuSubscriptionState.REFUSED)
            case EventgroupLost():
                self._groups.set_membership(EventgroupKey(action.key, action.eventgroup), None)
                self._on_events_ended(EventgroupKey(action.key, action.eventgroup))
                self._notify_state(action.key, action.eventgroup, EcuSubscriptionState.PENDING)
            case SubscriptionRequested():
                self._event_subscriptions.on_subscribe(action)
            case SubscriptionEnded():
                self._on_subscription_ended(action.subscription, action.why)
            case InitialDataRequested():
                self._event_subscriptions.send_initial_events(action.subscription)
            case PeerRebooted():
                host = action.peer[0]
                log.info(
                    "someip.rebooted",
                    extra={"endpoint": self._name, "peer": host, **limited(self._name, host)},
                )
                self._streams.drop_host(host)
            case PeerAnnouncementsChanged():
                self.peers.on_announcements(action.announcements)
            case OfferRoleChanged():
                log.info("someip.offer_role_changed", extra=self._offer_extra(action))
                self.peers.on_offer_role_changed(action)
            case ConnectRequested():
                self._report_stream(TcpAddress(*action.address), [action.key])

    def _on_subscription_ended(self, subscription: SdSubscription, why: EndReason) -> None:
        self._event_subscriptions.on_subscription_ended(subscription)
        if why is EndReason.LINK and subscription.tcp is not None:
            self._streams.drop_host(subscription.peer[0])

    # --- events of ECUs that are missing ------------------------------------------------------------------------------

    def _check_eventgroups(self, discovery: Discovery, now_ns: int) -> None:
        """Subscribe each due event group again that lacks a value or is silent."""
        for group in self._checks.pop_groups_without_value(now_ns):
            self._execute_all(discovery.request_values(group.service, group.eventgroup, now_ns))
        for group in self._checks.pop_silent_groups(now_ns):
            self._times_silent += 1
            about = {"service": str(group.service), "eventgroup": group.eventgroup}
            log.warning(
                "someip.silent", extra={"endpoint": self._name, **about, **limited(self._name, group)}
            )
            self._execute_all(discovery.renew_subscription(group.service, group.eventgroup, now_ns))

    def _on_events_ended(self, group: EventgroupKey) -> None:
        self._checks.stop(group)
        self._callbacks.on_events_ended(group.service, group.eventgroup)

    def _send_decisions(self, accepted: Sequence[SdSubscription], refused: Sequence[SdSubscription]) -> None:
        assert self._discovery is not None
        self._execute_all(self._discovery.decide_subscriptions(accepted, refused))

    def _offer_extra(self, change: OfferRoleChanged) -> dict[str, object]:
        about = limited(self._name, change.key)
        return {"endpoint": self._name, "service": str(change.key), "ours": change.ours, **about}

    def _notify_state(self, key: ServiceKey, eventgroup: int, state: EcuSubscriptionState) -> None:
        self._outgoing += self.usubscription.on_eventgroup_state(EventgroupKey(key, eventgroup), state)

    # [impl->SD-435]
    def on_unreachable(self, address: Address) -> None:
        """Nothing listens at `address`: the subscriptions of an ECU with this UDP endpoint end."""
        if self._discovery is not None:
            self._event_subscriptions.on_unreachable(address)
            self._reconcile()

    # --- connections --------------------------------------------------------------------------------------------------

    def on_tcp_connected(self, peer: TcpAddress, *, inbound: bool) -> None:
        """A connection with `peer` is open: subscribe the services that wait for it."""
        if not inbound:
            self._report_stream(peer, self._located.services_over(peer))
            self._reconcile()

    def _report_stream(self, peer: TcpAddress, keys: list[ServiceKey]) -> None:
        discovery, local = self._discovery, self._connections.local_address(peer)
        if discovery is None or local is None:
            return
        for key in keys:
            actions = discovery.on_connected(key, (local.host, local.port), self._clock.monotonic_ns())
            self._execute_all(actions)

    def on_tcp_disconnected(self, peer: TcpAddress, *, inbound: bool) -> None:
        """The connection is closed: own subscriptions over it restart, and those of ECUs end."""
        if self._discovery is None:
            return
        if inbound:
            self._event_subscriptions.on_tcp_disconnected(peer)
        else:
            for key in self._located.services_over(peer):
                self._execute_all(self._discovery.on_disconnected(key))
        self._reconcile()

    # --- statistics ---------------------------------------------------------------------------------------------------

    @property
    def _dropped(self) -> int:
        return self._dropped_at_close + sum(map(dropped_datagrams, self._sockets.sockets))

    def missing_offer(self, service: int) -> RecentFailure:
        """A wanted service that has no Offer. `detail` has the Offers with its service id, but of others."""
        discovery = self._discovery
        others = [] if discovery is None else discovery.unwanted_offers()
        detail = [
            f"instance {each.instance}, major version {each.major}"
            for each in others
            if each.service == service
        ]
        return RecentFailure("service_not_offered", 0, 0, 0, detail="; ".join(detail[:3]))

    def statistics(self) -> dict[str, int]:
        """Statistics of service discovery.

        `sd_times_found`, `sd_times_lost`, `sd_send_failed` messages and `sd_dropped` datagrams, which the kernel
        dropped, count from the start, as `sd_silent`, new subscriptions of silent event groups. The rest is the current
        state.
        """
        discovery = self._discovery
        return {
            **(self._final_statistics if discovery is None else discovery.statistics()),
            **self.usubscription.statistics(),
            **self._subscribers.statistics(),
            **self._events.statistics(),
            **self._located.statistics(),
            **({} if self._dynamic is None else self._dynamic.statistics()),
            "sd_dropped": self._dropped,
            "sd_silent": self._times_silent,
            "sd_send_failed": self._sockets.send_failed,
            "sd_waiting": len(self._pending_messages),
            "sd_groups_joined": len(self._groups),
            "sd_groups_not_joined": self._groups.not_joined,
        }


def _no_directory() -> None:
    """The default before `directory` is called."""
