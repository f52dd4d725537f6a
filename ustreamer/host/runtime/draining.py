# SPDX-License-Identifier: Apache-2.0
"""The last sends of a streamer that takes nothing more in, and what becomes of the rest."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.uprotocol.ustatus import UCode, UStatus

_RESPONSE_GRACE_NS: Final = 500_000_000
"""For answers to whoever is told that time is up, and for a route that does not know yet that somebody is there."""
_POLL_S: Final = 0.005
_STOPPED: Final = UStatus(UCode.UNAVAILABLE, "the streamer was stopped before this could be sent")


def drain(
    dispatcher: Dispatcher, queues: Sequence[EndpointQueue], monotonic_ns: Callable[[], int], deadline_ns: int
) -> int:
    """Send what is queued, and give up what is left; how many messages could have been sent and were not.

    Those that a filter holds are among them. What waits for somebody who is not there is given up as well, but nobody
    waits for it, and it is not counted.
    """

    def left() -> int:
        """Messages that could be sent and have not been."""
        return queued() - sum(queue.queued - queue.sendable for queue in queues)

    def queued() -> int:
        return dispatcher.ledger_snapshot(
            [queue.ledger for queue in queues], sum(queue.queued for queue in queues)
        ).queued

    pause = threading.Event()
    while True:
        for queue in queues:
            queue.wait_sent(deadline_ns)
        if left() <= 0 or monotonic_ns() >= deadline_ns:
            break
        pause.wait(_POLL_S)  # the timers of filters that hold something still run
    _wait_empty(queues, monotonic_ns() + _RESPONSE_GRACE_NS)
    unsent = left()
    if queued():
        _abandon_queued(dispatcher, queues)
        _wait_empty(queues, monotonic_ns() + _RESPONSE_GRACE_NS)
        _dead_letter_rest(dispatcher, queues)  # what was said last, and nobody is there to hear
    return unsent


def _abandon_queued(dispatcher: Dispatcher, queues: Sequence[EndpointQueue]) -> None:
    """Make dead letters of what is left, and queue the answers to those who asked."""
    abandoned = [item for queue in queues for item in queue.abandon_all(_STOPPED)]
    for queue in queues:
        queue.no_more_retries(_STOPPED)
    # Not before: an answer must not be among what is taken back.
    for item in abandoned:
        dispatcher.on_undelivered(item, _STOPPED)
    dispatcher.abandon_held(_STOPPED)


def _dead_letter_rest(dispatcher: Dispatcher, queues: Sequence[EndpointQueue]) -> None:
    for queue in queues:
        for item in queue.abandon_all(_STOPPED):
            dispatcher.on_undelivered(item, _STOPPED)


def _wait_empty(queues: Sequence[EndpointQueue], deadline_ns: int) -> None:
    for queue in queues:
        queue.wait_empty(deadline_ns)
