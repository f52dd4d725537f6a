# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import up-streamer`: converts the CONFIG.json5 of Eclipse's up-streamer, and lists the omissions.

    streamer_uuri.authority                     authority
    up_streamer_config.message_queue_size       [egress.default] queue_messages
    transports.zenoh, zenoh_transport_config    one Zenoh endpoint: its authorities and its Zenoh configuration file
    transports.mqtt, mqtt_config                one MQTT endpoint: its authorities, its broker and its session

The file is that of the configurable streamer, of an example streamer (DEFAULT_CONFIG.json5), or of the plugin of the
Zenoh router, whose configuration is below `plugins.up_linux_streamer`.

In up-streamer, a `forwarding` line connects each pair of endpoints. Here publications follow subscriptions, and all
other messages follow their sink, so those lines have no counterpart. Rules (`access`) restrict the senders.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Final

import msgspec

from ustreamer.host.config.endpoint_text import quoted
from ustreamer.host.importers.json5 import Json5Error, parse
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import check_authority

LIMIT_BYTES: Final = 1_000_000

_HOST: Final = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
_STRAY: Final = re.compile(r"[^\x20-\x7e]")
_KNOWN: Final = {
    "up_streamer_config",
    "streamer_uuri",
    "usubscription_config",
    "transports",
    "host_config",
    "zenoh_transport_config",
    "mqtt_config",
}
_ROUTER_PLUGIN: Final = "up_linux_streamer"
_LEFT_OUT_REASONS: Final = {
    "someip_config": "see `ustreamer import vsomeip` with its config_file",
    "__required__": "a setting of the Zenoh router",
}
_MQTT_REASONS: Final = {
    "max_buffered_messages": "see `max_in_flight` of the endpoint, 1024",
    "max_subscriptions": "the number of subscriptions at the broker is not limited",
}
_MQTT_PORT: Final = 1883
_MAX_EXPIRY_S: Final = 4_294_967_295


class MqttSettings(msgspec.Struct, frozen=True):
    """The MQTT endpoint: the authorities behind it, and its broker as `mqtt://host:port`."""

    authorities: tuple[str, ...]
    broker: str
    username: str | None
    session_expiry_s: int


class UpStreamerConfig(msgspec.Struct, frozen=True):
    """The content of the configuration. `zenoh` is its Zenoh configuration file, None if it names none."""

    authority: str
    queue_messages: int | None
    authorities: tuple[str, ...]
    zenoh: Path | None
    mqtt: MqttSettings | None
    left_out: tuple[str, ...]


