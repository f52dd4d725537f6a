# SPDX-License-Identifier: Apache-2.0
"""The rig of the service discovery tests: a simulated clock and network, and logs of executed actions.

`Node` is one `Discovery` with direct input. `Network` connects several by multicast and unicast.
"""

from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import Any, TypeVar

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import SomeIpMessage, split
from ustreamer.transports.someip.sd.actions import Action, SdInputRefused, Send, SubscriptionRequested
from ustreamer.transports.someip.sd.codec import (
    Entry,
    EntryType,
    EventgroupEntry,
    ServiceEntry,
    decode_sd_message,
    encode_sd_message,
)
from ustreamer.transports.someip.sd.codec import SdMessage as Message
from ustreamer.transports.someip.sd.config import SdTimings
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.options import Endpoint, L4Protocol, Option
from ustreamer.transports.someip.sd.settings import OfferedService, SdSettings, ServiceKey, WantedService

MS = 1_000_000
SECOND = 1_000 * MS

OWN: Address = ("10.0.0.1", 30490)
PEER: Address = ("10.0.0.2", 30490)
OTHER: Address = ("10.0.0.3", 30490)

KEY = ServiceKey(0x1234, 0x5678, 1)
SERVICE = OfferedService(
    KEY, 7, ("10.0.0.1", 30501), ("10.0.0.1", 30502), ((0x4465, None), (0x4466, ("224.0.1.1", 30600)))
)
WANTED = WantedService(0x1234, 0x5678, 1)
REMOTE: tuple[Option, ...] = (Endpoint("10.0.0.2", 30509),)
REMOTE_BOTH: tuple[Option, ...] = (*REMOTE, Endpoint("10.0.0.2", 30510, int(L4Protocol.TCP)))
TIMINGS = SdTimings(
    initial_delay_min_ms=10,
    initial_delay_max_ms=100,
    repetitions_base_delay_ms=200,
    repetitions_max=3,
    cyclic_offer_delay_ms=1_000,
    request_response_delay_min_ms=10,
    request_response_delay_max_ms=50,
)

A = TypeVar("A")


def settings(**changes: Any) -> SdSettings:
    of_settings: dict[str, Any] = {
        "own": OWN,
        "networks": (ip_network("10.0.0.0/24"),),
        "events": ("10.0.0.1", 30500),
        "timings": TIMINGS,
        **changes,
    }
    return SdSettings(**of_settings)


