# SPDX-License-Identifier: Apache-2.0
"""The ids of the last received messages: a copy has one of them.

In: received messages. Out: which of them are new.

An id belongs to one source. The ids of a source nearly always rise, and an id above all earlier ones of its source is
new. So ids stay joined. When an id does not rise, all of them become entries of a set.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import ge
from struct import unpack
from typing import Final

from ustreamer.transports.zenoh.receipts.receipt_keys import ID_BYTES, split_receipt
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

_MSB: Final = f"Q{ID_BYTES - 8}x"
_MAX_SOURCES: Final = 4_096


class RecentIds:
    """Remembers at least the last `size` ids, and at most twice as many and one batch. Not thread-safe."""

    def __init__(self, size: int, ids: Iterable[bytes] = ()) -> None:
        self._size = size
        self._young, self._old = _Generation(), _Generation(ids)
        self._highest: dict[UUri, int] = {}
        """The highest msb of all ids of a source, for the last sources."""
        self._highest_of_others = max(_msbs(b"".join(self._old.entries)), default=0)
        """No remembered id of another source has a higher msb."""

    def are_new(self, messages: Sequence[UMessage], ids: bytes) -> Sequence[bool] | None:
        """A flag for each message: True if it is new. None: all are new. The joined ids are remembered from now on."""
        if self._rise_in_batch(messages, ids) if type(messages) is MessageBatch else self._rise(messages):
            self._young.joined.append(ids)
            self._young.joined_bytes += len(ids)
            self._age()
            return None
        self._young.index()
        self._old.index()
        new = [self._is_new(each) for each in split_receipt(ids)]
        return None if all(new) else new

    def _rise(self, messages: Sequence[UMessage]) -> bool:
        """Whether each message has an id above all earlier ones of its source. Their ids count as earlier ones now."""
        rise = True
        for each in messages:
            source, msb = each.attributes.source, each.id.msb
            if msb > self._highest.get(source, self._highest_of_others):
                self._set_highest(source, msb)
            else:
                rise = False
        return rise

    # Fast path of _rise, which is its oracle; compared by
    # tests/transports/zenoh/receipts/test_recent_ids.py::test_a_batch_is_judged_like_single_messages
    def _rise_in_batch(self, batch: MessageBatch, ids: bytes) -> bool:
        source, msbs = batch.attributes.source, _msbs(ids)
        before = self._highest.get(source, self._highest_of_others)
        rise = msbs[0] > before and not any(map(ge, msbs, msbs[1:]))
        self._set_highest(source, msbs[-1] if rise else max(before, *msbs))
        return rise

    def _set_highest(self, source: UUri, msb: int) -> None:
        highest = self._highest
        highest[source] = msb
        if len(highest) > _MAX_SOURCES:
            self._highest_of_others = max(self._highest_of_others, highest.pop(next(iter(highest))))

    def _is_new(self, id: bytes) -> bool:
        young = self._young.entries
        if id in young or id in self._old.entries:
            return False
        young.add(id)
        self._age()
        return True

    def forget(self, ids: bytes) -> None:
        """Count these joined ids as new again: their next messages are no copies."""
        for each in self._young, self._old:
            each.index().difference_update(split_receipt(ids))

    def _age(self) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, _Generation()


class _Generation:
    """Some ids. `joined` ones become `entries` when a lookup needs them."""

    __slots__ = ("entries", "joined", "joined_bytes")

    def __init__(self, entries: Iterable[bytes] = ()) -> None:
        self.entries = set(entries)
        self.joined: list[bytes] = []
        self.joined_bytes = 0

    def __len__(self) -> int:
        return len(self.entries) + self.joined_bytes // ID_BYTES

    def index(self) -> set[bytes]:
        if self.joined:
            self.entries.update(chain.from_iterable(map(split_receipt, self.joined)))
            self.joined, self.joined_bytes = [], 0
        return self.entries


def _msbs(ids: bytes) -> tuple[int, ...]:
    """The msbs of joined ids."""
    return unpack("<" + _MSB * (len(ids) // ID_BYTES), ids)
