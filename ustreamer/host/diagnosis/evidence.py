# SPDX-License-Identifier: Apache-2.0
"""All that a streamer knows about one address, as values: the input of a diagnosis."""

from collections.abc import Container, Mapping, Sequence

import msgspec

from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.dispatch.explain import Explanation
from ustreamer.core.dispatch.recent_denials import RecentDenial
from ustreamer.core.routing.route_cache import ObservedRoute
from ustreamer.core.routing.subscriptions import RecentSubscriptionChange, ServiceOutage, Subscription
from ustreamer.host.diagnosis.recent import RecentLetters, RecentLogLine
from ustreamer.host.observe.snapshot import EndpointSnapshot, StoreSnapshot
from ustreamer.uprotocol.uuri import UUri


class BlockedMessages(msgspec.Struct, frozen=True):
    """Messages that wait for a closed route, and since when the oldest waits."""

    number: int
    since_ms: int


class EndpointEvidence(msgspec.Struct, frozen=True):
    """An endpoint at the begin and at the end of the sample, and what the configuration states about it.

    `link_ms` is when the link was lost or came up last, if it did. `peers` are own authorities of other streamers.
    """

    name: str
    transport: str
    authorities: tuple[str, ...]
    before: EndpointSnapshot | None = None
    after: EndpointSnapshot | None = None
    link_ms: int | None = None
    peers: tuple[str, ...] = ()
    peers_ms: int | None = None
    durable: bool = False
    unblocked_age_ms: int = 0
    """The age of the oldest message that can be sent, of any topic."""

    @property
    def up(self) -> bool:
        return self.after is None or self.after.link.up

    def counter(self, name: str) -> int:
        """A counter of the transport, 0 if it has none of this name."""
        return 0 if self.after is None else self.after.counters.get(name, 0)

    def rise(self, name: str) -> int:
        """How much a counter of the transport rose in the sample."""
        return 0 if self.before is None else self.counter(name) - self.before.counters.get(name, 0)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about `subject`: a topic, a method (resource 1 to 7FFF) or a subscriber (resource 0).

    `running` is False for evidence of a configuration and its files alone: then the counters, links, changes, letters
    and log lines are missing. Times are ms since the epoch; `loaded_ms` is when the running configuration was loaded.
    """

    subject: UUri
    running: bool
    now_ms: int
    since_ms: int
    loaded_ms: int
    sample_s: float
    authority: str
    """The streamer's own authority."""
    endpoints: Mapping[str, EndpointEvidence]
    """With `self`, the streamer's own endpoint."""
    endpoint_by_authority: Mapping[str, str]
    home: str | None
    """The endpoint behind which the subject lives; None if no endpoint has its authority."""
    explanations: tuple[Explanation, ...] = ()
    """The router's decisions: for a publication of the topic, or for a request from each other endpoint."""
    directory_problem: str = ""
    """The error of a plugin's subscription directory."""
    outage: ServiceOutage | None = None
    """The service of another process whose subscriptions this streamer does not know."""
    source: UUri | None = None
    """The caller of a method, if it is given or known from a denied request."""
    subscriptions: tuple[Subscription, ...] = ()
    """Of the topic, or of the subscriber."""
    subscriber_endpoints: Mapping[UUri, str | None] = {}
    similar: tuple[Subscription, ...] = ()
    """Subscriptions that differ from the subject in one part of the address."""
    changes: tuple[RecentSubscriptionChange, ...] = ()
    """Of the topic's or the subscriber's subscriptions, oldest first."""
    routes: tuple[ObservedRoute, ...] = ()
    routes_complete: bool = True
    """False: the cache of routes is full, so a message may have come in that `routes` has not."""
    denials: tuple[RecentDenial, ...] = ()
    """Of messages from the subject or to it."""
    targets_before: tuple[TargetStatistics, ...] = ()
    targets: tuple[TargetStatistics, ...] = ()
    """Of the topic, at the end of the sample."""
    letters: tuple[RecentLetters, ...] = ()
    blocked: Mapping[str, BlockedMessages] = {}
    """By endpoint, the messages of the subject that wait for a closed route."""
    stalled_ms: Mapping[str, int] = {}
    """By endpoint, when the last receiver of the subject was lost that had stopped reading."""
    stores: tuple[StoreSnapshot, ...] = ()
    stopped_ms: int | None = None
    failures: Mapping[str, Sequence[RecentFailure]] = {}
    """By endpoint: input of the subject that was refused, and calls of it that failed."""
    exact_endpoints: Container[str] = ()
    """The endpoints whose `failures` are those of the subject. Those of the others are of the whole endpoint."""
    input_problem: str = ""
    """A sentence about messages of the topic that failed a check of their content."""
    unloaded_keys: tuple[str, ...] = ()
    """Keys of the configuration file that differ from the running configuration."""
    file_problem: str = ""
    file_ms: int | None = None
    """When the configuration file was written last."""
    log_lines: tuple[RecentLogLine, ...] = ()
    topics: "Sequence[Evidence]" = ()
    """The evidence about the topics of a subscriber, at most `MAX_TOPICS`."""

    @property
    def home_endpoint(self) -> EndpointEvidence | None:
        return None if self.home is None else self.endpoints.get(self.home)

    @property
    def received(self) -> int:
        """Deliveries of the topic since its targets exist."""
        return max((each.received for each in self.targets), default=0)

    @property
    def received_in_sample(self) -> int:
        before = {(each.endpoint, each.subscriber): each.received for each in self.targets_before}
        return max(
            (each.received - before.get((each.endpoint, each.subscriber), 0) for each in self.targets),
            default=0,
        )


MAX_TOPICS = 32
