# SPDX-License-Identifier: Apache-2.0
"""The configuration in force: every key with its value, and where the value comes from.

In: a document and its checked configuration. Out: settings: those of the file, and the defaults of all other
keys. Passwords and keys of users are not shown.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ustreamer.core.egress.limits import EgressLimits
from ustreamer.host.config.config import DEFAULT_SECTION, StreamerConfig
from ustreamer.host.config.document import KeyPath, TomlDocument, format_path, value_at
from ustreamer.host.config.secrets import SECRET_KEYS

_SECRET: Final = SECRET_KEYS | {"salt"}
_ABSENT: Final = object()
_RETRY: Final = {"retry_first_ms": ("retry", "first_ms"), "retry_max_ms": ("retry", "max_ms")}


class Setting(msgspec.Struct, frozen=True):
    """A key path, its value as TOML, and its origin: "line 12", "default", or the section that provides it."""

    path: str
    value: str
    origin: str


def effective_settings(document: TomlDocument, config: StreamerConfig) -> list[Setting]:
    """The settings in force, in the order of the configuration page."""
    settings = [
        _setting(document, ("authority",), config.authority),
        _setting(document, ("state_dir",), str(config.state_dir)),
    ]
    in_file = value_at(document.data, ("endpoints",))
    assert isinstance(in_file, Mapping)  # otherwise the check has refused it
    for name, endpoint in config.endpoints.items():
        if name in in_file:
            settings += _settings(document, ("endpoints", name), _tree(endpoint.in_force()))
    for name, limits in config.egress.items():
        settings += _egress(document, name, limits)
    settings += _settings(document, ("dead_letters",), _tree(config.dead_letters))
    if config.observe is not None:
        settings += _settings(document, ("observe",), _tree(config.observe))
    for name, plugin in config.plugins.items():
        settings += _settings(document, ("plugins", name), _tree(plugin))
    return settings


def _tree(section: msgspec.Struct) -> Any:
    return msgspec.to_builtins(section, enc_hook=str)


def _settings(document: TomlDocument, path: KeyPath, value: Any) -> Iterator[Setting]:
    """The settings of a value: one, or those of all its keys and elements."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _settings(document, (*path, key), inner)
    elif isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
        for index, inner in enumerate(value):
            yield from _settings(document, (*path, index), inner)
    else:
        yield _setting(document, path, value)


def _egress(document: TomlDocument, name: str, limits: EgressLimits) -> Iterator[Setting]:
    """The limits of an endpoint, by their keys in the file; those of [egress.default] apply where it has none."""
    for field, value in msgspec.structs.asdict(limits).items():
        key: KeyPath = _RETRY.get(field, (field,))
        path: KeyPath = ("egress", name, *key)
        default: KeyPath = ("egress", DEFAULT_SECTION, *key)
        if _origin(document, path) == "default" and value_at(document.data, default) is not None:
            origin = f"{_origin(document, default)}, [egress.{DEFAULT_SECTION}]"
            yield Setting(format_path(path), _toml(value), origin)
        else:
            yield _setting(document, path, value)


def _setting(document: TomlDocument, path: KeyPath, value: Any) -> Setting:
    if path[-1] in _SECRET and value:
        value = "***"
    text = f"{value:#x}" if document.writes_hex(path) else _toml(value)
    return Setting(format_path(path), text, _origin(document, path))


def _origin(document: TomlDocument, path: KeyPath) -> str:
    if value_at(document.data, path, _ABSENT) is _ABSENT:
        return "default"
    return f"line {document.positions.line_of(path)}"


def _toml(value: Any) -> str:
    """A value as TOML; a key without a value is "none"."""
    match value:
        case None:
            return "none"
        case dict():
            return "{}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
    return msgspec.json.encode(value).decode()
