# SPDX-License-Identifier: Apache-2.0
"""The SOME/IP mapping of up-spec, row by row: ids and addresses, message types, return codes."""

from typing import Any

import msgspec
import pytest

from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.discovery.service_registry import ServiceRegistry
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.codec import MessageType, ReturnCode, SomeIpMessage, decode, encode
from ustreamer.transports.someip.protocol.correlation import InboundRequest, OutboundCall
from ustreamer.transports.someip.protocol.mapping import (
    REFUSAL_RETURN_CODES,
    EventTemplate,
    RemoteService,
    SomeipRefusal,
    decode_response,
    encode_refusal,
    encode_request,
    encode_response,
)
from ustreamer.transports.someip.protocol.return_codes import decode_failure
from ustreamer.uprotocol.uattributes import (
    UAttributes,
    UMessageType,
    UPayloadFormat,
    UPriority,
    check_attributes,
)
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

ECU, OTHER = "127.0.0.1", "127.0.0.2"
WHEELS = {"service": 0x10AB, "major": 3, "events": [{"id": 0x80CD}, {"id": 0x80CE}], "remote": f"{ECU}:30501"}
REAR = {"service": 0x10AB, "major": 3, "instance": 2, "events": [{"id": 0x80CD}], "remote": f"{OTHER}:30501"}
CLIMATE = {"service": 0x00CD, "major": 4, "methods": [0x000B], "remote": f"{ECU}:30502"}
DOORS = {
    "service": 0x0777,
    "major": 2,
    "methods": [0x0001, 0x0002],
    "events": [{"id": 0x8001}, {"id": 0x8002}],
    "offered": True,
    "provider": "//hpc.vin1/9077/1/0",
    "remote": f"{ECU}:30510",
    "receivers": [{"address": f"{OTHER}:30510", "max_frequency": 10}],
}
SILENT = {"service": 0x0778, "major": 1, "events": [{"id": 0x8001}], "offered": True, "provider": "/9078/1/0"}

ID = UUID(0x018D548EA8E07000, 0x8000000000000001)


def services(*sections: dict[str, Any], **keys: Any) -> ServiceRegistry:
    base = {
        "transport": "someip",
        "authorities": ["chassis", "trailer"],
        "bind": "127.0.0.1",
        "port": 30500,
        "services": sections or [WHEELS, REAR, CLIMATE, DOORS, SILENT],
    }
    return ServiceRegistry(msgspec.convert(base | keys, SomeipEndpoint), "hpc.vin1")


def event(service: int = 0x10AB, method: int = 0x80CD, major: int = 3) -> SomeIpMessage:
    return SomeIpMessage(service, method, 0, 1, major, MessageType.NOTIFICATION, 0, b"hello")


def call(service: int = 0x0777, method: int = 1, major: int = 2, client: int = 0x3AB) -> SomeIpMessage:
    return SomeIpMessage(service, method, client, 9, major, MessageType.REQUEST, 0, b"open")


def accepted(attributes: UAttributes | SomeipRefusal) -> UAttributes:
    assert isinstance(attributes, UAttributes), attributes
    check_attributes(attributes, strict=True)
    return attributes


# --- events in --------------------------------------------------------------------------------------------------------


# [utest->RPC-538]
def test_an_event_is_a_publication_of_its_service() -> None:
    assert accepted(services().event_attributes(event(), ECU)) == UAttributes(
        type=UMessageType.PUBLISH, source=UUri.parse("//chassis/10AB/3/80CD"), priority=UPriority.CS1
    )


def test_an_instance_other_than_1_is_identified_by_its_address_and_is_in_the_ue_id() -> None:
    assert accepted(services().event_attributes(event(), OTHER)).source == UUri.parse(
        "//chassis/210AB/3/80CD"
    )


def test_all_messages_of_an_event_share_their_attributes() -> None:
    table = services()

    assert table.event_attributes(event(), ECU) is table.event_attributes(event(), ECU)
    assert table.event_attributes(event(), ECU) is not table.event_attributes(event(method=0x80CE), ECU)


