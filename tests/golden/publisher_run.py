# SPDX-License-Identifier: Apache-2.0
"""A fixed run of the events of an offered service to ECUs that subscribed by service discovery, without sockets.

Covered: unicast, multicast from a threshold on, and the last value of a field for a later subscriber.
"""

from pathlib import Path

import msgspec

from tests.golden.frames import Frame
from ustreamer.core.base.clock import ManualClock
from ustreamer.transports.someip.config import ServiceConfig
from ustreamer.transports.someip.discovery.ecu_subscribers import EventDestination, EventSink
from ustreamer.transports.someip.discovery.event_publisher import EventPublisher
from ustreamer.transports.someip.endpoint.outbound import Outbound
from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks, TcpConnections
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.tp_config import TpLimits
from ustreamer.transports.someip.sd.actions import SdSubscription
from ustreamer.transports.someip.sd.offered_groups import offered_eventgroups
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

KEY = ServiceKey(0x4001, 1, 1)
OPEN, LIGHT = (UUri("hpc.vin1", 0x8401, 1, event) for event in (0x8001, 0x8002))
SERVICE = {
    "service": KEY.service,
    "major": KEY.major,
    "offered": True,
    "provider": "//hpc.vin1/8401/1/0",
    "events": [{"id": 0x8001, "eventgroup": 1}, {"id": 0x8002, "eventgroup": 2, "field": True}],
    "eventgroups": [{"id": 1, "multicast": "239.1.1.1:30600", "threshold": 2}],
}


def run(_directory: Path) -> list[Frame]:
    """The frames of the run."""
    rig = _Rig()
    first, initial_values = rig.subscribe(2, 1), rig.subscribe(2, 2)
    rig.publish(OPEN, b"to one")
    rig.publish(LIGHT, b"off")
    rig.publish(LIGHT, b"on")
    later = rig.subscribe(3, 2)
    rig.publisher.send_initial_events(later, rig.sinks[3])
    rig.publisher.send_initial_events(initial_values, rig.sinks[2])
    rig.subscribe(4, 1)
    rig.publish(OPEN, b"to the group")
    rig.publish(LIGHT, b"to two")
    rig.publisher.on_subscription_ended(first)
    rig.publish(OPEN, b"to the last")
    return rig.frames


class _Rig:
    """An event publisher, and an output that notes its datagrams."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        clock = ManualClock().clock()
        callbacks = TcpCallbacks(lambda *_: None, lambda *_: None, lambda _: None)
        tcp = TcpConnections(TcpConfig(), clock.monotonic_ns, lambda: 0.5, lambda _: True, callbacks)
        outbound = Outbound(
            TpLimits(), tcp, clock, lambda _: None, lambda topic: UStatusError(UCode.NOT_FOUND, str(topic))
        )
        outbound.sendto = self._note
        service = msgspec.convert(SERVICE, ServiceConfig)
        self.publisher = EventPublisher(
            offered_eventgroups([service], "hpc.vin1"), outbound.event_transmitter
        )
        self.sinks: dict[int, EventSink] = {}
        self._ids = UuidSource(clock.wall_ms, lambda _: 0)

    def _note(self, datagram: bytes, address: Address) -> None:
        self.frames.append((f"{len(self.frames) + 1}, to {address[0]}:{address[1]}", datagram))

    def subscribe(self, host_number: int, eventgroup: int) -> SdSubscription:
        """The ECU with this number subscribes an event group."""
        host = f"10.0.0.{host_number}"
        address = (host, 40_000)
        sink = self.sinks.get(host_number)
        if sink is None:
            subscriber = UUri("chassis", host_number << 16 | KEY.service, 1, 0)
            sink = self.sinks[host_number] = EventSink(EventDestination(KEY, address, None), subscriber)
            self.publisher.add_sink(sink)
        subscription = SdSubscription((host, 30490), KEY, eventgroup, 0, address, None)
        self.publisher.on_subscription_accepted(subscription, sink)
        return subscription

    def publish(self, topic: UUri, payload: bytes) -> None:
        """Publish to all subscribers of the topic, as the core does."""
        message = publish(self._ids.next(), topic, payload)
        for subscriber in self.publisher.subscribers_of(topic):
            self.publisher.event_sender(subscriber)(message)
