# SPDX-License-Identifier: Apache-2.0
"""Service discovery of a running endpoint, with an ECU at byte level: located, lost, subscribed, offered services."""

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from queue import Empty

import pytest

from tests.e2e.rigs.ports import udp_ports
from tests.transports.someip.discovery.sd_bench import (
    APP,
    DOORS,
    EVENTS,
    FAST,
    GROUP,
    LIGHT,
    METHOD,
    OPEN,
    OWN,
    SERVER,
    SPEED,
    TOPIC,
    Bench,
    Ecu,
    event,
    over,
)
from tests.waiting import wait_until
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscriptionUpdate,
    subscribe_in,
    unsubscribe_request,
)
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import RouteUnavailable, SubscriberEnded
from ustreamer.transports.someip.discovery import sd_driver
from ustreamer.transports.someip.discovery.sd_driver import MAX_PENDING_MESSAGES
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import split
from ustreamer.transports.someip.protocol.mapping import REQUEST_ID_BITS
from ustreamer.transports.someip.sd import sockets
from ustreamer.transports.someip.sd.codec import (
    Entry,
    EntryType,
    EventgroupEntry,
    SdMessage,
    ServiceEntry,
    encode_sd_message,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.options import Endpoint, EndpointRole
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode_status


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


@pytest.fixture
def bench(stack: ExitStack) -> Bench:
    return Bench(stack)


# --- locating services ------------------------------------------------------------------------------------------------


def call_of(bench: Bench) -> UMessage:
    return request(bench.ids.next(), APP, METHOD, b"?", ttl=1_000)


# [utest->RPC-660, SD-778, SD-779]
def test_a_service_is_called_at_its_offered_address_and_its_route_opens(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.expect_entry(lambda each: each.type == EntryType.FIND and each.service == SPEED)
    with pytest.raises(RouteUnavailable, match="not offered at present") as refused:
        bench.endpoint.send(call_of(bench))

    ecu.offer()
    wait_until(lambda: bench.routes == [refused.value.route])
    bench.endpoint.send(call_of(bench))
    assert ecu.receive().payload == b"?"


# [utest->SD-14]
@pytest.mark.parametrize("how", ["stops", "ttl", "reboots"])
def test_a_lost_service_is_no_longer_called(bench: Bench, how: str) -> None:
    ecu = bench.ecu()
    ecu.offer(ttl=1 if how == "ttl" else 30)
    if how == "stops":
        bench.until("sd_found", 1)
        ecu.offer(ttl=0)
    elif how == "reboots":
        bench.until("sd_found", 1)
        ecu.reboot()
        ecu.send(ServiceEntry(EntryType.FIND, 0x7777, 1, 1, 0, 1))
    bench.until("sd_times_lost", 1)
    with pytest.raises(RouteUnavailable):
        bench.endpoint.send(call_of(bench))


@pytest.mark.parametrize(("how", "why"), [("stops", "stopped"), ("ttl", "expired"), ("reboots", "rebooted")])
def test_pending_calls_fail_immediately_when_the_service_is_lost(bench: Bench, how: str, why: str) -> None:
    ecu = bench.ecu()
    ecu.offer(ttl=1 if how == "ttl" else 30)
    call = request(bench.ids.next(), APP, METHOD, b"?", ttl=600_000)
    bench.send_when_found(call)
    assert ecu.receive().payload == b"?"
    if how == "stops":
        ecu.offer(ttl=0)
    elif how == "reboots":
        ecu.reboot()
        ecu.offer(ttl=30)

    answer = bench.next()

    assert (answer.attributes.reqid, answer.attributes.commstatus) == (call.id, UCode.UNAVAILABLE)
    assert f"went ({why})" in decode_status(answer.payload).message
    assert (bench.count("calls_service_gone"), bench.count("calls_open")) == (1, 0)


# [utest->SD-781]
def test_an_event_is_accepted_only_from_its_offered_address(bench: Bench) -> None:
    ecu, other = bench.ecu(), bench.ecu("127.0.0.8")
    ecu.event(b"early", bench.address)
    bench.until("refused_event_address", 1)
    ecu.offer()
    bench.until("sd_found", 1)
    other.event(b"forged", bench.address)
    bench.until("refused_event_address", 2)
    ecu.event(b"fast", bench.address)
    message = bench.next()
    assert (message.attributes.source, message.payload) == (TOPIC, b"fast")


def test_an_offer_from_an_untrusted_network_is_refused(stack: ExitStack) -> None:
    bench = Bench(stack, networks=["127.0.0.8/32"])
    untrusted, known = bench.ecu("127.0.0.7"), bench.ecu("127.0.0.8")
    untrusted.offer()
    bench.until("refused_sd_network", 1)
    assert bench.count("sd_found") == 0
    known.offer()
    bench.until("sd_found", 1)


def test_an_offer_does_not_move_a_service_in_use(bench: Bench) -> None:
    ecu, thief = bench.ecu(), bench.ecu("127.0.0.8")
    ecu.offer()
    bench.until("sd_found", 1)
    ecu.offer(port=1)
    bench.until("refused_sd_offer_changed", 1)
    thief.offer()
    bench.until("refused_sd_offer_foreign", 1)
    bench.endpoint.send(call_of(bench))
    assert ecu.receive().payload == b"?"


def test_a_message_of_another_service_is_refused_at_the_sd_port(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.event(b"x", ("127.0.0.1", bench.sd_port))
    bench.until("refused_sd_service", 1)
    ecu.data.sendto(b"\xff" * 7, ("127.0.0.1", bench.sd_port))
    bench.until("refused_truncated_header", 1)


def test_a_datagram_has_a_bound_of_messages(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.data.sendto(encode_sd_message(SdMessage((), reboot=True), 1) * 2_000, ("127.0.0.1", bench.sd_port))
    bench.until("refused_refusal_limit", 1)


# [utest->COMPAT-1202]
def test_requests_are_accepted_from_trusted_networks_or_configured_clients(
    stack: ExitStack,
) -> None:
    for clients, answered in ((None, True), (["127.0.0.200/32"], False)):
        bench = Bench(stack, clients=clients, networks=["127.0.0.7/32"])
        ecu = bench.ecu()
        ecu.request(bench.address)
        if answered:
            assert bench.next().attributes.sink == UUri("hpc.vin1", 0x8401, 1, 1)
        else:
            bench.until("refused_request_address", 1)


# --- subscriptions to events of ECUs ----------------------------------------------------------------------------------


# [utest->SD-1182]
def test_a_topic_is_pending_until_its_ack_and_later_changes_are_notified(bench: Bench) -> None:
    ecu = bench.ecu()
    assert bench.subscribe_topic() is Status.SUBSCRIBE_PENDING
    ecu.offer()
    subscribe_entry = ecu.expect_subscribe()
    assert (subscribe_entry.service, subscribe_entry.eventgroup, subscribe_entry.ttl) == (SPEED, 1, 2)
    assert subscribe_entry.options == (Endpoint(*bench.address),)
    ecu.send_ack(subscribe_entry, 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)
    assert bench.subscribe_topic() is Status.SUBSCRIBED

    ecu.offer(ttl=0)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBE_PENDING)
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)


def test_an_ecu_is_asked_before_its_subscriber_is_answered(bench: Bench) -> None:
    """The answer says only that the ECU is asked; the ECU has the longer way."""
    ecu = bench.ecu()
    ecu.offer()
    bench.until("sd_found", 1)
    asked: list[EventgroupEntry] = []
    bench.endpoint.register_listener(ANY, OWN, lambda _: asked.append(ecu.expect_subscribe()))
    bench.subscribe_topic()
    wait_until(lambda: len(asked) == 1)


def test_a_nack_is_notified_and_a_reboot_subscribes_again(bench: Bench) -> None:
    ecu = bench.ecu()
    bench.subscribe_topic()
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 0)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.UNSUBSCRIBED)
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)

    ecu.reboot()
    ecu.offer()
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBE_PENDING)
    ecu.send_ack(ecu.expect_subscribe(), 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)
    assert bench.count("sd_reboots") == 1
    bench.endpoint.stop_receiving()
    assert bench.count("sd_reboots") == 1  # also in the final statistics


