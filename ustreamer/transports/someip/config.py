# SPDX-License-Identifier: Apache-2.0
"""`[endpoints.<name>]` with `transport = "someip"`: our address, and what exists and is offered on that network.

A SOME/IP header names neither sender nor instance, so what arrives is told apart by its IP address and its ids alone.
Whatever could not be told apart is refused here, with the keys that collide.
"""

import ipaddress
from collections.abc import Hashable, Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from ustreamer.core.subscriptions import UNLIMITED, period_of
from ustreamer.hookspecs import EndpointConfig
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

Address = tuple[str, int]
"""IPv4 address in its one spelling, and port: what the socket module gives and takes."""

# 0xFFFF is the wildcard of uProtocol and means "any" or "service discovery" in SOME/IP.
Id = Annotated[int, Meta(ge=0x0001, le=0xFFFE)]
Major = Annotated[int, Meta(ge=0, le=0xFE)]
EventId = Annotated[int, Meta(ge=0x8000, le=0xFFFE)]
MethodId = Annotated[int, Meta(ge=0x0001, le=0x7FFF)]
Port = Annotated[int, Meta(ge=1, le=0xFFFF)]
NO_DISCOVERY: Final = (
    "sd: service discovery is not part of this version; "
    "use sd = false, and remote for every service that is not offered"
)

_LOOPBACK: Final = ipaddress.IPv4Network("127.0.0.0/8")


class Event(Struct, frozen=True, forbid_unknown_fields=True):
    """An event or field notification. Without `eventgroup` the group has the number of the event (up-spec)."""

    id: EventId
    eventgroup: Id | None = None


