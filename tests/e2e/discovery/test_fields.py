# SPDX-License-Identifier: Apache-2.0
"""A field is state: every subscriber has its value, the first one, a late one, and one after a restart."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.discovery.raw_sd_ecu import RawSdEcu, endpoint_option
from tests.e2e.discovery.sd_vehicle import (
    OFFERED,
    PROVIDER,
    SPEED,
    SUBSCRIBE_PENDING,
    SdVehicle,
    offered_service_toml,
    service_toml,
    subscription_state,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, USUBSCRIPTION, ZenohEntity, eventually
from tests.e2e.rigs.sd_ecu import SdEcu
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.wire import Uri

LIGHT: Final = PROVIDER.at(0x8001)
LIGHTS: Final = 1
"""The event group of the offered field."""

SPEED_LIMIT: Final = Uri("chassis", SPEED, 1, 0x8001)
SPEEDS: Final = 7
"""The event group of the field of an ECU."""

SERVICES: Final = (
    service_toml(SPEED, f"events = [{{ id = 0x8001, eventgroup = {SPEEDS}, field = true }}]"),
    offered_service_toml(OFFERED, f"events = [{{ id = 0x8001, eventgroup = {LIGHTS}, field = true }}]"),
)


@pytest.fixture
def car(tmp_path: Path) -> Iterator[SdVehicle]:
    with ExitStack() as stack:
        yield SdVehicle(
            stack, tmp_path, *SERVICES, sd="limits = { subscriptions = 2048, peer_subscriptions = 2048 }"
        )


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


# [itest->RPC-631]
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


# --- fields of ECUs ---------------------------------------------------------------------------------------------------


def ecu_with_field(car: SdVehicle, app: ZenohEntity, payload: bytes) -> SdEcu:
    """An ECU that has sent its field once, with the application as its subscriber."""
    ecu = car.new_ecu()
    ecu.offer(SPEED, SPEEDS)
    eventually(lambda: subscription_state(app, SPEED_LIMIT), wire.SUBSCRIBED)
    ecu.send_event(SPEED, 0x8001, payload, car.address)
    assert app.wait_events(SPEED_LIMIT)[0].payload == payload
    return ecu


def test_a_late_application_gets_the_value_of_an_ecus_field(car: SdVehicle) -> None:
    ecu_with_field(car, car.app, b"50")
    late = car.new_app()
    assert subscription_state(late, SPEED_LIMIT) == wire.SUBSCRIBED
    assert late.wait_events(SPEED_LIMIT)[0].payload == b"50"
    assert subscription_state(late, SPEED_LIMIT) == wire.SUBSCRIBED  # as after its restart
    assert [each.payload for each in late.wait_events(SPEED_LIMIT, 2)] == [b"50", b"50"]


def test_the_value_of_an_ecu_that_left_is_forgotten(car: SdVehicle) -> None:
    ecu = ecu_with_field(car, car.app, b"50")
    ecu.power_off()
    eventually(lambda: subscription_state(car.app, SPEED_LIMIT), SUBSCRIBE_PENDING)
    late = car.new_app()
    assert subscription_state(late, SPEED_LIMIT) == SUBSCRIBE_PENDING
    again = car.new_ecu()
    again.offer(SPEED, SPEEDS)
    eventually(lambda: subscription_state(late, SPEED_LIMIT), wire.SUBSCRIBED)
    again.send_event(SPEED, 0x8001, b"30", car.address)
    assert late.wait_events(SPEED_LIMIT)[0].payload == b"30"


# --- in time ----------------------------------------------------------------------------------------------------------

SUBSCRIBERS: Final = 500
WITHIN_S: Final = 0.05


def ecu_delays(car: SdVehicle, sd: socket.socket) -> Iterator[float]:
    """The time from each Subscribe of an ECU, at another port each, to the value."""
    ecu = RawSdEcu(sd, SPEED)
    with ExitStack() as stack:
        for _ in range(SUBSCRIBERS):
            # Open until the end: a port that comes again would renew a subscription, which sends no value.
            data = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            data.bind((sd.getsockname()[0], 0))
            data.settimeout(DEADLINE_S)
            began = time.monotonic()
            option = endpoint_option(data.getsockname())
            ecu.send_subscribe(OFFERED, LIGHTS, ("127.0.0.1", car.ports.sd), option)
            assert data.recv(65_535)[16:] == b"on"
            yield time.monotonic() - began


def application_delays(app: ZenohEntity) -> Iterator[float]:
    """The time from each Subscribe of an application to the value."""
    for known in range(len(app.events(SPEED_LIMIT)), len(app.events(SPEED_LIMIT)) + SUBSCRIBERS):
        began = time.monotonic()
        app.send_request(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(SPEED_LIMIT))
        app.wait_events(SPEED_LIMIT, known + 1)
        yield app.events(SPEED_LIMIT)[known].received_at - began


@pytest.mark.soak
def test_a_thousand_subscribers_have_the_value_in_time_next_to_a_busy_loop(car: SdVehicle) -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        publish_once(car, b"on")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sd:
            sd.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sd.bind(("127.0.0.99", car.ports.sd))
            delays = list(ecu_delays(car, sd))
        late = car.new_app()
        ecu_with_field(car, car.app, b"50")
        assert subscription_state(late, SPEED_LIMIT) == wire.SUBSCRIBED
        late.wait_events(SPEED_LIMIT)
        delays += application_delays(late)
    finally:
        busy.kill()
        busy.wait()
    slow = [round(each, 3) for each in delays if each > WITHIN_S]
    print(f"{len(delays)} subscribers, slowest {max(delays):.3f} s, above {WITHIN_S} s: {slow}")
    assert len(delays) == 2 * SUBSCRIBERS
    assert not slow
