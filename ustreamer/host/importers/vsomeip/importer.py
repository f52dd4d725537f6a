# SPDX-License-Identifier: Apache-2.0
"""Converts a vsomeip configuration to an endpoint, and lists the settings without a counterpart.

    services of that host                         offered, for a uEntity of the streamer's authority
    services with their own `unicast`             services of the network; static without service discovery
    `clients`                                     services of the network, found by service discovery
    with --bind, the file is of another host:     its services are services of the network

Every service is validated within the resulting endpoint. A refused service is left out with the reason. Every omission
is listed.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.host.importers.vsomeip.keys import EVENT, EVENTGROUP, SERVICE, TOP
from ustreamer.host.importers.vsomeip.service_discovery import import_discovery, multicast_eventgroups
from ustreamer.host.importers.vsomeip.tcp import endpoint_keys, event_protocol, has_cookies, protocol_of
from ustreamer.host.importers.vsomeip.tp import tp_by_message_id
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.protocol.addresses import format_address
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument

LIMIT_BYTES: Final = 4_000_000
DEFAULT_MAJOR: Final = 0
"""The version that vsomeip offers and requests by default."""
DEFAULT_PORT: Final = 30_500

_STRAY: Final = re.compile(r"[^\x20-\x7e]")


class InvalidVsomeipJson(ValueError):
    """A value in the file cannot be converted."""


class ImportedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint that `ustreamer check` accepts, and the omitted settings: one line each, with its place."""

    endpoint: SomeipEndpoint
    left_out: tuple[str, ...]


class ImportOptions(msgspec.Struct, frozen=True):
    """Values that the file lacks: the streamer's authority, that of the network, the own address (None: this host),
    and the version.
    """

    authority: str = "gateway"
    network: str = "vehicle"
    bind: str | None = None
    major: int = DEFAULT_MAJOR