def test_the_last_unsubscribe_stops_the_event_group(bench: Bench) -> None:
    ecu = bench.ecu()
    bench.subscribe_topic()
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 30)
    bench.next_update()
    answer = bench.call(SERVER.with_resource(2), unsubscribe_request(TOPIC).SerializeToString())
    assert answer.attributes.commstatus is None
    ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and not each.ttl)


# [utest->RPC-814, SD-791]
def test_events_arrive_by_multicast_if_the_ack_has_a_multicast_endpoint(bench: Bench) -> None:
    ecu = bench.ecu()
    bench.subscribe_topic()
    ecu.offer()
    subscribe_entry = ecu.expect_subscribe()
    group = (EVENTS, udp_ports(1)[0])
    ecu.send_ack(subscribe_entry, 30, group)
    bench.next_update()
    ecu.event(b"all", group)
    message = bench.next()
    assert (message.attributes.source, message.payload) == (TOPIC, b"all")
    ecu.offer(ttl=0)
    bench.until("sd_groups_joined", 0)


def test_a_remote_subscriber_is_reported_to_the_router(bench: Bench) -> None:
    changes: list[None] = []
    directory = bench.endpoint.subscription_directory(lambda: changes.append(None))
    assert directory is not None
    cloud = UUri("cloud", 0, 3, 0)
    bench.subscribe_topic(TOPIC, cloud)
    wait_until(lambda: len(changes) == 1)
    assert [each.subscriber for each in directory.subscribers(TOPIC)] == [cloud]


