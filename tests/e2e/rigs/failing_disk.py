# SPDX-License-Identifier: Apache-2.0
"""A directory in which every write fails with EIO while the test wants it: by a library that a process loads first.

A device that fails needs a device mapper, which few kernels of test machines have. The library needs a C compiler.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Whether writes to the file of this descriptor fail now: it is below FAILING_ROOT, and FAILING_FLAG exists. */
static int fails(int fd) {
    const char *root = getenv("FAILING_ROOT"), *flag = getenv("FAILING_FLAG");
    char link[64], path[4096];
    if (root == NULL || flag == NULL || access(flag, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, root, strlen(root)) == 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAILING(result, name, parameters, arguments) \
    result name parameters { \
        if (fails(fd)) { errno = EIO; return -1; } \
        return REAL(name) arguments; \
    }

FAILING(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
FAILING(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING(ssize_t, writev, (int fd, const struct iovec *data, int count), (fd, data, count))
FAILING(ssize_t, pwritev, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
FAILING(ssize_t, pwritev64, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at))
FAILING(int, fsync, (int fd), (fd))
FAILING(int, fdatasync, (int fd), (fd))
FAILING(int, ftruncate, (int fd, off_t size), (fd, size))
FAILING(int, ftruncate64, (int fd, off64_t size), (fd, size))

int posix_fallocate64(int fd, off64_t at, off64_t size);
int posix_fallocate(int fd, off_t at, off_t size) { return fails(fd) ? EIO : REAL(posix_fallocate)(fd, at, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return fails(fd) ? EIO : REAL(posix_fallocate64)(fd, at, size);
}
"""


def unsupported_reason() -> str:
    """Reason why this machine has no such directory; empty if it has one."""
    return "" if shutil.which("cc") else "no C compiler: cc"


class FailingDisk:
    """The directory `outer`, which is `inner` for commands with `prefix`. `fill` lets writes fail, `free` ends that."""

    def __init__(self, directory: Path) -> None:
        self.inner = self.outer = directory / "disk"
        self.inner.mkdir()
        self._flag = directory / "fails"
        library = directory / "failing.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", str(library), "-ldl"],
            input=_SOURCE,
            text=True,
            check=True,
        )
        self.prefix: tuple[str, ...] = (
            "env",
            f"LD_PRELOAD={library}",
            f"FAILING_ROOT={self.inner}",
            f"FAILING_FLAG={self._flag}",
        )

    @property
    def free_bytes(self) -> int:
        """None: no write succeeds."""
        return 0

    def fill(self, left: int = 0) -> None:
        """Let every write to a file fail, however many bytes are left."""
        self._flag.touch()

    def free(self) -> None:
        """Let writes succeed again."""
        self._flag.unlink(missing_ok=True)
