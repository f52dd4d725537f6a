# SPDX-License-Identifier: Apache-2.0
"""The composition root: builds endpoints, queues, services and the dispatcher from a configuration, starts and stops
them.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
import pluggy

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.decoder import Decoder
from ustreamer.core.base.intrusions import IntrusionMonitor
from ustreamer.core.base.links import LinkStates
from ustreamer.core.base.recent_failures import RisingCounters, refusals_of
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.delivery.ports import Filter, Tap
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.forwarding import PeerForwarding
from ustreamer.core.peers.topic_advertisements import MAX_OWN_ADVERTISEMENTS
from ustreamer.core.routing.access import AccessPolicy
from ustreamer.core.routing.forwarding import FORWARD_ALL, ForwardingPolicy
from ustreamer.core.routing.identity import Peer
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.router import SELF, AuthorityTable, Router, RoutingDecision
from ustreamer.core.routing.subscriptions import (
    Change,
    DirectoryBehind,
    StaticDirectory,
    Subscription,
    SubscriptionDirectory,
    merge_directories,
)
from ustreamer.hooks import HostedService, OfflineRouting, PluginContext, StreamerSettings
from ustreamer.host.admin.status import (
    EndpointStatus,
    Redriven,
    StoppedTopic,
    StreamerRoutes,
    StreamerStatistics,
)
from ustreamer.host.admin.ustreamer_service import UStreamerService
from ustreamer.host.config.config import (
    ConfiguredAuthorities,
    StreamerConfig,
    authorities_by_endpoint,
    configured_addresses,
    endpoint_by_authority,
    served_authorities,
    sibling_authorities,
)
from ustreamer.host.egress.endpoint_queue import EndpointQueue, EndpointQueueStatistics
from ustreamer.host.runtime import logs, plugins
from ustreamer.host.runtime.advertiser import PeerWatcher, SubscribedTopics, TopicAdvertiser
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.draining import (
    STOPPED,
    counted_losses,
    drain,
    reclaim_unconfirmed,
    stop_summary,
)
from ustreamer.host.runtime.late_subscribers import LateSubscribers
from ustreamer.host.runtime.listener_filters import EndpointListeners
from ustreamer.host.runtime.recent_events import RecentEvents
from ustreamer.host.runtime.redrive import Redriver
from ustreamer.host.runtime.reload import (
    ReloadRefused,
    changed_endpoints,
    changed_keys,
    changed_plugins,
    keys_needing_restart,
)
from ustreamer.host.runtime.sent_messages import DurableSentStore, ReceivedMessages, SentMessages
from ustreamer.host.runtime.threads import TimerThread
from ustreamer.host.storage.dead_letter_store import DIRECTORY, DeadLetterStore
from ustreamer.host.storage.dead_letter_writer import DeadLetterWriter
from ustreamer.host.storage.pause_file import PauseFile
from ustreamer.transport_port import (
    BoundAddress,
    EndpointContext,
    EndpointTransport,
    PeerTopicTransport,
    ReceivingThread,
    TransportKind,
)
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.host.observe.snapshot import EndpointSource, MetricsSnapshot
    from ustreamer.host.runtime.audit import AuditLog
    from ustreamer.host.runtime.evidence import DiagnosisSources
    from ustreamer.host.runtime.top_stream import TopSources

log = logging.getLogger("ustreamer.streamer")

_NS_PER_S: Final = 1_000_000_000
SPOOL: Final = "spool"
"""The directory in `state_dir` with the spools of durable endpoints."""
# For a thread to end after a stop request: longer than any internal wait, shorter than a supervisor's.
_JOIN_S: Final = 2.0
_SAFE_POLL_S: Final = 0.005


class Streamer:
    """The whole dispatcher in one object: call `start`, then messages flow, then call `stop`. Not reusable."""

    def __init__(
        self,
        config: StreamerConfig,
        kinds: Mapping[str, TransportKind],
        plugin_classes: Mapping[str, type],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Build all objects without side effects outside the process. Raises PluginError or UStatusError."""
        self._config = config
        self._clock = clock
        self.audit: AuditLog | None = None
        """Set before `start`: who subscribed and who was denied."""
        self._timers = TimerThread(clock)
        self.intrusions = IntrusionMonitor()
        self._refusals = RisingCounters(self._clock.wall_ms)
        authorities = endpoint_by_authority(config)
        # Replaced below, with the hosted services.
        self._authority_table = AuthorityTable(authorities)
        self._links = LinkStates(self._endpoint_of)
        self._peers = PeerRouters(config.authority, os.urandom(8).hex())
        self._peers.configure(authorities_by_endpoint(config))
        self.context = PluginContext(
            authority=config.authority,
            serves=served_authorities(config, kinds),
            state_dir=config.state_dir,
            clock=clock,
            schedule=self._timers.schedule,
            links=self._links,
            authorities=ConfiguredAuthorities(lambda: self._config),
            ledger=self.ledger,
            peer_of=self._peer_of,
        )
        self._plugins = plugins.instance_plugin_manager(plugin_classes, config.plugins, self.context)
        services = plugins.hosted_services(self._plugins)
        network = LocalNetwork()
        self._bus = LocalTransport(network, config.authority)
        internal_transport = LocalTransport(network, config.authority, refuses_requests_without_listener=True)
        self.transports: dict[str, EndpointTransport] = {SELF: internal_transport}
        for name, section in config.endpoints.items():
            self.transports[name] = kinds[section.transport].factory(section, self._endpoint_context(name))
        self._configured_subscriptions = StaticDirectory(self._subscriptions_of_transports())
        self._pause_file = PauseFile(config.state_dir)
        self._paused = PausedDirectory(self._build_directory(), self._pause_file.save)
        ustreamer_service = UStreamerService(config.authority, clock, self, self._paused, self._on_paused)
        self._services: Sequence[HostedService] = [ustreamer_service, *services]
        self._hosted = [entity for service in self._services for entity in service.entities]
        self._authority_table = AuthorityTable(authorities, self._hosted)
        self._advertiser = TopicAdvertiser(self._peers, self.transports, clock, self._timers.schedule)
        self._advertisements = self._advertiser.advertisements
        self._egress_queues: dict[str, EndpointQueue] = {}
        self.events = RecentEvents()
        store = DeadLetterStore(config.state_dir / DIRECTORY, config.dead_letters, self.context.stores)
        self._dead_letter_writer = DeadLetterWriter(store, config.dead_letters)
        self._since_ms = self._loaded_ms = clock.wall_ms()
        self.unconfirmed = 0
        """After a stop: sent messages that may not have arrived and are not on disk."""
        self.dispatcher = self._build_dispatcher(config)
        self._subscribed_topics = SubscribedTopics(self._share_topic, clock, self._timers.schedule)
        self._peer_watcher = PeerWatcher(
            self._peers,
            self._advertiser,
            self.dispatcher,
            self._subscribed_topics,
            self._links,
            self.events,
            self._endpoint_of,
            clock,
        )
        self._late_subscribers = LateSubscribers(
            self.dispatcher, self.transports, self._endpoint_of, clock, self._timers.schedule
        )
        self._redriver = Redriver(store, self.dispatcher, self.transports.keys(), clock)
        for name in self.transports:
            self._egress_queues[name] = self._build_egress_queue(name, config)
        self._restored_ids: list[dict[str, list[UUID]]] = []
        self._keep_received(config)
        self.listeners = EndpointListeners(
            self.transports,
            lambda name: self._egress_queues[name].listener(self.dispatcher.ingress(name)),
            authorities_by_endpoint(config),
            self._hosted,
        )
        self._kinds = kinds

    def _endpoint_context(self, name: str) -> EndpointContext:
        config = self._config
        return EndpointContext(
            name,
            config.authority,
            self._clock,
            self.decoder,
            self.context.serves,
            self._configured_topics,
            self._peers.local_id.instance,
            sibling_authorities(config, name),
            config.state_dir,
            self.context.stores,
        )

    def _build_egress_queue(self, name: str, config: StreamerConfig) -> EndpointQueue:
        transport, limits, dispatcher = self.transports[name], config.limits(name), self.dispatcher
        if name == SELF or not config.endpoints[name].durable:
            return EndpointQueue(
                name, transport, limits, self._clock, dispatcher.on_undelivered, expiry=dispatcher.expiry
            )
        # With the spool. Most configurations have no durable endpoint.
        from ustreamer.host.egress.durable_queue import DurableQueue

        queue = DurableQueue(
            name,
            transport,
            limits,
            self._clock,
            dispatcher.on_undelivered,
            config.state_dir / SPOOL / name,
            lambda ingress, topic, subscriber: dispatcher.restored_delivery(ingress, name, topic, subscriber),
            expiry=dispatcher.expiry,
            stores=self.context.stores,
        )
        messages = SentMessages(dispatcher, queue, self._ingress_of)
        transport.keep_unconfirmed(DurableSentStore(queue, messages))
        return queue

    def _keep_received(self, config: StreamerConfig) -> None:
        """Give each durable endpoint the file for the ids of its received messages."""
        durable = [name for name, section in config.endpoints.items() if section.durable]
        if not durable:
            return
        from ustreamer.host.egress.durable_queue import DurableQueue
        from ustreamer.host.storage.received_ids import DIRECTORY as RECEIVED
        from ustreamer.host.storage.received_ids import ReceivedIdFile

        queues = [each for each in self._egress_queues.values() if isinstance(each, DurableQueue)]
        self._restored_ids = [each.restored_ids for each in queues]
        for name in durable:
            path, stores = config.state_dir / RECEIVED / name, self.context.stores
            file = ReceivedIdFile(path, self._clock.monotonic_ns, stores)
            self.transports[name].keep_received(ReceivedMessages(name, file, queues))

    def _endpoint_of(self, authority: str) -> str | None:
        return self._authority_table.endpoint_of_authority(authority)

    def _invalidate_routes(self) -> None:
        self.dispatcher.invalidate_routes()

    def _on_dead_letter(self, letter: DeadLetter) -> None:
        self.events.on_letter(letter)
        self._dead_letter_writer.enqueue_letter(letter)

    def _on_denied(self, endpoint: str, attributes: UAttributes, decision: RoutingDecision) -> None:
        if self.audit is not None:
            peer = self.dispatcher.router.peer_at(endpoint, attributes.source)
            self.audit.on_denied(endpoint, attributes, decision, peer)

    def _on_subscription(self, subscription: Subscription, change: Change) -> None:
        if self.audit is not None:
            self.audit.on_subscription(subscription, change, self._peer_of(subscription.subscriber))

    def _on_paused(self, topic: UUri) -> None:
        self.events.on_stopped(topic, self._clock.wall_ms())
        self.dispatcher.update_paused(topic)
        for queue in self._egress_queues.values():
            queue.retry_paused()

    def _build_directory(self) -> SubscriptionDirectory:
        return self._with_configured_subscriptions(self._plugins.hook.ustreamer_subscription_directory())

    def _subscriptions_of_transports(self) -> Iterator[Subscription]:
        """The subscriptions from the configuration of the endpoints."""
        for transport in self.transports.values():
            yield from transport.subscriptions()

    def _with_configured_subscriptions(
        self, directories_found: Iterable[SubscriptionDirectory]
    ) -> SubscriptionDirectory:
        directories = [*directories_found, self._configured_subscriptions]
        transport_directories = (
            transport.subscription_directory(self._invalidate_routes)
            for transport in self.transports.values()
        )
        return merge_directories(directories, [each for each in transport_directories if each is not None])

    def decoder(self, topic: UUri) -> Decoder | None:
        """The decoder of a plugin for payloads of `topic`, for display only. Routing never uses it."""
        found: list[Decoder] = self._plugins.hook.ustreamer_decoders(topic=topic)
        return found[0] if found else None

    def _configured_topics(self) -> list[UUri]:
        """The topics that the configuration names, of all endpoints."""
        return [topic for transport in self.transports.values() for topic in transport.topics()]

    def router_with(self, directories: Iterable[SubscriptionDirectory]) -> Router:
        """A router as the streamer's own, with other subscriptions in addition to the configured ones."""
        return self._build_router(
            self._config, self._authority_table, self._with_configured_subscriptions(directories)
        )

    def offline_routing(self, directory: SubscriptionDirectory) -> OfflineRouting:
        """The routing of this configuration without peers, with these subscriptions in addition to the configured ones.

        Without a plugin that holds subscriptions, only those of endpoints with a directory of their own can exist.
        """
        if not any(plugins.holds_subscriptions(each) for _, each in self._plugins.list_name_plugin()):
            holders = {
                name
                for name, transport in self.transports.items()
                if transport.subscription_directory(self._invalidate_routes) is not None
            }
            directory = DirectoryBehind(directory, holders, self._authority_table.endpoint_of)
        merged = self._with_configured_subscriptions([directory])
        return OfflineRouting(
            self._build_router(self._config, self._authority_table, merged, FORWARD_ALL),
            self._unicast(),
            self._filters,
            {name: self._config.limits(name) for name in self.transports},
            frozenset(
                name
                for name, section in self._config.endpoints.items()
                if type(self.transports[name]).subscriptions is not EndpointTransport.subscriptions
                and not self._kinds[section.transport].provides_usubscription(section)
            ),
            lambda name, topic: name not in self.transports or self.transports[name].receives_topic(topic),
            lambda name, method: (
                self.transports[name].knows_method(method) if name in self.transports else None
            ),
        )

    def _build_router(
        self,
        config: StreamerConfig,
        authority_table: AuthorityTable,
        directory: SubscriptionDirectory | None = None,
        forwarding: ForwardingPolicy | None = None,
    ) -> Router:
        unicast = self._unicast()
        access = {
            name: AccessPolicy(name, each.access) for name, each in config.endpoints.items() if each.access
        }
        broadcast_topics = self._broadcast_topics()
        forwarding = forwarding or PeerForwarding(
            self._peers, self._advertisements, authority_table, unicast, broadcast_topics
        )
        return Router(
            authority_table,
            directory or self._paused,
            unicast,
            access,
            forwarding,
            {
                name: each.identities_of
                for name, each in config.endpoints.items()
                if each.known_identities() is not None
            },
            plugins.authorisation(self._plugins),
            broadcast_topics,
        )

    def _broadcast_topics(self) -> Collection[UUri]:
        return list(chain.from_iterable(self._plugins.hook.ustreamer_broadcast_topics()))

    def _peer_of(self, source: UUri) -> Peer:
        return self.dispatcher.router.peer_of(source)

    def _unicast(self) -> dict[str, bool]:
        return {name: transport.unicast for name, transport in self.transports.items()}

    def _filters(self, delivery: Delivery) -> Iterable[Filter]:
        found: list[Filter] = self._plugins.hook.ustreamer_filters(delivery=delivery)
        return found

    def _build_dispatcher(self, config: StreamerConfig) -> Dispatcher:
        hook = self._plugins.hook

        def taps(endpoint: str) -> Iterable[Tap]:
            found: list[Tap] = hook.ustreamer_taps(endpoint=endpoint)
            return found

        return Dispatcher(
            config.authority,
            self._clock,
            self._build_router(config, self._authority_table),
            self._egress_queues,
            filters=self._filters,
            taps=taps,
            schedule=self._timers.schedule,
            on_dead_letter=self._on_dead_letter,
            on_denied=self._on_denied,
            dedup_windows={name: each.duplicate_window for name, each in config.endpoints.items()},
        )

    # --- life cycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start services first, then egress queues, then transports, so that every received message can be dispatched.

        Raises UStatusError naming the endpoint that failed to open; all others are closed again.
        """
        try:
            self._plugins.hook.ustreamer_configured(settings=self._settings(self._config))
            self._watch_subscriptions()
            self._timers.start()
            self._dead_letter_writer.start()
            self.dispatcher.watch_clock()
            self._write_due_log_lines()
            self.listeners.register()
            self._watch_links()
            self._bus.open()
            self.transports[SELF].open()
            self._paused.restore(self._pause_file.load())
            self._restore()
            for service in self._services:
                service.start(self._bus)
            for queue in self._egress_queues.values():
                queue.start()
            for transport in self.transports.values():
                transport.open()
            for ids in self._restored_ids:  # read by the transports
                ids.clear()
            self._watch_intrusions()
            self._peer_watcher.announce()
            self._subscribed_topics.share_all()  # again: only an open transport can prepare
            self._prepare_broadcasts()
            self._plugins.hook.ustreamer_started(dispatcher=self.dispatcher)
        except BaseException:
            self._close()
            raise
        log.info(
            "streamer.started",
            extra={"authority": self._config.authority, "endpoints": sorted(self._config.endpoints)},
        )

    def _prepare_broadcasts(self) -> None:
        """Let endpoints look for listeners of the broadcast topics before the first message."""
        router = self.dispatcher.router
        for topic in self._broadcast_topics():
            for name in router.broadcast_endpoints(topic):
                self.transports[name].prepare_topic(topic)

    def _write_due_log_lines(self) -> None:
        """Write the log lines that their limit held back, now and every second from now on."""
        logs.write_due()
        self._timers.schedule(self._clock.monotonic_ns() + _NS_PER_S, self._write_due_log_lines)

    def _watch_intrusions(self) -> None:
        """Report peers that are refused often, now and every second from now on."""
        now_ns = self._clock.monotonic_ns()
        self._timers.schedule(now_ns + _NS_PER_S, self._watch_intrusions)  # first: a transport may raise
        by_peer = {each.name: dict(each.denied_by_authority.counts()) for each in self.dispatcher.ingresses()}
        for name, transport in self.transports.items():
            by_peer[name].update(transport.refused_by_peer())
        counters = self.endpoints()
        self.intrusions.observe(counters, by_peer, now_ns, self._clock.wall_ms())
        for name, counts in counters.items():
            self._refusals.observe(name, refusals_of(counts))

    def _restore(self) -> None:
        """Queue the messages of earlier processes first: no new message may overtake them."""
        for queue in self._egress_queues.values():
            queue.restore()
        directory = self._config.state_dir / SPOOL
        for path in sorted(directory.iterdir()) if directory.exists() else ():
            section = self._config.endpoints.get(path.name)
            if path.is_dir() and "." not in path.name and (section is None or not section.durable):
                log.warning("streamer.spool_unused", extra={"spool": str(path)})

    def _settings(self, config: StreamerConfig) -> StreamerSettings:
        return StreamerSettings({name: config.limits(name) for name in self.transports}, config.plugins)

    def _watch_subscriptions(self) -> None:
        if self.audit is not None:
            self._paused.watch(self._on_subscription)
        for watch in self._plugins.hook.ustreamer_subscription_watch():
            self._paused.watch(plugins.isolated(watch))
        self._paused.watch_subscribes(self._late_subscribers.on_subscribe)
        if any(isinstance(each, PeerTopicTransport) for each in self.transports.values()):
            self._paused.watch(self._subscribed_topics.on_subscription, MAX_OWN_ADVERTISEMENTS)

    def _share_topic(self, topic: UUri) -> bool:
        """Share `topic` with peers, and prepare the endpoints of its targets; whether it has targets.

        A topic from a unicast endpoint is not shared: this streamer may not receive it yet.
        """
        home = self._endpoint_of(topic.authority_name)
        if home is None:
            return False
        targets = self.dispatcher.share_topic(topic, with_peers=not self.transports[home].unicast)
        for each in targets:
            self.transports[each.endpoint].prepare_topic(topic)
        return bool(targets)

    def _watch_links(self) -> None:
        for name, transport in self.transports.items():
            transport.watch_link(partial(self._on_link_change, name))
            transport.watch_routes(self._egress_queues[name].on_route_open)
        self._peer_watcher.watch()

    def _on_link_change(self, name: str, up: bool) -> None:
        if up is not self._links.state_of_endpoint(name).up:
            self.events.on_link_change(name, self._clock.wall_ms())
        if up:
            self._peer_watcher.on_link_up(name)
            # Before plugins: queued messages must not depend on a plugin that watches links.
            self._egress_queues[name].on_link_up()
        self._links.set_state(name, up=up)

    # --- reload ------------------------------------------------------------------------------------------------------

    def reload(self, config: StreamerConfig) -> list[str]:
        """Apply another configuration; returns the changed keys. Not reentrant, and not during a stop.

        The switch is one step for all endpoints: messages received before it end on their old route. Raises
        ReloadRefused naming each key that needs a restart, and UStatusError if a transport refuses a listener. Then
        nothing has changed.
        """
        refused = keys_needing_restart(self._config, config, self._kinds)
        plugin_changes = []
        for name, section in changed_plugins(self._config, config).items():
            try:
                plugin_changes.append(plugins.prepare_reconfigure(self._plugins, name, section))
            except ValueError as error:
                refused.append(f"plugins.{name}: {error}")
        if refused:
            raise ReloadRefused(refused)
        authority_table = AuthorityTable(endpoint_by_authority(config), self._hosted)

        def change() -> None:
            for apply in plugin_changes:
                apply()
            self._configured_subscriptions.replace_all(self._subscriptions_of_transports())
            for name, queue in self._egress_queues.items():
                queue.set_limits(config.limits(name))
            self._authority_table = authority_table
            self._peers.configure(authorities_by_endpoint(config))
            self._advertisements.withdraw_all(self._clock.monotonic_ns())
            try:
                self._plugins.hook.ustreamer_configured(settings=self._settings(config))
            except Exception:
                # A defect in a plugin. The other plugins keep the settings they received.
                log.exception("plugins.failed", extra={"hook": "ustreamer_configured"})

        with self.listeners.switched(authorities_by_endpoint(config)):
            for name, endpoint in changed_endpoints(self._config, config, self._kinds).items():
                self.transports[name].reconfigure(endpoint)
            self.dispatcher.swap_router(self._build_router(config, authority_table), change)
        self._subscribed_topics.share_all()
        self.dispatcher.set_loop_endpoints(self._peers.loop_endpoints())
        self._peer_watcher.announce()
        changed = changed_keys(self._config, config)
        self._config = config
        self._loaded_ms = self._clock.wall_ms()
        log.info("streamer.reloaded", extra={"changed": changed})
        return changed

    def stop(self, drain_s: float = 5.0) -> int:
        """Stop receiving, send the accepted messages, close; returns the number of messages unsent after `drain_s`.

        Unsent messages become dead letters, and their requesters get UNAVAILABLE. Blocked messages become dead letters
        too, but the stop does not wait for them or count them. Messages of a durable queue on disk stay there for the
        next start and are not counted. Neither are sent messages that may not have arrived: see `unconfirmed`.
        """
        deadline_ns = self._clock.monotonic_ns() + round(drain_s * _NS_PER_S)
        try:
            self._advertiser.hand_over()
            # SOME/IP, which is inline, last: a stopped transport accepts no calls whose responses it could not read.
            for name in sorted(self.transports, key=lambda name: self.transports[name].inline):
                if name != SELF:  # hosted services still respond to accepted requests
                    self.transports[name].stop_receiving()
            self._plugins.hook.ustreamer_stopping()
            self._egress_queues[SELF].wait_empty(deadline_ns)
            for service in self._services:
                service.stop()
            unsent = drain(
                self.dispatcher, list(self._egress_queues.values()), self._clock.monotonic_ns, deadline_ns
            )
            self.unconfirmed = reclaim_unconfirmed(
                self.dispatcher, self._egress_queues, self.transports, self._ingress_of
            )
            persisted = sum(queue.persisted for queue in self._egress_queues.values())
            endpoints = self.endpoints()
        finally:
            self._close()
        self.dispatcher.dead_letters.abandon_rest()
        counts = self.ledger()
        ledger = msgspec.to_builtins(counts)
        losses = counted_losses(self.transports, endpoints)
        logs.write_due(at_end=True)
        log.info(
            "streamer.stopped",
            extra={
                logs.SUMMARY: stop_summary(counts, unsent, self.unconfirmed, persisted, losses),
                "unsent": unsent,
                "unconfirmed": self.unconfirmed,
                "persisted": persisted,
                "ledger": ledger,
                "losses": losses,
                "endpoints": endpoints,
                "dead_letters": self._dead_letter_statistics(),
            },
        )
        return unsent

    def _ingress_of(self, source: UUri) -> str:
        """The endpoint that messages of this source come from."""
        return self._authority_table.endpoint_of(source) or SELF

    def _close(self) -> None:
        """Close everything. A failure leaves nothing else open, and is raised at the end."""
        with ExitStack() as last_first:
            last_first.callback(self._plugins.hook.ustreamer_stopped)
            # Last: other components may add dead letters while they close.
            last_first.callback(self._dead_letter_writer.close, _JOIN_S)
            last_first.callback(self._bus.close)
            for transport in reversed(self.transports.values()):
                last_first.callback(transport.close)
            for queue in reversed(self._egress_queues.values()):
                last_first.callback(queue.close, _JOIN_S, STOPPED)
            last_first.callback(self.dispatcher.close, STOPPED)
            last_first.callback(self._timers.close, _JOIN_S)
            for service in reversed(self._services):
                last_first.callback(service.stop)

    # --- dead letters ------------------------------------------------------------------------------------------------

    @property
    def dead_letter_writer(self) -> DeadLetterWriter:
        """The writer of the dead-letter store."""
        return self._dead_letter_writer

    def redrive(self, number: int) -> Redriven:
        """Dispatch a dead letter again; see `redrive.Redriver`."""
        return self._redriver(number)

    def wait_safe(self, timeout_s: float) -> bool:
        """Wait until each durable endpoint has written or sent what was dispatched so far. False: the time is over."""
        since_ns = self._clock.monotonic_ns()
        end_ns = since_ns + round(timeout_s * 1e9)
        queues = self._egress_queues.values()
        while any(each.safe_before_ns() <= since_ns for each in queues):
            if self._clock.monotonic_ns() > end_ns:
                return False
            time.sleep(_SAFE_POLL_S)
        return True

    # --- statistics --------------------------------------------------------------------------------------------------

    def ledger(self) -> LedgerSnapshot:
        """The ledger of one moment. Not for filters and taps: it waits for the messages in progress."""
        with self.dispatcher.at_rest():
            readings = [queue.ledger_reading() for queue in self._egress_queues.values()]
            return self.dispatcher.ledger_snapshot(
                [ledger for ledger, _ in readings], sum(queued for _, queued in readings)
            )

    def targets(self) -> list[TargetStatistics]:
        """The counts of each target of each topic."""
        return self.dispatcher.target_statistics()

    def egress_queues(self) -> list[EndpointQueueStatistics]:
        return [queue.statistics() for queue in self._egress_queues.values()]

    def endpoints(self) -> dict[str, dict[str, int]]:
        """Counters of every endpoint: of its transport, its ingress refusals, and its plugin errors."""
        refused, plugin_errors = self.dispatcher.refused_counts(), self.dispatcher.plugin_errors()
        counters = {
            name: Counter(each.statistics()) for name, each in self.transports.items() if name != SELF
        }
        for name, counter in counters.items():
            counter.update({f"refused_{why}": count for why, count in refused.get(name, {}).items()})
            counter.update(plugin_errors.get(name, {}))
            counter.update(self._egress_queues[name].counters())
            counter["advertisements_suppressed"] = self._advertisements.suppressed[name]
            counter["advertisements_over_limit"] = self._advertisements.over_limit[name]
        return {name: dict(counter) for name, counter in counters.items()}

    def routes(self) -> StreamerRoutes:
        """The endpoints with their authorities, and the targets of each topic."""
        return StreamerRoutes(
            tuple(
                EndpointStatus(
                    name,
                    section.transport,
                    section.authorities,
                    self._links.state_of_endpoint(name).up,
                    tuple(router.authority for router in self._peers.peers_at(name)),
                )
                for name, section in self._config.endpoints.items()
            ),
            tuple(self.targets()),
            tuple(StoppedTopic(*pair) for pair in self._paused.all_paused()),
        )

    def endpoint_authorities(self) -> dict[str, tuple[str, ...]]:
        """By endpoint: the authorities behind it."""
        return {name: section.authorities for name, section in self._config.endpoints.items()}

    def statistics(self) -> StreamerStatistics:
        """All counters."""
        ledger = self.ledger()
        return StreamerStatistics(
            self._since_ms,
            ledger,
            ledger.unaccounted,
            self.endpoints(),
            tuple(self.egress_queues()),
            tuple(self.targets()),
            self._dead_letter_statistics(),
            len(list(self._paused.all_paused())),
            self.context.stores.snapshot(),
            logs.suppressed_lines(),
            self.intrusions.present(),
            plugins.plugin_statistics(self._plugins),
        )

    def diagnosis_sources(self, *, router: Router | None = None) -> "DiagnosisSources":
        """What `ustreamer why` reads. With `router`: that of a streamer that does not run, for its files alone."""
        from ustreamer.host.runtime.evidence import DiagnosisSources  # imported by the first request only

        return DiagnosisSources(
            self._config,
            router or self.dispatcher.router,
            self.dispatcher,
            self._clock,
            self.events,
            lambda name: [peer.authority for peer in self._peers.peers_at(name)],
            self.metrics_snapshot,
            self._egress_queues,
            self._since_ms,
            self._loaded_ms,
            self.transports,
            self._refusals,
            running=router is None,
        )

    def top_sources(self, subscribers_of: Callable[[UUri, str], Sequence[UUri]]) -> "TopSources":
        """What `ustreamer top` reads."""
        from ustreamer.host.runtime.top_stream import TopSources  # imported by the first request only

        return TopSources(
            self.metrics_snapshot, self.dispatcher, self._clock, self._since_ms, self.events, subscribers_of
        )

    def bound_addresses(self) -> list[BoundAddress]:
        """The addresses of the endpoints and of [observe], as far as the configuration and its files name them."""
        in_files = (each for transport in self.transports.values() for each in transport.file_addresses())
        return [*configured_addresses(self._config), *in_files]

    def unloaded_keys(self, config: StreamerConfig) -> list[str]:
        """The keys of `config` that differ from the running configuration."""
        return changed_keys(self._config, config)

    def receiving_threads(self) -> Iterator[tuple[str, ReceivingThread]]:
        """Each thread that receives messages, with the name of its endpoint. Cheap, for checks of progress."""
        for name, transport in self.transports.items():
            for each in transport.receiving_threads():
                yield name, each

    def metrics_snapshot(self, top: int) -> "MetricsSnapshot":
        """The state for metrics and health, read without a lock of the path; `top` targets and subscriber queues."""
        from ustreamer.host.observe.snapshot import (  # imported by the first request only
            MetricsSnapshot,
            busiest_targets,
            endpoint_snapshot,
            stores_below,
            unaccounted,
        )

        ingresses = {each.name: each for each in self.dispatcher.ingresses()}
        counters = self.endpoints()
        return MetricsSnapshot(
            [
                endpoint_snapshot(name, source, ingresses[name], counters.get(name, {}), top)
                for name, source in self._endpoint_sources.items()
            ],
            busiest_targets(self.dispatcher, top),
            unaccounted(list(ingresses.values()), list(self._egress_queues.values())),
            self._dead_letter_statistics(),
            self.dispatcher.dead_letter_rate.counts(),
            self._config.dead_letters,
            stores_below(self._config.state_dir, self.context.stores.snapshot()),
            sum(1 for _ in self._paused.all_paused()),
            self.intrusions.present(),
            self.intrusions.begun(),
        )

    @cached_property
    def _endpoint_sources(self) -> "dict[str, EndpointSource]":
        """By endpoint: what `metrics_snapshot` reads."""
        from ustreamer.host.observe.snapshot import EndpointSource

        return {
            name: EndpointSource(
                SELF if name == SELF else self._config.endpoints[name].transport,
                self._egress_queues[name],
                partial(self._links.state_of_endpoint, name),
                transport.link_problem,
                transport.link_suspicion,
                partial(self._number_of_peers, name),
                transport.receiving_threads,
            )
            for name, transport in self.transports.items()
        }

    def _number_of_peers(self, endpoint: str) -> int:
        return len(self._peers.peers_at(endpoint))

    def _dead_letter_statistics(self) -> dict[str, int]:
        return {
            "unpublished": self.dispatcher.dead_letters.unpublished,
            "suppressed": self.dispatcher.dead_letter_rate.suppressed,
            **self._dead_letter_writer.statistics(),
        }

    @property
    def plugins(self) -> pluggy.PluginManager:
        return self._plugins
