# SPDX-License-Identifier: Apache-2.0
"""The settings of service discovery: identity, offered and wanted services."""

from msgspec import Struct

from ustreamer.core.peers.election import RouterId
from ustreamer.transports.someip.protocol.addresses import Address, Network
from ustreamer.transports.someip.sd.codec import ANY_INSTANCE, ANY_MAJOR, ANY_MINOR
from ustreamer.transports.someip.sd.config import SdLimits, SdTimings
from ustreamer.transports.someip.sd.options import Option


# [impl->RPC-542, RPC-636, COMPAT-714, COMPAT-799]
class ServiceKey(Struct, frozen=True, order=True):
    """An instance of a service in one major version."""

    service: int
    instance: int
    major: int

    def __str__(self) -> str:
        return f"service {self.service:#06x} instance {self.instance:#06x} version {self.major}"


# [impl->SD-681]
class OfferedService(Struct, frozen=True):
    """A service that is offered at `udp`, `tcp` or both. `eventgroups` maps ids to the multicast group, if any.

    `authority` provides the service: a competing streamer must carry this authority.
    """

    key: ServiceKey
    minor: int = 0
    udp: Address | None = None
    tcp: Address | None = None
    eventgroups: tuple[tuple[int, Address | None], ...] = ()
    options: tuple[Option, ...] = ()
    authority: str = ""

    def __post_init__(self) -> None:
        if self.udp is None and self.tcp is None:
            raise ValueError(f"{self.key}: udp or tcp: missing; an Offer says where the service is")


class WantedService(Struct, frozen=True):
    """A service to be found; ANY values match every instance or version."""

    service: int
    instance: int = ANY_INSTANCE
    major: int = ANY_MAJOR
    minor: int = ANY_MINOR

    def matches(self, key: ServiceKey, minor: int) -> bool:
        return (
            self.service == key.service
            and self.instance in {ANY_INSTANCE, key.instance}
            and self.major in {ANY_MAJOR, key.major}
            and self.minor in {ANY_MINOR, minor}
        )


class PeerDiscoverySettings(Struct, frozen=True, kw_only=True):
    """The identity of the own streamer, and the treatment of other streamers.

    * `own_id`: the id in the own announcements. `service`: the service id that represents a streamer.
    * `trusted_authorities`: own authorities of streamers that are trusted although only this network announces them.
    * `accept_relayed`: services that another streamer may offer. All other services must come from an ECU.
    * `streamer_hosts`: addresses of streamers that do not announce themselves.
    """

    own_id: RouterId
    service: int
    trusted_authorities: frozenset[str] = frozenset()
    accept_relayed: frozenset[ServiceKey] = frozenset()
    streamer_hosts: frozenset[str] = frozenset()


class SdSettings(Struct, frozen=True, kw_only=True):
    """All settings of one service discovery.

    * `own`: the source address of sent messages; messages from it are looped-back own multicasts.
    * `networks`: the only accepted sources of Offers, Finds and Subscribes.
    * `events`: the UDP endpoint in own Subscribes, where events arrive.
    * `initial_data`: announce support for the flag by which a client requests the current field values.
    * `sd_endpoint_options`: accept an option by which a sender names another address than its own. This option bypasses
      the source address check of the network.
    * `streamer`: discover other streamers and announce the own one; None: neither.
    """

    own: Address
    networks: tuple[Network, ...]
    events: Address
    initial_data: bool = False
    sd_endpoint_options: bool = False
    streamer: PeerDiscoverySettings | None = None
    timings: SdTimings = SdTimings()
    limits: SdLimits = SdLimits()
