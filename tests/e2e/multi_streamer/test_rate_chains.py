# SPDX-License-Identifier: Apache-2.0
"""Limits behind one, two and three streamers in a row: every streamer is a process, every link is a real one.

    publisher -> a1 -> a2 -> a3 -> application
                   application  application

The tests judge counts and order. A busy machine delays messages, but their ids have the times of the schedule.
`benchmarks/chains` measures more rows.
"""

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

import pytest

from tests.e2e.multi_streamer.zenoh_networks import ZenohNetworks
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, ZenohSample, eventually
from tests.e2e.rigs.wire import Attributes, Id, Uri

HZ: Final = 100
SECONDS: Final = 6
HEADROOM: Final = 1.5  # of each limit above the next one
ROUNDS: Final = 4
"""A topic must have its share in one of these, and its bound and order in each: a machine that stops the publisher or a
streamer makes gaps that end gradually, and those cost messages."""
QUIET_S: Final = 3.0  # no message waits longer
BOUND: Final = 2.5  # messages above limit * T in any window
STALL_EVERY_S, STALL_S = 0.3, 0.06

LATEST: Final = [f"//a1.vin1/FFFF/1/{resource:X}" for resource in range(0x9000, 0x9040)]
"""Topics with mode latest in every streamer."""


class LimitedTopic(NamedTuple):
    """A topic that ends behind `depth` streamers, the last of which has the limit."""

    depth: int
    limit_hz: float
    jitter: float
    bunched: bool
    latest: bool


TOPICS: Final = [
    LimitedTopic(depth, *row, latest)
    for depth in (1, 2, 3)
    for row in ((100, 0.0, False), (90, 0.2, True))
    for latest in (False, True)
] + [LimitedTopic(3, 77, 0.01, True, False), LimitedTopic(2, 40, 0.2, True, True)]


class ChainOfThree:
    """Three streamers in a row, and an application behind each."""

    def __init__(self, directory: Path, exit_stack: ExitStack) -> None:
        nets = ZenohNetworks(directory, exit_stack, "first", "second", "third", "fourth")
        endpoints = {
            "a1.vin1": {"first": ["a1.vin1"], "second": ["a2.vin1", "a3.vin1", "b.vin1"]},
            "a2.vin1": {"second": ["a1.vin1"], "third": ["a3.vin1", "b.vin1"]},
            "a3.vin1": {"third": ["a1.vin1", "a2.vin1"], "fourth": ["b.vin1"]},
        }
        # On a busy machine a message may be later than by default.
        throttle_toml = f"max_delay_ms = 1000\nlatest = {json.dumps(LATEST)}"
        gateways = [
            nets.launch_streamer(authority, each, throttle_toml=throttle_toml)
            for authority, each in endpoints.items()
        ]
        for gateway in gateways:
            gateway.wait_ready()
        self.publisher = nets.connect_entity("first", "a1.vin1")
        places = (("second", "a2.vin1"), ("third", "a3.vin1"), ("fourth", "b.vin1"))
        self._applications = [nets.connect_entity(*place) for place in places]

    def application(self, depth: int) -> ZenohEntity:
        """The application behind this number of streamers."""
        return self._applications[depth - 1]

    def topic(self, number: int, *, latest: bool) -> Uri:
        return self.publisher.address.at((0x9000 if latest else 0x8000) + number)

    def subscribe(self, topic: Uri, depth: int, limit_hz: float | None) -> None:
        """Subscribe at every streamer as far as `depth`, the last with this limit."""
        for number in range(1, depth + 1):
            limit = None if limit_hz is None else limit_hz * HEADROOM ** (depth - number)
            usubscription = Uri(f"a{number}.vin1", 0, 3)
            answer = self.application(number).call(
                usubscription.at(wire.SUBSCRIBE), wire.subscription_request(topic, max_frequency=limit)
            )
            assert answer.head.commstatus in {None, wire.OK}, answer.status

    def wait_flow(self, topic: Uri, depth: int) -> None:
        """Publish until a message arrives: Zenoh needs time to find the listeners."""

        def arrives() -> bool:
            self.publisher.publish(topic, b"?")
            return bool(self.application(depth).events(topic))

        eventually(arrives, True)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChainOfThree]:
    with ExitStack() as exit_stack:
        yield ChainOfThree(tmp_path_factory.mktemp("chain"), exit_stack)


class Publication(NamedTuple):
    sent_s: float
    created_s: float
    topic: Uri


