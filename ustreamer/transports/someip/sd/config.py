# SPDX-License-Identifier: Apache-2.0
"""The configuration table `sd` of an endpoint: network, timing, limits and trust of service discovery."""

import ipaddress
from typing import Annotated, Final

from msgspec import Meta, Struct

from ustreamer.transports.someip.protocol.addresses import Address, Network, check_ip, check_network, is_ipv6

TTL_FOREVER: Final = 0xFF_FFFF
"""The ttl, in s, of an entry that is valid until its sender reboots."""
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


class DynamicServicesConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of services that are in no `services` table.

    * `services`: services requested at a time. `topics`: subscribed topics of all of them.
    * `idle_ms`: how long a service stays requested after its last call and its last subscription.
    """

    services: Annotated[int, Meta(ge=1, le=1_024)] = 64
    topics: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    idle_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 10_000


# [impl->RPC-658, SD-1188]
class SdConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The multicast group and port of SOME/IP-SD, and the own address on the interface.

    * `networks`: accepted sources of Offers, Finds and Subscribes; by default the network of the interface.
    * `initial_data`: announce support for the flag by which a client requests the current field values.
    * `sd_endpoint_options`: accept a message that names another address than its sender's.
    * `streamer_service`: the service id by which streamers find each other.
    * `dynamic_services`: request services that are in no `services` table as soon as they are subscribed or called.
    """

    multicast: Annotated[str, Meta(examples=["224.244.224.245"])]
    interface: Annotated[str, Meta(examples=["127.0.0.1"])]
    port: Annotated[int, Meta(ge=1, le=0xFFFF)] = 30490
    networks: tuple[str, ...] | None = None
    initial_data: bool = True
    sd_endpoint_options: bool = False
    timings: SdTimings = SdTimings()
    limits: SdLimits = SdLimits()
    dynamic_services: bool | DynamicServicesConfig = False
    streamer_service: Annotated[int, Meta(ge=1, le=0xFFFE)] = 0xFFFE

    def __post_init__(self) -> None:
        check_ip("multicast", self.multicast)
        check_ip("interface", self.interface)
        if not ipaddress.ip_address(self.multicast).is_multicast:
            raise ValueError(
                f"multicast: {self.multicast}: expected a multicast group, such as 224.244.224.245"
            )
        own = ipaddress.ip_address(self.interface)
        if own.is_multicast or own.is_unspecified:
            raise ValueError(f"interface: {self.interface}: expected our address on it, such as 10.0.0.1")
        if is_ipv6(self.multicast) != is_ipv6(self.interface):
            raise ValueError(
                f"multicast: {self.multicast}: expected a group of the IP version of {self.interface}"
            )
        for index, network in enumerate(self.networks or ()):
            check_network(f"networks[{index}]", network)

    @property
    def own_address(self) -> Address:
        """The source address of sent messages."""
        return (str(ipaddress.ip_address(self.interface)), self.port)

    @property
    def group_address(self) -> Address:
        return (str(ipaddress.ip_address(self.multicast)), self.port)

    @property
    def dynamic_services_limits(self) -> DynamicServicesConfig | None:
        """The limits of dynamic services; None if the feature is off."""
        if isinstance(self.dynamic_services, bool):
            return DynamicServicesConfig() if self.dynamic_services else None
        return self.dynamic_services

    # [impl->SD-1149]
    def trusted_networks(self) -> tuple[Network, ...] | None:
        """`networks`, or None if the network of the interface applies."""
        return None if self.networks is None else tuple(map(ipaddress.ip_network, self.networks))
