# SPDX-License-Identifier: Apache-2.0
"""The bytes and keys on a real Zenoh network, with a plain session as the other node.

Keys and attachments are written by hand from the specification; nothing here is made by the code under test.
"""

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
import zenoh
from zenoh import CongestionControl, Priority

from tests.transports.zenoh.sessions import endpoint, free_locator, plain_session, wait_for_link
from tests.waiting import wait_until
from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import code_of
from ustreamer.transports.zenoh.decoder import SampleRefusalReason
from ustreamer.transports.zenoh.route_publishers import PRIORITIES
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY, UUri

FIRST: Final = UUID(0x018D548EA8E07000, 0x8000000000000001)
SECOND: Final = UUID(0x018D548EA8E07000, 0x8000000000000002)
ID_1: Final = "0a12090070e0a88e548d01110100000000000080"
ID_2: Final = "0a12090070e0a88e548d01110200000000000080"
TOPIC: Final = UUri("device1", 0x10AB, 3, 0x80CD)
TOPIC_KEY: Final = "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"


class Vector(NamedTuple):
    message: UMessage
    key: str
    attachment: str
    priority: Priority


VECTORS: Final = {
    "publish": Vector(
        UMessage(FIRST, UAttributes(type=UMessageType.PUBLISH, source=TOPIC), b"\x00\x01\xff"),
        TOPIC_KEY,
        "01" + ID_1 + "10011a120a076465766963653110ab21180320cd8102",
        Priority.DATA_LOW,
    ),
    "publish with more": Vector(
        UMessage(
            FIRST,
            UAttributes(
                type=UMessageType.PUBLISH,
                source=TOPIC,
                priority=UPriority.CS2,
                ttl=0,
                payload_format=UPayloadFormat.TEXT,
            ),
        ),
        TOPIC_KEY,
        "01" + ID_1 + "10011a120a076465766963653110ab21180320cd8102280330006007",
        Priority.DATA,
    ),
    "notification": Vector(
        UMessage(
            FIRST,
            UAttributes(type=UMessageType.NOTIFICATION, source=TOPIC, sink=UUri("device2", 0x300EF, 4, 0)),
            b"n",
        ),
        "up/device1/10AB/0/3/80CD/device2/EF/3/4/0",
        "01" + ID_1 + "10041a120a076465766963653110ab21180320cd8102220f0a076465766963653210ef810c1804",
        Priority.DATA_LOW,
    ),
    "request": Vector(
        UMessage(
            FIRST,
            UAttributes(
                type=UMessageType.REQUEST,
                source=UUri("device1", 0x403AB, 3, 0),
                sink=UUri("device2", 0xCD, 4, 0xB),
                priority=UPriority.CS4,
                ttl=5000,
                permission_level=2,
                token="tok",
                payload_format=UPayloadFormat.PROTOBUF,
            ),
            b"q",
        ),
        "up/device1/3AB/4/3/0/device2/CD/0/4/B",
        "01" + ID_1 + "10021a0f0a076465766963653110ab8710180322100a076465766963653210cd011804200b"
        "280530882738025203746f6b6002",
        Priority.INTERACTIVE_LOW,
    ),
    "response": Vector(
        UMessage(
            SECOND,
            UAttributes(
                type=UMessageType.RESPONSE,
                source=UUri("device2", 0xCD, 4, 0xB),
                sink=UUri("device1", 0x403AB, 3, 0),
                priority=UPriority.CS4,
                ttl=5000,
                commstatus=UCode.NOT_FOUND,
                reqid=FIRST,
            ),
            b"r",
        ),
        "up/device2/CD/0/4/B/device1/3AB/4/3/0",
        "01"
        + ID_2
        + "10031a100a076465766963653210cd011804200b220f0a076465766963653110ab8710180328053088274005"
        "4a12090070e0a88e548d01110100000000000080",
        Priority.INTERACTIVE_LOW,
    ),
}


class Wire(NamedTuple):
    """A transport at device1, and a plain session connected to it."""

    transport: ZenohTransport
    session: zenoh.Session


@pytest.fixture
def wire() -> Iterator[Wire]:
    here = free_locator()
    transport = endpoint("device1", listen=(here,))
    transport.open()  # first: a session that finds no listener waits 1 s before it tries again
    with plain_session(connect=[here]) as session:
        wait_for_link(transport)
        yield Wire(transport, session)
        transport.close()


