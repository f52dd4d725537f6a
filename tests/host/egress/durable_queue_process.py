# SPDX-License-Identifier: Apache-2.0
"""A durable queue in a separate process, for tests that kill it: `python -m tests.host.egress.durable_queue_process
DIRECTORY LIFE`.

It offers numbers at the given rate on a link that goes down and up, and appends each sent number to DIRECTORY/sent.
It writes to stdout the number up to which all are sent or on disk. The queue, its disk and its threads are real; only
the wire is a file. With LIFE -1 it offers nothing, and ends when the queue is empty.
"""

import os
import random
import struct
import sys
import time
from pathlib import Path
from threading import Thread

from tests.host.egress.durable_queue_rig import LIMITS
from tests.host.egress.test_endpoint_queue import TOPIC, FakeIngress, ScriptedTransport
from tests.host.waiting import DEADLINE_S
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.host.egress.durable_queue import DurableQueue
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID

NUMBER = struct.Struct(">iI")  # life, number
LINE = struct.Struct(">iiI")  # the life that sent it, and the payload: life, number
_LINK_PERIOD_S = 0.03
_PACE_S = 0.0002


class FileTransport(ScriptedTransport):
    """A transport that writes each message to disk at once: a buffer would be lost with the process."""

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
    transport = FileTransport(directory / "sent", life)
    gateways: list[FakeIngress] = []
    queue = DurableQueue(
        "backbone",
        transport,
        LIMITS,
        SYSTEM_CLOCK,
        lambda item, status: os.abort(),
        directory / "spool" / "backbone",
        lambda ingress, topic, subscriber: Delivery(gateways[0], queue, topic, subscriber),
    )
    gateways.append(FakeIngress("chassis", queue, SYSTEM_CLOCK))
    queue.restore()
    queue.start()
    if life < 0:
        assert queue.wait_sent(time.monotonic_ns() + int(DEADLINE_S * 1e9))
        queue.close(DEADLINE_S)
        return
    Thread(target=_toggle_link, args=(transport, queue, random.Random(life)), daemon=True).start()
    Thread(target=_acknowledge, args=(queue,), daemon=True).start()
    for number in range(1 << 30):
        message = publish(
            UUID(SYSTEM_CLOCK.wall_ms() << 16 | 0x7000, 1 << 63 | number), TOPIC, NUMBER.pack(life, number)
        )
        gateways[0].offer(message)
        time.sleep(_PACE_S)


def _toggle_link(wire: FileTransport, queue: DurableQueue, rng: random.Random) -> None:
    while True:
        wire.up = not wire.up
        if wire.up:
            queue.on_link_up()
        time.sleep(rng.random() * 2 * _LINK_PERIOD_S)


def _acknowledge(queue: DurableQueue) -> None:
    """Print how many messages are safe: all before the first that is in memory only."""
    safe = 0
    while True:
        with queue._lock:
            first = next(iter(queue.write_buffer), None)
            if first is not None:
                safe = NUMBER.unpack(first.message.payload)[1]
        os.write(1, struct.pack(">I", safe))
        time.sleep(_PACE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
