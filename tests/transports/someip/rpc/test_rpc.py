# SPDX-License-Identifier: Apache-2.0
"""Calls over SOME/IP: no replies where none belong, and return codes that name the error."""

import socket
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

import msgspec
import pytest

from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext, RouteUnavailable
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.io import receive_loop
from ustreamer.transports.someip.protocol.codec import MessageType, ReturnCode, SomeIpMessage, decode, encode
from ustreamer.transports.someip.protocol.return_codes import SomeipFailure, decode_failure, encode_failure
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request, response, response_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode_status

WITHIN_S = 30.0  # a generous limit: only a failing test waits for it
APP = UUri.parse("//device1/3AB/1/0")
METHOD = UUri.parse("//chassis/CD/4/1")
NO_RETURN_METHOD = UUri.parse("//chassis/CD/4/2")


class Bench:
    """An endpoint, and an ECU that is a service and a client."""

    def __init__(self, ecu: socket.socket) -> None:
        self.ecu = ecu
        remote = "{}:{}".format(*ecu.getsockname())
        methods = [1, {"id": 2, "no_return": True}]
        config = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": 0,
            "clients": ["127.0.0.1"],
            "services": [
                {"service": 0x00CD, "major": 4, "methods": methods, "remote": remote},
                {
                    "service": 0x0777,
                    "major": 2,
                    "methods": methods,
                    "offered": True,
                    "provider": "//hpc.vin1/9077/1/0",
                },
            ],
        }
        self.endpoint = SomeipTransport(
            msgspec.convert(config, SomeipEndpoint), EndpointContext("chassis", "hpc.vin1", SYSTEM_CLOCK)
        )
        self.messages: SimpleQueue[UMessage] = SimpleQueue()
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self.messages.put)
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self.endpoint.open()

    def call(self, method: UUri, ttl: int = 10_000) -> UMessage:
        message = request(self.ids.next(), APP, method, b"hi", ttl=ttl)
        self.endpoint.send(message)
        return message

    def next_message(self) -> UMessage:
        return self.messages.get(timeout=WITHIN_S)

    def received(self) -> SomeIpMessage:
        return decode(self.ecu.recv(65_535))[0]

    def send_datagrams(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.ecu.sendto(datagram, self.endpoint.address)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ecu:
        ecu.bind(("127.0.0.1", 0))
        ecu.settimeout(WITHIN_S)
        made = Bench(ecu)
        yield made
        made.endpoint.close()


def sent_request(kind: MessageType = MessageType.REQUEST, **fields: int) -> SomeIpMessage:
    return msgspec.structs.replace(SomeIpMessage(0x0777, 1, 0x12, 9, 2, kind, payload=b"go"), **fields)


# --- REQUEST_NO_RETURN ------------------------------------------------------------------------------------------------


# [utest->RPC-345]
def test_a_call_without_return_succeeds_when_it_was_sent(bench: Bench) -> None:
    message = bench.call(NO_RETURN_METHOD)
    assert bench.received() == SomeIpMessage(
        0x00CD, 2, 0x03AB, 1, 4, MessageType.REQUEST_NO_RETURN, payload=b"hi"
    )

    answer = bench.next_message()
    answer.check(strict=True)
    assert answer.attributes == response_attributes(message, None, UPayloadFormat.UNSPECIFIED)
    assert answer.payload == b""
    assert bench.endpoint.statistics()["calls_open"] == bench.endpoint.statistics()["calls_expired"] == 0


def test_a_call_without_return_that_cannot_be_sent_fails(bench: Bench) -> None:
    def refuse(_datagram: bytes, _address: object) -> object:
        raise OSError(113, "No route to host")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench.endpoint._outbound, "sendto", refuse)
        with pytest.raises(RouteUnavailable):
            bench.call(NO_RETURN_METHOD)

    later = bench.call(NO_RETURN_METHOD)
    assert bench.next_message().attributes.reqid == later.id


def test_a_request_without_return_is_accepted_and_its_response_dropped(bench: Bench) -> None:
    bench.send_datagrams(encode(sent_request(MessageType.REQUEST_NO_RETURN, method=2)))
    delivered = bench.next_message()
    assert delivered.attributes.type is UMessageType.REQUEST
    assert delivered.attributes.source == UUri.parse("//chassis/12/1/0")

    bench.endpoint.send(
        UMessage(bench.ids.next(), response_attributes(delivered, None, UPayloadFormat.UNSPECIFIED), b"no")
    )
    assert bench.endpoint.statistics()["responses_not_wanted"] == 1


