# SPDX-License-Identifier: Apache-2.0
"""A power cut for processes with files: what was not synced may be lost.

A kill does not show that, because the kernel keeps the writes of a dead process. So the processes run under strace.
After a kill, `cut` gives a file the content that the disk may have: every synced write, and a random choice of the
other pages.
"""

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

PAGE: Final = 4096
_DEADLINE_S: Final = 30.0
_CALLS: Final = "trace=openat,lseek,pwrite64,pwritev,pwritev2,writev,fdatasync,fsync,msync,ftruncate"
_HEX: Final = r'"((?:\\x[0-9a-f]{2})*)"'
_OPEN: Final = re.compile(r"openat\(.*, (O_[A-Z_|]+)[^)]*\) = (\d+)<[^>]*>$")
_SEEK: Final = re.compile(r"lseek\((\d+)<[^>]*>, (\d+), SEEK_SET\)")
_PWRITE: Final = re.compile(rf"pwrite64\((\d+)<([^>]*)>, {_HEX}, \d+, (\d+)\) = \d+$")
_WRITEV: Final = re.compile(r"writev\((\d+)<([^>]*)>, \[(.*)\], \d+\) = \d+$")
_BASE: Final = re.compile(rf"iov_base={_HEX}")
_SYNC: Final = re.compile(r"(?:fdatasync|fsync|msync)\(\d+<([^>]*)>\) = 0$")


def has_strace() -> bool:
    return shutil.which("strace") is not None


class PowerCut:
    """The traces of one process, and its files at the start. `prefix` starts the process."""

    def __init__(self, traces: Path, files: Sequence[Path]) -> None:
        traces.mkdir()
        self._traces = traces
        self._files = {each: each.read_bytes() if each.exists() else b"" for each in files}
        output = str(traces / "trace")
        # The process keeps its place as our child. A file for each thread: no call is cut in two.
        self.prefix: Sequence[str] = (
            *("strace", "-D", "-ff", "--seccomp-bpf", "-ttt", "-y", "-xx", "-s", "1000000"),
            *("-e", _CALLS, "-e", "signal=none", "-o", output),
        )

    def cut(self, rng: Random) -> int:
        """Replace the files of the killed process; returns how many writes are lost."""
        self._wait_written()
        return sum(self._cut_file(path, base, rng) for path, base in self._files.items())

    def _wait_written(self) -> None:
        until = time.monotonic() + _DEADLINE_S
        while any(str(self._traces).encode() in _command_line(each) for each in Path("/proc").iterdir()):
            assert time.monotonic() < until, "strace has not ended"
            time.sleep(0.05)

    def _lines(self) -> list[str]:
        timed = (
            line.partition(" ") for each in self._traces.iterdir() for line in each.read_text().splitlines()
        )
        return [call for _, _, call in sorted(timed, key=lambda each: float(each[0]))]

    def _cut_file(self, path: Path, base: bytes, rng: Random) -> int:
        content, unsynced = bytearray(base), list[tuple[int, bytes]]()
        for write in self._writes(path):
            if write is None:
                for each in unsynced:
                    _put(content, *each)
                unsynced.clear()
                continue
            at, data, is_synced = write
            if is_synced:
                _put(content, at, data)
            else:
                unsynced += ((at + begin, data[begin : begin + PAGE]) for begin in range(0, len(data), PAGE))
        kept = [each for each in unsynced if rng.random() < 0.5]
        for each in kept:
            _put(content, *each)
        size = path.stat().st_size
        path.write_bytes(bytes(content) + bytes(max(0, size - len(content))))
        return len(unsynced) - len(kept)

    def _writes(self, path: Path) -> Iterator[tuple[int, bytes, bool] | None]:
        """The writes of a file: place, data, and whether they are synced; None: all before are."""
        places, synced = dict[str, int](), set[str]()
        name = str(path).encode()
        for line in self._lines():
            if found := _OPEN.search(line):
                (synced.add if "O_DSYNC" in found[1] else synced.discard)(found[2])
            elif found := _SEEK.match(line):
                places[found[1]] = int(found[2])
            elif (found := _PWRITE.match(line)) and _bytes(found[2]) == name:
                yield int(found[4]), _bytes(found[3]), found[1] in synced
            elif (found := _WRITEV.match(line)) and _bytes(found[2]) == name:
                yield places[found[1]], b"".join(map(_bytes, _BASE.findall(found[3]))), found[1] in synced
            elif (found := _SYNC.match(line)) and _bytes(found[1]) == name:
                yield None


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _put(content: bytearray, at: int, data: bytes) -> None:
    content.extend(bytes(max(at + len(data) - len(content), 0)))
    content[at : at + len(data)] = data
