# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP client calls a service that the streamer offers for a Zenoh application."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from someip.header import SOMEIPMessageType, SOMEIPReturnCode

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipFrame, SomeipNode, ZenohEntity, ZenohSample
from tests.e2e.rigs.vehicle import OFFERED, PROVIDER, Vehicle

CLIENT = 0x0AB1
METHOD = 0x0001

# up-spec, up-l1/someip.adoc, return codes: all permitted ones if several, E_NOT_OK if none.
RETURN_CODES = {
    wire.UNKNOWN: {wire.E_NOT_OK},
    wire.NOT_FOUND: {wire.E_UNKNOWN_SERVICE},
    wire.INVALID_ARGUMENT: {wire.E_UNKNOWN_METHOD, wire.E_WRONG_MESSAGE_TYPE},
    wire.UNAVAILABLE: {wire.E_NOT_READY},
    wire.INTERNAL: {wire.E_NOT_REACHABLE},
    wire.DEADLINE_EXCEEDED: {wire.E_TIMEOUT},
    wire.FAILED_PRECONDITION: {wire.E_WRONG_PROTOCOL_VERSION, wire.E_WRONG_INTERFACE_VERSION},
    wire.DATA_LOSS: {wire.E_MALFORMED_MESSAGE},
    wire.UNIMPLEMENTED: {wire.E_UNKNOWN_METHOD},
    wire.PERMISSION_DENIED: {wire.E_NOT_OK},
}

sessions = itertools.count(0x0101)


@pytest.fixture
def client() -> Iterator[SomeipNode]:
    with SomeipNode() as peer:
        yield peer


@pytest.fixture
def provider(vehicle: Vehicle) -> Iterator[ZenohEntity]:
    with ZenohEntity(vehicle.ports.backbone, PROVIDER.authority, PROVIDER.ue_id) as peer:
        yield peer


def send_call(client: SomeipNode, vehicle: Vehicle, payload: bytes, **fields: int) -> int:
    """Send a request without waiting; returns its session id. `fields` replaces header fields."""
    session = next(sessions)
    values = {"service": OFFERED, "method": METHOD, "message_type": wire.SOMEIP_REQUEST} | fields
    service, method, kind = values.pop("service"), values.pop("method"), values.pop("message_type")
    client.send_to_port(
        wire.someip(service, method, kind, payload, client=CLIENT, session=session, **values),
        vehicle.ports.someip,
    )
    return session


def wait_response(client: SomeipNode, session: int) -> SomeipFrame:
    return client.inbox.wait_one(lambda frame: frame.head.session_id == session)


def has_payload(payload: bytes) -> Callable[[ZenohSample], bool]:
    return lambda sample: sample.payload == payload


def test_a_someip_request_arrives_as_a_request_to_the_provider(
    vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity
) -> None:
    send_call(client, vehicle, b"22.5 C")
    received_call = provider.inbox.wait_one(has_payload(b"22.5 C"))
    assert received_call.key == "up/chassis/AB1/0/1/0/hpc.vin1/8401/0/1/1"
    head = received_call.head
    assert head.id.is_version_7
    assert (head.type, head.sink) == (wire.REQUEST, PROVIDER.at(METHOD))
    assert (head.source.authority, head.source.ue_id, head.source.resource) == ("chassis", CLIENT, 0)
    assert head.priority >= wire.CS4
    assert head.ttl
    assert head.payload_format == 0  # SOME/IP does not define it


def test_the_response_of_the_provider_is_returned_to_the_client(
    vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity
) -> None:
    session = send_call(client, vehicle, b"there")
    provider.respond(provider.inbox.wait_one(has_payload(b"there")), bytes(range(256)))
    frame = wait_response(client, session)
    head = frame.head
    assert frame.sender == ("127.0.0.1", vehicle.ports.someip)
    assert (head.service_id, head.method_id, head.interface_version) == (OFFERED, METHOD, 1)
    assert (head.client_id, head.session_id) == (CLIENT, session)
    assert (head.message_type, head.return_code) == (SOMEIPMessageType.RESPONSE, SOMEIPReturnCode.E_OK)
    assert head.payload == bytes(range(256))


