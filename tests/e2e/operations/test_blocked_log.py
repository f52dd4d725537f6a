# SPDX-License-Identifier: Apache-2.0
"""`ustreamer run` with an output that takes nothing, as of a terminal after Ctrl-S."""

import fcntl
import os
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs.entities import DEADLINE_S
from tests.e2e.rigs.streamer import COMMAND, START_S

_PIPE_BYTES: Final = 4_096
_NAMES: Final = ("one", "two")


def full_pipe() -> tuple[int, int]:
    """The two ends of a pipe without room."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(_PIPE_BYTES))
    os.set_blocking(write, True)
    return read, write


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "u.toml"
    endpoints = [
        f'[endpoints.{name}]\ntransport = "local"\nnetwork = "{name}"\nauthorities = ["{name}"]'
        for name in _NAMES
    ]
    path.write_text("\n".join(['authority = "hpc"\nstate_dir = "state"', *endpoints]), encoding="utf-8")
    return path


def test_a_terminal_that_takes_no_log_neither_stops_the_streamer_nor_its_stop(config: Path) -> None:
    read, write = full_pipe()
    command = [str(COMMAND), "run", str(config), "--log-level", "debug"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write, text=True) as running:
        os.close(write)
        try:
            assert running.stdout is not None
            assert select.select([running.stdout], [], [], START_S)[0], "no READY"
            assert running.stdout.readline() == "READY\n"
            done = subprocess.run(
                [COMMAND, "top", config, "--json"],
                capture_output=True,
                check=True,
                text=True,
                timeout=DEADLINE_S,
            )
            assert '"ledger"' in done.stdout
            running.send_signal(signal.SIGTERM)
            assert running.wait(DEADLINE_S) == 0
        finally:
            running.kill()
            os.close(read)


def test_a_terminal_that_does_not_take_ready_neither_stops_the_streamer_nor_its_stop(config: Path) -> None:
    read, write = full_pipe()
    command = [str(COMMAND), "run", str(config), "--log-level", "info"]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True) as running:
        os.close(write)
        try:
            assert running.stderr is not None
            assert select.select([running.stderr], [], [], START_S)[0], "no log"
            assert "streamer.started" in running.stderr.readline()
            running.send_signal(signal.SIGTERM)
            _, log = running.communicate(timeout=DEADLINE_S)
        finally:
            running.kill()
            os.close(read)
    assert running.returncode == 0
    assert "streamer.stopped" in log
