# SPDX-License-Identifier: Apache-2.0
"""Services that are in no table: looked for on demand, within bounds, opposite an ECU made of bytes."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from tests.transports.someip.discovery.test_sd_driver import (
    APP,
    FAST,
    METHOD,
    OWN,
    TOPIC,
    Bench,
    Ecu,
    wait_until,
)
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
IDLE_MS = 1_000


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
    """Have `topic` subscribed, of an ECU that is asked for it."""
    assert bench.subscribe_topic(topic) is Status.SUBSCRIBE_PENDING
    offer(ecu, instance=instance)
    asked = ecu.expect_subscribe()
    assert (asked.service, asked.instance, asked.major) == (LAMPS, instance, 3)
    assert asked.eventgroup == topic.resource_id
    ecu.send_ack(asked, 30)
    assert bench.next_update() == SubscriptionUpdate(topic, OWN, Status.SUBSCRIBED)


def unsubscribe(bench: Bench, topic: UUri) -> None:
    asked = unsubscribe_request(topic).SerializeToString()
    assert bench.call(SERVER.with_resource(2), asked).attributes.commstatus is None


def refusal(bench: Bench, topic: UUri) -> tuple[UCode | None, str]:
    answer = bench.call(SERVER, subscribe_request(SubscribeRequest(topic)).SerializeToString())
    assert answer.attributes.commstatus is not None
    return answer.attributes.commstatus, decode_status(answer.payload).message


def call(bench: Bench, method: UUri = SWITCH) -> None:
    bench.endpoint.send(request(bench.ids.next(), APP, method, b"on?", ttl=1_000))


# --- subscribing --------------------------------------------------------------------------------------------------------


def test_nothing_is_looked_for_that_is_not_listed_unless_the_configuration_says_so(stack: ExitStack) -> None:
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


def test_events_that_nobody_subscribed_do_not_come_in(bench: Bench) -> None:
    ecu = bench.ecu()
    subscribed(bench, ecu)
    ecu.data.sendto(event(HIGH, b"high"), bench.address)
    bench.until("refused_event_unknown", 1)
    assert (
        bench.subscribe_topic(HIGH) is Status.SUBSCRIBE_PENDING
    )  # the service is there, so it is subscribed at once
    ecu.send_ack(
        ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.eventgroup == 0x8006), 3
    )
    assert bench.next_update() == SubscriptionUpdate(HIGH, OWN, Status.SUBSCRIBED)
    for topic in (HIGH, BEAM):
        ecu.data.sendto(event(topic, b"x"), bench.address)
        assert bench.next().attributes.source == topic


def test_the_last_unsubscribe_ends_it_and_the_service_is_let_go(bench: Bench) -> None:
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
    subscribed(bench, ecu)  # and again


def test_instances_are_services_of_their_own_told_apart_by_port(bench: Bench) -> None:
    ecu = bench.ecu()
    subscribed(bench, ecu)
    assert bench.subscribe_topic(SECOND) is Status.SUBSCRIBE_PENDING
    find(ecu, 2)
    twin = ecu._socket(bench.stack, (ecu.host, 0))
    offer(ecu, at=twin.getsockname(), instance=2)
    ecu.send_ack(ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.instance == 2), 3)
    assert bench.next_update() == SubscriptionUpdate(SECOND, OWN, Status.SUBSCRIBED)
    for sender, topic in ((ecu.data, BEAM), (twin, SECOND)):
        sender.sendto(event(topic, b"x"), bench.address)
        assert bench.next().attributes.source == topic


def test_another_version_is_another_service(bench: Bench) -> None:
    ecu = bench.ecu()
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING
    offer(ecu, major=4)
    bench.until("sd_unwanted_offers", 1)
    assert bench.count("sd_found") == 0


def test_a_nack_and_a_lost_offer_are_told(bench: Bench) -> None:
    ecu = bench.ecu()
    subscribed(bench, ecu)
    offer(ecu, ttl=0)
    assert bench.next_update() == SubscriptionUpdate(BEAM, OWN, Status.SUBSCRIBE_PENDING)
    ecu.data.sendto(event(BEAM, b"gone"), bench.address)
    bench.until("refused_event_unknown", 1)
    offer(ecu)
    ecu.send_ack(ecu.expect_subscribe(), 0)
    told = bench.next_update()
    assert told == SubscriptionUpdate(BEAM, OWN, Status.UNSUBSCRIBED)


def test_a_service_that_is_offered_over_tcp_alone_is_subscribed_and_called_over_it(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    assert ecu.tcp_server is not None
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING
    offer(ecu, stream=ecu.tcp_server.getsockname())
    stream = ecu.accept()
    asked = ecu.expect_subscribe()
    assert [each.protocol for each in asked.options if isinstance(each, Endpoint)] == [int(L4Protocol.TCP)]
    ecu.send_ack(asked, 30)
    assert bench.next_update() == SubscriptionUpdate(
        BEAM, OWN, Status.SUBSCRIBED
    )  # and nothing was told before
    stream.sendall(event(BEAM, b"by tcp"))
    assert bench.next().payload == b"by tcp"
    call(bench)
    [message], _ = split(stream.recv(65_535))
    assert (message.method, message.payload) == (7, b"on?")
    assert bench.subscribe_topic(HIGH) is Status.SUBSCRIBE_PENDING
    again = ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.eventgroup == 0x8006)
    assert [each.protocol for each in again.options if isinstance(each, Endpoint)] == [int(L4Protocol.TCP)]


# --- calling ------------------------------------------------------------------------------------------------------------


def test_any_method_is_called_when_the_service_is_there(stack: ExitStack) -> None:
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


def test_a_service_that_is_called_no_more_is_let_go_and_found_again(bench: Bench) -> None:
    ecu = bench.ecu()
    for _ in range(2):
        with pytest.raises(RouteUnavailable):
            call(bench)
        find(ecu)
        offer(ecu)
        bench.until("sd_found", 1)
        bench.until("sd_found", 0)
        assert bench.count("sd_dynamic_services") == 0


def test_a_call_wakes_who_looks_for_it_and_so_does_the_end_of_its_idle_time(stack: ExitStack) -> None:
    quiet = FAST | {"repetitions_max": 0, "cyclic_offer_delay_ms": 60_000, "ttl_offer_s": 100}
    bench = Bench(stack, opened=False, dynamic_services={"idle_ms": IDLE_MS}, timings=quiet)
    ecu = bench.ecu()
    bench.endpoint.open()
    ecu.expect_entry(lambda each: each.type == EntryType.OFFER)
    ecu.wait_until_processed()  # from here on nothing else wakes it
    with pytest.raises(RouteUnavailable):
        call(bench)
    find(ecu)
    bench.until("sd_dynamic_services", 0)


def test_a_listed_service_is_called_as_its_table_says(bench: Bench) -> None:
    ecu = bench.ecu()
    with pytest.raises(RouteUnavailable):
        call(bench, METHOD)
    ecu.offer()
    bench.until("sd_found", 1)
    call(bench, METHOD)
    assert ecu.receive().payload == b"on?"
    with pytest.raises(UStatusError) as unknown:
        call(bench, METHOD.with_resource(9))
    assert unknown.value.code is UCode.UNIMPLEMENTED
    assert bench.count("sd_dynamic_services") == 0


def test_calls_keep_a_service_and_so_does_a_subscription() -> None:
    clock = ManualClock()
    unlisted = DynamicServices(
        "chassis", DynamicServicesConfig(idle_ms=1_000), (), clock.clock().monotonic_ns, lambda: None
    )
    unlisted.request_for_method(SWITCH)
    assert [each.service for each in unlisted.pop_changes().wanted] == [LAMPS]
    clock.advance(ms=900)
    unlisted.request_for_method(SWITCH)
    clock.advance(ms=900)
    assert unlisted.pop_changes() == ([], [])
    unlisted.request_for_topic(BEAM)
    clock.advance(ms=5_000)
    [service] = unlisted.pop_changes().wanted
    assert [each.id for each in service.events] == [0x8005]
    assert unlisted.next_deadline_ns is None
    unlisted.release_topic(BEAM)
    [service] = unlisted.pop_changes().wanted
    assert service.events == ()
    clock.advance(ms=999)
    assert unlisted.pop_changes() == ([], [])
    clock.advance(ms=1)
    assert unlisted.pop_changes() == ([], [KEY])


# --- whom to believe, and how much --------------------------------------------------------------------------------------


def test_offers_from_elsewhere_and_of_a_second_ecu_are_refused(stack: ExitStack) -> None:
    bench = Bench(stack, dynamic_services=True, networks=["127.0.0.7/32", "127.0.0.8/32"])
    stranger, ecu, thief = (bench.ecu(f"127.0.0.{number}") for number in (9, 7, 8))
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING
    offer(stranger)
    bench.until("refused_sd_network", 1)
    subscribed(bench, ecu)
    offer(thief)
    bench.until("refused_sd_offer_foreign", 1)
    offer(ecu, at=("127.0.0.8", 9))
    bench.until("refused_sd_offer_changed", 1)
    call(bench)
    assert ecu.receive().payload == b"on?"


def test_no_more_services_are_wanted_than_may_be(stack: ExitStack) -> None:
    bench = Bench(stack, dynamic_services={"services": 3, "idle_ms": 3_000})
    for service in range(0x7001, 0x7004):
        with pytest.raises(RouteUnavailable):
            call(bench, UUri("chassis", service, 1, 1))
    with pytest.raises(UStatusError, match="3 dynamic services are wanted") as full:
        call(bench)
    assert full.value.code is UCode.RESOURCE_EXHAUSTED
    assert refusal(bench, BEAM)[0] is UCode.RESOURCE_EXHAUSTED
    assert bench.count("sd_dynamic_services_refused") == 2
    assert bench.subscribe_topic(TOPIC) is Status.SUBSCRIBE_PENDING  # a listed one has its place
    bench.until("sd_dynamic_services", 0)
    assert bench.subscribe_topic(BEAM) is Status.SUBSCRIBE_PENDING


def test_no_more_topics_are_wanted_than_may_be(bench: Bench) -> None:
    topics = [BEAM.with_resource(0x8001 + number) for number in range(5)]
    for topic in topics[:4]:
        assert bench.subscribe_topic(topic) is Status.SUBSCRIBE_PENDING
    assert refusal(bench, topics[4])[0] is UCode.RESOURCE_EXHAUSTED
    unsubscribe(bench, topics[0])
    assert bench.subscribe_topic(topics[4]) is Status.SUBSCRIBE_PENDING
    assert bench.count("sd_topics") == 4


def test_coming_and_going_makes_no_more_finds(stack: ExitStack) -> None:
    bench = Bench(stack, dynamic_services={"idle_ms": 2_000})
    ecu = bench.ecu()
    subscribed(bench, ecu)
    ecu.wait_until_processed()
    ecu.discard_received()  # a Find may have been on its way while the first Offer was
    finds: list[ServiceEntry] = []

    def is_subscribe(entry: Any) -> bool:
        if entry.type == EntryType.FIND and entry.service == LAMPS:
            finds.append(entry)
        return bool(entry.type == EntryType.SUBSCRIBE and entry.ttl)

    for _ in range(20):
        unsubscribe(bench, BEAM)
        bench.subscribe_topic(BEAM)
        ecu.expect_entry(is_subscribe)
    unsubscribe(bench, BEAM)
    bench.until("sd_dynamic_services", 0)
    bench.subscribe_topic(BEAM)
    find(ecu)  # but for this
    assert finds == []


@pytest.mark.parametrize(
    ("topic", "code", "why"),
    [
        (UUri("chassis", 1 << 16 | LAMPS, 3, 0x8005), UCode.INVALID_ARGUMENT, "instance 1 is written as 0"),
        (UUri("chassis", 2 << 16, 3, 0x8005), UCode.INVALID_ARGUMENT, "a service id"),
        (UUri("chassis", LAMPS, 0xFF, 0x8005), UCode.INVALID_ARGUMENT, "version"),
        (UUri("chassis", 0xFFFF << 16 | LAMPS, 3, 0x8005), UCode.NOT_FOUND, "no such event"),
        (UUri("chassis", LAMPS, 3, 7), UCode.INVALID_ARGUMENT, "an event"),
        (TOPIC.with_resource(0x8009), UCode.NOT_FOUND, "its service is configured"),
        (UUri("chassis", 0x4001, 1, 0x8001), UCode.NOT_FOUND, "its service is configured"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(bench: Bench, topic: UUri, code: UCode, why: str) -> None:
    said, text = refusal(bench, topic)
    assert said is code
    assert why in text
    assert (bench.count("sd_dynamic_services"), bench.count("sd_topics")) == (0, 0)


def test_a_method_of_any_number_is_at_the_one_address() -> None:
    methods = AnyMethod(("10.0.0.2", 30501))
    assert methods[0x7FFF] == methods[1] == ("10.0.0.2", 30501)
    assert 0 not in methods
    assert 0x8000 not in methods
    assert len(methods) == len(list(methods)) == 0x7FFF


@pytest.mark.parametrize("wrong", [{"services": 0}, {"idle_ms": 1}, {"topics": 0}, {"finds": 1}])
def test_a_bound_that_is_none_is_refused(stack: ExitStack, wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        Bench(stack, dynamic_services=wrong)
