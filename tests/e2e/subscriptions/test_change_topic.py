# SPDX-License-Identifier: Apache-2.0
"""The change topic reaches entities that only listen on their network, without a Subscribe of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SUBSCRIPTION_CHANGE, USUBSCRIPTION, ZenohEntity, ZenohSample, eventually
from tests.e2e.rigs.vehicle import Vehicle
from tests.e2e.rigs.wire import Uri

CHANGES = [
    Uri(USUBSCRIPTION.authority, USUBSCRIPTION.ue_id, version, SUBSCRIPTION_CHANGE) for version in (3, 4)
]
DEAD_LETTERS = Uri("hpc.vin1", 4, 1, 0x8000)


@pytest.fixture
def subscriber(own_vehicle: Vehicle) -> Iterator[ZenohEntity]:
    """An application that receives its own messages only, so that the change topic has no listener."""
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1", 0x7001, listen_to="up/*/7001/0/1/0/**") as peer:
        peer.listen("up/*/*/*/*/*/hpc.vin1/7001/0/1/0")
        yield peer


def listen_only(port: int, authority: str, exit_stack: ExitStack) -> ZenohEntity:
    listener = ZenohEntity(port, authority, listen_to=wire.key(CHANGES[0]))
    exit_stack.enter_context(listener)
    listener.listen(wire.key(CHANGES[1]))
    return listener


def change(listener: ZenohEntity, channel: Uri, topic: Uri) -> list[ZenohSample]:
    """The changes of the subscriptions of `topic` that were published on `channel`."""
    about = wire.topic_request(topic)
    return [each for each in listener.events(channel) if each.payload.startswith(about)]


def change_twice(subscriber: ZenohEntity, topic: Uri) -> None:
    subscriber.subscribe(topic)
    subscriber.unsubscribe(topic)


# [itest->req~usubscription-change-topic~1] [itest->dsn~usubscription-change-notification-topic~1]
def test_an_entity_that_only_listens_gets_each_change_once_in_both_versions(
    own_vehicle: Vehicle, subscriber: ZenohEntity
) -> None:
    with ExitStack() as exit_stack:
        listeners = [
            listen_only(own_vehicle.ports.backbone, "hpc.vin1", exit_stack),
            listen_only(own_vehicle.ports.cloud, "cloud", exit_stack),
        ]
        topics = [own_vehicle.unused_topic() for _ in range(3)]
        for topic in topics:
            change_twice(subscriber, topic)
        for listener in listeners:
            for channel in CHANGES:
                for topic in topics:
                    eventually(lambda: len(change(listener, channel, topic)), 2)  # noqa: B023 - called at once
                heads = [each.head for each in listener.events(channel)]
                assert {(each.type, each.sink) for each in heads} == {(wire.PUBLISH, None)}
                assert set(Counter(each.id for each in heads).values()) == {1}
        own_vehicle.process.stop()
        for listener in listeners:
            assert [len(listener.events(channel)) for channel in CHANGES] == [6, 6]
    assert own_vehicle.process.ledger["dead_lettered"] == 0


# [itest->req~usubscription-change-topic~1]
@pytest.mark.parametrize("max_frequency", [None, 0.001])
def test_a_listener_that_also_subscribes_gets_each_change_once_and_no_fewer(
    own_vehicle: Vehicle, subscriber: ZenohEntity, max_frequency: float | None
) -> None:
    """Also at a low rate of its own: others may listen on its network."""
    channel = CHANGES[0]
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as listener:
        listener.subscribe(channel, max_frequency=max_frequency)
        topic = own_vehicle.unused_topic()
        change_twice(subscriber, topic)
        eventually(lambda: len(change(listener, channel, topic)), 2)
        listener.unsubscribe(channel)
        change_twice(subscriber, topic)
        eventually(lambda: len(change(listener, channel, topic)), 4)
        own_vehicle.process.stop()
        ids = Counter(each.head.id for each in listener.events(channel))
        assert set(ids.values()) == {1}
        assert len(change(listener, channel, topic)) == 4


# [itest->req~usubscription-change-topic~1]
def test_without_a_listener_a_change_is_no_dead_letter_and_no_loss_and_logs_nothing(
    own_vehicle: Vehicle, subscriber: ZenohEntity
) -> None:
    topics = [own_vehicle.unused_topic() for _ in range(10)]
    for topic in topics:
        change_twice(subscriber, topic)
    own_vehicle.process.stop()
    ledger = own_vehicle.process.ledger
    assert ledger["dead_lettered"] == ledger["expired"] == ledger["queued"] == 0
    # Two versions, two Zenoh networks.
    assert ledger["no_subscriber"] == 2 * len(topics) * 2 * 2
    assert "route_unavailable" not in own_vehicle.process.output


# [itest->req~usubscription-change-topic~1]
def test_a_listener_that_leaves_and_comes_back_costs_no_dead_letter(
    own_vehicle: Vehicle, subscriber: ZenohEntity
) -> None:
    for _ in range(3):
        with ExitStack() as exit_stack:
            listener = listen_only(own_vehicle.ports.backbone, "hpc.vin1", exit_stack)
            topic = own_vehicle.unused_topic()
            change_twice(subscriber, topic)
            eventually(lambda: len(change(listener, CHANGES[0], topic)), 2)  # noqa: B023 - called at once
            for _ in range(5):
                change_twice(subscriber, own_vehicle.unused_topic())
        for _ in range(5):
            change_twice(subscriber, own_vehicle.unused_topic())
    own_vehicle.process.stop()
    assert own_vehicle.process.ledger["dead_lettered"] == 0
    assert "route_unavailable" not in own_vehicle.process.output
