# SPDX-License-Identifier: Apache-2.0
"""A subscriber that calls StopDispatching loses nothing: its messages wait in the egress queue until it calls
StartDispatching, also across a restart.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

import pytest

from tests.host.streamer_bench import (
    OWN,
    TOPIC,
    Bench,
    FakeEndpoint,
    FakeTransportsPlugin,
    FakeUnicastTransport,
    NoConfig,
    fake,
    link,
    wait_persisted_letters,
)
from tests.host.waiting import eventually
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.egress.endpoint_queue import EndpointQueueStatistics
from ustreamer.host.storage.pause_file import NAME
from ustreamer.testing.messages import new_id
from ustreamer.transport_port import TransportKind
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.pb import ustreamer_v1 as pb
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import ANY_RESOURCE, UUri

START: Final = 1
STOP: Final = 2
OTHER: Final = TOPIC.with_resource(0x8002)
ALL: Final = TOPIC.with_resource(ANY_RESOURCE)
ANN, BOB = UUri("cloud", 0xA, 1, 0), UUri("cloud", 0xB, 1, 0)


class InlineTransport(FakeUnicastTransport):
    """A link whose messages are sent on the thread that dispatches them."""

    inline: ClassVar[bool] = True


class InlinePlugin(FakeTransportsPlugin):
    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        return {"inline": TransportKind(FakeEndpoint, InlineTransport)}


class Car:
    """A streamer: sensors behind `car`, and behind `cloud` the subscribers ANN and BOB of TOPIC, ANN also of OTHER."""

    def __init__(
        self, bench: Bench, transport: str = "inline", *sections: str, durable: bool = False
    ) -> None:
        self.streamer = bench.streamer(
            fake("car", OWN),
            fake("cloud", "cloud", transport=transport, durable=durable),
            *sections,
            extra={"inlines": InlinePlugin},
            state="state",
        )
        self.link = link(self.streamer, "cloud")
        self.streamer.start()

    def call(self, method: int, subscriber: UUri = ANN, topic: UUri = TOPIC) -> UCode:
        """StopDispatching or StartDispatching of a subscriber; returns the code of the response."""
        payload = pb.StopDispatchingRequest(topic=topic.to_pb()).SerializeToString()
        sink = UUri(OWN, 4, 1, method)
        call = request(new_id(), subscriber, sink, payload, UPayloadFormat.PROTOBUF, ttl=60_000)
        self.link.receive_message(call)

        def responses() -> list[UMessage]:
            return [each for _, each in self.link.sent if each.attributes.reqid == call.id]

        eventually(lambda: len(responses()) == 1, "the response")
        return responses()[0].attributes.commstatus or UCode.OK

    def publish(self, *numbers: int, topic: UUri = TOPIC, ttl: int | None = None) -> None:
        for each in numbers:
            link(self.streamer, "car").receive_message(publish(new_id(), topic, b"%d" % each, ttl=ttl))

    def received(self, subscriber: UUri | None = ANN) -> list[int]:
        """The publications that a subscriber received."""
        sent = [each for each in self.link.sent if each[1].attributes.type is UMessageType.PUBLISH]
        return [int(message.payload) for to, message in sent if to == subscriber]

    def wait_received(self, count: int, subscriber: UUri | None = ANN) -> list[int]:
        eventually(
            lambda: len(self.received(subscriber)) >= count, f"{count}, not {self.received(subscriber)}"
        )
        return self.received(subscriber)

    @property
    def queue(self) -> EndpointQueueStatistics:
        [queue] = [each for each in self.streamer.egress_queues() if each.endpoint == "cloud"]
        return queue

    def wait_waiting(self, count: int) -> None:
        eventually(lambda: self.queue.blocked == count, f"{count} that wait, not {self.queue}")


@pytest.fixture(autouse=True)
def subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [Subscription(TOPIC, ANN), Subscription(TOPIC, BOB), Subscription(OTHER, ANN)]

    def configured(transport: FakeUnicastTransport) -> list[Subscription]:
        return known if transport.name == "cloud" else []

    monkeypatch.setattr("tests.host.streamer_bench.FakeTransport.subscriptions", configured)


@pytest.mark.parametrize("transport", ["inline", "sessions"])
def test_205_messages_published_while_stopped_are_sent_in_order_at_the_start(
    bench: Bench, transport: str
) -> None:
    car = Car(bench, transport)
    car.publish(0)
    car.wait_received(1)
    assert car.call(STOP) is UCode.OK
    car.publish(*range(1, 206))
    car.wait_waiting(205)
    assert (car.received(), car.wait_received(206, BOB)) == ([0], list(range(206)))
    assert car.call(START) is UCode.OK
    car.publish(*range(206, 210))
    assert car.wait_received(210) == list(range(210))
    ledger = car.streamer.ledger()
    assert (ledger.no_subscriber, ledger.dead_lettered, ledger.queued) == (0, 0, 0)
    assert car.queue.retries == 0


@pytest.mark.parametrize("transport", ["inline", "sessions", "fake"])
def test_a_batch_with_a_stopped_topic_waits_for_the_start_and_the_others_do_not(
    bench: Bench, transport: str
) -> None:
    """`fake` is one target for all subscribers: it is stopped when all of them are."""
    car = Car(bench, transport)
    to = None if transport == "fake" else ANN
    for each in (ANN, BOB):
        car.call(STOP, each)
    mixed = [publish(new_id(), (TOPIC, OTHER)[n % 2], b"%d" % n) for n in range(40)]
    equal = MessageBatch.from_messages([publish(new_id(), TOPIC, b"%d" % n) for n in range(40, 60)])
    assert equal is not None
    ingress = car.streamer.dispatcher.ingress("car")
    ingress.on_batch(mixed)
    ingress.on_batch(equal)
    assert car.wait_received(20, to) == list(range(1, 40, 2))
    car.wait_waiting(40 if to is None else 80)
    for each in (ANN, BOB):
        car.call(START, each)
    assert car.wait_received(60, to)[20:] == [*range(0, 40, 2), *range(40, 60)]


def test_in_a_multicast_domain_messages_continue_until_all_subscribers_have_stopped(bench: Bench) -> None:
    car = Car(bench, "fake")
    car.call(STOP, ANN)
    car.publish(1)
    assert car.wait_received(1, None) == [1]
    car.call(STOP, BOB)
    car.publish(2)
    car.wait_waiting(1)
    car.call(START, ANN)
    assert car.wait_received(2, None) == [1, 2]


def test_a_pattern_stops_all_topics_of_the_caller_and_only_the_same_pattern_starts_them(bench: Bench) -> None:
    car = Car(bench)
    car.call(STOP, topic=ALL)
    car.publish(1)
    car.publish(2, topic=OTHER)
    car.wait_waiting(2)
    car.call(START, topic=TOPIC)
    car.publish(3)
    car.wait_waiting(3)
    car.call(START, topic=ALL)
    assert sorted(car.wait_received(3)) == [1, 2, 3]


def test_what_has_no_room_while_stopped_is_a_dead_letter_and_what_is_too_old_expires(bench: Bench) -> None:
    car = Car(bench, "inline", "[egress.cloud]\nqueue_messages = 10\nsubscriber_messages = 5")
    car.call(STOP)
    car.publish(*range(5))
    car.wait_waiting(5)
    car.publish(5, 6, 7)
    letters = [car.streamer.dead_letter_writer.store.get(n) for n in wait_persisted_letters(car.streamer, 3)]
    assert [(each.message.payload, each.status.code) for each in letters] == [
        (b"%d" % n, UCode.RESOURCE_EXHAUSTED) for n in (5, 6, 7)
    ]
    car.publish(8, topic=OTHER)
    assert car.wait_received(1) == [8], "another topic of the same subscriber does not wait"
    car.call(START)
    assert car.wait_received(6) == [8, *range(5)]
    car.call(STOP)
    car.publish(9, ttl=50)
    eventually(lambda: car.queue.expired == 1, "the expiry")
    letter = car.streamer.dead_letter_writer.store.get(wait_persisted_letters(car.streamer, 4)[-1])
    assert (letter.status.code, letter.attempts) == (UCode.DEADLINE_EXCEEDED, 0)


def test_a_pause_survives_a_restart_and_so_do_the_messages_of_a_durable_endpoint(bench: Bench) -> None:
    first = Car(bench, durable=True)
    first.call(STOP)
    first.publish(*range(20))
    eventually(lambda: first.queue.persisted == 20, "messages on disk")
    assert first.streamer.stop(0) == 0
    second = Car(bench, durable=True)
    second.publish(20, 21)
    second.wait_waiting(22)
    [stopped] = second.streamer.routes().stopped
    assert (stopped.topic, stopped.subscriber, second.streamer.statistics().stopped_topics) == (TOPIC, ANN, 1)
    second.call(START)
    assert second.wait_received(22) == list(range(22))
    second.streamer.stop(0)
    third = Car(bench, durable=True)
    third.publish(22)
    assert (third.wait_received(1), third.streamer.routes().stopped) == ([22], ())


def test_restored_messages_without_a_pause_are_sent_at_once(bench: Bench) -> None:
    first = Car(bench, durable=True)
    first.call(STOP)
    first.publish(1)
    eventually(lambda: first.queue.persisted == 1, "a message on disk")
    first.streamer.stop(0)
    (first.streamer.context.state_dir / NAME).unlink()
    assert Car(bench, durable=True).wait_received(1) == [1]


def test_a_damaged_file_pauses_nothing_and_is_moved_aside(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first = Car(bench)
    first.call(STOP)
    first.streamer.stop(0)
    file = first.streamer.context.state_dir / NAME
    contents = bytearray(file.read_bytes())
    contents[-3] ^= 1
    file.write_bytes(contents)
    with caplog.at_level(logging.ERROR):
        second = Car(bench)
    assert "streamer.stopped_topics_damaged" in caplog.messages
    assert [each.name for each in file.parent.glob(f"{NAME}*")] == [f"{NAME}.damaged"]
    second.publish(1)
    assert second.wait_received(1) == [1]


def test_a_stop_that_cannot_be_written_is_refused_and_a_start_is_in_force(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    car = Car(bench)
    assert car.call(STOP, topic=OTHER) is UCode.OK

    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    assert car.call(STOP) is UCode.RESOURCE_EXHAUSTED
    car.publish(1)
    assert car.wait_received(1) == [1]
    assert car.call(START, topic=OTHER) is UCode.OK
    assert "ustreamer_service.not_persisted" in caplog.messages
    car.publish(2, topic=OTHER)
    assert car.wait_received(2) == [1, 2]


def test_the_end_of_a_stop_reports_what_waits_for_a_stopped_subscriber(bench: Bench) -> None:
    car = Car(bench)
    car.call(STOP)
    car.publish(1)
    car.wait_waiting(1)
    assert car.streamer.stop(0) == 0
    ledger = car.streamer.ledger()
    assert (ledger.dead_lettered, ledger.queued) == (1, 0)


def test_a_topic_with_another_priority_keeps_the_order_of_its_class(bench: Bench) -> None:
    car = Car(bench)
    car.call(STOP)
    for n in range(10):
        priority = (UPriority.CS1, UPriority.CS5)[n % 2]
        link(car.streamer, "car").receive_message(publish(new_id(), TOPIC, b"%d" % n, priority=priority))
    car.wait_waiting(10)
    car.call(START)
    received = car.wait_received(10)
    assert [[n for n in received if n % 2 == odd] for odd in (0, 1)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_the_file_is_in_the_state_directory_while_something_is_stopped(bench: Bench, tmp_path: Path) -> None:
    car = Car(bench)
    assert not (tmp_path / "state" / NAME).exists()
    car.call(STOP)
    assert (tmp_path / "state" / NAME).exists()
    car.call(START)
    assert not (tmp_path / "state" / NAME).exists()
