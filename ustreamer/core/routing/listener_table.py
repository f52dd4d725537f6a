# SPDX-License-Identifier: Apache-2.0
"""The listeners of a transport: registered by filters, called once per message however many of their filters match."""

from collections.abc import Callable
from threading import Lock
from typing import Final

import msgspec

from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.core.routing.sublist import Sublist
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import UUri, check_filters

MAX_LISTENERS: Final = 256


class _Registration(msgspec.Struct, frozen=True):
    source: UUri
    sink: UUri | None
    listener: Listener


class ListenerTable:
    """For a transport that receives every message on its own thread and selects the listeners itself.

    `register` and `unregister` keep the contract of `UTransport`, with `owner` in the text of an error. An empty
    authority in a filter means `authority`. All methods are thread-safe. `received` counts messages with a matching
    listener, `listener_errors` the exceptions of listeners. `on_error` gets the first exception of each type, with
    its message.
    """

    def __init__(
        self,
        owner: object,
        authority: str,
        on_error: Callable[[BaseException, UMessage], None],
        max_listeners: int = MAX_LISTENERS,
    ) -> None:
        self._owner = owner
        self._authority = authority
        self._on_error = on_error
        self._max_listeners = max_listeners
        self._lock = Lock()
        self._registrations: dict[_Registration, None] = {}
        self._by_source: Sublist[_Registration] = Sublist()
        self._reported: set[type[BaseException]] = set()
        self.received = 0
        self.listener_errors = 0

    def __len__(self) -> int:
        return len(self._registrations)

    def register(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        """Raises UStatusError: INVALID_ARGUMENT, RESOURCE_EXHAUSTED."""
        registration = self._registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration in self._registrations:
                return
            if len(self._registrations) >= self._max_listeners:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED,
                    f"{self._owner!r}: {self._max_listeners} listeners are the limit",
                )
            self._registrations[registration] = None
            self._by_source.insert(registration.source, registration)

    def unregister(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        """Raises UStatusError: INVALID_ARGUMENT, NOT_FOUND."""
        registration = self._registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration not in self._registrations:
                raise UStatusError(
                    UCode.NOT_FOUND, f"{self._owner!r}: no such listener for {source_filter}, {sink_filter}"
                )
            del self._registrations[registration]
            self._by_source.remove(registration.source, registration)

    def _registration(self, source: UUri, sink: UUri | None, listener: Listener) -> _Registration:
        check_filters(source, sink)
        sink = sink and sink.with_authority(self._authority)
        return _Registration(source.with_authority(self._authority), sink, listener)

    def listens_to(self, topic: UUri) -> bool:
        """Whether a publication of `topic` has a listener."""
        with self._lock:
            return any(each.sink is None for each in self._by_source.match(topic))

    def deliver(self, message: UMessage) -> bool:
        """Call each listener once, on this thread; False if no listener matches."""
        attributes = message.attributes
        sink = None if attributes.type is UMessageType.PUBLISH else attributes.sink
        with self._lock:
            candidates = self._by_source.match(attributes.source)
        called: set[Listener] = set()
        # Without the lock: a listener may send, register and unregister.
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
                except FOREIGN_ERRORS as error:  # foreign code on the thread of the transport
                    self._count_error(error, message)
        with self._lock:
            self.received += bool(called)
        return bool(called)

    def _count_error(self, error: BaseException, message: UMessage) -> None:
        with self._lock:
            self.listener_errors += 1
            first = type(error) not in self._reported
            self._reported.add(type(error))
        if first:
            self._on_error(error, message)
