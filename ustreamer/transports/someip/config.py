# SPDX-License-Identifier: Apache-2.0
"""`[endpoints.<name>]` with `transport = "someip"`: our address, and the services of the network and of ours.

A SOME/IP header names neither sender nor instance. Input is identified by its IP address and its ids alone.
A configuration with ambiguous identities is refused, with the keys that collide.
"""

import ipaddress
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct

from ustreamer.core.routing.subscriptions import UNLIMITED, period_of
from ustreamer.transport_port import BoundAddress, ConfigWarning, EndpointConfig, NamedPattern
from ustreamer.transports.someip.protocol.addresses import (
    Address,
    Network,
    TcpAddress,
    check_address,
    check_group,
    check_ip,
    check_network,
    format_address,
    is_ipv6,
    is_of_many,
    parse_address,
    parse_group,
)
from ustreamer.transports.someip.protocol.codec import MessageType
from ustreamer.transports.someip.protocol.dscp import BY_PRIORITY, DSCP_NAMES
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.socket_marks import SocketMarks
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation, resolve_segmentation
from ustreamer.transports.someip.sd.config import SdConfig
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority

# 0xFFFF is the wildcard of uProtocol and means "any" or "service discovery" in SOME/IP.
# [impl->RPC-539, RPC-627, RPC-543, RPC-579]
Id = Annotated[int, Meta(ge=0x0001, le=0xFFFE)]
Major = Annotated[int, Meta(ge=0, le=0xFE)]
EventId = Annotated[int, Meta(ge=0x8000, le=0xFFFE)]
# [impl->RPC-60]
MethodId = Annotated[int, Meta(ge=0x0001, le=0x7FFF)]
Port = Annotated[int, Meta(ge=1, le=0xFFFF)]
Protocol = Literal["udp", "tcp"]
Dscp = Annotated[int, Meta(ge=0, le=63, extra={"names": DSCP_NAMES})] | Literal["priority"]
_LOOPBACK: Final = ipaddress.IPv4Network("127.0.0.0/8")


# [impl->RPC-631]
class EventConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """An event or field notification. The default `eventgroup` is the number of the event (up-spec); several are a
    list.

    The defaults of `protocol` and `tp` are those of the service; `tp` sends a long event in segments. A `field`
    always has a value: a new subscriber of an offered one receives the last value. `e2e` checks an event of the network
    and protects an offered one. After `max_silence_ms` without this event its event groups are subscribed again; 0 is
    never.
    """

    id: EventId
    eventgroup: Id | Annotated[tuple[Id, ...], Meta(min_length=1)] | None = None
    protocol: Protocol | None = None
    tp: bool | TpSegmentation | None = None
    field: bool = False
    e2e: E2eConfig | None = None
    max_silence_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0

    def __post_init__(self) -> None:
        _check_distinct(
            "eventgroup[{}]", [(group, f"event group {group:#06x}") for group in self.eventgroup_ids]
        )

    # [impl->RPC-59]
    @property
    def eventgroup_ids(self) -> tuple[int, ...]:
        """The event groups of the event. A subscription of any of them delivers it."""
        if isinstance(self.eventgroup, tuple):
            return self.eventgroup
        return (self.id if self.eventgroup is None else self.eventgroup,)


class EventgroupConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """An event group that uses multicast.

    With service discovery: from `threshold` subscribers on; 0 is never. Without: always, and in place of
    `remote` and `receivers`. For a service of the network it is the group to join.
    """

    id: Id
    multicast: Annotated[str, Meta(examples=["239.1.1.1:30600"])]
    threshold: Annotated[int, Meta(ge=0, le=1_000)] = 1

    def __post_init__(self) -> None:
        check_group("multicast", self.multicast)


class MethodConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A method with options; the default `protocol` is that of its service.

    `tp` as for an event, for requests to it or for its responses. `no_return`: it is called with REQUEST_NO_RETURN,
    without a response ("fire and forget").
    """

    id: MethodId
    protocol: Protocol | None = None
    tp: bool | TpSegmentation | None = None
    no_return: bool = False


class ReceiverConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A static receiver of the events of an offered service; `max_frequency` in Hz."""

    address: Annotated[str, Meta(examples=["10.0.0.2:30501"])]
    max_frequency: float | None = None

    def __post_init__(self) -> None:
        check_address("address", self.address)
        if self.max_frequency is not None:
            try:
                period_of(self.max_frequency)
            except UStatusError as error:
                raise ValueError(error.message) from error

    @property
    def period_ns(self) -> int:
        return UNLIMITED if self.max_frequency is None else period_of(self.max_frequency)


# An instance number identifies each receiver (see SomeipTransport.subscriptions), and 0xFFFF is a wildcard.
Receivers = Annotated[tuple[ReceiverConfig, ...], Meta(max_length=0xFFFE)]


class ServiceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service of the network at `remote` or, if `offered`, one that we offer for `provider`.

    For an offered service without service discovery, `remote` and `receivers` receive its events. TCP messages use
    `remote_tcp`, or else the address of UDP; our events over TCP use the connection that the receiver opened, from
    any port. An Offer of another streamer counts for this service only with `accept_relayed`. An offered service with a
    `port` is at that port of the endpoint's host, over TCP at `port_tcp` or the same number: so a second instance of a
    service can be offered. `dscp` is that of its messages over UDP; the default is that of the endpoint.
    """

    any_method: ClassVar[bool] = False
    """Whether it may be called by ids that are not in `methods`."""

    service: Id
    instance: Id = 1
    major: Major
    events: tuple[EventConfig, ...] = ()
    methods: tuple[MethodId | MethodConfig, ...] = ()
    protocol: Protocol = "udp"
    tp: bool | TpSegmentation = False
    remote: str | None = None
    remote_tcp: str | None = None
    receivers: Receivers = ()
    port: Port | None = None
    port_tcp: Port | None = None
    offered: bool = False
    accept_relayed: bool = False
    dscp: Dscp | None = None
    provider: str | None = None
    minor: Annotated[int, Meta(ge=0, le=0xFFFF_FFFE)] = 0
    eventgroups: tuple[EventgroupConfig, ...] = ()

    def __post_init__(self) -> None:
        _check_distinct("events[{}]", [(event.id, f"event {event.id:#06x}") for event in self.events])
        _check_distinct("methods[{}]", [(method, f"method {method:#06x}") for method in self.method_ids])
        for key, address in (("remote", self.remote), ("remote_tcp", self.remote_tcp)):
            if address is not None:
                check_address(key, address)
        if self.offered:
            self._check_offered()
        self._check_eventgroups()
        for key in () if self.offered else ("provider", "receivers", "minor", "port", "port_tcp"):
            if getattr(self, key):
                raise ValueError(f"{key}: only for a service with offered = true")
        if self.offered and self.accept_relayed:
            raise ValueError(
                "accept_relayed: only for a service that is not offered: it selects the accepted Offers"
            )
        for index, event in enumerate(() if self.offered else self.events):
            if event.tp is not None:
                raise ValueError(
                    f"events[{index}].tp: only for a service with offered = true: what comes in segments is always read"
                )
        for key, each in (("events", self.events), ("methods", self.methods)):
            for index, what in enumerate(each):
                if not isinstance(what, int) and what.tp and self.protocol_of(what) == "tcp":
                    raise ValueError(
                        f"{key}[{index}].tp: segments are for UDP; over TCP a message may be long"
                    )

    def _check_eventgroups(self) -> None:
        groups = {group for event in self.events for group in event.eventgroup_ids}
        _check_distinct(
            "eventgroups[{}]", [(each.id, f"event group {each.id:#06x}") for each in self.eventgroups]
        )
        for index, group in enumerate(self.eventgroups):
            if group.id not in groups:
                raise ValueError(
                    f"eventgroups[{index}].id: {group.id:#06x}: no event of the service is in it"
                )

    def _check_offered(self) -> None:
        if self.provider is None:
            raise ValueError(
                "provider: missing; an offered service needs the uEntity behind it; "
                'add provider = "//hpc.vin1/1234/1/0"'
            )
        try:
            uuri = UUri.parse(self.provider)
        except UStatusError as error:
            raise ValueError(f"provider: {error.message}") from error
        if uuri.resource_id != 0 or uuri.wildcard():
            raise ValueError(f"provider: {self.provider}: expected a uEntity with resource 0 and no wildcard")
        if self.remote_tcp is not None:
            raise ValueError(
                "remote_tcp: only for a service that is not offered; its callers come to port_tcp"
            )
        if self.port_tcp is not None and self.port is None:
            raise ValueError("port_tcp: only with a port of the service; the endpoint has its own port_tcp")
        addresses = [(parse_address(each.address), each.address) for each in self.static_receivers]
        _check_distinct("receivers", addresses)
        if any(self.protocol_of(event) == "tcp" for event in self.events):
            over_tcp = [(host, f"{host} (over TCP a receiver is its host)") for (host, _), _ in addresses]
            _check_distinct("receivers", over_tcp)

    # [impl->RPC-32]
    def protocol_of(self, what: EventConfig | MethodConfig | int) -> Protocol:
        """The protocol of an event or a method of this service."""
        return self.protocol if isinstance(what, int) else what.protocol or self.protocol

    @property
    def method_ids(self) -> tuple[int, ...]:
        return tuple(each if isinstance(each, int) else each.id for each in self.methods)

    @property
    def no_return_methods(self) -> frozenset[int]:
        return frozenset(each.id for each in self.methods if not isinstance(each, int) and each.no_return)

    @property
    def tcp_methods(self) -> frozenset[int]:
        """The ids of the methods that use TCP."""
        pairs = zip(self.method_ids, self.methods, strict=True)
        return frozenset(id for id, each in pairs if self.protocol_of(each) == "tcp")

    def address_of(self, event: EventConfig) -> Address | None:
        """The source address of an event of the network; only its port separates instances on one host."""
        address = self.tcp_address if self.protocol_of(event) == "tcp" else self.remote_address
        return None if address is None else (address[0], address[1])

    def host_of(self, event: EventConfig) -> str | None:
        address = self.address_of(event)
        return None if address is None else address[0]

    def uses_protocol(self, protocol: Protocol) -> bool:
        """Whether anything of this service uses `protocol`."""
        return any(self.protocol_of(each) == protocol for each in (*self.events, *self.methods))

    @property
    def tcp_address(self) -> TcpAddress | None:
        """The TCP address of the service."""
        address = self.remote_tcp or self.remote
        return None if address is None else TcpAddress(*parse_address(address))

    def segmentation_of(self, what: EventConfig | MethodConfig | int) -> TpSegmentation | None:
        """The segmentation of an event or method of this service; None: it is not sent in segments."""
        if self.protocol_of(what) == "tcp":
            return None
        return resolve_segmentation(None if isinstance(what, int) else what.tp, self.tp)

    def multicast_groups_of(self, event: EventConfig) -> tuple[Address, ...]:
        """The configured multicast groups of an event, each once."""
        if self.protocol_of(event) == "tcp":
            return ()
        found = (each for each in self.eventgroups if each.id in event.eventgroup_ids and each.threshold)
        return tuple(dict.fromkeys(parse_group(each.multicast) for each in found))

    @property
    def multicast_groups(self) -> tuple[Address, ...]:
        """The multicast groups of its events, each once."""
        return tuple(
            dict.fromkeys(group for event in self.events for group in self.multicast_groups_of(event))
        )

    @property
    def needs_discovery(self) -> bool:
        """Whether its address is known only from service discovery."""
        return not self.offered and self.remote is None and self.remote_tcp is None

    @property
    def remote_address(self) -> Address | None:
        return None if self.remote is None else parse_address(self.remote)

    @property
    def provider_uuri(self) -> UUri | None:
        return None if self.provider is None else UUri.parse(self.provider)

    # [impl->SD-444]
    @property
    def static_receivers(self) -> tuple[ReceiverConfig, ...]:
        """The static receivers of an offered service: `remote` first, then `receivers`."""
        first = () if self.remote is None else (ReceiverConfig(self.remote),)
        return (*first, *self.receivers) if self.offered else ()

    @property
    def own_tcp_port(self) -> int | None:
        """The TCP port of an offered service with a port of its own."""
        return self.port if self.port_tcp is None else self.port_tcp

    @property
    def ue_id(self) -> int:
        """The uEntity id of the service: up-spec writes instance 1 as 0."""
        return (self.instance << 16 if self.instance != 1 else 0) | self.service


# [impl->RPC-659]
class SomeipEndpoint(EndpointConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SOME/IP network over UDP, and over TCP for the services that use it.

    * `bind`, `port`: our unicast address, IPv4 or IPv6; port 0 takes any free one, for tests.
    * `port_tcp`: our TCP listening port, if an offered service uses TCP; the default is `port`.
    * `clients`: networks (CIDR) whose requests are accepted. Default: our own address (all of 127.0.0.0/8 if that is
      a loopback address), and the addresses of all remotes and receivers.
    * `client_version`: version of the uEntity of a SOME/IP client, whose header has none.
    * `request_ttl_ms`: ttl of the request of a SOME/IP client.
    * `errors`: the message type of a failed response to a SOME/IP client, ERROR (0x81) or RESPONSE (0x80).
    * `tp`: limits of segmented messages, both directions.
    * `oversized`: whether messages above 1 400 bytes of payload are sent over UDP without segments. They are counted.
    * `dscp`: of the datagrams and TCP connections of data, or "priority": by the priority of each message over UDP.
    * `vlan_priority`: the kernel's priority of all sent messages, from which a VLAN interface derives the PCP.
    * `interface`: the name of the interface to which all sockets are bound; None: the kernel's routes decide.
    * `max_pending`: open requests, for each direction; one host, or one authority of callers, has at most half.
    * `peers`: with `sd`, find other streamers on this network and announce this one. A list of own authorities also
      trusts streamers that are seen on this network only; False: neither.
    * `peer_streamer_addresses`: addresses of streamers that do not announce themselves. Messages from there are not
      forwarded.
    * `receive_times`: the ids of events over UDP have the time at which the kernel received them.
    * `receive_buffer`: bytes requested from the kernel, which silently limits them to net.core.rmem_max.
    """

    bind: Annotated[str, Meta(examples=["127.0.0.1"])]
    port: Annotated[int, Meta(ge=0, le=0xFFFF, examples=[30500])]
    port_tcp: Annotated[int, Meta(ge=0, le=0xFFFF)] | None = None
    tcp: TcpConfig = TcpConfig()
    sd: SdConfig | bool = False
    services: tuple[ServiceConfig, ...] = ()
    clients: tuple[str, ...] | None = None
    client_version: Major = 1
    request_ttl_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 1_000
    errors: Literal["error", "response"] = "error"
    tp: TpLimits = TpLimits()
    oversized: Literal["send", "refuse"] = "send"
    dscp: Dscp = 0
    vlan_priority: Annotated[int, Meta(ge=0, le=7)] | None = None
    interface: Annotated[str, Meta(pattern=r"^[^\s/]{1,15}$", examples=["eth0.5"])] | None = None
    # Below 0xFFFF: a request needs a free session id.
    max_pending: Annotated[int, Meta(ge=1, le=0xFFFE)] = 4_096
    receive_buffer: Annotated[int, Meta(ge=4_096, le=1 << 30)] = 4_194_304
    receive_times: bool = False
    peers: tuple[str, ...] | bool = True
    peer_streamer_addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.authorities or self.authorities[0] == ANY_AUTHORITY:
            raise ValueError(
                'authorities: expected a name in the first place, such as ["chassis"]: services and clients get it'
            )
        if self.sd is True:
            raise ValueError("sd: true: expected false, or a table with multicast, port and interface")
        check_ip("bind", self.bind)
        if is_of_many(self.bind):
            raise ValueError(
                f"bind: {self.bind}: expected an address of this machine, not a group or broadcast"
            )
        if self.sd is not False and ipaddress.ip_address(self.bind).is_unspecified:
            raise ValueError(
                f"bind: {self.bind}: expected one address of ours, because our Offers contain it"
            )
        if not isinstance(self.sd, bool) and is_ipv6(self.sd.interface) != is_ipv6(self.bind):
            raise ValueError(
                f"sd.interface: {self.sd.interface}: expected the IP version of bind, {self.bind}"
            )
        for index, network in enumerate(self.clients or ()):
            check_network(f"clients[{index}]", network)
        self._check_peers()
        contradiction = self.tp.contradiction()
        if contradiction is not None:
            raise ValueError(f"tp.{contradiction}")
        _check_distinct("services", _identities(self))
        for index, service in enumerate(self.services):
            self._check_service(f"services[{index}]", service)

    def _check_peers(self) -> None:
        names = () if isinstance(self.peers, bool) else self.peers
        if names and self.sd is False:
            raise ValueError(
                "peers: without sd no streamer is discovered; expected their addresses in peer_streamer_addresses"
            )
        for name in names:
            try:
                check_authority(name, name)
            except UStatusError as error:
                raise ValueError(f"peers: {error.message}") from error
            if name == ANY_AUTHORITY:
                raise ValueError("peers: '*' is not the name of a streamer; expected names of streamers")
        for index, host in enumerate(self.peer_streamer_addresses):
            check_ip(f"peer_streamer_addresses[{index}]", host)
            if host == self.bind and not ipaddress.ip_address(host).is_unspecified:
                raise ValueError(f"peer_streamer_addresses[{index}]: {host} is this endpoint's own bind")
        for index, service in enumerate(self.services):
            for address in () if service.offered else (service.remote, service.remote_tcp):
                if address is not None and parse_address(address)[0] in self.peer_streamer_addresses:
                    raise ValueError(
                        f"services[{index}]: {address} is a streamer's by peer_streamer_addresses, "
                        "and messages from there are not forwarded"
                    )

    def _check_service(self, where: str, service: ServiceConfig) -> None:
        self._check_ip_versions(where, service)
        self._check_groups(where, service)
        self._check_ports(where, service)
        for number, event in enumerate(service.events):
            if event.max_silence_ms and (self.sd is False or not service.needs_discovery):
                raise ValueError(
                    f"{where}.events[{number}].max_silence_ms: only for a service of the network that service "
                    "discovery finds: only its event groups are subscribed"
                )
        over_tcp_alone = service.remote_tcp is not None and not service.uses_protocol("udp")
        if self.sd is False and not service.offered and service.remote is None and not over_tcp_alone:
            raise ValueError(
                f'{where}.remote: missing; without sd a service needs its address, such as "10.0.0.2:30501"'
            )
        for key, address in _remote_addresses(service):
            if key != "remote_tcp" and address == (self.bind, self.port):
                raise ValueError(
                    f"{where}.{key}: {address[0]}:{address[1]} is this endpoint's own bind and port"
                )
        if service.remote_tcp is not None and service.tcp_address == (self.bind, self.tcp_port):
            raise ValueError(
                f"{where}.remote_tcp: {service.remote_tcp} is this endpoint's own bind and port_tcp"
            )
        provider = service.provider_uuri
        if provider is not None and provider.authority_name in self.authorities:
            raise ValueError(
                f"{where}.provider: {service.provider} lives behind this endpoint itself; "
                "a service is offered for a uEntity behind another one"
            )

    def _check_ip_versions(self, where: str, service: ServiceConfig) -> None:
        groups = [
            (f"eventgroups[{index}]", parse_group(each.multicast))
            for index, each in enumerate(service.eventgroups)
        ]
        for key, (host, _) in (*_remote_addresses(service), *groups):
            if is_ipv6(host) != is_ipv6(self.bind):
                raise ValueError(f"{where}.{key}: {host}: expected the IP version of bind, {self.bind}")

    def _check_ports(self, where: str, service: ServiceConfig) -> None:
        if service.port is not None and service.port == self.port:
            raise ValueError(f"{where}.port: {service.port} is the endpoint's own; leave it out")
        if service.port is not None and service.own_tcp_port == self.tcp_port and self.listens_over_tcp:
            raise ValueError(f"{where}.port_tcp: {service.own_tcp_port} is the endpoint's own")
        for other in self.services if service.port is not None else ():
            if other.port == service.port and other.own_tcp_port != service.own_tcp_port:
                raise ValueError(
                    f"{where}.port_tcp: expected one number for all services at port {service.port}"
                )

    def _check_groups(self, where: str, service: ServiceConfig) -> None:
        if self.sd is not False and service.eventgroups and not service.offered:
            raise ValueError(
                f"{where}.eventgroups: only for a service with offered = true: with sd, the service announces them"
            )
        if service.eventgroups and ipaddress.ip_address(self.bind).is_unspecified:
            raise ValueError(
                f"{where}.eventgroups: expected a bind other than {self.bind}: it selects the interface of a group"
            )

    # [impl->RPC-733]
    def bound_addresses(self) -> Sequence[BoundAddress]:
        """The addresses of `port`, of `port_tcp` if an offered service uses TCP, and of service discovery."""
        found = [_bound("port", "udp", self.bind, self.port)]
        if self.listens_over_tcp:
            key = "port" if self.port_tcp is None else "port_tcp"
            found.append(_bound(key, "tcp", self.bind, self.tcp_port))
        if not isinstance(self.sd, bool):
            found.append(_bound("sd.port", "udp", *self.sd.own_address))
        return [*found, *self._service_addresses()]

    def _service_addresses(self) -> Iterator[BoundAddress]:
        """The addresses of offered services with a port, each once."""
        by_port: dict[int, list[int]] = {}
        for index, service in enumerate(self.services):
            if service.port is not None:
                by_port.setdefault(service.port, []).append(index)
        for port, indexes in by_port.items():
            key, first = f"services[{indexes[0]}]", self.services[indexes[0]]
            yield _bound(f"{key}.port", "udp", self.bind, port)
            if any(self.services[each].uses_protocol("tcp") for each in indexes):
                where = "port" if first.port_tcp is None else "port_tcp"
                yield _bound(f"{key}.{where}", "tcp", self.bind, first.own_tcp_port or port)

    def patterns(self) -> Sequence[NamedPattern]:
        providers = [
            NamedPattern(f"services[{index}].provider", service.provider_uuri)
            for index, service in enumerate(self.services)
            if service.provider_uuri is not None
        ]
        return [*super().patterns(), *providers]

    def warnings(self) -> Sequence[ConfigWarning]:
        found = []
        if self.port == 0:
            text = "0 takes any free port, another one at each start: no ECU knows it"
            found.append(ConfigWarning("port", text, "choose 1 to 65535"))
        if self.port_tcp is not None and not self.listens_over_tcp:
            text = "is not used: no offered service uses TCP"
            found.append(ConfigWarning("port_tcp", text, "leave port_tcp out"))
        if self.tcp != TcpConfig() and not any(each.uses_protocol("tcp") for each in self.services):
            found.append(ConfigWarning("tcp", "is not used: no service uses TCP", "leave tcp out"))
        found += [
            ConfigWarning(
                f"clients[{index}]",
                f"{network} has no effect: bind, {self.bind}, is of another IP version",
                "leave it out",
            )
            for index, network in enumerate(self.clients or ())
            if (":" in network) != is_ipv6(self.bind)
        ]
        found += _e2e_without_effect(self.services)
        if self.sd is False:
            found += [
                ConfigWarning(
                    f"services[{index}].events[{number}].field",
                    "has no effect: without sd no ECU subscribes an offered field",
                    "set sd or leave field out",
                )
                for index, service in enumerate(self.services)
                for number, event in enumerate(service.events if service.offered else ())
                if event.field
            ]
        found += _unreachable_limits("tcp", self.tcp, ("connections_per_host", "connections"))
        if not isinstance(self.sd, bool):
            found += _unreachable_limits("sd.limits", self.sd.limits, ("peer_subscriptions", "subscriptions"))
        return found

    @property
    def authority(self) -> str:
        """The authority of every service and client on the network: the first configured one."""
        return self.authorities[0]

    # [impl->RPC-726, RPC-106]
    @property
    def error_message_type(self) -> MessageType:
        """The message type of a failed response to a SOME/IP client."""
        return MessageType.ERROR if self.errors == "error" else MessageType.RESPONSE

    @property
    def socket_marks(self) -> SocketMarks:
        """The marks of the sockets, for messages without a DSCP of their own."""
        dscp = self.dscp if isinstance(self.dscp, int) else 0
        return SocketMarks(dscp, self.vlan_priority, self.interface)

    def dscp_of(self, service: ServiceConfig) -> int | None:
        """The DSCP of the messages of a service, or BY_PRIORITY; None: that of the sockets."""
        dscp = self.dscp if service.dscp is None else service.dscp
        if isinstance(dscp, int):
            return None if service.dscp is None else dscp
        return BY_PRIORITY

    @property
    def tcp_port(self) -> int:
        return self.port if self.port_tcp is None else self.port_tcp

    @property
    def listens_over_tcp(self) -> bool:
        return any(each.offered and each.port is None and each.uses_protocol("tcp") for each in self.services)

    @property
    def may_use_tcp(self) -> bool:
        """Whether a service of the configuration uses TCP, or service discovery may find one that does."""
        return self.sd is not False or any(each.uses_protocol("tcp") for each in self.services)

    def client_networks(self) -> tuple[Network, ...]:
        """The networks whose requests are accepted."""
        if self.clients is not None:
            return tuple(map(ipaddress.ip_network, self.clients))
        own = ipaddress.ip_network(self.bind)
        peers = sorted({host for service in self.services for _, (host, _) in _remote_addresses(service)})
        return (_LOOPBACK if own.network_address in _LOOPBACK else own, *map(ipaddress.ip_network, peers))


