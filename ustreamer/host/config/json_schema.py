# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a configuration file, for completion and checks in editors.

In: the transport kinds and the Config classes of plugins. Out: a schema (draft 2020-12). It is weaker than
`ustreamer check`: it has keys, types, ranges and choices, and no rule about several keys.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.host.config.config import DeadLettersConfig, EgressConfig, ObserveConfig
from ustreamer.host.config.document import format_names
from ustreamer.host.config.secrets import SECRET_KEYS
from ustreamer.transport_port import TransportKind

Schema = dict[str, Any]
_SECRET_SOURCES: Final = [
    {
        "type": "object",
        "properties": {source: {"type": "string", "minLength": 1}},
        "required": [source],
        "additionalProperties": False,
    }
    for source in ("env", "file")
]


def json_schema(
    kinds: Mapping[str, TransportKind], plugin_configs: Mapping[str, type[msgspec.Struct]]
) -> Schema:
    """The schema of a file with these transports and plugins."""
    # A transport of which a plugin adds the endpoint has no [endpoints] section of its own.
    transports = {name: kind for name, kind in kinds.items() if not _is_provided(plugin_configs.get(name))}
    types = [EgressConfig, DeadLettersConfig, ObserveConfig, *plugin_configs.values()]
    types += [kind.config for kind in transports.values()]
    parts, definitions = msgspec.json.schema_components(
        types, schema_hook=_foreign_type, ref_template="#/$defs/{name}"
    )
    for definition in definitions.values():
        for name, schema in definition.get("properties", {}).items():
            if name in SECRET_KEYS:
                definition["properties"][name] = {"anyOf": [schema, *_SECRET_SOURCES]}
    egress, dead_letters, observe, *rest = parts
    plugins = dict(zip(plugin_configs, rest, strict=False))
    endpoints = [
        _endpoint(name, definitions[part["$ref"].rpartition("/")[2]])
        for name, part in zip(transports, rest[len(plugins) :], strict=True)
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"The configuration of a uStreamer with the plugins {format_names(plugin_configs)}",
        "type": "object",
        "properties": {
            "authority": {"type": "string", "description": "The streamer's own authority."},
            "state_dir": {"type": "string", "default": "/var/lib/ustreamer"},
            "endpoints": {"type": "object", "minProperties": 1, "additionalProperties": {"oneOf": endpoints}},
            "egress": {"type": "object", "additionalProperties": egress},
            "dead_letters": dead_letters,
            "observe": observe,
            "plugins": {"type": "object", "properties": plugins, "additionalProperties": False},
        },
        "required": ["authority", "endpoints"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _is_provided(config: type[msgspec.Struct] | None) -> bool:
    """Whether the section of a plugin adds an endpoint (`ustreamer.hooks.EndpointProvider`)."""
    return hasattr(config, "endpoints")


def _endpoint(transport: str, section: Schema) -> Schema:
    """The schema of [endpoints.<name>] with this transport: the value selects the section."""
    return {**section, "properties": {**section["properties"], "transport": {"const": transport}}}


def _foreign_type(kind: type) -> Schema:
    if kind is Path:
        return {"type": "string", "minLength": 1, "description": "A path; a relative one starts at the file."}
    raise TypeError(f"a configuration has no values of type {kind.__name__}")
