# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_network

import pytest

from ustreamer.transports.someip.sd.endpoints import Neighbourhood, Places, places, shown
from ustreamer.transports.someip.sd.options import Configuration, Endpoint, Option, Protocol, Role

UDP = Endpoint("10.0.0.2", 1)
TCP = Endpoint("10.0.0.2", 2, int(Protocol.TCP))
GROUP = Endpoint("224.0.0.9", 3, role=int(Role.MULTICAST))
UDP6 = Endpoint("fd00::2", 4)
DISCOVERY = Endpoint("10.0.0.9", 30490, role=int(Role.DISCOVERY))


@pytest.mark.parametrize(
    ("options", "family", "expected"),
    [
        ((), 4, Places()),
        ((TCP, UDP, GROUP), 4, Places(("10.0.0.2", 1), ("10.0.0.2", 2), ("224.0.0.9", 3))),
        ((UDP, UDP6), 4, Places(("10.0.0.2", 1))),
        ((UDP, UDP6), 6, Places(("fd00::2", 4))),
        ((UDP, UDP), 4, Places(("10.0.0.2", 1))),
        ((DISCOVERY, Configuration((b"a",))), 4, Places()),
        ((UDP, Endpoint("10.0.0.2", 9)), 4, "UDP endpoints 10.0.0.2:1 and 10.0.0.2:9"),
        ((TCP, Endpoint("10.0.0.3", 2, 6)), 4, "TCP endpoints 10.0.0.2:2 and 10.0.0.3:2"),
    ],
)
def test_endpoints_of_an_entry(options: tuple[Option, ...], family: int, expected: Places | str) -> None:
    assert places(options, family) == expected


def test_addresses_are_shown_as_they_are_written() -> None:
    assert [shown(("10.0.0.1", 5)), shown(("fd00::1", 5))] == ["10.0.0.1:5", "[fd00::1]:5"]


def test_a_neighbourhood_is_its_networks_and_remembers_a_bounded_number_of_hosts() -> None:
    neighbourhood = Neighbourhood((ip_network("10.0.0.0/16"), ip_network("fd00::/64")))
    for _ in range(2):
        asked = ["10.0.255.1", "10.1.0.1", "fd00::7", "fd01::7"]
        assert [host in neighbourhood for host in asked] == [True, False, True, False]
    for number in range(10_000):
        assert f"10.0.{number // 256}.{number % 256}" in neighbourhood
    assert len(neighbourhood._hosts) <= 4_096
