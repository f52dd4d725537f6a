# SPDX-License-Identifier: Apache-2.0
"""What a store holds, read by a child process (`reader`) and checked here."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from threading import Timer
from typing import IO, Final, Literal, Self, TypeAlias

from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer_usubscription.store import records
from ustreamer_usubscription.store.compact_index import BLOCK, Packed, unpack
from ustreamer_usubscription.store.lock import holder
from ustreamer_usubscription.store.records import (
    LAYOUT,
    LAYOUT_KEY,
    PAST,
    SUBSCRIPTION,
    StoreDamaged,
    StoreTooNew,
)
from ustreamer_usubscription.store.verify_process import DATA, LENGTH

_LIMIT_S: Final = 20.0
_BYTES_PER_S: Final = 4 << 20  # LMDB's verifier does 40 MB/s here
_PIPE: Final = 1 << 20  # the most that an unprivileged process may ask for
_LONGEST: Final = 1 << 28  # bytes of one message
_KIND: Final = len(SUBSCRIPTION)  # bytes by which a key says what kind of record it is

Chunk: TypeAlias = tuple[bytes, list[bytes], list[bytes]]
"""What a reader sends at a time: as it came, and the keys and values in it."""


class Contents:
    """Records other than the layout record, in the order of their keys; and what was passed over in a salvage."""

    def __init__(self) -> None:
        self.subscriptions = Packed()
        self.others: list[tuple[bytes, bytes]] = []
        """Keys and values of the other kinds."""
        self.layout: int | None = None
        self.lost_records = 0
        self.lost_pages = 0

    def __len__(self) -> int:
        return len(self.subscriptions) + len(self.others)

    def add(self, keys: list[bytes], values: list[bytes], block: bytes = b"") -> None:
        """Take in what comes next, `block` as for `Packed`. Raises StoreDamaged if one of them is not right."""
        if not keys:
            return
        kind, last = keys[0][:_KIND], keys[-1][:_KIND]
        if kind != last:
            for _, run in groupby(zip(keys, values, strict=True), key=_kind):
                some = list(run)
                self.add([key for key, _ in some], [value for _, value in some])
        elif kind == SUBSCRIPTION:
            extremes = records.whole(keys, values)
            if extremes is None:
                _check(keys, values)
            may_expire = extremes is None or records.may_expire(*extremes)
            self.subscriptions.add(keys, values, block, may_expire=may_expire)
        else:
            if kind != PAST or not records.whole_events(keys, values):
                _check(keys, values)
            self.others += zip(keys, values, strict=True)

    def of(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """Keys and values of the records whose keys begin with `kind`, which is none of subscriptions."""
        return [record for record in self.others if record[0].startswith(kind)]

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of all."""
        after = bisect_left(self.others, (SUBSCRIPTION,))
        return chain(self.others[:after], self.subscriptions.records(), self.others[after:])

    @property
    def lost(self) -> int:
        """Records and pages that could not be read, each counted as one."""
        return self.lost_records + self.lost_pages


def _kind(record: tuple[bytes, bytes]) -> bytes:
    return record[0][:_KIND]


