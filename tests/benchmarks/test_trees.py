# SPDX-License-Identifier: Apache-2.0
"""Two checkouts in alternating rounds: the figures summarize the rounds, and each streamer runs from its own tree."""

import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import trees
from benchmarks.harness.checkouts import CheckoutTestbed
from benchmarks.harness.child_process import ChildError
from benchmarks.harness.testbed import Subject
from benchmarks.trees import Figures, main

ROOT = Path(__file__).parents[2]


def test_figures_are_the_least_the_quartile_and_the_median_of_the_rounds() -> None:
    before = [(9.0, 100.0), (9.0, 100.0), (9.0, 400.0), (9.0, 200.0), (9.0, 5.0)]
    rounds = [(5.0, 100.0), (1.0, 300.0), (4.0, 200.0), (2.0, 50.0), (3.0, 10.0)]
    assert Figures.of(rounds, before) == Figures(1.0, 2.0, 3.0, 100.0, 1.0)
    assert Figures.of(before, before).ratio == 1.0


def test_a_streamer_runs_only_from_its_own_tree(tmp_path: Path) -> None:
    testbed = CheckoutTestbed(tmp_path, 64)
    testbed.tree = tmp_path / "other"
    testbed.tree.mkdir()
    (testbed.tree / "pyproject.toml").write_text('[project.scripts]\nustreamer = "there:begin"\n')
    command = testbed.streamer_command(tmp_path / "streamer.toml")
    places = command[1].removeprefix("PYTHONPATH=").split(":")
    assert places[0] == str(tmp_path / "other")
    assert str(tmp_path / "other" / "plugins" / "recorder") in places
    assert command[2:6] == [
        sys.executable,
        "-P",
        "-c",
        "import sys; from there import begin; sys.exit(begin())",
    ]


@pytest.mark.parametrize(
    "options", [["--after", "recorder", "metrics", "rules", "--seconds", "0.1"], ["--hz", "5000"]]
)
def test_two_trees_and_the_bare_forwarder_are_compared(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trees, "_PACED", 100)
    assert main([str(ROOT), str(ROOT), "--direction", "someip-zenoh", "--rounds", "1", *options]) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ("p50" in head, "messages/s" in head) == ("--hz" in options, "--hz" not in options)
    assert [row[0] for row in rows] == ["bare", "before", "after"]
    assert all(float(each) > 0 for row in rows for each in row[1:])
    assert rows[1][-1] == "1.00"  # relative to itself


def test_two_trees_are_compared_with_the_traffic_of_a_vehicle(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--direction", *trees.MIXED, "--rounds", "1", "--seconds", "0.1"]
    assert main([str(ROOT), str(ROOT), *options]) == 0
    tables = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in tables] == [each for name in trees.MIXED for each in (name, "before", "after")]
    assert all(float(each) > 0 for row in tables if row[0] not in trees.MIXED for each in row[1:])


@pytest.mark.parametrize("direction", ["someip-zenoh", "zenoh-zenoh", "mixed-zenoh-someip"])
def test_the_second_tree_has_more_features_in_a_valid_configuration(
    direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def command(stage: trees.TreesTestbed, path: Path) -> list[str]:
        found.append(path.read_text(encoding="utf-8"))
        return ["true"]  # ends at once

    monkeypatch.setattr(trees.TreesTestbed, "streamer_command", command)
    with trees.TreesTestbed(tmp_path, 64) as stage:
        for stage.features in ((), ("recorder", "metrics", "rules")):
            with pytest.raises(ChildError):
                stage.rig(direction, Subject.STREAMER)
    before, after = map(tomllib.loads, found)
    assert "recorder" not in before["plugins"]
    assert "recorder" in after["plugins"]
    assert "observe" not in before
    assert "observe" in after
    assert not any("access" in each for each in before["endpoints"].values())
    assert all(len(each["access"]) == 2 for each in after["endpoints"].values())


@pytest.mark.parametrize(
    "options",
    [
        "--rounds 0",
        "--rounds -3",
        "--hz 0",
        "--hz -5",
        "--hz nan",
        "--payload -1",
        "--payload 70000",
        "--seconds 0",
    ],
)
def test_a_number_out_of_range_is_named(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(ROOT), str(ROOT), *options.split()])
    assert f"error: {options}" in capsys.readouterr().err


def test_a_tree_without_a_streamer_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(ROOT), str(tmp_path), "--direction", "zenoh-zenoh", "--rounds", "1"])
    assert f"{tmp_path}: expected a checkout" in capsys.readouterr().err