def _bound(key: str, protocol: Literal["tcp", "udp"], host: str, port: int) -> BoundAddress:
    """The address of a SOME/IP socket: of one IP version, as `open_socket` makes it."""
    return BoundAddress(key, protocol, host, port, ipv6_only=True)


def _unreachable_limits(place: str, limits: Struct, keys: tuple[str, str]) -> list[ConfigWarning]:
    """The warning that the limit of one peer is above that of all peers."""
    one, every = (getattr(limits, key) for key in keys)
    if one <= every:
        return []
    text = f"{one} never applies: {keys[1]}, {every}, is reached before"
    return [ConfigWarning(f"{place}.{keys[0]}", text, f"choose at most {every}")]


def _e2e_without_effect(services: Sequence[ServiceConfig]) -> Iterator[ConfigWarning]:
    """Keys of a check at events that are protected, and a step of the counter that no event exceeds."""
    for index, service in enumerate(services):
        for number, event in enumerate(service.events):
            e2e, where = event.e2e, f"services[{index}].events[{number}].e2e"
            if e2e is None:
                continue
            if service.offered:
                text = "has no effect: an offered event is protected, not checked"
                for key in e2e.keys_of_a_check:
                    yield ConfigWarning(f"{where}.{key}", text, f"leave {key} out")
            elif (e2e.max_delta_counter or 0) >= e2e.max_delta:
                text = f"{e2e.max_delta_counter} never applies: the largest step of {e2e.profile} is {e2e.max_delta}"
                yield ConfigWarning(f"{where}.max_delta_counter", text, f"choose less than {e2e.max_delta}")


