# SPDX-License-Identifier: Apache-2.0
"""The configuration table `sd` of an endpoint."""

from ipaddress import IPv4Network
from typing import Any

import msgspec
import pytest

from ustreamer.transports.someip.sd.config import SdConfig
from ustreamer.transports.someip.sd.drop_reasons import SD_DROP_REASONS


def section(**keys: Any) -> SdConfig:
    base = {"multicast": "224.244.224.245", "interface": "10.0.0.1"}
    return msgspec.convert(base | keys, SdConfig)


# [utest->RPC-658]
def test_group_and_own_address_share_the_port() -> None:
    assert (section().own_address, section().group_address) == (
        ("10.0.0.1", 30490),
        ("224.244.224.245", 30490),
    )
    assert section(port=31_000).own_address == ("10.0.0.1", 31_000)


def test_without_networks_the_interface_defines_the_trusted_one() -> None:
    assert section().trusted_networks() is None
    assert section(networks=["10.0.0.0/24"]).trusted_networks() == (IPv4Network("10.0.0.0/24"),)
    assert section(networks=[]).trusted_networks() == ()  # no network is trusted


def test_timings_and_limits_are_tables_of_their_own() -> None:
    made = section(timings={"repetitions_max": 1}, limits={"peers": 2})
    assert (made.timings.repetitions_max, made.limits.peers) == (1, 2)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"multicast": "10.0.0.1"}, "multicast: 10.0.0.1: expected a multicast group"),
        ({"multicast": "group"}, "multicast: 'group'"),
        ({"interface": "eth0"}, "interface: 'eth0'"),
        ({"interface": "0.0.0.0"}, "interface: 0.0.0.0: expected our address"),
        ({"networks": ["10.0.0.1/24"]}, "networks\\[0\\]"),
        ({"timings": {"ttl_offer_s": 1}}, "cyclic_offer_delay_ms: 1000, expected 1 to 999"),
        ({"port": 0}, "port"),
    ],
)
def test_an_invalid_section_names_its_problem(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        section(**keys)


def test_every_reason_has_its_own_counter() -> None:
    assert len(set(SD_DROP_REASONS)) == len(SD_DROP_REASONS)
    assert all(each.startswith("sd_") for each in SD_DROP_REASONS)
