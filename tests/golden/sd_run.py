# SPDX-License-Identifier: Apache-2.0
"""A fixed run of SOME/IP-SD: a server and a client on a simulated network, and every option and entry on its own.

The name of a frame has the time and the receiver, so the schedule of the messages is golden too.
"""

import random
from ipaddress import ip_network
from pathlib import Path

from tests.golden.frames import Frame
from ustreamer.core.peers.election import Announcement, AnnouncementRole, RouterId
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import split
from ustreamer.transports.someip.sd.actions import Action, Send, SubscriptionRequested
from ustreamer.transports.someip.sd.codec import (
    INITIAL_DATA,
    EntryType,
    EventgroupEntry,
    SdMessage,
    ServiceEntry,
    encode_sd_message,
)
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.options import (
    Configuration,
    Endpoint,
    EndpointRole,
    L4Protocol,
    LoadBalancing,
    Option,
    Protection,
    UnknownOption,
)
from ustreamer.transports.someip.sd.settings import (
    OfferedService,
    PeerDiscoverySettings,
    SdSettings,
    ServiceKey,
    WantedService,
)

_NS_PER_MS = 1_000_000
SERVER: Address = ("10.0.0.1", 30490)
CLIENT: Address = ("10.0.0.2", 30490)
STREAMER_SERVICE = 0xFFFE
KEY = ServiceKey(0x1234, 0x5678, 1)
OFFERED = OfferedService(
    KEY,
    7,
    ("10.0.0.1", 30501),
    ("10.0.0.1", 30502),
    ((0x4465, None), (0x4466, ("224.0.1.1", 30600)), (0x4467, None)),
    (Configuration((b"hostname=hpc", b"flag")),),
    "hpc.vin1",
)
WANTED = WantedService(KEY.service)
ROUTER = RouterId("hpc.vin1", "00000000000000a1")


def run(_directory: Path) -> list[Frame]:
    """The frames of the run."""
    return [*_lifecycle(), *_announcements(), *_entries()]


class _Network:
    """Discoveries without delay between them. The server refuses `refused_eventgroup` and accepts all others."""

    refused_eventgroup = 0x4467

    def __init__(self) -> None:
        self.now_ns = 0
        self.frames: list[Frame] = []
        self.nodes: dict[Address, Discovery] = {}

    def add(self, own: Address, streamer: PeerDiscoverySettings | None = None) -> Discovery:
        settings = SdSettings(
            own=own,
            networks=(ip_network("10.0.0.0/24"),),
            events=(own[0], 30500),
            initial_data=True,
            streamer=streamer,
        )
        self.nodes[own] = discovery = Discovery(settings, random.Random(own[0]).random)
        return discovery

    def do(self, sender: Address, actions: list[Action]) -> None:
        """Deliver the datagrams of `sender`, and decide about the subscriptions at `sender`."""
        for action in actions:
            if isinstance(action, Send):
                self._deliver(sender, action)
        requested = [each.subscription for each in actions if isinstance(each, SubscriptionRequested)]
        refused = [each for each in requested if each.eventgroup == self.refused_eventgroup]
        accepted = [each for each in requested if each not in refused]
        if requested:
            self.do(sender, self.nodes[sender].decide_subscriptions(accepted, refused))

    def _deliver(self, sender: Address, send: Send) -> None:
        receiver = "the group" if send.to is None else send.to[0]
        name = f"{len(self.frames) + 1}, {self.now_ns / _NS_PER_MS:.3f} ms, {sender[0]} to {receiver}"
        self.frames.append((name, send.datagram))
        (message,), _ = split(send.datagram)
        for to in list(self.nodes) if send.to is None else [send.to]:
            self.do(to, self.nodes[to].feed(message, sender, send.to is None, self.now_ns))

    def advance(self, ms: int) -> None:
        """Advance the clock and process each deadline at its time."""
        end_ns = self.now_ns + ms * _NS_PER_MS
        while True:
            due = [
                (at_ns, own)
                for own, each in self.nodes.items()
                if (at_ns := each.next_deadline_ns) is not None
            ]
            at_ns, own = min(due, default=(end_ns + 1, SERVER))
            if at_ns > end_ns:
                break
            self.now_ns = max(self.now_ns, at_ns)
            self.do(own, self.nodes[own].on_timer(self.now_ns))
        self.now_ns = end_ns


