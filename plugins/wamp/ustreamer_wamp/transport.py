# SPDX-License-Identifier: Apache-2.0
"""The endpoint of the sessions: a unicast transport with a subscriber queue for each rate.

    streamer's threads    send(message) --> inbox --.
    sessions (SessionsPort)                          '--> next_batch --> outboxes --> sockets
                          listeners <-- dispatch <-- requests of sessions to uSubscription, what clients publish

`send` never waits: it queues the message and wakes the sessions, once for all messages queued meanwhile. When they are
too slow for all messages, events are dropped here and not in the streamer's queues: see `next_batch`. So no number of
dashboards delays or fills anything else, and each session gets the number of its dropped events.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import ClassVar, Final, Protocol

from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.routing.listener_table import ListenerTable
from ustreamer.core.routing.subscriptions import SubscriptionDirectory
from ustreamer.transport_port import EndpointContext, EndpointTransport, SubscriberEnded, Unconfirmed
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import UUri
from ustreamer_wamp.config import Place, WampConfig
from ustreamer_wamp.endpoint import WampEndpoint
from ustreamer_wamp.vehicle.batch import VehicleBatch, VehicleEvent
from ustreamer_wamp.vehicle.patterns import PatternDirectory

log = logging.getLogger("ustreamer.wamp")

MAX_INBOX: Final = 65_536
"""Messages queued at most, and events of all sessions; a further one drops the oldest event."""
MAX_ADDRESSED: Final = 4_096
"""Of them, Responses and Updates that a dropped event has let pass; further ones stay in the egress queue."""
CONFLATED_EVENTS: Final = 32_768
"""Queued messages for each session, a second of work: from here on the latest event of a topic is kept for each rate."""
MAX_BATCH: Final = 2_048
"""Queued messages for each session that the sessions take at once; they serve clients in between."""


class SessionsPort(Protocol):
    """The sessions, in this process (`sessions.LocalSessions`) or in another one (`process.parent.SessionsProcess`)."""

    @property
    def has_subscriber(self) -> Callable[[UUri], bool]:
        """Returns whether a uEntity of a rate still exists. Any thread calls it for each event."""
        ...

    @property
    def write_at_once(self) -> Callable[[UUri, UMessage], bool]:
        """Writes a publication for a rate without the inbox, which is empty; False if it is for the inbox."""
        ...

    def open(self, topics: Collection[UUri]) -> None:
        """Listen. `topics` are those of the configuration. Raises UStatusError."""
        ...

    def stop_accepting(self) -> None:
        """Refuse new sessions and publications. At its end the accepted publications have been dispatched.

        Those that come later, because the sessions are too slow, are `publications_lost`.
        """
        ...

    def change_users(self, config: WampConfig) -> None:
        """Take the users of another section; sessions that they do not permit end soon."""
        ...

    def close(self) -> None:
        """Deliver what waits, and end all sessions. May be repeated."""
        ...

    def wake(self) -> bool:
        """Messages wait in the inbox; False if the sessions are closed."""
        ...

    def run_soon(self, function: Callable[[], None]) -> None:
        """Run a call after a change of patterns; all changes until then cost one call."""
        ...

    def on_topic_seen(self, topic: UUri) -> None:
        """The router has looked up a topic, on any thread."""
        ...

    @property
    def session_count(self) -> int: ...

    def statistics(self) -> Mapping[str, int]:
        """Counters, and the numbers of sessions and subscriptions."""
        ...

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        """Refused connections, logins and requests by reason and address."""
        ...


class WampTransport(EndpointTransport):
    """All sessions of the section. Construction touches nothing."""

    unicast: ClassVar[bool] = True
    inline: ClassVar[bool] = True
    loss_counters: ClassVar[Sequence[str]] = ("publications_lost",)

    def __init__(self, config: WampEndpoint, context: EndpointContext) -> None:
        (self.authority,) = config.authorities
        self._context = context
        self._listeners = ListenerTable(self, context.authority, self._on_listener_error)
        self._receiving = False
        self._dispatching = True
        self._inbox: deque[VehicleEvent] = deque()
        self._drain_scheduled = False
        self._conflates = config.section.outbox.policy == "conflate"
        self._addressed: deque[UMessage] = deque()
        # Events by uEntity and topic, since the last batch.
        self._dropped: Counter[tuple[UUri, UUri]] = Counter()
        self._dropping = Lock()  # held to take messages from the inbox; `append` needs none
        self._on_directory_change: Callable[[], None] = lambda: None
        self._rebuild_scheduled = False
        self._on_link_change: Callable[[bool], None] = lambda up: None
        self.counts: Counter[str] = Counter()
        self.patterns = PatternDirectory(self._on_patterns_changed, self._on_topic_seen)
        self.decoder = context.decoder
        self._section = config.section
        self.sessions = self._make_sessions(config.section)

    def _make_sessions(self, section: WampConfig) -> SessionsPort:
        """Only one of the two is imported: a streamer with a process of its own for the sessions has no asyncio."""
        context = self._context
        place = Place(self.authority, context.authority, context.serves)
        if section.process:
            from ustreamer_wamp.process.parent import SessionsProcess

            return SessionsProcess(section, place, self, context.clock.monotonic_ns)
        from ustreamer_wamp.sessions import LocalSessions

        return LocalSessions(section, place, context.clock, self)

    # --- life -----------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        from ustreamer_wamp.connections.server import problems  # with asyncio: imported by `check` only

        return problems(self._section)

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        """The link is the process of the sessions; in this process there is none."""
        self._on_link_change = changed

    def on_process_change(self, up: bool) -> None:
        """The process of the sessions runs, or has ended."""
        if not up:
            self.patterns.clear()
        self._on_link_change(up)

    def open(self) -> None:
        self._receiving = True
        self.sessions.open(self._context.topics())

    def reconfigure(self, config: WampEndpoint) -> None:
        """The plugin has permitted the change: users, anonymous clients, and access rules, which the router reads."""
        self._section = config.section
        self.sessions.change_users(config.section)

    def stop_receiving(self) -> None:
        """Refuse new sessions and publications; existing sessions get queued messages."""
        self.sessions.stop_accepting()
        self._receiving = False

    def finish(self) -> Unconfirmed:
        """Close: the sessions may have accepted publications that come only now, and the last report counts them."""
        self.close()
        return Unconfirmed()

    def close(self) -> None:
        self._receiving = False
        # The next start unsubscribes the sessions that end now: uSubscription has stopped.
        self._dispatching = False
        self.sessions.close()
        self._drain_scheduled = False  # a drain that was scheduled too late does not run

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

        inbox, write_at_once = self._inbox, self.sessions.write_at_once
        has_subscriber = self.sessions.has_subscriber

        def transmit(message: UMessage) -> None:
            if not inbox and write_at_once(subscriber, message):
                return
            if not has_subscriber(subscriber):  # routing is updated some ms after the end of a rate
                raise SubscriberEnded(subscriber)
            self._enqueue(subscriber, message)

        return transmit

    def _enqueue(self, entity: UUri, message: UMessage) -> None:
        if len(self._inbox) >= MAX_INBOX:
            self._drop_oldest()
        event = (entity, message, None)
        self._inbox.append(event)
        if not self._drain_scheduled:
            self._drain_scheduled = True
            if not self.sessions.wake():
                self._drain_scheduled = False  # else the next message would seem to be delivered
                with suppress(ValueError):
                    self._inbox.remove(event)
                raise UStatusError(UCode.UNAVAILABLE, f"{self._context.name}: closed")

    def _drop_oldest(self) -> None:
        """Drop the oldest event, on any thread. Responses and Updates before it are taken first by the loop."""
        with self._dropping:
            while self._inbox:
                if len(self._addressed) >= MAX_ADDRESSED:
                    raise UStatusError(
                        UCode.UNAVAILABLE, f"{self._context.name}: {MAX_INBOX} messages wait already"
                    )
                entity, message, _ = self._inbox.popleft()
                if message.attributes.type is UMessageType.PUBLISH:
                    self._dropped[entity, message.attributes.source] += 1
                    return
                self._addressed.append(message)

    def next_batch(self) -> tuple[VehicleBatch, bool]:
        """The messages that wait for the sessions, and whether there are more, so that `wake` is not called for them."""
        self._drain_scheduled = False  # first: a message queued from here on wakes the sessions again
        inbox, events = self._inbox, []
        sessions = max(1, self.sessions.session_count)
        with self._dropping:
            if not self._conflates:
                self._drop_events_above(max(1, MAX_INBOX // sessions))
            elif len(inbox) * sessions >= CONFLATED_EVENTS:
                self._conflate_inbox()
            batch = [inbox.popleft() for _ in range(min(len(inbox), max(1, MAX_BATCH // sessions)))]
            dropped, self._dropped = self._dropped, Counter()
            addressed = list(self._addressed)
            self._addressed.clear()
        for event in batch:
            if event[1].attributes.type is UMessageType.PUBLISH:
                events.append(event)
            else:
                addressed.append(event[1])
        more = bool(inbox) and not self._drain_scheduled
        if more:
            self._drain_scheduled = True
        return VehicleBatch(addressed, dropped, events), more

    def _drop_events_above(self, most: int) -> None:
        """Drop the oldest events above a number of messages; each message is one event for each session."""
        others: list[VehicleEvent] = []
        while self._inbox and len(self._inbox) + len(others) > most:
            event = self._inbox.popleft()
            if event[1].attributes.type is UMessageType.PUBLISH:
                self._dropped[event[0], event[1].attributes.source] += 1
            else:
                others.append(event)
        self._inbox.extendleft(reversed(others))

    def _conflate_inbox(self) -> None:
        """Keep the latest event of each rate and topic, in order, and every other message."""
        inbox = self._inbox
        latest: dict[Hashable, VehicleEvent] = {}
        for number in range(len(inbox)):
            event = inbox.popleft()
            entity, attributes = event[0], event[1].attributes
            rate_and_topic = (entity, attributes.source)
            key = rate_and_topic if attributes.type is UMessageType.PUBLISH else number
            if latest.pop(key, None) is not None:
                self._dropped[rate_and_topic] += 1
            latest[key] = event
        inbox.extendleft(reversed(latest.values()))

    # --- into the vehicle -----------------------------------------------------------------------------------

    def dispatch(self, message: UMessage) -> bool:
        """Dispatch a message, as if it had been received from a network. An exception of a listener is counted."""
        if not self._receiving and message.attributes.type is UMessageType.PUBLISH:
            self.counts["publications_lost"] += 1
            return True
        if self._dispatching:
            self._listeners.deliver(message)
        return True

    def _on_listener_error(self, error: BaseException, message: UMessage) -> None:
        """Log the first error of its type."""
        extra = {"endpoint": self._context.name, "message_id": str(message.id)}
        log.error("wamp.listener_failed", exc_info=error, extra=extra)

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.register(source_filter, sink_filter, listener)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.unregister(source_filter, sink_filter, listener)

    # --- patterns -------------------------------------------------------------------------------------------

    def subscription_directory(self, changed: Callable[[], None]) -> SubscriptionDirectory:
        self._on_directory_change = changed
        return self.patterns

    def _on_topic_seen(self, topic: UUri) -> None:
        """On any thread: the router looked up a topic."""
        if self._receiving:
            self.sessions.on_topic_seen(topic)

    def _on_patterns_changed(self) -> None:
        if not self._rebuild_scheduled:
            self._rebuild_scheduled = True
            self.sessions.run_soon(self._notify_directory_change)

    def _notify_directory_change(self) -> None:
        self._rebuild_scheduled = False
        self._on_directory_change()

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        return self.sessions.refused_by_peer()

    # --- reading --------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """Counters, and the numbers of sessions, subscriptions and queued messages."""
        counts = Counter(self.counts)
        counts.update(self.sessions.statistics())
        counts["listener_errors"] += self._listeners.listener_errors
        return {**_COUNTED, **counts, "inbox_messages": len(self._inbox)}


_COUNTED: Final = dict.fromkeys(
    (
        "accept_failures",
        "authentications_denied",
        "connections",
        "events_conflated",
        "events_dropped",
        "events_no_subscriber",
        "evicted",
        "input_pauses",
        "listener_errors",
        "log_lines_dropped",
        "message_timeouts",
        "pattern_topics_now",
        "pattern_topics_waiting",
        "publications_lost",
        "rates_now",
        "refused_control_frames",
        "refused_frame",
        "refused_handshake",
        "refused_hello_bytes",
        "refused_login_limit",
        "refused_meta_api",
        "refused_overload",
        "refused_source",
        "refused_stopping",
        "refused_tls_handshake",
        "refused_too_many",
        "remote_subscriptions",
        "sessions",
        "sessions_revoked",
        "sessions_now",
        "subscriptions_now",
        "tick_errors",
        "unfinished_bytes",
    ),
    0,
)
