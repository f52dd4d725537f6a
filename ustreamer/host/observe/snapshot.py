# SPDX-License-Identifier: Apache-2.0
"""The state of a streamer for metrics and health. The streamer's objects in, one `MetricsSnapshot` out.

No lock of the message path is taken: each number is read in one atomic step, and two numbers can differ by the messages
that move meanwhile. `ustreamer top` pauses the streamer for its ledger; a scrape must not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ustreamer.core.base.intrusions import Intrusion
from ustreamer.core.base.links import LinkState
from ustreamer.core.delivery.ledger import Verdict, snapshot
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.ingress import Ingress
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.core.storage.store_states import StoreState
from ustreamer.host.egress.endpoint_queue import EndpointQueue, EndpointQueueStatistics
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig
from ustreamer.transport_port import ReceivingThread
from ustreamer.uprotocol.ustatus import UCode

FINAL_VERDICTS: Final = tuple(each for each in Verdict if each is not Verdict.QUEUED)
_BALANCE_TRIES: Final = 10
_BALANCE_PAUSE_S: Final = 0.001


class EndpointSnapshot(NamedTuple):
    """One endpoint, or `self`: its link, its ledgers, its egress queue, and the counters of its transport."""

    name: str
    transport: str
    link: LinkState
    link_problem: str
    """As `EndpointTransport.link_problem`."""
    link_suspicion: str
    """As `EndpointTransport.link_suspicion`."""
    peers: int
    received: int
    """Deliveries of the messages that came in here."""
    verdicts: Sequence[int]
    """By Verdict. The ingress decides THROTTLED, DENIED and NO_SUBSCRIBER, the egress queue DELIVERED; both the rest."""
    held: int
    queue: EndpointQueueStatistics
    oldest_age_ns: int
    limits: EgressLimits
    counters: Mapping[str, int]
    threads: Sequence[ReceivingThread]


class StoreSnapshot(NamedTuple):
    """A store, by its path below state_dir."""

    name: str
    state: StoreState
    file_bytes: int


class MetricsSnapshot(NamedTuple):
    """All that metrics and health checks show."""

    endpoints: Sequence[EndpointSnapshot]
    targets: Sequence[TargetStatistics]
    """Those with the most received messages."""
    unaccounted: int
    dead_letters: Mapping[str, int]
    dead_letter_reasons: Mapping[tuple[str, UCode], int]
    dead_letter_limits: DeadLettersConfig
    stores: Sequence[StoreSnapshot]
    stopped_topics: int
    intrusions: Sequence[Intrusion]
    """Those of now."""
    intrusions_begun: Mapping[tuple[str, str], int]
    """By endpoint and reason."""


class EndpointSource(NamedTuple):
    """The objects of one endpoint that a snapshot reads."""

    transport: str
    queue: EndpointQueue
    link: Callable[[], LinkState]
    link_problem: Callable[[], str]
    link_suspicion: Callable[[], str]
    peers: Callable[[], int]
    threads: Callable[[], Sequence[ReceivingThread]]


def endpoint_snapshot(
    name: str, source: EndpointSource, ingress: Ingress, counters: Mapping[str, int], top: int
) -> EndpointSnapshot:
    """`top` is the number of subscriber queues."""
    queue = source.queue
    settled = zip(ingress.ledger.copy().settled, queue.ledger.copy().settled, strict=True)
    return EndpointSnapshot(
        name,
        source.transport,
        source.link(),
        source.link_problem(),
        source.link_suspicion(),
        source.peers(),
        ingress.ledger.received,
        [by_ingress + by_queue for by_ingress, by_queue in settled],
        ingress.held,
        queue.peek(top),
        queue.oldest_age_ns,
        queue.limits,
        counters,
        source.threads(),
    )


def busiest_targets(dispatcher: Dispatcher, top: int) -> list[TargetStatistics]:
    """The targets with the most received messages, of all ingresses."""
    found = [each for ingress in dispatcher.ingresses() for each in ingress.busiest_targets(top)]
    return sorted(found, key=lambda each: each.received, reverse=True)[:top]


def unaccounted(ingresses: Sequence[Ingress], queues: Sequence[EndpointQueue]) -> int:
    """What the ledger law does not explain: 0, or the smallest of some readings.

    A reading without locks can fall into the middle of a dispatch. A message that is lost is in every reading, one
    that is being dispatched is not.
    """
    smallest = _unaccounted_now(ingresses, queues)
    for _ in range(_BALANCE_TRIES):
        if not smallest:
            break
        time.sleep(_BALANCE_PAUSE_S)  # other threads go on
        smallest = min(smallest, _unaccounted_now(ingresses, queues), key=abs)
    return smallest


def _unaccounted_now(ingresses: Sequence[Ingress], queues: Sequence[EndpointQueue]) -> int:
    ledgers = [*(each.ledger for each in ingresses), *(each.ledger for each in queues)]
    received = sum(each.received for each in ledgers)  # first: what comes in later only lowers the result
    queued = sum(each.held for each in ingresses) + sum(each.queued for each in queues)
    law = snapshot(ledgers, queued)
    return law.unaccounted - law.received + received


def stores_below(state_dir: Path, states: Mapping[str, StoreState]) -> list[StoreSnapshot]:
    """The stores in `state_dir`, and those that refused a write. Directories that were moved aside are left out."""
    files = [*state_dir.glob(f"*/{DATA_FILE}"), *state_dir.glob(f"*/*/{DATA_FILE}")]
    sizes = {path.parent: _size_of(path) for path in files if "." not in path.parent.name}
    sizes = dict.fromkeys(map(Path, states), 0) | sizes
    return [
        StoreSnapshot(_relative_name(path, state_dir), states.get(str(path), StoreState()), size)
        for path, size in sorted(sizes.items())
    ]


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # moved aside meanwhile
        return 0


def _relative_name(path: Path, state_dir: Path) -> str:
    return str(path.relative_to(state_dir)) if path.is_relative_to(state_dir) else str(path)
