# SPDX-License-Identifier: Apache-2.0
"""A transport inside one process. A test can connect to a streamer without sockets, threads or waiting:

    network = LocalNetwork.named("bench")            # the streamer's config: transport = "local", network = "bench"
    app = LocalTransport(network, "app.vin1")
    app.open()
    app.register_listener(ANY, None, print)
    app.send(publish(ids.next(), topic, b"21.5"))

A send calls the listeners of all other attachments before it returns, on the thread of the sender.
"""

import logging
from collections.abc import Callable, Mapping
from threading import Lock
from typing import ClassVar, Final, Literal
from weakref import WeakValueDictionary

import msgspec

from ustreamer.core.routing.sublist import Sublist
from ustreamer.transport_port import EndpointContext, EndpointTransport
from ustreamer.transports.local.config import LocalEndpoint
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority, check_filters

log = logging.getLogger("ustreamer.local")

MAX_ATTACHMENTS: Final = 64
MAX_LISTENERS: Final = 256  # of one attachment


class LocalNetwork:
    """A multicast domain: a message of one attachment reaches all others. At most `max_attachments` can attach."""

    _named: ClassVar["WeakValueDictionary[str, LocalNetwork]"] = WeakValueDictionary()
    _named_lock: ClassVar[Lock] = Lock()

    def __init__(self, name: str = "", max_attachments: int = MAX_ATTACHMENTS) -> None:
        self.name = name
        self._max_attachments = max_attachments
        self._attached: tuple[LocalTransport, ...] = ()
        self._lock = Lock()

    @classmethod
    def named(cls, name: str) -> "LocalNetwork":
        """The network of this name, created by the first call and dropped with its last reference."""
        with cls._named_lock:
            network = cls._named.get(name)
            if network is None:
                network = cls._named[name] = cls(name)
            return network

    @property
    def attached(self) -> "tuple[LocalTransport, ...]":
        """The open attachments in order of opening."""
        return self._attached

    def _attach(self, transport: "LocalTransport") -> None:
        with self._lock:
            if len(self._attached) >= self._max_attachments:
                raise UStatusError(
                    UCode.UNAVAILABLE, f"{self!r}: {self._max_attachments} attachments are the limit"
                )
            self._attached = (*self._attached, transport)

    def _detach(self, transport: "LocalTransport") -> None:
        with self._lock:
            self._attached = tuple(each for each in self._attached if each is not transport)

    def __repr__(self) -> str:
        return f"<LocalNetwork {self.name!r}: {len(self._attached)} attached>"


class _Registration(msgspec.Struct, frozen=True):
    source: UUri
    sink: UUri | None
    listener: Listener


