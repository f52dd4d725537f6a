# SPDX-License-Identifier: Apache-2.0
"""How messages leave a SOME/IP endpoint: each in a datagram, many in one system call, in segments, or over a connection."""

import errno
import socket
from collections.abc import Callable, Hashable, Sequence
from itertools import count

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import BulkTransmit, Transmit
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.transports.someip.endpoint.tp_sender import Segmenter
from ustreamer.transports.someip.io.gso_sender import EVENT_HEADER, Bursts, PlainEvent
from ustreamer.transports.someip.io.tcp_connections import Connections
from ustreamer.transports.someip.io.udp import unsent
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, MAX_SESSION, MIN_LENGTH
from ustreamer.transports.someip.protocol.mapping import NO_CLIENT, EventReceiver, WireEvent, event_datagram
from ustreamer.transports.someip.protocol.tp_config import Segmenting, TpLimits
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

NoEvent = Callable[[UUri], UStatusError]
"""What is to be said of a topic that is no event of the receiver's services."""


class Sending:
    """Any thread, but for `open`, `close` and `run`. Never waits."""

    def __init__(
        self,
        limits: TpLimits,
        connections: Connections,
        clock: Clock,
        wake_by: Callable[[int], None],
        no_event: NoEvent,
    ) -> None:
        self.sendto: Callable[[bytes, Address], object] = _not_open
        self._connections = connections
        self._monotonic_ns = clock.monotonic_ns
        self._expiry = Expiry(clock)
        self._no_event = no_event
        self._segmenter = Segmenter(limits, self._send_segment, clock.monotonic_ns, wake_by)
        self._bursts = Bursts()
        self._plain_events: dict[UUri, dict[UUri, PlainEvent]] = {}
        # Not locked: under CPython's GIL no other thread gets in between the reading and the writing of a `+= 1`.
        self._sent = 0

    # --- life -----------------------------------------------------------------------------------------------------------

    def open(self, opened: socket.socket) -> None:
        """Send on this socket."""
        self.sendto = opened.sendto
        self._bursts.open(opened)

    def flush(self, timeout_s: float) -> None:
        """Send the segments that wait, whatever pause was asked for between them."""
        self._segmenter.flush(timeout_s)

    def close(self) -> None:
        """Send no more."""
        self.sendto = _not_open
        self._bursts.close()

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        """Have `opened` called for receivers for which too much waited to be sent in segments."""
        self._segmenter.watch_routes(opened)

    # --- time -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send the segments that are due; belongs to the receiving thread."""
        self._segmenter.run()

    @property
    def next_deadline_ns(self) -> int | None:
        """When `run` has something to do."""
        return self._segmenter.next_deadline_ns

    # --- messages -------------------------------------------------------------------------------------------------------

    def send(
        self, datagram: bytes, address: Address, how: Segmenting | None, deadline_ns: int | None = None
    ) -> None:
        """Send a request or a response, and count it. Raises UStatusError, and RouteUnavailable while `address` is away."""
        self.put(datagram, address, how, deadline_ns)
        self._sent += 1

    def put(
        self,
        datagram: bytes,
        address: Address,
        how: Segmenting | None = None,
        deadline_ns: int | None = None,
    ) -> None:
        """As `send`, uncounted."""
        if isinstance(address, TcpAddress):
            # Not again because its reading is in doubt: a method may not bear to be called twice.
            self._connections.send(datagram, address, deadline_ns, again=False)
            return
        try:
            if how is None:
                self.sendto(datagram, address)
            else:
                self._segmenter.send(datagram, address, how)
        except OSError as error:
            raise unsent(error, len(datagram) - HEADER_LENGTH, address) from error

    def send_alike(self, datagrams: Sequence[bytes], address: Address) -> int:
        """Send datagrams of one size, 64 at most, and count them; how many, from the first on, were taken. Raises nothing."""
        return self._bursts.send(datagrams, address)

    def _send_segment(self, datagram: bytes, address: Address) -> None:
        self.sendto(datagram, address)

    # --- events ---------------------------------------------------------------------------------------------------------

    def events_to(self, receiver: EventReceiver, *, bursts: bool = False) -> Transmit:
        """What sends events to `receiver`: 0.6 us besides the system call. `bursts`: have `bursts_to` know it from now on."""
        address = receiver.address
        # A session counter of its own for each event and receiver: one that gets every tenth event sees no gaps. next()
        # of an itertools.count is atomic, so two threads never send the same number.
        events: dict[UUri, PlainEvent] = {
            topic: (*_header_around_session(event), count())
            for topic, event in receiver.events.items()
            if event.segmenting is None and topic not in receiver.over_tcp
        }
        if bursts:
            self._plain_events[receiver.subscriber] = events
        transmit_other = self._other_events_to(receiver)

        def transmit(message: UMessage) -> None:
            event = events.get(message.attributes.source)
            if event is None:
                transmit_other(message)
                return
            head, tail, sent = event
            payload = message.payload
            header = EVENT_HEADER.pack(
                head, len(payload) + MIN_LENGTH, NO_CLIENT, next(sent) % MAX_SESSION + 1, tail
            )
            try:
                self.sendto(header + payload, address)
            except OSError as error:
                raise unsent(error, len(payload), address) from error
            self._sent += 1

        return transmit

    def _other_events_to(self, receiver: EventReceiver) -> Transmit:
        """What sends the events that go over TCP or may go in segments, and says of what is none that it is none."""
        over_tcp = receiver.over_tcp
        events = {
            topic: (event, count(), event.segmenting)
            for topic, event in receiver.events.items()
            if event.segmenting is not None or topic in over_tcp
        }

        def transmit(message: UMessage) -> None:
            found = events.get(message.attributes.source)
            if found is None:
                raise self._no_event(message.attributes.source)
            event, sent, how = found
            datagram = event_datagram(event, next(sent) % MAX_SESSION + 1, message.payload)
            if message.attributes.source in over_tcp:
                self._connections.send(datagram, receiver.tcp_address, self._deadline_of(message))
                self._sent += 1
            else:
                self.send(datagram, receiver.address, how)

        return transmit

    def bursts_to(self, receiver: EventReceiver) -> BulkTransmit | None:
        """What sends many events to a receiver that `events_to` was told of; None if it has none for bursts."""
        events = self._plain_events[receiver.subscriber]
        return self._bursts.sender(events, receiver.address) if events else None

    def _deadline_of(self, message: UMessage) -> int | None:
        """When the ttl of `message` is over; None if it has none."""
        if not message.attributes.ttl:
            return None
        return self._expiry.deadline_ns(message, self._monotonic_ns(), 0)

    def statistics(self) -> dict[str, int]:
        """Names as in `SomeipTransport.statistics`."""
        return {"sent": self._sent + self._bursts.sent, **self._segmenter.statistics()}


def _header_around_session(event: WireEvent) -> tuple[bytes, bytes]:
    """The parts of the event's header that are the same in every message: message id, and versions to return code."""
    header = event_datagram(event, 0, b"")
    return header[:4], header[12:]


def _not_open(datagram: bytes, address: Address) -> object:
    raise OSError(errno.EBADF, "the endpoint is not open")
