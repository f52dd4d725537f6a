# SPDX-License-Identifier: Apache-2.0
"""A durable streamer is killed in the middle of an outage. Its next start sends what Zenoh had accepted before.

Without the sent messages on disk, all messages from the beginning of the outage to the kill are lost, unreported.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.delivery.stop_scenarios import StopScenario

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
    assert received == list(range(before))
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