def import_file(path: Path) -> UpStreamerConfig:
    """Read `path`. Raises UStatusError: NOT_FOUND, or INVALID_ARGUMENT if it is no up-streamer configuration."""
    data = _read_object(path)
    plugins = data.get("plugins")
    if isinstance(plugins, dict) and isinstance(plugins.get(_ROUTER_PLUGIN), dict):
        data = plugins[_ROUTER_PLUGIN]
    return _Import(data, path).result()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise UStatusError(UCode.NOT_FOUND, f"{path}: {error.strerror}") from error
    if len(raw) > LIMIT_BYTES:
        raise invalid_argument(f"{path}: more than {LIMIT_BYTES} bytes; a configuration is not that long")
    try:
        data = parse(raw.decode())
    except Json5Error as error:
        raise invalid_argument(f"{path}:{error.line}: not JSON5: {error.problem}") from error
    except UnicodeDecodeError as error:
        raise invalid_argument(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    if not isinstance(data, dict):
        raise invalid_argument(f"{path}: expected an object, as the configuration of up-streamer is")
    return data


class _Import:
    def __init__(self, data: dict[str, Any], path: Path) -> None:
        self._data = data
        self._path = path
        self._left_out: list[str] = []

    def result(self) -> UpStreamerConfig:
        authority = self._own_authority()
        transports = self._section(self._data, "transports", "")
        authorities: tuple[str, ...]
        if "transports" not in self._data and self._data.keys() & {"zenoh_transport_config", "host_config"}:
            # An example streamer, or the plugin of a router: the own authority lives on Zenoh.
            zenoh, authorities = self._section(self._data, "zenoh_transport_config", ""), (authority,)
        else:
            zenoh = self._section(transports, "zenoh", "transports.")
            authorities = tuple(self._authorities(zenoh, "transports.zenoh"))
        if not authorities:
            raise invalid_argument(
                f"{self._path}: transports.zenoh.endpoints: none with an authority that can be used"
            )
        mqtt = self._mqtt(transports, authorities)
        for key in transports:
            if key not in {"zenoh", "mqtt"}:
                self._note_left_out(
                    f"transports.{key}", f"there is no transport {key}; its authorities have no endpoint"
                )
        self._usubscription()
        for key in self._data:
            if key not in _KNOWN:
                self._note_left_out(key, _LEFT_OUT_REASONS.get(key, "not known"))
        return UpStreamerConfig(
            authority,
            self._queue_size(),
            authorities,
            self._file(zenoh),
            mqtt,
            tuple(self._left_out),
        )

    def _note_left_out(self, place: str, why: str) -> None:
        self._left_out.append(_STRAY.sub("?", f"{place}: {why}"))

    def _section(self, of: dict[str, Any], key: str, before: str) -> dict[str, Any]:
        found = of.get(key, {})
        if not isinstance(found, dict):
            raise invalid_argument(f"{self._path}: {before}{key}: expected an object")
        return found

    def _file(self, section: dict[str, Any]) -> Path | None:
        name = section.get("config_file")
        return self._path.parent / name if isinstance(name, str) else None

    def _own_authority(self) -> str:
        uuri, host = (
            self._section(self._data, "streamer_uuri", ""),
            self._section(self._data, "host_config", ""),
        )
        authority = uuri.get("authority", host.get("authority"))
        if host.get("transport", "Zenoh") != "Zenoh":
            self._note_left_out("host_config.transport", "the own authority is behind the Zenoh endpoint")
        if not isinstance(authority, str) or not _is_usable_authority(authority):
            raise invalid_argument(
                f"{self._path}: streamer_uuri.authority: {authority!r}: expected an authority"
            )
        for key in uuri:
            if key != "authority":
                self._note_left_out(
                    f"streamer_uuri.{key}", "by the standard a streamer is uEntity 4, version 1"
                )
        return authority

    def _queue_size(self) -> int | None:
        section = self._section(self._data, "up_streamer_config", "")
        for key in section:
            if key != "message_queue_size":
                self._note_left_out(f"up_streamer_config.{key}", "not known")
        size = section.get("message_queue_size")
        if isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= 10_000_000:
            return size
        if size is not None:
            self._note_left_out("up_streamer_config.message_queue_size", f"{size!r}: expected 1 to 10000000")
        return None

    def _mqtt(self, transports: dict[str, Any], others: Sequence[str]) -> MqttSettings | None:
        """The MQTT endpoint: that of the configurable streamer, or of an example streamer."""
        if "mqtt" in transports:
            where, section = "transports.mqtt", self._section(transports, "mqtt", "transports.")
            found = tuple(self._authorities(section, where))
            file = self._file(section)
            settings = {} if file is None else _read_object(file)
        elif "mqtt_config" in self._data:
            where, settings = "mqtt_config", self._section(self._data, "mqtt_config", "")
            found = tuple(self._authorities({"endpoints": [settings]}, where))
        else:
            return None
        authorities = tuple(each for each in found if each not in others)
        if len(authorities) < len(found):
            self._note_left_out(where, "an authority that is behind the Zenoh endpoint, too: it stays there")
        return self._mqtt_section(where, settings, authorities) if authorities else None

    def _mqtt_section(
        self, where: str, settings: dict[str, Any], authorities: tuple[str, ...]
    ) -> MqttSettings:
        host, port = settings.get("hostname", "localhost"), settings.get("port", _MQTT_PORT)
        if not isinstance(host, str) or _HOST.fullmatch(host) is None or not _is_number(port, 1, 0xFFFF):
            raise invalid_argument(f"{self._path}: {where}: {host!r}, {port!r}: expected hostname and port")
        username, expiry_s = settings.get("username"), settings.get("session_expiry_interval", 0)
        if not _is_number(expiry_s, 0, _MAX_EXPIRY_S):
            self._note_left_out(
                f"{where}.session_expiry_interval", f"{expiry_s!r}: expected 0 to {_MAX_EXPIRY_S}"
            )
            expiry_s = 0
        for key in settings:
            if key not in {"authority", "hostname", "port", "username", "session_expiry_interval"}:
                self._note_left_out(f"{where}.{key}", _MQTT_REASONS.get(key, "not known"))
        name = username if isinstance(username, str) and username else None
        return MqttSettings(authorities, f"mqtt://{host}:{port}", name, expiry_s)

    def _authorities(self, transport: dict[str, Any], where: str) -> Iterator[str]:
        endpoints = transport.get("endpoints", [])
        if not isinstance(endpoints, list):
            raise invalid_argument(f"{self._path}: {where}.endpoints: expected an array")
        seen: set[str] = set()
        for index, endpoint in enumerate(endpoints):
            place = f"{where}.endpoints[{index}]"
            authority = endpoint.get("authority") if isinstance(endpoint, dict) else None
            if not isinstance(authority, str) or not _is_usable_authority(authority):
                self._note_left_out(place, f"authority {authority!r}: left out: expected an authority")
                continue
            targets = endpoint.get("forwarding", [])
            if targets:
                self._note_left_out(
                    f"{place}.forwarding",
                    "publications go to subscribers, other messages to their sink; see `access` to forbid some",
                )
            if authority not in seen:
                seen.add(authority)
                yield authority

    def _usubscription(self) -> None:
        section = self._section(self._data, "usubscription_config", "")
        file = section.get("file_path")
        if section.get("mode", "static_file") == "static_file" and file is not None:
            self._note_left_out(
                "usubscription_config.file_path",
                "subscriptions are in the store of the streamer, not in its configuration: "
                f"`ustreamer subscriptions import CONFIG {quote(str(self._path.parent / str(file)))}` adds these",
            )
        for key in section:
            if key not in {"mode", "file_path"}:
                self._note_left_out(f"usubscription_config.{key}", "not known")


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_usable_authority(authority: str) -> bool:
    try:
        check_authority(authority, authority)
    except UStatusError:
        return False
    return authority != "*"


def toml_text(name: str, imported: UpStreamerConfig, origin: str) -> str:
    """A configuration with a Zenoh endpoint `name`, as TOML. Without a Zenoh file it listens on loopback.

    The MQTT endpoint, if there is one, has the name `mqtt`.
    """
    transport_lines = (
        ['mode = "peer"', 'listen = ["tcp/127.0.0.1:7447"]']
        if imported.zenoh is None
        else [f"config = {quoted(str(imported.zenoh))}"]
    )
    lines = [
        f"# Made of {_STRAY.sub('?', origin)} by `ustreamer import up-streamer`.",
        f"authority = {quoted(imported.authority)}",
        "",
        f"[endpoints.{name}]",
        'transport = "zenoh"',
        f"authorities = [{', '.join(map(quoted, imported.authorities))}]",
        *transport_lines,
    ]
    if imported.mqtt is not None:
        lines += _mqtt_lines(imported.mqtt)
    if imported.queue_messages is not None:
        lines += ["", "[egress.default]", f"queue_messages = {imported.queue_messages}"]
    plugins = ["[plugins.mqtt]", "[plugins.usubscription]"] if imported.mqtt else ["[plugins.usubscription]"]
    return "\n".join([*lines, "", *plugins, ""])


def _mqtt_lines(mqtt: MqttSettings) -> list[str]:
    lines = [
        "",
        "[endpoints.mqtt]",
        'transport = "mqtt"',
        f"authorities = [{', '.join(map(quoted, mqtt.authorities))}]",
        f"broker = {quoted(mqtt.broker)}",
    ]
    if mqtt.username is not None:
        lines.append(f"username = {quoted(mqtt.username)}")
    if mqtt.session_expiry_s:
        lines.append(f"session_expiry_s = {mqtt.session_expiry_s}")
    return lines
