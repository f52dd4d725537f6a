# SPDX-License-Identifier: Apache-2.0
"""Two endpoints with IPv6 addresses on one network, one offers a service and the other one uses it.

    python -m tests.transports.someip.endpoint.ipv6_discovery

in its own network namespace. Prints nothing and exits with 0 if an event by multicast, one over TCP and a call arrive.
"""

from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, Final

import msgspec

from tests.e2e.rigs.cable import run_system_command
from tests.e2e.rigs.ports import udp_ports
from tests.transports.someip.discovery.sd_bench import DOORS, FAST, WITHIN_S
from tests.waiting import wait_until
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscribeRequest,
    subscribe_request,
    subscribe_response,
)
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

OFFERING: Final = "fd00:79::1"
USING: Final = "fd00:79::2"
# The first one is valid on one link only, as its scope id in a socket address says.
GROUPS: Final = ("ff02::4:c0", "ff14::4:c1")
EVENTS: Final = {
    "service": DOORS,
    "major": 1,
    "events": [{"id": 0x8001, "eventgroup": 1}, {"id": 0x8003, "eventgroup": 3, "protocol": "tcp"}],
    "methods": [1],
}


class Node:
    """An endpoint, its received messages, and a uSubscription that grants every request."""

    def __init__(
        self, stack: ExitStack, host: str, authority: str, sd: dict[str, Any], service: dict[str, Any]
    ) -> None:
        config = {
            "transport": "someip",
            "authorities": ["network"],
            "bind": host,
            "port": udp_ports(1)[0],
            "sd": sd | {"interface": host, "timings": FAST},
            "peers": False,
            "services": [EVENTS | service],
        }
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self.received: SimpleQueue[UMessage] = SimpleQueue()
        self.endpoint = SomeipTransport(
            msgspec.convert(config, SomeipEndpoint), EndpointContext("network", authority, SYSTEM_CLOCK)
        )
        stack.callback(self.endpoint.close)
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self._on_message)
        self.endpoint.open()

    def _on_message(self, message: UMessage) -> None:
        attributes = message.attributes
        if attributes.type is not UMessageType.REQUEST or attributes.sink is None or attributes.sink.ue_id:
            self.received.put(message)
            return
        granted = subscribe_response(3, DOOR, Status.SUBSCRIBED).SerializeToString()
        self.endpoint.send(response(self.ids.next(), message, granted, UPayloadFormat.PROTOBUF))

    def subscriber_of(self, topic: UUri) -> UUri:
        """The uEntity of the ECU that has subscribed `topic`."""
        publisher = self.endpoint._event_publisher
        assert publisher is not None
        wait_until(lambda: bool(publisher.subscribers_of(topic)), "the subscription")
        (found,) = publisher.subscribers_of(topic)
        return found

    def next(self, kind: UMessageType) -> UMessage:
        """The next message of a type; others are updates of subscriptions."""
        while (found := self.received.get(timeout=WITHIN_S)).attributes.type is not kind:
            pass
        return found


DOOR, WINDOW = (UUri("hpc", 0x8401, 1, event) for event in (0x8001, 0x8003))
APP: Final = UUri("cockpit", 0x10A0, 1, 0)


def subscribe(using: Node, event: int) -> None:
    wanted = subscribe_request(SubscribeRequest(UUri("network", DOORS, 1, event))).SerializeToString()
    method = UUri("network", 0, 3, 1)
    caller = UUri("cockpit", 0, 3, 0)
    message = request(using.ids.next(), caller, method, wanted, UPayloadFormat.PROTOBUF, ttl=10_000)
    using.endpoint.send(message)


def exchange(multicast: str) -> None:
    with ExitStack() as stack:
        sd_port, event_port = udp_ports(2)
        sd = {"multicast": multicast, "port": sd_port}
        offered = {
            "offered": True,
            "provider": "//hpc/8401/1/0",
            "eventgroups": [{"id": 1, "multicast": f"[{multicast}]:{event_port}"}],
        }
        offering = Node(stack, OFFERING, "hpc", sd, offered)
        using = Node(stack, USING, "cockpit", sd, {})
        wait_until(lambda: using.endpoint.statistics()["sd_found"] == 1, "the Offer")
        for event, topic, payload in ((0x8001, DOOR, b"ajar"), (0x8003, WINDOW, b"shut")):
            subscribe(using, event)
            subscriber = offering.subscriber_of(topic)
            if event == 0x8001:
                wait_until(lambda: using.endpoint.statistics()["sd_groups_joined"] == 1, "the group")
            offering.endpoint.transmitter(subscriber)(publish(offering.ids.next(), topic, payload))
            found = using.next(UMessageType.PUBLISH)
            assert (found.attributes.source.resource_id, found.payload) == (event, payload)
        call = request(using.ids.next(), APP, UUri("network", DOORS, 1, 1), b"open", ttl=10_000)
        using.endpoint.send(call)
        called = offering.next(UMessageType.REQUEST)
        offering.endpoint.send(response(offering.ids.next(), called, b"opened"))
        answer = using.next(UMessageType.RESPONSE)
        while answer.attributes.reqid != call.id:
            answer = using.next(UMessageType.RESPONSE)
        assert (called.payload, answer.payload) == (b"open", b"opened")


def main() -> None:
    run_system_command("ip", "link", "set", "lo", "up")
    run_system_command("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
    for address in (OFFERING, USING):
        run_system_command("ip", "address", "add", f"{address}/64", "dev", "near", "nodad")
    for each in ("far", "near"):
        run_system_command("ip", "link", "set", each, "up")
    for group in GROUPS:
        exchange(group)


if __name__ == "__main__":
    main()
