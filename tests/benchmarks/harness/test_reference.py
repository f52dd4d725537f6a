# SPDX-License-Identifier: Apache-2.0
"""The configuration of the reference streamer: two listening sessions, and a subscriber of each topic."""

import json
from pathlib import Path

import pytest

from benchmarks.harness.reference import reference_binary, reference_command
from benchmarks.traffic.models import MODELS


def test_each_session_listens_and_each_topic_has_a_subscriber(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFERENCE_STREAMER", "/opt/reference")
    command = reference_command(tmp_path / "reference", MODELS["8"], 7_447, 7_448)
    assert command[:2] + command[3:4] == ["/opt/reference", "hpc.vin1", "cloud"]
    sessions = [json.loads(Path(command[place]).read_text(encoding="utf-8")) for place in (2, 4)]
    assert [each["listen"]["endpoints"] for each in sessions] == [
        ["tcp/127.0.0.1:7447"],
        ["tcp/127.0.0.1:7448"],
    ]
    subscriptions = json.loads(Path(command[5]).read_text(encoding="utf-8"))
    assert len(subscriptions) == 8
    assert subscriptions["//hpc.vin1/2000/1/8001"] == ["//cloud/10A1/1/0"]


@pytest.mark.parametrize(("value", "binary"), [("", None), ("/opt/reference", "/opt/reference")])
def test_without_a_name_there_is_no_reference(
    monkeypatch: pytest.MonkeyPatch, value: str, binary: str | None
) -> None:
    monkeypatch.setenv("REFERENCE_STREAMER", value)
    assert reference_binary() == binary
