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

from collections.abc import Iterable, Mapping
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.codec import (
    HEADER_LENGTH,
    PROTOCOL_VERSION,
    MessageType,
    ReturnCode,
    SomeIpMessage,
    pack_header,
)
from ustreamer.transports.someip.config import Address, Service, SomeipEndpoint, parse_address
from ustreamer.transports.someip.correlation import Call, ClientRequest
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, answer_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import ANY_TYPE, UUri
from ustreamer.uprotocol.wire import encode_status

MAX_PAYLOAD: Final = 65_507 - HEADER_LENGTH
"""What fits behind the header into one UDP datagram over IPv4."""

_KEPT: Final = (
    4_096  # distinct attributes and addresses that are remembered; clients choose them, so it is a bound
)

# --- return codes -----------------------------------------------------------------------------------------------------

# Where up-spec names two codes for one UCode, the one that vsomeip-based bridges send. It names none for the UCodes that
# are missing here, which become E_NOT_OK (0xFF, which those bridges send, is no return code); UNIMPLEMENTED is ours.
_RETURN_CODES: Final = {
    UCode.OK: ReturnCode.E_OK,
    UCode.UNKNOWN: ReturnCode.E_NOT_OK,
    UCode.NOT_FOUND: ReturnCode.E_UNKNOWN_SERVICE,
    UCode.INVALID_ARGUMENT: ReturnCode.E_WRONG_MESSAGE_TYPE,
    UCode.UNAVAILABLE: ReturnCode.E_NOT_READY,
    UCode.INTERNAL: ReturnCode.E_NOT_REACHABLE,
    UCode.DEADLINE_EXCEEDED: ReturnCode.E_TIMEOUT,
    UCode.FAILED_PRECONDITION: ReturnCode.E_WRONG_PROTOCOL_VERSION,
    UCode.DATA_LOSS: ReturnCode.E_MALFORMED_MESSAGE,
    UCode.UNIMPLEMENTED: ReturnCode.E_UNKNOWN_METHOD,
}

_UCODES: Final[Mapping[int, UCode]] = {
    ReturnCode.E_OK: UCode.OK,
    ReturnCode.E_NOT_OK: UCode.UNKNOWN,
    ReturnCode.E_UNKNOWN_SERVICE: UCode.NOT_FOUND,
    ReturnCode.E_UNKNOWN_METHOD: UCode.INVALID_ARGUMENT,
    ReturnCode.E_WRONG_MESSAGE_TYPE: UCode.INVALID_ARGUMENT,
    ReturnCode.E_NOT_READY: UCode.UNAVAILABLE,
    ReturnCode.E_NOT_REACHABLE: UCode.INTERNAL,
    ReturnCode.E_TIMEOUT: UCode.DEADLINE_EXCEEDED,
    ReturnCode.E_WRONG_PROTOCOL_VERSION: UCode.FAILED_PRECONDITION,
    ReturnCode.E_WRONG_INTERFACE_VERSION: UCode.FAILED_PRECONDITION,
    ReturnCode.E_MALFORMED_MESSAGE: UCode.DATA_LOSS,
}


def return_code_of(commstatus: UCode | None) -> ReturnCode:
    """The return code for a commstatus; absent means success."""
    return ReturnCode.E_OK if commstatus is None else _RETURN_CODES.get(commstatus, ReturnCode.E_NOT_OK)


def ucode_of(return_code: int) -> UCode:
    """The UCode for a return code; UNKNOWN for E2E results, service-specific and reserved codes."""
    return _UCODES.get(return_code, UCode.UNKNOWN)


def _name_of(return_code: int) -> str:
    known = {int(code): code.name for code in ReturnCode}
    return f"{known.get(return_code, 'not in the standard')} (0x{return_code:02X})"


# --- refusals ---------------------------------------------------------------------------------------------------------


class Refusal(StrEnum):
    """Why a well-formed SOME/IP message was not accepted: labels of counters, so few and fixed."""

    EVENT_UNKNOWN = "event_unknown"
    EVENT_ADDRESS = "event_address"  # a configured event, but not from where its service lives
    EVENT_VERSION = "event_version"
    REQUEST_ADDRESS = "request_address"  # not one of `clients`
    REQUEST_SERVICE = "request_service"
    REQUEST_VERSION = "request_version"
    REQUEST_METHOD = "request_method"
    REQUEST_CLIENT = "request_client"  # client id 0xFFFF, which as a uEntity would be a wildcard
    REQUEST_LIMIT = "request_limit"  # max_pending
    RESPONSE_UNASKED = "response_unasked"  # never asked for, answered already, or too late (SIP-4)
    RESPONSE_ADDRESS = "response_address"
    RESPONSE_METHOD = "response_method"
    MESSAGE_TYPE = "message_type"  # the obsolete acknowledgements