def _check(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    for key, value in zip(keys, values, strict=True):
        records.check(key, value)


def read(directory: Path, mode: Literal["walk", "verify", "beside"]) -> Contents:
    """All that a store of this layout or an older one holds; an older one's records in today's form.

    "verify" has LMDB's verifier look at every page first; "beside" is for a store that a streamer may be using. Takes at
    most 20 s and 1 s for each 4 MiB. Raises StoreDamaged unless all of it is right, and StoreTooNew.
    """
    with _Child(mode, directory) as child:
        return gathered(directory, child.chunks())


def beside(directory: Path) -> Contents:
    """What a store holds, for somebody who only looks; one that no streamer uses is verified as well. Raises as `read`."""
    running = holder(directory.with_name(f"{directory.name}.lock")) is not None
    return read(directory, "beside" if running else "verify")


def gathered(directory: Path, chunks: Iterable[Chunk]) -> Contents:
    """What came from a reader, if all of it is right; `directory` is for what is said if it is not."""
    found = Contents()
    for block, keys, values in chunks:
        fresh = block
        if found.layout is None:
            found.layout = _layout(directory, keys, values)
            fresh = b""
            del keys[0], values[0]
        if found.layout == 1:
            values[:] = [records.migrated(*record) for record in zip(keys, values, strict=True)]
            fresh = b""
        found.add(keys, values, fresh)
    if found.layout is None:
        raise StoreDamaged(f"store {directory / DATA}: record {LAYOUT_KEY!r} is missing")
    return found


def salvage(directory: Path) -> Contents:
    """What can be read of a damaged store: each record by its checksum, none that has been deleted.

    Bounded as `read`. What cannot be read at all gives nothing.
    """
    found: dict[bytes, bytes] = {}
    lost_records = lost_pages = 0
    with contextlib.suppress(StoreDamaged), _Child("salvage", directory) as child:
        for _, keys, values in child.chunks():
            lost_records += salvaged(keys, values, found)
        lost_pages = child.lost
    result = Contents()
    keys = sorted(found)
    for at in range(0, len(keys), BLOCK):
        some = keys[at : at + BLOCK]
        result.add(some, [found[key] for key in some])
    result.lost_records, result.lost_pages = lost_records, lost_pages
    result.layout = LAYOUT
    return result


def salvaged(keys: Sequence[bytes], values: Sequence[bytes], found: dict[bytes, bytes]) -> int:
    """Put those records that are right into `found`; how many are not."""
    lost = 0
    for key, value in zip(keys, values, strict=True):
        if key == LAYOUT_KEY:
            continue
        try:
            if value[:1] == b"\x01":
                found[key] = records.migrated(key, value)
            else:
                records.check(key, value)
                found[key] = value
        except StoreDamaged:
            lost += 1
    return lost


def _layout(directory: Path, keys: list[bytes], values: list[bytes]) -> int:
    if keys[0] != LAYOUT_KEY:  # no key of ours is less
        records.check(keys[0], values[0])
        raise StoreDamaged(f"store {directory / DATA}: record {LAYOUT_KEY!r} is missing")
    layout = records.layout_of(values[0])
    if layout > LAYOUT:
        raise StoreTooNew(f"store {directory}: layout {layout}, this program reads layout {LAYOUT}")
    return layout


class _Child:
    """The process that reads. Leaving the context ends it, whatever it does."""

    def __init__(self, mode: Literal["walk", "verify", "beside", "salvage"], directory: Path) -> None:
        self.lost = 0
        self._mode = mode
        self._directory = directory

    def __enter__(self) -> Self:
        self._complaint = tempfile.TemporaryFile()
        # -S: what the start of the interpreter would look for is on our path already, and looking takes 20 ms.
        command = [sys.executable, "-S", "-P", "-m", "ustreamer_usubscription.store.verify_process"]
        try:
            self._process = subprocess.Popen(
                [*command, self._mode, str(self._directory)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._complaint,
                bufsize=_PIPE,
            )
        except OSError as error:
            self._complaint.close()
            raise UStatusError(
                UCode.UNAVAILABLE, f"store {self._directory}: {sys.executable} cannot read it: {error}"
            ) from error
        with contextlib.suppress(OSError):  # smaller is slower, no more
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _PIPE)
        size = (self._directory / DATA).stat().st_size if (self._directory / DATA).exists() else 0
        self._limit_s = _LIMIT_S + size / _BYTES_PER_S
        self._alarm = Timer(self._limit_s, self._process.kill)
        self._alarm.daemon = True
        self._alarm.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._alarm.cancel()
        self._alarm.join()
        self._process.kill()
        self._out.close()
        self._process.wait()
        self._complaint.close()

    @property
    def _out(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def chunks(self) -> Iterator[Chunk]:
        """Keys and values, some at a time. Raises StoreDamaged where the process does not come to a good end."""
        while length := self._number():
            data = self._out.read(length) if length <= _LONGEST else b""
            if len(data) < length:
                raise self._failure()
            yield data, *unpack(data)
        lost = self._number()
        if lost is None or self._process.wait():
            raise self._failure()
        self.lost = lost

    def _number(self) -> int | None:
        data = self._out.read(LENGTH.size)
        return LENGTH.unpack(data)[0] if len(data) == LENGTH.size else None

    def _failure(self) -> StoreDamaged:
        in_time = self._alarm.is_alive()
        self._out.close()
        code = self._process.wait()
        self._complaint.seek(0)
        said = self._complaint.read(4096).decode(errors="replace").strip().rpartition("\n")[2]
        if not in_time:
            said = f"took longer than {self._limit_s:.0f} s"
        elif code < 0:
            said = f"ended the process that read it with {signal.Signals(-code).name} {said}".strip()
        return StoreDamaged(f"store {self._directory / DATA}: {said or f'its reader ended with {code}'}")
