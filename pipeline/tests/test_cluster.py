# SPDX-License-Identifier: Apache-2.0
"""The same commands with a foreign session, all from the wheel of pyspark: under spark-submit with local threads and with
a standalone cluster of two workers, and with a Spark Connect server.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
import ustreamer_pipeline
from pyspark.sql import SparkSession
from tests.sample_lakes import contents
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.gold.audit import PROMISES
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.schemas import DELIVERIES
from ustreamer_pipeline.session import local_environment
from ustreamer_pipeline.silver.silver import TASK_UNITS

from tests.waiting import wait_until

DEADLINE_S = 300.0
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
CLASS = SUBMIT.with_name("spark-class")
MAIN = Path(ustreamer_pipeline.__file__).parent / "__main__.py"
QUICK = ("--driver-java-options", "-XX:TieredStopAtLevel=1", "--conf", "spark.ui.enabled=false")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1_200),
]  # starts a Spark process each: half a minute of CPU


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recordings")
    assert sum(write_fleet(Fleet(vehicles=2, seconds=5, topics=6), place)) > 1_000
    return place


@pytest.fixture(scope="module")
def expected(spark: SparkSession, recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    lake = str(tmp_path_factory.mktemp("lake"))
    ingest(spark, [str(recordings)], lake)
    return contents(lake)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Settings of a cluster administrator: a Java, and the Python with this distribution."""
    environ = {
        key: value for key, value in os.environ.items() if key not in {"SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"}
    }
    local_environment(environ)
    return environ


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running Spark Connect server."""
    place = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {"port": port, "address": "127.0.0.1"}
    command = [
        *(str(SUBMIT), "--master", "local[2]", *QUICK),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(
            part
            for key, value in options.items()
            for part in ("--conf", f"spark.connect.grpc.binding.{key}={value}")
        ),
        "spark-internal",
    ]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=place)
    try:
        end = time.monotonic() + DEADLINE_S
        while not listens(port):
            assert process.poll() is None, (place / "log").read_text()[-3_000:]
            assert time.monotonic() < end, (place / "log").read_text()[-3_000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a standalone cluster: a master and two workers of one core each, on loopback."""
    place = tmp_path_factory.mktemp("cluster")
    loopback = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        daemon = running.enter_context(daemon_of("master.Master", loopback, place, environment))
        (url,) = daemon(r"Starting Spark master at (spark://\S+)", 1)
        for number in range(2):
            options = (
                *loopback,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(place / f"work-{number}"),
            )
            running.enter_context(daemon_of("worker.Worker", (*options, url), place, environment, number))
        daemon(r"Registering worker (\S+)", 2)
        yield url


