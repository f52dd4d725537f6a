# SPDX-License-Identifier: Apache-2.0
"""The device has a uSubscription of its own, another process: the streamer follows it."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.streamer import StreamerProcess, run_command, statistics
from tests.e2e.rigs.wire import Uri
from tests.e2e.subscriptions.external_device import USUBSCRIPTION, ExternalDevice


class Device(ExternalDevice):
    """Here the publisher is on the network of the uSubscription."""

    topic = Uri("hpc.vin1", 0x5000, 1, 0x8001)

    def __init__(
        self, directory: Path, stack: ExitStack, *, streamers: int = 1, has_routers: bool = False
    ) -> None:
        super().__init__(directory, stack, streamers=streamers, has_routers=has_routers)
        self.publisher = stack.enter_context(
            ZenohEntity(self.backbone, "hpc.vin1", 0x5000, listen_to="up/none")
        )
        self.reader = stack.enter_context(ZenohEntity(self.cloud, "cloud", 0x10A1))

    def start_service(self, *arguments: str, version: int = 3) -> None:
        module = "tests.e2e.subscriptions.usubscription_process"
        self.start([sys.executable, "-m", module, str(self.backbone), str(version), *arguments])


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


MANY: Final = 20_000
FLOORS: Final = 3
"""A follower decodes as a bare client does, changes the directory, and prepares the endpoints for the topics."""


def read_list_s(device: Device) -> float:
    """The time in which a bare client reads the list of the other process."""
    with ZenohEntity(device.backbone, "hpc.vin1", 0x10A3) as client:
        began = time.monotonic()
        answer = client.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIPTIONS))
        entries = wire.fields(answer.payload)[1]
        assert all(isinstance(each, bytes) and wire.fields(each) for each in entries)
        assert len(entries) == MANY + 1
        return time.monotonic() - began


def wait_lost(device: Device, count: int) -> None:
    device.streamer.stderr.wait_count(lambda line: "usubscription.external_lost" in line, count)


@pytest.mark.parametrize("has_routers", [False, True], ids=["direct", "router"])
def test_a_process_with_a_long_list_is_followed_within_a_second_and_the_time_of_its_list(
    tmp_path: Path, has_routers: bool
) -> None:
    with ExitStack() as stack:
        device = Device(tmp_path, stack, has_routers=has_routers)
        device.start_service(SUBSCRIBED, str(MANY))
        device.wait_flows(True)
        floor_s = read_list_s(device)
        followed_s = []
        for count, (arguments, flows) in enumerate([((), False), ((SUBSCRIBED, str(MANY)), True)] * 2):
            device.kill_service()
            wait_lost(device, count + 1)
            device.start_service(*arguments)
            followed_s.append(device.wait_flows(flows))
        floor_s = max(floor_s, read_list_s(device))
        print(f"floor_s={floor_s:.2f} followed_s={[round(each, 2) for each in followed_s]}")
        assert max(followed_s) < 1 + FLOORS * floor_s


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)])
def test_the_streamer_follows_a_process_that_is_replaced_at_once_by_one_of_the_other_version(
    device: Device, before: int, after: int
) -> None:
    device.start_service(SUBSCRIBED, version=before)
    device.wait_flows(True)
    device.start_service(version=after)  # empty
    assert device.wait_flows(False) < FOLLOWED_S


def test_the_streamer_follows_a_process_that_takes_longer_for_a_list_than_between_two_requests(
    device: Device,
) -> None:
    device.start_service("silent", "slow", SUBSCRIBED)
    device.wait_flows(True)
    for method, flows in ((wire.UNSUBSCRIBE, False), (wire.SUBSCRIBE, True)) * 2:
        device.call(method)
        device.wait_flows(flows)


def test_the_streamer_follows_a_process_that_stopped_for_a_while(device: Device) -> None:
    device.start_service("silent", SUBSCRIBED)
    device.wait_flows(True)
    device.signal_service(signal.SIGSTOP)
    device.streamer.stderr.wait_one(lambda line: "usubscription.external_lost" in line)
    device.signal_service(signal.SIGCONT)
    device.call(wire.UNSUBSCRIBE)
    assert device.wait_flows(False) < FOLLOWED_S


@pytest.mark.parametrize("subject", ["//hpc.vin1/5000/1/8001", "//cloud/10A1/1/0"])
def test_why_names_the_process_that_does_not_answer_and_not_the_receiver(
    device: Device, subject: str
) -> None:
    config = device.streamer.config
    answer = json.loads(run_command("why", subject, config, "--json").stdout)
    [first, *_] = answer["findings"]
    assert first["cause"] == "usubscription_silent"
    assert "core.usubscription of 'hpc.vin1'" in first["text"]
    assert not {"no_subscriber", "no_subscription"} & {each["cause"] for each in answer["findings"]}
    device.start_service(SUBSCRIBED)
    device.wait_flows(True)
    answer = json.loads(run_command("why", subject, config, "--json").stdout)
    assert "usubscription_silent" not in [each["cause"] for each in answer["findings"]]
    device.kill_service()
    device.streamer.stderr.wait_one(
        lambda line: "usubscription.external_lost" in line and '"subscriptions": 1' in line
    )
    answer = json.loads(run_command("why", subject, config, "--json").stdout)
    assert "later changes of subscriptions do not count" in str(answer["findings"])


GRACE_PERIOD_S: Final = 1.0
"""Redundant streamers forward a topic for this time after they have withdrawn it."""
UNSUBSCRIBED_S: Final = 0.7
"""0.2 s until `flows` is sure, and a margin for a busy machine."""


def spoofed_count(streamer: StreamerProcess) -> int:
    found = statistics(streamer.config.parent / f"state-{streamer.config.stem}")
    count: int = found["endpoints"]["backbone"].get("refused_spoofed", 0)
    return count


def test_redundant_streamers_behind_one_process_both_follow(tmp_path: Path) -> None:
    with ExitStack() as stack:
        device = Device(tmp_path, stack, streamers=2)
        for each in device.streamers:
            each.stderr.wait_count(lambda line: '"joined": ["hpc.vin1"]' in line, 2)
        device.start_service()
        for each in device.streamers:
            each.stderr.wait_one(lambda line: "usubscription.external_found" in line)
        spoofed = [spoofed_count(each) for each in device.streamers]
        for _ in range(4):
            device.call(wire.SUBSCRIBE)
            device.wait_flows(True)
            device.call(wire.UNSUBSCRIBE)
            assert device.wait_flows(False) < UNSUBSCRIBED_S + GRACE_PERIOD_S
        device.call(wire.SUBSCRIBE)
        device.wait_flows(True)
        device.kill_service()
        device.start_service()  # empty
        assert device.wait_flows(False) < FOLLOWED_S + GRACE_PERIOD_S
        for each in device.streamers:
            events = [line for line in each.log_records if line["logger"] == "ustreamer.usubscription"]
            found = [line["event"] for line in events].index("usubscription.external_found")
            assert {line.get("why", "no answer") for line in events[found:]} == {"no answer"}
        assert [spoofed_count(each) for each in device.streamers] == spoofed, (
            "each knows the calls of the other"
        )
