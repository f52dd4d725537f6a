# SPDX-License-Identifier: Apache-2.0
"""Oracle: `Inbound.on_datagram` of each datagram; compared in tests/transports/someip/endpoint/test_inbound.py.

Consecutive events become messages together and reach a batch listener in one call, because the rest of the path is
cheaper for a batch. In: attributes and datagrams of events, and messages. Out: calls of listeners, in order.
"""

from collections.abc import Callable, Sequence

from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.utransport import Listener, batch_listener_of


class EventBatcher:
    """The messages since the last `flush`. Belongs to the receiving thread."""

    def __init__(
        self,
        make_messages: Callable[[Sequence[UAttributes], Sequence[bytes], Sequence[int]], Sequence[UMessage]],
        listeners_for: Callable[[UAttributes], tuple[Listener, ...]],
        deliver_one: Callable[[UMessage], None],
        on_listener_failed: Callable[[BaseException, UMessage], None],
    ) -> None:
        """`make_messages` turns attributes, datagrams and their times into messages. `deliver_one` delivers to several listeners
        or to none.

        `on_listener_failed` receives the exception of a batch listener and the first message of its batch.
        """
        self.attributes: list[UAttributes] = []
        self.datagrams: list[bytes] = []
        self.received_ms: list[int] = []
        """When the host received each datagram, in ms since the epoch; 0: now."""
        self._ready: list[UMessage] = []  # messages before those
        self.delivered_in_batches = 0
        """Messages that were delivered in a batch."""
        self._make_messages = make_messages
        self._listeners_for = listeners_for
        self._deliver_one = deliver_one
        self._on_listener_failed = on_listener_failed

    def add_message(self, message: UMessage) -> None:
        """Add a decoded message behind the collected events."""
        if self.attributes:
            self._ready += self._decode_collected()
        self._ready.append(message)

    def _decode_collected(self) -> Sequence[UMessage]:
        """The messages of the collected events."""
        made = self._make_messages(self.attributes, self.datagrams, self.received_ms)
        self.attributes.clear()
        self.datagrams.clear()
        self.received_ms.clear()
        return made

    def flush(self) -> None:
        """Deliver all in order. Consecutive messages with the same single listener are delivered together."""
        if self.attributes:
            made = self._decode_collected()
            if not self._ready:
                self.deliver_batch(made)
                return
            self._ready += made
        messages, self._ready = self._ready, []
        if messages:
            self.deliver_batch(messages)

    def deliver_batch(self, messages: Sequence[UMessage]) -> None:
        """As `flush`, for messages that arrive while nothing is collected."""
        listeners_for = self._listeners_for
        if type(messages) is MessageBatch:
            self._deliver_to(messages, listeners_for(messages.attributes))
            return
        begin, last = 0, None
        current_listeners: tuple[Listener, ...] = ()
        for number, message in enumerate(messages):
            each = message.attributes
            if each is not last:
                last, listeners = each, listeners_for(each)
                if listeners != current_listeners:
                    self._deliver_to(messages[begin:number], current_listeners)
                    begin, current_listeners = number, listeners
        self._deliver_to(messages[begin:] if begin else messages, current_listeners)

    def _deliver_to(self, messages: Sequence[UMessage], listeners: tuple[Listener, ...]) -> None:
        if len(messages) > 1 and len(listeners) == 1:
            on_batch = batch_listener_of(listeners[0])
            if on_batch is not None:
                self.delivered_in_batches += len(messages)
                try:
                    on_batch(messages)
                except FOREIGN_ERRORS as error:  # foreign code, which must not raise
                    self._on_listener_failed(error, messages[0])
                return
        for message in messages:
            self._deliver_one(message)
