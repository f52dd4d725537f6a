# SPDX-License-Identifier: Apache-2.0
"""Runs the simulation: 200 seeds, and the known stories. In a process with fixed hashes: they order the threads."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.known_stories import STORIES
from tests.simulation.mutations import MUTATIONS
from tests.simulation.someip.known_stories import STORIES as SOMEIP_STORIES
from tests.simulation.someip.mutations import SOMEIP_MUTATIONS

_REPO: Final = Path(__file__).parents[2]
_SEEDS: Final = 200
_SOMEIP_SEEDS: Final = 60
pytestmark = pytest.mark.timeout(300)  # 40 s on two quiet cores
_SOAK_SEEDS: Final = 100_000
_SOAK_SOMEIP_SEEDS: Final = 10_000


def _simulate(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, cwd=_REPO, env=environment, capture_output=True, text=True, check=False)
    assert not ended.stderr, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def known() -> Mapping[str, str]:
    """What each known story violates, or "holds"."""
    lines = (line.partition(": ") for line in _simulate("--known").splitlines())
    return {name: outcome for name, _, outcome in lines}


@pytest.mark.parametrize("name", [*STORIES, *SOMEIP_STORIES])
def test_a_known_story_holds(name: str, known: Mapping[str, str]) -> None:
    assert known[name] == "holds"


@pytest.fixture(scope="module")
def seeds() -> str:
    return _simulate("--seeds", "0", str(_SEEDS), "--stories", "1", "--jobs", "2")


def _failures(output: str) -> dict[str, int]:
    last = output.splitlines()[-1]
    return {kind: int(count) for kind, count in re.findall(r"'([^']+)': (\d+)", last)}


def test_200_seeds_break_no_promise(seeds: str) -> None:
    assert f"{_SEEDS} seeds" in seeds
    assert not _failures(seeds), seeds


def test_60_seeds_with_a_someip_network_break_no_promise() -> None:
    output = _simulate("--someip", "--seeds", "0", str(_SOMEIP_SEEDS), "--stories", "1", "--jobs", "2")
    assert f"{_SOMEIP_SEEDS} seeds" in output
    assert not _failures(output), output


@pytest.mark.soak
def test_10_000_seeds_with_a_someip_network_break_no_promise() -> None:
    jobs = str(os.cpu_count() or 1)
    output = _simulate("--someip", "--seeds", "0", str(_SOAK_SOMEIP_SEEDS), "--stories", "1", "--jobs", jobs)
    assert f"{_SOAK_SOMEIP_SEEDS} seeds" in output
    assert not _failures(output), output


@pytest.mark.soak
def test_100_000_seeds_break_no_promise() -> None:
    jobs = str(os.cpu_count() or 1)
    output = _simulate("--seeds", "0", str(_SOAK_SEEDS), "--stories", "1", "--jobs", jobs)
    assert f"{_SOAK_SEEDS} seeds" in output
    assert not _failures(output), output


def test_a_seed_always_has_the_same_interleaving() -> None:
    program = (
        "from tests.simulation.seeds import *\n"
        "for someip in (False, True):\n"
        "    print([run(story_of(seed, someip=someip)).fingerprint for seed in range(4)])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", program]
    runs = [
        subprocess.run(command, cwd=_REPO, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_each_mutation_changes_one_place_of_the_product() -> None:
    places = {
        each.name: (_REPO / each.path).read_text(encoding="utf-8").count(each.old)
        for each in (*MUTATIONS, *SOMEIP_MUTATIONS)
    }
    assert {name: count for name, count in places.items() if count != 1} == {}
