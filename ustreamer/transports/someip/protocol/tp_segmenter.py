# SPDX-License-Identifier: Apache-2.0
"""SOME/IP-TP, sending: splits a message that is longer than a datagram and paces its segments.

No sockets, no clock: callers pass the time. `tp.py` describes the format of a segment.
"""

from collections import deque
from collections.abc import Iterator
from struct import Struct as Layout
from typing import Final

import msgspec

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import (
    TP_BIT,
    SomeIpMessage,
    UnencodableMessage,
    encode,
    pack_header,
)
from ustreamer.transports.someip.protocol.tp import MAX_OFFSET, MORE_SEGMENTS, TP_HEADER
from ustreamer.transports.someip.protocol.tp_config import DEFAULT_SEGMENT_BYTES, OFFSET_UNIT, TpSegmentation

RETRY_INTERVAL_NS: Final = 1_000_000
"""Pause before a segment that could not be sent is tried again."""
RETRY_TIMEOUT_NS: Final = 5_000_000_000
"""How long a segment is tried: receivers abandon a message whose segments are missing for this long."""

_OFFSET: Final = Layout(">I")


# [impl->TP-764, TP-772, TP-778]
def split_into_segments(
    message: SomeIpMessage, segment_bytes: int = DEFAULT_SEGMENT_BYTES
) -> Iterator[bytes]:
    """The datagrams of a message, `segment_bytes` of payload each, rounded down to a multiple of 16.

    Raises UnencodableMessage if the message is longer than the offset field allows, or is itself a segment.
    """
    size = segment_bytes // OFFSET_UNIT * OFFSET_UNIT
    if size <= 0:
        raise UnencodableMessage("segment_bytes", segment_bytes, MAX_OFFSET)
    if message.is_tp:
        raise UnencodableMessage("message_type", message.message_type, TP_BIT - 1)
    total = len(message.payload)
    if total > MAX_OFFSET + size:
        raise UnencodableMessage("payload_length", total, MAX_OFFSET + size)
    return _generate_segments(message, size, total)


# [impl->TP-763, TP-765, TP-766, TP-832, TP-767, TP-770, TP-771, TP-774, TP-777, TP-780]
def _generate_segments(message: SomeIpMessage, size: int, total: int) -> Iterator[bytes]:
    for offset in range(0, max(total, 1), size):
        part = message.payload[offset : offset + size]
        more = MORE_SEGMENTS if offset + size < total else 0
        header = pack_header(
            message.service,
            message.method,
            message.client,
            message.session,
            message.interface_version,
            message.message_type | TP_BIT,
            message.return_code,
            TP_HEADER + len(part),
        )
        yield header + _OFFSET.pack(offset | more) + part


TpStream = tuple[Address, int]
"""Address and message id: the order that uProtocol guarantees. A receiver may have room for one message of a stream
only.
"""


class DueSegment(msgspec.Struct, frozen=True):
    """A datagram that is due now."""

    datagram: bytes
    stream: TpStream

    @property
    def address(self) -> Address:
        return self.stream[0]


class _OutgoingMessage:
    """A message that is not sent completely: its next datagram and the rest."""

    def __init__(self, message: SomeIpMessage, segmentation: TpSegmentation, deadline_ns: int | None) -> None:
        self._deadline_ns = deadline_ns
        self.size = len(message.payload)
        if self.size > segmentation.segment_bytes:
            self._rest = split_into_segments(message, segmentation.segment_bytes)
            self.pause_ns = segmentation.separation_ns
        else:  # a short message behind a long one of its stream
            self._rest = iter((encode(message),))
            self.pause_ns = 0
        self.next_datagram: bytes | None = next(self._rest)
        self.blocked_since_ns: int | None = None

    def advance(self) -> None:
        self.next_datagram = next(self._rest, None)
        self.blocked_since_ns = None
        self._deadline_ns = None  # a part is sent: the rest follows

    def is_expired(self, now_ns: int) -> bool:
        """Whether nothing of it was sent by its deadline."""
        return self._deadline_ns is not None and now_ns > self._deadline_ns


