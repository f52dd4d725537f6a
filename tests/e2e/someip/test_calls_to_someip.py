# SPDX-License-Identifier: Apache-2.0
"""A Zenoh application calls a method of a SOME/IP service."""

import time
from collections.abc import Callable

import pytest
from someip.header import SOMEIPMessageType, SOMEIPReturnCode

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import (
    ECHO,
    FAIL,
    FAIL_AS_RESPONSE,
    SILENT,
    SomeipFrame,
    SomeipNode,
    ZenohEntity,
    reply,
)
from tests.e2e.rigs.vehicle import CLIMATE, Vehicle
from tests.e2e.rigs.wire import Uri

SERVICE = Uri("chassis", CLIMATE, 1)

# up-spec, up-l1/someip.adoc, return codes; unlisted ones map to UNKNOWN.
UCODES = {
    wire.E_NOT_OK: wire.UNKNOWN,
    wire.E_UNKNOWN_SERVICE: wire.NOT_FOUND,
    wire.E_UNKNOWN_METHOD: wire.INVALID_ARGUMENT,
    wire.E_NOT_READY: wire.UNAVAILABLE,
    wire.E_NOT_REACHABLE: wire.INTERNAL,
    wire.E_TIMEOUT: wire.DEADLINE_EXCEEDED,
    wire.E_WRONG_PROTOCOL_VERSION: wire.FAILED_PRECONDITION,
    wire.E_WRONG_INTERFACE_VERSION: wire.FAILED_PRECONDITION,
    wire.E_MALFORMED_MESSAGE: wire.DATA_LOSS,
    wire.E_WRONG_MESSAGE_TYPE: wire.INVALID_ARGUMENT,
    0x0B: wire.UNKNOWN,
    0x20: wire.UNKNOWN,
    0x5E: wire.UNKNOWN,
    0xFF: wire.UNKNOWN,
}


def is_call_with(payload: bytes) -> Callable[[SomeipFrame], bool]:
    return lambda frame: frame.message is not None and frame.message.payload == payload


def test_a_call_is_sent_as_a_someip_request(vehicle: Vehicle, app: ZenohEntity) -> None:
    app.call(SERVICE.at(ECHO), b"as a request")
    frame = vehicle.ecu.inbox.wait_one(is_call_with(b"as a request"))
    head = frame.head
    assert frame.sender == ("127.0.0.1", vehicle.ports.someip)
    assert (head.service_id, head.method_id, head.interface_version) == (CLIMATE, ECHO, 1)
    assert (head.protocol_version, head.message_type) == (1, SOMEIPMessageType.REQUEST)
    assert head.return_code == SOMEIPReturnCode.E_OK
    assert head.client_id == app.address.ue_id
    assert head.session_id != 0


# [itest->dsn~up-transport-zenoh-message-type-mapping~1]
def test_the_answer_is_returned_as_the_response_to_the_call(vehicle: Vehicle, app: ZenohEntity) -> None:
    payload = bytes(range(256))
    method = SERVICE.at(ECHO)
    call_id = app.send_request(method, payload, ttl=4321, priority=wire.CS5)
    answer = app.wait_response(call_id)
    assert answer.payload == payload
    assert answer.key == wire.key(method, app.address)
    assert answer.head.id.is_version_7
    assert answer.head.id != call_id
    assert answer.head.commstatus in {None, wire.OK}
    assert answer.head._replace(commstatus=None) == wire.Attributes(
        answer.head.id,
        wire.RESPONSE,
        method,
        app.address,
        priority=wire.CS5,
        ttl=4321,
        reqid=call_id,
    )


def test_calls_in_flight_are_distinguished(vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity) -> None:
    callers = (app, fleet)
    calls = [
        (caller, caller.send_request(SERVICE.at(ECHO), payload), payload)
        for number in range(100)
        for caller in callers
        for payload in (f"{caller.address} {number}".encode(),)
    ]
    for caller, call_id, payload in calls:
        assert caller.wait_response(call_id).payload == payload
    assert all(len(caller.responses(call_id)) == 1 for caller, call_id, _ in calls)


@pytest.mark.parametrize("method", [FAIL, FAIL_AS_RESPONSE], ids=["ERROR", "RESPONSE"])
@pytest.mark.parametrize("code", UCODES, ids=hex)
def test_a_return_code_becomes_a_commstatus(
    vehicle: Vehicle, app: ZenohEntity, code: int, method: int
) -> None:
    answer = app.call(SERVICE.at(method), bytes((code,)))
    assert answer.head.commstatus == UCODES[code]
    assert answer.status.code == UCODES[code]
    assert f"{code:02X}" in answer.status.message.upper()


def test_the_payload_of_an_error_is_forwarded(vehicle: Vehicle, app: ZenohEntity) -> None:
    answer = app.call(SERVICE.at(FAIL), bytes((wire.E_NOT_READY,)) + b"in 5 s")
    assert answer.head.commstatus == answer.status.code == wire.UNAVAILABLE
    # details { type_url: "type.googleapis.com/...", value: SomeipReturnCode { return_code: 4, payload: "in 5 s" } }
    assert b"uprotocol.core.ustreamer.v1.SomeipReturnCode\x12\x0a\x08\x04\x12\x06in 5 s" in answer.payload


