# SPDX-License-Identifier: Apache-2.0
"""Between the plans, which know what we put onto each network, and the transports, which tell the other streamers there."""

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
"""Between a change and the telling of it, with all that changes meanwhile: a new subscription may bring thousands of topics."""

HANDOVER_S: Final = 0.2
"""How long a stop waits for the others to take over: they need 50 ms, on a busy machine more."""


class TopicAdvertiser:
    """Has each transport announce what `advertisements` has us put onto its network, a little later than that changes."""

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
        """What is to be announced at `endpoint` has changed. Calls nobody, so it may be called under locks."""
        with self._lock:
            if endpoint in self._changed:
                return
            self._changed.add(endpoint)
        self._schedule(self._monotonic_ns() + ADVERTISE_DELAY_NS, partial(self._advertise, endpoint))

    def hand_over(self) -> None:
        """Before a stop: have the other streamers put what we put, and go on as before until they do.

        Takes HANDOVER_S, or no time if there is nothing that they may have left to us.
        """
        if self.advertisements.withdraw_all_for_shutdown():
            Event().wait(HANDOVER_S)

    def _advertise(self, endpoint: str) -> None:
        with self._lock:  # before it is asked what that is: what changes from now on is told the next time
            self._changed.discard(endpoint)
        transport = self._transports[endpoint]
        if isinstance(transport, PeerTopicTransport):
            transport.advertise_topics(self.advertisements.advertised(endpoint))
