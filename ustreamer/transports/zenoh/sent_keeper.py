# SPDX-License-Identifier: Apache-2.0
"""Gives the puts that may not have arrived to a `SentStore`, and releases them when they have.

In: puts with their times, and the state of their publishers. Out: calls of the store. Only the monitor thread changes the
keepers. Other threads, which hold the put lock, call `has_puts_of`, `ids_of`, `read`, `put_times` and `count_between`.
"""

from collections.abc import Hashable, Iterable, KeysView, Mapping, Sequence
from typing import Final, NamedTuple

from ustreamer.transport_port import SentStore
from ustreamer.transports.zenoh.receipts.receipt_keys import receipt_id, uuid_of
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID

_STORE_KEY: Final = "receipts"
"""The store has all messages without a receipt under this key."""
Put = tuple[Hashable, int, UMessage]
"""The publisher, None if it was undeclared, the time of the put, and the message."""


class _KeptPut(NamedTuple):
    """A put in the store. `last_put_ns` is the time of its last repetition."""

    publisher: Hashable
    put_ns: int
    id: UUID
    last_put_ns: int


class SentKeeper:
    """The publishers with messages in the store, each with the time of its last put."""

    def __init__(self, store: SentStore) -> None:
        self._store = store
        self._last_put_ns: dict[Hashable, int] = {}

    @property
    def has_puts(self) -> bool:
        """Whether the store has messages."""
        return bool(self._last_put_ns)

    def last_puts(self) -> list[tuple[Hashable, int]]:
        """The publishers with messages in the store, and the times of their last puts."""
        return list(self._last_put_ns.items())

    def keep(self, puts: Iterable[Put]) -> bool:
        """Store these puts, which are in order. False if the store is busy: then they should be given again."""
        by_publisher: dict[Hashable, list[UMessage]] = {}
        for publisher, put_ns, message in puts:
            by_publisher.setdefault(publisher, []).append(message)
            self._last_put_ns[publisher] = max(put_ns, self._last_put_ns.get(publisher, 0))
        kept = (self._store.keep(publisher, messages) for publisher, messages in by_publisher.items())
        return all(ids is not None for ids in kept)

    def on_put_again(self, publisher: Hashable, now_ns: int) -> None:
        """The messages of this publisher were put again: they arrive with puts of this time."""
        if publisher in self._last_put_ns:
            self._last_put_ns[publisher] = now_ns

    def release(self, arrived: Iterable[Hashable]) -> None:
        """Release these publishers: their messages have arrived. Where the store is busy, they stay."""
        for publisher in arrived:
            if not self._store.release(publisher):
                return
            del self._last_put_ns[publisher]


class AwaitedKeeper:
    """The messages in the store that wait for a receipt, each until its receipt. Ids are those of receipts."""

    def __init__(self, store: SentStore) -> None:
        self._store = store
        self._kept: dict[bytes, _KeptPut | None] = {}  # None: not to be stored
        self._by_publisher: dict[Hashable, dict[bytes, None]] = {}
        self._requests: dict[bytes, UUID] = {}
        self._new: dict[Hashable, list[bytes]] = {}

    @property
    def known(self) -> KeysView[bytes]:
        """The messages that are in the store, or not to be stored."""
        return self._kept.keys()

    @property
    def stored(self) -> set[bytes]:
        """The messages that are in the store."""
        return {id for id, kept in self._kept.items() if kept is not None}

    @property
    def requests(self) -> Mapping[bytes, UUID]:
        """The Requests in the store."""
        return self._requests

    def keep_receivers(self, tokens: Sequence[str]) -> bool:
        """Store the tokens of the receivers. False if the store is busy."""
        return self._store.keep_receivers(tokens)

    def sent_from_disk(self, ids: Iterable[bytes]) -> dict[bytes, UMessage]:
        """Of these, the messages that were on disk before they were put, as far as they can be read now."""
        found = self._store.sent_from_disk(frozenset(map(uuid_of, ids)))
        return {receipt_id(each.id): each for each in found}

    def keep(self, puts: Mapping[bytes, Put]) -> None:
        """Store these, which are in order, except those above the limits of the store.

        Where the store is busy, the next call should repeat them.
        """
        kept = self._store.keep(_STORE_KEY, [message for _, _, message in puts.values()]) if puts else None
        if kept is None:
            return
        stored = frozenset(kept)
        for id, (publisher, put_ns, message) in puts.items():
            if message.id not in stored:
                self._kept[id] = None
                continue
            self._kept[id] = _KeptPut(publisher, put_ns, message.id, put_ns)
            self._by_publisher.setdefault(publisher, {})[id] = None
            self._new.setdefault(publisher, []).append(id)
            if message.attributes.type is UMessageType.REQUEST:
                self._requests[id] = message.id

    def pop_new(self) -> list[tuple[Hashable, list[bytes]]]:
        """What was stored since the last call, by publisher."""
        new, self._new = self._new, {}
        return list(new.items())

    def read(self, id: bytes) -> tuple[int, UMessage] | None:
        """The time of the put, and the message from the store; None if it is not there."""
        kept = self._kept.get(id)
        message = None if kept is None else self._store.read(_STORE_KEY, kept.id)
        return None if kept is None or message is None else (kept.put_ns, message)

    def has_puts_of(self, publisher: Hashable) -> bool:
        return publisher in self._by_publisher

    def ids_of(self, publisher: Hashable) -> list[bytes]:
        """The puts of a publisher in the store, in order."""
        return list(self._by_publisher.get(publisher, ()))

    def on_put_again(self, id: bytes, now_ns: int) -> None:
        """This was put again now, if it is in the store."""
        kept = self._kept.get(id)
        if kept is not None:
            self._kept[id] = kept._replace(last_put_ns=now_ns)

    def put_times(self, id: bytes) -> set[int]:
        """When this was put first, and last; empty if it is not in the store."""
        kept = self._kept.get(id)
        return set() if kept is None else {kept.put_ns, kept.last_put_ns}

    def count_between(self, first_ns: int, last_ns: int) -> int:
        """The number of `put_times` between these times, both included."""
        return sum(first_ns <= each <= last_ns for id in list(self._kept) for each in self.put_times(id))

    def ignore(self, ids: Iterable[bytes]) -> None:
        """Do not store these, which are not in the store."""
        self._kept.update((id, None) for id in ids)

    def release(self, ids: Iterable[bytes]) -> None:
        """Release these messages: they are not needed any more."""
        done = {id: self._kept[id] for id in ids}
        stored = [each.id for each in done.values() if each is not None]
        if stored and not self._store.release(_STORE_KEY, stored):
            return
        for id, kept in done.items():
            del self._kept[id]
            self._requests.pop(id, None)
            if kept is not None:
                self._forget_publisher(kept.publisher, id)

    def _forget_publisher(self, publisher: Hashable, id: bytes) -> None:
        ids = self._by_publisher[publisher]
        del ids[id]
        if not ids:
            del self._by_publisher[publisher]
