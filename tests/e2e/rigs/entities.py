# SPDX-License-Identifier: Apache-2.0
"""Independent peers of the streamer: a plain Zenoh session and a plain UDP socket. They share only the wire formats
with it.
"""

import itertools
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Event, Thread
from types import TracebackType
from typing import Final, Generic, NamedTuple, Self, TypeVar

import zenoh
from someip.header import IncompleteReadError, ParseError, SOMEIPHeader

from tests.e2e.rigs import wire
from tests.e2e.rigs.wire import Attributes, Id, Uri
from tests.waiting import poll_interval_s

T = TypeVar("T")

DEADLINE_S: Final = 30.0
"""Deadline for every expected event; on an idle machine all events take milliseconds."""

STALL_GAP_S: Final = 0.025
"""A longer gap between events of a 100 Hz publisher shows a delay by the machine, not by a limit."""

USUBSCRIPTION: Final = Uri("hpc.vin1", 0, 3)
SUBSCRIPTION_CHANGE: Final = 0x8000
"""The resource of topic SubscriptionChange."""

_MAX_DATAGRAM = 65_536


class Inbox(Generic[T]):
    """Received items in order, filled by the receiving thread and awaited by the test."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._items: list[T] = []
        self._changed = Condition()

    def append(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def items(self, match: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Current items that match."""
        with self._changed:
            return [item for item in self._items if match(item)]

    def wait_count(
        self, match: Callable[[T], bool] = lambda _: True, count: int = 1, within: float = DEADLINE_S
    ) -> list[T]:
        """Wait until at least `count` items match, and return all that do. AssertionError after `within` seconds."""
        matched: list[T] = []
        seen = 0
        until = time.monotonic() + within
        with self._changed:
            while True:
                matched += [item for item in self._items[seen:] if match(item)]
                seen = len(self._items)
                if len(matched) >= count:
                    return matched
                left = until - time.monotonic()
                if left <= 0:
                    tail = "\n  ".join(str(item) for item in self._items[-10:])
                    raise AssertionError(
                        f"{self._owner}: {len(matched)} of {count} within {within} s; last of {seen}:\n  {tail}"
                    )
                self._changed.wait(left)

    def wait_one(self, match: Callable[[T], bool] = lambda _: True, within: float = DEADLINE_S) -> T:
        """Wait for the first item that matches."""
        return self.wait_count(match, within=within)[0]


def eventually(value: Callable[[], T], expected: T) -> None:
    """Wait until `value()` equals `expected`; AssertionError after the deadline."""
    began = time.monotonic()
    while (found := value()) != expected and (waited_s := time.monotonic() - began) < DEADLINE_S:
        time.sleep(max(0.01, poll_interval_s(waited_s)))
    assert found == expected


# --- Zenoh --------------------------------------------------------------------------------------------------


class ZenohSample(NamedTuple):
    """A Zenoh sample; `attributes` is None for an invalid attachment."""

    key: str
    attachment: bytes
    payload: bytes
    priority: zenoh.Priority
    attributes: Attributes | None
    received_at: float

    @property
    def is_event(self) -> bool:
        return self.attributes is not None and self.attributes.type == wire.PUBLISH

    @property
    def head(self) -> Attributes:
        """The attributes of a sample that has some."""
        assert self.attributes is not None, f"attachment {self.attachment.hex()} of {self.key}"
        return self.attributes

    @property
    def status(self) -> wire.Status:
        return wire.Status.decode(self.payload)


def _decode_sample(sample: zenoh.Sample) -> ZenohSample:
    attachment = b"" if sample.attachment is None else sample.attachment.to_bytes()
    attributes = None
    if attachment[:1] == b"\x01":
        try:
            attributes = Attributes.decode(attachment[1:])
        except ValueError:
            attributes = None  # stays None, and a test that reads the attributes fails
    return ZenohSample(
        str(sample.key_expr),
        attachment,
        sample.payload.to_bytes(),
        sample.priority,
        attributes,
        time.monotonic(),
    )


