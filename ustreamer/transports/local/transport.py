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

from ustreamer.core.routing.listener_table import MAX_LISTENERS, ListenerTable
from ustreamer.transport_port import EndpointContext, EndpointTransport
from ustreamer.transports.local.config import LocalEndpoint
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority

log = logging.getLogger("ustreamer.local")

MAX_ATTACHMENTS: Final = 64


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
        self._refuses_requests_without_listener = refuses_requests_without_listener
        self._state: Literal["new", "open", "sending", "closed"] = "new"
        self._lock = Lock()
        self._listeners = ListenerTable(self, authority, self._on_listener_error, max_listeners)
        self._sent = 0

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
        arriving = message.sent_from(self.authority)
        with self._lock:
            self._sent += 1
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

    def has_listener(self, attributes: UAttributes) -> bool:
        topic = attributes.source.with_authority(self.authority)
        return any(each is not self and each._listens_to(topic) for each in self.network._attached)  # noqa: SLF001 - as above

    # --- receiving ----------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.register(source_filter, sink_filter, listener)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.unregister(source_filter, sink_filter, listener)

    def _receive(self, message: UMessage) -> bool:
        """Call each listener once, however many of its filters match; False if no listener matches."""
        return self._state == "open" and self._listeners.deliver(message)

    def _listens_to(self, topic: UUri) -> bool:
        return self._state == "open" and self._listeners.listens_to(topic)

    def _on_listener_error(self, error: BaseException, message: UMessage) -> None:
        """Log the first error of its type."""
        extra = {"authority": self.authority, "message_id": str(message.id)}
        log.error("local.listener_failed", exc_info=error, extra=extra)

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """`sent`, `received` (messages with a matching listener) and `listener_errors`. All messages are readable."""
        listeners = self._listeners
        return {
            "received": listeners.received,
            "sent": self._sent,
            "listener_errors": listeners.listener_errors,
        }

    def _unavailable(self, reason: str) -> UStatusError:
        return UStatusError(UCode.UNAVAILABLE, f"{self!r} {reason}")

    def __repr__(self) -> str:
        return (
            f"<LocalTransport {self.authority!r} on {self.network.name!r}: "
            f"{self._state}, {len(self._listeners)} listeners>"
        )


def make_local_transport(config: LocalEndpoint, context: EndpointContext) -> LocalTransport:
    """The streamer's attachment to the network in its configuration."""
    return LocalTransport(LocalNetwork.named(config.network), context.authority)
