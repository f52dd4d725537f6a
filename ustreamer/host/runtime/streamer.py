# SPDX-License-Identifier: Apache-2.0
"""A streamer: endpoints, lanes, services and the dispatcher, put together from a configuration, started and stopped."""

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import msgspec
import pluggy

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.links import Links
from ustreamer.core.delivery.delivery import Delivery, Filter, Tap
from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.delivery.plugin_errors import name_of
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.peers.election import Announcement, Neighbours
from ustreamer.core.peers.topic_advertisements import Put
from ustreamer.core.routing.access import Access
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.router import SELF, Places, Router
from ustreamer.core.routing.subscriptions import (
    Change,
    StaticDirectory,
    Subscription,
    SubscriptionDirectory,
    SubscriptionWatch,
    merged,
)
from ustreamer.hooks import (
    Decoder,
    EndpointContext,
    EndpointTransport,
    PluginContext,
    Service,
    Settings,
    TransportKind,
)
from ustreamer.host.admin.status import EndpointStatus, Redriven, Routes, Statistics, Stopped
from ustreamer.host.admin.ustreamer_service import OwnEntity
from ustreamer.host.config.config import Named, StreamerConfig, serves
from ustreamer.host.egress.durable_queue import DurableLane
from ustreamer.host.egress.endpoint_queue import Lane, LaneStatistics
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.advertiser import PutAnnouncer
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.draining import drain
from ustreamer.host.runtime.listener_filters import Filters, filters_of
from ustreamer.host.runtime.redrive import Redrive
from ustreamer.host.runtime.reload import ReloadRefused, changes, plugins_that_change, refusals
from ustreamer.host.runtime.threads import TimerThread
from ustreamer.host.storage.dead_letter_store import DIRECTORY, DeadLetterStore
from ustreamer.host.storage.dead_letter_writer import DeadLetterKeeper
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.streamer")

_NS_PER_S: Final = 1_000_000_000
SPOOL: Final = "spool"
"""Where in state_dir durable lanes keep what waits."""
_JOIN_S: Final = (
    2.0  # for a thread that is asked to end; longer than any wait of ours, shorter than a supervisor's
)


