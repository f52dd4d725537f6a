# SPDX-License-Identifier: Apache-2.0
"""A router that is slower than the vehicle: it drops events itself, and reports their number to each session."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from ustreamer_wamp import transport

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from tests.car import RPM, RPM_TOPIC, SECTION, SPEED, SPEED_TOPIC, Car, subscribed
else:
    from plugins.wamp.tests.car import RPM, RPM_TOPIC, SECTION, SPEED, SPEED_TOPIC, Car, subscribed

EVENTS = 500


@pytest.mark.parametrize("policy", ["conflate", "drop_oldest"])
def test_events_above_the_capacity_of_the_router_are_dropped_and_reported(
    make_car: Callable[..., Car], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(transport, "MAX_INBOX", 100)
    monkeypatch.setattr(transport, "CONFLATED_EVENTS", 50, raising=False)
    car = make_car(section=f'{SECTION}\noutbox = {{ policy = "{policy}" }}')
    peers = [car.peer().join() for _ in range(2)]
    for peer in peers:
        subscribed(peer, SPEED_TOPIC)
        subscribed(peer, RPM_TOPIC)
    blocked, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        may_go_on.wait(DEADLINE_S)

    car.local.router.server.run_on_loop(block)
    assert blocked.wait(DEADLINE_S)
    for number in range(EVENTS):
        car.publish((SPEED, RPM)[number % 2], number.to_bytes(2, "big"))
    assert len(car.wamp._inbox) <= 100
    (wamp,) = (each for each in car.streamer.egress_queues() if each.endpoint == "wamp")
    assert (wamp.queued, wamp.dead_lettered) == (0, 0)
    may_go_on.set()
    for peer in peers:
        received, dropped, last = 0, 0, {}
        while received + dropped < EVENTS:
            event = peer.receive()
            received += 1
            dropped += event[3].get("_dropped", 0)
            last[event[5]["source"]] = int.from_bytes(event[4][0], "big")
        assert received + dropped == EVENTS
        assert received <= 50
        assert sorted(last.values()) == [EVENTS - 2, EVENTS - 1], "the latest of each topic"
    assert car.local.counts["events_dropped"] >= 2 * (EVENTS - 101)
