# SPDX-License-Identifier: Apache-2.0
"""The quota of recordings, and the checks of the configuration."""

import errno
import os
from pathlib import Path

import msgspec
import pytest
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.segments import Quota, enforce_quota, list_segments

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
PLENTY = Quota(10**12, 30, 0)


def segment(
    directory: Path, run: int, number: int, size: int = 1000, age_days: float = 0, suffix: str = ""
) -> Path:
    path = directory / f"{run:016x}-{number:06d}.useg{suffix}"
    path.write_bytes(bytes(size))
    made_s = (NOW_MS - age_days * DAY_MS) / 1000
    os.utime(path, (made_s, made_s))
    return path


def left(directory: Path) -> list[tuple[int, int]]:
    return [(file.run, file.number) for file in list_segments(directory)]


def test_segments_are_ordered_by_their_age_only(tmp_path: Path) -> None:
    for run, number, suffix in [(2, 0, ""), (1, 11, ".open"), (1, 2, ""), (1, 9, ".bad")]:
        segment(tmp_path, run, number, suffix=suffix)
    for foreign in (".lock", "readme.txt", "0123.useg", "0" * 16 + "-000000.useg.gz"):
        (tmp_path / foreign).write_text("x")
    assert left(tmp_path) == [(1, 2), (1, 9), (1, 11), (2, 0)]


def test_only_as_many_old_segments_are_deleted_as_needed(tmp_path: Path) -> None:
    for number in range(5):
        segment(tmp_path, 1, number, 10_000)
    occupied = sum(file.bytes for file in list_segments(tmp_path))
    assert enforce_quota(tmp_path, PLENTY._replace(max_bytes=occupied + 4096), 4096, NOW_MS) == 0
    assert enforce_quota(tmp_path, PLENTY._replace(max_bytes=occupied), 4096, NOW_MS) == 1
    assert left(tmp_path) == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_an_open_segment_stays_and_counts_towards_the_quota(tmp_path: Path) -> None:
    segment(tmp_path, 1, 0, 50_000, suffix=".open")
    segment(tmp_path, 1, 1, 10_000)
    assert enforce_quota(tmp_path, PLENTY._replace(max_bytes=60_000), 10_000, NOW_MS) == 1
    assert left(tmp_path) == [(1, 0)]


@pytest.mark.parametrize(
    ("age_days", "wall_ms", "goes"),
    [
        pytest.param(31, NOW_MS, True, id="too old"),
        pytest.param(29, NOW_MS, False, id="not yet"),
        pytest.param(-400, NOW_MS, False, id="from the future, by a clock that was set since"),
        pytest.param(8000, NOW_MS, False, id="from 2001, by a clock that was not set yet"),
        pytest.param(31, 946_684_800_000, False, id="looked at from 2000, by a clock that is not set yet"),
    ],
)
def test_a_segment_that_is_too_old_is_deleted_unless_a_clock_was_wrong(
    tmp_path: Path, age_days: float, wall_ms: int, goes: bool
) -> None:
    segment(tmp_path, 1, 0, age_days=age_days)
    segment(tmp_path, 2, 0)
    assert enforce_quota(tmp_path, PLENTY, 0, wall_ms) == goes
    assert len(left(tmp_path)) == 2 - goes


def test_the_disk_keeps_its_free_space(tmp_path: Path) -> None:
    segment(tmp_path, 1, 0)
    with pytest.raises(OSError, match="would be left free") as refusal:
        enforce_quota(tmp_path, PLENTY._replace(keep_free_bytes=10**18), 4096, NOW_MS)
    assert refusal.value.errno == errno.ENOSPC
    assert left(tmp_path) == []  # all removable segments were removed


@pytest.mark.parametrize(
    ("section", "why"),
    [
        (
            {"max_bytes": 20_000_000},
            r"max_bytes: 20000000: expected at least twice segment_bytes \(16777216\), such as 33554432",
        ),
        ({"segment_bytes": 1000}, r"Expected `int` >= 786816 - at `\$.segment_bytes`"),
        ({"payload_bytes": 65_537}, "Expected `int` <= 65536"),
        ({"buffer_rows": 10}, "Expected `int` >= 1024"),
        ({"flush": 1}, "unknown field `flush`"),
    ],
)
def test_an_invalid_configuration_is_refused(section: dict[str, object], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.convert(section, RecorderConfig)
