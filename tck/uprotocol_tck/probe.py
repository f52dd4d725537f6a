# SPDX-License-Identifier: Apache-2.0
"""A Zenoh network seen by the kit, and uEntities on it: publish, notify, request, respond and listen."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import zenoh

from uprotocol_tck.case import CaseFailed
from uprotocol_tck.protobuf import MalformedProtobuf
from uprotocol_tck.stop import Stop
from uprotocol_tck.uprotocol import (
    ANYTHING,
    PROTOBUF,
    Attributes,
    Kind,
    Priority,
    Status,
    Uri,
    Uuid,
    new_uuid,
    zenoh_key,
)

REQUEST_TTL_MS: Final = 10_000
PAUSE_S: Final = 0.1
"""Between two attempts to open a session, and the longest wait before the end of the run is noticed."""
ZENOH_PRIORITIES: Final = {
    Priority.UNSPECIFIED: zenoh.Priority.DATA_LOW,
    Priority.CS0: zenoh.Priority.BACKGROUND,
    Priority.CS1: zenoh.Priority.DATA_LOW,
    Priority.CS2: zenoh.Priority.DATA,
    Priority.CS3: zenoh.Priority.DATA_HIGH,
    Priority.CS4: zenoh.Priority.INTERACTIVE_LOW,
    Priority.CS5: zenoh.Priority.INTERACTIVE_HIGH,
    Priority.CS6: zenoh.Priority.REAL_TIME,
}
"""The table of up-l1/zenoh.adoc."""


class Received(NamedTuple):
    """A message; `attributes` is None if the attachment has none that can be read."""

    key: str
    priority: zenoh.Priority
    attachment: bytes
    payload: bytes
    attributes: Attributes | None
    at: float
    """The monotonic clock, in seconds."""
    wall_ms: int

    @property
    def head(self) -> Attributes:
        """The attributes; the case fails if there are none."""
        if self.attributes is None:
            raise CaseFailed(f"a message with the attachment {self.attachment.hex()} on the key {self.key}")
        return self.attributes

    @property
    def status(self) -> Status:
        """The UStatus in the payload; the case fails if there is none."""
        try:
            return Status.decode(self.payload)
        except MalformedProtobuf as error:
            raise CaseFailed(f"a payload that is no UStatus ({error}): {self.payload.hex()}") from None

    def __str__(self) -> str:
        if self.attributes is None:
            return f"key {self.key}, attachment {self.attachment.hex()}"
        head = self.attributes
        code = f", {head.code_text}" if head.kind == Kind.RESPONSE else ""
        kind = Kind(head.kind).name if head.kind in {*Kind} else f"type {head.kind}"
        return f"{kind} from {head.source} to {head.sink or 'all'}{code}"


def _decoded(sample: zenoh.Sample) -> Received:
    attachment = b"" if sample.attachment is None else sample.attachment.to_bytes()
    attributes = None
    if attachment[:1] == b"\x01":
        with suppress(MalformedProtobuf):
            attributes = Attributes.decode(attachment[1:])
    return Received(
        str(sample.key_expr),
        sample.priority,
        attachment,
        sample.payload.to_bytes(),
        attributes,
        time.monotonic(),
        time.time_ns() // 1_000_000,
    )


class Inbox:
    """Received messages in order, filled by Zenoh's thread and awaited by a case."""

    def __init__(self, owner: str, stop: Stop) -> None:
        self._owner = owner
        self._stop = stop
        self._items: list[Received] = []
        self._changed = threading.Condition()

    def append(self, item: Received) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def all(self, match: Callable[[Received], bool] = lambda _: True) -> list[Received]:
        """What has come so far."""
        with self._changed:
            return [each for each in self._items if match(each)]

    def wait(
        self, match: Callable[[Received], bool], what: str, within: float, count: int = 1
    ) -> list[Received]:
        """Wait for `count` messages; the case fails after `within` seconds. Raises NotJudged at the end of the run."""
        until = time.monotonic() + within
        with self._changed:
            while True:
                found = [each for each in self._items if match(each)]
                if len(found) >= count:
                    return found
                left = until - time.monotonic()
                if left <= 0:
                    last = "; ".join(str(each) for each in self._items[-4:]) or "nothing"
                    raise CaseFailed(
                        f"{what}: {len(found)} of {count} within {within:g} s; {self._owner} received {last}"
                    )
                self._stop.check()
                self._changed.wait(min(left, PAUSE_S))


