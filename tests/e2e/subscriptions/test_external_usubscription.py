# SPDX-License-Identifier: Apache-2.0
"""The device has a uSubscription of its own, another process: the streamer follows it."""

import subprocess
import sys
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
from tests.e2e.rigs.wire import Uri

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
mode = "peer"
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
mode = "peer"
listen = ["tcp/127.0.0.1:{cloud}"]

[plugins.usubscription]
external = true

[plugins.throttle]
"""
TOPIC: Final = Uri("hpc.vin1", 0x5000, 1, 0x8001)
USUBSCRIPTION: Final = Uri("hpc.vin1", 0, 3)


class Device:
    """A streamer, an application on each side, and the uSubscription process."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._port, cloud = tcp_ports(2)
        config = directory / "streamer.toml"
        config.write_text(_CONFIG.format(backbone=self._port, cloud=cloud), encoding="utf-8")
        self._stack = stack
        self._service: subprocess.Popen[bytes] | None = None
        self.streamer = stack.enter_context(StreamerProcess(config))
        self.publisher = stack.enter_context(ZenohEntity(self._port, "hpc.vin1", 0x5000, listen_to="up/none"))
        self.reader = stack.enter_context(ZenohEntity(cloud, "cloud", 0x10A1))
        stack.callback(self.kill_service)

    def start_service(self, *arguments: str, version: int = 3) -> None:
        module = "tests.e2e.subscriptions.usubscription_process"
        command = [sys.executable, "-m", module, str(self._port), str(version), *arguments]
        self._service = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._service.stdout is not None
        assert self._service.stdout.readline() == b"READY\n"

    def kill_service(self) -> None:
        if self._service is not None:
            self._service.kill()
            self._service.wait()
            assert self._service.stdout is not None
            self._service.stdout.close()
            self._service = None

    def call(self, method: int) -> None:
        answer = self.reader.call(USUBSCRIPTION.at(method), wire.topic_request(TOPIC))
        assert answer.head.commstatus in {None, wire.OK}, answer.status

    def flows(self) -> bool:
        """Whether a publication reaches the reader; another network proves that it would have been there."""
        number = b"%d" % time.monotonic_ns()
        self.publisher.publish(TOPIC, number)
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            if any(each.payload == number for each in self.reader.events(TOPIC)):
                return True
            time.sleep(0.005)
        return False

    def wait_flows(self, expected: bool) -> float:
        """Wait until publications are forwarded, or are not; returns how long that took."""
        began = time.monotonic()
        while self.flows() is not expected:
            assert time.monotonic() - began < DEADLINE_S, "the streamer does not follow"
        return time.monotonic() - began


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    with ExitStack() as stack:
        yield Device(tmp_path, stack)


FOLLOWED_S: Final = 2.0
"""A second on a quiet machine: half of it until the next request, 0.2 s until `flows` is sure."""
SUBSCRIBED: Final = "hpc.vin1/5000/1/8001,cloud/10A1/1/0"


@pytest.mark.parametrize("arguments", [[], ["silent"]], ids=["updates", "lists only"])
def test_a_subscribe_at_the_other_process_takes_effect_here_and_an_unsubscribe_ends_it(
    device: Device, arguments: list[str]
) -> None:
    assert not device.flows()
    device.start_service(*arguments)
    assert not device.flows(), "no subscription is invented"
    device.call(wire.SUBSCRIBE)
    device.wait_flows(True)
    device.call(wire.UNSUBSCRIBE)
    device.wait_flows(False)


@pytest.mark.parametrize("version", [3, 4])
def test_the_streamer_follows_a_process_that_is_killed_and_returns_empty_or_full(
    device: Device, version: int
) -> None:
    device.start_service(SUBSCRIBED, version=version)
    device.wait_flows(True)
    device.kill_service()
    assert device.flows(), "its last known subscriptions stay"
    device.start_service(version=version)  # empty
    followed_s = [device.wait_flows(False)]
    device.kill_service()
    device.start_service(SUBSCRIBED, version=version)
    followed_s.append(device.wait_flows(True))
    assert max(followed_s) < FOLLOWED_S
    names = [each["event"] for each in device.streamer.log_records]
    assert "usubscription.external_found" in names
