# SPDX-License-Identifier: Apache-2.0
"""`ustreamer recordings prove` on the history of a real streamer, while real faults happen."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.faults.__main__ import RUN_S, describe, run_schedules
from tests.e2e.faults.run import RunOutcome, run_in_namespaces
from tests.e2e.faults.schedules import Fault, Schedule, schedule_of
from tests.e2e.rigs.cable import unsupported_reason
from tests.e2e.rigs.streamer import run_command

SEEDS: Final = (7, 10)
"""Short schedules, one fault and two."""
KILLS: Final = Schedule(
    0, True, False, "udp", 100, (Fault("kill receiver", 1.0, 0.3), Fault("kill router", 2.0, 0.3))
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, RunOutcome]]:
    """The runs of all schedules, in parallel, with their files."""
    if reason := unsupported_reason():
        pytest.skip(f"no network namespace: {reason}")
    schedules = [KILLS, *map(schedule_of, SEEDS)]
    places = [tmp_path_factory.mktemp("run") for _ in schedules]
    with ThreadPoolExecutor(len(schedules)) as pool:
        outcomes = list(pool.map(run_in_namespaces, schedules, places, [RUN_S] * len(schedules)))
    return {outcome.seed: (place, outcome) for place, outcome in zip(places, outcomes, strict=True)}


def assert_good(outcome: RunOutcome) -> None:
    assert outcome.is_good, "\n".join(describe(outcome))


def test_kills_of_receiver_and_router_are_explained_and_a_removed_line_is_named(
    runs: dict[int, tuple[Path, RunOutcome]],
) -> None:
    place, outcome = runs[KILLS.seed]
    assert_good(outcome)
    dash, dial = outcome.proof[:2]
    assert dash["delivered"] > 100
    assert dial["delivered"] == dial["messages"] > 200

    log = place / "dash.log"
    lines = log.read_text().splitlines()
    removed = next(line for line in lines[50:] if line.startswith('{"id"'))
    id = json.loads(removed)["id"]
    log.write_text("\n".join(line for line in lines if id not in line) + "\n")
    done = run_command("recordings", "prove", place / "recordings", "--received", log)
    assert done.returncode == 1, done.stdout + done.stderr
    [named] = [line for line in done.stdout.splitlines() if line.startswith("UNEXPLAINED")]
    assert re.fullmatch(
        rf"UNEXPLAINED \S+ {id} up://chassis/1234/1/8001, backbone for dash: delivered, and not received",
        named,
    )


def test_a_log_that_is_none_ends_without_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "dash.log"
    log.write_bytes(b"\x00\xffnoise\n")
    done = run_command("recordings", "prove", tmp_path, "--received", log)
    assert (done.returncode, done.stdout) == (78, "")
    assert f"{log}, line 1: '\\x00\\xffnoise': JSON is malformed" in done.stderr


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_of_faults_leave_no_message_unexplained(
    runs: dict[int, tuple[Path, RunOutcome]], seed: int
) -> None:
    assert_good(runs[seed][1])


@pytest.mark.soak
def test_a_hundred_random_schedules_leave_no_message_unexplained(tmp_path: Path) -> None:
    schedules = [schedule_of(seed) for seed in range(100)]
    failed: list[Any] = [each for each in run_schedules(schedules, 3, tmp_path) if not each.is_good]
    assert failed == [], "\n".join(line for each in failed for line in describe(each))
