# SPDX-License-Identifier: Apache-2.0
"""The payload benchmark runs, compares equal values, and returns its figures. Its limit is for a quiet machine."""

from benchmarks.payloads import CASES, OTHER_LIBRARIES, measured, ratio, table


def test_all_figures_are_measured() -> None:
    figures = measured(rounds=2)
    assert set(figures) == set(CASES)
    assert all(figure > 0 for each in figures.values() for figure in each.values()), figures
    assert ratio(figures) > 0
    shown = table(figures)
    assert all(name in shown for name in [*CASES, *OTHER_LIBRARIES])
