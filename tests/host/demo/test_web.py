# SPDX-License-Identifier: Apache-2.0
"""`ustreamer demo --web`: the page, and readable values of the chassis at the requested rate."""

import json
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.e2e.rigs.entities import STALL_GAP_S, Metronome
from ustreamer.host.cli.main import parser
from ustreamer.host.demo import chassis
from ustreamer.host.demo.vehicle import DemoVehicle
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.uprotocol.uuri import UUri

WHEEL, STEERING, DOORS = (
    "up.chassis.1234.0.1.8001",
    "up.chassis.1234.0.1.8005",
    "up.chassis.2001.0.1.8001",
)


def answer(client: ClientConnection, *message: Any) -> Any:
    client.send(json.dumps(message))
    return json.loads(client.recv(timeout=30))


def test_live_values_are_readable_and_at_the_requested_rate() -> None:
    with DemoVehicle(web=0) as vehicle:
        assert vehicle.page is not None
        page = urllib.request.urlopen(vehicle.page, timeout=30).read().decode()
        assert "uStreamer" in page
        url = vehicle.page.replace("http", "ws") + "ws"
        with connect(url, subprotocols=["wamp.2.json"]) as client:  # type: ignore[list-item]  # a name is a str
            assert answer(client, 1, "realm1", {"roles": {"subscriber": {}}})[0] == 2
            wheel = answer(client, 32, 1, {"max_frequency": 10}, WHEEL)[2]
            first = json.loads(client.recv(timeout=30))
            assert first[1] == wheel
            assert 13.9 <= first[4][0]["speed"] <= 15.9
            assert first[5]["source"] == "up://chassis/1234/1/8001"
            assert_arrives_at(10, client)
        outcome = vehicle.finish()
    assert outcome.unaccounted == 0
    assert outcome.endpoints["wamp"]["sessions"] == 1


def assert_arrives_at(hz: float, client: ClientConnection, events: int = 21) -> None:
    """Within a fifth: never more, and less only by the time that the machine paused."""
    ticks: list[float] = []
    arrived: list[tuple[float, float]] = []
    with Metronome(100, lambda _: ticks.append(time.monotonic())):
        while len(arrived) < events:
            made_ms = UUID(json.loads(client.recv(timeout=30))[5]["id"]).int >> 80
            arrived.append((made_ms / 1000, time.time()))
    stalled_s = sum(
        gap for gap in (later - earlier for earlier, later in pairwise(ticks)) if gap > STALL_GAP_S
    )
    # The time of passing the gate is not reported: it is between creation and arrival.
    (first_made_s, first_came_s), (last_made_s, last_came_s) = arrived[0], arrived[-1]
    assert (events - 1) / (last_came_s - first_made_s) <= 1.2 * hz
    assert (events - 1) / (last_made_s - first_came_s - stalled_s) >= 0.8 * hz


@pytest.fixture(scope="module")
def streamer() -> Iterator[Streamer]:
    """The vehicle of the demo, which does not run."""
    vehicle = DemoVehicle()
    yield vehicle.streamer
    vehicle.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("service", "event", "payload", "shown"),
    [
        *(
            (chassis.WHEELS, event, b"\x41\x60\x00\x00", {"speed": 14.0})
            for event in chassis.WHEEL_EVENTS.values()
        ),
        (chassis.WHEELS, chassis.STEERING_EVENT, b"\xff\xf6", {"angle": -10}),
        (chassis.DOORS, chassis.DOOR_EVENT, b"\x03\x01", {"door": "rear_right", "open": True}),
    ],
)
def test_the_chassis_payloads_can_be_decoded(
    streamer: Streamer, service: int, event: int, payload: bytes, shown: dict[str, Any]
) -> None:
    decode = streamer.decoder(UUri("chassis", service, chassis.MAJOR, event))
    assert decode is not None
    assert decode(payload) == shown


def test_absent_sections_have_no_values(streamer: Streamer) -> None:
    assert streamer.decoder(UUri("chassis", chassis.CLIMATE, chassis.MAJOR, 0x8001)) is None


@pytest.mark.parametrize(
    ("arguments", "port"), [([], None), (["--web"], 8080), (["--web", "0"], 0), (["--web", "9000"], 9000)]
)
def test_the_port_of_the_page_can_be_chosen(arguments: list[str], port: int | None) -> None:
    assert parser().parse_args(["demo", *arguments]).web == port
