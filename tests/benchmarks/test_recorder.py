# SPDX-License-Identifier: Apache-2.0
"""The recorder benchmark runs and returns its figures. Its limit is for a quiet machine and not checked here."""

from pathlib import Path

import pytest

from benchmarks.recorder import measured, table


def test_all_figures_are_measured(tmp_path: Path) -> None:
    figures = measured(tmp_path, rounds=9)  # more than one segment
    assert all(figure > 0 for figure in figures.values()), figures
    assert figures["in_all"] == pytest.approx(figures["on_the_path"] + figures["writing"])
    assert "a row on the path (limit 1 us)" in table(figures)