def test_a_request_is_answered_without_any_due_timer(stack: ExitStack) -> None:
    slow = {"initial_delay_min_ms": 0, "initial_delay_max_ms": 0, "repetitions_max": 0}
    slow |= {"cyclic_offer_delay_ms": 60_000, "ttl_offer_s": 100}
    bench = Bench(stack, timings=slow)
    ecu = bench.ecu()
    ecu.send(ServiceEntry(EntryType.FIND, DOORS, 1, 1, 0, 1), to="127.0.0.1")
    # The phases have started; the next Offer is a minute away.
    ecu.expect_entry(lambda each: each.type == EntryType.OFFER)
    assert bench.subscribe_topic() is Status.SUBSCRIBE_PENDING


# --- subscriptions of ECUs --------------------------------------------------------------------------------------------


def test_a_service_is_offered_until_the_close(bench: Bench) -> None:
    ecu = bench.ecu()
    offer = ecu.expect_entry(lambda each: each.type == EntryType.OFFER)
    assert (offer.service, offer.ttl) == (DOORS, 1)
    assert offer.options == (Endpoint(*bench.address), *over(bench.address))
    bench.endpoint.stop_receiving()
    ecu.expect_entry(lambda each: each.type == EntryType.OFFER and not each.ttl)


def test_a_subscribed_ecu_is_a_subscriber_at_the_own_usubscription(bench: Bench) -> None:
    ecu = bench.ecu()
    who = bench.subscribe_ecu(ecu)
    assert who == UUri("chassis", DOORS, 1, 0)
    message = publish(bench.ids.next(), OPEN, b"ajar")
    bench.endpoint.transmitter(who)(message)
    assert ecu.receive().payload == b"ajar"

    ecu.subscribe(ttl=0)
    calls = [bench.next_request(), bench.next_request()]
    bench.endpoint.transmitter(who)(message)  # in flight
    assert ecu.receive().payload == b"ajar"
    for call in calls:
        bench.grant(call)
    bench.until("sd_receivers", 0)
    with pytest.raises(SubscriberEnded):
        bench.endpoint.transmitter(who)(message)


