# SPDX-License-Identifier: Apache-2.0
"""Two checkouts in turns: the figures are those of the rounds, and each streamer runs from its own tree."""

import sys
from pathlib import Path

import pytest

from benchmarks import trees
from benchmarks.measure import Load
from benchmarks.rigs import Subject
from benchmarks.trees import Figures, Trees, compared, main, table

ROOT = Path(__file__).parents[2]


def test_figures_are_the_least_the_quartile_and_the_median_of_the_rounds() -> None:
    rounds = [(5.0, 100.0), (1.0, 300.0), (4.0, 200.0), (2.0, 50.0), (3.0, 10.0)]
    assert Figures.of(rounds) == Figures(1.0, 2.0, 3.0, 300.0)


def test_a_streamer_runs_from_its_own_tree_and_from_nowhere_else(tmp_path: Path) -> None:
    stage = Trees(tmp_path, 64)
    stage.tree = tmp_path / "other"
    command = stage.command(tmp_path / "streamer.toml")
    places = command[1].removeprefix("PYTHONPATH=").split(":")
    assert places[0] == str(tmp_path / "other")
    assert str(tmp_path / "other" / "plugins" / "recorder") in places
    assert command[2:4] == [sys.executable, "-P"]


def test_two_trees_and_the_bare_forwarder_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_LOAD", Load(warm_up_s=0.05, saturated_s=0.1))
    found = compared(tmp_path, [ROOT, ROOT], "someip-zenoh", 64, 1, Subject.STREAMER)
    assert list(found) == ["bare", "before", "after"]
    assert all(each.least_us > 0 and each.most_per_s > 0 for each in found.values())
    assert [line.split()[0] for line in table("someip-zenoh", found).splitlines()] == ["someip-zenoh", *found]


def test_a_tree_without_a_streamer_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(ROOT), str(tmp_path), "--direction", "zenoh-zenoh", "--rounds", "1"])
    assert f"{tmp_path}: expected a checkout" in capsys.readouterr().err
