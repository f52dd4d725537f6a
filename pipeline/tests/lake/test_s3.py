# SPDX-License-Identifier: Apache-2.0
"""A lake in a bucket of S3, on a real server: in one place, with commits of several machines and one snapshot a reader."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.sample_lakes import contents
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.gold.audit import PROMISES
from ustreamer_pipeline.ingest import ingest as ingest_module
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import write_units

pytestmark = pytest.mark.soak  # a server and half a minute of CPU

BUCKET = "fleet"
FLEET = Fleet(vehicles=2, seconds=2, topics=4, segment_rows=100)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Settings of the AWS clients for a server on this machine, with an empty bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        made = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in made.items():
                patch.setenv(name, value)
            boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield made
    finally:
        server.stop()


@pytest.fixture
def bucket(
    environment: dict[str, str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """URL of the bucket. The driver and the workers of Spark have the settings; the current folder is empty."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    return f"s3a://{BUCKET}"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recordings")
    assert sum(write_fleet(FLEET, place)) > 100
    return place


def test_a_name_is_created_once(bucket: str) -> None:
    storage = storage_of(f"{bucket}/names")
    assert storage.create("a/1", b"first")
    assert not storage.create("a/1", b"second")
    assert (storage.read("a/1"), [file.name for file in storage.list_files("a")]) == (b"first", ["a/1"])
    storage.remove("a/1")
    storage.remove("a/1")
    assert storage.list_files("a") == storage.list_files("none") == []
    with pytest.raises(FileNotFoundError):
        storage.read("a/1")


def test_two_ingests_at_once_add_up_and_every_command_reads_the_lake(
    spark: SparkSession,
    bucket: str,
    recordings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second ingest begins and ends while the first one writes, with recordings of the same gateways and days."""
    lake, local = f"{bucket}/lake", str(tmp_path / "local")
    ingest(spark, [str(recordings)], local)
    every = sorted(recordings.rglob("*.useg"), key=lambda path: path.name)
    halves = [[str(path) for path in every[start::2]] for start in (0, 1)]
    calls: list[tuple[Any, ...]] = []

    def write_meanwhile(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            ingest(spark, halves[1], lake)
        return write_units(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ingest_module, "write_units", write_meanwhile)
        ingest(spark, halves[0], lake)
    assert contents(lake) == contents(local)
    assert main(["compact", lake, "--until", "2099-12-31", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dates"] == 1
    assert main(["audit", lake, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == dict.fromkeys(PROMISES, 0)
    assert main(["whatif", lake, "--hz", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["check"]["rows"] == len(contents(local)["deliveries"])
    assert main(["report", lake, str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["rows"] == len(contents(local)["deliveries"])
    assert not list(Path().iterdir()), "nothing is on the local file system"
