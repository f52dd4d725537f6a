# SPDX-License-Identifier: Apache-2.0
"""A transport inside one process. A user's test meets a streamer on it without sockets, threads or waiting:

    network = LocalNetwork.named("bench")            # the streamer's config: transport = "local", network = "bench"
    app = LocalTransport(network, "app.vin1")
    app.open()
    app.register_listener(ANY, None, print)
    app.send(publish(ids.next(), topic, b"21.5"))

A send calls the listeners of everybody else on the network before it returns, on the sender's thread.
"""

import logging
from collections.abc import Mapping
from threading import Lock
from typing import ClassVar, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from ustreamer.core.routing.sublist import Sublist
from ustreamer.hooks import EndpointContext, EndpointTransport
from ustreamer.transports.local.config import LocalEndpoint
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority, check_filters

log = logging.getLogger("ustreamer.local")

MAX_ATTACHMENTS: Final = 64
MAX_LISTENERS: Final = 256  # of one attachment


class LocalNetwork:
    """A multicast domain: what one attachment sends reaches all others, at most `max_attachments` of them."""

    _named: ClassVar["WeakValueDictionary[str, LocalNetwork]"] = WeakValueDictionary()
    _named_lock: ClassVar[Lock] = Lock()

    def __init__(self, name: str = "", max_attachments: int = MAX_ATTACHMENTS) -> None:
        self.name = name
        self._max_attachments = max_attachments
        self._attached: tuple[LocalTransport, ...] = ()
        self._lock = Lock()

    @classmethod
    def named(cls, name: str) -> "LocalNetwork":
        """The network of this name, made at the first asking and forgotten when nobody holds it any more."""
        with cls._named_lock:
            network = cls._named.get(name)
            if network is None:
                network = cls._named[name] = cls(name)
            return network

    @property
    def attached(self) -> "tuple[LocalTransport, ...]":
        """Who is open on this network at the moment, in order of opening."""
        return self._attached

    def _attach(self, transport: "LocalTransport") -> None:
        with self._lock:
            if len(self._attached) >= self._max_attachments:
                raise UStatusError(
                    UCode.UNAVAILABLE, f"{self!r}: {self._max_attachments} attachments are all it takes"
                )
            self._attached = (*self._attached, transport)

    def _detach(self, transport: "LocalTransport") -> None:
        with self._lock:
            self._attached = tuple(each for each in self._attached if each is not transport)

    def __repr__(self) -> str:
        return f"<LocalNetwork {self.name!r}: {len(self._attached)} attached>"


class _Registration(NamedTuple):
    source: UUri
    sink: UUri | None
    listener: Listener

    def matches_sink(self, attributes: UAttributes) -> bool:
        """Whether the sink fits; that the source does is known from the sublist."""
        if attributes.type is UMessageType.PUBLISH or self.sink is None:
            return attributes.type is UMessageType.PUBLISH and self.sink is None
        return attributes.sink is not None and self.sink.matches(attributes.sink)


class LocalTransport(EndpointTransport):
    """One attachment to a `LocalNetwork`, for the entities of `authority`.

    `send` delivers before it returns, so a test needs no waiting. Listeners run on the thread of whoever sends; what
    one of them raises is logged (once per kind), counted in `statistics()` and kept from the sender.
    """

    def __init__(
        self,
        network: LocalNetwork,
        authority: str,
        max_listeners: int = MAX_LISTENERS,
        *,
        refuses_requests_without_listener: bool = False,
    ) -> None:
        """`refuses_requests_without_listener`: `send` raises UNIMPLEMENTED for a Request that no listener on the network hears.

        For a network on which everybody who could answer is known, as on the streamer's own.
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
            raise self._unavailable("was closed; make a new one")
        if self._state == "new":
            self.network._attach(self)  # noqa: SLF001 - the two classes of this module are one thing
            self._state = "open"

    def stop_receiving(self) -> None:
        if self._state == "open":
            self._state = "sending"

    def close(self) -> None:
        self._state = "closed"
        self.network._detach(self)  # noqa: SLF001 - as above

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        """Call every matching listener of the other attachments. Raises as `UTransport.send`."""
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
        """The message with our authority where it names none, as what is local here is not local there.

        A publication goes without the sink that a streamer may have put in (X-22), as on Zenoh.
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
        """Call each listener once, however many of its filters match; whether there was one."""
        if self._state != "open":
            return False
        attributes = message.attributes
        with self._lock:
            matching = [
                each for each in self._by_source.match(attributes.source) if each.matches_sink(attributes)
            ]
            self._counts["received"] += bool(matching)
        called: set[Listener] = set()
        # Without the lock: a listener may send, register and unregister, here and on the other side.
        for registration in matching:
            if registration.listener not in called and registration in self._registrations:
                called.add(registration.listener)
                self._call_listener(registration.listener, message)
        return bool(called)

    def _call_listener(self, listener: Listener, message: UMessage) -> None:
        try:
            listener(message)
        # Foreign code on the sender's thread, and not the sender's fault: said once, always counted.
        except Exception as error:
            with self._lock:
                self._counts["listener_errors"] += 1
                first = type(error) not in self._reported
                self._reported.add(type(error))
            if first:
                extra = {"authority": self.authority, "message_id": str(message.id)}
                log.exception("local.listener_failed", extra=extra)

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """`sent`, `received` (messages that some listener wanted) and `listener_errors`; nothing here is unreadable."""
        with self._lock:
            return dict(self._counts)

    def _unavailable(self, what: str) -> UStatusError:
        return UStatusError(UCode.UNAVAILABLE, f"{self!r} {what}")

    def __repr__(self) -> str:
        return (
            f"<LocalTransport {self.authority!r} on {self.network.name!r}: "
            f"{self._state}, {len(self._registrations)} listeners>"
        )


def make_local_transport(config: LocalEndpoint, context: EndpointContext) -> LocalTransport:
    """The streamer's own attachment to the network that its configuration names."""
    return LocalTransport(LocalNetwork.named(config.network), context.authority)
