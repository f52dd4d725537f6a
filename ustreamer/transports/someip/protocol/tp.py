# SPDX-License-Identifier: Apache-2.0
"""SOME/IP-TP, receiving: messages that are longer than a datagram, put together again. No sockets, no clock: time is given.

    header, type | 0x20 | u28 offset in units of 16 bytes, u3 reserved, u1 more segments | part of the payload

All segments of a message have its ids, its session and its type. All but the last are a multiple of 16 bytes long. A
receiver takes them in any order, and those of other messages in between.

What a `Reassembly` refuses, and what becomes of the message that the segment belongs to:

    truncated       shorter than the 4 bytes of the offset                                  nothing: it has none
    empty           no payload, and more is to follow                                       given up
    unaligned       more is to follow, and it is not a multiple of 16 long                  given up
    too_long        it ends beyond `message_bytes`                                          given up
    overlap         part of what it brings is there already, and not the same               given up; a segment at
    inconsistent    two ends, something behind the end, another version or return code      offset 0 begins anew
    segments        more than `segments` pieces                                             given up
    peer_limit      bytes or messages of this host                                          given up
    limit           bytes or messages in all, or peers                                      given up
    timeout         not complete `timeout_ms` after its first segment                       given up
    given_up        of a message that was given up; a segment at offset 0 begins anew       -

A segment that is there already, byte for byte, is a duplicate that the network made: it is counted and changes nothing.
An empty last segment behind a whole message, which some senders make of an exact multiple, is an end as good as another.
"""

from bisect import bisect_right
from collections import OrderedDict
from enum import StrEnum
from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import TP_BIT, SomeIpMessage
from ustreamer.transports.someip.protocol.tp_config import OFFSET_UNIT, TpLimits

TP_HEADER: Final = 4
MORE_SEGMENTS: Final = 0x1
MAX_OFFSET: Final = 0xFFFF_FFF0

_OFFSET: Final = Layout(">I")
_NS_PER_MS: Final = 1_000_000
_PART_OVERHEAD: Final = (
    160  # bytes that a piece costs besides its own, rounded up: an object, two places in lists
)
_MESSAGE_OVERHEAD: Final = 1_024  # bytes that a message costs besides its pieces, rounded up


class TpReason(StrEnum):
    """Why a segment was refused: labels of counters."""

    TP_TRUNCATED = "tp_truncated"
    TP_EMPTY = "tp_empty"
    TP_UNALIGNED = "tp_unaligned"
    TP_TOO_LONG = "tp_too_long"
    TP_OVERLAP = "tp_overlap"
    TP_INCONSISTENT = "tp_inconsistent"
    TP_SEGMENTS = "tp_segments"
    TP_PEER_LIMIT = "tp_peer_limit"
    TP_LIMIT = "tp_limit"
    TP_TIMEOUT = "tp_timeout"
    TP_ABANDONED = "tp_abandoned"


class TpRefused(Struct, frozen=True):
    """A segment of `peer` that was refused, or a message that was given up."""

    reason: TpReason
    peer: Address
    detail: str


_Key = tuple[Address, int, int, int]
"""Peer, message id, request id, type."""


class _Partial:
    """What is there of a message. Pieces are sorted and do not overlap."""

    def __init__(self, message: SomeIpMessage, now_ns: int) -> None:
        self.versions = (message.interface_version, message.return_code)
        self.started_ns = now_ns
        self.starts: list[int] = []
        self.parts: list[bytes] = []
        self.received = 0
        self.end: int | None = None
        self.cost = _MESSAGE_OVERHEAD

    def conflict_with(self, offset: int, part: bytes, more: bool) -> tuple[TpReason, str] | None:
        """Why a segment contradicts what is there."""
        end = offset + len(part)
        if self.end is not None and (end > self.end or (not more and end != self.end)):
            return TpReason.TP_INCONSISTENT, f"bytes {offset} to {end}, and the message ends at {self.end}"
        if not more and self.starts and end < self.starts[-1] + len(self.parts[-1]):
            return TpReason.TP_INCONSISTENT, f"ends at {end}, and there are bytes behind it"
        index = bisect_right(self.starts, offset)
        behind = index < len(self.starts) and self.starts[index] < end
        if behind or (index and self.starts[index - 1] + len(self.parts[index - 1]) > offset):
            return TpReason.TP_OVERLAP, f"bytes {offset} to {end} are there already in part"
        return None

    def has_part(self, offset: int, part: bytes) -> bool:
        index = bisect_right(self.starts, offset) - 1
        return index >= 0 and self.starts[index] == offset and self.parts[index] == part

    def add_part(self, offset: int, part: bytes, more: bool) -> None:
        if not more:
            self.end = offset + len(part)
        if part:
            index = bisect_right(self.starts, offset)
            self.starts.insert(index, offset)
            self.parts.insert(index, part)
            self.received += len(part)

    @property
    def complete(self) -> bool:
        return self.received == self.end


