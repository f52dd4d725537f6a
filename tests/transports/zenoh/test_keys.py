# SPDX-License-Identifier: Apache-2.0
import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.transports.zenoh.keys import filter_key, message_key, parse_key
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

# (source, sink, key); the local authority is device1. The vectors of the specification and of its Rust transport.
MESSAGES = [
    ("up:/10AB/3/80CD", None, "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
    ("up://device1/10AB/3/80CD", "up://device2/300EF/4/0", "up/device1/10AB/0/3/80CD/device2/EF/3/4/0"),
    ("up:/403AB/3/0", "up://device2/CD/4/B", "up/device1/3AB/4/3/0/device2/CD/0/4/B"),
    ("up://device2/CD/4/B", "up://device1/403AB/3/0", "up/device2/CD/0/4/B/device1/3AB/4/3/0"),
    ("up://device1/0/3/0", "up://device2/0/3/1", "up/device1/0/0/3/0/device2/0/0/3/1"),
    ("up://device1/0/3/8000", "up://device1/300EF/4/0", "up/device1/0/0/3/8000/device1/EF/3/4/0"),
    ("up://[2001::7]/1/1/A1FB", None, "up/[2001::7]/1/0/1/A1FB/{}/{}/{}/{}/{}"),
    ("up://1.2.3.4/12345678/2/8001", None, "up/1.2.3.4/5678/1234/2/8001/{}/{}/{}/{}/{}"),
    ("/1234/2/8001", None, "up/device1/1234/0/2/8001/{}/{}/{}/{}/{}"),
]
FILTERS = [
    ("up://device2/10AB/3/80CD", None, "up/device2/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
    ("up://device2/FFFF10AB/3/80CD", None, "up/device2/10AB/*/3/80CD/{}/{}/{}/{}/{}"),
    ("up://1.2.3.4/FFFF5678/2/8001", None, "up/1.2.3.4/5678/*/2/8001/{}/{}/{}/{}/{}"),
    ("up://*/FFFFFFFF/FF/FFFF", "up:/300EF/4/0", "up/*/*/*/*/*/device1/EF/3/4/0"),
    ("up://*/FFFF05A1/2/FFFF", "up://device1/300EF/4/B18", "up/*/5A1/*/2/*/device1/EF/3/4/B18"),
    ("up://*/FFFFFFFF/FF/FFFF", "up://device1/FFFFFFFF/FF/FFFF", "up/*/*/*/*/*/device1/*/*/*/*"),
    ("//auth-a/FFFFFFFF/FF/FFFF", "//auth-b/FFFFFFFF/FF/FFFF", "up/auth-a/*/*/*/*/auth-b/*/*/*/*"),
    ("//auth-a/FFFFFFFF/FF/FFFF", None, "up/auth-a/*/*/*/*/{}/{}/{}/{}/{}"),
    ("//*/FFFFFFFF/FF/FFFF", None, "up/*/*/*/*/*/{}/{}/{}/{}/{}"),
]


def pair(source: str, sink: str | None) -> tuple[UUri, UUri | None]:
    return UUri.parse(source), None if sink is None else UUri.parse(sink)


@pytest.mark.parametrize(("source", "sink", "key"), MESSAGES)
def test_a_message_has_the_key_of_the_specification(source: str, sink: str | None, key: str) -> None:
    # [utest->dsn~up-transport-zenoh-key-expr~1]
    assert message_key(*pair(source, sink), "device1") == key


@pytest.mark.parametrize(("source", "sink", "key"), FILTERS + MESSAGES)
def test_a_filter_has_the_key_expression_of_the_specification(
    source: str, sink: str | None, key: str
) -> None:
    # [utest->dsn~up-transport-zenoh-key-expr~1]
    assert filter_key(*pair(source, sink), "device1") == key


@pytest.mark.parametrize(("source", "sink", "key"), FILTERS + MESSAGES)
def test_a_key_parses_to_its_filters(source: str, sink: str | None, key: str) -> None:
    wanted_source, wanted_sink = pair(source, sink)
    named = wanted_sink and wanted_sink.with_authority("device1")
    assert parse_key(key) == (wanted_source.with_authority("device1"), named)


@pytest.mark.parametrize(
    ("source", "sink", "named"),
    [
        ("//*/1/1/8000", None, "source .* authority"),
        ("//a/FFFF/1/8000", None, "source .* type"),
        ("//a/FFFF0001/1/8000", None, "source .* instance"),
        ("//a/1/FF/8000", None, "source .* version"),
        ("//a/1/1/FFFF", None, "source .* resource"),
        ("//a/1/1/8000", "//*/1/1/0", "sink .* authority"),
        ("//a/1/1/8000", "//b/FFFFFFFF/FF/FFFF", "sink .* instance"),
    ],
)
def test_a_message_key_never_has_a_wildcard(source: str, sink: str | None, named: str) -> None:
    with pytest.raises(UStatusError, match=f"INVALID_ARGUMENT: {named}"):
        message_key(*pair(source, sink), "device1")


NOT_OURS = {
    "nothing": "",
    "another prefix": "down/a/1/0/1/8000/{}/{}/{}/{}/{}",
    "nine chunks": "up/a/1/1/8000/{}/{}/{}/{}",
    "a chunk too many": "up/a/1/0/1/8000/{}/{}/{}/{}/{}/{}",
    "half a sink": "up/a/1/0/1/8000/{}/1/0/1/0",
    "no authority": "up//1/0/1/8000/{}/{}/{}/{}/{}",
    "an authority in capitals": "up/Alpha/1/0/1/8000/{}/{}/{}/{}/{}",
    "an authority that is no name": "up/a b/1/0/1/8000/{}/{}/{}/{}/{}",
    "lower-case hex": "up/a/ab/0/1/8000/{}/{}/{}/{}/{}",
    "a leading zero": "up/a/01/0/1/8000/{}/{}/{}/{}/{}",
    "a number that is too large": "up/a/10000/0/1/8000/{}/{}/{}/{}/{}",
    "a version that is too large": "up/a/1/0/100/8000/{}/{}/{}/{}/{}",
    "a wildcard as a number": "up/a/FFFF/0/1/8000/{}/{}/{}/{}/{}",
    "a version wildcard as a number": "up/a/1/0/FF/8000/{}/{}/{}/{}/{}",
    "a wide wildcard": "up/**/{}/{}/{}/{}/{}",
    "a line break at the end": "up/a/1/0/1/8000/{}/{}/{}/{}/{}\n",
    "digits of another script": "up/a/١/0/1/8000/{}/{}/{}/{}/{}",
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_other_keys_are_refused(name: str) -> None:
    with pytest.raises(UStatusError) as caught:
        parse_key(NOT_OURS[name])
    assert caught.value.code is UCode.INVALID_ARGUMENT


addresses = st.builds(
    UUri,
    st.sampled_from(["*", "a", "hpc.vin1", "10.0.0.1", "[2001::7]", "~x_-."]),
    st.one_of(st.integers(0, 0xFFFFFFFF), st.sampled_from([0xFFFF, 0xFFFF0000, 0xFFFFFFFF])),
    st.integers(0, 0xFF),
    st.one_of(st.integers(0, 0xFFFF), st.just(0xFFFF)),
)


@given(addresses, st.none() | addresses)
def test_keys_and_addresses_are_one_to_one(source: UUri, sink: UUri | None) -> None:
    key = filter_key(source, sink, "device1")
    assert parse_key(key) == (source, sink)
    assert str(zenoh.KeyExpr(key)) == key


@given(addresses, st.none() | addresses, addresses, st.none() | addresses)
def test_zenoh_matches_keys_as_uprotocol_matches_addresses(
    source: UUri, sink: UUri | None, source_filter: UUri, sink_filter: UUri | None
) -> None:
    """Publications aside: the chunks {} of their keys are matched by *, which the receiving side makes up for."""
    if source.wildcard() or (sink and sink.wildcard()):
        return
    key = zenoh.KeyExpr(message_key(source, sink, ""))
    matches = source_filter.matches(source) and (
        sink_filter is sink if sink is None or sink_filter is None else sink_filter.matches(sink)
    )
    subscribed = zenoh.KeyExpr(filter_key(source_filter, sink_filter, ""))
    every_sink = sink is None and sink_filter == UUri("*", 0xFFFFFFFF, 0xFF, 0xFFFF)
    assert subscribed.intersects(key) is (matches or (every_sink and source_filter.matches(source)))
