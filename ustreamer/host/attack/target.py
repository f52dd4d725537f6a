# SPDX-License-Identifier: Apache-2.0
"""The networks of the copied configuration, as an attacker on loopback sees them. Configuration in, values out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.host.attack.attack import Need
from ustreamer.host.config.config import StreamerConfig
from ustreamer.transports.someip.config import ServiceConfig, SomeipEndpoint
from ustreamer.transports.someip.protocol.addresses import Address, parse_address
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

OUTSIDER: Final = "outsider.example"
"""The authority of an attacker where the configuration names none."""


class ZenohPlace(msgspec.Struct, frozen=True):
    """A Zenoh network that a node without credentials can join."""

    name: str
    locator: str
    authorities: tuple[str, ...]

    @property
    def authority(self) -> str:
        """The authority of an attacker there."""
        return next((each for each in self.authorities if each != ANY_AUTHORITY), OUTSIDER)


class SomeipPlace(msgspec.Struct, frozen=True):
    """A SOME/IP network. `tcp` is the streamer's TCP port if it listens; `sd` the address of service discovery."""

    name: str
    authority: str
    address: Address
    services: tuple[ServiceConfig, ...]
    tcp: int | None = None
    sd: Address | None = None

    @property
    def offered(self) -> tuple[ServiceConfig, ...]:
        return tuple(each for each in self.services if each.offered)

    @property
    def ecu_services(self) -> tuple[ServiceConfig, ...]:
        return tuple(each for each in self.services if not each.offered)


class WampPlace(msgspec.Struct, frozen=True):
    """The first listener of the plugin wamp without TLS."""

    host: str
    port: int
    path: str
    websocket: bool
    realm: str
    ticket_user: str
    anonymous: bool


class VehicleEvent(msgspec.Struct, frozen=True):
    """An event of an ECU that the probe sends: from `ecu` to `streamer`, as the topic `topic`."""

    topic: UUri
    service: int
    event: int
    major: int
    ecu: Address
    streamer: Address


class Target(msgspec.Struct, frozen=True):
    """The copied configuration. `event` is the start of the vehicle path, `home` its end and the place of bystanders.

    `event` is None if the path starts at the Zenoh network `origin`. `ecus` are the addresses of all ECUs.
    """

    authority: str
    state_dir: Path
    zenoh: tuple[ZenohPlace, ...]
    someip: SomeipPlace | None
    wamp: WampPlace | None
    observe: Address | None
    usubscription: bool
    permissions: tuple[str, ...]
    home: ZenohPlace
    origin: ZenohPlace | None
    event: VehicleEvent | None
    ecus: tuple[Address, ...]

    @property
    def usubscription_address(self) -> UUri:
        return UUri(self.authority, 0, 3, 0)

    @property
    def own_service(self) -> UUri:
        return UUri(self.authority, 4, 1, 0)

    @property
    def outer(self) -> ZenohPlace | None:
        """The attacker's Zenoh network: the first one without the streamer's own authority and without the bystander."""
        return next(
            (
                each
                for each in self.zenoh
                if self.authority not in each.authorities and each.name != self.home.name
            ),
            None,
        )

    def parts(self) -> frozenset[Need]:
        """The parts that attacks may need."""
        return frozenset(self._parts())

    def _parts(self) -> Iterator[Need]:
        found = {
            Need.ZENOH: self.zenoh,
            Need.OUTER: self.outer,
            Need.USUBSCRIPTION: self.usubscription,
            Need.PERMISSIONS: self.permissions,
            Need.SOMEIP: self.someip,
            Need.WAMP: self.wamp,
            Need.WAMP_USERS: self.wamp and self.wamp.ticket_user,
            Need.WAMP_ANONYMOUS: self.wamp and self.wamp.anonymous,
            Need.OBSERVE: self.observe,
        }
        yield from (need for need, part in found.items() if part)
        if self.someip is None:
            return
        offered, ecu_services = self.someip.offered, self.someip.ecu_services
        in_someip = {
            Need.OFFERED: any(each.events for each in offered),
            Need.OFFERED_METHOD: any(each.methods for each in offered),
            Need.ECU_METHOD: any(
                each.methods and each.remote and each.protocol == "udp" for each in ecu_services
            ),
            Need.SOMEIP_TCP: self.someip.tcp,
            Need.SD: self.someip.sd,
            Need.FOUND_SERVICE: self.someip.sd
            and any(each.remote is None and each.events for each in ecu_services),
        }
        yield from (need for need, part in in_someip.items() if part)


