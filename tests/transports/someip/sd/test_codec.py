# SPDX-License-Identifier: Apache-2.0
"""The codec of service discovery: golden bytes, an independent reader, every refusal, and arbitrary values."""

import ipaddress
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from someip.header import (
    IPv4EndpointOption,
    IPv4MulticastOption,
    IPv6EndpointOption,
    L4Protocols,
    SOMEIPHeader,
    SOMEIPSDConfigOption,
    SOMEIPSDEntry,
    SOMEIPSDEntryType,
    SOMEIPSDHeader,
    SOMEIPSDLoadBalancingOption,
)

from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, UnencodableMessage, split
from ustreamer.transports.someip.sd.codec import (
    ANY_MINOR,
    INITIAL_DATA,
    MAX_ENTRIES,
    EntryProblem,
    EntryType,
    EventgroupEntry,
    MalformedSdMessage,
    SdMalformedReason,
    SdMessage,
    ServiceEntry,
    decode_sd_message,
    decode_sd_payload,
    encode_sd_message,
    encode_sd_payload,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.options import (
    Configuration,
    Endpoint,
    EndpointRole,
    InvalidOption,
    L4Protocol,
    LoadBalancing,
    Option,
    OptionType,
    Protection,
    UnknownOption,
    read_options,
    write_option,
)

UDP = Endpoint("127.0.0.1", 30509)
TCP = Endpoint("127.0.0.1", 30510, int(L4Protocol.TCP))
GROUP = Endpoint("224.225.226.233", 32344, role=int(EndpointRole.MULTICAST))

# Checked by hand, by scapy and tshark; the Offer also by the package someip.
GOLDEN = {
    "offer": (
        (
            "ffff8100 00000030 00000001 01010200 c0000000 00000010 01000010 12345678 01000003 00000000 0000000c "
            "00090400 7f000001 0011772d"
        ),
        1,
        ServiceEntry(EntryType.OFFER, 0x1234, 0x5678, 1, 0, 3, (UDP,)),
    ),
    "subscribe": (
        (
            "ffff8100 00000030 00000003 01010200 c0000000 00000010 06000010 12345678 01000003 00004465 0000000c "
            "00090400 7f000001 00119c40"
        ),
        3,
        EventgroupEntry(
            EntryType.SUBSCRIBE, 0x1234, 0x5678, 1, 0x4465, 3, options=(Endpoint("127.0.0.1", 40000),)
        ),
    ),
}


# [utest->SD-26, SD-205, SD-38, SD-100, SD-101, SD-103, SD-44, SD-208, SD-209, SD-348, SD-256, SD-253]
# [utest->SD-322, SD-808]
@pytest.mark.parametrize(("hexadecimal", "session", "entry"), GOLDEN.values(), ids=GOLDEN)
def test_golden_bytes_in_both_directions(
    hexadecimal: str, session: int, entry: ServiceEntry | EventgroupEntry
) -> None:
    datagram = bytes.fromhex(hexadecimal)
    message = SdMessage((entry,), reboot=True)

    assert encode_sd_message(message, session).hex() == datagram.hex()
    (found,), refused = split(datagram)
    assert refused == []
    assert found.session == session
    assert decode_sd_message(found) == (message, [])


# Composed by hand from the tables: the fields that are 0 in the golden bytes.
LAYOUT = {
    "find any": (
        ServiceEntry(EntryType.FIND, 0x1111, 0xFFFF, 0xFF, ANY_MINOR, 3),
        "00000000 1111ffff ff000003 ffffffff",
    ),
    "stop offer": (
        ServiceEntry(EntryType.OFFER, 0x1111, 2, 3, 0x01020304, 0),
        "01000000 11110002 03000000 01020304",
    ),
    "forever": (
        ServiceEntry(EntryType.OFFER, 0x1111, 2, 3, 4, TTL_FOREVER),
        "01000000 11110002 03ffffff 00000004",
    ),
    "counter": (
        EventgroupEntry(EntryType.SUBSCRIBE, 0x1111, 2, 3, 0x4465, 5, counter=0xA),
        "06000000 11110002 03000005 000a4465",
    ),
    "initial data": (
        EventgroupEntry(EntryType.SUBSCRIBE, 0x1111, 2, 3, 0x4465, 5, 1, INITIAL_DATA),
        "06000000 11110002 03000005 00814465",
    ),
    "reserved": (
        EventgroupEntry(EntryType.ACK, 0x1111, 2, 3, 0x4465, 5, 1, 0xFFF),
        "07000000 11110002 03000005 fff14465",
    ),
    "nack": (EventgroupEntry(EntryType.ACK, 0x1111, 2, 3, 0x4465, 0), "07000000 11110002 03000000 00004465"),
}


# [utest->RPC-543, RPC-546, SD-46, SD-47, SD-109, SD-237, SD-808]
@pytest.mark.parametrize(("entry", "hexadecimal"), LAYOUT.values(), ids=LAYOUT)
def test_every_field_of_an_entry_has_its_bits(
    entry: ServiceEntry | EventgroupEntry, hexadecimal: str
) -> None:
    payload = encode_sd_payload(SdMessage((entry,), reboot=False))

    assert payload[8:24].hex(" ", 4) == hexadecimal
    assert decode_sd_payload(payload)[0].entries == (entry,)


OPTIONS: dict[str, tuple[Option, str]] = {
    "tcp": (TCP, "0009 04 00 7f000001 00 06 772e"),
    "multicast": (GROUP, "0009 14 00 e0e1e2e9 00 11 7e58"),
    "sd endpoint": (
        Endpoint("10.0.0.1", 30490, role=int(EndpointRole.DISCOVERY)),
        "0009 24 00 0a000001 00 11 771a",
    ),
    "ipv6": (Endpoint("fd00::1", 1), "0015 06 00 fd000000000000000000000000000001 00 11 0001"),
    "ipv6 multicast": (
        Endpoint("ff02::1", 1, role=int(EndpointRole.MULTICAST)),
        "0015 16 00 ff020000000000000000000000000001 00 11 0001",
    ),
    "ipv6 sd": (
        Endpoint("fd00::1", 30490, role=int(EndpointRole.DISCOVERY)),
        "0015 26 00 fd000000000000000000000000000001 00 11 771a",
    ),
    "configuration": (Configuration((b"a=1", b"b", b"c=")), "000b 01 00 03 613d31 01 62 02 633d 00"),
    "empty configuration": (Configuration(()), "0002 01 00 00"),
    "load balancing": (LoadBalancing(1, 0xFFFF, discardable=True), "0005 02 80 0001 ffff"),
    "protection": (Protection(7, 0xDEADBEEF), "0009 03 00 00000007 deadbeef"),
    "vsomeip's selective": (UnknownOption(0x20, b"\1\2"), "0003 20 00 0102"),
    "unknown, may be discarded": (UnknownOption(0xEE, b"", discardable=True), "0001 ee 80"),
}


# [utest->SD-133, SD-149, SD-150, SD-151, SD-159, SD-160, SD-217, SD-201, SD-144, SD-147, SD-127, SD-128]
# [utest->SD-129, SD-199, SD-141, SD-723, SD-724, SD-725, SD-733, SD-734, SD-1085, SD-1086, SD-1087]
# [utest->SD-1095, SD-1096, SD-809, SD-810, SD-857]
@pytest.mark.parametrize(("option", "hexadecimal"), OPTIONS.values(), ids=OPTIONS)
def test_every_kind_of_option_has_its_bytes(option: Option, hexadecimal: str) -> None:
    assert write_option(option).hex() == hexadecimal.replace(" ", "")
    assert read_options(bytes.fromhex(hexadecimal)) == [option]


# [utest->SD-1142]
def test_an_unknown_option_is_kept_and_its_entry_is_accepted() -> None:
    unknown = UnknownOption(0x20, b"\1\2")
    offer = ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (UDP, unknown))

    assert decode_sd_payload(encode_sd_payload(SdMessage((offer,), reboot=True))) == (
        SdMessage((offer,), reboot=True),
        [],
    )


