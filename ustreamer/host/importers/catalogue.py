# SPDX-License-Identifier: Apache-2.0
"""A catalogue of SOME/IP services, as importers read it from files, becomes an endpoint and descriptions of payloads.

In: services with their ids, addresses and payload types, and the options of the command. Out: a `SomeipEndpoint` that
`ustreamer check` accepts, the tables of the payloads plugin, and one line for each setting that is left out.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument

DEFAULT_PORT: Final = 30_500
DEFAULT_SD_GROUP: Final = "224.244.224.245"
MAX_SERVICES: Final = 4_096
MAX_TYPES: Final = 1_024
"""The limit of the payloads plugin, for types and for topics."""

_STRAY: Final = re.compile(r"[^\x20-\x7e]")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")

NoteLeftOut = Callable[[str, str], None]
"""Receives a place in the file and the reason for its omission."""


class CatalogueEvent(msgspec.Struct, kw_only=True):
    """An event or the notifier of a field. `keys` are more keys of the configuration, `type` that of its payload."""

    id: int
    eventgroups: list[int] = []
    keys: dict[str, Any] = {}
    type: Any = None


class CatalogueService(msgspec.Struct, kw_only=True):
    """A service instance. `provider` is the ECU or machine that provides it, `udp` and `tcp` are its ports."""

    place: str
    service: int
    instance: int = 1
    major: int = 1
    minor: int = 0
    provider: str = ""
    address: str | None = None
    udp: int | None = None
    tcp: int | None = None
    events: list[CatalogueEvent] = []
    methods: list[dict[str, Any]] = []
    multicast: dict[int, tuple[str, int]] = {}
    """The address and the threshold of event groups."""


class SdAddress(msgspec.Struct, frozen=True):
    """The multicast group and the port of service discovery; None where no file has it."""

    group: str | None = None
    port: int | None = None


class CatalogueOptions(msgspec.Struct, frozen=True):
    """Values that the files lack: the streamer's authority, that of the network, its own address (None: from the
    files, if the streamer is `ecu`), and the ECU whose services the streamer offers (None: none).
    """

    authority: str = "gateway"
    network: str = "vehicle"
    bind: str | None = None
    ecu: str | None = None


class ImportedCatalogue(msgspec.Struct, frozen=True):
    """An endpoint that `ustreamer check` accepts, the types of its payloads, and the omitted settings."""

    endpoint: SomeipEndpoint
    types: Mapping[str, Any]
    topics: Mapping[str, Any]
    left_out: tuple[str, ...]


class LeftOut:
    """The lines about settings that were left out, each once."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def note(self, place: str, why: str) -> None:
        self._lines[_STRAY.sub("?", f"{place}: {why}")] = None

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)


def read_file(path: Path, limit_bytes: int) -> bytes:
    """The content of a file. Raises UStatusError: NOT_FOUND, or INVALID_ARGUMENT if it is longer than the limit."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except OSError as error:
        raise UStatusError(UCode.NOT_FOUND, f"{path}: {error.strerror}") from error
    if len(raw) > limit_bytes:
        raise invalid_argument(f"{path}: more than {limit_bytes} bytes; split the file")
    return raw


def type_name(name: str) -> str:
    """`name` as a name of a payload type."""
    return _NOT_IN_A_NAME.sub("_", name)[-64:]


def import_catalogue(
    services: Iterable[CatalogueService],
    types: Mapping[str, Any],
    sd: SdAddress,
    options: CatalogueOptions,
    left_out: LeftOut,
) -> ImportedCatalogue:
    """The endpoint of a catalogue. Raises UStatusError(INVALID_ARGUMENT) if no endpoint is possible."""
    listed = list(services)
    if len(listed) > MAX_SERVICES:
        raise invalid_argument(f"{len(listed)} service instances, expected at most {MAX_SERVICES}")
    if options.ecu is not None and options.ecu not in {each.provider for each in listed}:
        names = ", ".join(sorted({each.provider for each in listed if each.provider})) or "none"
        raise invalid_argument(f"--ecu {options.ecu}: it provides no service; expected one of: {names}")
    endpoint = _Endpoint(listed, sd, options, left_out).result()
    accepted = {(each.service, each.instance, each.major) for each in endpoint.services}
    topics: dict[str, Any] = {}
    for service in listed:
        if (service.service, service.instance, service.major) in accepted:
            topics.update(_topics(service, options))
    if len(topics) > MAX_TYPES:
        left_out.note("payloads", f"{len(topics) - MAX_TYPES} topics above {MAX_TYPES} are left out")
        topics = dict(list(topics.items())[:MAX_TYPES])
    return ImportedCatalogue(endpoint, _used_types(topics, types), topics, left_out.lines())


def _topics(service: CatalogueService, options: CatalogueOptions) -> Iterator[tuple[str, Any]]:
    ue_id = (service.instance << 16 if service.instance != 1 else 0) | service.service
    authority = options.authority if service.provider == options.ecu else options.network
    for event in service.events:
        if event.type is not None:
            yield f"//{authority}/{ue_id:X}/{service.major:X}/{event.id:X}", event.type


def _used_types(topics: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The types that the topics need, directly or not."""
    used: dict[str, Any] = {}
    waiting = list(topics.values())
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            if node in types and node not in used:
                used[node] = types[node]
                waiting.append(types[node])
        elif isinstance(node, dict):
            waiting += [node[key] for key in ("type", "of", "members", "variants") if key in node]
        elif isinstance(node, list):
            waiting += node
    return {name: used[name] for name in sorted(used)}


