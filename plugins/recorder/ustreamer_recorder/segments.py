# SPDX-License-Identifier: Apache-2.0
"""The files of a recording: reserved, written, finished, recovered after a kill, and deleted before they fill the
disk.

Blocks are written with `pwrite`, not through a mapping. Both survive a kill, because the data is in the kernel's
cache. A mapped page on a full or failing disk raises SIGBUS, which ends the streamer, and a wait for a page blocks
the interpreter. `pwrite` raises OSError and releases the interpreter.
"""

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ustreamer_recorder.layout import OPEN_SUFFIX, SUFFIX, Damaged, SegmentHeader, segment_name
from ustreamer_recorder.reader import Block, read_blocks

log = logging.getLogger("ustreamer.recorder")

BAD_SUFFIX: Final = ".bad"
_NAME: Final = re.compile(r"([0-9a-f]{16})-(\d{6,})\.useg(\.open|\.bad)?")
_CLOCK_WAS_SET_MS: Final = 1_577_836_800_000  # 2020: an earlier time is from a clock that was not set
_MS_PER_DAY: Final = 86_400_000
_NOT_SUPPORTED: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class SegmentInfo(NamedTuple):
    """A file of a recording. Files sort by run and number, which is by age."""

    run: int
    number: int
    path: Path
    bytes: int
    modified_ms: int

    @property
    def is_open(self) -> bool:
        return self.path.name.endswith(OPEN_SUFFIX)


def list_segments(directory: Path) -> list[SegmentInfo]:
    """All files of recordings in a directory, oldest first."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = _NAME.fullmatch(entry.name)
            if name is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat()
                occupied = max(stat.st_size, stat.st_blocks * 512)
                path = directory / entry.name
                found.append(
                    SegmentInfo(int(name[1], 16), int(name[2]), path, occupied, stat.st_mtime_ns // 1_000_000)
                )
    return sorted(found)


class Quota(NamedTuple):
    """The limits of a directory. `keep_free_bytes` of the disk stay free for other programs."""

    max_bytes: int
    max_age_days: int
    keep_free_bytes: int


def enforce_quota(directory: Path, quota: Quota, needed: int, wall_ms: int) -> int:
    """Delete the oldest segments until `needed` more bytes are within the quota; return how many were deleted.

    Raises OSError(ENOSPC) if less than `keep_free_bytes` would stay free. Open files are not touched.
    """
    segments = list_segments(directory)
    files = [each for each in segments if not each.is_open]
    total = sum(each.bytes for each in segments)
    deleted = 0
    for oldest in files:
        if (
            total + needed <= quota.max_bytes
            and not _too_old(oldest, quota, wall_ms)
            and _free(directory) >= needed + quota.keep_free_bytes
        ):
            break
        oldest.path.unlink(missing_ok=True)
        total -= oldest.bytes
        deleted += 1
    if _free(directory) < needed + quota.keep_free_bytes:
        text = f"less than {quota.keep_free_bytes} bytes would be left free"
        raise OSError(errno.ENOSPC, text, str(directory))
    return deleted


def _too_old(file: SegmentInfo, quota: Quota, wall_ms: int) -> bool:
    # Without a set clock a file has no age: it is deleted only for its space.
    if min(file.modified_ms, wall_ms) < _CLOCK_WAS_SET_MS:
        return False
    return wall_ms - file.modified_ms > quota.max_age_days * _MS_PER_DAY


def _free(directory: Path) -> int:
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


class SegmentFile:
    """The segment that is being written. Its length is reserved on the disk."""

    def __init__(self, directory: Path, header: SegmentHeader, reserve: int, mode: int = 0o640) -> None:
        """Raises OSError, and leaves no file then."""
        self.path = directory / segment_name(header.run, header.number)
        self._open_path = self.path.with_name(self.path.name.removesuffix(SUFFIX) + OPEN_SUFFIX)
        new = self.path.with_name(f".{self.path.name}.new")  # readers see no file without a header
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            _reserve(self._descriptor, reserve)
            self._size = 0
            self.write(header.pack())
            new.rename(self._open_path)
        except BaseException:
            os.close(self._descriptor)
            new.unlink(missing_ok=True)
            raise

    def write(self, data: bytes) -> None:
        """Append. Raises OSError; earlier blocks stay."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, memoryview(data)[done:], self._size + done)
        self._size += done

    def sync(self) -> None:
        """Sync the file to the disk. May take seconds, without the interpreter's lock. Raises OSError."""
        os.fdatasync(self._descriptor)

    def finish(self) -> None:
        """Truncate the file to its length, sync and rename it. Raises OSError; the file is closed in any case."""
        try:
            os.ftruncate(self._descriptor, self._size)
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
        self._open_path.rename(self.path)
        _sync_directory(self.path.parent)


def _reserve(descriptor: int, length: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, length)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------ recovery after a kill


def recover_segments(directory: Path) -> None:
    """Finish the open files of a killed process: truncate them after the last whole block and rename them.

    A file without a header is renamed to `.bad`, or deleted if it is all zeros. The next start retries after an
    error.
    """
    for path in directory.glob(".*.useg.new"):
        path.unlink(missing_ok=True)
    for file in list_segments(directory):
        if file.is_open:
            try:
                _finish(file.path)
            except OSError as error:
                log.warning("recorder.not_recovered", extra={"file": str(file.path), "reason": str(error)})


def _finish(path: Path) -> None:
    data = path.read_bytes()
    try:
        header = SegmentHeader.unpack(data)
    except Damaged:
        if any(data):
            path.rename(path.with_name(path.name.removesuffix(OPEN_SUFFIX) + SUFFIX + BAD_SUFFIX))
        else:
            path.unlink()
        return
    end = max((each.end for each in _whole_blocks(data, header)), default=len(header.pack()))
    with path.open("r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())
    finished = path.with_name(path.name.removesuffix(OPEN_SUFFIX) + SUFFIX)
    path.rename(finished)
    log.info("recorder.recovered", extra={"file": str(finished), "bytes": end})


def _whole_blocks(data: bytes, header: SegmentHeader) -> Iterator[Block]:
    return (each for each in read_blocks(data, header) if isinstance(each, Block))
