# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of the pipeline, except for tests that start a process."""

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from tests.programs import link_programs
from tests.sample_drives import Drive, record_drive
from tests.sample_recordings import Record, write_recording
from ustreamer_pipeline.session import SMALL_DEFAULTS, session

# For a short life on a small heap. C1 alone halves the CPU time of the suite. Its default code cache of 48 MB overflows, and the
# JVM then compiles the same code repeatedly. The serial collector costs a third of G1: together one fifth less CPU time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
QUICK = {"spark.driver.defaultJavaOptions": QUICK_JAVA, **SMALL_DEFAULTS}
"""Settings of a small input. Tests that start a process for a larger one generate code, as in production."""

TIME_LIMIT_S: Final = 600
"""Time limit of one test. Pipeline tests run at low priority, and one Spark job takes up to 30 s of CPU time.

A test that is interrupted in the middle of a job leaves no Spark session for the tests after it.
"""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Give each test of this folder the longer time limit."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that every test shares. Two threads, so that tasks run in parallel."""
    folders = {
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    with session("tests", cores=2, memory="1g", settings={**QUICK, **folders}) as made:
        yield made


@pytest.fixture(scope="session")
def drive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """One recorded drive for all tests of signals, exports and traces."""
    return record_drive(spark, tmp_path_factory.mktemp("drive"))


@pytest.fixture(scope="session")
def quick_java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables for a process that starts its own Spark: the same JVM options by spark-defaults.conf."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "spark-defaults.conf").write_text(f"spark.driver.defaultJavaOptions {QUICK_JAVA}\n")
    return {"SPARK_CONF_DIR": str(folder)}


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment with every program of this machine but Java, and a home of its own."""
    programs = tmp_path / "programs"
    programs.mkdir()
    link_programs(map(Path, os.defpath.split(os.pathsep)), programs, without="java")
    assert shutil.which("java", path=str(programs)) is None
    kept = {key: value for key, value in os.environ.items() if key not in {"JAVA_HOME", "SPARK_REMOTE"}}
    return {**kept, "PATH": str(programs), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Writes a recording with the writer of the recorder, in a new folder, and returns its path."""
    return partial(write_recording, tmp_path)
