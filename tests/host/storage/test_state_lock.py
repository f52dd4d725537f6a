# SPDX-License-Identifier: Apache-2.0
"""The lock of a state directory: creation, one holder, a killed holder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ustreamer.host.storage.state_lock import LOCK, StateLock
from ustreamer.uprotocol.ustatus import UCode, UStatusError

HOLD = """
import sys
from pathlib import Path
from ustreamer.host.storage.state_lock import StateLock
StateLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_state_directory_is_created_and_has_one_holder(tmp_path: Path) -> None:
    state_dir = tmp_path / "var" / "state"
    with StateLock(state_dir):
        with pytest.raises(
            UStatusError, match=f"is held by process {os.getpid()}: expected no other"
        ) as refused:
            StateLock(state_dir).acquire()
        assert refused.value.code is UCode.UNAVAILABLE
    with StateLock(state_dir):
        pass
    assert (state_dir / LOCK).stat().st_size == 0


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UStatusError, match=f"held by process {holder.pid}"):
            StateLock(tmp_path).acquire()
        holder.kill()
        holder.wait()
        with StateLock(tmp_path):
            pass


def test_a_directory_that_cannot_be_created_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UStatusError, match=r"state_dir .*/file/state: cannot be used: .*/file is a file"
    ) as refused:
        StateLock(tmp_path / "file" / "state").acquire()
    assert refused.value.code is UCode.FAILED_PRECONDITION


def test_releasing_a_lock_twice_is_allowed(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()
