# SPDX-License-Identifier: Apache-2.0
"""What cannot be delivered is said aloud, on a topic like any other."""

from collections.abc import Iterator

import pytest

from tests.e2e import wire
from tests.e2e.letters import DEAD_LETTERS, DeadLetter
from tests.e2e.peers import Sample, ZenohPeer
from tests.e2e.vehicle import CLIMATE, Vehicle
from tests.e2e.wire import Attributes, Uri


@pytest.fixture
def reader(vehicle: Vehicle) -> Iterator[ZenohPeer]:
    """Somebody who subscribed dead letters; not for longer than a test, since all of them make some."""
    with ZenohPeer(vehicle.ports.cloud, "cloud") as peer:
        peer.subscribe(DEAD_LETTERS)
        yield peer
        peer.unsubscribe(DEAD_LETTERS)


def letter(reader: ZenohPeer, id: wire.Id) -> DeadLetter:
    """Wait for the dead letter about a message."""

    def about(sample: Sample) -> bool:
        return sample.is_event and DeadLetter.read(sample).attributes.id == id

    return DeadLetter.read(reader.inbox.one(about))


def test_a_request_to_nobody_becomes_a_dead_letter(
    vehicle: Vehicle, app: ZenohPeer, reader: ZenohPeer
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
    app.send(sent, b"22 C")
    found = letter(reader, sent.id)
    assert (found.attributes, found.payload) == (sent, b"22 C")
    assert found.status == app.answer(sent.id).status
    assert found.status.code == wire.NOT_FOUND


def test_a_notification_to_someip_which_has_none_becomes_a_dead_letter(
    vehicle: Vehicle, app: ZenohPeer, reader: ZenohPeer
) -> None:
    sent = Attributes(
        wire.new_id(),
        wire.NOTIFICATION,
        app.address.at(0x8001),
        Uri("chassis", CLIMATE, 1),
        priority=wire.CS1,
    )
    app.send(sent, b"hello")
    found = letter(reader, sent.id)
    assert (found.attributes, found.payload) == (sent, b"hello")
    assert found.status.code == wire.UNIMPLEMENTED


def test_throttled_and_unwanted_events_are_no_dead_letters(
    vehicle: Vehicle, app: ZenohPeer, reader: ZenohPeer
) -> None:
    limited, unwanted = vehicle.fresh_topic(), vehicle.fresh_topic()
    app.subscribe(limited, max_frequency=1.0)
    for number in range(20):
        vehicle.emit(limited, b"%d" % number)
        vehicle.emit(unwanted, b"%d" % number)
    app.wait_events(limited)
    dead = app.request(Uri("chassis", 0x3FFF, 1, 1))
    letter(reader, dead)
    about = [DeadLetter.read(sample).attributes.source for sample in reader.inbox.all(lambda s: s.is_event)]
    assert limited not in about
    assert unwanted not in about
