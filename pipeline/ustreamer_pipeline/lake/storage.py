# SPDX-License-Identifier: Apache-2.0
"""The files of a lake by their names relative to it, on a local file system or in a bucket of S3.

A file is written once and never changed, except for `write`, which replaces a file as a whole. `create` is the one
operation that several machines agree on: of those that create a name at the same time, one succeeds.

A bucket is given as `s3://bucket/folder`, `s3a://` means the same. Credentials, region and endpoint come from the
environment variables of AWS (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL) on the driver and on each executor.
"""

import contextlib
import errno
import fcntl
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from pyarrow import fs

from ustreamer_pipeline.errors import UnavailableError, UsageError
from ustreamer_pipeline.folders import is_url

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_BUCKET: Final = re.compile(r"s3a?://([^/]+)/(.*[^/])/*")


class StoredFile(NamedTuple):
    """A file of a lake: its name, its size, and the time of its last change in s since 1970."""

    name: str
    bytes: int
    time_s: float


class Storage(ABC):
    """The files of one lake. `system` and `root` open a file through pyarrow: `system.open_input_file(path(name))`."""

    is_local: bool

    def __init__(self, system: fs.FileSystem, root: str) -> None:
        self.system, self.root = system, root

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        with self.system.open_input_stream(self.path(name), compression=None) as stream:
            whole: bytes = stream.read()
        return whole

    def list_files(self, folder: str) -> list[StoredFile]:
        """All files below a folder, sorted by name; none if it does not exist."""
        selector = fs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        return sorted(
            StoredFile(each.path.removeprefix(f"{self.root}/"), each.size, each.mtime_ns / 1e9)
            for each in self.system.get_file_info(selector)
            if each.type == fs.FileType.File
        )

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(self.path(name))

    @abstractmethod
    def prepare(self, name: str) -> str:
        """Path of a new file that the caller writes; its folder exists."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file as a whole: after a power cut the old or the new one exists."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a file that does not exist; False, and no change, if it exists."""

    def now_s(self) -> float:
        """The time of the clock that gives files their times, in s since 1970: that of a new file."""
        name = f".clock-{uuid4().hex}"
        self.write(name, b"")
        try:
            return float(self.system.get_file_info(self.path(name)).mtime_ns / 1e9)
        finally:
            self.remove(name)

    @abstractmethod
    @contextmanager
    def lock(self) -> Iterator[None]:
        """Refuse a second writer on this machine with UnavailableError, where the storage can tell."""
        yield


class LocalStorage(Storage):
    """A folder of a local or mounted file system."""

    is_local = True

    def __init__(self, folder: Path) -> None:
        super().__init__(fs.LocalFileSystem(), str(folder.absolute()))

    def prepare(self, name: str) -> str:
        place = Path(self.path(name))
        place.parent.mkdir(parents=True, exist_ok=True)
        return str(place)

    def write(self, name: str, data: bytes) -> None:
        with self._temporary(name, data) as (temporary, place):
            temporary.replace(place)

    def create(self, name: str, data: bytes) -> bool:
        with self._temporary(name, data) as (temporary, place):
            try:
                os.link(temporary, place)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return self._create_without_links(place, data)
            return True

    def _create_without_links(self, place: Path, data: bytes) -> bool:
        """As `create`, on a file system without hard links: a reader may meet a part of the file."""
        try:
            with place.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        return True

    @contextmanager
    def _temporary(self, name: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        place = Path(self.prepare(name))
        descriptor, made = tempfile.mkstemp(dir=place.parent, prefix=".writing-")
        temporary = Path(made)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            yield temporary, place
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    @contextmanager
    def lock(self) -> Iterator[None]:
        with Path(self.prepare(".lock")).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UnavailableError(f"{self.root}: another ingest, or a compaction, is running") from error
            yield


class S3Storage(Storage):
    """A folder of a bucket. A file is visible when it is whole; `create` is a conditional write."""

    is_local = False

    def __init__(self, bucket: str, folder: str) -> None:
        # boto3 reads this variable itself.
        endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", ""))
        system = fs.S3FileSystem(
            endpoint_override=endpoint.netloc or None,
            scheme=endpoint.scheme or "https",
            background_writes=False,
        )
        super().__init__(system, f"{bucket}/{folder}")
        self._bucket, self._folder = bucket, folder

    def prepare(self, name: str) -> str:
        return self.path(name)

    def write(self, name: str, data: bytes) -> None:
        with self.system.open_output_stream(self.path(name), compression=None) as stream:
            stream.write(data)

    def create(self, name: str, data: bytes) -> bool:
        # pyarrow has no conditional write.
        import boto3
        from botocore.exceptions import ClientError

        try:
            boto3.client("s3").put_object(
                Bucket=self._bucket, Key=f"{self._folder}/{name}", Body=data, IfNoneMatch="*"
            )
        except ClientError as error:
            # 409: another writer is creating the name at this moment.
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in (409, 412):
                return False
            raise
        return True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nothing to do: of two commits that meet, the later one is repeated on the earlier one."""
        yield


@lru_cache(maxsize=64)
def _s3_storage(bucket: str, folder: str) -> S3Storage:
    """One client for each bucket and folder, with its connections."""
    return S3Storage(bucket, folder)


def storage_of(lake: str) -> Storage:
    """The storage of a lake by its path or URL. Raises UsageError for a URL of another kind."""
    bucket = _BUCKET.fullmatch(lake)
    if bucket:
        try:
            import boto3  # noqa: F401
        except ImportError as error:
            raise UnavailableError(
                f"{lake}: needs boto3: install the extra s3 of ustreamer-pipeline"
            ) from error
        return _s3_storage(*bucket.groups())
    if is_url(lake):
        raise UsageError(
            f"{lake}: expected a folder of a local or mounted file system, or s3://BUCKET/FOLDER"
        )
    return LocalStorage(Path(lake))
