# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import up-streamer`: converts the CONFIG.json5 of Eclipse's up-streamer, and lists the omissions.

    streamer_uuri.authority                     authority
    up_streamer_config.message_queue_size       [egress.default] queue_messages
    transports.zenoh                            one Zenoh endpoint: its authorities and its Zenoh configuration file

In up-streamer, a `forwarding` line connects each pair of endpoints. Here publications follow subscriptions, and all
other messages follow their sink, so those lines have no counterpart. Rules (`access`) restrict the senders.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.host.config.endpoint_text import quoted
from ustreamer.host.importers.json5 import Json5Error, parse
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import check_authority

LIMIT_BYTES: Final = 1_000_000

_STRAY: Final = re.compile(r"[^\x20-\x7e]")
_KNOWN: Final = {"up_streamer_config", "streamer_uuri", "usubscription_config", "transports"}
_LEFT_OUT_REASONS: Final = {
    "someip_config": "see `ustreamer import vsomeip` with its config_file",
    "mqtt_config": "there is no MQTT transport",
    "zenoh_transport_config": "the Zenoh configuration is `transports.zenoh.config_file`",
    "host_config": "the transport of the own authority is that of its endpoint",
}


class UpStreamerConfig(msgspec.Struct, frozen=True):
    """The content of the configuration. `zenoh` is its Zenoh configuration file, None if it names none."""

    authority: str
    queue_messages: int | None
    authorities: tuple[str, ...]
    zenoh: Path | None
    left_out: tuple[str, ...]


def import_file(path: Path) -> UpStreamerConfig:
    """Read `path`. Raises UStatusError: NOT_FOUND, or INVALID_ARGUMENT if it is no up-streamer configuration."""
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
    return _Import(data, path).result()


class _Import:
    def __init__(self, data: dict[str, Any], path: Path) -> None:
        self._data = data
        self._path = path
        self._left_out: list[str] = []

    def result(self) -> UpStreamerConfig:
        authority = self._own_authority()
        transports = self._section(self._data, "transports", "")
        authorities = tuple(self._authorities(transports))
        if not authorities:
            raise invalid_argument(
                f"{self._path}: transports.zenoh.endpoints: none with an authority that can be used"
            )
        zenoh = self._section(transports, "zenoh", "transports.").get("config_file")
        for key in transports:
            if key != "zenoh":
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
            self._path.parent / zenoh if isinstance(zenoh, str) else None,
            tuple(self._left_out),
        )

    def _note_left_out(self, place: str, why: str) -> None:
        self._left_out.append(_STRAY.sub("?", f"{place}: {why}"))

    def _section(self, of: dict[str, Any], key: str, before: str) -> dict[str, Any]:
        found = of.get(key, {})
        if not isinstance(found, dict):
            raise invalid_argument(f"{self._path}: {before}{key}: expected an object")
        return found

    def _own_authority(self) -> str:
        uuri = self._section(self._data, "streamer_uuri", "")
        authority = uuri.get("authority")
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

    def _authorities(self, transports: dict[str, Any]) -> Iterator[str]:
        endpoints = self._section(transports, "zenoh", "transports.").get("endpoints", [])
        if not isinstance(endpoints, list):
            raise invalid_argument(f"{self._path}: transports.zenoh.endpoints: expected an array")
        seen: set[str] = set()
        for index, endpoint in enumerate(endpoints):
            place = f"transports.zenoh.endpoints[{index}]"
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
        if section.get("mode", "static_file") == "static_file" and "file_path" in section:
            self._note_left_out(
                "usubscription_config.file_path",
                "subscriptions are made at run time and persisted; each subscriber calls Subscribe once",
            )
        for key in section:
            if key not in {"mode", "file_path"}:
                self._note_left_out(f"usubscription_config.{key}", "not known")


def _is_usable_authority(authority: str) -> bool:
    try:
        check_authority(authority, authority)
    except UStatusError:
        return False
    return authority != "*"


def toml_text(name: str, imported: UpStreamerConfig, origin: str) -> str:
    """A configuration with a Zenoh endpoint `name`, as TOML. Without a Zenoh file it listens on loopback."""
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
    if imported.queue_messages is not None:
        lines += ["", "[egress.default]", f"queue_messages = {imported.queue_messages}"]
    return "\n".join([*lines, "", "[plugins.usubscription]", ""])