def schedule(topic: Uri, kind: LimitedTopic) -> Iterator[Publication]:
    """Times from the start; in a stall messages are created and sent when it ends."""
    rng = random.Random(kind.depth)
    for number in range(HZ * SECONDS):
        created_s = (number + 1 + rng.uniform(-kind.jitter, kind.jitter)) / HZ
        is_held = kind.bunched and created_s % STALL_EVERY_S > STALL_EVERY_S - STALL_S
        sent_s = (created_s // STALL_EVERY_S + 1) * STALL_EVERY_S if is_held else created_s
        yield Publication(sent_s, created_s, topic)


def publish_all(publisher: ZenohEntity, publications: Sequence[Publication]) -> dict[Id, float]:
    """Publish in this order, none early. Returns the time at which each was really sent, by id."""
    sent: dict[Id, float] = {}
    began_s, wall_s = time.monotonic(), time.time()
    for each in publications:
        time.sleep(max(0.0, began_s + each.sent_s - time.monotonic()))
        id = wire.new_id()
        id = id._replace(msb=int((wall_s + each.created_s) * 1000) << 16 | id.msb & 0xFFFF)
        sent[id] = time.monotonic()
        publisher.send_message(Attributes(id, wire.PUBLISH, each.topic, priority=wire.CS1), b"message")
    return sent


def certain_burst(samples: Sequence[ZenohSample], sent: dict[Id, float], limit_hz: float) -> float:
    """The most by which a window from a sending to an arrival holds more messages than limit * T.

    All its messages passed the gate in this window, so the bound of the gate holds on any machine.
    """
    first = [index - sent[each.head.id] * limit_hz for index, each in enumerate(samples)]
    last = [index - each.received_at * limit_hz for index, each in enumerate(samples)]
    return max(lead - least for lead, least in zip(last, accumulate(first, min), strict=True)) + 1


def test_one_two_and_three_streamers_deliver_the_rate(chain: ChainOfThree) -> None:
    kinds = {chain.topic(number, latest=kind.latest): kind for number, kind in enumerate(TOPICS)}
    for topic, kind in kinds.items():
        chain.subscribe(topic, kind.depth, kind.limit_hz)
    for topic, kind in kinds.items():
        chain.wait_flow(topic, kind.depth)
    short: dict[str, list[RateFound]] = {}
    for _ in range(ROUNDS):
        publications = sorted(each for topic, kind in kinds.items() for each in schedule(topic, kind))
        sent = publish_all(chain.publisher, publications)
        for topic, kind in list(kinds.items()):
            found = _rate_found(chain.application(kind.depth), topic, kind, sent)
            assert found.burst <= BOUND, (kind, found)
            assert found.in_order, (kind, found)
            if found.delivered >= least(found.possible):
                del kinds[topic]
            else:
                short.setdefault(str(kind), []).append(found)
        if not kinds:
            break
    assert not kinds, short


class RateFound(NamedTuple):
    delivered: int
    possible: float
    burst: float
    in_order: bool


def least(possible: float) -> float:
    """0.99, less one message at each end."""
    return 0.99 * possible - 2


def _rate_found(application: ZenohEntity, topic: Uri, kind: LimitedTopic, sent: dict[Id, float]) -> RateFound:
    possible = min(HZ, kind.limit_hz) * SECONDS

    def delivered() -> list[ZenohSample]:
        return [each for each in application.events(topic) if each.head.id in sent]

    quiet_until = time.monotonic() + QUIET_S
    count = len(delivered())
    while count < least(possible) and time.monotonic() < quiet_until:
        time.sleep(0.05)
        if count != (count := len(delivered())):
            quiet_until = time.monotonic() + QUIET_S
    samples = delivered()
    order = {id: number for number, id in enumerate(sent)}
    numbers = [order[each.head.id] for each in samples]
    return RateFound(
        len(samples),
        possible,
        certain_burst(samples, sent, kind.limit_hz),
        numbers == sorted(set(numbers)),
    )


def test_a_lifted_limit_keeps_the_order_of_mode_latest(chain: ChainOfThree) -> None:
    """Each change releases what a gate holds. Nothing overtakes, and the last message arrives."""
    topic = chain.topic(0x3F, latest=True)
    chain.subscribe(topic, 3, 10.0)
    chain.wait_flow(topic, 3)
    messages = 800

    def publish() -> None:
        for number in range(messages):
            chain.publisher.publish(topic, b"%d" % number)
            time.sleep(1 / 400)

    thread = Thread(target=publish)
    thread.start()
    changes = 0
    while thread.is_alive():
        chain.subscribe(topic, 3, None if changes % 2 == 0 else 10.0)
        changes += 1
    thread.join()
    chain.subscribe(topic, 3, 10.0)
    for number in range(messages, messages + 3):  # mode drop would lose the last one
        chain.publisher.publish(topic, b"%d" % number)
    chain.application(3).inbox.wait_one(lambda each: each.payload == b"%d" % (messages + 2))
    numbers = [int(each.payload) for each in chain.application(3).events(topic) if each.payload != b"?"]
    assert changes >= 3
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == messages + 2
