# SPDX-License-Identifier: Apache-2.0
"""The only place that creates a SparkSession: local by default, or the session of a cluster."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from ustreamer_pipeline.errors import UnavailableError
from ustreamer_pipeline.folders import is_url
from ustreamer_pipeline.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    # Partition dates and all times are UTC on every machine.
    "spark.sql.session.timeZone": "UTC",
    # A rebuilt date replaces only its own partitions.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # The default of 10,000 rows makes transfers between the JVM and Python 1.3 times as expensive as 100,000.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.parquet.compression.codec": "zstd",
    # Partition values have the type of the schema: a gateway named 0123 keeps its name.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # A task writes the days of its gateways one after the other, each in order. With this many open files
    # (silver.TASK_UNITS) Spark does not sort by partition first, which would change the order and double the cost.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}
"""Settings of every session; all of them may be changed at run time."""

LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # would write \\r into the output; `progress` has its own bar
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.artifact.isolation.enabled": "false",
    # Workers keep freed memory of arrays. To return it, and get it again page by page, takes a third of an audit's CPU.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": f"{16 << 20}",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": f"{64 << 20}",
}
"""Settings of a local session; a cluster has its own."""


LOCAL_DEFAULTS: Final = {
    "spark.sql.shuffle.partitions": "16",
    # A first map for few groups. A query with a group for each message overflows it and takes 1.5 times the CPU.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
}
"""Settings of a local session for its queries, unless spark-defaults.conf has them. A cluster keeps its own."""

SMALL_BYTES: Final = 8 << 20
SMALL_FILES: Final = 500
"""Files that a command reads: with at most so many and so many bytes, nearly all of its time is its start."""

SMALL_DEFAULTS: Final = {
    "spark.sql.shuffle.partitions": "1",
    # To plan again after each shuffle, and to generate and compile Java for each query, costs more than both save.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Instead of LOCAL_DEFAULTS, for a small input; under spark-submit too, unless the user has set them."""

_SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1"
"""Without the optimizing compiler, whose code a short life does not repay."""


class SparkOptions(TypedDict):
    remote: str | None
    cores: int | None
    memory: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands with a session share."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--remote", metavar="URL", help="a Spark Connect server, as sc://host:15002 (SPARK_REMOTE)"
    )
    group.add_argument("--cores", type=int, metavar="N", help="threads of the local Spark (all)")
    group.add_argument("--memory", default="2g", metavar="SIZE", help="heap of the local Spark (2g)")


def chosen(options: argparse.Namespace) -> SparkOptions:
    """The values of these options, as arguments of `session`."""
    return {"remote": options.remote, "cores": options.cores, "memory": options.memory}


@contextmanager
def session(
    name: str,
    *,
    remote: str | None = None,
    cores: int | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
    reads: Iterable[str] = (),
) -> Iterator["SparkSession"]:
    """The session for one command, stopped at the end if it was created here.

    An active session is used as it is. With `remote` or SPARK_REMOTE it is the session of a Spark Connect server, under
    spark-submit its own, otherwise a local one with `cores` threads. `settings` override `SETTINGS`. `reads` has the
    files and folders that the command reads: a session for a small input has settings for a quick start, except one of
    Spark Connect, where the configuration of the server is unknown.
    Raises UnavailableError if Java is missing or Spark does not start.
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
        name,
        remote or os.environ.get("SPARK_REMOTE"),
        cores,
        memory,
        {**SETTINGS, **(settings or {})},
        is_small=is_small(reads),
    )
    try:
        yield spark
    finally:
        spark.stop()


def is_connect(spark: "SparkSession") -> bool:
    """Whether the session is one of Spark Connect, which has no SparkContext in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_spark_submit(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process: its JVM then waits for it, with the settings of the cluster."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _create_session(
    name: str,
    remote: str | None,
    cores: int | None,
    memory: str,
    settings: Mapping[str, str],
    *,
    is_small: bool,
) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # mypy sees a class attribute here; the documentation has a property.
    builder = SparkSession.builder.appName(f"ustreamer-pipeline {name}")
    is_local = not remote and not is_spark_submit(os.environ)
    if remote:
        builder = builder.remote(remote)
    elif is_local:
        local_environment(os.environ)
        builder = builder.master(f"local[{cores or '*'}]")
        for key, value in {**LOCAL, **local_settings(memory, is_small=is_small)}.items():
            builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        where = remote or "the local Spark"
        raise UnavailableError(f"{where} does not start: {error}") from error
    if not remote:
        configured = spark.sparkContext.getConf()
        for key, value in query_defaults(is_local=is_local, is_small=is_small).items():
            if not configured.contains(key):
                spark.conf.set(key, value)
    return spark


def query_defaults(*, is_local: bool, is_small: bool) -> Mapping[str, str]:
    """Settings of queries that the user may override, for a local session or one of spark-submit.

    The settings of a small input suit a cluster too: its 200 shuffle partitions are 200 tasks for each query.
    """
    if is_small:
        return SMALL_DEFAULTS
    return LOCAL_DEFAULTS if is_local else {}


def local_environment(environ: MutableMapping[str, str]) -> None:
    """Set the environment that the JVM and its Python workers need."""
    environ["JAVA_HOME"] = str(java_home(find_java(environ), environ))
    environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # else Spark warns about the host name
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def is_small(reads: Iterable[str]) -> bool:
    """Whether these files and folders have few files and bytes; False for none, and where one is a URL."""
    names = list(reads)
    files = size = 0
    for name in names:
        if is_url(name):
            return False
        for path in [Path(name)] if Path(name).is_file() else Path(name).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # replaced or removed meanwhile
                size += path.stat().st_size
            files += 1
            if size > SMALL_BYTES or files > SMALL_FILES:
                return False
    return bool(names)


def local_settings(memory: str, *, is_small: bool = False) -> dict[str, str]:
    """Heap and log settings of the JVM. User options in `spark.driver.defaultJavaOptions` precede these."""
    log4j = resources.files("ustreamer_pipeline") / "log4j2.properties"
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}"
        + (f" {_SMALL_JAVA}" if is_small else ""),
    }
