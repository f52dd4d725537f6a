# SPDX-License-Identifier: Apache-2.0
"""SOME/IP and uProtocol, one in the words of the other (up-spec, up-l1/someip.adoc). Pure.

    NOTIFICATION  from a service's remote   Publish   source //<authority>/<ue_id of the service>/<major>/<event>
    REQUEST       to an offered service     Request   source //<authority>/<client id>/<client_version>/0,
                                                      sink the provider with the method as resource
    RESPONSE, ERROR                         Response  ends, priority, ttl and reqid of the request
    NOTIFICATION  to receivers              Publish   whose source is the provider with the event as resource
    REQUEST       to a service's remote     Request   whose sink is the service
    RESPONSE, ERROR                         Response  by its reqid
    -                                       Notification: SOME/IP has nothing like it

<authority> is the first one of the endpoint. A header has no instance: it is known by the address an event comes from.
It has no priority either, so events are CS1 and requests CS4; no ttl, so events have none and requests a configured
one; no payload format, so that is UNSPECIFIED.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MessageType,
    ReturnCode,
    SomeIpMessage,
    pack_header,
)
from ustreamer.transports.someip.protocol.correlation import InboundRequest, OutboundCall
from ustreamer.transports.someip.protocol.return_codes import (
    SomeipFailure,
    decode_failure,
    encode_failure,
    return_code_name,
    return_code_of,
    ucode_of,
)
from ustreamer.transports.someip.protocol.tp_config import TpSegmentation
from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, response_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

MAX_PAYLOAD: Final = 65_507 - HEADER_LENGTH
"""What fits behind the header into one UDP datagram over IPv4."""

NO_CLIENT: Final = 0
"""The client id of events, which belong to no client (SIP-7)."""

# --- refusals ---------------------------------------------------------------------------------------------------------


class SomeipRefusal(StrEnum):
    """Why a well-formed SOME/IP message was not accepted: labels of counters, so few and fixed."""

    EVENT_UNKNOWN = "event_unknown"
    EVENT_ADDRESS = "event_address"  # a configured event, but not from where its service lives
    EVENT_VERSION = "event_version"
    REQUEST_ADDRESS = "request_address"  # not one of `clients`
    REQUEST_SERVICE = "request_service"
    REQUEST_VERSION = "request_version"
    REQUEST_METHOD = "request_method"
    REQUEST_TYPE = "request_type"  # REQUEST for a method that is declared with no_return
    REQUEST_CLIENT = "request_client"  # client id 0xFFFF, which as a uEntity would be a wildcard
    REQUEST_LIMIT = "request_limit"  # max_pending
    RESPONSE_UNSOLICITED = "response_unsolicited"  # never asked for, answered already, or too late (SIP-4)
    RESPONSE_ADDRESS = "response_address"
    RESPONSE_METHOD = "response_method"
    MESSAGE_TYPE = "message_type"  # the obsolete acknowledgements


REFUSAL_RETURN_CODES: Final[Mapping[SomeipRefusal, ReturnCode]] = {
    SomeipRefusal.REQUEST_SERVICE: ReturnCode.E_UNKNOWN_SERVICE,
    SomeipRefusal.REQUEST_VERSION: ReturnCode.E_WRONG_INTERFACE_VERSION,
    SomeipRefusal.REQUEST_METHOD: ReturnCode.E_UNKNOWN_METHOD,
    SomeipRefusal.REQUEST_TYPE: ReturnCode.E_WRONG_MESSAGE_TYPE,
    SomeipRefusal.REQUEST_CLIENT: ReturnCode.E_NOT_OK,
    SomeipRefusal.REQUEST_LIMIT: return_code_of(UCode.RESOURCE_EXHAUSTED),
}
"""What a REQUEST that is refused for these reasons is answered; strangers (REQUEST_ADDRESS) get no answer."""

# --- the services of an endpoint ----------------------------------------------------------------------------------------


class RemoteService(Struct, frozen=True):
    """A service of the network, as requests to it need it: its methods, and where each of them is called."""

    service: int
    major: int
    methods: Mapping[int, Address]
    segmentation: Mapping[int, TpSegmentation] = {}
    """Of the methods whose requests may be sent in segments."""
    no_return: frozenset[int] = frozenset()
    """Those of the methods that are called with REQUEST_NO_RETURN."""
    is_configured: bool = True
    """Not: it is there only because somebody has asked for it."""


class RequestTemplate(Struct, frozen=True, gc=False):
    """Where requests with the same attributes go, and their header around length and request id."""

    message_id: int
    versions_and_type: int
    client: int
    address: Address
    ttl: int


class OfferedService(Struct, frozen=True):
    """A service that we offer, as requests to us need it."""

    provider: UUri
    methods: frozenset[int]
    segmentation: Mapping[int, TpSegmentation] = {}
    """Of the methods whose responses may be sent in segments."""
    no_return: frozenset[int] = frozenset()
    """Those of the methods to which a REQUEST is a mistake."""


class EventTemplate(Struct, frozen=True):
    """What a publication is on the wire."""

    service: int
    event: int
    major: int
    segmentation: TpSegmentation | None = None


class EventReceiver(Struct, frozen=True):
    """One receiver of an offered service: its address, who it is as a subscriber, and what it gets, by topic.

    `over_tcp` are those topics of `events` that go over a connection which it has opened, from any port of its own.
    """

    subscriber: UUri
    address: Address
    period_ns: int
    events: Mapping[UUri, EventTemplate]
    over_tcp: frozenset[UUri] = frozenset()
    tcp: TcpAddress | None = None

    @property
    def tcp_address(self) -> TcpAddress:
        return self.tcp or TcpAddress(self.address[0], 0)


EventKey = tuple[int, int]
"""Two of the four words of an event's header: the message id, and (versions, type, E_OK) at its end."""


