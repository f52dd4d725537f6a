# SPDX-License-Identifier: Apache-2.0
"""SOME/IP-TP, receiving: reassembles messages that are longer than a datagram. No sockets, no clock: callers pass the
time.

    header, type | 0x20 | u28 offset in units of 16 bytes, u3 reserved, u1 more segments | part of the payload

All segments of a message have its ids, its session and its type. Every segment but the last has a multiple of 16
bytes. A receiver accepts segments in any order, interleaved with those of other messages.

Refusals of a `Reassembly`, and the effect on the message of the refused segment:

    truncated       shorter than the 4 bytes of the offset                                  none: no message
    empty           no payload, and more segments follow                                    abandoned
    unaligned       more segments follow, and its length is no multiple of 16               abandoned
    too_long        its end is beyond `message_bytes`                                       abandoned
    overlap         overlaps received bytes without being a duplicate                       abandoned; a segment at
    inconsistent    two ends, bytes behind the end, another interface version               offset 0 starts again
    segments        more than `segments` segments                                           abandoned
    peer_limit      bytes or messages of this host                                          abandoned
    limit           bytes or messages in total, or peers                                    abandoned
    timeout         incomplete `timeout_ms` after its first segment                         abandoned
    overtaken       a later message of the same event is complete: the later value counts   abandoned
    abandoned       of an abandoned message; a segment at offset 0 starts again             -

The last segment to arrive gives the return code. A byte-identical segment is a network duplicate: it is counted and
changes nothing. An empty last segment behind a whole message is a valid end. Some senders emit it for an exact
multiple.
"""

from bisect import bisect_right
from collections import OrderedDict
from enum import StrEnum
from itertools import takewhile
from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import TP_BIT, SomeIpMessage
from ustreamer.transports.someip.protocol.tp_config import OFFSET_UNIT, TpLimits

TP_HEADER: Final = 4
MORE_SEGMENTS: Final = 0x1
# [impl->TP-768]
MAX_OFFSET: Final = 0xFFFF_FFF0

_OFFSET: Final = Layout(">I")
_NS_PER_MS: Final = 1_000_000
# Overhead of a segment in bytes, rounded up: an object, two list entries.
_PART_OVERHEAD: Final = 160
# Overhead of a message in bytes besides its segments, rounded up.
_MESSAGE_OVERHEAD: Final = 1_024


class TpReason(StrEnum):
    """Reason for refusing a segment: labels of counters."""

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
    TP_OVERTAKEN = "tp_overtaken"
    TP_ABANDONED = "tp_abandoned"


class TpRefused(Struct, frozen=True):
    """A refused segment of `peer`, or an abandoned message."""

    reason: TpReason
    peer: Address
    detail: str


_Key = tuple[Address, int, int, int]
"""Peer, message id, request id, type."""


class _Partial:
    """The received parts of a message, sorted and without overlap."""

    def __init__(self, message: SomeIpMessage, now_ns: int) -> None:
        self.interface_version = message.interface_version
        self.started_ns = now_ns
        self.starts: list[int] = []
        self.parts: list[bytes] = []
        self.received = 0
        self.end: int | None = None
        self.cost = _MESSAGE_OVERHEAD

    # [impl->TP-810]
    def conflict_with(self, offset: int, part: bytes, more: bool) -> tuple[TpReason, str] | None:
        """Reason why a segment contradicts the received parts; None if it does not."""
        end = offset + len(part)
        if self.end is not None and (end > self.end or (not more and end != self.end)):
            return TpReason.TP_INCONSISTENT, f"bytes {offset} to {end}, and the message ends at {self.end}"
        if not more and self.starts and end < self.starts[-1] + len(self.parts[-1]):
            return TpReason.TP_INCONSISTENT, f"ends at {end}, and bytes behind it were received"
        index = bisect_right(self.starts, offset)
        behind = index < len(self.starts) and self.starts[index] < end
        if behind or (index and self.starts[index - 1] + len(self.parts[index - 1]) > offset):
            return TpReason.TP_OVERLAP, f"bytes {offset} to {end} overlap received bytes"
        return None

    def has_part(self, offset: int, part: bytes) -> bool:
        index = bisect_right(self.starts, offset) - 1
        return index >= 0 and self.starts[index] == offset and self.parts[index] == part

    # [impl->TP-789]
    def add_part(self, offset: int, part: bytes, more: bool) -> None:
        if not more:
            self.end = offset + len(part)
        if part:
            index = bisect_right(self.starts, offset)
            self.starts.insert(index, offset)
            self.parts.insert(index, part)
            self.received += len(part)

    # [impl->TP-783]
    @property
    def complete(self) -> bool:
        return self.received == self.end


