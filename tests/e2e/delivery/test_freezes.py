# SPDX-License-Identifier: Apache-2.0
"""A process is frozen for about the lease: the streamer itself, or one of two subscribers of a topic."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.delivery.outage_scenarios import OutageOutcome, OutageScenario
from tests.e2e.rigs.streamer import assert_ledger_balanced

_HZ: Final = 40
"""So few that the kernel keeps the datagrams of a freeze."""
_RETRANSMIT_MS: Final = 15_000
_FREEZES_S: Final = (8.5, 9.1, 9.7)
"""The last keep-alive came up to 2.5 s before a freeze. The lease of 10 s ends in the freeze, or just after it."""
_LONG_S: Final = 13.0
_FREEZES: Final = 2 * len(_FREEZES_S) + 2

durable_or_not = pytest.mark.parametrize("durable", ["false", "true"])


def streamer_frozen(directory: Path, seconds: float, settings: str) -> OutageOutcome:
    with ExitStack() as stack:
        scene = OutageScenario(directory, stack, "listen", _RETRANSMIT_MS, settings=settings)
        return scene.run_outage(
            seconds,
            scene.start_subscriber,
            lambda: os.kill(scene.streamer_pid, signal.SIGSTOP),
            lambda: os.kill(scene.streamer_pid, signal.SIGCONT),
            _HZ,
        )


def one_of_two_subscribers_frozen(directory: Path, seconds: float, settings: str) -> OutageOutcome:
    with ExitStack() as stack:
        scene = OutageScenario(directory, stack, "listen", _RETRANSMIT_MS, settings=settings)

        def join() -> None:
            scene.start_subscriber()
            scene.start_subscriber()

        return scene.run_outage(seconds, join, scene.freeze_subscriber, scene.thaw_subscriber, _HZ)


def run_freezes(directory: Path) -> dict[str, list[OutageOutcome]]:
    """All freezes at once: those of streamers, and of one of two subscribers, not durable and durable."""
    with ThreadPoolExecutor(_FREEZES) as pool:
        running = {
            f"{subject} {durable}": [
                pool.submit(
                    freeze, directory / f"{subject}-{durable}-{seconds}", seconds, f"durable = {durable}"
                )
                for seconds in all_seconds
            ]
            for subject, freeze, all_seconds in (
                ("streamer", streamer_frozen, _FREEZES_S),
                ("subscriber", one_of_two_subscribers_frozen, (_LONG_S,)),
            )
            for durable in ("false", "true")
        }
        return {name: [each.result() for each in futures] for name, futures in running.items()}


@pytest.fixture(scope="module")
def freezes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[OutageOutcome]]:
    return run_freezes(tmp_path_factory.mktemp("freezes"))


def assert_nothing_is_lost(outcomes: Sequence[OutageOutcome]) -> None:
    for outcome in outcomes:
        assert_ledger_balanced(outcome.ledger)
        assert outcome.lost == [], outcome
        assert outcome.first_received == sorted(outcome.first_received), outcome


def assert_missed_is_counted(outcomes: Sequence[OutageOutcome]) -> None:
    for outcome in outcomes:
        assert_ledger_balanced(outcome.ledger)
        assert outcome.missed[0] == 0, outcome
        assert _HZ <= outcome.missed[1] <= outcome.sent_while_node_lost, outcome
        # Since the last keep-alive before the freeze, until it was back.
        assert outcome.sent_while_node_lost <= (_LONG_S + 10) * _HZ, outcome


@durable_or_not
def test_a_streamer_that_was_frozen_for_about_the_lease_loses_nothing(
    freezes: dict[str, list[OutageOutcome]], durable: str
) -> None:
    assert_nothing_is_lost(freezes[f"streamer {durable}"])


@durable_or_not
def test_what_was_sent_while_one_of_two_subscribers_was_lost_is_counted(
    freezes: dict[str, list[OutageOutcome]], durable: str
) -> None:
    """Zenoh closes its link after the lease, and sends to the other one."""
    assert_missed_is_counted(freezes[f"subscriber {durable}"])


@pytest.mark.soak
def test_20_freezes_lose_nothing(tmp_path: Path) -> None:
    for number in range(20):
        outcomes = run_freezes(tmp_path / f"{number}")
        for durable in ("false", "true"):
            assert_nothing_is_lost(outcomes[f"streamer {durable}"])
            assert_missed_is_counted(outcomes[f"subscriber {durable}"])
