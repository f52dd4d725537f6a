# SPDX-License-Identifier: Apache-2.0
"""A simulated disk at the port of the stores: the class that commits (`LmdbStore`), and files below `os`.

A commit takes time, and takes effect at one moment in that time. A kill or a power cut before that moment loses it.
LMDB itself is not simulated: README.md says why.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from tests.simulation.scheduler import NS_PER_MS, Scheduler
from ustreamer.core.storage.errors import NotWritable
from ustreamer.core.storage.lmdb_store import Change, Deleted
from ustreamer.uprotocol.ustatus import UCode, UStatusError

Refusal = Literal["full", "read-only", "error"]


class SimDisk:
    """The stores of one machine. `refusal`: why writes fail now. `commit_ms`: how long a commit takes, at most."""

    def __init__(self, scheduler: Scheduler, commit_ms: int) -> None:
        self.scheduler = scheduler
        self.rng = Random(scheduler.rng.getrandbits(64))
        self.commit_ms = commit_ms
        self.slowest_ms = commit_ms
        self.refusal: Refusal | None = None
        self.was_refusing = False
        self.stores: dict[str, dict[bytes, bytes]] = {}
        self.files: dict[str, SimFile] = {}

    def cut_power(self) -> None:
        for each in self.files.values():
            each.cut_power(self.rng)

    def set_commit_ms(self, commit_ms: int) -> None:
        self.commit_ms = commit_ms
        self.slowest_ms = max(self.slowest_ms, commit_ms)

    def set_refusal(self, refusal: Refusal | None) -> None:
        self.refusal = refusal
        self.was_refusing |= refusal is not None

    def store(self, *args: Any, **kwargs: Any) -> "SimStore":
        """Replaces the class `LmdbStore`."""
        return SimStore(self, *args, **kwargs)

    def wait(self, apply: Callable[[], None]) -> None:
        """Let the calling thread wait for the disk; `apply` is called meanwhile, unless its process is killed."""
        scheduler = self.scheduler
        process = scheduler.current.process
        took_ns = self.rng.randrange(NS_PER_MS // 2, self.commit_ms * NS_PER_MS + NS_PER_MS)

        def apply_if_alive() -> None:
            if not process.killed:
                apply()

        scheduler.call_after(self.rng.randrange(took_ns), apply_if_alive)
        scheduler.sleep(took_ns)

    def refuse(self, what: str, *, is_deletion: bool) -> None:
        """Raise the error of the present state for a write."""
        if self.refusal is None or (self.refusal == "full" and is_deletion):
            return
        code = UCode.INTERNAL if self.refusal == "error" else UCode.RESOURCE_EXHAUSTED
        raise UStatusError(code, f"{what}: the simulated disk is {self.refusal}")


class SimFile:
    """A file: its content, and the writes that are not synced. Each of these may be lost with the power."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._synced = b""
        self._unsynced: list[tuple[int, bytes]] = []

    def allocate(self, size: int) -> None:
        self.content.extend(bytes(max(0, size - len(self.content))))
        self._synced += bytes(max(0, size - len(self._synced)))

    def write(self, data: bytes, at: int) -> None:
        self.content[at : at + len(data)] = data
        self._unsynced.append((at, data))

    def sync(self) -> None:
        self._synced, self._unsynced = bytes(self.content), []

    def cut_power(self, rng: Random) -> None:
        self.content = bytearray(self._synced)
        for at, data in self._unsynced:
            if rng.random() < 0.5:
                self.content[at : at + len(data)] = data
        self.sync()


class SimOs:
    """The calls of `os` for a file that is written in place."""

    O_RDWR = O_CREAT = O_CLOEXEC = 0

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._open: list[SimFile] = []

    def makedirs(self, path: Path, mode: int, *, exist_ok: bool) -> None:
        """Nothing to do."""

    def open(self, path: Path, _: int, __: int) -> int:
        self._open.append(self._disk.files.setdefault(str(path), SimFile()))
        return len(self._open) - 1

    def posix_fallocate(self, file: int, _: int, size: int) -> None:
        self._open[file].allocate(size)

    def pread(self, file: int, size: int, at: int) -> bytes:
        return bytes(self._open[file].content[at : at + size])

    def pwrite(self, file: int, data: bytes, at: int) -> None:
        self._disk.scheduler.check_killed()
        self._open[file].write(data, at)

    def fdatasync(self, file: int) -> None:
        self._disk.wait(self._open[file].sync)

    def close(self, file: int) -> None:
        """Nothing to do."""