BROKEN = {
    "ipv4 endpoint of 3 bytes": (0x04, "010203", "3 bytes, expected 8"),
    "ipv6 endpoint of 8 bytes": (0x06, "0102030400110001", "8 bytes, expected 20"),
    "protocol": (0x04, "0a000001 00 84 0001", "protocol 132, expected 6 (TCP) or 17 (UDP)"),
    "port 0": (0x04, "0a000001 00 11 0000", "port 0, expected 1 to 65535"),
    "a multicast group as a service": (
        0x04,
        "e0000001 00 11 0001",
        "address 224.0.0.1, expected that of one host",
    ),
    "multicast as a service": (
        0x04,
        "ffffffff 00 11 0001",
        "address 255.255.255.255, expected that of one host",
    ),
    "the zero address as a service": (
        0x04,
        "00000000 00 11 0001",
        "address 0.0.0.0, expected that of one host",
    ),
    "one host as a multicast group": (
        0x14,
        "0a000001 00 11 0001",
        "address 10.0.0.1, expected a multicast group",
    ),
    "multicast over tcp": (0x14, "e0000001 00 06 0001", "protocol 6, expected 17 (UDP)"),
    "sd endpoint for many": (0x24, "e0000001 00 11 0001", "address 224.0.0.1, expected that of one host"),
    "load balancing": (0x02, "0001", "2 bytes, expected 4"),
    "protection": (0x03, "0001", "2 bytes, expected 8"),
    "configuration without an end": (0x01, "0161", "expected items and a 0 at the end"),
    "configuration of nothing": (0x01, "", "expected items and a 0 at the end"),
    "configuration with something behind the end": (0x01, "0161 00 00", "expected items and a 0 at the end"),
    "configuration with a lying length": (0x01, "0961 00", "an item of 9 bytes leaves the option"),
    "configuration without a key": (0x01, "023d61 00", "item b'=a' has no key"),
}


