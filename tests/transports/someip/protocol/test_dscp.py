# SPDX-License-Identifier: Apache-2.0
"""An address with a DSCP is the same address for every table."""

import socket
import sys

from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.dscp import BY_PRIORITY, DscpAddress, at_priority, with_dscp

ADDRESS: Address = ("10.0.0.2", 30501)


def test_it_equals_the_address_without() -> None:
    marked = with_dscp(ADDRESS, 46)
    assert isinstance(marked, DscpAddress)
    assert {ADDRESS: 1}[marked] == 1
    assert marked.ancillary == [(socket.IPPROTO_IP, socket.IP_TOS, (46 << 2).to_bytes(4, sys.byteorder))]


def test_the_priority_selects_the_class_where_the_configuration_says_so() -> None:
    by_priority = with_dscp(ADDRESS, BY_PRIORITY)
    found = [at_priority(by_priority, each) for each in (0, 6)]
    assert [each.dscp for each in found if isinstance(each, DscpAddress)] == [0, 48]
    fixed = with_dscp(("fd00::2", 1), 10)
    assert at_priority(fixed, 6) is fixed
    assert at_priority(ADDRESS, 6) is ADDRESS


def test_a_tcp_address_and_one_without_a_number_stay() -> None:
    peer = TcpAddress(*ADDRESS)
    assert with_dscp(peer, 46) is peer
    assert with_dscp(ADDRESS, None) is ADDRESS
