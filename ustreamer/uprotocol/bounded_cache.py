# SPDX-License-Identifier: Apache-2.0
"""A dict of at most `limit` entries: one entry goes in, and above the limit the oldest one goes out."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(OrderedDict[K, V]):
    """A dict that drops single entries, never all at once. Insert with `add`: `[]=` ignores the limit. Not locked."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def add(self, key: K, value: V) -> None:
        """Insert `value`; at the limit, drop the entry that was inserted first."""
        if len(self) >= self.limit and key not in self:
            self.popitem(last=False)
        self[key] = value