# [utest->SD-151, SD-158, SD-161, SD-790]
@pytest.mark.parametrize(("type", "body", "problem"), BROKEN.values(), ids=BROKEN)
def test_an_invalid_option_refuses_only_its_entries(type: int, body: str, problem: str) -> None:
    raw = bytes.fromhex(body)
    broken = (len(raw) + 1).to_bytes(2, "big") + bytes((type, 0)) + raw
    good = write_option(UDP)
    entries = bytes.fromhex("01000010 12345678 01000003 00000000 01010010 12345679 01000003 00000000")
    payload = b"".join(
        (
            b"\xc0\0\0\0",
            len(entries).to_bytes(4, "big"),
            entries,
            (len(good) + len(broken)).to_bytes(4, "big"),
            good,
            broken,
        )
    )

    message, (refused,) = decode_sd_payload(payload)

    assert message.entries == (ServiceEntry(EntryType.OFFER, 0x1234, 0x5678, 1, 0, 3, (UDP,)),)
    assert (refused.index, refused.problem) == (1, EntryProblem.SD_OPTION_INVALID)
    assert problem in str(refused)
    assert refused.entry == ServiceEntry(EntryType.OFFER, 0x1234, 0x5679, 1, 0, 3)


def payload_of(entries: str, options: tuple[Option, ...] = (), flags: int = 0xC0) -> bytes:
    raw, written = bytes.fromhex(entries), b"".join(map(write_option, options))
    return b"".join(
        (bytes((flags, 0, 0, 0)), len(raw).to_bytes(4, "big"), raw, len(written).to_bytes(4, "big"), written)
    )


def test_a_message_has_a_bound_of_options() -> None:
    def payload(items: int) -> bytes:
        option = b"\x03a=b" * items + b"\0"
        body = struct.pack(">HBB", len(option) + 1, 1, 0) + option
        return struct.pack(">II", 0, 0) + struct.pack(">I", len(body)) + body

    assert decode_sd_payload(payload(4_000))[1] == []
    with pytest.raises(MalformedSdMessage, match="options of 60005 bytes, expected up to 16384") as refused:
        decode_sd_payload(payload(15_000))
    assert refused.value.reason is SdMalformedReason.SD_OPTIONS_LENGTH


# [utest->SD-336, SD-342, SD-343, SD-347]
def test_both_runs_of_options_are_read_in_order_and_an_empty_run_has_any_index() -> None:
    options = (UDP, TCP, GROUP)
    (entry,), refused = read(payload_of("01020012 12345678 01000003 00000000", options))
    assert (entry.options, refused) == ((GROUP, UDP, TCP), [])

    (entry,), refused = read(payload_of("01ffff00 12345678 01000003 00000000", options))
    assert (entry.options, refused) == ((), [])


def read(payload: bytes) -> tuple[Any, list[Any]]:
    message, refused = decode_sd_payload(payload)
    return message.entries, refused


