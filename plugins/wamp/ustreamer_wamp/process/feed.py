# SPDX-License-Identifier: Apache-2.0
"""The messages of the streamer for the process of its sessions: from the inbox to the socket.

An event that comes alone does not pass the inbox: the thread that received it writes it (`write_at_once`). A change of
threads costs two wake-ups and a fight for the interpreter lock: 0.1 ms of CPU where caches are cold. All else is
written by the thread `wamp feed`: what follows within 1 ms, what the socket does not take at once, what a plugin has to
decode.
"""

import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable
from threading import Event, Lock
from typing import Final, Protocol

from ustreamer.core.base.log_limit import limited
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import HeaderEncoder
from ustreamer_wamp.process import frames
from ustreamer_wamp.vehicle.batch import VehicleBatch, VehicleEvent
from ustreamer_wamp.vehicle.mapping import Decode, pack_value

log = logging.getLogger("ustreamer.wamp")

STALL_S: Final = 30.0
"""A child that reads nothing for this time is killed."""
_MAX_DECODERS: Final = 4096
_ALONE_NS: Final = 1_000_000
"""An event comes alone if none was written on a receiving thread for this time: a burst is for `wamp feed`."""


class Inbox(Protocol):
    """The messages that wait, and the decoders of their payloads (`ustreamer_wamp.transport.WampTransport`)."""

    @property
    def decoder(self) -> Callable[[UUri], Decode | None]: ...

    def next_batch(self) -> tuple[VehicleBatch, bool]:
        """The next messages, and whether more wait."""
        ...