def test_a_batch_of_publications_reaches_only_current_subscribers(bench: Bench) -> None:
    ecu = bench.ecu()
    who = bench.subscribe_ecu(ecu)
    # The initial field values follow the Ack: a value published before them would arrive twice.
    ecu.wait_until_processed()
    transmit_all = bench.endpoint.batch_transmitter(who)
    messages = [
        publish(bench.ids.next(), topic, b"%d" % number) for number in range(3) for topic in (OPEN, LIGHT)
    ]
    assert transmit_all(messages) == 6
    assert [ecu.receive().payload for _ in messages] == [message.payload for message in messages]
    assert bench.count("field_values") == 1

    ecu.subscribe(ttl=0)
    for call in [bench.next_request(), bench.next_request()]:
        bench.grant(call)
    bench.until("sd_receivers", 0)
    assert transmit_all(messages) == 0
    assert bench.endpoint.batch_transmitter(who)(messages) == 0


def test_a_publication_sent_without_a_subscriber_reaches_all_subscribers(bench: Bench) -> None:
    message = publish(bench.ids.next(), OPEN, b"ajar")
    with pytest.raises(UStatusError):
        bench.endpoint.send(message)
    ecu = bench.ecu()
    bench.subscribe_ecu(ecu)
    bench.endpoint.send(message)
    assert ecu.receive().payload == b"ajar"


# [utest->RPC-807]
def test_a_batch_of_events_reaches_no_removed_subscriber(bench: Bench) -> None:
    ecu = bench.ecu()
    who = bench.subscribe_ecu(ecu)
    messages = [publish(bench.ids.next(), OPEN, payload) for payload in (b"1", b"2")]
    assert bench.endpoint.batch_transmitter(who)(messages) == 2
    assert [ecu.receive().payload, ecu.receive().payload] == [b"1", b"2"]
    assert bench.endpoint.batch_transmitter(UUri("chassis", 9 << 16 | DOORS, 1, 0))(messages) == 0


def test_an_event_without_a_sink_ends_its_subscription(bench: Bench) -> None:
    left = UUri("chassis", 7 << 16 | DOORS, 1, 0)
    with pytest.raises(SubscriberEnded):
        bench.endpoint.transmitter(left)(publish(bench.ids.next(), OPEN, b"ajar"))
    call = bench.next_request()
    assert (call.attributes.source, call.attributes.sink) == (left, OWN.with_resource(2))


