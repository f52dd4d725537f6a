# SPDX-License-Identifier: Apache-2.0
"""A streamer during link outages."""

from typing import ClassVar

import pytest

from tests.host.streamer_bench import (
    OWN,
    QUICK_RETRY,
    SUBSCRIBE,
    TOPIC,
    USUBSCRIPTION,
    WITH_USUBSCRIPTION,
    Bench,
    NoConfig,
    fake,
    link,
    section,
)
from tests.host.waiting import eventually
from tests.transports.zenoh.sessions import endpoint, free_locator
from ustreamer.core.base.links import LinkState
from ustreamer.hooks import PluginContext
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.messages import new_id
from ustreamer.transport_port import EndpointTransport
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import (
    notification,
)
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri


def test_a_restored_link_gets_waiting_messages_in_order(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY)
    chassis = link(streamer, "chassis")
    chassis.fault = UCode.UNAVAILABLE
    app = bench.app("inside")
    for n in range(50):
        app.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"%d" % n))
    eventually(lambda: chassis.attempts > 1, "a retry")
    assert streamer.ledger().queued == 50
    chassis.fault = None
    eventually(lambda: len(chassis.sent) == 50, "all")
    assert [message.payload for _, message in chassis.sent] == [b"%d" % n for n in range(50)]


class LinkWatch:
    """A plugin that notes link changes of two authorities."""

    Config = NoConfig
    seen: ClassVar[list[tuple[LinkState, LinkState]]]
    context: ClassVar[PluginContext]
    fails: ClassVar[bool]

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        cls = type(self)
        cls.seen, cls.context, cls.fails = [], context, False
        context.links.watch(self._look)

    def _look(self) -> None:
        self.seen.append((self.link("cloud"), self.link("chassis")))
        if self.fails:
            raise ValueError("a plugin's mistake")

    @classmethod
    def link(cls, authority: str) -> LinkState:
        return cls.context.links.state_of(authority)


# No pause is shorter than half of it, so nothing is retried within the deadline of a test.
PATIENT_RETRY = "[egress.default]\nretry = { first_ms = 30_000, max_ms = 30_000 }"
NEWS = UUri("cloud", 0x10A0, 1, 0)


def test_messages_of_an_outage_arrive_when_the_zenoh_link_is_up(bench: Bench) -> None:
    here, received = free_locator(), list[bytes]()
    backbone = section("backbone", transport="zenoh", authorities=["cloud"], listen=[here])
    streamer = bench.started(bench.local("inside", OWN), backbone, PATIENT_RETRY, extra={"watch": LinkWatch})
    assert LinkWatch.link("cloud") == LinkState(up=False, up_count=0)
    app = bench.app("inside")

    def peer() -> EndpointTransport:
        transport = endpoint("cloud", connect=(here,))
        transport.register_listener(ANY, NEWS, lambda message: received.append(message.payload))
        transport.open()
        return transport

    fleet = peer()
    try:
        eventually(lambda: LinkWatch.link("cloud") == LinkState(up=True, up_count=1), "the link")
        app.transport.send(notification(new_id(), TOPIC, NEWS, b"before"))
        eventually(lambda: received == [b"before"], "the first message")
        fleet.close()
        eventually(lambda: LinkWatch.link("cloud") == LinkState(up=False, up_count=1), "the outage")
        app.transport.send(notification(new_id(), TOPIC, NEWS, b"in the outage"))
        eventually(
            lambda: any(endpoint_queue.retries for endpoint_queue in streamer.egress_queues()), "the pause"
        )
        fleet = peer()
        eventually(lambda: b"in the outage" in received, f"the message of the outage, {received}")
        # A close that a busy machine detects late may look like a kill: then the last messages come twice.
        assert list(dict.fromkeys(received)) == [b"before", b"in the outage"], received
        assert received.count(b"in the outage") == 1
    finally:
        fleet.close()
    eventually(lambda: len(LinkWatch.seen) == 5, "the last outage")
    cloud = [cloud for cloud, _ in LinkWatch.seen]
    assert cloud == [(False, 0), (True, 1), (False, 1), (True, 2), (False, 2)]
    assert LinkWatch.link(OWN) == LinkState(up=True, up_count=0)  # a transport without link state


