# SPDX-License-Identifier: Apache-2.0
"""The services of an endpoint, one table for each question: whose event is this, who may call what, and where."""

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from ustreamer.core.routing.subscriptions import UNLIMITED
from ustreamer.hooks import RouteUnavailable
from ustreamer.transports.someip.config import Service, SomeipEndpoint
from ustreamer.transports.someip.discovery.dynamic_services import AnyMethod
from ustreamer.transports.someip.protocol.addresses import Address, parse_address
from ustreamer.transports.someip.protocol.codec import (
    PROTOCOL_VERSION,
    MessageType,
    ReturnCode,
    SomeIpMessage,
)
from ustreamer.transports.someip.protocol.correlation import ClientRequest
from ustreamer.transports.someip.protocol.mapping import (
    EventKey,
    EventReceiver,
    OfferedService,
    Refusal,
    RemoteService,
    Way,
    WireEvent,
)
from ustreamer.transports.someip.protocol.tp_config import Segmenting
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY_TYPE, UUri

_KEPT: Final = (
    4_096  # distinct attributes and addresses that are remembered; clients choose them, so it is a bound
)


class Services:
    """The configuration of an endpoint, turned round into one table for each question.

    `event` and `request` belong to the receiving thread; the rest only reads.
    """

    def __init__(self, config: SomeipEndpoint, own_authority: str) -> None:
        """`own_authority` stands for an empty one in `provider`."""
        self._authority = config.authority
        self._client_version = config.client_version
        self._request_ttl_ms = config.request_ttl_ms
        self._networks = config.client_networks()
        self._other_streamers = frozenset(config.other_streamers)
        self._hosts: dict[str, bool] = {}
        self._requesters: dict[tuple[int, int, int, int, int], UAttributes] = {}
        offered = [each for each in config.services if each.offered]
        remote = [each for each in config.services if not each.offered]
        self.events, self._alike = _told_apart(config.authority, remote)
        """The events that are expected from each host; `place` changes it as it stands."""
        self.groups = tuple(dict.fromkeys(group for each in remote for group in each.groups))
        """The multicast groups that events are expected in, by the configuration."""
        self._placed = [each for each in remote if not each.to_be_found]
        self.senders = tuple(dict.fromkeys(each for each in map(_sender, self._placed) if each is not None))
        """From where events come over UDP, by the configuration."""
        self._to_be_found = {
            UUri(config.authority, each.ue_id, each.major, 0) for each in remote if each.to_be_found
        }
        self._event_keys = frozenset(
            _event_key(each.service << 16 | event.id, each.major) for each in remote for event in each.events
        )
        self._event_ids = frozenset(message_id for message_id, _ in self._event_keys)
        self._remote = _remote(config.authority, remote)
        self._offered = _offered(offered, own_authority)
        self.receivers = tuple(_receivers(config, offered, own_authority))
        self._hosts_of_remotes = _hosts(remote)
        self._seek: Callable[[UUri], None] | None = None
        self.ways: dict[UAttributes, Way] = {}
        """Where requests go, for `short_ways`; another dict as soon as anything has moved."""
        self._providers = {topic.with_resource(0) for each in self.receivers for topic in each.events}

    # --- in -------------------------------------------------------------------------------------------------------------

    def place(self, found: Iterable[Service]) -> None:
        """Take these services of the network to be at their `remote`, and no others beside those of the configuration.

        Belongs to the receiving thread. Two instances on one host send the same events: those are told apart by port.
        """
        services = [*self._placed, *found]
        events, self._alike = _told_apart(self._authority, services)
        self.events.clear()
        self.events.update(events)
        self._remote = _remote(self._authority, services)
        self._hosts_of_remotes = _hosts(services)
        self.ways = {}

    def believe(self, networks: Iterable[IPv4Network]) -> None:
        """Accept requests from these networks as well."""
        self._networks = (*self._networks, *networks)
        self._hosts.clear()

    def seek_unlisted(self, seek: Callable[[UUri], None]) -> None:
        """Call `seek` with every method of a service that is in no table; it raises UStatusError for what cannot be sought."""
        self._seek = seek

    def event(self, message: SomeIpMessage, host: str, port: int = 0) -> UAttributes | Refusal:
        """The attributes, one object per event, of a NOTIFICATION from `host`, whatever its return code says."""
        key = _event_key(message.message_id, message.interface_version)
        attributes = self.events.get(host, {}).get(key) or self._alike.get(((host, port), key))
        if attributes is not None:
            return attributes
        if key in self._event_keys:
            return Refusal.EVENT_ADDRESS
        return Refusal.EVENT_VERSION if message.message_id in self._event_ids else Refusal.EVENT_UNKNOWN

    def request(self, message: SomeIpMessage, host: str) -> UAttributes | Refusal:
        """The attributes, shared by requests of one client for one method, of a REQUEST from `host`."""
        if not self.is_client(host):
            return Refusal.REQUEST_ADDRESS
        kind = message.message_type
        key = (message.service, message.method, message.client, message.interface_version, kind)
        attributes = self._requesters.get(key)
        if attributes is None:
            found = self._requested(message)
            if isinstance(found, Refusal):
                return found
            if len(self._requesters) >= _KEPT:
                self._requesters.clear()
            attributes = self._requesters[key] = found
        return attributes

    def _requested(self, message: SomeIpMessage) -> UAttributes | Refusal:
        versions = self._offered.get(message.service)
        if versions is None:
            return Refusal.REQUEST_SERVICE
        service = versions.get(message.interface_version)
        if service is None:
            return Refusal.REQUEST_VERSION
        if message.method not in service.methods:
            return Refusal.REQUEST_METHOD
        if message.method in service.no_return and message.message_type == MessageType.REQUEST:
            return Refusal.REQUEST_TYPE
        if message.client == ANY_TYPE:
            return Refusal.REQUEST_CLIENT
        return UAttributes(
            type=UMessageType.REQUEST,
            source=UUri(self._authority, message.client, self._client_version, 0),
            sink=service.provider.with_resource(message.method),
            priority=UPriority.CS4,
            ttl=self._request_ttl_ms,
        )

    def knows(self, host: str) -> bool:
        """Whether `host` has a service or may be a client."""
        return host in self._hosts_of_remotes or self.is_client(host)

    def is_client(self, host: str) -> bool:
        """Whether requests of `host` are accepted; those of other streamers would go round."""
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= _KEPT:
                self._hosts.clear()
            among_them = any(IPv4Address(host) in network for network in self._networks)
            known = self._hosts[host] = among_them and host not in self._other_streamers
        return known

    # --- out ------------------------------------------------------------------------------------------------------------

    def remote(self, method: UUri) -> RemoteService:
        """Where `method` is to be called. Raises UStatusError: NOT_FOUND (service) or UNIMPLEMENTED (method)."""
        service = self._remote.get(method.with_resource(0))
        if self._seek is not None:
            self._seek_unlisted(method, service)
        if service is None:
            if self._seek is not None or method.with_resource(0) in self._to_be_found:
                text = f"sink {method}: its service is not offered at present"
                raise RouteUnavailable(method.with_resource(0), text)
            raise UStatusError(UCode.NOT_FOUND, f"sink {method}: no such service is configured with a remote")
        if method.resource_id not in service.methods:
            known = ", ".join(f"{each:X}" for each in sorted(service.methods)) or "none"
            raise UStatusError(UCode.UNIMPLEMENTED, f"sink {method}: not one of its methods ({known})")
        return service

    def _seek_unlisted(self, method: UUri, service: RemoteService | None) -> None:
        listed = method.with_resource(0) in self._to_be_found if service is None else service.listed
        if not listed and self._seek is not None:
            self._seek(method)

    def response_segmenting(self, asked: ClientRequest) -> Segmenting | None:
        """How a long response of ours is sent in segments; None: in one datagram."""
        service = self._offered.get(asked.service, {}).get(asked.interface_version)
        return None if service is None else service.segmenting.get(asked.method)

    def no_event(self, topic: UUri) -> UStatusError:
        """Why a publication on `topic`, which is not in a receiver's events, has nowhere to go."""
        if topic.with_resource(0) in self._providers:
            return UStatusError(UCode.UNIMPLEMENTED, f"topic {topic}: not one of the events of this service")
        return UStatusError(
            UCode.NOT_FOUND, f"topic {topic}: no service is offered for it that has receivers"
        )


