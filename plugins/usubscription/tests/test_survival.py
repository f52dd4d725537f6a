# SPDX-License-Identifier: Apache-2.0
"""What was acknowledged is there after a kill -9."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Desk

TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)

# Clients 0, 1, 2, ... subscribe; each third one leaves again. A line says what has been acknowledged.
CLIENTS = """
import runpy, sys
from pathlib import Path
from ustreamer.uprotocol.uuri import UUri

desk = runpy.run_path(sys.argv[1])["Desk"](Path(sys.argv[2])).start()
number = 0
while True:
    caller = UUri("device1", number, 1, 0)
    desk.subscribe(caller=caller)
    print("+", number, flush=True)
    if number % 3 == 2:
        desk.unsubscribe(caller=caller)
        print("-", number, flush=True)
    number += 1
"""


@contextmanager
def clients(state_dir: Path) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENTS, str(Path(__file__).with_name("conftest.py")), str(state_dir)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process, process.stdout
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("seed", range(5))
def test_a_kill_loses_and_resurrects_nothing_that_was_acknowledged(
    make_desk: "Callable[..., Desk]", tmp_path: Path, seed: int
) -> None:
    """[utest->req~usubscription-subscribe~1]"""
    state_dir = tmp_path / "state"
    with clients(state_dir) as (process, said):
        acknowledged = [next(said) for _ in range(random.Random(seed).randint(1, 60))]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line for line in said if line.endswith("\n")]  # what it said before it died
    there = {int(line.split()[1]) for line in acknowledged if line.startswith("+")}
    left = {int(line.split()[1]) for line in acknowledged if line.startswith("-")}

    desk = make_desk(state_dir).start()
    found = {subscriber.ue_id for subscriber, _ in desk.routed(TOPIC)}
    # The request after the last line may have been committed, and not acknowledged, when the signal came.
    sign, latest = acknowledged[-1].split()
    number = int(latest)
    under_way = {number} if sign == "+" and number % 3 == 2 else {number + 1}
    assert found in (there - left, (there - left) ^ under_way)
