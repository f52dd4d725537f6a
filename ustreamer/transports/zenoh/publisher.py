# SPDX-License-Identifier: Apache-2.0
"""Sends messages: one declared publisher per route (source, sink, priority), each distinct header encoded once.

In: messages. Out: Zenoh puts, or RouteUnavailable where no subscriber matches, as Zenoh loses such a put silently.

A publisher is used instead of `session.put`: it is no slower, and it reports whether a subscriber matches. A publisher may lose its subscribers. When they are back, the messages of the time shortly before the loss are
put again with the same ids, before any newer message.

A declaration takes longer than a put (docs/performance.md), so the publishers of subscribed topics are declared before
their first message.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from struct import Struct
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

import msgspec
import zenoh
from zenoh.handlers import Callback

from ustreamer.core.delivery.expiry import BATCH_SEND_MS, Expiry
from ustreamer.transport_port import EndpointContext, RouteUnavailable, SentStore, Unconfirmed
from ustreamer.transports.zenoh.decoder import VERSION_BYTE, AttachmentColumns
from ustreamer.transports.zenoh.errors import zenoh_error_text
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.link_monitor import DETECTION_NS, MARGIN_NS, LinkMonitor
from ustreamer.transports.zenoh.receipt_keys import ID_IN_ATTACHMENT, receipt_id
from ustreamer.transports.zenoh.retransmit import (
    HEAD,
    AnsweredRequests,
    Origin,
    RetransmitBuffer,
    RetransmitConfig,
)
from ustreamer.transports.zenoh.sent_keeper import AwaitedKeeper, Put, SentKeeper
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import (
    UAttributes,
    UMessageType,
    UPriority,
    check_attributes,
)
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import REQID, REQID_PREFIX, encode_tail, reqid_field, split_around_reqid

if TYPE_CHECKING:
    from ustreamer.transports.zenoh.awaited_receipts import AwaitedReceipts, Receiver


PRIORITIES: Final = {
    UPriority.UNSPECIFIED: zenoh.Priority.DATA_LOW,
    UPriority.CS0: zenoh.Priority.BACKGROUND,
    UPriority.CS1: zenoh.Priority.DATA_LOW,
    UPriority.CS2: zenoh.Priority.DATA,
    UPriority.CS3: zenoh.Priority.DATA_HIGH,
    UPriority.CS4: zenoh.Priority.INTERACTIVE_LOW,
    UPriority.CS5: zenoh.Priority.INTERACTIVE_HIGH,
    UPriority.CS6: zenoh.Priority.REAL_TIME,
}
"""[impl->dsn~up-transport-zenoh-message-priority-mapping~1]"""

MAX_PUBLISHERS: Final = 16_384
_MAX_HEADERS: Final = 32_768
_VERSION_AND_TAGS: Final = VERSION_BYTE + b"\x0a\x12\x09"  # precedes the id, as in `ustreamer.uprotocol.wire`
_MAX_TAILS: Final = 256
_POLL_S: Final = 0.005
_NEVER_NS: Final = 1 << 62
_NS_PER_MS: Final = 1_000_000
_OVERDUE_NS: Final = 300_000_000
"""Without a receipt for this time, puts stay in the retransmit buffer beyond its age."""
_PUTS_PER_QUERY: Final = 25
"""Fewer puts wait for a pause: a query costs as much as ten of them."""
_FORGOTTEN_NS: Final = 10_000_000_000  # a put waits for 5 s at most; then it is remembered, or never will be
_RECEIPTS_NS: Final = 2_000_000_000  # how long a stop waits for receipts
_PREPARE_LOCK_S: Final = 0.025  # a sender may hold the lock for seconds
_DISCOVERY_NS: Final = 500_000_000
"""The time in which a new publisher learns of existing subscribers. Measured across two routers: 6 ms at most, and
340 ms on an overloaded machine."""
_RETURN_NS: Final = 1_500_000_000
"""The time in which a lost subscriber may return: a Zenoh node that lost its link connects again after 1 s."""


ZenohRoute = tuple[UUri, UUri | None, UPriority]
"""Source, sink and priority."""


class _RoutePublisher:
    """The Zenoh publisher of one route.

    `open`: a subscriber matches, and nothing is left to retransmit. `headers` has the keys of its cached headers.
    `absent_from_ns` has a meaning only while no subscriber matches: from this time on none is expected. `receivers`
    give receipts for its puts since `opened_ns`, or since they appeared.
    """

    __slots__ = (
        "absent_from_ns",
        "headers",
        "lost_ns",
        "open",
        "opened_ns",
        "put",
        "receivers",
        "route",
        "to_retransmit",
        "zenoh",
    )

    def __init__(self, route: ZenohRoute, absent_from_ns: int) -> None:
        self.route = route
        self.absent_from_ns = absent_from_ns
        self.zenoh: zenoh.Publisher
        self.put: Callable[..., None]
        self.open = False
        self.opened_ns = 0
        self.headers: dict[UAttributes, None] = {}
        self.to_retransmit: list[tuple[int, UMessage]] = []
        self.lost_ns = 0
        self.receivers: tuple[Receiver, ...] = ()


class _EncodedHeader(msgspec.Struct, frozen=True, gc=False):
    """The common part of all messages with equal attributes: the route, and the attachment after the id.

    Responses share all attributes except the reqid, which is encoded between `tail` and `after_reqid`.
    """

    publisher: _RoutePublisher
    origins: tuple[Origin]
    put: Callable[..., None]
    tail: bytes
    after_reqid: bytes | None = None

    def encode_for(self, attributes: UAttributes) -> tuple[bytes, bytes]:
        """The attachment after the id of a message with `attributes`, and the encoded reqid field or b""."""
        if self.after_reqid is None or attributes.reqid is None:
            return self.tail, b""
        reqid = reqid_field(attributes.reqid)
        return self.tail + reqid + self.after_reqid, reqid

    def attachments(self, batch: MessageBatch) -> Sequence[bytes]:
        """The attachments of a batch. Received attachments are reused if they equal ours."""
        ids, reqids, tail = batch.ids, batch.reqids, repeat(self.tail)
        if type(ids) is AttachmentColumns and reqids is None and ids.tail == self.tail:
            return ids.items
        msbs, lsbs = ids.msb_lsb_columns()
        head = repeat(_VERSION_AND_TAGS), msbs, repeat(b"\x11"), lsbs
        if reqids is None or self.after_reqid is None:
            return list(map(_attachment_struct(len(self.tail)).pack, *head, tail))
        pack = _response_attachment_struct(len(self.tail), len(self.after_reqid)).pack
        reqid = repeat(REQID_PREFIX), [id.msb for id in reqids], repeat(b"\x11"), [id.lsb for id in reqids]
        return list(map(pack, *head, tail, *reqid, repeat(self.after_reqid)))

    def remembered_payloads(self, attachments: Sequence[bytes], payloads: Sequence[bytes]) -> Sequence[bytes]:
        """The payloads as the retransmit buffer stores them: preceded by the reqid field, if there is one."""
        if self.after_reqid is None:
            return payloads
        begin = HEAD.size + len(self.tail)
        reqid = slice(begin, begin + REQID.size)
        return [each[reqid] + payload for each, payload in zip(attachments, payloads, strict=True)]


@lru_cache(_MAX_TAILS)
def _attachment_struct(tail_bytes: int) -> Struct:
    """The layout of an attachment with a tail of this length."""
    return Struct(f"{HEAD.format}{tail_bytes}s")


@lru_cache(_MAX_TAILS)
def _response_attachment_struct(tail_bytes: int, after_reqid: int) -> Struct:
    """The layout of an attachment with these lengths before and after its reqid."""
    return Struct(f"{HEAD.format}{tail_bytes}s{REQID.format[1:]}{after_reqid}s")


class ZenohSender:
    """Puts messages on one session. Thread-safe; a put that waits blocks the other senders."""

    def __init__(
        self,
        session: zenoh.Session,
        link_monitor: LinkMonitor,
        context: EndpointContext,
        retransmit: RetransmitConfig,
        answered_requests: AnsweredRequests,
        on_route_opened: Callable[[Hashable], None] = lambda route: None,
        max_publishers: int = MAX_PUBLISHERS,
        sent_store: SentStore | None = None,
        awaited: "AwaitedReceipts | None" = None,
    ) -> None:
        """`answered_requests` are not retransmitted. `on_route_opened` is called on the thread of `link_monitor`.

        `sent_store` keeps puts while they may not have arrived. `awaited` has the puts without a receipt.
        """
        self.sent = 0
        self.retransmitted = 0
        self.not_retransmitted = 0
        """Possibly lost messages that were not put again.

        Their ttl was over, or their publisher or they themselves were evicted.
        """
        self._session = session
        # The numbers of puts: at the last tick, at the last query, and at the last query in a pause.
        self._puts = self._puts_at_query = self._puts_at_pause = 0
        self._paused_since_ns = 0
        self._link_monitor = link_monitor
        self._context = context
        self._monotonic_ns = context.clock.monotonic_ns
        self._expiry = Expiry(context.clock)
        self._retransmit_buffer = RetransmitBuffer(retransmit)
        self._answered_requests = answered_requests
        self._window_ns = retransmit.ms * _NS_PER_MS
        self._on_route_opened = on_route_opened
        self._max_publishers = max_publishers
        # A publisher in use by one thread cannot be undeclared by another (RuntimeError: Already borrowed).
        self._lock = Lock()
        # Zenoh's threads wait for this lock: never held for long, and never during a call of Zenoh.
        self._state_lock = Lock()
        # With a store: the monitor thread reads the retransmit buffer while a put waits and holds the other lock.
        self._buffer_lock = Lock()
        self._awaited = awaited
        if awaited is not None:
            awaited.on_changed = lambda: link_monitor.run_on_monitor(self._on_receivers_changed)
        has_store = sent_store is not None  # else no lock: 0.16 us
        self._append = self._append_locked if has_store else self._retransmit_buffer.append
        # Evicted from the retransmit buffer unconfirmed; not yet counted, because the time of a loss is not known.
        self._evicted: list[tuple[int, int]] = []
        self._losses: dict[_RoutePublisher, int] = {}
        """Publishers that lost their subscribers, each with the time; `_collect_losses` empties it."""
        self._closing = Event()
        self._sent_keeper = None if sent_store is None else SentKeeper(sent_store)
        self._awaited_keeper = None if sent_store is None else AwaitedKeeper(sent_store)
        self._kept_until_ns = 0  # up to this time, the store has all puts to suspect nodes
        self._new_losses: dict[_RoutePublisher, tuple[int, int]] = {}
        """Publishers that lost their subscribers just now: until when, and since when puts may be lost."""
        self._publishers: dict[ZenohRoute, _RoutePublisher] = {}
        self._by_use: OrderedDict[_RoutePublisher, None] = OrderedDict()
        """The publishers, the least recently used one first."""
        link_monitor.add_tick(self._on_monitor_tick)
        link_monitor.add_link_watcher(self._on_link_replaced)
        self._unprepared: OrderedDict[UUri, None] = OrderedDict()
        """Subscribed topics whose publishers may not be declared yet."""
        self._has_new_topics = False
        self._headers: OrderedDict[UAttributes, _EncodedHeader] = OrderedDict()
        self._response_headers: OrderedDict[UAttributes, _EncodedHeader] = OrderedDict()
        """The keys are the attributes of responses with their reqid removed."""

    def put_message(self, message: UMessage) -> None:
        """Put `message` without waiting for a subscriber. Raises like `UTransport.send`, and RouteUnavailable."""
        with self._lock:
            attributes = message.attributes
            # `_cached_header` inlined: saves 2 us per message where the CPU caches are cold.
            known = (
                self._headers.get(attributes) if attributes.reqid is None else self._cached_header(attributes)
            )
            header = known or self._new_header(message)
            id = message.id
            if id.msb & 0xF000 != 0x7000 or id.lsb >> 62 != 0b10:  # UUID.is_valid inlined: saves 0.15 us
                message.check(strict=False)
            if not self._link_monitor.up:
                name = self._context.name
                raise UStatusError(UCode.UNAVAILABLE, f"endpoint {name!r}: no Zenoh node is connected")
            publisher = header.publisher
            if not publisher.open and not self._link_monitor.multicast:
                raise self._route_unavailable(publisher)
            self._put(header, message)

    # Fast path of put_message (oracle); compared by
    # tests/transports/zenoh/test_publisher.py::test_a_batch_is_put_and_stored_like_single_messages and, for several
    # routes, tests/transports/zenoh/test_publisher.py::test_a_list_is_put_in_order_and_stored
    def put_batch(self, messages: Iterable[UMessage]) -> int:
        """Equal to `put_message` of each valid message until one is refused; returns the number of puts.

        Little work is done between two puts, so Zenoh sends them together. With more work, each fourth put woke
        Zenoh's sending thread; that cost as much as the message itself (4 us).

        All messages are remembered with the time of the last put. So an earlier message may be retransmitted without
        need, but no lost message is missed.
        """
        if type(messages) is MessageBatch:
            return self._put_column_batch(messages)
        origins, heads, payloads = list[Origin](), list[bytes](), list[bytes]()
        with self._lock:
            links, pack, cached = self._link_monitor, HEAD.pack, self._headers.get
            begin_ns = 0 if self._awaited is None else self._monotonic_ns()
            used = self._by_use.move_to_end
            for message in messages:
                attributes, id, payload = message.attributes, message.id, message.payload
                header = cached(attributes) if attributes.reqid is None else self._cached_header(attributes)
                if header is None:
                    header = self._new_header_if_valid(message)
                # The previous put may have waited until Zenoh closed the link.
                if header is None or not links.up or not (header.publisher.open or links.multicast):
                    break
                tail, reqid = header.tail, b""
                if header.after_reqid is not None:
                    tail, reqid = header.encode_for(attributes)
                head = pack(_VERSION_AND_TAGS, id.msb, b"\x11", id.lsb)
                receivers = header.publisher.receivers
                if receivers:  # before the put: its receipt may come at once
                    receipt = head[ID_IN_ATTACHMENT]
                    for each in receivers:
                        each.waiting[receipt] = begin_ns
                try:
                    header.put(payload, attachment=head + tail)
                except zenoh.ZError:
                    _forget(receivers, [head[ID_IN_ATTACHMENT]])
                    break
                used(header.publisher)
                origins += header.origins
                heads.append(head)
                payloads.append(reqid + payload)  # no copy if `reqid` is empty
            self._remember(origins, self._monotonic_ns(), heads, payloads)
            return len(heads)

    # Fast path of put_message (oracle); compared by
    # tests/transports/zenoh/test_publisher.py::test_a_batch_is_put_and_stored_like_single_messages
    def _put_column_batch(self, batch: MessageBatch) -> int:
        """Equal to `put_batch` for equal attributes. Between two puts only the link and the clock are checked.

        After a longer gap, Zenoh's sending thread has sent all messages and sleeps, and the next put must wake it.
        """
        # Read before the lock is taken: another sender may hold the lock while its put waits.
        valid_until_ns = self._monotonic_ns() + BATCH_SEND_MS * _NS_PER_MS
        with self._lock:
            has_ttl, are_responses = bool(batch.attributes.ttl), batch.reqids is not None
            header = self._if_sendable(
                (self._response_headers if are_responses else self._headers).get(batch.attributes)
            )
            if header is None or (has_ttl and self._monotonic_ns() > valid_until_ns):
                return 0
            links, put, attachments = self._link_monitor, header.put, header.attachments(batch)
            remaining = zip(batch.payloads, attachments, strict=True)
            receivers, ids = header.publisher.receivers, list[bytes]()
            if receivers:
                ids = [attachment[ID_IN_ATTACHMENT] for attachment in attachments]
                put_ns = self._monotonic_ns()
                for each in receivers:
                    each.waiting.update(zip(ids, repeat(put_ns)))
            failed = 0
            try:
                for payload, attachment in remaining:
                    put(payload, attachment=attachment)
                    # The put may have waited until Zenoh closed the link, or until the next message is too old.
                    if not links.up or (has_ttl and self._monotonic_ns() > valid_until_ns):
                        break
            except zenoh.ZError:
                failed = 1
            untried = sum(1 for _ in remaining)
            put_count = len(attachments) - failed - untried
            sent = attachments[:put_count]
            if receivers and put_count < len(attachments):
                _forget(receivers, ids[put_count:])
            self._by_use.move_to_end(header.publisher)
            remembered = header.remembered_payloads(sent, batch.payloads[:put_count])
            # A remembered response is longer than its payload: its reqid is stored too.
            sizes = None if are_responses else batch.sizes[:put_count]
            self._remember(header.origins, self._monotonic_ns(), sent, remembered, sizes)
            return put_count

    def _cached_header(self, attributes: UAttributes) -> _EncodedHeader | None:
        """The cached header for these attributes, for a response with any reqid; None if there is none."""
        reqid = attributes.reqid
        if reqid is None:
            return self._headers.get(attributes)
        if reqid.msb & 0xF000 != 0x7000 or reqid.lsb >> 62 != 0b10:  # UUID.is_valid
            return None
        return self._response_headers.get(msgspec.structs.replace(attributes, reqid=None))

    def _if_sendable(self, header: _EncodedHeader | None) -> _EncodedHeader | None:
        """`header` if a link is up and a subscriber matches, else None."""
        links = self._link_monitor
        if header is None or not links.up or not (header.publisher.open or links.multicast):
            return None
        return header

    def send(self, message: UMessage) -> None:
        """As `put_message`, for callers without a queue: wait for a subscriber while links settle, then put anyway."""
        while True:
            with suppress(RouteUnavailable):
                self.put_message(message)
                return
            if self._monotonic_ns() >= self._link_monitor.settled_ns or self._closing.wait(_POLL_S):
                with self._lock:
                    self._put(self._new_header(message), message)
                return

    def _put(self, header: _EncodedHeader, message: UMessage) -> None:
        # The time before the put: a put that waits while its link is lost counts as lost with the link.
        now_ns = self._monotonic_ns()
        id, payload = message.id, message.payload
        head = HEAD.pack(_VERSION_AND_TAGS, id.msb, b"\x11", id.lsb)
        tail, reqid = header.tail, b""
        if header.after_reqid is not None:
            tail, reqid = header.encode_for(message.attributes)
        receivers = header.publisher.receivers
        if receivers:
            receipt = head[ID_IN_ATTACHMENT]
            for each in receivers:
                each.waiting[receipt] = now_ns
        try:
            header.put(payload, attachment=head + tail)
        except zenoh.ZError as error:
            _forget(receivers, [head[ID_IN_ATTACHMENT]])
            raise self._put_error(message.attributes, error) from error
        self.sent += 1
        self._by_use.move_to_end(header.publisher)
        if self._retransmit_buffer.is_enabled:
            stored = reqid + payload
            self._append(header.origins, now_ns, (head,), (stored,), (len(stored),))

    def _remember(
        self,
        origins: Sequence[Origin],
        put_ns: int,
        heads: Sequence[bytes],
        payloads: Sequence[bytes],
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Record that these were put: one origin for all, or one for each."""
        if not heads:
            return
        self.sent += len(heads)
        if self._retransmit_buffer.is_enabled:
            self._append(origins, put_ns, heads, payloads, sizes)

    def _append_locked(
        self,
        origins: Sequence[Origin],
        put_ns: int,
        heads: Sequence[bytes],
        payloads: Sequence[bytes],
        sizes: Sequence[int] | None,
    ) -> None:
        with self._buffer_lock:
            self._retransmit_buffer.append(origins, put_ns, heads, payloads, sizes)

    # --- publishers ---------------------------------------------------------------------------------------------------

    def _new_header(self, message: UMessage) -> _EncodedHeader:
        """Encode the header for new or uncacheable attributes; INVALID_ARGUMENT for invalid ones."""
        attributes = message.attributes
        check_attributes(attributes)  # lenient: messages of tolerated libraries are forwarded
        if attributes.type is UMessageType.PUBLISH and attributes.sink is not None:
            attributes = msgspec.structs.replace(attributes, sink=None)  # never on the wire
        publisher = self._publisher(attributes)
        tail = encode_tail(attributes)
        if attributes.reqid is not None:
            return self._new_response_header(publisher, message.attributes, tail)
        header = _EncodedHeader(publisher, (Origin(publisher, message.attributes),), publisher.put, tail)
        if attributes.is_cacheable:
            _cache_header(self._headers, message.attributes, header)
        return header

    def _new_header_if_valid(self, message: UMessage) -> _EncodedHeader | None:
        try:
            return self._new_header(message)
        except UStatusError:
            return None

    def _new_response_header(
        self, publisher: _RoutePublisher, attributes: UAttributes, tail: bytes
    ) -> _EncodedHeader:
        common = msgspec.structs.replace(attributes, reqid=None)
        around = split_around_reqid(tail, attributes.reqid) if attributes.reqid is not None else None
        if around is None or not common.is_cacheable:
            return _EncodedHeader(publisher, (Origin(publisher, attributes),), publisher.put, tail)
        header = _EncodedHeader(
            publisher, (Origin(publisher, common, are_responses=True),), publisher.put, *around
        )
        _cache_header(self._response_headers, common, header)
        return header

    def prepare_topic(self, topic: UUri) -> None:
        """Declare the publisher of `topic` on the monitor thread, before its first message. Does not wait.

        The declarations begin when no further topic has come for a tick, so that they slow down no Subscribe.
        """
        with self._state_lock:
            self._has_new_topics = True
            if len(self._unprepared) < self._max_publishers:
                self._unprepared[topic] = None

    def _prepare_next(self) -> None:
        """Prepare one topic, then the others after the waiting tasks of the monitor, until a new topic comes."""
        with self._state_lock:
            has_new_topics, self._has_new_topics = self._has_new_topics, False
            if has_new_topics or not self._unprepared:
                return
            topic, _ = self._unprepared.popitem(last=False)
        # With a closed session, the first message of the topic reports it.
        with suppress(UStatusError, zenoh.ZError):
            self._prepare(UAttributes(type=UMessageType.PUBLISH, source=topic, priority=UPriority.CS1))
        self._link_monitor.run_on_monitor(self._prepare_next)

    def _prepare(self, attributes: UAttributes) -> None:
        route = _route_of(attributes)
        if not self._is_preparable(route):
            return
        publisher = self._declare_publisher(attributes, route)
        # A put that waits for a stalled link holds the lock, and the monitor must detect the stall.
        if self._lock.acquire(timeout=_PREPARE_LOCK_S):
            try:
                if self._is_preparable(route):
                    self._add_publisher(publisher)
                    return
            finally:
                self._lock.release()
        publisher.zenoh.undeclare()  # type: ignore[no-untyped-call]

    def _is_preparable(self, route: ZenohRoute) -> bool:
        # The other half is for topics that no Subscribe names.
        return route not in self._publishers and len(self._publishers) < self._max_publishers // 2

    def _publisher(self, attributes: UAttributes) -> _RoutePublisher:
        route = _route_of(attributes)
        publisher = self._publishers.get(route)
        if publisher is None:
            if len(self._publishers) >= self._max_publishers:
                self._evict_publisher()
            source, sink, _ = route
            sibling = self._publishers.get((source, sink, UPriority.CS1))
            # The session knows the key of a prepared topic: another priority takes 17 us instead of 25.
            key = None if sibling is None else sibling.zenoh.key_expr
            publisher = self._declare_publisher(attributes, route, key)
            self._add_publisher(publisher)
        return publisher

    def _add_publisher(self, publisher: _RoutePublisher) -> None:
        self._publishers[publisher.route] = publisher
        self._by_use[publisher] = None
        publisher.receivers = tuple(self._receivers_of(publisher.route))

    def _evict_publisher(self) -> None:
        """Evict the least recently used publisher with nothing to retransmit, else the least recently used one."""
        self._collect_losses()
        least_recent = next(iter(self._by_use))
        evicted = next((each for each in self._by_use if not each.to_retransmit), least_recent)
        self.not_retransmitted += len(evicted.to_retransmit)
        evicted.to_retransmit = []
        del self._publishers[evicted.route], self._by_use[evicted]
        for attributes in evicted.headers:
            self._headers.pop(attributes, None)
            self._response_headers.pop(attributes, None)
        evicted.zenoh.undeclare()  # type: ignore[no-untyped-call]

    def _declare_publisher(
        self, attributes: UAttributes, route: ZenohRoute, key: zenoh.KeyExpr | str | None = None
    ) -> _RoutePublisher:
        publisher = _RoutePublisher(route, self._monotonic_ns() + _DISCOVERY_NS)

        def on_status(status: zenoh.MatchingStatus) -> None:
            self._on_matching_status(publisher, status.matching)

        if key is None:
            key = message_key(attributes.source, attributes.sink, self._context.authority)
        try:
            publisher.zenoh = self._session.declare_publisher(
                key,
                priority=PRIORITIES[attributes.priority],
                # Zenoh's default DROP loses messages on a busy link.
                congestion_control=zenoh.CongestionControl.BLOCK,
                allowed_destination=zenoh.Locality.REMOTE,
            )
            publisher.put, publisher.opened_ns = publisher.zenoh.put, self._monotonic_ns()
            # Set before the listener exists: its first call, "a subscriber matches", then finds the route open.
            publisher.open = _has_subscriber(publisher.zenoh)
            publisher.zenoh.declare_matching_listener(Callback(on_status, indirect=False))
            matching = _has_subscriber(publisher.zenoh)
        except zenoh.ZError as error:
            raise self._put_error(attributes, error) from error
        if not matching:  # no call reports a subscriber that left before the listener existed
            with self._state_lock:
                publisher.open = False
        return publisher

    def _on_receivers_changed(self) -> None:
        """A receiver was announced, is ready, or is gone. On the monitor thread."""
        if self._awaited is not None and self._lock.acquire(blocking=False):  # else at the next tick
            try:
                self._repair(self._awaited)
            finally:
                self._lock.release()

    def _update_receivers(self, awaited: "AwaitedReceipts") -> None:
        """Determine the receivers of all publishers again.

        The token of a receiver may come after the first puts to it: these wait for its receipt too.
        """
        awaited.changed = False
        since_ns: dict[tuple[Hashable, Receiver], int] = {}
        for publisher in self._publishers.values():
            before, receivers = publisher.receivers, self._receivers_of(publisher.route)
            publisher.receivers = tuple(receivers)
            for receiver, at_ns in receivers.items():
                if receiver not in before:
                    was_there = at_ns - publisher.opened_ns < _DISCOVERY_NS
                    since_ns[publisher, receiver] = publisher.opened_ns if was_there else at_ns
        puts = {receiver: dict[bytes, int]() for _, receiver in since_ns}
        for route, put_ns, message in self._remembered_since(min(since_ns.values())) if since_ns else ():
            for receiver, ids in puts.items():
                if put_ns >= since_ns.get((route, receiver), _NEVER_NS):
                    ids[receipt_id(message.id)] = put_ns
        awaited.await_earlier(puts)

    def _receivers_of(self, route: ZenohRoute) -> "dict[Receiver, int]":
        source, sink, _ = route
        own = self._context.authority
        if self._awaited is None:
            return {}
        return self._awaited.receivers_of(source.with_authority(own), sink and sink.with_authority(own))

    # --- matching subscribers -----------------------------------------------------------------------------------------

    def _on_matching_status(self, publisher: _RoutePublisher, matching: bool) -> None:
        """A first subscriber matches, or the last one has gone. Called on a Zenoh thread."""
        if matching and publisher.open:
            return  # `_declare_publisher` has opened it
        self._link_monitor.sample()
        now_ns = self._monotonic_ns()
        with self._state_lock:
            if not matching:
                publisher.open = False  # at once; only `_on_subscriber_found` opens it again
                publisher.absent_from_ns = now_ns + _RETURN_NS
                self._losses.setdefault(publisher, now_ns)
        if matching:
            self._link_monitor.run_on_monitor(lambda: self._on_subscriber_found(publisher))

    def _on_link_replaced(self, at_ns: int) -> None:
        """A link was lost at that time, and its node has another one: put again what may be lost, before new messages.

        The publishers kept their subscribers. Messages to other nodes can come twice.
        """
        with self._lock:
            publishers = [each for each in self._publishers.values() if each.open]
        with self._state_lock:
            for each in publishers:
                each.open = False
                self._losses.setdefault(each, at_ns)
        for each in publishers:
            self._on_subscriber_found(each)

    def _collect_losses(self) -> None:
        """Collect what all publishers without subscribers may have lost, in one pass over the buffer.

        A listener with a wildcard that leaves is lost by hundreds of publishers: a pass for each took seconds.
        """
        with self._state_lock:
            losses, self._losses = self._losses, {}
        if not losses:
            return
        with self._buffer_lock:
            remembered = self._retransmit_buffer.messages_of(losses.keys())
            self._evicted += self._retransmit_buffer.pop_evicted()
        for publisher, noticed_ns in losses.items():
            if not publisher.to_retransmit:  # else this time is later than that of the first loss
                publisher.lost_ns = noticed_ns
            # Once each: a message that was put again is remembered twice, and copies would double at each loss.
            puts = (*publisher.to_retransmit, *remembered.get(publisher, ()))
            publisher.to_retransmit = list({each[1].id: each for each in puts}.values())
            if self._awaited is not None:
                self._awaited.block([receipt_id(message.id) for _, message in publisher.to_retransmit])
            if self._sent_keeper is not None:
                self._new_losses[publisher] = noticed_ns + DETECTION_NS, _NEVER_NS

    def _on_monitor_tick(self) -> None:
        # First: the rest may wait for a put.
        if self._awaited is not None and self._awaited_keeper is not None:
            self._keep_awaited(self._awaited, self._awaited_keeper)
        self._keep_suspect()
        if self._losses:
            with self._lock:
                self._collect_losses()
        links, buffer = self._link_monitor, self._retransmit_buffer
        self._ask_routers()
        # Until it fits again: the first sign of life confirms nothing yet.
        buffer.hold = links.suspect or (buffer.hold and buffer.is_full)
        buffer.confirmed_ns = links.confirmed_ns
        if self._awaited is not None:
            oldest_ns = self._awaited.oldest_kept_ns
            buffer.hold |= oldest_ns < self._monotonic_ns() - _OVERDUE_NS
            buffer.confirmed_ns = min(links.confirmed_ns, oldest_ns)
        if self._lock.acquire(blocking=False):  # a put may wait for seconds
            try:
                with self._buffer_lock:
                    buffer.drop_confirmed()
                if self._awaited is not None:
                    self._repair(self._awaited)
            finally:
                self._lock.release()
        keeper = self._sent_keeper
        if keeper is not None and (self._new_losses or keeper.has_puts):
            self._keep_lost(keeper)
        if self._unprepared and self._link_monitor.is_idle:  # else `_prepare_next` may be among the tasks
            self._prepare_next()

    def _ask_routers(self) -> None:
        """Ask the routers for a sign of life after 25 puts, and once in each pause: that confirms the last puts too."""
        puts, now_ns = self.sent + self.retransmitted, self._monotonic_ns()
        if puts != self._puts:
            self._puts, self._paused_since_ns = puts, now_ns
        # An earlier answer does not confirm the last put.
        is_pause = puts != self._puts_at_pause and now_ns - self._paused_since_ns > MARGIN_NS
        if (is_pause or puts - self._puts_at_query >= _PUTS_PER_QUERY) and self._link_monitor.ask_routers():
            self._puts_at_query = puts
            if is_pause:
                self._puts_at_pause = puts

    # --- puts that a kill of this process would lose ------------------------------------------------------------------

    def _keep_awaited(self, awaited: "AwaitedReceipts", keeper: AwaitedKeeper) -> None:
        """Store the puts whose receipt is overdue, and release those that have one."""
        now_ns = self._monotonic_ns()
        overdue = {id: put_ns for id, put_ns in awaited.overdue(now_ns).items() if id not in keeper}
        if overdue:
            found = {id: each[2] for id, each in self._remembered_of(overdue).items()}
            keeper.keep({id: each for id, each in found.items() if not self._is_answered(each)})
            # A put in progress is remembered later.
            keeper.ignore(
                id
                for id, put_ns in overdue.items()
                if (self._is_answered(found[id]) if id in found else now_ns - put_ns > _FORGOTTEN_NS)
            )
        answered = self._answered_requests
        keeper.release(lambda id, kept: awaited.is_awaited(id) and (kept is None or kept not in answered))

    def _remembered_of(self, ids: Mapping[bytes, int]) -> dict[bytes, Put]:
        """The puts with these ids that are remembered, in order. `ids` are in the form of receipts, with their times."""
        by_id = {receipt_id(each[2].id): each for each in self._remembered_since(min(ids.values()))}
        return {id: each for id, each in by_id.items() if id in ids}

    def _remembered_since(self, since_ns: int) -> list[Put]:
        with self._buffer_lock:
            return self._retransmit_buffer.messages_since(since_ns)

    # --- receipts -----------------------------------------------------------------------------------------------------

    def _repair(self, awaited: "AwaitedReceipts") -> None:
        """Put again what counts as lost."""
        if awaited.changed:
            self._update_receivers(awaited)
        lost = awaited.lost(self._monotonic_ns())
        if not lost:
            return
        found = self._remembered_of(lost)
        awaited.abandon([id for id in lost if id not in found])
        for id, (route, put_ns, message) in found.items():
            assert isinstance(route, _RoutePublisher)
            if not route.open:
                awaited.block([id])  # put again when a subscriber is back
                continue
            awaited.forget([id])
            if not self._is_answered(message) and not self._retransmit(route, put_ns, message):
                self.not_retransmitted += 1

    def _is_awaited(self, message: UMessage) -> bool:
        return self._awaited is not None and self._awaited.is_awaited(receipt_id(message.id))

    # --- puts that may be lost with a node ----------------------------------------------------------------------------

    def _keep_suspect(self) -> None:
        """Store the unconfirmed puts while a node may be frozen or cut off."""
        links, keeper = self._link_monitor, self._sent_keeper
        if keeper is None or not links.has_suspect:
            return
        with self._buffer_lock:
            puts = self._retransmit_buffer.messages_since(max(links.confirmed_ns, self._kept_until_ns))
        if puts and keeper.keep(
            each for each in puts if _is_repeatable(each[2]) and not self._is_awaited(each[2])
        ):
            self._kept_until_ns = puts[-1][1]

    def _keep_lost(self, keeper: SentKeeper) -> None:
        """Store what the publishers without subscribers may have lost, and release what has arrived since."""
        if not self._lock.acquire(blocking=False):  # a put may hold the lock for seconds
            return
        try:
            lost = self._pop_lost_puts()
            arrived = [each for each, last_ns in keeper.last_puts() if self._has_arrived(each, last_ns)]
        finally:
            self._lock.release()
        # Without the lock: a sender holds the lock of the store and waits for ours.
        if not keeper.keep(lost):
            for publisher, (until_ns, _) in self._new_losses.items():
                self._new_losses[publisher] = until_ns, _NEVER_NS  # again at the next tick
        keeper.release(arrived)

    def _pop_lost_puts(self) -> list[Put]:
        """The puts of new losses, once. The time of a loss may be known later than the loss of the subscribers."""
        now_ns = self._monotonic_ns()
        lost: list[Put] = []
        for publisher, (until_ns, known_since_ns) in list(self._new_losses.items()):
            since_ns = self._lost_since_ns(publisher)
            if since_ns < known_since_ns:
                lost += (
                    (publisher, put_ns, message)
                    for put_ns, message in publisher.to_retransmit
                    if put_ns >= since_ns and _is_repeatable(message) and not self._is_awaited(message)
                )
                self._new_losses[publisher] = until_ns, since_ns
            elif now_ns > until_ns:
                del self._new_losses[publisher]
        return lost

    def _has_arrived(self, publisher: Hashable, last_ns: int) -> bool:
        """Whether all puts of `publisher` up to the time have arrived, or nothing sends them again."""
        assert isinstance(publisher, _RoutePublisher)
        if self._publishers.get(publisher.route) is not publisher:
            return True  # evicted
        links = self._link_monitor
        if links.has_suspect or links.confirmed_ns <= last_ns:
            return False
        if publisher in self._new_losses or publisher in self._losses:
            return False
        return not publisher.to_retransmit or self._lost_since_ns(publisher) > last_ns

    def _lost_since_ns(self, publisher: _RoutePublisher) -> int:
        """The time since which puts of a publisher that lost its subscribers may be lost."""
        # With an unknown time of the loss: one window. The buffer may hold older puts, which only a later put evicts.
        return self._link_monitor.lost_since_ns(publisher.lost_ns) or publisher.lost_ns - self._window_ns

    def _on_subscriber_found(self, publisher: _RoutePublisher) -> None:
        """Retransmit possibly lost messages and open the route, if a subscriber still matches."""
        with self._lock:
            if self._publishers.get(publisher.route) is not publisher:
                return  # evicted since
            # Before the check: a loss that is reported after it must stay in `_losses`.
            if publisher in self._losses:
                self._collect_losses()
            if not _has_subscriber(publisher.zenoh):
                return
            to_retransmit, publisher.to_retransmit = publisher.to_retransmit, []
            if to_retransmit or self._evicted:
                self._retransmit_lost(publisher, to_retransmit)
            publisher.opened_ns = self._monotonic_ns()
            with self._state_lock:
                publisher.open = publisher not in self._losses  # lost again: its report closed the route
        self._on_route_opened(publisher.route)

    def _retransmit_lost(self, publisher: _RoutePublisher, to_retransmit: list[tuple[int, UMessage]]) -> None:
        lost = self._lost_of(publisher, to_retransmit)
        if self._awaited is not None:
            self._awaited.forget([receipt_id(message.id) for _, message in to_retransmit])
        for put_ns, message in lost:
            if not self._retransmit(publisher, put_ns, message):
                self.not_retransmitted += 1
        if self._sent_keeper is not None:
            self._sent_keeper.on_put_again(publisher, self._monotonic_ns())

    def _lost_of(
        self, publisher: _RoutePublisher, to_retransmit: list[tuple[int, UMessage]]
    ) -> list[tuple[int, UMessage]]:
        """The part of `to_retransmit` that may be lost, by the time of the loss; counts what was evicted of it."""
        since_ns = self._lost_since_ns(publisher)
        self.not_retransmitted += _sum_since(self._evicted, since_ns)
        self._evicted.clear()
        return [
            each
            for each in to_retransmit
            if (each[0] >= since_ns or self._is_awaited(each[1])) and not self._is_answered(each[1])
        ]

    def unconfirmed(self) -> Unconfirmed:
        """The puts that are not known to have arrived. Call when the session has closed."""
        spans = self._link_monitor.unconfirmed_spans()
        since_ns = min((each.begin_ns for each in spans), default=_NEVER_NS)
        with self._lock:
            self._collect_losses()
            evicted_before = self.not_retransmitted
            puts = [
                (put_ns, publisher, message)
                for publisher in self._publishers.values()
                if publisher.lost_ns and not publisher.open
                for put_ns, message in self._lost_of(publisher, publisher.to_retransmit)
                if self._is_awaited(message) or not self._link_monitor.is_receiver_gone(publisher.lost_ns)
            ]
            puts += self._unreceipted()
            buffer = self._retransmit_buffer
            self.not_retransmitted += _sum_since(buffer.pop_evicted(), since_ns)
            puts += (
                (put_ns, publisher, message)
                for publisher, put_ns, message in buffer.messages_since(since_ns)
                if isinstance(publisher, _RoutePublisher)
                and not self._is_answered(message)
                and any(
                    each.begin_ns <= put_ns <= each.end_ns and publisher.lost_ns < each.excluded_from_ns
                    for each in spans
                )
            )
            # Once each: what was put again is remembered twice.
            unique = {(publisher, message.id): (put_ns, message) for put_ns, publisher, message in puts}
            in_order = sorted(unique.values(), key=itemgetter(0))
            return Unconfirmed([message for _, message in in_order], self.not_retransmitted - evicted_before)

    def _unreceipted(self) -> Iterator[tuple[int, _RoutePublisher, UMessage]]:
        """The remembered puts without a receipt, but no answered Requests."""
        awaited = {} if self._awaited is None else self._awaited.overdue(_NEVER_NS)
        for publisher, put_ns, message in self._remembered_of(awaited).values() if awaited else ():
            if isinstance(publisher, _RoutePublisher) and not self._is_answered(message):
                yield put_ns, publisher, message

    def wait_receipts(self) -> None:
        """Wait for missing receipts, 2 s at most, while a node is connected."""
        if self._awaited is None:
            return
        end_ns = self._monotonic_ns() + _RECEIPTS_NS
        while self._awaited.oldest_ns < _NEVER_NS and self._link_monitor.up and self._monotonic_ns() < end_ns:
            if self._closing.wait(_POLL_S):
                return

    def _is_answered(self, message: UMessage) -> bool:
        return message.attributes.type is UMessageType.REQUEST and message.id in self._answered_requests

    def _retransmit(self, publisher: _RoutePublisher, put_ns: int, message: UMessage) -> bool:
        ttl = message.attributes.ttl
        if ttl and (
            # At its put the message had at most its ttl left. The monotonic clock has no steps.
            self._monotonic_ns() - put_ns > ttl * _NS_PER_MS
            or self._expiry.is_expired(message.id.time_ms, ttl)
        ):
            return False
        try:
            header = self._cached_header(message.attributes) or self._new_header(message)
            self._put(header, message)
        except UStatusError:  # the session is closed; the monitor thread cannot react
            return False
        self.sent -= 1
        self.retransmitted += 1
        return True

    def _route_unavailable(self, publisher: _RoutePublisher) -> RouteUnavailable:
        now_ns = self._monotonic_ns()
        expected_until_ns = max(publisher.absent_from_ns, self._link_monitor.settled_ns)
        absent_from_ns: int | None = expected_until_ns
        if _has_subscriber(publisher.zenoh):
            self._link_monitor.run_on_monitor(lambda: self._on_subscriber_found(publisher))
            absent_from_ns = None
            expected_until_ns = now_ns + _DISCOVERY_NS
        source, sink, _ = publisher.route
        address = f"{source}" if sink is None else f"{sink} from {source}"
        text = f"endpoint {self._context.name!r}: no subscriber for {address}"
        if now_ns < expected_until_ns:
            text += " yet: Zenoh still announces the topic or the link"
        return RouteUnavailable(publisher.route, text, absent_from_ns, expected_until_ns)

    def _put_error(self, attributes: UAttributes, error: zenoh.ZError) -> UStatusError:
        """The error of a failed put: UNAVAILABLE (retry) if the session is closed, else INTERNAL (no retry)."""
        code = UCode.UNAVAILABLE if self._session.is_closed() else UCode.INTERNAL
        what = f"{attributes.type.name} from {attributes.source} to {attributes.sink}"
        return UStatusError(code, f"endpoint {self._context.name!r}: {what}: {zenoh_error_text(error)}")

    def close(self) -> None:
        """Release a `send` that waits for a subscriber."""
        self._closing.set()