def wait_declared(session: zenoh.Session) -> None:
    """Wait until the peer of a session has received all its declarations; until then it sends nothing.

    A declaration has no response. A query has one, even without any reply, and follows the declarations in order.
    """
    assert list(session.get("unknown/replies", timeout=DEADLINE_S)) == []


def _mutual_tls(certificate: Path) -> dict[str, object]:
    key = str(certificate.with_suffix(".key"))
    return {
        "root_ca_certificate": str(certificate.with_name("ca.pem")),
        "listen_certificate": str(certificate),
        "listen_private_key": key,
        "connect_certificate": str(certificate),
        "connect_private_key": key,
        "enable_mtls": True,
    }


class ZenohEntity:
    """One uEntity with its own Zenoh session, a client of the listener at `port`.

    It receives the messages with a key that matches `listen_to`: all, unless a test needs a closer filter.
    """

    _numbers = itertools.count(0x10A0)

    def __init__(
        self,
        port: int,
        authority: str,
        ue_id: int | None = None,
        *,
        listen_to: str = "up/**",
        host: str = "127.0.0.1",
        certificate: Path | None = None,
    ) -> None:
        """With `certificate`, a PEM file next to its key and `ca.pem`: over mutual TLS."""
        self.address = Uri(authority, next(self._numbers) if ue_id is None else ue_id, 1)
        self.inbox: Inbox[ZenohSample] = Inbox(f"zenoh {self.address}")
        config = zenoh.Config()
        config.insert_json5("mode", '"client"')
        protocol = "tcp" if certificate is None else "tls"
        config.insert_json5("connect/endpoints", json.dumps([f"{protocol}/{host}:{port}"]))
        config.insert_json5("scouting/multicast/enabled", "false")
        if certificate is not None:
            config.insert_json5("transport/link/tls", json.dumps(_mutual_tls(certificate)))
        self._certificate = certificate
        self.session = zenoh.open(config)
        self.listen(listen_to)

    def listen(self, key: str) -> "zenoh.Subscriber[None]":
        """Receive the messages with a matching key."""
        subscriber = self.session.declare_subscriber(
            key,
            lambda sample: self.inbox.append(_decode_sample(sample)),
            allowed_origin=zenoh.Locality.REMOTE,
        )
        if self._certificate is None:  # access control may drop the query
            wait_declared(self.session)
        return subscriber

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.close()  # type: ignore[no-untyped-call]

    # --- sending --------------------------------------------------------------------------------------------

    def put_raw(self, key: str, attachment: bytes | None, payload: bytes = b"") -> None:
        """Put any bytes."""
        self.session.put(
            key,
            payload,
            attachment=attachment,
            priority=zenoh.Priority.INTERACTIVE_LOW,
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    def send_message(self, attributes: Attributes, payload: bytes = b"") -> Id:
        """Send a message under its key. Returns its id."""
        self.put_raw(attributes.key, attributes.attachment, payload)
        return attributes.id

    def publish(self, topic: Uri, payload: bytes = b"") -> Id:
        return self.send_message(Attributes(wire.new_id(), wire.PUBLISH, topic, priority=wire.CS1), payload)

    def send_request(
        self,
        method: Uri,
        payload: bytes = b"",
        *,
        ttl: int = 5000,
        priority: int = wire.CS4,
        payload_format: int = wire.PROTOBUF,
    ) -> Id:
        """Send a request without waiting. Returns its id."""
        return self.send_message(
            Attributes(
                wire.new_id(),
                wire.REQUEST,
                self.address,
                method,
                priority=priority,
                ttl=ttl,
                payload_format=payload_format,
            ),
            payload,
        )

    def respond(self, request: ZenohSample, payload: bytes = b"", *, commstatus: int | None = None) -> Id:
        """Respond to a received request. Returns the id of the response."""
        head = request.head
        assert head.sink is not None
        return self.send_message(
            Attributes(
                wire.new_id(),
                wire.RESPONSE,
                head.sink,
                head.source,
                priority=head.priority,
                ttl=head.ttl,
                commstatus=commstatus,
                reqid=head.id,
            ),
            payload,
        )

    # --- receiving ------------------------------------------------------------------------------------------

    def wait_response(self, request: Id, within: float = DEADLINE_S) -> ZenohSample:
        """Wait for the response to a request."""
        return self.inbox.wait_one(
            lambda s: s.attributes is not None and s.attributes.reqid == request, within
        )

    def responses(self, request: Id) -> list[ZenohSample]:
        """Current responses to a request."""
        return self.inbox.items(lambda s: s.attributes is not None and s.attributes.reqid == request)

    def events(self, topic: Uri) -> list[ZenohSample]:
        """Current publications on a topic."""
        return self.inbox.items(_is_event_on(topic))

    def wait_events(self, topic: Uri, count: int = 1, within: float = DEADLINE_S) -> list[ZenohSample]:
        """Wait for this number of publications on a topic, and return all."""
        return self.inbox.wait_count(_is_event_on(topic), count, within)

    # --- both -----------------------------------------------------------------------------------------------

    def call(
        self, method: Uri, payload: bytes = b"", *, ttl: int = 5000, payload_format: int = wire.PROTOBUF
    ) -> ZenohSample:
        """Send a request and wait for its response, of any status."""
        return self.wait_response(self.send_request(method, payload, ttl=ttl, payload_format=payload_format))

    def subscribe(
        self, topic: Uri, *, max_frequency: float | None = None, sample_period_ms: int | None = None
    ) -> None:
        """Subscribe, check the result, and wait for the notification, so that nothing is pending."""
        request = wire.subscription_request(
            topic, max_frequency=max_frequency, sample_period_ms=sample_period_ms
        )
        answer = self.call(USUBSCRIPTION.at(wire.SUBSCRIBE), request)
        assert answer.head.commstatus in {None, wire.OK}, answer.status
        assert wire.SubscriptionResponse.decode(answer.payload) == (wire.SUBSCRIBED, topic)
        eventually(lambda: self._notified_state(topic), wire.SUBSCRIBED)

    def unsubscribe(self, topic: Uri) -> None:
        """As `subscribe`."""
        answer = self.call(USUBSCRIPTION.at(wire.UNSUBSCRIBE), wire.topic_request(topic))
        assert answer.head.commstatus in {None, wire.OK}, answer.status
        eventually(lambda: self._notified_state(topic), wire.UNSUBSCRIBED)

    def _notified_state(self, topic: Uri) -> int:
        """State of the subscription by the last Update; every change sends exactly one."""
        head = (wire.NOTIFICATION, USUBSCRIPTION.at(SUBSCRIPTION_CHANGE), self.address)
        about = wire.topic_request(topic)  # an Update starts with it
        updates = self.inbox.items(
            lambda s: (
                s.attributes is not None
                and (s.head.type, s.head.source, s.head.sink) == head
                and s.payload.startswith(about)
            )
        )
        if not updates:
            return wire.UNSUBSCRIBED
        status = wire.message_in(wire.fields(updates[-1].payload), 3) or b""
        return wire.number_in(wire.fields(status), 1) or wire.UNSUBSCRIBED


def _is_event_on(topic: Uri) -> Callable[[ZenohSample], bool]:
    return lambda s: s.attributes is not None and s.is_event and s.attributes.source == topic


# --- SOME/IP ------------------------------------------------------------------------------------------------


class SomeipFrame(NamedTuple):
    """A datagram, as the library `someip` decodes it; `error` if it cannot."""

    raw: bytes
    sender: tuple[str, int]
    message: SOMEIPHeader | None
    error: str
    received_at: float

    @property
    def head(self) -> SOMEIPHeader:
        """The message of a valid frame."""
        assert self.message is not None, f"{self.raw.hex()} from {self.sender}: {self.error}"
        return self.message


def _frames(datagram: bytes, sender: tuple[str, int]) -> list[SomeipFrame]:
    frames: list[SomeipFrame] = []
    at, rest = time.monotonic(), datagram
    while rest:
        try:
            message, behind = SOMEIPHeader.parse(rest)
        except (ParseError, IncompleteReadError) as error:
            return [*frames, SomeipFrame(rest, sender, None, f"{type(error).__name__}: {error}", at)]
        frames.append(SomeipFrame(rest[: len(rest) - len(behind)], sender, message, "", at))
        rest = behind
    return frames


class SomeipNode:
    """A UDP socket on loopback that stores its datagrams; `answer` returns the response to a request, if any."""

    def __init__(
        self, port: int = 0, host: str = "127.0.0.1", responder: Callable[[SOMEIPHeader], bytes] | None = None
    ) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, port))
        self._socket.settimeout(0.1)
        self.address: tuple[str, int] = self._socket.getsockname()
        self.inbox: Inbox[SomeipFrame] = Inbox(f"someip {self.address}")
        self._responder = responder
        self._closing = Event()
        self._thread = Thread(target=self._receive, name=f"someip {self.address}", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while not self._closing.is_set():
            try:
                datagram, sender = self._socket.recvfrom(_MAX_DATAGRAM)
            except TimeoutError:
                continue
            for frame in _frames(datagram, sender):
                self.inbox.append(frame)
                request = frame.message
                if self._responder and request and request.message_type.value == wire.SOMEIP_REQUEST:
                    reply = self._responder(request)
                    if reply:
                        self._socket.sendto(reply, sender)

    def send_to_port(self, datagram: bytes, port: int) -> None:
        self.send_to(datagram, ("127.0.0.1", port))

    def send_to(self, datagram: bytes, address: tuple[str, int]) -> None:
        self._socket.sendto(datagram, address)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(DEADLINE_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


ECHO: Final = 0x0001
"""Method of the ECU: responds with the payload of the request."""
FAIL: Final = 0x0002
"""Method of the ECU: responds with ERROR, the first byte of the payload as return code, and the rest as payload."""
FAIL_AS_RESPONSE: Final = 0x0003
"""Method of the ECU: responds with RESPONSE and the first byte of the payload as return code."""
SILENT: Final = 0x0004
"""Method of the ECU: does not respond."""


def ecu_response(request: SOMEIPHeader) -> bytes:
    """Response of the test ECU to a request."""
    match request.method_id:
        case 0x0001:
            return reply(request, payload=request.payload)
        case 0x0002:
            code, payload = request.payload[0], request.payload[1:]
            return reply(request, wire.SOMEIP_ERROR, payload=payload, return_code=code)
        case 0x0003:
            return reply(request, return_code=request.payload[0])
        case 0x0004:
            return b""
        case _:
            return reply(request, wire.SOMEIP_ERROR, return_code=wire.E_UNKNOWN_METHOD)


def reply(
    request: SOMEIPHeader,
    message_type: int = wire.SOMEIP_RESPONSE,
    *,
    payload: bytes = b"",
    return_code: int = wire.E_OK,
) -> bytes:
    """A response with the ids of its request."""
    return wire.someip(
        request.service_id,
        request.method_id,
        message_type,
        payload,
        client=request.client_id,
        session=request.session_id,
        interface_version=request.interface_version,
        return_code=return_code,
    )


class Metronome:
    """Calls `beat` `hz` times per second until stopped. A late call does not shift the next ones, unless it is very
    late.
    """

    def __init__(self, hz: float, beat: Callable[[int], None]) -> None:
        self.beats = 0
        self._period = 1 / hz
        self._beat = beat
        self._stopped = Event()
        self._thread = Thread(target=self._run, name=f"metronome {hz} Hz", daemon=True)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            self._beat(self.beats)
            self.beats += 1
            # After a long stall, a burst of all missed beats would be no steady rate.
            due = max(due + self._period, time.monotonic() - STALL_GAP_S)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(DEADLINE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
