# SPDX-License-Identifier: Apache-2.0
"""The offered services in the form that service discovery and the event publisher need. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ustreamer.transports.someip.config import ServiceConfig
from ustreamer.transports.someip.protocol.addresses import Address, parse_group
from ustreamer.transports.someip.protocol.mapping import EventTemplate
from ustreamer.transports.someip.sd.settings import OfferedService, ServiceKey
from ustreamer.uprotocol.uuri import UUri


class EventgroupMulticast(NamedTuple):
    """The multicast group of an event group, used from `threshold` subscribers on."""

    group: Address
    threshold: int


class OfferedEventgroups(NamedTuple):
    """An offered service: its topics per event group, its fields, and its multicast event groups.

    `receivers` is the number of configured receivers, `authority` the authority that provides the service. `port` and
    `port_tcp` are its own ports; None: those of the endpoint. `dscp` as in `SomeipEndpoint.dscp_of`.
    """

    key: ServiceKey
    minor: int
    events: Mapping[UUri, EventTemplate]
    over_tcp: frozenset[UUri]
    eventgroups: Mapping[int, tuple[UUri, ...]]
    fields: frozenset[UUri]
    multicast: Mapping[int, EventgroupMulticast]
    receivers: int
    uses_tcp: bool
    uses_udp: bool
    authority: str
    port: int | None = None
    port_tcp: int | None = None
    dscp: int | None = None

    def group_of(self, topic: UUri) -> int | None:
        return next((group for group, topics in self.eventgroups.items() if topic in topics), None)

    def sd_service_at(self, udp: Address, tcp: Address) -> OfferedService:
        """The service as `sd` offers it: endpoints and event groups."""
        if self.port is not None and self.port_tcp is not None:
            udp, tcp = (udp[0], self.port), (tcp[0], self.port_tcp)
        groups = tuple(
            (group, self.multicast[group].group if group in self.multicast else None)
            for group in sorted(self.eventgroups)
        )
        return OfferedService(
            self.key,
            self.minor,
            udp if self.uses_udp or not self.uses_tcp else None,
            tcp if self.uses_tcp else None,
            groups,
            authority=self.authority,
        )


def offered_eventgroups(
    services: Iterable[ServiceConfig],
    own_authority: str,
    dscp_of: Callable[[ServiceConfig], int | None] = lambda _: None,
) -> dict[ServiceKey, OfferedEventgroups]:
    """The offered ones of `services`; `own_authority` replaces an empty authority in `provider`."""
    return {
        offer.key: offer
        for offer in (
            _offered_eventgroups(each, own_authority)._replace(dscp=dscp_of(each))
            for each in services
            if each.offered
        )
    }


def _offered_eventgroups(service: ServiceConfig, own_authority: str) -> OfferedEventgroups:
    assert service.provider_uuri is not None  # checked by config.py
    provider = service.provider_uuri.with_authority(own_authority)
    topics = {event: provider.with_resource(event.id) for event in service.events}
    groups: dict[int, list[UUri]] = {}
    for event, topic in topics.items():
        for group in event.eventgroup_ids:
            groups.setdefault(group, []).append(topic)
    return OfferedEventgroups(
        key=ServiceKey(service.service, service.instance, service.major),
        minor=service.minor,
        events={
            topic: EventTemplate(
                service.service, event.id, service.major, service.segmentation_of(event), event.e2e
            )
            for event, topic in topics.items()
        },
        over_tcp=frozenset(t for event, t in topics.items() if service.protocol_of(event) == _TCP),
        eventgroups={group: tuple(each) for group, each in groups.items()},
        fields=frozenset(topic for event, topic in topics.items() if event.field),
        multicast={
            each.id: EventgroupMulticast(parse_group(each.multicast), each.threshold)
            for each in service.eventgroups
            if each.threshold
        },
        receivers=len(service.static_receivers),
        uses_tcp=service.uses_protocol("tcp"),
        uses_udp=service.uses_protocol("udp"),
        authority=provider.authority_name,
        port=service.port,
        port_tcp=service.own_tcp_port,
    )


_TCP: Final = "tcp"
