# SPDX-License-Identifier: Apache-2.0
"""WAMP over RawSocket: four bytes of handshake, then frames of a type and a length.

client   7F | L S | 00 00        L: messages of up to 2^(9+L) bytes; S: the serializer
router   7F | L S | 00 00        or 7F | error 0 | 00 00
frame    0000 0TTT | 24 bits of length        T: 0 message, 1 ping, 2 pong; a length of 0 with bit 3 set is 2^24
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Unpack

from ustreamer_wamp.codec import SERIALIZERS
from ustreamer_wamp.connections.connection import Connection, ConnectionContext, ConnectionOptions
from ustreamer_wamp.events import WampEvent, WireFormat

MAGIC: Final = 0x7F
_UNSUPPORTED: Final = 0x10
_RESERVED: Final = 0x30
_TOO_MANY: Final = 0x40
_MESSAGE, _PING, _PONG = 0, 1, 2
_LONGEST: Final = 1 << 24
_HEADER: Final = struct.Struct("!I")


def encode_frame(payload: bytes, kind: int = _MESSAGE) -> bytes:
    """A frame; its length has 24 bits, and one more for exactly 2^24, the longest."""
    size = len(payload)
    return _HEADER.pack(kind << 24 | (size >= _LONGEST) << 27 | size & 0xFF_FFFF) + payload


WIRE_FORMATS: Final[Mapping[int, WireFormat]] = {
    each.rawsocket: WireFormat(f"rawsocket {each.name}", each, encode_frame) for each in SERIALIZERS
}


def _length_code(size: int) -> int:
    """L for messages of at most `size` bytes."""
    return min(15, max(0, size.bit_length() - 10))


class RawSocketConnection(Connection):
    """A connection over TCP, TLS or a Unix socket."""

    framing = "rawsocket"

    def __init__(
        self,
        context: ConnectionContext,
        loop: asyncio.AbstractEventLoop,
        on_connected: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(context, loop, on_connected, on_closed, **options)
        self._buffer = bytearray()
        self._max_message_out = _LONGEST
        # The announced limit, not the configured one: the handshake has powers of two only.
        self._max_message_in = 1 << (9 + _length_code(context.max_message_bytes))

    # --- reading --------------------------------------------------------------------------------------------

    def _on_data(self, data: bytes) -> None:
        if self._closing is not None:
            return
        self._buffer += data
        if self.session is None:
            if len(self._buffer) < 4:
                return
            hello = bytes(self._buffer[:4])
            del self._buffer[:4]
            if not self._handshake(hello):
                self._count_refusal("refused_handshake")
                self._close_after_write()
                return
        at, buffer = 0, self._buffer
        while len(buffer) - at >= 4 and self._closing is None:
            if self._is_ending:
                return
            (header,) = _HEADER.unpack_from(buffer, at)
            size = header & 0xFF_FFFF | (header >> 27 & 1) << 24
            if header >> 24 & 0xF0 or size > self._max_message_in:
                self._reject_frame(header, size)
                return
            if len(buffer) - at - 4 < size:
                break
            payload = bytes(buffer[at + 4 : at + 4 + size])
            at += 4 + size
            self._on_frame(header >> 24 & 0x07, payload)
        del buffer[:at]

    def _handshake(self, hello: bytes) -> bool:
        assert self._transport is not None  # the transport for data
        wire = WIRE_FORMATS.get(hello[1] & 0x0F)
        error = 0
        if hello[0] != MAGIC:
            return False
        if hello[2:] != b"\0\0":
            error = _RESERVED
        elif wire is None:
            error = _UNSUPPORTED
        elif self.refusal_reason:
            error = _TOO_MANY
        if error or wire is None:
            self._write(bytes([MAGIC, error, 0, 0]))
            return False
        self._max_message_out = 1 << (9 + (hello[1] >> 4))
        mine = _length_code(self._context.max_message_bytes) << 4
        self._write(bytes([MAGIC, mine | wire.serializer.rawsocket, 0, 0]))
        self._start_session(wire, wire.serializer)
        self._wire = wire
        self.send_event = partial(self._send_if_fits, self.send_event)
        self.write_event = partial(self._send_if_fits, self.write_event)
        return True

    def _on_frame(self, kind: int, payload: bytes) -> None:
        assert self.session is not None  # the handshake is done
        assert self._outbox is not None
        if kind == _MESSAGE:
            self._message_since_ns = self._last_received_ns
            self.session.on_message(payload)
        elif kind not in (_PING, _PONG):
            self._reject_frame(kind << 24, len(payload))
        elif self._count_control_frame() and kind == _PING:
            self._outbox.enqueue_frame(encode_frame(payload, _PONG))

    def _reject_frame(self, header: int, size: int) -> None:
        assert self.session is not None
        self._count_refusal("refused_frame")
        self._buffer.clear()
        self.session.abort_protocol_violation(
            f"a frame of type {header >> 24} and {size} bytes: "
            f"expected type 0, 1 or 2 and at most {self._max_message_in}"
        )

    def _unfinished_bytes(self) -> int:
        return len(self._buffer)

    def _drop_unfinished(self) -> None:
        self._buffer = bytearray()

    # --- writing --------------------------------------------------------------------------------------------

    def _send_if_fits(self, send: Callable[[WampEvent], None], event: WampEvent) -> None:
        """Take the size limit of the client."""
        if len(event.frame_for(self._wire)) - 4 > self._max_message_out:
            self._context.counts["events_too_long"] += 1
        else:
            send(event)

    def _send_ping(self) -> None:
        if self._outbox is not None:
            self._outbox.enqueue_frame(encode_frame(b"", _PING))

    def _send_close(self, code: int, reason: str) -> None:
        self._close_after_write()
