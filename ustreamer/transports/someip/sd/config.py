# SPDX-License-Identifier: Apache-2.0
"""The configuration table `sd` of an endpoint: network, timing, limits and trust of service discovery."""

import ipaddress
from typing import Annotated

from msgspec import Meta, Struct

from ustreamer.transports.someip.protocol.addresses import Address, Network, check_ip, check_network, is_ipv6
from ustreamer.transports.someip.sd.settings import SdLimits, SdTimings


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
