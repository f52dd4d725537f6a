# SPDX-License-Identifier: Apache-2.0
"""Undeliverable messages are published as dead letters, on an ordinary topic."""

from collections.abc import Iterator

import pytest

from tests.e2e.delivery.dead_letters import DEAD_LETTER_TOPIC, DeadLetterMessage
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, ZenohSample
from tests.e2e.rigs.vehicle import CLIMATE, Vehicle
from tests.e2e.rigs.wire import Attributes, Uri


@pytest.fixture
def reader(vehicle: Vehicle) -> Iterator[ZenohEntity]:
    """A subscriber of dead letters, for one test only, since all tests make some."""
    with ZenohEntity(vehicle.ports.cloud, "cloud") as peer:
        peer.subscribe(DEAD_LETTER_TOPIC)
        yield peer
        peer.unsubscribe(DEAD_LETTER_TOPIC)


def _is_letter(sample: ZenohSample) -> bool:
    return sample.is_event and sample.head.source == DEAD_LETTER_TOPIC


def wait_dead_letter(reader: ZenohEntity, id: wire.Id) -> DeadLetterMessage:
    """Wait for the dead letter about a message."""

    def about(sample: ZenohSample) -> bool:
        return _is_letter(sample) and DeadLetterMessage.from_sample(sample).attributes.id == id

    return DeadLetterMessage.from_sample(reader.inbox.wait_one(about))


def test_a_request_without_a_route_becomes_a_dead_letter(
    vehicle: Vehicle, app: ZenohEntity, reader: ZenohEntity
) -> None:
    sent = Attributes(
        wire.new_id(),
        wire.REQUEST,
        app.address,
        Uri("chassis", 0x3FFF, 1, 1),
        priority=wire.CS4,
        ttl=5000,
        token="ignition",
        payload_format=wire.PROTOBUF,
    )
    app.send_message(sent, b"22 C")
    found = wait_dead_letter(reader, sent.id)
    assert (found.attributes, found.payload) == (sent, b"22 C")
    assert found.status == app.wait_response(sent.id).status
    assert found.status.code == wire.NOT_FOUND


def test_a_notification_to_someip_which_has_none_becomes_a_dead_letter(
    vehicle: Vehicle, app: ZenohEntity, reader: ZenohEntity
) -> None:
    sent = Attributes(
        wire.new_id(),
        wire.NOTIFICATION,
        app.address.at(0x8001),
        Uri("chassis", CLIMATE, 1),
        priority=wire.CS1,
    )
    app.send_message(sent, b"hello")
    found = wait_dead_letter(reader, sent.id)
    assert (found.attributes, found.payload) == (sent, b"hello")
    assert found.status.code == wire.UNIMPLEMENTED


def test_throttled_and_unwanted_events_are_no_dead_letters(
    vehicle: Vehicle, app: ZenohEntity, reader: ZenohEntity
) -> None:
    limited, unwanted = vehicle.unused_topic(), vehicle.unused_topic()
    app.subscribe(limited, max_frequency=1.0)
    for number in range(20):
        vehicle.send_event(limited, b"%d" % number)
        vehicle.send_event(unwanted, b"%d" % number)
    app.wait_events(limited)
    dead = app.send_request(Uri("chassis", 0x3FFF, 1, 1))
    wait_dead_letter(reader, dead)
    about = [
        DeadLetterMessage.from_sample(sample).attributes.source for sample in reader.inbox.items(_is_letter)
    ]
    assert limited not in about
    assert unwanted not in about
