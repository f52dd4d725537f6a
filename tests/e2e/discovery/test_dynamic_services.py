# SPDX-License-Identifier: Apache-2.0
"""ECUs without any configuration: subscribed and called by their addresses, with Zenoh on the other side."""

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


def test_an_unconfigured_ecu_is_subscribed_while_a_subscriber_exists(car: SdVehicle) -> None:
    assert car.subscription_state(BEAM) == SUBSCRIBE_PENDING
    ecu = car.new_ecu()
    ecu.offer(LAMPS, BEAM.resource)
    ecu.notifications.wait_one(lambda seen: seen == SdNotification("subscribed", LAMPS, BEAM.resource))
    eventually(lambda: car.subscription_state(BEAM), wire.SUBSCRIBED)

    ecu.send_event(LAMPS, BEAM.resource, b"lit", car.address)
    assert car.app.wait_events(BEAM)[0].payload == b"lit"

    car.app.unsubscribe(BEAM)
    ecu.notifications.wait_one(lambda seen: seen == SdNotification("unsubscribed", LAMPS, BEAM.resource))


def test_an_unconfigured_ecu_is_called(car: SdVehicle) -> None:
    waiting = car.app.send_request(SWITCH, b"early")
    ecu = car.new_ecu()
    ecu.offer(LAMPS)
    assert car.app.wait_response(waiting).payload == b"early"  # the request waited for the service
    assert car.app.call(SWITCH, b"on").payload == b"on"


def test_a_returning_unconfigured_ecu_is_subscribed_again(car: SdVehicle) -> None:
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
