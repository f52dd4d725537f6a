# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP endpoint on real sockets, opposite independent peers: handwritten bytes and the library someip."""

import dataclasses
import errno
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from someip.header import SOMEIPHeader, SOMEIPMessageType, SOMEIPReturnCode

from tests.transports.someip.endpoint_rig import (
    APP,
    BAD,
    DOOR,
    ERROR,
    EVENT,
    METHOD,
    OPEN_DOOR,
    REQUEST,
    RESPONSE,
    TOPIC,
    WINDOW,
    WITHIN_S,
    Bench,
    BlockingListener,
    ReceivedMessages,
)
from tests.waiting import wait_until
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.endpoint import outbound
from ustreamer.transports.someip.endpoint.inbound import PEER_STREAMER
from ustreamer.transports.someip.protocol.codec import MalformedReason, MessageType, SomeIpMessage
from ustreamer.transports.someip.protocol.mapping import MAX_PAYLOAD, SomeipRefusal
from ustreamer.transports.someip.protocol.tcp_config import TcpReason
from ustreamer.transports.someip.protocol.tp import TpReason
from ustreamer.transports.someip.protocol.tp_segmenter import split_into_segments
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode_status

MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:

        def make(**keys: Any) -> Bench:
            bench = Bench(stack, **keys)
            bench.endpoint.open()
            return bench

        yield make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


# --- events in --------------------------------------------------------------------------------------------------------


# [utest->RPC-47]
def test_an_event_becomes_a_publication(bench: Bench) -> None:
    bench.ecu.send(bench.endpoint, EVENT)
    message = bench.listener.next()

    message.check(strict=True)
    assert message.payload == b"hello"
    assert message.attributes == UAttributes(type=UMessageType.PUBLISH, source=TOPIC, priority=UPriority.CS1)
    assert abs(message.id.time_ms - SYSTEM_CLOCK.wall_ms()) < 5_000


def test_an_event_of_the_library_someip_is_decoded(bench: Bench) -> None:
    theirs = SOMEIPHeader(
        service_id=0x10AB,
        method_id=0x80CD,
        client_id=0,
        session_id=7,
        interface_version=3,
        message_type=SOMEIPMessageType.NOTIFICATION,
        payload=b"theirs",
    )
    bench.ecu.send(bench.endpoint, theirs.build())

    assert bench.listener.next().payload == b"theirs"


def test_several_messages_in_one_datagram_are_delivered_in_order(bench: Bench) -> None:
    bench.ecu.send(bench.endpoint, b"".join(EVENT[:-1] + bytes([digit]) for digit in b"123"))

    assert [bench.listener.next().payload for _ in range(3)] == [b"hell1", b"hell2", b"hell3"]


def test_events_are_delivered_in_the_order_of_sending(bench: Bench) -> None:
    sent = [EVENT[:-2] + number.to_bytes(2) for number in range(1_000)]
    for start in range(0, len(sent), 100):  # no more at once than a socket buffer holds
        bench.ecu.send(bench.endpoint, *sent[start : start + 100])
        received = [bench.listener.next().payload for _ in range(100)]
        assert received == [each[16:] for each in sent[start : start + 100]]


def test_accumulated_events_are_delivered_as_a_batch_in_order(bench: Bench) -> None:
    held = BlockingListener()
    another = bench.another(bench.config())
    another.register_listener(ANY, None, held)
    another.open()
    events = [EVENT[:-1] + bytes([digit]) for digit in b"123456789"]
    rounds, until = 0, time.monotonic() + WITHIN_S
    while (
        not held.batches
    ):  # a thread that is delayed between two reads takes that for a pause, and reads one
        assert time.monotonic() < until
        held.entered.clear()
        held.go.clear()
        bench.ecu.send(another, events[0])
        assert held.entered.wait(WITHIN_S)
        bench.ecu.send(another, *events[1:4], events[4] + events[5], *events[6:])
        held.go.set()
        assert [held.next().payload for _ in range(9)] == [each[16:] for each in events]
        rounds += 1
    assert max(held.batches) > 1
    assert another.statistics()["received"] == 9 * rounds


@pytest.mark.parametrize(("datagram", "reason"), BAD.values(), ids=BAD)
def test_an_invalid_datagram_is_counted_and_the_next_one_processed(
    bench: Bench, datagram: bytes, reason: str
) -> None:
    bench.ecu.send(bench.endpoint, datagram, EVENT)

    assert bench.listener.next().payload == b"hello"
    assert bench.listener.is_quiet()
    refused = {
        name: n for name, n in bench.endpoint.statistics().items() if name.startswith("refused_") and n
    }
    assert refused == {f"refused_{reason}": 1}


