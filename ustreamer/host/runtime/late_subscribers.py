# SPDX-License-Identifier: Apache-2.0
"""Sends the values of fields to new subscribers (docs/decisions/0032-fields.md).

In: Subscribes. Out: the values that the endpoint of the topic has kept, to each subscriber. A restarted
subscriber subscribes again.
"""

from collections.abc import Callable, Mapping
from functools import partial

from ustreamer.core.base.clock import Clock
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.dispatcher_port import Schedule
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.uuri import UUri


class LateSubscribers:
    """The subscribers that came after the last event of a field."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        transports: Mapping[str, EndpointTransport],
        endpoint_of: Callable[[str], str | None],
        clock: Clock,
        schedule: Schedule,
    ) -> None:
        self._dispatcher = dispatcher
        self._transports = transports
        self._endpoint_of = endpoint_of
        self._monotonic_ns = clock.monotonic_ns
        self._schedule = schedule

    def on_subscribe(self, subscription: Subscription) -> None:
        """A subscriber has subscribed, for the first time or again."""
        topic, subscriber = subscription.topic, subscription.subscriber
        home = self._endpoint_of(topic.authority_name)
        if home is not None and self._transports[home].field_values(topic):
            # On the timer thread, because callers hold locks.
            self._schedule(self._monotonic_ns(), partial(self._send_values, home, topic, subscriber))

    def _send_values(self, home: str, topic: UUri, subscriber: UUri) -> None:
        target = self._endpoint_of(subscriber.authority_name)
        if target is not None and self._transports[target].sends_field(topic):
            return
        read = partial(self._transports[home].field_values, topic)
        self._dispatcher.send_to_subscriber(home, read, subscriber)
