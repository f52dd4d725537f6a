# SPDX-License-Identifier: Apache-2.0
"""Keys, with the examples of up-spec (up-l1/zenoh.adoc), and addresses that have none."""

import pytest
from up_python_zenoh.keys import WrongAddress, authorities_of, filter_key, message_key
from uprotocol.uri.factory.uri_factory import UriFactory
from uprotocol.v1.uri_pb2 import UUri

TOPIC = UUri(authority_name="device1", ue_id=0x10AB, ue_version_major=3, resource_id=0x80CD)
METHOD = UUri(authority_name="device2", ue_id=0x2_0001, ue_version_major=2, resource_id=0xB)
ANY_OF_FAR = UUri(authority_name="far", ue_id=0xFFFF_FFFF, ue_version_major=0xFF, resource_id=0xFFFF)


@pytest.mark.parametrize(
    ("source", "sink", "key"),
    [
        (TOPIC, None, "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
        (TOPIC, UUri(authority_name="device3"), "up/device1/10AB/0/3/80CD/device3/0/0/0/0"),
        (METHOD, TOPIC, "up/device2/1/2/2/B/device1/10AB/0/3/80CD"),
        (UUri(ue_id=1), None, "up/own/1/0/0/0/{}/{}/{}/{}/{}"),
    ],
)
def test_the_key_of_a_message(source: UUri, sink: UUri | None, key: str) -> None:
    assert message_key(source, sink, "own") == filter_key(source, sink, "own") == key
    assert authorities_of(key) == (source.authority_name or "own", sink.authority_name if sink else None)


@pytest.mark.parametrize(
    ("source", "sink", "key"),
    [
        (UriFactory.ANY, METHOD, "up/*/*/*/*/*/device2/1/2/2/B"),
        (TOPIC, UriFactory.ANY, "up/device1/10AB/0/3/80CD/*/*/*/*/*"),
        (ANY_OF_FAR, None, "up/far/*/*/*/*/{}/{}/{}/{}/{}"),
        (UUri(authority_name="a", ue_id=0xFFFF_0001), None, "up/a/1/*/0/0/{}/{}/{}/{}/{}"),
        (UUri(authority_name="a", ue_id=0x0002_FFFF), None, "up/a/*/2/0/0/{}/{}/{}/{}/{}"),
    ],
)
def test_the_key_expression_of_filters_which_no_message_has(
    source: UUri, sink: UUri | None, key: str
) -> None:
    assert filter_key(source, sink, "own") == key
    with pytest.raises(WrongAddress, match="wildcard"):
        message_key(source, sink, "own")


@pytest.mark.parametrize("authority", ["", "a/b", "A", "a*", "**", "$*", "a#", "a?b", "x" * 129])
def test_an_authority_that_is_no_segment_is_refused(authority: str) -> None:
    with pytest.raises(WrongAddress, match="authority"):
        filter_key(UUri(authority_name=authority, ue_id=1), None, "")


@pytest.mark.parametrize("numbers", [{"ue_version_major": 0x100}, {"resource_id": 0x1_0000}])
def test_a_number_beyond_its_size_is_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(WrongAddress, match="expected 0 to 0x"):
        filter_key(UUri(authority_name="a", ue_id=1, **numbers), None, "")


@pytest.mark.parametrize("key", ["", "up/a", "up/a/1/0/1/1/b/1/0/1/1/more"])
def test_a_key_of_another_length_is_refused(key: str) -> None:
    with pytest.raises(WrongAddress, match="twice"):
        authorities_of(key)
