# SPDX-License-Identifier: Apache-2.0
"""Oracle: `Exchange.decode_message`, `open_call`, `build_reply`; see the comparing tests below.

The fast path of plain requests and responses: header fields that repeat are looked up, not decoded. It returns None
or 0 for every other message and leaves that to the readable path: failures, segments, TCP, requests without a
response, requests with a token or trace context, requests to services that no configuration lists, and messages for
service discovery.

In production plain RPC over UDP runs here. Of the requests from the network, the readable path decodes only the first
one of each client, method and version. It encodes a plain request or response only after the fast path refused it. The
fast path refuses if the kernel buffer or the table is full, and after a clock step.

Comparing tests, in tests/transports/someip/rpc: `test_fast_path.py` compares single incoming messages and outgoing
batches with the readable path. `test_fast_path_batches.py` compares incoming batches with single messages on the fast
path.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, Protocol

import msgspec

from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ports import SendOne
from ustreamer.transports.someip.discovery.service_registry import ServiceRegistry
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MIN_LENGTH,
    PROTOCOL_VERSION,
    MessageType,
    ReturnCode,
    SomeIpMessage,
)
from ustreamer.transports.someip.protocol.correlation import InboundRequest, OutboundCall, PendingCalls
from ustreamer.transports.someip.protocol.dscp import at_priority
from ustreamer.transports.someip.protocol.mapping import (
    RequestTemplate,
    id_with_request_id,
    lsbs_with_request_ids,
)
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, check_attributes
from ustreamer.uprotocol.umessage import UMessage, response_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource

_NS_PER_MS: Final = 1_000_000
_MAX_CACHED: Final = 4_096  # of each kind; clients choose the keys
_MAX_SEGMENTS: Final = 64
_LENGTH_BASE: Final = HEADER_LENGTH - MIN_LENGTH

_HEADER: Final = Struct(">IIII")
"""Message id, length, request id, and versions to return code."""
_INTERFACE_VERSION_MASK: Final = 0x00FF_0000  # in the last of the four words
_NO_ID: Final = UUID(0, 0)
_RESPONSE_VERSIONS_AND_TYPE: Final = PROTOCOL_VERSION << 24 | MessageType.RESPONSE << 8 | ReturnCode.E_OK


class _ResponseTemplates(BoundedCache[UAttributes, UAttributes]):
    """The attributes of a response without its reqid, by those of the request: one object for equal requests."""

    def __missing__(self, request: UAttributes) -> UAttributes:
        response = response_attributes(UMessage(_NO_ID, request), None, UPayloadFormat.UNSPECIFIED)
        template = msgspec.structs.replace(response, reqid=None)
        self.add(request, template)
        return template


class FastInbound:
    """Decodes successful responses to calls, and requests like one that `Exchange.decode_message` accepted.

    Belongs to the receiving thread.
    """

    def __init__(
        self,
        pending: PendingCalls,
        services: ServiceRegistry,
        ids: UuidSource,
        monotonic_ns: Callable[[], int],
        request_ttl_ns: int,
        *,
        keeps_request_ids: bool = False,
    ) -> None:
        """`keeps_request_ids`: the ids of requests keep them, as in `Exchange`."""
        self._keeps_request_ids = keeps_request_ids
        self._pending = pending
        self._services = services
        self._ids = ids
        self._monotonic_ns = monotonic_ns
        self._request_ttl_ns = request_ttl_ns
        self._response_templates = _ResponseTemplates(_MAX_CACHED)
        self._request_attributes: BoundedCache[tuple[int, int, int], UAttributes] = BoundedCache(_MAX_CACHED)
        """Of requests from any accepted client, by message id, client and the last word of the header."""

    def add_request(self, request: SomeIpMessage, attributes: UAttributes) -> None:
        """Remember the attributes of an accepted request. Every request with the same header fields has the same
        ones.
        """
        versions_and_type = (
            PROTOCOL_VERSION << 24
            | request.interface_version << 16
            | request.message_type << 8
            | request.return_code
        )
        key = request.message_id, request.client, versions_and_type
        self._request_attributes.add(key, attributes)

    def decode_message(self, datagram: bytes, address: Address) -> UMessage | None:
        """The message of a datagram that holds exactly one message. None, with nothing changed, if `Exchange` must
        decode it.
        """
        if len(datagram) < HEADER_LENGTH:
            return None
        message_id, length, request_id, versions_and_type = _HEADER.unpack_from(datagram)
        if length != len(datagram) - _LENGTH_BASE:
            return None
        if versions_and_type & ~_INTERFACE_VERSION_MASK == _RESPONSE_VERSIONS_AND_TYPE:
            return self._decode_response(message_id, request_id, datagram, address[0])
        attributes = self._request_attributes.get((message_id, request_id >> 16, versions_and_type))
        if attributes is None or not self._services.is_client(address[0]):
            return None
        return self._open_request(attributes, message_id, request_id, versions_and_type, datagram, address)

    def decode_batch(
        self,
        header: bytes,
        request_ids: Sequence[int],
        payloads: Sequence[bytes],
        senders: Sequence[Address],
    ) -> Sequence[UMessage] | None:
        """As `decode_message` of datagrams that share `header`, except for their request ids, and one payload size.

        None, with nothing changed, if `decode_message` returns None for one of them.
        """
        message_id, length, _, versions_and_type = _HEADER.unpack(header)
        if length != MIN_LENGTH + len(payloads[0]):
            return None
        if versions_and_type & ~_INTERFACE_VERSION_MASK == _RESPONSE_VERSIONS_AND_TYPE:
            return self._decode_responses(message_id, request_ids, payloads, {host for host, _ in senders})
        client = request_ids[0] >> 16
        attributes = self._request_attributes.get((message_id, client, versions_and_type))
        if attributes is None or [each >> 16 for each in request_ids].count(client) < len(request_ids):
            return None
        if not all(self._services.is_client(host) for host in {host for host, _ in senders}):
            return None
        return self._open_requests(attributes, message_id, request_ids, versions_and_type, payloads, senders)

    def _decode_responses(
        self, message_id: int, request_ids: Sequence[int], payloads: Sequence[bytes], hosts: set[str]
    ) -> Sequence[UMessage] | None:
        number, calls = len(request_ids), self._pending.calls
        if len(hosts) > 1 or len(set(request_ids)) < number:
            return None
        with self._pending.lock:
            now_ns = self._monotonic_ns()
            answered: list[OutboundCall] = []
            for request_id in request_ids:
                call = calls.get(request_id, now_ns)
                if (
                    call is None
                    or call.remote[0] not in hosts
                    or call.service << 16 | call.method != message_id
                ):
                    return None
                answered.append(call)
            for request_id in request_ids:
                calls.remove_entry(request_id)
        templates = [self._response_templates[call.request.attributes] for call in answered]
        reqids = [call.request.id for call in answered]
        if templates.count(templates[0]) == number:
            return MessageBatch(templates[0], IdColumns(*self._ids.next_n_columns(number)), payloads, reqids)
        attributes = [
            msgspec.structs.replace(like, reqid=reqid) for like, reqid in zip(templates, reqids, strict=True)
        ]
        return list(map(UMessage, self._ids.next_n(number), attributes, payloads))

    def _open_requests(
        self,
        attributes: UAttributes,
        message_id: int,
        request_ids: Sequence[int],
        versions_and_type: int,
        payloads: Sequence[bytes],
        senders: Sequence[Address],
    ) -> Sequence[UMessage] | None:
        msbs, lsbs = self._ids.next_n_columns(len(request_ids))
        if self._keeps_request_ids:
            lsbs = lsbs_with_request_ids(lsbs, request_ids)
        ids, requests = list(map(UUID, msbs, lsbs)), self._pending.requests
        with self._pending.lock:
            deadline_ns = self._monotonic_ns() + self._request_ttl_ns
            for number, (id, request_id, address) in enumerate(zip(ids, request_ids, senders, strict=True)):
                try:
                    requests.add_entry(
                        id, _inbound_request(message_id, request_id, versions_and_type, address), deadline_ns
                    )
                except UStatusError:
                    for opened in ids[:number]:
                        requests.remove_entry(opened)
                    return None
        return MessageBatch(attributes, IdColumns(msbs, lsbs), payloads)

    def _decode_response(
        self, message_id: int, request_id: int, datagram: bytes, host: str
    ) -> UMessage | None:
        pending = self._pending
        with pending.lock:
            call = pending.calls.get(request_id, self._monotonic_ns())
            if call is None or call.remote[0] != host or call.service << 16 | call.method != message_id:
                return None
            pending.calls.remove_entry(request_id)
        request = call.request
        attributes = msgspec.structs.replace(self._response_templates[request.attributes], reqid=request.id)
        return UMessage(self._ids.next(), attributes, datagram[HEADER_LENGTH:])

    def _open_request(
        self,
        attributes: UAttributes,
        message_id: int,
        request_id: int,
        versions_and_type: int,
        datagram: bytes,
        address: Address,
    ) -> UMessage | None:
        inbound_request = _inbound_request(message_id, request_id, versions_and_type, address)
        id = self._ids.next()
        if self._keeps_request_ids:
            id = id_with_request_id(id, request_id)
        with self._pending.lock:
            try:
                self._pending.requests.add_entry(
                    id, inbound_request, self._monotonic_ns() + self._request_ttl_ns
                )
            except UStatusError:
                return None
        return UMessage(id, attributes, datagram[HEADER_LENGTH:])


def _inbound_request(
    message_id: int, request_id: int, versions_and_type: int, address: Address
) -> InboundRequest:
    return InboundRequest(
        message_id >> 16,
        message_id & 0xFFFF,
        request_id >> 16,
        request_id & 0xFFFF,
        versions_and_type >> 16 & 0xFF,
        address,
        versions_and_type >> 8 & 0xFF == MessageType.REQUEST,
    )


class SendEqualSized(Protocol):
    """Sends at most 64 datagrams of one size to one address; returns how many were accepted, from the first on. Never
    raises.
    """

    def __call__(self, datagrams: Sequence[bytes], address: Address, /) -> int: ...


_RESPONSE_TEMPLATE: Final = RequestTemplate(0, 0, 0, ("", 0), 0)
"""The template of all responses; the table of open requests holds their address."""


class FastOutbound:
    """Sends requests and responses; consecutive ones of one size to one address share a system call. Any thread.

    A call is opened before its request is sent. A request is closed before its response is sent. So neither is answered
    twice. Nothing is sent under the lock: the receiving thread needs it for the next message from the network.
    """

    def __init__(
        self,
        pending: PendingCalls,
        services: ServiceRegistry,
        expiry: Expiry,
        monotonic_ns: Callable[[], int],
        send_equal_sized: SendEqualSized,
        send_slow_path: SendOne,
        wake_by: Callable[[int], None],
        is_for_discovery: Callable[[UMessage], bool],
    ) -> None:
        """`wake_by` receives the first deadline of the sent calls. `is_for_discovery` messages take the slow path."""
        self._pending = pending
        self._services = services
        self._expiry = expiry
        self._monotonic_ns = monotonic_ns
        self._send_equal_sized = send_equal_sized
        self._send_slow_path = send_slow_path
        self._wake_by = wake_by
        self._is_for_discovery = is_for_discovery

    def transmit(self, message: UMessage, /) -> None:
        """Send a message that an ingress accepted."""
        template = self._template_for(message)
        if template is _RESPONSE_TEMPLATE:
            attributes = message.attributes
            sent = self._send_responses((attributes.reqid,), (attributes.commstatus,), (message.payload,))
        else:
            sent = 0 if template is None else self._send_requests((message,), template)
        if not sent:
            self._send_slow_path(message)

    def transmit_batch(self, messages: Iterable[UMessage], /) -> int:
        """As specified by `SendBatch`."""
        taken = 0
        batch: list[UMessage] = []
        template: RequestTemplate | None = None
        for message in messages:
            next_template = self._template_for(message)
            if batch and next_template is not template:
                sent = self._flush(batch, template)
                taken += sent
                if sent < len(batch):
                    return taken
                batch = []
            template = next_template
            if template is not None:
                batch.append(message)
                continue
            try:
                self._send_slow_path(message)
            except Exception:  # noqa: BLE001  # the caller retries the message alone, and that retry raises
                return taken
            taken += 1
        return taken + self._flush(batch, template)

    def _template_for(self, message: UMessage) -> RequestTemplate | None:
        attributes = message.attributes
        if attributes.type is UMessageType.REQUEST:
            # Read first: a table that is replaced meanwhile then receives the outdated template, and nothing reads
            # it.
            templates = self._services.request_templates
            return templates.get(attributes) or self._create_template(message, templates)
        if attributes.type is UMessageType.RESPONSE and not self._is_for_discovery(message):
            return _RESPONSE_TEMPLATE
        return None

    def _create_template(
        self, message: UMessage, templates: BoundedCache[UAttributes, RequestTemplate]
    ) -> RequestTemplate | None:
        attributes = message.attributes
        method = attributes.sink
        if method is None or not attributes.is_cacheable or self._is_for_discovery(message):
            return None
        try:
            check_attributes(attributes)
            remote = self._services.remote_service(method)
        except UStatusError:
            return None
        id = method.resource_id
        address = at_priority(remote.methods[id], attributes.priority_class)
        if (
            isinstance(address, TcpAddress)
            or id in remote.segmentation
            or id in remote.no_return
            or not remote.is_configured
        ):
            return None
        versions_and_type = (
            PROTOCOL_VERSION << 24 | remote.major << 16 | MessageType.REQUEST << 8 | ReturnCode.E_OK
        )
        message_id, client = remote.service << 16 | id, attributes.source.ue_type
        template = RequestTemplate(message_id, versions_and_type, client, address, attributes.ttl or 0)
        templates.add(attributes, template)
        return template

    def _flush(self, batch: Sequence[UMessage], template: RequestTemplate | None) -> int:
        """Send messages of one template; returns how many."""
        if template is None or not batch:
            return 0
        if template is not _RESPONSE_TEMPLATE:
            return self._send_requests(batch, template)
        attributes = [each.attributes for each in batch]
        return self._send_responses(
            [each.reqid for each in attributes],
            [each.commstatus for each in attributes],
            [each.payload for each in batch],
        )

    def _send_requests(self, batch: Sequence[UMessage], template: RequestTemplate) -> int:
        pending, ttl = self._pending, template.ttl
        datagrams: list[bytes] = []
        opened: list[int] = []
        first_ns = 0
        with pending.lock:
            now_ns = self._monotonic_ns()
            wall_ms = self._expiry.wall_ms_if_stable(now_ns, ttl)
            # If not, the service is gone or has moved: its callers have been notified already, without these calls.
            is_there = self._services.request_templates.get(batch[0].attributes) is template
            if wall_ms is None or not pending.accepts_calls or not is_there:
                return 0
            for message in batch:
                left_ms = min((message.id.msb >> 16) + ttl - wall_ms, ttl)
                if left_ms <= 0:
                    break
                deadline_ns = now_ns + left_ms * _NS_PER_MS
                first_ns = min(first_ns or deadline_ns, deadline_ns)
                head = UMessage(message.id, message.attributes)
                call = OutboundCall(
                    head, template.message_id >> 16, template.message_id & 0xFFFF, template.address
                )
                try:
                    request_id = pending.open_call(template.client, call, deadline_ns)
                except UStatusError:
                    break
                opened.append(request_id)
                payload = message.payload
                header = _HEADER.pack(
                    template.message_id, len(payload) + MIN_LENGTH, request_id, template.versions_and_type
                )
                datagrams.append(header + payload)
        sent = self._send_grouped(datagrams, [template.address] * len(datagrams))
        if sent < len(opened):
            sent += self._cancel_calls(opened[sent:])
        if sent:
            self._wake_by(first_ns)
        return sent

    def _cancel_calls(self, unsent: Sequence[int]) -> int:
        """Close calls that were not sent, so that they can be retried. Returns how many count as sent.

        None counts as sent, unless a call has ended meanwhile: a retry would end it twice. Then all count as sent, and
        those still open end at their ttl.
        """
        calls = self._pending.calls
        with self._pending.lock:
            if not all(each in calls for each in unsent):
                return len(unsent)
            for each in unsent:
                calls.remove_entry(each)
            return 0

    def _send_responses(
        self,
        reqids: Sequence[UUID | None],
        commstatuses: Sequence[UCode | None],
        payloads: Sequence[bytes],
    ) -> int:
        requests = self._pending.requests
        datagrams: list[bytes] = []
        addresses: list[Address] = []
        closed: list[tuple[UUID, InboundRequest, int]] = []
        with self._pending.lock:
            now_ns = self._monotonic_ns()
            for reqid, commstatus, payload in zip(reqids, commstatuses, payloads, strict=True):
                request = None if reqid is None else requests.get(reqid, now_ns)
                if reqid is None or request is None or not self._fits_fast_path(commstatus, request):
                    break
                closed.append((reqid, request, requests.deadline_ns(reqid)))
                requests.remove_entry(reqid)
                header = _HEADER.pack(
                    request.service << 16 | request.method,
                    len(payload) + MIN_LENGTH,
                    request.client << 16 | request.session,
                    _RESPONSE_VERSIONS_AND_TYPE | request.interface_version << 16,
                )
                datagrams.append(header + payload)
                addresses.append(request.address)
        sent = self._send_grouped(datagrams, addresses)
        if sent < len(closed):
            self._reopen_requests(closed[sent:])
        return sent

    def _reopen_requests(self, unsent: Sequence[tuple[UUID, InboundRequest, int]]) -> None:
        """Open requests again whose responses were not sent, unless newer requests have taken their places."""
        with self._pending.lock:
            for each in unsent:
                with suppress(UStatusError):
                    self._pending.requests.add_entry(*each)

    def _fits_fast_path(self, commstatus: UCode | None, request: InboundRequest) -> bool:
        """Whether this is a success, for a client that expects a response, in one datagram over UDP."""
        return (
            (commstatus is None or commstatus is UCode.OK)
            and request.expects_response
            and not isinstance(request.address, TcpAddress)
            and request.service not in self._services.response_dscp
            and self._services.response_segmenting(request) is None
        )

    def _send_grouped(self, datagrams: Sequence[bytes], addresses: Sequence[Address]) -> int:
        """Send in order; returns how many datagrams were accepted."""
        begin, end = 0, len(datagrams)
        if end == 1:
            return self._send_equal_sized(datagrams, addresses[0])
        while begin < end:
            size, address, stop = len(datagrams[begin]), addresses[begin], begin + 1
            while stop < end and len(datagrams[stop]) == size and addresses[stop] == address:
                stop += 1
            stop = min(stop, begin + _MAX_SEGMENTS)
            taken = self._send_equal_sized(datagrams[begin:stop], address)
            begin += taken
            if begin < stop:
                break
        return begin
