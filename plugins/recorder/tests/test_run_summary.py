# SPDX-License-Identifier: Apache-2.0
"""The totals of a run, while its events are passed on."""

from typing import TYPE_CHECKING

import pytest
from ustreamer_recorder.events import Damage, Row
from ustreamer_recorder.run_summary import RunSummary, segment_events
from ustreamer_recorder.segments import list_segments

from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict

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


@pytest.mark.parametrize(
    ("ledger", "agrees"),
    [
        (LedgerSnapshot(5, 4, 0, 0, 1, 0, 0, 0), True),
        (LedgerSnapshot(7, 4, 0, 0, 1, 0, 0, 2), True),  # two more are queued
        (LedgerSnapshot(5, 1, 0, 0, 4, 0, 0, 0), True),  # three were taken back, and are dead letters
        (LedgerSnapshot(5, 1, 0, 0, 1, 0, 0, 3), True),  # three were taken back, and are on disk
        (LedgerSnapshot(9, 1, 0, 0, 3, 0, 0, 5), True),  # two and one, and four more are queued
        (LedgerSnapshot(5, 3, 0, 0, 1, 0, 0, 0), False),
        (LedgerSnapshot(5, 5, 0, 0, 0, 0, 0, 0), False),
        (LedgerSnapshot(6, 5, 0, 0, 1, 0, 0, 0), False),
        (LedgerSnapshot(5, 3, 0, 0, 1, 0, 1, 0), False),
        (LedgerSnapshot(5, 3, 0, 0, 1, 1, 0, 0), False),
        (LedgerSnapshot(7, 4, 0, 0, 0, 0, 1, 2), False),
    ],
)
def test_a_stop_can_take_delivered_messages_back(
    bench: "Bench", ledger: LedgerSnapshot, agrees: bool
) -> None:
    delivery = bench.delivery()
    for _ in range(4):
        bench.settle(delivery)
    bench.settle(delivery, Verdict.DEAD_LETTERED)
    bench.drain()
    bench.journal.finish(ledger)
    summary = RunSummary(0)
    for file in list_segments(bench.directory):
        for _ in summary.count_events(file):
            pass
    assert (summary.ledger_agrees, summary.is_complete) == (agrees, agrees)
