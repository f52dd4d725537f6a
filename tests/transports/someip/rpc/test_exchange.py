# SPDX-License-Identifier: Apache-2.0
"""Every decision of a SOME/IP endpoint about input, output and deadlines, on a manual clock."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.someip.loopback_rig import LoopbackReceiver
from ustreamer.core.base.clock import ManualClock
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MessageType,
    ReturnCode,
    SomeIpMessage,
    decode,
    encode,
    split,
)
from ustreamer.transports.someip.protocol.mapping import SomeipRefusal
from ustreamer.transports.someip.protocol.tp import TpReason
from ustreamer.transports.someip.protocol.tp_segmenter import split_into_segments
from ustreamer.transports.someip.rpc.exchange import Exchange, RefusedMessage
from ustreamer.uprotocol.batch import MAX_BATCH, MIN_BATCH, MessageBatch
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage, error_response, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

ECU: Address = ("127.0.0.1", 30502)
CLIENT: Address = ("127.0.0.1", 41000)
UNKNOWN_SENDER: Address = ("127.0.0.2", 30502)
METHOD = UUri.parse("//chassis/CD/4/B")
APP = UUri.parse("//device1/3AB/1/0")
SERVICES = [
    {
        "service": 0x00CD,
        "major": 4,
        "methods": [0x000B, 0x000C],
        "events": [{"id": 0x80CD}],
        "remote": "127.0.0.1:30502",
    },
    {"service": 0x0777, "major": 2, "methods": [1], "offered": True, "provider": "//hpc.vin1/9077/1/0"},
]


class Bench:
    """An exchange with a manual clock."""

    def __init__(self, bridged: frozenset[str] = frozenset(), **keys: Any) -> None:
        base = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": 30500,
            "clients": ["127.0.0.1"],
            "services": SERVICES,
        }
        self.time = ManualClock()
        self.clock = self.time.clock()
        config = msgspec.convert(base | keys, SomeipEndpoint)
        self.exchange = Exchange(config, "hpc.vin1", self.clock, bridged)
        self.ids = UuidSource(self.clock.wall_ms)

    def request(self, ttl: int = 1000, source: UUri = APP, sink: UUri = METHOD) -> UMessage:
        return request(self.ids.next(), source, sink, b"hi", ttl=ttl)

    def call(self, **keys: Any) -> SomeIpMessage:
        """Open a call and return its message on the wire."""
        return decode(self.exchange.open_call(self.request(**keys)).datagram)[0]

    def accepted(self, message: SomeIpMessage, address: Address) -> UMessage:
        outcome = self.exchange.decode_message(message, address)
        assert isinstance(outcome, UMessage), outcome
        outcome.check(strict=True)
        return outcome

    def open(self, what: str) -> int:
        return self.exchange.statistics()[f"{what}_open"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def answer_to(sent_request: SomeIpMessage, **fields: Any) -> SomeIpMessage:
    fields = {"message_type": MessageType.RESPONSE, "payload": b"ok"} | fields
    return msgspec.structs.replace(sent_request, **fields)


def from_client(kind: MessageType = MessageType.REQUEST, **fields: Any) -> SomeIpMessage:
    return msgspec.structs.replace(SomeIpMessage(0x0777, 1, 0x0012, 9, 2, kind, 0, b"open"), **fields)


# --- uProtocol calls SOME/IP ------------------------------------------------------------------------------------------


# [utest->RPC-538, RPC-56, RPC-633, RPC-634]
def test_a_call_is_sent_to_its_service_and_its_response_to_the_caller(bench: Bench) -> None:
    message = bench.request()
    outgoing = bench.exchange.open_call(message)
    assert (outgoing.address, outgoing.datagram.hex()) == (ECU, "00cd000b0000000a03ab0001010400006869")

    answer = bench.accepted(answer_to(decode(outgoing.datagram)[0]), ECU)

    assert (answer.attributes.reqid, answer.payload) == (message.id, b"ok")
    assert (answer.attributes.source, answer.attributes.sink) == (METHOD, APP)
    assert answer.id != message.id
    assert bench.open("calls") == 0


def test_a_second_response_is_unsolicited(bench: Bench) -> None:
    sent_request = bench.call()
    bench.accepted(answer_to(sent_request), ECU)

    assert bench.exchange.decode_message(answer_to(sent_request), ECU) == RefusedMessage(
        SomeipRefusal.RESPONSE_UNSOLICITED
    )


def test_a_response_from_another_port_of_the_same_ecu_is_accepted(bench: Bench) -> None:
    bench.accepted(answer_to(bench.call()), (ECU[0], 50000))


@pytest.mark.parametrize(
    ("fields", "address", "reason"),
    [
        ({}, UNKNOWN_SENDER, SomeipRefusal.RESPONSE_ADDRESS),
        ({"method": 0x000C}, ECU, SomeipRefusal.RESPONSE_METHOD),
        ({"service": 0x00CE}, ECU, SomeipRefusal.RESPONSE_METHOD),
        ({"session": 2}, ECU, SomeipRefusal.RESPONSE_UNSOLICITED),
        ({"client": 0x03AC}, ECU, SomeipRefusal.RESPONSE_UNSOLICITED),
    ],
)
def test_a_response_that_does_not_match_is_refused_and_the_call_stays_open(
    bench: Bench, fields: dict[str, int], address: Address, reason: SomeipRefusal
) -> None:
    sent_request = bench.call()

    assert bench.exchange.decode_message(answer_to(sent_request, **fields), address) == RefusedMessage(reason)
    bench.accepted(answer_to(sent_request), ECU)


def test_a_call_without_a_response_ends_with_deadline_exceeded(bench: Bench) -> None:
    message = bench.request(ttl=1000)
    deadline_ns = bench.exchange.open_call(message).deadline_ns
    assert bench.exchange.next_deadline_ns == deadline_ns == 1_000_000_000
    bench.time.advance(ms=999)
    assert bench.exchange.expire_requests() == ([], [])
    bench.time.advance(ms=1)

    (timed_out,), datagrams = bench.exchange.expire_requests()

    timed_out.check(strict=True)
    attributes = timed_out.attributes
    assert (attributes.reqid, attributes.sink, attributes.ttl) == (message.id, APP, 1000)
    assert attributes.commstatus is UCode.DEADLINE_EXCEEDED
    assert (
        "127.0.0.1:30502 did not answer within the ttl of 1000 ms" in decode_status(timed_out.payload).message
    )
    assert datagrams == []
    assert bench.exchange.expire_requests() == ([], [])
    assert bench.exchange.statistics()["calls_expired"] == 1


def test_abort_calls_fails_open_calls_with_unavailable_once(bench: Bench) -> None:
    answered, waiting = bench.request(), bench.request()
    bench.accepted(answer_to(decode(bench.exchange.open_call(answered).datagram)[0]), ECU)
    sent_request = decode(bench.exchange.open_call(waiting).datagram)[0]

    (result,) = bench.exchange.abort_calls()

    result.check(strict=True)
    assert (result.attributes.reqid, result.attributes.source, result.attributes.sink) == (
        waiting.id,
        METHOD,
        APP,
    )
    assert result.attributes.commstatus is decode_status(result.payload).code is UCode.UNAVAILABLE
    assert bench.exchange.decode_message(answer_to(sent_request), ECU) == RefusedMessage(
        SomeipRefusal.RESPONSE_UNSOLICITED
    )
    bench.time.advance(s=10)
    assert (bench.exchange.abort_calls(), bench.exchange.expire_requests()) == ([], ([], []))


def test_calls_of_a_stopped_service_fail_and_calls_of_others_stay_open() -> None:
    services = [*SERVICES, {"service": 0x00CE, "major": 4, "methods": [0x000B], "remote": "127.0.0.1:30502"}]
    bench = Bench(services=services)
    first, second = bench.request(), bench.request(sink=METHOD.with_resource(0x000C))
    late = decode(bench.exchange.open_call(first).datagram)[0]
    bench.exchange.open_call(second)
    other = bench.call(sink=UUri.parse("//chassis/CE/4/B"))

    result = bench.exchange.on_service_gone(METHOD.with_resource(0), [ECU], "stopped")

    assert [each.attributes.reqid for each in result] == [first.id, second.id]
    for each in result:
        each.check(strict=True)
        assert each.attributes.commstatus is UCode.UNAVAILABLE
        status = decode_status(each.payload)
        assert status.code is UCode.UNAVAILABLE
        assert status.message == "up://chassis/CD/4/0 went (stopped) before 127.0.0.1:30502 answered"
    assert bench.exchange.decode_message(answer_to(late), ECU) == RefusedMessage(
        SomeipRefusal.RESPONSE_UNSOLICITED
    )
    assert bench.exchange.on_service_gone(METHOD.with_resource(0), [ECU], "stopped") == []
    bench.accepted(answer_to(other), ECU)
    counts = bench.exchange.statistics()
    assert (counts["calls_service_gone"], counts["calls_expired"], counts["calls_open"]) == (2, 0, 0)


def test_calls_of_a_closed_connection_fail_except_unsent_ones() -> None:
    service = {"service": 0x00CE, "major": 4, "methods": [0x000B], "remote": "127.0.0.1:30502"}
    bench = Bench(services=[*SERVICES, service | {"protocol": "tcp"}])
    over_tcp, over_udp = UUri.parse("//chassis/CE/4/B"), METHOD
    first, second = bench.request(sink=over_tcp), bench.request(sink=over_tcp)
    bench.exchange.open_call(first)
    waiting = bench.exchange.open_call(second).datagram
    bench.call(sink=over_udp)
    peer = TcpAddress(*ECU)

    result = bench.exchange.on_connection_closed(peer, [waiting])

    assert [each.attributes.reqid for each in result] == [first.id]
    assert result[0].attributes.commstatus is UCode.UNAVAILABLE
    assert decode_status(result[0].payload).message == (
        "the connection with 127.0.0.1:30502 ended before it answered"
    )
    assert bench.exchange.on_connection_closed(TcpAddress("127.0.0.1", 1), []) == []
    assert (bench.open("calls"), bench.exchange.statistics()["calls_service_gone"]) == (2, 1)
    assert bench.accepted(answer_to(decode(waiting)[0]), ECU).attributes.reqid == second.id


def test_after_abort_calls_no_call_is_opened(bench: Bench) -> None:
    bench.exchange.abort_calls()

    with pytest.raises(UStatusError) as refused:
        bench.exchange.open_call(bench.request())

    assert refused.value.code is UCode.UNAVAILABLE
    assert bench.open("calls") == 0


def test_abort_requests_answers_open_requests_with_not_ready(bench: Bench) -> None:
    bench.accepted(from_client(session=9), CLIENT)
    bench.accepted(from_client(MessageType.REQUEST_NO_RETURN, session=10), CLIENT)

    ((datagram, address),) = bench.exchange.abort_requests()

    result, _ = decode(datagram)
    assert (address, result.session, result.message_type) == (CLIENT, 9, MessageType.ERROR)
    assert result.return_code == ReturnCode.E_NOT_READY
    assert (bench.exchange.abort_requests(), bench.open("requests")) == ([], 0)


def test_a_clock_step_does_not_expire_a_call(bench: Bench) -> None:
    message = bench.request(ttl=1000)
    bench.time.advance(ms=400)
    bench.time.step(s=800_000_000)

    assert bench.exchange.open_call(message).deadline_ns == 1_000_000_000


@pytest.mark.parametrize(
    "expired", [True, False], ids=["after the deadline was noticed", "before it was noticed"]
)
def test_a_late_answer_is_ignored(bench: Bench, expired: bool) -> None:
    sent_request = bench.call(ttl=1000)
    bench.time.advance(ms=1000)
    if expired:
        bench.exchange.expire_requests()

    assert bench.exchange.decode_message(answer_to(sent_request), ECU) == RefusedMessage(
        SomeipRefusal.RESPONSE_UNSOLICITED
    )


def test_a_call_waits_only_for_the_rest_of_its_ttl(bench: Bench) -> None:
    message = bench.request(ttl=1000)
    bench.time.advance(ms=700)

    assert bench.exchange.open_call(message).deadline_ns == 1_000_000_000


def test_a_call_from_a_fast_clock_waits_no_longer_than_its_ttl(bench: Bench) -> None:
    ahead = UuidSource(lambda: bench.clock.wall_ms() + 3_600_000).next()

    assert bench.exchange.open_call(request(ahead, APP, METHOD, ttl=1000)).deadline_ns == 1_000_000_000


def test_a_request_with_an_expired_ttl_is_not_sent(bench: Bench) -> None:
    message = bench.request(ttl=1000)
    bench.time.advance(ms=1000)

    with pytest.raises(UStatusError) as refused:
        bench.exchange.open_call(message)

    assert refused.value.code is UCode.DEADLINE_EXCEEDED
    assert str(message.id) in refused.value.message
    assert bench.open("calls") == 0


def test_a_call_that_could_not_be_sent_is_removed(bench: Bench) -> None:
    bench.exchange.cancel_call(bench.exchange.open_call(bench.request()).request_id)
    bench.time.advance(s=10)

    assert bench.exchange.expire_requests() == ([], [])
    assert bench.exchange.next_deadline_ns is None


def test_callers_of_one_authority_have_half_of_the_calls() -> None:
    bench = Bench(max_pending=4)
    first = bench.call()
    bench.call()

    with pytest.raises(UStatusError, match="2 of device1 are open, its share of max_pending") as refused:
        bench.call()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED

    bench.call(source=msgspec.structs.replace(APP, authority_name="device2"))
    bench.accepted(answer_to(first), ECU)
    bench.call()


def test_more_calls_than_the_limit_are_refused_until_one_ends() -> None:
    bench = Bench(max_pending=4)
    first = bench.call()
    bench.call()

    with pytest.raises(UStatusError) as refused:
        bench.call()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert "max_pending" in refused.value.message

    bench.accepted(answer_to(first), ECU)
    bench.call()


# [utest->RPC-88, RPC-669]
def test_the_session_skips_0_and_the_sessions_of_open_calls() -> None:
    bench = Bench(max_pending=4)
    kept = bench.call()
    bench.exchange._pending._session = 0xFFFC  # as after 65 531 more calls
    sessions = []
    for _ in range(5):
        sent_request = bench.call()
        sessions.append(sent_request.session)
        bench.accepted(answer_to(sent_request), ECU)

    assert kept.session == 1
    assert sessions == [0xFFFD, 0xFFFE, 0xFFFF, 2, 3]  # skips 0 and the session that is still open
    bench.accepted(answer_to(kept), ECU)


# [utest->RPC-699]
def test_callers_with_equal_client_ids_get_their_own_responses(bench: Bench) -> None:
    comparison = [UUri.parse("//device1/103AB/1/0"), UUri.parse("//device2/203AB/2/0")]
    sent_request = [bench.call(source=twin) for twin in comparison]
    assert {each.client for each in sent_request} == {0x03AB}

    sinks = [bench.accepted(answer_to(each), ECU).attributes.sink for each in reversed(sent_request)]

    assert sinks == comparison[::-1]


def test_a_call_to_an_unknown_service_opens_nothing(bench: Bench) -> None:
    with pytest.raises(UStatusError) as refused:
        bench.exchange.open_call(bench.request(sink=UUri.parse("//chassis/CE/4/B")))

    assert refused.value.code is UCode.NOT_FOUND
    assert bench.open("calls") == 0


# --- SOME/IP calls uProtocol ------------------------------------------------------------------------------------------


# [utest->RPC-79]
def test_a_client_gets_the_response_with_its_request_id(bench: Bench) -> None:
    sent_request = bench.accepted(from_client(), CLIENT)
    reply = response(bench.ids.next(), sent_request, b"done")

    sent = bench.exchange.build_reply(reply)
    assert sent is not None
    assert sent[1] == CLIENT
    assert decode(sent[0])[0] == from_client(MessageType.RESPONSE, payload=b"done")

    bench.exchange.on_response_sent(reply)
    assert bench.open("requests") == 0


def test_a_response_may_be_retried_until_it_was_sent(bench: Bench) -> None:
    reply = response(bench.ids.next(), bench.accepted(from_client(), CLIENT), b"done")
    first = bench.exchange.build_reply(reply)

    assert bench.exchange.build_reply(reply) == first
    bench.exchange.on_response_sent(reply)
    with pytest.raises(UStatusError) as refused:
        bench.exchange.build_reply(reply)
    assert refused.value.code is UCode.NOT_FOUND
    assert str(reply.attributes.reqid) in refused.value.message


# [utest->RPC-141, RPC-367]
def test_a_failure_is_answered_with_its_return_code(bench: Bench) -> None:
    sent_request = bench.accepted(from_client(), CLIENT)
    sent = bench.exchange.build_reply(
        error_response(bench.ids.next(), sent_request, UStatus(UCode.UNAVAILABLE, "asleep"))
    )

    assert sent is not None
    assert decode(sent[0])[0] == from_client(
        MessageType.ERROR, return_code=ReturnCode.E_NOT_READY, payload=b""
    )


def test_clients_with_the_same_request_id_are_distinguished(bench: Bench) -> None:
    addresses = [CLIENT, ("127.0.0.1", 41001)]
    sent_request = [bench.accepted(from_client(), address) for address in addresses]
    sent = [bench.exchange.build_reply(response(bench.ids.next(), each)) for each in reversed(sent_request)]

    assert [each[1] for each in sent if each] == addresses[::-1]


# [utest->RPC-700]
def test_a_client_without_sessions_is_answered_without_one(bench: Bench) -> None:
    sent = bench.exchange.build_reply(
        response(bench.ids.next(), bench.accepted(from_client(session=0), CLIENT))
    )

    assert sent is not None
    assert decode(sent[0])[0].session == 0


def test_an_expired_request_gets_timeout_and_its_response_is_refused() -> None:
    bench = Bench(request_ttl_ms=250)
    sent_request = bench.accepted(from_client(), CLIENT)
    assert sent_request.attributes.ttl == 250
    bench.time.advance(ms=250)

    responses, ((datagram, address),) = bench.exchange.expire_requests()

    assert responses == []
    assert address == CLIENT
    assert decode(datagram)[0] == from_client(
        MessageType.ERROR, return_code=ReturnCode.E_TIMEOUT, payload=b""
    )
    with pytest.raises(UStatusError) as refused:
        bench.exchange.build_reply(response(bench.ids.next(), sent_request))
    assert refused.value.code is UCode.NOT_FOUND
    assert bench.exchange.statistics()["requests_expired"] == 1


# [utest->RPC-141, RPC-345]
def test_the_response_to_a_request_without_return_is_dropped(bench: Bench) -> None:
    sent_request = bench.accepted(from_client(MessageType.REQUEST_NO_RETURN), CLIENT)

    assert bench.exchange.build_reply(response(bench.ids.next(), sent_request)) is None
    assert bench.exchange.statistics()["responses_not_wanted"] == 1
    assert bench.open("requests") == 0


# [utest->RPC-348]
def test_an_expired_request_without_return_gets_no_reply(bench: Bench) -> None:
    bench.accepted(from_client(MessageType.REQUEST_NO_RETURN), CLIENT)
    bench.time.advance(s=10)

    assert bench.exchange.expire_requests() == ([], [])
    assert bench.open("requests") == 0


def test_a_request_above_the_limit_gets_an_error() -> None:
    bench = Bench(max_pending=1)
    bench.accepted(from_client(), CLIENT)

    refused = bench.exchange.decode_message(from_client(session=10), CLIENT)

    assert isinstance(refused, RefusedMessage)
    assert refused.reason is SomeipRefusal.REQUEST_LIMIT
    assert refused.reply is not None
    assert decode(refused.reply)[0] == from_client(
        MessageType.ERROR, session=10, return_code=ReturnCode.E_NOT_OK, payload=b""
    )


def test_one_host_gets_at_most_half_of_the_open_requests() -> None:
    bench = Bench(max_pending=4, clients=["127.0.0.0/8"])
    outcomes = [
        bench.exchange.decode_message(from_client(session=n), ("127.0.0.9", 4_000 + n)) for n in range(1, 6)
    ]
    assert [isinstance(each, RefusedMessage) for each in outcomes] == [False, False, True, True, True]
    bench.accepted(from_client(), CLIENT)


REFUSED = {
    "service": ({"service": 0x0778}, SomeipRefusal.REQUEST_SERVICE, ReturnCode.E_UNKNOWN_SERVICE),
    "version": (
        {"interface_version": 3},
        SomeipRefusal.REQUEST_VERSION,
        ReturnCode.E_WRONG_INTERFACE_VERSION,
    ),
    "method": ({"method": 2}, SomeipRefusal.REQUEST_METHOD, ReturnCode.E_UNKNOWN_METHOD),
    "client": ({"client": 0xFFFF}, SomeipRefusal.REQUEST_CLIENT, ReturnCode.E_NOT_OK),
}


# [utest->RPC-721]
@pytest.mark.parametrize(("fields", "reason", "code"), REFUSED.values(), ids=REFUSED)
def test_a_refused_request_gets_an_error(
    bench: Bench, fields: dict[str, Any], reason: SomeipRefusal, code: ReturnCode
) -> None:
    refused = bench.exchange.decode_message(from_client(**fields), CLIENT)

    assert isinstance(refused, RefusedMessage)
    assert refused.reason is reason
    assert refused.reply is not None
    assert decode(refused.reply)[0] == from_client(MessageType.ERROR, return_code=code, payload=b"", **fields)
    assert bench.open("requests") == 0


# [utest->RPC-348, RPC-654]
@pytest.mark.parametrize(("fields", "reason", "code"), REFUSED.values(), ids=REFUSED)
def test_a_refused_request_without_return_gets_no_reply(
    bench: Bench, fields: dict[str, Any], reason: SomeipRefusal, code: ReturnCode
) -> None:
    message = from_client(MessageType.REQUEST_NO_RETURN, **fields)

    assert bench.exchange.decode_message(message, CLIENT) == RefusedMessage(reason)


def test_an_unknown_sender_gets_no_reply(bench: Bench) -> None:
    assert bench.exchange.decode_message(from_client(), UNKNOWN_SENDER) == RefusedMessage(
        SomeipRefusal.REQUEST_ADDRESS
    )


@pytest.mark.parametrize(
    "kind",
    [kind for kind in MessageType if kind & 0x40],
    ids=lambda kind: kind.name,
)
def test_acknowledgements_are_refused(bench: Bench, kind: MessageType) -> None:
    assert bench.exchange.decode_message(from_client(kind), CLIENT) == RefusedMessage(
        SomeipRefusal.MESSAGE_TYPE
    )


# --- in segments ------------------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * 40


def in_segments(message: SomeIpMessage) -> list[SomeIpMessage]:
    return [decode(datagram)[0] for datagram in split_into_segments(message)]


def test_an_event_in_segments_is_one_message(bench: Bench) -> None:
    event = SomeIpMessage(0x00CD, 0x80CD, 0, 1, 4, MessageType.NOTIFICATION, 0, LARGE)
    *first, last = in_segments(event)
    assert [bench.exchange.decode_message(each, ECU) for each in first] == [None] * 7
    assert bench.accepted(last, ECU).payload == LARGE
    assert bench.exchange.statistics()["tp_completed"] == 1
    assert bench.exchange.next_deadline_ns is None


def test_a_request_in_segments_is_one_message_and_is_answered(bench: Bench) -> None:
    *first, last = in_segments(from_client(payload=LARGE))
    assert {bench.exchange.decode_message(each, CLIENT) for each in first} == {None}
    sent_request = bench.accepted(last, CLIENT)
    assert sent_request.payload == LARGE
    result = bench.exchange.build_reply(response(bench.ids.next(), sent_request, b"ok"))
    assert result is not None
    assert decode(result[0])[0].request_id == from_client().request_id


def test_a_response_in_segments_is_one_message(bench: Bench) -> None:
    *first, last = in_segments(answer_to(bench.call(), payload=LARGE))
    assert {bench.exchange.decode_message(each, ECU) for each in first} == {None}
    assert bench.accepted(last, ECU).payload == LARGE


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (MessageType.NOTIFICATION, SomeipRefusal.EVENT_ADDRESS),
        (MessageType.REQUEST, SomeipRefusal.REQUEST_ADDRESS),
        (MessageType.REQUEST_NO_RETURN, SomeipRefusal.REQUEST_ADDRESS),
        (MessageType.RESPONSE, SomeipRefusal.RESPONSE_ADDRESS),
        (MessageType.ERROR, SomeipRefusal.RESPONSE_ADDRESS),
    ],
)
def test_segments_of_unknown_senders_take_no_memory(
    bench: Bench, kind: MessageType, reason: SomeipRefusal
) -> None:
    for each in in_segments(from_client(kind, payload=LARGE)):
        assert bench.exchange.decode_message(each, UNKNOWN_SENDER) == RefusedMessage(reason)
    assert bench.exchange.statistics()["tp_bytes"] == 0


def test_a_reassembled_message_is_refused_like_any_other(bench: Bench) -> None:
    *first, last = in_segments(from_client(method=99, payload=LARGE))
    assert {bench.exchange.decode_message(each, CLIENT) for each in first} == {None}
    refused = bench.exchange.decode_message(last, CLIENT)
    assert isinstance(refused, RefusedMessage)
    assert (refused.reason, refused.reply is not None) == (SomeipRefusal.REQUEST_METHOD, True)


def test_an_invalid_segment_is_refused_with_its_reason(bench: Bench) -> None:
    invalid = SomeIpMessage(0x00CD, 0x80CD, 0, 1, 4, MessageType.TP_NOTIFICATION, 0, b"\0\0\0\1x")
    assert bench.exchange.decode_message(invalid, ECU) == RefusedMessage(TpReason.TP_UNALIGNED)


def test_a_message_with_missing_segments_is_abandoned_at_the_timeout(bench: Bench) -> None:
    event = SomeIpMessage(0x00CD, 0x80CD, 0, 1, 4, MessageType.NOTIFICATION, 0, LARGE)
    bench.exchange.decode_message(in_segments(event)[0], ECU)
    due_ns = bench.exchange.next_deadline_ns
    assert due_ns == bench.clock.monotonic_ns() + 5_000_000_000
    bench.time.advance(ms=4_999)
    assert bench.exchange.expire_segments() == []
    bench.time.advance(ms=1)
    (abandoned,) = bench.exchange.expire_segments()
    assert (abandoned.reason, abandoned.peer) == (TpReason.TP_TIMEOUT, ECU)
    assert bench.exchange.next_deadline_ns is None


# --- arbitrary input --------------------------------------------------------------------------------------------------

KNOWN_OR_ANY: dict[str, st.SearchStrategy[Any]] = {
    "service": st.one_of(st.sampled_from([0x00CD, 0x0777, 0xFFFF]), st.integers(0, 0xFFFF)),
    "method": st.one_of(st.sampled_from([1, 0x0B, 0x80CD, 0x8100]), st.integers(0, 0xFFFF)),
    "client": st.one_of(st.sampled_from([0, 0x03AB, 0xFFFF]), st.integers(0, 0xFFFF)),
    "session": st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, 0xFFFF)),
    "interface_version": st.one_of(st.sampled_from([2, 4]), st.integers(0, 0xFF)),
    "message_type": st.one_of(
        st.sampled_from([0x00, 0x01, 0x02, 0x80, 0x81]), st.sampled_from(list(map(int, MessageType)))
    ),
    "return_code": st.one_of(st.just(0), st.integers(0, 0xFF)),
    "payload": st.binary(max_size=40),
}
ANYTHING = st.builds(SomeIpMessage, **KNOWN_OR_ANY)
# Acceptable messages, with up to two fields changed.
ACCEPTABLE = [
    SomeIpMessage(0x00CD, 0x80CD, 0, 1, 4, MessageType.NOTIFICATION, 0, b"event"),
    from_client(),
    from_client(MessageType.REQUEST_NO_RETURN),
    *(
        SomeIpMessage(0x00CD, 0x000B, 0x03AB, session, 4, kind, code, b"")
        for session in (1, 2)
        for kind, code in ((MessageType.RESPONSE, 0), (MessageType.RESPONSE, 4), (MessageType.ERROR, 2))
    ),
]
CHANGES = st.dictionaries(st.sampled_from(list(KNOWN_OR_ANY)), st.none(), max_size=2).flatmap(
    lambda fields: st.fixed_dictionaries({field: KNOWN_OR_ANY[field] for field in fields})
)
NEARLY_ACCEPTABLE = st.builds(
    lambda message, changes: msgspec.structs.replace(message, **changes), st.sampled_from(ACCEPTABLE), CHANGES
)
MESSAGES = st.one_of(NEARLY_ACCEPTABLE, NEARLY_ACCEPTABLE, ANYTHING)
DATAGRAMS = st.one_of(st.binary(max_size=200), st.lists(MESSAGES.map(encode), max_size=4).map(b"".join))
ADDRESSES = st.sampled_from([ECU, CLIENT, UNKNOWN_SENDER])


@settings(max_examples=150, deadline=None)  # no deadline: the machine may be busy
@given(st.lists(st.tuples(DATAGRAMS, ADDRESSES, st.integers(0, 400)), max_size=12))
def test_any_input_is_a_valid_message_or_a_refusal(steps: list[tuple[bytes, Address, int]]) -> None:
    bench = Bench(max_pending=4)
    open_calls = {bench.call().request_id for _ in range(2)}
    for datagram, address, pause_ms in steps:
        bench.time.advance(ms=pause_ms)
        responses, datagrams = bench.exchange.expire_requests()
        for timed_out in responses:
            timed_out.check(strict=True)
        for late, _ in datagrams:
            assert decode(late)[0].return_code == ReturnCode.E_TIMEOUT
        messages, _ = split(datagram)
        for message in messages:
            _check_outcome(bench, message, address, open_calls)
        assert bench.open("calls") <= 2
        assert bench.open("requests") <= 4


def _check_outcome(bench: Bench, message: SomeIpMessage, address: Address, open_calls: set[int]) -> None:
    before = bench.open("calls"), bench.open("requests")
    outcome = bench.exchange.decode_message(message, address)
    after = bench.open("calls"), bench.open("requests")
    if isinstance(outcome, RefusedMessage):
        assert after == before
        if outcome.reply is not None:
            result, end = decode(outcome.reply)
            assert end == len(outcome.reply) == 16
            assert message.message_type == MessageType.REQUEST
            assert address != UNKNOWN_SENDER
            assert result == msgspec.structs.replace(
                message, message_type=MessageType.ERROR, return_code=result.return_code, payload=b""
            )
            assert 0 < result.return_code <= 0x0A
        return
    if outcome is None:
        assert message.is_tp
        assert address != UNKNOWN_SENDER
        assert after == before
        return
    # The last segment of a segmented message, or the message itself.
    message = msgspec.structs.replace(message, message_type=message.message_type & ~0x20)
    outcome.check(strict=True)
    assert address != UNKNOWN_SENDER
    kind = outcome.attributes.type
    if kind is UMessageType.PUBLISH:
        assert (message.message_type, after) == (MessageType.NOTIFICATION, before)
        assert str(outcome.attributes.source) == "up://chassis/CD/4/80CD"
    elif kind is UMessageType.REQUEST:
        assert message.message_type in (MessageType.REQUEST, MessageType.REQUEST_NO_RETURN)
        assert after == (before[0], before[1] + 1)
    else:
        assert message.message_type in (MessageType.RESPONSE, MessageType.ERROR)
        assert after == (before[0] - 1, before[1])
        assert message.request_id in open_calls
        open_calls.remove(message.request_id)


EVENTS = MESSAGES.map(
    lambda message: msgspec.structs.replace(message, service=0x00CD, method=0x80CD, interface_version=4)
)
NEARLY_EVENTS = st.one_of(
    DATAGRAMS,
    EVENTS.map(encode),
    st.tuples(EVENTS.map(encode), st.binary(max_size=20)).map(b"".join),
    st.tuples(EVENTS.map(encode), st.integers(0, 60)).map(lambda cut: cut[0][: cut[1]]),
)


@settings(max_examples=200, deadline=None)  # no deadline: the machine may be busy
@given(NEARLY_EVENTS, ADDRESSES)
def test_the_fast_path_for_events_equals_the_readable_path(datagram: bytes, address: Address) -> None:
    exchange = Bench().exchange
    attributes = exchange.match_event(datagram, address[0])
    fast = None if attributes is None else exchange.event_messages([attributes], [datagram])[0]
    messages, malformed = split(datagram)
    is_one_event = len(messages) == 1 and messages[0].message_type == MessageType.NOTIFICATION
    if not is_one_event or malformed:
        assert fast is None
        return
    readable = Bench().exchange.decode_message(messages[0], address)
    if isinstance(readable, RefusedMessage) or readable is None:
        assert fast is None
    elif fast is None:
        assert messages[0].return_code != ReturnCode.E_OK  # rare, and left to the readable path
    else:
        assert (fast.attributes, fast.payload) == (readable.attributes, readable.payload)


@pytest.mark.parametrize("size", [0, 1, 1400, 65_491])
def test_a_plain_event_takes_the_fast_path(bench: Bench, size: int) -> None:
    event = SomeIpMessage(0x00CD, 0x80CD, 0, 1, 4, MessageType.NOTIFICATION, 0, bytes(size))
    attributes = bench.exchange.match_event(encode(event), ECU[0])

    assert attributes is not None
    [message] = bench.exchange.event_messages([attributes], [encode(event)])
    message.check(strict=True)
    assert (str(message.attributes.source), message.payload) == ("up://chassis/CD/4/80CD", bytes(size))


def test_an_event_with_an_e2e_return_code_takes_the_readable_path(bench: Bench) -> None:
    event = SomeIpMessage(0x00CD, 0x80CD, 0, 1, 4, MessageType.NOTIFICATION, ReturnCode.E_E2E, b"odd")

    assert bench.exchange.match_event(encode(event), ECU[0]) is None
    assert bench.accepted(event, ECU).payload == b"odd"


def test_ids_of_received_messages_increase(bench: Bench) -> None:
    event = SomeIpMessage(0x00CD, 0x80CD, 0, 1, 4, MessageType.NOTIFICATION, 0, b"")
    ids: list[UUID] = [bench.accepted(event, ECU).id for _ in range(1_000)]

    assert ids == sorted(set(ids))


# --- batches ----------------------------------------------------------------------------------------------------------

TWO_EVENTS = [SERVICES[0] | {"events": [{"id": 0x80CD}, {"id": 0x80CE}]}, SERVICES[1]]
HOSTS = st.sampled_from([ECU[0]] * 5 + [UNKNOWN_SENDER[0]])
FLAWS: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda event: event,
    "another event": lambda event: event[:3] + b"\xce" + event[4:],
    "an unknown event": lambda event: event[:3] + b"\xcf" + event[4:],
    "another service": lambda event: b"\x07\x77" + event[2:],
    "a length too small": lambda event: event[:7] + bytes([event[7] - 1]) + event[8:],
    "a length too large": lambda event: event[:7] + bytes([event[7] + 1]) + event[8:],
    "another protocol version": lambda event: event[:12] + b"\x02" + event[13:],
    "another interface version": lambda event: event[:13] + b"\x05" + event[14:],
    "a request": lambda event: event[:14] + b"\x00" + event[15:],
    "a segment": lambda event: event[:14] + b"\x22" + event[15:],
    "a return code": lambda event: event[:15] + b"\x01" + event[16:],
    "a byte more": lambda event: event + b"\xff",
    "a byte more with its length": lambda event: event[:7] + bytes([event[7] + 1]) + event[8:] + b"\xff",
    "no whole header": lambda event: event[: HEADER_LENGTH - 1],
    "nothing at all": lambda event: b"",
}


class EventBatchCase(msgspec.Struct, frozen=True):
    """Events of one topic and one size; all of them, or one, may have a flaw."""

    number: int
    size: int
    flaw: str
    where: int | None

    def datagrams(self) -> list[bytes]:
        """Different clients, sessions and payloads."""
        return [
            FLAWS[self.flaw if self.where is None or self.where % self.number == number else "none"](
                encode(
                    SomeIpMessage(
                        0x00CD,
                        0x80CD,
                        number % 3,
                        number + 1,
                        4,
                        MessageType.NOTIFICATION,
                        0,
                        number.to_bytes(2)[-self.size :].rjust(self.size, b"p") if self.size else b"",
                    )
                )
            )
            for number in range(self.number)
        ]


EVENT_BATCHES = st.builds(
    EventBatchCase,
    st.one_of(
        st.integers(1, 3 * MIN_BATCH), st.sampled_from([MIN_BATCH - 1, MIN_BATCH, MAX_BATCH - 1, MAX_BATCH])
    ),
    st.sampled_from([0, 1, 4, 8, 1_400, 1_456, 1_457]),
    st.sampled_from(["none"] * 5 + list(FLAWS)),
    st.one_of(st.none(), st.integers(0, MAX_BATCH)),
)


def check_ids(exchange: Exchange, messages: Sequence[UMessage]) -> None:
    """The ids are valid and increasing, and so is the next id."""
    ids = [each.id for each in messages]
    assert all(each.is_valid for each in ids)
    following = exchange._ids.next()
    assert [*ids, following] == sorted({*ids, following})


def check_request_ids(
    messages: Sequence[UMessage], datagrams: Sequence[bytes], bridged: frozenset[str]
) -> None:
    """The ids end with the request ids of the headers, if the streamer has another SOME/IP network."""
    if bridged:
        assert [each.id.lsb.to_bytes(8)[4:] for each in messages] == [each[8:12] for each in datagrams]
        assert len({each.id.lsb >> 32 for each in messages}) > 1 or len(messages) < MIN_BATCH  # still random


BRIDGED = st.sampled_from([frozenset[str](), frozenset({"body"})])


@settings(max_examples=100, deadline=None)
@given(cases=st.lists(EVENT_BATCHES, min_size=1, max_size=3), host=HOSTS, bridged=BRIDGED)
def test_a_decoded_batch_equals_its_datagrams_one_by_one(
    loop: LoopbackReceiver, cases: list[EventBatchCase], host: str, bridged: frozenset[str]
) -> None:
    exchange, oracle = (Bench(bridged, services=TWO_EVENTS).exchange for _ in range(2))
    for case in cases:
        datagrams = case.datagrams()
        sent_batch = exchange.decode_batch(loop.receive_batch(datagrams, [host] * len(datagrams)))
        expected = [oracle.match_event(each, host) for each in datagrams]
        sizes, firsts = set(map(len, datagrams)), set(expected)
        is_batch = (
            len(datagrams) >= MIN_BATCH
            and max(sizes) <= 1_472
            and len(sizes) == len(firsts) == 1
            and None not in firsts
        )
        assert isinstance(sent_batch, MessageBatch) == (sent_batch is not None) == is_batch
        if sent_batch is not None:
            assert [each.attributes for each in sent_batch] == expected
            assert [each.payload for each in sent_batch] == [each[HEADER_LENGTH:] for each in datagrams]
            check_ids(exchange, sent_batch)
            check_request_ids(sent_batch, datagrams, bridged)


@pytest.mark.parametrize("flaw", [each for each in FLAWS if each != "none"])
def test_one_different_datagram_prevents_batch_decoding(
    bench: Bench,
    loop: LoopbackReceiver,
    flaw: str,
) -> None:
    assert (
        bench.exchange.decode_batch(
            loop.receive_batch(EventBatchCase(MIN_BATCH, 4, "none", None).datagrams())
        )
        is not None
    )
    assert (
        bench.exchange.decode_batch(
            loop.receive_batch(EventBatchCase(MIN_BATCH, 4, flaw, MIN_BATCH - 1).datagrams())
        )
        is None
    )


TOPICS = [0x80CD, 0x80CE]


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.one_of(
            st.lists(st.tuples(st.sampled_from(TOPICS), st.binary(max_size=4)), max_size=3 * MIN_BATCH),
            st.lists(st.tuples(st.just(TOPICS[0]), st.binary(max_size=4)), max_size=3 * MIN_BATCH),
        ),
        min_size=1,
        max_size=3,
    ),
    bridged=BRIDGED,
)
def test_event_messages_equal_single_event_messages(
    batches: list[list[tuple[int, bytes]]], bridged: frozenset[str]
) -> None:
    exchange = Bench(bridged, services=TWO_EVENTS).exchange
    for message_batch in batches:
        datagrams = [
            encode(SomeIpMessage(0x00CD, event, 3, number, 4, MessageType.NOTIFICATION, 0, payload))
            for number, (event, payload) in enumerate(message_batch)
        ]
        found = [exchange.match_event(each, ECU[0]) for each in datagrams]
        attributes = [each for each in found if each is not None]
        assert len(attributes) == len(datagrams)
        made = exchange.event_messages(attributes, datagrams)
        assert isinstance(made, MessageBatch) == (len(datagrams) >= MIN_BATCH and len(set(attributes)) == 1)
        assert [(each.attributes, each.payload) for each in made] == [
            (each, payload) for each, (_, payload) in zip(attributes, message_batch, strict=True)
        ]
        singles = [exchange.event_message(*each) for each in zip(attributes, datagrams, strict=True)]
        assert [(each.attributes, each.payload) for each in singles] == [
            (each.attributes, each.payload) for each in made
        ]
        check_ids(exchange, [*made, *singles])
        check_request_ids([*made, *singles], datagrams * 2, bridged)
        check_ids(exchange, made)


@pytest.mark.parametrize("number", [1, MIN_BATCH - 1, MIN_BATCH])
def test_from_min_batch_on_messages_of_one_event_are_a_batch(bench: Bench, number: int) -> None:
    datagrams = EventBatchCase(number, 4, "none", None).datagrams()
    (attributes,) = {bench.exchange.match_event(each, ECU[0]) for each in datagrams}
    assert attributes is not None
    made = bench.exchange.event_messages([attributes] * number, datagrams)
    assert isinstance(made, MessageBatch) == (number >= MIN_BATCH)
    assert [each.payload for each in made] == [each[HEADER_LENGTH:] for each in datagrams]