def _remote_addresses(service: ServiceConfig) -> list[tuple[str, Address]]:
    """The addresses of the other side, each with its key."""
    addresses = [
        ("remote", service.remote),
        ("remote_tcp", service.remote_tcp),
        *((f"receivers[{index}]", each.address) for index, each in enumerate(service.receivers)),
    ]
    return [(key, parse_address(address)) for key, address in addresses if address is not None]


# [impl->RPC-1079, RPC-445, RPC-967, COMPAT-714]
def _identities(config: SomeipEndpoint) -> Iterable[tuple[Hashable, str]]:
    """The identities that no two services of an endpoint may share."""
    for service in config.services:
        name = f"service {service.service:#06x} version {service.major}"
        if service.offered:
            where = "" if service.port is None else f" at port {service.port}"
            yield (
                ("offered", service.service, service.major, service.port),
                f"offered {name}{where} (requests do not name an instance: give each a port)",
            )
            instance = f"offered {name} instance {service.instance}"
            yield ("instance", service.service, service.instance, service.major), instance
            yield ("provider", service.provider_uuri), f"provider {service.provider}"
            continue
        yield ("remote", service.ue_id, service.major), f"{name} instance {service.instance}"
        for event in service.events:
            address = service.address_of(event)
            if address is not None:
                source = format_address(address)
                what = f"event {event.id:#06x} of {name} from {source} (events do not name an instance)"
                yield ("event", *address, service.service, service.major, event.id), what


