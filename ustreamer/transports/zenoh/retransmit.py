# SPDX-License-Identifier: Apache-2.0
"""Recent puts of all routes, to be put again after a loss; bounded by age and bytes.

In: each put. Out: the remembered messages of publishers, for retransmission, and how many were evicted too early.

Puts that have arrived (before `confirmed_ns`) are dropped, so a healthy link needs the puts of 3 s. While the node of a link
may be frozen (`hold`), age evicts nothing, and bytes only above twice their bound: the sender stops before that. If only
receipts are late, it does not stop, and evicts.

Only the newest few dozen messages are objects. Older messages are joined to blocks of a few `bytes` objects, and a
block is dropped as a whole. With 4 000 messages as objects, releasing the oldest cost 2 to 3 us per message, because
its memory was cold (docs/decisions/0026-optimization-log.md).
"""

from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, cycle, islice, pairwise
from threading import Lock
from typing import Final

import msgspec

from ustreamer.transports.zenoh.decoder import HEAD
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.wire import REQID

OVERHEAD_BYTES: Final = 200
"""The bytes that a remembered message counts besides its payload."""
_BLOCK_SHARE: Final = 64  # a block has at most 1/64 of every bound
_BLOCK_MESSAGES: Final = 62
_EVICTED_NS: Final = 50_000_000  # evictions of this time are counted together
_MAX_EVICTED: Final = 512  # times
_NS_PER_MS: Final = 1_000_000
_NEVER_NS: Final = 1 << 62


def join_oldest(evicted: deque[tuple[int, int]]) -> None:
    """Bound the times of evictions: the oldest are counted together, with the time of the newest of them."""
    while len(evicted) > _MAX_EVICTED:
        _, number = evicted.popleft()
        newest_ns, further = evicted.popleft()
        evicted.appendleft((newest_ns, number + further))


class RetransmitConfig(msgspec.Struct, frozen=True):
    """The bounds of the retransmit buffer; `ms` 0 disables it."""

    ms: int = 15_000
    bytes: int = 16_000_000


class AnsweredRequests:
    """The ids of the last answered requests. They are not retransmitted: a second call of a method can do harm.

    Thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        """Keeps at least `capacity` ids and at most three times as many; 0 disables it."""
        self._capacity = capacity
        # Added since the last query, two numbers per id: 0.25 us per response, and no objects.
        self._unindexed = array("Q")
        self._ids: dict[UUID, None] = {}  # added before that, oldest first
        self._lock = Lock()

    def add_reqids(self, reqids: Sequence[UUID]) -> None:
        """Record the responses to these requests."""
        if not self._capacity:
            return
        halves = [half for id in reqids for half in (id.msb, id.lsb)]
        with self._lock:
            self._unindexed.extend(halves)
            if len(self._unindexed) > 4 * self._capacity:
                del self._unindexed[: -2 * self._capacity]

    def has(self, message: UMessage) -> bool:
        """Whether this is a request that has a response."""
        return message.attributes.type is UMessageType.REQUEST and message.id in self

    def __contains__(self, id: UUID) -> bool:
        """True if the request has a response. Queried per lost request and route, so new ids are indexed once."""
        with self._lock:
            if self._unindexed:
                self._index_new()
            return id in self._ids

    def _index_new(self) -> None:
        for each in map(UUID, self._unindexed[::2], self._unindexed[1::2]):
            self._ids.pop(each, None)  # else it would keep its old position
            self._ids[each] = None
        del self._unindexed[:]
        for each in list(islice(self._ids, max(0, len(self._ids) - self._capacity))):
            del self._ids[each]


class Origin(msgspec.Struct, frozen=True):
    """The common publisher and attributes of messages.

    With `are_responses` each stored payload is preceded by its reqid field.
    """

    publisher: Hashable
    attributes: UAttributes
    are_responses: bool = False

    def message(self, msb: int, lsb: int, stored: bytes) -> UMessage:
        """The message with this id and stored payload."""
        if not self.are_responses:
            return UMessage(UUID(msb, lsb), self.attributes, stored)
        _, *reqid = REQID.unpack_from(stored)
        attributes = msgspec.structs.replace(self.attributes, reqid=UUID(reqid[0], reqid[2]))
        return UMessage(UUID(msb, lsb), attributes, stored[REQID.size :])


class _BlockPart(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one put time and one head size: one origin for all, or one for each.

    An origin has all of a head except its id. A single message is a part: nothing else of it is a Python object, as all
    messages of a header share one sequence of its origin.
    """

    origins: Sequence[Origin]
    put_ns: int
    message_count: int
    head_size: int


