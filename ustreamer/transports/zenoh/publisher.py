# SPDX-License-Identifier: Apache-2.0
"""Sends messages: puts them on the publishers of their routes.

In: messages. Out: Zenoh puts, or RouteUnavailable where no subscriber matches, as Zenoh loses such a put silently.

A publisher may lose its subscribers. When they are back, `possible_losses` puts the messages of the time shortly before
the loss again with the same ids, before any newer message.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

import msgspec
import zenoh

from ustreamer.core.delivery.expiry import BATCH_SEND_MS, Expiry
from ustreamer.transport_port import EndpointContext, RouteUnavailable, SentStore, Unconfirmed
from ustreamer.transports.zenoh.connected_node import MARGIN_NS
from ustreamer.transports.zenoh.decoder import HEAD, ID_TAG, VERSION_AND_TAGS
from ustreamer.transports.zenoh.early_declarations import EarlyDeclarations
from ustreamer.transports.zenoh.encoded_headers import EncodedHeader, EncodedHeaders
from ustreamer.transports.zenoh.errors import zenoh_error_text
from ustreamer.transports.zenoh.link_monitor import LinkMonitor
from ustreamer.transports.zenoh.possible_losses import PossibleLosses
from ustreamer.transports.zenoh.receipts.no_receipts import NEVER_NS
from ustreamer.transports.zenoh.receipts.receipt_keys import ID_IN_ATTACHMENT, joined_ids
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, Origin, RetransmitConfig
from ustreamer.transports.zenoh.route_publishers import (
    DISCOVERY_NS,
    RoutePublisher,
    RoutePublishers,
    ZenohRoute,
    route_of,
)
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority, check_attributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts, Receiver

MAX_PUBLISHERS: Final = 16_384
_POLL_S: Final = 0.005
_NS_PER_MS: Final = 1_000_000
_PUTS_PER_QUERY: Final = 25
"""After so many puts the routers are queried; fewer are confirmed at the next pause. A query costs as much as ten puts."""
_UNDECLARED_PER_TICK: Final = 16  # they take 3 ms
_RECEIPTS_NS: Final = 2_000_000_000  # how long a stop waits for receipts


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
        self._session = session
        # The numbers of puts: at the last tick, at the last query, and at the last query in a pause.
        self._puts = self._puts_at_query = self._puts_at_pause = 0
        self._paused_since_ns = 0
        self._link_monitor = link_monitor
        self._context = context
        self._monotonic_ns = context.clock.monotonic_ns
        self._expiry = Expiry(context.clock)
        # A publisher in use by one thread cannot be undeclared by another (RuntimeError: Already borrowed).
        self._lock = Lock()
        self._awaited = awaited
        self._closing = Event()
        self._publishers = RoutePublishers(session, context, max_publishers, awaited)
        self._move_to_end = self._publishers.by_use.move_to_end
        self._headers = EncodedHeaders()
        self._plain_headers = self._headers.plain
        self._possible_losses = PossibleLosses(
            context,
            link_monitor,
            self._publishers,
            self._lock,
            self._put_again,
            on_route_opened,
            retransmit,
            answered_requests,
            sent_store,
            awaited,
        )
        self._append, self._remembers = self._possible_losses.append, self._possible_losses.is_enabled
        self._early_declarations = EarlyDeclarations(self._publishers, link_monitor, self._lock)
        link_monitor.add_tick(self._on_monitor_tick)
        link_monitor.count_sent = lambda: self.sent

    @property
    def retransmitted(self) -> int:
        """Messages that were put again."""
        return self._possible_losses.retransmitted

    @property
    def not_retransmitted(self) -> int:
        """Possibly lost messages that were not put again."""
        return self._possible_losses.not_retransmitted

    def put_message(self, message: UMessage) -> None:
        """Put `message` without waiting for a subscriber. Raises like `UTransport.send`, and RouteUnavailable."""
        with self._lock:
            attributes = message.attributes
            # `EncodedHeaders.find` inlined: saves 2 us per message where the CPU caches are cold.
            known = (
                self._plain_headers.get(attributes)
                if attributes.reqid is None
                else self._headers.find(attributes)
            )
            header = known or self._new_header(message)
            id = message.id
            if id.msb & 0xF000 != 0x7000 or id.lsb >> 62 != 0b10:  # UUID.is_valid inlined: saves 0.15 us
                message.check(strict=False)
            if not self._link_monitor.up:
                raise self._not_connected()
            publisher = header.publisher
            if not publisher.open and not self._link_monitor.multicast:
                raise self._route_unavailable(publisher)
            self._put(header, message)
            self.sent += 1

    # Fast path of put_message, which is its oracle; compared by
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
            links, pack, cached = self._link_monitor, HEAD.pack, self._plain_headers.get
            begin_ns = 0 if self._awaited is None else self._monotonic_ns()
            used = list[RoutePublisher]()
            for message in messages:
                attributes, id, payload = message.attributes, message.id, message.payload
                header = cached(attributes) if attributes.reqid is None else self._headers.find(attributes)
                if header is None:
                    self._mark_used(used)  # before the next header, which may undeclare others
                    header = self._new_header_if_valid(message)
                # The previous put may have waited until Zenoh closed the link.
                if header is None or not links.up or not (header.publisher.open or links.multicast):
                    break
                tail, reqid = header.tail, b""
                if header.after_reqid is not None:
                    tail, reqid = header.encode_for(attributes)
                head = pack(VERSION_AND_TAGS, id.msb, ID_TAG, id.lsb)
                receivers = header.publisher.receivers
                if receivers:  # before the put: its receipt may come at once
                    receipt = head[ID_IN_ATTACHMENT]
                    for each in receivers:
                        each.puts.append((begin_ns, receipt))
                try:
                    header.put(payload, attachment=head + tail)
                except zenoh.ZError:
                    _forget(receivers, [head[ID_IN_ATTACHMENT]])
                    break
                used.append(header.publisher)
                origins += header.origins
                heads.append(head)
                payloads.append(reqid + payload)  # no copy if `reqid` is empty
            self._remember(origins, self._mark_used(used), heads, payloads)
            return len(heads)

    # Fast path of put_message, which is its oracle; compared by
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
                (self._headers.of_responses if are_responses else self._plain_headers).get(batch.attributes)
            )
            if header is None or (has_ttl and self._monotonic_ns() > valid_until_ns):
                return 0
            links, put, attachments = self._link_monitor, header.put, header.attachments(batch)
            remaining = zip(batch.payloads, attachments, strict=True)
            receivers = header.publisher.receivers
            if receivers and attachments:
                awaited = self._monotonic_ns(), joined_ids(attachments)
                for each in receivers:
                    each.puts.append(awaited)
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
                _forget(receivers, [each[ID_IN_ATTACHMENT] for each in attachments[put_count:]])
            publisher, put_ns = header.publisher, self._monotonic_ns()
            publisher.used_ns = put_ns
            self._move_to_end(publisher)
            remembered = header.remembered_payloads(sent, batch.payloads[:put_count])
            # A remembered response is longer than its payload: its reqid is stored too.
            sizes = None if are_responses else batch.sizes[:put_count]
            self._remember(header.origins, put_ns, sent, remembered, sizes)
            return put_count

    def _if_sendable(self, header: EncodedHeader | None) -> EncodedHeader | None:
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
                    self.sent += 1
                return

    def _put(self, header: EncodedHeader, message: UMessage) -> None:
        """Put and remember; the caller counts it. Raises UStatusError."""
        # The time before the put: a put that waits while its link is lost counts as lost with the link.
        now_ns = self._monotonic_ns()
        id, payload = message.id, message.payload
        head = HEAD.pack(VERSION_AND_TAGS, id.msb, ID_TAG, id.lsb)
        tail, reqid = header.tail, b""
        if header.after_reqid is not None:
            tail, reqid = header.encode_for(message.attributes)
        receivers = header.publisher.receivers
        if receivers:
            receipt = head[ID_IN_ATTACHMENT]
            for each in receivers:
                each.puts.append((now_ns, receipt))
        try:
            header.put(payload, attachment=head + tail)
        except zenoh.ZError as error:
            _forget(receivers, [head[ID_IN_ATTACHMENT]])
            raise self._put_error(message.attributes, error) from error
        publisher = header.publisher
        publisher.used_ns = now_ns
        self._move_to_end(publisher)
        if self._remembers:
            stored = reqid + payload
            self._append(header.origins, now_ns, (head,), (stored,), (len(stored),))

    def _mark_used(self, publishers: Iterable[RoutePublisher]) -> int:
        """They were put on just now. Returns the time."""
        now_ns, by_use = self._monotonic_ns(), self._publishers.by_use
        for each in dict.fromkeys(publishers):
            if each in by_use:  # without a retransmit buffer it may be undeclared
                each.used_ns = now_ns
                self._move_to_end(each)
        return now_ns

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
        if self._remembers:
            self._append(origins, put_ns, heads, payloads, sizes)

    # --- headers and publishers ---------------------------------------------------------------------------------------

    def _new_header(self, message: UMessage) -> EncodedHeader:
        """Encode the header for new or uncacheable attributes; INVALID_ARGUMENT for invalid ones."""
        attributes = on_wire = message.attributes
        check_attributes(attributes)  # lenient: messages of tolerated libraries are forwarded
        if attributes.type is UMessageType.PUBLISH and attributes.sink is not None:
            on_wire = msgspec.structs.replace(attributes, sink=None)  # a publication has no sink on the wire
        return self._headers.encode(attributes, on_wire, self._publisher(on_wire))

    def _new_header_if_valid(self, message: UMessage) -> EncodedHeader | None:
        try:
            return self._new_header(message)
        except UStatusError:
            return None

    def _publisher(self, attributes: UAttributes) -> RoutePublisher:
        publishers, route = self._publishers, route_of(attributes)
        publisher = publishers.find(route)
        if publisher is None:
            self._make_room(route)
            source, sink, _ = route
            sibling = publishers.find((source, sink, UPriority.CS1))
            # The session knows the key of a prepared topic: another priority takes 17 us instead of 25.
            key = None if sibling is None else sibling.zenoh.key_expr
            try:
                publisher = publishers.declare(attributes, key)
            except zenoh.ZError as error:
                raise self._put_error(attributes, error) from error
            publishers.add(publisher)
        return publisher

    def _make_room(self, route: ZenohRoute) -> None:
        """Undeclare publishers that are not needed, if there are too many. RouteUnavailable if all are needed."""
        publishers, links, losses = self._publishers, self._link_monitor, self._possible_losses
        self._undeclare_unneeded(publishers.limit - 1, most=2)  # two for each new one: the number falls
        if publishers.is_full and links.up:
            losses.evict_old()
            self._undeclare_unneeded(publishers.limit - 1, most=2)
        if not publishers.is_full:
            return
        if not links.up:
            raise self._not_connected()
        # After an outage its subscribers may come back; later they have left for good.
        publisher = publishers.pop_lost_before(self._monotonic_ns() - losses.window_ns, losses.has_stored)
        if publisher is None:
            name, count = self._context.name, len(publishers)
            text = f"endpoint {name!r}: messages of all {count} Zenoh publishers may not have arrived yet"
            raise RouteUnavailable(route, f"{text}: max_publishers is {publishers.limit}")
        self._undeclare(publisher)

    def _undeclare_unneeded(self, target: int, most: int) -> None:
        """Undeclare publishers above `target` that need not put anything again."""
        publishers = self._publishers
        above = min(most, len(publishers) - target)
        if above <= 0:
            return
        self._possible_losses.collect()
        needed_since_ns = self._possible_losses.needed_since_ns
        for _ in range(above):
            publisher = publishers.pop_idle(needed_since_ns, self._possible_losses.is_needed)
            if publisher is None:
                return
            self._undeclare(publisher)

    def _undeclare(self, publisher: RoutePublisher) -> None:
        """End a publisher that was removed."""
        self._possible_losses.on_undeclared(publisher)
        self._headers.drop_those_of(publisher)
        publisher.undeclare()

    def has_listener(self, attributes: UAttributes) -> bool:
        """Whether a node is connected, and a subscriber matches as far as is known.

        The publisher of the route knows it, or that of the prepared topic, which has the same key. Before either is
        declared, nothing is known: True. Waits for no lock, as a put may hold it for seconds: each lookup is atomic.
        """
        links, find, route = self._link_monitor, self._publishers.find, route_of(attributes)
        publisher = find(route) or find((*route[:2], UPriority.CS1))
        if not links.up:
            return False
        if publisher is None or publisher.open or publisher.matches or links.multicast:
            return True
        # The report of a new subscriber may be on its way. Without the lock, the publisher could be undeclared meanwhile.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return publisher in self._publishers and publisher.has_subscriber()
        finally:
            self._lock.release()

    def prepare_topic(self, topic: UUri) -> None:
        """Declare the publisher of `topic` on the monitor thread, before its first message. Does not wait."""
        self._early_declarations.add_topic(topic)

    # --- losses -------------------------------------------------------------------------------------------------------

    def _on_monitor_tick(self) -> None:
        self._possible_losses.on_tick()
        if len(self._publishers) > self._publishers.limit and self._lock.acquire(blocking=False):
            try:
                self._undeclare_unneeded(self._publishers.limit, _UNDECLARED_PER_TICK)
            finally:
                self._lock.release()
        self._ask_routers()
        self._early_declarations.on_tick()

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

    def _put_again(self, put_ns: int, message: UMessage) -> bool:
        """Put a possibly lost message again. False: it is too late, or Zenoh refuses it. Raises if the session is closed."""
        ttl = message.attributes.ttl
        if ttl and (
            # At its put the message had at most its ttl left. The monotonic clock has no steps.
            self._monotonic_ns() - put_ns > ttl * _NS_PER_MS
            or self._expiry.is_expired(message.id.time_ms, ttl)
        ):
            return False
        try:
            self._put(self._headers.find(message.attributes) or self._new_header(message), message)
        except UStatusError as error:
            if error.code is UCode.UNAVAILABLE:
                raise
            return False
        return True

    def unstored_since_ns(self) -> int:
        """See EndpointTransport."""
        return self._possible_losses.unstored_since_ns

    def unconfirmed(self) -> Unconfirmed:
        """The puts that are not known to have arrived. Call when the session has closed."""
        return self._possible_losses.unconfirmed()

    def wait_receipts(self) -> None:
        """Wait for missing receipts, 2 s at most, while a node is connected."""
        if self._awaited is None:
            return
        end_ns = self._monotonic_ns() + _RECEIPTS_NS
        while self._awaited.oldest_ns < NEVER_NS and self._link_monitor.up and self._monotonic_ns() < end_ns:
            if self._closing.wait(_POLL_S):
                return

    def stalled_ns(self, address: UUri | None = None) -> int | None:
        """When the node of the last subscriber of a route was lost, which had stopped; None if there is no such route.

        The route is one of messages from `address` or to it, or any. From any thread.
        """
        for each in list(self._publishers.by_use):  # runs no Python code: no other thread adds one meanwhile
            is_asked = address is None or address in each.route[:2]
            if is_asked and each.lost_ns and not each.open:
                stopped_ns = self._link_monitor.stopped_ns(each.lost_ns)
                if stopped_ns is not None:
                    return stopped_ns
        return None

    # --- errors, and the end ------------------------------------------------------------------------------------------

    def _route_unavailable(self, publisher: RoutePublisher) -> RouteUnavailable:
        now_ns = self._monotonic_ns()
        expected_until_ns = max(publisher.absent_from_ns, self._link_monitor.settled_ns)
        absent_from_ns: int | None = expected_until_ns
        if publisher.has_subscriber():
            self._link_monitor.run_on_monitor(lambda: self._possible_losses.on_subscriber_found(publisher))
            absent_from_ns = None
            expected_until_ns = now_ns + DISCOVERY_NS
        source, sink, _ = publisher.route
        address = f"{source}" if sink is None else f"{sink} from {source}"
        text = f"endpoint {self._context.name!r}: no subscriber for {address}"
        if now_ns < expected_until_ns:
            text += " yet: Zenoh still announces the topic or the link"
        return RouteUnavailable(publisher.route, text, absent_from_ns, expected_until_ns)

    def _not_connected(self) -> UStatusError:
        return UStatusError(UCode.UNAVAILABLE, f"endpoint {self._context.name!r}: no Zenoh node is connected")

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
        each.puts.forget(ids)
