# SPDX-License-Identifier: Apache-2.0
"""One Spark for all tests of the pipeline; those that need a process of their own say so."""

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from tests.sample_recordings import Record, write_recording
from ustreamer_pipeline.session import session

# For a short life on a small heap. C1 only halves what a suite takes; its code cache of 48 MB would be swept and compiled
# anew all the time, and one thread collects with a third of what G1 costs: a fifth less of CPU time together.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
QUICK = {"spark.driver.defaultJavaOptions": QUICK_JAVA, "spark.sql.shuffle.partitions": "2"}

PATIENCE_S: Final = 600
"""Of one test. All of these give way to those that run beside them, and one job of Spark's is 30 s of CPU time. Broken off in the
middle it leaves no Spark to any test behind it."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Of all tests of this run, those in here wait longer than others before they count as hung."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that every test shares. Two threads, so that tasks run side by side."""
    places = {
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    with session("tests", cores=2, memory="1g", settings={**QUICK, **places}) as made:
        yield made


@pytest.fixture(scope="session")
def quick_java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What to add to the environment of a process that starts a Spark of its own, as an administrator would."""
    place = tmp_path_factory.mktemp("conf")
    (place / "spark-defaults.conf").write_text(f"spark.driver.defaultJavaOptions {QUICK_JAVA}\n")
    return {"SPARK_CONF_DIR": str(place)}


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment with every program of this machine but Java, and a home of its own."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in map(Path, os.defpath.split(os.pathsep)):
        for program in folder.iterdir() if folder.is_dir() else ():
            if not program.name.startswith("java") and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    assert shutil.which("java", path=str(programs)) is None
    kept = {key: value for key, value in os.environ.items() if key not in {"JAVA_HOME", "SPARK_REMOTE"}}
    return {**kept, "PATH": str(programs), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Write a recording with the recorder's own writer, in a folder of its own; where it is."""
    return partial(write_recording, tmp_path)
