# SPDX-License-Identifier: Apache-2.0
"""Values under address patterns: an address goes in, the values of all matching patterns go out.

Each part of a pattern is a wildcard or must be equal. So a pattern is a *mask* (the parts that are compared) and the
values of those parts. Patterns with one mask share a dict. A match costs one dict look-up per mask in use: 32 at most,
rarely more than three, for any number of patterns.
"""

from collections.abc import Iterator
from itertools import compress
from typing import Final, Generic, TypeVar

from ustreamer.uprotocol.uuri import ANY_AUTHORITY, ANY_INSTANCE, ANY_RESOURCE, ANY_TYPE, ANY_VERSION, UUri

K = TypeVar("K")
T = TypeVar("T")

_Parts = tuple[str, int, int, int, int]
_Mask = tuple[bool, bool, bool, bool, bool]
_WILDCARDS: Final[_Parts] = (ANY_AUTHORITY, ANY_TYPE, ANY_INSTANCE, ANY_VERSION, ANY_RESOURCE)
_EXACT: Final[_Mask] = (True, True, True, True, True)


def _parts(uuri: UUri) -> _Parts:
    ue_id = uuri.ue_id
    return uuri.authority_name, ue_id & 0xFFFF, ue_id >> 16, uuri.ue_version_major, uuri.resource_id


def _mask(pattern: _Parts) -> _Mask:
    a, t, i, v, r = (part != wildcard for part, wildcard in zip(pattern, _WILDCARDS, strict=True))
    return a, t, i, v, r


def _key(parts: _Parts, mask: _Mask) -> tuple[object, ...]:
    return tuple(compress(parts, mask))


class Sublist(Generic[T]):
    """Values under UUri patterns. Not locked."""

    __slots__ = ("_exact", "_wild")

    def __init__(self) -> None:
        # By the UUri itself, whose hash is cached: 0.05 us instead of 1.2 us for the general case below.
        self._exact: dict[UUri, dict[T, None]] = {}
        self._wild: dict[_Mask, dict[tuple[object, ...], dict[T, None]]] = {}

    def insert(self, pattern: UUri, value: T) -> bool:
        """Add `value` under `pattern`; False if it was there. `value` is hashable."""
        values = self._values(pattern)
        if value in values:
            return False
        values[value] = None
        return True

    def remove(self, pattern: UUri, value: T) -> bool:
        """Remove `value` from `pattern`; False if it was not there."""
        parts = _parts(pattern)
        mask = _mask(parts)
        if mask == _EXACT:
            return _discard(self._exact, pattern, value)
        table = self._wild.get(mask, {})
        removed = _discard(table, _key(parts, mask), value)
        if not table:
            self._wild.pop(mask, None)
        return removed

    def match(self, address: UUri) -> list[T]:
        """The values whose pattern matches `address`: exact patterns first, each group in order of insertion.

        [impl->dsn~uri-pattern-matching~2]
        """
        found = list(self._exact.get(address, ()))
        if self._wild:
            ue_id = address.ue_id  # as `_parts`, without the call
            parts = (
                address.authority_name,
                ue_id & 0xFFFF,
                ue_id >> 16,
                address.ue_version_major,
                address.resource_id,
            )
            for mask, table in self._wild.items():
                found += table.get(tuple(compress(parts, mask)), ())
        return found

    def _values(self, pattern: UUri) -> dict[T, None]:
        parts = _parts(pattern)
        mask = _mask(parts)
        if mask == _EXACT:
            return self._exact.setdefault(pattern, {})
        return self._wild.setdefault(mask, {}).setdefault(_key(parts, mask), {})

    def __iter__(self) -> Iterator[T]:
        for values in self._exact.values():
            yield from values
        for table in self._wild.values():
            for values in table.values():
                yield from values

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _discard(table: dict[K, dict[T, None]], key: K, value: T) -> bool:
    values = table.get(key)
    if values is None or value not in values:
        return False
    del values[value]
    if not values:
        del table[key]
    return True
