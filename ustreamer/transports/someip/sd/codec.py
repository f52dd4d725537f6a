# SPDX-License-Identifier: Apache-2.0
"""The payload of a service discovery message: bytes in, values out. No sockets, no clock, no state.

    u8 flags | u24 reserved | u32 length of entries | entries of 16 bytes | u32 length of options | options

    entry   u8 type | u8 index of 1st run | u8 index of 2nd run | u4 count, u4 count | u16 service | u16 instance
            u8 major | u24 ttl | u32 minor                                         Find, Offer
                               | u8 reserved, u1 initial data, u3 reserved,
                                 u4 counter, u16 eventgroup                        Subscribe, Ack

A ttl of 0 turns an entry into a StopOffer, StopSubscribe or Nack. A ttl of 0xFFFFFF is valid until the sender reboots.

    MalformedSdMessage     contradicting lengths, or a header of another service: the whole message is dropped.
                           `reason` is a counter label
    RefusedEntry           one entry of unknown type, or with missing, overlapping or invalid options. The other
                           entries are processed. A refused Subscribe can still be answered with a Nack

Reserved bits are ignored. Those of an event group entry are kept, because the answer must repeat them.
"""

# Cost in us, one core of a 2-core x86 VM, CPython 3.11, best of 9: the Offer of the golden vectors is decoded in 6 and
# encoded in 7; a message of 64 entries with an option each in 300 and 600.

