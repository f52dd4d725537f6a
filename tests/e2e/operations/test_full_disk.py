# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, read-only or fails never ends the streamer, delays no endpoint, and hides no loss.

`make test` makes a few trials of each kind; `make soak` makes all of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.operations.disk_trials import (
    LEFT,
    MOMENTS,
    Disk,
    Moment,
    disk_trial,
    run_read_only_trial,
    run_trial,
)
from tests.e2e.rigs import failing_disk, small_disk
from tests.e2e.rigs.failing_disk import FailingDisk
from tests.e2e.rigs.small_disk import FileSystem, SmallDisk


@contextmanager
def disk_of(kind: FileSystem, directory: Path) -> Iterator[SmallDisk]:
    if reason := small_disk.unsupported_reason(kind, directory):
        pytest.skip(reason)
    with SmallDisk(kind, directory) as disk:
        yield disk


def make_trial(directory: Path, disk: Disk, moment: Moment, left: int) -> None:
    with disk_trial(directory, disk) as trial:
        run_trial(trial, moment, left)


@pytest.mark.parametrize(
    ("kind", "moment", "left"),
    [
        ("tmpfs", "start", 0),
        ("tmpfs", "dead letter", 0),
        ("tmpfs", "stop", 0),
        ("tmpfs", "kill", 0),
        ("ext4", "restart", 9 << 10),
    ],
)
def test_a_full_disk_costs_no_other_traffic_and_is_reported(
    tmp_path: Path, kind: FileSystem, moment: Moment, left: int
) -> None:
    with disk_of(kind, tmp_path) as disk:
        make_trial(tmp_path, disk, moment, left)


@pytest.mark.soak
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_no_moment_and_no_rest_of_a_disk_ends_the_streamer(
    tmp_path: Path, kind: FileSystem, moment: Moment, left: int
) -> None:
    with disk_of(kind, tmp_path) as disk:
        make_trial(tmp_path, disk, moment, left)


@pytest.mark.parametrize(
    "moment", [pytest.param(each, marks=[] if each == "running" else pytest.mark.soak) for each in MOMENTS]
)
def test_a_disk_that_fails_is_a_full_one(tmp_path: Path, moment: Moment) -> None:
    if reason := failing_disk.unsupported_reason():
        pytest.skip(reason)
    make_trial(tmp_path, FailingDisk(tmp_path), moment, 0)


def test_a_disk_that_becomes_read_only_is_a_full_one(tmp_path: Path) -> None:
    with disk_of("ext4", tmp_path) as disk, disk_trial(tmp_path, disk) as trial:
        run_read_only_trial(trial, disk)
