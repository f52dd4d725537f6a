# SPDX-License-Identifier: Apache-2.0
"""Requests and responses by the thousand: what `Exchange` decides about each, decided by the parts of it that repeat.

`Exchange.incoming`, `call` and `answer` are the readable way, and the oracle of these. Whatever is not plain is left to them:
failures, segments, TCP, what wants no answer, what service discovery has to see, and all that is seen for the first time.
"""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final, Protocol

import msgspec

from ustreamer.core.delivery.delivery import Transmit
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.transports.someip.discovery.service_registry import Services
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MIN_LENGTH,
    PROTOCOL_VERSION,
    MessageType,
    ReturnCode,
    SomeIpMessage,
)
from ustreamer.transports.someip.protocol.correlation import Books, Call, ClientRequest
from ustreamer.transports.someip.protocol.mapping import Way
from ustreamer.uprotocol.batch import Halves, Run
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, check_attributes
from ustreamer.uprotocol.umessage import UMessage, answer_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource

_NS_PER_MS: Final = 1_000_000
_KEPT: Final = 4_096  # of each kind; clients choose them
_AT_ONCE: Final = 64
_LENGTH_FROM: Final = HEADER_LENGTH - MIN_LENGTH

_HEADER: Final = Struct(">IIII")
"""Message id, length, request id, and versions to return code."""
_MAJOR: Final = 0x00FF_0000  # in the last of them
_RESPONSE: Final = PROTOCOL_VERSION << 24 | MessageType.RESPONSE << 8 | ReturnCode.E_OK


class _Likenesses:
    """The attributes of answers without their reqid, by those of the request: one object for all that are alike."""

    def __init__(self) -> None:
        self._known: dict[UAttributes, UAttributes] = {}

    def of(self, request: UMessage) -> UAttributes:
        asked = request.attributes
        like = self._known.get(asked)
        if like is None:
            answer = answer_attributes(request, None, UPayloadFormat.UNSPECIFIED)
            like = msgspec.structs.replace(answer, reqid=None)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[asked] = like
        return like


