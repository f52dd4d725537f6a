# SPDX-License-Identifier: Apache-2.0
"""R15: a publisher that sends as fast as Zenoh accepts, to one receiver that reads and one that does not."""

import signal
import time
from pathlib import Path
from statistics import mean
from typing import Final

from tests.e2e.delivery.test_backpressure import (
    FloodProcess,
    Streamed,
    subscribed_streamer,
    wait_flood_begins,
)
from tests.e2e.rigs.entities import Metronome
from tests.waiting import wait_until

SAMPLES_HZ: Final = 20
WARM_UP_SHARE: Final = 0.2
DEADLINE_S: Final = 1_200.0


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4_096 / (1 << 20)


def test_memory_is_bounded_under_overload(tmp_path: Path, trials: int) -> None:
    """`trials` is the number of messages."""
    with (
        subscribed_streamer(tmp_path, "served", "stopped") as (process, ports),
        FloodProcess("receive", ports["served"]) as receiver,
        FloodProcess("receive", ports["stopped"]) as stopped,
        FloodProcess("publish", trials, ports["source"]) as publisher,
    ):
        for each in (receiver, stopped, publisher):
            each.wait_ready()
        for each in (receiver, stopped):
            wait_flood_begins(each)
        stopped.send_signal(signal.SIGSTOP)
        samples: list[float] = []
        began = time.monotonic()
        with Metronome(SAMPLES_HZ, lambda _: samples.append(resident_mb(process.pid))):
            assert publisher.ask() == trials
            wait_until(lambda: receiver.counted().received >= trials, "the flood", DEADLINE_S)
            seconds = time.monotonic() - began
            shed = Streamed.read(tmp_path).queues["stopped"]["dead_lettered"]

            def unreported() -> int:
                letters = Streamed.read(tmp_path).dead_letters
                reported = sum(letters[name] for name in ("persisted", "not_persisted", "suppressed"))
                return int(shed - reported)

            wait_until(lambda: not unreported(), "a report of each message", DEADLINE_S)
        steady = samples[int(WARM_UP_SHARE * len(samples)) :]
        counted, found = receiver.counted(), Streamed.read(tmp_path)
        print(f"offered={trials} served_lost={trials - counted.received} disordered={counted.disordered}")
        print(
            f"shed={shed} unreported={unreported()} waits={found.endpoints['served']['backpressure_waits']}"
        )
        print(f"rss_max_mb={max(samples):.0f} rss_max_of_mean_percent={100 * max(steady) / mean(steady):.0f}")
        print(f"messages_per_s={trials / seconds:.0f} oom={int(not process.is_alive)}")
        stopped.send_signal(signal.SIGCONT)
        wait_until(
            lambda: not Streamed.read(tmp_path).queues["stopped"]["queued"], "an empty queue", DEADLINE_S
        )
        process.stop()