def test_commstatus_ok_is_not_an_error(vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity) -> None:
    session = send_call(client, vehicle, b"text twice")
    provider.respond(provider.inbox.wait_one(has_payload(b"text twice")), b"fine", commstatus=wire.OK)
    head = wait_response(client, session).head
    assert (head.message_type, head.return_code) == (SOMEIPMessageType.RESPONSE, SOMEIPReturnCode.E_OK)
    assert head.payload == b"fine"


@pytest.mark.parametrize("commstatus", RETURN_CODES)
def test_a_failure_is_returned_as_an_error_with_a_return_code(
    vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity, commstatus: int
) -> None:
    # Unique to this test: a request to the previous provider may be delivered again.
    payload = b"fail with %d" % commstatus
    session = send_call(client, vehicle, payload)
    provider.respond(
        provider.inbox.wait_one(has_payload(payload)), wire.field(1, commstatus), commstatus=commstatus
    )
    head = wait_response(client, session).head
    assert head.message_type == SOMEIPMessageType.ERROR
    assert head.return_code.value in RETURN_CODES[commstatus]
    assert (head.client_id, head.session_id) == (CLIENT, session)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"method": 0x0077}, wire.E_UNKNOWN_METHOD),
        ({"interface_version": 9}, wire.E_WRONG_INTERFACE_VERSION),
        ({"service": 0x4FFF}, wire.E_UNKNOWN_SERVICE),
    ],
    ids=["method", "version", "service"],
)
def test_a_request_for_an_unknown_service_is_an_error(
    vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity, wrong: dict[str, int], code: int
) -> None:
    session = send_call(client, vehicle, b"not offered", **wrong)
    head = wait_response(client, session).head
    assert (head.message_type, head.return_code.value) == (SOMEIPMessageType.ERROR, code)
    assert (head.client_id, head.session_id, head.payload) == (CLIENT, session, b"")
    assert provider.inbox.items(has_payload(b"not offered")) == []


def test_a_client_gets_an_error_when_the_provider_does_not_respond(
    vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity
) -> None:
    session = send_call(client, vehicle, b"silence")
    received_call = provider.inbox.wait_one(has_payload(b"silence"))
    head = wait_response(client, session).head
    assert (head.message_type, head.return_code) == (SOMEIPMessageType.ERROR, SOMEIPReturnCode.E_TIMEOUT)

    provider.respond(received_call, b"too late")
    later = send_call(client, vehicle, b"and now")
    provider.respond(provider.inbox.wait_one(has_payload(b"and now")), b"here I am")
    assert wait_response(client, later).head.payload == b"here I am"
    assert len(client.inbox.items()) == 2


def test_a_fire_and_forget_request_gets_no_response(
    vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity
) -> None:
    send_call(client, vehicle, b"just do it", message_type=wire.SOMEIP_REQUEST_NO_RETURN)
    provider.respond(provider.inbox.wait_one(has_payload(b"just do it")), b"done")
    session = send_call(client, vehicle, b"confirmed")
    provider.respond(provider.inbox.wait_one(has_payload(b"confirmed")), b"done")
    wait_response(client, session)
    assert len(client.inbox.items()) == 1


def test_two_clients_with_equal_ids_are_distinguished(
    vehicle: Vehicle, client: SomeipNode, provider: ZenohEntity
) -> None:
    with SomeipNode() as other:
        for peer, payload in ((client, b"one"), (other, b"two")):
            peer.send_to_port(
                wire.someip(OFFERED, METHOD, wire.SOMEIP_REQUEST, payload, client=CLIENT, session=7),
                vehicle.ports.someip,
            )
        for payload in (b"two", b"one"):
            provider.respond(provider.inbox.wait_one(has_payload(payload)), payload)
        assert wait_response(client, 7).head.payload == b"one"
        assert wait_response(other, 7).head.payload == b"two"