class ShortWayIn:
    """Takes successful answers to calls, and requests like one that `Exchange.incoming` has accepted. For the receiving thread."""

    def __init__(
        self,
        books: Books,
        services: Services,
        ids: UuidSource,
        monotonic_ns: Callable[[], int],
        request_ttl_ns: int,
    ) -> None:
        self._books = books
        self._services = services
        self._ids = ids
        self._monotonic_ns = monotonic_ns
        self._request_ttl_ns = request_ttl_ns
        self._likenesses = _Likenesses()
        self._requests: dict[tuple[int, int, int], UAttributes] = {}
        """Of requests from anybody who may ask, by message id, client and what follows the session."""

    def learn(self, request: SomeIpMessage, attributes: UAttributes) -> None:
        """A request was accepted and has these attributes: so has every one that says the same."""
        said = (
            PROTOCOL_VERSION << 24
            | request.interface_version << 16
            | request.message_type << 8
            | request.return_code
        )
        if len(self._requests) >= _KEPT:
            self._requests.clear()
        self._requests[request.message_id, request.client, said] = attributes

    def message(self, datagram: bytes, address: Address) -> UMessage | None:
        """What a datagram is that is one message and nothing else; None if `Exchange` has to look at it, and nothing is changed."""
        if len(datagram) < HEADER_LENGTH:
            return None
        message_id, length, request_id, said = _HEADER.unpack_from(datagram)
        if length != len(datagram) - _LENGTH_FROM:
            return None
        if said & ~_MAJOR == _RESPONSE:
            return self._answer(message_id, request_id, datagram, address[0])
        attributes = self._requests.get((message_id, request_id >> 16, said))
        if attributes is None or not self._services.is_client(address[0]):
            return None
        return self._request(attributes, message_id, request_id, said, datagram, address)

    def messages(
        self,
        header: bytes,
        request_ids: Sequence[int],
        payloads: Sequence[bytes],
        senders: Sequence[Address],
    ) -> Sequence[UMessage] | None:
        """As `message` of each of some that have this header, but for their request ids, and payloads of one size.

        None, and nothing is changed, if `message` says so of one of them.
        """
        message_id, length, _, said = _HEADER.unpack(header)
        if length != MIN_LENGTH + len(payloads[0]):
            return None
        if said & ~_MAJOR == _RESPONSE:
            return self._answers(message_id, request_ids, payloads, {host for host, _ in senders})
        client = request_ids[0] >> 16
        attributes = self._requests.get((message_id, client, said))
        if attributes is None or [each >> 16 for each in request_ids].count(client) < len(request_ids):
            return None
        if not all(self._services.is_client(host) for host in {host for host, _ in senders}):
            return None
        return self._new_requests(attributes, message_id, request_ids, said, payloads, senders)

    def _answers(
        self, message_id: int, request_ids: Sequence[int], payloads: Sequence[bytes], hosts: set[str]
    ) -> Sequence[UMessage] | None:
        number, calls = len(request_ids), self._books.calls
        if len(hosts) > 1 or len(set(request_ids)) < number:
            return None
        with self._books.lock:
            now_ns = self._monotonic_ns()
            answered: list[Call] = []
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
                calls.close(request_id)
        likes = [self._likenesses.of(call.request) for call in answered]
        reqids = [call.request.id for call in answered]
        if likes.count(likes[0]) == number:
            return Run(likes[0], Halves(*self._ids.halves(number)), payloads, reqids)
        attributes = [
            msgspec.structs.replace(like, reqid=reqid) for like, reqid in zip(likes, reqids, strict=True)
        ]
        return list(map(UMessage, self._ids.some(number), attributes, payloads))

    def _new_requests(
        self,
        attributes: UAttributes,
        message_id: int,
        request_ids: Sequence[int],
        said: int,
        payloads: Sequence[bytes],
        senders: Sequence[Address],
    ) -> Sequence[UMessage] | None:
        halves = self._ids.halves(len(request_ids))
        ids, requests = list(map(UUID, *halves)), self._books.requests
        with self._books.lock:
            deadline_ns = self._monotonic_ns() + self._request_ttl_ns
            for number, (id, request_id, address) in enumerate(zip(ids, request_ids, senders, strict=True)):
                try:
                    requests.open(id, _asked(message_id, request_id, said, address), deadline_ns)
                except UStatusError:
                    for opened in ids[:number]:
                        requests.close(opened)
                    return None
        return Run(attributes, Halves(*halves), payloads)

    def _answer(self, message_id: int, request_id: int, datagram: bytes, host: str) -> UMessage | None:
        books = self._books
        with books.lock:
            call = books.calls.get(request_id, self._monotonic_ns())
            if call is None or call.remote[0] != host or call.service << 16 | call.method != message_id:
                return None
            books.calls.close(request_id)
        like = self._likenesses.of(call.request)
        attributes = msgspec.structs.replace(like, reqid=call.request.id)
        return UMessage(self._ids.next(), attributes, datagram[HEADER_LENGTH:])

    def _request(
        self,
        attributes: UAttributes,
        message_id: int,
        request_id: int,
        said: int,
        datagram: bytes,
        address: Address,
    ) -> UMessage | None:
        asked = _asked(message_id, request_id, said, address)
        id = self._ids.next()
        with self._books.lock:
            try:
                self._books.requests.open(id, asked, self._monotonic_ns() + self._request_ttl_ns)
            except UStatusError:
                return None
        return UMessage(id, attributes, datagram[HEADER_LENGTH:])


def _asked(message_id: int, request_id: int, said: int, address: Address) -> ClientRequest:
    return ClientRequest(
        message_id >> 16,
        message_id & 0xFFFF,
        request_id >> 16,
        request_id & 0xFFFF,
        said >> 16 & 0xFF,
        address,
        said >> 8 & 0xFF == MessageType.REQUEST,
    )


