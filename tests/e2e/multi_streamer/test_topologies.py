# SPDX-License-Identifier: Apache-2.0
"""No loops and no duplicates over Zenoh: two parallel streamers, each with a uSubscription, and one that restarts.

More topologies, and unicast messages, are in tests/host/runtime/test_topologies.py.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import zenoh

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, USUBSCRIPTION, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.two_streamers import open_router
from tests.e2e.rigs.wire import Uri

LEFT, RIGHT = "left.vin1", "right.vin1"
MESSAGES: Final = 500
RESTARTS: Final = 5  # 1.5 s each; in one process it is 20

_CONFIG: Final = """\
authority = "{authority}"
state_dir = "state-{authority}"

[endpoints.one]
transport = "zenoh"
authorities = ["left.vin1"]
connect = ["tcp/127.0.0.1:{one}"]

[endpoints.two]
transport = "zenoh"
authorities = ["right.vin1"]
connect = ["tcp/127.0.0.1:{two}"]

[plugins.usubscription]
"""


class TwoNetworks:
    """Two permanent Zenoh networks, and streamers between them that are configured with the authorities of both."""

    def __init__(self, directory: Path, exit_stack: ExitStack) -> None:
        self._directory = directory
        self._exit_stack = exit_stack
        self.one, self.two = tcp_ports(2)
        for port in (self.one, self.two):
            router: zenoh.Session = open_router(port)
            exit_stack.callback(router.close)

    def start_streamer(self, authority: str) -> StreamerProcess:
        """Start the streamer and wait until it is connected on both networks."""
        config = self._directory / f"{authority}.toml"
        config.write_text(_CONFIG.format(authority=authority, one=self.one, two=self.two), encoding="utf-8")
        process = StreamerProcess(config).wait_ready()
        self._exit_stack.callback(_end, process)
        process.stderr.wait_count(lambda line: "link_up" in line, 2)
        return process

    def connect_entity(self, port: int, authority: str) -> ZenohEntity:
        return self._exit_stack.enter_context(ZenohEntity(port, authority))


@pytest.fixture
def streets(tmp_path: Path) -> Iterator[TwoNetworks]:
    with ExitStack() as exit_stack:
        yield TwoNetworks(tmp_path, exit_stack)


def _end(process: StreamerProcess) -> None:
    if process.is_alive:
        process.kill()


def subscribe_at_own(peer: ZenohEntity, topic: Uri) -> None:
    """Subscribe at the uSubscription of the own network."""
    peer.call(
        USUBSCRIPTION._replace(authority=peer.address.authority).at(wire.SUBSCRIBE),
        wire.subscription_request(topic),
    )


def wait_forwarded(sender: ZenohEntity, listener: ZenohEntity, topic: Uri) -> None:
    """Wait until publications arrive: Zenoh needs time to find the listeners."""
    until = time.monotonic() + DEADLINE_S
    while not listener.events(topic):
        assert time.monotonic() < until, f"nothing of {topic} arrives at {listener.address}"
        sender.publish(topic, b"?")
        time.sleep(0.02)


def publish_series(sender: ZenohEntity, topic: Uri, name: str, messages: int) -> list[bytes]:
    sent = [f"{name} {number}".encode() for number in range(messages)]
    for payload in sent:
        sender.publish(topic, payload)
    return sent


def wait_series(listener: ZenohEntity, topic: Uri, name: str, messages: int) -> list[bytes]:
    """The messages of a conversation, in order, once all messages before its last have arrived."""
    about = f"{name} ".encode()
    listener.inbox.wait_count(lambda each: each.payload.startswith(about), messages)
    return [each.payload for each in listener.events(topic) if each.payload.startswith(about)]


def test_two_streamers_side_by_side_bring_each_publication_once_to_each_side(streets: TwoNetworks) -> None:
    processes = [streets.start_streamer(authority) for authority in (LEFT, RIGHT)]
    left, right = streets.connect_entity(streets.one, LEFT), streets.connect_entity(streets.two, RIGHT)
    leftwards, rightwards = right.address.at(0x8001), left.address.at(0x8001)
    subscribe_at_own(left, leftwards)
    subscribe_at_own(right, rightwards)
    wait_forwarded(right, left, leftwards)
    wait_forwarded(left, right, rightwards)

    to_left = publish_series(right, leftwards, "to the left", MESSAGES)
    to_right = publish_series(left, rightwards, "to the right", MESSAGES)
    assert wait_series(left, leftwards, "to the left", MESSAGES) == to_left
    assert wait_series(right, rightwards, "to the right", MESSAGES) == to_right
    # One more in each direction: a looped message would arrive before it.
    assert wait_series(left, leftwards, "end", len(publish_series(right, leftwards, "end", 1))) == [b"end 0"]
    assert wait_series(right, rightwards, "end", len(publish_series(left, rightwards, "end", 1))) == [
        b"end 0"
    ]
    assert wait_series(left, leftwards, "to the left", MESSAGES) == to_left
    assert wait_series(right, rightwards, "to the right", MESSAGES) == to_right
    assert all(each.is_alive for each in processes)


def test_restarts_of_one_of_two_multiply_nothing(streets: TwoNetworks) -> None:
    streets.start_streamer(RIGHT)
    left, right = streets.connect_entity(streets.one, LEFT), streets.connect_entity(streets.two, RIGHT)
    topic = right.address.at(0x8001)
    for number in range(RESTARTS):
        process = streets.start_streamer(LEFT)
        if number == 0:
            subscribe_at_own(left, topic)  # once: the id is in the dedup window
        name = f"round {number}:"
        before = len(left.events(topic))
        until = time.monotonic() + DEADLINE_S
        while len(left.events(topic)) == before:
            assert time.monotonic() < until, f"nothing after restart {number}"
            right.publish(topic, b"?")
            time.sleep(0.02)
        sent = publish_series(right, topic, name, 20)
        assert wait_series(left, topic, name, 20) == sent
        process.kill()
    # No message arrived later.
    everything = [each.payload for each in left.events(topic) if each.payload != b"?"]
    assert len(everything) == len(set(everything)) == 20 * RESTARTS
