# SPDX-License-Identifier: Apache-2.0
"""Runs the simulation: 100 seeds, and the known stories. In a process with fixed hashes: they order the threads."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.known_stories import STORIES

_REPO: Final = Path(__file__).parents[2]
_NOT_MENDED: Final = frozenset({"2", "3", "11"})
"""Rows of the defects that are not mended. Who mends one removes its number here."""
_OPEN_KINDS: Final = frozenset({"silent loss"})
"""Kinds of violations that these defects make in seeds, too."""
_SEEDS: Final = 100
"""The defects of `mutations.py` are found by seed 91 at the latest."""
_SOAK_SEEDS: Final = 100_000


def _simulate(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, cwd=_REPO, env=environment, capture_output=True, text=True, check=False)
    assert not ended.stderr, ended.stderr
    return ended.stdout


def _is_not_mended(name: str) -> bool:
    return name.split(maxsplit=1)[0] in _NOT_MENDED


@pytest.fixture(scope="module")
def known() -> Mapping[str, str]:
    """What each known story violates, or "holds"."""
    lines = (line.partition(": ") for line in _simulate("--known").splitlines())
    return {name: outcome for name, _, outcome in lines}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.xfail(strict=True, reason=str(story))] if _is_not_mended(name) else [],
        )
        for name, story in STORIES.items()
    ],
)
def test_a_known_story_holds(name: str, known: Mapping[str, str]) -> None:
    assert known[name] == "holds"


@pytest.fixture(scope="module")
def seeds() -> str:
    return _simulate("--seeds", "0", str(_SEEDS), "--stories", "1", "--jobs", "2")


def _failures(output: str) -> dict[str, int]:
    last = output.splitlines()[-1]
    return {kind: int(count) for kind, count in re.findall(r"'([^']+)': (\d+)", last)}


def test_100_seeds_break_no_further_promise(seeds: str) -> None:
    assert f"{_SEEDS} seeds" in seeds
    assert not _failures(seeds).keys() - _OPEN_KINDS, seeds


@pytest.mark.soak
def test_100_000_seeds_break_no_promise() -> None:
    jobs = str(os.cpu_count() or 1)
    output = _simulate("--seeds", "0", str(_SOAK_SEEDS), "--stories", "1", "--jobs", jobs)
    assert f"{_SOAK_SEEDS} seeds" in output
    assert not _failures(output).keys() - _OPEN_KINDS, output


def test_a_seed_always_has_the_same_interleaving() -> None:
    program = (
        "from tests.simulation.story import *; print([run(generate(seed)).fingerprint for seed in range(4)])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", program]
    runs = [
        subprocess.run(command, cwd=_REPO, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