class Reassembly:
    """Puts messages together again, of many peers at once, in bounds. Not locked."""

    def __init__(self, limits: TpLimits) -> None:
        self._limits = limits
        # In the order of their first segments, which is that of their deadlines.
        self._partials: dict[_Key, _Partial] = {}
        # Messages and bytes by host: ports are what a sender has as many of as it likes.
        self._hosts: dict[str, list[int]] = {}
        self._bytes = 0
        # What was given up: its other segments are still to come, and would begin a message that is never complete.
        self._abandoned: OrderedDict[_Key, int] = OrderedDict()
        self._duplicates = self._completed = 0

    def feed(self, message: SomeIpMessage, peer: Address, now_ns: int) -> SomeIpMessage | TpRefused | None:
        """Take in a segment: the whole message if it was the last missing one, else None, or why it is refused."""
        payload = message.payload
        key = (peer, message.message_id, message.request_id, message.message_type)
        if len(payload) < TP_HEADER:
            return TpRefused(
                TpReason.TP_TRUNCATED, peer, f"{_describe(message)}: {len(payload)} bytes, expected 4"
            )
        (offset_word,) = _OFFSET.unpack_from(payload)
        offset, more, part = offset_word & MAX_OFFSET, bool(offset_word & MORE_SEGMENTS), payload[TP_HEADER:]
        problem = self._part_error(offset, part, more)
        partial = self._partials.get(key)
        if problem is None and partial is not None:
            if partial.versions != (message.interface_version, message.return_code):
                problem = TpReason.TP_INCONSISTENT, "another version or return code than before"
            elif partial.has_part(offset, part) and (more or partial.end == offset + len(part)):
                self._duplicates += 1
                return None
            else:
                problem = partial.conflict_with(offset, part, more)
        if problem is not None:
            return self._reject(key, message, offset, problem, now_ns)
        return self._add_part(key, message, offset, part, more, now_ns)

    def _part_error(self, offset: int, part: bytes, more: bool) -> tuple[TpReason, str] | None:
        end = offset + len(part)
        if more and not part:
            return TpReason.TP_EMPTY, f"nothing at {offset}, and more to follow"
        if more and len(part) % OFFSET_UNIT:
            return TpReason.TP_UNALIGNED, f"{len(part)} bytes and more to follow, expected a multiple of 16"
        if end > self._limits.message_bytes:
            return TpReason.TP_TOO_LONG, f"ends at {end}, expected up to {self._limits.message_bytes}"
        return None

    def _reject(
        self, key: _Key, message: SomeIpMessage, offset: int, problem: tuple[TpReason, str], now_ns: int
    ) -> SomeIpMessage | TpRefused:
        reason, detail = problem
        self._abandon(key, now_ns)
        if offset == 0 and reason in {TpReason.TP_OVERLAP, TpReason.TP_INCONSISTENT}:
            # A sender that does not count sessions and whose last message lost its end: this is the next one.
            self._abandoned.pop(key, None)
            retried = self.feed(message, key[0], now_ns)
            if retried is not None:
                return retried
        return TpRefused(reason, key[0], f"{_describe(message)}: {detail}")

    def _add_part(
        self, key: _Key, message: SomeIpMessage, offset: int, part: bytes, more: bool, now_ns: int
    ) -> SomeIpMessage | TpRefused | None:
        peer = key[0]
        if offset == 0:
            self._abandoned.pop(key, None)
        elif self._was_abandoned(key, now_ns):
            return TpRefused(TpReason.TP_ABANDONED, peer, f"{_describe(message)}: given up before")
        partial = self._partials.get(key)
        new = partial is None
        cost = len(part) + _PART_OVERHEAD + (_MESSAGE_OVERHEAD if new else 0)
        problem = self._limit_error(peer[0], partial, cost)
        if problem is not None:
            self._abandon(key, now_ns)
            return TpRefused(problem[0], peer, f"{_describe(message)}: {problem[1]}")
        if partial is None:
            partial = self._partials[key] = _Partial(message, now_ns)
            self._hosts.setdefault(peer[0], [0, 0])[0] += 1
            partial.cost = 0
        partial.cost += cost
        self._hosts[peer[0]][1] += cost
        self._bytes += cost
        partial.add_part(offset, part, more)
        if not partial.complete:
            return None
        self._remove(key)
        self._completed += 1
        return SomeIpMessage(
            message.service,
            message.method,
            message.client,
            message.session,
            message.interface_version,
            message.message_type & ~TP_BIT,
            message.return_code,
            b"".join(partial.parts),
        )

    def _was_abandoned(self, key: _Key, now_ns: int) -> bool:
        abandoned_ns = self._abandoned.get(key)
        return abandoned_ns is not None and now_ns - abandoned_ns < self._limits.timeout_ms * _NS_PER_MS

    def _limit_error(self, host: str, partial: _Partial | None, cost: int) -> tuple[TpReason, str] | None:
        limits = self._limits
        messages, used_bytes = self._hosts.get(host, (0, 0))
        if partial is not None and len(partial.parts) >= limits.segments:
            return TpReason.TP_SEGMENTS, f"{len(partial.parts)} segments are there"
        if used_bytes + cost > limits.peer_bytes or (partial is None and messages >= limits.peer_messages):
            return TpReason.TP_PEER_LIMIT, f"{used_bytes} bytes in {messages} messages of this peer are there"
        if self._bytes + cost > limits.total_bytes:
            return TpReason.TP_LIMIT, f"{self._bytes} bytes of all peers are there"
        if host not in self._hosts and len(self._hosts) >= limits.peers:
            return TpReason.TP_LIMIT, f"messages of {len(self._hosts)} peers are there"
        return None

    def _abandon(self, key: _Key, now_ns: int) -> None:
        if key in self._partials:
            self._remove(key)
        self._abandoned[key] = now_ns
        self._abandoned.move_to_end(key)
        if len(self._abandoned) > _MAX_ABANDONED:
            self._abandoned.popitem(last=False)

    def _remove(self, key: _Key) -> None:
        partial = self._partials.pop(key)
        host = key[0][0]
        of_host = self._hosts[host]
        of_host[0] -= 1
        of_host[1] -= partial.cost
        self._bytes -= partial.cost
        if not of_host[0]:
            del self._hosts[host]

    # --- deadlines --------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """When `expire` has something to do; None if nothing is incomplete."""
        partial = next(iter(self._partials.values()), None)
        return None if partial is None else partial.started_ns + self._limits.timeout_ms * _NS_PER_MS

    def expire(self, now_ns: int) -> list[TpRefused]:
        """Give up what was not completed in time."""
        expired: list[TpRefused] = []
        while (due_ns := self.next_deadline_ns) is not None and due_ns <= now_ns:
            key, partial = next(iter(self._partials.items()))
            detail = f"message {key[1]:#010x}: {partial.received} bytes after {self._limits.timeout_ms} ms"
            expired.append(TpRefused(TpReason.TP_TIMEOUT, key[0], detail))
            self._remove(key)
        return expired

    def statistics(self) -> dict[str, int]:
        """What is incomplete now, and counters since the start."""
        return {
            "tp_open": len(self._partials),
            "tp_bytes": self._bytes,
            "tp_completed": self._completed,
            "tp_duplicates": self._duplicates,
        }


_MAX_ABANDONED: Final = 256


def _describe(message: SomeIpMessage) -> str:
    return f"message {message.message_id:#010x} session {message.session}"
