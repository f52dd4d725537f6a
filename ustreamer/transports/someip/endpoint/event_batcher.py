# SPDX-License-Identifier: Apache-2.0
"""Events that come in a row are made messages of, and handed on, together: the rest of the path is cheaper for many."""

from collections.abc import Callable, Sequence

from ustreamer.uprotocol.batch import Run
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.utransport import Listener, for_many


class Arrivals:
    """What has come in a row since the last `deliver`. It belongs to the receiving thread."""

    def __init__(
        self,
        messages: Callable[[Sequence[UAttributes], Sequence[bytes]], Sequence[UMessage]],
        hearing: Callable[[UAttributes], tuple[Listener, ...]],
        deliver_one: Callable[[UMessage], None],
        failed: Callable[[Exception, UMessage], None],
    ) -> None:
        """`messages` makes them of attributes and datagrams; `deliver_one` sees to what several hear, or nobody.

        `failed` is told what a listener raised that was given many, and the first of them.
        """
        self.attributes: list[UAttributes] = []
        self.datagrams: list[bytes] = []
        self._ready: list[UMessage] = []  # what came before those
        self.received = 0
        """How many went on together."""
        self._messages = messages
        self._hearing = hearing
        self._deliver_one = deliver_one
        self._failed = failed

    def add(self, message: UMessage) -> None:
        """One that is a message already came last."""
        if self.attributes:
            self._ready += self._make()
        self._ready.append(message)

    def _make(self) -> Sequence[UMessage]:
        """Messages of what came last."""
        made = self._messages(self.attributes, self.datagrams)
        self.attributes.clear()
        self.datagrams.clear()
        return made

    def deliver(self) -> None:
        """Deliver them in their order; those together that follow each other and have one and the same listener."""
        if self.attributes:
            made = self._make()
            if not self._ready:
                self.deliver_all(made)
                return
            self._ready += made
        messages, self._ready = self._ready, []
        if messages:
            self.deliver_all(messages)

    def deliver_all(self, messages: Sequence[UMessage]) -> None:
        """As `deliver`, of messages that came when nothing was waiting for it."""
        hearing = self._hearing
        if type(messages) is Run:
            self._deliver(messages, hearing(messages.attributes))
            return
        begin, last = 0, None
        heard_by: tuple[Listener, ...] = ()
        for number, message in enumerate(messages):
            each = message.attributes
            if each is not last:
                last, listeners = each, hearing(each)
                if listeners != heard_by:
                    self._deliver(messages[begin:number], heard_by)
                    begin, heard_by = number, listeners
        self._deliver(messages[begin:] if begin else messages, heard_by)

    def _deliver(self, messages: Sequence[UMessage], listeners: tuple[Listener, ...]) -> None:
        if len(messages) > 1 and len(listeners) == 1:
            take_all = for_many(listeners[0])
            if take_all is not None:
                self.received += len(messages)
                try:
                    take_all(messages)
                except Exception as error:  # noqa: BLE001  # foreign code, which should have raised nothing
                    self._failed(error, messages[0])
                return
        for message in messages:
            self._deliver_one(message)
