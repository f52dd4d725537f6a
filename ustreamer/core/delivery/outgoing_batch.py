# SPDX-License-Identifier: Apache-2.0
"""The messages of one received batch for one target: single messages go in, one call of the egress goes out.

A target is an endpoint, or one subscriber behind it. Messages of all topics share one outgoing batch, in their order of
arrival: a vehicle sends hundreds of topics in turn, so a batch per topic would have one message.
"""

from typing import TYPE_CHECKING

from ustreamer.core.delivery.ports import BatchEgress, Egress
from ustreamer.uprotocol.batch import MIN_BATCH, MessageBatch
from ustreamer.uprotocol.umessage import UMessage

if TYPE_CHECKING:
    from ustreamer.core.delivery.delivery import Delivery


# Fast path of Delivery.offer, which is its oracle; compared by
# tests/core/dispatch/test_batches.py::test_a_batch_has_the_results_of_its_single_messages
class OutgoingBatch:
    """Messages that passed their filters, each with its delivery and its time (monotonic ns).

    `Ingress.on_batch` appends to `items`.
    """

    __slots__ = ("__weakref__", "_egress", "_has_ttl", "batch_egress", "items")

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self.batch_egress = egress if isinstance(egress, BatchEgress) else None
        """The egress if it takes batches, else None. Checked once per target: a check takes 10 us."""
        self.items: list[tuple[Delivery, UMessage, int]] = []
        self._has_ttl = False

    def append_if_open(self, delivery: "Delivery", message: UMessage, now_ns: int) -> bool:
        """Append a message that a filter released. False, and not appended, if the batch is empty."""
        if not self.items:
            return False
        self.items.append((delivery, message, now_ns))
        self._has_ttl |= bool(message.attributes.ttl)
        return True

    def flush(self, *, has_ttl: bool) -> None:
        """Offer the messages to the egress and empty the batch. Called under the owner's lock.

        `has_ttl`: a message appended by `Ingress.on_batch` has a ttl.
        """
        items, self.items = self.items, []
        has_ttl, self._has_ttl = has_ttl or self._has_ttl, False
        if self.batch_egress is None or len(items) < 2:
            for delivery, message, at_ns in items:
                self._egress.offer(delivery, message, at_ns)
            return
        deliveries, messages, times_ns = zip(*items, strict=True)
        batch = None
        if len(items) >= MIN_BATCH and deliveries.count(deliveries[0]) == len(items):
            batch = MessageBatch.from_messages(messages)
        self.batch_egress.offer_batch(deliveries, batch or messages, times_ns, has_ttl=has_ttl)
