# SPDX-License-Identifier: Apache-2.0
"""Rows of one gateway are ordered by time, for any order of verdicts, and wait no longer than necessary."""

import random
from functools import partial

import numpy as np
import pytest
from tests.sample_recordings import NOON_MS, Record, make_row
from ustreamer_pipeline.recording.layout import Records
from ustreamer_pipeline.recording.rows import (
    BATCH_ROWS,
    DAY_US,
    SegmentSource,
    TextPool,
    day_of,
    merge_day,
    record_batches,
    rows_of,
)
from ustreamer_pipeline.recording.segments import Segment, read_segment
from ustreamer_recorder.events import Row

DAY = NOON_MS * 1000 // DAY_US
MIDNIGHT_MS = 12 * 3_600_000.0


def a_run(record: Record, times: list[list[float]], run: int = 1) -> list[Segment]:
    """Segments of one run; each has rows received at these ms, in this order of verdicts."""
    found, seq = [], 0
    for number, segment in enumerate(times):
        rows: list[Row] = [make_row(seq + index, at) for index, at in enumerate(segment)]
        path = record(rows, run=run, number=number, first_seq=seq)
        found.append(read_segment(path.read_bytes(), path.name))
        seq += len(rows)
    return found


def parts(segments: list[Segment]) -> list[SegmentSource]:
    """Sources as `silver.plan_unit` plans them, from the segments themselves."""
    made: list[SegmentSource] = []
    earliest: dict[int, int] = {}
    for segment in reversed(segments):
        run = segment.header.run
        made.append(
            SegmentSource(partial(lambda s: s, segment), "f", segment.header.first_seq, earliest.get(run))
        )
        received = segment.records(3)["received_ns"]
        if len(received):
            earliest[run] = min(int(received.min()), earliest.get(run, 2**62))
    return made[::-1]


def order(pieces: list[Records]) -> list[tuple[int, int, int]]:
    return [(int(row["run"]), int(row["received_ns"]), int(row["seq"])) for piece in pieces for row in piece]


def test_rows_of_overlapping_segments_are_ordered_by_time_and_complete(record: Record) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        # Rounded, so that many times are equal and seq decides.
        times = [
            [max(0.0, float(round(number * 50 + rng.gauss(25, 40)))) for _ in range(rng.randrange(0, 80))]
            for number in range(6)
        ]
        segments = a_run(partial(record, folder=str(seed)), times) + a_run(
            partial(record, folder=str(seed)), times[::-1], run=2
        )
        got = order(list(merge_day(parts(segments), TextPool(), DAY)))
        assert got == sorted(got)
        assert len(got) == 2 * sum(map(len, times))


def test_a_row_waits_only_for_segments_that_may_have_earlier_ones(record: Record) -> None:
    segments = a_run(record, [[1, 2, 9], [8, 11, 12], [20, 21]])
    assert [len(piece) for piece in merge_day(parts(segments), TextPool(), DAY)] == [2, 4, 2, 0]


def test_a_day_has_the_rows_received_on_it(record: Record) -> None:
    times = [[MIDNIGHT_MS - 1, MIDNIGHT_MS - 0.001, MIDNIGHT_MS, MIDNIGHT_MS + 5]]
    segments = a_run(record, times)
    today, tomorrow = (order(list(merge_day(parts(segments), TextPool(), day))) for day in (DAY, DAY + 1))
    assert [seq for _, _, seq in today] == [0, 1]
    assert [seq for _, _, seq in tomorrow] == [2, 3]
    assert day_of(np.array([-1, 0, DAY_US - 1, DAY_US])).tolist() == [-1, 0, 0, 1]


def test_batches_are_bounded_and_texts_are_the_same_across_segments(record: Record) -> None:
    segments = a_run(record, [[float(i) for i in range(300)] for _ in range(2)])
    pool = TextPool()
    rows = np.concatenate(list(merge_day(parts(segments), pool, DAY)) * 400)
    batches = list(record_batches(rows, pool, DAY, "hpc.vin1"))
    assert [batch.num_rows for batch in batches] == [BATCH_ROWS, BATCH_ROWS, 600 * 400 - 2 * BATCH_ROWS]
    assert set(batches[1].column("source").to_pylist()) == {"//chassis.vin1/10A0/1/8001"}
    assert {str(date) for date in batches[0].column("date").unique().to_pylist()} == {"2023-11-14"}
    assert batches[0].column("raw").null_count == BATCH_ROWS


def test_a_quarantined_row_has_its_position_and_bytes(record: Record) -> None:
    (segment,) = a_run(record, [[1, 2]])
    pool = TextPool()
    (batch,) = record_batches(next(merge_day(parts([segment]), pool, DAY, detail=True)), pool, DAY, "g")
    first, second = batch.to_pylist()
    assert (first["file"], second["offset"] - first["offset"]) == ("f", 96)
    assert (first["raw"][0], len(first["raw"])) == (3, 96)


@pytest.mark.parametrize(("floor", "stale"), [(0, 0), (2, 0), (3, 1), (4, 2)])
def test_rows_that_an_earlier_segment_has_are_faults_and_the_next_one_is_not(
    record: Record, floor: int, stale: int
) -> None:
    first, second = a_run(record, [[1, 2], [3, 4]])
    assert first.next_seq == second.header.first_seq == 2
    rows = rows_of(second, TextPool(), "f", floor, detail=False)
    assert [fault >= 0 for fault in rows["fault"].tolist()] == [index < stale for index in range(2)]
