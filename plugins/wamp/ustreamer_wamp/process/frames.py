# SPDX-License-Identifier: Apache-2.0
"""The frames between the streamer and the process of its sessions: a length of 4 bytes, and MessagePack.

In: one of the structs below. Out: bytes, and from bytes the structs again, with their types checked. No I/O.
"""

from pathlib import Path
from struct import Struct
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from ustreamer_wamp.config import Place, WampConfig
from ustreamer_wamp.uri import Match

_LENGTH: Final = Struct(">I")
_LENGTH_BYTES: Final = _LENGTH.size


class Start(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first frame to the child. `config` is a `WampConfig`, `topics` are those of the configuration."""

    config: bytes
    place: Place
    topics: list[str]


class Event(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A publication for the rate with this number. `header` is a UAttributes, `value` as in `VehicleEvent`."""

    rate: int
    header: bytes
    payload: bytes
    value: bytes | None


class Addressed(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A Response or a Notification."""

    header: bytes
    payload: bytes


class DroppedEvents(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The number of events of a topic that were dropped for a rate."""

    rate: int
    topic: str
    events: int


class SeenTopic(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """A topic that the router has looked up."""

    topic: str


class StopAccepting(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Refuse new sessions and publications; the answer is `PublicationsEnded`."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """End all sessions, and the process."""


class ChangeUsers(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Take the users of this `WampConfig`."""

    config: bytes


ToSessions: TypeAlias = (
    Start | Event | Addressed | DroppedEvents | SeenTopic | StopAccepting | Close | ChangeUsers
)


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The child listens."""

    urls: list[str]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The child cannot listen, and ends."""

    reason: str


class SessionMessage(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A message of a session."""

    header: bytes
    payload: bytes


class PatternChange(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """A pattern of the rate with this number; `period_ns` None: it has ended."""

    rate: int
    topic: str
    match: Match
    period_ns: int | None


class Report(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The counters of the child, its numbers of now, and refusals with their reason and peer."""

    counts: dict[str, int]
    gauges: dict[str, int]
    refusals: list[tuple[str, str, int]] = []


class ForwardedLog(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A line for the log of the streamer."""

    logger: str
    level: int
    event: str
    fields: dict[str, Any]


class PublicationsEnded(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """No publication follows: the answer to `StopAccepting`."""


FromSessions: TypeAlias = (
    Ready | Failed | SessionMessage | PatternChange | Report | ForwardedLog | PublicationsEnded
)

_encode: Final = msgspec.msgpack.Encoder(enc_hook=str).encode


class InvalidFrame(Exception):
    """Bytes of the other process that are no frame."""


def pack(frame: ToSessions | FromSessions) -> bytes:
    """A frame as bytes."""
    data = _encode(frame)
    return _LENGTH.pack(len(data)) + data


def pack_config(config: WampConfig) -> bytes:
    """The section as MessagePack, for a field of a frame."""
    return _encode(config)


def unpack_config(data: bytes) -> WampConfig:
    """The inverse of `pack_config`. Raises msgspec.MsgspecError: the streamer is trusted."""
    return msgspec.msgpack.decode(data, type=WampConfig, dec_hook=_path)


def _path(kind: type, value: object) -> object:
    assert kind is Path  # the only type of the section that MessagePack does not have
    return Path(str(value))


T = TypeVar("T")


class FrameReader(Generic[T]):
    """Bytes in, frames out, in order."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]", max_bytes: int) -> None:
        """A longer frame than `max_bytes` is invalid."""
        self._decode = decoder.decode
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Append bytes; `next_frame` returns the frames in them."""
        del self._data[: self._at]
        self._at = 0
        self._data += data

    def take_lone_frame(self, data: bytes) -> T | None:
        """The frame if `data` is exactly one and no other bytes wait, else None. Raises InvalidFrame.

        It keeps nothing of `data`: a caller that does not use the frame passes `data` to `feed`.
        """
        size = len(data) - _LENGTH_BYTES
        if len(self._data) != self._at or size < 0 or _LENGTH.unpack_from(data)[0] != size:
            return None
        try:
            return self._decode(data[_LENGTH_BYTES:])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidFrame(str(error)) from error

    def next_frame(self) -> T | None:
        """The next complete frame, or None. Raises InvalidFrame."""
        begin = self._at + _LENGTH_BYTES
        if len(self._data) < begin:
            return None
        (size,) = _LENGTH.unpack_from(self._data, self._at)
        if size > self._max_bytes:
            raise InvalidFrame(f"a frame of {size} bytes")
        if len(self._data) < begin + size:
            return None
        self._at = begin + size
        try:
            return self._decode(bytes(self._data[begin : self._at]))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidFrame(str(error)) from error


def reader_in_child() -> FrameReader[ToSessions]:
    """The reader of the process of the sessions."""
    return FrameReader(msgspec.msgpack.Decoder(ToSessions), _MAX_PAYLOAD_BYTES)


def reader_in_streamer(config: WampConfig) -> FrameReader[FromSessions]:
    """The reader of the streamer. It limits a frame to one message of a client with its header."""
    return FrameReader(msgspec.msgpack.Decoder(FromSessions), config.max_message_bytes + _MAX_HEADER_BYTES)


_MAX_PAYLOAD_BYTES: Final = 1 << 32  # the streamer is trusted
_MAX_HEADER_BYTES: Final = 1 << 20
