# SPDX-License-Identifier: Apache-2.0
"""The progress bar: on stderr, in a terminal only, with correct totals."""

import pytest
from pyspark.sql import SparkSession
from ustreamer_pipeline.progress import progress, totals


def test_a_finished_stage_counts_as_done() -> None:
    assert totals({1: (3, 8), 2: (1, 4)}, {2}) == (9, 12)
    assert totals({}, set()) == (0, 0)


def test_the_bar_is_on_stderr_only(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with progress(spark, "counting", shown=True):
        assert spark.range(0, 100, 1, 4).count() == 100
    seen = capfd.readouterr()
    assert "counting" in seen.err
    assert seen.out == ""


def test_outside_a_terminal_nothing_is_shown(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with progress(spark, "counting"):
        assert spark.range(10).count() == 10
    assert capfd.readouterr() == ("", "")
