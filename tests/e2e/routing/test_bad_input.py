# SPDX-License-Identifier: Apache-2.0
"""Bad input: a valid stream next to it arrives complete, in order and authentic, and the streamer continues."""

import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipNode, ZenohEntity
from tests.e2e.rigs.vehicle import OFFERED, SPEED, Vehicle
from tests.e2e.rigs.wire import Attributes, Id, Uri

TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
NOTIFY: Final = wire.SOMEIP_NOTIFICATION
FORGED: Final = b"forged"
ROUNDS: Final = 3


def _lying(length: int) -> bytes:
    return wire.someip(SPEED, 0x8001, NOTIFY, FORGED, length=length)


DATAGRAMS: Final = {
    "nothing": b"",
    "one byte": b"\x12",
    "half a header": wire.event(SPEED, 0x8001)[:7],
    "a header less one byte": wire.event(SPEED, 0x8001)[:15],
    "noise": bytes(range(255, 0, -1)) * 4,
    "length 0": _lying(0),
    "length 7": _lying(7),
    "length of the whole message": _lying(16 + len(FORGED)),
    "length 0x7FFFFFFF": _lying(0x7FFFFFFF),
    "length 0xFFFFFFFF": _lying(0xFFFFFFFF),
    "protocol version 2": wire.someip(SPEED, 0x8001, NOTIFY, FORGED, protocol_version=2),
    "protocol version 0": wire.someip(SPEED, 0x8001, NOTIFY, FORGED, protocol_version=0),
    "interface version 9": wire.someip(SPEED, 0x8001, NOTIFY, FORGED, interface_version=9),
    "an unknown message type": wire.someip(SPEED, 0x8001, 0x55, FORGED),
    "a segment of a longer message": wire.someip(SPEED, 0x8001, 0x22, FORGED),
    "an obsolete acknowledgement": wire.someip(SPEED, 0x8001, 0x42, FORGED),
    "an unknown service": wire.event(0x7777, 0x8001, FORGED),
    "an unknown event": wire.event(SPEED, 0x8FFF, FORGED),
    "the event of an offered service": wire.event(OFFERED, 0x8001, FORGED),
    "service discovery": bytes.fromhex(
        "ffff8100000000300000000101010200c000000000000010010000101234567801000003000000000000000c000904007f"
        "0000010011772d"
    ),
    "a magic cookie": bytes.fromhex("ffff000000000008deadbeef01010100"),
    "a response without a request": wire.someip(SPEED, 0x0001, wire.SOMEIP_RESPONSE, FORGED, client=1),
    "an error without a request": wire.someip(SPEED, 0x0001, wire.SOMEIP_ERROR, FORGED, return_code=1),
    "an event that calls itself a request": wire.someip(SPEED, 0x8001, wire.SOMEIP_REQUEST, FORGED),
    "a request as client 0xFFFF": wire.someip(OFFERED, 0x0001, wire.SOMEIP_REQUEST, FORGED, client=0xFFFF),
}

Put = tuple[str, bytes | None]
"""A Zenoh key and an attachment."""

OUTSIDER: Final = Uri("hpc.vin1", 0xBAD, 1)
OWN_TOPIC: Final = OUTSIDER.at(0x8001)


def _published(source: Uri = OWN_TOPIC) -> Attributes:
    return Attributes(wire.new_id(), wire.PUBLISH, source, priority=wire.CS1)


def _raw(*parts: bytes) -> bytes:
    return b"\x01" + b"".join(parts)


