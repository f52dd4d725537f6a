# SPDX-License-Identifier: Apache-2.0
"""The three serializers: bytes to WAMP values and back.

`decode` returns None, bool, int of 64 bits, float, str, bytes, list, and dict with string keys, at most `MAX_DEPTH`
deep. So every serializer can encode the values that another serializer decoded.
"""

from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NamedTuple

import cbor2
import msgspec

MAX_DEPTH: Final = 32
_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1


class Malformed(Exception):
    """Bytes that the serializer cannot decode, or a value that WAMP does not allow."""


class Serializer(NamedTuple):
    """One serialization. `rawsocket` is its number in a RawSocket handshake; `text` selects text frames."""

    name: str
    rawsocket: int
    is_text: bool
    decode: Callable[[bytes], object]
    encode: Callable[[object], bytes]

    @property
    def subprotocol(self) -> str:
        """Its name in a WebSocket handshake."""
        return f"wamp.2.{self.name}"


# --- permitted messages -------------------------------------------------------------------------------------


def checked(value: Any, depth: int = 0, *, binary_text: bool = False) -> Any:
    """`value`, in which undefined is None and (`binary_text`) strings that begin with NUL are bytes."""
    kind = type(value)
    if kind is str:
        return _binary(value) if binary_text and value.startswith("\0") else value
    if value is None or kind in _PLAIN:
        return value
    if kind is int:
        if not _LEAST <= value <= _MOST:
            raise Malformed(f"an integer of {value.bit_length()} bits: expected 64 at most")
        return value
    if kind not in (list, dict):
        if value is cbor2.undefined or (kind is msgspec.msgpack.Ext and value.code == 0):
            return None
        raise Malformed(f"a value of type {kind.__name__}, which WAMP does not have")
    if depth >= MAX_DEPTH:
        raise Malformed(f"more than {MAX_DEPTH} levels deep")
    if kind is list:
        return [checked(each, depth + 1, binary_text=binary_text) for each in value]
    for key in value:
        if type(key) is not str:
            raise Malformed(f"a dict with a key of type {type(key).__name__}: expected strings")
    return {key: checked(each, depth + 1, binary_text=binary_text) for key, each in value.items()}


_PLAIN: Final = frozenset({bool, float, bytes})


# --- JSON ---------------------------------------------------------------------------------------------------

BINARY_MARK: Final = b"\\u0000"
"""Without it in the JSON there is no string that begins with NUL, and so no bytes."""

# Digits as 0 and all else as blanks: finding 19 in a row in that takes 0.1 us, a regular expression 2.
_DIGITS: Final = bytes(0x30 if chr(each).isdigit() and each < 128 else 0x20 for each in range(256))
_LONG: Final = b"0" * 19


def _decode_json(data: bytes) -> object:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(f"no JSON: {error}") from error
    # Reasons to check every value: bytes, nesting, integers that may be too long.
    if (
        BINARY_MARK in data
        or data.count(b"[") + data.count(b"{") > MAX_DEPTH
        or _LONG in data.translate(_DIGITS)
    ):
        return checked(value, binary_text=True)
    return value


def _binary(text: str) -> bytes:
    try:
        return b64decode(text[1:], validate=True)
    except ValueError as error:
        raise Malformed(f"a string that begins with NUL: expected Base64 behind it ({error})") from error


def encode_json(value: object) -> bytes:
    """JSON, with bytes by the specification: a string of NUL and Base64."""
    return msgspec.json.encode(without_bytes(value))


encode_json_without_bytes: Final[Callable[[object], bytes]] = msgspec.json.encode
"""As `encode_json`, for a value without bytes."""

_MAY_CONTAIN_BYTES: Final = frozenset({bytes, list, tuple, dict})


def without_bytes(value: Any) -> Any:
    """`value`, in which bytes are strings of NUL and Base64; the same object if it contains no bytes and no container."""
    kind = type(value)
    if kind is bytes:
        return "\0" + b2a_base64(value, newline=False).decode("ascii")
    # One call for all elements: a call for each of them costs 20 us of a lone event, whose code is in no cache.
    if kind is dict and not _MAY_CONTAIN_BYTES.isdisjoint(map(type, value.values())):
        return {key: without_bytes(each) for key, each in value.items()}
    if kind in (list, tuple) and not _MAY_CONTAIN_BYTES.isdisjoint(map(type, value)):
        return [without_bytes(each) for each in value]
    return value


# --- MessagePack --------------------------------------------------------------------------------------------


def _decode_msgpack(data: bytes) -> object:
    try:
        return checked(msgspec.msgpack.decode(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise Malformed(f"no MessagePack: {error}") from error


# --- CBOR ---------------------------------------------------------------------------------------------------


def _no_tag(*_: object) -> object:
    raise Malformed("a CBOR tag, which WAMP does not have")


# All tags that cbor2 handles itself; the others reach the hook. Among them are references (28, 29), with which a
# few bytes make a value that has no end.
_TAGS: Final = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799)


def _decode_cbor(data: bytes) -> object:
    source = BytesIO(data)
    try:
        value = cbor2.CBORDecoder(
            source,
            tag_hook=_no_tag,
            semantic_decoders=dict.fromkeys(_TAGS, _no_tag),
            max_depth=MAX_DEPTH,
            strict_hashable_types=True,
        ).decode()
    # Also MemoryError and OverflowError: a length of 2^63 bytes may be claimed by nine of them.
    except (cbor2.CBORError, RecursionError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise Malformed(f"no CBOR: {error}") from error
    if source.tell() != len(data):
        raise Malformed(f"{len(data) - source.tell()} bytes behind the CBOR value")
    return checked(value)


JSON: Final = Serializer("json", 1, True, _decode_json, encode_json)
MSGPACK: Final = Serializer("msgpack", 2, False, _decode_msgpack, msgspec.msgpack.encode)
CBOR: Final = Serializer("cbor", 3, False, _decode_cbor, cbor2.dumps)

SERIALIZERS: Final = (MSGPACK, CBOR, JSON)
"""In the order in which the router prefers them."""
