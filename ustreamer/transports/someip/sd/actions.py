# SPDX-License-Identifier: Apache-2.0
"""The actions of service discovery: values that a caller executes in the given order. Pure data."""

from enum import StrEnum

from msgspec import Struct

from ustreamer.core.peers.election import Announcement
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.settings import ServiceKey


class Send(Struct, frozen=True):
    """Send `datagram` from our address, to one peer or (None) to the multicast group."""

    datagram: bytes
    to: Address | None


class SdRefusal(StrEnum):
    """The reason to drop a message or an entry: counter labels, in addition to those of `codec`."""

    SD_NETWORK = "sd_network"  # the sender, or an endpoint that the entry names, is not in `networks`
    SD_PEER_LIMIT = "sd_peer_limit"
    SD_RATE = "sd_rate"
    SD_LATE = "sd_late"  # newer messages arrived earlier and were processed
    SD_DUPLICATE = "sd_duplicate"
    SD_ENDPOINTS = "sd_endpoints"  # no endpoint, contradicting endpoints, or an endpoint of another host
    SD_OFFER_CHANGED = (
        "sd_offer_changed"  # another address for a service in use: a possible man in the middle
    )
    SD_OFFER_FOREIGN = "sd_offer_foreign"  # an Offer of a service in use, from another peer
    SD_OFFER_LIMIT = "sd_offer_limit"
    SD_MULTICAST = "sd_multicast"  # a Subscribe or an Ack, which must be unicast
    SD_SUBSCRIBE_UNKNOWN = "sd_subscribe_unknown"  # no such service, instance, version or event group
    SD_SUBSCRIBE_LIMIT = "sd_subscribe_limit"
    SD_SUBSCRIBE_UNDECIDED = "sd_subscribe_undecided"  # no decision within `decision_timeout_ms`
    SD_ACK_UNEXPECTED = "sd_ack_unexpected"
    SD_RELAYED = "sd_relayed"  # the Offer comes from another streamer, not from an ECU
    SD_ANNOUNCEMENT_MALFORMED = "sd_announcement_malformed"  # a malformed option of a streamer
    SD_STREAMER_LIMIT = "sd_streamer_limit"


class SdInputRefused(Struct, frozen=True):
    """A dropped input of `peer`. `reason` is an SdRefusal or one of the reasons of `codec`."""

    reason: str
    peer: Address
    detail: str


class EndReason(StrEnum):
    """The reason why a service, or a subscription in either direction, has ended for now."""

    STOPPED = "stopped"  # by a StopOffer or StopSubscribe
    EXPIRED = "expired"  # the ttl has expired
    REBOOTED = "rebooted"
    LINK = "link"
    WITHDRAWN = "withdrawn"  # by the streamer itself
    DISCONNECTED = "disconnected"  # the required TCP connection is closed
    UNDECIDED = "undecided"  # no decision within `decision_timeout_ms`


class PeerRebooted(Struct, frozen=True):
    """Close the TCP connections with `peer`. Separate actions end the peer's offers and subscriptions."""

    peer: Address


class ServiceFound(Struct, frozen=True):
    """A wanted service is available, or has one more endpoint than before."""

    key: ServiceKey
    minor: int
    udp: Address | None
    tcp: Address | None
    peer: Address


class ServiceLost(Struct, frozen=True):
    key: ServiceKey
    why: EndReason


class ConnectRequested(Struct, frozen=True):
    """Open a TCP connection to `address`; then call `on_connected`, or `on_disconnected` when the connection closes."""

    key: ServiceKey
    address: Address


class EventgroupSubscribed(Struct, frozen=True):
    """A server acknowledged a Subscribe.

    Events arrive at the own endpoint and, where the Ack names one, in the group `multicast`.
    """

    key: ServiceKey
    eventgroup: int
    multicast: Address | None


class EventgroupRefused(Struct, frozen=True):
    """A server sent a Nack, or the service has no endpoint that can carry the events.

    The next Offer retries the Subscribe.
    """

    key: ServiceKey
    eventgroup: int


class EventgroupLost(Struct, frozen=True):
    """A subscription to an ECU has ended for now; the client subscribes again automatically."""

    key: ServiceKey
    eventgroup: int
    why: EndReason


class SdSubscription(Struct, frozen=True):
    """A peer's subscription to an offered event group. Events go to `udp`, or over the connection from `tcp`."""

    peer: Address
    key: ServiceKey
    eventgroup: int
    counter: int
    udp: Address | None
    tcp: Address | None


class SubscriptionRequested(Struct, frozen=True):
    """A decision is required: call `decide_subscriptions`.

    After an accept, the current field values are sent if `initial_data` is set.
    """

    subscription: SdSubscription
    ttl_s: int
    initial_data: bool
    multicast: Address | None


class InitialDataRequested(Struct, frozen=True):
    """A subscriber requests the current field values again."""

    subscription: SdSubscription


class SubscriptionEnded(Struct, frozen=True):
    """A requested subscription has ended, accepted or still undecided."""

    subscription: SdSubscription
    why: EndReason


class PeerAnnouncementsChanged(Struct, frozen=True):
    """All current announcements of other streamers on the network."""

    announcements: frozenset[Announcement]


class OfferRoleChanged(Struct, frozen=True):
    """Another streamer now offers one of the own services (`ours` is False), or the streamer offers it again."""

    key: ServiceKey
    ours: bool


Action = (
    Send
    | SdInputRefused
    | PeerRebooted
    | ServiceFound
    | ServiceLost
    | ConnectRequested
    | EventgroupSubscribed
    | EventgroupRefused
    | EventgroupLost
    | SubscriptionRequested
    | InitialDataRequested
    | SubscriptionEnded
    | PeerAnnouncementsChanged
    | OfferRoleChanged
)