# --- messages -----------------------------------------------------------------------------------------------------------


def decode_response(call: OutboundCall, response: SomeIpMessage) -> tuple[UAttributes, bytes]:
    """Attributes and payload of the Response that a SOME/IP answer is.

    A failure becomes a UStatus, with its return code and its payload among the details.
    """
    if not response.is_error:
        return response_attributes(call.request, None, UPayloadFormat.UNSPECIFIED), response.payload
    # ERROR with E_OK contradicts itself; it is a failure whose reason is not known.
    code = ucode_of(response.return_code) or UCode.UNKNOWN
    host, port = call.remote
    status = UStatus(
        code, f"{host}:{port} answered with return code {return_code_name(response.return_code)}"
    )
    failure = SomeipFailure(response.return_code, response.payload)
    return response_attributes(call.request, code, UPayloadFormat.PROTOBUF), encode_failure(status, failure)


def encode_event(event: EventTemplate, session: int, payload: bytes) -> bytes:
    """The NOTIFICATION that a publication is."""
    header = pack_header(
        event.service,
        event.event,
        NO_CLIENT,
        session,
        event.major,
        MessageType.NOTIFICATION,
        ReturnCode.E_OK,
        len(payload),
    )
    return header + payload


def encode_request(message: UMessage, remote: RemoteService, request_id: int) -> bytes:
    """The REQUEST, or REQUEST_NO_RETURN, that a uProtocol request is."""
    sink = message.attributes.sink
    assert sink is not None  # a request that was checked
    header = pack_header(
        remote.service,
        sink.resource_id,
        request_id >> 16,
        request_id & 0xFFFF,
        remote.major,
        MessageType.REQUEST_NO_RETURN if sink.resource_id in remote.no_return else MessageType.REQUEST,
        ReturnCode.E_OK,
        len(message.payload),
    )
    return header + message.payload


def encode_response(request: InboundRequest, commstatus: UCode | None, payload: bytes) -> bytes:
    """The answer to a SOME/IP client: RESPONSE with the payload, or ERROR.

    The payload of a failure stays here: it is a UStatus in protobuf, and a SOME/IP client would take it for the data of
    the method. If it says what a SOME/IP service has answered, that is passed on.
    """
    failed = commstatus not in {None, UCode.OK}
    reply = SomeipFailure(return_code_of(commstatus), b"" if failed else payload)
    return_code, body = (decode_failure(payload) or reply) if failed else reply
    header = pack_header(
        request.service,
        request.method,
        request.client,
        request.session,
        request.interface_version,
        MessageType.ERROR if failed else MessageType.RESPONSE,
        return_code,
        len(body),
    )
    return header + body


def encode_refusal(request: SomeIpMessage, return_code: ReturnCode) -> bytes:
    """The ERROR for a REQUEST that goes no further."""
    return pack_header(
        request.service,
        request.method,
        request.client,
        request.session,
        request.interface_version,
        MessageType.ERROR,
        return_code,
        0,
    )