def test_a_request_to_a_method_without_return_is_a_wrong_message_type(bench: Bench) -> None:
    bench.send_datagrams(encode(sent_request(MessageType.REQUEST_NO_RETURN, method=2)))
    bench.next_message()
    bench.send_datagrams(encode(sent_request(method=2)))
    reply = bench.received()
    assert (reply.message_type, reply.return_code) == (MessageType.ERROR, ReturnCode.E_WRONG_MESSAGE_TYPE)
    assert (reply.client, reply.session, reply.payload) == (0x12, 9, b"")
    assert bench.endpoint.statistics()["refused_request_type"] == 1


# --- malformed messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (
            encode(sent_request())[:12] + b"\x03" + encode(sent_request())[13:],
            ReturnCode.E_WRONG_PROTOCOL_VERSION,
        ),
        (encode(sent_request())[:-1], ReturnCode.E_MALFORMED_MESSAGE),
    ],
)
def test_a_malformed_request_gets_an_error(bench: Bench, broken: bytes, code: ReturnCode) -> None:
    bench.send_datagrams(broken)
    reply = bench.received()
    assert (reply.message_type, reply.return_code) == (MessageType.ERROR, code)
    assert (reply.service, reply.method, reply.client, reply.session) == (0x0777, 1, 0x12, 9)


# [utest->RPC-704]
def test_unknown_senders_and_messages_with_an_error_get_no_reply(bench: Bench) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown_sender:
        unknown_sender.bind(("127.0.0.2", 0))
        unknown_sender.settimeout(WITHIN_S)
        unknown_sender.sendto(encode(sent_request())[:-1], bench.endpoint.address)
        unknown_sender.sendto(encode(sent_request()), bench.endpoint.address)
        bench.send_datagrams(
            encode(sent_request(service=0x0778, return_code=1)),
            encode(sent_request(service=0x0778, session=10)),
        )
        assert bench.received().session == 10

        unknown_sender.setblocking(False)
        with pytest.raises(BlockingIOError):
            unknown_sender.recv(65_535)
    counts = bench.endpoint.statistics()
    assert (counts["refused_request_service"], counts["refused_request_address"]) == (2, 1)


# --- return codes -----------------------------------------------------------------------------------------------------


# [utest->RPC-367]
@pytest.mark.parametrize("payload", [b"", b"why"])
@pytest.mark.parametrize("kind", [MessageType.ERROR, MessageType.RESPONSE])
def test_a_service_specific_return_code_passes_unchanged(
    bench: Bench, kind: MessageType, payload: bytes
) -> None:
    bench.call(METHOD)
    answer = msgspec.structs.replace(bench.received(), message_type=kind, return_code=0x25, payload=payload)
    bench.send_datagrams(encode(answer))

    delivered = bench.next_message()
    assert delivered.attributes.commstatus is UCode.UNKNOWN
    assert delivered.attributes.payload_format is UPayloadFormat.PROTOBUF
    assert decode_failure(delivered.payload) == SomeipFailure(0x25, payload)
    assert "(0x25)" in decode_status(delivered.payload).message


@pytest.mark.parametrize("payload", [b"", b"why"])
@pytest.mark.parametrize("code", [0x25, 0x5E, 0x08])
def test_a_provider_can_choose_its_someip_return_code(bench: Bench, code: int, payload: bytes) -> None:
    bench.send_datagrams(encode(sent_request()))
    status = UStatus(UCode.FAILED_PRECONDITION, "the car is locked")
    attributes = response_attributes(bench.next_message(), status.code, UPayloadFormat.PROTOBUF)
    bench.endpoint.send(
        UMessage(bench.ids.next(), attributes, encode_failure(status, SomeipFailure(code, payload)))
    )

    reply = bench.received()
    assert (reply.message_type, reply.return_code, reply.payload) == (MessageType.ERROR, code, payload)


@pytest.mark.parametrize("code", [each for each in UCode if each])
def test_no_failure_is_encoded_as_0xff_or_as_success(bench: Bench, code: UCode) -> None:
    bench.send_datagrams(encode(sent_request()))
    attributes = response_attributes(bench.next_message(), code, UPayloadFormat.PROTOBUF)
    bench.endpoint.send(
        UMessage(bench.ids.next(), attributes, encode_failure(UStatus(code, ""), SomeipFailure(0xFF)))
    )

    assert 0x01 <= bench.received().return_code <= 0x0A


