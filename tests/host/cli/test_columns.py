# SPDX-License-Identifier: Apache-2.0
"""Columns in a narrow terminal: figures are whole or absent, names are cut at their start."""

import pytest

from ustreamer.host.cli.columns import TopColumn, fitted_lines, fitted_words

COLUMNS = (
    TopColumn("topic", ["up://chassis/1234/1/8001", "up://a/1/1/8001"], 3, 10),
    TopColumn("link", ["up", "down"], 2, is_text=True),
    TopColumn("in/s", ["1234.5", "0.1"], 1),
)


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            80,
            [
                "topic                    link   in/s",
                "up://chassis/1234/1/8001 up   1234.5",
                "up://a/1/1/8001          down    0.1",
            ],
        ),
        (27, ["topic           link   in/s", "…is/1234/1/8001 up   1234.5", "up://a/1/1/8001 down    0.1"]),
        (20, ["topic           link", "…is/1234/1/8001 up", "up://a/1/1/8001 down"]),
        (12, ["topic", "…1234/1/8001", "…/a/1/1/8001"]),
    ],
)
def test_columns_fit_the_width(width: int, lines: list[str]) -> None:
    assert fitted_lines(COLUMNS, width) == lines


def test_the_words_of_least_value_are_left_out() -> None:
    parts = [("12:00", 2), ("sorted by rate", 1), ("unaccounted 0", 3)]
    assert fitted_words(parts, 80) == "12:00  sorted by rate  unaccounted 0"
    assert fitted_words(parts, 20) == "12:00  unaccounted 0"
    assert fitted_words(parts, 1) == "unaccounted 0"
