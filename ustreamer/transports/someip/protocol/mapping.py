# SPDX-License-Identifier: Apache-2.0
"""The mapping between SOME/IP and uProtocol (up-spec, up-l1/someip.adoc). Pure.

    NOTIFICATION  from a service's remote   Publish   source //<authority>/<ue_id of the service>/<major>/<event>
    REQUEST       to an offered service     Request   source //<authority>/<client id>/<client_version>/0,
                                                      sink the provider with the method as resource
    RESPONSE, ERROR                         Response  ends, priority, ttl and reqid of the request
    NOTIFICATION  to receivers              Publish   source is the provider with the event as resource
    REQUEST       to a service's remote     Request   sink is the service
    RESPONSE, ERROR                         Response  by its reqid
    -                                       Notification: no SOME/IP equivalent

<authority> is the first authority of the endpoint. A header has no instance: the source address of an event
identifies it. A header has no priority: events are CS1 and requests CS4. It has no ttl: events have none and requests
a configured one. It has no payload format, so the format is UNSPECIFIED.
"""

from array import array
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress, format_address
from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MessageType,
    ReturnCode,
    SomeIpMessage,
    pack_header,
)
from ustreamer.transports.someip.protocol.correlation import InboundRequest, OutboundCall
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
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
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MAX_PAYLOAD: Final = 65_507 - HEADER_LENGTH
"""The largest payload behind the header in one UDP datagram over IPv4."""

# --- bridges ----------------------------------------------------------------------------------------------------------

REQUEST_ID_BITS: Final = 0xFFFF_FFFF
"""The bits of a message id's lsb that keep a request id, see `id_with_request_id`."""


def id_with_request_id(id: UUID, request_id: int) -> UUID:
    """The message id whose last 32 bits are the request id (client and session) of a SOME/IP header.

    Between two SOME/IP endpoints of one streamer a header keeps its request id in this way: the CRC of an E2E profile
    covers it. 30 random bits of the message id remain.
    """
    return UUID(id.msb, id.lsb & ~REQUEST_ID_BITS | request_id)


def lsbs_with_request_ids(lsbs: Iterable[int], request_ids: Iterable[int]) -> "array[int]":
    """As `id_with_request_id`, for the column of lsbs."""
    keep = ~REQUEST_ID_BITS
    return array("Q", [lsb & keep | each for lsb, each in zip(lsbs, request_ids, strict=True)])


# --- refusals ---------------------------------------------------------------------------------------------------------


# [impl->RPC-816]
class SomeipRefusal(StrEnum):
    """Reason for refusing a well-formed SOME/IP message: labels of counters, so few and fixed."""

    EVENT_UNKNOWN = "event_unknown"
    EVENT_ADDRESS = "event_address"  # a configured event, but not from the address of its service
    EVENT_VERSION = "event_version"
    E2E_ERROR = "e2e_error"  # these three with `on_error = "drop"`
    E2E_REPEATED = "e2e_repeated"
    E2E_WRONG_SEQUENCE = "e2e_wrong_sequence"
    REQUEST_ADDRESS = "request_address"  # not in `clients`
    REQUEST_SERVICE = "request_service"
    REQUEST_VERSION = "request_version"
    REQUEST_METHOD = "request_method"
    REQUEST_TYPE = "request_type"  # REQUEST for a method with no_return
    REQUEST_CLIENT = "request_client"  # client id 0xFFFF, which as a uEntity would be a wildcard
    REQUEST_LIMIT = "request_limit"  # max_pending
    RESPONSE_UNSOLICITED = "response_unsolicited"  # no such call, answered already, or too late (SIP-4)
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
"""Return code of the reply to a refused REQUEST. An unknown host (REQUEST_ADDRESS) gets no reply."""

# --- the services of an endpoint --------------------------------------------------------------------------------------


# [impl->RPC-538]
class RemoteService(Struct, frozen=True):
    """A service of the network, as the target of requests: its methods and their addresses."""

    service: int
    major: int
    methods: Mapping[int, Address]
    segmentation: Mapping[int, TpSegmentation] = {}
    """Of the methods whose requests may be sent in segments."""
    no_return: frozenset[int] = frozenset()
    """The methods that are called with REQUEST_NO_RETURN."""
    is_configured: bool = True
    """False: the service exists only because of a subscription or call."""