class LocalTransport(EndpointTransport):
    """One attachment to a `LocalNetwork`, for the entities of `authority`.

    `send` delivers before it returns, so a test needs no waiting. Listeners run on the thread of the sender. An
    exception of a listener is logged once per type, counted in `statistics()`, and not raised to the sender.
    """

    def __init__(
        self,
        network: LocalNetwork,
        authority: str,
        max_listeners: int = MAX_LISTENERS,
        *,
        refuses_requests_without_listener: bool = False,
    ) -> None:
        """With `refuses_requests_without_listener`, a Request without listener makes `send` raise UNIMPLEMENTED.

        For a network with a complete set of services, such as the streamer's internal one.
        """
        if authority == ANY_AUTHORITY:
            raise invalid_argument("authority '*' of a LocalTransport: expected the name of one authority")
        check_authority(authority, authority)
        self.network = network
        self.authority = authority
        self._max_listeners = max_listeners
        self._refuses_requests_without_listener = refuses_requests_without_listener
        self._state: Literal["new", "open", "sending", "closed"] = "new"
        self._lock = Lock()
        self._registrations: dict[_Registration, None] = {}
        self._by_source: Sublist[_Registration] = Sublist()
        self._counts = {"received": 0, "sent": 0, "listener_errors": 0}
        self._reported: set[type[Exception]] = set()

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Attach to the network. Raises UStatusError(UNAVAILABLE) if the network is full or this was closed before."""
        if self._state == "closed":
            raise self._unavailable("was closed; create a new one")
        if self._state == "new":
            self.network._attach(self)  # noqa: SLF001 - network and attachment are one unit
            self._state = "open"

    def call_when_read(self, action: Callable[[], None]) -> None:
        action()

    def stop_receiving(self) -> None:
        if self._state == "open":
            self._state = "sending"

    def close(self) -> None:
        self._state = "closed"
        self.network._detach(self)  # noqa: SLF001 - as above

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        """Call every matching listener of the other attachments. Raises like `UTransport.send`."""
        message.check(strict=False)
        if self._state not in ("open", "sending"):
            raise self._unavailable("is not open")
        arriving = self._with_own_authority(message)
        with self._lock:
            self._counts["sent"] += 1
        has_listener = False
        for other in self.network._attached:  # noqa: SLF001 - the two classes of this module are one thing
            if other is not self:
                has_listener |= other._receive(arriving)  # noqa: SLF001 - another instance of this class
        if (
            self._refuses_requests_without_listener
            and not has_listener
            and message.attributes.type is UMessageType.REQUEST
        ):
            raise UStatusError(
                UCode.UNIMPLEMENTED, f"no service listens for calls of {message.attributes.sink}"
            )

    def _with_own_authority(self, message: UMessage) -> UMessage:
        """The message with our authority where it has none: a local address is not local at the receiver.

        The sink that a streamer may have added to a publication is removed (X-22), as on Zenoh.
        """
        attributes = message.attributes
        source, sink = attributes.source, attributes.sink
        if attributes.type is UMessageType.PUBLISH:
            sink = None
        if source.authority_name and sink is attributes.sink and (sink is None or sink.authority_name):
            return message
        source, sink = source.with_authority(self.authority), sink and sink.with_authority(self.authority)
        return UMessage(
            message.id, msgspec.structs.replace(attributes, source=source, sink=sink), message.payload
        )

    # --- receiving ----------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        registration = self._registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration in self._registrations:
                return
            if len(self._registrations) >= self._max_listeners:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED, f"{self!r}: {self._max_listeners} listeners are the limit"
                )
            self._registrations[registration] = None
            self._by_source.insert(registration.source, registration)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        registration = self._registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration not in self._registrations:
                raise UStatusError(
                    UCode.NOT_FOUND, f"{self!r}: no such listener for {source_filter}, {sink_filter}"
                )
            del self._registrations[registration]
            self._by_source.remove(registration.source, registration)

    def _registration(self, source: UUri, sink: UUri | None, listener: Listener) -> _Registration:
        check_filters(source, sink)
        sink = sink and sink.with_authority(self.authority)
        return _Registration(source.with_authority(self.authority), sink, listener)

    def _receive(self, message: UMessage) -> bool:
        """Call each listener once, however many of its filters match; False if no listener matches."""
        if self._state != "open":
            return False
        attributes = message.attributes
        sink = None if attributes.type is UMessageType.PUBLISH else attributes.sink
        with self._lock:
            candidates = self._by_source.match(attributes.source)
        called: set[Listener] = set()
        # Without the lock: a listener may send, register and unregister, on this and on other attachments.
        for registration in candidates:
            of_sink, listener = registration.sink, registration.listener
            if of_sink is None or sink is None:
                if of_sink is not sink:
                    continue
            elif not of_sink.matches(sink):
                continue
            if listener not in called and registration in self._registrations:
                called.add(listener)
                try:
                    listener(message)
                except Exception as error:  # noqa: BLE001  # foreign code on the thread of the sender
                    self._on_listener_error(error, message)
        with self._lock:
            self._counts["received"] += bool(called)
        return bool(called)

    def _on_listener_error(self, error: Exception, message: UMessage) -> None:
        """Count an error of a listener; log it once per type."""
        with self._lock:
            self._counts["listener_errors"] += 1
            first = type(error) not in self._reported
            self._reported.add(type(error))
        if first:
            extra = {"authority": self.authority, "message_id": str(message.id)}
            log.error("local.listener_failed", exc_info=error, extra=extra)

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """`sent`, `received` (messages with a matching listener) and `listener_errors`. All messages are readable."""
        return dict(self._counts)  # one atomic step, without the lock that every message takes

    def _unavailable(self, reason: str) -> UStatusError:
        return UStatusError(UCode.UNAVAILABLE, f"{self!r} {reason}")

    def __repr__(self) -> str:
        return (
            f"<LocalTransport {self.authority!r} on {self.network.name!r}: "
            f"{self._state}, {len(self._registrations)} listeners>"
        )


def make_local_transport(config: LocalEndpoint, context: EndpointContext) -> LocalTransport:
    """The streamer's attachment to the network in its configuration."""
    return LocalTransport(LocalNetwork.named(config.network), context.authority)