class Streamer:
    """The whole dispatcher in one object: `start`, then messages flow, then `stop`. Not reusable."""

    def __init__(
        self,
        config: StreamerConfig,
        kinds: Mapping[str, TransportKind],
        plugin_classes: Mapping[str, type],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Build everything and touch nothing. Raises PluginError or UStatusError for what cannot be built."""
        self._config = config
        self._clock = clock
        self._timers = TimerThread(clock)
        authorities = _authorities(config)
        self._places = Places(authorities)  # with the hosted services as soon as there are some
        self._links = Links(self._endpoint_of)
        self._neighbours = Neighbours(config.authority, secrets.token_hex(8))
        self._neighbours.settle(_behind(config))
        self.context = PluginContext(
            authority=config.authority,
            serves=serves(config, kinds),
            state_dir=config.state_dir,
            clock=clock,
            schedule=self._timers.schedule,
            links=self._links,
            authorities=Named(lambda: self._config),
            ledger=self.ledger,
        )
        self._plugins = plugins.configured(plugin_classes, config.plugins, self.context)
        services = _flatten(self._plugins.hook.ustreamer_services())
        network = LocalNetwork()
        self._bus = LocalTransport(network, config.authority)
        inside = LocalTransport(network, config.authority, refuses_unheard=True)
        self.transports: dict[str, EndpointTransport] = {SELF: inside}
        for name, section in config.endpoints.items():
            kind = kinds[section.transport]
            me = self._neighbours.me.instance
            context_of_it = EndpointContext(
                name, config.authority, clock, self.decoder, self.context.serves, self._topics, me
            )
            self.transports[name] = kind.make(section, context_of_it)
        self._paused = PausedDirectory(self._directory())
        own = OwnEntity(config.authority, clock, self, self._paused, self._replan)
        self._services: Sequence[Service] = [own, *services]
        self._hosted = [entity for service in self._services for entity in service.entities]
        self._places = Places(authorities, self._hosted)
        self._put_announcer = PutAnnouncer(self._neighbours, self.transports, clock, self._timers.schedule)
        self._puts = self._put_announcer.puts
        self._lanes: dict[str, Lane] = {}
        store = DeadLetterStore(config.state_dir / DIRECTORY, config.dead_letters)
        self._keeper = DeadLetterKeeper(store, config.dead_letters)
        self._since_ms = clock.wall_ms()
        self.dispatcher = self._dispatcher(config)
        self._redrive = Redrive(store, self.dispatcher, self.transports.keys(), clock)
        for name in self.transports:
            self._lanes[name] = self._lane(name, config)
        self._kinds = kinds

    def _lane(self, name: str, config: StreamerConfig) -> Lane:
        transport, limits, dispatcher = self.transports[name], config.limits(name), self.dispatcher
        if name == SELF or not config.endpoints[name].durable:
            return Lane(
                name, transport, limits, self._clock, dispatcher.undelivered, expiry=dispatcher.expiry
            )
        return DurableLane(
            name,
            transport,
            limits,
            self._clock,
            dispatcher.undelivered,
            config.state_dir / SPOOL / name,
            lambda ingress, topic, subscriber: dispatcher.kept_delivery(ingress, name, topic, subscriber),
            expiry=dispatcher.expiry,
        )

    def _endpoint_of(self, authority: str) -> str | None:
        return self._places.endpoint_of_authority(authority)

    def _replan(self) -> None:
        self.dispatcher.replan()

    def _directory(self) -> SubscriptionDirectory:
        return self._with_fixed(self._plugins.hook.ustreamer_subscription_directory())

    def _with_fixed(self, found: Iterable[SubscriptionDirectory]) -> SubscriptionDirectory:
        directories = list(found)
        fixed = [wish for transport in self.transports.values() for wish in transport.subscriptions()]
        if fixed or not directories:
            directories.append(StaticDirectory(fixed))
        told = (transport.directory(self._replan) for transport in self.transports.values())
        return merged(directories, [each for each in told if each is not None])

    def decoder(self, topic: UUri) -> Decoder | None:
        """What a plugin has to make payloads of `topic` readable, for who shows them. Routing never asks."""
        found: list[Decoder] = self._plugins.hook.ustreamer_decoders(topic=topic)
        return found[0] if found else None

    def _topics(self) -> list[UUri]:
        """What is published behind any endpoint, as far as the configuration names it."""
        return [topic for transport in self.transports.values() for topic in transport.topics()]

    def router_by(self, found: Iterable[SubscriptionDirectory]) -> Router:
        """A router as that of this streamer, by other subscriptions beside those that the configuration fixes."""
        return self._router(self._config, self._places, self._with_fixed(found))

    def _router(
        self, config: StreamerConfig, places: Places, directory: SubscriptionDirectory | None = None
    ) -> Router:
        unicast = {name: transport.unicast for name, transport in self.transports.items()}
        access = {name: Access(name, each.access) for name, each in config.endpoints.items() if each.access}
        return Router(places, directory or self._paused, unicast, access, self._neighbours)

    def _dispatcher(self, config: StreamerConfig) -> Dispatcher:
        hook = self._plugins.hook

        def filters(delivery: Delivery) -> Iterable[Filter]:
            found: list[Filter] = hook.ustreamer_filters(delivery=delivery)
            return found

        def taps(endpoint: str) -> Iterable[Tap]:
            found: list[Tap] = hook.ustreamer_taps(endpoint=endpoint)
            return found

        return Dispatcher(
            config.authority,
            self._clock,
            self._router(config, self._places),
            self._lanes,
            filters=filters,
            taps=taps,
            schedule=self._timers.schedule,
            keep=self._keeper.keep,
            duplicate_windows={name: each.duplicate_window for name, each in config.endpoints.items()},
            puts=self._puts,
        )

    # --- life -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Services first, then lanes, then the world: what arrives finds everything ready.

        Raises UStatusError naming what could not be opened; everything that was opened is closed again.
        """
        try:
            self._plugins.hook.ustreamer_configured(settings=self._settings(self._config))
            self._watch_subscriptions()
            self._timers.start()
            self._keeper.start()
            self.dispatcher.watch_clock()
            self._listen()
            self._watch_links()
            self._bus.open()
            self.transports[SELF].open()
            self._restore()
            for service in self._services:
                service.start(self._bus)
            for lane in self._lanes.values():
                lane.start()
            for transport in self.transports.values():
                transport.open()
            self._announce()
            self._plugins.hook.ustreamer_started(dispatcher=self.dispatcher)
        except BaseException:
            self._close()
            raise
        log.info(
            "started",
            extra={"authority": self._config.authority, "endpoints": sorted(self._config.endpoints)},
        )

    def _restore(self) -> None:
        """Queue what earlier processes have kept, before anything is sent that must not overtake it."""
        for lane in self._lanes.values():
            lane.restore()
        directory = self._config.state_dir / SPOOL
        for path in sorted(directory.iterdir()) if directory.exists() else ():
            section = self._config.endpoints.get(path.name)
            if path.is_dir() and "." not in path.name and (section is None or not section.durable):
                log.warning("spool_unused", extra={"spool": str(path)})

    def _settings(self, config: StreamerConfig) -> Settings:
        return Settings({name: config.limits(name) for name in self.transports}, config.plugins)

    def _watch_subscriptions(self) -> None:
        for told in self._plugins.hook.ustreamer_subscription_watch():
            self._paused.watch(_contained(told))

    def _listen(self) -> None:
        for name, transport in self.transports.items():
            dispatch = self.dispatcher.ingress(name)
            for source, sink in self._filters_of(name, self._config):
                transport.register_listener(source, sink, dispatch)

    def _watch_links(self) -> None:
        for name, transport in self.transports.items():
            transport.watch_link(partial(self._link_turned, name))
            transport.watch_routes(self._lanes[name].route_open)
            transport.watch_neighbours(partial(self._neighbours_changed, name))
            transport.watch_puts(partial(self._puts_changed, name))

    def _link_turned(self, name: str, up: bool) -> None:
        if up:
            self._lanes[name].link_up()  # first: what waits here must not depend on a plugin that watches
        self._links.turn(name, up=up)

    def _announce(self) -> None:
        for name, transport in self.transports.items():
            transport.announce(self._neighbours.announcements(name))
        self._rely()

    def _rely(self) -> None:
        for name, transport in self.transports.items():
            transport.believe(partial(self._neighbours.believes, name))

    def _neighbours_changed(self, name: str, announcements: frozenset[Announcement]) -> None:
        heard = self._neighbours.hear(name, announcements)
        if not heard.changed:
            return
        self.dispatcher.expect_loops(self._neighbours.loops())
        self.dispatcher.replan()
        self._rely()
        there = [who.authority for who in self._neighbours.at(name)]
        came, went = ([who.authority for who in each] for each in (heard.came, heard.went))
        log.info("neighbours", extra={"endpoint": name, "came": came, "went": went, "there": there})
        for each in heard.doubled:
            log.warning("one_network_twice", extra={"endpoint": each})
        if heard.came:
            self._links.joined(name)

    def _puts_changed(self, name: str, came: frozenset[Put], went: frozenset[Put]) -> None:
        topics = self._puts.hear(name, came, went)
        if topics:
            self.dispatcher.replan_topics(topics)

    def _filters_of(self, endpoint: str, config: StreamerConfig) -> list[Filters]:
        behind = {SELF: (), **_behind(config)}
        return filters_of(endpoint, behind, self._hosted)

    # --- another configuration ------------------------------------------------------------------------------------------

    def reload(self, config: StreamerConfig) -> list[str]:
        """Go on by another configuration; the keys that changed. Not called twice at a time, nor while it stops.

        In one step for all endpoints: what came in before it ends on its old plan. Raises ReloadRefused naming each key
        that only a restart can change, and UStatusError for what a transport cannot listen to; then nothing has changed.
        """
        refused = refusals(self._config, config, self._kinds)
        plugin_changes = []
        for name, section in plugins_that_change(self._config, config).items():
            try:
                plugin_changes.append(plugins.reconfiguration(self._plugins, name, section))
            except ValueError as error:
                refused.append(f"plugins.{name}: {error}")
        if refused:
            raise ReloadRefused(refused)
        places = Places(_authorities(config), self._hosted)

        def change() -> None:
            for apply in plugin_changes:
                apply()
            for name, lane in self._lanes.items():
                lane.use(config.limits(name))
            self._places = places
            self._neighbours.settle(_behind(config))
            self._puts.drop_all()
            try:
                self._plugins.hook.ustreamer_configured(settings=self._settings(config))
            except Exception:  # a plugin's mistake; the others go by what they were told
                log.exception("plugin_failed", extra={"hook": "ustreamer_configured"})

        with self._other_filters(config):
            self.dispatcher.swap(self._router(config, places), change)
        self.dispatcher.expect_loops(self._neighbours.loops())
        self._announce()
        changed = changes(self._config, config)
        self._config = config
        log.info("reloaded", extra={"changed": changed})
        return changed

    @contextmanager
    def _other_filters(self, config: StreamerConfig) -> Iterator[None]:
        """Listen to what is new from the beginning of a `with` block on, and to what is old until its end."""
        new, old = [], []
        for name in self.transports:
            before, after = self._filters_of(name, self._config), self._filters_of(name, config)
            new += [(name, *filters) for filters in after if filters not in before]
            old += [(name, *filters) for filters in before if filters not in after]
        with ExitStack() as undo:
            for name, source, sink in new:
                dispatch = self.dispatcher.ingress(name)
                self.transports[name].register_listener(source, sink, dispatch)
                undo.callback(self.transports[name].unregister_listener, source, sink, dispatch)
            yield
            undo.pop_all()
        for name, source, sink in old:
            self.transports[name].unregister_listener(source, sink, self.dispatcher.ingress(name))

    def stop(self, drain_s: float = 5.0) -> int:
        """Take nothing more in, send what has been accepted, close. How many messages were left after `drain_s`.

        Those are dead letters then, and who asked is answered UNAVAILABLE. So are those that wait for somebody who is not
        there, but nobody waits for them, and they are not counted: they could not have been sent. What a durable lane has
        on disk stays there for the next start, and is not counted either.
        """
        deadline_ns = self._clock.monotonic_ns() + round(drain_s * _NS_PER_S)
        try:
            self._put_announcer.resign()
            # SOME/IP, which is inline, last: who has stopped takes no calls that he could not read the answers of.
            for name in sorted(self.transports, key=lambda name: self.transports[name].inline):
                if name != SELF:  # hosted services still answer what they have accepted
                    self.transports[name].stop_receiving()
            self._plugins.hook.ustreamer_stopping()
            self._lanes[SELF].wait_empty(deadline_ns)
            for service in self._services:
                service.stop()
            left = drain(self.dispatcher, list(self._lanes.values()), self._clock.monotonic_ns, deadline_ns)
            kept = sum(lane.kept for lane in self._lanes.values())
            endpoints = self.endpoints()
        finally:
            self._close()
        ledger = msgspec.to_builtins(self.ledger())
        log.info("stopped", extra={"left": left, "kept": kept, "ledger": ledger, "endpoints": endpoints})
        return left

    def _close(self) -> None:
        """Close everything; what fails in doing so keeps nothing else open, and is raised at the end."""
        with ExitStack() as last_first:
            last_first.callback(self._plugins.hook.ustreamer_stopped)
            last_first.callback(self._keeper.close, _JOIN_S)  # last: whatever ends here may leave letters
            last_first.callback(self._bus.close)
            for transport in reversed(self.transports.values()):
                last_first.callback(transport.close)
            for lane in reversed(self._lanes.values()):
                last_first.callback(lane.close, _JOIN_S)
            last_first.callback(self._timers.close, _JOIN_S)
            for service in reversed(self._services):
                last_first.callback(service.stop)

    # --- dead letters ---------------------------------------------------------------------------------------------------

    @property
    def dead_letters(self) -> DeadLetterKeeper:
        """What keeps them."""
        return self._keeper

    def redrive(self, number: int) -> Redriven:
        """Dispatch a dead letter again, as `redrive.Redrive` says."""
        return self._redrive(number)

    # --- reading --------------------------------------------------------------------------------------------------------

    def ledger(self) -> LedgerSnapshot:
        """The books of this moment."""
        lanes = self._lanes.values()
        return self.dispatcher.ledger([lane.ledger for lane in lanes], sum(lane.queued for lane in lanes))

    def targets(self) -> list[TargetStatistics]:
        """What each target of each topic got so far."""
        return self.dispatcher.targets()

    def lanes(self) -> list[LaneStatistics]:
        return [lane.statistics() for lane in self._lanes.values()]

    def endpoints(self) -> dict[str, dict[str, int]]:
        """Counters of every endpoint: of its transport, refusals of its ingress, and failures of plugins there."""
        refused, faults = self.dispatcher.refused(), self.dispatcher.faults()
        counters = {
            name: Counter(each.statistics()) for name, each in self.transports.items() if name != SELF
        }
        for name, counter in counters.items():
            counter.update({f"refused_{why}": count for why, count in refused.get(name, {}).items()})
            counter.update(faults.get(name, {}))
            counter.update(self._lanes[name].counters())
            counter["unannounced_puts"] = self._puts.unannounced[name]
            counter["unheard_puts"] = self._puts.unheard[name]
        return {name: dict(counter) for name, counter in counters.items()}

    def routes(self) -> Routes:
        """Who lives where, and which topics go to whom."""
        return Routes(
            tuple(
                EndpointStatus(
                    name,
                    section.transport,
                    section.authorities,
                    self._links.of_endpoint(name).up,
                    tuple(who.authority for who in self._neighbours.at(name)),
                )
                for name, section in self._config.endpoints.items()
            ),
            tuple(self.targets()),
            tuple(Stopped(*pair) for pair in self._paused.all_paused()),
        )

    def statistics(self) -> Statistics:
        """All that is counted."""
        ledger = self.ledger()
        return Statistics(
            self._since_ms,
            ledger,
            ledger.unaccounted,
            self.endpoints(),
            tuple(self.lanes()),
            tuple(self.targets()),
            {"unpublished": self.dispatcher.dead_letters.unpublished, **self._keeper.statistics()},
        )

    @property
    def plugins(self) -> pluggy.PluginManager:
        return self._plugins


def _authorities(config: StreamerConfig) -> dict[str, str]:
    """The endpoint behind which each authority lives."""
    return {
        authority: name for name, section in config.endpoints.items() for authority in section.authorities
    }


def _behind(config: StreamerConfig) -> dict[str, tuple[str, ...]]:
    """The authorities behind each endpoint."""
    return {name: section.authorities for name, section in config.endpoints.items()}


def _contained(told: SubscriptionWatch) -> SubscriptionWatch:
    """`told`, but what it raises disturbs nobody; it is logged once."""
    failed = False

    def contained(subscription: Subscription, change: Change, /) -> None:
        nonlocal failed
        try:
            told(subscription, change)
        except Exception:
            if not failed:
                log.exception("plugin_failed", extra={"plugin": name_of(told)})
            failed = True

    return contained


def _flatten(offered: Iterable[Sequence[Service]]) -> list[Service]:
    return [service for services in offered for service in services]
