# SPDX-License-Identifier: Apache-2.0
"""`ustreamer recordings upload DIR s3://BUCKET/FOLDER` copies finished recordings to an object store.

In: a directory of recordings. Out: one object for each finished file, as FOLDER/<authority>/<name>. The object store
remembers what has arrived, so a command that was ended continues there: with the next file, and within a large file with
the next part.
"""

import argparse
import base64
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

from ustreamer_recorder.layout import OPEN_SUFFIX, SUFFIX, Damaged
from ustreamer_recorder.reader import read_header
from ustreamer_recorder.segments import list_segments

_OK, _USAGE, _UNAVAILABLE = 0, 2, 69
_BUCKET: Final = re.compile(r"s3a?://([^/]+)(?:/(.*))?")
PART_BYTES: Final = 8 * 1_048_576
"""A larger file is sent in parts of this size; an object store takes no smaller part than 5 MiB."""
_TIMEOUT_S: Final = 60


class UploadResult(msgspec.Struct):
    """`there`: recordings that an earlier command has sent. `deleted`: the recorder deleted them meanwhile."""

    uploaded: int = 0
    bytes: int = 0
    there: int = 0
    deleted: int = 0
    unreadable: int = 0


def run_upload(arguments: argparse.Namespace) -> int:
    bucket = _BUCKET.fullmatch(arguments.url)
    if bucket is None:
        return _failed(_USAGE, f"{arguments.url}: expected s3://BUCKET/FOLDER")
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return _failed(
            _UNAVAILABLE, "needs boto3: install the wheel file of ustreamer-recorder[s3]: docs/install.md"
        )
    result = UploadResult()
    try:
        config = Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"max_attempts": 3})
        upload = _Upload(boto3.client("s3", config=config), bucket[1], (bucket[2] or "").strip("/"), result)
        upload.send_directory(arguments.directory)
    except (BotoCoreError, ClientError) as error:
        _print_result(result, as_json=arguments.json)
        return _failed(_UNAVAILABLE, f"{arguments.url}: {error}")
    except OSError as error:
        return _failed(_UNAVAILABLE, str(error))
    _print_result(result, as_json=arguments.json)
    return _OK


def _failed(code: int, text: str) -> int:
    print(f"ustreamer recordings upload: {text}", file=sys.stderr)
    return code


def _print_result(result: UploadResult, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(msgspec.structs.asdict(result)))
        return
    text = f"{result.uploaded} recordings uploaded, {result.bytes} bytes; {result.there} were there"
    for count, what in ((result.deleted, "deleted meanwhile"), (result.unreadable, "without a valid header")):
        text += f"; {count} {what}" if count else ""
    print(text)


class _Upload:
    """Sends files to one folder of a bucket. `store` is a client of boto3."""

    def __init__(self, store: Any, bucket: str, folder: str, result: UploadResult) -> None:
        self._store = store
        self._bucket = bucket
        self._folder = f"{folder}/" if folder else ""
        self._result = result
        self._sizes: dict[str, dict[str, int]] = {}

    def send_directory(self, directory: Path) -> None:
        """Send every finished file, the oldest first."""
        for segment in list_segments(directory):
            if not segment.path.name.endswith(SUFFIX) or segment.path.name.endswith(OPEN_SUFFIX):
                continue
            try:
                self._send(segment.path)
            except Damaged:
                self._result.unreadable += 1
            except FileNotFoundError:
                self._result.deleted += 1

    def _send(self, path: Path) -> None:
        folder = f"{self._folder}{read_header(path).authority}/"
        if folder not in self._sizes:
            self._sizes[folder] = dict(self._objects(folder))
        key, size = f"{folder}{path.name}", path.stat().st_size
        if self._sizes[folder].get(key) == size:
            self._result.there += 1
            return
        if size > PART_BYTES:
            self._send_in_parts(path, key)
        else:
            data = path.read_bytes()
            self._store.put_object(Bucket=self._bucket, Key=key, Body=data, ChecksumCRC32=_checksum(data))
        self._result.uploaded += 1
        self._result.bytes += size

    def _objects(self, folder: str) -> Iterator[tuple[str, int]]:
        pages = self._store.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder)
        for page in pages:
            for each in page.get("Contents", ()):
                yield each["Key"], each["Size"]

    def _send_in_parts(self, path: Path, key: str) -> None:
        """Send the parts that an earlier command did not send. A finished file does not change."""
        place = {"Bucket": self._bucket, "Key": key}
        upload, parts = self._unfinished(key)
        if upload is None:
            upload = self._store.create_multipart_upload(ChecksumAlgorithm="CRC32", **place)["UploadId"]
        with path.open("rb") as file:
            number = 0
            while data := file.read(PART_BYTES):
                number += 1
                checksum = _checksum(data)
                sent = parts.get(number)
                known = (0, "") if sent is None else (sent["Size"], sent.get("ChecksumCRC32", checksum))
                if sent is None or known != (len(data), checksum):
                    sent = self._store.upload_part(
                        PartNumber=number, UploadId=upload, Body=data, ChecksumCRC32=checksum, **place
                    )
                parts[number] = {"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": checksum}
        listed = [{name: parts[at][name] for name in _PART_NAMES} for at in range(1, number + 1)]
        self._store.complete_multipart_upload(UploadId=upload, MultipartUpload={"Parts": listed}, **place)

    def _unfinished(self, key: str) -> tuple[str | None, dict[int, Any]]:
        """An upload of this object that was not completed, and its parts by number."""
        found = self._store.list_multipart_uploads(Bucket=self._bucket, Prefix=key).get("Uploads", ())
        for each in found:
            if each["Key"] == key:
                pages = self._store.get_paginator("list_parts").paginate(
                    Bucket=self._bucket, Key=key, UploadId=each["UploadId"]
                )
                parts = [part for page in pages for part in page.get("Parts", ())]
                return each["UploadId"], {part["PartNumber"]: part for part in parts}
        return None, {}


_PART_NAMES: Final = ("PartNumber", "ETag", "ChecksumCRC32")


def _checksum(data: bytes) -> str:
    return base64.b64encode(crc32(data).to_bytes(4)).decode()
