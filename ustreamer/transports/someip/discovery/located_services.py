# SPDX-License-Identifier: Apache-2.0
"""The requested services of the network: their current addresses and the connections to them."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from ustreamer.core.base.log_limit import limited
from ustreamer.transports.someip.config import ServiceConfig
from ustreamer.transports.someip.discovery.dynamic_services import DynamicServiceChanges
from ustreamer.transports.someip.discovery.service_registry import ServiceRegistry
from ustreamer.transports.someip.io.tcp_connections import TcpConnections
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress, format_address
from ustreamer.transports.someip.sd.actions import Action, ServiceFound, ServiceLost
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService
from ustreamer.uprotocol.uuri import UUri

log: Final = logging.getLogger("ustreamer.someip")


# [impl->SD-782]
class LocatedServices:
    """Belongs to the receiving thread."""

    def __init__(
        self,
        endpoint: str,
        authority: str,
        wanted: Iterable[ServiceConfig],
        services: ServiceRegistry,
        connections: TcpConnections,
        on_route_open: Callable[[UUri], None],
        on_lost: Callable[[UUri, list[Address], str], None],
    ) -> None:
        """`services` is updated on every change.

        `on_route_open` gets the uEntity of an available service; `on_service_lost`
        gets the uEntity, the last addresses and the reason.
        """
        self._endpoint = endpoint
        self._authority = authority
        self._wanted = {service_key(each): each for each in wanted}
        self._services = services
        self._connections = connections
        self._on_route_open = on_route_open
        self._on_lost = on_lost
        self._found: dict[ServiceKey, ServiceConfig] = {}
        self._streams: dict[TcpAddress, set[ServiceKey]] = {}
        self._times_found = self._times_lost = 0

    @property
    def wanted(self) -> Iterable[ServiceKey]:
        return self._wanted

    @property
    def found(self) -> Iterable[ServiceConfig]:
        """The available services, each at its address."""
        return self._found.values()

    def add_service(self, service: ServiceConfig) -> ServiceKey:
        """Follow one more configured service; returns its key."""
        key = service_key(service)
        self._wanted[key] = service
        return key

    def apply_changes(
        self, changes: DynamicServiceChanges, discovery: Discovery, now_ns: int
    ) -> list[Action]:
        """Request and release dynamic services; each request names the subscribed events."""
        actions: list[Action] = []
        for service in changes.wanted:
            key = service_key(service)
            self._wanted[key] = service
            known = self._found.get(key)
            if known is not None:
                self._found[key] = replace(known, events=service.events)
            actions += discovery.request_service(wanted_service(key), now_ns)
        for key in changes.released:
            del self._wanted[key]
            self._found.pop(key, None)
            self._release_connections(key)
            actions += discovery.release_service(wanted_service(key))
        if changes.wanted or changes.released:
            self._services.set_located_services(self._found.values())
        return actions

    # [impl->RPC-660, SD-14, SD-778, SD-779]
    def on_found(self, action: ServiceFound) -> None:
        """A service is available, or has another endpoint than before."""
        wanted = self._wanted.get(action.key)
        if wanted is None:
            return
        udp, tcp = (None if each is None else format_address(each) for each in (action.udp, action.tcp))
        self._times_found += 1
        log.info("someip.found", extra=self._extra(action.key) | {"udp": udp, "tcp": tcp})
        found = replace(wanted, remote=udp, remote_tcp=tcp)
        if found.any_method and (udp is None or self.is_over_tcp(action.key)):
            # A service that started over TCP stays there: its subscriptions end with the connection.
            found = replace(found, protocol="tcp")
        self._release_connections(action.key)
        self._found[action.key] = found
        if action.tcp is not None and found.uses_protocol("tcp"):
            address = TcpAddress(*action.tcp)
            self._streams.setdefault(address, set()).add(action.key)
            self._connections.connect(address)
        self._services.set_located_services(self._found.values())
        self._on_route_open(self._entity(wanted))

    # [impl->RPC-679, SD-14]
    def on_lost(self, action: ServiceLost) -> None:
        """A service is no longer available."""
        lost = self._found.pop(action.key, None)
        if lost is None:
            return
        self._times_lost += 1
        log.info("someip.lost", extra=self._extra(action.key) | {"why": str(action.why)})
        self._release_connections(action.key)
        self._services.set_located_services(self._found.values())
        addresses = dict.fromkeys((lost.remote_address, lost.tcp_address))
        self._on_lost(self._entity(lost), [each for each in addresses if each], str(action.why))

    def _entity(self, service: ServiceConfig) -> UUri:
        return UUri(self._authority, service.ue_id, service.major, 0)

    def _extra(self, key: ServiceKey) -> dict[str, object]:
        return {"endpoint": self._endpoint, "service": str(key), **limited(self._endpoint, key)}

    # [impl->RPC-645, RPC-678]
    def _release_connections(self, key: ServiceKey) -> None:
        for address, keys in list(self._streams.items()):
            keys.discard(key)
            if not keys:
                del self._streams[address]
                self._connections.disconnect(address)

    def is_over_tcp(self, key: ServiceKey) -> bool:
        """Whether a dynamic service is reached over TCP, because it is offered over TCP only."""
        found = self._found.get(key)
        return found is not None and found.any_method and found.protocol == "tcp"

    def services_over(self, stream: TcpAddress) -> list[ServiceKey]:
        """The services reached over an outbound connection."""
        return sorted(self._streams.get(stream, ()))

    def statistics(self) -> dict[str, int]:
        return {"sd_times_found": self._times_found, "sd_times_lost": self._times_lost}


def service_key(service: ServiceConfig) -> ServiceKey:
    """The service discovery key of a configured service."""
    return ServiceKey(service.service, service.instance, service.major)


# [impl->COMPAT-1197, COMPAT-1216]
def wanted_service(key: ServiceKey) -> WantedService:
    """The request for a service, for any minor version."""
    return WantedService(key.service, key.instance, key.major)
