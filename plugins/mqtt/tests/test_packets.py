# SPDX-License-Identifier: Apache-2.0
"""Packets to messages and back, and the checks of their origin, without a broker."""

from typing import Any

import msgspec
import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.connection import PackedProperties
from ustreamer_mqtt.encoder import MessageEncoder
from ustreamer_mqtt.reason_codes import PASSING, ucode_of
from ustreamer_mqtt.receiver import PacketDecoder, RefusalReason, _Refusal

from ustreamer.testing.messages import ALPHA, BETA, TOPIC, four_messages, new_id
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri, any_at

IN_VEHICLE = MqttEndpoint(transport="mqtt", authorities=("*",))
OFF_VEHICLE = MqttEndpoint(transport="mqtt", authorities=(BETA,), topics="off_vehicle")


def packet(topic: str, properties: bytes, payload: bytes = b"") -> MQTTMessage:
    found = MQTTMessage(1, topic.encode())
    found.payload = payload
    found.properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    found.properties.unpack(properties)  # type: ignore[no-untyped-call]
    return found


def decode(received: MQTTMessage, config: MqttEndpoint = IN_VEHICLE) -> UMessage:
    return PacketDecoder(config).decode(received)


@pytest.mark.parametrize("message", four_messages(), ids=lambda each: each.attributes.type.name)
@pytest.mark.parametrize("config", [IN_VEHICLE, OFF_VEHICLE], ids=lambda each: each.topics)
def test_every_message_becomes_a_packet_and_back(message: UMessage, config: MqttEndpoint) -> None:
    encoder = MessageEncoder(config, ALPHA)
    for _ in range(2):  # the second one from what messages of the topic share
        topic, properties = encoder.encode(message)
        assert decode(packet(topic, properties, message.payload), config) == message


def test_between_devices_a_publication_goes_to_the_authority_behind_the_endpoint() -> None:
    topic, properties = MessageEncoder(OFF_VEHICLE, ALPHA).encode(publish(new_id(), TOPIC))
    assert topic == f"{ALPHA}/{BETA}"
    assert b"\x00\x014" not in properties, "no sink in the properties"


def test_the_id_is_that_of_each_message_of_a_topic() -> None:
    encoder = MessageEncoder(IN_VEHICLE, ALPHA)
    sent = [publish(new_id(), TOPIC) for _ in range(3)]
    received = [decode(packet(*encoder.encode(each))) for each in sent]
    assert received == sent


def test_an_id_that_is_wrong_is_refused_also_for_a_known_topic() -> None:
    encoder = MessageEncoder(IN_VEHICLE, ALPHA)
    good = publish(new_id(), TOPIC)
    encoder.encode(good)
    with pytest.raises(UStatusError, match="version 7"):
        encoder.encode(msgspec.structs.replace(good, id=msgspec.structs.replace(good.id, msb=1)))


def test_the_sink_that_a_streamer_adds_to_a_publication_is_left_out() -> None:
    message = publish(new_id(), TOPIC)
    with_sink = msgspec.structs.replace(
        message, attributes=msgspec.structs.replace(message.attributes, sink=any_at(BETA))
    )
    encoder = MessageEncoder(IN_VEHICLE, ALPHA)
    assert decode(packet(*encoder.encode(with_sink))) == message


def encoded() -> tuple[str, bytes]:
    return MessageEncoder(IN_VEHICLE, ALPHA).encode(publish(new_id(), TOPIC))


REFUSED: dict[str, tuple[RefusalReason, Any]] = {
    "a topic of another application": (RefusalReason.TOPIC, lambda t, p: packet("home/lights", p)),
    "the topic of another source": (RefusalReason.ADDRESS, lambda t, p: packet(t.replace("A/", "B/", 1), p)),
    "a topic of another authority": (RefusalReason.ADDRESS, lambda t, p: packet(t.replace(ALPHA, BETA), p)),
    "a topic with a sink": (RefusalReason.ADDRESS, lambda t, p: packet(f"{t}/{t}", p)),
    "a topic in lower case": (
        RefusalReason.ADDRESS,
        lambda t, p: packet("/".join([ALPHA, *t.lower().split("/")[1:]]), p),
    ),
    "a topic with leading zeros": (
        RefusalReason.ADDRESS,
        lambda t, p: packet(t.replace("/8001", "/08001"), p),
    ),
    "no properties": (RefusalReason.PROPERTIES, lambda t, p: packet(t, b"\x00")),
    "another version": (
        RefusalReason.VERSION,
        lambda t, p: packet(t, p.replace(b"\x02uP\x00\x011", b"\x02uP\x00\x012")),
    ),
    "rules broken": (RefusalReason.RULES, lambda t, p: packet(t, p.replace(b"pub.v1", b"req.v1"))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_packet_that_is_no_message_is_refused_with_its_reason(name: str) -> None:
    reason, make = REFUSED[name]
    with pytest.raises(_Refusal) as refused:
        decode(make(*encoded()))
    assert refused.value.reason is reason


def test_a_topic_that_is_no_text_is_refused() -> None:
    received = packet(*encoded())
    received._topic = b"\xff\xfe"
    with pytest.raises(_Refusal, match="no UTF-8 text") as refused:
        decode(received)
    assert refused.value.reason is RefusalReason.TOPIC


def test_between_devices_the_authorities_of_a_topic_are_those_of_the_addresses() -> None:
    """A broker that lets vehicle 1 publish as vehicle 1 only must be enough."""
    topic, properties = MessageEncoder(OFF_VEHICLE, ALPHA).encode(four_messages()[1])
    for wrong in (topic.replace(ALPHA, "vin2"), topic.replace(BETA, "vin2")):
        with pytest.raises(_Refusal) as refused:
            decode(packet(wrong, properties), OFF_VEHICLE)
        assert refused.value.reason is RefusalReason.ADDRESS


def test_packed_properties_look_like_those_of_the_library() -> None:
    packed = PackedProperties(b"\x00")
    assert (packed.pack(), str(packed)) == (b"\x00", "1 bytes")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (0x86, UCode.UNAUTHENTICATED),
        (0x87, UCode.PERMISSION_DENIED),
        (0x88, UCode.UNAVAILABLE),
        (0x89, UCode.UNAVAILABLE),
        (0x8C, UCode.UNAUTHENTICATED),
        (0x96, UCode.RESOURCE_EXHAUSTED),
        (0x97, UCode.RESOURCE_EXHAUSTED),
        (0x9F, UCode.RESOURCE_EXHAUSTED),
        (0xA0, UCode.RESOURCE_EXHAUSTED),
        (0x80, UCode.INTERNAL),
    ],
)
def test_reason_codes_are_those_of_the_transport_in_rust(reason: int, code: UCode) -> None:
    assert ucode_of(reason) is code


def test_a_start_goes_on_after_a_reason_that_passes() -> None:
    assert ucode_of(0x89) in PASSING
    assert ucode_of(0x86) not in PASSING


def test_a_message_without_authority_is_from_here() -> None:
    local = publish(new_id(), UUri("", TOPIC.ue_id, TOPIC.ue_version_major, TOPIC.resource_id))
    topic, properties = MessageEncoder(IN_VEHICLE, ALPHA).encode(local)
    assert topic.startswith(f"{ALPHA}/")
    assert decode(packet(topic, properties)).attributes.source == TOPIC
