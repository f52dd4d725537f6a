# SPDX-License-Identifier: Apache-2.0
"""ECUs without configured addresses, with Zenoh on the other side: found, called, subscribed and served."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.discovery.sd_vehicle import (
    CLIMATE,
    OFFERED,
    PROVIDER,
    SPEED,
    SUBSCRIBE_PENDING,
    SdVehicle,
    offered_service_toml,
    service_toml,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, SILENT, USUBSCRIPTION, ZenohEntity, ZenohSample, eventually
from tests.e2e.rigs.sd_ecu import SdNotification
from tests.e2e.rigs.wire import Uri

REMOTE_SERVICE: Final = 0x4002
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
OTHER: Final = Uri("chassis", SPEED, 1, 0x8002)

FETCH_SUBSCRIBERS: Final = 8

SERVICES: Final = (
    service_toml(
        SPEED,
        "events = [{ id = 0x8001, eventgroup = 1 }, { id = 0x8002, eventgroup = 1 }, { id = 0x8003, eventgroup = 2 }]",
    ),
    service_toml(CLIMATE, "methods = [0x0001, 0x0004]"),
    offered_service_toml(
        OFFERED,
        "events = [{ id = 0x8001, eventgroup = [1, 3] }, { id = 0x8002, eventgroup = 2, field = true }]",
        "methods = [0x0001]",
    ),
    offered_service_toml(
        REMOTE_SERVICE, "events = [{ id = 0x8001, eventgroup = 1 }]", provider=Uri("cloud", 0x8402, 1)
    ),
)


@pytest.fixture
def car(tmp_path: Path) -> Iterator[SdVehicle]:
    with ExitStack() as stack:
        yield SdVehicle(stack, tmp_path, *SERVICES)


def test_an_offered_service_can_be_called(car: SdVehicle) -> None:
    waiting = car.app.send_request(Uri("chassis", CLIMATE, 1, ECHO), b"early")
    ecu = car.new_ecu()
    ecu.offer(CLIMATE)

    assert car.app.wait_response(waiting).payload == b"early"  # the request waited for the service
    assert car.app.call(Uri("chassis", CLIMATE, 1, ECHO), b"22").payload == b"22"


def test_a_pending_call_fails_when_the_service_is_lost(car: SdVehicle) -> None:
    ecu = car.new_ecu()
    ecu.offer(CLIMATE)
    call_id = car.app.send_request(Uri("chassis", CLIMATE, 1, SILENT), b"?", ttl=600_000)
    ecu.data_socket.inbox.wait_one(lambda frame: frame.head.method_id == SILENT)

    ecu.stop_offer(CLIMATE)

    answer = car.app.wait_response(call_id)
    assert answer.head.commstatus == wire.UNAVAILABLE
    assert "went (stopped)" in answer.status.message


def test_a_topic_is_subscribed_when_its_ecu_appears(car: SdVehicle) -> None:
    assert car.subscription_state(TOPIC) == SUBSCRIBE_PENDING
    ecu = car.new_ecu()
    ecu.offer(SPEED, 1, 2)
    ecu.notifications.wait_one(lambda seen: seen == SdNotification("subscribed", SPEED, 1))

    eventually(lambda: car.subscription_state(TOPIC), wire.SUBSCRIBED)
    ecu.send_event(SPEED, 0x8001, b"fast", car.address)
    assert car.app.wait_events(TOPIC)[0].payload == b"fast"
    # No subscriber needs an event of group 2.
    assert ecu.notifications.items(lambda seen: seen.eventgroup == 2) == []


def test_the_last_subscriber_of_a_group_ends_its_subscription(car: SdVehicle) -> None:
    ecu = car.new_ecu()
    ecu.offer(SPEED, 1, 2)
    for topic in (TOPIC, OTHER):
        eventually(lambda topic=topic: car.subscription_state(topic), wire.SUBSCRIBED)  # type: ignore[misc]

    car.app.unsubscribe(TOPIC)
    car.app.unsubscribe(OTHER)

    ecu.notifications.wait_one(lambda seen: seen == SdNotification("unsubscribed", SPEED, 1))


def test_an_ecu_finds_and_calls_an_offered_service(car: SdVehicle) -> None:
    with ZenohEntity(car.ports.zenoh, "hpc.vin1", PROVIDER.ue_id) as provider:
        ecu = car.new_ecu()
        ecu.find(OFFERED)
        ecu.notifications.wait_one(lambda seen: seen == SdNotification("offered", OFFERED))
        ecu.data_socket.send_to(
            wire.someip(OFFERED, 1, wire.SOMEIP_REQUEST, b"?", client=7, session=9), car.address
        )
        call_id = provider.inbox.wait_one(
            lambda sample: sample.attributes is not None and sample.head.sink is not None
        )
        provider.respond(call_id, b"!")
        answer = ecu.data_socket.inbox.wait_one(
            lambda frame: frame.head.message_type.value == wire.SOMEIP_RESPONSE
        )
    assert (answer.head.client_id, answer.head.session_id, answer.head.payload) == (7, 9, b"!")


def test_a_subscribed_ecu_receives_events_until_its_stop(car: SdVehicle) -> None:
    provider = car.new_app()
    ecu = car.new_ecu()
    topic = PROVIDER.at(0x8001)
    ecu.subscribe(OFFERED, 1)

    def arrived() -> bool:
        provider.publish(topic, b"open")
        return bool(ecu.data_socket.inbox.items(lambda frame: frame.head.payload == b"open"))

    eventually(arrived, True)
    frame = ecu.data_socket.inbox.items()[0]
    assert frame.sender == car.address
    assert (frame.head.service_id, frame.head.method_id, frame.head.interface_version) == (OFFERED, 0x8001, 1)
    ecu.unsubscribe(OFFERED, 1)
    eventually(lambda: len(ecu_subscribers(car, topic)), 0)


def test_an_event_in_two_groups_reaches_the_subscribers_of_either(car: SdVehicle) -> None:
    provider, topic = car.new_app(), PROVIDER.at(0x8001)
    one, both = car.new_ecu(), car.new_ecu()
    one.subscribe(OFFERED, 1)
    both.subscribe(OFFERED, 1)
    both.subscribe(OFFERED, 3)
    eventually(lambda: len(ecu_subscribers(car, topic)), 2)
    both.unsubscribe(OFFERED, 1)

    def arrived() -> bool:
        provider.publish(topic, b"open")
        return all(
            ecu.data_socket.inbox.items(lambda frame: frame.head.payload == b"open") for ecu in (one, both)
        )

    eventually(arrived, True)
    for payload in (b"once", b"last"):
        provider.publish(topic, payload)
    for ecu in (one, both):
        ecu.data_socket.inbox.wait_one(lambda frame: frame.head.payload == b"last")
        assert len(ecu.data_socket.inbox.items(lambda frame: frame.head.payload == b"once")) == 1


def test_an_ecu_subscription_to_a_remote_topic_is_forwarded(car: SdVehicle) -> None:
    topic, usubscription = Uri("cloud", 0x8402, 1, 0x8001), Uri("cloud", 0, 3)
    with ZenohEntity(car.ports.zenoh, "cloud", 0) as cloud:
        ecu = car.new_ecu()
        ecu.subscribe(REMOTE_SERVICE, 1)
        call_id = cloud.inbox.wait_one(
            lambda each: each.attributes is not None and each.head.sink == usubscription.at(wire.SUBSCRIBE)
        )
        assert call_id.head.source == USUBSCRIPTION.at(0)
        assert call_id.payload.startswith(wire.topic_request(topic))
        cloud.respond(call_id, wire.field(1, wire.field(1, wire.SUBSCRIBED)) + wire.field(3, topic.encode()))

        def arrived() -> bool:
            cloud.publish(topic, b"rain")
            return bool(ecu.data_socket.inbox.items(lambda frame: frame.head.payload == b"rain"))

        eventually(arrived, True)
        ecu.unsubscribe(REMOTE_SERVICE, 1)
        cloud.inbox.wait_one(
            lambda each: each.attributes is not None and each.head.sink == usubscription.at(wire.UNSUBSCRIBE)
        )


def ecu_subscribers(car: SdVehicle, topic: Uri) -> list[Uri]:
    """The subscribers of a topic, except the applications of these tests."""
    answer = car.app.call(USUBSCRIPTION.at(FETCH_SUBSCRIBERS), wire.topic_request(topic))
    return [each for each in wire.subscribers_in(answer.payload) if each.authority == "chassis"]


def is_update(sample: ZenohSample) -> bool:
    return sample.attributes is not None and sample.head.source.resource == 0x8000
