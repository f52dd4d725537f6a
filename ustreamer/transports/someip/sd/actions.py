# SPDX-License-Identifier: Apache-2.0
"""What service discovery wants done: values in the order in which they are to be done. It does nothing itself."""

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
    """Why a message or an entry was not taken: labels of counters, beside those of `codec`."""

    SD_NETWORK = "sd_network"  # the sender, or an endpoint it names, is not in `networks`
    SD_PEER_LIMIT = "sd_peer_limit"
    SD_RATE = "sd_rate"
    SD_LATE = "sd_late"  # overtaken by newer messages, which count
    SD_DUPLICATE = "sd_duplicate"
    SD_ENDPOINTS = "sd_endpoints"  # none, two that contradict each other, or not its sender's to name
    SD_OFFER_CHANGED = "sd_offer_changed"  # another place for a service in use: the man in the middle
    SD_OFFER_FOREIGN = (
        "sd_offer_foreign"  # of a service in use, from another peer than the one that offers it
    )
    SD_OFFER_LIMIT = "sd_offer_limit"
    SD_MULTICAST = "sd_multicast"  # a Subscribe or an Ack, which go to one peer
    SD_SUBSCRIBE_UNKNOWN = "sd_subscribe_unknown"  # no such service, instance, version or event group
    SD_SUBSCRIBE_LIMIT = "sd_subscribe_limit"
    SD_SUBSCRIBE_UNDECIDED = "sd_subscribe_undecided"  # who was asked did not answer in time
    SD_ACK_UNEXPECTED = "sd_ack_unexpected"
    SD_RELAYED = "sd_relayed"  # what another streamer offers is no ECU's
    SD_ANNOUNCEMENT_MALFORMED = (
        "sd_announcement_malformed"  # a streamer's option that does not say what it should
    )
    SD_STREAMER_LIMIT = "sd_streamer_limit"


class SdInputRefused(Struct, frozen=True):
    """Something of `peer` was not taken. `reason` is a Refusal or one of those of `codec`."""

    reason: str
    peer: Address
    detail: str


class EndReason(StrEnum):
    """Why a service, or a subscription in either direction, is over for now."""

    STOPPED = "stopped"  # its side said so
    EXPIRED = "expired"  # its ttl is over
    REBOOTED = "rebooted"
    LINK = "link"
    WITHDRAWN = "withdrawn"  # we said so
    DISCONNECTED = "disconnected"  # the TCP connection that it needs is gone
    UNDECIDED = "undecided"  # who was asked did not answer in time


class PeerRebooted(Struct, frozen=True):
    """Close TCP connections with `peer`; what it offered and subscribed ends with actions of its own."""

    peer: Address


class ServiceFound(Struct, frozen=True):
    """A wanted service is there, or has one more endpoint than before."""

    key: ServiceKey
    minor: int
    udp: Address | None
    tcp: Address | None
    peer: Address


class ServiceLost(Struct, frozen=True):
    key: ServiceKey
    why: EndReason


class ConnectRequested(Struct, frozen=True):
    """Open a TCP connection to `address`, then call `connected` (or `disconnected` when it is gone)."""

    key: ServiceKey
    address: Address


class EventgroupSubscribed(Struct, frozen=True):
    """Our Subscribe was accepted. Events come to our endpoint and, if it is said, to the group `multicast`."""

    key: ServiceKey
    eventgroup: int
    multicast: Address | None


class EventgroupRefused(Struct, frozen=True):
    """Our Subscribe got a Nack, or the service has no endpoint that the events could come over.

    It is tried again with the next Offer.
    """

    key: ServiceKey
    eventgroup: int


class EventgroupLost(Struct, frozen=True):
    """A subscription of ours is over for now; it is made again by itself."""

    key: ServiceKey
    eventgroup: int
    why: EndReason


class SdSubscription(Struct, frozen=True):
    """Somebody else's subscription to an event group of ours; events go to `udp`, or over the connection from `tcp`."""

    peer: Address
    key: ServiceKey
    eventgroup: int
    counter: int
    udp: Address | None
    tcp: Address | None


class SubscriptionRequested(Struct, frozen=True):
    """Have `decide` called. After accepting, the present values of fields are sent if `initial_data` is set."""

    subscription: SdSubscription
    ttl_s: int
    initial_data: bool
    multicast: Address | None


class InitialDataRequested(Struct, frozen=True):
    """A subscriber wants the present values of fields once more."""

    subscription: SdSubscription


class SubscriptionEnded(Struct, frozen=True):
    """A subscription that was asked about is over, whether it was accepted or not decided yet."""

    subscription: SdSubscription
    why: EndReason


class PeerAnnouncementsChanged(Struct, frozen=True):
    """All that other streamers announce on the network at present."""

    announcements: frozenset[Announcement]


class OfferRoleChanged(Struct, frozen=True):
    """A service of ours is another streamer's to offer from now on (`ours` is False), or ours again."""

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