class _Block(msgspec.Struct, frozen=True, gc=False):
    """Messages in order of their puts. `heads` and `payloads` are joined; `sizes` are the payload sizes."""

    parts: tuple[_BlockPart, ...]
    heads: bytes
    sizes: Sequence[int]
    payloads: bytes

    @property
    def bytes(self) -> int:
        return len(self.payloads) + OVERHEAD_BYTES * len(self.sizes)

    @property
    def newest_ns(self) -> int:
        return self.parts[-1].put_ns

    def count_read(self, read: Mapping[Hashable, int]) -> int:
        """The number of messages that were put up to the time of their publisher in `read`."""
        return sum(
            part.message_count // len(part.origins)
            for part in self.parts
            for origin in part.origins
            if part.put_ns <= read.get(origin.publisher, -1)
        )

    def messages_of(
        self, publishers: AbstractSet[Hashable] | None
    ) -> Iterator[tuple[Hashable, int, UMessage]]:
        """The messages of these publishers, or of all."""
        at, payloads = 0, pairwise(accumulate(self.sizes, initial=0))
        for part in self.parts:
            origins = cycle(part.origins)
            for begin, end in islice(payloads, part.message_count):
                origin = next(origins)
                if publishers is None or origin.publisher in publishers:
                    _, msb, _, lsb = HEAD.unpack_from(self.heads, at)
                    yield origin.publisher, part.put_ns, origin.message(msb, lsb, self.payloads[begin:end])
                at += part.head_size


