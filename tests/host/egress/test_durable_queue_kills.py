# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random moments: persisted messages are sent afterwards, in order, with few duplicates."""

import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.host.egress.durable_queue_process import LINE
from tests.host.waiting import DEADLINE_S
from ustreamer.host.egress.durable_queue import MAX_DUPLICATES

REPO = Path(__file__).parents[3]
LONGEST_S = 0.4


def start_process(directory: Path, life: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.host.egress.durable_queue_process", str(directory), str(life)]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE)


def kill_process(directory: Path, life: int, rng: random.Random) -> int:
    """Kill a process at a random time after its first output; returns how many messages it had reported as safe."""
    with start_process(directory, life) as process:
        assert process.stdout
        first = process.stdout.read(4)
        with pytest.raises(subprocess.TimeoutExpired):  # it runs until then
            process.wait(rng.random() * LONGEST_S)
        process.kill()
        output = first + process.stdout.read()
    assert first, "it exited unexpectedly"
    return int(struct.unpack_from(">I", output, len(output) // 4 * 4 - 4)[0])


def sent_by_later_process(directory: Path) -> int:
    """How many messages a later process sent than the one that accepted them."""
    return sum(by != life for by, life, _ in LINE.iter_unpack((directory / "sent").read_bytes()))


def play(directory: Path, kills: int, seed: int) -> str:
    """Kill `kills` processes, or more if the link was up at most kills; a last process sends the rest. Returns the
    figures.
    """
    rng = random.Random(seed)
    safe: list[int] = []
    while len(safe) < kills or (sent_by_later_process(directory) <= len(safe) < 10 * kills):
        safe.append(kill_process(directory, len(safe), rng))
    kills = len(safe)
    with start_process(directory, -1) as last:
        assert last.wait(DEADLINE_S) == 0
    lines = list(LINE.iter_unpack((directory / "sent").read_bytes()))
    everything = [(life, number) for _, life, number in lines]
    unique = list(dict.fromkeys(everything))
    there = set(unique)
    lost = [(life, n) for life, count in enumerate(safe) for n in range(count) if (life, n) not in there]
    repeated = len(everything) - len(unique)
    figures = (
        f"kills={kills} seed={seed} safe={sum(safe)} sent={len(unique)} outlived={sent_by_later_process(directory)} "
        f"lost={len(lost)} repeated={repeated}"
    )
    assert lost == [], figures
    assert unique == sorted(unique), figures
    assert repeated <= kills * MAX_DUPLICATES, figures
    assert sent_by_later_process(directory) > kills, figures  # otherwise the run tests nothing
    return figures


def test_a_few_kills_lose_nothing_that_was_on_disk(tmp_path: Path) -> None:
    play(tmp_path, 2, seed=1)


@pytest.mark.soak
def test_two_hundred_kills_lose_nothing_that_was_on_disk(tmp_path: Path) -> None:
    print(play(tmp_path, 200, seed=time.time_ns() & 0xFFFF))