class RequestTemplate(Struct, frozen=True, gc=False):
    """Target of requests with the same attributes, and their header around length and request id."""

    message_id: int
    versions_and_type: int
    client: int
    address: Address
    ttl: int


# [impl->RPC-538]
class OfferedService(Struct, frozen=True):
    """A service that this endpoint offers, as the target of requests."""

    provider: UUri
    methods: frozenset[int]
    segmentation: Mapping[int, TpSegmentation] = {}
    """Of the methods whose responses may be sent in segments."""
    no_return: frozenset[int] = frozenset()
    """The methods that reject a REQUEST: they are called with REQUEST_NO_RETURN."""


class EventTemplate(Struct, frozen=True):
    """A publication on the wire."""

    service: int
    event: int
    major: int
    segmentation: TpSegmentation | None = None
    e2e: E2eConfig | None = None


class EventReceiver(Struct, frozen=True):
    """One receiver of an offered service: its address, its subscriber URI, and its events by topic.

    `over_tcp` are the topics of `events` that use a connection opened by the receiver, from any of its ports.
    `joins` is the multicast group that the receiver gets further events from: theirs follow its E2E counters.
    """

    subscriber: UUri
    address: Address
    period_ns: int
    events: Mapping[UUri, EventTemplate]
    over_tcp: frozenset[UUri] = frozenset()
    tcp: TcpAddress | None = None
    joins: Address | None = None

    @property
    def tcp_address(self) -> TcpAddress:
        return self.tcp or TcpAddress(self.address[0], 0)


EventKey = tuple[int, int]
"""Two of the four 32-bit words of an event's header: the message id, and (versions, type, E_OK) at its end."""


# --- messages ---------------------------------------------------------------------------------------------------------


# [impl->RPC-101]
def decode_response(call: OutboundCall, response: SomeIpMessage) -> tuple[UAttributes, bytes]:
    """Attributes and payload of the Response for a SOME/IP response.

    A failure becomes a UStatus, with its return code and its payload among the details.
    """
    if not response.is_error:
        return response_attributes(call.request, None, UPayloadFormat.UNSPECIFIED), response.payload
    # ERROR with E_OK contradicts itself: a failure with unknown reason.
    code = ucode_of(response.return_code) or UCode.UNKNOWN
    remote = format_address(call.remote)
    status = UStatus(code, f"{remote} answered with return code {return_code_name(response.return_code)}")
    failure = SomeipFailure(response.return_code, response.payload)
    return response_attributes(call.request, code, UPayloadFormat.PROTOBUF), encode_failure(status, failure)


# [impl->RPC-92, RPC-144]
def encode_event(event: EventTemplate, request_id: int, payload: bytes) -> bytes:
    """The NOTIFICATION of a publication."""
    header = pack_header(
        event.service,
        event.event,
        request_id >> 16,
        request_id & 0xFFFF,
        event.major,
        MessageType.NOTIFICATION,
        ReturnCode.E_OK,
        len(payload),
    )
    return header + payload


# [impl->RPC-92, RPC-144, RPC-329, RPC-345]
def encode_request(message: UMessage, remote: RemoteService, request_id: int) -> bytes:
    """The REQUEST or REQUEST_NO_RETURN of a uProtocol request."""
    sink = message.attributes.sink
    assert sink is not None  # a checked request
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


# [impl->RPC-79, RPC-338, RPC-367]
def encode_response(
    request: InboundRequest,
    commstatus: UCode | None,
    payload: bytes,
    error_type: MessageType = MessageType.ERROR,
) -> bytes:
    """The reply to a SOME/IP client: RESPONSE with the payload, or a message of `error_type`.

    The payload of a failure is not sent: it is a UStatus in protobuf, and a SOME/IP client would read it as the data
    of the method. The detail `SomeipReturnCode` of a UStatus is sent: it is the ERROR of another SOME/IP service.
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
        error_type if failed else MessageType.RESPONSE,
        return_code,
        len(body),
    )
    return header + body


# [impl->RPC-655]
def encode_refusal(
    request: SomeIpMessage, return_code: ReturnCode, error_type: MessageType = MessageType.ERROR
) -> bytes:
    """The message of `error_type` for a refused REQUEST."""
    return pack_header(
        request.service,
        request.method,
        request.client,
        request.session,
        request.interface_version,
        error_type,
        return_code,
        0,
    )
