# SPDX-License-Identifier: Apache-2.0
"""One holder per lock file, its pid, and the kill of a holder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ustreamer.core.storage.file_lock import FileLock, FileLockHeld, lock_holder

HOLD = """
import sys
from pathlib import Path
from ustreamer.core.storage.file_lock import FileLock
FileLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("orderly", [True, False])
def test_acquire_reports_whether_the_last_holder_was_killed(tmp_path: Path, orderly: bool) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire() is False
    lock.release(orderly=orderly)
    lock.release()
    assert lock.acquire() is not orderly
    lock.release()
    assert lock.acquire() is False
    lock.release()


def test_reading_the_holder_does_not_release_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    lock = FileLock(path)
    lock.acquire()
    assert lock_holder(path) == os.getpid()
    with pytest.raises(FileLockHeld):
        FileLock(path).acquire()
    lock.release()
    assert lock_holder(path) is None


def test_the_kernel_releases_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(FileLockHeld) as refused:
            FileLock(path).acquire()
        assert refused.value.pid == process.pid
        process.send_signal(signal.SIGKILL)
    lock = FileLock(path)
    assert lock.acquire() is True
    lock.release()


def test_a_missing_directory_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "none" / "lock").acquire()
