# SPDX-License-Identifier: Apache-2.0
"""Topic names and filters, as up-spec's up-l1/mqtt_5.adoc has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.topics import authorities_of, device_topic_of, filters_of, topic_of

from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri

# The examples of the specification. That of the Notification has two misprints there, which are mended here: the source
# is B1 and not 8001, and 200AB is type AB of instance 2.
EXAMPLES = {
    "publication": ("up://device1/3BA/3/9876", None, "device1/3BA/0/3/9876"),
    "notification": (
        "up://device1/3BA/3/B1",
        "up://device1/200AB/1/0",
        "device1/3BA/0/3/B1/device1/AB/2/1/0",
    ),
    "request": ("up://device1/403BA/3/0", "up://device1/AB/1/2", "device1/3BA/4/3/0/device1/AB/0/1/2"),
    "response": ("up://device1/3BA/3/67", "up://device1/100AB/1/0", "device1/3BA/0/3/67/device1/AB/1/1/0"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_topics_are_those_of_the_specification(name: str) -> None:
    """[utest->dsn~up-transport-mqtt5-e2e-topic-names~1]"""
    source, sink, topic = EXAMPLES[name]
    assert topic_of(UUri.parse(source), UUri.parse(sink) if sink else None) == topic


def test_between_devices_a_topic_has_the_two_authorities() -> None:
    """[utest->dsn~up-transport-mqtt5-d2d-topic-names~1]"""
    assert device_topic_of(UUri("vehicle1", 1, 1, 0x8000), "backend") == "vehicle1/backend"


@pytest.mark.parametrize(
    "wrong",
    [ANY, UUri("*", 1, 1, 1), UUri("a", 0xFFFF, 1, 1), UUri("a", 0xFFFF0001, 1, 1), UUri("a", 1, 0xFF, 1)],
    ids=str,
)
def test_an_address_with_a_wildcard_has_no_topic(wrong: UUri) -> None:
    with pytest.raises(UStatusError, match="wildcard") as refused:
        topic_of(wrong, None)
    assert refused.value.code is UCode.INVALID_ARGUMENT
    with pytest.raises(UStatusError, match="sink .* wildcard"):
        topic_of(UUri("a", 1, 1, 0x8000), wrong)


addresses = st.builds(
    UUri,
    st.sampled_from(["a", "hpc.vin1", "[::1]", "x" * 128]),
    st.integers(0, 0xFFFE_FFFE).filter(lambda each: each & 0xFFFF != 0xFFFF),
    st.integers(0, 0xFE),
    st.integers(0, 0xFFFE),
)


@given(addresses, st.none() | addresses)
def test_a_topic_has_the_authorities_of_its_addresses(source: UUri, sink: UUri | None) -> None:
    found = authorities_of(topic_of(source, sink), "in_vehicle")
    assert found == (source.authority_name, None if sink is None else sink.authority_name)


@given(addresses, addresses, addresses)
def test_two_pairs_of_addresses_have_two_topics(source: UUri, sink: UUri, other: UUri) -> None:
    topics = {topic_of(source, None), topic_of(source, sink), topic_of(other, None), topic_of(other, sink)}
    assert len(topics) == (2 if source == other else 4)


@pytest.mark.parametrize(
    ("topic", "structure"),
    [
        ("", "in_vehicle"),
        ("a", "in_vehicle"),
        ("a/1/0/1", "in_vehicle"),
        ("a/1/0/1/8000/b", "in_vehicle"),
        ("a/1/0/1/8000/b/1/0/1/0/c", "in_vehicle"),
        ("*/1/0/1/8000", "in_vehicle"),
        ("A b/1/0/1/8000", "in_vehicle"),
        ("a/1/0/1/8000/*/1/0/1/0", "in_vehicle"),
        ("a/1/0/1/8000//1/0/1/0", "in_vehicle"),
        ("a", "off_vehicle"),
        ("a/", "off_vehicle"),
        ("/a", "off_vehicle"),
        ("a/b/c", "off_vehicle"),
        ("a/*", "off_vehicle"),
        ("x" * 200 + "/b", "off_vehicle"),
    ],
)
def test_another_topic_is_refused(topic: str, structure: str) -> None:
    with pytest.raises(UStatusError) as refused:
        authorities_of(topic, structure)  # type: ignore[arg-type]
    assert refused.value.code is UCode.INVALID_ARGUMENT


@given(st.text(max_size=60))
def test_any_text_is_a_topic_or_refused(topic: str) -> None:
    try:
        source, _ = authorities_of(topic, "in_vehicle")
    except UStatusError as error:
        source = error.code.name
    assert source == "INVALID_ARGUMENT" or topic.startswith(f"{source}/")


FILTERS = [
    ({"authorities": ("*", "cloud")}, ["+/+/+/+/+", "+/+/+/+/+/+/+/+/+/+"]),
    ({"authorities": ("cloud",)}, ["cloud/+/+/+/+", "cloud/+/+/+/+/+/+/+/+/+"]),
    (
        {"authorities": ("a", "b", "a"), "receive_for": ("hpc", "ecu")},
        [
            "a/+/+/+/+",
            "b/+/+/+/+",
            "a/+/+/+/+/hpc/+/+/+/+",
            "a/+/+/+/+/ecu/+/+/+/+",
            "b/+/+/+/+/hpc/+/+/+/+",
            "b/+/+/+/+/ecu/+/+/+/+",
        ],
    ),
    ({"authorities": ("backend",), "topics": "off_vehicle", "receive_for": ("vin1",)}, ["backend/vin1"]),
    ({"authorities": ("backend",), "topics": "off_vehicle"}, ["backend/+"]),
    (
        {"authorities": ("cloud",), "shared": "gateways", "client_id": "left"},
        ["$share/gateways/cloud/+/+/+/+", "$share/gateways/cloud/+/+/+/+/+/+/+/+/+"],
    ),
]


@pytest.mark.parametrize(("keys", "filters"), FILTERS)
def test_the_filters_are_those_of_the_authorities_behind_the_endpoint(
    keys: dict[str, object], filters: list[str]
) -> None:
    assert filters_of(MqttEndpoint(transport="mqtt", **keys)) == filters  # type: ignore[arg-type]