def test_a_call_without_an_answer_fails_at_the_end_of_its_ttl(vehicle: Vehicle, app: ZenohEntity) -> None:
    started = time.monotonic()
    call_id = app.send_request(SERVICE.at(SILENT), b"are you there", ttl=300)
    answer = app.wait_response(call_id)
    assert answer.received_at - started >= 0.29  # the ttl starts at the millisecond in the id
    assert answer.head.commstatus == wire.DEADLINE_EXCEEDED
    assert answer.status.code == wire.DEADLINE_EXCEEDED
    assert (answer.head.reqid, answer.head.ttl) == (call_id, 300)

    late = vehicle.ecu.inbox.wait_one(is_call_with(b"are you there"))
    vehicle.ecu.send_to_port(reply(late.head, payload=b"yes"), vehicle.ports.someip)
    assert app.call(SERVICE.at(ECHO), b"time passes").payload == b"time passes"
    assert app.responses(call_id) == [answer]


def test_a_second_answer_to_one_call_is_ignored(vehicle: Vehicle, app: ZenohEntity) -> None:
    call_id = app.send_request(SERVICE.at(ECHO), b"ask me once")
    answer = app.wait_response(call_id)
    again = vehicle.ecu.inbox.wait_one(is_call_with(b"ask me once"))
    vehicle.ecu.send_to_port(reply(again.head, payload=b"again"), vehicle.ports.someip)
    app.call(SERVICE.at(ECHO), b"time passes")
    assert app.responses(call_id) == [answer]


def test_an_answer_from_another_host_is_ignored(vehicle: Vehicle, app: ZenohEntity) -> None:
    call_id = app.send_request(SERVICE.at(SILENT), b"only you", ttl=20_000)
    frame = vehicle.ecu.inbox.wait_one(is_call_with(b"only you"))
    with SomeipNode(host="127.0.0.2") as other_host:
        other_host.send_to_port(reply(frame.head, payload=b"me"), vehicle.ports.someip)
    vehicle.ecu.send_to_port(reply(frame.head, payload=b"yes, me"), vehicle.ports.someip)
    assert app.wait_response(call_id).payload == b"yes, me"


@pytest.mark.parametrize(
    ("sink", "code"),
    [
        (Uri("nowhere", 0x3001, 1, ECHO), wire.UNAVAILABLE),
        (Uri("chassis", 0x3FFF, 1, ECHO), wire.NOT_FOUND),
        (Uri("chassis", CLIMATE, 9, ECHO), wire.NOT_FOUND),
        (Uri("chassis", CLIMATE, 1, 0x7F), wire.UNIMPLEMENTED),
    ],
    ids=["authority", "service", "version", "method"],
)
def test_a_call_of_an_unknown_method_is_answered_with_an_error(
    vehicle: Vehicle, app: ZenohEntity, sink: Uri, code: int
) -> None:
    answer = app.call(sink, b"a request")
    assert answer.key == wire.key(sink, app.address)
    assert answer.head.commstatus == code
    assert answer.status.code == code
    assert str(sink) in answer.status.message or sink.authority in answer.status.message


@pytest.mark.parametrize(
    "wrong",
    [{"ttl": 0}, {"ttl": None}, {"priority": wire.CS1}, {"priority": 0}],
    ids=["ttl 0", "no ttl", "CS1", "no priority"],
)
# [itest->dsn~service-error-model-error-response~1]
def test_an_invalid_request_is_answered_with_an_error(
    vehicle: Vehicle, app: ZenohEntity, wrong: dict[str, int | None]
) -> None:
    valid = wire.Attributes(
        wire.new_id(), wire.REQUEST, app.address, SERVICE.at(ECHO), priority=wire.CS4, ttl=1000
    )
    payload = f"with {wrong}".encode()
    answer = app.wait_response(app.send_message(valid._replace(**wrong), payload))  # type: ignore[arg-type]
    assert answer.head.commstatus == wire.INVALID_ARGUMENT
    assert answer.status.code == wire.INVALID_ARGUMENT
    assert vehicle.ecu.inbox.items(is_call_with(payload)) == []


def test_an_expired_request_is_not_forwarded(vehicle: Vehicle, app: ZenohEntity) -> None:
    old = wire.new_id()
    old = old._replace(msb=old.msb - (60_000 << 16))
    head = wire.Attributes(old, wire.REQUEST, app.address, SERVICE.at(ECHO), priority=wire.CS4, ttl=1000)
    answer = app.wait_response(app.send_message(head, b"a minute ago"))
    assert answer.head.commstatus == wire.DEADLINE_EXCEEDED
    assert vehicle.ecu.inbox.items(is_call_with(b"a minute ago")) == []
