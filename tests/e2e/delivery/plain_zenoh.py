# SPDX-License-Identifier: Apache-2.0
"""Zenoh without a streamer: a router stops while a publisher puts at full speed.

    python -m tests.e2e.delivery.plain_zenoh stall SECONDS [WAIT_US]    in its own network namespace; prints JSON

WAIT_US is Zenoh's `wait_before_close`: how long a put waits for a blocked link before Zenoh closes the link.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

import zenoh

from tests.e2e.delivery.outage_scenarios import ZenohProcess
from tests.e2e.rigs.cable import in_own_namespace, shrink_tcp_buffers
from tests.e2e.rigs.entities import eventually

PORT: Final = 17_447
_WAIT: Final = "transport/link/tx/queue/congestion_control/block/wait_before_close"
_WHOLE: Final = re.compile(r"whole-\d{10}-whole\n")
_FLOOD_S: Final = 3.0
"""Duration of puts before and after the stall."""
_DEADLINE_S: Final = 60.0


class ZenohStallOutcome(NamedTuple):
    published: int
    received: int
    garbled: list[str]


def router_stalled(seconds: float, wait_us: int | None = None) -> ZenohStallOutcome:
    """Stop a router between a publisher and a subscriber for `seconds`."""
    arguments = ("stall", str(seconds), *(() if wait_us is None else (str(wait_us),)))
    done = subprocess.run(
        in_own_namespace("tests.e2e.delivery.plain_zenoh", *arguments),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=seconds + _DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return ZenohStallOutcome(*json.loads(done.stdout))


def _run_stall(seconds: float, wait_us: str | None) -> ZenohStallOutcome:
    shrink_tcp_buffers()
    router, subscriber = ZenohProcess("router", PORT).wait_ready(), ZenohProcess("client", PORT).wait_ready()
    publisher = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.e2e.delivery.plain_zenoh",
            "put",
            str(seconds),
            *([wait_us] if wait_us else []),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        subscriber.lines.wait_one(_is_whole)
        router.freeze()
        Event().wait(seconds)
        router.thaw()
        put = int(publisher.communicate(timeout=_DEADLINE_S)[0])
        subscriber.lines.wait_one(lambda line: line == f"whole-{put - 1:010}-whole\n")
    finally:
        publisher.kill()
        subscriber.kill()
        router.kill()
    lines = [line for line in subscriber.lines.items() if line != "READY\n"]
    return ZenohStallOutcome(put, len(lines), [line for line in lines if not _is_whole(line)])


def _is_whole(line: str) -> bool:
    return _WHOLE.fullmatch(line) is not None


def _run_publisher(seconds: float, wait_us: str | None) -> None:
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{PORT}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    if wait_us:
        config.insert_json5(_WAIT, wait_us)
    session = zenoh.open(config)
    publisher = session.declare_publisher(
        "up/a/b/c/1/e/{}/{}/{}/{}/{}", congestion_control=zenoh.CongestionControl.BLOCK
    )
    eventually(lambda: publisher.matching_status.matching, True)  # type: ignore[attr-defined]
    pause = Event()
    number, end = 0, time.monotonic() + seconds + 2 * _FLOOD_S
    while time.monotonic() < end or number % 1000:
        publisher.put(f"whole-{number:010}-whole".encode(), attachment=b"A" * 40)
        number += 1
        if number % 20 == 0:
            pause.wait(0.001)
    print(number, flush=True)  # read by the other process
    session.close()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    wait = sys.argv[3] if sys.argv[3:] else None
    if sys.argv[1] == "put":
        _run_publisher(float(sys.argv[2]), wait)
    else:
        print(json.dumps(_run_stall(float(sys.argv[2]), wait)))
        os._exit(0)
