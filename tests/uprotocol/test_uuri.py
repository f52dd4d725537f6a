# SPDX-License-Identifier: Apache-2.0
"""UUri: the specification's vectors (`uuri_*.feature`), its pattern matching table, and invalid input."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import (
    ANY,
    MAX_AUTHORITY,
    UUri,
    any_at,
    check_authority,
    check_filters,
)

# ------------------------------------------------------------------------------------------------ text and protobuf

# fmt: off
VECTORS: list[tuple[str, int, int, int, str, str | None]] = [
    # authority, ue_id, version, resource, text, protobuf (the specification gives none for the two IPs)
    ("", 0x1, 0x01, 0xA1FB, "up:/1/1/A1FB", "1001180120fbc302"),
    ("192.168.1.1", 0x1, 0x01, 0xA1FB, "up://192.168.1.1/1/1/A1FB", None),
    ("[2001::7]", 0x1, 0x01, 0xA1FB, "up://[2001::7]/1/1/A1FB", None),
    ("my_vin", 0x10000001, 0x02, 0x001A, "up://my_vin/10000001/2/1A", "0a066d795f76696e1081808080011802201a"),
    ("*", 0x101, 0xA0, 0xA1FB, "up://*/101/A0/A1FB", "0a012a10810218a00120fbc302"),
    ("mcu1", 0xFFFF, 0x01, 0xA1FB, "up://mcu1/FFFF/1/A1FB", "0a046d63753110ffff03180120fbc302"),
    ("vcu.my_vin", 0x01A40101, 0x01, 0x8000, "up://vcu.my_vin/1A40101/1/8000", "0a0a7663752e6d795f76696e108182900d180120808002"),
    ("vcu.my_vin", 0xFFFF0101, 0x01, 0xA1FB, "up://vcu.my_vin/FFFF0101/1/A1FB", "0a0a7663752e6d795f76696e108182fcff0f180120fbc302"),
    ("vcu.my_vin", 0xFFFFFFFF, 0x01, 0xA1FB, "up://vcu.my_vin/FFFFFFFF/1/A1FB", "0a0a7663752e6d795f76696e10ffffffff0f180120fbc302"),
    ("vcu.my_vin", 0x101, 0x00, 0xA1FB, "up://vcu.my_vin/101/0/A1FB", "0a0a7663752e6d795f76696e10810220fbc302"),
    ("vcu.my_vin", 0x101, 0xFF, 0xA1FB, "up://vcu.my_vin/101/FF/A1FB", "0a0a7663752e6d795f76696e10810218ff0120fbc302"),
    ("vcu.my_vin", 0x101, 0x01, 0x0000, "up://vcu.my_vin/101/1/0", "0a0a7663752e6d795f76696e1081021801"),
    ("vcu.my_vin", 0x101, 0x01, 0xFFFF, "up://vcu.my_vin/101/1/FFFF", "0a0a7663752e6d795f76696e108102180120ffff03"),
]
# fmt: on
TEXTS = [(UUri(a, e, v, r), text) for a, e, v, r, text, _ in VECTORS]
PROTOBUFS = [(UUri(a, e, v, r), bytes.fromhex(data)) for a, e, v, r, _, data in VECTORS if data]


def read_pb(data: bytes) -> uri.UUri:
    message = uri.UUri()
    message.ParseFromString(data)
    return message


@pytest.mark.parametrize(("uuri", "text"), TEXTS)
def test_text_is_parsed(uuri: UUri, text: str) -> None:
    assert UUri.parse(text) == uuri


@pytest.mark.parametrize(("uuri", "text"), TEXTS)
def test_text_is_formatted_in_upper_case_without_leading_zeros(uuri: UUri, text: str) -> None:
    assert str(uuri) == text


@pytest.mark.parametrize(("uuri", "data"), PROTOBUFS)
def test_protobuf_is_decoded(uuri: UUri, data: bytes) -> None:
    assert UUri.from_pb(read_pb(data)) == uuri


@pytest.mark.parametrize(("uuri", "data"), PROTOBUFS)
def test_protobuf_is_encoded(uuri: UUri, data: bytes) -> None:
    assert uuri.to_pb() == read_pb(data)  # parsed, because protobuf bytes are not canonical


@pytest.mark.parametrize(
    ("text", "uuri"),
    [
        ("/0/3/8000", UUri("", 0, 3, 0x8000)),
        ("//192.168.1.10/0/FF/8000", UUri("192.168.1.10", 0, 0xFF, 0x8000)),
        ("up://vin/ffff0abc/a1/bcd1", UUri("vin", 0xFFFF0ABC, 0xA1, 0xBCD1)),
        ("up:/00000001/0a/0000A1fB", UUri("", 1, 0xA, 0xA1FB)),
        ("/FFFFFFFF/FF/FFFF", UUri("", 0xFFFFFFFF, 0xFF, 0xFFFF)),
    ],
)
def test_the_scheme_the_case_and_leading_zeros_are_free_on_input(text: str, uuri: UUri) -> None:
    assert UUri.parse(text) == uuri


REJECTED = {  # text: the end of its error message, after the text itself
    "": "expected up://authority/... or up:/..., no other scheme",
    "  ": "no other scheme",
    "$$": "no other scheme",
    "up:": "no other scheme",
    "up:/": "expected three segments ue_id/version/resource, found 1",
    "/": "found 1",
    "//": "expected //authority/ue_id/version/resource",
    "//vcu.my_vin": "expected //authority/ue_id/version/resource",
    "///1/1/A1FB": "expected //authority/ue_id/version/resource",
    "//vcu.my_vin//1/A1FB": "ue_id '' is not a hexadecimal number in 0..FFFFFFFF",
    "//vcu.my_vin/101//A1FB": "version '' is not",
    "//vcu.my_vin/101/1/": "resource '' is not",
    "up://vcu.my_vin/101/1/A/unexpected": "found 4",
    "xy://vcu.my_vin/101/1/A": "no other scheme",
    "//vcu.my_vin/101/1/A?foo=bar": "resource 'A?foo=bar' is not",
    "//vcu.my_vin/101/1/A#foo": "resource 'A#foo' is not",
    "//VCU.my-vin/101/1/A": "authority 'VCU.my-vin' is not '*', an IP address or at most 128 characters",
    "//vcu.my-vin:1516/101/1/A": "authority 'vcu.my-vin:1516' is not",
    "//user:pwd@vcu.my-vin/101/1/A": "authority 'user:pwd@vcu.my-vin' is not",
    "//[2001:db87aa::8]/101/1/A": "authority '[2001:db87aa::8]' is not",
    "//MY_VIN/101/1/A": "authority 'MY_VIN' is not",
    "//reg_based:1516/101/1/A": "authority 'reg_based:1516' is not",
    "up://vcu.my-vin/1G1/1/A1FB": "ue_id '1G1' is not",
    "/123456789/1/A1FB": "ue_id '123456789' is not",
    "up:/101/G/A1FB": "version 'G' is not a hexadecimal number in 0..FF",
    "//vcu.my-vin/101/123/A1FB": "version '123' is not",
    "up://vcu.my-vin/101/1/12345": "resource '12345' is not a hexadecimal number in 0..FFFF",
    "/101/1/G1FB": "resource 'G1FB' is not",
    # int(x, 16) reads all of these.
    "/0x1/1/A1FB": "ue_id '0x1' is not",
    "/1_0/1/A1FB": "ue_id '1_0' is not",
    "/ 1 /1/A1FB": "ue_id ' 1 ' is not",
    "/+1/1/A1FB": "ue_id '+1' is not",
    "/１/1/A1FB": "ue_id '１' is not",
    "/1/1/A1FB\n": r"resource 'A1FB\n' is not",
    "/000000001/1/A1FB": "ue_id '000000001' is not",
    # An authority is percent-encoded nowhere, and a registered name is nothing more.
    "//my%20vin/1/1/A": "authority 'my%20vin' is not",
    "//my vin/1/1/A": "authority 'my vin' is not",
    "//my*/1/1/A": "authority 'my*' is not",
    "//[2001::7/1/1/A": "authority '[2001::7' is not",
    "//2001::7/1/1/A": "authority '2001::7' is not",
    "//[127.0.0.1]/1/1/A": "authority '[127.0.0.1]' is not",
    "//vin\n/1/1/A": r"authority 'vin\n' is not",
}


@pytest.mark.parametrize(("text", "expectation"), REJECTED.items())
def test_invalid_text_is_refused_with_a_reason(text: str, expectation: str) -> None:
    with pytest.raises(UStatusError) as refusal:
        UUri.parse(text)
    assert refusal.value.code is UCode.INVALID_ARGUMENT
    assert repr(text) in refusal.value.message
    assert expectation in refusal.value.message


@pytest.mark.parametrize("zone", ["eth0", "ETH 0", "x" * 200])
def test_an_ip_literal_has_no_zone_which_could_be_any_text_of_any_length(zone: str) -> None:
    with pytest.raises(UStatusError, match="authority"):
        UUri.parse(f"//[fe80::1%{zone}]/1/1/A")


# [utest->dsn~uri-authority-name-length~1]
def test_an_authority_has_at_most_128_characters() -> None:
    assert UUri.parse(f"//{'a' * MAX_AUTHORITY}/1/1/A").authority_name == "a" * 128
    with pytest.raises(UStatusError, match="at most 128 characters"):
        UUri.parse(f"//{'a' * 129}/1/1/A")
    with pytest.raises(UStatusError, match="at most 128 characters"):
        UUri.from_pb(uri.UUri(authority_name="a" * 129))


@pytest.mark.parametrize("authority", ["*", "a", "vcu-1.my_vin~", "10.0.0.1", "[::]", "[2001:db8::8]"])
def test_names_ip_addresses_and_the_wildcard_are_authorities(authority: str) -> None:
    check_authority(authority, "here")


def test_an_invalid_authority_is_reported_with_its_place() -> None:
    with pytest.raises(UStatusError, match=r"UUri 'endpoints\.x\.authorities': authority 'Cloud' is not"):
        check_authority("Cloud", "endpoints.x.authorities")


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (uri.UUri(ue_version_major=0x100), r"up:/0/100/0: ue_version_major 0x100 is not in 0\.\.0xFF"),
        (uri.UUri(resource_id=0x10000), r"up:/0/0/10000: resource_id 0x10000 is not in 0\.\.0xFFFF"),
        (uri.UUri(authority_name="VIN", ue_id=1), "authority 'VIN' is not"),
    ],
)
def test_a_protobuf_uuri_out_of_range_is_refused(message: uri.UUri, complaint: str) -> None:
    with pytest.raises(UStatusError, match=complaint) as refusal:
        UUri.from_pb(message)
    assert refusal.value.code is UCode.INVALID_ARGUMENT


@pytest.mark.parametrize("uuri", [UUri("", -1), UUri("", 0x1_0000_0000), UUri("", 0, -1), UUri("", 0, 0, -1)])
def test_values_below_zero_or_above_the_type_are_refused(uuri: UUri) -> None:
    with pytest.raises(UStatusError, match="is not in 0"):
        uuri.check()


authorities = st.one_of(
    st.sampled_from(["", "*", "[2001::7]", "10.0.0.1"]), st.text("abcxyz0189-._~", max_size=MAX_AUTHORITY)
)
uuris = st.builds(
    UUri,
    authorities,
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0xFFFF),
)


@given(uuris)
def test_every_uuri_survives_text_and_protobuf(uuri: UUri) -> None:
    uuri.check()
    assert UUri.parse(str(uuri)) == uuri
    assert UUri.parse(str(uuri).removeprefix("up:").lower()) == uuri
    assert UUri.from_pb(read_pb(uuri.to_pb().SerializeToString())) == uuri


def parsed(text: str) -> UUri | UCode:
    try:
        return UUri.parse(text)
    except UStatusError as error:
        return error.code


@given(st.one_of(st.text(), st.text("up:/*.[]%?#@ 01aFG", max_size=30)))
@example("/1/1/1")
def test_any_text_is_a_valid_uuri_or_an_invalid_argument(text: str) -> None:
    result = parsed(text)
    if isinstance(result, UCode):
        assert result is UCode.INVALID_ARGUMENT
    else:
        result.check()
        assert UUri.parse(str(result)) == result


# ------------------------------------------------------------------------------------------------------------- parts


def test_absent_parts_are_empty_or_zero() -> None:
    assert str(UUri()) == "up:/0/0/0"


def test_the_instance_is_the_upper_half_of_the_entity_and_the_type_the_lower() -> None:
    uuri = UUri("", 0x00030ABC, 1, 0)
    assert (uuri.ue_instance, uuri.ue_type) == (3, 0xABC)


@pytest.mark.parametrize(
    ("resource", "is_method", "is_topic"),
    [
        (0x0000, False, False),
        (0x0001, True, False),
        (0x7FFF, True, False),
        (0x8000, False, True),
        (0xFFFE, False, True),
        (0xFFFF, False, False),
    ],
)
def test_the_resource_distinguishes_methods_and_topics(
    resource: int, is_method: bool, is_topic: bool
) -> None:
    uuri = UUri("vin", 1, 1, resource)
    assert (uuri.is_method, uuri.is_topic) == (is_method, is_topic)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("//vin/A100/1/1", None),
        ("//*/A100/1/1", "authority"),
        ("//vin/FFFF/1/1", "type"),
        ("//vin/FFFF0ABC/1/1", "instance"),
        ("//vin/FFFFFFFF/1/1", "instance"),
        ("//vin/A100/FF/1", "version"),
        ("//vin/A100/1/FFFF", "resource"),
        ("//vin/FFFF/FF/FFFF", "type"),
        ("//*/FFFFFFFF/FF/FFFF", "authority"),
        ("/FFFE/FE/FFFE", None),
    ],
)
def test_the_first_wildcard_is_named(text: str, part: str | None) -> None:
    assert UUri.parse(text).wildcard() == part


def test_only_an_empty_authority_is_filled_in() -> None:
    assert UUri("", 1, 2, 3).with_authority("hpc") == UUri("hpc", 1, 2, 3)
    assert UUri("vin", 1, 2, 3).with_authority("hpc") == UUri("vin", 1, 2, 3)


def test_with_resource_keeps_the_entity() -> None:
    assert UUri("vin", 1, 2, 3).with_resource(0) == UUri("vin", 1, 2, 0)


# ---------------------------------------------------------------------------------------------------------- patterns

MATCHES = [  # candidate, pattern, matches
    ("/1/1/A1FB", "/1/1/A1FB", True),
    ("/1/1/A1FB", "//*/1/1/A1FB", True),
    ("/1/1/A1FB", "/FFFF/1/A1FB", True),
    ("/1/1/A1FB", "//*/FFFF/1/A1FB", True),
    ("/1/1/A1FB", "/FFFFFFFF/1/A1FB", True),
    ("/1/1/A1FB", "/1/FF/A1FB", True),
    ("/1/1/A1FB", "//*/1/FF/A1FB", True),
    ("/1/1/A1FB", "/1/1/FFFF", True),
    ("/1/1/A1FB", "/FFFFFFFF/FF/FFFF", True),
    ("/1/1/A1FB", "//*/FFFFFFFF/FF/FFFF", True),
    ("/10001/1/A1FB", "/10001/1/A1FB", True),
    ("/10001/1/A1FB", "//*/FFFFFFFF/1/A1FB", True),
    ("//vcu.my_vin/1/1/A1FB", "//*/1/1/A1FB", True),
    ("/20000/3/2", "//*/FFFF0000/3/FFFF", True),
    ("/1/1/A1FB", "//mcu1/1/1/A1FB", False),
    ("//vcu.my_vin/1/1/A1FB", "//mcu1/1/1/A1FB", False),
    ("//vcu/B1A5/1/A1FB", "//vc/FFFFFFFF/FF/FFFF", False),
    ("/B1A5/1/A1FB", "//*/25B1/FF/FFFF", False),
    ("/B1A5/1/A1FB", "//*/FFFFFFFF/2/FFFF", False),
    ("/B1A5/1/A1FB", "//*/FFFFFFFF/FF/ABCD", False),
    ("/B1A5/1/A1FB", "/25B1/1/A1FB", False),
    ("/B1A5/1/A1FB", "/2B1A5/1/A1FB", False),
    ("/10B1A5/1/A1FB", "/40B1A5/1/A1FB", False),
    ("/B1A5/1/A1FB", "/B1A5/4/A1FB", False),
    ("/B1A5/1/A1FB", "/B1A5/1/90FB", False),
    ("/1/3/8", "//192.168.1.100/FFFFFFFF/FF/FFFF", False),
    ("/20010/3/2", "//*/FFFF0000/3/FFFF", False),
    ("//vcu.other.device/0/3/1", "/0/FF/1", False),
    # Only the pattern's wildcards count.
    ("//*/1/1/A1FB", "//vin/1/1/A1FB", False),
    ("//vin/FFFFFFFF/FF/FFFF", "//vin/1/1/A1FB", False),
    # Instance 0 is an instance like any other, not a wildcard.
    ("/10001/1/A1FB", "/1/1/A1FB", False),
]


# [utest->dsn~uri-pattern-matching~2]
@pytest.mark.parametrize(("candidate", "pattern", "matches"), MATCHES)
def test_a_pattern_matches_by_its_wildcards_and_by_equality(
    candidate: str, pattern: str, matches: bool
) -> None:
    assert UUri.parse(pattern).matches(UUri.parse(candidate)) is matches


@given(uuris, uuris)
def test_without_wildcards_only_the_address_itself_matches(pattern: UUri, candidate: UUri) -> None:
    assert pattern.matches(pattern)
    assert ANY.matches(candidate)
    assert any_at(candidate.authority_name).matches(candidate)
    if pattern.wildcard() is None:
        assert pattern.matches(candidate) is (pattern == candidate)


FILTERS = [  # the entries of the transport layer's table, and the specification's own example that it lacks
    ("one topic", "//vin/10AB/3/80CD", None),
    ("any topic", "//vin/FFFF/FF/FFFF", None),
    ("notifications of one resource", "//vin/10AB/3/80CD", "//hpc/1/1/0"),
    ("requests to one method", "//vin/10AB/3/0", "//hpc/1/1/7FFF"),
    ("requests to one method, from any resource", "//vin/10AB/3/FFFF", "//hpc/1/1/B"),
    ("responses of one method", "//vin/10AB/3/7FFF", "//hpc/1/1/0"),
    ("all notifications and responses", "//*/FFFFFFFF/FF/FFFF", "//hpc/1/1/0"),
    ("everything with a sink", "//*/FFFFFFFF/FF/FFFF", "//hpc/FFFFFFFF/FF/FFFF"),
    ("requests to all methods", "//vin/1/1/0", "//hpc/1/1/FFFF"),
]
BAD_FILTERS = [
    ("//vin/1/1/0", None, "without a sink filter it must name a topic or FFFF"),
    ("//vin/1/1/7FFF", None, "without a sink filter it must name a topic or FFFF"),
    ("//vin/1/1/0", "//hpc/1/1/0", "resource 0 on both sides matches no message"),
    ("//vin/1/1/1", "//hpc/1/1/1", "requests to up://hpc/1/1/1 come from resource 0 (or FFFF)"),
    ("//vin/1/1/8000", "//hpc/1/1/7FFF", "requests to up://hpc/1/1/7FFF come from resource 0 (or FFFF)"),
]


def filters(source: str, sink: str | None) -> tuple[UUri, UUri | None]:
    return UUri.parse(source), UUri.parse(sink) if sink else None


@pytest.mark.parametrize(("source", "sink"), [pair for _, *pair in FILTERS], ids=[row[0] for row in FILTERS])
def test_filters_that_can_match_a_message_are_accepted(source: str, sink: str | None) -> None:
    check_filters(*filters(source, sink))


@pytest.mark.parametrize(("source", "sink", "complaint"), BAD_FILTERS)
def test_filters_that_can_match_no_message_are_refused(source: str, sink: str | None, complaint: str) -> None:
    with pytest.raises(UStatusError) as refusal:
        check_filters(*filters(source, sink))
    assert refusal.value.code is UCode.INVALID_ARGUMENT
    assert complaint in refusal.value.message
    assert f"up:{source}" in refusal.value.message
