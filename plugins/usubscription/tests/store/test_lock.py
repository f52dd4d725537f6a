# SPDX-License-Identifier: Apache-2.0
"""Who has a state directory, and whether the last one died of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ustreamer_usubscription.store.lock import StoreInUse, StoreLock, lock_holder

HOLD = """
import sys
from pathlib import Path
from ustreamer_usubscription.store.lock import StoreLock
StoreLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("orderly", [True, False])
def test_the_next_holder_learns_how_the_last_one_ended(tmp_path: Path, orderly: bool) -> None:
    lock = StoreLock(tmp_path / "lock")
    assert lock.acquire() is False
    lock.release(orderly=orderly)
    lock.release()
    assert lock.acquire() is not orderly
    lock.release()
    assert lock.acquire() is False
    lock.release()


def test_asking_for_the_holder_takes_nothing_from_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    lock = StoreLock(path)
    lock.acquire()
    assert lock_holder(path) == os.getpid()
    with pytest.raises(StoreInUse):
        StoreLock(path).acquire()
    lock.release()
    assert lock_holder(path) is None


def test_a_killed_process_leaves_no_lock_but_its_name(tmp_path: Path) -> None:
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
        with pytest.raises(StoreInUse) as refused:
            StoreLock(path).acquire()
        assert refused.value.pid == process.pid
        process.send_signal(signal.SIGKILL)
    lock = StoreLock(path)
    assert lock.acquire() is True
    lock.release()
