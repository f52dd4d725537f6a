# SPDX-License-Identifier: Apache-2.0
"""Many subscriptions as they came from the store, checked but not yet decoded."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final, TypeAlias

import msgspec

from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import Tracked
from ustreamer_usubscription.store.records import SUBSCRIPTION, Reader, address, topic_prefix

Block: TypeAlias = tuple[list[bytes], list[bytes]]
"""Keys and values."""

BLOCK: Final = 1024  # records that are packed together, as `reader` does
_NUL: Final = b"\0"
_AUTHORITY_AT: Final = len(SUBSCRIPTION + b"up://")
_ANY_INSTANCE_KEY: Final = re.compile(SUBSCRIPTION + rb"up://[^/]+/FFFF[0-9A-F]{4}/[^\0]+")

_encode: Final = msgspec.msgpack.Encoder().encode
unpack: Final = msgspec.msgpack.Decoder(Block).decode
"""The keys and values of a block in MessagePack, which is how `reader` sends them. Raises msgspec.DecodeError."""


class Packed:
    """Subscriptions in the order of their keys, in blocks of about a thousand, as the reader sent them.

    Decoding a million takes 2 s, and routing asks for few topics at first. A key and a value of their own for each would
    take twice the memory, and a fifth of the time of a start to make. One thread adds; then any may look, which for what
    `Reader` makes of them means one at a time.
    """

    def __init__(
        self, keys: Sequence[bytes] = (), values: Sequence[bytes] = (), *, may_expire: bool = True
    ) -> None:
        """`may_expire` is False only where it is known that none of them does."""
        self._firsts: list[bytes] = []  # the first key of each block
        self._blocks: list[bytes] = []
        self._count = 0
        self._may_expire = False
        self._wild: set[bytes] = set()
        self._read = Reader().read
        self._latest: tuple[int, Block] = (-1, ([], []))  # the block that was looked into last
        for at in range(0, len(keys), BLOCK):
            self.add(keys[at : at + BLOCK], values[at : at + BLOCK], may_expire=may_expire)

    def add(
        self, keys: Sequence[bytes], values: Sequence[bytes], block: bytes = b"", *, may_expire: bool = True
    ) -> None:
        """Take in subscriptions whose keys are greater than all before; `block` is the same, packed, where it is at hand."""
        if keys:
            self._firsts.append(keys[0])
            self._blocks.append(block or _encode((keys, values)))
            self._count += len(keys)
            self._may_expire |= may_expire
            self._wild.update(_wild_topics(keys))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Tracked]:
        """All of them, each decoded anew."""
        return (self._read(key, value) for key, value in self.records())

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each."""
        for keys, values in map(unpack, self._blocks):
            yield from zip(keys, values, strict=True)

    def row(self, topic: UUri) -> tuple[Tracked, ...]:
        """The subscriptions of `topic`, in order: 50 us, or 4 if it stands near the last one, and 2 us for each of them."""
        return tuple(
            self._read(*record) for records in self._of(topic) for record in zip(*records, strict=True)
        )

    def __contains__(self, topic: UUri) -> bool:
        return any(keys for keys, _ in self._of(topic))

    def _of(self, topic: UUri) -> Iterator[Block]:
        """The subscriptions of `topic`, from each block that has any."""
        prefix = topic_prefix(topic)
        for number in range(max(bisect_right(self._firsts, prefix) - 1, 0), len(self._blocks)):
            keys, values = self._block(number)
            start = bisect_left(keys, prefix)
            end = bisect_left(keys, prefix[:-1] + b"\x01", start)
            yield keys[start:end], values[start:end]
            if end < len(keys):
                return

    def topics(self) -> Iterator[UUri]:
        """Each topic, in order: 1 us for each topic and 0.2 for each subscription."""
        end = len(SUBSCRIPTION)
        return (address(text) for text, _ in groupby(key[end : key.index(_NUL)] for key, _ in self.records()))

    def topics_elsewhere(self, authorities: Iterable[str]) -> Iterator[UUri]:
        """Each topic of other authorities than these, in order; a block that is all of one of these is passed over."""
        served = tuple(b"%sup://%s/" % (SUBSCRIPTION, authority.encode()) for authority in authorities)
        end = len(SUBSCRIPTION)
        for number, (first, behind) in enumerate(pairwise([*self._firsts, b""])):
            if any(first.startswith(each) and behind.startswith(each) for each in served):
                continue
            keys, _ = self._block(number)
            elsewhere = (key[end : key.index(_NUL)] for key in keys if not key.startswith(served))
            yield from (address(text) for text, _ in groupby(elsewhere))

    def wild_topics(self) -> int:
        """How many topics have an instance wildcard."""
        return len(self._wild)

    @property
    def may_expire(self) -> bool:
        """False if it is known that none of them ends some day."""
        return self._may_expire

    def expiring(self) -> Iterator[Tracked]:
        """Those that end some day."""
        return (entry for entry in self if entry.expire_ms is not None) if self._may_expire else iter(())

    def _block(self, number: int) -> Block:
        latest = self._latest
        if latest[0] != number:
            latest = self._latest = (number, unpack(self._blocks[number]))
        return latest[1]


def _wild_topics(keys: Sequence[bytes]) -> Iterator[bytes]:
    """The beginnings, up to the NUL, of those keys whose topic has an instance wildcard.

    Those of one authority stand together. So where all keys are of one, as they mostly are, it takes 2 us for all of them,
    else 0.15 us for each.
    """
    authority = keys[0][: keys[0].find(b"/", _AUTHORITY_AT)]
    if keys[-1].startswith(authority + b"/"):
        start = bisect_left(keys, authority + b"/FFFF")
        keys = keys[start : bisect_left(keys, authority + b"/FFFG", start)]
    matches = (_ANY_INSTANCE_KEY.match(key) for key in keys if b"/FFFF" in key)
    return (match[0] for match in matches if match)
