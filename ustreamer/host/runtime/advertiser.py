# SPDX-License-Identifier: Apache-2.0
"""Passes changed topic advertisements to the transports.

In: changes from the route cache, through `TopicAdvertisements`. Out: calls of `advertise_topics`, which
announce the topics to peers.

`SubscribedTopics` makes routes advertise before the first message: in flow subscriptions, out flow topics to share.
`PeerWatcher` is the other direction: in flow announcements and advertisements of peers, out flow routes to build again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from threading import Event, Lock
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.links import LinkStates
from ustreamer.core.base.log_limit import limited
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.dispatcher_port import Schedule
from ustreamer.core.peers.election import Announcement, PeerRouters
from ustreamer.core.peers.topic_advertisements import (
    MAX_OWN_ADVERTISEMENTS,
    MAX_YIELD_DELAY_NS,
    YIELD_DELAY_NS,
    TopicAdvertisement,
    TopicAdvertisements,
)
from ustreamer.core.routing.router import SELF
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.host.runtime.recent_events import RecentEvents
from ustreamer.transport_port import EndpointTransport, PeerTopicTransport, PeerTransport
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.streamer")

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
        self.transports = transports
        self._monotonic_ns = clock.monotonic_ns
        self.schedule = schedule
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
        self.schedule(max(now_ns, last_ns + ADVERTISE_DELAY_NS), partial(self._advertise, endpoint))

    def hand_over(self) -> None:
        """Before a stop: withdraw all topic advertisements and keep forwarding until peers take over.

        Takes HANDOVER_S, or no time if no peer defers a topic to this streamer.
        """
        if self.advertisements.withdraw_all_for_shutdown():
            Event().wait(HANDOVER_S)

    def _advertise(self, endpoint: str) -> None:
        # Before the read: a change from now on schedules the next announcement.
        with self._lock:
            self._changed.discard(endpoint)
            self._announced_ns[endpoint] = self._monotonic_ns()
        transport = self.transports[endpoint]
        if isinstance(transport, PeerTopicTransport):
            transport.advertise_topics(self.advertisements.advertised(endpoint))


class SubscribedTopics:
    """The topics with subscriptions, MAX_OWN_ADVERTISEMENTS at most. Shares each with peers before its first message.

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
            elif len(self._topics) < MAX_OWN_ADVERTISEMENTS:
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
                    if len(self._topics) < MAX_OWN_ADVERTISEMENTS:
                        self._topics.add(topic)


class PeerWatcher:
    """Applies what the transports report about peers. Its calls come from threads of the transports."""

    def __init__(
        self,
        peers: PeerRouters,
        advertiser: TopicAdvertiser,
        dispatcher: Dispatcher,
        subscribed_topics: SubscribedTopics,
        links: LinkStates,
        events: RecentEvents,
        endpoint_of: Callable[[str], str | None],
        clock: Clock,
    ) -> None:
        """`endpoint_of` returns the endpoint of an authority."""
        self._peers = peers
        self._advertisements = advertiser.advertisements
        self._transports = advertiser.transports
        self._schedule = advertiser.schedule
        self._dispatcher = dispatcher
        self._subscribed_topics = subscribed_topics
        self._links = links
        self._events = events
        self._endpoint_of = endpoint_of
        self._clock = clock
        self._link_up_ns: dict[str, int] = {}

    def watch(self) -> None:
        """Have the transports report peers and their topic advertisements."""
        for name, transport in self._transports.items():
            if isinstance(transport, PeerTransport):
                transport.watch_peers(partial(self.on_peers_changed, name))
            if isinstance(transport, PeerTopicTransport):
                transport.watch_topic_advertisements(partial(self.on_advertisements_changed, name))

    def announce(self) -> None:
        """Announce this streamer to its peers."""
        for name, transport in self._transports.items():
            if isinstance(transport, PeerTransport):
                transport.announce(self._peers.own_announcements(name))
        self._update_trust()

    def _update_trust(self) -> None:
        for name, transport in self._transports.items():
            if isinstance(transport, PeerTransport):
                transport.trust_peers(partial(self._peers.is_trusted, name))

    def on_link_up(self, name: str) -> None:
        """The link of an endpoint is up: peers that are seen soon were there before."""
        self._link_up_ns[name] = self._clock.monotonic_ns()

    def on_peers_changed(self, name: str, announcements: frozenset[Announcement]) -> None:
        """The peers at an endpoint announce these."""
        peer_changes = self._peers.on_announcements(name, announcements)
        if not peer_changes.changed:
            return
        self._events.on_peers_changed(name, self._clock.wall_ms())
        self._dispatcher.set_loop_endpoints(self._peers.loop_endpoints())
        self._dispatcher.invalidate_routes()
        self._update_trust()
        present = [router.authority for router in self._peers.peers_at(name)]
        joined, departed = (
            [router.authority for router in each] for each in (peer_changes.joined, peer_changes.departed)
        )
        log.info(
            "streamer.peers",
            extra={
                "endpoint": name,
                "joined": joined,
                "departed": departed,
                "present": present,
                **limited(name),
            },
        )
        for each in peer_changes.shared_endpoints:
            log.warning("streamer.duplicate_network", extra={"endpoint": each, **limited(each)})
        if peer_changes.joined:
            settled_ns = now_ns = self._clock.monotonic_ns()
            if now_ns < self._link_up_ns.get(name, 0) + NEW_LINK_NS:
                settled_ns += (
                    PEER_SETTLE_NS  # this streamer joined, and its peers may forward its topics already
                )
            self._advertisements.on_peer_joined(settled_ns)
            self._schedule(settled_ns, self._on_peers_settled)
            self._links.on_peer_joined(name)

    def _on_peers_settled(self) -> None:
        self._dispatcher.invalidate_routes()
        self._subscribed_topics.share_all()

    def on_advertisements_changed(
        self, name: str, added: frozenset[TopicAdvertisement], removed: frozenset[TopicAdvertisement]
    ) -> None:
        """Peers have advertised and withdrawn topics at an endpoint."""
        now_ns = self._clock.monotonic_ns()
        topics = self._advertisements.on_advertisements(name, added, removed, now_ns)
        if not topics:
            return
        self._dispatcher.invalidate_topics(topics)
        self._subscribed_topics.on_advertisements(topics)
        by_home: dict[str, list[TopicAdvertisement]] = {}
        for each in added:
            home = self._endpoint_of(each.topic.authority_name)
            by_home.setdefault(home or SELF, []).append(each)
        for home, advertisements in by_home.items():
            yield_to = partial(self._yield_to, name, advertisements, now_ns)
            when_read = partial(
                self._transports[home].call_when_read, partial(self._schedule, now_ns, yield_to)
            )
            self._schedule(now_ns + YIELD_DELAY_NS, when_read)
            self._schedule(now_ns + MAX_YIELD_DELAY_NS, yield_to)

    def _yield_to(self, name: str, advertisements: Sequence[TopicAdvertisement], received_ns: int) -> None:
        self._dispatcher.invalidate_topics(self._advertisements.yield_to(name, advertisements, received_ns))