def _lifecycle() -> list[Frame]:
    """Offer, Find, Subscribe, Ack, Nack, renewal, StopSubscribe, a restart of the server, and StopOffer."""
    net = _Network()
    server, client = net.add(SERVER), net.add(CLIENT)
    net.do(CLIENT, client.request_service(WANTED, net.now_ns))
    net.do(CLIENT, client.link_up(net.now_ns))
    net.advance(500)
    net.do(SERVER, server.offer_service(OFFERED, net.now_ns))
    net.do(SERVER, server.link_up(net.now_ns))
    for eventgroup in (0x4465, 0x4466, 0x4467):
        net.do(CLIENT, client.subscribe(WANTED, eventgroup, net.now_ns))
    net.advance(2_500)
    net.do(CLIENT, client.on_connected(KEY, (CLIENT[0], 41_000), net.now_ns))
    net.do(CLIENT, client.subscribe(WANTED, 0x4465, net.now_ns, reliable=True))
    net.advance(500)
    net.do(CLIENT, client.unsubscribe(WANTED, 0x4466))
    net.advance(500)
    restarted = net.add(SERVER)
    net.do(SERVER, restarted.offer_service(OFFERED, net.now_ns))
    net.do(SERVER, restarted.link_up(net.now_ns))
    net.advance(1_500)
    net.do(SERVER, restarted.stop_offer(KEY))
    net.do(SERVER, restarted.close())
    net.do(CLIENT, client.close())
    return [(f"lifecycle {name}", data) for name, data in net.frames]


def _announcements() -> list[Frame]:
    """A streamer that announces itself and its authorities, and marks its Offers."""
    net = _Network()
    streamer = net.add(SERVER, PeerDiscoverySettings(own_id=ROUTER, service=STREAMER_SERVICE))
    carried = [(AnnouncementRole.CARRIES, f"ecu{number}") for number in range(3)]
    claims = [(AnnouncementRole.IDENTITY, ROUTER.authority), (AnnouncementRole.LOCAL, "chassis"), *carried]
    announced = frozenset(
        Announcement(ROUTER.instance, "net", ROUTER.authority, role, subject) for role, subject in claims
    )
    net.do(SERVER, streamer.offer_service(OFFERED, net.now_ns))
    net.do(SERVER, streamer.announce(announced, net.now_ns))
    net.do(SERVER, streamer.link_up(net.now_ns))
    net.advance(700)
    fewer = frozenset(each for each in announced if each.subject != "ecu1")
    net.do(SERVER, streamer.announce(fewer, net.now_ns))
    net.advance(700)
    net.do(SERVER, streamer.close())
    return [(f"announcements {name}", data) for name, data in net.frames]


def _entries() -> list[Frame]:
    """Each kind of entry and option in a message of its own, and runs of shared options."""
    udp = Endpoint("10.0.0.1", 30501)
    tcp = Endpoint("10.0.0.1", 30502, int(L4Protocol.TCP))
    options: dict[str, Option] = {
        "udp endpoint": udp,
        "tcp endpoint": tcp,
        "ipv6 endpoint": Endpoint("fd00::1", 30501),
        "multicast": Endpoint("224.0.1.1", 30600, role=int(EndpointRole.MULTICAST)),
        "ipv6 multicast": Endpoint("ff05::1", 30600, role=int(EndpointRole.MULTICAST)),
        "configuration": Configuration((b"key", b"empty=", b"key=value"), discardable=True),
        "load balancing": LoadBalancing(2, 3),
        "protection": Protection(7, 0xCAFE),
        "unknown": UnknownOption(0x20, b"body", discardable=True),
    }
    offer = ServiceEntry(EntryType.OFFER, 0x1234, 0x5678, 1, 7, 3)
    messages = {
        f"offer with option {name}": SdMessage((_with_options(offer, each),), reboot=True)
        for name, each in options.items()
    }
    subscribe = EventgroupEntry(
        EntryType.SUBSCRIBE, 0x1234, 0x5678, 1, 0x4465, 5, 3, INITIAL_DATA, (udp, tcp)
    )
    ack = EventgroupEntry(EntryType.ACK, 0x1234, 0x5678, 1, 0x4465, 0xFF_FFFF, 15)
    messages |= {
        "find": SdMessage(
            (ServiceEntry(EntryType.FIND, 0x1234, 0xFFFF, 0xFF, 0xFFFF_FFFF, 3),), reboot=False
        ),
        "subscribe": SdMessage((subscribe,), reboot=True, initial_data=True),
        "ack": SdMessage((ack,), reboot=False, unicast=False),
        "entries that share options": SdMessage(
            (_with_options(offer, udp, tcp), subscribe, _with_options(offer, tcp, udp)), reboot=True
        ),
        "sd endpoint": SdMessage(
            (offer,), reboot=True, sd_endpoint=Endpoint("10.0.0.9", 30490, role=int(EndpointRole.DISCOVERY))
        ),
    }
    return [
        (f"message {name}", encode_sd_message(message, session))
        for session, (name, message) in enumerate(messages.items(), 1)
    ]


def _with_options(offer: ServiceEntry, *options: Option) -> ServiceEntry:
    return ServiceEntry(
        offer.type, offer.service, offer.instance, offer.major, offer.minor, offer.ttl, options
    )