class SendAlike(Protocol):
    """Sends datagrams of one size, 64 at most, to one address; how many, from the first on, were taken. Raises nothing."""

    def __call__(self, datagrams: Sequence[bytes], address: Address, /) -> int: ...


_ANSWERS: Final = Way(0, 0, 0, ("", 0), 0)
"""All responses; where one goes is in the books."""


class ShortWayOut:
    """Sends requests and responses, those in a row to one address and of one size in one system call. Any thread.

    What is sent and what is open changes in one step: within it, nothing expires and nobody is answered.
    """

    def __init__(
        self,
        books: Books,
        services: Services,
        expiry: Expiry,
        monotonic_ns: Callable[[], int],
        send: SendAlike,
        send_other: Transmit,
        wake_by: Callable[[int], None],
        concerns: Callable[[UMessage], bool],
    ) -> None:
        """`wake_by` is told of the first deadline among calls that were sent; what `concerns` says is for somebody else."""
        self._books = books
        self._services = services
        self._expiry = expiry
        self._monotonic_ns = monotonic_ns
        self._send = send
        self._send_other = send_other
        self._wake_by = wake_by
        self._concerns = concerns

    def transmit(self, message: UMessage, /) -> None:
        """Send what an ingress has accepted."""
        if not self._flush([message], self._way(message)):
            self._send_other(message)

    def transmit_all(self, messages: Iterable[UMessage], /) -> int:
        """As `BulkTransmit` says."""
        if type(messages) is Run and messages:
            return self._transmit_run(messages)
        taken = 0
        run: list[UMessage] = []
        way: Way | None = None
        for message in messages:
            other = self._way(message)
            if run and other is not way:
                sent = self._flush(run, way)
                taken += sent
                if sent < len(run):
                    return taken
                run = []
            way = other
            if way is not None:
                run.append(message)
                continue
            try:
                self._send_other(message)
            except Exception:  # noqa: BLE001  # it is offered again, by itself, and raises where that is seen
                return taken
            taken += 1
        return taken + self._flush(run, way)

    def _transmit_run(self, run: Run) -> int:
        way = self._way(run[0])
        if way is None:
            return self.transmit_all(iter(run))
        if way is not _ANSWERS:
            return self._call(list(run), way)
        reqids, commstatus = run.reqids, run.attributes.commstatus
        return 0 if reqids is None else self._answer(reqids, [commstatus] * len(run), run.payloads)

    def _way(self, message: UMessage) -> Way | None:
        attributes = message.attributes
        if attributes.type is UMessageType.REQUEST:
            ways = (
                self._services.ways
            )  # before the question: one that is outdated meanwhile is put where nobody looks
            return ways.get(attributes) or self._found(message, ways)
        if attributes.type is UMessageType.RESPONSE and not self._concerns(message):
            return _ANSWERS
        return None

    def _found(self, message: UMessage, ways: dict[UAttributes, Way]) -> Way | None:
        attributes = message.attributes
        method = attributes.sink
        if method is None or not attributes.repeats or self._concerns(message):
            return None
        try:
            check_attributes(attributes)
            remote = self._services.remote(method)
        except UStatusError:
            return None
        id, address = method.resource_id, remote.methods[method.resource_id]
        if (
            isinstance(address, TcpAddress)
            or id in remote.segmenting
            or id in remote.no_return
            or not remote.listed
        ):
            return None
        said = PROTOCOL_VERSION << 24 | remote.major << 16 | MessageType.REQUEST << 8 | ReturnCode.E_OK
        message_id, client = remote.service << 16 | id, attributes.source.ue_type
        way = Way(message_id, said, client, address, attributes.ttl or 0)
        if len(ways) >= _KEPT:
            ways.clear()
        ways[attributes] = way
        return way

    def _flush(self, run: Sequence[UMessage], way: Way | None) -> int:
        """Send messages of one way; how many."""
        if way is None or not run:
            return 0
        if way is not _ANSWERS:
            return self._call(run, way)
        said = [each.attributes for each in run]
        return self._answer(
            [each.reqid for each in said],
            [each.commstatus for each in said],
            [each.payload for each in run],
        )

    def _call(self, run: Sequence[UMessage], way: Way) -> int:
        books, ttl = self._books, way.ttl
        datagrams: list[bytes] = []
        opened: list[int] = []
        first_ns = 0
        with books.lock:
            now_ns = self._monotonic_ns()
            wall_ms = self._expiry.calm_wall_ms(now_ns, ttl)
            # Nor if the service has gone or moved meanwhile: who tells its callers would not find these.
            is_there = self._services.ways.get(run[0].attributes) is way
            if wall_ms is None or not books.takes_calls or not is_there:
                return 0
            for message in run:
                left_ms = min((message.id.msb >> 16) + ttl - wall_ms, ttl)
                if left_ms <= 0:
                    break
                deadline_ns = now_ns + left_ms * _NS_PER_MS
                first_ns = min(first_ns or deadline_ns, deadline_ns)
                asked = UMessage(message.id, message.attributes)
                call = Call(asked, way.message_id >> 16, way.message_id & 0xFFFF, way.address)
                try:
                    request_id = books.open_call(way.client, call, deadline_ns)
                except UStatusError:
                    break
                opened.append(request_id)
                payload = message.payload
                header = _HEADER.pack(way.message_id, len(payload) + MIN_LENGTH, request_id, way.said)
                datagrams.append(header + payload)
            sent = self._sent(datagrams, [way.address] * len(datagrams))
            for request_id in opened[sent:]:
                books.calls.close(request_id)
        if sent:
            self._wake_by(first_ns)
        return sent

    def _answer(
        self,
        reqids: Sequence[UUID | None],
        commstatuses: Sequence[UCode | None],
        payloads: Sequence[bytes],
    ) -> int:
        requests = self._books.requests
        datagrams: list[bytes] = []
        addresses: list[Address] = []
        closed = []
        with self._books.lock:
            now_ns = self._monotonic_ns()
            for reqid, commstatus, payload in zip(reqids, commstatuses, payloads, strict=True):
                asked = None if reqid is None else requests.get(reqid, now_ns)
                if reqid is None or asked is None or not self._is_plain(commstatus, asked):
                    break
                closed.append((reqid, asked, requests.deadline_ns(reqid)))
                requests.close(reqid)
                header = _HEADER.pack(
                    asked.service << 16 | asked.method,
                    len(payload) + MIN_LENGTH,
                    asked.client << 16 | asked.session,
                    _RESPONSE | asked.interface_version << 16,
                )
                datagrams.append(header + payload)
                addresses.append(asked.address)
            sent = self._sent(datagrams, addresses)
            for reqid, asked, deadline_ns in closed[sent:]:
                requests.open(reqid, asked, deadline_ns)
        return sent

    def _is_plain(self, commstatus: UCode | None, asked: ClientRequest) -> bool:
        """Whether an answer is a success for a client that wants to know, in one datagram."""
        return (
            (commstatus is None or commstatus is UCode.OK)
            and asked.wants_answer
            and not isinstance(asked.address, TcpAddress)
            and self._services.response_segmenting(asked) is None
        )

    def _sent(self, datagrams: Sequence[bytes], addresses: Sequence[Address]) -> int:
        """Send in this order; how many were taken."""
        begin, end = 0, len(datagrams)
        while begin < end:
            size, address, stop = len(datagrams[begin]), addresses[begin], begin + 1
            while stop < end and len(datagrams[stop]) == size and addresses[stop] == address:
                stop += 1
            stop = min(stop, begin + _AT_ONCE)
            taken = self._send(datagrams[begin:stop], address)
            begin += taken
            if begin < stop:
                break
        return begin