@contextmanager
def daemon_of(
    name: str, options: tuple[str, ...], place: Path, environment: dict[str, str], number: int = 0
) -> Iterator[Any]:
    """A process of a standalone cluster. Yields a function that waits until a pattern is in its log that many times."""
    log = place / f"{name}-{number}.log"
    command = [str(CLASS), f"org.apache.spark.deploy.{name}", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment | {"SPARK_DAEMON_MEMORY": "256m"}, stdout=file, stderr=file, cwd=place
        )

    def logged(pattern: str, times: int) -> list[str]:
        def found() -> list[str]:
            assert process.poll() is None, log.read_text()[-3_000:]
            every = re.findall(pattern, log.read_text())
            return every if len(every) >= times else []

        return wait_until(found, f"{pattern} in the log of {name}", DEADLINE_S)

    try:
        yield logged
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def test_spark_submit_runs_a_job_with_its_own_settings(
    recordings: Path, environment: dict[str, str], expected: Any, tmp_path: Path
) -> None:
    lake, events = tmp_path / "lake", tmp_path / "events"
    events.mkdir()
    log = {"enabled": "true", "dir": str(events), "rolling.enabled": "false", "compress": "false"}
    options = [part for key, value in log.items() for part in ("--conf", f"spark.eventLog.{key}={value}")]
    command = [str(SUBMIT), "--master", "local[2]", *QUICK, *options, str(MAIN)]
    done = subprocess.run(
        [*command, "ingest", str(recordings), str(lake), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads(done.stdout)["rows"] == len(expected[DELIVERIES.name])
    assert contents(str(lake)) == expected
    # The logged application is this one: no session with a local master was created.
    (written,) = events.iterdir()
    told = [json.loads(line) for line in written.read_text().splitlines()]
    (settings,) = (
        each["Spark Properties"] for each in told if each["Event"] == "SparkListenerEnvironmentUpdate"
    )
    assert settings["spark.master"] == "local[2]"
    assert settings["spark.submit.deployMode"] == "client"
    assert any(each["Event"] == "SparkListenerTaskEnd" for each in told)
    assert (
        subprocess.run([*command, "audit", str(tmp_path / "none")], env=environment, check=False).returncode
        == 69
    )


SHOW_SETTINGS = """
import sys
from ustreamer_pipeline.session import SMALL_DEFAULTS, session
for reads in ([sys.argv[1]], []):
    with session("test", reads=reads) as spark:
        print(*(spark.conf.get(key) for key in SMALL_DEFAULTS))
"""


def test_under_spark_submit_a_small_input_has_its_settings_unless_the_user_has_others(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "show.py").write_text(SHOW_SETTINGS)
    command = [str(SUBMIT), "--master", "local[1]", *QUICK, "--conf", "spark.sql.codegen.wholeStage=true"]
    done = subprocess.run(
        [*command, str(tmp_path / "show.py"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    small, other = done.stdout.splitlines()
    assert small == "1 false true NO_CODEGEN"
    assert other == "200 true true FALLBACK"


def test_a_spark_connect_server_does_the_same(
    recordings: Path, environment: dict[str, str], server: str, expected: Any, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")

    def told(*words: str) -> Any:
        command = [sys.executable, "-m", "ustreamer_pipeline", *words, "--remote", server, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
        return json.loads(done.stdout)

    assert told("ingest", str(recordings), lake)["rows"] == len(expected[DELIVERIES.name])
    assert contents(lake) == expected
    assert told("ingest", str(recordings), lake)["days"] == 0
    assert told("audit", lake)["counts"] == dict.fromkeys(PROMISES, 0)
    check = told("whatif", lake, "--hz", "1")["check"]
    assert (check["differing"], check["rows"]) == (0, len(expected[DELIVERIES.name]))
    totals = told("report", lake, str(tmp_path / "out"))["totals"]
    assert totals["rows"] == len(expected[DELIVERIES.name])
    assert told("compact", lake, "--until", "2099-12-31")["dates"] == 1


def test_a_stream_through_a_spark_connect_server_does_the_same(
    recordings: Path, environment: dict[str, str], server: str, expected: Any, tmp_path: Path
) -> None:
    lake, checkpoint = str(tmp_path / "lake"), str(tmp_path / "checkpoint")

    def ingested() -> Any:
        command = [sys.executable, "-m", "ustreamer_pipeline", "ingest", "--stream", checkpoint]
        command += [str(recordings), lake, "--remote", server, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
        return json.loads(done.stdout)

    first = ingested()
    assert (first["rows"], first["landed"]) == (len(expected[DELIVERIES.name]), first["files"])
    assert contents(lake) == expected
    again = ingested()
    assert (again["landed"], again["days"]) == (0, 0)
    assert contents(lake) == expected


def test_a_standalone_cluster_of_two_workers_does_the_same(
    spark: SparkSession,
    environment: dict[str, str],
    cluster: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Recordings of so many gateways that their tables take two tasks: one for each worker."""
    recordings, events = tmp_path / "recordings", tmp_path / "events"
    assert sum(write_fleet(Fleet(vehicles=TASK_UNITS + 6, seconds=1, topics=4), recordings)) > 1_000
    events.mkdir()
    settings = {
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before both workers have an executor
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{DEADLINE_S:g}s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    submit = [str(SUBMIT), "--master", cluster, *QUICK, *options, str(MAIN)]

    def on_cluster(*words: str) -> Any:
        done = subprocess.run(
            [*submit, *words, "--json"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        return json.loads(done.stdout)

    def here(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    there, local = str(tmp_path / "there"), str(tmp_path / "local")
    assert on_cluster("ingest", str(recordings), there) == here("ingest", str(recordings), local)
    assert contents(there) == contents(local)
    (written,) = events.iterdir()
    told = [json.loads(line) for line in written.read_text().splitlines()]
    (properties,) = (
        each["Spark Properties"] for each in told if each["Event"] == "SparkListenerEnvironmentUpdate"
    )
    assert properties["spark.master"] == cluster
    ended = [each["Task Info"] for each in told if each["Event"] == "SparkListenerTaskEnd"]
    assert {each["Executor ID"] for each in ended} == {"0", "1"}
    assert not any(each["Failed"] for each in ended)
    assert on_cluster("audit", there) == here("audit", local)
    assert on_cluster("whatif", there, "--hz", "1") == here("whatif", local, "--hz", "1")
    on_cluster("report", there, str(tmp_path / "out-there"))
    here("report", local, str(tmp_path / "out-local"))
    reports = [(tmp_path / name / "report.json").read_text() for name in ("out-there", "out-local")]
    assert reports[0] == reports[1]
