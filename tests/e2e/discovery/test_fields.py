# SPDX-License-Identifier: Apache-2.0
"""A field is state: every subscriber has its value, the first one, a late one, and one after a restart."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.discovery.sd_vehicle import (
    OFFERED,
    PROVIDER,
    SdVehicle,
    offered_service_toml,
)
from tests.e2e.rigs.entities import ZenohEntity, eventually
from tests.e2e.rigs.sd_ecu import SdEcu
from tests.e2e.rigs.streamer import StreamerProcess, statistics

LIGHT: Final = PROVIDER.at(0x8001)
LIGHTS: Final = 1
"""The event group of the offered field."""

SERVICES: Final = (
    offered_service_toml(OFFERED, f"events = [{{ id = 0x8001, eventgroup = {LIGHTS}, field = true }}]"),
)


@pytest.fixture
def car(tmp_path: Path) -> Iterator[SdVehicle]:
    with ExitStack() as stack:
        yield SdVehicle(stack, tmp_path, *SERVICES)


def publish_once(car: SdVehicle, payload: bytes) -> None:
    """The application publishes the field, and ends."""
    with ZenohEntity(car.ports.zenoh, PROVIDER.authority, PROVIDER.ue_id) as provider:
        provider.publish(LIGHT, payload)
        eventually(lambda: field_values(car), 1)


def field_values(car: SdVehicle) -> int:
    state_dir = car.process.config.parent / "state"
    number: int = statistics(state_dir)["endpoints"]["chassis"]["field_values"]
    return number


def subscribe(car: SdVehicle) -> SdEcu:
    ecu = car.new_ecu()
    ecu.subscribe(OFFERED, LIGHTS)
    return ecu


def wait_value(ecu: SdEcu, payload: bytes) -> None:
    ecu.data_socket.inbox.wait_one(lambda frame: frame.head.payload == payload)


def test_each_ecu_gets_the_value_of_an_offered_field(car: SdVehicle) -> None:
    publish_once(car, b"on")
    ecus = [subscribe(car), subscribe(car)]
    for ecu in ecus:
        wait_value(ecu, b"on")
        ecu.close()
    state_dir = car.process.config.parent / "state"
    eventually(lambda: statistics(state_dir)["endpoints"]["chassis"]["sd_receivers"], 0)
    wait_value(subscribe(car), b"on")


def test_an_ecu_gets_the_value_after_a_restart_of_the_streamer(car: SdVehicle) -> None:
    publish_once(car, b"on")
    file = car.process.config.parent / "state" / "fields" / "chassis"
    eventually(lambda: file.exists() and b"on" in file.read_bytes(), True)
    car.process.kill()
    with StreamerProcess(car.process.config):
        wait_value(subscribe(car), b"on")
    with StreamerProcess(car.process.config):  # after an orderly stop
        wait_value(subscribe(car), b"on")
