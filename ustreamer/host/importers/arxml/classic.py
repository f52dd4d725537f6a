# SPDX-License-Identifier: Apache-2.0
"""Reads the services of the Classic Platform's system description: socket addresses with service instances.

An APPLICATION-ENDPOINT has the port, a PROVIDED-SERVICE-INSTANCE the ids, an EVENT-HANDLER an event group. Events and
methods have no elements of their own: the header ids of the PDUs of a group are their message ids.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ustreamer.host.importers.arxml.adaptive import ip_address
from ustreamer.host.importers.arxml.elements import (
    InvalidArxml,
    ancestor,
    children,
    name_of,
    note_others,
    number,
    place_of,
    required_number,
    target,
    text,
)
from ustreamer.host.importers.catalogue import CatalogueEvent, CatalogueService, LeftOut, SdAddress

if TYPE_CHECKING:
    from autosar_data import AutosarModel, Element

_INSTANCE: Final = frozenset(
    {
        "AUTO-AVAILABLE",
        "EVENT-HANDLERS",
        "INSTANCE-IDENTIFIER",
        "MAJOR-VERSION",
        "METHOD-ACTIVATION-ROUTING-GROUPS",
        "MINOR-VERSION",
        "SD-SERVER-CONFIG",
        "SERVICE-IDENTIFIER",
    }
)
_REASONS: Final = {
    "CAPABILITY-RECORDS": "options of Offers are not configurable",
    "LOAD-BALANCING-PRIORITY": "options of Offers are not configurable",
    "LOAD-BALANCING-WEIGHT": "options of Offers are not configurable",
    "LOCAL-UNICAST-ADDRESSS": "the address of the APPLICATION-ENDPOINT around it is used",
    "REMOTE-MULTICAST-SUBSCRIPTION-ADDRESSS": "services are found by service discovery",
    "REMOTE-UNICAST-ADDRESSS": "services are found by service discovery",
    "ROUTING-GROUP-REFS": "see METHOD-ACTIVATION-ROUTING-GROUPS: header ids of PDUs are read there",
    "SD-SERVER-TIMER-CONFIGS": "see `sd.timings`: they are those of the endpoint",
}
_SERVICE_BITS: Final = 16


def read_services(model: "AutosarModel", left_out: LeftOut) -> Iterator[CatalogueService]:
    """The provided services of all ECUs. An invalid one is noted."""
    for _, element in model.elements_dfs:
        if element.element_name == "PROVIDED-SERVICE-INSTANCE":
            try:
                yield _read_service(element, left_out)
            except InvalidArxml as error:
                left_out.note(place_of(element), f"left out: {error}")


def sd_address(model: "AutosarModel") -> SdAddress:
    """The address of a socket that is for multicast at the port of service discovery."""
    for _, element in model.elements_dfs:
        if element.element_name == "SOCKET-ADDRESS" and any(children(element, "MULTICAST-CONNECTOR-REFS")):
            endpoint = next(iter(children(element, "APPLICATION-ENDPOINT")), None)
            application = None if endpoint is None else endpoint.parent
            found = target(application, "NETWORK-ENDPOINT-REF")
            port = number(application, "TP-CONFIGURATION/UDP-TP/UDP-TP-PORT/PORT-NUMBER")
            if found is not None and port == 30_490:  # the port of service discovery in every network
                return SdAddress(ip_address(found), port)
    return SdAddress()


def _read_service(instance: "Element", left_out: LeftOut) -> CatalogueService:
    note_others(instance, _INSTANCE, _REASONS, left_out)
    application = ancestor(instance, "APPLICATION-ENDPOINT")
    socket = ancestor(instance, "SOCKET-ADDRESS")
    config = next((each for each in instance.sub_elements if each.element_name == "SD-SERVER-CONFIG"), None)
    major = number(instance, "MAJOR-VERSION")
    minor = number(instance, "MINOR-VERSION")
    service = CatalogueService(
        place=place_of(instance),
        service=required_number(instance, "SERVICE-IDENTIFIER"),
        instance=required_number(instance, "INSTANCE-IDENTIFIER"),
        major=(number(config, "SERVER-SERVICE-MAJOR-VERSION") if major is None else major) or 0,
        minor=(number(config, "SERVER-SERVICE-MINOR-VERSION") if minor is None else minor) or 0,
    )
    if config is not None:
        left_out.note(f"{service.place}, SD-SERVER-CONFIG", "its times: see `sd.timings` of the endpoint")
    connector = target(socket, "CONNECTOR-REF")
    ecu = ancestor(connector, "ECU-INSTANCE")
    service.provider = "" if ecu is None else name_of(ecu)
    endpoint = target(application, "NETWORK-ENDPOINT-REF")
    service.address = None if endpoint is None else ip_address(endpoint)
    service.udp = number(application, "TP-CONFIGURATION/UDP-TP/UDP-TP-PORT/PORT-NUMBER")
    service.tcp = number(application, "TP-CONFIGURATION/TCP-TP/TCP-TP-PORT/PORT-NUMBER")
    _read_events(instance, service, left_out)
    _read_methods(instance, service, left_out)
    return service


def _read_events(instance: "Element", service: CatalogueService, left_out: LeftOut) -> None:
    events: dict[int, CatalogueEvent] = {}
    for handler in children(instance, "EVENT-HANDLERS"):
        group = required_number(handler, "EVENT-GROUP-IDENTIFIER")
        ids = list(_message_ids(handler, "PDU-ACTIVATION-ROUTING-GROUPS", service.service, left_out))
        if not ids:
            left_out.note(
                place_of(handler),
                f"no PDU of event group {group:#06x} has a header id of the service: add its events",
            )
        for id, protocol in ids:
            event = events.setdefault(id, CatalogueEvent(id=id, keys={"protocol": protocol}))
            if group not in event.eventgroups:
                event.eventgroups.append(group)
        _read_multicast(handler, group, service)
    service.events = list(events.values())
    if events:
        left_out.note(
            f"{service.place}, events", "the types of I-signals are not carried over: no payload types"
        )
    for event in service.events:
        if event.keys["protocol"] == ("tcp" if service.udp is None else "udp"):
            del event.keys["protocol"]


def _read_multicast(handler: "Element", group: int, service: CatalogueService) -> None:
    for reference in children(handler, "EVENT-MULTICAST-ADDRESSS"):
        application = target(reference, "APPLICATION-ENDPOINT-REF") or target(reference)
        endpoint = target(application, "NETWORK-ENDPOINT-REF")
        port = number(application, "TP-CONFIGURATION/UDP-TP/UDP-TP-PORT/PORT-NUMBER")
        host = None if endpoint is None else ip_address(endpoint)
        if host is not None and port is not None:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            service.multicast[group] = (address, number(handler, "MULTICAST-THRESHOLD") or 0)


def _read_methods(instance: "Element", service: CatalogueService, left_out: LeftOut) -> None:
    default = "tcp" if service.udp is None else "udp"
    methods: dict[int, str] = {}
    for id, protocol in _message_ids(instance, "METHOD-ACTIVATION-ROUTING-GROUPS", service.service, left_out):
        methods.setdefault(id, protocol)
    service.methods = [
        {"id": id} if protocol == default else {"id": id, "protocol": protocol}
        for id, protocol in methods.items()
    ]
    if not methods:
        left_out.note(
            f"{service.place}, methods", "none has a header id in METHOD-ACTIVATION-ROUTING-GROUPS; add them"
        )


def _message_ids(
    element: "Element", groups: str, service: int, left_out: LeftOut
) -> Iterator[tuple[int, str]]:
    """The method or event ids in the header ids of the PDUs of routing groups, with their protocols."""
    for routing in children(element, groups):
        for protocol in ("udp", "tcp"):
            for reference in children(routing, f"I-PDU-IDENTIFIER-{protocol.upper()}-REFS"):
                pdu = target(reference)
                header = number(pdu, "HEADER-ID")
                if header is None:
                    left_out.note(place_of(routing), f"{text(reference)} has no HEADER-ID in the files")
                elif header >> _SERVICE_BITS != service:
                    left_out.note(place_of(routing), f"HEADER-ID {header:#010x} is of another service")
                else:
                    yield header & 0xFFFF, protocol