def test_a_link_up_affects_only_its_own_queue_and_authorities(bench: Bench) -> None:
    sections = (fake("chassis", "chassis"), fake("uplink", "cloud"))
    streamer = bench.started(bench.local("inside", OWN), *sections, PATIENT_RETRY, extra={"watch": LinkWatch})
    app, chassis, uplink = bench.app("inside"), link(streamer, "chassis"), link(streamer, "uplink")
    assert list(LinkWatch.context.authorities) == [OWN, "chassis", "cloud"]
    for each, sink in ((chassis, UUri("chassis", 1, 1, 0)), (uplink, NEWS)):
        each.fault = UCode.UNAVAILABLE
        app.transport.send(notification(new_id(), TOPIC, sink))
    eventually(
        lambda: sum(endpoint_queue.retries for endpoint_queue in streamer.egress_queues()) == 2, "both pauses"
    )
    chassis.set_link(up=False)
    chassis.fault = uplink.fault = None
    chassis.set_link(up=True)
    eventually(lambda: len(chassis.sent) == 1, "the message for the restored link")
    assert (chassis.attempts, uplink.attempts) == (2, 1)
    assert LinkWatch.seen == [((True, 0), (False, 0)), ((True, 0), (True, 1))]


def test_a_plugin_error_at_link_up_does_not_delay_waiting_messages(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), PATIENT_RETRY, extra={"watch": LinkWatch}
    )
    chassis = link(streamer, "chassis")
    chassis.fault = UCode.UNAVAILABLE
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(
        lambda: any(endpoint_queue.retries for endpoint_queue in streamer.egress_queues()), "the pause"
    )
    chassis.fault = None
    LinkWatch.fails = True
    with pytest.raises(ValueError, match="a plugin's mistake"):  # the transport logs it
        chassis.set_link(up=True)
    eventually(lambda: len(chassis.sent) == 1, "the message")


def test_a_stalled_link_delays_no_other_endpoint(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), bench.local("outside", "cloud"), fake("chassis", "chassis")
    )
    link(streamer, "chassis").gate.clear()
    app, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.listen(ANY, fleet.address)
    for n in range(10):
        app.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
        app.transport.send(notification(new_id(), TOPIC, fleet.address, b"%d" % n))
    assert len(fleet.wait_received(10)) == 10
    eventually(lambda: streamer.ledger().delivered == 10, "the ledger")
    assert streamer.ledger().queued == 10


@pytest.mark.parametrize("unicast", [False, True])
def test_a_zenoh_endpoint_prepares_subscribed_topics_before_their_first_messages(
    bench: Bench, unicast: bool
) -> None:
    """Also those of earlier processes, and those that come from a unicast endpoint."""
    here, state = free_locator(), "kept"
    news = section("cloud", transport="zenoh", authorities=["cloud"], mode="peer", listen=[here])
    app = endpoint("cloud", connect=(here,))
    rpc = RpcClient(app, UUri("cloud", 0x10A0, 1, 0), UuidSource(SYSTEM_CLOCK.wall_ms))
    for number in range(2):
        streamer = bench.streamer(bench.local("inside", OWN), news, WITH_USUBSCRIPTION, state=state)
        streamer.transports["inside"].unicast = unicast  # type: ignore[misc]
        streamer.start()
        if number == 0:
            app.open()
            sent_request = pb.SubscriptionRequest(topic=TOPIC.to_pb()).SerializeToString()
            rpc.call(USUBSCRIPTION.with_resource(SUBSCRIBE), sent_request, UPayloadFormat.PROTOBUF)
        cloud = streamer.transports["cloud"]
        assert isinstance(cloud, ZenohTransport)
        assert cloud._sender is not None
        publishers = cloud._sender._publishers
        eventually(lambda: TOPIC in {each.route[0] for each in list(publishers)}, "the publisher")  # noqa: B023
        streamer.stop(0)
    app.close()
