# SPDX-License-Identifier: Apache-2.0
"""A process is frozen for about the lease: the streamer itself, or one of two subscribers of a topic.

`python -m tests.e2e.delivery.test_freezes N` repeats it with N streamers at a time and prints the outcomes.
"""

import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.delivery.outage_scenarios import OutageOutcome, OutageScenario
from tests.e2e.rigs.streamer import assert_ledger_balanced

_HZ: Final = 40
"""The kernel keeps the datagrams of the frozen time for the streamer."""
_RETRANSMIT_MS: Final = 15_000
_FREEZES_S: Final = (8.5, 9.1, 9.7)
"""The last keep-alive came up to 2.5 s before a freeze. The lease of 10 s ends in the freeze, or just after it."""
_LONG_S: Final = 13.0


def streamer_frozen(directory: Path, seconds: float) -> OutageOutcome:
    with ExitStack() as stack:
        scene = OutageScenario(directory, stack, "listen", _RETRANSMIT_MS)
        return scene.run_outage(
            seconds,
            scene.start_subscriber,
            lambda: os.kill(scene.streamer_pid, signal.SIGSTOP),
            lambda: os.kill(scene.streamer_pid, signal.SIGCONT),
            _HZ,
        )


def one_of_two_subscribers_frozen(directory: Path, seconds: float) -> OutageOutcome:
    with ExitStack() as stack:
        scene = OutageScenario(directory, stack, "listen", _RETRANSMIT_MS)

        def join() -> None:
            scene.start_subscriber()
            scene.start_subscriber()

        return scene.run_outage(seconds, join, scene.freeze_subscriber, scene.thaw_subscriber, _HZ)


@pytest.mark.parametrize(
    "count", [pytest.param(1, id="once"), pytest.param(20, id="20 times", marks=pytest.mark.soak)]
)
def test_a_streamer_that_was_frozen_for_about_the_lease_loses_nothing(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (directory := tmp_path / f"{number}").mkdir()
        with ThreadPoolExecutor() as pool:
            outcomes = pool.map(lambda each: streamer_frozen(directory / f"{each}", each), _FREEZES_S)
        for outcome in outcomes:
            assert_ledger_balanced(outcome.ledger)
            assert outcome.lost == [], outcome
            assert outcome.first_received == sorted(outcome.first_received), outcome


def test_what_one_of_two_subscribers_missed_while_it_was_frozen_is_counted(tmp_path: Path) -> None:
    """Zenoh closes its link after the lease, and sends to the other one."""
    outcome = one_of_two_subscribers_frozen(tmp_path / "two", _LONG_S)
    assert_ledger_balanced(outcome.ledger)
    assert outcome.missed[0] == 0, outcome
    assert _HZ <= outcome.missed[1] <= outcome.not_retransmitted <= outcome.sent, outcome


def main(jobs: int) -> None:
    """Run until it is interrupted."""
    number = 0
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor() as pool:
        while True:
            number += 1
            seconds = [8.0 + (number * 7 + job) % 23 / 10 for job in range(jobs)]
            names = [Path(directory) / f"{number}-{job}" for job in range(jobs)]
            for each, outcome in zip(seconds, pool.map(streamer_frozen, names, seconds), strict=True):
                print(f"{each} s: {outcome}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
