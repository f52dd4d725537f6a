# SPDX-License-Identifier: Apache-2.0
"""One connection of either framing: an asyncio protocol between a session and an outbox.

Everything runs on the loop's thread. `send_event` and `write_event` never end the session: they are called during an iteration over the
holders of a subscription.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import ClassVar, Final, Required, TypedDict, Unpack

import msgspec

from ustreamer.core.base.intrusions import PeerRefusals
from ustreamer.core.base.log_limit import limited
from ustreamer.transport_port import is_loopback
from ustreamer_wamp import errors
from ustreamer_wamp.codec import Serializer
from ustreamer_wamp.connections.admission import Admission, Allowance, Precedence, address_group_of
from ustreamer_wamp.connections.outbox import OutboxLimits, SessionOutbox
from ustreamer_wamp.events import WampEvent, WireFormat
from ustreamer_wamp.messages import Reply
from ustreamer_wamp.realm import Realm
from ustreamer_wamp.session import Session

log = logging.getLogger("ustreamer.wamp")

WRITE_HIGH_WATER_BYTES: Final = 65_536
"""Bytes that asyncio buffers for a socket before it pauses the outbox."""
PIECE_BYTES: Final = 1024
"""Bytes of a client that are parsed before the allowances are checked again: at most 170 control frames."""
HANDSHAKE_BYTES: Final = 16_384
TLS_HANDSHAKE_BYTES: Final = 327_680
"""Memory that a connection takes until WELCOME, measured; asyncio has a buffer of 256 KiB for TLS."""
CONTROL_FRAME_BURST: Final = 32


class ConnectionContext(msgspec.Struct, frozen=True):
    """The shared settings of the connections of a server. Times in ns."""

    realms: Mapping[str, Realm]
    monotonic_ns: Callable[[], int]
    cpu_ns: Callable[[], int]
    """The CPU time of the thread of the loop."""
    outbox: OutboxLimits
    admission: Admission
    max_message_bytes: int
    max_hello_bytes: int
    max_control_frames_per_s: int
    hello_timeout_ns: int
    message_timeout_ns: int
    ping_interval_ns: int
    pong_timeout_ns: int
    close_timeout_ns: int
    counts: Counter[str]
    refusals: PeerRefusals = msgspec.field(default_factory=PeerRefusals)


class ConnectionOptions(TypedDict, total=False):
    """A connection at accept. `private`: TLS or a Unix socket. `accepted` is its socket, for `abort` during TLS."""

    private: Required[bool]
    address: str
    accepted: socket.socket
    refusal_reason: str


class Connection(asyncio.Protocol):
    """The base of both framings. The two callbacks are called once, at the start and at the end of the connection."""

    framing: ClassVar[str]
    send_event: Callable[[WampEvent], None]
    write_event: Callable[[WampEvent], None]
    """The outbox's methods, from `_start_session` on: a method here would cost one more call for each event."""

    def __init__(
        self,
        context: ConnectionContext,
        loop: asyncio.AbstractEventLoop,
        on_connected: Callable[["Connection"], None],
        on_closed: Callable[["Connection"], None],
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self.address = options.get("address", "")
        self.address_group = address_group_of(self.address)
        self.session: Session | None = None
        self.refusal_reason = options.get("refusal_reason", "")
        """Why this connection is refused; "" if it is not."""
        self._context = context
        self._loop = loop
        self._on_connected = on_connected
        self._on_closed = on_closed
        self._private = options["private"] or is_loopback(self.address)
        self._accepted = options.get("accepted")
        self._transport: asyncio.Transport | None = None
        self._send_directly: Callable[[bytes], int] | None = None  # without asyncio
        self._outbox: SessionOutbox | None = None
        self._paused = False
        self._reading = True
        self._last_received_ns = context.monotonic_ns()
        self._ping_sent = False
        self._closing: tuple[int, str] | None = None
        self._close_sent = False
        self._deadline_ns: int | None = self._last_received_ns + context.hello_timeout_ns
        self._hello_bytes = 0  # received before WELCOME
        self._handshake_bytes = HANDSHAKE_BYTES
        self._held_bytes = 0  # as the admission knows it
        self._message_bytes = 0  # of them, those of messages in progress
        self._message_since_ns = self._last_received_ns  # the start of the message in progress
        self._unparsed = b""  # input that waits for CPU time of its group
        self._input_paused = False
        self._control_frames = Allowance(
            CONTROL_FRAME_BURST, context.max_control_frames_per_s, self._last_received_ns
        )

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # of a stream server
        self._transport = transport
        if self._accepted is not None and transport.get_extra_info("sslcontext") is None:
            self._send_directly = self._accepted.send
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._context.counts["connections"] += 1
        self._on_connected(self)

    def data_received(self, data: bytes) -> None:
        self._last_received_ns = self._context.monotonic_ns()
        self._ping_sent = False
        self._parse(self._unparsed + data if self._unparsed else data)

    def eof_received(self) -> bool:
        self._end_session()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_sending_directly()
        self._end_session()
        if self._outbox is not None:
            self._outbox.clear()
        # At once, and not when the garbage collector finds the cycles of a connection.
        self._drop_unfinished()
        self._unparsed = b""
        self._transport = None
        self._on_closed(self)

    def pause_writing(self) -> None:
        self._paused = True
        if self._outbox is not None:
            self._outbox.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._outbox is not None:
            self._outbox.resume()
            # Not within `write`, which may call this.
            self._loop.call_soon(self._flush)

    # --- input and its limits -------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        """Parse input in pieces, within the CPU time of its group; the rest waits."""
        self._unparsed = b""
        for at in range(0, len(data), PIECE_BYTES):
            if self._is_ending:
                return
            began_ns = self._context.cpu_ns()
            self._take(data[at : at + PIECE_BYTES])
            pause_ns = self._spend_cpu(self._context.cpu_ns() - began_ns)
            if pause_ns:
                self._unparsed = data[at + PIECE_BYTES :]
                self._pause_input(pause_ns)
                break
        self._charge_unfinished()
        if self._outbox is not None and self._outbox.has_reply_backlog and self._reading:
            # The client sends requests and does not read replies: stop reading its requests.
            self._reading = False
            self._call_transport("pause_reading")

    def _spend_cpu(self, spent_ns: int) -> int:
        """Note CPU time of input; for how long, in ns, this connection is not to be read. Users are not limited."""
        if self.precedence is Precedence.USER:
            return 0
        return self._context.admission.spend_cpu(self.address_group, spent_ns, self._context.monotonic_ns())

    def _pause_input(self, pause_ns: int) -> None:
        self._context.counts["input_pauses"] += 1
        self._input_paused = True
        self._call_transport("pause_reading")
        self._loop.call_later(pause_ns / 1e9, self._resume_input)

    def _resume_input(self) -> None:
        self._input_paused = False
        self._last_received_ns = self._context.monotonic_ns()  # the client was not silent
        self._parse(self._unparsed)
        if self._reading and not self._input_paused:
            self._call_transport("resume_reading")

    def _take(self, piece: bytes) -> None:
        """Parse a piece, within the allowance of bytes before WELCOME."""
        if self.precedence is Precedence.UNFINISHED:
            self._hello_bytes += len(piece)
            if self._hello_bytes > self._context.max_hello_bytes:
                most = self._context.max_hello_bytes
                self._refuse_input("refused_hello_bytes", f"more than {most} bytes before WELCOME")
                return
        self._on_data(piece)

    @property
    def precedence(self) -> Precedence:
        session = self.session
        if session is None or session.principal is None:
            return Precedence.UNFINISHED
        return Precedence.ANONYMOUS if session.principal.method == "anonymous" else Precedence.USER

    @property
    def _is_ending(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def start_handshake(self, size: int) -> None:
        """Hold the memory of a handshake until WELCOME."""
        self._handshake_bytes = size
        self._charge_unfinished()

    def _charge_unfinished(self) -> None:
        """Note the memory that this connection holds unfinished, and end the largest one if it is too much for all."""
        held = self._unfinished_bytes() + len(self._unparsed)
        if held and not self._message_bytes:
            self._message_since_ns = self._last_received_ns
        self._message_bytes = held
        if self.precedence is Precedence.UNFINISHED:
            held += self._handshake_bytes
        if held != self._held_bytes:
            self._held_bytes = held
            while (largest := self._context.admission.charge(self, held)) is not None:
                largest.evict("max_unfinished_bytes: this address holds the most")

    def _count_control_frame(self) -> bool:
        """Whether a control frame is within the allowance; otherwise the connection ends."""
        if self._control_frames.take(self._last_received_ns):
            return True
        most = self._context.max_control_frames_per_s
        self._refuse_input("refused_control_frames", f"more than {most} control frames a second")
        return False

    def _count_refusal(self, counter: str) -> None:
        self._context.counts[counter] += 1
        self._context.refusals.add(counter.removeprefix("refused_"), self.address_group or "unix")

    def _refuse_input(self, counter: str, reason: str) -> None:
        """End a connection that exceeds an allowance; nothing more is read."""
        if self._is_ending:
            return
        self._count_refusal(counter)
        self._log_ended(reason)
        if self.session is not None:
            self.session.kill(errors.TOO_MANY, reason)
            self._flush()
        self._deadline_ns = self._last_received_ns + self._context.close_timeout_ns
        self._close_after_write()

    def evict(self, reason: str) -> None:
        """End this connection at once: others need its place or its memory."""
        self._count_refusal("evicted")
        self._log_ended(reason)
        self._context.admission.remove(self)
        self.abort()

    def _log_ended(self, reason: str) -> None:
        peer = self.address_group or "unix"
        log.warning("wamp.client_ended", extra={"peer": peer, "reason": reason, **limited(peer)})

    # --- the session's side (`ustreamer_wamp.realm.FrameSink`) ----------------------------------------------

    def send_reply(self, message: Reply) -> None:
        assert self._outbox is not None  # made before the session
        self._outbox.enqueue_reply(message)

    def report_dropped(self, events: int) -> None:
        assert self._outbox is not None
        self._outbox.report_dropped(events)

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = (code, reason)
            self._stop_sending_directly()
            self._deadline_ns = self._context.monotonic_ns() + self._context.close_timeout_ns
            self._loop.call_soon(self._flush)

    # --- parts for framings ---------------------------------------------------------------------------------

    def _start_session(self, wire: WireFormat, serializer: Serializer) -> None:
        """The handshake is complete: start the session."""
        outbox = SessionOutbox(
            wire, self._context.outbox, self._write, self._schedule_flush, self._context.counts
        )
        if self._paused:
            outbox.pause()
        self._outbox = outbox
        self.send_event = outbox.enqueue_event
        self.write_event = outbox.write_event
        self._deadline_ns = None
        self.session = Session(
            self._context.realms,
            serializer,
            self,
            self._context.monotonic_ns(),
            peer=self.address_group,
            private=self._private,
        )
        self._context.counts["sessions"] += 1

    def _on_data(self, data: bytes) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it reads")

    def _unfinished_bytes(self) -> int:
        """The bytes that are kept of messages in progress."""
        raise TypeError(f"{type(self).__name__} does not say what it keeps")

    def _drop_unfinished(self) -> None:
        """Free what `_unfinished_bytes` counts."""
        raise TypeError(f"{type(self).__name__} does not say what it keeps")

    def _send_ping(self) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it pings")

    def _send_close(self, code: int, reason: str) -> None:
        """Close the connection by its framing, after all frames."""
        raise TypeError(f"{type(self).__name__} does not say how it closes")

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if self._send_directly is not None and self._outbox is not None:
            self._outbox.send = None if transport.get_write_buffer_size() else self._send_directly

    def _stop_sending_directly(self) -> None:
        self._send_directly = None
        if self._outbox is not None:
            self._outbox.send = None

    def _close_after_write(self) -> None:
        """Close the connection after all written bytes."""
        self._stop_sending_directly()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once and drop waiting frames."""
        self._stop_sending_directly()
        if self._transport is not None:
            self._transport.abort()
        elif self._accepted is not None:  # in the TLS handshake, which ends with its socket
            with suppress(OSError):
                self._accepted.shutdown(socket.SHUT_RDWR)

    # --- the loop's side ------------------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        outbox = self._outbox
        if outbox is None or self._transport is None:
            return
        outbox.flush()
        if outbox.is_overrun and self.session is not None and self._closing is None:
            self._context.counts["sessions_too_slow"] += 1
            self.session.kill(errors.KILLED, "events came faster than they were read")
        if not self._reading and not outbox.has_reply_backlog:
            self._reading = True
            self._message_since_ns = self._context.monotonic_ns()
            if not self._input_paused:
                self._call_transport("resume_reading")
        if self._closing is not None and outbox.is_empty and not self._close_sent:
            self._close_sent = True
            self._send_close(*self._closing)

    def _call_transport(self, method: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            getattr(self._transport, method)()

    def _end_session(self) -> None:
        if self.session is not None:
            self.session.on_connection_lost()

    def tick(self, now_ns: int) -> None:
        """Check the deadlines of session, close and ping."""
        if self._deadline_ns is not None and now_ns >= self._deadline_ns:
            self._context.counts["deadlines"] += 1
            self.abort()
            return
        if self.session is None:
            return
        self.session.tick(now_ns)
        if (
            self._reading
            and not self._input_paused
            and self._message_bytes
            and now_ns - self._message_since_ns >= self._context.message_timeout_ns
        ):
            self._count_refusal("message_timeouts")
            self._log_ended("a message was not complete in time")
            self.abort()
            return
        silent_ns = now_ns - self._last_received_ns
        if silent_ns >= self._context.ping_interval_ns + self._context.pong_timeout_ns:
            self._context.counts["ping_timeouts"] += 1
            self.abort()
        elif silent_ns >= self._context.ping_interval_ns and not self._ping_sent and self._closing is None:
            self._ping_sent = True
            self._send_ping()

    def shut_down(self, reason: str) -> None:
        """The router stops."""
        if self.session is None:
            self.abort()
        else:
            self.session.send_goodbye(reason)

    def __repr__(self) -> str:
        state = "no session" if self.session is None else self.session.state.value
        return f"<{type(self).__name__} {self.address}: {state}>"
