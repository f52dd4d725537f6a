# SPDX-License-Identifier: Apache-2.0
"""ECUs of which the configuration says nothing at all: subscribed and called by their addresses alone, with Zenoh on the other side."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.discovery.sd_vehicle import SUBSCRIBE_PENDING, SdVehicle
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, eventually
from tests.e2e.rigs.sd_ecu import SdNotification
from tests.e2e.rigs.wire import Uri

LAMPS: Final = 0x2222
BEAM: Final = Uri("chassis", LAMPS, 1, 0x8005)
SWITCH: Final = Uri("chassis", LAMPS, 1, ECHO)


@pytest.fixture
def car(tmp_path: Path) -> Iterator[SdVehicle]:
    with ExitStack() as stack:
        yield SdVehicle(stack, tmp_path, sd="dynamic_services = { idle_ms = 500 }")


def test_an_ecu_that_nobody_configured_is_subscribed_until_nobody_wants_it(car: SdVehicle) -> None:
    assert car.subscription_state(BEAM) == SUBSCRIBE_PENDING
    ecu = car.new_ecu()
    ecu.offer(LAMPS, BEAM.resource)
    ecu.notifications.wait_one(lambda seen: seen == SdNotification("subscribed", LAMPS, BEAM.resource))
    eventually(lambda: car.subscription_state(BEAM), wire.SUBSCRIBED)

    ecu.send_event(LAMPS, BEAM.resource, b"lit", car.address)
    assert car.app.wait_events(BEAM)[0].payload == b"lit"

    car.app.unsubscribe(BEAM)
    ecu.notifications.wait_one(lambda seen: seen == SdNotification("unsubscribed", LAMPS, BEAM.resource))


def test_an_ecu_that_nobody_configured_is_called(car: SdVehicle) -> None:
    waiting = car.app.send_request(SWITCH, b"early")
    ecu = car.new_ecu()
    ecu.offer(LAMPS)
    assert car.app.wait_response(waiting).payload == b"early"  # it has waited until the service was there
    assert car.app.call(SWITCH, b"on").payload == b"on"


def test_an_ecu_that_comes_back_is_subscribed_again(car: SdVehicle) -> None:
    ecu = car.new_ecu()
    ecu.offer(LAMPS, BEAM.resource)
    eventually(lambda: car.subscription_state(BEAM), wire.SUBSCRIBED)
    ecu.power_off()
    eventually(lambda: car.subscription_state(BEAM), SUBSCRIBE_PENDING)

    again = car.new_ecu()
    again.offer(LAMPS, BEAM.resource)
    eventually(lambda: car.subscription_state(BEAM), wire.SUBSCRIBED)
    again.send_event(LAMPS, BEAM.resource, b"back", car.address)
    assert car.app.wait_events(BEAM)[0].payload == b"back"