def _forget(receivers: "Iterable[Receiver]", ids: Sequence[bytes]) -> None:
    for each in receivers:
        each.forget(ids)


def _route_of(attributes: UAttributes) -> ZenohRoute:
    """The route of a message. Without a priority it has the route of CS1, as the two share a Zenoh priority."""
    # Not per header: messages of one topic with two ttls must keep their order.
    return attributes.source, attributes.sink, attributes.priority or UPriority.CS1


def _cache_header(
    headers: OrderedDict[UAttributes, _EncodedHeader], attributes: UAttributes, header: _EncodedHeader
) -> None:
    """Cache `header`; at the limit, drop the header that was cached first."""
    if len(headers) >= _MAX_HEADERS:
        # In a plain dict each search for the first entry passes all places of dropped ones: up to 0.25 ms.
        oldest, dropped = headers.popitem(last=False)
        dropped.publisher.headers.pop(oldest, None)
    headers[attributes] = header
    header.publisher.headers[attributes] = None


def _is_repeatable(message: UMessage) -> bool:
    """Whether the next start may send it again. No call: it may be answered, and a second one can do harm."""
    return message.attributes.type is not UMessageType.REQUEST


def _sum_since(evicted: Iterable[tuple[int, int]], since_ns: int) -> int:
    return sum(number for newest_ns, number in evicted if newest_ns >= since_ns)


def _has_subscriber(publisher: zenoh.Publisher) -> bool:
    # The stubs call the status a bool; it is an object, and always true.
    return bool(publisher.matching_status.matching)  # type: ignore[attr-defined]
