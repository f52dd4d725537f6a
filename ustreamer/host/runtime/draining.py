# SPDX-License-Identifier: Apache-2.0
"""The last sends of a streamer that takes nothing more in, and what becomes of the rest."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.host.egress.endpoint_queue import Lane
from ustreamer.uprotocol.ustatus import UCode, UStatus

_ANSWERING_NS: Final = 500_000_000
"""For answers to whoever is told that time is up, and for a route that does not know yet that somebody is there."""
_LOOK_S: Final = 0.005
_STOPPED: Final = UStatus(UCode.UNAVAILABLE, "the streamer was stopped before this could be sent")


def drain(
    dispatcher: Dispatcher, lanes: Sequence[Lane], monotonic_ns: Callable[[], int], deadline_ns: int
) -> int:
    """Send what is queued, and give up what is left; how many messages could have been sent and were not.

    Those that a filter holds are among them. What waits for somebody who is not there is given up as well, but nobody
    waits for it, and it is not counted.
    """

    def left() -> int:
        """Messages that could be sent and have not been."""
        return queued() - sum(lane.queued - lane.owed for lane in lanes)

    def queued() -> int:
        return dispatcher.ledger([lane.ledger for lane in lanes], sum(lane.queued for lane in lanes)).queued

    pause = threading.Event()
    while True:
        for lane in lanes:
            lane.wait_sent(deadline_ns)
        if left() <= 0 or monotonic_ns() >= deadline_ns:
            break
        pause.wait(_LOOK_S)  # the timers of filters that hold something still run
    _wait_empty(lanes, monotonic_ns() + _ANSWERING_NS)
    unsent = left()
    if queued():
        _give_up(dispatcher, lanes)
        _wait_empty(lanes, monotonic_ns() + _ANSWERING_NS)
        _bury(dispatcher, lanes)  # what was said last, and nobody is there to hear
    return unsent


def _give_up(dispatcher: Dispatcher, lanes: Sequence[Lane]) -> None:
    """Make dead letters of what is left, and queue the answers to those who asked."""
    given_up = [item for lane in lanes for item in lane.take_back(_STOPPED)]
    for lane in lanes:
        lane.try_once(_STOPPED)
    # Not before: an answer must not be among what is taken back.
    for item in given_up:
        dispatcher.undelivered(item, _STOPPED)
    dispatcher.give_up_held(_STOPPED)


def _bury(dispatcher: Dispatcher, lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        for item in lane.take_back(_STOPPED):
            dispatcher.undelivered(item, _STOPPED)


def _wait_empty(lanes: Sequence[Lane], deadline_ns: int) -> None:
    for lane in lanes:
        lane.wait_empty(deadline_ns)
