# SPDX-License-Identifier: Apache-2.0
"""Rows are read in the order of the runs, for any behaviour of the wall clock that decides the files."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ustreamer_pipeline.replay.files import read_gateway
from ustreamer_pipeline.replay.order import Span, group_in_order, span_of

DAY_NS = 1_000
COLUMNS = ["received_ns", "source", "run"]
SCHEMA = pa.schema(
    [("run", pa.int64()), ("received_ns", pa.int64()), ("seq", pa.int64()), ("source", pa.string())]
)
Rows = list[dict[str, Any]]


def story(seed: int) -> dict[int, Rows]:
    """Rows by date: a few runs, each with its monotonic clock, under a wall clock with steps."""
    rng = random.Random(seed)
    dates: dict[int, Rows] = {}
    wall = 10 * DAY_NS
    for run in range(rng.randrange(1, 5)):
        now = rng.randrange(10 * DAY_NS)
        for seq in range(rng.randrange(1, 400)):
            step = rng.choice((0, 1, 5, 20))
            now, wall = now + step, wall + step
            if rng.random() < 0.01:
                wall += rng.randrange(-3 * DAY_NS, 3 * DAY_NS)
            dates.setdefault(wall // DAY_NS, []).append(
                {"run": run, "received_ns": now, "seq": seq, "source": f"topic {rng.randrange(9)}"}
            )
    return dates


def written(place: Path, dates: dict[int, Rows], **options: Any) -> list[str]:
    """One file per date, in order of the date."""
    names = []
    for date, rows in sorted(dates.items()):
        names.append(str(place / f"{date:09d}.parquet"))
        pq.write_table(
            pa.Table.from_pylist(rows, schema=SCHEMA), names[-1], **{"row_group_size": 50, **options}
        )
    return names


def found(names: list[str], columns: list[str], batch_rows: int) -> Rows:
    batches = list(read_gateway(names, columns, batch_rows))
    assert all(batch.schema.names == columns for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("options", [{}, {"write_statistics": False}], ids=["statistics", "none"])
def test_rows_come_in_the_order_of_the_runs(tmp_path: Path, seed: int, options: dict[str, bool]) -> None:
    dates = story(seed)
    names = written(tmp_path, dates, **options)
    every = [row for rows in dates.values() for row in rows]
    every.sort(key=lambda row: (row["run"], row["received_ns"], row["seq"]))
    for batch_rows in (7, 64, 10_000):
        assert found(names, COLUMNS, batch_rows) == [{name: row[name] for name in COLUMNS} for row in every]


def test_at_most_one_batch_per_file_is_in_memory(tmp_path: Path) -> None:
    """Two days that interleave row by row: memory holds only the rows read."""
    rows = [{"run": 1, "received_ns": n, "seq": n, "source": "t"} for n in range(1_000)]
    names = written(tmp_path, {1: rows[::2], 2: rows[1::2]})
    sizes = [batch.num_rows for batch in read_gateway(names, COLUMNS, 20)]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 2 * 20


def test_days_that_follow_one_another_are_read_one_by_one(tmp_path: Path) -> None:
    """A gateway without clock steps has no extra cost."""
    rows = [{"run": n // 400, "received_ns": n % 400, "seq": n % 400, "source": "t"} for n in range(1_000)]
    names = written(tmp_path, {1: rows[:300], 2: rows[300:600], 3: [], 4: rows[600:]})
    spans = [(name, span_of(pq.read_metadata(name))) for name in names]
    assert spans[0][1] == Span((0, 0), (0, 299))
    assert group_in_order(spans) == [[names[0]], [names[1]], [names[3]]]
    assert group_in_order(spans[::-1]) == group_in_order(spans)
    assert found(names, COLUMNS, 64) == [{name: row[name] for name in COLUMNS} for row in rows]


def test_overlapping_files_are_read_in_parallel() -> None:
    spans = [("c", Span((1, 30), (1, 40))), ("a", Span((1, 0), (1, 10))), ("b", Span((1, 10), (1, 30)))]
    assert group_in_order(spans) == [["a", "b", "c"]]
    assert group_in_order([spans[0], spans[1], ("d", Span((1, 11), (1, 29)))]) == [["a"], ["d"], ["c"]]
    assert group_in_order([("none", None)]) == []