class Feed:
    """Writes to one child after the other. `write_at_once`, `wake` and `send_control` are safe from any thread."""

    def __init__(
        self,
        inbox: Inbox,
        monotonic_ns: Callable[[], int],
        counts: Counter[str],
        on_stall: Callable[[], None],
    ) -> None:
        """`on_stall` ends a child that does not read."""
        self._inbox = inbox
        self._monotonic_ns = monotonic_ns
        self._counts = counts
        self._on_stall = on_stall
        self._socket: socket.socket | None = None
        self._writing = Lock()  # held by the thread that takes batches and writes them
        self._has_work = Event()
        self._closing = Event()
        self._control_frames: deque[frames.ToSessions] = deque()
        self._rest = b""
        """What is left of the frame of an event that a receiving thread has begun to write."""
        self._next_alone_ns = 0
        self._encode_header = HeaderEncoder().encode
        self._decoders: dict[UUri, Decode | None] = {}

    # --- the child ----------------------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        """Whether there is a child. The sessions of one that has ended are gone."""
        return self._socket is not None

    def attach(self, connected: socket.socket) -> None:
        """Write to this socket, which has a timeout of STALL_S."""
        self._socket = connected
        self._has_work.set()

    def detach(self) -> None:
        """The child has ended."""
        with self._writing:  # else a write could hit the next file with the number of the socket
            connected, self._socket = self._socket, None
            if connected is not None:
                connected.close()
            self._control_frames.clear()  # the next child gets the users and the topics at its start
            self._counts["events_no_subscriber"] += bool(self._rest)
            self._rest = b""  # the next child must not get the rest of a frame

    # --- messages -----------------------------------------------------------------------------------------------

    @property
    def waiting_control_frames(self) -> int:
        """Number of control frames that are not written yet."""
        return len(self._control_frames)

    def send_control(self, frame: frames.ToSessions) -> None:
        """Write a frame before further messages. Without a child it waits for the next one."""
        self._control_frames.append(frame)
        self._has_work.set()

    def wake(self) -> None:
        """Messages wait in the inbox."""
        self._has_work.set()

    def write_at_once(self, entity: UUri, message: UMessage) -> bool:
        """Write a publication for a rate if it comes alone, without a wait; False if it is for the inbox.

        The inbox is empty: no earlier message of the caller waits there.
        """
        now_ns = self._monotonic_ns()
        # A topic that is new, or has a decoder, is for the other thread: this one never calls a plugin.
        is_decoded = self._decoders.get(message.attributes.source, True) is not None
        if is_decoded or now_ns < self._next_alone_ns or not self._writing.acquire(blocking=False):
            return False
        try:
            connected = self._socket
            if connected is None or self._rest or self._control_frames:
                return False
            self._next_alone_ns = now_ns + _ALONE_NS
            header = self._encode_header(message.id, message.attributes)
            data = frames.pack(frames.Event(entity.ue_id >> 16, header, message.payload, None))
            # Not `send`, which waits: it polls a socket with a timeout. The timeout has made it non-blocking.
            sent = os.write(connected.fileno(), data)
            if sent < len(data):
                self._rest = data[sent:]
                self._has_work.set()
            return True
        except OSError:  # it is full, or the child has ended; the other thread finds out
            return False
        finally:
            self._writing.release()

    def close(self) -> None:
        """`run` writes what waits, and ends."""
        self._closing.set()
        self._has_work.set()

    def run(self) -> None:
        """On the thread `wamp feed`: write what waits, until `close` and until nothing is left."""
        while True:
            self._has_work.wait()
            self._has_work.clear()
            closing = self._closing.is_set()
            with self._writing:
                rest, self._rest = self._rest, b""
                if rest:
                    self._send(rest, 1)
                more = True
                while more:
                    batch, more = self._inbox.next_batch()
                    self._send_batch(batch)
                if closing:
                    self._control_frames.append(frames.Close())
                    self._send_batch(VehicleBatch((), {}, ()))
                    return

    def _send_batch(self, batch: VehicleBatch) -> None:
        events = len(batch.events) + sum(batch.dropped.values())
        if self._socket is None:  # its sessions are gone
            self._counts["events_no_subscriber"] += events
            return
        self._send(self._encode(batch), events)

    def _send(self, data: bytes, events: int) -> None:
        """Write frames with this number of events. Waits for the child."""
        connected = self._socket
        try:
            if connected is not None:
                rest = memoryview(data)
                while rest:  # `sendall` would have STALL_S for all of it
                    rest = rest[connected.send(rest) :]
                return
        except TimeoutError:
            log.warning("wamp.process_stalled", extra={"seconds": STALL_S, **limited()})
            self._on_stall()
        except OSError:
            pass  # the child has ended: the other thread detects it, too
        self._counts["events_no_subscriber"] += events

    # --- frames -------------------------------------------------------------------------------------------------

    def _encode(self, batch: VehicleBatch) -> bytes:
        """The control frames that wait, and a batch."""
        found = [frames.pack(self._control_frames.popleft()) for _ in range(len(self._control_frames))]
        found += [frames.pack(self._addressed_frame(each)) for each in batch.addressed]
        found += [
            frames.pack(frames.DroppedEvents(entity.ue_instance, str(topic), events))
            for (entity, topic), events in batch.dropped.items()
        ]
        found += [frames.pack(self._event_frame(each)) for each in batch.events]
        return b"".join(found)

    def _addressed_frame(self, message: UMessage) -> frames.Addressed:
        return frames.Addressed(self._encode_header(message.id, message.attributes), message.payload)

    def _event_frame(self, event: VehicleEvent) -> frames.Event:
        entity, message, _ = event
        decode = self._decoder_of(message.attributes.source)
        value = pack_value(decode, message.payload) if decode is not None and message.payload else None
        header = self._encode_header(message.id, message.attributes)
        return frames.Event(entity.ue_instance, header, message.payload, value)

    def _decoder_of(self, topic: UUri) -> Decode | None:
        """The decoder of a plugin for a topic, asked for once."""
        if topic not in self._decoders:
            if len(self._decoders) >= _MAX_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            try:
                self._decoders[topic] = self._inbox.decoder(topic)
            except Exception:  # an error of a plugin: show the payload undecoded
                self._decoders[topic] = None
                self._counts["decoder_errors"] += 1
                log.exception("wamp.decoder_failed", extra={"topic": str(topic), **limited()})
        return self._decoders[topic]
