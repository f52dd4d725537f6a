# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP event is forwarded unchanged to its subscribers, and to no other entity."""

import time

import pytest
import zenoh

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, ZenohSample
from tests.e2e.rigs.vehicle import SECOND_SPEED, Vehicle
from tests.e2e.rigs.wire import Uri


def payloads(samples: list[ZenohSample]) -> list[bytes]:
    return [sample.payload for sample in samples]


# [itest->req~usubscription-subscribe~1] [itest->dsn~usubscription-interaction-subscriber~1]
# [itest->aou~usubscription-interaction-subscriber~1] The application listens all the time; alone that brings nothing.
def test_an_event_reaches_a_subscriber_only_after_it_subscribed(vehicle: Vehicle, app: ZenohEntity) -> None:
    wanted, marker = vehicle.unused_topic(), vehicle.unused_topic()
    app.subscribe(marker)
    vehicle.send_event(wanted, b"too early")
    vehicle.send_event(marker)
    app.wait_events(marker)  # events keep their order, so the previous event has been processed
    assert app.events(wanted) == []

    app.subscribe(wanted)
    vehicle.send_event(wanted, b"in time")
    assert payloads(app.wait_events(wanted)) == [b"in time"]


# [itest->req~usubscription-unsubscribe~1]
def test_no_event_arrives_after_the_response_to_unsubscribe(vehicle: Vehicle, app: ZenohEntity) -> None:
    wanted, marker = vehicle.unused_topic(), vehicle.unused_topic()
    app.subscribe(wanted)
    app.subscribe(marker)
    vehicle.send_event(wanted, b"subscribed")
    app.wait_events(wanted)

    app.unsubscribe(wanted)
    vehicle.send_event(wanted, b"too late")
    vehicle.send_event(marker)
    app.wait_events(marker)
    assert payloads(app.events(wanted)) == [b"subscribed"]

    app.subscribe(wanted)
    vehicle.send_event(wanted, b"subscribed again")
    assert payloads(app.wait_events(wanted, 2)) == [b"subscribed", b"subscribed again"]


# [itest->dsn~up-transport-zenoh-attributes-mapping~1] [itest->dsn~up-transport-zenoh-key-expr~1]
# [itest->dsn~up-transport-zenoh-message-priority-mapping~1]
def test_an_event_arrives_as_a_publication_of_the_ecu(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    before_ms = time.time_ns() // 1_000_000
    vehicle.send_event(topic, b"12.5 m/s")
    [sample] = app.wait_events(topic)
    after_ms = time.time_ns() // 1_000_000

    assert sample.key == f"up/chassis/1234/0/1/{topic.resource:X}/{{}}/{{}}/{{}}/{{}}/{{}}"
    assert sample.attachment[0] == 1
    assert sample.payload == b"12.5 m/s"
    assert sample.priority == zenoh.Priority.DATA_LOW
    id = sample.head.id
    assert id.is_version_7
    assert before_ms <= id.time_ms <= after_ms
    # SOME/IP has no attributes, so the message has only the type, the source and the class of an event.
    assert sample.head == wire.Attributes(id, wire.PUBLISH, topic, priority=wire.CS1)


@pytest.mark.parametrize(
    "payload",
    [b"", bytes(range(256)), b"\x00" * 1400, b"\xff" * 60_000],
    ids=["nothing", "every byte", "a full frame", "a fragmented datagram"],
)
def test_a_payload_is_forwarded_unchanged(vehicle: Vehicle, app: ZenohEntity, payload: bytes) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    vehicle.send_event(topic, payload)
    assert payloads(app.wait_events(topic)) == [payload]


def test_the_instance_of_a_service_is_the_upper_half_of_its_uentity(
    vehicle: Vehicle, app: ZenohEntity
) -> None:
    topic = Uri("chassis", 2 << 16 | SECOND_SPEED, 1, 0x8001)
    app.subscribe(topic)
    vehicle.send_event(topic)
    [sample] = app.wait_events(topic)
    assert sample.key.startswith("up/chassis/1235/2/1/8001/")


def test_many_events_arrive_once_each_in_their_order_with_ids_of_their_own(
    vehicle: Vehicle, app: ZenohEntity
) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    sent = [f"{number}".encode() for number in range(500)]
    for number, payload in enumerate(sent, 1):
        vehicle.send_event(topic, payload, session=number)
    arrived = app.wait_events(topic, len(sent))
    assert payloads(arrived) == sent
    assert len({sample.head.id for sample in arrived}) == len(sent)


def test_every_event_in_a_datagram_of_several_arrives(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    several = b"".join(wire.event(topic.ue_id, topic.resource, b"%d" % number) for number in range(3))
    vehicle.ecu.send_to_port(several, vehicle.ports.someip)
    assert payloads(app.wait_events(topic, 3)) == [b"0", b"1", b"2"]


# [itest->req~usubscription-subscribe-multiple~1]
def test_subscribing_twice_does_not_bring_anything_twice(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic, marker = vehicle.unused_topic(), vehicle.unused_topic()
    app.subscribe(topic)
    app.subscribe(topic)
    app.subscribe(marker)
    vehicle.send_event(topic, b"once")
    vehicle.send_event(marker)
    app.wait_events(marker)
    assert payloads(app.events(topic)) == [b"once"]


def test_subscribers_of_one_network_share_a_message_and_leave_one_by_one(
    vehicle: Vehicle, app: ZenohEntity
) -> None:
    topic, marker = vehicle.unused_topic(), vehicle.unused_topic()
    with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as other:
        app.subscribe(topic)
        app.subscribe(marker)
        other.subscribe(topic)
        vehicle.send_event(topic, b"for both")
        assert app.wait_events(topic)[0].attachment == other.wait_events(topic)[0].attachment

        other.unsubscribe(topic)
        vehicle.send_event(topic, b"for the other one")
        assert payloads(app.wait_events(topic, 2)) == [b"for both", b"for the other one"]

        app.unsubscribe(topic)
        vehicle.send_event(topic, b"no receiver")
        vehicle.send_event(marker)
        app.wait_events(marker)
        assert payloads(app.events(topic)) == [b"for both", b"for the other one"]