# [utest->SD-1164, SD-102]
@pytest.mark.parametrize(
    ("entry", "problem", "text"),
    [
        ("05000000 12345678 01000003 00000000", EntryProblem.SD_ENTRY_TYPE, "type 0x05, expected"),
        (
            "01030010 12345678 01000003 00000000",
            EntryProblem.SD_OPTION_INDEX,
            "options 3 to 3, and there are 3",
        ),
        (
            "01000040 12345678 01000003 00000000",
            EntryProblem.SD_OPTION_INDEX,
            "options 0 to 3, and there are 3",
        ),
        ("01000201 12345678 01000003 00000000", None, ""),
        (
            "01000202 12345678 01000003 00000000",
            EntryProblem.SD_OPTION_INDEX,
            "options 2 to 3, and there are 3",
        ),
        ("01000021 12345678 01000003 00000000", EntryProblem.SD_OPTION_OVERLAP, "0 to 1 and 0 to 0 overlap"),
        ("06000122 12345678 01000003 00000000", EntryProblem.SD_OPTION_OVERLAP, "0 to 1 and 1 to 2 overlap"),
    ],
)
def test_only_the_malformed_entry_is_refused(entry: str, problem: EntryProblem | None, text: str) -> None:
    good = "00000000 1111ffff ff000003 ffffffff"
    message, refused = decode_sd_payload(payload_of(entry + good, (UDP, TCP, GROUP)))

    assert message.entries[-1] == ServiceEntry(EntryType.FIND, 0x1111, 0xFFFF, 0xFF, ANY_MINOR, 3)
    assert [each.problem for each in refused] == ([] if problem is None else [problem])
    assert all(text in str(each) for each in refused)


def test_a_refused_subscribe_can_still_be_answered() -> None:
    _, (refused,) = decode_sd_payload(payload_of("06090010 12345678 01000003 00014465"))

    assert refused.entry == EventgroupEntry(EntryType.SUBSCRIBE, 0x1234, 0x5678, 1, 0x4465, 3, counter=1)


GOOD = payload_of("01000010 12345678 01000003 00000000", (UDP,))
MALFORMED = {
    "nothing": (b"", SdMalformedReason.SD_TRUNCATED, "0 bytes, expected at least 12"),
    "no length of options": (GOOD[:8] + b"\0\0\0", SdMalformedReason.SD_TRUNCATED, "11 bytes"),
    "half an entry": (
        GOOD[:4] + b"\0\0\0\x18" + GOOD[8:],
        SdMalformedReason.SD_ENTRIES_LENGTH,
        "entries of 24 bytes, expected a multiple of 16 up to 28",
    ),
    "entries beyond the end": (
        GOOD[:4] + b"\0\0\0\x20" + GOOD[8:],
        SdMalformedReason.SD_ENTRIES_LENGTH,
        "entries of 32 bytes",
    ),
    "too many entries": (
        payload_of("00000000 1111ffff ff000003 ffffffff" * (MAX_ENTRIES + 1)),
        SdMalformedReason.SD_ENTRIES_LIMIT,
        "1025 entries, expected up to 1024",
    ),
    "options beyond the end": (
        GOOD[:24] + b"\0\0\0\x0d" + GOOD[28:],
        SdMalformedReason.SD_OPTIONS_LENGTH,
        "options of 13 bytes, expected up to 12",
    ),
    "bytes behind the options": (
        GOOD + b"\0",
        SdMalformedReason.SD_TRAILING_BYTES,
        "1 bytes behind the options",
    ),
    "an option beyond the array": (
        GOOD[:28] + b"\0\x0a" + GOOD[30:],
        SdMalformedReason.SD_OPTION_LENGTH,
        "option at offset 0: length 10, expected 1 to 9",
    ),
    "an option of no length": (
        GOOD[:28] + b"\0\0" + GOOD[30:],
        SdMalformedReason.SD_OPTION_LENGTH,
        "option at offset 0: length 0, expected 1 to 9",
    ),
    "half an option": (
        GOOD[:24] + b"\0\0\0\x03" + b"\0\1\4",
        SdMalformedReason.SD_OPTION_LENGTH,
        "option at offset 0: length 3, expected 1 to 0",
    ),
}


def test_a_message_may_have_the_maximum_of_entries() -> None:
    found, refused = decode_sd_payload(payload_of("00000000 1111ffff ff000003 ffffffff" * MAX_ENTRIES))
    assert (len(found.entries), refused) == (MAX_ENTRIES, [])