def test_an_event_in_segments_in_any_order_arrives_complete(bench: Bench) -> None:
    large = bytes(range(256)) * 100
    event = SomeIpMessage(0x10AB, 0x80CD, 0, 1, 3, MessageType.NOTIFICATION, 0, large)
    bench.ecu.send(bench.endpoint, *reversed(list(split_into_segments(event))))

    assert bench.listener.next().payload == large
    assert bench.count("tp_completed") == 1
    assert bench.count("tp_open") == 0


def test_an_event_with_missing_segments_is_abandoned_and_counted(make_bench: MakeBench) -> None:
    bench = make_bench(tp={"timeout_ms": 50})
    event = SomeIpMessage(0x10AB, 0x80CD, 0, 1, 3, MessageType.NOTIFICATION, 0, bytes(5_000))
    bench.ecu.send(bench.endpoint, *list(split_into_segments(event))[:2])

    wait_until(lambda: bench.count("refused_tp_timeout") == 1)
    assert bench.count("tp_bytes") == 0


# [utest->COMPAT-1201]
def test_valid_messages_around_an_invalid_one_are_delivered(bench: Bench) -> None:
    bench.ecu.send(bench.endpoint, EVENT + EVENT[:14] + b"\x55" + EVENT[15:] + EVENT + b"trailing")

    assert [bench.listener.next().payload for _ in range(2)] == [b"hello", b"hello"]
    wait_until(lambda: bench.count("refused_trailing_bytes") == 1)
    assert bench.count("refused_unknown_message_type") == 1


@pytest.mark.parametrize("refused", [EVENT[:14] + b"\x55" + EVENT[15:], b"\x10\xab\x80\xce" + EVENT[4:]])
def test_a_datagram_is_read_up_to_its_128th_refused_message(bench: Bench, refused: bytes) -> None:
    bench.ecu.send(bench.endpoint, EVENT + refused * 2_000 + EVENT, EVENT[:-1] + b"!")

    assert [bench.listener.next().payload for _ in range(2)] == [b"hello", b"hell!"]
    assert bench.count("refused_refusal_limit") == 1
    counted = bench.count("refused_unknown_message_type") + bench.count("refused_event_unknown")
    assert counted == 128


def test_a_datagram_gets_at_most_16_error_replies(bench: Bench) -> None:
    bench.ecu.send(bench.endpoint, REQUEST * 100, OPEN_DOOR)

    assert bench.listener.next().payload == b"d001"
    assert bench.count("refused_request_service") == 100
    assert [bench.ecu.receive()[14] for _ in range(16)] == [MessageType.ERROR] * 16
    bench.ecu.socket.settimeout(0)  # a reply is sent before the listener receives the next datagram
    with pytest.raises(BlockingIOError):
        bench.ecu.receive()


def test_an_event_from_another_host_is_refused(bench: Bench) -> None:
    bench.peer("127.0.0.2").send(bench.endpoint, EVENT)
    bench.ecu.send(bench.endpoint, EVENT[:-1] + b"!")

    assert bench.listener.next().payload == b"hell!"
    assert bench.count("refused_event_address") == 1


def test_the_first_refusal_of_a_kind_is_logged_and_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ustreamer.someip"):
        bench.ecu.send(bench.endpoint, EVENT[:7], EVENT[:8], EVENT[:9], REQUEST, REQUEST, EVENT)
        bench.listener.next()

    logged = [vars(record) for record in caplog.records]
    assert [(each["message"], each["reason"], each["sender"]) for each in logged] == [
        ("someip.refused", "truncated_header", str(bench.ecu)),
        ("someip.refused", "request_service", str(bench.ecu)),
    ]
    assert "7 bytes, expected at least 16" in logged[0]["refused"]
    assert bench.count("refused_truncated_header") == 3


# --- uProtocol calls SOME/IP ------------------------------------------------------------------------------------------


def test_a_request_is_the_golden_frame_and_its_response_is_delivered(bench: Bench) -> None:
    sent_request = bench.request()
    bench.endpoint.send(sent_request)
    assert bench.ecu.receive() == REQUEST

    bench.ecu.send(bench.endpoint, RESPONSE)
    answer = bench.listener.next()

    answer.check(strict=True)
    assert (answer.payload, answer.attributes.reqid, answer.attributes.commstatus) == (
        b"ok",
        sent_request.id,
        None,
    )
    assert (answer.attributes.source, answer.attributes.sink) == (METHOD, APP)


def test_the_library_someip_decodes_a_request_and_responds(bench: Bench) -> None:
    bench.endpoint.send(bench.request(payload=b"21.5"))
    theirs, rest = SOMEIPHeader.parse(bench.ecu.receive())
    assert (theirs.service_id, theirs.method_id, theirs.payload, rest) == (0x00CD, 0x000B, b"21.5", b"")
    assert theirs.message_type is SOMEIPMessageType.REQUEST

    answer = dataclasses.replace(theirs, message_type=SOMEIPMessageType.RESPONSE, payload=b"done")
    bench.ecu.send(bench.endpoint, answer.build())

    assert bench.listener.next().payload == b"done"


