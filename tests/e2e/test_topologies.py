# SPDX-License-Identifier: Apache-2.0
"""No loops, no multiplication, over Zenoh: two streamers side by side, each with a uSubscription, and one that restarts.

More shapes, and what names its sink, are in tests/host/test_topologies.py.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import zenoh

from tests.e2e import wire
from tests.e2e.peers import DEADLINE_S, USUBSCRIPTION, ZenohPeer
from tests.e2e.ports import tcp_ports
from tests.e2e.streamer import StreamerProcess
from tests.e2e.two_streamers import _router
from tests.e2e.wire import Uri

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


class Streets:
    """Two Zenoh networks, which stay, and streamers between them: both know who lives where."""

    def __init__(self, directory: Path, last_first: ExitStack) -> None:
        self._directory = directory
        self._last_first = last_first
        self.one, self.two = tcp_ports(2)
        for port in (self.one, self.two):
            router: zenoh.Session = _router(port)
            last_first.callback(router.close)

    def streamer(self, authority: str) -> StreamerProcess:
        """Started, and connected on both sides."""
        config = self._directory / f"{authority}.toml"
        config.write_text(_CONFIG.format(authority=authority, one=self.one, two=self.two), encoding="utf-8")
        process = StreamerProcess(config).ready()
        self._last_first.callback(_end, process)
        process.stderr.wait(lambda line: "link_up" in line, 2)
        return process

    def peer(self, port: int, authority: str) -> ZenohPeer:
        return self._last_first.enter_context(ZenohPeer(port, authority))


@pytest.fixture
def streets(tmp_path: Path) -> Iterator[Streets]:
    with ExitStack() as last_first:
        yield Streets(tmp_path, last_first)


def _end(process: StreamerProcess) -> None:
    if process.alive:
        process.kill()


def ask(peer: ZenohPeer, topic: Uri) -> None:
    """Subscribe at the uSubscription of one's own network."""
    peer.call(
        USUBSCRIPTION._replace(authority=peer.address.authority).at(wire.SUBSCRIBE),
        wire.subscription_request(topic),
    )


def wait_way(speaker: ZenohPeer, listener: ZenohPeer, topic: Uri) -> None:
    """Wait until what is published arrives: Zenoh needs a moment to know who listens."""
    until = time.monotonic() + DEADLINE_S
    while not listener.events(topic):
        assert time.monotonic() < until, f"nothing of {topic} arrives at {listener.address}"
        speaker.publish(topic, b"?")
        time.sleep(0.02)


def talk(speaker: ZenohPeer, topic: Uri, name: str, messages: int) -> list[bytes]:
    sent = [f"{name} {number}".encode() for number in range(messages)]
    for payload in sent:
        speaker.publish(topic, payload)
    return sent


def got(listener: ZenohPeer, topic: Uri, name: str, messages: int) -> list[bytes]:
    """What has come of a talk when all that was said before its end has been heard; in order."""
    about = f"{name} ".encode()
    listener.inbox.wait(lambda each: each.payload.startswith(about), messages)
    return [each.payload for each in listener.events(topic) if each.payload.startswith(about)]


def test_two_streamers_side_by_side_bring_each_publication_once_to_each_side(streets: Streets) -> None:
    processes = [streets.streamer(authority) for authority in (LEFT, RIGHT)]
    left, right = streets.peer(streets.one, LEFT), streets.peer(streets.two, RIGHT)
    leftwards, rightwards = right.address.at(0x8001), left.address.at(0x8001)
    ask(left, leftwards)
    ask(right, rightwards)
    wait_way(right, left, leftwards)
    wait_way(left, right, rightwards)

    to_left = talk(right, leftwards, "to the left", MESSAGES)
    to_right = talk(left, rightwards, "to the right", MESSAGES)
    assert got(left, leftwards, "to the left", MESSAGES) == to_left
    assert got(right, rightwards, "to the right", MESSAGES) == to_right
    # One more each way: had anything gone round, it would have come before.
    assert got(left, leftwards, "end", len(talk(right, leftwards, "end", 1))) == [b"end 0"]
    assert got(right, rightwards, "end", len(talk(left, rightwards, "end", 1))) == [b"end 0"]
    assert got(left, leftwards, "to the left", MESSAGES) == to_left
    assert got(right, rightwards, "to the right", MESSAGES) == to_right
    assert all(each.alive for each in processes)


def test_restarts_of_one_of_two_multiply_nothing(streets: Streets) -> None:
    streets.streamer(RIGHT)
    left, right = streets.peer(streets.one, LEFT), streets.peer(streets.two, RIGHT)
    topic = right.address.at(0x8001)
    for number in range(RESTARTS):
        process = streets.streamer(LEFT)
        if number == 0:
            ask(left, topic)  # once: it is remembered
        name = f"round {number}:"
        before = len(left.events(topic))
        until = time.monotonic() + DEADLINE_S
        while len(left.events(topic)) == before:
            assert time.monotonic() < until, f"nothing after restart {number}"
            right.publish(topic, b"?")
            time.sleep(0.02)
        sent = talk(right, topic, name, 20)
        assert got(left, topic, name, 20) == sent
        process.kill()
    # And none came later.
    everything = [each.payload for each in left.events(topic) if each.payload != b"?"]
    assert len(everything) == len(set(everything)) == 20 * RESTARTS
