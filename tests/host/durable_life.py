# SPDX-License-Identifier: Apache-2.0
"""A durable lane in a process of its own, for tests that kill it: `python -m tests.host.durable_life DIRECTORY LIFE`.

It offers numbers as fast as it is told on a link that comes and goes, appends each number that is sent to DIRECTORY/sent, and
writes to stdout up to which number all are sent or on disk. The lane is real, and so are its disk and its threads; only
the wire is a file. With LIFE -1 it offers nothing, and ends when nothing waits.
"""

import os
import random
import struct
import sys
import time
from pathlib import Path
from threading import Thread

from tests.host.durable_rig import LIMITS
from tests.host.test_lanes import DEADLINE_S, TOPIC, Gateway, Wire
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.host.egress.durable_queue import DurableLane
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID

NUMBER = struct.Struct(">iI")  # life, number
LINE = struct.Struct(">iiI")  # the life that sent it, and the payload: life, number
_TURN_S = 0.03
_PACE_S = 0.0002


class Paper(Wire):
    """A wire that writes down what it takes, at once: what is in a buffer dies with the process."""

    def __init__(self, path: Path, life: int) -> None:
        super().__init__()
        self.up = True
        self._life = struct.pack(">i", life)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def send(self, message: UMessage) -> None:
        if not self.up:
            raise UStatusError(UCode.UNAVAILABLE, "the link is down")
        os.write(self._file, self._life + message.payload)


def main(directory: Path, life: int) -> None:
    wire = Paper(directory / "sent", life)
    gateways: list[Gateway] = []
    lane = DurableLane(
        "backbone",
        wire,
        LIMITS,
        SYSTEM_CLOCK,
        lambda item, status: os.abort(),
        directory / "spool" / "backbone",
        lambda ingress, topic, subscriber: Delivery(gateways[0], lane, topic, subscriber),
    )
    gateways.append(Gateway("chassis", lane, SYSTEM_CLOCK))
    lane.restore()
    lane.start()
    if life < 0:
        assert lane.wait_sent(time.monotonic_ns() + int(DEADLINE_S * 1e9))
        lane.close(DEADLINE_S)
        return
    Thread(target=_turn, args=(wire, lane, random.Random(life)), daemon=True).start()
    Thread(target=_acknowledge, args=(lane,), daemon=True).start()
    for number in range(1 << 30):
        message = publish(
            UUID(SYSTEM_CLOCK.wall_ms() << 16 | 0x7000, 1 << 63 | number), TOPIC, NUMBER.pack(life, number)
        )
        gateways[0].offer(message)
        time.sleep(_PACE_S)


def _turn(wire: Paper, lane: DurableLane, dice: random.Random) -> None:
    while True:
        wire.up = not wire.up
        if wire.up:
            lane.link_up()
        time.sleep(dice.random() * 2 * _TURN_S)


def _acknowledge(lane: DurableLane) -> None:
    """Say how many are safe: all in front of the first that only memory has."""
    safe = 0
    while True:
        with lane._lock:
            first = next(iter(lane.unwritten), None)
            if first is not None:
                safe = NUMBER.unpack(first.message.payload)[1]
        os.write(1, struct.pack(">I", safe))
        time.sleep(_PACE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
