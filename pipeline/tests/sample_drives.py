# SPDX-License-Identifier: Apache-2.0
"""A real drive with payloads, and its lake: the demo, recorded."""

from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from ustreamer_pipeline.ingest.ingest import ingest

from tests.e2e.rigs.streamer import run_command


class Drive(NamedTuple):
    recordings: Path
    lake: Path


def record_drive(spark: SparkSession, place: Path) -> Drive:
    """Two seconds of the demo: a SOME/IP chassis, and subscribers on two Zenoh networks."""
    made = Drive(place / "recordings", place / "lake")
    # The exit code judges the rates, which a busy machine changes.
    done = run_command("demo", "--seconds", "2", "--json", "--recordings", made.recordings)
    assert list(made.recordings.glob("*.useg")), done.stderr
    ingest(spark, [str(made.recordings)], str(made.lake))
    return made
