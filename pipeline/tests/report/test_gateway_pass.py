# SPDX-License-Identifier: Apache-2.0
"""The tables of one pass are those of a naive count of all rows, for any batches, days, runs and tasks."""

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.report.naive_report import (
    Row,
    grouped,
    naive_latencies,
    naive_losses,
    naive_over_time,
    naive_queues,
    naive_talkers,
    naive_throttle,
    naive_totals,
)
from tests.sample_lakes import list_lake
from ustreamer_pipeline.columns import Dictionary
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.report import gateway_pass, grouped_rows
from ustreamer_pipeline.report.delivery_columns import COLUMNS
from ustreamer_pipeline.report.gateway_messages import Queues, Talkers
from ustreamer_pipeline.report.gateway_pass import GatewayReport, report_task
from ustreamer_pipeline.report.gateway_tables import Latency, Losses, OverTime, Throttle, Totals
from ustreamer_pipeline.report.latency_bins import bin_of, percentiles
from ustreamer_pipeline.report.report import report
from ustreamer_pipeline.report.small_tables import small_tables
from ustreamer_pipeline.report.steps import WIDTHS_S, merged_width_s, step_width_s
from ustreamer_pipeline.schemas import DELIVERIES, VERDICTS

MS: Final = 1_000_000
SECOND: Final = 1_000 * MS
WALL_US: Final = 1_763_700_000_000_000
SCHEMA: Final = pa.schema(
    field.with_nullable(True) for field in DELIVERIES.arrow_schema() if field.name in (*COLUMNS, "seq")
)
SUBSCRIBERS: Final = (None, "//tablet/1/1/0", "//tablet/2/1/0")
REASONS: Final = (None, "waited 12 ms", "waited 345 ms", "egress queue is full")
LINKS: Final = ("backbone", "tablet", "cloud")


def random_rows(seed: int) -> list[Row]:
    """Deliveries of one gateway in the order of silver: a few runs under a wall clock with steps."""
    rng = random.Random(seed)
    rows: list[Row] = []
    numbers = [rng.getrandbits(40) for _ in range(8)]
    for run in range(rng.randrange(1, 4)):
        made = list(_run(rng, run, numbers))
        rng.shuffle(made)  # rows of one instant are in any order
        made.sort(key=lambda row: int(row["received_ns"]))
        rows += [{**row, "seq": seq} for seq, row in enumerate(made)]
    return rows


def _run(rng: random.Random, run: int, numbers: Sequence[int]) -> Iterator[Row]:
    now, wall_us = 0, WALL_US + rng.randrange(-40, 40) * 1_000_000
    taken = set()
    pause_ns = rng.choice((MS, SECOND, 100 * SECOND))
    for _ in range(rng.randrange(1, 150)):
        now += rng.choice((0, 0, 1, MS, pause_ns))
        if rng.random() < 0.01:
            wall_us += rng.randrange(-(10**11), 10**11)
        number = rng.choice(numbers)  # an id comes again, but not at the same time
        if (now, number) not in taken:
            taken.add((now, number))
            yield from _message(rng, run, now, wall_us, number)


def _message(rng: random.Random, run: int, now: int, wall_us: int, number: int) -> Iterator[Row]:
    kind = rng.choice(("PUBLISH", "PUBLISH", "REQUEST"))
    source = f"//chassis/{number % 4}/1/8001"
    for target in range(rng.choice((1, 1, 2, 3))):
        held_ns = rng.choice((1, MS, 50 * SECOND)) if rng.random() < 0.1 else 0
        received_ns = now + held_ns
        settled_ns = received_ns + rng.choice((0, 1, MS, 3 * MS, rng.randrange(10 * SECOND)))
        verdict = rng.choice(VERDICTS)
        yield {
            "run": run,
            "id_msb": number,
            "id_lsb": -number,
            "received_us": wall_us + received_ns // 1_000,
            "received_ns": received_ns,
            "arrived_ns": now,
            "settled_ns": settled_ns,
            "delivery": rng.randrange(3),
            "period_ns": rng.choice((0, 100 * MS, 200 * MS)),
            "latency_us": (settled_ns - now) // 1_000,
            "queue_wait_us": (settled_ns - received_ns) // 3_000,
            "size": number % 97,
            "code": rng.choice((None, 0, 8)),
            "reason": rng.choice(REASONS),
            "source": source,
            "subscriber": rng.choice(SUBSCRIBERS),
            "ingress": "chassis",
            "egress": None if verdict == "NO_SUBSCRIBER" else LINKS[target],
            "type": kind,
            "verdict": verdict,
        }


def made_of(rows: Sequence[Row], rng: random.Random) -> dict[str, list[Row]]:
    """The tables of the pass, from batches of any sizes."""
    made, at = GatewayReport(), 0
    while at < len(rows):
        end = at + rng.choice((1, 2, 7, 50, 1_000))
        made.feed(pa.RecordBatch.from_pylist(list(rows[at:end]), schema=SCHEMA))
        at = end
    made.finish()
    return {table.name: table.table().to_pylist() for table in made.tables}


