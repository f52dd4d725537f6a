# SPDX-License-Identifier: Apache-2.0
"""The device's uSubscription is the published one in Rust (crate up-subscription 0.1.3): the streamer follows it.

It runs where REFERENCE_USUBSCRIPTION names the program of reference_usubscription/, which `make clients` builds.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.subscriber import Subscriber
from tests.e2e.rigs.wire import Uri
from tests.e2e.subscriptions.external_device import USUBSCRIPTION, ExternalDevice


class Device(ExternalDevice):
    """The reference answers subscribers of its own authority only, so the publisher is behind the other one."""

    topic = Uri("cloud", 0x5000, 1, 0x8001)

    def __init__(self, program: Path, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._program = program
        self.publisher = stack.enter_context(ZenohEntity(self.cloud, "cloud", 0x5000, listen_to="up/none"))
        self.reader = self._subscriber = stack.enter_context(Subscriber(self.backbone, "hpc.vin1"))
        self.subscriber_field = wire.field(2, wire.subscriber_info(self.reader.address))

    def start_service(self) -> None:
        self.start([self._program, f"tcp/127.0.0.1:{self.backbone}", "hpc.vin1"])
        self._subscriber.wait_responding(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS))


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
