# SPDX-License-Identifier: Apache-2.0
"""The sessions of a section, with their router and their subscriptions: all that clients can reach.

In: batches of messages from the vehicle, and the topics that the streamer has seen. Out: messages to the vehicle, and
the patterns of sessions (`Vehicle`). Everything runs on the loop's thread of the server.

The streamer has the sessions in its own process (`LocalSessions`), or in a child process (`process`).
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from ustreamer.core.base.clock import Clock
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer_wamp.config import Place, WampConfig
from ustreamer_wamp.router import WampRouter
from ustreamer_wamp.vehicle.batch import VehicleBatch
from ustreamer_wamp.vehicle.bridge import VehicleBridge
from ustreamer_wamp.vehicle.mapping import Decode
from ustreamer_wamp.vehicle.pattern_subscriptions import PatternSubscriptions
from ustreamer_wamp.vehicle.patterns import PatternSink
from ustreamer_wamp.vehicle.usubscription_client import UsubscriptionClient

log = logging.getLogger("ustreamer.wamp")

MAX_SEEN_TOPICS: Final = 1_024
"""New topics queued for the loop at most; a dropped one is new at its next lookup."""
ROUTES_REBUILD_DELAY_S: Final = 0.02
"""All changes of patterns within this time cost one rebuild of routes."""


class Vehicle(Protocol):
    """What the sessions need of the streamer. Called on the loop's thread."""

    @property
    def patterns(self) -> PatternSink: ...

    def dispatch(self, message: UMessage) -> bool:
        """Dispatch a message of a session; False if it is refused, which happens to publications only."""
        ...

    @property
    def decoder(self) -> Callable[[UUri], Decode | None]:
        """Returns the decoder of a plugin for the payloads of a topic, if there is one."""
        ...


class LocalVehicle(Vehicle, Protocol):
    """The same for sessions in the streamer's process."""

    def next_batch(self) -> tuple[VehicleBatch, bool]:
        """Messages for the sessions, and whether there are more."""
        ...


class Sessions:
    """Construction touches nothing; `open` does."""

    def __init__(self, config: WampConfig, place: Place, clock: Clock, vehicle: Vehicle) -> None:
        self.counts: Counter[str] = Counter()
        self._place = place
        ids = UuidSource(clock.wall_ms)

        def send(message: UMessage) -> None:
            vehicle.dispatch(message)

        usubscription = UsubscriptionClient(place.streamer, ids, send, clock.monotonic_ns, self.counts)
        self.pattern_subscriptions = PatternSubscriptions(
            usubscription, config.max_pattern_topics, place.serves
        )
        self.bridge = VehicleBridge(
            place.authority,
            ids,
            usubscription,
            self.pattern_subscriptions,
            vehicle.patterns,
            vehicle.dispatch,
            vehicle.decoder,
            self.counts,
        )
        self.router = WampRouter(config, clock, self.bridge, counts=self.counts, tick=self.bridge.tick)
        # One thread: changes of users take effect in order. It starts with the first one.
        self._changing_users = ThreadPoolExecutor(1, "wamp users")

    def open(self, topics: Collection[UUri]) -> None:
        """Listen. `topics` are those of the configuration."""
        server = self.router.server
        server.open()
        server.run_on_loop(self.bridge.usubscription.unsubscribe_stale_sessions, self._place.authority)
        server.run_on_loop(self.pattern_subscriptions.configure, topics)

    def change_users(self, config: WampConfig) -> None:
        """Take the users of another section soon: PBKDF2 takes up to a second for each changed password."""
        self._changing_users.submit(self._change_users, config)

    def _change_users(self, config: WampConfig) -> None:
        try:
            self.router.change_users(config)
        except Exception:  # no thread waits for the result
            log.exception("wamp.users_not_changed")

    def stop_accepting(self) -> None:
        """Refuse new sessions, and publications for the vehicle; existing sessions still get events."""
        self.bridge.refuse_publications()
        self.router.server.stop_accepting()

    def close(self) -> None:
        """Deliver what waits, and end all sessions. May be repeated."""
        self._changing_users.shutdown(wait=False, cancel_futures=True)
        self.router.server.close()

    def deliver(self, batch: VehicleBatch) -> None:
        """Deliver messages of the vehicle."""
        for message in batch.addressed:
            self.bridge.on_addressed_message(message)
        self.bridge.report_dropped(self.router.realm, batch.dropped)
        if len(batch.events) == 1:
            self.bridge.deliver_lone_event(self.router.realm, *batch.events[0])
        else:
            self.bridge.deliver_events(self.router.realm, batch.events)

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        """Refused connections, logins and requests by reason and address. Safe from any thread."""
        return self.router.realm.refusals.counts()

    def gauges(self) -> dict[str, int]:
        """The numbers of sessions and of subscriptions now. Safe from any thread."""
        return {
            "sessions_now": len(self.router.realm.sessions),
            "subscriptions_now": len(self.router.realm.broker),
            "rates_now": len(self.bridge.rates),
            "remote_subscriptions": len(self.bridge.usubscription),
            "unfinished_bytes": self.router.server.unfinished_bytes,
            "pattern_topics_now": self.pattern_subscriptions.topic_count,
            "pattern_topics_waiting": self.pattern_subscriptions.waiting_topic_count,
        }


class LocalSessions(Sessions):
    """The sessions on a thread of the streamer's process: a `ustreamer_wamp.transport.SessionsPort`."""

    def __init__(self, config: WampConfig, place: Place, clock: Clock, vehicle: LocalVehicle) -> None:
        super().__init__(config, place, clock, vehicle)
        self._next_batch = vehicle.next_batch
        self._seen_topics: deque[UUri] = deque()
        self.has_subscriber: Callable[[UUri], bool] = self.bridge.rates.__contains__

    def write_at_once(self, entity: UUri, message: UMessage) -> bool:
        return False  # another thread writes

    def wake(self) -> bool:
        return self.router.server.run_on_loop(self._drain)

    def _drain(self) -> None:
        batch, more = self._next_batch()
        self.deliver(batch)
        if more:
            self.wake()

    def run_soon(self, function: Callable[[], None]) -> None:
        self.router.server.run_after(ROUTES_REBUILD_DELAY_S, function)

    def on_topic_seen(self, topic: UUri) -> None:
        if self.pattern_subscriptions.is_unknown(topic) and len(self._seen_topics) < MAX_SEEN_TOPICS:
            self._seen_topics.append(topic)
            self.router.server.run_on_loop(self._observe_topic)

    def _observe_topic(self) -> None:
        self.pattern_subscriptions.observe(self._seen_topics.popleft())

    @property
    def session_count(self) -> int:
        return len(self.router.realm.sessions)

    def statistics(self) -> Mapping[str, int]:
        return {**self.counts, **self.gauges()}