class _Endpoint:
    """Builds the endpoint, with every service that keeps it valid."""

    def __init__(
        self,
        services: list[CatalogueService],
        sd: SdAddress,
        options: CatalogueOptions,
        left_out: LeftOut,
    ) -> None:
        self._services, self._sd, self._options, self._left_out = services, sd, options, left_out

    def result(self) -> SomeipEndpoint:
        own = [each for each in self._services if self._is_ours(each)]
        bind = self._bind(own)
        ports = sorted({each.udp for each in own if each.udp}) or [DEFAULT_PORT]
        base: dict[str, Any] = {
            "transport": "someip",
            "authorities": [self._options.network],
            "bind": bind,
            "port": ports[0],
            "sd": self._discovery(bind),
        }
        tcp_ports = sorted({each.tcp for each in own if each.tcp})
        if tcp_ports:
            base["port_tcp"] = tcp_ports[0]
        accepted: list[dict[str, Any]] = []
        endpoint = self._validated(base, accepted, "the endpoint")
        for each in self._services:
            service = self._service(each, ports[0], tcp_ports[0] if tcp_ports else None)
            try:
                endpoint = _convert(base, [*accepted, service])
            except msgspec.ValidationError as error:
                self._left_out.note(each.place, f"left out: {error}")
            else:
                accepted.append(service)
        return endpoint

    def _validated(self, base: dict[str, Any], services: list[dict[str, Any]], what: str) -> SomeipEndpoint:
        try:
            return _convert(base, services)
        except msgspec.ValidationError as error:
            raise invalid_argument(f"{what}: {error}") from error

    def _is_ours(self, service: CatalogueService) -> bool:
        return self._options.ecu is not None and service.provider == self._options.ecu

    def _bind(self, own: list[CatalogueService]) -> str:
        if self._options.bind is not None:
            return self._options.bind
        for each in own:
            if each.address is not None:
                return each.address
        self._left_out.note(
            "bind", "the files do not have the streamer's address: replace 127.0.0.1 (--bind)"
        )
        return "127.0.0.1"

    def _discovery(self, bind: str) -> dict[str, Any]:
        group = self._sd.group
        if group is None:
            group = "ff02::4:c0" if ":" in bind else DEFAULT_SD_GROUP
            self._left_out.note("sd.multicast", f"not in the files: {group} is assumed")
        return {"multicast": group, "port": self._sd.port or 30_490, "interface": bind}

    def _service(self, service: CatalogueService, port: int, port_tcp: int | None) -> dict[str, Any]:
        found: dict[str, Any] = {
            "service": service.service,
            "instance": service.instance,
            "major": service.major,
            "events": [_event(each) for each in service.events],
            "methods": [dict(each) for each in service.methods],
        }
        protocol = "tcp" if service.tcp is not None and service.udp is None else "udp"
        if protocol == "tcp":
            found["protocol"] = protocol
        for each in (*found["events"], *found["methods"]):
            if each.get("protocol") == protocol:
                del each["protocol"]
        found["methods"] = [each["id"] if len(each) == 1 else each for each in found["methods"]]
        if not self._is_ours(service):
            for group in service.multicast:
                self._left_out.note(
                    f"{service.place}, event group {group:#06x}",
                    "its multicast address: the ECU announces it in the acknowledgement",
                )
            return found | {"events": [_without(each, "tp") for each in found["events"]]}
        ue_id = (service.instance << 16 if service.instance != 1 else 0) | service.service
        found |= {
            "events": [
                each | {"e2e": _without(each["e2e"], "max_delta_counter")} if "e2e" in each else each
                for each in found["events"]
            ],
            "offered": True,
            "minor": service.minor,
            "provider": f"//{self._options.authority}/{ue_id:X}/{service.major:X}/0",
            "eventgroups": [
                {"id": id, "multicast": address, "threshold": threshold}
                for id, (address, threshold) in service.multicast.items()
                if threshold
            ],
        }
        if service.udp is not None and service.udp != port:
            found |= {"port": service.udp, "port_tcp": service.tcp or service.udp}
        elif service.tcp is not None and service.tcp != port_tcp:
            self._left_out.note(service.place, f"its TCP port {service.tcp}: it is offered at {port_tcp}")
        return found


def _event(event: CatalogueEvent) -> dict[str, Any]:
    groups = event.eventgroups
    group = {"eventgroup": groups[0] if len(groups) == 1 else groups} if groups else {}
    return {"id": event.id, **group, **event.keys}


def _without(table: dict[str, Any], without: str) -> dict[str, Any]:
    """A table without the key that is for the other direction only."""
    return {key: value for key, value in table.items() if key != without}


def _convert(base: dict[str, Any], services: list[dict[str, Any]]) -> SomeipEndpoint:
    return msgspec.convert({**base, "services": services}, SomeipEndpoint)