class Reassembly:
    """Reassembles the messages of many peers, within limits. Not locked."""

    def __init__(self, limits: TpLimits) -> None:
        self._limits = limits
        # In the order of their first segments, which is the order of their deadlines.
        self._partials: dict[_Key, _Partial] = {}
        # Messages and bytes by host, not by address: a sender can use many ports.
        self._hosts: dict[str, list[int]] = {}
        self._bytes = 0
        # Abandoned messages: their remaining segments would start a message that never completes.
        self._abandoned: OrderedDict[_Key, int] = OrderedDict()
        self._overtaken: list[TpRefused] = []  # not yet reported
        self._duplicates = self._completed = 0

    # [impl->TP-766, TP-767, TP-769, TP-781, TP-794, TP-787, TP-795, TP-793, TP-784, TP-803]
    def feed(self, message: SomeIpMessage, peer: Address, now_ns: int) -> SomeIpMessage | TpRefused | None:
        """Process a segment: returns the whole message, None while it is incomplete, or the refusal."""
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
            if partial.interface_version != message.interface_version:
                problem = TpReason.TP_INCONSISTENT, "another interface version than before"
            elif partial.has_part(offset, part) and (more or partial.end == offset + len(part)):
                self._duplicates += 1
                return None
            else:
                problem = partial.conflict_with(offset, part, more)
        if problem is not None:
            return self._reject(key, message, offset, problem, now_ns)
        return self._add_part(key, message, offset, part, more, now_ns)

    # [impl->TP-782, TP-792]
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
            # The sender uses no sessions and its last message lost its end: this is the next message.
            self._abandoned.pop(key, None)
            retried = self.feed(message, key[0], now_ns)
            if retried is not None:
                return retried
        return TpRefused(reason, key[0], f"{_describe(message)}: {detail}")

    # [impl->TP-785, TP-802]
    def _add_part(
        self, key: _Key, message: SomeIpMessage, offset: int, part: bytes, more: bool, now_ns: int
    ) -> SomeIpMessage | TpRefused | None:
        peer = key[0]
        if offset == 0:
            self._abandoned.pop(key, None)
        elif self._was_abandoned(key, now_ns):
            return TpRefused(TpReason.TP_ABANDONED, peer, f"{_describe(message)}: abandoned before")
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
        if message.is_event:
            self._abandon_overtaken(key, now_ns)
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

    def _abandon_overtaken(self, complete: _Key, now_ns: int) -> None:
        """Abandon the earlier messages of a complete event: an older value must not follow a newer one."""
        earlier = takewhile(lambda key: key != complete, self._partials)
        stream = (complete[0], complete[1], complete[2] >> 16)
        for key in [each for each in earlier if (each[0], each[1], each[2] >> 16) == stream]:
            detail = (
                f"message {key[1]:#010x}: {self._partials[key].received} bytes, and a later one is complete"
            )
            self._overtaken.append(TpRefused(TpReason.TP_OVERTAKEN, key[0], detail))
            self._abandon(key, now_ns)

    def _was_abandoned(self, key: _Key, now_ns: int) -> bool:
        abandoned_ns = self._abandoned.get(key)
        return abandoned_ns is not None and now_ns - abandoned_ns < self._limits.timeout_ms * _NS_PER_MS

    def _limit_error(self, host: str, partial: _Partial | None, cost: int) -> tuple[TpReason, str] | None:
        limits = self._limits
        messages, used_bytes = self._hosts.get(host, (0, 0))
        if partial is not None and len(partial.parts) >= limits.segments:
            return TpReason.TP_SEGMENTS, f"{len(partial.parts)} segments are buffered"
        if used_bytes + cost > limits.peer_bytes or (partial is None and messages >= limits.peer_messages):
            return (
                TpReason.TP_PEER_LIMIT,
                f"{used_bytes} bytes in {messages} messages of this peer are buffered",
            )
        if self._bytes + cost > limits.total_bytes:
            return TpReason.TP_LIMIT, f"{self._bytes} bytes of all peers are buffered"
        if host not in self._hosts and len(self._hosts) >= limits.peers:
            return TpReason.TP_LIMIT, f"messages of {len(self._hosts)} peers are buffered"
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

    # --- deadlines ----------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """The time of the next `expire`, 0 for at once; None if nothing is incomplete."""
        if self._overtaken:
            return 0
        partial = next(iter(self._partials.values()), None)
        return None if partial is None else partial.started_ns + self._limits.timeout_ms * _NS_PER_MS

    # [impl->TP-796]
    def expire(self, now_ns: int) -> list[TpRefused]:
        """Abandon the messages that are incomplete after the timeout. Returns the overtaken ones too."""
        expired, self._overtaken = self._overtaken, []
        while (due_ns := self.next_deadline_ns) is not None and due_ns <= now_ns:
            key, partial = next(iter(self._partials.items()))
            detail = f"message {key[1]:#010x}: {partial.received} bytes after {self._limits.timeout_ms} ms"
            expired.append(TpRefused(TpReason.TP_TIMEOUT, key[0], detail))
            self._remove(key)
        return expired

    def statistics(self) -> dict[str, int]:
        """Messages incomplete now, and counters since the start."""
        return {
            "tp_open": len(self._partials),
            "tp_bytes": self._bytes,
            "tp_completed": self._completed,
            "tp_duplicates": self._duplicates,
        }


_MAX_ABANDONED: Final = 256


def _describe(message: SomeIpMessage) -> str:
    return f"message {message.message_id:#010x} session {message.session}"
