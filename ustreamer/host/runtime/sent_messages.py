# SPDX-License-Identifier: Apache-2.0
"""Between a transport and the disk: sent messages that may not have arrived, and the ids of received messages.

A message of a transport has no delivery. In: messages. Out: queued messages, each with a delivery as it had then.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.limits import QueuedMessage
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.host.egress.durable_queue import DurableQueue
    from ustreamer.host.storage.received_ids import ReceivedIdFile

_MAX_DELIVERIES: Final = 4_096


class SentMessages:
    """Makes queued messages of the messages that a queue has sent."""

    def __init__(
        self, dispatcher: Dispatcher, queue: EndpointQueue, ingress_of: Callable[[UUri], str]
    ) -> None:
        self._dispatcher = dispatcher
        self._queue = queue
        self._ingress_of = ingress_of
        self._delivery_of = lru_cache(_MAX_DELIVERIES)(self._make_delivery)

    def as_queued(self, messages: Sequence[UMessage]) -> list[QueuedMessage]:
        """The messages with their deliveries, and deadlines as if they had just been received."""
        return [
            self._queue.sent_message(self._delivery_of(each.attributes.source, each.attributes.type), each)
            for each in messages
        ]

    def _make_delivery(self, source: UUri, kind: UMessageType) -> Delivery:
        topic = source if kind is UMessageType.PUBLISH else None
        return self._dispatcher.restored_delivery(self._ingress_of(source), self._queue.name, topic, None)


class DurableSentStore:
    """The `SentStore` of a transport with a durable queue."""

    def __init__(self, queue: "DurableQueue", messages: SentMessages) -> None:
        self._queue = queue
        self._messages = messages

    def keep(self, route: Hashable, messages: Sequence[UMessage]) -> Collection[UUID] | None:
        return self._queue.keep(route, self._messages.as_queued(messages))

    def ids(self) -> Collection[UUID]:
        return self._queue.sent_ids()

    def sent_from_disk(self, ids: Collection[UUID]) -> Sequence[UMessage]:
        return self._queue.sent_from_disk(ids)

    def read(self, route: Hashable, id: UUID) -> UMessage | None:
        return self._queue.read_sent(route, id)

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> bool:
        return self._queue.release(route, ids)

    def receivers(self) -> Sequence[str]:
        return self._queue.restored_receivers

    def keep_receivers(self, receivers: Sequence[str]) -> bool:
        return self._queue.keep_receivers(receivers)


class ReceivedMessages:
    """The `ReceivedStore` of a transport: the file of its ids, and the durable queues that messages go to."""

    def __init__(self, endpoint: str, file: "ReceivedIdFile", queues: Sequence["DurableQueue"]) -> None:
        self._endpoint = endpoint
        self._queues = queues
        self.load = file.load
        self.add = file.add
        self.close = file.close

    def restored(self) -> list[UUID]:
        return [id for queue in self._queues for id in queue.restored_ids.pop(self._endpoint, ())]

    def safe_before_ns(self) -> int:
        return min(queue.safe_before_ns() for queue in self._queues)
