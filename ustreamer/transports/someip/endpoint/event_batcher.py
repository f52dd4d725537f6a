# SPDX-License-Identifier: Apache-2.0
"""Events that come in a row are made messages of, and handed on, together: the rest of the path is cheaper for many."""

from collections.abc import Callable, Sequence

from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.utransport import Listener, batch_listener_of


class EventBatcher:
    """What has come in a row since the last `deliver`. It belongs to the receiving thread."""

    def __init__(
        self,
        make_messages: Callable[[Sequence[UAttributes], Sequence[bytes]], Sequence[UMessage]],
        listeners_for: Callable[[UAttributes], tuple[Listener, ...]],
        deliver_one: Callable[[UMessage], None],
        on_listener_failed: Callable[[Exception, UMessage], None],
    ) -> None:
        """`messages` makes them of attributes and datagrams; `deliver_one` sees to what several hear, or nobody.

        `failed` is told what a listener raised that was given many, and the first of them.
        """
        self.attributes: list[UAttributes] = []
        self.datagrams: list[bytes] = []
        self._ready: list[UMessage] = []  # what came before those
        self.delivered_in_batches = 0
        """How many went on together."""
        self._make_messages = make_messages
        self._listeners_for = listeners_for
        self._deliver_one = deliver_one
        self._on_listener_failed = on_listener_failed

    def add_message(self, message: UMessage) -> None:
        """One that is a message already came last."""
        if self.attributes:
            self._ready += self._decode_collected()
        self._ready.append(message)

    def _decode_collected(self) -> Sequence[UMessage]:
        """Messages of what came last."""
        made = self._make_messages(self.attributes, self.datagrams)
        self.attributes.clear()
        self.datagrams.clear()
        return made

    def flush(self) -> None:
        """Deliver them in their order; those together that follow each other and have one and the same listener."""
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
        """As `deliver`, of messages that came when nothing was waiting for it."""
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
                except Exception as error:  # noqa: BLE001  # foreign code, which should have raised nothing
                    self._on_listener_failed(error, messages[0])
                return
        for message in messages:
            self._deliver_one(message)