class TpSegmenter:
    """Sends segments with a pause between them. At most `limit_bytes` of payload in `limit_messages` wait.

    The segments of a message, and the messages of a stream, are sent in order. Streams do not wait for each other;
    streams without a pause are served round-robin. `next_due` returns the same segment until `on_sent`,
    `on_send_blocked` or `drop_message` is called.
    """

    def __init__(self, limit_bytes: int, limit_messages: int = 1_024) -> None:
        self._limit_bytes = limit_bytes
        self._limit_messages = limit_messages
        self._streams: dict[TpStream, deque[_OutgoingMessage]] = {}
        self._deadlines: DeadlineQueue[TpStream] = DeadlineQueue()
        self._bytes = self._messages = 0
        self.expired = 0
        """Messages that were dropped at their deadlines, before their first segments."""

    # [impl->TP-760]
    def put_nowait(
        self,
        message: SomeIpMessage,
        address: Address,
        segmentation: TpSegmentation,
        now_ns: int,
        deadline_ns: int | None = None,
    ) -> TpStream:
        """Queue a message behind those of its stream; its first segment is sent until the deadline.

        Raises TpQueueFull at the limit, UnencodableMessage as `split_into_segments`.
        """
        size = len(message.payload)
        if self._bytes + size > self._limit_bytes or self._messages >= self._limit_messages:
            raise TpQueueFull(size, self._bytes, self._limit_bytes, self._messages)
        outgoing = _OutgoingMessage(message, segmentation, deadline_ns)
        self._bytes += size
        self._messages += 1
        stream = (address, message.message_id)
        if stream not in self._deadlines:
            self._deadlines.schedule(stream, now_ns)
        self._streams.setdefault(stream, deque()).append(outgoing)
        return stream

    def is_pending(self, stream: TpStream) -> bool:
        """Whether `stream` has unsent segments or is in its pause: a new message must wait behind them."""
        return stream in self._deadlines

    # [impl->TP-801]
    def next_due(self, now_ns: int) -> DueSegment | None:
        """The segment to send first; None if nothing is due."""
        while (stream := self._deadlines.first_due(now_ns)) is not None:
            if stream not in self._streams:
                self._deadlines.cancel(stream)  # the pause behind its last message is over
            elif not self._streams[stream][0].is_expired(now_ns):
                return self.next_segment(stream)
            else:
                self.expired += 1
                self._drop_head(stream, now_ns)
        return None

    def next_segment(self, stream: TpStream) -> DueSegment:
        """The next segment of a stream with waiting messages, due or not."""
        datagram = self._streams[stream][0].next_datagram
        assert datagram is not None  # else the message would have been removed
        return DueSegment(datagram, stream)

    def on_sent(self, due: DueSegment, now_ns: int) -> bool:
        """The segment was sent; returns whether its message is complete."""
        outgoing = self._streams[due.stream][0]
        outgoing.advance()
        complete = outgoing.next_datagram is None
        if complete:
            self._remove_head(due.stream)
        if outgoing.pause_ns or due.stream in self._streams:
            self._deadlines.schedule(due.stream, now_ns + outgoing.pause_ns)
        else:
            self._deadlines.cancel(due.stream)
        return complete

    def on_send_blocked(self, due: DueSegment, now_ns: int) -> bool:
        """The segment was not sent and is tried again. False after RETRY_TIMEOUT_NS: its message is dropped."""
        outgoing = self._streams[due.stream][0]
        if outgoing.blocked_since_ns is None:
            outgoing.blocked_since_ns = now_ns
        if now_ns - outgoing.blocked_since_ns >= RETRY_TIMEOUT_NS:
            self.drop_message(due, now_ns)
            return False
        self._deadlines.schedule(due.stream, now_ns + RETRY_INTERVAL_NS)
        return True

    def drop_message(self, due: DueSegment, now_ns: int) -> None:
        """Drop the message of this segment."""
        self._drop_head(due.stream, now_ns)

    def _drop_head(self, stream: TpStream, now_ns: int) -> None:
        self._remove_head(stream)
        if stream in self._streams:
            self._deadlines.schedule(stream, now_ns)
        else:
            self._deadlines.cancel(stream)

    def drop_all(self) -> int:
        """Drop all messages; returns their number."""
        dropped = self._messages
        for stream in self._streams:
            self._deadlines.cancel(stream)
        self._streams.clear()
        self._bytes = self._messages = 0
        return dropped

    def _remove_head(self, stream: TpStream) -> None:
        queue = self._streams[stream]
        outgoing = queue.popleft()
        if not queue:
            del self._streams[stream]
        self._bytes -= outgoing.size
        self._messages -= 1

    @property
    def next_deadline_ns(self) -> int | None:
        """The time of the next due segment; None if nothing waits."""
        return self._deadlines.next_due

    @property
    def pending(self) -> tuple[int, int]:
        """Bytes and messages that are not sent completely."""
        return self._bytes, self._messages


class TpQueueFull(Exception):
    """A message of `size` bytes exceeds the limit: `waiting` of `limit` bytes wait to be sent, in `messages`
    messages.
    """

    def __init__(self, size: int, waiting: int, limit: int, messages: int) -> None:
        super().__init__(size, waiting, limit, messages)
        self.size = size
        self.waiting = waiting
        self.limit = limit
        self.messages = messages

    def __str__(self) -> str:
        return (
            f"message of {self.size} bytes: {self.waiting} of {self.limit} bytes in {self.messages} messages wait "
            "for their segments to be sent"
        )