# [utest->SD-44, SD-1164, SD-1163]
@pytest.mark.parametrize(("payload", "reason", "text"), MALFORMED.values(), ids=MALFORMED)
def test_a_message_with_contradicting_lengths_is_refused(
    payload: bytes, reason: SdMalformedReason, text: str
) -> None:
    with pytest.raises(MalformedSdMessage) as refused:
        decode_sd_payload(payload)

    assert refused.value.reason is reason
    assert text in str(refused.value)


# [utest->SD-26, SD-1220]
@pytest.mark.parametrize(
    "header",
    [
        (0xFFFE, 0x8100, 1, MessageType.NOTIFICATION, 0),
        (0xFFFF, 0x8101, 1, MessageType.NOTIFICATION, 0),
        (0xFFFF, 0x8100, 2, MessageType.NOTIFICATION, 0),
        (0xFFFF, 0x8100, 1, MessageType.REQUEST, 0),
        (0xFFFF, 0x8100, 1, MessageType.NOTIFICATION, 1),
    ],
)
def test_a_header_of_another_service_is_refused(header: tuple[int, int, int, int, int]) -> None:
    service, method, version, type, code = header
    with pytest.raises(MalformedSdMessage) as refused:
        decode_sd_message(SomeIpMessage(service, method, 0, 1, version, type, code, GOOD))

    assert refused.value.reason is SdMalformedReason.SD_HEADER


# [utest->SD-1180, SD-42]
def test_reserved_bits_are_ignored_and_sent_as_zero() -> None:
    noisy = bytearray(GOOD)
    noisy[0] |= 0x1F
    noisy[1:4] = b"\xff\xff\xff"
    noisy[31] = 0x7F  # reserved byte of the option
    noisy[36] = 0xFF  # reserved byte of the endpoint

    message, refused = decode_sd_payload(bytes(noisy))

    assert refused == []
    assert encode_sd_payload(message) == GOOD


# [utest->SD-39, SD-40, SD-87, SD-1187]
@pytest.mark.parametrize(
    ("message", "flags"),
    [
        (SdMessage((), reboot=True, unicast=False), 0x80),
        (SdMessage((), reboot=False, unicast=True), 0x40),
        (SdMessage((), reboot=False, unicast=False, initial_data=True), 0x20),
    ],
)
def test_every_flag_has_its_bit(message: SdMessage, flags: int) -> None:
    payload = encode_sd_payload(message)

    assert payload[0] == flags
    assert decode_sd_payload(payload)[0] == message


# [utest->SD-1082, SD-1151, SD-1152, SD-1114]
def test_the_first_sd_endpoint_is_the_reply_address() -> None:
    wanted = Endpoint("10.0.0.9", 30490, role=int(EndpointRole.DISCOVERY))
    other = Endpoint("10.0.0.8", 30490, role=int(EndpointRole.DISCOVERY))
    payload = payload_of("01020010 12345678 01000003 00000000", (wanted, other, UDP))

    message, _ = decode_sd_payload(payload)

    assert message.sd_endpoint == wanted
    assert message.entries[0].options == (UDP,)
    again = encode_sd_payload(SdMessage(message.entries, reboot=True, sd_endpoint=wanted))
    assert decode_sd_payload(again)[0] == message


# [utest->SD-900]
def test_shared_options_are_written_once() -> None:
    shared = Configuration((b"hostname=x",))
    other = Endpoint("127.0.0.1", 30511)
    entries = tuple(
        ServiceEntry(EntryType.OFFER, 1, number, 1, 0, 3, options)
        for number, options in enumerate(((UDP, TCP), (UDP, TCP, shared), (UDP, TCP, other), (TCP,), ()))
    )

    payload = encode_sd_payload(SdMessage(entries, reboot=True))

    written = sum(len(write_option(each)) for each in (UDP, TCP, shared, other))
    assert len(payload) == 12 + 16 * len(entries) + written
    assert decode_sd_payload(payload) == (SdMessage(entries, reboot=True), [])