def _sender(service: Service) -> Address | None:
    sends = any(service.protocol_of(each) == "udp" for each in service.events)
    return service.remote_address if sends else None


def _event_key(message_id: int, major: int) -> EventKey:
    return message_id, PROTOCOL_VERSION << 24 | major << 16 | MessageType.NOTIFICATION << 8 | ReturnCode.E_OK


def _events(authority: str, services: Iterable[Service]) -> dict[str, dict[EventKey, UAttributes]]:
    table: dict[str, dict[EventKey, UAttributes]] = {}
    for service in services:
        for event in service.events:
            host = service.host_of(event)
            if host is None:
                continue
            table.setdefault(host, {})[_event_key(service.service << 16 | event.id, service.major)] = (
                UAttributes(
                    type=UMessageType.PUBLISH,
                    source=UUri(authority, service.ue_id, service.major, event.id),
                    priority=UPriority.CS1,
                )
            )
    return table


def _told_apart(
    authority: str, services: Iterable[Service]
) -> tuple[dict[str, dict[EventKey, UAttributes]], dict[tuple[Address, EventKey], UAttributes]]:
    """The events of each host that only one service there sends, and the others by address."""
    table: dict[str, dict[EventKey, UAttributes]] = {}
    alike: dict[tuple[Address, EventKey], UAttributes] = {}
    doubles: set[tuple[str, EventKey]] = set()
    for service in services:
        for host, events in _events(authority, [service]).items():
            known = table.setdefault(host, {})
            doubles.update((host, key) for key in events.keys() & known.keys())
            known.update(events)
            for address in (service.remote_address, service.tcp_address):
                if address is not None and address[0] == host:
                    alike.update((((host, address[1]), key), each) for key, each in events.items())
    for host, key in doubles:
        del table[host][key]
    return table, {place: each for place, each in alike.items() if (place[0][0], place[1]) in doubles}


