# SPDX-License-Identifier: Apache-2.0
"""The puts that may not have arrived: remembered, put again when a subscriber is back, kept on disk, or reported.

In: each put, and the changes of subscribers, links and receipts. Out: puts to make again, calls of a `SentStore`, and
at the end what is not known to have arrived.

A put that may be lost is in one or more of these places:

| place | which puts | until |
|---|---|---|
| `RetransmitBuffer` | all of the last seconds | they have arrived, or by age and bytes |
| `RoutePublisher.to_retransmit` | of a publisher that lost its subscribers | put again when one is back |
| `AwaitedReceipts` | without a receipt, in networks with receipts; see `MissingReceipts` | their receipt, or put again |
| `SentKeeper` | with a store: to a node that may be frozen or gone | they have arrived, or were put again |
| `AwaitedKeeper` | with a store: whose receipt is overdue | their receipt |
| records of the durable queue | which were on disk before they were sent, without a receipt | their receipt, or 1 s |
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import merge
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from ustreamer.transport_port import EndpointContext, SentStore, Unconfirmed
from ustreamer.transports.zenoh.connected_node import DETECTION_NS
from ustreamer.transports.zenoh.link_monitor import LinkMonitor, UnconfirmedSpan
from ustreamer.transports.zenoh.receipts.no_receipts import NEVER_NS, NoReceipts
from ustreamer.transports.zenoh.receipts.receipt_keys import receipt_id
from ustreamer.transports.zenoh.retransmit import (
    OVERHEAD_BYTES,
    AnsweredRequests,
    Origin,
    RetransmitBuffer,
    RetransmitConfig,
    join_oldest,
)
from ustreamer.transports.zenoh.route_publishers import RoutePublisher, RoutePublishers
from ustreamer.transports.zenoh.sent_keeper import Put, SentKeeper
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UUID

if TYPE_CHECKING:
    from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts

_NS_PER_MS: Final = 1_000_000
_HOLD_AFTER_NS: Final = 300_000_000
"""Without a receipt for this time, puts stay in the retransmit buffer beyond its age."""
_RETURN_NS: Final = 1_500_000_000
"""The time in which a lost subscriber may return: a Zenoh node that lost its link connects again after 1 s."""
_FIND_NEEDED_NS: Final = 1_000_000_000
"""Between two searches for the publishers that wait for receipts: one may take 0.1 s."""


class _NewLoss(NamedTuple):
    """The time of a loss may be known later than the loss, so it is watched for a while. `kept_since_ns`: puts since
    then are in the store.
    """

    watched_until_ns: int
    kept_since_ns: int = NEVER_NS


class PossibleLosses:
    """The puts of one sender that may be lost. Thread-safe as its methods say."""

    def __init__(
        self,
        context: EndpointContext,
        link_monitor: LinkMonitor,
        publishers: RoutePublishers,
        put_lock: Lock,
        put_again: Callable[[int, UMessage], bool],
        on_route_opened: Callable[[Hashable], None],
        retransmit: RetransmitConfig,
        answered_requests: AnsweredRequests,
        sent_store: SentStore | None = None,
        awaited: "AwaitedReceipts | None" = None,
    ) -> None:
        """Each user of a publisher holds `put_lock`. `put_again` is called with it; False: it is too late.

        `on_route_opened` is called on the thread of `link_monitor`. `answered_requests` are not put again.
        """
        self.retransmitted = 0
        self.not_retransmitted = 0
        """Possibly lost messages that were not put again.

        Their ttl was over, they were evicted, or their publisher was undeclared. At a stop also puts without a receipt
        that neither the memory nor the store has.
        """
        self._link_monitor = link_monitor
        self._monotonic_ns = context.clock.monotonic_ns
        self._publishers = publishers
        self._put_lock = put_lock
        self._put_again = put_again
        self._on_route_opened = on_route_opened
        self._buffer = RetransmitBuffer(retransmit)
        # Set together: puts before this time need only these publishers.
        self._confirmed_for_publishers_ns = 0
        self._awaiting_publishers: AbstractSet[Hashable] = frozenset()
        self._find_needed_at_ns = 0
        self._window_ns = retransmit.ms * _NS_PER_MS
        self._max_bytes = retransmit.bytes
        self._answered_requests = answered_requests
        # With a store: the monitor thread reads the retransmit buffer while a put waits and holds the other lock.
        self._buffer_lock = Lock()
        self._receipts = NoReceipts()
        if awaited is not None:
            from ustreamer.transports.zenoh.receipts.missing_receipts import MissingReceipts

            awaited.on_changed = lambda: link_monitor.run_on_monitor(self._on_receivers_changed)
            self._receipts = MissingReceipts(
                awaited,
                publishers,
                sent_store,
                self._monotonic_ns,
                self._remembered_since,
                self._retransmit_or_count,
                answered_requests,
            )
        has_store = sent_store is not None  # else no lock: 0.16 us
        self.append: Final = self._append_locked if has_store else self._buffer.append
        """Remembers puts, as `RetransmitBuffer.append`. The caller holds the put lock."""
        self.is_enabled: Final = self._buffer.is_enabled
        """Whether puts are remembered."""
        # Evicted from the retransmit buffer unconfirmed; not yet counted, because the time of a loss is not known.
        self._evicted: deque[tuple[int, int]] = deque()
        self._losses: dict[RoutePublisher, int] = {}
        """Publishers that lost their subscribers, each with the time; `collect` empties it."""
        self._store = sent_store
        self._sent_keeper = None if sent_store is None else SentKeeper(sent_store)
        self._kept_until_ns = 0  # the store has the puts to suspect nodes up to this one
        self._stored_until_ns = 0  # the store has the puts to suspect nodes that ended by this time
        self._waiting: dict[RoutePublisher, int] = {}
        """The bytes of lost messages that wait for the subscribers of a publisher, without a store."""
        self._new_losses: dict[RoutePublisher, _NewLoss] = {}
        """Publishers that lost their subscribers just now."""
        publishers.on_matching = self._on_matching_status
        link_monitor.add_link_watcher(self._on_link_replaced)

    def _append_locked(
        self,
        origins: Sequence[Origin],
        put_ns: int,
        heads: Sequence[bytes],
        payloads: Sequence[bytes],
        sizes: Sequence[int] | None = None,
    ) -> None:
        with self._buffer_lock:
            self._buffer.append(origins, put_ns, heads, payloads, sizes)

    @property
    def remembered_count(self) -> int:
        """The number of puts in the retransmit buffer."""
        return len(self._buffer)

    @property
    def needed_since_ns(self) -> int:
        """Puts before this time need no publisher: they have arrived, their loss was detected, or they were evicted.

        Except for those of publishers that are `is_needed`.
        """
        if not self.is_enabled:
            return NEVER_NS
        with self._buffer_lock:
            oldest_ns = self._buffer.oldest_ns
        if oldest_ns is None:  # what is put just now is remembered later
            oldest_ns = self._monotonic_ns() - self._window_ns
        return max(self._confirmed_for_publishers_ns, oldest_ns)

    def has_stored(self, publisher: RoutePublisher) -> bool:
        """Whether the store has puts of this publisher without a receipt."""
        return self._receipts.has_stored(publisher)

    def is_needed(self, publisher: RoutePublisher) -> bool:
        """Whether this publisher has puts without a receipt. It puts them again before newer ones."""
        return publisher in self._awaiting_publishers or self.has_stored(publisher)

    def _find_needed_publishers(self, confirmed_ns: int) -> None:
        """Determine which publishers wait for receipts, at most each second.

        Links have confirmed the puts before `confirmed_ns`. The caller holds the put lock.
        """
        now_ns = self._monotonic_ns()
        if self._receipts.oldest_ns >= confirmed_ns:
            self._awaiting_publishers = frozenset()
        elif now_ns < self._find_needed_at_ns:
            return
        else:
            self._find_needed_at_ns = now_ns + _FIND_NEEDED_NS
            self._awaiting_publishers = self._receipts.awaiting_publishers()
        self._confirmed_for_publishers_ns = confirmed_ns

    @property
    def window_ns(self) -> int:
        """The age of the oldest message to retransmit."""
        return self._window_ns

    @property
    def unstored_since_ns(self) -> int:
        """See EndpointTransport."""
        links = self._link_monitor
        if self._sent_keeper is None or not links.any_suspect:
            return NEVER_NS
        return max(links.confirmed_ns, self._stored_until_ns)

    def evict_old(self) -> None:
        """Evict what is too old to be remembered, also without another put."""
        with self._buffer_lock:
            self._buffer.evict_old(self._monotonic_ns())

    # --- the monitor thread -------------------------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Store overdue and suspect puts, drop confirmed ones, put lost ones again. Called at each tick of the monitor."""
        self._receipts.keep_overdue()  # first: the rest may wait for a put
        self._keep_suspect()
        if self._losses:
            with self._put_lock:
                self.collect()
        links, buffer = self._link_monitor, self._buffer
        # Until it fits again: the first sign of life confirms nothing yet.
        hold = links.all_suspect or (buffer.hold and buffer.is_full)
        links_confirmed_ns = links.confirmed_ns  # `collect` has collected the losses before this time
        oldest_ns = self._receipts.oldest_ns
        hold |= oldest_ns < self._monotonic_ns() - _HOLD_AFTER_NS
        confirmed_ns = min(links_confirmed_ns, oldest_ns)
        # Assigned once, at the end: a put on another thread drops what is confirmed at that moment.
        buffer.hold, buffer.confirmed_ns = hold, confirmed_ns
        if self._put_lock.acquire(blocking=False):  # a put may wait for seconds
            try:
                with self._buffer_lock:
                    buffer.drop_confirmed()
                if len(self._publishers) >= self._publishers.limit:
                    self._find_needed_publishers(links_confirmed_ns)
                self._receipts.retransmit()
                if self._sent_keeper is None:
                    self._pop_lost_puts()
            finally:
                self._put_lock.release()
        keeper = self._sent_keeper
        if keeper is not None and (self._new_losses or keeper.has_puts):
            self._keep_lost(keeper)

    # --- publishers lose and find subscribers -------------------------------------------------------------------------

    def _on_matching_status(self, publisher: RoutePublisher, matching: bool) -> None:
        """A first subscriber matches, or the last one has gone. Called on a Zenoh thread."""
        if matching and publisher.open:
            return  # `RoutePublishers.declare` has opened it
        self._link_monitor.sample()
        now_ns = self._monotonic_ns()
        with self._publishers.state_lock:
            if not matching:
                publisher.open = False  # at once; only `on_subscriber_found` opens it again
                publisher.absent_from_ns = now_ns + _RETURN_NS
                self._losses.setdefault(publisher, now_ns)
        if matching:
            self._link_monitor.run_on_monitor(lambda: self.on_subscriber_found(publisher))

    def _on_link_replaced(self, at_ns: int) -> None:
        """A link was lost at that time, and its node has another one: put again what may be lost, before new messages.

        The publishers kept their subscribers. Messages to other nodes can come twice.
        """
        with self._put_lock:
            publishers = [each for each in self._publishers if each.open]
        with self._publishers.state_lock:
            for each in publishers:
                each.open = False
                self._losses.setdefault(each, at_ns)
        for each in publishers:
            self.on_subscriber_found(each)

    def collect(self) -> None:
        """Collect what all publishers without subscribers may have lost, in one pass over the buffer.

        A listener with a wildcard that leaves is lost by hundreds of publishers: a pass for each took seconds.
        """
        with self._publishers.state_lock:
            losses, self._losses = self._losses, {}
        losses = {each: at_ns for each, at_ns in losses.items() if each in self._publishers}  # not undeclared
        if not losses:
            return
        with self._buffer_lock:
            remembered = self._buffer.messages_of(losses.keys())
            self._evicted += self._buffer.pop_evicted()
        join_oldest(self._evicted)
        for publisher, noticed_ns in losses.items():
            # Else this time is later than that of the first loss.
            if not publisher.to_retransmit and publisher.opened_ns >= publisher.lost_ns:
                publisher.lost_ns = noticed_ns
            # Once each, with the time of its last put: a message that was put again is remembered twice.
            puts = (*publisher.to_retransmit, *remembered.get(publisher, ()))
            publisher.to_retransmit = list(
                {message.id: (put_ns, message) for put_ns, message in puts}.values()
            )
            self._receipts.block(publisher, publisher.to_retransmit)
            self._new_losses[publisher] = _NewLoss(self._monotonic_ns() + DETECTION_NS)

    def _order_key(self, put: tuple[int, UMessage]) -> int:
        """When this was put first. With receipts, a single message can be put again, after newer ones."""
        put_ns, message = put
        return self._receipts.first_put_ns(receipt_id(message.id), put_ns)

    def _bound_waiting(self) -> None:
        """Bound the lost messages that wait for subscribers, by twice the bytes of the retransmit buffer.

        An outage of all publishers fits. Above it, the publishers whose subscribers left earliest drop their messages.
        """
        self._waiting = {each: size for each, size in self._waiting.items() if each.to_retransmit}
        excess = sum(self._waiting.values()) - 2 * self._max_bytes
        for publisher in sorted(self._waiting, key=attrgetter("lost_ns"))[:-1] if excess > 0 else ():
            if excess <= 0:
                return
            excess -= self._waiting.pop(publisher)
            self.not_retransmitted += len(publisher.to_retransmit)
            self._receipts.forget(_ids_of(publisher.to_retransmit))
            publisher.to_retransmit = []

    def on_subscriber_found(self, publisher: RoutePublisher) -> None:
        """Retransmit possibly lost messages and open the route, if a subscriber still matches."""
        with self._put_lock:
            if publisher not in self._publishers:
                return  # undeclared since
            # Before the check: a loss that is reported after it must stay in `_losses`.
            if publisher in self._losses:
                self.collect()
            if not publisher.has_subscriber():
                return
            if not publisher.open:
                # Before them: what is put again waits for a receiver whose token comes later, too.
                opened_ns = self._monotonic_ns()
                if not self._retransmit_lost(publisher):
                    return
                publisher.opened_ns = opened_ns
                with self._publishers.state_lock:
                    publisher.open = publisher not in self._losses  # lost again: its report closed the route
        self._on_route_opened(publisher.route)

    def _retransmit_lost(self, publisher: RoutePublisher) -> bool:
        """Put again what the publisher may have lost. False if the session is closed: the rest stays."""
        self._count_evicted(publisher)
        to_retransmit, publisher.to_retransmit = publisher.to_retransmit, []
        lost = self._lost_of(publisher, to_retransmit)
        ids = frozenset(_ids_of(to_retransmit))
        try:
            # Merged: a single message that was put again can be older than what only the store has.
            stored = self._receipts.stored_of(publisher, ids)
            for put_ns, message in merge(stored, sorted(lost, key=self._order_key), key=self._order_key):
                self._retransmit_lost_put(put_ns, message)
        except UStatusError:
            publisher.to_retransmit = to_retransmit
            return False
        self._forget_answered(to_retransmit)
        if self._sent_keeper is not None:
            self._sent_keeper.on_put_again(publisher, self._monotonic_ns())
        return True

    def _forget_answered(self, puts: Iterable[tuple[int, UMessage]]) -> None:
        """Wait for no receipt of answered Requests: they are not put again."""
        self._receipts.forget(_ids_of(each for each in puts if self._answered_requests.has(each[1])))

    def _retransmit_lost_put(self, put_ns: int, message: UMessage) -> None:
        """Put this again, or count it. With a closed session it waits for its receipt as before, and UStatusError rises."""
        id = receipt_id(message.id)
        receivers = self._receipts.stop_waiting(id)
        try:
            if self._retransmit(put_ns, message):
                self._receipts.count_left(id, receivers)
            else:
                self.not_retransmitted += 1
        except UStatusError:
            for each in receivers:
                each.puts.add_blocked({id: put_ns})
            raise

    def _count_evicted(self, publisher: RoutePublisher) -> None:
        """Count the evicted puts of all publishers since the loss of this one that are not in the store, each once.

        Earlier ones wait for a publisher that was lost before this one.
        """
        since_ns = self._lost_since_ns(publisher) if self._evicted else NEVER_NS
        number = _sum_since(self._evicted, since_ns)
        if not number or since_ns >= publisher.lost_ns:  # nothing, or a subscriber that left
            return
        until_ns = self._evicted[-1][0]
        stored = self._receipts.stored_between(since_ns, until_ns)
        self.not_retransmitted += max(0, number - stored)
        self._evicted = deque(each for each in self._evicted if each[0] < since_ns)

    def _lost_of(
        self, publisher: RoutePublisher, to_retransmit: list[tuple[int, UMessage]]
    ) -> list[tuple[int, UMessage]]:
        """The part of `to_retransmit` that may be lost, by the time of the loss."""
        since_ns = self._lost_since_ns(publisher)
        older = {receipt_id(message.id): None for put_ns, message in to_retransmit if put_ns < since_ns}
        arrived = self._receipts.received_of(older.keys())
        return [
            each
            for each in to_retransmit
            if (each[0] >= since_ns or receipt_id(each[1].id) not in arrived)
            and not self._answered_requests.has(each[1])
        ]

    def _lost_since_ns(self, publisher: RoutePublisher) -> int:
        """The time since which puts of a publisher that lost its subscribers may be lost."""
        # With an unknown time of the loss: one window. The buffer may hold older puts, which only a later put evicts.
        return self._link_monitor.lost_since_ns(publisher.lost_ns) or publisher.lost_ns - self._window_ns

    def _retransmit(self, put_ns: int, message: UMessage) -> bool:
        """Put a message again. False: it is too late. Raises UStatusError if the session is closed."""
        now_ns = self._monotonic_ns()
        if not self._put_again(put_ns, message):
            return False
        self._receipts.on_put_again(receipt_id(message.id), put_ns, now_ns)
        self.retransmitted += 1
        return True

    def _retransmit_or_count(self, put_ns: int, message: UMessage) -> None:
        """Put a message again that has not been answered. It counts if it is too late, or the session is closed."""
        try:
            if not self._answered_requests.has(message) and not self._retransmit(put_ns, message):
                self.not_retransmitted += 1
        except UStatusError:
            self.not_retransmitted += 1

    def on_undeclared(self, publisher: RoutePublisher) -> None:
        """Count what the publisher had to put again: nothing does it now. Call `collect` before it is removed."""
        if publisher.open or not publisher.lost_ns:
            return
        self._count_evicted(publisher)
        ids = _ids_of(publisher.to_retransmit)
        stored = self._receipts.stored_ids(publisher, frozenset(ids))
        self.not_retransmitted += len(stored) + len(self._lost_of(publisher, publisher.to_retransmit))
        self._receipts.forget([*stored, *ids])
        publisher.to_retransmit = []

    # --- receipts -----------------------------------------------------------------------------------------------------

    def _on_receivers_changed(self) -> None:
        """A receiver was announced, is ready, or is gone. On the monitor thread."""
        if self._put_lock.acquire(blocking=False):  # else at the next tick
            try:
                self._receipts.retransmit()
            finally:
                self._put_lock.release()

    def _remembered_since(self, since_ns: int) -> list[Put]:
        with self._buffer_lock:
            return self._buffer.messages_since(since_ns)

    # --- puts that a kill of this process would lose ------------------------------------------------------------------

    def _keep_suspect(self) -> None:
        """Store the unconfirmed puts while a node may be frozen or cut off."""
        links, keeper = self._link_monitor, self._sent_keeper
        if keeper is None or not links.any_suspect:
            return
        now_ns = self._monotonic_ns()
        is_putting = not self._put_lock.acquire(blocking=False)
        if not is_putting:
            self._put_lock.release()
        with self._buffer_lock:
            puts = self._buffer.messages_since(max(links.confirmed_ns, self._kept_until_ns))
        to_keep = (
            each for each in puts if _is_repeatable(each[2]) and not self._receipts.is_awaited(each[2])
        )
        if not keeper.keep(to_keep):
            return
        if puts:
            self._kept_until_ns = puts[-1][1]
        self._stored_until_ns = self._kept_until_ns if is_putting else now_ns

    def _keep_lost(self, keeper: SentKeeper) -> None:
        """Store what the publishers without subscribers may have lost, and release what has arrived since."""
        if not self._put_lock.acquire(blocking=False):  # a put may hold the lock for seconds
            return
        try:
            lost = self._pop_lost_puts()
            watched = dict(self._new_losses)
            arrived = [each for each, last_ns in keeper.last_puts() if self._has_arrived(each, last_ns)]
        finally:
            self._put_lock.release()
        # Without the lock: a sender holds the lock of the store and waits for ours.
        if not keeper.keep(lost):
            for publisher, loss in watched.items():
                if self._new_losses.get(publisher) is loss:  # else it was lost again
                    self._new_losses[publisher] = _NewLoss(loss.watched_until_ns)  # again at the next tick
        keeper.release(arrived)

    def _pop_lost_puts(self) -> list[Put]:
        """The puts of new losses, once, for the store.

        The time of a loss may be known later than the loss of the subscribers. After that, what has arrived is dropped.
        """
        now_ns, is_settled = self._monotonic_ns(), False
        lost: list[Put] = []
        for publisher, loss in list(self._new_losses.items()):
            is_over = now_ns > loss.watched_until_ns and self._link_monitor.is_idle
            if self._sent_keeper is None and not is_over:
                continue
            since_ns = self._lost_since_ns(publisher)
            if self._sent_keeper is not None and since_ns < loss.kept_since_ns:
                lost += (
                    (publisher, put_ns, message)
                    for put_ns, message in publisher.to_retransmit
                    if put_ns >= since_ns
                    and _is_repeatable(message)
                    and not self._receipts.is_awaited(message)
                )
                self._new_losses[publisher] = _NewLoss(loss.watched_until_ns, since_ns)
            elif is_over:
                del self._new_losses[publisher]
                self._forget_answered(publisher.to_retransmit)
                publisher.to_retransmit = self._lost_of(publisher, publisher.to_retransmit)
                if self._store is None:  # else the disk may have them, and bounds them
                    sizes = (OVERHEAD_BYTES + len(message.payload) for _, message in publisher.to_retransmit)
                    self._waiting[publisher] = sum(sizes)
                    is_settled = True
        if is_settled:
            self._bound_waiting()
        return lost

    def _has_arrived(self, publisher: Hashable, last_ns: int) -> bool:
        """Whether all puts of `publisher` up to the time have arrived, or nothing sends them again."""
        assert isinstance(publisher, RoutePublisher)
        links = self._link_monitor
        if links.any_suspect or links.confirmed_ns <= last_ns:
            return False
        if publisher not in self._publishers:
            return True  # undeclared: its puts have arrived, are too old, or are counted
        if publisher in self._new_losses or publisher in self._losses:
            return False
        return not publisher.to_retransmit or self._lost_since_ns(publisher) > last_ns

    # --- the end ------------------------------------------------------------------------------------------------------

    def unconfirmed(self) -> Unconfirmed:
        """The puts that are not known to have arrived. Call when the session has closed."""
        spans = self._link_monitor.unconfirmed_spans()
        since_ns = min((each.begin_ns for each in spans), default=NEVER_NS)
        # Without the put lock: a sender holds the lock of the store and waits for ours.
        in_store = frozenset(() if self._store is None else self._store.ids())
        with self._put_lock:
            self.collect()
            missed = self._receipts.miss_left()
            puts = [
                *self._puts_of_lost_publishers(),
                *self._receipts.remembered(),
                *self._remembered_in(spans, since_ns),
            ]
            # Once each: what was put again is remembered twice.
            unique = {(publisher, message.id): (put_ns, message) for put_ns, publisher, message in puts}
            messages = [message for _, message in sorted(unique.values(), key=self._order_key)]
            ids = {each.id for each in messages}
            further = self._receipts.others(ids)
            stored = [id for id in further if id in in_store]
            forgotten = self._count_evicted_at_end(since_ns, further) + len(further) - len(stored)
            forgotten += len(missed - ids - further.keys())
            self.not_retransmitted += forgotten
            return Unconfirmed(messages, forgotten, stored)

    def _lost_publishers(self) -> list[RoutePublisher]:
        return [each for each in self._publishers if each.lost_ns and not each.open]

    def _puts_of_lost_publishers(self) -> Iterator[tuple[int, RoutePublisher, UMessage]]:
        for publisher in self._lost_publishers():
            for put_ns, message in self._lost_of(publisher, publisher.to_retransmit):
                if self._receipts.is_awaited(message) or not self._link_monitor.is_receiver_gone(
                    publisher.lost_ns
                ):
                    yield put_ns, publisher, message

    def _remembered_in(
        self, spans: Sequence[UnconfirmedSpan], since_ns: int
    ) -> Iterator[tuple[int, RoutePublisher, UMessage]]:
        for publisher, put_ns, message in self._buffer.messages_since(since_ns) if spans else ():
            if not isinstance(publisher, RoutePublisher) or self._answered_requests.has(message):
                continue
            if any(
                each.begin_ns <= put_ns <= each.end_ns and publisher.lost_ns < each.excluded_from_ns
                for each in spans
            ):
                yield put_ns, publisher, message

    def _count_evicted_at_end(self, since_ns: int, further: Mapping[UUID, int]) -> int:
        """The number of evicted puts that may be lost, without those in `further`; too high rather than too low."""
        lost_ns, until_ns = NEVER_NS, 0
        if self._evicted:
            since = ((self._lost_since_ns(each), each) for each in self._lost_publishers())
            lost_ns = min((at_ns for at_ns, each in since if at_ns < each.lost_ns), default=NEVER_NS)
            lost_ns = min(lost_ns, since_ns)
            until_ns = self._evicted[-1][0]
        times = list(further.values())
        for id, put_ns in further.items():
            times += self._receipts.stored_times(receipt_id(id)) - {put_ns}
        evicted = _sum_since(self._evicted, lost_ns)
        evicted -= min(evicted, sum(lost_ns <= each <= until_ns for each in times))
        newer = _sum_since(self._buffer.pop_evicted(), since_ns)
        newer -= min(newer, sum(each > until_ns and each >= since_ns for each in times))
        self._evicted.clear()
        return evicted + newer


def _ids_of(puts: Iterable[tuple[int, UMessage]]) -> list[bytes]:
    """The ids of messages in the form of receipts."""
    return [receipt_id(message.id) for _, message in puts]


def _is_repeatable(message: UMessage) -> bool:
    """Whether the next start may send it again. No call: it may be answered, and a second one can do harm."""
    return message.attributes.type is not UMessageType.REQUEST


def _sum_since(evicted: Iterable[tuple[int, int]], since_ns: int) -> int:
    return sum(number for newest_ns, number in evicted if newest_ns >= since_ns)
