# SPDX-License-Identifier: Apache-2.0
"""The services of an endpoint, as lookup tables: the attributes of events, the permitted requests, the destinations."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import count
from typing import Final

from ustreamer.core.routing.subscriptions import UNLIMITED
from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.config import ServiceConfig, SomeipEndpoint
from ustreamer.transports.someip.protocol.addresses import Address, Network, TcpAddress, parse_address
from ustreamer.transports.someip.protocol.codec import (
    PROTOCOL_VERSION,
    MessageType,
    ReturnCode,
    SomeIpMessage,
)
from ustreamer.transports.someip.protocol.correlation import InboundRequest
from ustreamer.transports.someip.protocol.dscp import at_priority, with_dscp
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.mapping import (
    EventKey,
    EventReceiver,
    EventTemplate,
    OfferedService,
    RemoteService,
    RequestTemplate,
    SomeipRefusal,
)
from ustreamer.transports.someip.protocol.tp_config import TpSegmentation
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY_TYPE, UUri

_MAX_CACHED: Final = 4_096  # of each kind; clients choose the keys


class ServiceRegistry:
    """Lookup tables of an endpoint, built from its configuration and the located services.

    `event_attributes` and `request_attributes` belong to the receiving thread; all other methods only read.
    """

    def __init__(self, config: SomeipEndpoint, own_authority: str, port: int | None = None) -> None:
        """`own_authority` replaces an empty authority in `provider`.

        The requests are those for offered services with this `port`; None: those at the port of the endpoint.
        """
        self._authority = config.authority
        self._client_version = config.client_version
        self._request_ttl_ms = config.request_ttl_ms
        self._own_authority, self._port = own_authority, port
        self._trusted_networks: tuple[Network, ...] = ()
        self._peer_streamers = frozenset(config.peer_streamer_addresses)
        self._client_hosts: BoundedCache[str, bool] = BoundedCache(_MAX_CACHED)
        self._requesters: BoundedCache[tuple[int, int, int, int, int], UAttributes] = BoundedCache(
            _MAX_CACHED
        )
        self.events_by_host: dict[str, dict[EventKey, UAttributes]] = {}
        """The expected events of each host, without those with E2E protection; `set_located_services` updates the dict in
        place.
        """
        self._request_dynamic: Callable[[UUri], None] | None = None
        self.request_templates: BoundedCache[UAttributes, RequestTemplate]
        """The destinations of requests, for `rpc/fast_path.py`; replaced by a new dict after any change of address."""
        self.set_configured_services(config)

    def set_configured_services(self, config: SomeipEndpoint, located: Iterable[ServiceConfig] = ()) -> None:
        """Set the configured services, and the located ones. Belongs to the receiving thread while it runs."""
        own_authority = self._own_authority
        offered = [each for each in config.services if each.offered]
        remote = [each for each in config.services if not each.offered]
        self._e2e_events = e2e_events(config)
        self._dscp_of = config.dscp_of
        self.response_dscp = {
            each.service: dscp for each in offered if (dscp := config.dscp_of(each)) is not None
        }
        """Of offered services that have a DSCP."""
        self._networks = (*config.client_networks(), *self._trusted_networks)
        self._client_hosts.clear()
        self.static_groups = tuple(dict.fromkeys(group for each in remote for group in each.multicast_groups))
        """The configured multicast groups of events."""
        self._static_services = [each for each in remote if not each.needs_discovery]
        self.event_senders = tuple(
            dict.fromkeys(each for each in map(_event_sender, self._static_services) if each is not None)
        )
        """The configured source addresses of events over UDP."""
        self._discovered_entities = {
            UUri(config.authority, each.ue_id, each.major, 0) for each in remote if each.needs_discovery
        }
        self._event_keys = frozenset(
            _event_key(each.service << 16 | event.id, each.major) for each in remote for event in each.events
        )
        self._event_ids = frozenset(message_id for message_id, _ in self._event_keys)
        self._offered = _offered((each for each in offered if each.port == self._port), own_authority)
        self.receivers = tuple(_receivers(config, offered, own_authority))
        self._providers = {topic.with_resource(0) for each in self.receivers for topic in each.events}
        self.set_located_services(located)

    # --- inbound ------------------------------------------------------------------------------------------------------

    def set_located_services(self, located: Iterable[ServiceConfig]) -> None:
        """Set the located services of the network, each at its `remote`; the configured services stay.

        Belongs to the receiving thread. Two instances on one host send the same events and are distinguished by port.
        """
        services = [*self._static_services, *located]
        events, self._events_by_address = _events_by_source(self._authority, services)
        self._e2e_events_by_host = _pop_e2e_events(events, self._e2e_events)
        self.events_by_host.clear()
        self.events_by_host.update(events)
        self._remote = _remote(self._authority, services, self._dscp_of)
        self._hosts_of = {
            UUri(self._authority, each.ue_id, each.major, 0): _hosts([each]) for each in services
        }
        self._remote_hosts = _hosts(services)
        self.request_templates = BoundedCache(_MAX_CACHED)

    def trust_networks(self, networks: Iterable[Network]) -> None:
        """Accept requests from these networks as well."""
        self._trusted_networks = (*self._trusted_networks, *networks)
        self._networks = (*self._networks, *networks)
        self._client_hosts.clear()

    def set_dynamic_request(self, request_dynamic: Callable[[UUri], None]) -> None:
        """Set the function that requests an unknown service by method; it raises UStatusError for an invalid address."""
        self._request_dynamic = request_dynamic

    # [impl->RPC-56]
    def event_attributes(
        self, message: SomeIpMessage, host: str, port: int = 0
    ) -> UAttributes | SomeipRefusal:
        """The attributes of a NOTIFICATION from `host`, one object per event; the return code is ignored."""
        key = _event_key(message.message_id, message.interface_version)
        attributes = (
            self.events_by_host.get(host, {}).get(key)
            or self._e2e_events_by_host.get(host, {}).get(key)
            or self._events_by_address.get(((host, port), key))
        )
        if attributes is not None:
            return attributes
        if key in self._event_keys:
            return SomeipRefusal.EVENT_ADDRESS
        return (
            SomeipRefusal.EVENT_VERSION
            if message.message_id in self._event_ids
            else SomeipRefusal.EVENT_UNKNOWN
        )

    # [impl->RPC-56, COMPAT-1202, COMPAT-801]
    def request_attributes(self, message: SomeIpMessage, host: str) -> UAttributes | SomeipRefusal:
        """The attributes of a REQUEST from `host`, shared by the requests of one client for one method."""
        if not self.is_client(host):
            return SomeipRefusal.REQUEST_ADDRESS
        kind = message.message_type
        key = (message.service, message.method, message.client, message.interface_version, kind)
        attributes = self._requesters.get(key)
        if attributes is None:
            found = self._requested(message)
            if isinstance(found, SomeipRefusal):
                return found
            self._requesters.add(key, found)
            attributes = found
        return attributes

    def _requested(self, message: SomeIpMessage) -> UAttributes | SomeipRefusal:
        versions = self._offered.get(message.service)
        if versions is None:
            return SomeipRefusal.REQUEST_SERVICE
        service = versions.get(message.interface_version)
        if service is None:
            return SomeipRefusal.REQUEST_VERSION
        if message.method not in service.methods:
            return SomeipRefusal.REQUEST_METHOD
        if message.method in service.no_return and message.message_type == MessageType.REQUEST:
            return SomeipRefusal.REQUEST_TYPE
        if message.client == ANY_TYPE:
            return SomeipRefusal.REQUEST_CLIENT
        return UAttributes(
            type=UMessageType.REQUEST,
            source=UUri(self._authority, message.client, self._client_version, 0),
            sink=service.provider.with_resource(message.method),
            priority=UPriority.CS4,
            ttl=self._request_ttl_ms,
        )

    def message_id_of(self, address: UUri) -> tuple[int, int]:
        """The service id, and the method or event id, of an address: of an offered service, or of one of the network."""
        entity = address.with_resource(0)
        for service, versions in self._offered.items():
            if any(each.provider == entity for each in versions.values()):
                return service, address.resource_id
        return address.ue_id & 0xFFFF, address.resource_id

    def addresses_of(self, address: UUri) -> set[Address]:
        """The UDP addresses to which the endpoint sends a topic, or calls of a method, by the configuration or an Offer."""
        service = self._remote.get(address.with_resource(0))
        called = None if service is None else service.methods.get(address.resource_id)
        receivers = [
            each.address for each in self.receivers if address in each.events and address not in each.over_tcp
        ]
        return {
            (each[0], each[1]) for each in (*receivers, called) if each and not isinstance(each, TcpAddress)
        }

    def is_host_of_other(self, entity: UUri, host: str) -> bool:
        """Whether `host` has services of the network, but not this one."""
        return host in self._remote_hosts and host not in self._hosts_of.get(entity, ())

    def is_missing(self, entity: UUri) -> bool:
        """Whether service discovery looks for a service and has not found it."""
        return entity in self._discovered_entities and entity not in self._remote

    def is_known_host(self, host: str) -> bool:
        """Whether `host` has a service or may be a client."""
        return host in self._remote_hosts or self.is_client(host)

    def is_client(self, host: str) -> bool:
        """Whether requests of `host` are accepted. Requests of other streamers are refused, because they could loop."""
        known = self._client_hosts.get(host)
        if known is None:
            is_in_networks = any(ip_address(host) in network for network in self._networks)
            known = is_in_networks and host not in self._peer_streamers
            self._client_hosts.add(host, known)
        return known

    # --- outbound -----------------------------------------------------------------------------------------------------

    def remote_service(self, method: UUri) -> RemoteService:
        """The destination of calls to `method`. Raises UStatusError: NOT_FOUND (service) or UNIMPLEMENTED (method)."""
        service = self._remote.get(method.with_resource(0))
        if self._request_dynamic is not None:
            self._request_if_dynamic(method, service)
        if service is None:
            if self._request_dynamic is not None or method.with_resource(0) in self._discovered_entities:
                text = f"sink {method}: its service is not offered at present"
                raise RouteUnavailable(method.with_resource(0), text)
            raise UStatusError(UCode.NOT_FOUND, f"sink {method}: no such service is configured with a remote")
        if method.resource_id not in service.methods:
            known = ", ".join(f"{each:X}" for each in sorted(service.methods)) or "none"
            raise UStatusError(UCode.UNIMPLEMENTED, f"sink {method}: not one of its methods ({known})")
        return service

    def _request_if_dynamic(self, method: UUri, service: RemoteService | None) -> None:
        is_configured = (
            method.with_resource(0) in self._discovered_entities if service is None else service.is_configured
        )
        if not is_configured and self._request_dynamic is not None:
            self._request_dynamic(method)

    def response_segmenting(self, client_request: InboundRequest) -> TpSegmentation | None:
        """The segmentation of a long response; None: one datagram."""
        service = self._offered.get(client_request.service, {}).get(client_request.interface_version)
        return None if service is None else service.segmentation.get(client_request.method)

    def response_address(self, client_request: InboundRequest, response: UAttributes) -> Address:
        """The address of a client, with the DSCP of the service or of the response."""
        dscp = self.response_dscp.get(client_request.service)
        return at_priority(with_dscp(client_request.address, dscp), response.priority_class)

    def no_event_error(self, topic: UUri) -> UStatusError:
        """The error for a publication on `topic` without a receiver."""
        if topic.with_resource(0) in self._providers:
            return UStatusError(UCode.UNIMPLEMENTED, f"topic {topic}: not one of the events of this service")
        return UStatusError(
            UCode.NOT_FOUND, f"topic {topic}: no service is offered for it that has receivers"
        )


# [impl->SD-781]
def _event_sender(service: ServiceConfig) -> Address | None:
    sends = any(service.protocol_of(each) == "udp" for each in service.events)
    return service.remote_address if sends else None


def _event_key(message_id: int, major: int) -> EventKey:
    return message_id, PROTOCOL_VERSION << 24 | major << 16 | MessageType.NOTIFICATION << 8 | ReturnCode.E_OK


def _events(authority: str, services: Iterable[ServiceConfig]) -> dict[str, dict[EventKey, UAttributes]]:
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


def _events_by_source(
    authority: str, services: Iterable[ServiceConfig]
) -> tuple[dict[str, dict[EventKey, UAttributes]], dict[tuple[Address, EventKey], UAttributes]]:
    """The events of each host that one service there sends, and by address those that several services send."""
    table: dict[str, dict[EventKey, UAttributes]] = {}
    by_address: dict[tuple[Address, EventKey], UAttributes] = {}
    duplicates: set[tuple[str, EventKey]] = set()
    for service in services:
        for host, events in _events(authority, [service]).items():
            known = table.setdefault(host, {})
            duplicates.update((host, key) for key in events.keys() & known.keys())
            known.update(events)
            for address in (service.remote_address, service.tcp_address):
                if address is not None and address[0] == host:
                    by_address.update((((host, address[1]), key), each) for key, each in events.items())
    for host, key in duplicates:
        del table[host][key]
    return table, {
        source: each for source, each in by_address.items() if (source[0][0], source[1]) in duplicates
    }


def e2e_events(config: SomeipEndpoint) -> dict[UUri, E2eConfig]:
    """The events of the network that are checked by E2E protection, by topic."""
    return {
        UUri(config.authority, service.ue_id, service.major, event.id): event.e2e
        for service in config.services
        if not service.offered
        for event in service.events
        if event.e2e is not None
    }


def _pop_e2e_events(
    events_by_host: dict[str, dict[EventKey, UAttributes]], e2e_events: Container[UUri]
) -> dict[str, dict[EventKey, UAttributes]]:
    """Take the events with E2E protection out of the table of the fast path."""
    popped: dict[str, dict[EventKey, UAttributes]] = {}
    for host, events in events_by_host.items():
        for key in [key for key, each in events.items() if each.source in e2e_events]:
            popped.setdefault(host, {})[key] = events.pop(key)
    return popped


def _hosts(services: Iterable[ServiceConfig]) -> set[str]:
    return {each[0] for service in services for each in (service.remote_address, service.tcp_address) if each}


def _remote(
    authority: str, services: Iterable[ServiceConfig], dscp_of: Callable[[ServiceConfig], int | None]
) -> dict[UUri, RemoteService]:
    return {
        UUri(authority, each.ue_id, each.major, 0): RemoteService(
            each.service,
            each.major,
            _method_addresses(each, dscp_of(each)),
            _segmenting(each),
            each.no_return_methods,
            not each.any_method,
        )
        for each in services
        if each.remote_address or each.tcp_address
    }


def _method_addresses(service: ServiceConfig, dscp: int | None) -> Mapping[int, Address]:
    if service.any_method:
        address = service.tcp_address if service.protocol == "tcp" else service.remote_address
        if address is None:
            return {}
        from ustreamer.transports.someip.discovery.dynamic_services import AnyMethod  # few services have it

        return AnyMethod(with_dscp(address, dscp))
    over_tcp = service.tcp_methods
    addresses = {
        id: service.tcp_address if id in over_tcp else service.remote_address for id in service.method_ids
    }
    return {id: with_dscp(address, dscp) for id, address in addresses.items() if address is not None}


# [impl->COMPAT-801]
def _offered(services: Iterable[ServiceConfig], own_authority: str) -> dict[int, dict[int, OfferedService]]:
    """Map service and major version to the offered service."""
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
    config: SomeipEndpoint, services: Iterable[ServiceConfig], own_authority: str
) -> Iterable[EventReceiver]:
    numbers: dict[tuple[int, int], Iterator[int]] = {}  # instances of a service share its uEntities
    for each in services:
        provider = _provider(each, own_authority)
        free = numbers.setdefault((each.service, each.major), count())
        groups = each.multicast_groups if config.sd is False else ()
        over_tcp = frozenset(
            provider.with_resource(event.id) for event in each.events if each.protocol_of(event) == "tcp"
        )
        for receiver in each.static_receivers:
            subscriber = UUri(config.authority, next(free) << 16 | each.service, each.major, 0)
            address = with_dscp(parse_address(receiver.address), config.dscp_of(each))
            events = _wire_events(each, provider, None, groups)
            yield EventReceiver(subscriber, address, receiver.period_ns, events, over_tcp)
        for group in groups:
            subscriber = UUri(config.authority, next(free) << 16 | each.service, each.major, 0)
            address = with_dscp(group, config.dscp_of(each))
            yield EventReceiver(subscriber, address, UNLIMITED, _wire_events(each, provider, group, groups))


def _wire_events(
    service: ServiceConfig, provider: UUri, group: Address | None, groups: Iterable[Address]
) -> dict[UUri, EventTemplate]:
    """The events that use multicast group `group`, or (None) none of `groups`."""
    return {
        provider.with_resource(event.id): EventTemplate(
            service.service, event.id, service.major, service.segmentation_of(event), event.e2e
        )
        for event in service.events
        if group in ((service.multicast_groups_of(event) if groups else ()) or (None,))
    }


def _segmenting(service: ServiceConfig) -> dict[int, TpSegmentation]:
    pairs = zip(service.method_ids, service.methods, strict=True)
    found = ((id, service.segmentation_of(method)) for id, method in pairs)
    return {method: how for method, how in found if how is not None}


def _provider(service: ServiceConfig, own_authority: str) -> UUri:
    assert service.provider_uuri is not None  # checked by config.py
    return service.provider_uuri.with_authority(own_authority)
