# SPDX-License-Identifier: Apache-2.0
"""The benchmark of durable queues runs and prints its figures."""

import re
from pathlib import Path

import pytest

from benchmarks import durable


def test_every_figure_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "ROUNDS", 1)
    monkeypatch.setattr(durable, "MESSAGES", 300)
    monkeypatch.setattr(durable, "PACED_S", 0.2)
    monkeypatch.setattr(durable, "tune_interpreter", lambda: None)  # it changes the whole process
    durable.main(str(tmp_path))
    rows = re.findall(
        r"^(\w+) +(?:[\d,]+ +[\d,]+ +[\d.]+|p50.*ms|[\d,]+ bytes.*)$", capsys.readouterr().out, re.MULTILINE
    )
    assert rows == ["path", "flood", "away", "back", "window", "memory"]
