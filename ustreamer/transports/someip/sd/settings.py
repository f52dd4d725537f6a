# SPDX-License-Identifier: Apache-2.0
"""The settings of service discovery: identity, offered and wanted services, timings and limits."""

from typing import Annotated

from msgspec import Meta, Struct

from ustreamer.core.peers.election import RouterId
from ustreamer.transports.someip.protocol.addresses import Address, Network
from ustreamer.transports.someip.sd.codec import ANY_INSTANCE, ANY_MAJOR, ANY_MINOR, TTL_FOREVER
from ustreamer.transports.someip.sd.options import Option

Milliseconds = Annotated[int, Meta(ge=0, le=3_600_000)]
Ttl = Annotated[int, Meta(ge=1, le=TTL_FOREVER)]


# [impl->SD-63, SD-84, SD-816]
class SdTimings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The timing of service discovery; a delay with a min and a max is random between the two.

    * `initial_delay_*_ms`: before the first Offer or Find. Until then, Finds are not answered.
    * `repetitions_base_delay_ms`: pause before the first repetition, doubled after each; `repetitions_max` of them.
    * `cyclic_offer_delay_ms`: between later Offers; 0 disables them. There are no cyclic Finds.
    * `request_response_delay_*_ms`: before an answer to a multicast. Unicasts are answered immediately.
    * `ttl_*_s`: validity of sent entries; 0xFFFFFF is unlimited. Receivers ignore the ttl of a Find.
    * `ack_timeout_ms`: wait for the answer to a Subscribe before a retry, doubled up to eight times the value.
    * `initial_event_ms`: wait for the value of a field before its event group is subscribed again, doubled up to a minute.
    * `decision_timeout_ms`: maximum time for the decision on a peer's subscription.
    """

    initial_delay_min_ms: Milliseconds = 10
    initial_delay_max_ms: Milliseconds = 100
    repetitions_base_delay_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 200
    repetitions_max: Annotated[int, Meta(ge=0, le=10)] = 3
    cyclic_offer_delay_ms: Milliseconds = 1_000
    request_response_delay_min_ms: Milliseconds = 10
    request_response_delay_max_ms: Milliseconds = 50
    ttl_offer_s: Ttl = 3
    ttl_find_s: Ttl = 3
    ttl_subscribe_s: Ttl = 5
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 1_000
    initial_event_ms: Annotated[int, Meta(ge=10, le=3_600_000)] = 1_000
    decision_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 1_000

    def __post_init__(self) -> None:
        for name in ("initial_delay", "request_response_delay"):
            least, most = getattr(self, f"{name}_min_ms"), getattr(self, f"{name}_max_ms")
            if least > most:
                raise ValueError(f"{name}_min_ms: {least}, expected at most {name}_max_ms, {most}")
        cycle_ms = self.cyclic_offer_delay_ms
        if self.ttl_offer_s != TTL_FOREVER and not 0 < cycle_ms < self.ttl_offer_s * 1_000:
            raise ValueError(
                f"cyclic_offer_delay_ms: {cycle_ms}, expected 1 to {self.ttl_offer_s * 1_000 - 1}: "
                f"an Offer is valid for ttl_offer_s, {self.ttl_offer_s}"
            )


class SdLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of input from other hosts; input above a limit is refused and counted.

    * `peers`: peers with stored session numbers. `peer_entries_per_s` and `peer_entries_burst`: entries of one peer.
    * `services`: stored offers of wanted services.
    * `subscriptions`: peers' subscriptions to offered services; `peer_subscriptions`: those of one peer.
    * `datagram`: bytes of one sent message.
    """

    peers: Annotated[int, Meta(ge=1, le=65_536)] = 256
    peer_entries_per_s: Annotated[int, Meta(ge=1)] = 1_000
    peer_entries_burst: Annotated[int, Meta(ge=1_024)] = 2_048
    services: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    subscriptions: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    peer_subscriptions: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_024
    datagram: Annotated[int, Meta(ge=576, le=65_507)] = 1_400


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