class Node:
    """One discovery under test. `rng` selects each delay between its min and max."""

    def __init__(self, rng: float = 0.5, **changes: Any) -> None:
        self.discovery = Discovery(settings(**changes), lambda: rng)
        self.now = 0
        self.waited = 0
        """The time between arrival and read of the input, in ns."""
        self._sessions: dict[tuple[Address, bool], int] = {}

    def do(self, actions: list[Action]) -> list[Action]:
        return actions

    def up(self) -> list[Action]:
        return self.discovery.link_up(self.now)

    def advance(self, ms: float) -> list[Action]:
        """Advance the clock and process each deadline at its time."""
        return [action for _, action in self.advance_timed(ms)]

    def advance_timed(self, ms: float) -> list[tuple[int, Action]]:
        """As `advance`, with the time of each action in ms since the call."""
        start, end = self.now, self.now + round(ms * MS)
        done: list[tuple[int, Action]] = []
        while (due := self.discovery.next_deadline_ns) is not None and due <= end:
            self.now = max(self.now, due)
            done += [((self.now - start) // MS, action) for action in self.discovery.on_timer(self.now)]
        self.now = end
        return done

    def receive(
        self,
        *entries: Entry,
        peer: Address = PEER,
        multicast: bool = False,
        reboot: bool = True,
        session: int | None = None,
        initial_data: bool = False,
    ) -> list[Action]:
        """Feed a message with the next session number of its sender, or `session`."""
        if session is None:
            session = self._sessions.get((peer, multicast), 0) + 1
        self._sessions[peer, multicast] = session
        datagram = encode_sd_message(Message(entries, reboot=reboot, initial_data=initial_data), session)
        return self.feed(datagram, peer, multicast)

    def feed(self, datagram: bytes, peer: Address = PEER, multicast: bool = False) -> list[Action]:
        (message,), _ = split(datagram)
        return self.discovery.feed(message, peer, multicast, self.now, self.waited)


def offer(
    ttl: int = 3, options: tuple[Option, ...] = REMOTE, key: ServiceKey = KEY, minor: int = 0
) -> ServiceEntry:
    return ServiceEntry(EntryType.OFFER, key.service, key.instance, key.major, minor, ttl, options)


def find(wanted: WantedService = WANTED, ttl: int = 3) -> ServiceEntry:
    return ServiceEntry(EntryType.FIND, wanted.service, wanted.instance, wanted.major, wanted.minor, ttl)


def subscribe(
    ttl: int = 5,
    options: tuple[Option, ...] = (Endpoint("10.0.0.2", 40000),),
    eventgroup: int = 0x4465,
    key: ServiceKey = KEY,
    **more: int,
) -> EventgroupEntry:
    return EventgroupEntry(
        EntryType.SUBSCRIBE, key.service, key.instance, key.major, eventgroup, ttl, options=options, **more
    )


def ack(
    ttl: int = 5,
    options: tuple[Option, ...] = (),
    eventgroup: int = 0x4465,
    key: ServiceKey = KEY,
    **more: int,
) -> EventgroupEntry:
    return EventgroupEntry(
        EntryType.ACK, key.service, key.instance, key.major, eventgroup, ttl, options=options, **more
    )


def of_kind(kind: type[A], actions: Iterable[Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def read(send: Send) -> tuple[Message, int]:
    """The message of a Send, and its session number."""
    (message,), refused = split(send.datagram)
    assert refused == []
    decoded, wrong = decode_sd_message(message)
    assert wrong == []
    return decoded, message.session


def sent(actions: Iterable[Action], to: Address | None) -> list[tuple[Entry, ...]]:
    """The entries of each message to a peer, or (None) to the group."""
    return [read(send)[0].entries for send in of_kind(Send, actions) if send.to == to]


def refusals(actions: Iterable[Action]) -> list[str]:
    return [refused.reason for refused in of_kind(SdInputRefused, actions)]


class Network:
    """Connected discoveries without delay. `lost` selects datagrams to drop."""

    def __init__(self) -> None:
        self.now = 0
        self.nodes: dict[Address, Discovery] = {}
        self.log: dict[Address, list[Action]] = {}
        self.is_lost: Callable[[Address, Address], bool] = lambda _of, _to: False

    def add(self, host: str, rng: Callable[[], float], **changes: Any) -> Discovery:
        own = (host, 30490)
        discovery = Discovery(settings(own=own, events=(host, 30500), **changes), rng)
        self.nodes[own] = discovery
        self.log.setdefault(own, [])
        return discovery

    def do(self, sender: Address, actions: list[Action]) -> None:
        """Execute the actions of `sender`: deliver its datagrams and accept all subscriptions."""
        self.log[sender] += actions
        requested = [action.subscription for action in of_kind(SubscriptionRequested, actions)]
        for send in of_kind(Send, actions):
            (message,), _ = split(send.datagram)
            for to in list(self.nodes) if send.to is None else [send.to]:
                if to in self.nodes and not self.is_lost(sender, to):
                    self._deliver(message, sender, to, send.to is None)
        if requested:
            self.do(sender, self.nodes[sender].decide_subscriptions(requested))

    def _deliver(self, message: SomeIpMessage, sender: Address, to: Address, multicast: bool) -> None:
        self.do(to, self.nodes[to].feed(message, sender, multicast, self.now))

    def advance(self, ms: float) -> None:
        end = self.now + round(ms * MS)
        while True:
            due = [(at, own) for own, node in self.nodes.items() if (at := node.next_deadline_ns) is not None]
            at, own = min(due, default=(end + 1, OWN))
            if at > end:
                break
            self.now = max(self.now, at)
            self.do(own, self.nodes[own].on_timer(self.now))
        self.now = end

    def pop_actions(self, own: Address) -> list[Action]:
        """The actions of `own` since the last call."""
        taken, self.log[own] = self.log[own], []
        return taken