class RetransmitBuffer:
    """Recent puts in blocks. Not thread-safe. Put times must not decrease."""

    def __init__(self, config: RetransmitConfig) -> None:
        self.is_enabled = config.ms > 0
        self._window_ns = config.ms * _NS_PER_MS
        self._block_bytes = config.bytes // _BLOCK_SHARE
        # The bound of the closed blocks; the open block is smaller than one block.
        self._max_bytes = config.bytes - (self._block_bytes if self._block_bytes >= OVERHEAD_BYTES else 0)
        self._block_ns = self._window_ns // _BLOCK_SHARE
        self._blocks: deque[_Block] = deque()
        self._messages = self._bytes = 0  # in blocks
        self.hold = False
        """Whether unconfirmed puts are kept beyond the bounds."""
        self.confirmed_ns = 0
        """All puts before this time have arrived."""
        self._read_ns = 0  # the last time of `_read`
        self._read: dict[Hashable, int] = {}  # up to this time, `messages_of` has returned all of a publisher
        self._evicted: deque[tuple[int, int]] = deque()  # unconfirmed: put time of the newest, number
        self._block_until_ns = 0  # later messages start a new block
        self._evict_at_ns = _NEVER_NS  # when the oldest block is too old
        self._begin_block()

    def _begin_block(self) -> None:
        self._parts: list[_BlockPart] = []
        self._heads: list[bytes] = []
        self._sizes = array("I")
        self._payloads: list[bytes] = []
        self._open_bytes = 0

    def __len__(self) -> int:
        return self._messages + len(self._sizes)

    def append(
        self,
        origins: Sequence[Origin],
        put_ns: int,
        heads: Sequence[bytes],
        payloads: Sequence[bytes],
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Remember one or more puts. `origins` has one origin for all, or one for each.

        `heads` all have the same size: HEAD with or without the tail after it. The payload of a response follows its
        reqid. `sizes` are the payload sizes, if known.
        """
        if put_ns > self._block_until_ns:
            if self._sizes:
                self._close_block()
            self._block_until_ns = put_ns + self._block_ns
        self._parts.append(_BlockPart(origins, put_ns, len(heads), len(heads[0])))
        self._heads += heads
        sizes = list(map(len, payloads)) if sizes is None else sizes
        self._sizes.extend(sizes)
        self._payloads += payloads
        self._open_bytes += sum(sizes) + OVERHEAD_BYTES * len(sizes)
        if len(self._sizes) >= _BLOCK_MESSAGES or self._open_bytes > self._block_bytes:
            self._close_block()
            self._evict(put_ns)
        elif put_ns > self._evict_at_ns:
            self._evict(put_ns)

    def _close_block(self) -> None:
        """Join the newest messages to a block."""
        block = self._join_open()
        self._blocks.append(block)
        self._evict_at_ns = min(self._evict_at_ns, block.newest_ns + self._window_ns)
        self._messages += len(self._sizes)
        self._bytes += block.bytes
        self._begin_block()

    def _join_open(self) -> _Block:
        return _Block(tuple(self._parts), b"".join(self._heads), self._sizes, b"".join(self._payloads))

    def _evict(self, now_ns: int) -> None:
        """Drop the oldest blocks by age and bytes; the newest message always stays."""
        self.drop_confirmed()
        blocks = self._blocks
        max_bytes, oldest_ns = self._max_bytes, now_ns - self._window_ns
        if self.hold:
            max_bytes, oldest_ns = 2 * max_bytes, 0
        while blocks and (self._bytes > max_bytes or blocks[0].newest_ns < oldest_ns):
            if len(blocks) == 1 and not self._sizes:
                self._evict_at_ns = -1  # it alone fills the bounds: the next message replaces it
                return
            self._count_evicted(self._drop_oldest())
        self._evict_at_ns = blocks[0].newest_ns + self._window_ns if blocks else _NEVER_NS

    def evict_old(self, now_ns: int) -> None:
        """Drop the oldest blocks, as if a message came now; the newest block stays."""
        if self._sizes:
            self._close_block()
        self._evict(now_ns)

    @property
    def oldest_ns(self) -> int | None:
        """The put time of the oldest remembered message; None: there is none."""
        if self._blocks:
            return self._blocks[0].parts[0].put_ns
        return self._parts[0].put_ns if self._parts else None

    def _drop_oldest(self) -> _Block:
        block = self._blocks.popleft()
        self._messages -= len(block.sizes)
        self._bytes -= block.bytes
        return block

    def _count_evicted(self, block: _Block) -> None:
        newest_ns, number, evicted = block.newest_ns, len(block.sizes), self._evicted
        if newest_ns <= self._read_ns:
            number -= block.count_read(self._read)
        if evicted and newest_ns // _EVICTED_NS == evicted[-1][0] // _EVICTED_NS:
            number += evicted.pop()[1]
        if number:
            evicted.append((newest_ns, number))
            join_oldest(evicted)

    def drop_confirmed(self) -> None:
        """Drop the blocks of puts that have arrived, and forget their evictions."""
        confirmed_ns = self.confirmed_ns
        while self._blocks and self._blocks[0].newest_ns < confirmed_ns:
            self._drop_oldest()
        while self._evicted and self._evicted[0][0] < confirmed_ns:
            self._evicted.popleft()

    @property
    def is_full(self) -> bool:
        """Whether the next put may evict another one."""
        return self._bytes + self._open_bytes > self._max_bytes

    def pop_evicted(self) -> list[tuple[int, int]]:
        """The unconfirmed puts evicted since the last call: put times and numbers, some together."""
        evicted = list(self._evicted)
        self._evicted.clear()
        return evicted

    def messages_since(self, since_ns: int) -> list[tuple[Hashable, int, UMessage]]:
        """The remembered puts since then in order, each with its publisher and time."""
        blocks = [*self._blocks, self._join_open()] if self._sizes else self._blocks
        return [
            each
            for block in blocks
            if block.newest_ns >= since_ns
            for each in block.messages_of(None)
            if each[1] >= since_ns
        ]

    def messages_of(self, publishers: AbstractSet[Hashable]) -> dict[Hashable, list[tuple[int, UMessage]]]:
        """The remembered messages of these publishers in order, each with its put time, in one pass."""
        if self._sizes:
            self._close_block()
            self._evict_at_ns = -1  # the next message may exceed the bounds
        found: dict[Hashable, list[tuple[int, UMessage]]] = {}
        oldest_ns = self._blocks[0].parts[0].put_ns if self._blocks else _NEVER_NS
        self._read = {publisher: read_ns for publisher, read_ns in self._read.items() if read_ns >= oldest_ns}
        self._read_ns = self._blocks[-1].newest_ns if self._blocks else 0
        self._read.update(dict.fromkeys(publishers, self._read_ns))
        for block in self._blocks:
            for publisher, put_ns, message in block.messages_of(publishers):
                found.setdefault(publisher, []).append((put_ns, message))
        return found
