# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_network

import pytest

from ustreamer.transports.someip.protocol.addresses import format_address
from ustreamer.transports.someip.sd.endpoints import (
    EntryEndpoints,
    NetworkPolicy,
    entry_endpoints,
)
from ustreamer.transports.someip.sd.options import Configuration, Endpoint, EndpointRole, L4Protocol, Option

UDP = Endpoint("10.0.0.2", 1)
TCP = Endpoint("10.0.0.2", 2, int(L4Protocol.TCP))
GROUP = Endpoint("224.0.0.9", 3, role=int(EndpointRole.MULTICAST))
UDP6 = Endpoint("fd00::2", 4)
DISCOVERY = Endpoint("10.0.0.9", 30490, role=int(EndpointRole.DISCOVERY))


# [utest->SD-1141, SD-780, SD-786, SD-789]
@pytest.mark.parametrize(
    ("options", "family", "expected"),
    [
        ((), 4, EntryEndpoints()),
        ((TCP, UDP, GROUP), 4, EntryEndpoints(("10.0.0.2", 1), ("10.0.0.2", 2), ("224.0.0.9", 3))),
        ((UDP, UDP6), 4, EntryEndpoints(("10.0.0.2", 1))),
        ((UDP, UDP6), 6, EntryEndpoints(("fd00::2", 4))),
        ((UDP, UDP), 4, EntryEndpoints(("10.0.0.2", 1))),
        ((DISCOVERY, Configuration((b"a",))), 4, EntryEndpoints()),
        ((UDP, Endpoint("10.0.0.2", 9)), 4, "UDP endpoints 10.0.0.2:1 and 10.0.0.2:9"),
        ((TCP, Endpoint("10.0.0.3", 2, 6)), 4, "TCP endpoints 10.0.0.2:2 and 10.0.0.3:2"),
    ],
)
def test_endpoints_of_an_entry(
    options: tuple[Option, ...], family: int, expected: EntryEndpoints | str
) -> None:
    assert entry_endpoints(options, family) == expected


def test_addresses_are_formatted_with_port() -> None:
    assert [format_address(("10.0.0.1", 5)), format_address(("fd00::1", 5))] == ["10.0.0.1:5", "[fd00::1]:5"]


def test_a_network_policy_caches_a_bounded_number_of_hosts() -> None:
    policy = NetworkPolicy((ip_network("10.0.0.0/16"), ip_network("fd00::/64")))
    for _ in range(2):
        lookups = ["10.0.255.1", "10.1.0.1", "fd00::7", "fd01::7"]
        assert [host in policy for host in lookups] == [True, False, True, False]
    for number in range(10_000):
        assert f"10.0.{number // 256}.{number % 256}" in policy
    assert len(policy._hosts) <= 4_096
