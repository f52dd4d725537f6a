# SPDX-License-Identifier: Apache-2.0
"""What service discovery is told: who we are, what we offer and want, how fast, and how much of others we bear."""

import ipaddress
from typing import Annotated

from msgspec import Meta, Struct

from ustreamer.core.peers.election import RouterId
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.codec import ANY_INSTANCE, ANY_MAJOR, ANY_MINOR, TTL_FOREVER
from ustreamer.transports.someip.sd.options import Option

Milliseconds = Annotated[int, Meta(ge=0, le=3_600_000)]
Ttl = Annotated[int, Meta(ge=1, le=TTL_FOREVER)]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class SdTimings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When service discovery speaks; delays with a min and a max are chosen at random between them.

    * `initial_delay_*_ms`: before the first Offer or Find. Until then, no Find is answered.
    * `repetitions_base_delay_ms`: pause before the first repetition, doubled after each; `repetitions_max` of them.
    * `cyclic_offer_delay_ms`: between Offers from then on; 0 is never. There are no cyclic Finds.
    * `request_response_delay_*_ms`: before an answer to a multicast. Answers to unicasts come at once.
    * `ttl_*_s`: how long what we say is valid; 0xFFFFFF is for ever. A Find's ttl means nothing to anybody.
    * `ack_timeout_ms`: how long a Subscribe waits for its answer before it is sent again, doubled up to eight times that.
    * `decision_timeout_ms`: how long whoever was asked about a subscription of somebody else may take.
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
    """How much of others is borne; what is above is refused and counted.

    * `peers`: whose session numbers are kept. `peer_entries_per_s` and `peer_entries_burst`: entries of one of them.
    * `services`: offers of others that are kept, of those that are wanted.
    * `subscriptions`: of others to what we offer; `peer_subscriptions`: of one of them.
    * `datagram`: bytes of one of our messages.
    """

    peers: Annotated[int, Meta(ge=1, le=65_536)] = 256
    peer_entries_per_s: Annotated[int, Meta(ge=1)] = 1_000
    peer_entries_burst: Annotated[int, Meta(ge=1_024)] = 2_048
    services: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    subscriptions: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    peer_subscriptions: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_024
    datagram: Annotated[int, Meta(ge=576, le=65_507)] = 1_400


class ServiceKey(Struct, frozen=True, order=True):
    """An instance of a service, in one version."""

    service: int
    instance: int
    major: int

    def __str__(self) -> str:
        return f"service {self.service:#06x} instance {self.instance:#06x} version {self.major}"


class OfferedService(Struct, frozen=True):
    """A service that we offer at `udp`, `tcp` or both. `eventgroups` maps ids to the multicast group used for it, if any.

    `authority` is whose service it is: what another streamer that offers it has to bring.
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
    """A service to be found."""

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
    """That we are a streamer, and what we make of others.

    * `me`: as they see us. `service`: the id that stands for a streamer.
    * `vouched`: own authorities of those that are believed though they are seen on this network only.
    * `relayed`: services that may be what another streamer offers. All others are an ECU's, or not there.
    * `hosts`: addresses of streamers that do not say that they are.
    """

    own_id: RouterId
    service: int
    trusted_authorities: frozenset[str] = frozenset()
    accept_relayed: frozenset[ServiceKey] = frozenset()
    streamer_hosts: frozenset[str] = frozenset()


class SdSettings(Struct, frozen=True, kw_only=True):
    """All that one service discovery is told at its start.

    * `own`: the address our messages leave from; what comes from there is our own multicast.
    * `networks`: those whose offers, finds and subscriptions are taken. No others are.
    * `events`: where we take events over UDP; the endpoint in our Subscribes.
    * `initial_data`: say that we understand the flag by which a client asks for the present values of fields.
    * `sd_endpoint_options`: believe an option by which a sender names another address than its own. Whoever believes
      it gives away what the network knows about senders.
    * `streamer`: look for other streamers, and tell them of us; None: neither.
    """

    own: Address
    networks: tuple[Network, ...]
    events: Address
    initial_data: bool = False
    sd_endpoint_options: bool = False
    streamer: PeerDiscoverySettings | None = None
    timings: SdTimings = SdTimings()
    limits: SdLimits = SdLimits()
