# SPDX-License-Identifier: Apache-2.0
"""Payloads as readable JSON values for tap readers. Decoders of plugins run on the reader's thread, never on the
message path.
"""

import math
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ustreamer.core.base.decoder import Decoder
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat
from ustreamer.uprotocol.uuri import UUri

MAX_TOPICS: Final = 1024
"""Topics with a cached decoder. Beyond that number the cache is cleared."""
MAX_DECODED: Final = 262_144
"""The largest payload that is decoded, in bytes."""
MAX_TEXT: Final = 65_536
"""The largest decoded value as JSON, in bytes."""
_MAX_DEPTH: Final = 64

FindDecoder = Callable[[UUri], Decoder | None]
_BY_FORMAT: Final[dict[UPayloadFormat, Decoder]] = {
    UPayloadFormat.JSON: msgspec.json.decode,
    UPayloadFormat.TEXT: bytes.decode,
}


class DecodedPayload(msgspec.Struct, frozen=True):
    """The decoded payload as JSON, or the problem that prevented the decoding."""

    value: msgspec.Raw | UnsetType = UNSET
    problem: str | UnsetType = UNSET

    def __str__(self) -> str:
        return bytes(self.value).decode() if self.value is not UNSET else f"not decoded: {self.problem}"


class PayloadDecoder:
    """The decoders of one reader, each looked up once. Belongs to one thread."""

    def __init__(self, find_decoder: FindDecoder) -> None:
        self._find_decoder = find_decoder
        self._decoders: BoundedCache[UUri, Decoder | None] = BoundedCache(MAX_TOPICS)

    def decode_payload(self, attributes: UAttributes, payload: bytes) -> DecodedPayload | None:
        """The decoded payload; None without a decoder. An exception of a plugin becomes the problem of this payload."""
        try:
            decode = self._decoder_for(attributes.source) or _BY_FORMAT.get(attributes.payload_format)
            if decode is None:
                return None
            text = msgspec.json.encode(_to_json_value(decode(payload), 0))
        except Exception as error:  # noqa: BLE001  # foreign code, and foreign bytes
            return DecodedPayload(problem=str(error) or type(error).__name__)
        if len(text) > MAX_TEXT:
            return DecodedPayload(problem=f"its value takes {len(text)} bytes as text, more than {MAX_TEXT}")
        return DecodedPayload(msgspec.Raw(text))

    def _decoder_for(self, topic: UUri) -> Decoder | None:
        if topic not in self._decoders:
            self._decoders.add(topic, self._find_decoder(topic))
        return self._decoders[topic]


def _to_json_value(value: Any, depth: int) -> object:
    """A value that JSON can express: bytes as hex; NaN and infinities by name."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"its values are more than {_MAX_DEPTH} deep")
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _shortest_float32(value) if math.isfinite(value) else str(value)
        case bytes() | bytearray():
            return value.hex()
        case list() | tuple():
            return [_to_json_value(each, depth + 1) for each in value]
        case dict():
            return {str(name): _to_json_value(each, depth + 1) for name, each in value.items()}
    raise TypeError(f"its decoder returned a {type(value).__name__}, which cannot be shown")


_F32: Final = struct.Struct("f")


def _shortest_float32(value: float) -> float:
    """The shortest number with the same 32-bit float value: 14.1 instead of 14.100000381469727."""
    try:
        bits = _F32.pack(value)
    except OverflowError:
        return value
    if _F32.unpack(bits)[0] != value:
        return value  # the number needs more than 32 bits
    return next(
        each for each in (float(f"{value:.{digits}g}") for digits in range(6, 10)) if _F32.pack(each) == bits
    )