REFUSAL_ANSWERS: Final[Mapping[Refusal, ReturnCode]] = {
    Refusal.REQUEST_SERVICE: ReturnCode.E_UNKNOWN_SERVICE,
    Refusal.REQUEST_VERSION: ReturnCode.E_WRONG_INTERFACE_VERSION,
    Refusal.REQUEST_METHOD: ReturnCode.E_UNKNOWN_METHOD,
    Refusal.REQUEST_CLIENT: ReturnCode.E_NOT_OK,
    Refusal.REQUEST_LIMIT: return_code_of(UCode.RESOURCE_EXHAUSTED),
}
"""What a REQUEST that is refused for these reasons is answered; strangers (REQUEST_ADDRESS) get no answer."""

# --- the services of an endpoint ----------------------------------------------------------------------------------------


class RemoteService(Struct, frozen=True):
    """A service of the network, as requests to it need it."""

    service: int
    major: int
    methods: frozenset[int]
    address: Address


class OfferedService(Struct, frozen=True):
    """A service that we offer, as requests to us need it."""

    provider: UUri
    methods: frozenset[int]


class WireEvent(Struct, frozen=True):
    """What a publication is on the wire."""

    service: int
    event: int
    major: int


class EventReceiver(Struct, frozen=True):
    """One receiver of an offered service: its address, who it is as a subscriber, and what it gets, by topic."""

    subscriber: UUri
    address: Address
    period_ns: int
    events: Mapping[UUri, WireEvent]


EventKey = tuple[int, int]
"""Two of the four words of an event's header: the message id, and (versions, type, E_OK) at its end."""


class Services:
    """The configuration of an endpoint, turned round into one table for each question.

    `event` and `request` belong to the receiving thread; the rest only reads.
    """

    def __init__(self, config: SomeipEndpoint, own_authority: str) -> None:
        """`own_authority` stands for an empty one in `provider`."""
        self._authority = config.authority
        self._client_version = config.client_version
        self._request_ttl_ms = config.request_ttl_ms
        self._networks = config.client_networks()
        self._hosts: dict[str, bool] = {}
        self._requesters: dict[tuple[int, int, int, int], UAttributes] = {}
        offered = [each for each in config.services if each.offered]
        remote = [each for each in config.services if not each.offered]
        self.events = _events(config.authority, remote)
        """The events that are expected from each host."""
        self._event_keys = frozenset(key for events in self.events.values() for key in events)
        self._event_ids = frozenset(message_id for message_id, _ in self._event_keys)
        self._remote = _remote(config.authority, remote)
        self._offered = _offered(offered, own_authority)
        self.receivers = tuple(_receivers(config.authority, offered, own_authority))
        self._hosts_of_remotes = {
            each.remote_address[0] for each in remote if each.remote_address is not None
        }
        self._providers = {topic.with_resource(0) for each in self.receivers for topic in each.events}

    # --- in -------------------------------------------------------------------------------------------------------------

    def event(self, message: SomeIpMessage, host: str) -> UAttributes | Refusal:
        """The attributes, one object per event, of a NOTIFICATION from `host`, whatever its return code says."""
        key = _event_key(message.message_id, message.interface_version)
        attributes = self.events.get(host, {}).get(key)
        if attributes is not None:
            return attributes
        if key in self._event_keys:
            return Refusal.EVENT_ADDRESS
        return Refusal.EVENT_VERSION if message.message_id in self._event_ids else Refusal.EVENT_UNKNOWN

    def request(self, message: SomeIpMessage, host: str) -> UAttributes | Refusal:
        """The attributes, shared by requests of one client for one method, of a REQUEST from `host`."""
        if not self._is_client(host):
            return Refusal.REQUEST_ADDRESS
        key = (message.service, message.method, message.client, message.interface_version)
        attributes = self._requesters.get(key)
        if attributes is None:
            found = self._requested(message)
            if isinstance(found, Refusal):
                return found
            if len(self._requesters) >= _KEPT:
                self._requesters.clear()
            attributes = self._requesters[key] = found
        return attributes

    def _requested(self, message: SomeIpMessage) -> UAttributes | Refusal:
        versions = self._offered.get(message.service)
        if versions is None:
            return Refusal.REQUEST_SERVICE
        service = versions.get(message.interface_version)
        if service is None:
            return Refusal.REQUEST_VERSION
        if message.method not in service.methods:
            return Refusal.REQUEST_METHOD
        if message.client == ANY_TYPE:
            return Refusal.REQUEST_CLIENT
        return UAttributes(
            type=UMessageType.REQUEST,
            source=UUri(self._authority, message.client, self._client_version, 0),
            sink=service.provider.with_resource(message.method),
            priority=UPriority.CS4,
            ttl=self._request_ttl_ms,
        )

    def knows(self, host: str) -> bool:
        """Whether `host` has a service or may be a client."""
        return host in self._hosts_of_remotes or self._is_client(host)

    def _is_client(self, host: str) -> bool:
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= _KEPT:
                self._hosts.clear()
            known = self._hosts[host] = any(IPv4Address(host) in network for network in self._networks)
        return known

    # --- out ------------------------------------------------------------------------------------------------------------

    def remote(self, method: UUri) -> RemoteService:
        """Where `method` is to be called. Raises UStatusError: NOT_FOUND (service) or UNIMPLEMENTED (method)."""
        service = self._remote.get(method.with_resource(0))
        if service is None:
            raise UStatusError(UCode.NOT_FOUND, f"sink {method}: no such service is configured with a remote")
        if method.resource_id not in service.methods:
            known = ", ".join(f"{each:X}" for each in sorted(service.methods)) or "none"
            raise UStatusError(UCode.UNIMPLEMENTED, f"sink {method}: not one of its methods ({known})")
        return service

    def no_event(self, topic: UUri) -> UStatusError:
        """Why a publication on `topic`, which is not in a receiver's events, has nowhere to go."""
        if topic.with_resource(0) in self._providers:
            return UStatusError(UCode.UNIMPLEMENTED, f"topic {topic}: not one of the events of this service")
        return UStatusError(
            UCode.NOT_FOUND, f"topic {topic}: no service is offered for it that has receivers"
        )