def test_a_refusal_by_usubscription_is_a_nack(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.subscribe()
    first, second = bench.next_request(), bench.next_request()
    bench.grant(first)
    status = UStatus(UCode.PERMISSION_DENIED, "no")
    bench.endpoint.send(error_response(bench.ids.next(), second, status))
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    back = bench.next_request()
    assert back.attributes.sink == OWN.with_resource(2)


def test_a_new_subscriber_gets_the_last_field_value_after_its_ack(bench: Bench) -> None:
    first, second = bench.ecu(), bench.ecu("127.0.0.8")
    bench.endpoint.transmitter(bench.subscribe_ecu(first))(publish(bench.ids.next(), LIGHT, b"on"))
    bench.subscribe_ecu(second)
    got = second.receive()
    assert (got.method, got.payload) == (0x8002, b"on")


@pytest.mark.parametrize("how", ["ttl", "reboots"])
def test_a_lost_subscriber_is_unsubscribed(bench: Bench, how: str) -> None:
    ecu = bench.ecu()
    bench.subscribe_ecu(ecu, ttl=3 if how == "ttl" else 30)
    if how == "reboots":
        ecu.reboot()
        ecu.send(ServiceEntry(EntryType.FIND, 0x7777, 1, 1, 0, 1), to="127.0.0.1")
    assert {bench.next_request().attributes.sink, bench.next_request().attributes.sink} == {
        OWN.with_resource(2)
    }


# [utest->SD-435]
def test_a_subscriber_without_a_socket_is_unsubscribed_whatever_its_ttl(bench: Bench) -> None:
    gone, other = bench.ecu(), bench.ecu("127.0.0.8")
    left, stays = bench.subscribe_ecu(gone, ttl=TTL_FOREVER), bench.subscribe_ecu(other, ttl=TTL_FOREVER)
    events = [publish(bench.ids.next(), OPEN, b"%d" % number) for number in range(10)]
    gone.data.close()
    for each in events[:5]:
        with suppress(SubscriberEnded):
            bench.endpoint.transmitter(left)(each)
        bench.endpoint.transmitter(stays)(each)

    calls = [bench.next_request(), bench.next_request()]
    assert {(each.attributes.source, each.attributes.sink) for each in calls} == {
        (left, OWN.with_resource(2))
    }
    gone.expect_entry(
        lambda each: each.type == EntryType.ACK and not each.ttl
    )  # its next Subscribe starts again
    with pytest.raises(SubscriberEnded):  # no delivery, although uSubscription has not answered yet
        bench.endpoint.transmitter(left)(events[5])
    for each in events[5:]:
        bench.endpoint.transmitter(stays)(each)
    assert [other.receive().payload for _ in events] == [each.payload for each in events]
    assert bench.count("unreachable") > 0
    bench.until("sd_subscribers", 1)


def test_a_subscriber_that_comes_back_receives_events_again(bench: Bench) -> None:
    ecu = bench.ecu()
    who = bench.subscribe_ecu(ecu, ttl=TTL_FOREVER)
    ecu.data.close()
    bench.endpoint.transmitter(who)(publish(bench.ids.next(), OPEN, b"lost"))
    calls = [bench.next_request(), bench.next_request()]
    ecu.data = ecu.open_socket(bench.stack, ecu.address)
    ecu.subscribe(ttl=TTL_FOREVER)
    for call in calls:
        bench.grant(call)
    for call in (bench.next_request(), bench.next_request()):
        bench.grant(call)
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and each.ttl == TTL_FOREVER)
    bench.endpoint.send(publish(bench.ids.next(), OPEN, b"again"))
    assert ecu.receive().payload == b"again"


def test_the_close_unsubscribes_at_usubscription(bench: Bench) -> None:
    bench.subscribe_ecu(bench.ecu())
    bench.endpoint.stop_receiving()
    calls = [bench.next_request(), bench.next_request()]
    assert {each.attributes.sink for each in calls} == {OWN.with_resource(2)}
    bench.grant(calls[0])  # and the response
    with pytest.raises(Empty):
        bench.received.get_nowait()


