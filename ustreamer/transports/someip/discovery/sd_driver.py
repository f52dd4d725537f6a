# SPDX-License-Identifier: Apache-2.0
"""Service discovery of a running endpoint: what drives it, and what becomes of what it says.

    SD sockets, time, the link, wishes  ->  Discovery  ->  Actions, which come here:

    Send                            sd/sockets.py
    ServiceFound, ServiceLost       services.py: where requests go, and where events come from
    StreamersHeard, OfferTurned     neighbours.py: other streamers, and what they do in our place
    Eventgroup...                   usubscription.py: what others subscribe of the ECUs
    Subscription...                 admission.py: what ECUs subscribe of us, and whether they are sent it
    ConnectWanted, PeerRebooted     the TCP connections of the endpoint

All of it belongs to the receiving thread, but for `hand_over`: messages for the uEntities that live in here.
"""

import ipaddress
import logging
import random
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ustreamer.core.routing.subscriptions import SubscriptionDirectory
from ustreamer.hooks import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.discovery.dynamic_services import UnlistedServices
from ustreamer.transports.someip.discovery.ecu_subscribers import EcuSubscribers
from ustreamer.transports.someip.discovery.event_publisher import SubscribedEvents
from ustreamer.transports.someip.discovery.event_subscriptions import Admission
from ustreamer.transports.someip.discovery.located_services import FoundServices, key_of, wanted
from ustreamer.transports.someip.discovery.peer_streamers import OtherStreamers, streamer_settings
from ustreamer.transports.someip.discovery.service_registry import Services
from ustreamer.transports.someip.discovery.usubscription_proxy import EcuSubscriptions, GroupKey, State
from ustreamer.transports.someip.io.multicast_groups import Groups
from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.tcp_connections import Connections
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import split
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.sd.actions import (
    Action,
    ConnectWanted,
    EventgroupLost,
    EventgroupRefused,
    EventgroupSubscribed,
    InitialDataAsked,
    OfferTurned,
    PeerRebooted,
    Refused,
    Send,
    ServiceFound,
    ServiceLost,
    StreamersHeard,
    Subscription,
    SubscriptionAsked,
    SubscriptionEnded,
)
from ustreamer.transports.someip.sd.codec import is_discovery
from ustreamer.transports.someip.sd.config import ServiceDiscovery
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.drop_reasons import SERVICE
from ustreamer.transports.someip.sd.interface_monitor import LinkWatch, interface_of
from ustreamer.transports.someip.sd.offered_groups import Offer
from ustreamer.transports.someip.sd.settings import ServiceKey, Settings
from ustreamer.transports.someip.sd.sockets import DiscoveryPort
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.someip")

MAX_WAITING: Final = 4_096
"""Messages for the uEntities in here that wait for the receiving thread."""

_ROUND: Final = 32  # datagrams of each SD socket between two looks at the data


class Surroundings(NamedTuple):
    """What service discovery needs of its endpoint."""

    deliver: Callable[[UMessage], None]
    """Gives a message of a uEntity in here to the listeners."""
    route_open: Callable[[UUri], None]
    """Says that the service behind a route is there."""
    service_gone: Callable[[UUri, list[Address], str], None]
    """Says that a service is there no more, where it was, and why."""
    refused: Callable[[str, Address, object], None]
    """Counts something that was not taken."""
    reader: Callable[[socket.socket], Handler]
    """Makes what reads a socket that hears a multicast group of events."""
    wake: Callable[[], None]
    """Has the receiving thread take a turn."""


