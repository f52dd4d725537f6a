# SPDX-License-Identifier: Apache-2.0
"""The endpoints that the options of an entry name, and the check that their networks are trusted."""

import ipaddress
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.protocol.addresses import Address, Network, format_address
from ustreamer.transports.someip.sd.options import Endpoint, EndpointRole, L4Protocol, Option
from ustreamer.uprotocol.bounded_cache import BoundedCache

_MAX_CACHED_HOSTS: Final = 4_096  # bound of the cache: senders choose the hosts


class EntryEndpoints(Struct, frozen=True):
    """At most one endpoint over UDP, one over TCP, and one multicast group."""

    udp: Address | None = None
    tcp: Address | None = None
    multicast: Address | None = None


# [impl->SD-1141, SD-1144, SD-102, SD-780, SD-786, SD-789]
def entry_endpoints(options: Iterable[Option], family: int) -> EntryEndpoints | str:
    """Return the endpoints of IP version `family` among `options`, or a text that names two contradicting ones.

    Options of the other IP version and unrelated options are ignored.
    """
    found: dict[tuple[int, int], Address] = {}
    for option in options:
        if not isinstance(option, Endpoint) or (":" in option.host) != (family == 6):
            continue
        kind = (option.role, option.protocol)
        known = found.setdefault(kind, option.address)
        if known != option.address:
            return f"{L4Protocol(option.protocol).name} endpoints {format_address(known)} and {format_address(option.address)}"
    return EntryEndpoints(
        found.get((EndpointRole.SERVICE, L4Protocol.UDP)),
        found.get((EndpointRole.SERVICE, L4Protocol.TCP)),
        found.get((EndpointRole.MULTICAST, L4Protocol.UDP)),
    )


# [impl->SD-1135]
class NetworkPolicy:
    """The trusted networks."""

    def __init__(self, networks: tuple[Network, ...]) -> None:
        self._networks = networks
        self._hosts: BoundedCache[str, bool] = BoundedCache(_MAX_CACHED_HOSTS)

    def __contains__(self, host: str) -> bool:
        known = self._hosts.get(host)
        if known is None:
            known = any(ipaddress.ip_address(host) in each for each in self._networks)
            self._hosts.add(host, known)
        return known