class NoVehiclePath(Exception):
    """The configuration has no path that a node without credentials can use, so nothing can be measured."""


def read_target(config: StreamerConfig) -> Target:
    """The target of a copied configuration. Raises NoVehiclePath."""
    zenoh = tuple(
        ZenohPlace(name, each.listen[0], each.authorities)
        for name, each in config.endpoints.items()
        if isinstance(each, ZenohEndpoint)
        and each.listen
        and not each.identities
        and each.listen[0].startswith("tcp/")
    )
    networks = {name: each for name, each in config.endpoints.items() if isinstance(each, SomeipEndpoint)}
    someip = next((_someip_place(name, each) for name, each in networks.items()), None)
    usubscription = config.plugins.get("usubscription")
    home = next((each for each in zenoh if config.authority in each.authorities), zenoh[0] if zenoh else None)
    event = None if someip is None else _vehicle_event(someip)
    origin = None if event is not None else next((each for each in reversed(zenoh) if each != home), None)
    if home is None or (event is None and origin is None) or usubscription is None:
        raise NoVehiclePath(
            "no vehicle path to measure: expected the plugin usubscription, a Zenoh network without authentication, and "
            "an event of an ECU over UDP or a second such Zenoh network"
        )
    return Target(
        authority=config.authority,
        state_dir=config.state_dir,
        zenoh=zenoh,
        someip=someip,
        wamp=_wamp_place(config.plugins.get("wamp")),
        observe=None
        if config.observe is None
        else (config.observe.address.host, config.observe.address.port),
        usubscription=True,
        permissions=tuple(each.topic for each in getattr(usubscription, "permissions", ())),
        home=home,
        origin=origin,
        event=event,
        ecus=() if someip is None else _ecus(someip),
    )


def _someip_place(name: str, config: SomeipEndpoint) -> SomeipPlace:
    over_tcp = any(
        "tcp"
        in (
            each.protocol,
            *(event.protocol for event in each.events),
            *(getattr(method, "protocol", None) for method in each.methods),
        )
        for each in config.services
        if each.offered
    )
    sd = None if isinstance(config.sd, bool) else (config.sd.multicast, config.sd.port)
    return SomeipPlace(
        name,
        config.authorities[0],
        (config.bind, config.port),
        config.services,
        (config.port_tcp or config.port) if over_tcp else None,
        sd,
    )


def _vehicle_event(place: SomeipPlace) -> VehicleEvent | None:
    """The first plain event of an ECU over UDP."""
    for service in place.ecu_services:
        for event in service.events:
            if service.remote and (event.protocol or service.protocol) == "udp" and event.e2e is None:
                ue_id = service.service | (service.instance << 16 if service.instance != 1 else 0)
                return VehicleEvent(
                    UUri(place.authority, ue_id, service.major, event.id),
                    service.service,
                    event.id,
                    service.major,
                    parse_address(service.remote),
                    place.address,
                )
    return None


def _ecus(place: SomeipPlace) -> tuple[Address, ...]:
    return tuple(dict.fromkeys(parse_address(each.remote) for each in place.services if each.remote))


def _wamp_place(config: Any) -> WampPlace | None:
    """The plugin's section is of its own type, which the host does not import."""
    for each in () if config is None else config.listeners:
        if not (each.tls or each.socket):
            user = next((user.authid for user in config.users if user.has_ticket), "")
            return WampPlace(
                each.host, each.port, each.path, each.websocket, config.realm, user, bool(config.anonymous)
            )
    return None