class Discovering:
    """From `open` to `close`."""

    def __init__(
        self,
        config: SomeipEndpoint,
        context: EndpointContext,
        services: Services,
        offers: Mapping[ServiceKey, Offer],
        events: SubscribedEvents,
        connections: Connections,
        around: Surroundings,
    ) -> None:
        assert isinstance(config.sd, ServiceDiscovery)
        name, own_authority, clock = context.name, context.authority, context.clock
        relayed = [key_of(each) for each in config.services if each.relayed]
        self._streamer = streamer_settings(config, context, relayed)
        self.streamers = OtherStreamers(around.wake)
        self._sd, self._clock, self._name = config.sd, clock, name
        self._services, self._offers, self._events, self._around = services, offers, events, around
        self._connections = connections
        self._port = DiscoveryPort(self._sd.own, self._sd.group)
        self._groups = Groups(self._sd.own[0], config.receive_buffer, around.reader)
        self._link: LinkWatch | None = None
        self._up = False
        self._discovery: Discovery | None = None
        self._last_counts: dict[str, int] = {}  # for the last word of a streamer that stops
        remote = [each for each in config.services if not each.offered]
        sought = [each for each in remote if each.to_be_found]
        news = (around.route_open, around.service_gone)
        self._found = FoundServices(name, config.authority, sought, services, connections, *news)
        self._waiting: deque[UMessage] = deque()
        ids = UuidSource(clock.wall_ms)
        self._unlisted = self._unlisted_services(config)
        self.ecus = EcuSubscriptions(config.authority, own_authority, remote, clock, ids.next, self._unlisted)
        self._entity = config.authority
        self._believes_all = config.clients is None
        taken = {key: offer.receivers for key, offer in offers.items()}
        self._subscribers = EcuSubscribers(config.authority, own_authority, clock, ids.next, taken)
        self._admission = Admission(offers, self._subscribers, events, connections, self._decide)
        self._changed: Callable[[], None] = _nobody_asks
        self._foreign_changes = 0

    def _unlisted_services(self, config: SomeipEndpoint) -> UnlistedServices | None:
        bounds = self._sd.unlisted_bounds
        if bounds is None:
            return None
        listed = map(key_of, config.services)
        unlisted = UnlistedServices(
            config.authority, bounds, listed, self._clock.monotonic_ns, self._around.wake
        )
        self._services.seek_unlisted(unlisted.call)
        return unlisted

    # --- life ---------------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """What would keep `open` from succeeding."""
        try:
            self._port.open()
        except UStatusError as error:
            return [f"sd: {error.message}"]
        finally:
            self._port.close()
        return []

    def open(self, poller: Poller, udp: Address, tcp: Address) -> None:
        """Bind, join and begin; `udp` and `tcp` are where we take events and requests. Raises UStatusError(UNAVAILABLE).

        The last that the opening thread does with it: `poller` hands it over to the receiving one.
        """
        self._port.open()
        networks = self._sd.believed() or self._own_network()
        if self._believes_all:
            self._services.believe(networks)
        settings = Settings(
            own=self._sd.own,
            networks=networks,
            events=udp,
            initial_data=self._sd.initial_data,
            sd_endpoint_options=self._sd.sd_endpoint_options,
            streamer=self._streamer,
            timings=self._sd.timings,
            limits=self._sd.limits,
        )
        self._discovery = discovery = Discovery(settings, random.random)
        self._link = LinkWatch(self._sd.own[0])
        self._groups.open(poller)
        now_ns = self._clock.monotonic_ns()
        for offer in self._offers.values():
            self._do(discovery.offer(offer.discovered_at(udp, tcp), now_ns))
        for key in self._found.sought:
            self._do(discovery.want(wanted(key), now_ns))
        self._turn_link()
        for fd in self._port.fds:
            poller.add(fd, self._readable)
        poller.add(self._link.fileno(), self._link_changed)

    def _own_network(self) -> tuple[ipaddress.IPv4Network, ...]:
        found = interface_of(self._sd.own[0])
        if found is None:
            host = self._sd.own[0]
            raise UStatusError(UCode.UNAVAILABLE, f"sd.interface: {host} is no address of this machine")
        return (found.network,)

    def say_goodbye(self) -> None:
        """Stop what we offer and subscribe, on the network and at our uSubscription. On the receiving thread, as its end."""
        if self._discovery is None:
            return
        self._do(self._discovery.close())
        self._last_counts = self._discovery.statistics()
        for message in self._admission.requests():
            self._around.deliver(message)
        self._discovery = None

    def close(self) -> None:
        """After the end of the receiving thread. May be repeated."""
        self._port.close()
        self._groups.close()
        if self._link is not None:
            self._link.close()
            self._link = None

    def directory(self, changed: Callable[[], None]) -> SubscriptionDirectory:
        """Other devices that subscribe here; `changed` is called after every change."""
        self._changed = changed
        return self.ecus

    # --- any thread ---------------------------------------------------------------------------------------------------

    def concerns(self, message: UMessage) -> bool:
        """Whether a message is for a uEntity in here: the ECUs' uSubscription, or one that stands for an ECU's endpoint."""
        attributes = message.attributes
        if attributes.type is UMessageType.REQUEST:
            sink = attributes.sink
            return sink is not None and sink.ue_id == 0 and sink.authority_name == self._entity
        return self._subscribers.concerns(message)

    def hand_over(self, message: UMessage) -> None:
        """Have the receiving thread take a message that `concerns` us; it is to be woken. Raises RESOURCE_EXHAUSTED."""
        if len(self._waiting) >= MAX_WAITING:
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED, f"{message.id}: {MAX_WAITING} messages for uSubscription wait"
            )
        self._waiting.append(message)

    def is_elsewhere(self, receiver: EventReceiver) -> Callable[[], bool]:
        """What tells whether another streamer offers the service whose events a configured receiver gets."""
        who = receiver.subscriber
        keys = [
            each for each in self._offers if (each.service, each.major) == (who.ue_type, who.ue_version_major)
        ]
        elsewhere = self.streamers.serves_elsewhere
        return lambda: any(
            map(elsewhere, keys)
        )  # one: requests do not name an instance, so none is offered twice

    # --- the receiving thread -----------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """When `turn` has something to do without being woken."""
        if self._discovery is None:
            return None
        due = (
            self._discovery.next_deadline_ns,
            self._subscribers.next_deadline_ns,
            self.ecus.next_deadline_ns,
            None if self._unlisted is None else self._unlisted.next_deadline_ns,
        )
        return min((each for each in due if each is not None), default=None)

    def turn(self) -> None:
        """Do what is due, and take what was handed over."""
        discovery = self._discovery
        if discovery is None:
            return
        now_ns = self._clock.monotonic_ns()
        due_ns = self.next_deadline_ns
        if due_ns is not None and due_ns <= now_ns:
            self.ecus.expire(now_ns)
            self._subscribers.on_timer(now_ns)
            self._do(discovery.on_timer(now_ns))
        while self._waiting:
            self._take_over(self._waiting.popleft())
        self._follow()

    def _take_over(self, message: UMessage) -> None:
        match message.attributes.type:
            case UMessageType.REQUEST:
                for answer in self.ecus.request(message):
                    self._around.deliver(answer)
            case UMessageType.RESPONSE:
                self._subscribers.answered(message)
            case _:
                self._subscribers.told(message)

    def _readable(self, events: int) -> None:
        for heard in self._port.hear(_ROUND):
            messages, malformed = split(heard.datagram)
            waited_ns = heard.waited_ns(self._clock.wall_ms())
            for error in malformed:
                self._around.refused(error.reason, heard.peer, error)
            for message in messages:
                if self._discovery is None or not is_discovery(message):
                    self._around.refused(SERVICE, heard.peer, message)
                    continue
                now_ns = self._clock.monotonic_ns()
                self._do(self._discovery.feed(message, heard.peer, heard.multicast, now_ns, waited_ns))
        self._follow()

    def _link_changed(self, events: int) -> None:
        assert self._link is not None
        self._link.drain()
        self._turn_link()
        self._follow()

    def _turn_link(self) -> None:
        assert self._link is not None
        up = self._link.is_up()
        if self._discovery is None or up == self._up:
            return
        self._up = up
        log.info("someip.link", extra={"endpoint": self._name, "up": up})
        if up:
            self._port.rejoin()
            self._groups.rejoin()
            self._do(self._discovery.link_up(self._clock.monotonic_ns()))
        else:
            self._do(self._discovery.link_down())

    def _follow(self) -> None:
        """Bring together what service discovery, uSubscription here and uSubscription there now want of each other."""
        discovery = self._discovery
        if discovery is None:
            return
        self._do(self.streamers.follow(discovery, self._clock.monotonic_ns()))
        if self._unlisted is not None:
            changes = self._unlisted.take_changes()
            self._do(self._found.follow(changes, discovery, self._clock.monotonic_ns()))
        for wish in self.ecus.take_wishes():
            service, number = wanted(wish.group.service), wish.group.eventgroup
            if wish.wanted:
                now_ns = self._clock.monotonic_ns()
                self._do(discovery.subscribe(service, number, now_ns, reliable=wish.reliable))
            else:
                self._groups.hear(wish.group, None)
                self._do(discovery.unsubscribe(service, number))
        self._admission.take_verdicts()
        for message in self._admission.requests():
            self._around.deliver(message)
        if self.ecus.version != self._foreign_changes:
            self._foreign_changes = self.ecus.version
            self._changed()

    # --- what service discovery says ----------------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Send():
                self._port.send(action.datagram, action.to)
            case Refused():
                self._around.refused(action.reason, action.peer, action.detail)
            case ServiceFound():
                self._found.found(action)
                self.ecus.goes_over(action.key, tcp=self._found.is_over_tcp(action.key))
            case ServiceLost():
                self._found.lost(action)
            case EventgroupSubscribed():
                self._groups.hear(GroupKey(action.key, action.eventgroup), action.multicast)
                self._tell(action.key, action.eventgroup, State.SUBSCRIBED)
            case EventgroupRefused():
                self._tell(action.key, action.eventgroup, State.REFUSED)
            case EventgroupLost():
                self._groups.hear(GroupKey(action.key, action.eventgroup), None)
                self._tell(action.key, action.eventgroup, State.PENDING)
            case SubscriptionAsked():
                self._admission.asked(action)
            case SubscriptionEnded():
                self._admission.ended(action.subscription)
            case InitialDataAsked():
                self._admission.send_values(action.subscription)
            case PeerRebooted():
                log.info("someip.rebooted", extra={"endpoint": self._name, "peer": action.peer[0]})
                self._connections.drop(action.peer[0])
            case StreamersHeard():
                self.streamers.heard(action.announcements)
            case OfferTurned():
                log.info("someip.offer_turned", extra=self._offer_extra(action))
                self.streamers.turned(action)
            case ConnectWanted():
                self._stream_there(TcpAddress(*action.address), [action.key])

    def _decide(self, accepted: Sequence[Subscription], refused: Sequence[Subscription]) -> None:
        assert self._discovery is not None
        self._do(self._discovery.decide(accepted, refused))

    def _offer_extra(self, news: OfferTurned) -> dict[str, object]:
        return {"endpoint": self._name, "service": str(news.key), "ours": news.ours}

    def _tell(self, key: ServiceKey, eventgroup: int, state: State) -> None:
        for message in self.ecus.turned(GroupKey(key, eventgroup), state):
            self._around.deliver(message)

    # --- connections --------------------------------------------------------------------------------------------------

    def stream_came(self, peer: TcpAddress, *, inbound: bool) -> None:
        """A connection with `peer` is there: what waits for it is subscribed."""
        if not inbound:
            self._stream_there(peer, self._found.over(peer))
            self._follow()

    def _stream_there(self, peer: TcpAddress, keys: list[ServiceKey]) -> None:
        local = self._connections.local(peer)
        for key in keys if local is not None and self._discovery is not None else ():
            assert local is not None
            assert self._discovery is not None
            self._do(self._discovery.connected(key, (local.host, local.port), self._clock.monotonic_ns()))

    def stream_gone(self, peer: TcpAddress, *, inbound: bool) -> None:
        """It is there no more: our subscriptions over it are made again, and an ECU's are over."""
        if self._discovery is None:
            return
        if inbound:
            self._admission.stream_gone(peer)
        else:
            for key in self._found.over(peer):
                self._do(self._discovery.disconnected(key))
        self._follow()

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """Of service discovery: what is there now, and `sd_found`, `sd_lost` services, `sd_unsent` messages since the start."""
        discovery = self._discovery
        return {
            **(self._last_counts if discovery is None else discovery.statistics()),
            **self.ecus.statistics(),
            **self._subscribers.statistics(),
            **self._events.statistics(),
            **self._found.statistics(),
            **({} if self._unlisted is None else self._unlisted.statistics()),
            "sd_unsent": self._port.unsent,
            "sd_waiting": len(self._waiting),
            "sd_groups_joined": len(self._groups),
            "sd_groups_not_joined": self._groups.not_joined,
        }


def _nobody_asks() -> None:
    """Before `directory`."""