from enum import IntEnum, StrEnum
from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.protocol.codec import (
    SD_METHOD,
    SD_SERVICE,
    MessageType,
    ReturnCode,
    SomeIpMessage,
    UnencodableMessage,
    pack_header,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.options import (
    Endpoint,
    EndpointRole,
    InvalidOption,
    Option,
    OptionOverrun,
    read_options,
    write_option,
)

ANY_INSTANCE: Final = 0xFFFF
ANY_MAJOR: Final = 0xFF
ANY_MINOR: Final = 0xFFFF_FFFF
INTERFACE_VERSION: Final = 1
MAX_ENTRIES: Final = 1024
"""A message of 1 400 bytes has at most 84 entries; a datagram can hold 4 095."""
MAX_OPTIONS_BYTES: Final = 16_384
"""Bytes of all options. 60 kB hold 15 000 items of a Configuration, 5 ms of work."""

# [impl->SD-40]
FLAG_REBOOT: Final = 0x80
# [impl->SD-87]
FLAG_UNICAST: Final = 0x40
# [impl->SD-1187]
FLAG_INITIAL_DATA: Final = 0x20
INITIAL_DATA: Final = 0x008
"""The bit of `EventgroupEntry.reserved` that requests the current field values."""

ENTRY_SIZE: Final = 16
_FIXED: Final = 12
_ENTRY: Final = Layout(">BBBBHHII")
_U32: Final = Layout(">I")
_RUN: Final = 15  # options in one run
_OPTIONS: Final = 0x100  # an index is a byte


# [impl->SD-808]
class EntryType(IntEnum):
    FIND = 0x00
    OFFER = 0x01
    SUBSCRIBE = 0x06
    ACK = 0x07


# [impl->SD-46]
class ServiceEntry(Struct, frozen=True):
    """A Find or an Offer; with ttl 0 a StopOffer."""

    type: int
    service: int
    instance: int
    major: int
    minor: int
    ttl: int
    options: tuple[Option, ...] = ()


# [impl->RPC-545, SD-46, SD-237]
class EventgroupEntry(Struct, frozen=True):
    """A Subscribe or an Ack; with ttl 0 a StopSubscribe or a Nack. `reserved` has 12 bits, including INITIAL_DATA."""

    type: int
    service: int
    instance: int
    major: int
    eventgroup: int
    ttl: int
    counter: int = 0
    reserved: int = 0
    options: tuple[Option, ...] = ()

    @property
    def initial_data(self) -> bool:
        return self.reserved & INITIAL_DATA != 0


Entry = ServiceEntry | EventgroupEntry


# [impl->SD-100]
class SdMessage(Struct, frozen=True):
    """One message of service discovery. `sd_endpoint` is the address for replies, if the sender names one."""

    entries: tuple[Entry, ...]
    reboot: bool
    unicast: bool = True
    initial_data: bool = False
    sd_endpoint: Endpoint | None = None


class SdMalformedReason(StrEnum):
    """The reason to drop a whole message."""

    SD_HEADER = "sd_header"
    SD_TRUNCATED = "sd_truncated"
    SD_ENTRIES_LENGTH = "sd_entries_length"
    SD_ENTRIES_LIMIT = "sd_entries_limit"
    SD_OPTIONS_LENGTH = "sd_options_length"
    SD_OPTION_LENGTH = "sd_option_length"
    SD_TRAILING_BYTES = "sd_trailing_bytes"


class EntryProblem(StrEnum):
    """The reason to refuse one entry."""

    SD_ENTRY_TYPE = "sd_entry_type"
    SD_OPTION_INDEX = "sd_option_index"
    SD_OPTION_OVERLAP = "sd_option_overlap"
    SD_OPTION_INVALID = "sd_option_invalid"


class MalformedSdMessage(ValueError):
    """The payload is not a valid service discovery message. `reason` is a label, `detail` has the numbers."""

    def __init__(self, reason: SdMalformedReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"service discovery: {self.detail}"


class RefusedEntry(Struct, frozen=True):
    """An entry that is not processed. `entry` has the ids without options, or None for an unknown type."""

    index: int
    problem: EntryProblem
    detail: str
    entry: Entry | None = None

    def __str__(self) -> str:
        return f"entry {self.index}: {self.detail}"


# --- reading ----------------------------------------------------------------------------------------------------------


def is_sd_message(message: SomeIpMessage) -> bool:
    """Whether the message ids are those of service discovery."""
    return message.service == SD_SERVICE and message.method == SD_METHOD


# [impl->SD-26, SD-1220]
def decode_sd_message(message: SomeIpMessage) -> tuple[SdMessage, list[RefusedEntry]]:
    """Check the header, then decode the payload. Raises MalformedSdMessage."""
    if (
        not is_sd_message(message)
        or message.interface_version != INTERFACE_VERSION
        or message.message_type != MessageType.NOTIFICATION
        or message.return_code != ReturnCode.E_OK
    ):
        raise MalformedSdMessage(
            SdMalformedReason.SD_HEADER,
            f"message {message.message_id:#010x} version {message.interface_version} type {message.message_type:#04x} "
            f"code {message.return_code:#04x}, expected 0xffff8100 version 1 type 0x02 code 0x00",
        )
    return decode_sd_payload(message.payload)


# [impl->SD-38, SD-44, SD-1152, SD-1164, SD-1163]
def decode_sd_payload(payload: bytes) -> tuple[SdMessage, list[RefusedEntry]]:
    """Decode a payload into the message and its refused entries. Raises MalformedSdMessage."""
    size = len(payload)
    if size < _FIXED:
        raise MalformedSdMessage(SdMalformedReason.SD_TRUNCATED, f"{size} bytes, expected at least 12")
    (length,) = _U32.unpack_from(payload, 4)
    if length % ENTRY_SIZE or length > size - _FIXED:
        raise MalformedSdMessage(
            SdMalformedReason.SD_ENTRIES_LENGTH,
            f"entries of {length} bytes, expected a multiple of 16 up to {size - _FIXED}",
        )
    if length > MAX_ENTRIES * ENTRY_SIZE:
        raise MalformedSdMessage(
            SdMalformedReason.SD_ENTRIES_LIMIT,
            f"{length // ENTRY_SIZE} entries, expected up to {MAX_ENTRIES}",
        )
    options = _options(payload, 8 + length)
    flags = payload[0]
    entries: list[Entry] = []
    refused: list[RefusedEntry] = []
    for index in range(length // ENTRY_SIZE):
        found = _entry(index, payload, 8 + index * ENTRY_SIZE, options)
        if isinstance(found, RefusedEntry):
            refused.append(found)
        else:
            entries.append(found)
    return (
        SdMessage(
            tuple(entries),
            reboot=flags & FLAG_REBOOT != 0,
            unicast=flags & FLAG_UNICAST != 0,
            initial_data=flags & FLAG_INITIAL_DATA != 0,
            # No entry refers to this option. The first of several is used.
            sd_endpoint=next(
                (o for o in options if isinstance(o, Endpoint) and o.role == EndpointRole.DISCOVERY), None
            ),
        ),
        refused,
    )


# [impl->SD-44]
def _options(payload: bytes, offset: int) -> list[Option]:
    (length,) = _U32.unpack_from(payload, offset)
    room = len(payload) - offset - 4
    if length > room:
        raise MalformedSdMessage(
            SdMalformedReason.SD_OPTIONS_LENGTH, f"options of {length} bytes, expected up to {room}"
        )
    if length > MAX_OPTIONS_BYTES:
        raise MalformedSdMessage(
            SdMalformedReason.SD_OPTIONS_LENGTH,
            f"options of {length} bytes, expected up to {MAX_OPTIONS_BYTES}",
        )
    if length < room:
        raise MalformedSdMessage(
            SdMalformedReason.SD_TRAILING_BYTES, f"{room - length} bytes behind the options, expected none"
        )
    if length == 0:
        return []
    try:
        return read_options(payload[offset + 4 :])
    except OptionOverrun as error:
        raise MalformedSdMessage(SdMalformedReason.SD_OPTION_LENGTH, str(error)) from error


# [impl->SD-47, SD-109, SD-336, SD-342, SD-343, SD-347, SD-102]
def _entry(index: int, payload: bytes, offset: int, options: list[Option]) -> Entry | RefusedEntry:
    type, first, second, counts, service, instance, version, last = _ENTRY.unpack_from(payload, offset)
    major, ttl = version >> 24, version & TTL_FOREVER
    entry: Entry
    if type in {EntryType.FIND, EntryType.OFFER}:
        entry = ServiceEntry(type, service, instance, major, last, ttl)
    elif type in {EntryType.SUBSCRIBE, EntryType.ACK}:
        entry = EventgroupEntry(
            type, service, instance, major, last & 0xFFFF, ttl, last >> 16 & 0xF, last >> 20
        )
    else:
        detail = f"type {type:#04x}, expected 0x00, 0x01, 0x06 or 0x07"
        return RefusedEntry(index, EntryProblem.SD_ENTRY_TYPE, detail)
    if not counts:
        return entry  # the index of an empty run has no meaning
    runs = [
        range(start, start + count)
        for start, count in ((first, counts >> 4), (second, counts & 0xF))
        if count
    ]
    for run in runs:
        if run.stop > len(options):
            detail = f"options {run.start} to {run.stop - 1}, and there are {len(options)}"
            return RefusedEntry(index, EntryProblem.SD_OPTION_INDEX, detail, entry)
    if len(runs) == 2 and runs[0].start < runs[1].stop and runs[1].start < runs[0].stop:
        detail = f"runs of options {runs[0].start} to {runs[0].stop - 1} and {runs[1].start} to {runs[1].stop - 1} overlap"
        return RefusedEntry(index, EntryProblem.SD_OPTION_OVERLAP, detail, entry)
    found = tuple(options[number] for run in runs for number in run)
    for option in found:
        if isinstance(option, InvalidOption):
            detail = f"option of type {option.type:#04x}: {option.problem}"
            return RefusedEntry(index, EntryProblem.SD_OPTION_INVALID, detail, entry)
    if isinstance(entry, ServiceEntry):
        return ServiceEntry(type, service, instance, major, last, ttl, found)
    return EventgroupEntry(
        type, service, instance, major, entry.eventgroup, ttl, entry.counter, entry.reserved, found
    )


# --- writing ----------------------------------------------------------------------------------------------------------


# [impl->SD-26, SD-205]
def encode_sd_message(message: SdMessage, session: int) -> bytes:
    """Encode a whole SOME/IP message. Raises UnencodableMessage for a value that does not fit its field."""
    payload = encode_sd_payload(message)
    header = pack_header(
        SD_SERVICE,
        SD_METHOD,
        0,
        session,
        INTERFACE_VERSION,
        MessageType.NOTIFICATION,
        ReturnCode.E_OK,
        len(payload),
    )
    return header + payload


# [impl->SD-38, SD-39, SD-1180, SD-42, SD-101, SD-103, SD-1082, SD-1151, SD-1114]
def encode_sd_payload(message: SdMessage) -> bytes:
    """Encode a payload; options that several entries share are written once. Raises UnencodableMessage."""
    options: list[Option] = [] if message.sd_endpoint is None else [message.sd_endpoint]
    entries = b"".join([_write_entry(entry, options) for entry in message.entries])
    written = b"".join(map(write_option, options))
    flags = (
        FLAG_REBOOT * message.reboot
        | FLAG_UNICAST * message.unicast
        | FLAG_INITIAL_DATA * message.initial_data
    )
    return b"".join(
        (bytes((flags, 0, 0, 0)), _U32.pack(len(entries)), entries, _U32.pack(len(written)), written)
    )


# [impl->RPC-543, RPC-546, SD-47, SD-208, SD-109, SD-209]
def _write_entry(entry: Entry, options: list[Option]) -> bytes:
    limits = {"type": 0xFF, "service": 0xFFFF, "instance": 0xFFFF, "major": 0xFF, "ttl": TTL_FOREVER}
    if isinstance(entry, ServiceEntry):
        limits["minor"] = ANY_MINOR
        last = entry.minor
    else:
        limits |= {"eventgroup": 0xFFFF, "counter": 0xF, "reserved": 0xFFF}
        last = entry.reserved << 20 | entry.counter << 16 | entry.eventgroup
    for field, limit in limits.items():
        value = getattr(entry, field)
        if not 0 <= value <= limit:
            raise UnencodableMessage(field, value, limit)
    (first, one), (second, two) = option_runs(entry.options, options)
    return _ENTRY.pack(
        entry.type,
        first,
        second,
        one << 4 | two,
        entry.service,
        entry.instance,
        entry.major << 24 | entry.ttl,
        last,
    )


# [impl->SD-336, SD-342, SD-348, SD-900, SD-256]
def option_runs(wanted: tuple[Option, ...], options: list[Option]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return start and length of the two option runs of an entry; missing options are appended to `options`.

    Two runs allow entries to share common options, if these come first, and to have further options of their own. So
    an option can be in a message several times.
    Raises UnencodableMessage if the entry or the message has too many options.
    """
    count = len(wanted)
    if count > 2 * _RUN:
        raise UnencodableMessage("number of options", count, 2 * _RUN)
    start = _find(wanted, options) if count <= _RUN else None
    if start is not None:
        return (start, count), _NO_RUN
    shared, known = next(
        (
            (split, place)
            for split in range(min(count - 1, _RUN), 0, -1)
            if count - split <= _RUN and (place := _find(wanted[:split], options)) is not None
        ),
        (0, 0),
    )
    added = _add(wanted[shared : shared + _RUN], options)
    if shared:
        return (known, shared), added
    return added, _add(wanted[_RUN:], options) if count > _RUN else _NO_RUN


_NO_RUN: Final = (0, 0)


def _find(wanted: tuple[Option, ...], options: list[Option]) -> int | None:
    if not wanted:
        return 0
    count = len(wanted)
    places = range(len(options) - count + 1)
    return next((place for place in places if tuple(options[place : place + count]) == wanted), None)


def _add(wanted: tuple[Option, ...], options: list[Option]) -> tuple[int, int]:
    options.extend(wanted)
    if len(options) > _OPTIONS:
        raise UnencodableMessage("number of options", len(options), _OPTIONS)
    return len(options) - len(wanted), len(wanted)
