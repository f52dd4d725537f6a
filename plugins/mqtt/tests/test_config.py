# SPDX-License-Identifier: Apache-2.0
"""The section of an endpoint: what it refuses, and what a check warns of."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from ustreamer_mqtt.config import BrokerAddress, MqttEndpoint
from ustreamer_mqtt.plugin import MqttPlugin

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext


def section(**keys: Any) -> MqttEndpoint:
    return msgspec.convert({"transport": "mqtt", "authorities": ["cloud"], **keys}, MqttEndpoint)


@pytest.mark.parametrize(
    ("broker", "address"),
    [
        ("mqtt://127.0.0.1", BrokerAddress(tls=False, host="127.0.0.1", port=1883)),
        ("mqtt://[::1]:1884/", BrokerAddress(tls=False, host="::1", port=1884)),
        ("mqtts://broker.example", BrokerAddress(tls=True, host="broker.example", port=8883)),
    ],
)
def test_the_address_of_a_broker(broker: str, address: BrokerAddress) -> None:
    assert section(broker=broker).address == address


def test_the_broker_is_on_this_machine_by_default() -> None:
    assert section().address == BrokerAddress(tls=False, host="127.0.0.1", port=1883)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"broker": "127.0.0.1:1883"}, "broker: '127.0.0.1:1883': expected mqtt://host:port"),
    ({"broker": "mqtt://a:0"}, "broker"),
    ({"broker": "mqtt://a:65536"}, "broker"),
    ({"broker": "ws://a:80"}, "broker"),
    ({"broker": "mqtt://user:secret@a"}, "broker"),
    ({"tls": {}}, "tls: .* is not encrypted; write mqtts://"),
    ({"broker": "mqtts://a", "tls": {"key": Path("a.key")}}, "certificate and key: expected both or none"),
    ({"password": "x"}, "password needs username"),
    ({"broker": "mqtt://a", "username": "u", "password": "x"}, "password: .* is not encrypted"),
    ({"authorities": ["A b"]}, r"authorities\[0\]"),
    ({"receive_for": ["A b"]}, r"receive_for\[0\]"),
    ({"receive_for": []}, "receive_for"),
    ({"topics": "off_vehicle", "authorities": ["*"]}, "exactly one authority"),
    ({"topics": "off_vehicle", "authorities": ["a", "b"]}, "exactly one authority"),
    ({"topics": "in_the_vehicle"}, "topics"),
    ({"shared": "a/b", "client_id": "x"}, "shared: 'a/b'"),
    ({"shared": "g"}, "shared: needs client_id"),
    ({"shared": "g", "client_id": "x", "authorities": ["*"]}, "must not have"),
    ({"receive_maximum": 0}, "receive_maximum"),
    ({"max_in_flight": 65_536}, "max_in_flight"),
    ({"max_packet_bytes": 1}, "max_packet_bytes"),
    ({"access": [{"sink": "//a/1/1/1", "identity": "x", "action": "allow"}]}, "access"),
    ({"client": "x"}, "client"),
]


@pytest.mark.parametrize(("keys", "text"), WRONG)
def test_a_wrong_section_is_refused_with_its_key(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=text):
        section(**keys)


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({}, []),
        ({"broker": "mqtts://broker.example"}, []),
        ({"broker": "mqtt://broker.example"}, ["broker"]),
        ({"durable": True}, ["durable"]),
        ({"durable": True, "session_expiry_s": 60}, []),
        ({"clean_start": True, "session_expiry_s": 60}, ["clean_start"]),
        ({"topics": "off_vehicle"}, ["receive_for"]),
        ({"topics": "off_vehicle", "receive_for": ["vin1"]}, []),
    ],
)
def test_probable_mistakes_are_warned_of(keys: dict[str, Any], warned: list[str]) -> None:
    assert [each.key for each in section(**keys).warnings()] == warned


def test_the_plugin_makes_an_endpoint_of_a_section() -> None:
    kind = MqttPlugin.ustreamer_transports()["mqtt"]
    config = section()
    endpoint = kind.factory(config, EndpointContext("net", "hpc", SYSTEM_CLOCK))
    assert not kind.provides_usubscription(config)
    assert kind.provides_usubscription(section(usubscription=True))
    assert repr(endpoint) == "<MqttTransport 'net' at mqtt://127.0.0.1:1883>"
    endpoint.close()
