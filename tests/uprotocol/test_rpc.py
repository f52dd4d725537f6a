# SPDX-License-Identifier: Apache-2.0
"""Calls over a transport with the test as the service."""

import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from tests.waiting import wait_until
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, publish, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener, UTransport
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import encode_status

DEADLINE_S = 30.0
APP = UUri("hpc", 0x10A1, 1, 0)
METHOD = UUri("chassis", 0x3001, 1, 1)
IDS = UuidSource(lambda: time.time_ns() // 1_000_000)

Answer = Callable[[UMessage], None]


class Line(UTransport):
    """Records sent messages and calls `answer` to respond, on the caller's thread or on another one."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.sent: list[UMessage] = []
        self.listeners: list[tuple[UUri, UUri | None, Listener]] = []
        self.answer = answer or (lambda message: self.arrive(response(IDS.next(), message, message.payload)))

    def send(self, message: UMessage) -> None:
        message.check()
        self.sent.append(message)
        self.answer(message)

    def arrive(self, message: UMessage) -> None:
        for _, _, listener in tuple(self.listeners):
            listener(message)

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self.listeners.append((source_filter, sink_filter, listener))

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self.listeners.remove((source_filter, sink_filter, listener))


def client(line: Line, **how: int) -> RpcClient:
    return RpcClient(line, APP, IDS, **how)


def refusal(call: Callable[[], object]) -> UStatus:
    with pytest.raises(UStatusError) as raised:
        call()
    return raised.value.status


# --------------------------------------------------------------------------------------------------- requests


def test_a_call_is_a_request_from_the_reply_address_to_the_method() -> None:
    line = Line()
    client(line).call(METHOD, b"200", UPayloadFormat.RAW, ttl=700, priority=UPriority.CS5)
    [sent_request] = line.sent
    attributes = sent_request.attributes
    assert (attributes.type, attributes.source, attributes.sink) == (UMessageType.REQUEST, APP, METHOD)
    assert (attributes.ttl, attributes.priority) == (700, UPriority.CS5)
    assert (sent_request.payload, attributes.payload_format) == (b"200", UPayloadFormat.RAW)


def test_a_call_defaults_to_cs4_and_5_s() -> None:
    line = Line()
    client(line).call(METHOD)
    [sent_request] = line.sent
    assert (sent_request.attributes.ttl, sent_request.attributes.priority, sent_request.payload) == (
        5_000,
        UPriority.CS4,
        b"",
    )


def test_a_client_listens_at_its_address() -> None:
    line = Line()
    calling = client(line)
    assert [(source, sink) for source, sink, _ in line.listeners] == [(ANY, APP)]
    calling.close()
    assert line.listeners == []


# -------------------------------------------------------------------------------------------------- responses


def test_a_call_returns_the_whole_response() -> None:
    line = Line()
    answer = client(line).call(METHOD, b"21.5")
    assert answer.payload == b"21.5"
    assert answer.attributes.reqid == line.sent[0].id


def test_a_response_may_arrive_on_another_thread() -> None:
    threads: list[threading.Thread] = []

    def answer(message: UMessage) -> None:
        threads.append(threading.Thread(target=line.arrive, args=(response(IDS.next(), message, b"late"),)))
        threads[0].start()

    line = Line(answer)
    assert client(line).call(METHOD).payload == b"late"
    threads[0].join(DEADLINE_S)


@pytest.mark.parametrize("code", [code for code in UCode if code is not UCode.OK])
def test_an_error_response_is_raised_with_its_code_and_text(code: UCode) -> None:
    status = UStatus(code, "the climate is off")
    line = Line(lambda message: line.arrive(error_response(IDS.next(), message, status)))
    assert refusal(lambda: client(line).call(METHOD)) == status


def test_a_response_with_status_ok_is_no_error() -> None:
    line = Line(lambda message: line.arrive(error_response(IDS.next(), message, UStatus(UCode.OK))))
    assert client(line).call(METHOD).attributes.commstatus is UCode.OK


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        pytest.param(b"\xff\xff", UStatus(UCode.NOT_FOUND), id="no status at all"),
        pytest.param(b"", UStatus(UCode.NOT_FOUND), id="no payload"),
        pytest.param(
            encode_status(UStatus(UCode.INTERNAL, "other")), UStatus(UCode.NOT_FOUND), id="another code"
        ),
        pytest.param(
            encode_status(UStatus(UCode.NOT_FOUND, "no such seat")),
            UStatus(UCode.NOT_FOUND, "no such seat"),
            id="the same code",
        ),
    ],
)
def test_the_code_of_an_error_is_that_of_its_attributes_whatever_the_payload(
    payload: bytes, expected: UStatus
) -> None:
    def answer(message: UMessage) -> None:
        error = error_response(IDS.next(), message, UStatus(UCode.NOT_FOUND))
        line.arrive(UMessage(error.id, error.attributes, payload))

    line = Line(answer)
    assert refusal(lambda: client(line).call(METHOD)) == expected


def test_a_call_without_response_ends_after_its_ttl() -> None:
    line = Line(lambda message: None)
    began_ns = time.monotonic_ns()
    status = refusal(lambda: client(line).call(METHOD, ttl=20))
    assert 20_000_000 <= time.monotonic_ns() - began_ns < 4_000_000_000
    assert status.code is UCode.DEADLINE_EXCEEDED
    assert status.message == f"no answer from {METHOD} within 20 ms"


def test_errors_of_the_transport_are_raised_unchanged() -> None:
    def answer(message: UMessage) -> None:
        raise UStatusError(UCode.UNAVAILABLE, "link down")

    calling = client(Line(answer), max_pending=1)
    for _ in range(3):  # no call stays pending
        assert refusal(lambda: calling.call(METHOD)) == UStatus(UCode.UNAVAILABLE, "link down")


@pytest.mark.parametrize(("how", "word"), [({"ttl": 0}, "ttl"), ({"priority": UPriority.CS3}, "priority")])
def test_an_invalid_call_is_refused_without_waiting(how: dict[str, int], word: str) -> None:
    status = refusal(lambda: client(Line()).call(METHOD, **how))  # type: ignore[arg-type]
    assert status.code is UCode.INVALID_ARGUMENT
    assert word in status.message


# ---------------------------------------------------------------------------------------- pairing, and its bounds


def other_than_the_answer(sent_request: UMessage) -> list[UMessage]:
    other = response(IDS.next(), UMessage(IDS.next(), sent_request.attributes), b"of another call")
    notified = notification(IDS.next(), UUri("chassis", 1, 1, 0x8000), APP)
    return [
        other,
        UMessage(
            notified.id, msgspec.structs.replace(notified.attributes, reqid=sent_request.id), b"no response"
        ),
        publish(IDS.next(), UUri("hpc", 1, 1, 0x8000)),
        notified,
        sent_request,
    ]


def test_only_the_response_with_the_right_reqid_ends_a_call() -> None:
    def answer(message: UMessage) -> None:
        for other in other_than_the_answer(message):
            line.arrive(other)
        line.arrive(response(IDS.next(), message, b"right"))
        line.arrive(response(IDS.next(), message, b"once more"))  # matches no pending call

    line = Line(answer)
    calling = client(line)
    assert [calling.call(METHOD).payload for _ in range(3)] == [b"right"] * 3


def test_a_late_response_is_dropped() -> None:
    line = Line(lambda message: None)
    calling = client(line)
    assert refusal(lambda: calling.call(METHOD, ttl=1)).code is UCode.DEADLINE_EXCEEDED
    line.arrive(response(IDS.next(), line.sent[0], b"late"))
    line.answer = lambda message: line.arrive(response(IDS.next(), message, b"in time"))
    assert calling.call(METHOD).payload == b"in time"


def calls_at_once(line: Line, calling: RpcClient, n: int) -> list[bytes]:
    """The responses of n concurrent calls in order of the threads; the test responds in reverse order."""
    answers = [b""] * n
    line.answer = lambda message: None

    def call(position: int) -> None:
        answers[position] = calling.call(METHOD, b"%d" % position, ttl=10_000).payload

    threads = [threading.Thread(target=call, args=(position,), daemon=True) for position in range(n)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(line.sent) >= n, "all requests")
    for asked in reversed(line.sent):
        line.arrive(response(IDS.next(), asked, b"re " + asked.payload))
    for thread in threads:
        thread.join(DEADLINE_S)
    return answers


def test_each_concurrent_call_gets_its_own_response() -> None:
    line = Line()
    assert calls_at_once(line, client(line), 8) == [b"re %d" % n for n in range(8)]
    assert len({message.id for message in line.sent}) == 8


def test_above_its_bound_a_call_is_refused_before_anything_is_sent() -> None:
    line = Line()
    calling = client(line, max_pending=1)
    refused: list[UStatus] = []

    def call_again(message: UMessage) -> None:
        if not refused:
            refused.append(refusal(lambda: calling.call(METHOD)))
        line.arrive(response(IDS.next(), message, b"ok"))

    line.answer = call_again
    assert calling.call(METHOD).payload == b"ok"
    assert refused == [UStatus(UCode.RESOURCE_EXHAUSTED, f"1 calls of {APP} are open")]
    assert len(line.sent) == 1
    assert calling.call(METHOD).payload == b"ok"  # there is space again


def test_after_close_a_call_ends_with_its_deadline() -> None:
    line = Line()
    calling = client(line)
    calling.close()
    assert refusal(lambda: calling.call(METHOD, ttl=5)).code is UCode.DEADLINE_EXCEEDED


def test_a_timeout_of_the_transport_is_not_a_missing_answer() -> None:
    def time_out(message: UMessage) -> None:
        raise TimeoutError("the network")

    with pytest.raises(TimeoutError, match="the network"):
        client(Line(time_out)).call(METHOD)