# Messages that do not reach the dispatcher, because they are not uProtocol messages.
NO_MESSAGES: Final[dict[str, Callable[[], Put]]] = {
    "no attachment": lambda: (wire.key(OWN_TOPIC), None),
    "an empty attachment": lambda: (wire.key(OWN_TOPIC), b""),
    "the version alone": lambda: (wire.key(OWN_TOPIC), b"\x01"),
    "version 2": lambda: (wire.key(OWN_TOPIC), b"\x02" + _published().encode()),
    "no version": lambda: (wire.key(OWN_TOPIC), _published().encode()),
    "noise": lambda: (wire.key(OWN_TOPIC), _raw(b"\xff" * 64)),
    "attributes cut off": lambda: (wire.key(OWN_TOPIC), _published().attachment[:-3]),
    "64 KiB of token": lambda: (wire.key(OWN_TOPIC), _published()._replace(token="x" * 65_536).attachment),
    "no id": lambda: (wire.key(OWN_TOPIC), _raw(wire.field(2, 1), wire.field(3, OWN_TOPIC.encode()))),
    "no source": lambda: (
        wire.key(OWN_TOPIC),
        _raw(wire.field(1, wire.new_id().encode()), wire.field(2, 1)),
    ),
    "a version of nine bits": lambda: (
        wire.key(OWN_TOPIC),
        _published(OWN_TOPIC._replace(version=0x1FF)).attachment,
    ),
    "an authority with a line break": lambda: (
        wire.key(OWN_TOPIC),
        _published(OWN_TOPIC._replace(authority="hpc\n")).attachment,
    ),
    "the key of another topic": lambda: (wire.key(OWN_TOPIC), _published(OUTSIDER.at(0x8002)).attachment),
    "the key of another authority": lambda: (wire.key(TOPIC), _published().attachment),
    "a publication under the key of a call": lambda: (
        wire.key(OUTSIDER, Uri("chassis", 0x3001, 1, 1)),
        _published().attachment,
    ),
    "a call under the key of a publication": lambda: (
        wire.key(OWN_TOPIC),
        Attributes(
            wire.new_id(), wire.REQUEST, OUTSIDER, Uri("chassis", 0x3001, 1, 1), priority=wire.CS4, ttl=1000
        ).attachment,
    ),
    "a key of ten chunks": lambda: (wire.key(OWN_TOPIC).rpartition("/")[0], _published().attachment),
    "a key that is not hexadecimal": lambda: (
        "up/hpc.vin1/XYZ/0/1/8001/{}/{}/{}/{}/{}",
        _published().attachment,
    ),
}

# Messages that the dispatcher rejects: they break the rules of their type.
INVALID: Final[dict[str, Callable[[], Attributes]]] = {
    "no type": lambda: _published()._replace(type=0),
    "an unknown type": lambda: _published()._replace(type=9),
    "an id of version 4": lambda: _published()._replace(id=Id(0x0190_0000_0000_4000, 1 << 63)),
    "an id of zeros": lambda: _published()._replace(id=Id(0, 0)),
    "a publication of a method": lambda: _published(OUTSIDER.at(0x0001)),
    "a publication of a uEntity": lambda: _published(OUTSIDER),
    "a priority that is none": lambda: _published()._replace(priority=8),
    "a notification to a method": lambda: _published()._replace(
        type=wire.NOTIFICATION, sink=Uri("chassis", 0x3001, 1, 1)
    ),
    "a response to nothing": lambda: Attributes(
        wire.new_id(),
        wire.RESPONSE,
        OUTSIDER.at(1),
        Uri("chassis", 0xAB1, 1),
        priority=wire.CS4,
        ttl=1000,
    ),
}

# Messages that the dispatcher denies: they are valid, but their source is at another endpoint.
SPOOFED: Final[dict[str, Callable[[], Attributes]]] = {
    "of the ECU": lambda: _published(TOPIC),
    "of the vehicle": lambda: _published(Uri("hpc.vin1", 0x1234, 1, 0x8001)),
    "of an unknown authority": lambda: _published(Uri("nowhere", 0x1234, 1, 0x8001)),
}


@pytest.fixture(scope="module")
def listener(vehicle: Vehicle) -> Iterator[ZenohEntity]:
    """A subscriber of TOPIC that stays: on a busy machine a closed session may look like a killed one.

    Then its last messages are sent again to the next subscriber.
    """
    with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as peer:
        peer.subscribe(TOPIC)
        yield peer


@pytest.mark.parametrize("datagram", DATAGRAMS.values(), ids=DATAGRAMS)
def test_an_invalid_datagram_is_never_forwarded_and_has_no_other_effect(
    vehicle: Vehicle, listener: ZenohEntity, datagram: bytes
) -> None:
    earlier = len(listener.events(TOPIC))
    vehicle.send_event(TOPIC, b"before")
    vehicle.ecu.send_to_port(datagram, vehicle.ports.someip)
    vehicle.send_event(TOPIC, b"behind")
    events = listener.wait_events(TOPIC, earlier + 2)[earlier:]
    assert [each.payload for each in events] == [b"before", b"behind"]
    assert vehicle.process.is_alive


