# SPDX-License-Identifier: Apache-2.0
"""The status of a running streamer, for uProtocol clients (`ustreamer_service`) and the command line (`server`)."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from ustreamer.core.base.intrusions import Intrusion
from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.storage.store_states import StoreState
from ustreamer.host.egress.endpoint_queue import EndpointQueueStatistics
from ustreamer.uprotocol.uuri import UUri


class EndpointStatus(msgspec.Struct, frozen=True):
    """A network that the streamer is attached to. `up` is also true if the transport does not know.

    `peers` are the own authorities of other streamers there.
    """

    name: str
    transport: str
    authorities: tuple[str, ...]
    up: bool
    peers: tuple[str, ...] = ()


class StoppedTopic(msgspec.Struct, frozen=True):
    """A subscriber that has stopped the dispatch of a topic or topic pattern to itself."""

    topic: UUri
    subscriber: UUri


class StreamerRoutes(msgspec.Struct, frozen=True):
    """The endpoints with their authorities, and the targets of topics. A target is listed from its first message on."""

    endpoints: tuple[EndpointStatus, ...]
    targets: tuple[TargetStatistics, ...]
    stopped: tuple[StoppedTopic, ...]


class StreamerStatistics(msgspec.Struct, frozen=True):
    """All counters since `since_ms` (ms since the epoch). `endpoints` has the counters of transports, `plugins` those
    of plugins that have any.

    `stores` has each store, by its path, that the disk has refused to write. `log_suppressed` has the number of log
    lines that were left out, by event.
    """

    since_ms: int
    ledger: LedgerSnapshot
    unaccounted: int
    endpoints: Mapping[str, Mapping[str, int]]
    egress_queues: tuple[EndpointQueueStatistics, ...]
    targets: tuple[TargetStatistics, ...]
    dead_letters: Mapping[str, int]
    stopped_topics: int = 0
    """Topics and patterns whose dispatch a subscriber has stopped; each subscriber counts."""
    stores: Mapping[str, StoreState] = {}
    log_suppressed: Mapping[str, int] = {}
    intrusions: tuple[Intrusion, ...] = ()
    plugins: Mapping[str, Mapping[str, int]] = {}


class Redriven(msgspec.Struct, frozen=True):
    """A dead letter that was dispatched again: its number, its old id and its new id."""

    number: int
    id: str
    new_id: str


class NotRedriven(msgspec.Struct, frozen=True):
    """A dead letter that stays in the store, and the reason."""

    number: int
    reason: str


class RedriveResult(msgspec.Struct, frozen=True):
    """The result of a redrive request. Only the first dead letters of each kind are listed."""

    redriven: int
    left: int
    messages: tuple[Redriven, ...]
    reasons: tuple[NotRedriven, ...]


class StatusProvider(Protocol):
    """The read-only view of a streamer. From any thread."""

    def routes(self) -> StreamerRoutes: ...

    def statistics(self) -> StreamerStatistics: ...
