# SPDX-License-Identifier: Apache-2.0
"""Passes changed topic advertisements to the transports.

In flow changes from the route cache, through `TopicAdvertisements`. Out flow calls of `advertise_topics`, which
announce the topics to peers.

`SubscribedTopics` makes routes advertise before the first message: in flow subscriptions, out flow topics to share.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from threading import Event, Lock
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.core.dispatch.dispatcher_port import Schedule
from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.topic_advertisements import MAX_ADVERTISEMENTS, TopicAdvertisements
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.transport_port import EndpointTransport, PeerTopicTransport
from ustreamer.uprotocol.uuri import UUri

ADVERTISE_DELAY_NS: Final = 10_000_000
"""Between two announcements. Changes in between join the second: a new subscription may add thousands of topics."""

NEW_LINK_NS: Final = 1_000_000_000
"""A peer that is seen within this time after the link came up was there before."""

PEER_SETTLE_NS: Final = 500_000_000
"""The topic advertisements of a new peer arrive within this time after its identity, also on a busy machine.

With 100 ms, 5 of 96 restarted streamers took a running topic from its peer at a load of 28 on four cores.
"""

HANDOVER_S: Final = 0.2
"""How long a stop waits for peers to take over. They need 50 ms, more on a busy machine."""


class TopicAdvertiser:
    """Announces the topic advertisements of each endpoint at once, then at most every `ADVERTISE_DELAY_NS`."""

    def __init__(
        self,
        peers: PeerRouters,
        transports: Mapping[str, EndpointTransport],
        clock: Clock,
        schedule: Schedule,
    ) -> None:
        self.advertisements = TopicAdvertisements(peers, self.mark_changed)
        self._transports = transports
        self._monotonic_ns = clock.monotonic_ns
        self._schedule = schedule
        self._lock = Lock()
        self._changed: set[str] = set()
        self._announced_ns: dict[str, int] = {}

    def mark_changed(self, endpoint: str, *, urgent: bool) -> None:
        """Schedule an announcement at `endpoint`. Calls no other component, so callers may hold locks.

        A new topic is `urgent`: until its announcement, a peer forwards the topic too.
        """
        now_ns = self._monotonic_ns()
        with self._lock:
            if endpoint in self._changed:
                return
            self._changed.add(endpoint)
            last_ns = self._announced_ns.get(endpoint, 0) if urgent else now_ns
        self._schedule(max(now_ns, last_ns + ADVERTISE_DELAY_NS), partial(self._advertise, endpoint))

    def hand_over(self) -> None:
        """Before a stop: withdraw all topic advertisements and keep forwarding until peers take over.

        Takes HANDOVER_S, or no time without any advertisement.
        """
        if self.advertisements.withdraw_all_for_shutdown():
            Event().wait(HANDOVER_S)

    def _advertise(self, endpoint: str) -> None:
        # Before the read: a change from now on schedules the next announcement.
        with self._lock:
            self._changed.discard(endpoint)
            self._announced_ns[endpoint] = self._monotonic_ns()
        transport = self._transports[endpoint]
        if isinstance(transport, PeerTopicTransport):
            transport.advertise_topics(self.advertisements.advertised(endpoint))


class SubscribedTopics:
    """The topics with subscriptions, MAX_ADVERTISEMENTS at most. Shares each with peers before its first message.

    Of more topics, and of those that a wildcard subscribes, the first message shares them.
    """

    def __init__(self, share: Callable[[UUri], bool], clock: Clock, schedule: Schedule) -> None:
        """`share` shares a topic, and returns whether it has a subscription. It may prepare endpoints for the topic."""
        self._share = share
        self._monotonic_ns = clock.monotonic_ns
        self._schedule = schedule
        self._lock = Lock()
        self._topics: set[UUri] = set()
        self._due: set[UUri] = set()

    def on_subscription(self, subscription: Subscription, change: Change, /) -> None:
        """A `SubscriptionWatch`."""
        topic = subscription.topic
        if not topic.is_specific:
            return
        with self._lock:
            if change is Change.UNSUBSCRIBED:
                self._topics.discard(topic)  # it returns if another subscription is left
            elif len(self._topics) < MAX_ADVERTISEMENTS:
                self._topics.add(topic)
            elif topic not in self._topics:
                return
        self._share_soon({topic})

    def on_advertisements(self, topics: AbstractSet[UUri]) -> None:
        """Advertisements of peers for these topics have changed."""
        with self._lock:
            known = self._topics & topics
        self._share_soon(known)

    def share_all(self) -> None:
        """Share all topics now."""
        with self._lock:
            topics = set(self._topics)
        self._share_soon(topics)

    def _share_soon(self, topics: AbstractSet[UUri]) -> None:
        """Share on the timer thread, because callers hold locks."""
        with self._lock:
            is_scheduled = bool(self._due)
            self._due |= topics
            if is_scheduled or not self._due:
                return
        self._schedule(self._monotonic_ns(), self._share_due)

    def _share_due(self) -> None:
        with self._lock:
            due, self._due = self._due, set()
        for topic in sorted(due):  # in the same order at each start
            if self._share(topic):
                with self._lock:
                    if len(self._topics) < MAX_ADVERTISEMENTS:
                        self._topics.add(topic)