def test_the_session_and_the_return_code_of_an_event_are_ignored() -> None:
    odd = msgspec.structs.replace(event(), session=0, client=5, return_code=ReturnCode.E_E2E)

    assert accepted(services().event_attributes(odd, ECU)).source == UUri.parse("//chassis/10AB/3/80CD")


# [utest->RPC-56, COMPAT-1201]
@pytest.mark.parametrize(
    ("message", "host", "reason"),
    [
        (event(), "127.0.0.3", SomeipRefusal.EVENT_ADDRESS),
        (event(method=0x80CE), OTHER, SomeipRefusal.EVENT_ADDRESS),  # the rear instance has no such event
        (event(major=2), ECU, SomeipRefusal.EVENT_VERSION),
        (event(major=2), "127.0.0.3", SomeipRefusal.EVENT_VERSION),
        (event(method=0x80CF), ECU, SomeipRefusal.EVENT_UNKNOWN),
        (event(service=0x10AC), ECU, SomeipRefusal.EVENT_UNKNOWN),
        (
            event(service=0x0777, method=0x8001, major=2),
            ECU,
            SomeipRefusal.EVENT_UNKNOWN,
        ),  # offered by this endpoint
        (
            event(service=0xFFFF, method=0x8100, major=1),
            ECU,
            SomeipRefusal.EVENT_UNKNOWN,
        ),  # service discovery
    ],
)
def test_an_unknown_event_is_refused(message: SomeIpMessage, host: str, reason: SomeipRefusal) -> None:
    assert services().event_attributes(message, host) is reason


# --- requests in ------------------------------------------------------------------------------------------------------


def test_a_request_has_the_client_id_as_source_and_the_provider_as_sink() -> None:
    assert accepted(services().request_attributes(call(), ECU)) == UAttributes(
        type=UMessageType.REQUEST,
        source=UUri.parse("//chassis/3AB/1/0"),
        sink=UUri.parse("//hpc.vin1/9077/1/1"),
        priority=UPriority.CS4,
        ttl=1000,
    )


def test_ttl_and_version_of_a_request_come_from_the_configuration() -> None:
    attributes = accepted(services(client_version=7, request_ttl_ms=250).request_attributes(call(), ECU))

    assert (attributes.source.ue_version_major, attributes.ttl) == (7, 250)


def test_an_empty_authority_of_a_provider_is_the_streamers_own() -> None:
    offered = {"service": 5, "major": 1, "methods": [1], "offered": True, "provider": "/5/1/0"}
    attributes = accepted(services(offered).request_attributes(call(5, 1, 1), ECU))

    assert attributes.sink == UUri.parse("//hpc.vin1/5/1/1")


def test_requests_of_one_client_for_one_method_share_their_attributes() -> None:
    table = services()

    assert table.request_attributes(call(), ECU) is table.request_attributes(call(), ECU)
    assert table.request_attributes(call(client=1), ECU) is not table.request_attributes(call(client=2), ECU)


@pytest.mark.parametrize("client", [0, 1, 0xFFFE])
def test_a_client_id_becomes_the_ue_id(client: int) -> None:
    assert accepted(services().request_attributes(call(client=client), ECU)).source == UUri(
        "chassis", client, 1, 0
    )


REFUSED_REQUESTS = {
    "a service we do not offer": (call(service=0x0779), ECU, SomeipRefusal.REQUEST_SERVICE),
    "a service of the network's": (
        call(service=0x00CD, method=0xB, major=4),
        ECU,
        SomeipRefusal.REQUEST_SERVICE,
    ),
    "another version": (call(major=1), ECU, SomeipRefusal.REQUEST_VERSION),
    "an unknown method": (call(method=3), ECU, SomeipRefusal.REQUEST_METHOD),
    "an event": (call(method=0x8001), ECU, SomeipRefusal.REQUEST_METHOD),
    "method 0": (call(method=0), ECU, SomeipRefusal.REQUEST_METHOD),
    "the client id of a wildcard": (call(client=0xFFFF), ECU, SomeipRefusal.REQUEST_CLIENT),
    "an unknown sender": (call(), "10.0.0.1", SomeipRefusal.REQUEST_ADDRESS),
    "an unknown sender and an unknown service": (
        call(service=0x0779),
        "10.0.0.1",
        SomeipRefusal.REQUEST_ADDRESS,
    ),
}


