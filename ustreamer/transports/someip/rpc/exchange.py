# SPDX-License-Identifier: Apache-2.0
"""The decision about each message of a SOME/IP endpoint: mapping and pending calls together, without a socket.

`Exchange.decode_message` decides about received messages, `Exchange.expire_requests` about deadlines.

Readable path: `decode_message`, `open_call`, `build_reply`. It is the oracle of the fast paths:

    match_event, event_message(s)    one datagram that is one event      test_exchange.py
    decode_batch, of events          oracle: match_event of each         test_exchange.py
    decode_batch, of RPC             oracle: fast_in of each             test_fast_path_batches.py
    fast_in, fast_out                requests and responses              test_fast_path.py

(The tests are in tests/transports/someip/rpc.) In production the readable path never decodes a plain event. It
decodes a plain RPC message over UDP only for the first request of each client, method and version. It encodes one
only after the fast path refused it: the kernel buffer or the table is full, or after a clock step. It handles
failures, TCP, SOME/IP-TP, several messages in a datagram, and refusals.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.recent_failures import RecentFailure, RecentFailures
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ports import SendOne
from ustreamer.transports.someip.config import ServiceConfig, SomeipEndpoint
from ustreamer.transports.someip.discovery.service_registry import ServiceRegistry, e2e_events
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress, format_address
from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MIN_LENGTH,
    TP_BIT,
    MalformedMessage,
    MessageType,
    SomeIpMessage,
)
from ustreamer.transports.someip.protocol.correlation import InboundRequest, OutboundCall, PendingCalls
from ustreamer.transports.someip.protocol.dscp import at_priority
from ustreamer.transports.someip.protocol.mapping import (
    REFUSAL_RETURN_CODES,
    SomeipRefusal,
    decode_response,
    encode_refusal,
    encode_request,
    encode_response,
    id_with_request_id,
    lsbs_with_request_ids,
)
from ustreamer.transports.someip.protocol.return_codes import return_code_name
from ustreamer.transports.someip.protocol.tp import Reassembly, TpRefused
from ustreamer.transports.someip.protocol.tp_config import TpSegmentation
from ustreamer.transports.someip.rpc.call_failures import (
    connection_closed,
    service_unavailable,
    streamer_stopped,
    ttl_expired,
)
from ustreamer.transports.someip.rpc.error_reply import error_reply
from ustreamer.transports.someip.rpc.fast_path import FastInbound, FastOutbound, SendEqualSized
from ustreamer.uprotocol.batch import MIN_BATCH, IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, response_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.transports.someip.io.recvmmsg import DatagramBatch
    from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
    from ustreamer.transports.someip.rpc.e2e_events import E2eEvents


_NS_PER_MS: Final = 1_000_000

_EVENT_HEADER: Final = Struct(">II4xI")
_AROUND_REQUEST_ID: Final = ">8sI4s"
"""A header: the parts that messages of one kind and one size share, with their request ids in the middle."""
_REQUEST_ID, _REQUEST_ID_AT = Struct(">I"), 8
_LENGTH_BASE: Final = HEADER_LENGTH - MIN_LENGTH  # the offset that `length` counts from

_OF_CLIENTS: Final = "request_"
"""Refusals whose peer is a client: it may also be the host of any service."""

# Plain ints: comparing the type of an event with a member of an IntEnum costs 0.07 us more.
_NOTIFICATION: Final = int(MessageType.NOTIFICATION)
_REQUESTS: Final = frozenset(map(int, (MessageType.REQUEST, MessageType.REQUEST_NO_RETURN)))
_RESPONSES: Final = frozenset(map(int, (MessageType.RESPONSE, MessageType.ERROR)))
_UNKNOWN_SENDER_REFUSALS: Final = {
    _NOTIFICATION: SomeipRefusal.EVENT_ADDRESS,
    **dict.fromkeys(_REQUESTS, SomeipRefusal.REQUEST_ADDRESS),
    **dict.fromkeys(_RESPONSES, SomeipRefusal.RESPONSE_ADDRESS),
}
"""Reason for refusing a segment of an unknown host, by the type of the whole message."""


class RefusedMessage(msgspec.Struct, frozen=True):
    """A message that is dropped, and the reply to its sender; None: no reply."""

    reason: str
    reply: bytes | None = None


class OutgoingRequest(msgspec.Struct, frozen=True):
    """A request to send. If sending fails, call `Exchange.cancel_call(request_id)`."""

    datagram: bytes
    address: Address
    request_id: int
    deadline_ns: int
    segmentation: TpSegmentation | None
    no_return: bool


class ExpiredRequests(NamedTuple):
    """The outcome of requests without a response in time: for uProtocol callers and for SOME/IP clients."""

    responses: list[UMessage]
    datagrams: list[tuple[bytes, Address]]


class Exchange:
    """Decides for one endpoint. `decode_*` and `expire_*` belong to the receiving thread, the rest to any thread."""

    def __init__(
        self,
        config: SomeipEndpoint,
        own_authority: str,
        clock: Clock,
        bridged: frozenset[str] = frozenset(),
        *,
        port: int | None = None,
    ) -> None:
        """Requests are those for offered services with this `port`; None: those at the port of the endpoint.

        `bridged` are the authorities of other SOME/IP networks. With any, message ids keep the request ids.
        """
        self._keeps_request_ids = bool(bridged)
        self.services = ServiceRegistry(config, own_authority, port)
        self._events = self.services.events_by_host
        self.calls_expired = self.requests_expired = 0
        self.calls_service_gone = 0
        """Calls whose service, or the connection to it, closed before the response."""
        self.responses_not_wanted = 0
        """Responses to REQUEST_NO_RETURN, which are dropped."""
        self._error_type = config.error_message_type
        self._monotonic_ns = clock.monotonic_ns
        self._e2e: E2eEvents | None = None
        self._add_e2e_events(e2e_events(config))
        self._expiry = Expiry(clock)
        self._ids = UuidSource(clock.wall_ms)
        self.received_ms = 0
        """When the host received the datagram whose events are decoded, in ms since the epoch; 0: now.

        It is the time in the ids of events. Other messages have the time at which they are read.
        """
        self._request_ttl_ns = config.request_ttl_ms * _NS_PER_MS
        self._reassembly = Reassembly(config.tp)
        self.failures = RecentFailures(clock.wall_ms)
        """Refused messages, and failed calls, about pairs of service id and method or event id.

        Reports by ICMP are about the address without a listening socket.
        """
        self._pending = pending = PendingCalls(config.max_pending, bridged)
        self._lock, self._calls, self._requests = pending.lock, pending.calls, pending.requests
        self.fast_in = FastInbound(
            pending,
            self.services,
            self._ids,
            clock.monotonic_ns,
            self._request_ttl_ns,
            keeps_request_ids=self._keeps_request_ids,
        )
        """Decodes single messages that repeat an accepted request or answer a call; `decode_message` decodes the
        rest.
        """

    def set_configured_services(self, config: SomeipEndpoint, located: Iterable[ServiceConfig]) -> None:
        """See ServiceRegistry. Belongs to the receiving thread."""
        self._add_e2e_events(e2e_events(config))
        self.services.set_configured_services(config, located)

    def _add_e2e_events(self, events: "Mapping[UUri, E2eConfig]") -> None:
        if not events:
            return
        from ustreamer.transports.someip.rpc.e2e_events import E2eEvents  # few endpoints have any

        if self._e2e is None:
            self._e2e = E2eEvents({})
        self._e2e.add_events(events)

    # --- input --------------------------------------------------------------------------------------------------------

    def match_event(self, datagram: bytes, host: str) -> UAttributes | None:
        """The attributes of a datagram that is exactly one expected event; None for any other datagram.

        Nearly all input is such an event: every part of its header except length, client and session is a dict key.
        """
        events = self._events.get(host)
        if events is None or len(datagram) < HEADER_LENGTH:
            return None
        message_id, length, rest = _EVENT_HEADER.unpack_from(datagram)
        attributes = events.get((message_id, rest))
        return attributes if length == len(datagram) - _LENGTH_BASE else None

    def event_message(self, attributes: UAttributes, datagram: bytes) -> UMessage:
        """The message of a datagram with the attributes of `match_event`."""
        # `_next_id` inlined: saves 0.3 us per event.
        id = self._ids.next_at(self.received_ms) if self.received_ms else self._ids.next()
        if self._keeps_request_ids:
            id = id_with_request_id(id, *_REQUEST_ID.unpack_from(datagram, _REQUEST_ID_AT))
        return UMessage(id, attributes, datagram[HEADER_LENGTH:])

    def event_messages(
        self,
        attributes: Sequence[UAttributes],
        datagrams: Sequence[bytes],
        received_ms: Sequence[int] = (0,),
    ) -> Sequence[UMessage]:
        """The messages of datagrams with the attributes of `match_event`, in order; a batch if the attributes are the
        same. `received_ms` is when the host received each; 0: now.
        """
        payloads = [datagram[HEADER_LENGTH:] for datagram in datagrams]
        request_ids: Sequence[int] = ()
        if self._keeps_request_ids:
            request_ids = [_REQUEST_ID.unpack_from(each, _REQUEST_ID_AT)[0] for each in datagrams]
        ids = self._next_event_ids(len(payloads), request_ids, received_ms)
        if len(payloads) >= MIN_BATCH and attributes.count(attributes[0]) == len(payloads):
            return MessageBatch(attributes[0], ids, payloads)
        return list(map(UMessage, map(UUID, ids.msbs, ids.lsbs), attributes, payloads))

    def _next_event_ids(
        self, number: int, request_ids: Sequence[int], received_ms: Sequence[int]
    ) -> IdColumns:
        """New ids of `number` events. Between SOME/IP networks they keep the request ids; else these are not read."""
        first_ms = received_ms[0]
        if first_ms == received_ms[-1]:  # they do not fall
            msbs, lsbs = self._ids.next_n_columns(number, first_ms)
        else:
            msbs, lsbs = self._ids.columns_at(received_ms)
        return IdColumns(msbs, lsbs_with_request_ids(lsbs, request_ids) if self._keeps_request_ids else lsbs)

    def decode_batch(self, batch: "DatagramBatch") -> Sequence[UMessage] | None:
        """The messages of a batch in which all are of one kind and size; None if each must be decoded alone.

        That is: events of one topic, responses of one method, or requests of one method. The result is the same as of
        `match_event` and `event_messages`, or of `fast_in.decode_message`, for each datagram.
        """
        number = len(batch)
        columns = batch.columns(_AROUND_REQUEST_ID) if number >= MIN_BATCH else None
        if columns is None:
            return None
        begins, request_ids, ends, payloads = columns
        begin, end = begins[0], ends[0]
        if begins.count(begin) < number or ends.count(end) < number:
            return None
        sender = batch.common_sender
        if sender is not None:
            attributes = self.match_event(begin + bytes(4) + end + payloads[0], sender[0])
            if attributes is not None:
                times = batch.received_each_ms or (batch.received_ms,)
                ids = self._next_event_ids(number, request_ids, times)
                return MessageBatch(attributes, ids, payloads, size=len(payloads[0]))
        senders = batch.senders() if sender is None else [sender] * number
        return self.fast_in.decode_batch(begin + bytes(4) + end, request_ids, payloads, senders)

    def decode_message(self, message: SomeIpMessage, address: Address) -> UMessage | RefusedMessage | None:
        """Decide about a message from `address`; None for a segment of an incomplete message."""
        kind = message.message_type
        if kind == _NOTIFICATION:
            event = self.services.event_attributes(message, *address)
            if not isinstance(event, UAttributes):
                return RefusedMessage(event)
            if self._e2e is not None and event.source in self._e2e:
                return self._e2e_event(message, event)
            return UMessage(self._next_id(message.request_id, self.received_ms), event, message.payload)
        if kind in _REQUESTS:
            return self._request(message, address)
        if kind in _RESPONSES:
            return self._response(message, address)
        if kind & TP_BIT:
            return self._segment(message, address)
        return RefusedMessage(SomeipRefusal.MESSAGE_TYPE)

    def _e2e_event(self, message: SomeIpMessage, attributes: UAttributes) -> UMessage | RefusedMessage:
        assert self._e2e is not None
        checked = self._e2e.check(message, attributes)
        if isinstance(checked, SomeipRefusal):
            return RefusedMessage(checked)
        return UMessage(self._next_id(message.request_id, self.received_ms), *checked)

    def _next_id(self, request_id: int, received_ms: int = 0) -> UUID:
        """A new id, with the time `received_ms` (0: now). Between SOME/IP networks it keeps the request id."""
        id = self._ids.next_at(received_ms) if received_ms else self._ids.next()
        return id_with_request_id(id, request_id) if self._keeps_request_ids else id

    # [impl->RPC-704]
    def malformed_reply(self, datagram: bytes, error: MalformedMessage, address: Address) -> bytes | None:
        """The reply to a malformed message; None if the sender is not an accepted client."""
        return error_reply(datagram, error, self._error_type) if self.services.is_client(address[0]) else None

    def _segment(self, message: SomeIpMessage, address: Address) -> UMessage | RefusedMessage | None:
        # An unknown host gets no memory. The whole message is checked when it is complete.
        if not self.services.is_known_host(address[0]):
            return RefusedMessage(_UNKNOWN_SENDER_REFUSALS[message.message_type & ~TP_BIT])
        whole = self._reassembly.feed(message, address, self._monotonic_ns())
        if isinstance(whole, TpRefused):
            return RefusedMessage(whole.reason)
        return None if whole is None else self.decode_message(whole, address)

    # [impl->RPC-700, RPC-721]
    def _request(self, message: SomeIpMessage, address: Address) -> UMessage | RefusedMessage:
        attributes = self.services.request_attributes(message, address[0])
        if isinstance(attributes, SomeipRefusal):
            return self._refuse_request(message, attributes)
        inbound_request = InboundRequest(
            service=message.service,
            method=message.method,
            client=message.client,
            session=message.session,
            interface_version=message.interface_version,
            address=address,
            expects_response=message.message_type == MessageType.REQUEST,
        )
        id = self._next_id(message.request_id)
        with self._lock:
            try:
                self._requests.add_entry(id, inbound_request, self._monotonic_ns() + self._request_ttl_ns)
            except UStatusError:
                return self._refuse_request(message, SomeipRefusal.REQUEST_LIMIT)
        self.fast_in.add_request(message, attributes)
        return UMessage(id, attributes, message.payload)

    # [impl->RPC-348, RPC-654]
    def _refuse_request(self, message: SomeIpMessage, reason: SomeipRefusal) -> RefusedMessage:
        return_code = REFUSAL_RETURN_CODES.get(reason)
        # Only a REQUEST without an error code gets a reply: two stacks that reply to each other's replies never stop.
        if return_code is None or message.message_type != MessageType.REQUEST or message.return_code:
            return RefusedMessage(reason)
        return RefusedMessage(reason, encode_refusal(message, return_code, self._error_type))

    def _failure(self, request: InboundRequest, code: UCode) -> bytes:
        """The reply to a request that has no response."""
        return encode_response(request, code, b"", self._error_type)

    def _response(self, message: SomeIpMessage, address: Address) -> UMessage | RefusedMessage:
        request_id = message.request_id
        with self._lock:
            call = self._calls.get(request_id, self._monotonic_ns())
            if call is None:
                return RefusedMessage(SomeipRefusal.RESPONSE_UNSOLICITED)
            if call.remote[0] != address[0]:
                return RefusedMessage(SomeipRefusal.RESPONSE_ADDRESS)
            if (call.service, call.method) != (message.service, message.method):
                return RefusedMessage(SomeipRefusal.RESPONSE_METHOD)
            self._calls.remove_entry(request_id)
        if message.is_error:
            self._note_failed_call("error_response", call, return_code_name(message.return_code))
        attributes, payload = decode_response(call, message)
        return UMessage(self._ids.next(), attributes, payload)

    # --- deadlines ----------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """The time of the next `expire_requests` or `expire_segments`; None if nothing is open."""
        segments_ns = self._reassembly.next_deadline_ns
        with self._lock:
            deadlines = (self._calls.next_deadline_ns, self._requests.next_deadline_ns, segments_ns)
        return min((each for each in deadlines if each is not None), default=None)

    def expire_requests(self) -> ExpiredRequests:
        """Remove the expired requests: DEADLINE_EXCEEDED for uProtocol callers (SIP-3), E_TIMEOUT for SOME/IP
        clients.
        """
        with self._lock:
            now_ns = self._monotonic_ns()
            calls = self._calls.pop_expired(now_ns)
            requests = self._requests.pop_expired(now_ns)
            self.calls_expired += sum(not call.no_response_expected for call in calls)
            self.requests_expired += len(requests)
        for call in calls:
            if not call.no_response_expected:
                self._note_failed_call("no_answer", call)
        for request in requests:
            if request.expects_response:
                self.failures.add("request_expired", (request.service, request.method), request.address[0])
        return ExpiredRequests(
            [self._call_outcome(call, ttl_expired(call)) for call in calls],
            [
                (self._failure(request, UCode.DEADLINE_EXCEEDED), request.address)
                for request in requests
                if request.expects_response
            ],
        )

    def expire_segments(self) -> list[TpRefused]:
        """Abandon the messages whose segments are missing for too long."""
        if self._reassembly.next_deadline_ns is None:
            return []  # the usual case: the receiving thread calls this in every round
        return self._reassembly.expire(self._monotonic_ns())

    # --- stop and close -----------------------------------------------------------------------------------------------

    def abort_calls(self) -> list[UMessage]:
        """Accept no more calls, because no response will be read; returns the failures of the open calls."""
        with self._lock:
            self._pending.accepts_calls = False
            calls = self._calls.remove_all()
        return [self._call_outcome(call, streamer_stopped(call)) for call in calls]

    def on_service_gone(self, service: UUri, addresses: Iterable[Address], reason: str) -> list[UMessage]:
        """The failures of the calls that were open when `service` disappeared. The service is in no table any more."""
        with self._lock:
            calls = [
                call
                for address in addresses
                for call in self._calls.remove_where(address, lambda _, each: each.callee == service)
            ]
        self._note_service_gone(calls)
        return [self._call_outcome(call, service_unavailable(call, reason)) for call in calls]

    # [impl->RPC-326]
    def on_connection_closed(self, peer: TcpAddress, unsent: Iterable[bytes]) -> list[UMessage]:
        """The failures of the calls whose responses would use the closed connection with `peer`.

        Calls whose requests are in `unsent` stay open: the next connection carries them.
        """
        unsent_ids = {_REQUEST_ID.unpack_from(each, _REQUEST_ID_AT)[0] for each in unsent}

        def is_over(request_id: int, call: OutboundCall) -> bool:
            over_tcp = isinstance(call.remote, TcpAddress)  # over UDP the same peer has the same address
            return over_tcp and request_id not in unsent_ids

        with self._lock:
            calls = self._calls.remove_where(peer, is_over)
        self._note_service_gone(calls)
        return [self._call_outcome(call, connection_closed(call)) for call in calls]

    def _note_service_gone(self, calls: Iterable[OutboundCall]) -> None:
        for call in calls:
            if not call.no_response_expected:
                self.calls_service_gone += 1
                self._note_failed_call("service_gone", call)

    def _note_failed_call(self, kind: str, call: OutboundCall, detail: str = "") -> None:
        self.failures.add(kind, (call.service, call.method), call.remote[0], detail)

    def _call_outcome(self, call: OutboundCall, failure: UStatus) -> UMessage:
        """The message for the caller of an unanswered call: `failure`, or success if no response was expected."""
        if not call.no_response_expected:
            return error_response(self._ids.next(), call.request, failure)
        return UMessage(
            self._ids.next(), response_attributes(call.request, None, UPayloadFormat.UNSPECIFIED), b""
        )

    def abort_requests(self) -> list[tuple[bytes, Address]]:
        """The replies to SOME/IP clients whose requests are open when this endpoint closes."""
        with self._lock:
            requests = self._requests.remove_all()
        return [
            (self._failure(request, UCode.UNAVAILABLE), request.address)
            for request in requests
            if request.expects_response
        ]

    # --- output -------------------------------------------------------------------------------------------------------

    def fast_out(
        self,
        send_equal_sized: SendEqualSized,
        send_slow_path: SendOne,
        wake_by: Callable[[int], None],
        is_for_discovery: Callable[[UMessage], bool],
    ) -> FastOutbound:
        """The sender of batches of requests and responses. `send_slow_path` sends every other message, and raises on
        failure.
        """
        clocks = self._expiry, self._monotonic_ns
        return FastOutbound(
            self._pending, self.services, *clocks, send_equal_sized, send_slow_path, wake_by, is_for_discovery
        )

    # [impl->RPC-633, RPC-634]
    def open_call(self, message: UMessage) -> OutgoingRequest:
        """Open a call for a valid Request until its ttl expires (SIP-1).

        Raises UStatusError: NOT_FOUND and UNIMPLEMENTED for an unknown service or method, DEADLINE_EXCEEDED if the
        ttl has expired, RESOURCE_EXHAUSTED if too many calls are open, UNAVAILABLE after `abort_calls`.
        """
        attributes = message.attributes
        assert attributes.sink is not None  # a valid Request
        assert attributes.ttl is not None
        now_ns = self._monotonic_ns()
        deadline_ns = self._expiry.deadline_ns(message, now_ns, 0)
        if deadline_ns <= now_ns:
            raise UStatusError(
                UCode.DEADLINE_EXCEEDED, f"request {message.id}: its ttl of {attributes.ttl} ms has run out"
            )
        method = attributes.sink.resource_id
        with self._lock:
            # Under the lock, so that `on_service_gone` cannot run in between and miss this call.
            remote = self.services.remote_service(attributes.sink)
            address = at_priority(remote.methods[method], attributes.priority_class)
            if not self._pending.accepts_calls:
                raise UStatusError(
                    UCode.UNAVAILABLE, f"request {message.id}: the endpoint reads no responses any more"
                )
            call = OutboundCall(UMessage(message.id, attributes), remote.service, method, address)
            request_id = self._pending.open_call(attributes.source.ue_type, call, deadline_ns)
        return OutgoingRequest(
            encode_request(message, remote, request_id),
            address,
            request_id,
            deadline_ns,
            remote.segmentation.get(call.method),
            method in remote.no_return,
        )

    def on_sent(self, outgoing: OutgoingRequest) -> int:
        """A request was sent: returns its deadline, which is now if no response is expected."""
        if not outgoing.no_return:
            return outgoing.deadline_ns
        with self._lock:
            now_ns = self._monotonic_ns()
            call = self._calls.get(outgoing.request_id, now_ns)
            if call is not None:
                self._calls.remove_entry(outgoing.request_id)
                self._calls.add_entry(
                    outgoing.request_id, msgspec.structs.replace(call, no_response_expected=True), now_ns
                )
        return now_ns

    def cancel_call(self, request_id: int) -> bool:
        """Remove a call that could not be sent; False if its caller already has a response."""
        with self._lock:
            return self._calls.remove_entry(request_id)

    # [impl->RPC-141, RPC-345]
    def build_reply(self, message: UMessage) -> tuple[bytes, Address, TpSegmentation | None] | None:
        """The reply for a Response to a SOME/IP client's request; None if the client expects no response.

        Raises UStatusError(NOT_FOUND) if no such request is open. The request stays open until `on_response_sent`, so
        that sending can be retried.
        """
        attributes = message.attributes
        assert attributes.reqid is not None  # a valid Response
        with self._lock:
            inbound_request = self._requests.get(attributes.reqid, self._monotonic_ns())
            if inbound_request is None:
                raise UStatusError(
                    UCode.NOT_FOUND,
                    f"reqid {attributes.reqid}: no such request is open; it was answered or has timed out",
                )
            if not inbound_request.expects_response:
                self._requests.remove_entry(attributes.reqid)
                self.responses_not_wanted += 1
                return None
        datagram = encode_response(inbound_request, attributes.commstatus, message.payload, self._error_type)
        address = self.services.response_address(inbound_request, attributes)
        return datagram, address, self.services.response_segmenting(inbound_request)

    def on_response_sent(self, message: UMessage) -> None:
        """The Response was sent (SIP-6)."""
        assert message.attributes.reqid is not None
        with self._lock:
            self._requests.remove_entry(message.attributes.reqid)

    def on_unreachable(self, address: Address) -> None:
        """ICMP has reported that nothing listens at a UDP address to which the endpoint has sent."""
        self.failures.add("receiver_unreachable", address, format_address(address))

    # --- reading ------------------------------------------------------------------------------------------------------

    def input_problem(self, topic: UUri) -> str:
        """As `EndpointTransport.input_problem`: failed E2E checks."""
        return "" if self._e2e is None else self._e2e.problem(topic)

    def recent_failures(self, address: UUri) -> list[RecentFailure]:
        """As `EndpointTransport.recent_failures`. Input of unknown subject counts unless its host has other services."""
        services, entity = self.services, address.with_resource(0)
        found = self.failures.about(services.message_id_of(address), None, *services.addresses_of(address))
        return [
            each
            for each in found
            if each.kind.startswith(_OF_CLIENTS) or not services.is_host_of_other(entity, each.peer)
        ]

    def statistics(self) -> dict[str, int]:
        """Open requests and the counters of closed ones; names as in `SomeipTransport.statistics`.

        Without the lock, so that no reader delays a call.
        """
        return {
            "calls_open": len(self._calls),
            "calls_expired": self.calls_expired,
            "calls_service_gone": self.calls_service_gone,
            "requests_open": len(self._requests),
            "requests_expired": self.requests_expired,
            "responses_not_wanted": self.responses_not_wanted,
            **self._reassembly.statistics(),
            **({} if self._e2e is None else self._e2e.statistics()),
        }
