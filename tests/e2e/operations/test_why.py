# SPDX-License-Identifier: Apache-2.0
"""`ustreamer why` names the cause of a fault in its first sentence. Faults are injected one by one, into one streamer."""

import json
import os
import resource
import signal
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e.operations.why_world import (
    ECU_HOST,
    FAILING_PLUGIN_TYPE,
    GONE_TOPIC,
    UNSUBSCRIBE,
    World,
    refuses,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipNode, ZenohEntity
from tests.e2e.rigs.ports import udp_ports
from tests.e2e.rigs.streamer import StreamerProcess, run_command
from tests.host.running_streamer import BASE, RunningStreamer
from tests.waiting import DEADLINE_S, wait_until
from ustreamer.core.peers.election import PeerRouters, RouterId, election_key
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.host.cli import why_command
from ustreamer.host.cli.main import main
from ustreamer.host.observe.health import readiness
from ustreamer.testing.messages import new_id
from ustreamer.transports.someip.protocol.e2e import E2eProtector
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.uprotocol.umessage import UMessage, error_response, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY, UUri

MAX_S: Final = 2.0
"""The time of an answer: its CPU time here, next to the sample of some ms."""
_COUNTED_S: Final = 0.5
"""A sample in which a counter rises, also on a busy machine."""
_WRITTEN_S: Final = 1_700_000_000
OLD_MS: Final = 30 * 86_400_000


class Expected(NamedTuple):
    """What `ustreamer why` should answer about `subject`: the cause, and words of the first sentence."""

    subject: UUri
    cause: str
    words: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    sample_s: float = 0.05
    since_ms: int | None = None


Fault = Callable[[World], Iterator[Expected]]
FAULTS: Final[dict[str, Fault]] = {}


def fault(inject: Fault) -> Fault:
    """Add a fault to the table. It is present until the generator ends."""
    FAULTS[inject.__name__] = inject
    return inject


@fault
def publisher_that_has_stopped(world: World) -> Iterator[Expected]:
    """The first fault, as the average rate since the start shows that messages are missing."""
    topic = world.topic("hpc")
    world.subscribe(topic)
    world.publish(topic, number=500)
    wait_until(lambda: sum(each.delivered for each in world.streamer.targets() if each.topic == topic) == 500)
    yield Expected(topic, "publisher_silent", ("silent", "500 messages"), sample_s=0.3)


# --- subscriptions ---------------------------------------------------------------------------------------------------


@fault
def topic_without_subscriber(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.publish(topic)
    yield Expected(topic, "no_subscriber", (str(topic),))


@fault
def typing_error_in_the_authority_of_a_subscription(world: World) -> Iterator[Expected]:
    topic = world.topic("hpc")
    world.subscribe(UUri("hpcc", topic.ue_id, 1, 0x8001))
    yield Expected(topic, "similar_subscription", ("authority", "hpcc"))


@fault
def wrong_resource_in_a_subscription(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic.with_resource(0x8002))
    yield Expected(topic, "similar_subscription", ("resource",))


@fault
def wrong_major_version_in_a_subscription(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(UUri("car", topic.ue_id, 2, 0x8001))
    yield Expected(topic, "similar_subscription", ("major version",))


@fault
def wrong_entity_in_a_subscription(world: World) -> Iterator[Expected]:
    topic = world.topic(ue_id=0x3B51)
    world.subscribe(UUri("car", 0x3B15, 1, 0x8001))
    yield Expected(topic, "similar_subscription", ("uEntity",))


@fault
def typing_error_in_the_authority_of_the_question(world: World) -> Iterator[Expected]:
    yield Expected(UUri("cloudd", 1, 1, 0x8001), "unknown_authority", ("'cloud'", "outside"))


@fault
def authority_of_no_endpoint(world: World) -> Iterator[Expected]:
    yield Expected(UUri("zzz", 1, 1, 0x8001), "unknown_authority", ("'zzz'",))


@fault
def subscriber_in_the_network_of_the_publisher(world: World) -> Iterator[Expected]:
    topic = world.topic("car")
    world.subscribe(topic, world.subscriber("hpc"))
    world.publish(topic)
    yield Expected(topic, "same_network", ("inside",))


@fault
def subscriber_whose_authority_was_removed(world: World) -> Iterator[Expected]:
    yield Expected(GONE_TOPIC, "subscriber_authority_unknown", ("'gone'",))


@fault
def unsubscribed_topic(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic)
    world.unsubscribe(topic, subscriber)
    yield Expected(topic, "unsubscribed", (str(subscriber),))


@fault
def expired_subscription(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic, expire_ms=new_id().time_ms + 100)
    directory = world.streamer.dispatcher.router.directory
    wait_until(lambda: not directory.subscribers(topic), "the expiry")
    yield Expected(topic, "subscription_expired", ("expired",))


@fault
def stopped_dispatching(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic)
    world.stop_dispatching(topic, subscriber)
    world.publish(topic)
    yield Expected(topic, "stopped_dispatching", (str(subscriber),))


@fault
def stopped_dispatching_of_a_pattern(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic)
    world.stop_dispatching(topic.with_resource(0xFFFF), subscriber)
    yield Expected(topic, "stopped_dispatching", (str(subscriber),))


@fault
def subscription_throttled_to_a_trickle(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic, hz=0.5)
    with world.repeating(lambda: world.publish(topic)):
        wait_until(
            lambda: sum(each.throttled for each in world.streamer.targets() if each.topic == topic) > 20
        )
        yield Expected(topic, "throttled", ("0.5 Hz",))


# --- remote subscriptions --------------------------------------------------------------------------------------------


@fault
def remote_usubscription_refuses(world: World) -> Iterator[Expected]:
    topic = world.topic("cloud")

    def refuse(message: UMessage) -> None:
        status = UStatus(UCode.PERMISSION_DENIED, "not for this vehicle")
        world.app("cloud").send(error_response(new_id(), message, status))

    server = UUri("cloud", 0, 3, 1)
    world.app("cloud").register_listener(ANY, server, refuse)
    world.subscribe(topic, world.subscriber("hpc"))
    directory = world.streamer.dispatcher.router.directory
    wait_until(lambda: not directory.subscribers(topic), "the refusal")
    yield Expected(topic, "remote_refused", ("'cloud'", "not for this vehicle"))
    world.app("cloud").unregister_listener(ANY, server, refuse)


@fault
def remote_usubscription_does_not_answer(world: World) -> Iterator[Expected]:
    topic = world.topic("cloud")
    world.subscribe(topic, world.subscriber("hpc"))
    yield Expected(topic, "remote_pending", ("'cloud'",))


@fault
def ecu_refuses_the_event_group(world: World) -> Iterator[Expected]:
    topic = UUri("body", 0x5001, 1, 0x8001)
    world.sd_ecu.rejects_subscriptions = True
    world.sd_ecu.offer(0x5001, 1)
    world.subscribe(topic)
    directory = world.streamer.dispatcher.router.directory
    wait_until(lambda: not directory.subscribers(topic), "the Nack")
    yield Expected(topic, "eventgroup_refused", ("event group",))
    world.sd_ecu.rejects_subscriptions = False


@fault
def ecu_does_not_offer_the_service(world: World) -> Iterator[Expected]:
    topic = UUri("body", 0x5002, 1, 0x8001)
    world.subscribe(topic)
    yield Expected(topic, "service_not_offered", ("does not offer",))


@fault
def ecu_offers_another_major_version(world: World) -> Iterator[Expected]:
    topic = UUri("body", 0x5002, 1, 0x8001)
    world.sd_ecu.offer(0x5002, 1, major=2)
    wait_until(lambda: world.statistics("body")["sd_unwanted_offers"] > 0, "the Offer")
    yield Expected(topic, "service_not_offered", ("major version",))


# --- access, peers ---------------------------------------------------------------------------------------------------


@fault
def access_rule_denies(world: World) -> Iterator[Expected]:
    topic = world.topic("guest", 0x3001)
    world.subscribe(topic)
    world.publish(topic)
    yield Expected(topic, "access_denied", ("endpoints.guarded.access[0] denies",))


@fault
def no_access_rule_allows(world: World) -> Iterator[Expected]:
    topic = world.topic("guest", 0x3003)
    world.subscribe(topic)
    yield Expected(topic, "access_denied", ("no rule of endpoints.guarded.access",))


@fault
def publisher_at_the_wrong_endpoint(world: World) -> Iterator[Expected]:
    topic = world.topic("cloud")
    world.subscribe(topic, world.subscriber("hpc"))
    world.publish(topic, at="car")
    yield Expected(topic, "wrong_endpoint", ("'inside'", "'outside'"))


@fault
def publisher_that_was_at_the_wrong_endpoint(world: World) -> Iterator[Expected]:
    topic = world.topic("cloud")
    world.subscribe(topic, world.subscriber("hpc"))
    world.publish(topic, at="car", number=3)
    [denial] = world.streamer.dispatcher.ingress("inside").recent_denials(topic)
    with world.repeating(lambda: world.publish(topic)):
        wait_until(lambda: not denial.goes_on(new_id().time_ms), "the end of the denials")
        yield Expected(topic, "healthy", ("Nothing is wrong",))


def _join_peer(world: World, topic: UUri) -> tuple[PeerRouters, str]:
    """A peer with precedence for `topic`."""
    ours = election_key(RouterId("hpc", ""), str(topic))
    names = (f"gateway{number}" for number in range(100))
    name = next(each for each in names if election_key(RouterId(each, ""), str(topic)) > ours)
    other = PeerRouters(name, "1" * 16)
    other.configure(BASE)
    for endpoint in BASE:
        world.streamer._peer_watcher.on_peers_changed(endpoint, other.own_announcements(endpoint))
    return other, name


@fault
def peer_forwards_the_topic(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic)
    _, name = _join_peer(world, topic)
    advertised = frozenset([TopicAdvertisement("1" * 16, "outside", name, topic)])
    world.streamer._peer_watcher.on_advertisements_changed("outside", advertised, frozenset())

    def is_deferred() -> bool:
        world.publish(topic)
        return world.streamer.dispatcher.refused_counts()["inside"]["deferred_to_peer"] > 0

    wait_until(is_deferred, "the peer")
    with world.repeating(lambda: world.publish(topic)):
        yield Expected(topic, "deferred_to_peer", (name,))
    world.streamer._peer_watcher.on_advertisements_changed("outside", frozenset(), advertised)
    for endpoint in BASE:
        world.streamer._peer_watcher.on_peers_changed(endpoint, frozenset())


# --- links, queues ---------------------------------------------------------------------------------------------------


@fault
def link_of_the_publisher_is_down(world: World) -> Iterator[Expected]:
    topic = world.topic("far")
    world.subscribe(topic)
    yield Expected(topic, "publisher_link_down", ("'far'", "not reached"))


@fault
def link_of_the_server_was_never_up(world: World) -> Iterator[Expected]:
    method = UUri("far", 0x10, 1, 1)
    world.send_request(method)
    yield Expected(method, "link_down", ("'far'", "not reached"))


@fault
def server_without_listener(world: World) -> Iterator[Expected]:
    method = UUri("far", 0x11, 1, 1)
    with ZenohEntity(world.ports.zenoh, "far", listen_to="up/none/**"):
        wait_until(lambda: _link_is(world, up=True), "the node")
        refuses(lambda: world.call(world.subscriber(), method, b"", ttl=10_000))
        yield Expected(method, "receiver_absent", ("no subscriber for",))


@fault
def link_of_the_subscriber_is_lost(world: World) -> Iterator[Expected]:
    topic = world.topic()
    _subscribe_and_leave(world, topic)
    yield Expected(topic, "link_down", ("'far'", "no longer"))


@fault
def link_of_this_subscriber_is_lost(world: World) -> Iterator[Expected]:
    subscriber = _subscribe_and_leave(world, world.topic())
    yield Expected(subscriber, "link_down", ("'far'", str(subscriber)))


def _link_is(world: World, *, up: bool) -> bool:
    return world.streamer._links.state_of_endpoint("far").up is up


def _subscribe_and_leave(world: World, topic: UUri) -> UUri:
    """Let a subscriber in the Zenoh network subscribe and leave the network."""
    with ZenohEntity(world.ports.zenoh, "far") as node:
        about = wire.Uri(topic.authority_name, topic.ue_id, topic.ue_version_major, topic.resource_id)
        answer = node.call(wire.Uri("hpc", 0, 3, 1), wire.subscription_request(about))
        assert answer.head.commstatus in {None, wire.OK}, answer.status
        subscriber = UUri("far", node.address.ue_id, 1, 0)
    wait_until(lambda: _link_is(world, up=False), "the loss of the link")
    world.publish(topic)
    return subscriber


@fault
def full_queue(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic, world.subscriber("tiny"), has_answer=False)
    world.publish(topic, number=3)
    yield Expected(topic, "queue_full", ("'tiny'", "full"))


@fault
def slow_receiver(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscriber("slow")
    gate = threading.Event()

    def receive(message: UMessage) -> None:
        gate.wait(DEADLINE_S)

    world.subscribe(topic, subscriber)
    world.app("slow").register_listener(ANY, None, receive)
    try:
        world.publish(topic, number=70)  # 64 of them are in flight, and have no age
        queue = world.streamer._egress_queues["slow"]
        wait_until(lambda: queue.oldest_age_ns > 1_000_000_000, "a message to be old")
        yield Expected(topic, "slow_receiver", ("'slow'", "messages wait"))
    finally:
        gate.set()
        world.app("slow").unregister_listener(ANY, None, receive)


@fault
def receiver_without_tcp_connection(world: World) -> Iterator[Expected]:
    topic = UUri("hpc", 0x4002, 1, 0x8001)
    world.publish(topic)
    queue = world.streamer._egress_queues["chassis"]
    wait_until(lambda: queue.blocked > 0, "the message to wait")
    yield Expected(topic, "receiver_unavailable", ("'chassis'",))


@fault
def receiver_that_does_not_listen(world: World) -> Iterator[Expected]:
    topic = UUri("hpc", 0x4001, 1, 0x8001)
    with world.repeating(lambda: world.publish(topic)):
        wait_until(lambda: world.statistics("chassis")["unreachable"] > 0, "the report")
        yield Expected(topic, "receiver_absent", ("Nothing listens", f"127.0.0.1:{world.ports.receiver}"))


@fault
def receiver_that_has_started(world: World) -> Iterator[Expected]:
    topic = UUri("hpc", 0x4001, 1, 0x8001)
    with SomeipNode(world.ports.receiver) as receiver, world.repeating(lambda: world.publish(topic)):
        wait_until(receiver.inbox.items, "an event")
        failures = world.streamer.transports["chassis"].recent_failures

        def is_over() -> bool:
            found = failures(topic) or ()
            return all(not each.goes_on(new_id().time_ms) for each in found)

        wait_until(is_over, "the end of the reports")
        yield Expected(topic, "healthy")


@fault
def messages_expire_in_the_queue(world: World) -> Iterator[Expected]:
    topic = UUri("hpc", 0x4003, 1, 0x8001)
    world.publish(topic)
    wait_until(lambda: _letters(world, topic), "the expiry")
    yield Expected(topic, "expired_in_queue", ("'trunk'",))


@fault
def clock_of_the_sender_is_wrong(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic)
    now = new_id()
    old = UUID((now.time_ms - OLD_MS) << 16 | now.msb & 0xFFFF, now.lsb)
    world.app("car").send(publish(old, topic, ttl=1_000))
    yield Expected(topic, "sender_clock", ("clock",))


@fault
def clock_of_the_sender_is_an_hour_behind(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic)
    now = new_id()
    old = UUID((now.time_ms - 3_600_000) << 16 | now.msb & 0xFFFF, now.lsb)
    world.app("car").send(publish(old, topic, ttl=1_000))
    yield Expected(topic, "sender_clock", ("clock of the sender", "60 min behind"))


@fault
def clock_of_the_sender_is_some_seconds_behind(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic)
    for _ in range(3):
        now = new_id()
        late = UUID((now.time_ms - 5_000) << 16 | now.msb & 0xFFFF, now.lsb)
        world.app("car").send(publish(late, topic, ttl=1_000))
    yield Expected(topic, "sender_clock", ("clock of the sender", "5 s behind"))


@fault
def ttl_is_too_short(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic)
    now = new_id()
    late = UUID((now.time_ms - 5_000) << 16 | now.msb & 0xFFFF, now.lsb)
    world.app("car").send(publish(late, topic, ttl=1_000))
    yield Expected(topic, "expired_on_arrival", ("ttl",))


@fault
def filter_of_a_plugin_fails(world: World) -> Iterator[Expected]:
    topic = world.topic(ue_id=FAILING_PLUGIN_TYPE)
    world.subscribe(topic)
    world.publish(topic)
    yield Expected(topic, "plugin_failed", ("a defect of this plugin",))


# --- the publisher ---------------------------------------------------------------------------------------------------


@fault
def publisher_that_does_not_run(world: World) -> Iterator[Expected]:
    topic = world.topic("hpc")
    world.subscribe(topic)
    yield Expected(topic, "publisher_silent", ("No message",))


@fault
def publisher_that_repeats_its_ids(world: World) -> Iterator[Expected]:
    topic = world.topic("dupes")
    message = publish(new_id(), world.topic("dupes"))
    repeated = publish(message.id, topic)
    world.app("dupes").send(message)
    world.subscribe(topic)
    with world.repeating(lambda: world.app("dupes").send(repeated)):
        wait_until(lambda: world.statistics("dup")["refused_duplicate"] > 3, "duplicates")
        yield Expected(topic, "duplicates", ("ids repeat",))


def _someip_fault(
    world: World, resource: int, datagram: bytes, counter: str, cause: str, *words: str, host: str = ECU_HOST
) -> Iterator[Expected]:
    """An event of the ECU that the endpoint refuses, while it is repeated."""
    topic = UUri("chassis", 0x1234, 1, resource)
    world.subscribe(topic)
    with _refused_datagrams(world, datagram, counter, host):
        yield Expected(topic, cause, words, sample_s=_COUNTED_S)


@contextmanager
def _refused_datagrams(world: World, datagram: bytes, counter: str, host: str) -> Iterator[None]:
    """Repeat a datagram that the endpoint refuses; at the end all of them are counted."""
    node = world.ecu if host == ECU_HOST else world.other_ecu
    before, sent = world.statistics("chassis").get(counter, 0), 0

    def send() -> None:
        nonlocal sent
        sent += 1
        node.send_to_port(datagram, world.ports.chassis)

    def refused() -> int:
        return world.statistics("chassis").get(counter, 0) - before

    with world.repeating(send):
        wait_until(lambda: refused() > 0, counter)
        yield
    wait_until(lambda: refused() == sent, f"all of {sent} datagrams")


@fault
def event_of_another_major_version(world: World) -> Iterator[Expected]:
    datagram = wire.someip(0x1234, 0x8001, wire.SOMEIP_NOTIFICATION, b"12", interface_version=2)
    yield from _someip_fault(
        world, 0x8001, datagram, "refused_event_version", "wrong_major_version", "major version", "'chassis'"
    )


@fault
def event_that_is_not_configured(world: World) -> Iterator[Expected]:
    datagram = wire.event(0x1234, 0x8009, b"12")
    yield from _someip_fault(world, 0x8009, datagram, "refused_event_unknown", "unknown_event", "'chassis'")


@fault
def event_from_another_address(world: World) -> Iterator[Expected]:
    datagram = wire.event(0x1234, 0x8002, b"12")
    yield from _someip_fault(
        world, 0x8002, datagram, "refused_event_address", "wrong_sender_address", "address", host="other"
    )


@fault
def event_that_is_malformed(world: World) -> Iterator[Expected]:
    datagram = wire.someip(0x1234, 0x8003, wire.SOMEIP_NOTIFICATION, b"12", protocol_version=7)
    yield from _someip_fault(
        world, 0x8003, datagram, "refused_protocol_version", "input_refused", "protocol_version"
    )


def _e2e_fault(world: World, event: int, what: str) -> Iterator[Expected]:
    """One event is delivered, and then the same one comes again and again: its counter stands still."""
    topic = UUri("chassis", 0x1234, 1, event)
    world.subscribe(topic)
    protector = E2eProtector(E2eConfig(profile="P06", data_id=7, covers_header=False))
    datagram = wire.event(0x1234, event, protector.protect(b"", bytes(8)))
    world.ecu.send_to_port(datagram, world.ports.chassis)
    wait_until(lambda: any(each.delivered for each in world.streamer.targets() if each.topic == topic))
    for _ in range(5):
        world.ecu.send_to_port(datagram, world.ports.chassis)
    wait_until(lambda: world.streamer.transports["chassis"].input_problem(topic).startswith("5 of"))
    yield Expected(topic, "e2e_failed", ("5 of the last 6", what, "e2e_repeated"))
    assert world.streamer.transports["chassis"].input_problem(topic.with_resource(0x8001)) == ""


@fault
def events_that_fail_their_e2e_check(world: World) -> Iterator[Expected]:
    yield from _e2e_fault(world, 0x8004, "dropped")


@fault
def events_that_are_marked(world: World) -> Iterator[Expected]:
    yield from _e2e_fault(world, 0x8005, "marked")


# --- methods ---------------------------------------------------------------------------------------------------------


@fault
def method_of_an_unknown_authority(world: World) -> Iterator[Expected]:
    yield Expected(UUri("chasis", 0x3001, 1, 1), "unknown_authority", ("'chassis'",))


@fault
def caller_without_access(world: World) -> Iterator[Expected]:
    method = UUri("chassis", 0x3001, 1, 6)
    world.send_request(method, at="guest")
    yield Expected(method, "access_denied", ("endpoints.guarded.access",))


@fault
def another_caller_without_access(world: World) -> Iterator[Expected]:
    method = UUri("chassis", 0x3001, 1, 7)
    world.send_request(method, at="guest")
    yield Expected(method, "healthy", ("Nothing is wrong",), ("--source", "//cloud/1/1/0"))


@fault
def given_caller_without_access(world: World) -> Iterator[Expected]:
    method = UUri("hpc", 0x4001, 1, 1)
    yield Expected(method, "access_denied", ("no rule of",), ("--source", "//guest/1/1/0"))


@fault
def caller_at_the_wrong_endpoint(world: World) -> Iterator[Expected]:
    method = UUri("cloud", 0x20, 1, 1)
    world.send_request(method, source=UUri("far", 1, 1, 0), at="car")
    yield Expected(method, "wrong_endpoint", ("'inside'", "far"))


def _send_response(world: World, method: UUri, at: str) -> UUri:
    """Send a response of `method` to a caller behind another endpoint; returns the caller."""
    caller = world.subscriber("cloud")
    world.app(at).send(response(new_id(), request(new_id(), caller, method, ttl=30_000)))
    return caller


@fault
def server_without_access(world: World) -> Iterator[Expected]:
    method = UUri("guest", 0x26, 1, 1)
    caller = _send_response(world, method, "guest")
    yield Expected(
        method, "access_denied", (f"responses of {method} to {caller}", "endpoints.guarded.access")
    )


@fault
def server_at_the_wrong_endpoint(world: World) -> Iterator[Expected]:
    method = UUri("far", 0x27, 1, 1)
    caller = _send_response(world, method, "car")
    yield Expected(method, "wrong_endpoint", (f"responses of {method} to {caller}", "'inside'"))


@fault
def caller_and_method_in_one_network(world: World) -> Iterator[Expected]:
    method = UUri("hpc", 0x21, 1, 1)
    yield Expected(method, "same_network", ("'inside'",), ("--source", "//car/1/1/0"))


@fault
def server_does_not_answer(world: World) -> Iterator[Expected]:
    method = UUri("chassis", 0x3001, 1, 4)
    refuses(lambda: world.call(world.subscriber(), method, b"", ttl=500))
    wait_until(lambda: world.statistics("chassis")["calls_expired"] > 0, "the ttl")
    yield Expected(method, "no_answer", ("no response",))


@fault
def server_that_does_not_listen(world: World) -> Iterator[Expected]:
    method = UUri("chassis", 0x3002, 1, 1)
    refuses(lambda: world.call(world.subscriber(), method, b"", ttl=200))
    wait_until(lambda: world.statistics("chassis")["unreachable"] > 0, "the report")
    yield Expected(method, "server_absent", (f"127.0.0.1:{world.ports.receiver}",))


def _send_unanswered_request(world: World, number: int, counter: str) -> None:
    """Send a request of a SOME/IP client, and wait until `counter` has counted it."""
    before = world.statistics("chassis")[counter]
    world.ecu.send_to_port(wire.someip(0x4001, number, wire.SOMEIP_REQUEST, client=7), world.ports.chassis)
    wait_until(lambda: world.statistics("chassis")[counter] > before, counter)


@fault
def provider_does_not_answer(world: World) -> Iterator[Expected]:
    _send_unanswered_request(world, 1, "requests_expired")
    yield Expected(UUri("hpc", 0x4001, 1, 1), "no_answer", ("1 call", "127.0.0.1", "request_ttl_ms"))


@fault
def provider_does_not_answer_the_given_caller(world: World) -> Iterator[Expected]:
    _send_unanswered_request(world, 2, "requests_expired")
    method = UUri("hpc", 0x4001, 1, 2)
    yield Expected(method, "no_answer", ("no response",), ("--source", "//chassis/7/1/0"))


@contextmanager
def _repeated_call(world: World, method: UUri, *, answers: bool) -> Iterator[UUri]:
    """A caller that repeats a call of a server in another network, from the first call until after its ttl."""
    caller, app, ttl = world.subscriber("cloud"), world.app(method.authority_name), 100
    received: list[UMessage] = []

    def receive(message: UMessage) -> None:
        received.append(message)
        if answers:
            app.send(response(new_id(), message))

    app.register_listener(ANY, method, receive)
    try:
        with world.repeating(lambda: world.app("cloud").send(request(new_id(), caller, method, ttl=ttl))):
            wait_until(lambda: received and new_id().time_ms > received[0].id.time_ms + 2 * ttl, "calls")
            yield caller
    finally:
        app.unregister_listener(ANY, method, receive)


@fault
def server_of_another_transport_does_not_answer(world: World) -> Iterator[Expected]:
    method = UUri("car", 0x22, 1, 1)
    with _repeated_call(world, method, answers=False) as caller:
        yield Expected(method, "no_answer", (str(caller), "'inside'"), ("--source", str(caller)))


@fault
def server_of_another_transport_answers(world: World) -> Iterator[Expected]:
    method = UUri("car", 0x23, 1, 1)
    with _repeated_call(world, method, answers=True) as caller:
        yield Expected(method, "healthy", (f"calls of {caller} came in lately",))


@fault
def unanswered_caller_that_has_stopped(world: World) -> Iterator[Expected]:
    method = UUri("car", 0x22, 1, 1)
    yield Expected(method, "healthy", ("no response for", "has come in since"))


@fault
def calls_within_a_network(world: World) -> Iterator[Expected]:
    method, caller = UUri("hpc", 0x24, 1, 1), UUri("car", 0x25, 1, 0)
    world.send_request(method, source=caller, at="car")
    yield Expected(method, "healthy", (f"{caller} calls within the network of 'inside'",))


@fault
def method_that_is_not_configured(world: World) -> Iterator[Expected]:
    method = UUri("chassis", 0x3001, 1, 9)
    refuses(lambda: world.call(world.subscriber(), method, b""))
    yield Expected(method, "send_refused", ("not one of its methods",))


@fault
def service_that_is_not_configured(world: World) -> Iterator[Expected]:
    method = UUri("chassis", 0x3009, 1, 1)
    refuses(lambda: world.call(world.subscriber(), method, b""))
    yield Expected(method, "send_refused", ("no such service",))


@fault
def service_that_is_not_offered(world: World) -> Iterator[Expected]:
    method = UUri("body", 0x5002, 1, 1)
    world.send_request(method)
    queue = world.streamer._egress_queues["body"]
    wait_until(lambda: queue.blocked > 0, "the call to wait")
    yield Expected(method, "server_absent", ("'body'",))


def _request_fault(
    world: World, number: int, datagram: bytes, counter: str, cause: str, *words: str, host: str = ECU_HOST
) -> Iterator[Expected]:
    """A request of a SOME/IP client that the endpoint refuses, while it is repeated."""
    with _refused_datagrams(world, datagram, counter, host):
        yield Expected(UUri("hpc", 0x4001, 1, number), cause, words, sample_s=_COUNTED_S)


@fault
def client_with_another_address(world: World) -> Iterator[Expected]:
    datagram = wire.someip(0x4001, 1, wire.SOMEIP_REQUEST, client=7)
    yield from _request_fault(
        world, 1, datagram, "refused_request_address", "caller_refused", "`clients`", host="other"
    )


@fault
def request_of_another_major_version(world: World) -> Iterator[Expected]:
    datagram = wire.someip(0x4001, 1, wire.SOMEIP_REQUEST, client=7, interface_version=3)
    yield from _request_fault(
        world, 1, datagram, "refused_request_version", "wrong_major_version", "major version"
    )


@fault
def request_for_an_unknown_method(world: World) -> Iterator[Expected]:
    datagram = wire.someip(0x4001, 5, wire.SOMEIP_REQUEST, client=7)
    yield from _request_fault(world, 5, datagram, "refused_request_method", "unknown_method", "`methods`")


# --- subscribers -----------------------------------------------------------------------------------------------------


@fault
def subscriber_without_subscription(world: World) -> Iterator[Expected]:
    subscriber = UUri("cloud", 0x7ABC, 1, 0)
    yield Expected(subscriber, "no_subscription", (str(subscriber),))


@fault
def typing_error_in_the_subscriber(world: World) -> Iterator[Expected]:
    subscriber = world.subscribe(world.topic(), UUri("cloud", 0x5F31, 1, 0))
    yield Expected(UUri("cloud", 0x5F13, 1, 0), "similar_subscriber", (str(subscriber),))


@fault
def subscriber_of_an_unknown_authority(world: World) -> Iterator[Expected]:
    yield Expected(UUri("clouds", 1, 1, 0), "unknown_authority", ("'cloud'",))


@fault
def subscriber_whose_subscription_expired(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic, expire_ms=new_id().time_ms + 100)
    directory = world.streamer.dispatcher.router.directory
    wait_until(lambda: not directory.subscribers(topic), "the expiry")
    yield Expected(subscriber, "subscription_expired", (str(topic), "expired"))


@fault
def subscriber_that_has_unsubscribed(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic)
    world.unsubscribe(topic, subscriber)
    yield Expected(subscriber, "unsubscribed", (str(topic),))


@fault
def subscriber_that_has_stopped_its_topic(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic)
    world.stop_dispatching(topic, subscriber)
    yield Expected(subscriber, "stopped_dispatching", (str(topic),))


@fault
def subscriber_whose_publisher_is_silent(world: World) -> Iterator[Expected]:
    topic = world.topic("hpc")
    yield Expected(world.subscribe(topic), "publisher_silent", (str(topic),))


@fault
def subscriber_that_asked_for_a_trickle(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic, hz=1)
    with world.repeating(lambda: world.publish(topic)):
        wait_until(
            lambda: sum(each.throttled for each in world.streamer.targets() if each.topic == topic) > 20
        )
        yield Expected(subscriber, "throttled", (str(topic), "1 Hz"))


# --- the streamer itself ---------------------------------------------------------------------------------------------


@fault
def changed_file_is_not_loaded(world: World) -> Iterator[Expected]:
    text = world.path.read_text()
    world.path.write_text(text.replace('"cloud"]', '"cloud", "fleet"]'))
    os.utime(world.path, (_WRITTEN_S, _WRITTEN_S))
    yield Expected(
        UUri("fleet", 1, 1, 0x8001), "not_reloaded", ("not loaded", "authorities"), since_ms=_WRITTEN_S * 1000
    )
    world.path.write_text(text)


@fault
def disk_refuses_a_subscription(world: World) -> Iterator[Expected]:
    """The disk refuses every write of this process, as if it were full."""
    topic = world.topic()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))
    try:
        refuses(lambda: world.subscribe(topic))
        yield Expected(
            topic, "store_full", ("accepts no writes",)
        )  # another store may have been written to, too
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    wait_until(lambda: not _is_degraded(world), "a write")


@fault
def field_values_cannot_be_written(world: World) -> Iterator[Expected]:
    """A file has the name of their directory."""
    topic, directory = UUri("hpc", 0x5003, 1, 0x8001), world.path.parent / "state" / "fields"
    directory.write_bytes(b"")
    world.publish(topic)
    wait_until(lambda: world.statistics("body")["field_file_errors"] > 0, "a refused write")
    report = readiness(world.streamer.metrics_snapshot(1), ())
    assert any("store 'fields/body' accepts no writes" in each for each in report.reasons)
    yield Expected(topic, "store_full", ("fields/body",))
    directory.unlink()
    world.publish(topic)
    wait_until(lambda: not _is_degraded(world, "fields/body"), "a write")


def _is_degraded(world: World, store: str = "") -> bool:
    """Whether this store refuses writes; without a name: any store."""
    stores = world.streamer.metrics_snapshot(1).stores
    return any(each.state.degraded for each in stores if store in ("", each.name))


# --- no fault --------------------------------------------------------------------------------------------------------


@fault
def no_fault_of_a_topic(world: World) -> Iterator[Expected]:
    topic = world.topic()
    world.subscribe(topic)
    with world.repeating(lambda: world.publish(topic)):
        wait_until(lambda: any(each.topic == topic for each in world.streamer.targets()))
        yield Expected(topic, "healthy")


@fault
def no_fault_of_a_subscriber(world: World) -> Iterator[Expected]:
    topic = world.topic()
    subscriber = world.subscribe(topic)
    with world.repeating(lambda: world.publish(topic)):
        wait_until(lambda: any(each.topic == topic for each in world.streamer.targets()))
        yield Expected(subscriber, "healthy")


@fault
def no_fault_of_a_method(world: World) -> Iterator[Expected]:
    yield Expected(UNSUBSCRIBE, "healthy")


# --- the test --------------------------------------------------------------------------------------------------------


def _letters(world: World, topic: UUri) -> bool:
    return any(each.source == topic for each in world.streamer.events.letters())


def test_the_first_sentence_names_the_cause_of_each_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong: list[str] = []
    slow: list[str] = []
    with World(tmp_path, capsys) as world:
        for name, inject in FAULTS.items():
            with contextmanager(inject)(world) as expected:
                found, took_s = world.why(expected.subject, *expected.arguments, sample_s=expected.sample_s)
            cause = found["findings"][0]
            is_expected = cause["cause"] == expected.cause and all(
                each in cause["text"] for each in expected.words
            )
            if not is_expected or expected.since_ms not in (None, cause["since_ms"]):
                wrong.append(f"{name}: expected {expected.cause} {expected.words}, found {found['findings']}")
            if took_s > MAX_S:
                slow.append(f"{name}: {took_s:.2f} s")
    assert len(FAULTS) >= 60
    assert not slow, slow
    assert not wrong, "\n".join(wrong)


def test_a_topic_for_listeners_needs_no_subscriber_and_no_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with World(tmp_path, capsys) as world:
        found, _ = world.why(UNSUBSCRIBE.with_resource(0x8000))
    assert [each["cause"] for each in found["findings"]] == ["healthy"]
    assert "each listener behind 'far' gets it without a subscription" in found["findings"][0]["text"]


def test_a_slow_publisher_that_stopped_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with World(tmp_path, capsys) as world:
        topic = world.topic("hpc")
        world.subscribe(topic)
        world.publish(topic, number=20)
        wait_until(
            lambda: sum(each.received for each in world.streamer.targets() if each.topic == topic) == 20
        )
        found, took_s = world.why(topic, sample_s=0.3)
    assert [each["cause"] for each in found["findings"]] == ["publisher_silent"]
    assert took_s < MAX_S


def test_a_wrong_major_version_is_named_behind_the_access_rule_that_denies_the_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To mend the rule alone brings no message."""
    port, remote = udp_ports(2)
    section = f"""
[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {port}
sd = false

[[endpoints.chassis.access]]
allow = false
source = "//chassis/1234/1/8001"

[[endpoints.chassis.access]]
allow = true

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001 }}]
remote = "127.0.0.1:{remote}"
"""
    with RunningStreamer(tmp_path, section) as running, SomeipNode(remote) as ecu:
        ecu.send_to_port(
            wire.someip(0x1234, 0x8001, wire.SOMEIP_NOTIFICATION, b"1", interface_version=2), port
        )
        counters = running.streamer.transports["chassis"].statistics
        wait_until(lambda: counters()["refused_event_version"] == 1, "the refusal")
        assert main(["why", "//chassis/1234/1/8001", str(running.path), "--json", "--sample", "0"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [each["cause"] for each in found] == ["access_denied", "wrong_major_version"]


def test_a_streamer_that_hangs_is_named_in_time(tmp_path: Path) -> None:
    config = tmp_path / "ustreamer.toml"
    config.write_text(
        'authority = "hpc"\nstate_dir = "state"\n[endpoints.inside]\ntransport = "local"\nnetwork = "n"\n'
        'authorities = ["hpc"]\n'
    )
    with StreamerProcess(config) as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            answers = [
                run_command("why", "//hpc/1234/1/8001", config, within=20.0),
                run_command("routes", config, within=40.0),
            ]
        finally:
            os.kill(process.pid, signal.SIGCONT)
    stopped = f"process {process.pid} is stopped by a signal or a debugger"
    assert answers[0].stdout.startswith(f"The streamer does not answer: {stopped}.")
    assert stopped in answers[1].stderr
    assert [each.returncode for each in answers] == [1, 69]


def test_a_stopped_streamer_is_named_and_its_files_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ustreamer.toml"
    path.write_text(
        'authority = "hpc"\nstate_dir = "state"\n[endpoints.inside]\ntransport = "local"\nnetwork = "n"\n'
        'authorities = ["hpc"]\n'
    )
    assert main(["why", "//hpc/1234/1/8001", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"No streamer runs on {tmp_path / 'state'}.")
    assert "up://hpc/1234/1/8001 has no subscriber." in out


def test_the_paragraph_has_the_cause_the_time_and_the_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = UUri("hpc", 0x1234, 1, 0x8001)
    with RunningStreamer(tmp_path) as running:
        assert why_command.run_why(
            Namespace(
                subject=str(topic),
                source=None,
                config=running.path,
                sample=0,
                json=False,
                usage_error=pytest.fail,
            )
        )
    out = capsys.readouterr().out
    assert out.startswith(f"{topic} has no subscriber. At least since 20")
    assert "ago). What to do: Have the receiver call Subscribe" in out


@pytest.mark.parametrize("subject", ["//hpc/1234/1/FFFF", "/1234/1/8001", "nonsense"])
def test_an_address_that_is_no_single_address_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subject: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["why", subject, str(tmp_path / "u.toml")])
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
