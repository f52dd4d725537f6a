# SPDX-License-Identifier: Apache-2.0
"""E2E protection of events (AUTOSAR PRS E2E Protocol): profiles 1, 4, 5, 6, 7 and 11. Pure.

    protect   payload and counter                 -> payload with counter, CRC, and length or data id
    check     payload, and the counter before it  -> E2eResult

Data that a profile protects: the covered part of the SOME/IP header, if any, and the payload. The E2E header is in the
payload, at `offset`:

    profile   fields in order                                              CRC covers also
    P01, P11  CRC 8; data id nibble or 0, counter 4 (0 to 14)              data id, first
    P04       length 16, counter 16, data id 32, CRC 32
    P05       CRC 16 (little-endian), counter 8                            data id, last, low byte first
    P06       CRC 16, length 16, counter 8                                 data id, last, high byte first
    P07       CRC 64, length 32, counter 32, data id 32

Numbers are bits. All but the CRC of P05 are big-endian. A CRC does not cover itself.
"""

from collections.abc import Callable
from enum import StrEnum
from struct import Struct
from typing import Final, NamedTuple

from ustreamer.transports.someip.protocol.codec import PROTOCOL_VERSION
from ustreamer.transports.someip.protocol.crc import crc8, crc16, crc32p4, crc64
from ustreamer.transports.someip.protocol.e2e_config import COUNTERS, E2eConfig
from ustreamer.uprotocol.ustatus import invalid_argument

_COVERED_HEADER: Final = Struct(">IBBBB")
_P04: Final = Struct(">HHI")
_P06: Final = Struct(">HB")
_P07: Final = Struct(">III")


class E2eResult(StrEnum):
    """The result of a check. `OK` and `SOME_LOST` are valid events."""

    OK = "ok"
    SOME_LOST = "some_lost"  # the counter made a step above 1
    REPEATED = "repeated"  # the counter of the event before
    WRONG_SEQUENCE = "wrong_sequence"  # a step above `max_delta_counter`
    ERROR = "error"  # CRC, data id or length is wrong, or the payload is too short

    @property
    def is_valid(self) -> bool:
        return self in {E2eResult.OK, E2eResult.SOME_LOST}


class _Profile(NamedTuple):
    """`write(data, at, config, counter)` writes the E2E header at `at`, and returns where its CRC begins and ends.

    `length` is that of the E2E header. The counter is less than the number in `COUNTERS`.
    """

    length: int
    write: Callable[[bytearray, int, E2eConfig, int], tuple[int, int]]
    read_counter: Callable[[bytes, int], int]


def covered_header(request_id: int, interface_version: int, message_type: int, return_code: int) -> bytes:
    """The part of a SOME/IP header that E2E protection covers: from the request id to the return code."""
    return _COVERED_HEADER.pack(request_id, PROTOCOL_VERSION, interface_version, message_type, return_code)


# --- profiles ---------------------------------------------------------------------------------------------------------


def _write_p01(data: bytearray, at: int, config: E2eConfig, counter: int) -> tuple[int, int]:
    low, high = config.data_id & 0xFF, config.data_id >> 8
    mode = config.data_id_mode
    data[at + 1] = data[at + 1] & 0xF0 | counter
    if mode == "nibble":
        data[at + 1] = (high & 0x0F) << 4 | counter
    data_id = {
        "both": (low, high),
        "low": (low,),
        "alternating": (high if counter % 2 else low,),
        "nibble": (low, 0),
    }[mode]
    data[at] = crc8(bytes(data_id) + data[:at] + data[at + 1 :])
    return at, at + 1


def _write_p04(data: bytearray, at: int, config: E2eConfig, counter: int) -> tuple[int, int]:
    _P04.pack_into(data, at, len(data), counter, config.data_id)
    data[at + 8 : at + 12] = crc32p4(bytes(data[: at + 8] + data[at + 12 :])).to_bytes(4)
    return at + 8, at + 12


def _write_p05(data: bytearray, at: int, config: E2eConfig, counter: int) -> tuple[int, int]:
    data[at + 2] = counter
    covered = data[:at] + data[at + 2 :] + config.data_id.to_bytes(2, "little")
    data[at : at + 2] = crc16(bytes(covered)).to_bytes(2, config.crc_byte_order)
    return at, at + 2


def _write_p06(data: bytearray, at: int, config: E2eConfig, counter: int) -> tuple[int, int]:
    _P06.pack_into(data, at + 2, len(data), counter)
    covered = data[:at] + data[at + 2 :] + config.data_id.to_bytes(2)
    data[at : at + 2] = crc16(bytes(covered)).to_bytes(2)
    return at, at + 2


