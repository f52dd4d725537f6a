# SPDX-License-Identifier: Apache-2.0
"""The device's uSubscription is the published one in Rust (crate up-subscription 0.1.3): the streamer follows it.

It runs where REFERENCE_USUBSCRIPTION names the program of reference_usubscription/, which `make clients` builds.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.subscriber import Subscriber
from tests.e2e.rigs.wire import Uri

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{cloud}"]

[plugins.usubscription]
external = true

[plugins.throttle]
"""
TOPIC: Final = Uri("cloud", 0x5000, 1, 0x8001)
USUBSCRIPTION: Final = Uri("hpc.vin1", 0, 3)
QUIET_S: Final = 0.3


class Device:
    """A streamer, the reference, a subscriber of its authority, and a publisher behind another one."""

    def __init__(self, program: Path, directory: Path, stack: ExitStack) -> None:
        self._port, cloud = tcp_ports(2)
        config = directory / "streamer.toml"
        config.write_text(_CONFIG.format(backbone=self._port, cloud=cloud), encoding="utf-8")
        self._program = program
        self._service: subprocess.Popen[str] | None = None
        self.streamer = stack.enter_context(StreamerProcess(config))
        self.publisher = stack.enter_context(ZenohEntity(cloud, "cloud", 0x5000, listen_to="up/none"))
        self.reader = stack.enter_context(Subscriber(self._port, "hpc.vin1"))
        stack.callback(self.kill_service)

    def start_service(self) -> None:
        command: list[str | Path] = [self._program, f"tcp/127.0.0.1:{self._port}", "hpc.vin1"]
        self._service = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._service.stdout is not None
        assert self._service.stdout.readline() == "READY\n"
        self.reader.wait_responding(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS))

    def kill_service(self) -> None:
        if self._service is not None:
            self._service.kill()
            self._service.wait()
            assert self._service.stdout is not None
            self._service.stdout.close()
            self._service = None

    def call(self, method: int) -> None:
        """Subscribe or Unsubscribe at the reference, which requires the subscriber in the payload."""
        subscriber = wire.field(2, wire.subscriber_info(self.reader.address))
        answer = self.reader.call(USUBSCRIPTION.at(method), wire.topic_request(TOPIC) + subscriber)
        assert answer.head.commstatus in {None, wire.OK}, answer.status

    def flows(self) -> bool:
        """Whether a publication reaches the subscriber."""
        number = b"%d" % time.monotonic_ns()
        self.publisher.publish(TOPIC, number)
        deadline = time.monotonic() + QUIET_S
        while time.monotonic() < deadline:
            if any(each.payload == number for each in self.reader.events(TOPIC)):
                return True
            time.sleep(0.005)
        return False

    def wait_flows(self, expected: bool) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.flows() is not expected:
            assert time.monotonic() < deadline, "the streamer does not follow"


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    variable = "REFERENCE_USUBSCRIPTION"
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: `make clients` builds the program")
    with ExitStack() as stack:
        yield Device(Path(os.environ[variable]), tmp_path, stack)


def test_a_subscribe_there_takes_effect_here_and_an_unsubscribe_ends_it(device: Device) -> None:
    device.start_service()
    assert not device.flows(), "no subscription is invented"
    device.call(wire.SUBSCRIBE)
    device.wait_flows(True)
    device.call(wire.UNSUBSCRIBE)
    device.wait_flows(False)


def test_after_a_kill_the_last_known_subscriptions_stay_until_it_returns_empty(device: Device) -> None:
    device.start_service()
    device.call(wire.SUBSCRIBE)
    device.wait_flows(True)
    device.kill_service()
    assert device.flows()
    device.start_service()  # empty
    device.wait_flows(False)
    device.call(wire.SUBSCRIBE)
    device.wait_flows(True)
    device.call(wire.UNSUBSCRIBE)
    device.wait_flows(False)
