# SPDX-License-Identifier: Apache-2.0
"""A library that lets the Nth call of a family fail once: writes to files below a directory, UDP sends, UDP receives.

A process loads it first (LD_PRELOAD), as `tests.e2e.rigs.failing_disk` does. Needs a C compiler.
"""

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
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long counted, nth;
static int code = EIO;
static char family[16], root[4096];

void fail_nth(const char *kind, const char *directory, long number, int error) {
    __atomic_store_n(&nth, 0, __ATOMIC_SEQ_CST);
    snprintf(family, sizeof family, "%s", kind);
    snprintf(root, sizeof root, "%s", directory);
    counted = 0, code = error;
    __atomic_store_n(&nth, number, __ATOMIC_SEQ_CST);
}
long calls(void) { return __atomic_load_n(&counted, __ATOMIC_SEQ_CST); }

__attribute__((constructor)) static void start(void) {
    const char *number = getenv("NTH"), *kind = getenv("NTH_FAMILY"), *error = getenv("NTH_ERROR");
    if (number && kind && error) fail_nth(kind, "", atol(number), atoi(error));
}

static int is_nth(void) {
    return __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST) == __atomic_load_n(&nth, __ATOMIC_SEQ_CST);
}
static int fails_file(int fd) {
    char link[64], path[4096];
    if (strcmp(family, "file") != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, root, strlen(root)) == 0 && is_nth();
}
static int fails_udp(const char *kind, int fd) {
    int domain = 0, type = 0;
    socklen_t size = sizeof domain;
    if (strcmp(family, kind) != 0) return 0;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
    return domain == AF_INET && type == SOCK_DGRAM && is_nth();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(test, result, name, parameters, arguments) \
    result name parameters { if (test) { errno = code; return -1; } return REAL(name) arguments; }

WRAP(fails_file(fd), ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
WRAP(fails_file(fd), ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(fails_file(fd), ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP(fails_file(fd), ssize_t, writev, (int fd, const struct iovec *data, int count), (fd, data, count))
WRAP(fails_file(fd), ssize_t, pwritev, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
WRAP(fails_file(fd), int, fsync, (int fd), (fd))
WRAP(fails_file(fd), int, fdatasync, (int fd), (fd))
WRAP(fails_file(fd), int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(fails_file(fd), int, ftruncate64, (int fd, off64_t size), (fd, size))
WRAP(fails_udp("send", fd), ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))
WRAP(fails_udp("send", fd), ssize_t, sendto, (int fd, const void *data, size_t size, int flags,
     const struct sockaddr *to, socklen_t length), (fd, data, size, flags, to, length))
WRAP(fails_udp("send", fd), ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
WRAP(fails_udp("send", fd), int, sendmmsg, (int fd, struct mmsghdr *messages, unsigned count, int flags),
     (fd, messages, count, flags))
WRAP(fails_udp("receive", fd), ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags))
WRAP(fails_udp("receive", fd), ssize_t, recvfrom, (int fd, void *data, size_t size, int flags,
     struct sockaddr *from, socklen_t *length), (fd, data, size, flags, from, length))
WRAP(fails_udp("receive", fd), ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
WRAP(fails_udp("receive", fd), int, recvmmsg, (int fd, struct mmsghdr *messages, unsigned count, int flags,
     struct timespec *timeout), (fd, messages, count, flags, timeout))
"""


def build_library(directory: Path) -> Path:
    library = directory / "nth_call.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", str(library), "-ldl"],
        input=_SOURCE,
        text=True,
        check=True,
    )
    return library