# [utest->COMPAT-801]
@pytest.mark.parametrize(("message", "host", "reason"), REFUSED_REQUESTS.values(), ids=REFUSED_REQUESTS)
def test_an_invalid_request_is_refused(message: SomeIpMessage, host: str, reason: SomeipRefusal) -> None:
    assert services().request_attributes(message, host) is reason


def test_a_request_that_was_accepted_from_one_host_is_refused_from_another() -> None:
    table = services()
    accepted(table.request_attributes(call(), ECU))

    assert table.request_attributes(call(), "10.0.0.1") is SomeipRefusal.REQUEST_ADDRESS


def test_the_caches_of_clients_are_bounded() -> None:
    table = services(clients=["0.0.0.0/0"])
    for client in range(2 * 4096):
        table.request_attributes(call(client=client), f"10.0.{client >> 8}.{client & 255}")

    assert len(table._requesters) <= 4096
    assert len(table._client_hosts) <= 4096


# [utest->RPC-816]
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (SomeipRefusal.REQUEST_SERVICE, 0x02),
        (SomeipRefusal.REQUEST_METHOD, 0x03),
        (SomeipRefusal.REQUEST_VERSION, 0x08),
        (SomeipRefusal.REQUEST_TYPE, 0x0A),
        (SomeipRefusal.REQUEST_CLIENT, 0x01),
        (SomeipRefusal.REQUEST_LIMIT, 0x01),
        (SomeipRefusal.REQUEST_ADDRESS, None),
    ],
)
def test_each_refusal_has_its_return_code(reason: SomeipRefusal, code: int | None) -> None:
    assert REFUSAL_RETURN_CODES.get(reason) == code


# [utest->RPC-655]
def test_the_reply_to_a_refused_request_has_its_ids_and_no_payload() -> None:
    datagram = encode_refusal(call(major=1), ReturnCode.E_WRONG_INTERFACE_VERSION)

    assert datagram.hex() == "077700010000000803ab000901018108"


# --- requests out -----------------------------------------------------------------------------------------------------


def outgoing(payload: bytes = b"hi", source: str = "//device1/3AB/1/0") -> UMessage:
    return request(ID, UUri.parse(source), UUri.parse("//chassis/CD/4/B"), payload, ttl=5000)


def test_a_request_is_sent_to_the_service_of_its_sink() -> None:
    assert services().remote_service(UUri.parse("//chassis/CD/4/B")) == RemoteService(
        0x00CD, 4, {0xB: (ECU, 30502)}
    )


def test_a_request_is_sent_to_the_instance_of_its_sink() -> None:
    rear = {"service": 0x00CD, "major": 4, "instance": 2, "methods": [0x000B], "remote": f"{OTHER}:30502"}

    assert services(CLIMATE, rear).remote_service(UUri.parse("//chassis/200CD/4/B")).methods == {
        0xB: (OTHER, 30502)
    }


def test_a_method_is_called_at_the_address_of_its_protocol() -> None:
    mixed = CLIMATE | {"methods": [0x000B, {"id": 0x000C, "protocol": "tcp"}], "remote_tcp": f"{ECU}:30510"}

    methods = services(mixed).remote_service(UUri.parse("//chassis/CD/4/B")).methods

    assert methods == {0xB: (ECU, 30502), 0xC: (ECU, 30510)}
    assert [type(each) for each in methods.values()] == [tuple, TcpAddress]


