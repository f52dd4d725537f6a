# SPDX-License-Identifier: Apache-2.0
"""What a running streamer tells of itself: over uProtocol (`own_entity`) and to the command line (`admin`)."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.host.egress.endpoint_queue import EndpointQueueStatistics
from ustreamer.uprotocol.uuri import UUri


class EndpointStatus(msgspec.Struct, frozen=True):
    """A network that the streamer is attached to; `up` also where the transport cannot tell.

    `peers` are the own authorities of other streamers there.
    """

    name: str
    transport: str
    authorities: tuple[str, ...]
    up: bool
    peers: tuple[str, ...] = ()


class StoppedTopic(msgspec.Struct, frozen=True):
    """A subscriber that has asked not to be sent a topic, or those of a pattern, for now."""

    topic: UUri
    subscriber: UUri


class StreamerRoutes(msgspec.Struct, frozen=True):
    """Who lives where, and which topics go to whom; a topic's targets are there from its first message to them on."""

    endpoints: tuple[EndpointStatus, ...]
    targets: tuple[TargetStatistics, ...]
    stopped: tuple[StoppedTopic, ...]


class StreamerStatistics(msgspec.Struct, frozen=True):
    """All that is counted, since `since_ms` (ms since the epoch); `endpoints` is what their transports count."""

    since_ms: int
    ledger: LedgerSnapshot
    unaccounted: int
    endpoints: Mapping[str, Mapping[str, int]]
    egress_queues: tuple[EndpointQueueStatistics, ...]
    targets: tuple[TargetStatistics, ...]
    dead_letters: Mapping[str, int]


class Redriven(msgspec.Struct, frozen=True):
    """A dead letter that was dispatched again: its number, the id it had and the id it got."""

    number: int
    id: str
    new_id: str


class NotRedriven(msgspec.Struct, frozen=True):
    """A dead letter that was left where it is, and why."""

    number: int
    reason: str


class RedriveResult(msgspec.Struct, frozen=True):
    """What became of a request to redrive; the first of each are named."""

    redriven: int
    left: int
    messages: tuple[Redriven, ...]
    reasons: tuple[NotRedriven, ...]


class StatusProvider(Protocol):
    """A streamer as those see it who only read. From any thread."""

    def routes(self) -> StreamerRoutes: ...

    def statistics(self) -> StreamerStatistics: ...
