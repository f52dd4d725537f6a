# SPDX-License-Identifier: Apache-2.0
"""The series of signals are those of a query over their table."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.sample_drives import Drive
from ustreamer_pipeline.lake.snapshot import load_snapshot
from ustreamer_pipeline.report import series
from ustreamer_pipeline.schemas import SIGNALS


def test_a_series_has_the_sums_of_each_step(spark: SparkSession, drive: Drive) -> None:
    snapshot = load_snapshot(Path(drive.lake))
    SIGNALS.read_table(spark, snapshot).createOrReplaceTempView("decoded")
    (topic, name, *_), *_ = spark.sql(
        "SELECT topic, signal FROM decoded WHERE value_double IS NOT NULL ORDER BY ALL"
    ).collect()
    for chosen, where in (([(topic, name)], f"topic = '{topic}'"), ([("", name)], "true")):
        query = f"""
            SELECT topic, signal, time_us div 1000000 AS time_s, max(unit), avg(value_double), min(value_double),
              max(value_double), count(*), count(DISTINCT gateway)
            FROM decoded WHERE {where} AND signal = '{name}' AND value_double IS NOT NULL
            GROUP BY topic, signal, time_s ORDER BY topic, signal, time_s"""
        expected = [tuple(row) for row in spark.sql(query).collect()]
        found = [tuple(row) for row in series.signals(spark, snapshot, chosen, 1).collect()]
        assert len(found) > 1
        assert [row[:4] + row[5:] for row in found] == [row[:4] + row[5:] for row in expected]
        assert [row[4] for row in found] == pytest.approx([row[4] for row in expected])
    assert series.signals(spark, snapshot, [("", name)], 1, until="1999-12-31").count() == 0