def test_an_event_over_tcp_is_expected_from_the_tcp_address_of_its_service() -> None:
    mixed = {
        "service": 0x10AB,
        "major": 3,
        "events": [{"id": 0x8001}, {"id": 0x8002, "protocol": "tcp"}],
        "remote": f"{ECU}:1",
        "remote_tcp": f"{OTHER}:1",
    }

    events = services(mixed).events_by_host

    assert {host: [id & 0xFFFF for id, _ in keys] for host, keys in events.items()} == {
        ECU: [0x8001],
        OTHER: [0x8002],
    }


def test_events_over_tcp_go_to_the_host_of_the_receiver() -> None:
    offered = {
        "service": 1,
        "major": 1,
        "offered": True,
        "provider": "//hpc.vin1/9077/1/0",
        "protocol": "tcp",
        "events": [{"id": 0x8001}, {"id": 0x8002, "protocol": "udp"}],
        "remote": f"{ECU}:30501",
    }

    (receiver,) = services(offered).receivers

    assert receiver.over_tcp == {UUri.parse("//hpc.vin1/9077/1/8001")}
    assert receiver.tcp_address == TcpAddress(ECU, 0)


@pytest.mark.parametrize(
    ("sink", "code"),
    [
        ("//chassis/CE/4/B", UCode.NOT_FOUND),
        ("//chassis/CD/3/B", UCode.NOT_FOUND),  # another version
        ("//chassis/200CD/4/B", UCode.NOT_FOUND),  # another instance
        ("//chassis/100CD/4/B", UCode.NOT_FOUND),  # instance 1 is written 0
        ("//trailer/CD/4/B", UCode.NOT_FOUND),  # services are at the first authority
        ("//chassis/777/2/1", UCode.NOT_FOUND),  # offered by this endpoint
        ("//chassis/CD/4/C", UCode.UNIMPLEMENTED),
    ],
)
def test_a_request_without_a_target_fails_with_a_reason(sink: str, code: UCode) -> None:
    with pytest.raises(UStatusError) as refused:
        services().remote_service(UUri.parse(sink))

    assert refused.value.code is code
    assert sink in refused.value.message


# [utest->RPC-92, RPC-144, RPC-329]
def test_a_request_is_encoded_as_the_golden_frame() -> None:
    remote = services().remote_service(UUri.parse("//chassis/CD/4/B"))

    assert encode_request(outgoing(), remote, 0x03AB_0001).hex() == "00cd000b0000000a03ab0001010400006869"


# --- responses --------------------------------------------------------------------------------------------------------


def answer(kind: int, code: int, payload: bytes) -> SomeIpMessage:
    return SomeIpMessage(0x00CD, 0x000B, 0x03AB, 1, 4, kind, code, payload)


CALL = OutboundCall(outgoing(b""), 0x00CD, 0x000B, (ECU, 30502))


def test_a_response_has_the_ends_priority_ttl_and_id_of_the_request() -> None:
    message, _ = decode(bytes.fromhex("00cd000b0000000a03ab0001010480006f6b"))

    attributes, payload = decode_response(CALL, message)

    assert payload == b"ok"
    assert accepted(attributes) == UAttributes(
        type=UMessageType.RESPONSE,
        source=UUri.parse("//chassis/CD/4/B"),
        sink=UUri.parse("//device1/3AB/1/0"),
        priority=UPriority.CS4,
        ttl=5000,
        reqid=ID,
    )


def test_the_priority_of_a_response_is_the_requests() -> None:
    urgent = msgspec.structs.replace(CALL.request.attributes, priority=UPriority.CS6)
    attributes, _ = decode_response(
        msgspec.structs.replace(CALL, request=UMessage(ID, urgent)), answer(0x80, 0, b"")
    )

    assert attributes.priority is UPriority.CS6


ERRORS = {
    "type ERROR": (answer(0x81, 0x02, b""), UCode.NOT_FOUND, "E_UNKNOWN_SERVICE (0x02)"),
    "type RESPONSE with a code": (answer(0x80, 0x04, b""), UCode.UNAVAILABLE, "E_NOT_READY (0x04)"),
    "type ERROR with code OK": (answer(0x81, 0x00, b""), UCode.UNKNOWN, "E_OK (0x00)"),
    "a code of the service's own": (answer(0x81, 0x21, b""), UCode.UNKNOWN, "not in the standard (0x21)"),
}


