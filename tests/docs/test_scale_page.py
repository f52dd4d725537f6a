# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/scale.md about the code are correct.

Of its measured figures only the arithmetic can be checked.
"""

import re
from pathlib import Path

from ustreamer_pipeline.schemas import DELIVERIES
from ustreamer_pipeline.silver.silver import TASK_ROWS

PAGE = (Path(__file__).parents[2] / "docs/scale.md").read_text(encoding="utf-8")


def test_the_sizes_of_the_page_are_those_of_the_code() -> None:
    assert f"{TASK_ROWS:,} rows each" in PAGE
    assert DELIVERIES.partitioned_by == ("date", "gateway")
    assert "partitioned by `date` and `gateway`" in PAGE


def test_the_extrapolation_follows_from_the_figures() -> None:
    rows = 1_000_000 * 3_600 * 1_000
    assert "3.6e12" in PAGE
    cost = re.search(r"ingest \| (\d+) us x 3\.6e12 = ([\d,]+) core-hours", PAGE)
    assert cost is not None
    assert float(cost[2].replace(",", "")) == int(cost[1]) * 1e-6 * rows / 3_600
    per_row = {
        name: float(size)
        for name, size in re.findall(
            r"^\| (recording|bronze|silver, deliveries) \| (\d+)", PAGE, re.MULTILINE
        )
    }
    assert abs(per_row["recording"] * rows / 1e12 - 350) < 5
    assert all(abs(per_row[name] * rows / 1e12 - 80) < 5 for name in ("bronze", "silver, deliveries"))
