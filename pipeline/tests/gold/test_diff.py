# SPDX-License-Identifier: Apache-2.0
"""The comparison of two releases finds the planted difference, and nothing where only chance differs."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.commands import diff as command
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.gold.diff import Difference, MetricChange, Side
from ustreamer_pipeline.gold.rank_test import holm, mann_whitney
from ustreamer_pipeline.ingest.ingest import ingest

START_MS = 1_760_000_000_000


@pytest.mark.parametrize("seed", range(5))
def test_the_p_value_is_the_share_of_all_divisions_that_differ_as_much(seed: int) -> None:
    """Two samples of seven have 3,432 divisions. Some seeds have ties."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 12 if seed % 2 else 10_000, 14).astype(float)
    values[:7] += seed * 3
    wins = (values[:, None] > values) + (values[:, None] == values) / 2
    divisions = np.array([np.isin(range(14), each) for each in itertools.combinations(range(14), 7)])
    u_statistics = ((divisions @ wins) * ~divisions).sum(axis=1)  # the first division is that of the samples
    as_far = np.abs(u_statistics - 49 / 2) >= abs(u_statistics[0] - 49 / 2)
    p = mann_whitney(values[:7], values[7:])
    assert p is not None
    assert p == pytest.approx(as_far.mean(), abs=0.03)


def test_equal_values_and_few_values_prove_nothing() -> None:
    assert mann_whitney(np.ones(9), np.ones(5)) == 1.0
    assert mann_whitney(np.ones(3), np.ones(9)) is None


def test_holm_multiplies_each_p_by_the_number_of_tests_that_are_left() -> None:
    assert holm([0.01, None, 0.04, 0.03, 0.5]) == pytest.approx([0.04, None, 0.09, 0.09, 0.5])


def test_the_output_has_the_significant_changes_or_all() -> None:
    about = "//*/1/1/8001", "backbone"
    lost = MetricChange(*about, "lost", "%", 1.0, 4.0, 9, 9, 0.0001, 0.0004)
    rate = MetricChange(*about, "rate", "messages/s", 10.0, 10.5, 9, 9, 0.4, 0.8)
    few = MetricChange(*about, "latency_p99", "us", None, 80.0, 0, 2, None)
    found = Difference(Side("1.0", 9, 1_000), Side("1.1", 9, 2_000), [lost, rate, few])
    lines = command.format_difference(found, show_all=False).splitlines()
    assert lines[:2] == [
        "before 1.0: 9 gateways, 1,000 deliveries",
        "after  1.1: 9 gateways, 2,000 deliveries",
    ]
    assert lines[3].startswith("1 of 2 medians over gateways differ (Mann-Whitney U test, Holm's correction")
    assert lines[4] == "1 have too few gateways for a test"
    assert lines[7].split() == ["//*/1/1/8001", "->", "backbone", "lost", "1", "4", "+300.0", "%", "0.0004"]
    shown = command.format_difference(found, show_all=True)
    assert "rate" in lines[9]
    assert len(shown.splitlines()) == len(lines) + 2


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Release 1.1 differs from 1.0 in its requests: 20 instead of 2 a second and vehicle."""
    place = tmp_path_factory.mktemp("releases")
    for release, requests_hz, seed in (("1.0", 2.0, 1), ("1.1", 20.0, 2)):
        fleet = Fleet(
            vehicles=14,
            seconds=3,
            topics=2,
            requests_hz=requests_hz,
            seed=seed,
            start_ms=START_MS + seed * 86_400_000,
            release=release,
        )
        assert sum(write_fleet(fleet, place / "recordings" / release))
    ingest(spark, [str(place / "recordings")], str(place / "lake"))
    return place / "lake"


def test_only_the_planted_difference_is_significant(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(lake), "--before", "1.0", "--after", "1.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["before"]["gateways"], found["after"]["gateways"]) == (14, 14)
    requests = [each for each in found["changes"] if each["significant"]]
    assert {(each["metric"], each["egress"]) for each in requests} == {("rate", "chassis"), ("rate", "cabin")}
    assert all(9 < each["after"] / each["before"] < 11 for each in requests)
    assert main(["diff", str(lake), "--before", "1.0", "--after", "1.1"]) == 0
    text = capsys.readouterr().out
    assert "before 1.0: 14 gateways" in text
    assert "\n2 of " in text
    assert "Mann-Whitney" in text


def test_a_release_without_deliveries_is_named_with_those_that_are_there(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(lake), "--before", "1.0", "--after", "2.0"]) == 2
    assert main(["diff", str(lake), "--before", "1.0", "--after", "1.0"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].endswith("--after 2.0: no deliveries; expected one of 1.0, 1.1")
    assert told[1].endswith("--after 1.0: expected another release than --before")
