# SPDX-License-Identifier: Apache-2.0
"""A publisher that is faster than the streamer: no message becomes a dead letter, as Zenoh slows the publisher down.

A receiver that reads nothing loses only its own messages. tests/host/egress/test_backpressure.py counts the waits.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest

from tests.e2e.delivery.flood_processes import TOPICS, Counted
from tests.e2e.delivery.test_isolation import StallProcess
from tests.e2e.rigs.entities import DEADLINE_S, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.waiting import wait_until

FLOOD: Final = 60_000
"""Messages: more than the queues and the buffers of the kernel have room for."""
FLOOD_S: Final = 100.0
"""The flood takes 5 s of CPU time."""
pytestmark = pytest.mark.timeout(300)

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.source]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{source}"]

[endpoints.served]
transport = "zenoh"
authorities = ["served"]
config = "small_buffer.json5"
listen = ["tcp/127.0.0.1:{served}"]

[endpoints.stopped]
transport = "zenoh"
authorities = ["stopped"]
listen = ["tcp/127.0.0.1:{stopped}"]

# For a pause of the receiving process on a busy machine.
[egress.served]
queue_messages = 20000
queue_bytes = 40000000

[plugins.usubscription]
"""


# With a send buffer of megabytes the receiving thread could send all messages itself, and the queue would stay empty.
_SMALL_BUFFER: Final = """\
{
  mode: "peer",
  scouting: { multicast: { enabled: false } },
  transport: { link: { tcp: { so_sndbuf: 131072 } } },
}
"""


class FloodProcess(StallProcess):
    """A process of `flood_processes`."""

    module = "tests.e2e.delivery.flood_processes"

    def counted(self) -> Counted:
        return Counted(*self.ask())


@contextmanager
def subscribed_streamer(
    directory: Path, *subscribers: str, more: str = ""
) -> Iterator[tuple[StreamerProcess, dict[str, int]]]:
    """A streamer at which these authorities have subscribed all topics; yields its ports by endpoint.

    `more` are further sections of its configuration.
    """
    ports = dict(zip(("source", "served", "stopped"), tcp_ports(3), strict=True))
    config = directory / "backpressure.toml"
    config.write_text(_CONFIG.format(**ports) + more, encoding="utf-8")
    (directory / "small_buffer.json5").write_text(_SMALL_BUFFER, encoding="utf-8")
    with StreamerProcess(config) as process:
        for name in subscribers:
            with ZenohEntity(ports[name], name, 0x2001) as subscriber:
                for topic in TOPICS:
                    subscriber.subscribe(topic)
        yield process, ports


class Streamed(NamedTuple):
    """Statistics of the streamer: its egress queues, the counters of its endpoints, and those of dead letters."""

    queues: dict[str, dict[str, Any]]
    endpoints: dict[str, dict[str, int]]
    dead_letters: dict[str, int]

    @classmethod
    def read(cls, directory: Path) -> Self:
        found = statistics(directory / "state")
        return cls(
            {each["endpoint"]: each for each in found["egress_queues"]},
            found["endpoints"],
            found["dead_letters"],
        )


def wait_flood_begins(receiver: FloodProcess) -> None:
    """Wait until the first message of each topic has arrived."""
    wait_until(lambda: receiver.counted().first_seen == len(TOPICS), "the first message of each topic")


def assert_flood_arrives(receiver: FloodProcess) -> None:
    """All messages of the flood arrive once, in the order of each topic."""
    wait_until(lambda: receiver.counted().received >= FLOOD, "the flood", FLOOD_S)
    assert receiver.counted() == Counted(FLOOD, 0, len(TOPICS))


def test_a_flood_of_100_topics_arrives_whole_and_in_order(tmp_path: Path) -> None:
    with (
        subscribed_streamer(tmp_path, "served") as (process, ports),
        FloodProcess("receive", ports["served"]) as receiver,
    ):
        receiver.wait_ready()
        with FloodProcess("publish", FLOOD, ports["source"]) as publisher:
            publisher.wait_ready()
            wait_flood_begins(receiver)
            assert publisher.ask() == FLOOD
            assert_flood_arrives(receiver)
        assert Streamed.read(tmp_path).queues["served"]["dead_lettered"] == 0
        process.stop()
    assert process.ledger["dead_lettered"] == 0


def test_a_stopped_receiver_loses_its_own_messages_only(tmp_path: Path) -> None:
    with (
        subscribed_streamer(tmp_path, "served", "stopped") as (process, ports),
        FloodProcess("receive", ports["served"]) as receiver,
        FloodProcess("receive", ports["stopped"]) as stopped,
    ):
        for each in (receiver, stopped):
            each.wait_ready()
        with FloodProcess("publish", FLOOD, ports["source"]) as publisher:
            publisher.wait_ready()
            for each in (receiver, stopped):
                wait_flood_begins(each)
            stopped.send_signal(signal.SIGSTOP)
            assert publisher.ask() == FLOOD
            assert_flood_arrives(receiver)
        found = Streamed.read(tmp_path)
        assert found.queues["served"]["dead_lettered"] == 0
        lost = found.queues["stopped"]["dead_lettered"]
        assert lost > FLOOD // 2, "the kernel's buffers hold too much of the flood for this test"
        assert found.endpoints["stopped"]["backpressure_ms"] < 2_000
        assert found.dead_letters["suppressed"] > 0
        wait_until(
            lambda: _reported(Streamed.read(tmp_path).dead_letters) == lost, "a report of each message"
        )
        stopped.send_signal(signal.SIGCONT)
        wait_until(
            lambda: not Streamed.read(tmp_path).queues["stopped"]["queued"], "an empty queue", DEADLINE_S
        )
        process.stop()


def _reported(dead_letters: dict[str, int]) -> int:
    return sum(dead_letters[name] for name in ("persisted", "not_persisted", "suppressed"))
