# SPDX-License-Identifier: Apache-2.0
"""The forwarding benchmark runs and its report is complete.

The tests assert no speed, which depends on the machine.
"""

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.harness.child_process import REPO
from benchmarks.harness.report import METRICS

FORWARDED = ("SOME/IP -> Zenoh", "Zenoh -> SOME/IP")
BETWEEN_ZENOHS = "Zenoh -> other Zenoh"
DIRECT = ("UDP -> UDP", "Zenoh -> Zenoh")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The table and the JSON of one short run."""
    out = tmp_path_factory.mktemp("benchmark") / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--repeats", "1", "--out", str(out)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text(encoding="utf-8"))


def is_measured(spread: dict[str, float]) -> bool:
    """Whether median and bounds are finite, positive and in order."""
    values = spread["min"], spread["median"], spread["max"]
    return all(math.isfinite(value) and value > 0 for value in values) and list(values) == sorted(values)


def test_every_path_is_measured_with_every_figure(run: tuple[str, dict[str, Any]]) -> None:
    rows = run[1]["rows"]
    assert [(row["direction"], row["subject"]) for row in rows] == [
        *((direction, subject) for direction in FORWARDED for subject in ("bare", "streamer", "recorder on")),
        *((BETWEEN_ZENOHS, subject) for subject in ("bare", "streamer")),
        *((direction, "direct") for direction in DIRECT),
    ]
    assert [
        (row["direction"], metric) for row in rows for metric in METRICS if not is_measured(row[metric])
    ] == []


def test_every_row_has_its_loss(run: tuple[str, dict[str, Any]]) -> None:
    assert [row for row in run[1]["rows"] if not 0 <= row["lost"] < row["sent"]] == []


def test_all_directions_are_compared_by_finite_ratios(run: tuple[str, dict[str, Any]]) -> None:
    ratios = run[1]["ratios"]
    assert [(ratio["direction"], ratio["subject"], ratio["by"]) for ratio in ratios] == [
        *(
            (direction, *pair)
            for direction in FORWARDED
            for pair in (("streamer", "bare"), ("recorder on", "streamer"))
        ),
        (BETWEEN_ZENOHS, "streamer", "bare"),
    ]
    assert [metric for ratio in ratios for metric in METRICS if not is_measured(ratio[metric])] == []


def test_the_streamer_accounts_for_every_delivery(run: tuple[str, dict[str, Any]]) -> None:
    (ledger,) = run[1]["ledgers"]
    assert ledger["unaccounted"] == 0
    assert 0 < ledger["delivered"] <= ledger["received"]
    assert f"delivered {ledger['delivered']}" in run[0]


def test_the_machine_and_the_versions_are_named(run: tuple[str, dict[str, Any]]) -> None:
    results = run[1]
    assert results["machine"].keys() == {"processor", "cores", "system", "python"}
    assert {"ustreamer", "eclipse-zenoh"} <= results["versions"].keys()
    assert results["seconds"] > 0


def test_the_table_shows_every_row_and_a_ratio_for_every_pair(run: tuple[str, dict[str, Any]]) -> None:
    table = run[0]
    assert [name for name in (*FORWARDED, *DIRECT) if name not in table] == []
    lines = table.splitlines()
    names = ("bare", "streamer", "recorder on", "direct", "ratio / bare", "ratio / streamer")
    subjects = [[name for name in names if f"  {name} " in line] for line in lines[1:16]]
    assert [sum(found == [each] for found in subjects) for each in names] == [3, 3, 2, 2, 3, 2]
    columns = ("messages/s", "CPU us/message", "p50 us", "p99 us", "lost", "busy cores")
    assert [column for column in columns if column not in lines[0]] == []


@pytest.mark.parametrize(
    "wrong", [["--payload", "8"], ["--payload", "2000"], ["--repeats", "0"], ["--window", "8"]]
)
def test_invalid_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(wrong)
    assert exited.value.code == 2
    assert "expected" in capsys.readouterr().err
