# SPDX-License-Identifier: Apache-2.0
"""The configurations of the traffic models: each service has its ECU or its receiver, throttled ones with a limit."""

import socket
import tomllib
from typing import Any

import msgspec

from benchmarks.harness.checkouts import idle_endpoints_config, topics_config
from benchmarks.harness.testbed import Direction, Ports, free_ports
from benchmarks.traffic.models import MODELS, VEHICLE, TrafficModel

PORTS = Ports(zenoh=1, someip=2, ecu=3, receiver=4)


def config(model: TrafficModel, direction: Direction, idle: tuple[int, ...] = ()) -> dict[str, Any]:
    text = topics_config(model, direction, range(100, 100 + model.services), 5) + idle_endpoints_config(idle)
    return tomllib.loads(text.format(**msgspec.structs.asdict(PORTS)))


def test_each_ecu_has_the_events_of_a_service() -> None:
    *services, called = config(VEHICLE, Direction.SOMEIP_TO_ZENOH)["endpoints"]["chassis"]["services"]
    assert [each["remote"] for each in services] == [f"127.0.0.1:{port}" for port in range(100, 120)]
    assert sum(len(each["events"]) for each in services) == VEHICLE.topics
    assert (called["methods"], called["offered"]) == ([1], True)


def test_the_receiver_of_a_throttled_service_has_its_limit() -> None:
    *services, called = config(VEHICLE, Direction.ZENOH_TO_SOMEIP)["endpoints"]["chassis"]["services"]
    limits = [each["receivers"][0].get("max_frequency") for each in services]
    assert limits == [VEHICLE.limit_hz(number * VEHICLE.service_topics) for number in range(20)]
    assert limits.count(None) == 16
    assert called["remote"] == "127.0.0.1:4"


def test_idle_endpoints_have_authorities_of_their_own() -> None:
    endpoints = config(MODELS["8"], Direction.ZENOH_TO_ZENOH, (6, 7))["endpoints"]
    assert list(endpoints) == ["backbone", "cloud", "idle0", "idle1"]
    assert [each["authorities"] for each in endpoints.values()] == [
        ["hpc.vin1"],
        ["cloud"],
        ["idle0"],
        ["idle1"],
    ]
    assert endpoints["idle1"]["listen"] == ["tcp/127.0.0.1:7"]


def test_no_port_is_returned_twice() -> None:
    """The ports of the ECUs come from another call than those of the streamer."""
    found = [port for _ in range(4) for port in free_ports([socket.SOCK_DGRAM] * 250)]
    assert len(set(found)) == 1_000
