# SPDX-License-Identifier: Apache-2.0
"""Real refusals to write: by the kernel for one thread, by a small or read-only file system, by permissions."""

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from ustreamer.uprotocol.ustatus import UStatusError

_PWRITE, _WRITEV, _FTRUNCATE, _FALLOCATE, _PWRITEV = 18, 20, 77, 285, 296  # system calls of x86-64
_OPENAT, _NO_CALL = 257, 1 << 20
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_FIRST_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 16, 32, 40  # in struct seccomp_data
_META_BYTES = 8192
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


def refuse_writes(
    number: int, *, meta_pages_only: bool = False, open_too: bool = False, descriptor: int | None = None
) -> None:
    """Let the kernel refuse writes to files of this thread with errno `number`, until the thread ends.

    `meta_pages_only`: only those to the first two pages; `open_too`: and to open a file for writing. `descriptor`:
    only `pwrite` through this one.
    """
    if descriptor is not None:
        program = [
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, 2, _PWRITE),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_JUMP_IF_EQUAL, 1, 0, descriptor),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | number),
        ]
    elif meta_pages_only:
        program = [
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, 2, _PWRITE),
            (_LOAD, 0, 0, _FOURTH_ARGUMENT),  # the offset
            (_JUMP_IF_GREATER, 3, 4, _META_BYTES - 1),
            (_JUMP_IF_EQUAL, 0, 2, _OPENAT if open_too else _NO_CALL),
            (_LOAD, 0, 0, _THIRD_ARGUMENT),  # the flags
            (_JUMP_IF_SET, 1, 0, os.O_RDWR),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | number),
        ]
    else:
        program = [
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 5, 0, _PWRITE),
            (_JUMP_IF_EQUAL, 4, 0, _WRITEV),
            (_JUMP_IF_EQUAL, 3, 0, _FTRUNCATE),
            (_JUMP_IF_EQUAL, 2, 0, _PWRITEV),
            (_JUMP_IF_EQUAL, 1, 0, _FALLOCATE),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | number),
        ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    address = ctypes.c_void_p(ctypes.addressof(header))
    assert libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, 0, 0) == 0, os.strerror(
        ctypes.get_errno()
    )


def synced_descriptor(file: Path) -> int:
    """The descriptor of this process whose writes to a file are synced: LMDB writes its meta pages through it."""
    [found] = [
        int(each.name)
        for each in Path("/proc/self/fd").iterdir()
        if os.path.lexists(each) and each.readlink() == file and _is_synced(each.name)
    ]
    return found


def _is_synced(descriptor: str) -> bool:
    flags = Path("/proc/self/fdinfo", descriptor).read_text().split()[3]
    return bool(int(flags, 8) & os.O_DSYNC)


def with_refused_writes(
    number: int,
    call: Callable[[], object],
    *,
    meta_pages_only: bool = False,
    open_too: bool = False,
    descriptor: int | None = None,
) -> object:
    """The result of `call`, or its UStatusError, in a thread whose writes the kernel refuses."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of the system calls are those of x86-64")
    results: list[object] = []

    def run() -> None:
        refuse_writes(number, meta_pages_only=meta_pages_only, open_too=open_too, descriptor=descriptor)
        try:
            results.append(call())
        except UStatusError as error:
            results.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    [result] = results
    return result


def run_on_small_disk(script: str, disk: Path, size: str, *arguments: str) -> str:
    """The output of a Python script with a file system of its own at `disk`, its first argument."""
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-Urm"]
    mounted = [*unshare, "sh", "-c", f'mount -t tmpfs -o size={size} none "$0" && exec "$@"', str(disk)]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        assert os.geteuid() != 0, "root may not mount a file system here: `unshare -m` fails"
        pytest.skip("needs `unshare -Urm` to mount a file system")
    return _run([*mounted, sys.executable, "-c", script, str(disk), *arguments])


def run_without_privileges(script: str, *arguments: str) -> str:
    """The output of a Python script to which the permissions of files apply, for root too."""
    limited = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return _run([*limited, sys.executable, "-c", script, *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
