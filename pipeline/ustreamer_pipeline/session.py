# SPDX-License-Identifier: Apache-2.0
"""The one place that makes a SparkSession: local by default, and what is there already on a cluster."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.errors import UnavailableError
from ustreamer_pipeline.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    # Dates of partitions, and all times, are UTC on every machine.
    "spark.sql.session.timeZone": "UTC",
    # A rebuilt date replaces its own partitions and no other.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # The default of 10,000 rows costs 1.3 times as much to move between the JVM and Python as 100,000.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.parquet.compression.codec": "zstd",
    # A gateway named 0123 stays a name; partition values are read as what the schema says.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.shuffle.partitions": "16",
    # A task writes one gateway's day after the other, each in order. With this many files open at once (silver.TASK_UNITS)
    # Spark needs not sort by partition first, which would undo the order and cost as much as the rest.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}
"""What every session has, wherever it runs; all of them may be changed while it runs."""

LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # writes \\r into what a command prints; `progress` has a bar of its own
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.artifact.isolation.enabled": "false",
}
"""What only a session of our own process has; a cluster decides these itself."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every command with a session has."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--remote", metavar="URL", help="a Spark Connect server, as sc://host:15002 (SPARK_REMOTE)"
    )
    group.add_argument("--cores", type=int, metavar="N", help="threads of the local Spark (all)")
    group.add_argument("--memory", default="2g", metavar="SIZE", help="heap of the local Spark (2g)")


@contextmanager
def session(
    name: str,
    *,
    remote: str | None = None,
    cores: int | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> Iterator["SparkSession"]:
    """A session for one command, stopped at the end if it was made here.

    Under spark-submit, or with one that is active, that is the session; with `remote` or SPARK_REMOTE it is a Spark
    Connect server's; else a local one with `cores` threads. `settings` go over `SETTINGS`.
    Raises UnavailableError if there is no Java, or Spark does not start.
    """
    from pyspark.sql import SparkSession

    logging.getLogger("SQLQueryContextLogger").setLevel(
        logging.CRITICAL
    )  # an AnalysisException in JSON, 40 lines
    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in (settings or {}).items():
            active.conf.set(key, value)
        yield active
        return
    spark = _create_session(
        name, remote or os.environ.get("SPARK_REMOTE"), cores, memory, {**SETTINGS, **(settings or {})}
    )
    try:
        yield spark
    finally:
        spark.stop()


def is_connect(spark: "SparkSession") -> bool:
    """Whether the session is a Spark Connect server's: that has no SparkContext here."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_spark_submit(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process: then its JVM is waiting for us, with the cluster's settings."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _create_session(
    name: str, remote: str | None, cores: int | None, memory: str, settings: Mapping[str, str]
) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # mypy sees a class attribute here, the documentation a property.
    builder = SparkSession.builder.appName(f"ustreamer-pipeline {name}")
    if remote:
        builder = builder.remote(remote)
    elif not is_spark_submit(os.environ):
        local_environment(os.environ)
        builder = builder.master(f"local[{cores or '*'}]")
        for key, value in {**LOCAL, **local_settings(memory)}.items():
            builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        where = remote or "the local Spark"
        raise UnavailableError(f"{where} does not start: {error}") from error


def local_environment(environ: MutableMapping[str, str]) -> None:
    """What the JVM, and the Python workers that it starts, have to find in the environment."""
    environ["JAVA_HOME"] = str(java_home(find_java(environ), environ))
    environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # else it warns about the name of the machine
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def local_settings(memory: str) -> dict[str, str]:
    """Heap and log of the JVM. A user's own options go into `spark.driver.defaultJavaOptions`, which come before these."""
    log4j = files("ustreamer_pipeline") / "log4j2.properties"
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
    }
