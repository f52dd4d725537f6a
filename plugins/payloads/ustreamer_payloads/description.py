# SPDX-License-Identifier: Apache-2.0
"""A compiled description: decodes payloads to values and encodes values to payloads."""

from ustreamer_payloads.codec import Codec
from ustreamer_payloads.errors import PayloadError


class Description:
    """The decoder of whole payloads of one type.

    Bytes after the last member are ignored, because a newer sender can add members.
    """

    def __init__(self, name: str, codec: Codec, max_bytes: int) -> None:
        self._name, self._codec, self._max_bytes = name, codec, max_bytes
        self.min_size = codec.min_size
        """The size of the smallest payload in bytes."""

    def decode(self, payload: bytes) -> object:
        """Decode a payload. Raises only PayloadError: "at byte 12: ChassisState.wheels[3].speed: ..."."""
        if len(payload) > self._max_bytes:
            raise PayloadError(f"{len(payload)} bytes, more than max_bytes ({self._max_bytes})").within(
                self._name
            )
        try:
            return self._codec.decode(payload, 0, len(payload))[0]
        except PayloadError as error:
            raise error.within(self._name) from None

    def encode(self, value: object) -> bytes:
        """The payload that `decode` turns into this value. Raises PayloadError."""
        out = bytearray()
        try:
            self._codec.encode(value, out)
        except PayloadError as error:
            raise error.within(self._name) from None
        if len(out) > self._max_bytes:
            raise PayloadError(f"{len(out)} bytes, more than max_bytes ({self._max_bytes})").within(
                self._name
            )
        return bytes(out)
