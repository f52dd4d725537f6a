# SPDX-License-Identifier: Apache-2.0
"""Collects what a streamer knows about one address: a streamer in, an `Evidence` for `ustreamer why` out.

It reads the objects of the streamer as they are, some of them twice with a short sample between. It takes the lock of
an ingress for about 1 ms and changes nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.recent_failures import RecentFailure, RisingCounters, refusals_of
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.explain import Explanation, explain
from ustreamer.core.routing.route_cache import ObservedRoute
from ustreamer.core.routing.router import SELF, Router
from ustreamer.core.routing.subscriptions import (
    FollowingDirectory,
    ListableDirectory,
    RecentSubscriptionChange,
    ServiceOutage,
    Subscription,
    SubscriptionDirectory,
)
from ustreamer.host.config.config import StreamerConfig, endpoint_by_authority
from ustreamer.host.diagnosis.evidence import (
    MAX_TOPICS,
    BlockedMessages,
    EndpointEvidence,
    Evidence,
)
from ustreamer.host.diagnosis.findings import is_named, is_similar
from ustreamer.host.diagnosis.methods import unanswered_routes
from ustreamer.host.diagnosis.recent import RecentLogLine
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.observe.snapshot import EndpointSnapshot, MetricsSnapshot
from ustreamer.host.runtime.recent_events import RecentEvents
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.umessage import publish, request
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

MAX_SUBSCRIPTIONS: Final = 100_000
"""Subscriptions that are searched for those of a subscriber and for similar ones: 0.2 s."""
MAX_SIMILAR: Final = 3
_LONGEST_SAMPLE_S: Final = 1.2
_SAMPLE_STEP_S: Final = 0.05
_SUBSCRIBER_QUEUES: Final = 1_000
_TTL_MS: Final = 10_000
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_CALLER: Final = 0x7FFF
"""The uEntity of a caller that stands for all of its authority."""


class DiagnosisSources(NamedTuple):
    """The objects of a streamer that evidence is read from."""

    config: StreamerConfig
    router: Router
    dispatcher: Dispatcher
    clock: Clock
    events: RecentEvents
    peers: Callable[[str], Sequence[str]]
    snapshot: Callable[[int], MetricsSnapshot]
    queues: Mapping[str, EndpointQueue]
    since_ms: int
    loaded_ms: int
    transports: Mapping[str, EndpointTransport]
    refusals: RisingCounters
    running: bool = True


class FileState(NamedTuple):
    """The configuration file next to a running streamer: keys that differ, and why it cannot be loaded."""

    unloaded_keys: tuple[str, ...] = ()
    problem: str = ""
    written_ms: int | None = None


def collect_evidence(
    sources: DiagnosisSources,
    subject: UUri,
    source: UUri | None,
    sample_s: float,
    log_lines: Sequence[RecentLogLine] = (),
    file: FileState | None = None,
) -> Evidence:
    """The evidence about `subject`. `source` is the caller of a method. A running streamer is sampled for `sample_s`."""
    collector = _Collector(sources, sample_s, log_lines, file or FileState())
    if subject.is_topic:
        return collector.about_topic(subject)
    if subject.is_method:
        return collector.about_method(subject, source)
    return collector.about_subscriber(subject)


def _received(targets: Iterable[TargetStatistics]) -> int:
    return sum(each.received for each in targets)


class _Collector:
    def __init__(
        self, sources: DiagnosisSources, sample_s: float, log_lines: Sequence[RecentLogLine], file: FileState
    ) -> None:
        self._sources = sources
        self._router = sources.router
        self._sample_s = sample_s if sources.running else 0.0
        self._log_lines = tuple(log_lines)
        self._file = file
        self._before: MetricsSnapshot | None = None
        self._after: MetricsSnapshot | None = None

    # --- one method per kind of subject ------------------------------------------------------------------------------

    def about_topic(self, topic: UUri) -> Evidence:
        before = self._take_sample([topic])
        return self._topic_evidence(topic, before)

    def about_subscriber(self, subscriber: UUri) -> Evidence:
        subscriptions = [each for each in self._list_subscriptions() if each.subscriber == subscriber]
        topics = list(dict.fromkeys(each.topic for each in subscriptions if each.topic.is_specific))[
            :MAX_TOPICS
        ]
        before = self._take_sample(topics)
        return msgspec.structs.replace(
            self._evidence(subscriber),
            subscriptions=tuple(subscriptions),
            subscriber_endpoints=self._endpoints_of_subscribers(subscriptions),
            similar=() if subscriptions else self._similar(subscriber, lambda each: each.subscriber),
            changes=self._changes(lambda each: each.subscriber == subscriber),
            topics=[self._topic_evidence(topic, before) for topic in topics],
        )

    def about_method(self, method: UUri, source: UUri | None) -> Evidence:
        ingresses = self._sources.dispatcher.ingresses()
        for each in ingresses:
            each.mark_routes_unseen(method)
        self._take_sample([], lambda: self._awaits_call(method))
        home = self._router.authority_table.endpoint_of(method)
        callers = self._callers(home) if source is None else [source]
        explanations, problem = self._explain_all(
            lambda: [self._explain_call(each, method) for each in callers]
        )
        return msgspec.structs.replace(
            self._evidence(method),
            source=source,
            explanations=explanations,
            directory_problem=problem,
            routes_complete=not any(each.forgets_routes for each in ingresses),
        )

    def _awaits_call(self, method: UUri) -> bool:
        """Whether a call without a Response came in earlier, and none in the sample."""
        return any(not each.is_current for each in unanswered_routes(self._routes(method), method))

    def _topic_evidence(self, topic: UUri, before: Sequence[TargetStatistics]) -> Evidence:
        sources, router = self._sources, self._router
        home = router.authority_table.endpoint_of(topic)
        subscriptions: list[Subscription] = []

        def read() -> list[Explanation]:
            subscriptions.extend(router.directory.subscribers(topic))
            return [] if home is None else [explain(router, home, publish(self._new_id(), topic).attributes)]

        explanations, problem = self._explain_all(read)
        return msgspec.structs.replace(
            self._evidence(topic),
            explanations=explanations,
            directory_problem=problem,
            subscriptions=tuple(subscriptions),
            subscriber_endpoints=self._endpoints_of_subscribers(subscriptions),
            similar=() if subscriptions else self._similar(topic, lambda each: each.topic),
            changes=self._changes(lambda each: each.topic == topic or each.topic.matches(topic)),
            targets_before=tuple(each for each in before if each.topic == topic),
            targets=tuple(self._targets([topic])),
            stopped_ms=sources.events.stop_time(topic),
            input_problem="" if home is None else sources.transports[home].input_problem(topic),
        )

    def _evidence(self, subject: UUri) -> Evidence:
        """The evidence that a topic, a method and a subscriber have in common."""
        sources, table = self._sources, self._router.authority_table
        failures, exact_endpoints = self._failures(subject)
        return Evidence(
            subject=subject,
            running=sources.running,
            now_ms=sources.clock.wall_ms(),
            since_ms=sources.since_ms,
            loaded_ms=sources.loaded_ms,
            sample_s=self._sample_s,
            authority=sources.config.authority,
            endpoints=self._endpoints(),
            endpoint_by_authority=endpoint_by_authority(sources.config),
            home=table.endpoint_of(subject),
            outage=self._outage(),
            routes=tuple(self._routes(subject)),
            denials=tuple(
                denial
                for ingress in sources.dispatcher.ingresses()
                for denial in ingress.recent_denials(subject)
            ),
            letters=tuple(
                each
                for each in sources.events.letters()
                if subject in (each.source, each.sink) or is_named(subject, each.reason)
            ),
            blocked=self._blocked(subject),
            stalled_ms={
                name: lost_ms
                for name, transport in sources.transports.items()
                if (lost_ms := transport.receiver_stalled_ms(subject)) is not None
            },
            stores=() if self._after is None else tuple(self._after.stores),
            failures=failures,
            exact_endpoints=exact_endpoints,
            unloaded_keys=self._file.unloaded_keys,
            file_problem=self._file.problem,
            file_ms=self._file.written_ms,
            log_lines=self._log_lines,
        )

    def _endpoints_of_subscribers(self, subscriptions: Iterable[Subscription]) -> dict[UUri, str | None]:
        table = self._router.authority_table
        return {each.subscriber: table.endpoint_of(each.subscriber) for each in subscriptions}

    # --- reading -----------------------------------------------------------------------------------------------------

    def _take_sample(
        self, topics: Iterable[UUri], awaits_call: Callable[[], bool] = lambda: False
    ) -> list[TargetStatistics]:
        """Read the counters, wait, read them again; returns the targets of `topics` before.

        If a topic had messages earlier and has none in the sample, the sample is longer: the publisher may be slow. The
        same goes for a caller: while `awaits_call`.
        """
        if not self._sources.running:
            return []
        topics = tuple(topics)
        before = self._targets(topics)
        self._before = self._sources.snapshot(_SUBSCRIBER_QUEUES)
        received, began_ns = _received(before), self._sources.clock.monotonic_ns()
        time.sleep(self._sample_s)
        while 0 < self._sample_s < _LONGEST_SAMPLE_S and (
            0 < received == _received(self._targets(topics)) or awaits_call()
        ):
            time.sleep(_SAMPLE_STEP_S)
            self._sample_s = (self._sources.clock.monotonic_ns() - began_ns) / _NS_PER_S
        self._after = self._sources.snapshot(_SUBSCRIBER_QUEUES)
        for each in self._after.endpoints:
            self._sources.refusals.observe(each.name, refusals_of(each.counters))
        return before

    def _routes(self, subject: UUri) -> list[ObservedRoute]:
        ingresses = self._sources.dispatcher.ingresses()
        return [route for ingress in ingresses for route in ingress.observed_routes(subject)]

    def _targets(self, topics: Iterable[UUri]) -> list[TargetStatistics]:
        ingresses = self._sources.dispatcher.ingresses()
        return [each for topic in topics for one in ingresses for each in one.target_statistics(topic)]

    def _endpoints(self) -> dict[str, EndpointEvidence]:
        before, after = _by_name(self._before), _by_name(self._after)
        sources = self._sources
        events, config = sources.events, sources.config
        link_ms, peers_ms = events.link_times(), events.peer_times()
        found = {
            name: EndpointEvidence(
                name,
                section.transport,
                section.authorities,
                before.get(name),
                after.get(name),
                link_ms.get(name),
                tuple(self._sources.peers(name)),
                peers_ms.get(name),
                section.durable,
                sources.queues[name].oldest_unblocked_age_ns // _NS_PER_MS,
            )
            for name, section in config.endpoints.items()
        }
        found[SELF] = EndpointEvidence(SELF, SELF, (), before.get(SELF), after.get(SELF))
        return found

    def _blocked(self, subject: UUri) -> dict[str, BlockedMessages]:
        now_ms = self._sources.clock.wall_ms()
        found = {name: queue.blocked_messages_of(subject) for name, queue in self._sources.queues.items()}
        return {
            name: BlockedMessages(number, now_ms - age_ns // _NS_PER_MS)
            for name, (number, age_ns) in found.items()
            if number
        }

    def _failures(self, subject: UUri) -> tuple[dict[str, list[RecentFailure]], set[str]]:
        """The recent failures by endpoint, and the endpoints whose failures are those of the subject."""
        sources, found, exact_endpoints = self._sources, {}, set()
        if not sources.running:
            return {}, set()
        of_ingress = sources.dispatcher.refused_counts()
        for name, transport in sources.transports.items():
            of_endpoint = sources.refusals.about(name)
            of_subject = transport.recent_failures(subject)
            if of_subject is not None:
                exact_endpoints.add(name)
                of_endpoint = [each for each in of_endpoint if each.kind in of_ingress[name]]
            found[name] = [*(of_subject or ()), *of_endpoint]
        return found, exact_endpoints

    @property
    def _directory(self) -> SubscriptionDirectory:
        """The directory of the subscriptions, without the one around it that pauses them."""
        directory = self._router.directory
        inner: SubscriptionDirectory = getattr(directory, "inner", directory)
        return inner

    def _list_subscriptions(self) -> list[Subscription]:
        directory = self._directory
        found = directory.list_subscriptions() if isinstance(directory, ListableDirectory) else ()
        return list(islice(found, MAX_SUBSCRIPTIONS))

    def _outage(self) -> ServiceOutage | None:
        directory = self._directory
        return directory.outage() if isinstance(directory, FollowingDirectory) else None

    def _changes(
        self, concerns: Callable[[RecentSubscriptionChange], bool]
    ) -> tuple[RecentSubscriptionChange, ...]:
        directory = self._directory
        found = directory.recent_changes() if isinstance(directory, ListableDirectory) else ()
        return tuple(each for each in found if concerns(each))

    def _similar(self, address: UUri, address_of: Callable[[Subscription], UUri]) -> tuple[Subscription, ...]:
        found = (each for each in self._list_subscriptions() if is_similar(address, address_of(each)))
        return tuple(islice(found, MAX_SIMILAR))

    # --- the router --------------------------------------------------------------------------------------------------

    def _explain_all(self, read: Callable[[], Iterable[Explanation]]) -> tuple[tuple[Explanation, ...], str]:
        try:
            return tuple(read()), ""
        except Exception as error:  # noqa: BLE001  # foreign code: the directory is a plugin's
            return (), f"{type(error).__name__}: {error}"

    def _explain_call(self, source: UUri, method: UUri) -> Explanation:
        ingress = self._router.authority_table.endpoint_of(source) or SELF
        return explain(self._router, ingress, request(self._new_id(), source, method, ttl=_TTL_MS).attributes)

    def _callers(self, home: str | None) -> list[UUri]:
        """A caller behind each endpoint except `home`."""
        return [
            UUri(section.authorities[0], _CALLER, 1, 0)
            for name, section in self._sources.config.endpoints.items()
            if name != home and section.authorities and section.authorities[0] != ANY_AUTHORITY
        ]

    def _new_id(self) -> UUID:
        return UuidSource(self._sources.clock.wall_ms).next()


def _by_name(snapshot: MetricsSnapshot | None) -> Mapping[str, EndpointSnapshot]:
    return {} if snapshot is None else {each.name: each for each in snapshot.endpoints}
