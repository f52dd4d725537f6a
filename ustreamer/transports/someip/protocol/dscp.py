# SPDX-License-Identifier: Apache-2.0
"""The DSCP of datagrams, by which routers and switches rank them: one number, or the class of each message's priority.

In: an address and a configured DSCP. Out: an address that carries it through tables and queues to the system call,
which sends it as ancillary data. A socket has one DSCP for all other messages.
"""

import socket
from functools import lru_cache
from struct import Struct
from typing import Final, Self

from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress, is_ipv6

_INT: Final = Struct("i")
_MAX_CACHED: Final = 4_096
BY_PRIORITY: Final = -1
"""In place of a DSCP: that of the priority of each message, CS0 to CS6."""


DSCP_NAMES: Final = {
    **{f"CS{number}": number << 3 for number in range(8)},
    **{f"AF{row}{column}": row << 3 | column << 1 for row in range(1, 5) for column in range(1, 4)},
    "DF": 0,
    "EF": 46,
    "LE": 1,
    "VA": 44,
}
"""The numbers of the classes of RFC 4594 and RFC 8622. A configuration has the number."""


class DscpAddress(tuple[str, int]):  # noqa: SLOT001  # a tuple has no room for them
    """An address, and the DSCP of the datagrams to it. It equals the address without."""

    dscp: int
    ancillary: list[tuple[int, int, bytes]]
    """As `sendmsg` takes it."""

    def __new__(cls, address: Address, dscp: int) -> Self:
        made = super().__new__(cls, address)
        made.dscp, made.ancillary = dscp, []
        if dscp != BY_PRIORITY:
            made.ancillary.append((*_traffic_class(made[0]), _INT.pack(dscp << 2)))
        return made


def with_dscp(address: Address, dscp: int | None) -> Address:
    """A UDP address with a DSCP, if there is one. Over TCP the connection has it."""
    return address if dscp is None or isinstance(address, TcpAddress) else DscpAddress(address, dscp)


@lru_cache(_MAX_CACHED)
def _dscp_address(host: str, port: int, dscp: int) -> DscpAddress:
    return DscpAddress((host, port), dscp)


def at_priority(address: Address, priority_class: int) -> Address:
    """The address for a message of a priority: 0 to 6 for CS0 to CS6, as in `UAttributes.priority_class`."""
    if isinstance(address, DscpAddress) and address.dscp == BY_PRIORITY:
        return _dscp_address(*address, priority_class << 3)
    return address


def set_dscp(opened: socket.socket, dscp: int) -> None:
    """The DSCP of all that a socket sends. 0 is the default of the kernel."""
    if dscp:
        opened.setsockopt(*_traffic_class("::" if opened.family == socket.AF_INET6 else ""), dscp << 2)


def _traffic_class(host: str) -> tuple[int, int]:
    return (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if is_ipv6(host) else (socket.IPPROTO_IP, socket.IP_TOS)
