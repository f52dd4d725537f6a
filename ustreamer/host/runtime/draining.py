# SPDX-License-Identifier: Apache-2.0
"""The last sends of a streamer whose ingress is closed, and the dead letters of the rest.

In: the endpoint queues and a deadline. Out: the number of messages that were not sent in time, and of those
that were sent but may not have arrived.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.runtime.sent_messages import SentMessages
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.streamer")

_RESPONSE_GRACE_NS: Final = 500_000_000
"""Time to publish dead letters, to send error responses, and to reach a route whose receiver has just appeared."""
_POLL_S: Final = 0.005
STOPPED: Final = UStatus(UCode.UNAVAILABLE, "the streamer was stopped before this could be sent")


def stop_summary(
    ledger: LedgerSnapshot, unsent: int, unconfirmed: int, persisted: int, losses: Mapping[str, int]
) -> str:
    """The end of a run in one sentence, for people: the counts of the ledger that are not 0, what is left, and `losses`."""
    counts = {
        name: count for name, count in msgspec.to_builtins(ledger).items() if count and name != "received"
    }
    settled = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to deliver"
    left = {"not sent in time": unsent, "not confirmed": unconfirmed, "kept on disk": persisted}
    rest = "".join(f", {count} {name}" for name, count in left.items() if count)
    lost = ", ".join(f"{count} {name}" for name, count in losses.items())
    may_be_lost = f"; may be lost: {lost}" if lost else ""
    return f"{ledger.received} received: {settled}; {ledger.unaccounted} unaccounted{rest}{may_be_lost}"


def counted_losses(
    transports: Mapping[str, EndpointTransport], endpoints: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """The counters of messages that may be lost, over all endpoints, without those that are 0."""
    counts: Counter[str] = Counter()
    for name, counters in endpoints.items():
        for counter in (*transports[name].loss_counters, "spool_lost"):
            counts[counter] += counters.get(counter, 0)
    return {name: count for name, count in sorted(counts.items()) if count}


def drain(
    dispatcher: Dispatcher, queues: Sequence[EndpointQueue], monotonic_ns: Callable[[], int], deadline_ns: int
) -> int:
    """Send the queued messages, and dead-letter the rest; returns how many could have been sent but were not.

    The result includes messages held by filters. It excludes blocked messages: they are dead-lettered without waiting.
    """

    def left() -> int:
        """Messages that can be sent and are not yet."""
        return queued() - sum(queue.queued - queue.sendable for queue in queues)

    def queued() -> int:
        return dispatcher.ledger_snapshot(
            [queue.ledger for queue in queues], sum(queue.queued for queue in queues)
        ).queued

    pause = threading.Event()
    while True:
        for queue in queues:
            queue.wait_sent(deadline_ns)
        unsent = left()
        if unsent <= 0 or monotonic_ns() >= deadline_ns:
            break
        pause.wait(_POLL_S)  # timers of filters that hold messages still run
    _wait_empty(dispatcher, queues)
    # The lower count: a blocked message that is tried just now is in none of both.
    unsent = max(0, min(unsent, left()))
    if queued():
        _abandon_queued(dispatcher, queues)
        _wait_empty(dispatcher, queues)
        _dead_letter_rest(dispatcher, queues)  # error responses without a reachable receiver
    return unsent


def _abandon_queued(dispatcher: Dispatcher, queues: Sequence[EndpointQueue]) -> None:
    """Dead-letter the remaining messages, and queue error responses to their requesters."""
    abandoned = [item for queue in queues for item in queue.abandon_all(STOPPED)]
    for queue in queues:
        queue.no_more_retries(STOPPED)
    # Only after `abandon_all`: an error response must not be abandoned itself.
    for item in abandoned:
        dispatcher.on_undelivered(item, STOPPED)
    dispatcher.abandon_held(STOPPED)


def _dead_letter_rest(dispatcher: Dispatcher, queues: Sequence[EndpointQueue]) -> None:
    for queue in queues:
        for item in queue.abandon_all(STOPPED):
            dispatcher.on_undelivered(item, STOPPED)


def _wait_empty(dispatcher: Dispatcher, queues: Sequence[EndpointQueue]) -> None:
    """Wait until the dead letters are published and the queues are empty, `_RESPONSE_GRACE_NS` at most."""
    monotonic_ns = dispatcher.clock.monotonic_ns
    deadline_ns = monotonic_ns() + _RESPONSE_GRACE_NS
    pause = threading.Event()
    while dispatcher.dead_letters and monotonic_ns() < deadline_ns:
        pause.wait(_POLL_S)
    for queue in queues:
        queue.wait_empty(deadline_ns)


def reclaim_unconfirmed(
    dispatcher: Dispatcher,
    queues: Mapping[str, EndpointQueue],
    transports: Mapping[str, EndpointTransport],
    ingress_of: Callable[[UUri], str],
) -> int:
    """End the transports and take back what may not have arrived: to the disk of a durable queue, else as dead letters.

    Returns the number of messages that are not on disk. Those that the transport kept become dead letters instead of
    delivered. The `forgotten` ones stay delivered, and so do broadcasts without a subscriber.
    """
    lost = 0
    for name, transport in transports.items():
        sent, forgotten, stored = transport.finish()
        # A change without a subscriber behind this endpoint was for listeners only.
        messages = [each for each in sent if not dispatcher.router.is_broadcast(name, each.attributes)]
        status = UStatus(UCode.UNAVAILABLE, f"sent to endpoint {name!r}, but it may not have arrived")
        queue = queues[name]
        # Without messages too: then the queue deletes what it kept on disk.
        broadcasts = {each.id for each in sent} - {each.id for each in messages}
        dead = queue.reclaim(
            SentMessages(dispatcher, queue, ingress_of).as_queued(messages), set(stored) - broadcasts
        )
        if not (messages or forgotten or dead):
            continue
        for item in dead:
            dispatcher.on_undelivered(item, status)
        lost += len(dead) + forgotten
        extra = {"endpoint": name, "messages": len(messages), "lost": len(dead), "forgotten": forgotten}
        log.warning("streamer.unconfirmed", extra=extra)
    if lost:
        _wait_empty(dispatcher, list(queues.values()))
        _dead_letter_rest(dispatcher, list(queues.values()))
    return lost