def _write_p07(data: bytearray, at: int, config: E2eConfig, counter: int) -> tuple[int, int]:
    _P07.pack_into(data, at + 8, len(data), counter, config.data_id)
    data[at : at + 8] = crc64(bytes(data[:at] + data[at + 8 :])).to_bytes(8)
    return at, at + 8


def _number(begin: int, size: int) -> Callable[[bytes, int], int]:
    return lambda data, at: int.from_bytes(data[at + begin : at + begin + size])


_P01: Final = _Profile(2, _write_p01, lambda data, at: data[at + 1] & 0x0F)
_PROFILES: Final[dict[str, _Profile]] = {
    "P01": _P01,
    "P11": _P01,
    "P04": _Profile(12, _write_p04, _number(2, 2)),
    "P05": _Profile(3, _write_p05, _number(2, 1)),
    "P06": _Profile(5, _write_p06, _number(4, 1)),
    "P07": _Profile(20, _write_p07, _number(12, 4)),
}
_LENGTH_LIMITS: Final = {"P04": 0xFFFF, "P06": 0xFFFF}
"""The largest number that the length field holds."""


# --- sender -----------------------------------------------------------------------------------------------------------


class E2eProtector:
    """The counter of one event for one receiver. Not locked."""

    def __init__(self, config: E2eConfig) -> None:
        self._config = config
        self._profile = _PROFILES[config.profile]
        self._counters = COUNTERS[config.profile]
        self._counter = 0

    # [impl->RPC-102, RPC-103]
    def protect(self, header: bytes, payload: bytes, *, valid: bool = True, repeats: bool = False) -> bytes:
        """The payload with its E2E header. `header` is the `covered_header`. Call `advance` when it was sent.

        Without `valid` the CRC is inverted: the message is known to be corrupt, and the receiver must find it so.
        With `repeats` the counter is that of the event sent last: the next one follows it. Do not call `advance` then.
        Raises UStatusError(INVALID_ARGUMENT) for a payload that has no room for the E2E header, or is too long.
        """
        config, profile = self._config, self._profile
        if config.strip:
            payload = payload[: config.offset] + bytes(profile.length) + payload[config.offset :]
        if len(payload) < config.offset + profile.length:
            raise invalid_argument(
                f"payload of {len(payload)} bytes: expected at least {config.offset + profile.length}, "
                f"with the E2E header of {config.profile} at offset {config.offset}"
            )
        before = header if config.includes_header else b""
        data = bytearray(before + payload)
        if len(data) > _LENGTH_LIMITS.get(config.profile, len(data)):
            raise invalid_argument(
                f"payload of {len(payload)} bytes: too long for E2E profile {config.profile}"
            )
        counter = (self._counter - repeats) % self._counters
        begin, end = profile.write(data, len(before) + config.offset, config, counter)
        if not valid:
            data[begin:end] = bytes(each ^ 0xFF for each in data[begin:end])
        return bytes(data[len(before) :])

    def advance(self) -> None:
        """Count one sent event."""
        self._counter = (self._counter + 1) % self._counters


# --- receiver ---------------------------------------------------------------------------------------------------------


class E2eChecker:
    """The counter of one received event. Belongs to one thread."""

    def __init__(self, config: E2eConfig) -> None:
        self._config = config
        self._profile = _PROFILES[config.profile]
        self._counters = COUNTERS[config.profile]
        self._max_delta = config.max_delta_counter or self._counters
        self._last: int | None = None

    def check(self, header: bytes, payload: bytes) -> E2eResult:
        """Check an event. `header` is its `covered_header`. The first valid event is OK, whatever its counter."""
        counter = self._valid_counter(header, payload)
        if counter is None:
            return E2eResult.ERROR
        last, self._last = self._last, counter
        delta = 1 if last is None else (counter - last) % self._counters
        if delta == 0:
            return E2eResult.REPEATED
        if delta > self._max_delta:
            return E2eResult.WRONG_SEQUENCE
        return E2eResult.OK if delta == 1 else E2eResult.SOME_LOST

    def _valid_counter(self, header: bytes, payload: bytes) -> int | None:
        """The counter of an event whose other fields are right: those that `write` would write with this counter."""
        config, profile = self._config, self._profile
        if len(payload) < config.offset + profile.length:
            return None
        before = header if config.includes_header else b""
        data = before + payload
        at = len(before) + config.offset
        counter = profile.read_counter(data, at)
        if counter >= self._counters or len(data) > _LENGTH_LIMITS.get(config.profile, len(data)):
            return None
        expected = bytearray(data)
        profile.write(expected, at, config, counter)
        return counter if expected == data else None

    def stripped(self, payload: bytes) -> bytes:
        """The payload of the message: without the E2E header, if the configuration removes it."""
        config = self._config
        if not config.strip:
            return payload
        return payload[: config.offset] + payload[config.offset + self._profile.length :]
