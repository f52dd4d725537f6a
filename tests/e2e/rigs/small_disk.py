# SPDX-License-Identifier: Apache-2.0
"""A small file system of a test's own, which the test fills, empties, and lets fail: tmpfs, or ext4 in a file.

It is mounted in a mount namespace of its own, so that nothing is left after a killed test. tmpfs needs no root where a
user may create namespaces; ext4 needs root and a loop device. `unsupported_reason` names the obstacle.
"""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

FileSystem = Literal["tmpfs", "ext4"]
SIZE: Final = 16 << 20
_DEADLINE_S: Final = 30.0
_IMAGE: Final = "disk.img"
_BALLAST: Final = "ballast"


def _unshare() -> list[str]:
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]


def unsupported_reason(kind: FileSystem, directory: Path) -> str:
    """Reason why this machine has no such disk; empty if it has one."""
    try:
        with SmallDisk(kind, directory):
            return ""
    except (OSError, AssertionError) as error:
        return f"no {kind} of its own: {error}"


class SmallDisk:
    """A disk of 16 MiB. `prefix` starts a command that sees it at `inner`; this process sees it at `outer`."""

    def __init__(self, kind: FileSystem, directory: Path) -> None:
        self.inner = directory / "disk"
        self.inner.mkdir(exist_ok=True)
        source = directory / _IMAGE
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(self.inner)]
        if kind == "ext4":
            with source.open("wb") as file:
                file.truncate(SIZE)
            # No blocks are reserved for root, who also runs this test.
            done = _run("mkfs.ext4", "-q", "-F", "-m", "0", str(source))
            assert done.returncode == 0, done.stderr
            mount = ["mount", "-t", "ext4", "-o", "loop", str(source), str(self.inner)]
        self._mount = mount
        # The process runs while its stdin is open, so that it ends with this process.
        self._holder = subprocess.Popen(
            [*_unshare(), "sh", "-c", '"$@" 2>&1 && echo && exec cat', "sh", *mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout
        problem = self._holder.stdout.readline().strip()
        if problem or self._holder.poll() is not None:
            self._close()
            raise AssertionError(problem or "`unshare` fails")
        pid = str(self._holder.pid)
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        self.prefix = ("nsenter", *user, "-m", "-t", pid)
        self.outer = Path(f"/proc/{pid}/root{self.inner}")

    @property
    def free_bytes(self) -> int:
        disk = os.statvfs(self.outer)
        return disk.f_bavail * disk.f_frsize

    def fill(self, left: int = 0) -> None:
        """Let another program take the disk except for the last `left` bytes."""
        with (self.outer / _BALLAST).open("ab") as file:
            while (more := self.free_bytes - left) > 0:
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), more)
                except OSError:  # ext4 needs blocks for its own tables: then in small steps
                    if not _append(file.fileno(), file.tell(), self.free_bytes - left):
                        break
                file.seek(0, os.SEEK_END)

    def free(self) -> None:
        """Let the other program give its space back."""
        (self.outer / _BALLAST).unlink(missing_ok=True)

    def fail(self) -> None:
        """Let the kernel end all writes to ext4, as after an error of the disk: EROFS, for open files too."""
        self.run("mount", "-o", "remount,abort", str(self.inner))

    def repair(self) -> None:
        """Mount the disk again after `fail`, as a restart of the machine does. No process may use it."""
        self.run("umount", str(self.inner))
        self.run(*self._mount)

    def run(self, *command: str) -> str:
        """The output of a command that sees the disk and must succeed."""
        done = _run(*self.prefix, *command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _close(self) -> None:
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe:
                pipe.close()
        self._holder.wait(_DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _append(descriptor: int, size: int, more: int) -> bool:
    """Extend a file by what fits, at least a block; whether any fitted."""
    while more >= 512:
        try:
            os.posix_fallocate(descriptor, size, more)
        except OSError:
            more //= 2
        else:
            return True
    return False


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
