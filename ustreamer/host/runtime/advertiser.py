# SPDX-License-Identifier: Apache-2.0
"""Passes changed topic advertisements to the transports.

In flow changes from the route cache, through `TopicAdvertisements`. Out flow calls of `advertise_topics`, which
announce the topics to peers.
"""

from collections.abc import Mapping
from functools import partial
from threading import Event, Lock
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.core.dispatch.dispatcher_port import Schedule
from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.topic_advertisements import TopicAdvertisements
from ustreamer.transport_port import EndpointTransport, PeerTopicTransport

ADVERTISE_DELAY_NS: Final = 20_000_000
"""Between a change and its announcement. Later changes join it: a new subscription may add thousands of topics."""

HANDOVER_S: Final = 0.2
"""How long a stop waits for peers to take over. They need 50 ms, more on a busy machine."""


class TopicAdvertiser:
    """Announces the topic advertisements of each endpoint, `ADVERTISE_DELAY_NS` after a change."""

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

    def mark_changed(self, endpoint: str) -> None:
        """Schedule an announcement at `endpoint`. Calls no other component, so callers may hold locks."""
        with self._lock:
            if endpoint in self._changed:
                return
            self._changed.add(endpoint)
        self._schedule(self._monotonic_ns() + ADVERTISE_DELAY_NS, partial(self._advertise, endpoint))

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
        transport = self._transports[endpoint]
        if isinstance(transport, PeerTopicTransport):
            transport.advertise_topics(self.advertisements.advertised(endpoint))
