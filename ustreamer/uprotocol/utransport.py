# SPDX-License-Identifier: Apache-2.0
"""The UTransport port (uProtocol up-l1), implemented by every transport for uEntities and the streamer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

Listener = Callable[[UMessage], None]
"""Called with each message on a thread of the transport. It must be quick. Its exceptions are logged and counted."""


@runtime_checkable
class BatchListener(Protocol):
    """A listener that also accepts messages received together as one batch in their order.

    A transport without batches calls the listener per message.
    """

    def __call__(self, message: UMessage, /) -> None: ...

    def on_batch(self, messages: Sequence[UMessage], /) -> None:
        """Equal to one call per message. Never raises: an exception could not name its message."""


def batch_listener_of(listener: Listener) -> Callable[[Sequence[UMessage]], None] | None:
    """The `on_batch` of a listener, or None. (isinstance with a Protocol costs 8 us, this 0.1.)"""
    found: Callable[[Sequence[UMessage]], None] | None = getattr(listener, "on_batch", None)
    return found


class UTransport(ABC):
    """Sends messages, and calls listeners for messages that match a pair of filters. All methods are thread-safe."""

    @abstractmethod
    def send(self, message: UMessage) -> None:
        """Pass `message` to the protocol; waits if the protocol does.

        Raises UStatusError: INVALID_ARGUMENT for a message that breaks the rules of its type, UNAVAILABLE where a later
        retry can help, UNIMPLEMENTED for a message type that the protocol does not support.
        """

    @abstractmethod
    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        """Call `listener` with every message whose source and sink match; without a sink filter, with publications.

        A repeated registration has no effect. Raises UStatusError: INVALID_ARGUMENT for filters that can match no
        message, RESOURCE_EXHAUSTED above the transport's limit.
        """

    @abstractmethod
    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        """Undo `register_listener`; no call starts after the return. Raises UStatusError(NOT_FOUND) without match."""

    def receive(self, source_filter: UUri, sink_filter: UUri | None = None) -> UMessage:
        """Pull a message. No built-in transport supports it: raises UStatusError(UNIMPLEMENTED), as the port allows."""
        raise UStatusError(
            UCode.UNIMPLEMENTED,
            f"receive({source_filter}, {sink_filter}): this transport pushes; register a listener",
        )
