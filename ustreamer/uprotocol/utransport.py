# SPDX-License-Identifier: Apache-2.0
"""The UTransport port (uProtocol up-l1): what every transport offers to uEntities and to the streamer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

Listener = Callable[[UMessage], None]
"""Called with each message on the transport's own thread: it must be quick, and what it raises is reported, not lost."""


@runtime_checkable
class BatchListener(Protocol):
    """A listener that is also called once for many: with messages that came in together, in their order.

    For whoever receives faster than one by one; a transport that does not know of it calls the listener for each.
    """

    def __call__(self, message: UMessage, /) -> None: ...

    def on_batch(self, messages: Sequence[UMessage], /) -> None:
        """As a call for each of them. Raises nothing: nobody could tell which of them it was about."""


def batch_listener_of(listener: Listener) -> Callable[[Sequence[UMessage]], None] | None:
    """The `on_batch` of a listener that has one. (To ask isinstance of a Protocol costs 8 us, this 0.1.)"""
    found: Callable[[Sequence[UMessage]], None] | None = getattr(listener, "on_batch", None)
    return found


class UTransport(ABC):
    """Send messages, and listen for those that match a pair of filters. All methods may be called from any thread."""

    @abstractmethod
    def send(self, message: UMessage) -> None:
        """Hand `message` to the protocol; it may wait where the protocol does.

        Raises UStatusError: INVALID_ARGUMENT for a message that breaks the rules of its type, UNAVAILABLE where trying
        again later can help, UNIMPLEMENTED for a message type that the protocol cannot carry.
        """

    @abstractmethod
    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        """Call `listener` with every message whose source and sink match; without a sink filter, with publications.

        Doing so again with the same three arguments changes nothing. Raises UStatusError: INVALID_ARGUMENT for filters
        that can match nothing, RESOURCE_EXHAUSTED above the transport's limit.
        """

    @abstractmethod
    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        """Undo `register_listener`; no call begins after it returns. Raises UStatusError(NOT_FOUND) if there is none."""

    def receive(self, source_filter: UUri, sink_filter: UUri | None = None) -> UMessage:
        """Pull a message. None of our transports is a pull transport: UStatusError(UNIMPLEMENTED), as the port allows."""
        raise UStatusError(
            UCode.UNIMPLEMENTED,
            f"receive({source_filter}, {sink_filter}): this transport pushes; register a listener",
        )