def import_file(path: Path, options: ImportOptions) -> ImportedEndpoint:
    """Read the JSON at `path`. Raises UStatusError: NOT_FOUND, or INVALID_ARGUMENT if it is no vsomeip configuration."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise UStatusError(UCode.NOT_FOUND, f"{path}: {error.strerror}") from error
    if len(raw) > LIMIT_BYTES:
        raise invalid_argument(
            f"{path}: more than {LIMIT_BYTES} bytes; a vsomeip configuration is not that long"
        )
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid_argument(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise invalid_argument(f"{path}: expected a JSON object, as vsomeip's configurations are")
    try:
        return import_vsomeip(data, options)
    except ValueError as error:
        raise invalid_argument(f"{path}: {error}") from error


def import_vsomeip(data: Mapping[str, Any], options: ImportOptions) -> ImportedEndpoint:
    """The endpoint for a decoded vsomeip configuration. Raises InvalidVsomeipJson if it cannot be converted."""
    return _Import(data, options).result()


class _Import:
    def __init__(self, data: Mapping[str, Any], options: ImportOptions) -> None:
        self._data = data
        self._options = options
        self._left_out: list[str] = []
        self._cookies = False

    def result(self) -> ImportedEndpoint:
        data = self._data
        host = data.get("unicast")
        if not isinstance(host, str):
            raise InvalidVsomeipJson(
                f'unicast: {_format_value(host)}: expected the address of the host, such as "10.0.0.1"'
            )
        bind = self._options.bind or host
        sd = self._discovery(bind)
        services = list(self._services(host, bind, discovered=sd is not False))
        ports = sorted({port for service in services if service["offered"] and (port := service.pop("port"))})
        reliable = [port for each in services if (port := each.pop("port_tcp", None)) and each["offered"]]
        base: dict[str, Any] = {
            "transport": "someip",
            "authorities": [self._options.network],
            "bind": bind,
            "port": self._port(ports),
            "sd": sd,
            **endpoint_keys(reliable, cookies=self._cookies, note_left_out=self._note_left_out),
        }
        for key in data:
            if key not in _CARRIED and not (key == "netmask" and sd is not False):
                self._note_left_out(key, TOP.get(key, "not known"))
        endpoint = self._endpoint(base, services)
        return ImportedEndpoint(endpoint, tuple(self._left_out))

    def _note_left_out(self, place: str, why: str) -> None:
        self._left_out.append(_STRAY.sub("?", f"{place}: {why}"))

    # --- the endpoint ------------------------------------------------------------------------------------------------

    def _port(self, ports: list[int]) -> int:
        if not ports:
            self._note_left_out("port", f"no offered service has a UDP port; {DEFAULT_PORT} is the default")
            return DEFAULT_PORT
        for other in ports[1:]:
            self._note_left_out(
                "port", f"an endpoint has one UDP port, {ports[0]}: services offered at {other} use it now"
            )
        return ports[0]

    def _endpoint(self, base: dict[str, Any], services: list[dict[str, Any]]) -> SomeipEndpoint:
        """The endpoint with every service that keeps it valid."""
        accepted: list[dict[str, Any]] = []
        endpoint = _validated({**base, "services": accepted})
        for service in services:
            place = service.pop("place")
            service.pop("port", None)
            try:
                endpoint = _validated({**base, "services": [*accepted, service]})
            except ValueError as error:
                self._note_left_out(place, f"left out: {error}")
            else:
                accepted.append(service)
        return endpoint

    def _discovery(self, bind: str) -> dict[str, Any] | bool:
        found = self._data.get("service-discovery")
        if not isinstance(found, dict):
            self._note_left_out("service-discovery", "missing, so it is off; vsomeip's default is on")
            return False
        if not _true(found.get("enable", "true")):
            return False
        try:
            return import_discovery(found, bind, self._data.get("netmask"), _number, self._note_left_out)
        except ValueError as error:
            raise InvalidVsomeipJson(f"service-discovery.port: {error}") from error

    # --- services ----------------------------------------------------------------------------------------------------

    def _services(self, host: str, bind: str, *, discovered: bool) -> Iterator[dict[str, Any]]:
        seen: set[tuple[int, int]] = set()
        for place, raw in self._listed_services():
            try:
                found = self._service(place, raw, host, bind)
            except ValueError as error:
                self._note_left_out(place, f"left out: {error}")
                continue
            seen.add((found["service"], found["instance"]))
            yield found
        clients = list(self._objects("clients", self._data.get("clients", [])))
        for place, raw in clients:
            try:
                ids = (_number(raw.get("service")), _number(raw.get("instance", 1)))
            except ValueError as error:
                self._note_left_out(place, f"left out: {error}")
                continue
            for key in sorted(set(raw) - {"service", "instance"}):
                self._note_left_out(f"{place}.{key}", "the streamer chooses the ports of callers")
            if ids in seen:
                continue
            seen.add(ids)
            if discovered:
                yield self._network_service(place, *ids)
            else:
                self._note_left_out(place, "left out: only service discovery could find its address")

    def _network_service(self, place: str, service: int, instance: int) -> dict[str, Any]:
        self._note_left_out(
            f"{place}.events", "events and methods of a service are not in `clients`; add them"
        )
        return {
            "place": place,
            "service": service,
            "instance": instance,
            "major": self._major(place, {}),
            "offered": False,
        }

    def _listed_services(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self._objects("services", self._data.get("services", []))
        for place, group in self._objects("servicegroups", self._data.get("servicegroups", [])):
            yield from self._objects(f"{place}.services", group.get("services", []))

    def _service(self, place: str, raw: dict[str, Any], host: str, bind: str) -> dict[str, Any]:
        service, instance = _number(raw.get("service")), _number(raw.get("instance", 1))
        lives_at = raw.get("unicast", host)
        if not isinstance(lives_at, str):
            raise InvalidVsomeipJson(f"unicast: {_format_value(lives_at)}: expected an address")
        if lives_at == "local":
            lives_at = host
        if raw.get("protocol", "someip") != "someip":
            raise InvalidVsomeipJson(f"protocol {_format_value(raw['protocol'])}: expected someip")
        port = _port_of(raw.get("unreliable"))
        reliable = _port_of(raw.get("reliable"))
        self._cookies = self._cookies or has_cookies(raw.get("reliable"))
        protocol = protocol_of(port, reliable)
        offered = lives_at == bind
        major = self._major(place, raw)
        found: dict[str, Any] = {
            "place": place,
            "service": service,
            "instance": instance,
            "major": major,
            "events": list(self._events(place, raw, protocol, (port, reliable), offered)),
            "protocol": protocol,
            "methods": self._methods(place, raw),
            "offered": offered,
            "port": port,
            "port_tcp": reliable,
        }
        self._apply_tp(place, raw, found)
        if offered:
            found["eventgroups"] = list(
                multicast_eventgroups(
                    self._objects(f"{place}.eventgroups", raw.get("eventgroups", [])),
                    _number,
                    self._note_left_out,
                )
            )
            ue_id = (instance << 16 if instance != 1 else 0) | service
            found["provider"] = f"//{self._options.authority}/{ue_id:X}/{major:X}/0"
            return self._note_unknown_keys(place, raw, found)
        if port is not None:
            found["remote"] = format_address((lives_at, port))
        if reliable is not None:
            found["remote_tcp"] = format_address((lives_at, reliable))
        return self._note_unknown_keys(place, raw, found)

    def _note_unknown_keys(self, place: str, raw: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
        for key, why in SERVICE.items():
            if key in raw:
                self._note_left_out(f"{place}.{key}", why)
        known = {
            "service",
            "instance",
            "unicast",
            "protocol",
            "unreliable",
            "reliable",
            "events",
            "eventgroups",
            "someip-tp",
        }
        for key in sorted(set(raw) - known - set(SERVICE) - _MAJOR_KEYS):
            self._note_left_out(f"{place}.{key}", "not known")
        return service

    def _major(self, place: str, raw: dict[str, Any]) -> int:
        """The version of a service. vsomeip's own files have none; those of some other tools have it."""
        for key in ("major", "major_version"):
            if key in raw:
                return _number(raw[key])
        self._note_left_out(f"{place}.major", f"not in the file: {self._options.major} is assumed (--major)")
        return self._options.major

    def _methods(self, place: str, raw: dict[str, Any]) -> list[int]:
        """The methods that the file names. vsomeip names only large or bundled methods."""
        named = _named_methods(raw)
        known = ", ".join(f"{method:#06x}" for method in sorted(named))
        self._note_left_out(
            f"{place}.methods",
            f"not in the file; {f'{known} are named in it' if named else 'none are named in it'}: add the others",
        )
        return sorted(named)

    def _apply_tp(self, place: str, raw: dict[str, Any], service: dict[str, Any]) -> None:
        """Set `tp` at the events and methods that the file sends in segments."""
        where, offered = f"{place}.someip-tp", service["offered"]
        tp_by_id = tp_by_message_id(where, raw.get("someip-tp"), offered, _number, self._note_left_out)
        service["methods"] = [
            {"id": id, "tp": tp_by_id[id]} if id in tp_by_id else id for id in service["methods"]
        ]
        for event in service["events"] if offered else ():
            if event["id"] in tp_by_id:
                event["tp"] = tp_by_id[event["id"]]
        known = {each if isinstance(each, int) else each["id"] for each in service["methods"]}
        for id in sorted(set(tp_by_id) - known - {event["id"] for event in service["events"] if offered}):
            self._note_left_out(where, f"{id:#06x} is no message that the streamer sends for this service")

    def _events(
        self,
        place: str,
        raw: dict[str, Any],
        protocol: str,
        ports: tuple[int | None, int | None],
        offered: bool,
    ) -> Iterator[dict[str, Any]]:
        groups: dict[int, list[int]] = {}
        for where, group in self._objects(f"{place}.eventgroups", raw.get("eventgroups", [])):
            number = _number(group.get("eventgroup"))
            carried = {"eventgroup", "events", "is_multicast"} | (set(EVENTGROUP) if offered else set())
            self._note_left_out_keys(where, group, EVENTGROUP, carried)
            for event in _list(group.get("events", [])):
                groups.setdefault(_number(event), []).append(number)
        listed: dict[int, dict[str, Any]] = {}
        for where, event in self._objects(f"{place}.events", raw.get("events", [])):
            number = _number(event.get("event"))
            listed[number] = {**event_protocol(event, where, protocol, ports, self._note_left_out)}
            self._note_left_out_keys(where, event, EVENT, {"event", "is_reliable", "is_field"})
            if _true(event.get("is_field", "false")):
                listed[number]["field"] = True
        for number in dict.fromkeys([*listed, *groups]):
            eventgroups = list(dict.fromkeys(groups.get(number, [])))
            group = (
                {"eventgroup": eventgroups[0] if len(eventgroups) == 1 else eventgroups}
                if eventgroups
                else {}
            )
            yield {"id": number, **group, **listed.get(number, {})}

    def _note_left_out_keys(
        self, place: str, raw: dict[str, Any], reasons: Mapping[str, str], carried: set[str]
    ) -> None:
        for key in raw:
            if key not in carried:
                self._note_left_out(f"{place}.{key}", reasons.get(key, "not known"))

    def _objects(self, place: str, raw: object) -> Iterator[tuple[str, dict[str, Any]]]:
        if not isinstance(raw, list):
            self._note_left_out(place, f"left out: {_format_value(raw)}: expected an array")
            return
        for index, each in enumerate(raw):
            if isinstance(each, dict):
                yield f"{place}[{index}]", each
            else:
                self._note_left_out(
                    f"{place}[{index}]", f"left out: {_format_value(each)}: expected an object"
                )