# [utest->SD-161]
@pytest.mark.parametrize(
    "entry",
    [
        ServiceEntry(EntryType.OFFER, 0x10000, 1, 1, 0, 3),
        ServiceEntry(EntryType.OFFER, 1, -1, 1, 0, 3),
        ServiceEntry(EntryType.OFFER, 1, 1, 0x100, 0, 3),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 1 << 32, 3),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, TTL_FOREVER + 1),
        EventgroupEntry(EntryType.SUBSCRIBE, 1, 1, 1, 0x10000, 3),
        EventgroupEntry(EntryType.SUBSCRIBE, 1, 1, 1, 1, 3, counter=0x10),
        EventgroupEntry(EntryType.SUBSCRIBE, 1, 1, 1, 1, 3, reserved=0x1000),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (Endpoint("10.0.0.1", 0),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (Endpoint("10.0.0.1", 0x10000),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (Endpoint("a.host", 1),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (Endpoint("224.0.0.1", 1),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (Configuration((b"=x",)),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (Configuration((b"x" * 256,)),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (LoadBalancing(0x10000, 0),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (Protection(0, 1 << 32),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (UnknownOption(0x100, b""),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (UnknownOption(9, bytes(0xFFFF)),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (InvalidOption(4, "port 0"),)),
        ServiceEntry(EntryType.OFFER, 1, 1, 1, 0, 3, (UDP,) * 31),
    ],
)
def test_a_value_outside_its_field_is_not_encoded(entry: ServiceEntry | EventgroupEntry) -> None:
    with pytest.raises(UnencodableMessage):
        encode_sd_payload(SdMessage((entry,), reboot=True))


def test_more_options_than_an_index_can_name_are_not_encoded() -> None:
    entries = tuple(
        ServiceEntry(EntryType.OFFER, 1, number, 1, 0, 3, (Endpoint("10.0.0.1", number),))
        for number in range(1, 258)
    )
    assert (
        decode_sd_payload(encode_sd_payload(SdMessage(entries[:256], reboot=True)))[0].entries
        == entries[:256]
    )
    with pytest.raises(UnencodableMessage, match="number of options 257"):
        encode_sd_payload(SdMessage(entries, reboot=True))


# --- an independent reader and writer ---------------------------------------------------------------------------------


def independent(message: SdMessage) -> SOMEIPSDHeader:
    """The message as a value of the package someip."""
    return SOMEIPSDHeader(
        entries=tuple(map(their_entry, message.entries)),
        flag_reboot=message.reboot,
        flag_unicast=message.unicast,
        flags_unknown=0x20 if message.initial_data else 0,
    )


def their_entry(entry: ServiceEntry | EventgroupEntry) -> SOMEIPSDEntry:
    last = (
        entry.minor
        if isinstance(entry, ServiceEntry)
        else entry.reserved << 20 | entry.counter << 16 | entry.eventgroup
    )
    return SOMEIPSDEntry(
        sd_type=SOMEIPSDEntryType(entry.type),
        service_id=entry.service,
        instance_id=entry.instance,
        major_version=entry.major,
        ttl=entry.ttl,
        minver_or_counter=last,
        options_1=tuple(map(their_option, entry.options)),
    )


def their_option(option: Option) -> object:
    if isinstance(option, Configuration):
        pairs = [item.decode().partition("=") for item in option.items]
        return SOMEIPSDConfigOption(
            configs=tuple((key, value if sign else None) for key, sign, value in pairs)
        )
    if isinstance(option, LoadBalancing):
        return SOMEIPSDLoadBalancingOption(priority=option.priority, weight=option.weight)
    assert isinstance(option, Endpoint)
    ip = ipaddress.ip_address(option.host)
    kinds = {
        (EndpointRole.SERVICE, 4): IPv4EndpointOption,
        (EndpointRole.SERVICE, 6): IPv6EndpointOption,
        (EndpointRole.MULTICAST, 4): IPv4MulticastOption,
    }
    return kinds[EndpointRole(option.role), ip.version](
        address=ip, l4proto=L4Protocols(option.protocol), port=option.port
    )


hosts4 = st.integers(0x0A00_0001, 0x0AFF_FFFF).map(lambda n: str(ipaddress.IPv4Address(n)))
hosts6 = st.integers(1, 1 << 64).map(lambda n: str(ipaddress.IPv6Address((0xFD << 120) + n)))
groups4 = st.integers(0xE000_0000, 0xEFFF_FFFF).map(lambda n: str(ipaddress.IPv4Address(n)))
ports = st.integers(1, 0xFFFF)
services = st.builds(
    Endpoint, hosts4 | hosts6, ports, st.sampled_from([6, 17]), st.just(int(EndpointRole.SERVICE))
)
multicasts = st.builds(Endpoint, groups4, ports, st.just(17), st.just(int(EndpointRole.MULTICAST)))
keys = st.text(st.characters(min_codepoint=0x61, max_codepoint=0x7A), min_size=1, max_size=20)
items = st.one_of(keys, st.tuples(keys, keys).map("=".join)).map(str.encode)
configurations = st.builds(Configuration, st.lists(items, max_size=4).map(tuple))
u16 = st.integers(0, 0xFFFF)
common = services | multicasts | configurations | st.builds(LoadBalancing, u16, u16)
rare = st.one_of(
    st.builds(Protection, st.integers(0, 0xFFFF_FFFF), st.integers(0, 0xFFFF_FFFF), st.booleans()),
    st.builds(
        UnknownOption,
        st.integers(0, 0xFF).filter(lambda n: n not in set(OptionType)),
        st.binary(max_size=20),
        st.booleans(),
    ),
    st.builds(LoadBalancing, u16, u16, st.booleans()),
)
bytes_ = st.integers(0, 0xFF)
ttls = st.integers(0, TTL_FOREVER)
JUST_ZERO = st.just(0)  # the package someip refuses a whole message for a reserved bit


def entries_with(
    options: st.SearchStrategy[Any], most: int, reserved: st.SearchStrategy[int]
) -> st.SearchStrategy[Any]:
    runs = st.lists(options, max_size=most).map(tuple)
    return st.one_of(
        st.builds(
            ServiceEntry, st.sampled_from([0, 1]), u16, u16, bytes_, st.integers(0, ANY_MINOR), ttls, runs
        ),
        st.builds(
            EventgroupEntry,
            st.sampled_from([6, 7]),
            u16,
            u16,
            bytes_,
            u16,
            ttls,
            st.integers(0, 15),
            reserved,
            runs,
        ),
    )


def messages(
    options: st.SearchStrategy[Any], most: int = 3, reserved: st.SearchStrategy[int] = JUST_ZERO
) -> st.SearchStrategy[SdMessage]:
    found = st.lists(entries_with(options, most, reserved), max_size=6).map(tuple)
    return st.builds(SdMessage, found, st.booleans(), st.booleans(), st.booleans())


@given(messages(common | rare, most=30, reserved=st.integers(0, 0xFFF)))
def test_an_encoded_message_is_decoded_unchanged(message: SdMessage) -> None:
    assert decode_sd_payload(encode_sd_payload(message)) == (message, [])


@given(messages(common))
def test_an_independent_decoder_reads_encoded_entries(message: SdMessage) -> None:
    parsed, rest = SOMEIPSDHeader.parse(encode_sd_payload(message))

    assert rest == b""
    resolved = parsed.resolve_options()
    assert [
        (e.sd_type, e.service_id, e.instance_id, e.major_version, e.ttl, e.minver_or_counter, e.options)
        for e in resolved.entries
    ] == [
        (e.sd_type, e.service_id, e.instance_id, e.major_version, e.ttl, e.minver_or_counter, e.options)
        for e in independent(message).entries
    ]
    assert (parsed.flag_reboot, parsed.flag_unicast) == (message.reboot, message.unicast)


@given(messages(common))
def test_messages_of_an_independent_encoder_are_decoded(message: SdMessage) -> None:
    written = independent(message).assign_option_indexes().build()

    assert decode_sd_payload(written) == (message, [])


def test_an_independent_decoder_reads_the_whole_message() -> None:
    offer = ServiceEntry(EntryType.OFFER, 0x1234, 0x5678, 1, 0, 3, (UDP,))

    header, rest = SOMEIPHeader.parse(encode_sd_message(SdMessage((offer,), reboot=True), 0xFFFF))

    assert (header.service_id, header.method_id, header.session_id, rest) == (0xFFFF, 0x8100, 0xFFFF, b"")


@given(st.binary(max_size=120))
def test_arbitrary_bytes_are_decoded_or_refused(payload: bytes) -> None:
    try:
        message, refused = decode_sd_payload(payload)
    except MalformedSdMessage:
        return
    assert len(message.entries) + len(refused) == int.from_bytes(payload[4:8], "big") // 16