def _event_key(message_id: int, major: int) -> EventKey:
    return message_id, PROTOCOL_VERSION << 24 | major << 16 | MessageType.NOTIFICATION << 8 | ReturnCode.E_OK


def _events(authority: str, services: Iterable[Service]) -> dict[str, dict[EventKey, UAttributes]]:
    table: dict[str, dict[EventKey, UAttributes]] = {}
    for service in services:
        if service.remote_address is None:
            continue
        events = table.setdefault(service.remote_address[0], {})
        for event in service.events:
            events[_event_key(service.service << 16 | event.id, service.major)] = UAttributes(
                type=UMessageType.PUBLISH,
                source=UUri(authority, service.ue_id, service.major, event.id),
                priority=UPriority.CS1,
            )
    return table


def _remote(authority: str, services: Iterable[Service]) -> dict[UUri, RemoteService]:
    return {
        UUri(authority, each.ue_id, each.major, 0): RemoteService(
            each.service, each.major, frozenset(each.methods), each.remote_address
        )
        for each in services
        if each.remote_address is not None
    }


def _offered(services: Iterable[Service], own_authority: str) -> dict[int, dict[int, OfferedService]]:
    """Service -> major -> what we offer."""
    table: dict[int, dict[int, OfferedService]] = {}
    for each in services:
        offer = OfferedService(_provider(each, own_authority), frozenset(each.methods))
        table.setdefault(each.service, {})[each.major] = offer
    return table


def _receivers(authority: str, services: Iterable[Service], own_authority: str) -> Iterable[EventReceiver]:
    for each in services:
        provider = _provider(each, own_authority)
        events = {
            provider.with_resource(event.id): WireEvent(each.service, event.id, each.major)
            for event in each.events
        }
        for number, receiver in enumerate(each.static_receivers):
            subscriber = UUri(authority, number << 16 | each.service, each.major, 0)
            yield EventReceiver(subscriber, parse_address(receiver.address), receiver.period_ns, events)


def _provider(service: Service, own_authority: str) -> UUri:
    assert service.provider_uuri is not None  # config.py has seen to it
    return service.provider_uuri.with_authority(own_authority)


# --- messages -----------------------------------------------------------------------------------------------------------


def response_to(call: Call, answer: SomeIpMessage) -> tuple[UAttributes, bytes]:
    """Attributes and payload of the Response that a SOME/IP answer is.

    A failure without a payload gets a UStatus, so that a uProtocol caller can read what it was.
    """
    if not answer.is_error:
        return answer_attributes(call.request, None, UPayloadFormat.UNSPECIFIED), answer.payload
    # ERROR with E_OK contradicts itself; it is a failure whose reason is not known.
    code = ucode_of(answer.return_code) or UCode.UNKNOWN
    if answer.payload:
        return answer_attributes(call.request, code, UPayloadFormat.UNSPECIFIED), answer.payload
    host, port = call.remote
    status = UStatus(code, f"{host}:{port} answered with return code {_name_of(answer.return_code)}")
    return answer_attributes(call.request, code, UPayloadFormat.PROTOBUF), encode_status(status)


def request_datagram(message: UMessage, remote: RemoteService, request_id: int) -> bytes:
    """The REQUEST that a uProtocol request is."""
    sink = message.attributes.sink
    assert sink is not None  # a request that was checked
    header = pack_header(
        remote.service,
        sink.resource_id,
        request_id >> 16,
        request_id & 0xFFFF,
        remote.major,
        MessageType.REQUEST,
        ReturnCode.E_OK,
        len(message.payload),
    )
    return header + message.payload


def response_datagram(asked: ClientRequest, commstatus: UCode | None, payload: bytes) -> bytes:
    """The answer to a SOME/IP client: RESPONSE with the payload, or ERROR without.

    The payload of a failure stays here: it is a UStatus in protobuf, and a SOME/IP client would take it for the data of
    the method.
    """
    return_code = return_code_of(commstatus)
    failed = return_code != ReturnCode.E_OK
    body = b"" if failed else payload
    header = pack_header(
        asked.service,
        asked.method,
        asked.client,
        asked.session,
        asked.interface_version,
        MessageType.ERROR if failed else MessageType.RESPONSE,
        return_code,
        len(body),
    )
    return header + body


def refusal_datagram(request: SomeIpMessage, return_code: ReturnCode) -> bytes:
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
