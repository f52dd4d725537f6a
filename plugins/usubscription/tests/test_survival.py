# SPDX-License-Identifier: Apache-2.0
"""Every acknowledged change is stored after a kill -9."""

import os
import random
import shutil
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

    from tests.conftest import ServiceRig

TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)

# Clients 0, 1, 2, ... subscribe; each third one leaves again. A line is printed for each acknowledged change.
CLIENTS = """
import runpy, sys
from pathlib import Path
from ustreamer.uprotocol.uuri import UUri

rig = runpy.run_path(sys.argv[1])["ServiceRig"](Path(sys.argv[2])).start()
number = 0
while True:
    caller = UUri("device1", number, 1, 0)
    rig.subscribe(caller=caller)
    print("+", number, flush=True)
    if number % 3 == 2:
        rig.unsubscribe(caller=caller)
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


def killed(
    make_rig: "Callable[..., ServiceRig]", state_dir: Path, rng: random.Random
) -> tuple[int, int, int]:
    """Kill a streamer in a storm; how many changes it had acknowledged, and how many of them were lost or undone."""
    with clients(state_dir) as (process, output):
        acknowledged = [next(output) for _ in range(rng.randint(1, 60))]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line for line in output if line.endswith("\n")]  # its output before the kill
    there = {int(line.split()[1]) for line in acknowledged if line.startswith("+")}
    left = {int(line.split()[1]) for line in acknowledged if line.startswith("-")}

    rig = make_rig(state_dir).start()
    found = {subscriber.ue_id for subscriber, _ in rig.routed_subscribers(TOPIC)}
    assert rig.statistics("store_quarantined") == 0
    rig.stop()
    # The request after the last line may have been committed, but not acknowledged, at the signal.
    sign, latest = acknowledged[-1].split()
    number = int(latest)
    under_way = {number} if sign == "+" and number % 3 == 2 else {number + 1}
    lost, resurrected = (there - left) - found, found - (there - left)
    return len(acknowledged), len(lost - under_way), len(resurrected - under_way)


@pytest.mark.parametrize("kills", [5, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_kill_loses_and_resurrects_nothing_that_was_acknowledged(
    make_rig: "Callable[..., ServiceRig]", tmp_path: Path, kills: int
) -> None:
    """[utest->req~usubscription-subscribe~1] [utest->req~usubscription-subscribe-persistency~1]"""
    acknowledged = lost = resurrected = 0
    for seed in range(kills):
        figures = killed(make_rig, tmp_path / "state", random.Random(seed))
        acknowledged, lost, resurrected = (
            total + figure for total, figure in zip((acknowledged, lost, resurrected), figures, strict=True)
        )
        shutil.rmtree(tmp_path / "state")
        assert (lost, resurrected) == (0, 0), f"after the kill with seed {seed}"
    print(f"\nkills={kills} acknowledged={acknowledged} lost={lost} resurrected={resurrected}")