def test_a_stream_is_unharmed_by_all_other_input(own_vehicle: Vehicle) -> None:
    ports = own_vehicle.ports
    in_the_vehicle, in_the_cloud = b"forged in the vehicle", b"forged in the cloud"
    sent: list[bytes] = []

    def go_on() -> None:
        sent.append(b"%d" % len(sent))
        own_vehicle.send_event(TOPIC, sent[-1], session=len(sent))

    with (
        ZenohEntity(ports.backbone, "hpc.vin1") as app,
        ZenohEntity(ports.backbone, OUTSIDER.authority, OUTSIDER.ue_id) as outsider,
        ZenohEntity(ports.cloud, "cloud") as fleet,
        SomeipNode(host="127.0.0.2") as impostor,
        SomeipNode() as prober,
    ):
        app.subscribe(TOPIC)
        fleet.subscribe(OWN_TOPIC)
        for _ in range(ROUNDS):
            for datagram in DATAGRAMS.values():
                for peer in (own_vehicle.ecu, prober):
                    peer.send_to_port(datagram, ports.someip)
                go_on()
            impostor.send_to_port(wire.event(TOPIC.ue_id, TOPIC.resource, FORGED), ports.someip)
            go_on()
            for made in NO_MESSAGES.values():
                key, attachment = made()
                outsider.put_raw(key, attachment, in_the_vehicle)
                fleet.put_raw(key, attachment, in_the_cloud)
                go_on()
            for invalid in INVALID.values():
                outsider.send_message(invalid(), in_the_vehicle)
                go_on()
            for spoofed in SPOOFED.values():
                fleet.send_message(spoofed(), in_the_cloud)
                go_on()
            outsider.session.delete(wire.key(OWN_TOPIC), attachment=_published().attachment)
            go_on()
        outsider.publish(OWN_TOPIC, b"the only true one")

        assert [sample.payload for sample in app.wait_events(TOPIC, len(sent))] == sent
        assert [sample.payload for sample in fleet.wait_events(OWN_TOPIC)] == [b"the only true one"]
        # A message in a network reaches its receivers there without a streamer. It must not have reached the other
        # network.
        assert app.inbox.items(lambda each: each.payload == in_the_cloud) == []
        assert fleet.inbox.items(lambda each: each.payload == in_the_vehicle) == []
        assert app.inbox.items(lambda each: each.payload == FORGED) == []
        assert own_vehicle.ecu.inbox.items(lambda frame: b"forged in the" in frame.raw) == []

    own_vehicle.process.stop()
    ledger = own_vehicle.process.ledger
    calls = 2  # of uSubscription, each with its response, the update for its caller ...
    published = 4  # ... and the change in two versions for the listeners of two networks
    assert ledger["delivered"] == len(sent) + 1 + (3 + published) * calls
    assert ledger["denied"] == ROUNDS * len(SPOOFED)
    assert [line for line in own_vehicle.process.log_records if line["level"] in {"error", "critical"}] == []


def test_a_message_ends_at_its_length(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    padded = wire.someip(topic.ue_id, topic.resource, NOTIFY, b"four" + b"\x00" * 5, length=8 + 4)
    vehicle.ecu.send_to_port(padded, vehicle.ports.someip)
    vehicle.send_event(topic, b"next")
    assert [each.payload for each in app.wait_events(topic, 2)] == [b"four", b"next"]


def test_an_event_from_another_address_than_its_service_has_is_refused(
    vehicle: Vehicle, app: ZenohEntity
) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    with SomeipNode(host="127.0.0.2") as impostor:
        impostor.send_to_port(wire.event(topic.ue_id, topic.resource, FORGED), vehicle.ports.someip)
    vehicle.send_event(topic, b"true")
    assert [each.payload for each in app.wait_events(topic)] == [b"true"]


def test_a_caller_with_a_foreign_authority_gets_an_error(vehicle: Vehicle, fleet: ZenohEntity) -> None:
    forged = Attributes(
        wire.new_id(),
        wire.REQUEST,
        Uri("hpc.vin1", 0x1234, 1),
        Uri("chassis", 0x3001, 1, 0x0001),
        priority=wire.CS4,
        ttl=1000,
    )
    answer = fleet.wait_response(fleet.send_message(forged, FORGED))
    assert answer.head.commstatus == wire.PERMISSION_DENIED
    assert answer.status.code == wire.PERMISSION_DENIED
    assert (
        vehicle.ecu.inbox.items(lambda frame: frame.message is not None and frame.message.payload == FORGED)
        == []
    )


def test_a_flood_of_garbage_does_not_delay_the_stream(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    flood = list(DATAGRAMS.values()) * 10
    began = time.monotonic()
    with SomeipNode() as prober:
        for number in range(20):
            for datagram in flood[number::20]:
                prober.send_to_port(datagram, vehicle.ports.someip)
            vehicle.send_event(topic, b"%d" % number)
            app.wait_events(topic, number + 1)
    assert (
        time.monotonic() - began < 20.0
    )  # one second for each endpoint; one alone could be late on a busy machine
