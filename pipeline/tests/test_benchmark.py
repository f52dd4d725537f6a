# SPDX-License-Identifier: Apache-2.0
"""The benchmark measures two engines at the same work; equal tables also verify Spark by DuckDB."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.schemas import DELIVERIES

from benchmarks import whatif
from benchmarks.analyses import rounds
from benchmarks.analyses.__main__ import lines
from benchmarks.analyses.answers import RULES, answer_of, difference
from benchmarks.analyses.lakes import lake_of_deliveries, lake_of_signals
from benchmarks.harness import process_tree
from benchmarks.pipeline import Measurement, fleet_of, ingest_with_duckdb, main, run, table

SOAK_ROWS = int(os.environ.get("USTREAMER_SOAK_ROWS", "100000000"))


def test_duckdb_and_spark_make_the_same_table(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(vehicles=2, seconds=3, outages=1_800, requests_hz=5, segment_rows=1_000)
    count = sum(write_fleet(fleet, tmp_path / "fleet"))
    assert ingest(spark, [str(tmp_path / "fleet")], str(tmp_path / "spark")).silver == count
    assert ingest_with_duckdb(tmp_path / "fleet", tmp_path / "duckdb", 1) == count
    columns = ", ".join(f'CAST({name} AS VARCHAR) AS "{name}"' for name in DELIVERIES.names)
    one, other = (
        f"SELECT {columns} FROM read_parquet('{tmp_path / engine}/silver/deliveries/*/*/*.parquet', hive_partitioning=true)"
        for engine in ("spark", "duckdb")
    )
    for pair in ((one, other), (other, one)):
        counted = duckdb.execute(f"SELECT count(*) FROM ({pair[0]} EXCEPT ALL {pair[1]})")
        assert counted.fetchall() == [(0,)]
    verdicts = duckdb.execute(f"SELECT verdict, count(*) FROM ({one}) GROUP BY ALL").fetchall()
    assert len(verdicts) >= 4


def test_every_figure_is_measured(spark: SparkSession, tmp_path: Path) -> None:
    found = run([1_500], ["ingest"], 2, tmp_path, spark)
    assert [(one.task, one.engine) for one in found] == [
        ("generate", "numpy"),
        ("ingest", "spark"),
        ("ingest", "duckdb"),
    ]
    assert len({one.rows for one in found}) == 1
    assert all(one.seconds > 0 and one.peak_mb > 10 for one in found)
    assert found[1].cpu_s > 0
    assert list(tmp_path.iterdir()) == []


def test_the_table_shows_growth_and_ratio() -> None:
    found = [
        Measurement("ingest", "spark", 1_000_000, 4.0, 8.0, 500.0),
        Measurement("ingest", "duckdb", 1_000_000, 2.0, 4.0, 500.0),
        Measurement("ingest", "spark", 10_000_000, 40.0, 80.0, 600.0),
        Measurement("ingest", "duckdb", 10_000_000, 10.0, 40.0, 600.0),
    ]
    lines = table(found).splitlines()
    assert lines[1].split() == ["ingest", "spark", "1,000,000", "4.0", "250,000", "8.00", "500", "2.0"]
    assert lines[3].split()[-2:] == ["1.00", "4.0"]


def test_a_tree_of_processes_is_measured_as_one() -> None:
    before = process_tree.cpu_s()
    sum(number * number for number in range(2_000_000))
    assert process_tree.cpu_s() > before
    assert process_tree.peak_mb() > 20
    subprocess.run([sys.executable, "-c", "x = bytes(100_000_000)"], check=True)
    assert process_tree.exited_peak_mb() > 100


def test_the_cpu_time_of_a_process_that_ends_during_the_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    burn = "sum(range(10_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        assert child.stdout.readline()
        before = process_tree.cpu_s()
        read = process_tree._stat_fields

        def read_after_its_end(pid: int) -> list[str]:
            if pid == child.pid:
                child.communicate(b"\n")
            return read(pid)

        monkeypatch.setattr(process_tree, "_stat_fields", read_after_its_end)
        assert process_tree.cpu_s() >= before


def test_the_fleet_of_a_large_benchmark_has_twenty_vehicles() -> None:
    assert fleet_of(10_000_000).vehicles == 20


def test_every_engine_that_is_installed_replays_the_same_messages(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(vehicles=2, seconds=3, outages=1_800, requests_hz=5, segment_rows=1_000)
    assert sum(write_fleet(fleet, tmp_path / "fleet")) > 1_000
    lake = tmp_path / "lake"
    ingest(spark, [str(tmp_path / "fleet")], str(lake))
    found = whatif.compared(spark, lake, 2, 1, 1)
    engines = {"spark", "duckdb", *(["polars"] if find_spec("polars") else [])}
    assert {name.removesuffix("_least_s") for name in found if name.endswith("_least_s")} == engines
    assert all(found[f"{name}_{unit}"] > 0 for name in engines for unit in ("s", "mb"))

    spark_round = whatif.spark_round

    def one_less(*args: Any) -> whatif.EngineRound:
        measured = spark_round(*args)
        (key, (messages, size)), *_ = measured.answer.items()
        return replace(measured, answer=measured.answer | {key: (messages - 1, size)})

    monkeypatch.setattr(whatif, "spark_round", one_less)
    with pytest.raises(SystemExit, match="answers differ"):
        whatif.compared(spark, lake, 2, 1, 1)


def test_every_engine_finds_the_same_violations_and_the_same_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    deliveries = lake_of_deliveries(spark, 20_000, tmp_path, 1)
    lakes = {"audit": deliveries, "report": deliveries, "signals": lake_of_signals(2_000, tmp_path)}
    found = {task: rounds.compared(spark, task, lake, 1, 1) for task, lake in lakes.items()}
    engines = {"spark", "duckdb", *(["polars"] if find_spec("polars") else [])}
    assert all(each.keys() == engines for each in found.values())
    for task, each in found.items():
        (line, *others) = lines(task, 1_000, each)
        assert line.split(" | ")[:3] == [f"| {task}", "1,000", "spark"]
        assert len(others) == len(engines) - 1
    answer = found["audit"]["spark"][0].answer
    assert {row[0] for row in answer["findings"]} == set(RULES)
    assert all(rows for rows in found["report"]["spark"][0].answer.values())
    assert found["audit"]["spark"][0].shuffled_mb > 0


def test_answers_that_differ_are_named() -> None:
    one = answer_of({"series": [("a", 1, 0.1 + 0.2), ("b", None, 5.0)], "messages": []})
    assert difference(one, answer_of({"series": [("b", None, 5.0), ("a", 1, 0.3)], "messages": []})) is None
    assert difference(one, {"series": []}) == "tables ['messages', 'series'] and ['series']"
    assert difference(one, {**one, "messages": [(1,)]}) == "messages: 0 and 1 rows"
    other = answer_of({"series": [("a", 1, 0.31), ("b", None, 5.0)], "messages": []})
    assert str(difference(one, other)).startswith("series: ('a', 1, 0.3")


@pytest.mark.soak
def test_ingest_grows_with_the_rows_and_its_memory_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    """1e8 rows and a tenth of it; needs 20 GB of disk. USTREAMER_SOAK_ROWS: another size."""
    assert main(["--rows", str(SOAK_ROWS // 10), str(SOAK_ROWS), "--task", "ingest"]) == 0
    lines = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("ingest    spark")
    ]
    small, large = (
        {"rows_s": float(line[4].replace(",", "")), "mb": float(line[6].replace(",", ""))} for line in lines
    )
    assert large["rows_s"] > 0.7 * small["rows_s"]
    assert large["mb"] < 1.5 * small["mb"] + 500


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_whatif_is_no_slower_than_duckdb_and_its_memory_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1e8 rows and a tenth of it; needs 20 GB of disk and 16 of memory. USTREAMER_SOAK_ROWS: another size."""
    sizes = [str(SOAK_ROWS // 10), str(SOAK_ROWS)]
    assert whatif.main(["--rows", *sizes, "--scenarios", "1", "--dir", str(tmp_path)]) == 0
    small, large = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    # By CPU time: others on the machine stretch seconds, of one engine more than of the other.
    if SOAK_ROWS >= 100_000_000:  # a small replay is mostly Spark's beginning
        assert small["cpu_ratio"] <= 3
        assert large["cpu_ratio"] <= 1
    assert large["spark_cpu_s"] < 1.2 * 10 * small["spark_cpu_s"]
    assert large["spark_mb"] < 1.5 * small["spark_mb"] + 500
