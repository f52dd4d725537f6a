# SPDX-License-Identifier: Apache-2.0
"""A durable streamer is killed in the middle of an outage. Its next start sends what Zenoh had accepted before.

Without the sent messages on disk, all messages from the beginning of the outage to the kill are lost, unreported. A
streamer that receives them removes the copies, by `duplicate_window`.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.delivery.outage_scenarios import TOPIC
from tests.e2e.delivery.stop_scenarios import StopScenario
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import START_S, StreamerProcess

HZ: Final = 200
BEFORE_S: Final = 1.0
OUTAGE_S: Final = 2.0  # the link is not down yet: Zenoh accepts everything
FAULTS: Final = ("freeze", "kill after a freeze")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[StopScenario]:
    with ExitStack() as stack:
        scene = StopScenario(tmp_path / "kill", stack, durable=True)
        scene.send(HZ, BEFORE_S)
        scene.subscriber.wait_received(scene.sent - 1)
        yield scene


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kill_in_an_outage_loses_nothing_that_zenoh_had_accepted(scene: StopScenario, fault: str) -> None:
    before = scene.sent
    scene.router.freeze()
    scene.send(HZ, OUTAGE_S)
    scene.wait_accepted()
    if fault != "freeze":
        scene.router.kill()
    scene.wait_on_disk(range(before, scene.sent))
    received, later = scene.kill()
    assert received == list(range(max(before, len(received))))  # the freeze may come one message late
    assert set(range(before, scene.sent)) <= set(later)
    assert later == sorted(set(later))


def test_after_an_outage_the_disk_is_empty_and_a_kill_repeats_nothing(scene: StopScenario) -> None:
    before = scene.sent
    scene.router.freeze()
    scene.send(HZ, OUTAGE_S)
    scene.wait_accepted()
    scene.wait_on_disk(range(before, scene.sent))
    scene.router.thaw()
    scene.subscriber.wait_received(scene.sent - 1)
    scene.wait_disk_empty()
    received, later = scene.kill()
    assert received == list(range(scene.sent))
    assert later == []


_RECEIVER: Final = """\
authority = "cloud"
state_dir = "cloud"

[endpoints.link]
transport = "zenoh"
authorities = ["hpc.vin1", "chassis"]
mode = "client"
connect = ["tcp/127.0.0.1:{router}"]
duplicate_window = 10_000

[endpoints.apps]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{apps}"]

[plugins.usubscription]
"""


def test_a_receiving_streamer_removes_the_copies_of_a_killed_one(scene: StopScenario, tmp_path: Path) -> None:
    [apps] = tcp_ports(1)
    config = tmp_path / "receiver.toml"
    config.write_text(_RECEIVER.format(router=scene.port, apps=apps), encoding="utf-8")
    scene.subscriber.kill()  # the messages are for the receiving streamer alone
    with StreamerProcess(config):
        with ZenohEntity(apps, "cloud") as app:
            app.call(
                USUBSCRIPTION._replace(authority="cloud").at(wire.SUBSCRIBE), wire.subscription_request(TOPIC)
            )
        subscriber = scene.start_process("client", apps)
        until = time.monotonic() + START_S
        while not subscriber.received:  # until the subscription has reached the first streamer
            assert time.monotonic() < until
            scene.send(HZ, 0.1)
        subscriber.wait_received(scene.sent - 1)
        first, before = subscriber.received[0], scene.sent
        scene.send(HZ, BEFORE_S)
        subscriber.wait_received(scene.sent - 1)
        scene.router.freeze()
        scene.send(HZ, OUTAGE_S)
        scene.wait_accepted()
        scene.wait_on_disk(range(before + HZ, scene.sent))
        scene.restart()
        scene.wait_disk_empty()
        scene.send(HZ, 0.5)
        subscriber.wait_received(scene.sent - 1)
        assert subscriber.received == list(range(first, scene.sent))
