# SPDX-License-Identifier: Apache-2.0
"""The SOME/IP benchmark runs, its forwarders forward, and its figures are complete. The tests assert no speed."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import someip
from benchmarks.harness.child_process import REPO
from benchmarks.harness.measure import Round
from benchmarks.harness.report import Spread


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The table and the only comparison of one short run."""
    out = tmp_path_factory.mktemp("benchmark") / "someip.json"
    command = [sys.executable, "-m", "benchmarks.someip", "--quick", "--repeats", "1", "--out", str(out)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(out.read_text(encoding="utf-8"))
    return done.stdout, found


def test_all_three_are_measured_and_compared(run: tuple[str, dict[str, Any]]) -> None:
    spreads = ("bare", "library", "streamer", "of_bare", "of_library")
    values = [run[1][name][part] for name in spreads for part in ("min", "median", "max")]
    assert all(math.isfinite(value) and value > 0 for value in values)
    assert "streamer / bare forwarder" in run[0]
    assert "streamer / package someip" in run[0]


def test_the_streamer_accounts_for_every_event(run: tuple[str, dict[str, Any]]) -> None:
    ledger = run[1]["ledger"]
    assert ledger["unaccounted"] == 0
    assert 0 < ledger["delivered"] == ledger["received"]
    assert f"delivered {ledger['delivered']}" in run[0]


def test_a_ratio_compares_adjacent_rounds() -> None:
    def rounds(*cpu_us: float) -> list[Round]:
        return [Round(1.0, each, 1, 1, 1, 1, 1, 1, 1, 10, 0.1, 0.1, 0.1, 0.1, 1.0) for each in cpu_us]

    found = someip.Comparison.of(64, [rounds(2, 4, 8), rounds(10, 20, 5), rounds(5, 5, 10)], {"received": 1})
    assert found.of_bare == Spread(1.25, 1.25, 2.5)
    assert found.of_library == Spread(0.5, 0.25, 2.0)
    assert found.lost == 9


def test_a_failed_process_is_named_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(someip, "_CONFIG", "this is no configuration")
    assert someip.main(["--quick", "--quiet", "--out", str(tmp_path / "x")]) == 1
    assert "streamer: ended with" in capsys.readouterr().err
