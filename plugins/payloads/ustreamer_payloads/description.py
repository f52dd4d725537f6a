# SPDX-License-Identifier: Apache-2.0
"""A description that is ready to use: payloads to values and back."""

from ustreamer_payloads.codec import Codec
from ustreamer_payloads.errors import PayloadError


class Description:
    """What whole payloads of one type mean. What follows the last member is not looked at: a newer sender has more."""

    def __init__(self, name: str, codec: Codec, max_bytes: int) -> None:
        self._name, self._codec, self._max_bytes = name, codec, max_bytes

    def decode(self, payload: bytes) -> object:
        """Raises PayloadError, and nothing else: "at byte 12: ChassisState.wheels[3].speed: ..."."""
        if len(payload) > self._max_bytes:
            raise PayloadError(f"{len(payload)} bytes, more than max_bytes ({self._max_bytes})").within(
                self._name
            )
        try:
            return self._codec.decode(payload, 0, len(payload))[0]
        except PayloadError as error:
            raise error.within(self._name) from None

    def encode(self, value: object) -> bytes:
        """The payload that `decode` makes this value of. Raises PayloadError."""
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