def test_the_expiry_requested_from_usubscription_follows_the_ttl(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.subscribe(ttl=3_000)
    subscribe_call = subscribe_in(3, bench.next_request().payload, UPayloadFormat.PROTOBUF)
    assert subscribe_call.expire_ms is not None
    assert abs(subscribe_call.expire_ms - SYSTEM_CLOCK.wall_ms() - 3_000_000) < 10_000


def test_the_queue_of_the_receiving_thread_is_bounded(stack: ExitStack) -> None:
    bench = Bench(stack, opened=False)
    call = request(bench.ids.next(), OWN, SERVER, b"", ttl=1_000)
    for _ in range(MAX_PENDING_MESSAGES):
        bench.endpoint.send(call)
    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(call)
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED


# --- random input -----------------------------------------------------------------------------------------------------


def anything(rng: random.Random, ecu: Ecu, own: Address) -> Entry:
    """A well-formed but arbitrary entry."""
    ids = (rng.choice([SPEED, DOORS, 0x7777]), rng.choice([1, 1, 2, 0xFFFF]), rng.choice([1, 1, 2, 0xFF]))
    hosts = [ecu.address, ecu.address, own, ("127.0.0.9", 1), ("10.9.9.9", 1)]
    options = tuple(
        Endpoint(*rng.choice(hosts), rng.choice([6, 17]))
        if rng.random() < 0.8
        else Endpoint(EVENTS, 1, role=int(EndpointRole.MULTICAST))
        for _ in range(rng.choice([0, 1, 1, 1, 2]))
    )
    ttl = rng.choice([0, 1, 3, 0xFFFFFF])
    kind = rng.choice(list(EntryType))
    if kind in {EntryType.FIND, EntryType.OFFER}:
        return ServiceEntry(kind, *ids, rng.choice([0, 0xFFFF_FFFF]), min(ttl, 1), options)
    group = rng.choice([1, 1, 3, 9])
    return EventgroupEntry(kind, *ids, group, ttl, rng.choice([0, 0, 1]), options=options)


@pytest.mark.parametrize("seed", range(3))
def test_random_input_does_not_disturb_other_ecus(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    rogue = bench.ecu("127.0.0.66")
    bench.subscribe_topic()
    for number in range(600):
        if rng.random() < 0.02:
            rogue.restart_sessions()
        entries = [anything(rng, rogue, bench.address) for _ in range(rng.choice([1, 2, 5]))]
        rogue.send(*entries, to=rng.choice([GROUP, "127.0.0.1"]))
        if number % 20 == 0:
            answer_all(bench, rng)
    ecu = bench.ecu("127.0.0.7")
    ecu.wait_until_processed()
    bench.until("sd_found", 0)  # random Offers have a ttl of at most 1 s
    ecu.offer()
    wait_until(lambda: can_be_called(bench))
    assert ecu.receive().payload == b"?"


def answer_all(bench: Bench, rng: random.Random) -> None:
    """Answer all requests as uSubscription, at random."""
    while not bench.received.empty():
        call = bench.received.get()
        if call.attributes.type is not UMessageType.REQUEST or call.attributes.sink == APP:
            continue
        if call.attributes.sink in {OWN.with_resource(1), OWN.with_resource(2)} and rng.random() < 0.8:
            bench.grant(call)


def can_be_called(bench: Bench) -> bool:
    try:
        bench.endpoint.send(call_of(bench))
    except UStatusError:  # not found, or found by an Offer of the rogue without an address for methods
        return False
    return True


# --- over TCP ---------------------------------------------------------------------------------------------------------

HOT_TOPIC, HOT = UUri("chassis", SPEED, 1, 0x8003), UUri("hpc.vin1", 0x8401, 1, 0x8003)


# [utest->SD-767]
def test_a_tcp_event_group_is_subscribed_with_the_local_end_of_the_connection(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    bench.subscribe_topic(HOT_TOPIC)
    ecu.offer()
    stream = ecu.accept()
    subscribe_entry = ecu.expect_subscribe()
    assert subscribe_entry.options == over(stream.getpeername())
    ecu.send_ack(subscribe_entry, 30)
    assert bench.next_update() == SubscriptionUpdate(HOT_TOPIC, OWN, Status.SUBSCRIBED)
    stream.sendall(event(0x8003, b"hot"))
    assert bench.next().payload == b"hot"

    stream.close()
    assert bench.next_update() == SubscriptionUpdate(HOT_TOPIC, OWN, Status.SUBSCRIBE_PENDING)
    again = ecu.accept()
    subscribe_entry = ecu.expect_entry(
        lambda each: each.type == EntryType.SUBSCRIBE and each.options == over(again.getpeername())
    )
    ecu.send_ack(subscribe_entry, 30)
    assert bench.next_update() == SubscriptionUpdate(HOT_TOPIC, OWN, Status.SUBSCRIBED)


def test_a_group_with_udp_and_tcp_events_names_both_endpoints(bench: Bench) -> None:
    warm, warmer = HOT_TOPIC.with_resource(0x8004), HOT_TOPIC.with_resource(0x8005)
    ecu = bench.ecu()
    ecu.open_tcp_server()
    for topic in (warm, warmer):
        bench.subscribe_topic(topic)
    ecu.offer()
    stream = ecu.accept()
    subscribe_entry = ecu.expect_subscribe()
    assert subscribe_entry.options == (Endpoint("127.0.0.1", bench.port), *over(stream.getpeername()))
    ecu.send_ack(subscribe_entry, 30)
    topics = (warm, warmer)
    assert {bench.next_update() for _ in topics} == {
        SubscriptionUpdate(each, OWN, Status.SUBSCRIBED) for each in topics
    }
    ecu.data.sendto(event(0x8004, b"warm"), ("127.0.0.1", bench.port))
    assert bench.next().payload == b"warm"
    stream.sendall(event(0x8005, b"warmer"))
    assert bench.next().payload == b"warmer"


# [utest->RPC-679, SD-831]
def test_no_connection_is_kept_to_a_stopped_service(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    ecu.offer()
    stream = ecu.accept()
    ecu.offer(ttl=0)
    assert stream.recv(1) == b""


# [utest->SD-788]
def test_a_tcp_event_group_uses_the_connection_of_its_subscribe(bench: Bench) -> None:
    ecu = bench.ecu()
    stream, other = ecu.connect(bench.address), ecu.connect(bench.address)
    bench.until("tcp_open", 2)
    ecu.subscribe_over(stream)
    call = bench.next_request()
    bench.grant(call)
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and each.ttl)
    bench.endpoint.transmitter(call.attributes.source)(publish(bench.ids.next(), HOT, b"hot"))
    [message], _ = split(stream.recv(65_535))
    assert (message.method, message.payload) == (0x8003, b"hot")

    stream.close()
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    assert bench.next_request().attributes.sink == OWN.with_resource(2)
    other.close()


def test_a_subscribe_over_a_missing_connection_gets_a_nack(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.subscribe(group=3)  # names a UDP endpoint, but the event uses TCP
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    with ecu.connect(bench.address) as stream:
        bench.until("tcp_open", 1)
        address = stream.getsockname()
    bench.until("tcp_open", 0)
    ecu.send(EventgroupEntry(EntryType.SUBSCRIBE, DOORS, 1, 1, 3, 3, options=over(address)), to="127.0.0.1")
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    with pytest.raises(Empty):
        bench.received.get_nowait()


# [utest->SD-872]
def test_a_reboot_closes_the_connections_with_its_peer(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    ecu.offer()
    stream = ecu.accept()
    ecu.reboot()
    ecu.offer()
    assert stream.recv(1) == b""
    ecu.accept()


class ControlledMonitor:
    """An InterfaceMonitor whose link state the test sets."""

    def __init__(self, address: str) -> None:
        self._up = True
        self._changed = os.eventfd(0, os.EFD_NONBLOCK)
        ControlledMonitor.last = self

    last: "ControlledMonitor"

    def set_up(self, up: bool) -> None:
        self._up = up
        os.eventfd_write(self._changed, 1)

    def fileno(self) -> int:
        return self._changed

    def drain(self) -> None:
        os.eventfd_read(self._changed)

    def is_up(self) -> bool:
        return self._up

    def close(self) -> None:
        os.close(self._changed)


# [utest->SD-437]
def test_a_lost_link_closes_the_connections_of_its_subscriptions(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sd_driver, "InterfaceMonitor", ControlledMonitor)
    bench = Bench(stack)
    ecu, client = bench.ecu(), bench.ecu("127.0.0.8")
    stream, other = ecu.connect(bench.address), client.connect(bench.address)
    bench.until("tcp_open", 2)
    ecu.subscribe_over(stream)
    bench.grant(bench.next_request())
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and each.ttl)

    ControlledMonitor.last.set_up(False)

    assert stream.recv(1) == b""
    bench.until("sd_subscribers", 0)
    assert bench.count("tcp_open") == 1
    other.close()


def test_sd_datagrams_that_the_kernel_drops_are_counted_also_after_the_close(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_BUFFER", 4_096)
    bench = Bench(stack)
    bench.endpoint.stop_receiving()  # the sockets stay open until the close
    assert bench.endpoint.statistics()["sd_dropped"] == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(100):
            sender.sendto(bytes(64), ("127.0.0.1", bench.sd_port))
    dropped = bench.endpoint.statistics()["sd_dropped"]
    assert 50 < dropped < 100
    bench.endpoint.close()
    assert bench.endpoint.statistics()["sd_dropped"] == dropped


# --- fields of ECUs ---------------------------------------------------------------------------------------------------


# [utest->SD-691]
def test_a_group_is_subscribed_again_until_its_field_has_a_value() -> None:
    limit = TOPIC.with_resource(0x8006)
    with ExitStack() as stack:
        bench = Bench(stack, timings=FAST | {"initial_event_ms": 50})
        ecu = bench.ecu()
        bench.subscribe_topic(limit)
        ecu.offer()
        ecu.send_ack(ecu.expect_subscribe(), 30)
        for _ in range(2):
            ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and not each.ttl)
            ecu.send_ack(ecu.expect_subscribe(), 30)
        ecu.data.sendto(event(0x8006, b"50"), bench.address)
        assert bench.next_update() == SubscriptionUpdate(limit, OWN, Status.SUBSCRIBED)
        wait_until(lambda: bench.endpoint.field_values(limit))
        first, second = (bench.endpoint.field_values(limit)[0].id for _ in range(2))
        assert first != second
        assert first.lsb & REQUEST_ID_BITS == second.lsb & REQUEST_ID_BITS, (
            "an E2E CRC may cover the request id"
        )


# --- silent events ----------------------------------------------------------------------------------------------------


# [itest->SD-439]
def test_an_acknowledged_group_whose_event_falls_silent_is_subscribed_again() -> None:
    cyclic = TOPIC.with_resource(0x8007)
    with ExitStack() as stack:
        bench = Bench(stack, timings=FAST | {"ttl_subscribe_s": 60})
        ecu = bench.ecu()
        bench.subscribe_topic(cyclic)
        ecu.offer()
        ecu.send_ack(ecu.expect_subscribe(), 60)
        assert bench.next_update() == SubscriptionUpdate(cyclic, OWN, Status.SUBSCRIBED)
        sent_ns = time.monotonic_ns()
        ecu.data.sendto(event(0x8007, b"50"), bench.address)
        assert bench.next().payload == b"50"
        ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and not each.ttl)
        assert time.monotonic_ns() - sent_ns >= 300_000_000
        ecu.send_ack(ecu.expect_subscribe(), 60)
        ecu.data.sendto(event(0x8007, b"51"), bench.address)
        assert bench.next().payload == b"51"
        assert bench.count("sd_silent") == 1


# [itest->SD-439]
def test_a_group_without_a_limit_may_be_silent() -> None:
    with ExitStack() as stack:
        bench = Bench(stack, timings=FAST | {"ttl_subscribe_s": 60})
        ecu = bench.ecu()
        for event_id in (0x8001, 0x8007):
            bench.subscribe_topic(TOPIC.with_resource(event_id))
        ecu.offer()
        for _ in range(2):
            ecu.send_ack(ecu.expect_subscribe(), 60)
        for _ in range(2):  # silence of the other group is noticed twice
            again = ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and not each.ttl)
            assert again.eventgroup == 7
            ecu.send_ack(ecu.expect_subscribe(), 60)
