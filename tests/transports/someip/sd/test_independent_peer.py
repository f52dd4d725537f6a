# SPDX-License-Identifier: Apache-2.0
"""Service discovery against an independent implementation, the package someip: the same bytes without sockets."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from typing import Any

from someip.config import Eventgroup, Service
from someip.header import IPv4EndpointOption, L4Protocols
from someip.sd import (
    ClientServiceListener,
    NakSubscription,
    ServerServiceListener,
    ServiceDiscoveryProtocol,
    ServiceInstance,
    Timings,
)

from tests.transports.someip.sd.network import OWN, PEER, SERVICE, WANTED, of_kind, settings
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import split
from ustreamer.transports.someip.sd.actions import (
    Action,
    EndReason,
    EventgroupLost,
    EventgroupRefused,
    EventgroupSubscribed,
    PeerRebooted,
    SdInputRefused,
    Send,
    ServiceFound,
    ServiceLost,
    SubscriptionEnded,
    SubscriptionRequested,
)
from ustreamer.transports.someip.sd.config import SdTimings
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.sessions import REORDER_NS
from ustreamer.transports.someip.sd.settings import ServiceKey

GROUP: Address = ("224.244.224.245", 30490)
KEY = ServiceKey(0x1234, 0x5678, 1)
FAST = Timings(
    INITIAL_DELAY_MIN=0,
    INITIAL_DELAY_MAX=0.01,
    REPETITIONS_BASE_DELAY=0.01,
    CYCLIC_OFFER_DELAY=0.1,
    SUBSCRIBE_REFRESH_INTERVAL=0.1,
)
OURS = SdTimings(
    initial_delay_min_ms=0,
    initial_delay_max_ms=10,
    repetitions_base_delay_ms=10,
    cyclic_offer_delay_ms=100,
    request_response_delay_min_ms=1,
    request_response_delay_max_ms=5,
)
DEADLINE_S = 30.0


class Wire:
    """Two discoveries connected in memory by multicast and unicast."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.log: list[Action] = []
        self._timer: asyncio.TimerHandle | None = None
        self.discovery = self.boot_ours()
        self.peer_side = self.boot_theirs()

    def boot_ours(self) -> Discovery:
        self.discovery = Discovery(settings(timings=OURS), random.Random(1).random)
        return self.discovery

    def boot_theirs(self) -> Any:
        self.peer_side = ServiceDiscoveryProtocol(GROUP, timings=FAST)
        self.peer_side.transport = self
        return self.peer_side

    @property
    def now_ns(self) -> int:
        return round(self.loop.time() * 1e9)

    def sendto(self, data: bytes, address: Address) -> None:
        """The transport of the independent implementation."""
        self.loop.call_soon(self._receive, bytes(data), address == GROUP)

    def _receive(self, data: bytes, multicast: bool) -> None:
        (message,), refused = split(data)
        assert refused == []
        self.do(self.discovery.feed(message, PEER, multicast, self.now_ns))

    def do(self, actions: list[Action]) -> None:
        self.log += actions
        for send in of_kind(Send, actions):
            assert send.to in {None, PEER}
            self.loop.call_soon(self._deliver, self.peer_side, send)
        requested = [each.subscription for each in of_kind(SubscriptionRequested, actions)]
        if requested:
            self.do(self.discovery.decide_subscriptions(requested))
        if self._timer is not None:
            self._timer.cancel()
        due = self.discovery.next_deadline_ns
        self._timer = None if due is None else self.loop.call_at(due / 1e9, self._due)

    @staticmethod
    def _deliver(peer_side: Any, send: Send) -> None:
        peer_side.datagram_received(send.datagram, OWN, multicast=send.to is None)

    def _due(self) -> None:
        self.do(self.discovery.on_timer(self.now_ns))

    def up(self) -> None:
        self.do(self.discovery.link_up(self.now_ns))

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = self.loop.time() + DEADLINE_S
        while not condition():
            assert self.loop.time() < deadline, self.log[-20:]
            await asyncio.sleep(0.005)

    def seen(self, kind: type[Action]) -> int:
        return len([each for each in self.log if isinstance(each, kind)])

    async def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.peer_side.stop()
        for _ in range(5):
            await asyncio.sleep(0)


class OfferedServer(ServerServiceListener):  # type: ignore[misc]  # the package has no types
    def __init__(self) -> None:
        self.subscribed = self.ended = 0
        self.refuses = False

    def client_subscribed(self, subscription: Any, source: Any) -> None:
        if self.refuses:
            raise NakSubscription
        self.subscribed += 1

    def client_unsubscribed(self, subscription: Any, source: Any) -> None:
        self.ended += 1


class Watcher(ClientServiceListener):  # type: ignore[misc]  # the package has no types
    def __init__(self) -> None:
        self.there = False

    def service_offered(self, service: Any, source: Any) -> None:
        self.there = True

    def service_stopped(self, service: Any, source: Any) -> None:
        self.there = False


def run(test: Callable[[Wire], Awaitable[None]]) -> None:
    async def whole() -> None:
        wire = Wire()
        try:
            await test(wire)
        finally:
            await wire.end()
        # An Ack may cross the end of its subscription.
        assert {each.reason for each in of_kind(SdInputRefused, wire.log)} <= {"sd_ack_unexpected"}

    asyncio.run(whole())


def announce(peer_side: Any, server: OfferedServer) -> Any:
    service = Service(
        0x1234,
        0x5678,
        1,
        0,
        options_1=(IPv4EndpointOption(address=IPv4Address("10.0.0.2"), l4proto=L4Protocols.UDP, port=30509),),
        eventgroups=frozenset({0x4465}),
    )
    instance = ServiceInstance(service, server, peer_side.announcer, FAST)
    peer_side.announcer.announce_service(instance)
    peer_side.start()
    return instance