class SimStore:
    """The interface of `LmdbStore` on a `SimDisk`."""

    def __init__(
        self,
        disk: SimDisk,
        name: str,
        path: Path,
        map_size: int,
        layout: Any,
        *,
        states: Any = None,
        **_: object,
    ) -> None:
        """`states` gets refused commits. A product that has it opens a store without files on a full disk."""
        self.path = path
        self.map_size = map_size
        self.transactions = 0
        self.quarantine: Final = None
        self.is_degraded = False
        self._states = states
        self._name = f"{name} {path}"
        self._disk = disk
        self._layout = layout
        self._records: dict[bytes, bytes] | None = None

    def open(self) -> Any:
        self.require_writable()
        stores, place = self._disk.stores, str(self.path)
        self._records = stores.get(place)
        if self._records is None:
            self._records = self._create(place)
        records = sorted(self._records.items())
        chunk = b"", [key for key, _ in records], [value for _, value in records]
        return self._layout.read(iter([chunk]))

    def _create(self, place: str) -> dict[bytes, bytes]:
        first: dict[bytes, bytes] = dict([self._layout.first_record()])
        try:
            self._disk.refuse(f"{self._name}: cannot be opened", is_deletion=False)
            self._disk.wait(lambda: self._disk.stores.__setitem__(place, first))
        except UStatusError as error:
            if self._states is None:
                raise UStatusError(UCode.UNAVAILABLE, error.message) from error
            self._on_refused(error.message)
        return first

    def _on_refused(self, reason: str) -> None:
        self.is_degraded = True
        if self._states is not None:
            self._states.on_refused(str(self.path), reason)

    def _on_written(self) -> None:
        if self.is_degraded and self._states is not None:
            self._states.on_written(str(self.path))
        self.is_degraded = False

    def retry(self) -> None:
        """Try to write a degraded store again."""
        if self.is_degraded:
            with suppress(UStatusError):
                self.commit(())

    def require_writable(self) -> None:
        self._disk.scheduler.check_killed()
        if self._disk.refusal == "read-only":
            raise NotWritable(f"{self._name}: cannot be used: the simulated disk is read-only")

    def close(self, *, orderly: bool = True) -> None:
        self._disk.scheduler.check_killed()
        self._records = None

    @property
    def is_open(self) -> bool:
        return self._records is not None

    def _open_records(self) -> dict[bytes, bytes]:
        self._disk.scheduler.check_killed()
        if self._records is None:
            raise UStatusError(UCode.UNAVAILABLE, f"{self._name}: not open")
        return self._records

    def commit(self, changes: Sequence[Change], *, exceed_map: bool = False) -> Deleted:
        records = self._open_records()
        is_deletion = bool(changes) and all(value is None for _, value in changes)
        try:
            self._disk.refuse(f"{self._name}: {len(changes)} changes not made", is_deletion=is_deletion)
        except UStatusError as error:
            self._on_refused(error.message)
            raise
        deleted: list[int] = []

        def apply() -> None:
            self._disk.stores[str(self.path)] = records
            for key, value in changes:
                if value is not None:
                    records[key] = value
                elif (old := records.pop(key, None)) is not None:
                    deleted.append(len(key) + len(old))

        self._disk.wait(apply)
        self.transactions += 1
        self._on_written()
        return Deleted(len(deleted), sum(deleted))

    def resize_map(self, size: int, *, keep: bool = True) -> None:
        self.map_size = size

    def get(self, key: bytes) -> bytes | None:
        return self._open_records().get(key)

    def records_from(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        records = self._open_records()
        return iter([(key, records[key]) for key in sorted(records) if key >= start])
