# SPDX-License-Identifier: Apache-2.0
"""Output of a SOME/IP endpoint: a message as one datagram, in a batch of datagrams, in segments, or over TCP."""

import errno
import logging
import socket
from collections.abc import Callable, Hashable, Iterator
from ipaddress import ip_address
from itertools import count
from typing import TYPE_CHECKING

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.transports.someip.endpoint.tp_sender import TpSender
from ustreamer.transports.someip.io.gso_sender import EVENT_HEADER, EventHeaderTemplate, GsoSender
from ustreamer.transports.someip.io.udp import send_error
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress, format_address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, MAX_SESSION, MIN_LENGTH
from ustreamer.transports.someip.protocol.dscp import DscpAddress, at_priority
from ustreamer.transports.someip.protocol.mapping import (
    REQUEST_ID_BITS,
    EventReceiver,
    EventTemplate,
    encode_event,
)
from ustreamer.transports.someip.protocol.tp_config import MAX_UNSEGMENTED_BYTES, TpLimits, TpSegmentation
from ustreamer.transports.someip.rpc.fast_path import SendEqualSized
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.transports.someip.endpoint.e2e_sender import E2eSender
    from ustreamer.transports.someip.io.tcp_connections import TcpConnections
    from ustreamer.transports.someip.protocol.e2e_config import E2eConfig


log = logging.getLogger("ustreamer.someip")

NoEventError = Callable[[UUri], UStatusError]
"""Creates the error for a topic that is no event of the receiver's services."""


