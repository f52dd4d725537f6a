# SPDX-License-Identifier: Apache-2.0
"""Subscriptions as read from the store, checked but not decoded: blocks of records in, subscriptions out."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final, TypeAlias

import msgspec

from ustreamer.core.storage.store_reader import unpack_chunk
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.store.records import (
    SUBSCRIPTION_PREFIX,
    SubscriptionReader,
    parse_stored_uuri,
    subscriptions_prefix,
)

RecordBlock: TypeAlias = tuple[list[bytes], list[bytes]]
"""Keys and values."""

BLOCK_RECORDS: Final = 1024  # records of a block, as in a chunk of the verify process
_NUL: Final = b"\0"
_AUTHORITY_OFFSET: Final = len(SUBSCRIPTION_PREFIX + b"up://")
_ANY_INSTANCE_KEY: Final = re.compile(SUBSCRIPTION_PREFIX + rb"up://[^/]+/FFFF[0-9A-F]{4}/[^\0]+")

_encode: Final = msgspec.msgpack.Encoder().encode


class CompactIndex:
    """Subscriptions in the order of their keys, in packed blocks of about a thousand.

    Decoding a million takes 2 s, and routing needs few topics at first. Separate keys and values would take twice the
    memory and a fifth of the time of a start. One thread adds blocks; afterwards any one thread at a time may read.
    """

    def __init__(
        self, keys: Sequence[bytes] = (), values: Sequence[bytes] = (), *, may_expire: bool = True
    ) -> None:
        """`may_expire` is false only if no subscription has an expiry."""
        self._first_keys: list[bytes] = []  # the first key of each block
        self._blocks: list[bytes] = []
        self._count = 0
        self._may_expire = False
        self._wildcard_topics: set[bytes] = set()
        self._read_subscription = SubscriptionReader().read_subscription
        self._last_block: tuple[int, RecordBlock] = (-1, ([], []))  # the block that was read last
        for at in range(0, len(keys), BLOCK_RECORDS):
            self.add_block(
                keys[at : at + BLOCK_RECORDS], values[at : at + BLOCK_RECORDS], may_expire=may_expire
            )

    def add_block(
        self, keys: Sequence[bytes], values: Sequence[bytes], block: bytes = b"", *, may_expire: bool = True
    ) -> None:
        """Add subscriptions with keys above all earlier ones; `block`: the same records packed, if available."""
        if keys:
            self._first_keys.append(keys[0])
            self._blocks.append(block or _encode((keys, values)))
            self._count += len(keys)
            self._may_expire |= may_expire
            self._wildcard_topics.update(_wildcard_topic_prefixes(keys))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SubscriptionRecord]:
        """All subscriptions; each call decodes them again."""
        return (self._read_subscription(key, value) for key, value in self.records())

    def read_all(self) -> Iterator[SubscriptionRecord]:
        """As iteration, after the last `add_block` on several threads at once. Keeps nothing of what it read."""
        read_subscription = SubscriptionReader().read_subscription
        return (read_subscription(key, value) for key, value in self.records())

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """The key and the value of each subscription."""
        for keys, values in map(unpack_chunk, self._blocks):
            yield from zip(keys, values, strict=True)

    def subscriptions_of(self, topic: UUri) -> tuple[SubscriptionRecord, ...]:
        """The subscriptions of `topic`, in order: 50 us, or 4 us in the block read last, and 2 us for each."""
        return tuple(
            self._read_subscription(*record)
            for records in self._blocks_of(topic)
            for record in zip(*records, strict=True)
        )

    def __contains__(self, topic: UUri) -> bool:
        return any(keys for keys, _ in self._blocks_of(topic))

    def _blocks_of(self, topic: UUri) -> Iterator[RecordBlock]:
        """The subscriptions of `topic`, for each block that has one."""
        prefix = subscriptions_prefix(topic)
        for number in range(max(bisect_right(self._first_keys, prefix) - 1, 0), len(self._blocks)):
            keys, values = self._block(number)
            start = bisect_left(keys, prefix)
            end = bisect_left(keys, prefix[:-1] + b"\x01", start)
            yield keys[start:end], values[start:end]
            if end < len(keys):
                return

    def topics(self) -> Iterator[UUri]:
        """Each topic, in order: 1 us for each topic and 0.2 us for each subscription."""
        end = len(SUBSCRIPTION_PREFIX)
        return (
            parse_stored_uuri(text)
            for text, _ in groupby(key[end : key.index(_NUL)] for key, _ in self.records())
        )

    def subscriber_authorities(self) -> Iterator[tuple[UUri, list[str]]]:
        """Each topic, and the authority of each of its subscribers."""
        end = len(SUBSCRIPTION_PREFIX)
        keys = (key[end:].split(_NUL, 1) for key, _ in self.records())
        for text, pairs in groupby(keys, key=lambda pair: pair[0]):
            yield parse_stored_uuri(text), [pair[1].split(b"/", 3)[2].decode() for pair in pairs]

    def topics_of_other_authorities(self, authorities: Iterable[str]) -> Iterator[UUri]:
        """Each topic of other authorities, in order; a block of a single given authority is skipped."""
        served = tuple(b"%sup://%s/" % (SUBSCRIPTION_PREFIX, authority.encode()) for authority in authorities)
        end = len(SUBSCRIPTION_PREFIX)
        for number, (first, next_first) in enumerate(pairwise([*self._first_keys, b""])):
            if any(first.startswith(each) and next_first.startswith(each) for each in served):
                continue
            keys, _ = self._block(number)
            other_topics = (key[end : key.index(_NUL)] for key in keys if not key.startswith(served))
            yield from (parse_stored_uuri(text) for text, _ in groupby(other_topics))

    def wildcard_topic_count(self) -> int:
        """The number of topics with an instance wildcard."""
        return len(self._wildcard_topics)

    @property
    def may_expire(self) -> bool:
        """False if no subscription has an expiry."""
        return self._may_expire

    def expiring(self) -> Iterator[SubscriptionRecord]:
        """The subscriptions with an expiry."""
        return (entry for entry in self if entry.expire_ms is not None) if self._may_expire else iter(())

    def _block(self, number: int) -> RecordBlock:
        last_block = self._last_block
        if last_block[0] != number:
            last_block = self._last_block = (number, unpack_chunk(self._blocks[number]))
        return last_block[1]


def _wildcard_topic_prefixes(keys: Sequence[bytes]) -> Iterator[bytes]:
    """The topic parts, up to the NUL, of the keys with an instance wildcard in the topic.

    Keys of one authority are adjacent: 2 us if every key is of one authority, as is usual, else 0.15 us for each.
    """
    authority = keys[0][: keys[0].find(b"/", _AUTHORITY_OFFSET)]
    if keys[-1].startswith(authority + b"/"):
        start = bisect_left(keys, authority + b"/FFFF")
        keys = keys[start : bisect_left(keys, authority + b"/FFFG", start)]
    matches = (_ANY_INSTANCE_KEY.match(key) for key in keys if b"/FFFF" in key)
    return (match[0] for match in matches if match)