def test_a_response_after_the_ttl_is_counted_and_dropped(bench: Bench) -> None:
    message = bench.call(METHOD, ttl=300)
    late = msgspec.structs.replace(bench.received(), message_type=MessageType.RESPONSE)
    expired = bench.next_message()
    assert expired.attributes.commstatus is UCode.DEADLINE_EXCEEDED
    assert expired.attributes.reqid == message.id

    bench.send_datagrams(encode(late), encode(sent_request()))
    assert bench.next_message().attributes.type is UMessageType.REQUEST
    counts = bench.endpoint.statistics()
    assert (counts["refused_response_unsolicited"], counts["calls_expired"]) == (1, 1)


def test_a_call_with_a_late_deadline_does_not_wake_the_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    monkeypatch.setattr(bench.endpoint._receive_loop, "wake", lambda: woken.append(1))
    loop = bench.endpoint._receive_loop
    for _ in range(3):
        wait_until(lambda: 0 < loop.sleeping_until_ns < 1 << 63, "the thread to sleep")
        bench.call(METHOD)
        bench.received()
    assert not woken


def test_a_call_with_an_early_deadline_ends_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_loop, "MAX_SLEEP_NS", 3_600_000_000_000)
    bench.endpoint._receive_loop.wake()  # so that the loop sleeps until the new deadline
    bench.send_datagrams(encode(sent_request()))
    bench.next_message()
    for _ in range(5):
        call = bench.call(METHOD, ttl=20)
        assert bench.next_message().attributes.reqid == call.id


# --- batches ----------------------------------------------------------------------------------------------------------


class BatchSide:
    """A batch listener; `batches` are the received batches."""

    def __init__(self) -> None:
        self.batches: SimpleQueue[list[UMessage]] = SimpleQueue()

    def __call__(self, message: UMessage) -> None:
        self.batches.put([message])

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        self.batches.put(list(messages))

    def next_messages(self, number: int) -> list[UMessage]:
        found: list[UMessage] = []
        while len(found) < number:
            found += self.batches.get(timeout=WITHIN_S)
        return found


@pytest.fixture
def together(bench: Bench) -> BatchSide:
    made = BatchSide()
    bench.endpoint.unregister_listener(ANY, ANY, bench.messages.put)
    bench.endpoint.register_listener(ANY, ANY, made)
    return made


def test_calls_sent_as_a_batch_get_their_own_responses(bench: Bench, together: BatchSide) -> None:
    transmit_all = bench.endpoint.batch_transmitter(None)
    calls = [request(bench.ids.next(), APP, METHOD, b"%d" % number, ttl=10_000) for number in range(40)]
    calls.insert(20, request(bench.ids.next(), APP, NO_RETURN_METHOD, b"notify", ttl=10_000))
    assert transmit_all(calls) == 41
    arrived = [bench.received() for _ in calls]
    assert [each.payload for each in arrived] == [each.payload for each in calls]
    asked_of = [each for each in arrived if each.payload != b"notify"]
    bench.send_datagrams(
        *(
            encode(msgspec.structs.replace(each, message_type=MessageType.RESPONSE))
            for each in reversed(asked_of)
        )
    )
    answers = together.next_messages(41)
    by_id = {each.id: each.payload for each in calls}
    for each in answers:
        each.check()
        assert each.attributes.reqid is not None
        asked_for = by_id.pop(each.attributes.reqid)
        assert each.payload == (b"" if asked_for == b"notify" else asked_for)
    assert not by_id
    figures = bench.endpoint.statistics()
    assert (figures["calls_open"], figures["sent"], figures["received"]) == (0, 41, 41)


def test_requests_received_as_a_batch_are_answered_as_a_batch(bench: Bench, together: BatchSide) -> None:
    bench.send_datagrams(*(encode(sent_request(session=number + 1)) for number in range(40)))
    requests = together.next_messages(40)
    assert len({each.id for each in requests}) == 40
    answers = [response(bench.ids.next(), each, b"%d" % n) for n, each in enumerate(requests)]
    assert bench.endpoint.batch_transmitter(None)(answers) == 40
    arrived = [bench.received() for _ in answers]
    assert [(each.session, each.payload) for each in arrived] == [(n + 1, b"%d" % n) for n in range(40)]
    figures = bench.endpoint.statistics()
    assert (figures["requests_open"], figures["sent"], figures["received"]) == (0, 40, 40)
