# SPDX-License-Identifier: Apache-2.0
"""Reads a store in a child process before the streamer maps the file: a directory in, records out."""

import contextlib
import fcntl
import math
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Timer
from typing import IO, Final, Literal, Self, TypeAlias, TypeVar

import msgspec

from ustreamer.core.storage.errors import StoreDamaged, StoreTooNew
from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_BASE_CPU_S: Final = 20.0
_WALL_FACTOR: Final = 10
"""On a busy machine a process waits much longer than it works; slowness is no damage."""
_BYTES_PER_S: Final = 4 << 20  # LMDB's verifier reads 40 MB/s on the reference machine
_PIPE_BYTES: Final = 1 << 20  # the limit of an unprivileged process
_MAX_CHUNK_BYTES: Final = 1 << 31
_LENGTH_PREFIX: Final = struct.Struct(">I")  # as in `verify_process`

ReadMode: TypeAlias = Literal["walk", "verify", "snapshot", "salvage"]
"""As in `verify_process`."""
RecordChunk: TypeAlias = tuple[bytes, list[bytes], list[bytes]]
"""One chunk of the process: its bytes, and the keys and values in them."""

unpack_chunk: Final = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes]]).decode
"""The keys and values of a chunk. Raises msgspec.DecodeError."""


T = TypeVar("T")


def records_of(chunks: Iterable[RecordChunk]) -> Iterator[tuple[bytes, bytes]]:
    """The records of chunks one by one."""
    for _, keys, values in chunks:
        yield from zip(keys, values, strict=True)


def read_store(name: str, directory: Path, mode: ReadMode, read: Callable[[Iterator[RecordChunk]], T]) -> T:
    """The result of `read` for the chunks of a store. Raises as `StoreReader`.

    `name` begins the message of StoreTooNew.
    """
    with StoreReader(mode, directory) as reader:
        try:
            return read(reader.chunks())
        except StoreTooNew as error:
            raise StoreTooNew(f"{name}: {error.message}") from error


class StoreReader:
    """Reads a store in a child process. Leaving the context ends the process.

    The process is ended after a CPU time of 20 s and 1 s for each 4 MiB of the file, or after ten times that. Entering
    raises UStatusError: UNAVAILABLE if no process can be started, PERMISSION_DENIED for a file that this process may not
    read.
    """

    def __init__(self, mode: ReadMode, directory: Path) -> None:
        self.lost_pages = 0
        """Pages that a salvage could not read; valid after the last chunk."""
        self._mode = mode
        self._directory = directory

    def __enter__(self) -> Self:
        # A first start has no store to read.
        import resource
        import subprocess

        from ustreamer.core.storage import verify_process

        file = self._directory / DATA_FILE
        if os.access(file, os.F_OK) and not os.access(file, os.R_OK, effective_ids=True):  # no damage
            raise UStatusError(UCode.PERMISSION_DENIED, f"store {file}: user {os.geteuid()} may not read it")
        self._stderr = os.fdopen(os.memfd_create("verify"), "w+b")  # no disk that may be full
        # -S: the site lookup takes 20 ms, and the environment has the whole path already.
        command = [sys.executable, "-S", "-P", "-m", verify_process.__name__]
        try:
            self._process = subprocess.Popen(
                [*command, self._mode, str(self._directory)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=_PIPE_BYTES,
            )
        except OSError as error:
            self._stderr.close()
            raise UStatusError(
                UCode.UNAVAILABLE, f"store {self._directory}: {sys.executable} cannot read it: {error}"
            ) from error
        with contextlib.suppress(OSError):  # a smaller pipe is only slower
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._cpu_s = math.ceil(_BASE_CPU_S + (file.stat().st_size / _BYTES_PER_S if file.exists() else 0))
        with contextlib.suppress(OSError):  # it has ended already
            # Two limits: SIGXCPU at the first, because SIGKILL at the second would not name the reason.
            resource.prlimit(self._process.pid, resource.RLIMIT_CPU, (self._cpu_s, self._cpu_s + 5))
        self._timeout_s = _WALL_FACTOR * self._cpu_s
        self._timed_out = False
        self._watchdog = Timer(self._timeout_s, self._kill_late)
        self._watchdog.daemon = True
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self._watchdog.join()
        self._process.kill()
        self._stdout.close()
        self._process.wait()
        self._stderr.close()

    def _kill_late(self) -> None:
        self._timed_out = True  # before the kill: this thread can end after the pipe was read to its end
        self._process.kill()

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def chunks(self) -> Iterator[RecordChunk]:
        """All records in chunks. Raises StoreDamaged if the process finds damage, crashes or takes too long."""
        while length := self._read_length():
            data = self._stdout.read(length) if length <= _MAX_CHUNK_BYTES else b""
            if len(data) < length:
                raise self._failure()
            yield data, *unpack_chunk(data)
        lost_pages = self._read_length()
        if lost_pages is None or self._process.wait():
            raise self._failure()
        self.lost_pages = lost_pages

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """All records one by one. Raises as `chunks`."""
        return records_of(self.chunks())

    def _read_length(self) -> int | None:
        data = self._stdout.read(_LENGTH_PREFIX.size)
        return _LENGTH_PREFIX.unpack(data)[0] if len(data) == _LENGTH_PREFIX.size else None

    def _failure(self) -> StoreDamaged:
        self._stdout.close()
        code = self._process.wait()
        self._stderr.seek(0)
        detail = self._stderr.read(4096).decode(errors="replace").strip().rpartition("\n")[2]
        if self._timed_out:
            detail = f"took longer than {self._timeout_s} s"
        elif code == -signal.SIGXCPU:
            detail = f"took longer than {self._cpu_s} s of CPU time"
        elif code < 0:
            detail = f"ended the process that read it with {signal.Signals(-code).name} {detail}".strip()
        return StoreDamaged(
            f"store {self._directory / DATA_FILE}: {detail or f'its reader ended with {code}'}"
        )
