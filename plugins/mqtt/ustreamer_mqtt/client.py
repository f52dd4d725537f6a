# SPDX-License-Identifier: Apache-2.0
"""The client of the library, which goes on after a packet that it cannot read.

MQTT allows U+FEFF in a text, and a broker forwards it; the library takes such a packet as malformed and ends the
connection. The broker then sends the packet again, on each new connection: one message of any client would block the
endpoint. Here such a packet is acknowledged and reported.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.exception import MQTTException

UNREADABLE: Final = (MQTTException, LookupError, ValueError, struct.error)
"""What the library raises for bytes that it cannot read."""
_QOS_MASK: Final = 0x06
_LENGTH: Final = struct.Struct("!H")


class TolerantClient(Client):
    """`on_unreadable` is called with the reason, on the thread that reads."""

    def __init__(self, on_unreadable: Callable[[str], None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._on_unreadable = on_unreadable

    def _handle_publish(self) -> MQTTErrorCode:
        try:
            return super()._handle_publish()
        except UNREADABLE as error:
            number = self._packet_number()
            self._on_unreadable(f"{type(error).__name__}: {error}")
            return MQTTErrorCode.MQTT_ERR_SUCCESS if number is None else self._send_puback(number)

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
