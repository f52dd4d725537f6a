# SPDX-License-Identifier: Apache-2.0
"""The fast path of requests and responses gives the results, errors and pending calls of the readable path."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.someip.rpc.path_comparison import (
    BASE,
    CALLERS,
    CLIENTS,
    ECU,
    KINDS,
    METHODS,
    UNKNOWN_SENDER,
    PathComparison,
    asking,
)
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.discovery import service_registry
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import MessageType, decode, encode
from ustreamer.transports.someip.rpc import fast_path
from ustreamer.uprotocol.umessage import UMessage, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

CALL = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 5]),
    st.sampled_from([100, 100, 50, 5, 0, -5, 100_000]),
    st.sampled_from([0, 8, 8, 8, 9]),
)
SMALL = st.integers(0, 5)
REQUEST = st.builds(
    asking,
    service=st.sampled_from([0x0777] * 6 + [0x0778]),
    method=st.sampled_from([1, 1, 1, 2, 3, 4]),
    client=st.sampled_from([0x12, 0x13, 0xFFFF]),
    session=SMALL,
    interface_version=st.sampled_from([2, 2, 2, 3]),
    message_type=st.sampled_from([0, 0, 0, 1, 0x20, 2, 0x80, 0x40]),
    return_code=st.sampled_from([0, 0, 0, 1]),
    payload=st.binary(max_size=3),
)
ODD = st.sampled_from([b"", b"x", bytes(16)])
ANSWER_FIELDS = st.sampled_from(
    [{}] * 6
    + [
        {"message_type": MessageType.ERROR, "return_code": 3, "payload": b""},
        {"return_code": 1},
        {"method": 5},
        {"session": 77},
        {"interface_version": 9},
        {"message_type": MessageType.RESPONSE_ACK},
    ]
)
CODE = st.sampled_from([None, None, None, UCode.OK, UCode.INTERNAL])
STEP = st.one_of(
    st.tuples(st.just("call"), st.lists(CALL, min_size=1, max_size=8)),
    st.tuples(
        st.just("answer"),
        st.tuples(SMALL, st.sampled_from([ECU, ECU, CLIENTS[0], UNKNOWN_SENDER]), ANSWER_FIELDS),
    ),
    st.tuples(st.just("ask"), st.tuples(REQUEST, ODD, st.sampled_from([*CLIENTS, UNKNOWN_SENDER]))),
    st.tuples(st.just("ask"), st.tuples(REQUEST, st.just(b""), st.sampled_from(CLIENTS))),
    st.tuples(
        st.just("respond"), st.lists(st.tuples(st.integers(0, 9), CODE, SMALL), min_size=1, max_size=6)
    ),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 4, 20, 99, 200])),
)


@settings(max_examples=150, deadline=None)  # no deadline: the machine may be busy
@given(st.lists(STEP, max_size=25), st.sampled_from([3, 100]))
def test_the_fast_path_equals_the_readable_path(steps: Iterable[tuple[str, Any]], limit: int) -> None:
    comparison = PathComparison(max_pending=limit, request_ttl_ms=100)
    for what, how in steps:
        match what:
            case "call":
                comparison.call(*how)
            case "answer":
                comparison.answer(how[0], how[1], **how[2])
            case "ask":
                comparison.on_datagram(encode(how[0]) + how[1], how[2])
            case "respond":
                comparison.respond(*how)
            case _:
                comparison.wait(how)
        comparison.check()
    comparison.wait(1_000)
    comparison.check()


def test_calls_and_their_responses_take_the_fast_path() -> None:
    comparison = PathComparison()
    comparison.call(*[(0, 0, 100, 8)] * 100)
    assert (comparison.fast.others, len(comparison.fast.sent)) == (0, 100)
    for number in range(100):
        datagram = encode(
            msgspec.structs.replace(
                decode(comparison.fast.sent[number][0])[0], message_type=MessageType.RESPONSE, payload=b"ok"
            )
        )
        assert comparison.fast.exchange.fast_in.decode_message(datagram, ECU) is not None
        assert comparison.fast.exchange.fast_in.decode_message(datagram, ECU) is None  # answered once


@pytest.mark.parametrize("sender", [UNKNOWN_SENDER, CLIENTS[2]], ids=["unknown", "client"])
def test_a_response_of_another_host_answers_no_call(sender: Address) -> None:
    comparison = PathComparison()
    comparison.call((0, 0, 100, 8))
    sent, _ = decode(comparison.fast.sent[0][0])
    datagram = encode(msgspec.structs.replace(sent, message_type=MessageType.RESPONSE, payload=b"forged"))
    fast_in = comparison.fast.exchange.fast_in
    assert fast_in.decode_message(datagram, sender) is None
    assert comparison.fast.exchange.statistics()["calls_open"] == 1
    assert fast_in.decode_message(datagram, ECU) is not None


def test_requests_and_their_responses_take_the_fast_path_from_the_second_on() -> None:
    comparison = PathComparison()
    datagram = encode(asking())
    comparison.on_datagram(datagram, CLIENTS[0])
    for client in CLIENTS:
        message = comparison.fast.exchange.fast_in.decode_message(datagram, client)
        assert message is not None
        comparison.fast.on_message(message)
    assert comparison.fast.exchange.fast_in.decode_message(datagram, UNKNOWN_SENDER) is None
    answers = [
        response(comparison.ids.next(), comparison.asked(comparison.fast, number)) for number in range(4)
    ]
    assert comparison.fast.fast_out.transmit_batch(answers) == 4
    assert comparison.fast.others == 0
    assert [to for _, to, _ in comparison.fast.sent] == [*reversed(CLIENTS), CLIENTS[0]]
    assert comparison.fast.fast_out.transmit_batch(answers[:1]) == 0  # no such request is open


@pytest.mark.parametrize("method", range(1, 6))
def test_any_other_call_takes_the_readable_path(method: int) -> None:
    comparison = PathComparison()
    for _ in range(2):
        comparison.call((0, 0, 100, 8), (0, method, 100, 8), (0, 0, 100, 8))
        comparison.check()
    assert comparison.fast.others >= 2


@pytest.mark.parametrize(
    "fields",
    [
        {"method": 5},
        {"service": 0x00CE},
        {"client": 1},
        {"session": 77},
        {"message_type": MessageType.ERROR, "return_code": 3, "payload": b""},
        {"return_code": 1},
    ],
)
def test_any_other_response_to_a_call_takes_the_readable_path(fields: dict[str, Any]) -> None:
    comparison = PathComparison()
    comparison.call((0, 0, 100, 8))
    comparison.answer(0, ECU, **fields)
    comparison.check()
    comparison.answer(0, ECU)
    comparison.check()
    assert comparison.fast.exchange.statistics()["calls_open"] == 0


@pytest.mark.parametrize("fields", [{"message_type": 1}, {"method": 2, "message_type": 1}, {"method": 3}])
@pytest.mark.parametrize("code", [None, UCode.INTERNAL])
def test_any_other_response_to_a_request_takes_the_readable_path(
    fields: dict[str, Any], code: UCode | None
) -> None:
    comparison = PathComparison()
    for _ in range(3):
        comparison.on_datagram(encode(asking(**fields)), CLIENTS[0])
    comparison.respond((0, code, 2), (1, code, 2), (2, code, 2))
    comparison.check()


def test_responses_over_tcp_take_the_readable_path() -> None:
    comparison = PathComparison()
    for _ in range(2):
        comparison.on_datagram(encode(asking()), TcpAddress("127.0.0.1", 41000))
    comparison.respond((0, None, 2), (1, None, 2))
    comparison.check()
    assert comparison.fast.others == 2


def test_calls_that_the_kernel_rejects_are_closed() -> None:
    comparison = PathComparison()
    fast_side = comparison.fast
    messages = [request(comparison.ids.next(), CALLERS[0], METHODS[0], b"%d" % n, ttl=100) for n in range(8)]
    fast_side.room = 5
    assert fast_side.fast_out.transmit_batch(messages) == 5
    assert fast_side.exchange.statistics()["calls_open"] == 5
    fast_side.room = 100
    assert fast_side.fast_out.transmit_batch(messages[5:]) == 3
    assert [decode(each)[0].payload for each, *_ in fast_side.sent] == [b"%d" % n for n in range(8)]
    assert len({decode(each)[0].request_id for each, *_ in fast_side.sent}) == 8


def test_rejected_responses_can_be_retried_until_their_deadline() -> None:
    comparison = PathComparison(request_ttl_ms=100)
    fast_side = comparison.fast
    for session in range(1, 5):
        fast_side.on_datagram(encode(asking(session=session)), CLIENTS[0])
    answers = [
        response(comparison.ids.next(), comparison.asked(fast_side, 3 - number)) for number in range(4)
    ]
    comparison.time.advance(ms=60)
    fast_side.room = 2
    assert fast_side.fast_out.transmit_batch(answers) == 2
    assert fast_side.exchange.statistics()["requests_open"] == 2
    fast_side.room = 1
    assert fast_side.fast_out.transmit_batch(answers[2:]) == 1
    comparison.time.advance(ms=39)
    fast_side.expire()
    assert fast_side.expired == []
    comparison.time.advance(ms=1)  # the same deadline as without an attempt
    fast_side.expire()
    assert [decode(each[0])[0].session for each in fast_side.expired if isinstance(each[0], bytes)] == [4]
    assert [decode(each)[0].session for each, *_ in fast_side.sent] == [1, 2, 3]


def test_a_request_is_answered_once_even_within_a_batch() -> None:
    comparison = PathComparison()
    for session in (1, 2):
        comparison.fast.on_datagram(encode(asking(session=session)), CLIENTS[0])
    first, second = (
        response(comparison.ids.next(), comparison.asked(comparison.fast, number)) for number in (1, 0)
    )
    assert comparison.fast.fast_out.transmit_batch([first, first, second]) == 1
    assert len(comparison.fast.sent) == 1


def test_after_abort_calls_the_fast_path_sends_no_call() -> None:
    comparison = PathComparison()
    comparison.call((0, 0, 100, 8))
    comparison.fast.exchange.abort_calls()
    again = [request(comparison.ids.next(), CALLERS[0], METHODS[0], ttl=100)]
    assert comparison.fast.fast_out.transmit_batch(again) == 0
    with pytest.raises(UStatusError) as refused:
        comparison.fast.fast_out.transmit(again[0])
    assert refused.value.code is UCode.UNAVAILABLE
    assert len(comparison.fast.sent) == 1


def test_calls_that_end_while_the_kernel_rejects_them_are_not_sent_again() -> None:
    comparison = PathComparison()
    fast_side = comparison.fast
    messages = [request(comparison.ids.next(), CALLERS[0], METHODS[0], ttl=100) for _ in range(8)]
    fast_side.room, outcomes = 5, list[UMessage]()
    fast_side.during_send = lambda: outcomes.extend(fast_side.exchange.abort_calls())
    assert fast_side.fast_out.transmit_batch(messages) == 8
    assert [each.attributes.reqid for each in outcomes] == [each.id for each in messages]
    assert len(fast_side.sent) == 5
    assert fast_side.others == 0


def test_a_call_that_ends_while_the_kernel_rejects_it_and_others_ends_once() -> None:
    comparison = PathComparison()
    fast_side = comparison.fast
    now_ms = comparison.time.clock().wall_ms()
    ids = [UUID(now_ms - age << 16 | comparison.ids.next().msb & 0xFFFF, 1 << 63) for age in (0, 90)]
    fast_side.room = 0
    fast_side.during_send = lambda: comparison.wait(50)
    messages = [request(id, CALLERS[0], METHODS[0], ttl=100) for id in ids]
    assert fast_side.fast_out.transmit_batch(messages) == 2
    assert len(fast_side.expired) == 1
    comparison.wait(50)  # the open one, at its ttl
    assert len(fast_side.expired) == 2


def test_a_request_is_not_expired_while_its_response_is_sent() -> None:
    comparison = PathComparison(request_ttl_ms=100)
    fast_side = comparison.fast
    fast_side.on_datagram(encode(asking(session=1)), CLIENTS[0])
    answer = response(comparison.ids.next(), comparison.asked(fast_side, 0))

    fast_side.during_send = lambda: comparison.wait(100)
    assert fast_side.fast_out.transmit_batch([answer]) == 1
    assert fast_side.expired == []


def test_a_rejected_response_whose_place_is_taken_finds_no_request() -> None:
    comparison = PathComparison(max_pending=2)  # one per client
    fast_side = comparison.fast
    fast_side.on_datagram(encode(asking(session=1)), CLIENTS[0])
    answer = response(comparison.ids.next(), comparison.asked(fast_side, 0))
    fast_side.room = 0
    fast_side.during_send = lambda: fast_side.on_datagram(encode(asking(session=2)), CLIENTS[0])
    with pytest.raises(UStatusError) as refused:
        fast_side.fast_out.transmit(answer)
    assert refused.value.code is UCode.NOT_FOUND
    assert fast_side.exchange.statistics()["requests_open"] == 1


def test_a_host_whose_places_are_taken_costs_no_other_host_its_request() -> None:
    comparison = PathComparison(max_pending=4)  # two per client
    fast_side = comparison.fast
    for client in (CLIENTS[0], CLIENTS[2]):
        fast_side.on_datagram(encode(asking(session=1)), client)
    answers = [response(comparison.ids.next(), comparison.asked(fast_side, number)) for number in (1, 0)]

    def take_places() -> None:
        for session in (2, 3):
            fast_side.on_datagram(encode(asking(session=session)), CLIENTS[0])

    fast_side.room, fast_side.during_send = 0, take_places
    assert fast_side.fast_out.transmit_batch(answers) == 0
    assert fast_side.exchange.statistics()["requests_open"] == 3
    fast_side.room, fast_side.during_send = 1, lambda: None
    assert fast_side.fast_out.transmit_batch(answers[1:]) == 1
    assert [address for _, address, *_ in fast_side.sent] == [CLIENTS[2]]


def test_the_endpoint_wakes_for_the_first_deadline_of_a_batch() -> None:
    comparison = PathComparison()
    comparison.call((0, 0, 90, 8), (0, 0, 20, 8), (0, 0, 50, 8))
    assert comparison.fast.wakes == [comparison.fast.exchange.next_deadline_ns]


def test_after_a_clock_step_calls_take_the_readable_path() -> None:
    comparison = PathComparison()
    comparison.call((0, 0, 100, 8))
    comparison.time.step(ms=1_000_000_000)
    comparison.call(*[(0, 0, 100, 8)] * 3)
    comparison.check()
    assert comparison.fast.others == 3


def test_a_service_that_moves_is_called_at_its_new_address() -> None:
    comparison = PathComparison()
    comparison.call((0, 0, 100, 8))
    moved = msgspec.convert(
        {"service": 0x00CD, "major": 4, "methods": KINDS, "remote": "127.0.0.1:4"},
        type=type(msgspec.convert(BASE, SomeipEndpoint).services[0]),
    )
    services = comparison.fast.exchange.services
    services.set_located_services([moved])
    comparison.call((0, 0, 100, 8))
    assert comparison.fast.sent[-1][1] == ("127.0.0.1", 4)


def test_messages_for_service_discovery_take_the_readable_path() -> None:
    comparison = PathComparison()
    seen: list[UMessage] = []
    comparison.fast.is_for_discovery = lambda message: not seen.append(message)  # type: ignore[func-returns-value]
    comparison.on_datagram(encode(asking()), CLIENTS[0])
    comparison.call((0, 0, 100, 8), (0, 0, 100, 8))
    comparison.respond((0, None, 8))
    comparison.check()
    assert comparison.fast.others == len(seen) == 3


def test_every_call_of_a_dynamic_service_is_reported() -> None:
    comparison = PathComparison()
    services = comparison.fast.exchange.services
    [(_, service), *_] = services._remote.items()
    services._remote = {METHODS[0].with_resource(0): msgspec.structs.replace(service, is_configured=False)}
    sought: list[UUri] = []
    services.set_dynamic_request(sought.append)
    comparison.call((0, 0, 100, 8))
    before = len(sought)
    comparison.call((0, 0, 100, 8))
    assert len(sought) > before > 0
    assert not services.request_templates


def test_a_service_that_disappears_during_a_batch_gets_no_call() -> None:
    comparison = PathComparison()
    comparison.call((0, 0, 100, 8))
    fast_side = comparison.fast

    def calls() -> Iterable[UMessage]:
        for number in range(2):
            if number == 1:
                fast_side.exchange.services._static_services.clear()
                fast_side.exchange.services.set_located_services([])
            yield request(comparison.ids.next(), CALLERS[0], METHODS[0], ttl=100)

    assert fast_side.fast_out.transmit_batch(calls()) == 0
    assert (len(fast_side.sent), fast_side.exchange.statistics()["calls_open"]) == (1, 1)


def test_the_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_MAX_CACHED", 4)
    monkeypatch.setattr(service_registry, "_MAX_CACHED", 4)
    comparison = PathComparison()
    arriving = comparison.fast.exchange.fast_in
    for number in range(20):
        caller = UUri("device1", number + 1, 1, 0)
        comparison.fast.transmit([request(comparison.ids.next(), caller, METHODS[0], ttl=100)])
        comparison.answer(0, ECU)
        comparison.fast.on_datagram(
            encode(msgspec.structs.replace(decode(comparison.fast.sent[-1][0])[0], message_type=0x80)), ECU
        )
        comparison.fast.on_datagram(encode(asking(client=number)), CLIENTS[0])
        assert len(comparison.fast.exchange.services.request_templates) <= 4
        assert len(arriving._request_attributes) <= 4
        assert len(arriving._response_templates) <= 4
    assert comparison.fast.exchange.statistics()["calls_open"] == 0
