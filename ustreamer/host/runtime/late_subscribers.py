# SPDX-License-Identifier: Apache-2.0
"""Sends the values of fields to new subscribers (docs/decisions/0032-fields.md).

In: Subscribes. Out: the values that the endpoint of the topic has kept, to each subscriber. A restarted
subscriber subscribes again. A value that a limit throttles waits for a period, and is not sent if a newer message has
passed the limit by then.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from ustreamer.core.base.clock import Clock
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.dispatcher_port import Schedule
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.uuri import UUri

MAX_THROTTLED: Final = 4_096
"""Throttled values that wait at most, each of a topic for a subscriber. Further ones are not sent again."""
_MIN_PAUSE_NS: Final = 1_000_000
"""A limit of more messages a second must not keep the timer thread busy."""
_MAX_PAUSE_NS: Final = 60_000_000_000
"""After this time a subscriber that has left is forgotten, whatever its period."""


class _Waiting(NamedTuple):
    """A throttled value: `ThrottledValue.passed`, and when it is sent again."""

    passed: int
    when_ns: int


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
        self._throttled: dict[tuple[UUri, UUri], _Waiting] = {}
        """By topic and subscriber. For the timer thread only."""

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
        self._send(home, topic, subscriber)

    def _send(self, home: str, topic: UUri, subscriber: UUri, passed: int | None = None) -> None:
        read = partial(self._transports[home].field_values, topic)
        now_ns = self._monotonic_ns()
        for throttled in self._dispatcher.send_to_subscriber(home, read, subscriber, passed):
            key = throttled.topic, subscriber
            # A message may have passed the limit since the timer was set: then the period ends soon.
            pause_ns = throttled.period_ns if passed is None else throttled.period_ns // 8
            when_ns = now_ns + max(_MIN_PAUSE_NS, min(pause_ns, _MAX_PAUSE_NS))
            waiting = self._throttled.get(key)
            if waiting is not None and waiting.when_ns <= when_ns:
                when_ns = waiting.when_ns
            elif waiting is None and len(self._throttled) >= MAX_THROTTLED:
                continue
            else:
                self._schedule(when_ns, partial(self._send_again, home, *key, when_ns))
            self._throttled[key] = _Waiting(throttled.passed, when_ns)

    def _send_again(self, home: str, topic: UUri, subscriber: UUri, when_ns: int) -> None:
        waiting = self._throttled.get((topic, subscriber))
        if waiting is not None and waiting.when_ns == when_ns:  # else an earlier timer has sent it
            del self._throttled[topic, subscriber]
            self._send(home, topic, subscriber, waiting.passed)
