# SPDX-License-Identifier: Apache-2.0
"""The endpoint of the sessions: a unicast transport with a subscriber queue for each rate.

    streamer's threads    send(message) --> inbox --.
    loop's thread                                    '--> Vehicle.deliver --> outboxes --> sockets
                          listeners <-- requests of sessions to uSubscription, what clients publish

`send` never waits: it queues the message and wakes the loop, once for all messages queued meanwhile. When the loop is
too slow for all of them, events are dropped here and not in the streamer's queues: see `_conflate_inbox`. So no number
of dashboards delays or fills anything else, and each session gets the number of its dropped events.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from typing import ClassVar, Final, NamedTuple

from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.routing.subscriptions import SubscriptionDirectory
from ustreamer.transport_port import EndpointContext, EndpointTransport, SubscriberEnded
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri, check_filters
from ustreamer_wamp.config import WampEndpoint
from ustreamer_wamp.router import WampRouter
from ustreamer_wamp.vehicle.bridge import VehicleBridge
from ustreamer_wamp.vehicle.pattern_subscriptions import PatternSubscriptions
from ustreamer_wamp.vehicle.patterns import PatternDirectory
from ustreamer_wamp.vehicle.usubscription_client import UsubscriptionClient

MAX_LISTENERS: Final = 256
MAX_INBOX: Final = 65_536
"""Messages queued for the loop at most; a further one drops the oldest event."""
MAX_ADDRESSED: Final = 4_096
"""Of them, Responses and Updates that a dropped event has let pass; further ones stay in the egress queue."""
CONFLATED_INBOX: Final = 32_768
"""Queued messages, a second of work, from which on only the latest event of a topic is kept for each rate."""
MAX_SEEN_TOPICS: Final = 1_024
"""New topics queued for the loop at most; a dropped one is new at its next lookup."""
MAX_DRAIN_BATCH: Final = 2_048
"""Messages taken in one iteration of the loop, which serves clients in between."""
_ROUTES_REBUILD_DELAY_S: Final = 0.02  # all pattern changes within it cost one rebuild of routes


class _Registration(NamedTuple):
    source: UUri
    sink: UUri | None
    listener: Listener

    def matches(self, attributes: UAttributes) -> bool:
        if (attributes.type is UMessageType.PUBLISH) is not (self.sink is None):
            return False
        if not self.source.matches(attributes.source):
            return False
        return self.sink is None or (attributes.sink is not None and self.sink.matches(attributes.sink))


class WampTransport(EndpointTransport):
    """All sessions of the section. Construction touches nothing."""

    unicast: ClassVar[bool] = True
    inline: ClassVar[bool] = True

    def __init__(self, config: WampEndpoint, context: EndpointContext) -> None:
        (self.authority,) = config.authorities
        self._context = context
        self._registrations: tuple[_Registration, ...] = ()
        self._registrations_lock = Lock()
        self._receiving = False
        self._inbox: deque[tuple[UUri, UMessage]] = deque()
        self._drain_scheduled = False
        self._conflates = config.section.outbox.policy == "conflate"
        self._addressed: deque[UMessage] = deque()
        self._dropped: Counter[tuple[UUri, UUri]] = (
            Counter()
        )  # events by uEntity and topic, since the last drain
        self._dropping = Lock()  # held to take messages from the inbox; `append` needs none
        self._on_directory_change: Callable[[], None] = lambda: None
        self._rebuild_scheduled = False
        counts: Counter[str] = Counter()
        self.counts = counts
        self._patterns = PatternDirectory(self._on_patterns_changed, self._on_topic_seen)
        self._seen_topics: deque[UUri] = deque()
        monotonic_ns, wall_ms = context.clock
        ids = UuidSource(wall_ms)
        usubscription = UsubscriptionClient(context.authority, ids, self._dispatch, monotonic_ns, counts)
        self.pattern_subscriptions = PatternSubscriptions(
            usubscription, config.section.max_pattern_topics, context.serves
        )
        self.bridge = VehicleBridge(
            self.authority,
            ids,
            usubscription,
            self.pattern_subscriptions,
            self._patterns,
            self._dispatch,
            context.decoder,
            counts,
        )
        self.router = WampRouter(
            config.section, context.clock, self.bridge, counts=counts, tick=self.bridge.tick
        )

    # --- life -----------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        return self.router.server.problems()

    def open(self) -> None:
        self._receiving = True
        self.router.server.open()
        self.router.server.run_on_loop(self.bridge.usubscription.unsubscribe_stale_sessions, self.authority)
        self.router.server.run_on_loop(self.pattern_subscriptions.configure, self._context.topics())

    def stop_receiving(self) -> None:
        """Refuse new sessions and publications; existing sessions get queued messages."""
        self._receiving = False
        self.router.server.stop_accepting()

    def close(self) -> None:
        self._receiving = False
        # The next start unsubscribes the sessions that end now: uSubscription has stopped.
        self._registrations = ()
        self.router.server.close()

    # --- from the vehicle -----------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        """Queue a message for the session whose uEntity is its sink."""
        sink = message.attributes.sink
        if message.attributes.type is UMessageType.REQUEST:
            raise UStatusError(UCode.UNIMPLEMENTED, f"{sink}: sessions of WAMP have no methods")
        if sink is None:
            raise UStatusError(
                UCode.INVALID_ARGUMENT, f"{message.attributes.type.name} without a sink: no receiver"
            )
        self._enqueue(sink, message)

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        if subscriber is None:
            return self.send

        # Other threads read this set; it is never replaced. Routing is updated some ms after the end of a rate.
        lanes = self.bridge.lanes

        def transmit(message: UMessage) -> None:
            if subscriber not in lanes:
                raise SubscriberEnded(subscriber)
            self._enqueue(subscriber, message)

        return transmit

    def _enqueue(self, entity: UUri, message: UMessage) -> None:
        if len(self._inbox) >= MAX_INBOX:
            self._drop_oldest()
        self._inbox.append((entity, message))
        if not self._drain_scheduled:
            self._drain_scheduled = True
            if not self.router.server.run_on_loop(self._drain_inbox):
                raise UStatusError(UCode.UNAVAILABLE, f"{self._context.name}: closed")

    def _drop_oldest(self) -> None:
        """Drop the oldest event, on any thread. Responses and Updates before it are taken first by the loop."""
        with self._dropping:
            while self._inbox:
                if len(self._addressed) >= MAX_ADDRESSED:
                    raise UStatusError(
                        UCode.UNAVAILABLE, f"{self._context.name}: {MAX_INBOX} messages wait already"
                    )
                entity, message = self._inbox.popleft()
                if message.attributes.type is UMessageType.PUBLISH:
                    self._dropped[entity, message.attributes.source] += 1
                    return
                self._addressed.append(message)

    def _drain_inbox(self) -> None:
        """On the loop's thread: send the queued messages."""
        self._drain_scheduled = False  # first: a message queued from here on wakes the loop again
        inbox, events = self._inbox, []
        with self._dropping:
            if self._conflates and len(inbox) >= CONFLATED_INBOX:
                self._conflate_inbox()
            batch = [inbox.popleft() for _ in range(min(len(inbox), MAX_DRAIN_BATCH))]
            dropped, self._dropped = self._dropped, Counter()
        while self._addressed:
            self.bridge.on_addressed_message(self._addressed.popleft())
        for entity, message in batch:
            if message.attributes.type is UMessageType.PUBLISH:
                events.append((entity, message))
            else:
                self.bridge.on_addressed_message(message)
        self.bridge.report_dropped(self.router.realm, dropped)
        self.bridge.deliver_events(self.router.realm, events)
        if inbox and not self._drain_scheduled:
            self._drain_scheduled = True
            self.router.server.run_on_loop(self._drain_inbox)

    def _conflate_inbox(self) -> None:
        """Keep the latest event of each rate and topic, in order, and every other message."""
        inbox = self._inbox
        latest: dict[Hashable, tuple[UUri, UMessage]] = {}
        for number in range(len(inbox)):
            entity, message = inbox.popleft()
            attributes = message.attributes
            lane = (entity, attributes.source)
            key = lane if attributes.type is UMessageType.PUBLISH else number
            if latest.pop(key, None) is not None:
                self._dropped[lane] += 1
            latest[key] = entity, message
        inbox.extendleft(reversed(latest.values()))

    # --- into the vehicle -----------------------------------------------------------------------------------

    def _dispatch(self, message: UMessage) -> None:
        """Dispatch a message, as if it had been received from a network."""
        if not self._receiving and message.attributes.type is UMessageType.PUBLISH:
            self.counts["refused_stopping"] += 1
            return
        for each in self._registrations:
            if each.matches(message.attributes):
                each.listener(message)
                return

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        check_filters(source_filter, sink_filter)
        registration = _Registration(source_filter, sink_filter, listener)
        with self._registrations_lock:
            if registration in self._registrations:
                return
            if len(self._registrations) >= MAX_LISTENERS:
                raise UStatusError(UCode.RESOURCE_EXHAUSTED, f"{MAX_LISTENERS} listeners are the limit")
            self._registrations = (*self._registrations, registration)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        registration = _Registration(source_filter, sink_filter, listener)
        with self._registrations_lock:
            if registration not in self._registrations:
                raise UStatusError(UCode.NOT_FOUND, f"no such listener for {source_filter}, {sink_filter}")
            self._registrations = tuple(each for each in self._registrations if each != registration)

    # --- patterns -------------------------------------------------------------------------------------------

    def subscription_directory(self, changed: Callable[[], None]) -> SubscriptionDirectory:
        self._on_directory_change = changed
        return self._patterns

    def _on_topic_seen(self, topic: UUri) -> None:
        """On any thread: the router looked up a topic."""
        if (
            self._receiving
            and self.pattern_subscriptions.is_unknown(topic)
            and len(self._seen_topics) < MAX_SEEN_TOPICS
        ):
            self._seen_topics.append(topic)
            self.router.server.run_on_loop(self._observe_topic)

    def _observe_topic(self) -> None:
        self.pattern_subscriptions.observe(self._seen_topics.popleft())

    def _on_patterns_changed(self) -> None:
        if not self._rebuild_scheduled:
            self._rebuild_scheduled = True
            self.router.server.run_after(_ROUTES_REBUILD_DELAY_S, self._notify_directory_change)

    def _notify_directory_change(self) -> None:
        self._rebuild_scheduled = False
        self._on_directory_change()

    # --- reading --------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """Counters, and the numbers of sessions, subscriptions and queued messages."""
        return {
            **_COUNTED,
            **dict(self.counts),
            "sessions_now": len(self.router.realm.sessions),
            "subscriptions_now": len(self.router.realm.broker),
            "remote_subscriptions": len(self.bridge.usubscription),
            "inbox_messages": len(self._inbox),
            "unfinished_bytes": self.router.server.unfinished_bytes,
            "pattern_topics_now": self.pattern_subscriptions.topic_count,
            "pattern_topics_waiting": self.pattern_subscriptions.waiting_topic_count,
        }


_COUNTED: Final = dict.fromkeys(
    (
        "accept_failures",
        "connections",
        "events_conflated",
        "events_dropped",
        "events_no_subscriber",
        "evicted",
        "input_pauses",
        "message_timeouts",
        "refused_control_frames",
        "refused_frame",
        "refused_handshake",
        "refused_hello_bytes",
        "refused_login_limit",
        "refused_meta_api",
        "refused_source",
        "refused_tls_handshake",
        "refused_too_many",
        "sessions",
    ),
    0,
)
