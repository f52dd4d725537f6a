# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of a recorded run at one moment. Subscription changes and messages in, a directory out.

Some directories report no changes: those of dashboards with patterns. Their subscriptions are inferred from the targets
of the recorded messages.
"""

from collections.abc import Mapping, Sequence

from ustreamer.core.routing.sublist import Sublist
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.uprotocol.uuri import UUri


class RecordedSubscriptions:
    """A `SubscriptionDirectory` that changes as the recording does."""

    def __init__(self) -> None:
        self.version = 0
        self._known: dict[tuple[UUri, UUri], Subscription] = {}
        self._by_topic: Sublist[Subscription] = Sublist()
        self._inferred: dict[UUri, tuple[Subscription, ...]] = {}

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        return [*self._by_topic.match(topic), *self._inferred.get(topic, ())]

    def change(self, subscription: Subscription, change: Change) -> None:
        """Apply one recorded change."""
        key = subscription.topic, subscription.subscriber
        before = self._known.pop(key, None)
        if before is not None:
            self._by_topic.remove(before.topic, before)
        if change is not Change.UNSUBSCRIBED:
            self._known[key] = subscription
            self._by_topic.insert(subscription.topic, subscription)
        self.version += 1

    def infer(self, topic: UUri, periods_ns: Mapping[UUri, int]) -> None:
        """These subscribers have received a message on `topic`, with these limits; others have not.

        Those without a recorded subscription have one for this topic, until a message does not reach them.
        """
        before = self._inferred.get(topic, ())
        if not before and not periods_ns:
            return
        known = {each.subscriber for each in self._by_topic.match(topic)}
        found = tuple(
            Subscription(topic, subscriber, period_ns)
            for subscriber, period_ns in periods_ns.items()
            if subscriber not in known
        )
        if found == before:
            return
        self.version += 1
        if found:
            self._inferred[topic] = found
        else:
            del self._inferred[topic]
