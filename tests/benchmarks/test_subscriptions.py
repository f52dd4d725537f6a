# SPDX-License-Identifier: Apache-2.0
"""The subscription benchmark runs and returns its figures. Its limits are for a million subscriptions."""

from pathlib import Path

from benchmarks.subscriptions import measured, subscription_entry, table, topics_of


def test_all_figures_are_measured(tmp_path: Path) -> None:
    figures = measured(tmp_path, count=1000, repeats=1)
    assert all(figure > 0 for name, figure in figures.items() if not name.startswith("bytes")), figures
    assert {"bytes_loaded", "bytes_decoded", "start_ratio", "lookup_ratio"} <= figures.keys()
    assert "files to routing" in table(figures)


def test_topics_are_distinct_and_spread_over_all_subscriptions() -> None:
    topics = topics_of(100_000)
    assert len(set(topics)) == len(topics) == 1000
    assert topics[-1] == subscription_entry(99_900).topic
