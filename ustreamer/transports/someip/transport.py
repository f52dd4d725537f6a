# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP endpoint: one UDP socket, one thread that receives, and senders on whatever thread calls.

What a message means and what becomes of it is decided in `exchange`; here are the socket, the thread and the counters.
Without service discovery, all peers are those of the configuration.
"""

import errno
import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from struct import Struct
from typing import ClassVar, Final

from ustreamer.core.chain import Transmit
from ustreamer.core.subscriptions import Subscription
from ustreamer.hookspecs import EndpointContext, EndpointTransport, RouteUnavailable
from ustreamer.transports.someip.codec import (
    HEADER_LENGTH,
    MAX_SESSION,
    MIN_LENGTH,
    MalformedReason,
    MessageType,
    ReturnCode,
    pack_header,
    split,
)
from ustreamer.transports.someip.config import NO_DISCOVERY, Address, SomeipEndpoint
from ustreamer.transports.someip.exchange import Exchange
from ustreamer.transports.someip.listeners import Listeners
from ustreamer.transports.someip.mapping import MAX_PAYLOAD, EventReceiver, Refusal, WireEvent
from ustreamer.transports.someip.tp import TpReason
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.someip")

_ROUND: Final = (
    64  # datagrams between two looks at deadlines and at being stopped: 0.2 ms plus the listeners'
)
_LARGEST: Final = (
    65_535  # costs as much as 2 048: the buffer comes from the heap, and what is not used goes back
)
_JOIN_S: Final = 2.0
_NS_PER_MS: Final = 1_000_000
_NEVER_NS: Final = 1 << 63

_EVENT_HEADER: Final = Struct(">4sIHH4s")  # message id, length, client, session, versions to return code
_NO_CLIENT: Final = 0  # events do not belong to a client (SIP-7)

_AWAY: Final = {errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNREFUSED}
"""One receiver cannot be reached at present; others may."""
# UNAVAILABLE: the kernel's queue is full, or the link is away at present. EPERM is a firewall's answer.
_CODES: Final = {
    errno.EAGAIN: UCode.UNAVAILABLE,
    errno.ENOBUFS: UCode.UNAVAILABLE,
    errno.ENOMEM: UCode.UNAVAILABLE,
    errno.ENETDOWN: UCode.UNAVAILABLE,
    errno.EBADF: UCode.UNAVAILABLE,
    errno.EPERM: UCode.PERMISSION_DENIED,
    errno.EACCES: UCode.PERMISSION_DENIED,
}


class SomeipTransport(EndpointTransport):
    """UTransport on SOME/IP over UDP; every receiver is a delivery target of its own, and sending never waits."""

    unicast: ClassVar[bool] = True
    inline: ClassVar[bool] = True

    def __init__(self, config: SomeipEndpoint, context: EndpointContext) -> None:
        self._config = config
        self._name = context.name
        self._monotonic_ns = context.clock.monotonic_ns
        self._exchange = Exchange(config, context.authority, context.clock)
        self._listeners = Listeners(context.authority)
        self._receivers = {each.subscriber: each for each in self._exchange.services.receivers}
        self._transmitters = {each.subscriber: self._event_sender(each) for each in self._receivers.values()}
        self._socket: socket.socket | None = None
        self._sendto: Callable[[bytes, Address], object] = _not_open
        self._thread: threading.Thread | None = None
        self._life = threading.Lock()  # no wake between the closing of its file descriptor and the forgetting
        self._wake_fd = -1
        self._stopping = self._closed = False
        self._sleeping_until_ns = 0  # what the receiving thread will wake at by itself; 0 while it is awake
        self._barriers: deque[threading.Event] = deque()
        self._reported: set[type[Exception]] = set()
        # Not locked: under CPython's GIL no other thread gets in between the reading and the writing of a `+= 1`.
        self._sent = 0
        # Counters of the receiving thread.
        self._refused = dict.fromkeys(
            [*map(str, MalformedReason), *map(str, Refusal), *map(str, TpReason)], 0
        )
        self._datagrams = self._received = self._unheard = self._listener_errors = self._answers_lost = 0

    # --- life -----------------------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        if self._config.sd is not False:
            return [NO_DISCOVERY]
        try:
            _bound((self._config.bind, self._config.port)).close()
        except UStatusError as error:
            return [f"port: {error.message}"]
        return []

    def open(self) -> None:
        """As the port says, once; UNIMPLEMENTED if the configuration asks for service discovery."""
        if self._config.sd is not False:
            raise UStatusError(UCode.UNIMPLEMENTED, f"endpoint {self._name!r}: {NO_DISCOVERY}")
        if self._closed:
            raise UStatusError(UCode.UNAVAILABLE, f"endpoint {self._name!r} was closed; make a new one")
        if self._socket is not None:
            return
        opened = _bound((self._config.bind, self._config.port))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer)
        self._socket = opened
        self._sendto = opened.sendto
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=self._receive, args=(opened,), name=f"someip {self._name}", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> Address:
        """Our address on the network while open: the bound port where the configured one is 0."""
        if self._socket is None:
            return (self._config.bind, self._config.port)
        host, port = self._socket.getsockname()
        return (host, port)

    def stop_receiving(self) -> None:
        """As the port says. Callers of calls that are open are told UNAVAILABLE: their answers are not read any more."""
        self._stopping = True
        thread = self._thread
        if thread is not None:
            self._wake()
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)
        for response in self._exchange.give_up_calls():
            self._deliver(response)

    def close(self) -> None:
        self._closed = True
        self.stop_receiving()
        if self._socket is not None:
            for datagram, address in self._exchange.give_up_requests():
                self._answer_quietly(datagram, address)
        self._sendto = _not_open
        with self._life:
            if self._socket is not None:
                self._socket.close()
                os.close(self._wake_fd)
            self._socket, self._wake_fd, self._thread = None, -1, None

    # --- listeners ------------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.register(source_filter, sink_filter, listener)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.unregister(source_filter, sink_filter, listener)
        self._wait_until_calls_are_over()

    def _wait_until_calls_are_over(self) -> None:
        """Wait for the listener calls that had begun; at once on the receiving thread, inside such a call."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        passed = threading.Event()
        self._barriers.append(passed)
        self._wake()
        while thread.is_alive() and not passed.wait(0.05):
            pass  # the thread may have ended between the two questions

    def _wake(self) -> None:
        with self._life:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    # --- receiving ------------------------------------------------------------------------------------------------------

    def _receive(self, opened: socket.socket) -> None:
        poller = select.poll()
        poller.register(opened, select.POLLIN)
        poller.register(self._wake_fd, select.POLLIN)
        while not self._stopping:
            self._expire()
            if not self._drain(opened):
                self._sleep(poller)
            self._pass_barriers()

    def _sleep(self, poller: select.poll) -> None:
        """Wait for a datagram, for the next deadline, or to be woken."""
        # In this order, so that a call opened meanwhile either is seen here or sees that it has to wake us.
        self._sleeping_until_ns = _NEVER_NS
        deadline_ns = self._exchange.next_deadline_ns
        timeout_ms = None
        if deadline_ns is not None:
            self._sleeping_until_ns = deadline_ns
            timeout_ms = max(0, -(-(deadline_ns - self._monotonic_ns()) // _NS_PER_MS))  # up: not before it
        ready = poller.poll(timeout_ms)
        self._sleeping_until_ns = 0
        if any(fd == self._wake_fd for fd, _ in ready):
            os.eventfd_read(self._wake_fd)

    def _drain(self, opened: socket.socket) -> bool:
        """Take in what has arrived, one round at most; whether there may be more."""
        receive, event_in = opened.recvfrom, self._exchange.event
        for done in range(_ROUND):
            try:
                datagram, address = receive(_LARGEST)
            except BlockingIOError:
                self._datagrams += done
                return False
            event = event_in(datagram, address[0])
            if event is not None:
                self._deliver(event)
            else:
                self._take(datagram, address)
        self._datagrams += _ROUND
        return True

    def _take(self, datagram: bytes, address: Address) -> None:
        messages, malformed = split(datagram)
        for error in malformed:
            self._count_refusal(error.reason, address, error)
        incoming = self._exchange.incoming
        for message in messages:
            outcome = incoming(message, address)
            if isinstance(outcome, UMessage):
                self._deliver(outcome)
                continue
            if outcome is None:
                continue
            self._count_refusal(outcome.reason, address, message)
            if outcome.answer is not None:
                self._answer_quietly(outcome.answer, address)

    def _deliver(self, message: UMessage) -> None:
        listeners = self._listeners.hearing(message.attributes)
        if listeners:
            self._received += 1
        else:
            self._unheard += 1
        for listener in listeners:
            try:
                listener(message)
            except Exception as error:  # noqa: BLE001  # foreign code: reported, and the next datagram is served
                self._listener_failed(error, message)

    def _listener_failed(self, error: Exception, message: UMessage) -> None:
        self._listener_errors += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            log.error(
                "someip.listener_failed",
                exc_info=error,
                extra={"endpoint": self._name, "message_id": str(message.id)},
            )

    def _count_refusal(self, reason: str, address: Address, what: object) -> None:
        self._refused[reason] += 1
        if self._refused[reason] == 1:  # the first shows what it is about; the others are in the counter
            log.warning(
                "someip.refused",
                extra={
                    "endpoint": self._name,
                    "reason": str(reason),
                    "sender": f"{address[0]}:{address[1]}",
                    "refused": str(what)[:500],
                },
            )

    def _expire(self) -> None:
        responses, datagrams = self._exchange.expire()
        for datagram, address in datagrams:
            self._answer_quietly(datagram, address)
        for response in responses:
            self._deliver(response)
        for each in self._exchange.expire_segments():
            self._count_refusal(each.reason, each.peer, each.detail)

    def _answer_quietly(self, datagram: bytes, address: Address) -> None:
        """Send an answer of our own. Nobody could try again: the client does, after its own timeout."""
        try:
            self._sendto(datagram, address)
        except OSError:
            self._answers_lost += 1

    def _pass_barriers(self) -> None:
        while self._barriers:
            self._barriers.popleft().set()

    # --- sending --------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        """As the port says. A Publish goes to every receiver of its topic; a Notification cannot be carried."""
        message.check(strict=False)
        kind = message.attributes.type
        if kind is UMessageType.REQUEST:
            self._send_request(message)
        elif kind is UMessageType.RESPONSE:
            self._send_response(message)
        elif kind is UMessageType.PUBLISH:
            self._send_publish(message)
        else:
            raise UStatusError(
                UCode.UNIMPLEMENTED,
                f"{kind.name} {message.id} to {message.attributes.sink}: SOME/IP has no notification to one receiver",
            )

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        """What sends events to one receiver, or (None) whatever names its own way; NOT_FOUND comes when it is used."""
        if subscriber is None:
            return self.send
        known = self._transmitters.get(subscriber)
        if known is not None:
            return known

        def refuse(message: UMessage) -> None:
            raise UStatusError(
                UCode.NOT_FOUND, f"subscriber {subscriber}: not a receiver of endpoint {self._name!r}"
            )

        return refuse

    def _event_sender(self, receiver: EventReceiver) -> Transmit:
        """What sends events to `receiver`: 0.6 us besides the system call."""
        address = receiver.address
        # A session counter of its own for each event and receiver: one that gets every tenth event sees no gaps. next()
        # of an itertools.count is atomic, so two threads never send the same number.
        events = {
            topic: (*_header_around_session(event), count()) for topic, event in receiver.events.items()
        }
        no_event = self._exchange.services.no_event

        def transmit(message: UMessage) -> None:
            event = events.get(message.attributes.source)
            if event is None:
                raise no_event(message.attributes.source)
            head, tail, sent = event
            payload = message.payload
            header = _EVENT_HEADER.pack(
                head, len(payload) + MIN_LENGTH, _NO_CLIENT, next(sent) % MAX_SESSION + 1, tail
            )
            try:
                self._sendto(header + payload, address)
            except OSError as error:
                raise _unsent(error, len(payload), address) from error
            self._sent += 1

        return transmit

    def _send_publish(self, message: UMessage) -> None:
        topic = message.attributes.source
        subscribers = [each.subscriber for each in self._receivers.values() if topic in each.events]
        if not subscribers:
            raise self._exchange.services.no_event(topic)
        for subscriber in subscribers:
            self._transmitters[subscriber](message)

    def _send_request(self, message: UMessage) -> None:
        outgoing = self._exchange.call(message)
        try:
            self._send_datagram(outgoing.datagram, outgoing.address)
        except UStatusError:
            if self._exchange.abandon(outgoing.request_id):
                raise  # to be tried again or answered; but not if we have stopped and told the caller meanwhile
        if outgoing.deadline_ns < self._sleeping_until_ns:
            self._wake()

    def _send_response(self, message: UMessage) -> None:
        answer = self._exchange.answer(message)
        if answer is not None:
            self._send_datagram(*answer)
            self._exchange.answered(message)

    def _send_datagram(self, datagram: bytes, address: Address) -> None:
        try:
            self._sendto(datagram, address)
        except OSError as error:
            raise _unsent(error, len(datagram) - HEADER_LENGTH, address) from error
        self._sent += 1

    # --- what the configuration fixes, and counters ---------------------------------------------------------------------

    def subscriptions(self) -> Sequence[Subscription]:
        """Every receiver's wish for every event of its service.

        A receiver is the subscriber //<authority>/<n << 16 | service>/<major>/0: n is 0 for the first one of the
        service, which is its `remote` where it has one, then 1, 2, ...
        """
        return [
            Subscription(topic, receiver.subscriber, receiver.period_ns)
            for receiver in self._receivers.values()
            for topic in receiver.events
        ]

    def statistics(self) -> Mapping[str, int]:
        """Counters since the start.

        `datagrams` came in; of the messages in them `received` went to a listener, which failed for `listener_errors`,
        and `unheard` matched none; `sent`; `calls_open`, `calls_expired` of ours; `requests_open`, `requests_expired` of clients;
        `unwanted_answers` to REQUEST_NO_RETURN; `answers_lost` that the kernel did not take; messages in segments that are
        `tp_open` with `tp_bytes` of memory, `tp_completed`, and `tp_duplicates` of segments.
        """
        return {
            "datagrams": self._datagrams,
            "received": self._received,
            "unheard": self._unheard,
            "sent": self._sent,
            "listener_errors": self._listener_errors,
            "answers_lost": self._answers_lost,
            **self._exchange.statistics(),
            **{f"refused_{reason}": number for reason, number in self._refused.items()},
        }


def _header_around_session(event: WireEvent) -> tuple[bytes, bytes]:
    """The parts of the event's header that are the same in every message: message id, and versions to return code."""
    header = pack_header(
        event.service,
        event.event,
        _NO_CLIENT,
        0,
        event.major,
        MessageType.NOTIFICATION,
        ReturnCode.E_OK,
        0,
    )
    return header[:4], header[12:]


def _bound(address: Address) -> socket.socket:
    """A non-blocking UDP socket at `address`, not connected to anybody.

    Unconnected, so that an ICMP "port unreachable" for one peer is not reported as the failure of a later send.
    """
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        opened.bind(address)
    except OSError as error:
        opened.close()
        host, port = address
        raise UStatusError(UCode.UNAVAILABLE, f"cannot bind UDP {host}:{port}: {error.strerror}") from error
    return opened


def _not_open(datagram: bytes, address: Address) -> object:
    raise OSError(errno.EBADF, "the endpoint is not open")


def _unsent(error: OSError, size: int, address: Address) -> UStatusError:
    """The failure of a send of `size` bytes of payload, in the words of uProtocol."""
    host, port = address
    if error.errno == errno.EMSGSIZE:
        return invalid(
            f"payload of {size} bytes for {host}:{port}: at most {MAX_PAYLOAD} fit into one datagram, "
            "and sending in segments (SOME/IP-TP) is not part of this version"
        )
    text = f"cannot send {size} bytes of payload to {host}:{port}: {error.strerror}"
    if error.errno in _AWAY:
        return RouteUnavailable(address, text)
    return UStatusError(_CODES.get(error.errno or 0, UCode.INTERNAL), text)
