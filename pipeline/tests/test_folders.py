# SPDX-License-Identifier: Apache-2.0
"""A lake is in one place: a URL of another kind is refused before anything is written."""

from pathlib import Path

import pytest
from ustreamer_pipeline import cli
from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.folders import local_folder
from ustreamer_pipeline.lake.storage import storage_of


@pytest.mark.parametrize(
    "url", ["hdfs://host/lake", "file:///lake", "s3a:lake", "s3a://bucket", "gs://bucket/lake"]
)
def test_a_url_of_another_kind_is_no_lake(url: str) -> None:
    with pytest.raises(
        UsageError, match="expected a folder of a local or mounted file system, or s3://BUCKET"
    ):
        storage_of(url)


@pytest.mark.parametrize("path", ["lake", "/data/lake", "/data/2026-11-21T12:00/lake"])
def test_a_path_with_a_colon_behind_a_slash_is_a_local_folder(path: str) -> None:
    assert local_folder(path) == local_folder(Path(path)) == Path(path)
    assert storage_of(path).path("x") == str(Path(path).absolute() / "x")


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "recordings", "gs://fleet/lake"],
        ["compact", "gs://fleet/lake"],
        ["audit", "gs://fleet/lake"],
        ["whatif", "gs://fleet/lake"],
        ["report", "gs://fleet/lake", "out"],
        ["report", "lake", "s3a://fleet/out"],
        ["generate", "s3a://fleet/recordings"],
    ],
)
def test_a_command_refuses_a_url_and_makes_no_folder(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (url,) = (word for word in command if "://" in word)
    assert cli.main(command) == 2
    assert capsys.readouterr().err.startswith(
        f"ustreamer-pipeline {command[0]}: {url}: expected a folder of a local or mounted file system"
    )
    assert not list(tmp_path.iterdir())
