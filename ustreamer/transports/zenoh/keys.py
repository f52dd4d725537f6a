# SPDX-License-Identifier: Apache-2.0
"""Zenoh key expressions of uProtocol messages and filters (`dsn~up-transport-zenoh-key-expr~1`).

    up / source: authority / type / instance / version / resource / sink: the same five

`*` is a wildcard. `{}` replaces each chunk of the absent sink of a publication. The type (low half of ue_id) precedes
the instance. Numbers are upper-case hex without leading zeros.
"""

import re
from typing import Final

from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer.uprotocol.uuri import (
    ANY_INSTANCE,
    ANY_RESOURCE,
    ANY_TYPE,
    ANY_VERSION,
    UUri,
    check_authority,
)

EVERY_KEY: Final = "up/**"
"""Matches the key of every message."""

NO_SINK: Final = "{}/{}/{}/{}/{}"
"""The sink half of every publication's key."""

_U16: Final = r"(\*|0|[1-9A-F][0-9A-F]{0,3})"
_U8: Final = r"(\*|0|[1-9A-F][0-9A-F]?)"
_HALF: Final = rf"([^/{{}}]+)/{_U16}/{_U16}/{_U8}/{_U16}"
_KEY: Final = rf"up/{_HALF}/(?:{re.escape(NO_SINK)}|{_HALF})"


def filter_key(source: UUri, sink: UUri | None, authority: str) -> str:
    """The key expression of the subscriber for these filters; `authority` replaces an empty one.

    [impl->dsn~up-transport-zenoh-key-expr~1]
    """
    return (
        f"up/{_format_uuri(source, authority)}/{NO_SINK if sink is None else _format_uuri(sink, authority)}"
    )


def message_key(source: UUri, sink: UUri | None, authority: str) -> str:
    """The key of a message; without a sink, of a publication. INVALID_ARGUMENT for an address with a wildcard.

    A put on a key with a wildcard would reach subscribers of many sources and bypass their access rules.
    """
    for name, uuri in (("source", source), ("sink", sink)):
        wildcard = uuri and uuri.wildcard()
        if wildcard:
            raise invalid_argument(
                f"{name} {uuri}: the {wildcard} is a wildcard, expected the address of one entity"
            )
    return filter_key(source, sink, authority)


def _format_uuri(uuri: UUri, authority: str) -> str:
    return "/".join(
        (
            uuri.authority_name or authority,
            _format_number(uuri.ue_type, ANY_TYPE),
            _format_number(uuri.ue_instance, ANY_INSTANCE),
            _format_number(uuri.ue_version_major, ANY_VERSION),
            _format_number(uuri.resource_id, ANY_RESOURCE),
        )
    )


def _format_number(value: int, wildcard: int) -> str:
    return "*" if value == wildcard else f"{value:X}"


def parse_key(key: str) -> tuple[UUri, UUri | None]:
    """Source and sink of a key expression, the sink None for a publication; INVALID_ARGUMENT for any other key.

    The inverse of `filter_key`: each pair has exactly one key expression.
    """
    match = re.fullmatch(_KEY, key)
    if match is None:
        raise invalid_argument(
            f"Zenoh key {key!r}: expected up/ and twice authority/type/instance/version/resource"
        )
    chunks = match.groups()
    source, sink = chunks[:5], chunks[5:]
    return _parse_uuri(key, source), None if sink[0] is None else _parse_uuri(key, sink)


def _parse_uuri(key: str, chunks: tuple[str, ...]) -> UUri:
    authority, kind, instance, version, resource = chunks
    check_authority(authority, key)
    ue_id = _parse_number(key, instance, ANY_INSTANCE) << 16 | _parse_number(key, kind, ANY_TYPE)
    return UUri(
        authority, ue_id, _parse_number(key, version, ANY_VERSION), _parse_number(key, resource, ANY_RESOURCE)
    )


def _parse_number(key: str, chunk: str, wildcard: int) -> int:
    if chunk == "*":
        return wildcard
    value = int(chunk, 16)
    if value == wildcard:
        raise invalid_argument(f"Zenoh key {key!r}: {chunk} is a wildcard, expected * for it")
    return value
