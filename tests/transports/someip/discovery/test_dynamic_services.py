# SPDX-License-Identifier: Apache-2.0
"""Dynamic services: found on demand, within limits, with an ECU at byte level."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from tests.transports.someip.discovery.sd_bench import APP, FAST, METHOD, OWN, TOPIC, Bench, Ecu
from tests.waiting import wait_until
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscribeRequest,
    SubscriptionUpdate,
    subscribe_request,
    unsubscribe_request,
)
from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.discovery.dynamic_services import AnyMethod, DynamicServices
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, encode, split
from ustreamer.transports.someip.sd.codec import EntryType, ServiceEntry
from ustreamer.transports.someip.sd.config import DynamicServicesConfig
from ustreamer.transports.someip.sd.options import Endpoint, L4Protocol, Option
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

LAMPS = 0x2222
BEAM = UUri("chassis", LAMPS, 3, 0x8005)
HIGH = UUri("chassis", LAMPS, 3, 0x8006)
SECOND = UUri("chassis", 2 << 16 | LAMPS, 3, 0x8005)
SWITCH = UUri("chassis", LAMPS, 3, 7)
KEY = ServiceKey(LAMPS, 1, 3)
SERVER = UUri("chassis", 0, 3, 1)
IDLE_MS = 500


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


@pytest.fixture
def bench(stack: ExitStack) -> Bench:
    return Bench(stack, dynamic_services={"services": 3, "topics": 4, "idle_ms": IDLE_MS})


def offer(
    ecu: Ecu,
    *,
    at: Address | None = None,
    stream: Address | None = None,
    instance: int = 1,
    major: int = 3,
    ttl: int = 30,
) -> None:
    where: list[Option] = [] if at is None and stream is not None else [Endpoint(*(at or ecu.address))]
    where += [] if stream is None else [Endpoint(*stream, int(L4Protocol.TCP))]
    ecu.send(ServiceEntry(EntryType.OFFER, LAMPS, instance, major, 0, ttl, tuple(where)))


def event(topic: UUri, payload: bytes) -> bytes:
    return encode(
        SomeIpMessage(
            service=topic.ue_type,
            method=topic.resource_id,
            client=0,
            session=1,
            interface_version=topic.ue_version_major,
            message_type=int(MessageType.NOTIFICATION),
            return_code=0,
            payload=payload,
        )
    )


def find(ecu: Ecu, instance: int = 1) -> ServiceEntry:
    found = ecu.expect_entry(
        lambda each: each.type == EntryType.FIND and (each.service, each.instance) == (LAMPS, instance)
    )
    assert isinstance(found, ServiceEntry)
    assert found.major == 3
    return found


def subscribed(bench: Bench, ecu: Ecu, topic: UUri = BEAM, *, instance: int = 1) -> None:
    """Subscribe to `topic`, and let the ECU acknowledge."""
    assert bench.subscribe_topic(topic) is Status.SUBSCRIBE_PENDING
    offer(ecu, instance=instance)
    subscribe_entry = ecu.expect_subscribe()
    assert (subscribe_entry.service, subscribe_entry.instance, subscribe_entry.major) == (LAMPS, instance, 3)
    assert subscribe_entry.eventgroup == topic.resource_id
    ecu.send_ack(subscribe_entry, 30)
    assert bench.next_update() == SubscriptionUpdate(topic, OWN, Status.SUBSCRIBED)


def unsubscribe(bench: Bench, topic: UUri) -> None:
    subscribe_entry = unsubscribe_request(topic).SerializeToString()
    assert bench.call(SERVER.with_resource(2), subscribe_entry).attributes.commstatus is None


def refusal(bench: Bench, topic: UUri) -> tuple[UCode | None, str]:
    answer = bench.call(SERVER, subscribe_request(SubscribeRequest(topic)).SerializeToString())
    assert answer.attributes.commstatus is not None
    return answer.attributes.commstatus, decode_status(answer.payload).message


def call(bench: Bench, method: UUri = SWITCH) -> None:
    bench.endpoint.send(request(bench.ids.next(), APP, method, b"on?", ttl=1_000))


# --- subscribing ------------------------------------------------------------------------------------------------------


def test_without_dynamic_services_only_configured_ones_are_requested(stack: ExitStack) -> None:
    bench = Bench(stack)
    assert refusal(bench, BEAM)[0] is UCode.NOT_FOUND
    with pytest.raises(UStatusError, match="no such service is configured") as refused:
        call(bench)
    assert refused.value.code is UCode.NOT_FOUND


def test_a_topic_is_subscribed_in_the_event_group_of_its_own_number(bench: Bench) -> None:
    ecu, other = bench.ecu(), bench.ecu("127.0.0.8")
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING
    find(ecu)
    subscribed(bench, ecu)
    other.data.sendto(event(BEAM, b"forged"), bench.address)
    bench.until("refused_event_unknown", 1)
    ecu.data.sendto(event(BEAM, b"lit"), bench.address)
    message = bench.next()
    assert (message.attributes.source, message.payload) == (BEAM, b"lit")


def test_unsubscribed_events_are_refused(bench: Bench) -> None:
    ecu = bench.ecu()
    subscribed(bench, ecu)
    ecu.data.sendto(event(HIGH, b"high"), bench.address)
    bench.until("refused_event_unknown", 1)
    # The service is known: subscribed immediately.
    assert bench.subscribe_topic(HIGH) is Status.SUBSCRIBE_PENDING
    ecu.send_ack(
        ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.eventgroup == 0x8006), 3
    )
    assert bench.next_update() == SubscriptionUpdate(HIGH, OWN, Status.SUBSCRIBED)
    for topic in (HIGH, BEAM):
        ecu.data.sendto(event(topic, b"x"), bench.address)
        assert bench.next().attributes.source == topic


# [utest->SD-18]
def test_the_last_unsubscribe_releases_the_service(bench: Bench) -> None:
    ecu = bench.ecu()
    wanted = bench.count("sd_wanted")
    subscribed(bench, ecu)
    assert (bench.count("sd_dynamic_services"), bench.count("sd_wanted")) == (1, wanted + 1)
    unsubscribe(bench, BEAM)
    ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.ttl == 0)
    ecu.data.sendto(event(BEAM, b"late"), bench.address)
    bench.until("refused_event_unknown", 1)
    bench.until("sd_dynamic_services", 0)
    assert (bench.count("sd_wanted"), bench.count("sd_found"), bench.count("sd_topics")) == (wanted, 0, 0)
    subscribed(bench, ecu)  # a second time


def test_instances_are_separate_services_distinguished_by_port(bench: Bench) -> None:
    ecu = bench.ecu()
    subscribed(bench, ecu)
    assert bench.subscribe_topic(SECOND) is Status.SUBSCRIBE_PENDING
    find(ecu, 2)
    twin = ecu.open_socket(bench.stack, (ecu.host, 0))
    offer(ecu, at=twin.getsockname(), instance=2)
    ecu.send_ack(ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.instance == 2), 3)
    assert bench.next_update() == SubscriptionUpdate(SECOND, OWN, Status.SUBSCRIBED)
    for sender, topic in ((ecu.data, BEAM), (twin, SECOND)):
        sender.sendto(event(topic, b"x"), bench.address)
        assert bench.next().attributes.source == topic


# [utest->COMPAT-714, COMPAT-802, COMPAT-804]
def test_another_version_is_another_service(bench: Bench) -> None:
    ecu = bench.ecu()
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING
    offer(ecu, major=4)
    bench.until("sd_unwanted_offers", 1)
    assert bench.count("sd_found") == 0


def test_a_nack_and_a_lost_offer_are_notified(bench: Bench) -> None:
    ecu = bench.ecu()
    subscribed(bench, ecu)
    offer(ecu, ttl=0)
    assert bench.next_update() == SubscriptionUpdate(BEAM, OWN, Status.SUBSCRIBE_PENDING)
    ecu.data.sendto(event(BEAM, b"gone"), bench.address)
    bench.until("refused_event_unknown", 1)
    offer(ecu)
    ecu.send_ack(ecu.expect_subscribe(), 0)
    update = bench.next_update()
    assert update == SubscriptionUpdate(BEAM, OWN, Status.UNSUBSCRIBED)


def test_a_tcp_only_service_is_subscribed_and_called_over_tcp(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    assert ecu.tcp_server is not None
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING
    offer(ecu, stream=ecu.tcp_server.getsockname())
    stream = ecu.accept()
    subscribe_entry = ecu.expect_subscribe()
    assert [each.protocol for each in subscribe_entry.options if isinstance(each, Endpoint)] == [
        int(L4Protocol.TCP)
    ]
    ecu.send_ack(subscribe_entry, 30)
    # The first update: no earlier state was notified.
    assert bench.next_update() == SubscriptionUpdate(BEAM, OWN, Status.SUBSCRIBED)
    stream.sendall(event(BEAM, b"by tcp"))
    assert bench.next().payload == b"by tcp"
    call(bench)
    [message], _ = split(stream.recv(65_535))
    assert (message.method, message.payload) == (7, b"on?")
    assert bench.subscribe_topic(HIGH) is Status.SUBSCRIBE_PENDING
    again = ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.eventgroup == 0x8006)
    assert [each.protocol for each in again.options if isinstance(each, Endpoint)] == [int(L4Protocol.TCP)]


# --- calling ----------------------------------------------------------------------------------------------------------


def test_any_method_of_a_located_service_can_be_called(stack: ExitStack) -> None:
    bench = Bench(stack, dynamic_services=True)
    ecu = bench.ecu()
    with pytest.raises(RouteUnavailable, match="not offered at present") as away:
        call(bench)
    find(ecu)
    offer(ecu)
    wait_until(lambda: bench.routes == [away.value.route])
    call(bench)
    message = ecu.receive()
    assert (message.service, message.method, message.interface_version) == (LAMPS, 7, 3)
    assert message.payload == b"on?"


def test_an_idle_service_is_released_and_found_again(bench: Bench) -> None:
    ecu = bench.ecu()
    for _ in range(2):
        with pytest.raises(RouteUnavailable):
            call(bench)
        find(ecu)
        wait_until(lambda: offered_and_called(bench, ecu))
        bench.until("sd_found", 0)
        bench.until("sd_dynamic_services", 0)


def offered_and_called(bench: Bench, ecu: Ecu) -> bool:
    """Offer the service and call it; repeated where this thread was late, and the service was released again."""
    offer(ecu)
    try:
        call(bench)
    except RouteUnavailable:
        return False
    return True


def test_a_call_and_the_end_of_its_idle_time_wake_the_receiving_thread(stack: ExitStack) -> None:
    quiet = FAST | {"repetitions_max": 0, "cyclic_offer_delay_ms": 60_000, "ttl_offer_s": 100}
    bench = Bench(stack, opened=False, dynamic_services={"idle_ms": IDLE_MS}, timings=quiet)
    ecu = bench.ecu()
    bench.endpoint.open()
    ecu.expect_entry(lambda each: each.type == EntryType.OFFER)
    ecu.wait_until_processed()  # nothing else wakes the thread from here on
    with pytest.raises(RouteUnavailable):
        call(bench)
    find(ecu)
    bench.until("sd_dynamic_services", 0)


def test_a_configured_service_is_called_by_its_configuration(bench: Bench) -> None:
    ecu = bench.ecu()
    with pytest.raises(RouteUnavailable):
        call(bench, METHOD)
    ecu.offer()
    bench.send_when_found(request(bench.ids.next(), APP, METHOD, b"on?", ttl=1_000))
    assert ecu.receive().payload == b"on?"
    with pytest.raises(UStatusError) as unknown:
        call(bench, METHOD.with_resource(9))
    assert unknown.value.code is UCode.UNIMPLEMENTED
    assert bench.count("sd_dynamic_services") == 0


def test_calls_and_subscriptions_keep_a_service_requested() -> None:
    clock = ManualClock()
    dynamic = DynamicServices(
        "chassis", DynamicServicesConfig(idle_ms=1_000), (), clock.clock().monotonic_ns, lambda: None
    )
    dynamic.request_for_method(SWITCH)
    assert [each.service for each in dynamic.pop_changes().wanted] == [LAMPS]
    clock.advance(ms=900)
    dynamic.request_for_method(SWITCH)
    clock.advance(ms=900)
    assert dynamic.pop_changes() == ([], [])
    dynamic.request_for_topic(BEAM)
    clock.advance(ms=5_000)
    [service] = dynamic.pop_changes().wanted
    assert [each.id for each in service.events] == [0x8005]
    assert dynamic.next_deadline_ns is None
    dynamic.release_topic(BEAM)
    [service] = dynamic.pop_changes().wanted
    assert service.events == ()
    clock.advance(ms=999)
    assert dynamic.pop_changes() == ([], [])
    clock.advance(ms=1)
    assert dynamic.pop_changes() == ([], [KEY])


# --- trust and limits -------------------------------------------------------------------------------------------------


def test_offers_of_untrusted_networks_and_of_a_second_ecu_are_refused(stack: ExitStack) -> None:
    bench = Bench(stack, dynamic_services=True, networks=["127.0.0.7/32", "127.0.0.8/32"])
    untrusted, ecu, thief = (bench.ecu(f"127.0.0.{number}") for number in (9, 7, 8))
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING
    offer(untrusted)
    bench.until("refused_sd_network", 1)
    subscribed(bench, ecu)
    offer(thief)
    bench.until("refused_sd_offer_foreign", 1)
    offer(ecu, at=("127.0.0.8", 9))
    bench.until("refused_sd_offer_changed", 1)
    call(bench)
    assert ecu.receive().payload == b"on?"


def test_the_number_of_requested_services_is_limited(stack: ExitStack) -> None:
    bench = Bench(stack, dynamic_services={"services": 3, "idle_ms": 1_500})
    for service in range(0x7001, 0x7004):
        with pytest.raises(RouteUnavailable):
            call(bench, UUri("chassis", service, 1, 1))
    with pytest.raises(UStatusError, match="3 dynamic services are wanted") as full:
        call(bench)
    assert full.value.code is UCode.RESOURCE_EXHAUSTED
    assert refusal(bench, BEAM)[0] is UCode.RESOURCE_EXHAUSTED
    assert bench.count("sd_dynamic_services_refused") == 2
    assert bench.subscribe_topic(TOPIC) is Status.SUBSCRIBE_PENDING  # configured services do not count
    bench.until("sd_dynamic_services", 0)
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING


def test_the_number_of_subscribed_topics_is_limited(bench: Bench) -> None:
    topics = [BEAM.with_resource(0x8001 + number) for number in range(5)]
    for topic in topics[:4]:
        assert bench.subscribe_topic(topic) is Status.SUBSCRIBE_PENDING
    assert refusal(bench, topics[4])[0] is UCode.RESOURCE_EXHAUSTED
    unsubscribe(bench, topics[0])
    assert bench.subscribe_topic(topics[4]) is Status.SUBSCRIBE_PENDING
    assert bench.count("sd_topics") == 4


def test_repeated_subscriptions_cause_no_further_finds(stack: ExitStack) -> None:
    bench = Bench(stack, dynamic_services={"idle_ms": 1_000})
    ecu = bench.ecu()
    subscribed(bench, ecu)
    ecu.wait_until_processed()
    ecu.discard_received()  # a Find may have crossed the first Offer
    finds: list[ServiceEntry] = []

    def is_subscribe(entry: Any) -> bool:
        if entry.type == EntryType.FIND and entry.service == LAMPS:
            finds.append(entry)
        return bool(entry.type == EntryType.SUBSCRIBE and entry.ttl)

    for _ in range(6):
        unsubscribe(bench, BEAM)
        bench.subscribe_topic(BEAM)
        ecu.expect_entry(is_subscribe)
    unsubscribe(bench, BEAM)
    bench.until("sd_dynamic_services", 0)
    bench.subscribe_topic(BEAM)
    find(ecu)  # the only one
    assert finds == []


@pytest.mark.parametrize(
    ("topic", "code", "why"),
    [
        (UUri("chassis", 1 << 16 | LAMPS, 3, 0x8005), UCode.INVALID_ARGUMENT, "instance 1 is written as 0"),
        (UUri("chassis", 2 << 16, 3, 0x8005), UCode.INVALID_ARGUMENT, "a service id"),
        (UUri("chassis", LAMPS, 0xFF, 0x8005), UCode.INVALID_ARGUMENT, "the version is a wildcard"),
        (UUri("chassis", 0xFFFF << 16 | LAMPS, 3, 0x8005), UCode.NOT_FOUND, "no such event"),
        (UUri("chassis", LAMPS, 3, 7), UCode.INVALID_ARGUMENT, "an event"),
        (TOPIC.with_resource(0x8009), UCode.NOT_FOUND, "its service is configured"),
        (UUri("chassis", 0x4001, 1, 0x8001), UCode.NOT_FOUND, "its service is configured"),
    ],
)
def test_an_invalid_topic_is_refused(bench: Bench, topic: UUri, code: UCode, why: str) -> None:
    refused_code, text = refusal(bench, topic)
    assert refused_code is code
    assert why in text
    assert (bench.count("sd_dynamic_services"), bench.count("sd_topics")) == (0, 0)


def test_every_method_number_maps_to_one_address() -> None:
    methods = AnyMethod(("10.0.0.2", 30501))
    assert methods[0x7FFF] == methods[1] == ("10.0.0.2", 30501)
    assert 0 not in methods
    assert 0x8000 not in methods
    assert len(methods) == len(list(methods)) == 0x7FFF


@pytest.mark.parametrize("wrong", [{"services": 0}, {"idle_ms": 1}, {"topics": 0}, {"finds": 1}])
def test_an_invalid_limit_is_refused(stack: ExitStack, wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        Bench(stack, dynamic_services=wrong)
