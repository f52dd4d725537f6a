# SPDX-License-Identifier: Apache-2.0
"""Decides whose entry leaves a full table, so that one owner displaces others up to half of the table only.

In: keys with their owners. Out: the key to evict.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class FairEviction(Generic[K]):
    """The keys of a table of `limit` entries, by owner. Not locked."""

    def __init__(self, limit: int) -> None:
        self._share = max(1, limit // 2)
        # A dict would scan the places of its removed first keys.
        self._keys: dict[str, OrderedDict[K, None]] = {}

    def add(self, owner: str, key: K) -> None:
        self._keys.setdefault(owner, OrderedDict())[key] = None

    def remove(self, owner: str, key: K) -> None:
        keys = self._keys[owner]
        del keys[key]
        if not keys:
            del self._keys[owner]

    def clear(self) -> None:
        self._keys.clear()

    def victim(self, owner: str) -> K | None:
        """The key to evict before one more of `owner`: its oldest, if it has half of the table. None: the oldest of all."""
        keys = self._keys.get(owner, ())
        return next(iter(keys)) if len(keys) >= self._share else None
