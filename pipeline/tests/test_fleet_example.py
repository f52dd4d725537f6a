# SPDX-License-Identifier: Apache-2.0
"""examples/fleet/answer.py answers its question from the recordings of the example."""

import re
from pathlib import Path

from pyspark.sql import SparkSession

from examples.fleet.__main__ import POSITION
from examples.fleet.answer import answer
from tests.e2e.rigs.examples import run_example


def test_the_recordings_show_how_much_crossed_the_mobile_network(spark: SparkSession, tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"
    done = run_example("fleet", "--events", "100", "--recordings", str(recordings))
    assert done.code == 0, done
    [sent] = re.findall(r"over the mobile network: (\d+) of 100", done.output)

    rows = {row.topic: row for row in answer(spark, str(recordings), str(tmp_path / "lake"))}

    row = rows[str(POSITION)]
    assert (row.gateway, row.published, row.sent) == ("hpc.vin1", 100, int(sent))
    assert row.percent == int(sent)
