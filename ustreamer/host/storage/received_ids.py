# SPDX-License-Identifier: Apache-2.0
"""The file with the ids of the last received messages of an endpoint: `<state_dir>/received/<endpoint>`.

In: ids. Out: those of earlier processes, at the start. The file is a ring of fixed size: the position of the next id,
then the ids. A write survives a kill, because the kernel has it; it is synced once a second, for a power cut. Nothing
has a checksum: a damaged id equals that of no message.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final

from ustreamer.core.storage.store_states import StoreStates

log = logging.getLogger("ustreamer.storage")

DIRECTORY: Final = "received"
CAPACITY: Final = 65_536
ID_BYTES: Final = 17
_HEAD: Final = Struct("<Q")
_SYNC_NS: Final = 1_000_000_000
_OPEN_NS: Final = 1_000_000_000
"""The pause between two tries to open the file."""
_EMPTY: Final = bytes(ID_BYTES)


class ReceivedIdFile:
    """The file at `path`. Constructing it touches no file. A disk that refuses makes it keep nothing, until it accepts."""

    def __init__(
        self,
        path: Path,
        monotonic_ns: Callable[[], int],
        states: StoreStates | None = None,
        capacity: int = CAPACITY,
    ) -> None:
        self._path = path
        self._monotonic_ns = monotonic_ns
        self._states = states or StoreStates()
        self._capacity = capacity
        self._file = -1
        self._next = 0
        self._synced_ns = self._opened_ns = 0

    def load(self) -> list[bytes]:
        """Open the file and return its ids, the oldest first. Never raises: without the file, copies may pass."""
        try:
            content = self._open()
        except OSError as error:
            self._opened_ns = self._monotonic_ns()
            self._states.on_refused(str(self._path), str(error))
            return []
        slots = [content[at : at + ID_BYTES] for at in range(_HEAD.size, len(content), ID_BYTES)]
        return [each for each in slots[self._next :] + slots[: self._next] if each != _EMPTY]

    def _open(self) -> bytes:
        size = _HEAD.size + self._capacity * ID_BYTES
        os.makedirs(self._path.parent, mode=0o700, exist_ok=True)  # noqa: PTH103 - the simulation replaces `os`
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, size)
            content = os.pread(self._file, size, 0)
        except OSError:
            self.close()  # the place of the next id is unknown
            raise
        self._next = _HEAD.unpack_from(content)[0] % self._capacity
        return content

    def add(self, ids: bytes) -> None:
        """Replace the oldest ids by these joined ones."""
        now_ns = self._monotonic_ns()
        if self._file < 0 and now_ns - self._opened_ns < _OPEN_NS:
            return
        try:
            if self._file < 0:
                self._opened_ns = now_ns
                self._open()
            size = self._capacity * ID_BYTES
            for begin in range(0, len(ids), size):
                self._write(ids[begin : begin + size])
            if now_ns - self._synced_ns > _SYNC_NS:
                self._synced_ns = now_ns
                os.fdatasync(self._file)
        except OSError as error:
            self._states.on_refused(str(self._path), str(error))
            return
        self._states.on_written(str(self._path))

    def _write(self, ids: bytes) -> None:
        first = ids[: (self._capacity - self._next) * ID_BYTES]
        os.pwrite(self._file, first, _HEAD.size + self._next * ID_BYTES)
        if len(first) < len(ids):
            os.pwrite(self._file, ids[len(first) :], _HEAD.size)
        self._next = (self._next + len(ids) // ID_BYTES) % self._capacity
        os.pwrite(self._file, _HEAD.pack(self._next), 0)

    def close(self) -> None:
        """Close the file. May be repeated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
