# SPDX-License-Identifier: Apache-2.0
"""An ECU with service discovery, on the library someip.

It offers, finds and subscribes on its own, at a loopback address of its own.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address
from threading import Thread
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from someip.config import Eventgroup, Service
from someip.header import IPv4EndpointOption, L4Protocols, SOMEIPHeader
from someip.sd import (
    ClientServiceListener,
    DatagramProtocolAdapter,
    NakSubscription,
    ServerServiceListener,
    ServiceDiscoveryProtocol,
    ServiceInstance,
    Timings,
)

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, Inbox, SomeipNode, ecu_response

SD_GROUP: Final = "224.244.224.245"

FAST_TIMINGS: Final = Timings(
    INITIAL_DELAY_MIN=0,
    INITIAL_DELAY_MAX=0.01,
    REPETITIONS_BASE_DELAY=0.02,
    CYCLIC_OFFER_DELAY=0.2,
    ANNOUNCE_TTL=1,
    SUBSCRIBE_TTL=1,
    SUBSCRIBE_REFRESH_INTERVAL=0.4,
    SEND_COLLECTION_TIMEOUT=0,
)


class SdNotification(NamedTuple):
    """An event of service discovery at the ECU: offered, stopped, subscribed, unsubscribed."""

    kind: str
    service: int
    eventgroup: int = 0


class SdEcu:
    """The ECU runs from its construction to `close`. `vanish` cuts its power: it sends no StopOffer."""

    def __init__(
        self,
        host: str,
        sd_port: int,
        responder: Callable[[SOMEIPHeader], bytes] = ecu_response,
        timings: Timings = FAST_TIMINGS,
    ) -> None:
        self.host = host
        self.notifications: Inbox[SdNotification] = Inbox(f"ecu {host}")
        self.data_socket = SomeipNode(host=host, responder=responder)
        self.rejects_subscriptions = False
        self.ignores_subscriptions = False
        """Services that are offered then send neither Ack nor Nack."""
        self.endpoints: dict[SdNotification, tuple[str, int]] = {}
        """Where, over UDP, an offered service is and a subscriber takes its events."""
        self.event_subscribers: dict[tuple[int, int], dict[tuple[str, int], None]] = {}
        """Where those take their events over UDP that subscribe now, by service and event group."""
        self._sd_listener = _Listener(self)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=f"ecu {host}", daemon=True)
        self._thread.start()
        self._timings = timings
        self._instances: dict[int, ServiceInstance] = {}
        self._run_on_loop(self._open, sd_port)

    def _run_on_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run something on the ECU's loop, and wait for it."""

        async def run() -> Any:
            result = function(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(DEADLINE_S)

    async def _open(self, sd_port: int) -> None:
        self.sd: Any = ServiceDiscoveryProtocol((SD_GROUP, sd_port), timings=self._timings)
        self._transports = []
        for address, multicast in ((self.host, False), (SD_GROUP, True)):
            opened = _sd_socket(address, sd_port, self.host, multicast)
            transport, _ = await self._loop.create_datagram_endpoint(
                lambda multicast=multicast: DatagramProtocolAdapter(self.sd, is_multicast=multicast),  # type: ignore[misc]
                sock=opened,
            )
            self._transports.append(transport)
        self.sd.transport = self._transports[0]
        self.sd.start()

    # --- offered services -----------------------------------------------------------------------------------

    def offer(self, service: int, *eventgroups: int, instance: int = 1, major: int = 1) -> None:
        offered = Service(
            service, instance, major, 0, options_1=(self._endpoint,), eventgroups=frozenset(eventgroups)
        )

        def announce() -> None:
            created = ServiceInstance(offered, self._sd_listener, self.sd.announcer, self._timings)
            if self.ignores_subscriptions:
                created.handle_subscribe = lambda entry, address: True
            self._instances[service] = created
            self.sd.announcer.announce_service(created)

        self._run_on_loop(announce)

    def stop_offer(self, service: int) -> None:
        self._run_on_loop(lambda: self.sd.announcer.stop_announce_service(self._instances.pop(service)))

    def send_event(
        self, service: int, event: int, payload: bytes, destination: tuple[str, int], *, session: int = 1
    ) -> None:
        self.data_socket.send_to(wire.event(service, event, payload, session=session), destination)

    # --- consumed services ----------------------------------------------------------------------------------

    def find(self, service: int, *, instance: int = 1, major: int = 1) -> None:
        self._run_on_loop(
            lambda: self.sd.discovery.watch_service(Service(service, instance, major), self._sd_listener)
        )

    def subscribe(self, service: int, eventgroup: int, *, instance: int = 1, major: int = 1) -> None:
        wanted = Eventgroup(service, instance, major, eventgroup, self.data_socket.address, L4Protocols.UDP)
        self._run_on_loop(lambda: self.sd.discovery.find_subscribe_eventgroup(wanted))

    def unsubscribe(self, service: int, eventgroup: int, *, instance: int = 1, major: int = 1) -> None:
        def stop() -> None:
            for wanted, server in list(self.sd.subscriber.subscribeentries):
                if (wanted.service_id, wanted.eventgroup_id) == (service, eventgroup):
                    self.sd.subscriber.stop_subscribe_eventgroup(wanted, server)

        self._run_on_loop(stop)

    # --- end ------------------------------------------------------------------------------------------------

    @property
    def _endpoint(self) -> IPv4EndpointOption:
        host, port = self.data_socket.address
        return IPv4EndpointOption(IPv4Address(host), L4Protocols.UDP, port)

    def power_off(self) -> None:
        """Cut the power: the ECU sends nothing more, not even a StopOffer."""

        def cut() -> None:
            for transport in self._transports:
                transport.abort()

        self._run_on_loop(cut)
        self._stop_loop()

    def close(self) -> None:
        async def stop() -> None:
            self.sd.stop()
            await _cancel_other_tasks()  # including the offers, which send StopOffer at their end
            for transport in self._transports:
                transport.close()

        if self._loop.is_running():
            self._run_on_loop(stop)
            self._stop_loop()

    def _stop_loop(self) -> None:
        self._run_on_loop(_cancel_other_tasks)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        self.data_socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _cancel_other_tasks() -> None:
    """End all tasks of this loop but this one."""
    tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Listener(ServerServiceListener, ClientServiceListener):  # type: ignore[misc]  # the package has no types
    def __init__(self, ecu: SdEcu) -> None:
        self._ecu = ecu

    def _note(self, notification: SdNotification, options: Iterable[Any]) -> None:
        for each in _udp_endpoints(options):
            self._ecu.endpoints[notification] = each
        self._ecu.notifications.append(notification)

    def client_subscribed(self, subscription: Any, source: Any) -> None:
        if self._ecu.rejects_subscriptions:
            raise NakSubscription
        subscribers = self._ecu.event_subscribers.setdefault((subscription.service_id, subscription.id), {})
        subscribers.update(dict.fromkeys(_udp_endpoints(subscription.endpoints)))
        self._note(
            SdNotification("subscribed", subscription.service_id, subscription.id), subscription.endpoints
        )

    def client_unsubscribed(self, subscription: Any, source: Any) -> None:
        for each in _udp_endpoints(subscription.endpoints):
            self._ecu.event_subscribers[subscription.service_id, subscription.id].pop(each, None)
        self._ecu.notifications.append(
            SdNotification("unsubscribed", subscription.service_id, subscription.id)
        )

    def service_offered(self, service: Any, source: Any) -> None:
        self._note(SdNotification("offered", service.service_id), (*service.options_1, *service.options_2))

    def service_stopped(self, service: Any, source: Any) -> None:
        self._ecu.notifications.append(SdNotification("stopped", service.service_id))


def _udp_endpoints(options: Iterable[Any]) -> list[tuple[str, int]]:
    over_udp = (
        each for each in options if isinstance(each, IPv4EndpointOption) and each.l4proto is L4Protocols.UDP
    )
    return [(str(each.address), each.port) for each in over_udp]


def _sd_socket(address: str, port: int, interface: str, multicast: bool) -> socket.socket:
    # The library sets only REUSEPORT. This conflicts with sockets that set REUSEADDR, such as those of vsomeip and of
    # the streamer.
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind((address, port))
    opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    if multicast:
        membership = struct.pack("=4s4s", socket.inet_aton(SD_GROUP), socket.inet_aton(interface))
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    return opened