def their_group() -> Any:
    return Eventgroup(
        service_id=0x1234,
        instance_id=0x5678,
        major_version=1,
        eventgroup_id=0x4465,
        sockname=("10.0.0.2", 40000),
        protocol=L4Protocols.UDP,
    )


# [utest->SD-812]
def test_an_independent_server_is_subscribed_until_the_close() -> None:
    async def test(wire: Wire) -> None:
        server = OfferedServer()
        announce(wire.peer_side, server)
        wire.discovery.subscribe(WANTED, 0x4465, wire.now_ns)
        wire.up()
        await wire.until(lambda: wire.seen(EventgroupSubscribed))
        found = of_kind(ServiceFound, wire.log)[0]
        assert (found.key, found.udp, found.peer) == (KEY, ("10.0.0.2", 30509), PEER)
        sends = wire.seen(Send)
        await wire.until(lambda: wire.seen(Send) > sends + 5)  # renewals
        assert (server.subscribed - server.ended, wire.seen(EventgroupLost)) == (1, 0)
        wire.do(wire.discovery.unsubscribe(WANTED, 0x4465))
        await wire.until(lambda: server.ended == server.subscribed)

    run(test)


# [utest->SD-812]
def test_an_independent_server_refuses_and_then_accepts() -> None:
    async def test(wire: Wire) -> None:
        server = OfferedServer()
        server.refuses = True
        announce(wire.peer_side, server)
        wire.discovery.subscribe(WANTED, 0x4465, wire.now_ns)
        wire.up()
        await wire.until(lambda: wire.seen(EventgroupRefused))
        server.refuses = False
        await wire.until(lambda: wire.seen(EventgroupSubscribed))

    run(test)


# [utest->SD-812]
def test_an_independent_server_stops_its_service() -> None:
    async def test(wire: Wire) -> None:
        instance = announce(wire.peer_side, OfferedServer())
        wire.discovery.subscribe(WANTED, 0x4465, wire.now_ns)
        wire.up()
        await wire.until(lambda: wire.seen(EventgroupSubscribed))
        wire.peer_side.announcer.stop_announce_service(instance)
        await wire.until(lambda: wire.seen(ServiceLost))
        assert of_kind(ServiceLost, wire.log)[0].why is EndReason.STOPPED

    run(test)


# [utest->SD-811]
def test_an_independent_client_subscribes_and_leaves() -> None:
    async def test(wire: Wire) -> None:
        wire.discovery.offer_service(SERVICE, wire.now_ns)
        wire.up()
        wire.peer_side.start()
        wire.peer_side.discovery.find_subscribe_eventgroup(their_group())
        await wire.until(lambda: wire.seen(SubscriptionRequested))
        (requested,) = of_kind(SubscriptionRequested, wire.log)
        assert (requested.subscription.key, requested.subscription.udp) == (KEY, ("10.0.0.2", 40000))
        sends = wire.seen(Send)
        await wire.until(lambda: wire.seen(Send) > sends + 5)
        assert (wire.seen(SubscriptionRequested), wire.seen(SubscriptionEnded)) == (1, 0)
        wire.peer_side.discovery.stop_find_subscribe_eventgroup(their_group())
        await wire.until(lambda: wire.seen(SubscriptionEnded))
        assert of_kind(SubscriptionEnded, wire.log)[0].why is EndReason.STOPPED

    run(test)


# [utest->SD-811]
def test_an_independent_client_finds_a_service_and_its_stop() -> None:
    async def test(wire: Wire) -> None:
        watcher = Watcher()
        wire.discovery.offer_service(SERVICE, wire.now_ns)
        wire.peer_side.start()
        wire.peer_side.discovery.watch_service(Service(0x1234), watcher)
        wire.up()
        await wire.until(lambda: watcher.there)
        wire.do(wire.discovery.stop_offer(KEY))
        await wire.until(lambda: not watcher.there)

    run(test)


# [utest->SD-813]
def test_reboots_of_an_independent_server_are_detected() -> None:
    async def test(wire: Wire) -> None:
        wire.discovery.subscribe(WANTED, 0x4465, wire.now_ns)
        wire.up()
        for life in range(6):
            server = OfferedServer()
            announce(wire.peer_side, server)
            await wire.until(lambda server=server: server.subscribed)  # type: ignore[misc]
            await wire.until(lambda life=life: wire.seen(EventgroupSubscribed) == life + 1)  # type: ignore[misc]
            assert wire.seen(PeerRebooted) == life
            sends = wire.seen(Send)
            await wire.until(lambda sends=sends: wire.seen(Send) > sends + 2)  # type: ignore[misc]
            wire.peer_side.transport = Mute()  # a power loss, without StopOffers
            wire.peer_side.stop()
            # A boot takes longer than network reordering; a faster one would be a late message or a duplicate.
            there_ns = wire.now_ns + 2 * REORDER_NS
            await wire.until(lambda there_ns=there_ns: wire.now_ns > there_ns)  # type: ignore[misc]
            wire.boot_theirs()

    run(test)


class Mute:
    def sendto(self, data: bytes, address: Address) -> None:
        """Send nothing."""


# [utest->SD-813]
def test_an_independent_client_detects_reboots() -> None:
    async def test(wire: Wire) -> None:
        server = OfferedServer()
        announce(wire.peer_side, server)
        for life in range(6):
            before = server.subscribed
            wire.discovery.subscribe(WANTED, 0x4465, wire.now_ns)
            wire.up()
            await wire.until(lambda before=before: server.subscribed > before)  # type: ignore[misc]
            assert server.ended >= life
            await wire.until(lambda: wire.seen(EventgroupSubscribed))
            wire.boot_ours()
            wire.log.clear()

    run(test)
