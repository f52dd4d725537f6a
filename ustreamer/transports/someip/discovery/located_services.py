# SPDX-License-Identifier: Apache-2.0
"""The services of the network that service discovery looks for: where they are now, and the connections to them."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from ustreamer.transports.someip.config import Service
from ustreamer.transports.someip.discovery.dynamic_services import Changes
from ustreamer.transports.someip.discovery.service_registry import Services
from ustreamer.transports.someip.io.tcp_connections import Connections
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.sd.actions import Action, ServiceFound, ServiceLost
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService
from ustreamer.uprotocol.uuri import UUri

log: Final = logging.getLogger("ustreamer.someip")


class FoundServices:
    """Belongs to the receiving thread."""

    def __init__(
        self,
        endpoint: str,
        authority: str,
        sought: Iterable[Service],
        services: Services,
        connections: Connections,
        route_open: Callable[[UUri], None],
        gone: Callable[[UUri, list[Address], str], None],
    ) -> None:
        """`services` is told of every change; `route_open` of whoever is there now, and `gone` of who is not any more,
        where that was and why, by its uEntity.
        """
        self._endpoint = endpoint
        self._authority = authority
        self._sought = {key_of(each): each for each in sought}
        self._services = services
        self._connections = connections
        self._route_open = route_open
        self._gone = gone
        self._found: dict[ServiceKey, Service] = {}
        self._streams: dict[TcpAddress, set[ServiceKey]] = {}
        self._times_found = self._times_lost = 0

    @property
    def sought(self) -> Iterable[ServiceKey]:
        return self._sought

    def follow(self, changes: Changes, discovery: Discovery, now_ns: int) -> list[Action]:
        """Look for services that are not listed, each with the events that are wanted now, and for others no more."""
        actions: list[Action] = []
        for service in changes.sought:
            key = key_of(service)
            self._sought[key] = service
            known = self._found.get(key)
            if known is not None:
                self._found[key] = replace(known, events=service.events)
            actions += discovery.want(wanted(key), now_ns)
        for key in changes.released:
            del self._sought[key]
            self._found.pop(key, None)
            self._let_go(key)
            actions += discovery.release(wanted(key))
        if changes.sought or changes.released:
            self._services.place(self._found.values())
        return actions

    def found(self, news: ServiceFound) -> None:
        """A service is there, or has another endpoint than before."""
        sought = self._sought.get(news.key)
        if sought is None:
            return
        udp, tcp = (None if each is None else f"{each[0]}:{each[1]}" for each in (news.udp, news.tcp))
        self._times_found += 1
        log.info("someip.found", extra=self._extra(news.key) | {"udp": udp, "tcp": tcp})
        found = replace(sought, remote=udp, remote_tcp=tcp)
        if found.any_method and (udp is None or self.is_over_tcp(news.key)):
            # What has begun over TCP stays there: its subscriptions would be lost with the connection.
            found = replace(found, protocol="tcp")
        self._let_go(news.key)
        self._found[news.key] = found
        if news.tcp is not None and found.uses("tcp"):
            address = TcpAddress(*news.tcp)
            self._streams.setdefault(address, set()).add(news.key)
            self._connections.connect(address)
        self._services.place(self._found.values())
        self._route_open(self._entity(sought))

    def lost(self, news: ServiceLost) -> None:
        """It is there no more."""
        lost = self._found.pop(news.key, None)
        if lost is None:
            return
        self._times_lost += 1
        log.info("someip.lost", extra=self._extra(news.key) | {"why": str(news.why)})
        self._let_go(news.key)
        self._services.place(self._found.values())
        addresses = dict.fromkeys((lost.remote_address, lost.tcp_address))
        self._gone(self._entity(lost), [each for each in addresses if each], str(news.why))

    def _entity(self, service: Service) -> UUri:
        return UUri(self._authority, service.ue_id, service.major, 0)

    def _extra(self, key: ServiceKey) -> dict[str, str | None]:
        return {"endpoint": self._endpoint, "service": str(key)}

    def _let_go(self, key: ServiceKey) -> None:
        for address, keys in list(self._streams.items()):
            keys.discard(key)
            if not keys:
                del self._streams[address]
                self._connections.disconnect(address)

    def is_over_tcp(self, key: ServiceKey) -> bool:
        """Whether a service that is not listed is reached over TCP, because it is offered there alone."""
        found = self._found.get(key)
        return found is not None and found.any_method and found.protocol == "tcp"

    def over(self, stream: TcpAddress) -> list[ServiceKey]:
        """The services that are behind a connection of ours."""
        return sorted(self._streams.get(stream, ()))

    def statistics(self) -> dict[str, int]:
        return {"sd_times_found": self._times_found, "sd_times_lost": self._times_lost}


def key_of(service: Service) -> ServiceKey:
    """A service of the configuration, in the words of service discovery."""
    return ServiceKey(service.service, service.instance, service.major)


def wanted(key: ServiceKey) -> WantedService:
    """The same as a wish, of whichever minor version."""
    return WantedService(key.service, key.instance, key.major)