def test_a_failure_is_delivered_with_its_code(bench: Bench) -> None:
    bench.endpoint.send(bench.request())
    bench.ecu.send(bench.endpoint, ERROR)
    answer = bench.listener.next()

    assert answer.attributes.commstatus is UCode.NOT_FOUND
    assert decode_status(answer.payload).code is UCode.NOT_FOUND


def test_a_response_from_another_host_is_refused_and_the_genuine_one_accepted(bench: Bench) -> None:
    bench.endpoint.send(bench.request())
    bench.peer("127.0.0.2").send(bench.endpoint, RESPONSE[:-2] + b"no")
    bench.ecu.send(bench.endpoint, RESPONSE)

    assert bench.listener.next().payload == b"ok"
    assert bench.count("refused_response_address") == 1


def test_a_call_without_a_response_ends_at_its_ttl_and_a_late_response_is_counted(bench: Bench) -> None:
    wait_until(bench.is_asleep)
    sent_request, begun = bench.request(ttl=300), time.monotonic()
    bench.endpoint.send(sent_request)
    timed_out = bench.listener.next()

    assert 0.25 < time.monotonic() - begun < 10
    assert (timed_out.attributes.reqid, timed_out.attributes.commstatus) == (
        sent_request.id,
        UCode.DEADLINE_EXCEEDED,
    )
    bench.ecu.send(bench.endpoint, RESPONSE, EVENT)
    assert bench.listener.next().payload == b"hello"
    assert bench.count("refused_response_unsolicited") == 1
    assert (bench.count("calls_open"), bench.count("calls_expired")) == (0, 1)


def test_a_short_call_is_not_delayed_by_a_long_one(bench: Bench) -> None:
    bench.endpoint.send(bench.request(ttl=60_000))
    bench.ecu.send(bench.endpoint, EVENT)
    bench.listener.next()
    wait_until(bench.is_asleep)
    short = bench.request(ttl=300)
    bench.endpoint.send(short)

    assert bench.listener.next().attributes.reqid == short.id


def test_a_full_table_of_calls_is_resource_exhausted(make_bench: MakeBench) -> None:
    bench = make_bench(max_pending=1)
    bench.endpoint.send(bench.request())

    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(bench.request())
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED

    bench.ecu.send(bench.endpoint, RESPONSE)
    bench.listener.next()
    bench.endpoint.send(bench.request())