@pytest.mark.parametrize("name", VECTORS)
def test_puts_match_the_specification(wire: Wire, name: str) -> None:
    # [utest->dsn~up-transport-zenoh-attributes-mapping~1] [utest->dsn~up-transport-zenoh-payload-mapping~1]
    # [utest->dsn~up-transport-zenoh-message-priority-mapping~1] [utest->dsn~up-transport-zenoh-key-expr~1]
    vector = VECTORS[name]
    subscriber = wire.session.declare_subscriber("**")
    wire.transport.send(vector.message)
    sample = subscriber.recv()
    assert str(sample.key_expr) == vector.key
    assert sample.attachment is not None
    assert sample.attachment.to_bytes().hex() == vector.attachment
    assert sample.payload.to_bytes() == vector.message.payload
    assert sample.kind == zenoh.SampleKind.PUT
    assert sample.priority == vector.priority
    assert sample.congestion_control == CongestionControl.BLOCK


@pytest.mark.parametrize("name", VECTORS)
def test_samples_of_the_specification_are_decoded(wire: Wire, name: str) -> None:
    # [utest->dsn~up-transport-zenoh-attributes-mapping~1]
    vector = VECTORS[name]
    inbox = Mailbox()
    wire.transport.register_listener(ANY, None, inbox)
    wire.transport.register_listener(ANY, ANY, inbox)
    publisher = wire.session.declare_publisher(vector.key)
    wait_until(lambda: publisher.matching_status.matching, "the subscription")  # type: ignore[attr-defined]
    for _ in range(2):  # the second time from the caches
        publisher.put(vector.message.payload, attachment=bytes.fromhex(vector.attachment))
    assert inbox.wait(2) == [vector.message] * 2


def test_every_priority_has_its_zenoh_priority(wire: Wire) -> None:
    # [utest->dsn~up-transport-zenoh-message-priority-mapping~1]
    table = {
        UPriority.UNSPECIFIED: Priority.DATA_LOW,
        UPriority.CS0: Priority.BACKGROUND,
        UPriority.CS1: Priority.DATA_LOW,
        UPriority.CS2: Priority.DATA,
        UPriority.CS3: Priority.DATA_HIGH,
        UPriority.CS4: Priority.INTERACTIVE_LOW,
        UPriority.CS5: Priority.INTERACTIVE_HIGH,
        UPriority.CS6: Priority.REAL_TIME,
    }
    subscriber = wire.session.declare_subscriber("**")
    for priority, expected in table.items():
        wire.transport.send(
            UMessage(FIRST, UAttributes(type=UMessageType.PUBLISH, source=TOPIC, priority=priority))
        )
        assert subscriber.recv().priority == expected
    assert set(PRIORITIES) == set(UPriority)


def test_a_message_without_authority_is_sent_with_ours(wire: Wire) -> None:
    subscriber = wire.session.declare_subscriber("**")
    wire.transport.send(
        UMessage(FIRST, UAttributes(type=UMessageType.PUBLISH, source=UUri("", 0x10AB, 3, 0x80CD)))
    )
    sample = subscriber.recv()
    assert str(sample.key_expr) == TOPIC_KEY
    assert sample.attachment is not None
    assert sample.attachment.to_bytes().hex() == "01" + ID_1 + "10011a0910ab21180320cd8102"


def test_a_message_with_a_wildcard_is_not_put(wire: Wire) -> None:
    subscriber = wire.session.declare_subscriber("**")
    for source in (
        UUri("*", 1, 1, 0x8000),
        UUri("device1", 0xFFFF0001, 1, 0x8000),
        UUri("device1", 1, 0xFF, 0x8000),
    ):
        assert code_of(lambda s=source: wire.transport.send(publish(FIRST, s))) is UCode.INVALID_ARGUMENT  # type: ignore[misc]
    wire.transport.send(VECTORS["publish"].message)
    assert str(subscriber.recv().key_expr) == TOPIC_KEY


SOUND: Final = bytes.fromhex(VECTORS["publish"].attachment)


class Garbage(NamedTuple):
    reason: SampleRefusalReason
    attachment: bytes | None
    key: str = TOPIC_KEY


