# SPDX-License-Identifier: Apache-2.0
"""The totals of a run, while its events are passed on."""

from typing import TYPE_CHECKING

import pytest
from ustreamer_recorder.events import Damage, Row
from ustreamer_recorder.run_summary import RunSummary, segment_events
from ustreamer_recorder.segments import list_segments

if TYPE_CHECKING:
    from tests.conftest import Bench


def test_events_are_counted_and_passed_on(bench: "Bench") -> None:
    delivery = bench.delivery()
    for _ in range(3):
        bench.settle(delivery)
    bench.drain()
    [file] = list_segments(bench.directory)
    summary = RunSummary(0)
    events = list(summary.count_events(file))
    assert events == list(segment_events(file))
    assert sum(isinstance(each, Row) for each in events) == summary.verdicts["delivered"] == 3
    assert summary.is_complete


@pytest.mark.parametrize("content", [b"", b"noise"])
def test_a_file_that_cannot_be_read_is_damage(bench: "Bench", content: bytes) -> None:
    [file] = list_segments(bench.directory)
    file.path.write_bytes(content)
    summary = RunSummary(0)
    [damage] = summary.count_events(file)
    assert isinstance(damage, Damage)
    assert not summary.is_complete
    file.path.unlink()
    [gone] = segment_events(file)
    assert isinstance(gone, Damage)
    assert "No such file" in gone.reason