class Outbound:
    """Any thread, except for `open`, `close` and `on_tick`. Never waits."""

    def __init__(
        self,
        limits: TpLimits,
        connections: "TcpConnections | None",
        clock: Clock,
        wake_by: Callable[[int], None],
        no_event_error: NoEventError,
        bridged: frozenset[str] = frozenset(),
        *,
        refuses_oversized: bool = False,
    ) -> None:
        """`connections` is None if no address is one of TCP. `bridged` are the authorities of other SOME/IP networks:
        their events keep their request ids.

        `refuses_oversized`: send no payload above MAX_UNSEGMENTED_BYTES over UDP without segments.
        """
        self._refuses_oversized = refuses_oversized
        self._oversized = 0
        self.sendto: Callable[[bytes, Address], object] = _not_open
        self._socket: socket.socket | None = None
        self._connections = connections
        self._monotonic_ns = clock.monotonic_ns
        self._expiry = Expiry(clock)
        self._no_event_error = no_event_error
        self._bridged = bridged
        self._tp_sender = TpSender(limits, self._send_datagram, clock.monotonic_ns, wake_by)
        self._gso_sender = GsoSender(refuses_oversized=refuses_oversized)
        self.send_equal_sized: SendEqualSized = self._gso_sender.send_equal_sized
        """Counts what it sends."""
        self._fast_path_events: dict[UUri, dict[UUri, EventHeaderTemplate]] = {}
        self._e2e_groups: dict[tuple[Address, UUri], E2eSender] = {}
        # Not locked: under CPython's GIL no other thread runs between the read and the write of a `+= 1`.
        self._sent = 0

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self, opened: socket.socket) -> None:
        """Send on this socket."""
        self._socket, self.sendto = opened, opened.sendto
        self._gso_sender.open(opened)

    def flush(self, timeout_s: float) -> int:
        """Send the waiting segments; returns how many messages of them are abandoned after `timeout_s`."""
        return self._tp_sender.flush(timeout_s)

    def close(self) -> None:
        """Stop sending."""
        self._socket, self.sendto = None, _not_open
        self._gso_sender.close()

    def watch_routes(self, on_route_opened: Callable[[Hashable], None]) -> None:
        """Call `on_route_opened` for receivers with too many waiting segments, when there is room again."""
        self._tp_sender.watch_routes(on_route_opened)

    # --- time ---------------------------------------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Send the due segments; belongs to the receiving thread."""
        self._tp_sender.on_tick()

    @property
    def next_deadline_ns(self) -> int | None:
        """The time of the next `on_tick` with due segments."""
        return self._tp_sender.next_deadline_ns

    # --- messages -----------------------------------------------------------------------------------------------------

    def send(
        self,
        datagram: bytes,
        address: Address,
        segmentation: TpSegmentation | None,
        deadline_ns: int | None = None,
    ) -> None:
        """Send and count a request or a response. Raises UStatusError, and RouteUnavailable while `address` is
        unreachable.
        """
        self.send_raw(datagram, address, segmentation, deadline_ns)
        self._sent += 1

    def send_raw(
        self,
        datagram: bytes,
        address: Address,
        segmentation: TpSegmentation | None = None,
        deadline_ns: int | None = None,
    ) -> None:
        """As `send`, uncounted."""
        if isinstance(address, TcpAddress):
            assert self._connections is not None
            # Not resent if only its reading is in doubt: a method may not tolerate a second call.
            self._connections.send(datagram, address, deadline_ns, resend_if_unread=False)
            return
        try:
            if segmentation is None:
                if len(datagram) > MAX_UNSEGMENTED_BYTES + HEADER_LENGTH:
                    self._on_oversized(len(datagram) - HEADER_LENGTH, address)
                self._send_datagram(datagram, address)
            else:
                self._tp_sender.send(datagram, address, segmentation, deadline_ns)
        except OSError as error:
            raise send_error(error, len(datagram) - HEADER_LENGTH, address) from error

    def _send_datagram(self, datagram: bytes, address: Address) -> None:
        sendto = self._send_with_dscp if isinstance(address, DscpAddress) else self.sendto
        try:
            sendto(datagram, address)
        except ConnectionRefusedError:  # reports an earlier send, to any address, and has sent nothing
            sendto(datagram, address)

    def _send_with_dscp(self, datagram: bytes, address: Address) -> object:
        assert isinstance(address, DscpAddress)
        if self._socket is None:
            return _not_open(datagram, address)
        return self._socket.sendmsg([datagram], address.ancillary, 0, address)

    def _send_again(self, error: OSError, datagram: bytes, address: Address) -> None:
        """Send again if `error` is that of an earlier send to any address; otherwise raise it as UStatusError."""
        if error.errno == errno.ECONNREFUSED:
            try:
                self.sendto(datagram, address)
            except OSError as again:
                error = again
            else:
                return
        raise send_error(error, len(datagram) - HEADER_LENGTH, address) from error

    # --- events -------------------------------------------------------------------------------------------------------

    def event_transmitter(self, receiver: EventReceiver, *, with_batch: bool = False) -> SendOne:
        """The sender of events to `receiver`: 0.6 us besides the system call. `with_batch`: enables
        `batch_transmitter`.
        """
        address, has_dscp = receiver.address, isinstance(receiver.address, DscpAddress)
        events: dict[UUri, EventHeaderTemplate] = {
            topic: (*_header_around_request_id(event), self._session_counter(topic))
            for topic, event in receiver.events.items()
            if event.segmentation is None
            and event.e2e is None
            and topic not in receiver.over_tcp
            and not has_dscp
        }
        if with_batch:
            self._fast_path_events[receiver.subscriber] = events
        transmit_other = self._slow_path_transmitter(receiver)

        def transmit(message: UMessage) -> None:
            event = events.get(message.attributes.source)
            if event is None:
                transmit_other(message)
                return
            head, tail, sessions = event
            payload = message.payload
            if len(payload) > MAX_UNSEGMENTED_BYTES:
                self._on_oversized(len(payload), address)
            request_id = (
                message.id.lsb & REQUEST_ID_BITS if sessions is None else next(sessions) % MAX_SESSION + 1
            )
            header = EVENT_HEADER.pack(head, len(payload) + MIN_LENGTH, request_id, tail)
            try:
                self.sendto(header + payload, address)
            except OSError as error:
                self._send_again(error, header + payload, address)
            self._sent += 1

        return transmit

    # [impl->RPC-318]
    def _on_oversized(self, size: int, address: Address) -> None:
        """Count a payload that leaves in IP fragments, or raise INVALID_ARGUMENT if that is not permitted."""
        text = (
            f"payload of {size} bytes for {format_address(address)}: above {MAX_UNSEGMENTED_BYTES} bytes a message over "
            "UDP needs segments (SOME/IP-TP): `tp = true` of its event, method or service"
        )
        if self._refuses_oversized:
            raise invalid_argument(text)
        self._oversized += 1
        if self._oversized == 1:  # the others are counted
            log.warning("someip.oversized", extra={"reason": text})

    # [impl->RPC-667, TP-762]
    def _session_counter(self, topic: UUri) -> Iterator[int] | None:
        """A counter for one event and one receiver: a receiver of every tenth event sees no gaps. None: the events of
        another SOME/IP network keep their request ids.

        next() of an itertools.count is atomic, so two threads never send the same number.
        """
        return None if topic.authority_name in self._bridged else count()

    def _slow_path_transmitter(self, receiver: EventReceiver) -> SendOne:
        """The sender of events with TCP, segments, a DSCP or E2E protection. It raises for a topic that is no event of the
        receiver.
        """
        over_tcp, has_dscp = receiver.over_tcp, isinstance(receiver.address, DscpAddress)
        events = {
            topic: (event, self._session_counter(topic), self._e2e_sender(event.e2e, receiver, topic))
            for topic, event in receiver.events.items()
            if event.segmentation is not None or event.e2e is not None or topic in over_tcp or has_dscp
        }

        def send(datagram: bytes, message: UMessage, how: TpSegmentation | None) -> None:
            if message.attributes.source in over_tcp:
                assert self._connections is not None
                self._connections.send(datagram, receiver.tcp_address, self._deadline_of(message))
                self._sent += 1
            else:
                address = at_priority(receiver.address, message.attributes.priority_class)
                self.send(datagram, address, how, None if how is None else self._deadline_of(message))

        def transmit(message: UMessage) -> None:
            found = events.get(message.attributes.source)
            if found is None:
                raise self._no_event_error(message.attributes.source)
            event, sessions, protected = found
            request_id = (
                message.id.lsb & REQUEST_ID_BITS if sessions is None else next(sessions) % MAX_SESSION + 1
            )
            if protected is None:
                send(encode_event(event, request_id, message.payload), message, event.segmentation)
                return
            protected.send(
                event,
                request_id,
                message,
                lambda datagram: send(datagram, message, event.segmentation),
                repeats=receiver.joins is not None,
            )

        return transmit

    def _e2e_sender(
        self, config: "E2eConfig | None", receiver: EventReceiver, topic: UUri
    ) -> "E2eSender | None":
        """The protection of an event. A receiver that joins a multicast group shares that of the group."""
        if config is None:
            return None
        # Few endpoints have protected events.
        from ustreamer.transports.someip.endpoint.e2e_sender import E2eSender

        address = receiver.joins or receiver.address
        if not ip_address(address[0]).is_multicast:
            return E2eSender(config)
        return self._e2e_groups.setdefault((address, topic), E2eSender(config))

    def batch_transmitter(self, receiver: EventReceiver) -> SendBatch | None:
        """The batch sender for a receiver with `with_batch`; None if none of its events can be sent in batches."""
        events = self._fast_path_events[receiver.subscriber]
        return self._gso_sender.event_sender(events, receiver.address) if events else None

    def _deadline_of(self, message: UMessage) -> int | None:
        """The time at which the ttl of `message` expires; None if it has none."""
        if not message.attributes.ttl:
            return None
        return self._expiry.deadline_ns(message, self._monotonic_ns(), 0)

    def statistics(self) -> dict[str, int]:
        """Names as in `SomeipTransport.statistics`."""
        return {
            "sent": self._sent + self._gso_sender.sent_count,
            "oversized": self._oversized + self._gso_sender.oversized_count,
            **self._tp_sender.statistics(),
        }


def _header_around_request_id(event: EventTemplate) -> tuple[bytes, bytes]:
    """The parts of an event's header that are the same in every message: message id, and versions to return code."""
    header = encode_event(event, 0, b"")
    return header[:4], header[12:]


def _not_open(datagram: bytes, address: Address) -> object:
    raise OSError(errno.EBADF, "the endpoint is not open")
