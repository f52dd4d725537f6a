# SPDX-License-Identifier: Apache-2.0
"""The border of MQTT: the topic and the properties of a packet."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from ustreamer_mqtt.client import UNREADABLE
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.encoder import MessageEncoder
from ustreamer_mqtt.receiver import PacketDecoder, _Refusal

from tests.fuzz.border import Border, join_pieces, pure, split_pieces
from ustreamer.testing.messages import ALPHA, BETA, four_messages

_CONFIGS: Final = (
    MqttEndpoint(transport="mqtt", authorities=("*",)),
    MqttEndpoint(transport="mqtt", authorities=(BETA,), topics="off_vehicle"),
)


def take_packet(data: bytes) -> None:
    """A piece with the topic, then pieces with properties; the kind chooses the structure of topics."""
    topic = b""
    for number, (kind, piece) in enumerate(split_pieces(data)):
        if not number:
            topic = piece
            continue
        packet = MQTTMessage(1, topic)
        packet.payload = b""
        packet.properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        try:
            packet.properties.unpack(piece)  # type: ignore[no-untyped-call]
        except UNREADABLE:
            continue  # as TolerantClient
        with suppress(_Refusal):
            PacketDecoder(_CONFIGS[kind & 1]).decode(packet)


BORDERS: Final[Mapping[str, Border]] = {
    "mqtt-packet": Border(
        pure(take_packet),
        [
            join_pieces(topic.encode(), properties, properties, kind=kind)
            for kind, config in enumerate(_CONFIGS)
            for topic, properties in (MessageEncoder(config, ALPHA).encode(each) for each in four_messages())
        ],
    ),
}