class Network:
    """One session of a Zenoh network."""

    def __init__(self, locator: str, deadline_s: float, stop: Stop | None = None) -> None:
        """Raises zenoh.ZError if no node answers at the locator. `stop` ends every wait."""
        self._locator = locator
        self.deadline_s = deadline_s
        self.stop = stop or Stop()
        self._tokens: dict[str, zenoh.LivelinessToken] = {}
        self._session = self._open()

    def _open(self) -> zenoh.Session:
        config = zenoh.Config()
        config.insert_json5("mode", '"client"')
        config.insert_json5("connect/endpoints", json.dumps([self._locator]))
        config.insert_json5("scouting/multicast/enabled", "false")
        return zenoh.open(config)

    def put(
        self,
        key: str,
        attachment: bytes | None,
        payload: bytes,
        priority: zenoh.Priority = zenoh.Priority.DATA,
    ) -> None:
        """Send any bytes."""
        self._session.put(
            key,
            payload,
            attachment=attachment,
            priority=priority,
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    def send(self, attributes: Attributes, payload: bytes = b"") -> Uuid:
        """Send a message, as up-l1/zenoh.adoc maps it. Returns its id."""
        priority = ZENOH_PRIORITIES[Priority(attributes.priority)]
        self.put(attributes.key, b"\x01" + attributes.encode(), payload, priority)
        return attributes.id

    def listen(self, source: Uri, sink: Uri | None, inbox: Inbox) -> Callable[[], object]:
        """Receive what matches the patterns. Returns the function that ends it."""
        subscriber = self._session.declare_subscriber(
            zenoh_key(source, sink),
            lambda sample: inbox.append(_decoded(sample)),
            allowed_origin=zenoh.Locality.REMOTE,
        )
        self.wait_declared()
        return subscriber.undeclare

    def wait_declared(self) -> None:
        """A query without any reply ends after the declarations before it have arrived at the next node."""
        list(self._session.get("uprotocol-tck/fence", timeout=self.deadline_s))

    def declare(self, key: str) -> None:
        """Declare a liveliness token, again whenever the session is opened again."""
        self._tokens[key] = self._session.liveliness().declare_token(key)
        self.wait_declared()

    def withdraw(self, key: str) -> None:
        """End a token; nothing for one that is not declared."""
        token = self._tokens.pop(key, None)
        if token:
            with suppress(zenoh.ZError):  # its session has ended
                token.undeclare()  # type: ignore[no-untyped-call]

    def declared(self, pattern: str) -> set[str]:
        """The keys of all tokens on the network, also of this session. Raises zenoh.ZError without a session."""
        replies = self._session.liveliness().get(pattern, timeout=self.deadline_s)
        return {str(each.ok.key_expr) for each in replies if each.ok}

    def leave(self) -> None:
        """End the session: for the subject the network is away."""
        self._session.close()  # type: ignore[no-untyped-call]

    def return_(self) -> None:
        """Open the session again; earlier listeners are gone. The subject may need some time to accept it."""
        until = time.monotonic() + self.deadline_s
        while True:
            try:
                self._session = self._open()
            except zenoh.ZError as error:
                if time.monotonic() > until:
                    raise CaseFailed(f"no session at {self._locator}: {error}") from None
                self.stop.sleep(PAUSE_S)
            else:
                break
        for key in self._tokens:
            self.declare(key)


class Entity:
    """One uEntity with an address of its own."""

    def __init__(self, network: Network, address: Uri) -> None:
        self.network = network
        self.address = address
        self.inbox = Inbox(str(address), network.stop)
        self._undeclare: list[Callable[[], object]] = []
        self._patterns: list[tuple[Uri, Uri | None]] = []
        self._receive(ANYTHING, address)

    def _receive(self, source: Uri, sink: Uri | None) -> None:
        self._patterns.append((source, sink))
        self._undeclare.append(self.network.listen(source, sink, self.inbox))

    def listen_again(self) -> None:
        """Receive the same in a new session of the network."""
        self._undeclare = [self.network.listen(source, sink, self.inbox) for source, sink in self._patterns]

    def close(self) -> None:
        for undeclare in self._undeclare:
            with suppress(zenoh.ZError):  # its session has ended
                undeclare()

    # --- sending ------------------------------------------------------------------------------------------------------

    def publish(self, topic: Uri, payload: bytes = b"", **changed: Any) -> Uuid:
        """Send a publication; `changed` are other fields of its attributes."""
        attributes = Attributes(new_uuid(), Kind.PUBLISH, topic, priority=Priority.CS1)
        return self.network.send(attributes._replace(**changed), payload)

    def notify(self, sink: Uri, payload: bytes = b"", **changed: Any) -> Uuid:
        """Send a notification from the first topic of this entity."""
        attributes = Attributes(
            new_uuid(), Kind.NOTIFICATION, self.address.at(0x8001), sink, priority=Priority.CS1
        )
        return self.network.send(attributes._replace(**changed), payload)

    def request(self, method: Uri, payload: bytes = b"", **changed: Any) -> Uuid:
        """Send a request without waiting for its response."""
        attributes = Attributes(
            new_uuid(),
            Kind.REQUEST,
            self.address,
            method,
            priority=Priority.CS4,
            ttl=REQUEST_TTL_MS,
            payload_format=PROTOBUF,
        )
        return self.network.send(attributes._replace(**changed), payload)

    def respond(self, request: Received, payload: bytes = b"", **changed: Any) -> Uuid:
        """Answer a received request."""
        head = request.head
        if head.sink is None:
            raise CaseFailed(f"a request without a sink: {request}")
        attributes = Attributes(
            new_uuid(),
            Kind.RESPONSE,
            head.sink,
            head.source,
            priority=head.priority,
            ttl=head.ttl,
            reqid=head.id,
            payload_format=PROTOBUF,
        )
        return self.network.send(attributes._replace(**changed), payload)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def listen(self, topic: Uri) -> None:
        """Receive the publications of a topic, too."""
        self._receive(topic, None)

    def serve(self, method: Uri) -> None:
        """Receive the requests of a method, too."""
        self._receive(ANYTHING, method)

    def call(self, method: Uri, payload: bytes = b"", **changed: Any) -> Received:
        """Send a request and wait for its response, of any outcome."""
        return self.wait_response(self.request(method, payload, **changed), f"the response of {method}")

    def wait_response(self, request: Uuid, what: str) -> Received:
        return self.wait(is_response_to(request), what)[0]

    def responses(self, request: Uuid) -> list[Received]:
        return self.inbox.all(is_response_to(request))

    def events(self, topic: Uri) -> list[Received]:
        """The publications of a topic so far."""
        return self.inbox.all(_is_event_of(topic))

    def wait_events(self, topic: Uri, count: int = 1) -> list[Received]:
        return self.wait(_is_event_of(topic), f"publications of {topic}", count)

    def wait(self, match: Callable[[Received], bool], what: str, count: int = 1) -> list[Received]:
        return self.inbox.wait(match, what, self.network.deadline_s, count)


def is_response_to(request: Uuid) -> Callable[[Received], bool]:
    """True for a Response to this Request."""
    return lambda each: each.attributes is not None and each.attributes.reqid == request


def has_id(id: Uuid) -> Callable[[Received], bool]:
    """True for the message with this id."""
    return lambda each: each.attributes is not None and each.attributes.id == id


def _is_event_of(topic: Uri) -> Callable[[Received], bool]:
    return lambda each: (
        each.attributes is not None
        and each.attributes.kind == Kind.PUBLISH
        and each.attributes.source == topic
    )