@pytest.mark.parametrize(("message", "code", "code_text"), ERRORS.values(), ids=ERRORS)
def test_a_failure_without_payload_becomes_a_readable_status(
    message: SomeIpMessage, code: UCode, code_text: str
) -> None:
    attributes, payload = decode_response(CALL, message)

    assert accepted(attributes).commstatus is code
    assert attributes.payload_format is UPayloadFormat.PROTOBUF
    assert decode_status(payload) == UStatus(code, f"{ECU}:30502 answered with return code {code_text}")


def test_the_golden_error_frame_is_a_response_with_not_found() -> None:
    message, _ = decode(bytes.fromhex("00cd000b0000000803ab000101048102"))

    assert decode_response(CALL, message)[0].commstatus is UCode.NOT_FOUND


# [utest->RPC-101]
@pytest.mark.parametrize(
    ("code", "code_text"), [(0x01, "E_NOT_OK (0x01)"), (0x21, "not in the standard (0x21)")]
)
def test_a_failure_with_a_payload_keeps_both_its_code_and_its_payload(code: int, code_text: str) -> None:
    failed = answer(0x81, code, b"\x01\x02")
    attributes, payload = decode_response(CALL, failed)

    assert accepted(attributes).commstatus is UCode.UNKNOWN
    assert attributes.payload_format is UPayloadFormat.PROTOBUF
    assert decode_status(payload) == UStatus(
        UCode.UNKNOWN, f"{ECU}:30502 answered with return code {code_text}"
    )
    assert decode_failure(payload) == (code, b"\x01\x02")
    assert encode_response(ASKED, UCode.UNKNOWN, payload) == encode(failed)  # through a second streamer


ASKED = InboundRequest(0x00CD, 0x000B, 0x03AB, 1, 4, (ECU, 4000), expects_response=True)


# [utest->RPC-338]
@pytest.mark.parametrize(
    ("commstatus", "payload", "frame"),
    [
        (None, b"ok", "00cd000b0000000a03ab0001010480006f6b"),
        (UCode.OK, b"ok", "00cd000b0000000a03ab0001010480006f6b"),
        (UCode.NOT_FOUND, b"", "00cd000b0000000803ab000101048102"),
        (UCode.NOT_FOUND, b"a UStatus in protobuf", "00cd000b0000000803ab000101048102"),
    ],
)
def test_responses_are_encoded_as_the_golden_frames(
    commstatus: UCode | None, payload: bytes, frame: str
) -> None:
    assert encode_response(ASKED, commstatus, payload).hex() == frame


# --- events out -------------------------------------------------------------------------------------------------------


def test_the_receivers_of_an_offered_service_are_subscribers_of_its_providers_topics() -> None:
    table = services()
    topics = {
        UUri.parse("//hpc.vin1/9077/1/8001"): EventTemplate(0x0777, 0x8001, 2),
        UUri.parse("//hpc.vin1/9077/1/8002"): EventTemplate(0x0777, 0x8002, 2),
    }

    assert [(str(each.subscriber), each.address, each.period_ns) for each in table.receivers] == [
        ("up://chassis/777/2/0", (ECU, 30510), 0),
        ("up://chassis/10777/2/0", (OTHER, 30510), 100_000_000),
    ]
    assert [each.events for each in table.receivers] == [topics, topics]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("//hpc.vin1/9077/1/8003", UCode.UNIMPLEMENTED),
        ("//hpc.vin1/9077/2/8001", UCode.NOT_FOUND),
        ("//hpc.vin1/9078/1/8001", UCode.NOT_FOUND),  # offered, without receivers
        ("//hpc.vin1/777/2/8001", UCode.NOT_FOUND),
    ],
)
def test_a_publication_without_a_receiver_fails_with_a_reason(topic: str, code: UCode) -> None:
    error = services().no_event_error(UUri.parse(topic))

    assert error.code is code
    assert topic in error.message