def test_callers_on_several_threads_get_their_own_responses(bench: Bench) -> None:
    calls = 4 * 200
    room = threading.Semaphore(100)  # in a socket buffer, whatever size the kernel chose

    def serve() -> None:
        for _ in range(calls):
            sent_request = bench.ecu.receive()
            bench.ecu.send(bench.endpoint, sent_request[:14] + b"\x80" + sent_request[15:])

    def send_request(sent: list[UMessage]) -> None:
        ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        for number in range(calls // 4):
            message = request(ids.next(), APP, METHOD, b"%d" % number, ttl=10_000)
            sent.append(message)
            assert room.acquire(timeout=WITHIN_S)
            bench.endpoint.send(message)

    sent_request: list[list[UMessage]] = [[], [], [], []]
    threads = [
        threading.Thread(target=serve),
        *(threading.Thread(target=send_request, args=(sent,)) for sent in sent_request),
    ]
    for thread in threads:
        thread.start()
    answered = {}
    for _ in range(calls):
        answer = bench.listener.next()
        room.release()
        answered[answer.attributes.reqid] = answer.payload
    for thread in threads:
        thread.join(WITHIN_S)

    assert answered == {message.id: message.payload for sent in sent_request for message in sent}


# --- SOME/IP calls uProtocol ------------------------------------------------------------------------------------------


def answering(bench: Bench, make: Callable[[UMessage], UMessage]) -> None:
    """Answer every request on the receiving thread, as the streamer may."""

    def answer(message: UMessage) -> None:
        bench.endpoint.send(make(message))

    bench.endpoint.register_listener(ANY, UUri.parse("//hpc.vin1/9077/1/1"), answer)


def test_a_client_is_answered_under_its_request_id(bench: Bench) -> None:
    answering(
        bench, lambda sent_request: response(bench.ids.next(), sent_request, sent_request.payload.upper())
    )
    client = bench.peer()
    client.send(bench.endpoint, OPEN_DOOR)

    theirs, _ = SOMEIPHeader.parse(client.receive())
    assert (theirs.service_id, theirs.method_id, theirs.interface_version) == (0x0777, 1, 2)
    assert (theirs.client_id, theirs.session_id, theirs.payload) == (0x12, 9, b"D001")
    assert theirs.message_type is SOMEIPMessageType.RESPONSE
    assert theirs.return_code is SOMEIPReturnCode.E_OK
    sent_request = bench.listener.next()
    sent_request.check(strict=True)
    wait_until(lambda: bench.count("requests_open") == 0)
    assert bench.count("requests_expired") == 0
    assert (str(sent_request.attributes.source), sent_request.attributes.ttl) == ("up://chassis/12/1/0", 1000)


def test_a_client_gets_a_failure_as_a_return_code_only(bench: Bench) -> None:
    answering(
        bench,
        lambda sent_request: error_response(
            bench.ids.next(), sent_request, UStatus(UCode.UNAVAILABLE, "asleep")
        ),
    )
    bench.ecu.send(bench.endpoint, OPEN_DOOR)

    assert bench.ecu.receive().hex() == "07770001000000080012000901028104"


def test_an_unanswered_client_gets_an_error_at_the_deadline(make_bench: MakeBench) -> None:
    bench = make_bench(request_ttl_ms=50)
    bench.ecu.send(bench.endpoint, OPEN_DOOR)

    assert bench.ecu.receive().hex() == "07770001000000080012000901028106"
    late = response(bench.ids.next(), bench.listener.next())
    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(late)
    assert refused.value.code is UCode.NOT_FOUND


def test_a_request_without_return_gets_no_response(bench: Bench) -> None:
    answering(
        bench, lambda sent_request: response(bench.ids.next(), sent_request, b"from " + sent_request.payload)
    )
    no_return = OPEN_DOOR[:14] + b"\x01" + OPEN_DOOR[15:-4] + b"d002"
    bench.ecu.send(bench.endpoint, no_return, OPEN_DOOR)

    assert bench.ecu.receive()[16:] == b"from d001"
    assert bench.count("responses_not_wanted") == 1


UNWELCOME = {
    "service": (b"\x07\x78" + OPEN_DOOR[2:], 0x02),
    "method": (OPEN_DOOR[:3] + b"\x02" + OPEN_DOOR[4:], 0x03),
    "version": (OPEN_DOOR[:13] + b"\x01" + OPEN_DOOR[14:], 0x08),
}


# [utest->RPC-816]
@pytest.mark.parametrize(("datagram", "code"), UNWELCOME.values(), ids=UNWELCOME)
def test_a_client_gets_an_error_for_an_unknown_service_method_or_version(
    bench: Bench, datagram: bytes, code: int
) -> None:
    bench.ecu.send(bench.endpoint, datagram)

    theirs, rest = SOMEIPHeader.parse(bench.ecu.receive())
    assert (theirs.message_type, theirs.return_code.value) == (SOMEIPMessageType.ERROR, code)
    assert (theirs.client_id, theirs.session_id, theirs.payload, rest) == (0x12, 9, b"", b"")


# [utest->RPC-726, RPC-106]
def test_failures_have_the_configured_message_type(make_bench: MakeBench) -> None:
    bench = make_bench(errors="response")
    failure = UStatus(UCode.NOT_FOUND, "no")
    answering(bench, lambda sent_request: error_response(bench.ids.next(), sent_request, failure))
    refused, _ = UNWELCOME["method"]
    malformed = OPEN_DOOR[:12] + b"\x09" + OPEN_DOOR[13:]
    for datagram, code in ((refused, 0x03), (malformed, 0x07), (OPEN_DOOR, 0x02)):
        bench.ecu.send(bench.endpoint, datagram)
        theirs, _ = SOMEIPHeader.parse(bench.ecu.receive())
        assert (theirs.message_type, theirs.return_code.value) == (SOMEIPMessageType.RESPONSE, code)


# [utest->RPC-597]
def test_only_a_request_gets_an_error_reply(bench: Bench) -> None:
    unknown = b"\x07\x78" + OPEN_DOOR[2:]
    others = [unknown[:14] + bytes([kind]) + unknown[15:] for kind in (0x01, 0x02, 0x80, 0x81, 0x20, 0x55)]
    marked = unknown[:10] + b"\x00\x63" + unknown[12:]
    bench.ecu.send(bench.endpoint, *others, unknown[:9], marked)

    assert bench.ecu.receive()[8:12].hex() == "00120063"


def test_an_unknown_client_gets_no_reply(bench: Bench) -> None:
    unknown_sender = bench.peer("127.0.0.2")
    unknown_sender.send(bench.endpoint, OPEN_DOOR, b"\x07\x78" + OPEN_DOOR[2:])
    bench.ecu.send(bench.endpoint, EVENT)
    bench.listener.next()

    assert bench.listener.is_quiet()
    wait_until(lambda: bench.count("refused_request_address") == 2, "two refused requests")
    unknown_sender.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        unknown_sender.receive()


# --- events out -------------------------------------------------------------------------------------------------------

FIRST, SECOND = UUri.parse("//chassis/777/2/0"), UUri.parse("//chassis/10777/2/0")


# [utest->SD-444]
def test_the_configured_receivers_are_subscribers_with_their_periods(bench: Bench) -> None:
    assert bench.endpoint.subscriptions() == [
        Subscription(DOOR, FIRST, 0),
        Subscription(WINDOW, FIRST, 0),
        Subscription(DOOR, SECOND, 25_000_000),
        Subscription(WINDOW, SECOND, 25_000_000),
    ]


def test_the_topics_of_an_endpoint_are_the_events_of_the_network_only(bench: Bench) -> None:
    assert bench.endpoint.topics() == [TOPIC]


# [utest->RPC-667]
def test_a_transmitter_sends_to_its_receiver_and_counts_sessions_per_event(bench: Bench) -> None:
    to_first, to_second = map(bench.endpoint.transmitter, (FIRST, SECOND))
    for topic in (DOOR, DOOR, WINDOW):
        to_first(bench.event(topic))
    to_second(bench.event(DOOR))

    assert [bench.ecu.receive().hex() for _ in range(3)] == [
        "077780010000000c0000000101020200616a6172",
        "077780010000000c0000000201020200616a6172",
        "077780020000000c0000000101020200616a6172",
    ]
    assert bench.second.receive().hex() == "077780010000000c0000000101020200616a6172"


# [utest->RPC-144]
def test_the_library_someip_decodes_an_event(bench: Bench) -> None:
    bench.endpoint.transmitter(FIRST)(bench.event())

    theirs, rest = SOMEIPHeader.parse(bench.ecu.receive())
    assert (theirs.service_id, theirs.method_id, theirs.interface_version) == (0x0777, 0x8001, 2)
    assert (theirs.client_id, theirs.session_id, theirs.payload, rest) == (0, 1, b"ajar", b"")
    assert theirs.message_type is SOMEIPMessageType.NOTIFICATION


def test_a_batch_of_events_equals_single_events_and_shares_their_sessions(bench: Bench) -> None:
    one, many = bench.endpoint.transmitter(FIRST), bench.endpoint.batch_transmitter(FIRST)
    one(bench.event())
    assert many([bench.event(), bench.event(WINDOW), bench.event()]) == 3
    one(bench.event())
    arrived = [bench.ecu.receive() for _ in range(5)]
    assert [(each[2:4].hex(), int.from_bytes(each[10:12]), each[16:]) for each in arrived] == [
        ("8001", 1, b"ajar"),
        ("8001", 2, b"ajar"),
        ("8002", 1, b"ajar"),
        ("8001", 3, b"ajar"),
        ("8001", 4, b"ajar"),
    ]
    assert bench.count("sent") == 5
    assert bench.endpoint.batch_transmitter(UUri.parse("//chassis/20777/2/0"))([bench.event()]) == 0
    bench.endpoint.close()
    assert many([bench.event(), bench.event()]) == 0


# [utest->RPC-677]
def test_the_session_of_an_event_wraps_from_65535_to_1(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(outbound, "count", lambda: itertools.count(0xFFFD))  # as after 65 533 events
        bench = make_bench()
    transmit, message = bench.endpoint.transmitter(FIRST), bench.event()
    sessions = []
    for _ in range(4):
        transmit(message)
        sessions.append(int.from_bytes(bench.ecu.receive()[10:12]))

    assert sessions == [0xFFFE, 0xFFFF, 1, 2]


def test_a_sent_publication_reaches_every_receiver(bench: Bench) -> None:
    bench.endpoint.send(bench.event())

    assert bench.ecu.receive() == bench.second.receive()
    assert bench.count("sent") == 2


NOWHERE = {
    "an unknown subscriber": (
        UUri.parse("//chassis/20777/2/0"),
        DOOR,
        UCode.NOT_FOUND,
        "//chassis/20777/2/0",
    ),
    "an unknown event": (FIRST, UUri.parse("//hpc.vin1/9077/1/8003"), UCode.UNIMPLEMENTED, "8003"),
    "an unknown provider": (FIRST, UUri.parse("//hpc.vin1/9078/1/8001"), UCode.NOT_FOUND, "9078"),
    "an unknown provider, to all": (None, UUri.parse("//hpc.vin1/9078/1/8001"), UCode.NOT_FOUND, "9078"),
}


@pytest.mark.parametrize(("subscriber", "topic", "code", "reason"), NOWHERE.values(), ids=NOWHERE)
def test_an_event_without_a_target_is_refused(
    bench: Bench, subscriber: UUri | None, topic: UUri, code: UCode, reason: str
) -> None:
    transmit = bench.endpoint.transmitter(subscriber)

    with pytest.raises(UStatusError) as refused:
        transmit(bench.event(topic))
    assert refused.value.code is code
    assert reason in refused.value.message


def test_a_notification_is_unimplemented(bench: Bench) -> None:
    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(notification(bench.ids.next(), DOOR, UUri.parse("//chassis/3AB/1/0")))

    assert refused.value.code is UCode.UNIMPLEMENTED
    assert "NOTIFICATION" in refused.value.message


def test_a_message_that_breaks_the_rules_is_not_sent(bench: Bench) -> None:
    message = bench.request()
    broken = msgspec.structs.replace(message.attributes, ttl=None)

    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(UMessage(message.id, broken))
    assert refused.value.code is UCode.INVALID_ARGUMENT


def test_the_largest_payload_is_sent_and_one_byte_more_is_refused(bench: Bench) -> None:
    assert MAX_PAYLOAD == 65_491
    transmit = bench.endpoint.transmitter(FIRST)
    transmit(bench.event(payload=bytes(MAX_PAYLOAD)))
    assert len(bench.ecu.receive()) == 65_507

    for attempt in (transmit, bench.endpoint.send):
        with pytest.raises(UStatusError) as refused:
            attempt(bench.event(payload=bytes(MAX_PAYLOAD + 1)))
        assert refused.value.code is UCode.INVALID_ARGUMENT
        assert "65492 bytes" in refused.value.message
        assert "at most 65491" in refused.value.message


def test_a_request_that_is_too_large_leaves_no_open_call(bench: Bench) -> None:
    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(bench.request(payload=bytes(MAX_PAYLOAD + 1)))

    assert refused.value.code is UCode.INVALID_ARGUMENT
    assert bench.count("calls_open") == 0


def test_a_client_with_an_oversized_response_gets_an_error_at_the_deadline(make_bench: MakeBench) -> None:
    bench = make_bench(request_ttl_ms=50)
    bench.ecu.send(bench.endpoint, OPEN_DOOR)
    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(response(bench.ids.next(), bench.listener.next(), bytes(MAX_PAYLOAD + 1)))

    assert refused.value.code is UCode.INVALID_ARGUMENT
    assert bench.ecu.receive()[15] == 0x06


# --- kernel errors ----------------------------------------------------------------------------------------------------

KERNEL = {
    errno.EAGAIN: UCode.UNAVAILABLE,
    errno.ENOBUFS: UCode.UNAVAILABLE,
    errno.ENETUNREACH: UCode.UNAVAILABLE,
    errno.EHOSTUNREACH: UCode.UNAVAILABLE,
    errno.ECONNREFUSED: UCode.UNAVAILABLE,
    errno.ENETDOWN: UCode.UNAVAILABLE,
    errno.EPERM: UCode.PERMISSION_DENIED,
    errno.EINVAL: UCode.INTERNAL,
}


@pytest.mark.parametrize(
    ("number", "code"), KERNEL.items(), ids=[errno.errorcode[number] for number in KERNEL]
)
def test_a_kernel_error_reports_whether_a_retry_is_useful(bench: Bench, number: int, code: UCode) -> None:
    for attempt, message in (
        (bench.endpoint.transmitter(FIRST), bench.event()),
        (bench.endpoint.send, bench.request()),
    ):
        with bench.kernel_error(OSError(number, "from the kernel")), pytest.raises(UStatusError) as refused:
            attempt(message)
        assert refused.value.code is code
        assert str(bench.ecu) in refused.value.message
        assert "from the kernel" in refused.value.message
        # One unreachable receiver blocks no other; a full queue of the kernel blocks all.
        away = number in {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED}
        assert isinstance(refused.value, RouteUnavailable) is away
    assert bench.count("calls_open") == 0


def test_a_response_that_the_kernel_rejected_can_be_sent_again(bench: Bench) -> None:
    bench.ecu.send(bench.endpoint, OPEN_DOOR)
    reply = response(bench.ids.next(), bench.listener.next(), b"done")
    full = BlockingIOError(errno.EAGAIN, "from the kernel")
    with bench.kernel_error(full), pytest.raises(UStatusError) as refused:
        bench.endpoint.send(reply)
    assert refused.value.code is UCode.UNAVAILABLE

    bench.endpoint.send(reply)
    assert bench.ecu.receive()[16:] == b"done"


def test_a_reply_that_the_kernel_rejected_is_counted(bench: Bench) -> None:
    with bench.kernel_error(OSError(errno.ENOBUFS, "from the kernel")):
        bench.ecu.send(bench.endpoint, b"\x07\x78" + OPEN_DOOR[2:], EVENT)

        assert bench.listener.next().payload == b"hello"
    assert bench.count("answers_lost") == 1


def test_a_receiver_with_a_closed_port_does_not_affect_later_sends(bench: Bench) -> None:
    bench.ecu.socket.close()  # the kernel replies with ICMP "port unreachable"
    for _ in range(20):
        bench.endpoint.send(bench.event())

    assert [int.from_bytes(bench.second.receive()[10:12]) for _ in range(20)] == list(range(1, 21))


# --- life -------------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(bench: Bench) -> None:
    host, port = bench.endpoint.address
    second = bench.another(bench.config(port=port))

    with pytest.raises(UStatusError) as refused:
        second.open()
    assert refused.value.code is UCode.UNAVAILABLE
    assert f"{host}:{port}" in refused.value.message
    (problem,) = second.problems()
    assert f"{host}:{port}" in problem


def test_an_address_of_another_machine_is_a_problem(bench: Bench) -> None:
    elsewhere = bench.another(bench.config(bind="192.0.2.1"))

    (problem,) = elsewhere.problems()
    assert "192.0.2.1" in problem
    with pytest.raises(UStatusError) as refused:
        elsewhere.open()
    assert refused.value.code is UCode.UNAVAILABLE


def test_service_discovery_needs_a_local_address(bench: Bench) -> None:
    config = bench.config(sd={"multicast": "224.244.224.245", "port": 30490, "interface": "198.51.100.1"})
    endpoint = bench.another(config)

    (problem,) = endpoint.problems()
    assert problem.startswith("sd: cannot bind UDP 198.51.100.1:30490")
    with pytest.raises(UStatusError, match=r"198.51.100.1:30490") as refused:
        endpoint.open()
    assert refused.value.code is UCode.UNAVAILABLE


def test_after_stop_receiving_messages_can_still_be_sent(bench: Bench) -> None:
    bench.ecu.send(bench.endpoint, EVENT)
    bench.listener.next()
    bench.endpoint.stop_receiving()
    bench.endpoint.stop_receiving()
    bench.ecu.send(bench.endpoint, EVENT)
    bench.endpoint.send(bench.event())

    assert bench.ecu.receive()[16:] == b"ajar"
    assert bench.listener.is_quiet()
    assert bench.count("received") == 1


def test_stop_fails_open_calls_and_close_answers_open_requests(
    bench: Bench,
) -> None:
    sent_request = bench.request()
    bench.endpoint.send(sent_request)
    bench.ecu.receive()
    bench.ecu.send(bench.endpoint, OPEN_DOOR)
    bench.listener.next()

    bench.endpoint.stop_receiving()
    result = bench.listener.next()
    assert (result.attributes.reqid, result.attributes.commstatus) == (sent_request.id, UCode.UNAVAILABLE)
    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(bench.request())
    assert refused.value.code is UCode.UNAVAILABLE

    bench.endpoint.close()
    assert bench.ecu.receive().hex() == "07770001000000080012000901028104"  # ERROR, E_NOT_READY
    assert bench.listener.is_quiet()


def test_a_listener_may_stop_the_endpoint_that_calls_it(bench: Bench) -> None:
    stopped = threading.Event()

    def stop(_: UMessage) -> None:
        bench.endpoint.stop_receiving()
        stopped.set()

    bench.endpoint.register_listener(ANY, None, stop)
    bench.ecu.send(bench.endpoint, EVENT, EVENT)

    assert stopped.wait(WITHIN_S)


def test_a_closed_endpoint_sends_nothing_and_is_not_opened_again(bench: Bench) -> None:
    bench.endpoint.close()
    bench.endpoint.close()

    attempts: list[Callable[[], None]] = [lambda: bench.endpoint.send(bench.event()), bench.endpoint.open]
    for attempt in attempts:
        with pytest.raises(UStatusError) as refused:
            attempt()
        assert refused.value.code is UCode.UNAVAILABLE
        assert "not open" in refused.value.message or "was closed" in refused.value.message


def test_an_endpoint_that_was_never_opened_can_be_queried_and_closed(bench: Bench) -> None:
    endpoint = bench.another(bench.config())
    ears = ReceivedMessages()
    endpoint.register_listener(ANY, None, ears)
    endpoint.unregister_listener(ANY, None, ears)

    with pytest.raises(UStatusError) as refused:
        endpoint.send(bench.event())
    assert refused.value.code is UCode.UNAVAILABLE
    assert set(endpoint.statistics()) == set(bench.endpoint.statistics())
    endpoint.stop_receiving()
    endpoint.close()


def test_opening_twice_changes_nothing(bench: Bench) -> None:
    address = bench.endpoint.address
    bench.endpoint.open()

    assert bench.endpoint.address == address


def test_every_refusal_reason_has_a_counter_from_the_start(bench: Bench) -> None:
    counters = bench.endpoint.statistics()

    assert {name for name in counters if name.startswith("refused_")} == {
        f"refused_{reason}"
        for reason in (*MalformedReason, *SomeipRefusal, *TpReason, *TcpReason, PEER_STREAMER)
    }
    assert set(counters.values()) == {0}


# --- listeners --------------------------------------------------------------------------------------------------------


def test_a_listener_can_be_changed_while_the_endpoint_is_open(bench: Bench) -> None:
    late = ReceivedMessages()
    bench.endpoint.register_listener(TOPIC, None, late)
    bench.ecu.send(bench.endpoint, EVENT)
    late.next()
    bench.endpoint.unregister_listener(TOPIC, None, late)
    bench.listener.next()
    bench.ecu.send(bench.endpoint, EVENT)
    bench.listener.next()

    assert late.is_quiet()


def test_a_message_without_a_listener_is_counted(bench: Bench) -> None:
    bench.endpoint.unregister_listener(ANY, None, bench.listener)
    bench.ecu.send(bench.endpoint, EVENT, OPEN_DOOR)
    bench.listener.next()

    assert (bench.count("received"), bench.count("no_listener")) == (1, 1)


def test_a_listener_error_is_counted_logged_once_and_affects_no_other_listener(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: UMessage) -> None:
        raise ValueError("a bug")

    bench.endpoint.unregister_listener(ANY, None, bench.listener)
    bench.endpoint.register_listener(ANY, None, fail)
    bench.endpoint.register_listener(ANY, None, bench.listener)
    with caplog.at_level(logging.ERROR, "ustreamer.someip"):
        bench.ecu.send(bench.endpoint, EVENT, EVENT, EVENT)
        for _ in range(3):
            bench.listener.next()

    assert bench.count("listener_errors") == 3
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a bug"


def test_unregistering_a_listener_waits_for_its_running_call(bench: Bench) -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls: list[UMessage] = []

    def ignore(message: UMessage) -> None:
        begun.set()
        assert go_on.wait(WITHIN_S)
        calls.append(message)

    bench.endpoint.register_listener(TOPIC, None, ignore)
    bench.ecu.send(bench.endpoint, EVENT, EVENT)
    assert begun.wait(WITHIN_S)
    taking = threading.Thread(target=bench.endpoint.unregister_listener, args=(TOPIC, None, ignore))
    taking.start()
    taking.join(0.05)
    assert taking.is_alive()

    go_on.set()
    taking.join(WITHIN_S)
    assert not taking.is_alive()
    for _ in range(2):
        bench.listener.next()
    assert len(calls) == 1


def test_unregistering_a_listener_after_stop_does_not_wait(bench: Bench) -> None:
    bench.endpoint.stop_receiving()
    bench.endpoint.unregister_listener(ANY, None, bench.listener)


def test_a_listener_may_unregister_itself(bench: Bench) -> None:
    called = []

    def once(message: UMessage) -> None:
        called.append(message)
        bench.endpoint.unregister_listener(ANY, None, once)

    bench.endpoint.register_listener(ANY, None, once)
    bench.endpoint.unregister_listener(ANY, None, bench.listener)
    bench.endpoint.register_listener(ANY, None, bench.listener)  # behind the failing listener
    bench.ecu.send(bench.endpoint, EVENT, EVENT)
    bench.listener.next()
    bench.listener.next()

    assert len(called) == 1


def test_the_receiving_thread_is_named_while_it_runs(bench: Bench) -> None:
    (thread,) = bench.endpoint.receiving_threads()
    assert (thread.name, thread.waiting) == ("someip chassis", False)
    bench.endpoint.close()
    assert list(bench.endpoint.receiving_threads()) == []


@pytest.mark.parametrize("oversized", ["send", "refuse"])
def test_a_large_event_is_counted_or_refused_as_configured(make_bench: MakeBench, oversized: str) -> None:
    bench = make_bench(oversized=oversized)
    if oversized == "refuse":
        with pytest.raises(UStatusError, match="needs segments"):
            bench.endpoint.send(bench.event(payload=bytes(1_401)))
    else:
        bench.endpoint.send(bench.event(payload=bytes(1_401)))
        assert [len(each.receive()) for each in (bench.ecu, bench.second)] == [1_417, 1_417]
    assert bench.count("oversized") == (0 if oversized == "refuse" else 2)


@pytest.mark.parametrize("gone", ["ecu", "second"])
def test_a_receiver_without_a_socket_is_reported_and_the_thread_sleeps_again(bench: Bench, gone: str) -> None:
    """The ECU also sends events, so it has a connected socket, and the kernel reports its ICMP errors there."""
    assert len(bench.endpoint._peer_sockets) == 1
    getattr(bench, gone).socket.close()
    bench.endpoint.send(bench.event(payload=b"first"))
    wait_until(lambda: bench.count("unreachable") == 1)
    wait_until(bench.is_asleep)
    bench.endpoint.send(bench.event(payload=b"second"))
    there = bench.second if gone == "ecu" else bench.ecu
    assert [there.receive()[16:] for _ in range(2)] == [b"first", b"second"]