class Receiver(Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who gets the events of an offered service without asking; `max_frequency` in Hz."""

    address: str
    max_frequency: float | None = None

    def __post_init__(self) -> None:
        _checked("address", self.address)
        if self.max_frequency is not None:
            try:
                period_of(self.max_frequency)
            except UStatusError as error:
                raise ValueError(error.message) from error

    @property
    def period_ns(self) -> int:
        return UNLIMITED if self.max_frequency is None else period_of(self.max_frequency)


# An instance number tells receivers apart (see SomeipTransport.subscriptions), and 0xFFFF is a wildcard.
Receivers = Annotated[tuple[Receiver, ...], Meta(max_length=0xFFFE)]


class Service(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service of the network (`remote`: where it lives) or, if `offered`, one that we offer for `provider`.

    For an offered service without service discovery, `remote` and `receivers` are who gets its events.
    """

    service: Id
    instance: Id = 1
    major: Major
    events: tuple[Event, ...] = ()
    methods: tuple[MethodId, ...] = ()
    remote: str | None = None
    receivers: Receivers = ()
    offered: bool = False
    provider: str | None = None

    def __post_init__(self) -> None:
        _distinct("events", [(event.id, f"event {event.id:#06x}") for event in self.events])
        _distinct("methods", [(method, f"method {method:#06x}") for method in self.methods])
        if self.remote is not None:
            _checked("remote", self.remote)
        if self.offered:
            self._check_offered()
        elif self.provider is not None or self.receivers:
            key = "provider" if self.provider is not None else "receivers"
            raise ValueError(f"{key}: only for a service with offered = true")

    def _check_offered(self) -> None:
        if self.provider is None:
            raise ValueError(
                'provider: missing; an offered service needs the uEntity behind it, such as "//hpc.vin1/1234/1/0"'
            )
        try:
            uuri = UUri.parse(self.provider)
        except UStatusError as error:
            raise ValueError(f"provider: {error.message}") from error
        if uuri.resource_id != 0 or uuri.wildcard():
            raise ValueError(f"provider: {self.provider}: expected a uEntity with resource 0 and no wildcard")
        _distinct(
            "receivers", [(parse_address(each.address), each.address) for each in self.static_receivers]
        )

    @property
    def remote_address(self) -> Address | None:
        return None if self.remote is None else parse_address(self.remote)

    @property
    def provider_uuri(self) -> UUri | None:
        return None if self.provider is None else UUri.parse(self.provider)

    @property
    def static_receivers(self) -> tuple[Receiver, ...]:
        """Who gets the events of an offered service: `remote` first, then `receivers`."""
        first = () if self.remote is None else (Receiver(self.remote),)
        return (*first, *self.receivers) if self.offered else ()

    @property
    def ue_id(self) -> int:
        """The service as a uEntity: instance 1 is what up-spec writes as 0."""
        return (self.instance << 16 if self.instance != 1 else 0) | self.service


class ServiceDiscovery(Struct, frozen=True, forbid_unknown_fields=True):
    """The multicast group and port of SOME/IP-SD, and our address on the interface it is used on."""

    multicast: str
    interface: str
    port: Port = 30490


class SomeipEndpoint(EndpointConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SOME/IP network over UDP.

    * `bind`, `port`: our unicast address; port 0 takes any free one, for tests.
    * `clients`: networks (CIDR) whose requests we accept. Without it: our own address (all of 127.0.0.0/8 if that is a
      loopback address), and the addresses of all remotes and receivers. Nobody else.
    * `client_version`: version of the uEntity that stands for a SOME/IP client, whose header has none.
    * `request_ttl_ms`: how long a SOME/IP client's request may take.
    * `max_pending`: open requests, for each direction on its own.
    * `receive_buffer`: bytes asked of the kernel, which caps them at net.core.rmem_max without a word.
    """

    bind: str
    port: Annotated[int, Meta(ge=0, le=0xFFFF)]
    sd: ServiceDiscovery | bool = False
    services: tuple[Service, ...] = ()
    clients: tuple[str, ...] | None = None
    client_version: Major = 1
    request_ttl_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 1_000
    # Below 0xFFFF: a request needs a session id that none of the open ones has.
    max_pending: Annotated[int, Meta(ge=1, le=0xFFFE)] = 4_096
    receive_buffer: Annotated[int, Meta(ge=4_096, le=1 << 30)] = 4_194_304

    def __post_init__(self) -> None:
        if not self.authorities or self.authorities[0] == ANY_AUTHORITY:
            raise ValueError(
                'authorities: expected a name in the first place, such as "chassis": services and clients get it'
            )
        if self.sd is True:
            raise ValueError("sd: true: expected false, or a table with multicast, port and interface")
        _checked_ip("bind", self.bind)
        for index, network in enumerate(self.clients or ()):
            _checked_network(f"clients[{index}]", network)
        _distinct("services", _claims(self))
        for index, service in enumerate(self.services):
            self._check_service(f"services[{index}]", service)

    def _check_service(self, where: str, service: Service) -> None:
        if self.sd is False and not service.offered and service.remote is None:
            raise ValueError(
                f'{where}.remote: missing; without sd a service needs its address, such as "10.0.0.2:30501"'
            )
        for address in (service.remote, *(each.address for each in service.receivers)):
            if address is not None and parse_address(address) == (self.bind, self.port):
                raise ValueError(f"{where}: {address} is this endpoint's own bind and port")
        provider = service.provider_uuri
        if provider is not None and provider.authority_name in self.authorities:
            raise ValueError(
                f"{where}.provider: {service.provider} lives behind this endpoint itself; "
                "a service is offered for a uEntity behind another one"
            )

    @property
    def authority(self) -> str:
        """The authority of every service and client on the network: the first one, whatever else lives here."""
        return self.authorities[0]

    def client_networks(self) -> tuple[ipaddress.IPv4Network, ...]:
        """Whose requests are accepted."""
        if self.clients is not None:
            return tuple(ipaddress.IPv4Network(each) for each in self.clients)
        own = ipaddress.IPv4Network(self.bind)
        peers = sorted({host for service in self.services for host, _ in _peers(service)})
        return (_LOOPBACK if own.subnet_of(_LOOPBACK) else own, *map(ipaddress.IPv4Network, peers))


def _peers(service: Service) -> list[Address]:
    addresses = [service.remote, *(each.address for each in service.receivers)]
    return [parse_address(address) for address in addresses if address is not None]


def _claims(config: SomeipEndpoint) -> Iterable[tuple[Hashable, str]]:
    """What no two services of an endpoint may have in common."""
    for service in config.services:
        name = f"service {service.service:#06x} version {service.major}"
        if service.offered:
            yield (
                ("offered", service.service, service.major),
                f"offered {name} (requests do not name an instance)",
            )
            yield ("provider", service.provider_uuri), f"provider {service.provider}"
            continue
        yield ("remote", service.ue_id, service.major), f"{name} instance {service.instance}"
        if service.remote_address is not None:
            host = service.remote_address[0]
            for event in service.events:
                what = f"event {event.id:#06x} of {name} from {host} (events do not name an instance)"
                yield ("event", host, service.service, service.major, event.id), what


def _distinct(where: str, claims: Iterable[tuple[Hashable, str]]) -> None:
    seen: set[Hashable] = set()
    for claim, name in claims:
        if claim in seen:
            raise ValueError(f"{where}: {name} is there twice")
        seen.add(claim)


def parse_address(text: str) -> Address:
    """Read `10.0.0.2:30501`. Raises ValueError for anything else; names are not looked up."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 0xFFFF):
        raise ValueError(f"{text!r}: expected an IPv4 address and a port, such as 10.0.0.2:30501")
    return _unicast(text, host), int(port)


def _unicast(text: str, host: str) -> str:
    try:
        ip = ipaddress.IPv4Address(host)
    except ValueError:
        raise ValueError(f"{text!r}: expected an IPv4 address and a port, such as 10.0.0.2:30501") from None
    if ip.is_multicast or ip.is_unspecified or int(ip) == 0xFFFF_FFFF:
        raise ValueError(f"{text!r}: expected the address of one host, not of many")
    return str(ip)


def _checked(key: str, address: str) -> None:
    try:
        parse_address(address)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _checked_ip(key: str, text: str) -> None:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"{key}: {text!r}: expected an IPv4 address, such as 10.0.0.1") from None


def _checked_network(key: str, text: str) -> None:
    try:
        ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}; expected a network, such as 10.0.0.0/24") from None
