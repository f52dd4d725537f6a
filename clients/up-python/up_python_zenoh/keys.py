# SPDX-License-Identifier: Apache-2.0
"""Zenoh keys of uProtocol messages and filters, from the text of up-spec (up-l1/zenoh.adoc).

    up / source: authority / type / instance / version / resource / sink: the same five

`*` is a wildcard. `{}` replaces each segment of the absent sink of a publication.
"""

import re
from typing import Final, NamedTuple, Protocol

NO_SINK: Final = "{}/{}/{}/{}/{}"
_AUTHORITY: Final = re.compile(r"\*|[a-z0-9\-._~]{1,128}|\[[0-9a-f:.]+\]")
_ANY_16: Final = 0xFFFF
_ANY_8: Final = 0xFF


class Address(Protocol):
    """A UUri, of whatever library."""

    @property
    def authority_name(self) -> str: ...
    @property
    def ue_id(self) -> int: ...
    @property
    def ue_version_major(self) -> int: ...
    @property
    def resource_id(self) -> int: ...


class WrongAddress(ValueError):
    """An address that no key can have. The text names it."""


class KeyAuthorities(NamedTuple):
    """The authorities in the key of a received message; `sink` is None for a publication."""

    source: str
    sink: str | None


def filter_key(source: Address, sink: Address | None, authority: str) -> str:
    """The key expression of these filters. `authority` replaces an empty one. Raises WrongAddress.

    Without a sink filter it matches publications. A sink filter of wildcards matches publications, too.
    """
    return f"up/{_segments(source, authority)}/{NO_SINK if sink is None else _segments(sink, authority)}"


def message_key(source: Address, sink: Address | None, authority: str) -> str:
    """The key of a message, without a sink of a publication. Raises WrongAddress, also for a wildcard."""
    key = filter_key(source, sink, authority)
    if "*" in key:
        raise WrongAddress(f"{key}: a message has no wildcards, expected the address of one entity")
    return key


def authorities_of(key: str) -> KeyAuthorities:
    """The authorities in a key. Raises WrongAddress unless it has 11 segments."""
    segments = key.split("/")
    if len(segments) != 11:
        raise WrongAddress(f"key {key!r}: expected up/ and twice authority/type/instance/version/resource")
    return KeyAuthorities(segments[1], None if segments[6] == "{}" else segments[6])


def _segments(address: Address, authority: str) -> str:
    name = address.authority_name or authority
    if _AUTHORITY.fullmatch(name) is None:
        raise WrongAddress(
            f"authority {name!r}: expected '*', an IP address, or at most 128 of a-z 0-9 - . _ ~"
        )
    kind, instance = address.ue_id & _ANY_16, address.ue_id >> 16
    if kind == _ANY_16 and not instance:
        instance = _ANY_16  # the constant UriFactory.ANY of up-python; its own rule is that instance 0 is any
    numbers = (
        _number("type", kind, _ANY_16),
        _number("instance", instance, _ANY_16),
        _number("version", address.ue_version_major, _ANY_8),
        _number("resource", address.resource_id, _ANY_16),
    )
    return "/".join((name, *numbers))


def _number(name: str, value: int, wildcard: int) -> str:
    if not 0 <= value <= wildcard:
        raise WrongAddress(f"{name} {value:#x}: expected 0 to {wildcard:#x}")
    return "*" if value == wildcard else f"{value:X}"