def _hosts(services: Iterable[Service]) -> set[str]:
    return {each[0] for service in services for each in (service.remote_address, service.tcp_address) if each}


def _remote(authority: str, services: Iterable[Service]) -> dict[UUri, RemoteService]:
    return {
        UUri(authority, each.ue_id, each.major, 0): RemoteService(
            each.service,
            each.major,
            _called_at(each),
            _segmenting(each),
            each.no_return_methods,
            not each.any_method,
        )
        for each in services
        if each.remote_address or each.tcp_address
    }


def _called_at(service: Service) -> Mapping[int, Address]:
    if service.any_method:
        address = service.tcp_address if service.protocol == "tcp" else service.remote_address
        return {} if address is None else AnyMethod(address)
    over_tcp = service.tcp_methods
    addresses = {
        id: service.tcp_address if id in over_tcp else service.remote_address for id in service.method_ids
    }
    return {id: address for id, address in addresses.items() if address is not None}


def _offered(services: Iterable[Service], own_authority: str) -> dict[int, dict[int, OfferedService]]:
    """Service -> major -> what we offer."""
    table: dict[int, dict[int, OfferedService]] = {}
    for each in services:
        offer = OfferedService(
            _provider(each, own_authority),
            frozenset(each.method_ids),
            _segmenting(each),
            each.no_return_methods,
        )
        table.setdefault(each.service, {})[each.major] = offer
    return table


def _receivers(
    config: SomeipEndpoint, services: Iterable[Service], own_authority: str
) -> Iterable[EventReceiver]:
    for each in services:
        provider = _provider(each, own_authority)
        groups = each.groups if config.sd is False else ()
        over_tcp = frozenset(
            provider.with_resource(event.id) for event in each.events if each.protocol_of(event) == "tcp"
        )
        for number, receiver in enumerate(each.static_receivers):
            subscriber = UUri(config.authority, number << 16 | each.service, each.major, 0)
            address = parse_address(receiver.address)
            events = _wire_events(each, provider, None, groups)
            yield EventReceiver(subscriber, address, receiver.period_ns, events, over_tcp)
        for number, group in enumerate(groups, len(each.static_receivers)):
            subscriber = UUri(config.authority, number << 16 | each.service, each.major, 0)
            yield EventReceiver(subscriber, group, UNLIMITED, _wire_events(each, provider, group, groups))


def _wire_events(
    service: Service, provider: UUri, group: Address | None, groups: Iterable[Address]
) -> dict[UUri, WireEvent]:
    """The events that go to `group`, or (None) to none of `groups`."""
    return {
        provider.with_resource(event.id): WireEvent(
            service.service, event.id, service.major, service.segmenting(event)
        )
        for event in service.events
        if group in ((service.groups_of(event) if groups else ()) or (None,))
    }


def _segmenting(service: Service) -> dict[int, Segmenting]:
    pairs = zip(service.method_ids, service.methods, strict=True)
    found = ((id, service.segmenting(method)) for id, method in pairs)
    return {method: how for method, how in found if how is not None}


def _provider(service: Service, own_authority: str) -> UUri:
    assert service.provider_uuri is not None  # config.py has seen to it
    return service.provider_uuri.with_authority(own_authority)
