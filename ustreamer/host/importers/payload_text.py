# SPDX-License-Identifier: Apache-2.0
"""Formats descriptions of payloads as tables of the payloads plugin, in TOML."""

from collections.abc import Iterator, Mapping
from typing import Any

from ustreamer.host.config.endpoint_text import quoted


def payloads_toml(types: Mapping[str, Any], topics: Mapping[str, Any]) -> str:
    """The section `[plugins.payloads]`; "" without topics."""
    return "\n".join(_lines(types, topics)) + "\n" if topics else ""


def _lines(types: Mapping[str, Any], topics: Mapping[str, Any]) -> Iterator[str]:
    for topic, type in topics.items():
        yield from ("", "[[plugins.payloads.topics]]", f"topic = {quoted(topic)}", f"type = {_value(type)}")
    for name, shape in types.items():
        yield from ("", f"[plugins.payloads.types.{name}]")
        for key, value in shape.items():
            if isinstance(value, list):
                yield f"{key} = ["
                yield from (f"    {_value(each)}," for each in value)
                yield "]"
            else:
                yield f"{key} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else quoted(str(value))


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else quoted(key)
