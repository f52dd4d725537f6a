# SPDX-License-Identifier: Apache-2.0
"""Finished recordings are in the object store once and complete, also after kills. The store is moto's S3 server."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from ustreamer_recorder.layout import SegmentHeader
from ustreamer_recorder.upload import command as upload_command
from ustreamer_recorder.writer import SegmentWriter

from tests.waiting import wait_until

BUCKET = "fleet"


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Settings of the AWS clients for a server on this machine."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    server.stop()


@pytest.fixture
def store(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Any:
    """A client, and an empty bucket."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    return client


def upload(directory: Path, url: str = f"s3://{BUCKET}/drives") -> int:
    return upload_command.run_upload(argparse.Namespace(directory=directory, url=url, json=True))


def record(directory: Path, number: int, *, padding: int = 0) -> Path:
    """A finished recording; zeros behind its last block make it larger."""
    path = SegmentWriter(directory, SegmentHeader("hpc.vin1", 1, number, 0, 1_700_000_000_000)).close()
    with path.open("ab") as file:
        file.write(random.Random(number).randbytes(padding))
    return path


def objects(store: Any) -> dict[str, bytes]:
    found = store.list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return {each["Key"]: store.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read() for each in found}


def test_finished_recordings_are_sent_once(
    store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_command, "PART_BYTES", 5 * 1_048_576)
    files = [record(tmp_path, number, padding=number * 6_000_000) for number in range(3)]
    SegmentWriter(tmp_path, SegmentHeader("hpc.vin1", 1, 3, 0, 1_700_000_000_000)).abandon()
    (tmp_path / "0000000000000002-000000.useg").write_bytes(b"")
    assert upload(tmp_path) == 0
    first = json.loads(capsys.readouterr().out)
    size = sum(file.stat().st_size for file in files)
    assert first == {"uploaded": 3, "bytes": size, "there": 0, "deleted": 0, "unreadable": 1}
    assert objects(store) == {f"drives/hpc.vin1/{file.name}": file.read_bytes() for file in files}
    files.append(record(tmp_path, 4))
    assert upload(tmp_path) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["uploaded"], again["there"]) == (1, 3)
    assert len(objects(store)) == 4


def test_an_upload_continues_with_the_first_part_that_is_missing(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_command, "PART_BYTES", 5 * 1_048_576)
    file = record(tmp_path, 0, padding=11_000_000)
    key = f"drives/hpc.vin1/{file.name}"
    data = file.read_bytes()[: 5 * 1_048_576]
    started = store.create_multipart_upload(Bucket=BUCKET, Key=key, ChecksumAlgorithm="CRC32")["UploadId"]
    store.upload_part(
        Bucket=BUCKET,
        Key=key,
        PartNumber=1,
        UploadId=started,
        Body=data,
        ChecksumCRC32=upload_command._checksum(data),
    )
    sent: list[int] = []

    def count(params: dict[str, Any], **_: Any) -> None:
        sent.append(params["PartNumber"])

    client = boto3.client("s3")
    client.meta.events.register("provide-client-params.s3.UploadPart", count)
    monkeypatch.setattr(boto3, "client", lambda *_, **__: client)
    assert upload(tmp_path) == 0
    assert sent == [2, 3]
    assert objects(store) == {key: file.read_bytes()}


def test_a_store_that_is_away_and_a_wrong_url_are_one_line_errors(
    store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, 0)
    assert upload(tmp_path, "gs://fleet/drives") == 2
    assert upload(tmp_path, "s3://no-such-bucket/drives") == 69
    assert upload(tmp_path / "none") == 69
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert upload(tmp_path) == 69
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "ustreamer recordings upload: gs://fleet/drives: expected s3://BUCKET/FOLDER"
    assert "NoSuchBucket" in told[1]
    assert "none" in told[2]
    assert "127.0.0.1:1" in told[3]
    assert len(told) == 4


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_after_20_kills_every_recording_is_there_once_and_complete(
    store: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    files = [record(tmp_path, number, padding=(number % 3) * 12_000_000) for number in range(30)]
    command = [
        str(Path(sys.executable).with_name("ustreamer")),
        "recordings",
        "upload",
        str(tmp_path),
        f"s3://{BUCKET}/drives",
    ]
    rng = random.Random(1)
    kills = 0
    while kills < 20:
        there = len(objects(store))
        process = subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.DEVNULL)
        more = there + rng.randrange(0, 2)
        wait_until(lambda: len(objects(store)) >= more or process.poll() is not None, within_s=60)  # noqa: B023
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert subprocess.run(command, env=os.environ | environment, check=False).returncode == 0
    assert objects(store) == {f"drives/hpc.vin1/{file.name}": file.read_bytes() for file in files}
