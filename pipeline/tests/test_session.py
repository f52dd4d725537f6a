# SPDX-License-Identifier: Apache-2.0
"""The session: with the Java of the machine or without one, without output, and an existing session."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.programs import link_programs
from ustreamer_pipeline.session import (
    LOCAL_DEFAULTS,
    SETTINGS,
    SMALL_BYTES,
    SMALL_DEFAULTS,
    SMALL_FILES,
    arguments,
    is_connect,
    is_small,
    is_spark_submit,
    local_environment,
    local_settings,
    query_defaults,
    session,
)

JOB = """
import os, sys
from ustreamer_pipeline.session import session
def doubled(batches):
    import ustreamer_pipeline  # the workers can import it
    assert os.environ["MALLOC_TRIM_THRESHOLD_"] == "67108864"
    assert os.environ["MALLOC_MMAP_THRESHOLD_"] == "16777216"
    import pyarrow.compute as pc
    for batch in batches:
        yield batch.set_column(0, "id", pc.multiply(batch.column(0), 2))
with session("test", cores=1, memory="512m", reads=[os.environ["SPARK_CONF_DIR"]]) as spark:
    frame = spark.range(100).mapInArrow(doubled, "id bigint").selectExpr("id", "id % 2 AS odd")
    frame.write.partitionBy("odd").parquet(sys.argv[1])
    print(spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.adaptive.enabled"))
    print(spark._jvm.System.getProperty("java.version").split(".")[0])
print(os.environ["JAVA_HOME"])
"""


@pytest.mark.timeout(300)  # starts a Spark process, which takes a minute on a busy machine
def test_a_job_runs_without_an_installed_java_and_prints_only_its_result(
    no_java: dict[str, str], quick_java: dict[str, str], tmp_path: Path
) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(quick_java["SPARK_CONF_DIR"], conf)
    with (conf / "spark-defaults.conf").open("a") as defaults:
        defaults.write("spark.sql.shuffle.partitions 7\n")
    done = subprocess.run(
        [sys.executable, "-c", JOB, tmp_path / "out"],
        env=no_java | {"SPARK_CONF_DIR": str(conf)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    partitions, release, home = done.stdout.splitlines()
    assert partitions == "7 false"  # the number of the user, and else the settings of a small input
    assert (sum(pq.read_table(tmp_path / "out")["id"].to_pylist()), release) == (9900, "25")
    assert home.startswith(no_java["XDG_CACHE_HOME"])
    assert done.stderr == ""


def test_a_folder_of_programs_has_neither_java_nor_dangling_links(tmp_path: Path) -> None:
    first, second, links = (tmp_path / name for name in ("first", "second", "links"))
    for folder in (first, second, links):
        folder.mkdir()
    for program in (first / "sh", second / "sh", second / "env", first / "java", first / "javac"):
        program.touch()
    for folder in (first, second):
        (folder / "gone").symlink_to(tmp_path / "nothing")
    link_programs([first, second, tmp_path / "missing", first], links, without="java")
    assert {link.name: link.resolve().parent.name for link in links.iterdir()} == {
        "sh": "first",
        "env": "second",
    }


def test_an_existing_session_is_used_and_not_stopped(spark: SparkSession) -> None:
    with session("inner", settings={"spark.sql.shuffle.partitions": "3"}) as inner:
        assert inner is spark
        assert inner.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", SMALL_DEFAULTS["spark.sql.shuffle.partitions"])
    assert spark.range(3).count() == 3
    assert not is_connect(spark)


def test_times_are_utc_and_an_overwritten_partition_replaces_only_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    path = str(tmp_path / "t")
    spark.sql("SELECT 1 AS x, 'a' AS p UNION ALL SELECT 2, 'b'").write.partitionBy("p").parquet(path)
    spark.sql("SELECT 3 AS x, 'b' AS p").write.mode("overwrite").partitionBy("p").parquet(path)
    assert {(row.x, row.p) for row in spark.read.parquet(path).collect()} == {(1, "a"), (3, "b")}


def test_a_cluster_keeps_its_number_of_partitions_for_an_input_that_is_not_small() -> None:
    assert not LOCAL_DEFAULTS.keys() & SETTINGS.keys()
    assert "spark.sql.shuffle.partitions" in LOCAL_DEFAULTS
    assert query_defaults(is_local=False, is_small=False) == {}
    assert query_defaults(is_local=True, is_small=False) == LOCAL_DEFAULTS
    assert query_defaults(is_local=False, is_small=True) == SMALL_DEFAULTS


def test_a_small_input_has_few_files_and_bytes(tmp_path: Path) -> None:
    assert not is_small([])
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(bytes(1_000))
    assert is_small([str(tmp_path)])
    assert is_small([str(tmp_path), str(folder / "a"), str(tmp_path / "missing")])
    assert not is_small([str(tmp_path), "s3a://bucket/lake"])
    with (folder / "b").open("wb") as file:
        file.truncate(SMALL_BYTES)
    assert not is_small([str(tmp_path)])
    assert not is_small([str(folder / "a"), str(folder / "b")])
    (folder / "b").unlink()
    for number in range(SMALL_FILES):
        (folder / str(number)).touch()
    assert not is_small([str(tmp_path)])
    options = [local_settings("1g", is_small=each)["spark.driver.extraJavaOptions"] for each in (True, False)]
    assert options[0] == f"{options[1]} -XX:TieredStopAtLevel=1"
    assert LOCAL_DEFAULTS.keys() <= SMALL_DEFAULTS.keys()
    assert not SMALL_DEFAULTS.keys() & SETTINGS.keys()


def test_spark_submit_is_recognized() -> None:
    assert is_spark_submit({"PYSPARK_GATEWAY_PORT": "1234"})
    assert not is_spark_submit({})


def test_the_local_environment_has_java_and_this_python(tmp_path: Path) -> None:
    environ = {"PATH": "", "HOME": str(tmp_path)}
    local_environment(environ)
    assert Path(environ["JAVA_HOME"], "bin", "java").is_file()
    assert environ["PYSPARK_PYTHON"] == environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_every_command_has_the_same_spark_options() -> None:
    parser = argparse.ArgumentParser()
    arguments(parser)
    options = parser.parse_args(["--remote", "sc://host", "--cores", "3", "--memory", "4g"])
    assert (options.remote, options.cores, options.memory) == ("sc://host", 3, "4g")
    assert local_settings("4g")["spark.driver.memory"] == "4g"
