# SPDX-License-Identifier: Apache-2.0
"""A lake is in one place: a URL is refused before anything is written."""

from pathlib import Path

import pytest
from ustreamer_pipeline import cli
from ustreamer_pipeline.bronze.manifest import lake_lock
from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.folders import local_folder
from ustreamer_pipeline.schemas import DELIVERIES


@pytest.mark.parametrize("url", ["s3a://fleet/lake", "hdfs://host/lake", "file:///lake", "s3a:lake"])
def test_a_url_is_no_local_folder(url: str) -> None:
    for use in (local_folder, DELIVERIES.path):
        with pytest.raises(UsageError, match="local or mounted file system"):
            use(url)


@pytest.mark.parametrize("path", ["lake", "/data/lake", "/data/2026-11-21T12:00/lake"])
def test_a_path_with_a_colon_behind_a_slash_is_a_local_folder(path: str) -> None:
    assert local_folder(path) == local_folder(Path(path)) == Path(path)
    assert DELIVERIES.path(path) == str(Path(path) / "silver/deliveries")


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "recordings", "s3a://fleet/lake"],
        ["compact", "s3a://fleet/lake"],
        ["audit", "s3a://fleet/lake"],
        ["whatif", "s3a://fleet/lake"],
        ["report", "s3a://fleet/lake", "out"],
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
    assert capsys.readouterr().err == (
        f"ustreamer-pipeline {command[0]}: {url}: expected a folder of a local or mounted file system, and not a "
        "URL; mount the bucket on every machine and give its path\n"
    )
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_lake_makes_no_folder_for_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not a URL"), lake_lock("s3a://fleet/lake"):
        pass
    assert not list(tmp_path.iterdir())