def in_any_order(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def assert_percentiles(found: Sequence[Row], rows: Sequence[Row]) -> None:
    """Nearest ranks; a time is one of those that occurred, and at most 0.1 % above."""
    expected = naive_latencies(rows)
    assert {row["egress"] for row in found} == expected.keys()
    for row in found:
        for prefix, times in expected[row["egress"]].items():
            for name, per_mille in (("p50", 500), ("p90", 900), ("p99", 990), ("p99_9", 999)):
                exact, value = times[-(-len(times) * per_mille // 1_000) - 1], row[f"{prefix}{name}_us"]
                assert value in times
                assert exact <= value <= (exact if exact < 2_048 else exact * 1.001)
        assert (row["delivered"], row["max_us"]) == (len(times), expected[row["egress"]][""][-1])


@pytest.mark.parametrize("seed", range(60))
def test_the_tables_of_a_gateway_are_those_of_a_naive_count(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(-seed)
    monkeypatch.setattr(grouped_rows, "_WAITING_ROWS", rng.choice((1, 5, 1 << 16)))
    rows = random_rows(seed)
    made = made_of(rows, rng)
    assert made["gateways"] == [naive_totals(rows)]
    for name, naive in (("losses", naive_losses), ("throttle", naive_throttle), ("talkers", naive_talkers)):
        assert in_any_order(made[name]) == in_any_order(naive(rows))
    queues = {row["egress"]: row for row in made["queues"]}
    expected = naive_queues(rows)
    assert queues.keys() == expected.keys()
    for egress, (messages, size, times) in expected.items():
        assert (queues[egress]["peak_messages"], queues[egress]["peak_bytes"]) == (messages, size)
        assert queues[egress]["peak_us"] in times
    assert_percentiles(made["latency"], rows)


@pytest.mark.parametrize("seed", range(20))
def test_the_steps_of_a_gateway_add_up_to_those_of_a_fleet(seed: int) -> None:
    rows = random_rows(seed)
    made = made_of(rows, random.Random(seed))["over_time"]
    totals = naive_totals(rows)
    span_s = (totals["until_us"] - totals["from_us"]) / 1e6
    assert len(made) <= 2 * 120 + 2 or span_s > 120 * WIDTHS_S[-1]
    for width_s in (each for each in WIDTHS_S if each >= step_width_s(span_s)):
        steps = grouped(({**row, "time_s": row["time_s"] // width_s * width_s} for row in made), "time_s")
        added = [
            {
                "time_s": time_s,
                **{name: sum(row[name] for row in group) for name in group[0] if name != "time_s"},
            }
            for (time_s,), group in sorted(steps.items())
        ]
        assert added == naive_over_time(rows, width_s)


def test_the_steps_of_a_gateway_divide_those_of_every_longer_fleet() -> None:
    spans_s = [0, *(2**power for power in range(28))]
    for span_s in spans_s:
        assert merged_width_s(span_s) <= step_width_s(span_s) <= 2 * merged_width_s(span_s)
        assert all(
            step_width_s(longer) % merged_width_s(span_s) == 0 for longer in spans_s if longer >= span_s
        )


@pytest.mark.parametrize("most", [1, 2_047, 2_048, 5_000, 131_073, 131_199, 262_400, 1_048_577])
def test_a_percentile_is_at_most_a_thousandth_above_the_exact_one(most: int) -> None:
    times = np.arange(most + 1)
    bins = pa.table(
        {
            "egress": np.zeros_like(times),
            "measure": np.zeros_like(times),
            "bin": bin_of(times),
            "rows": np.ones_like(times),
            "top_us": times,
        }
    )
    grouped_bins = bins.group_by(["egress", "measure", "bin"]).aggregate([("rows", "sum"), ("top_us", "max")])
    both = [grouped_bins.rename_columns(bins.column_names)] * 2
    both[1] = both[1].set_column(1, "measure", pa.array(np.ones(len(both[1]), np.int64)))
    (found,) = percentiles(pa.concat_tables(both))
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = float(np.quantile(times, share, method="inverted_cdf"))
        assert exact <= found[f"{name}_us"] == found[f"wait_{name}_us"] <= exact * 1.001
        assert most > 2_047 or found[f"{name}_us"] == exact
    assert (found["max_us"], found["delivered"]) == (most, most + 1)


def write_days(lake: Path, gateway: str, rows: Sequence[Row]) -> None:
    """A file for each day of the wall clock, as ingest has them."""
    for (day,), of_day in grouped(
        ({**row, "day": row["received_us"] // 86_400_000_000} for row in rows), "day"
    ).items():
        date = dt.date(1970, 1, 1) + dt.timedelta(days=day)
        folder = lake / DELIVERIES.folder / f"date={date}" / f"gateway={gateway}"
        folder.mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(of_day, schema=SCHEMA), folder / "rows.parquet", row_group_size=60
        )
    list_lake(lake)


def test_the_tables_of_a_fleet_are_those_of_a_naive_count(spark: SparkSession, tmp_path: Path) -> None:
    fleet = {f"vin{number}": random_rows(100 + number) for number in range(5)}
    for gateway, rows in fleet.items():
        write_days(tmp_path, gateway, rows)
    every = [{**row, "gateway": gateway} for gateway, rows in fleet.items() for row in rows]
    made = report(spark, str(tmp_path))
    assert len({row["received_us"] // 86_400_000_000 for row in every}) > 1
    assert made.fleet == {
        **{name: value for name, value in naive_totals(every).items() if name != "runs"},
        "gateways": 5,
        "missing": 0,
    }
    assert made.tables["fleet_over_time"] == naive_over_time(every, made.width_s)
    runs = [{**row, "run": f"{row['gateway']} {row['run']}"} for row in every]
    for name, naive, keys in (
        ("losses", naive_losses, ("verdict", "code", "cause", "endpoint")),
        ("talkers", naive_talkers, ("source", "type")),
    ):
        found = Counter(tuple(row[key] for key in keys) for rows in fleet.values() for row in naive(rows))
        expected = [{**row, "gateways": found[tuple(row[key] for key in keys)]} for row in naive(runs)]
        assert in_any_order(made.tables[name]) == in_any_order(expected)
    of_fleet = [row for row in made.tables["latency"] if row["gateway"] is None]
    assert_percentiles(of_fleet, every)
    for gateway, rows in fleet.items():
        mine = {
            name: [row for row in made.tables[name] if row.get("gateway") == gateway] for name in made.tables
        }
        assert_percentiles(mine["latency"], rows)
        peaks = {row["egress"]: (row["peak_messages"], row["peak_bytes"]) for row in mine["queues"]}
        assert peaks == {egress: peak[:2] for egress, peak in naive_queues(rows).items()}
        limited = [row["published"] for row in naive_throttle(rows) if row["seconds"]]
        assert sorted(row["published"] for row in mine["throttle"]) == sorted(limited)


def test_an_unknown_verdict_is_named(tmp_path: Path) -> None:
    rows = random_rows(1)
    rows[5]["verdict"] = "LOST"
    write_days(tmp_path, "vin1", rows)
    files = sorted(map(str, tmp_path.rglob("*.parquet")))
    given: list[Any] = [{"gateway": "vin1", "files": files, "events": []}]
    with pytest.raises(
        DamagedError, match="deliveries: vin1, run 0: verdict 'LOST': expected one of DELIVERED, "
    ):
        list(report_task(1_000)(iter([pa.RecordBatch.from_pylist(given)])))


def test_a_task_emits_before_it_holds_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        write_days(tmp_path, f"vin{number}", random_rows(number))
    files = [sorted(map(str, tmp_path.rglob(f"gateway=vin{number}/*.parquet"))) for number in range(6)]
    given: list[Any] = [
        {"gateway": f"vin{number}", "files": mine, "events": []} for number, mine in enumerate(files)
    ]

    def emitted() -> list[pa.RecordBatch]:
        return list(report_task(1_000)(iter([pa.RecordBatch.from_pylist(given)])))

    whole = emitted()
    monkeypatch.setattr(gateway_pass, "_EMITTED_ROWS", 1)
    monkeypatch.setattr(gateway_pass, "_MAX_BINS", 1)
    parts = emitted()
    assert len(parts) > 3 * len(whole)
    of_gateways = [
        [row for batch in batches for row in batch.to_pylist() if row["table"] != "bins"]
        for batches in (whole, parts)
    ]
    assert in_any_order(of_gateways[0]) == in_any_order(of_gateways[1])
    bins = [
        sum(row["rows"] for batch in batches for row in batch.to_pylist() if row["table"] == "bins")
        for batches in (whole, parts)
    ]
    assert bins[0] == bins[1] > 0


def test_a_gateway_without_deliveries_has_the_rows_of_its_small_tables() -> None:
    assert {name: rows.num_rows for name, rows in small_tables([]).items()} == {
        "subscriptions": 0,
        "missing": 0,
    }
    gaps = [
        {"table": "gaps", "cause": cause, "rows": rows}
        for cause, rows in (("DISK", 3), ("OVERRUN", 1), ("DISK", 4))
    ]
    assert small_tables(gaps)["missing"].to_pylist() == [
        {"cause": "DISK", "rows": 7},
        {"cause": "OVERRUN", "rows": 1},
    ]
    assert all(not rows for rows in made_of([], random.Random(0)).values())


def test_a_gateway_without_rows_has_empty_tables() -> None:
    texts = Dictionary()
    made = [
        *(Totals(), OverTime(), Losses(texts), Throttle(texts), Latency(texts)),
        *(Queues(texts), Talkers(texts)),
    ]
    assert len({each.name for each in made}) == len(made)
    assert [each.table().num_rows for each in made] == [0] * len(made)
