# SPDX-License-Identifier: Apache-2.0
"""The client of the library, which goes on after a packet that it cannot read, and whose sent messages can change.

MQTT allows U+FEFF in a text, and a broker forwards it; the library takes such a packet as malformed and ends the
connection. The broker then sends the packet again, on each new connection: one message of any client would block the
endpoint. Here such a packet is acknowledged and reported.

The same holds for a PUBACK: mosquitto refuses a message above its `message_size_limit` with the reason 0x95, which MQTT
has for other packets only. The message would be sent again on each new connection.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, Literal

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.exception import MQTTException
from paho.mqtt.properties import Properties

UNREADABLE: Final = (MQTTException, LookupError, ValueError, struct.error)
"""What the library raises for bytes that it cannot read."""
_QOS_MASK: Final = 0x06
_LENGTH: Final = struct.Struct("!H")


class TolerantClient(Client):
    """Calls on the thread that reads: `on_unreadable` with the reason; `on_puback` for a PUBACK that cannot be read.

    `on_puback` gets the packet id and the reason code. `on_publish` of the library is called for all others.
    """

    def __init__(
        self,
        on_unreadable: Callable[[str], None],
        on_puback: Callable[[int, int], None],
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._on_unreadable = on_unreadable
        self._on_puback = on_puback

    def change(self, number: int, properties: Properties | None) -> None:
        """Of a message without an acknowledgement: repeat it with other properties; None: do not repeat it."""
        with self._out_message_mutex:
            if properties is None:
                self._out_messages.pop(number, None)
            elif (message := self._out_messages.get(number)) is not None:
                message.properties = properties

    def _handle_publish(self) -> MQTTErrorCode:
        try:
            return super()._handle_publish()
        except UNREADABLE as error:
            number = self._packet_number()
            self._on_unreadable(f"{type(error).__name__}: {error}")
            return MQTTErrorCode.MQTT_ERR_SUCCESS if number is None else self._send_puback(number)

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        try:
            return super()._handle_pubackcomp(cmd)
        except UNREADABLE:
            packet = self._in_packet["packet"]
            if cmd != "PUBACK" or len(packet) < _LENGTH.size:
                raise
            (number,) = _LENGTH.unpack_from(packet)
            with self._out_message_mutex:
                if self._out_messages.pop(number, None) is not None:
                    self._inflight_messages -= 1
            self._on_puback(number, packet[_LENGTH.size] if len(packet) > _LENGTH.size else 0)
            return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _packet_number(self) -> int | None:
        """The number of the packet that was just read; None with QoS 0. Raises MQTTException if it has none."""
        if not self._in_packet["command"] & _QOS_MASK:
            return None
        packet = self._in_packet["packet"]
        try:
            (topic_bytes,) = _LENGTH.unpack_from(packet)
            (number,) = _LENGTH.unpack_from(packet, _LENGTH.size + topic_bytes)
        except struct.error as error:
            raise MQTTException("a PUBLISH packet without a number") from error
        return int(number)