GARBAGE: Final = (
    Garbage(SampleRefusalReason.NO_ATTACHMENT, None),
    Garbage(SampleRefusalReason.SHORT, b""),
    Garbage(SampleRefusalReason.SHORT, b"\x01"),
    Garbage(SampleRefusalReason.LONG, b"\x01" + bytes(20_000)),
    Garbage(SampleRefusalReason.VERSION, b"\x00" + SOUND[1:]),
    Garbage(SampleRefusalReason.VERSION, b"\x02" + SOUND[1:]),
    Garbage(SampleRefusalReason.ATTRIBUTES, b"\x01\xff\xff"),
    Garbage(SampleRefusalReason.ATTRIBUTES, SOUND[:-1]),
    Garbage(SampleRefusalReason.KEY, SOUND, "up/device1/10AB/*/3/80CD/{}/{}/{}/{}/{}"),
    Garbage(SampleRefusalReason.KEY, SOUND, "up/device1/10ab/0/3/80CD/{}/{}/{}/{}/{}"),
    Garbage(SampleRefusalReason.MISMATCH, SOUND, "up/device2/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
)


def test_invalid_samples_are_counted_by_reason_and_later_messages_delivered(wire: Wire) -> None:
    inbox = Mailbox()
    wire.transport.register_listener(ANY, None, inbox)
    wire.transport.register_listener(
        ANY, ANY, inbox
    )  # matches the same keys, and must not count the same garbage
    probe = wire.session.declare_publisher(TOPIC_KEY)
    wait_until(lambda: probe.matching_status.matching, "the subscription")  # type: ignore[attr-defined]
    expected = {f"refused_{reason}": 0 for reason in SampleRefusalReason}
    for number, garbage in enumerate(GARBAGE, 1):
        wire.session.put(
            garbage.key, b"x", attachment=garbage.attachment, congestion_control=CongestionControl.BLOCK
        )
        wire.session.put(
            TOPIC_KEY, b"\x00\x01\xff", attachment=SOUND, congestion_control=CongestionControl.BLOCK
        )
        expected[f"refused_{garbage.reason}"] += 1
        assert len(inbox.wait(number)) == number
    wire.session.delete(TOPIC_KEY, attachment=SOUND)
    expected["refused_delete"] += 1
    wait_until(lambda: wire.transport.statistics()["refused_delete"] == 1, "the delete")
    statistics = wire.transport.statistics()
    assert {name: statistics[name] for name in expected} == expected
    assert inbox.messages == [VECTORS["publish"].message] * len(GARBAGE)
    assert statistics["received"] == len(GARBAGE)


def test_a_flood_of_random_bytes_affects_no_other_message(wire: Wire) -> None:
    dice = random.Random(1)
    inbox = Mailbox()
    wire.transport.register_listener(ANY, None, inbox)
    publisher = wire.session.declare_publisher(TOPIC_KEY, congestion_control=CongestionControl.BLOCK)
    wait_until(lambda: publisher.matching_status.matching, "the subscription")  # type: ignore[attr-defined]
    for _ in range(2000):
        publisher.put(
            b"x", attachment=dice.choice([b"", b"\x01", SOUND[: dice.randrange(21)]]) + dice.randbytes(20)
        )
    publisher.put(b"\x00\x01\xff", attachment=SOUND)
    assert inbox.wait(1)[-1] == VECTORS["publish"].message
    statistics = wire.transport.statistics()
    refused = sum(count for name, count in statistics.items() if name.startswith("refused_"))
    assert refused + statistics["received"] == 2001


def test_a_refusal_is_logged_once_per_reason(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Mailbox()
    wire.transport.register_listener(ANY, None, inbox)
    publisher = wire.session.declare_publisher(TOPIC_KEY, congestion_control=CongestionControl.BLOCK)
    wait_until(lambda: publisher.matching_status.matching, "the subscription")  # type: ignore[attr-defined]
    for _ in range(10):
        publisher.put(b"x")
    publisher.put(b"\x00\x01\xff", attachment=SOUND)
    inbox.wait(1)
    records = [record for record in caplog.records if record.message == "zenoh.sample_refused"]
    assert [(record.__dict__["reason"], record.__dict__["endpoint"]) for record in records] == [
        (SampleRefusalReason.NO_ATTACHMENT, "backbone")
    ]
