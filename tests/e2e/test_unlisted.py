# SPDX-License-Identifier: Apache-2.0
"""ECUs of which the configuration says nothing at all: subscribed and called by their addresses alone, with Zenoh on the other side."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.car import PENDING, Car
from tests.e2e.ecu import Seen
from tests.e2e.peers import ECHO, eventually
from tests.e2e.wire import Uri

LAMPS: Final = 0x2222
BEAM: Final = Uri("chassis", LAMPS, 1, 0x8005)
SWITCH: Final = Uri("chassis", LAMPS, 1, ECHO)


@pytest.fixture
def car(tmp_path: Path) -> Iterator[Car]:
    with ExitStack() as stack:
        yield Car(stack, tmp_path, sd="unlisted = { idle_ms = 500 }")


def test_an_ecu_that_nobody_configured_is_subscribed_until_nobody_wants_it(car: Car) -> None:
    assert car.state_of(BEAM) == PENDING
    ecu = car.ecu()
    ecu.offer(LAMPS, BEAM.resource)
    ecu.seen.one(lambda seen: seen == Seen("subscribed", LAMPS, BEAM.resource))
    eventually(lambda: car.state_of(BEAM), wire.SUBSCRIBED)

    ecu.emit(LAMPS, BEAM.resource, b"lit", car.address)
    assert car.app.wait_events(BEAM)[0].payload == b"lit"

    car.app.unsubscribe(BEAM)
    ecu.seen.one(lambda seen: seen == Seen("unsubscribed", LAMPS, BEAM.resource))


def test_an_ecu_that_nobody_configured_is_called(car: Car) -> None:
    waiting = car.app.request(SWITCH, b"early")
    ecu = car.ecu()
    ecu.offer(LAMPS)
    assert car.app.answer(waiting).payload == b"early"  # it has waited until the service was there
    assert car.app.call(SWITCH, b"on").payload == b"on"


def test_an_ecu_that_comes_back_is_subscribed_again(car: Car) -> None:
    ecu = car.ecu()
    ecu.offer(LAMPS, BEAM.resource)
    eventually(lambda: car.state_of(BEAM), wire.SUBSCRIBED)
    ecu.vanish()
    eventually(lambda: car.state_of(BEAM), PENDING)

    again = car.ecu()
    again.offer(LAMPS, BEAM.resource)
    eventually(lambda: car.state_of(BEAM), wire.SUBSCRIBED)
    again.emit(LAMPS, BEAM.resource, b"back", car.address)
    assert car.app.wait_events(BEAM)[0].payload == b"back"
