# SPDX-License-Identifier: Apache-2.0
"""Reads the services of the Adaptive Platform: a deployment gives the ids, an instance and a mapping the machine.

SOMEIP-SERVICE-INTERFACE-DEPLOYMENT          service id, version, events, event groups, methods, fields
PROVIDED-SOMEIP-SERVICE-INSTANCE             instance id, multicast, E2E; refers to the deployment
SOMEIP-SERVICE-INSTANCE-TO-MACHINE-MAPPING   address and ports; refers to instances and to a machine's connector
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ustreamer.host.importers.arxml.elements import (
    InvalidArxml,
    ancestor,
    child,
    children,
    milliseconds,
    name_of,
    note_others,
    number,
    place_of,
    required_number,
    target,
    text,
)
from ustreamer.host.importers.arxml.types import AutosarPayloadTypes
from ustreamer.host.importers.catalogue import CatalogueEvent, CatalogueService, LeftOut, SdAddress

if TYPE_CHECKING:
    from autosar_data import AutosarModel, Element

_INSTANCE: Final = frozenset(
    {
        "SERVICE-INTERFACE-DEPLOYMENT-REF",
        "SERVICE-INSTANCE-ID",
        "PROVIDED-EVENT-GROUPS",
        "E-2-E-EVENT-PROTECTION-PROPSS",
    }
)
_REASONS: Final = {
    "CAPABILITY-RECORDS": "options of Offers are not configurable",
    "E-2-E-METHOD-PROTECTION-PROPSS": "only events are protected",
    "LOAD-BALANCING-PRIORITY": "options of Offers are not configurable",
    "LOAD-BALANCING-WEIGHT": "options of Offers are not configurable",
    "SD-SERVER-CONFIG-REF": "see `sd.timings`: they are those of the endpoint",
    "SECURE-COM-CONFIGS": "SecOC and TLS are not supported",
    "SECURE-COM-PROPS-FOR-TCP-REF": "TLS is not supported",
    "SECURE-COM-PROPS-FOR-UDP-REF": "DTLS is not supported",
    "SEC-OC-COM-PROPS-FOR-MULTICAST-REFS": "SecOC is not supported",
    "UDP-COLLECTION-BUFFER-SIZE-THRESHOLD": "each message has a datagram of its own",
    "REMOTE-UNICAST-CONFIG-REFS": "services are found by service discovery",
    "REMOTE-MULTICAST-CONFIG-REFS": "services are found by service discovery",
}
_MAPPING: Final = frozenset(
    {
        "COMMUNICATION-CONNECTOR-REF",
        "SERVICE-INSTANCE-REFS",
        "TCP-PORT-REF",
        "UDP-PORT-REF",
        "TCP-PORT",
        "UDP-PORT",
    }
)
_DEPLOYMENT: Final = frozenset(
    {
        "EVENT-DEPLOYMENTS",
        "FIELD-DEPLOYMENTS",
        "METHOD-DEPLOYMENTS",
        "EVENT-GROUPS",
        "SERVICE-INTERFACE-REF",
        "SERVICE-INTERFACE-ID",
        "SERVICE-INTERFACE-VERSION",
    }
)
_MODES: Final = {
    "ALL-16-BIT": "both",
    "ALTERNATING-8-BIT": "alternating",
    "LOWER-8-BIT": "low",
    "LOWER-12-BIT": "nibble",
}


def read_services(
    model: "AutosarModel", types: AutosarPayloadTypes, left_out: LeftOut
) -> Iterator[CatalogueService]:
    """The provided services of all machines. An invalid one is noted."""
    mappings = list(_mapped(model, left_out))
    instances = [
        each for _, each in model.elements_dfs if each.element_name == "PROVIDED-SOMEIP-SERVICE-INSTANCE"
    ]
    for instance in instances:
        mapping = next((found for found, mapped in mappings if mapped == instance), None)
        place = place_of(instance)
        if mapping is None:
            left_out.note(
                place, "no SOMEIP-SERVICE-INSTANCE-TO-MACHINE-MAPPING refers to it: it has no machine"
            )
        try:
            yield _Service(instance, mapping, types, left_out).read()
        except InvalidArxml as error:
            left_out.note(place, f"left out: {error}")


def _mapped(model: "AutosarModel", left_out: LeftOut) -> "Iterator[tuple[Element, Element]]":
    """Each mapping with each of its instances."""
    for _, mapping in model.elements_dfs:
        if mapping.element_name == "SOMEIP-SERVICE-INSTANCE-TO-MACHINE-MAPPING":
            note_others(mapping, _MAPPING, _REASONS, left_out)
            for reference in children(mapping, "SERVICE-INSTANCE-REFS"):
                instance = target(reference)
                if instance is None:
                    left_out.note(
                        f"{place_of(mapping)}, SERVICE-INSTANCE-REF", f"{text(reference)} is in no file"
                    )
                else:
                    yield mapping, instance


def sd_address(model: "AutosarModel") -> SdAddress:
    """The group and the port of the first machine with service discovery."""
    for _, element in model.elements_dfs:
        if element.element_name == "SOMEIP-SERVICE-DISCOVERY":
            endpoint = target(element, "MULTICAST-SD-IP-ADDRESS-REF")
            try:
                port = number(element, "SOMEIP-SERVICE-DISCOVERY-PORT")
            except InvalidArxml:
                port = None
            return SdAddress(None if endpoint is None else ip_address(endpoint), port)
    return SdAddress()


def ip_address(endpoint: "Element") -> str | None:
    """The address of a NETWORK-ENDPOINT."""
    for each in children(endpoint, "NETWORK-ENDPOINT-ADDRESSES"):
        found = text(each, "IPV-4-ADDRESS") or text(each, "IPV-6-ADDRESS")
        if found is not None:
            return found
    return None


class _Service:
    """Reads one provided instance."""

    def __init__(
        self, instance: "Element", mapping: "Element | None", types: AutosarPayloadTypes, left_out: LeftOut
    ) -> None:
        self._instance, self._mapping, self._types, self._left_out = instance, mapping, types, left_out
        self._events: dict[str, CatalogueEvent] = {}
        """By the path of the deployment, to which event groups and E2E properties refer."""

    def read(self) -> CatalogueService:
        instance = self._instance
        deployment = target(instance, "SERVICE-INTERFACE-DEPLOYMENT-REF")
        if deployment is None:
            named = text(instance, "SERVICE-INTERFACE-DEPLOYMENT-REF")
            raise InvalidArxml(
                f"SERVICE-INTERFACE-DEPLOYMENT-REF: {named}: expected the path of a deployment in the files"
            )
        note_others(instance, _INSTANCE, _REASONS, self._left_out)
        note_others(deployment, _DEPLOYMENT, {}, self._left_out)
        methods = [
            *(self._method(each) for each in children(deployment, "METHOD-DEPLOYMENTS")),
            *self._fields(deployment),
        ]
        for each in children(deployment, "EVENT-DEPLOYMENTS"):
            self._add_event(
                each, text(each, "TRIGGER-REF") or text(each, "EVENT-REF"), target(each, "EVENT-REF")
            )
        self._apply_groups(deployment)
        self._apply_e2e()
        service = CatalogueService(
            place=place_of(instance),
            service=required_number(deployment, "SERVICE-INTERFACE-ID"),
            instance=required_number(instance, "SERVICE-INSTANCE-ID"),
            major=number(deployment, "SERVICE-INTERFACE-VERSION/MAJOR-VERSION") or 0,
            minor=number(deployment, "SERVICE-INTERFACE-VERSION/MINOR-VERSION") or 0,
            events=list(self._events.values()),
            methods=methods,
            multicast=self._multicast(),
        )
        self._apply_mapping(service)
        return service

    def _apply_mapping(self, service: CatalogueService) -> None:
        if self._mapping is None:
            return
        connector = target(self._mapping, "COMMUNICATION-CONNECTOR-REF")
        machine = ancestor(connector, "MACHINE-DESIGN", "ECU-INSTANCE")
        service.provider = "" if machine is None else name_of(machine)
        endpoints = [target(connector, "UNICAST-NETWORK-ENDPOINT-REF")]
        if connector is not None:
            endpoints += map(target, children(connector, "UNICAST-NETWORK-ENDPOINT-REFS"))
            endpoints += map(target, children(connector, "NETWORK-ENDPOINT-REFS"))
        found = [address for each in endpoints if each is not None and (address := ip_address(each))]
        service.address = found[0] if found else None
        service.udp = self._port("UDP")
        service.tcp = self._port("TCP")

    def _port(self, protocol: str) -> int | None:
        direct = number(self._mapping, f"{protocol}-PORT")
        endpoint = target(self._mapping, f"{protocol}-PORT-REF")
        path = f"TP-CONFIGURATION/{protocol}-TP/{protocol}-TP-PORT/PORT-NUMBER"
        return direct if endpoint is None else number(endpoint, path)

    # --- events, methods and fields -----------------------------------------------------------------------------------

    def _add_event(self, deployment: "Element", what: str | None, prototype: "Element | None") -> None:
        event = CatalogueEvent(id=required_number(deployment, "EVENT-ID"), keys=_transport(deployment))
        tp = _segments(deployment, "MAXIMUM-SEGMENT-LENGTH", "SEPARATION-TIME")
        if tp:
            event.keys["tp"] = tp
        if prototype is not None:
            event.type = self._types.of(target(prototype, "TYPE-TREF"), prototype)
        elif what is not None:
            self._left_out.note(
                f"{place_of(deployment)}, EVENT-REF", f"{what} is in no file: no payload type"
            )
        self._events[place_of(deployment)] = event

    def _method(self, deployment: "Element") -> dict[str, Any]:
        method = {"id": required_number(deployment, "METHOD-ID"), **_transport(deployment)}
        tp = _segments(deployment, "MAXIMUM-SEGMENT-LENGTH-REQUEST", "SEPARATION-TIME-REQUEST") or _segments(
            deployment, "MAXIMUM-SEGMENT-LENGTH-RESPONSE", "SEPARATION-TIME-RESPONSE"
        )
        if tp:
            method["tp"] = tp
        operation = target(deployment, "METHOD-REF")
        if operation is not None and text(operation, "FIRE-AND-FORGET") in {"true", "1", "True"}:
            method["no_return"] = True
        return method

    def _fields(self, deployment: "Element") -> Iterator[dict[str, Any]]:
        """The methods of the fields; their notifiers are events."""
        for field in children(deployment, "FIELD-DEPLOYMENTS"):
            for name in ("GET", "SET"):
                accessor = child(field, name)
                if accessor is not None:
                    yield self._method(accessor)
            notifier = child(field, "NOTIFIER")
            if notifier is not None:
                self._add_event(notifier, text(field, "FIELD-REF"), target(field, "FIELD-REF"))
                self._events[place_of(notifier)].keys["field"] = True

    def _apply_groups(self, deployment: "Element") -> None:
        for group in children(deployment, "EVENT-GROUPS"):
            for reference in children(group, "EVENT-REFS"):
                event = self._events.get(text(reference) or "")
                if event is None:
                    self._left_out.note(
                        f"{place_of(group)}, EVENT-REF", f"{text(reference)} is no event of it"
                    )
                else:
                    event.eventgroups.append(required_number(group, "EVENT-GROUP-ID"))

    def _multicast(self) -> dict[int, tuple[str, int]]:
        found: dict[int, tuple[str, int]] = {}
        for group in children(self._instance, "PROVIDED-EVENT-GROUPS"):
            known = target(group, "EVENT-GROUP-REF")
            ipv6 = text(group, "IPV-6-MULTICAST-IP-ADDRESS")
            host = text(group, "IPV-4-MULTICAST-IP-ADDRESS") or (None if ipv6 is None else f"[{ipv6}]")
            port = number(group, "EVENT-MULTICAST-UDP-PORT")
            if known is not None and host is not None and port is not None:
                threshold = number(group, "MULTICAST-THRESHOLD")
                found[required_number(known, "EVENT-GROUP-ID")] = (f"{host}:{port}", threshold or 0)
        return found

    # --- E2E ----------------------------------------------------------------------------------------------------------

    def _apply_e2e(self) -> None:
        for props in children(self._instance, "E-2-E-EVENT-PROTECTION-PROPSS"):
            event = self._events.get(text(props, "EVENT-REF") or "")
            place = place_of(props)
            if event is None:
                self._left_out.note(
                    place, f"left out: EVENT-REF: {text(props, 'EVENT-REF')} is no event of the service"
                )
                continue
            try:
                event.keys["e2e"] = self._e2e(props, place)
            except InvalidArxml as error:
                self._left_out.note(place, f"left out: {error}")

    def _e2e(self, props: "Element", place: str) -> dict[str, Any]:
        profile = target(props, "E-2-E-PROFILE-CONFIGURATION-REF")
        if profile is None:
            raise InvalidArxml(
                "E-2-E-PROFILE-CONFIGURATION-REF: expected the path of a configuration in the files"
            )
        name = text(profile, "PROFILE-NAME") or ""
        digits = "".join(each for each in name if each.isdigit())
        found: dict[str, Any] = {"profile": f"P{digits:0>2}"}
        if found["profile"] not in {"P01", "P04", "P05", "P06", "P07", "P11"}:
            raise InvalidArxml(f"PROFILE-NAME: {name!r}: expected profile 1, 4, 5, 6, 7 or 11")
        ids = [number(each) for each in children(props, "DATA-IDS")]
        if len(ids) != 1 or ids[0] is None:
            raise InvalidArxml(f"DATA-IDS: {len(ids)} of them, expected one")
        found["data_id"] = ids[0]
        mode = text(profile, "DATA-ID-MODE")
        if mode is not None and found["profile"] in {"P01", "P11"}:
            key = mode.upper().replace("_", "-")
            if key not in _MODES:
                raise InvalidArxml(f"DATA-ID-MODE: {mode!r}: expected one of {', '.join(_MODES)}")
            found["data_id_mode"] = _MODES[key]
        delta = number(profile, "MAX-DELTA-COUNTER")
        if delta:
            found["max_delta_counter"] = delta
        known = frozenset({"PROFILE-NAME", "DATA-ID-MODE", "MAX-DELTA-COUNTER"})
        note_others(profile, known, {}, self._left_out)
        self._left_out.note(
            place, "E2E: offset 0 is assumed, and that the CRC covers what the profile usually covers"
        )
        return found


def _transport(deployment: "Element") -> dict[str, Any]:
    """`protocol`, if the deployment has one."""
    protocol = (text(deployment, "TRANSPORT-PROTOCOL") or "").lower()
    return {"protocol": protocol} if protocol in {"tcp", "udp"} else {}


def _segments(deployment: "Element", length: str, separation: str) -> bool | dict[str, int]:
    """The value of `tp`. The separation time is in seconds there and in microseconds here."""
    bytes_, pause_ms = number(deployment, length), milliseconds(deployment, separation)
    if not bytes_:
        return False
    tp = {"segment_bytes": bytes_ - bytes_ % 16}
    return tp | {"separation_us": pause_ms * 1_000} if pause_ms else tp