_CARRIED: Final = {"unicast", "services", "servicegroups", "service-discovery", "clients"}
_MAJOR_KEYS: Final = {"major", "major_version"}


def _validated(endpoint: dict[str, Any]) -> SomeipEndpoint:
    return msgspec.convert(endpoint, SomeipEndpoint)


def _number(value: object) -> int:
    """A number of vsomeip's files: a string, decimal or with 0x."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*(0[xX][0-9a-fA-F]{1,8}|[0-9]{1,10})\s*", value):
        text = value.strip().lower()
        return int(text, 16) if text.startswith("0x") else int(text)
    raise InvalidVsomeipJson(f'{_format_value(value)}: expected a number, such as "0x1234" or "4660"')


def _port_of(value: object) -> int | None:
    """The port of `"30509"` or of an object with it; None for 0 and 65535, which stand for no port in vsomeip."""
    if isinstance(value, dict):
        value = value.get("port")
    if value is None:
        return None
    port = _number(value)
    return None if port in {0, 0xFFFF} else port


def _true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidVsomeipJson(f"{_format_value(value)}: expected an array")
    return value


def _named_methods(raw: Mapping[str, Any]) -> set[int]:
    """The methods named as large (a list for each direction) or as bundled (a key for each)."""
    large, bundled = raw.get("someip-tp"), raw.get("debounce-times")
    named: list[object] = []
    for listed in large.values() if isinstance(large, dict) else ():
        parts = listed if isinstance(listed, list) else []
        named += [each.get("method") if isinstance(each, dict) else each for each in parts]
    for times in bundled.values() if isinstance(bundled, dict) else ():
        named += times if isinstance(times, dict) else []
    return {number for each in named if (number := _number_or_0(each)) and number < 0x8000}


def _number_or_0(value: object) -> int:
    """The number, or 0 for an invalid one; the reader of its list reports it."""
    try:
        return _number(value)
    except InvalidVsomeipJson:
        return 0


def _format_value(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return "missing" if value is None else repr(value)[:60]
