# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md shows the figures of benchmarks/results.json, and commands and pages that exist."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite import PARTS
from benchmarks.traffic.models import MODELS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
RESULTS: dict[str, Any] = json.loads((ROOT / "benchmarks/results.json").read_text(encoding="utf-8"))
BARE, STREAMER = "bare", "streamer"


def forwarding_rows() -> list[str]:
    """A row for each direction and payload: CPU us, and the ratios to the bare forwarder."""
    found = {(row["direction"], row["payload"], row["subject"]): row for row in RESULTS["forwarding"]["rows"]}
    lines = []
    for ratio in RESULTS["forwarding"]["ratios"]:
        if ratio["subject"] == STREAMER:
            direction, payload = ratio["direction"], ratio["payload"]
            ours, bare = (found[direction, payload, each]["cpu_us"]["median"] for each in (STREAMER, BARE))
            cells = [
                direction.replace("->", "to"),
                "64 B" if payload == 64 else "1 kB",
                f"{ours:.1f} ({bare:.1f})",
                *(f"{ratio[name]['median']:.2f}" for name in ("messages_per_s", "p50_us")),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def call_rows() -> list[str]:
    return [
        f"| {row['direction']} | 64 B | {row['streamer']['cpu_us']:.0f} ({row['bare']['cpu_us']:.0f}) | "
        f"{row['ratio']['calls_per_s']:.2f} | {row['ratio']['p50_us']:.2f} |"
        for row in RESULTS["calls"]
    ]


@pytest.mark.parametrize("row", forwarding_rows() + call_rows())
def test_a_row_of_the_page_is_that_of_the_results(row: str) -> None:
    assert row in PAGE


def test_the_rows_are_those_of_all_directions() -> None:
    assert len(forwarding_rows()) == 6
    assert len(call_rows()) == 2


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", PAGE))))
def test_a_command_of_the_page_exists(module: str) -> None:
    assert find_spec(module) is not None


def test_the_models_and_parts_of_the_page_exist() -> None:
    models = {
        word for names in re.findall(r"--models ([\w -]+?)(?= --|`|\n)", PAGE) for word in names.split()
    }
    parts = {word for names in re.findall(r'ARGS="?([a-z_ ]+)', PAGE) for word in names.split()}
    rows = set(re.findall(r"^\| `([\w-]+)`", PAGE, re.MULTILINE))
    assert {"vehicle", "10000"} <= models <= MODELS.keys()
    assert {"rates", "calls"} <= parts <= PARTS.keys()
    assert {"one", "500", "at_rest"} <= rows - {"--models"} <= MODELS.keys() | PARTS.keys()


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", PAGE))))
def test_every_link_of_the_page_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