def _check_distinct(where: str, identities: Iterable[tuple[Hashable, str]]) -> None:
    """`where` may have a place {} for the index of the second one."""
    seen: set[Hashable] = set()
    for index, (identity, name) in enumerate(identities):
        if identity in seen:
            raise ValueError(f"{where.format(index)}: {name} is there twice")
        seen.add(identity)


def added_services(old: SomeipEndpoint, new: SomeipEndpoint) -> tuple[ServiceConfig, ...]:
    """The services that only `new` has."""
    return new.services[len(old.services) :]


def services_restart_reason(old: SomeipEndpoint, new: SomeipEndpoint) -> str:
    """Why the endpoint cannot take the services of `new` while it runs; "" if it can: they are all old ones and more.

    It names the first service that hinders, by its index and id.
    """
    for index, before in enumerate(old.services):
        if new.services[index : index + 1] != (before,):
            return f"{_change_of(index, before, new)} (further services go behind the present ones)"
    for index, each in enumerate(added_services(old, new), len(old.services)):
        if hindrance := _hindrance(old, each):
            return f"{_service_name(index, each)}, {hindrance},"
    return ""


def _service_name(index: int, service: ServiceConfig) -> str:
    return f"services[{index}] ({service.service:#06x})"


def _change_of(index: int, before: ServiceConfig, new: SomeipEndpoint) -> str:
    """What became of the service at this index: a noun phrase."""
    name = _service_name(index, before)
    identity = before.service, before.instance, before.major
    after = next(
        (each for each in new.services if (each.service, each.instance, each.major) == identity), None
    )
    if after is None:
        return f"the removal of {name}"
    keys = [key for key in before.__struct_fields__ if getattr(before, key) != getattr(after, key)]
    return f"the change of {name} in {', '.join(keys)}" if keys else f"another place of {name}"


def _hindrance(old: SomeipEndpoint, added: ServiceConfig) -> str:
    """Why a running endpoint cannot take a further service; "" if it can."""
    if not isinstance(old.sd, bool) and old.sd.dynamic_services:
        return "a service with dynamic_services"
    if added.uses_protocol("tcp"):
        if added.offered and added.port is None and not old.listens_over_tcp:
            return "the first offered service over TCP"
        if not old.may_use_tcp:
            return "the first service over TCP"
    if added.port is not None:
        return "a service with a port of its own"
    if added.accept_relayed:
        return "a service with accept_relayed"
    if added.multicast_groups and not added.offered:
        return "a service with a multicast group"
    return ""
