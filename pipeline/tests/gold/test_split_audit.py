# SPDX-License-Identifier: Apache-2.0
"""A gateway with more than its share of rows is two tasks, by rules, with the findings of one."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.gold import ordered_pass
from ustreamer_pipeline.gold.audit import findings, load
from ustreamer_pipeline.gold.rules import PROMISES
from ustreamer_pipeline.gold.rules.run import FINDINGS
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.replay.files import spread

from benchmarks.analyses.lakes import add_defects


def test_the_tasks_of_a_split_gateway_have_the_findings_of_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(write_fleet(Fleet(vehicles=1, seconds=20, outages=1_800, requests_hz=5), tmp_path / "fleet"))
    ingest(spark, [str(tmp_path / "fleet")], str(tmp_path / "lake"))
    add_defects(tmp_path / "lake")

    def found() -> tuple[list[tuple[object, ...]], int]:
        frame = findings(load(spark, str(tmp_path / "lake")), tuple(PROMISES))
        rows = sorted(map(tuple, frame.select(*FINDINGS).collect()), key=repr)
        return rows, frame.rdd.getNumPartitions()

    whole, tasks = found()
    assert tasks == 1
    assert {rule for rule, *_ in whole} > {"rate", "sequence", "once"} - {"once"}
    monkeypatch.setattr(ordered_pass, "SPLIT_ROWS", 1_000)
    monkeypatch.setattr(ordered_pass, "cores_of", lambda _: 2)
    split, tasks = found()
    assert tasks == 2
    assert split == whole


def test_the_largest_gateway_is_the_first_task(spark: SparkSession) -> None:
    weights = [1, 1, 100, 1, 50, 1, 1, 1, 1, 1]
    rows = [(str(weight), at) for at, weight in enumerate(weights)]
    frame = spread(spark, rows, "weight string, at int", weights)
    tasks = frame.rdd.glom().collect()
    assert [len(task) for task in tasks[:2]] == [1, 1]
    assert [int(task[0].weight) for task in tasks[:2]] == [100, 50]
    assert sorted(row.at for task in tasks for row in task) == list(range(len(weights)))
