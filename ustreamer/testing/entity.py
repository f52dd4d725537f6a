# SPDX-License-Identifier: Apache-2.0
"""A uEntity of a test, on any transport."""

from collections.abc import Callable
from typing import Any, Final

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.messages import new_id
from ustreamer.testing.waiting import DEADLINE_S, wait_until
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

_SUBSCRIBE: Final = 1
_UNSUBSCRIBE: Final = 2


class Entity:
    """Publishes, subscribes at a uSubscription, serves and calls methods. `received` has the messages it listens to.

    `address` has resource 0. `usubscription` is the authority of the uSubscription; the default is its own.
    """

    def __init__(self, transport: EndpointTransport, address: UUri, usubscription: str = "") -> None:
        self.transport = transport
        self.address = address
        self.usubscription = UUri(usubscription or address.authority_name, 0, 3, 0)
        self.rpc = RpcClient(transport, address, UuidSource(SYSTEM_CLOCK.wall_ms))
        self.received: list[UMessage] = []

    def listen(self, source: UUri, sink: UUri | None = None) -> None:
        """Record messages with this source and sink; without a sink, publications."""
        self.transport.register_listener(source, sink, self.received.append)

    def publish(self, topic: UUri, payload: bytes = b"", ttl: int | None = None) -> None:
        """Send a publication."""
        self.transport.send(publish(new_id(), topic, payload, ttl=ttl))

    def call(self, method: UUri, payload: bytes = b"", **how: Any) -> UMessage:
        """Call a method and return its response; `how` as `RpcClient.call`. Raises UStatusError."""
        return self.rpc.call(method, payload, **how)

    def serve(self, method: UUri, answer: Callable[[UMessage], UMessage]) -> None:
        """Answer requests to `method` with the message that `answer` makes."""
        self.transport.register_listener(ANY, method, lambda request: self.transport.send(answer(request)))

    def call_usubscription(self, method: int, sent_request: Any) -> UMessage:
        """Call a method of the uSubscription with a protobuf message. Raises UStatusError."""
        where = self.usubscription.with_resource(method)
        return self.rpc.call(where, sent_request.SerializeToString(), UPayloadFormat.PROTOBUF)

    def subscribe(self, topic: UUri, *, period_ms: int | None = None) -> None:
        """Subscribe `topic` and record its publications. Raises UStatusError; AssertionError unless SUBSCRIBED."""
        self.listen(topic)
        attributes = pb.SubscribeAttributes(sample_period_ms=period_ms)
        answer = self.call_usubscription(
            _SUBSCRIBE, pb.SubscriptionRequest(topic=topic.to_pb(), attributes=attributes)
        )
        status = pb.SubscriptionResponse.FromString(answer.payload).status
        assert status.state == pb.SubscriptionStatus.SUBSCRIBED, status

    def unsubscribe(self, topic: UUri) -> None:
        """End the subscription of `topic`. Raises UStatusError."""
        self.call_usubscription(_UNSUBSCRIBE, pb.UnsubscribeRequest(topic=topic.to_pb()))

    def wait_received(self, count: int, within_s: float = DEADLINE_S) -> list[bytes]:
        """Return the payloads of all messages when there are `count`. Fails after `within_s`."""
        wait_until(lambda: len(self.received) >= count, f"{count} messages at {self.address}", within_s)
        return [message.payload for message in self.received]
