# SPDX-License-Identifier: Apache-2.0
"""The puts of one sender whose receipt is missing: kept on disk, put again, or given up.

In: the receivers and their receipts (`AwaitedReceipts`), what the memory and the store have of these puts. Out: puts to
make again, in the order of their first puts, and calls of a `SentStore`.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, KeysView, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ustreamer.transport_port import SENT_FROM_DISK_NS, SentStore
from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts, Receiver
from ustreamer.transports.zenoh.receipts.no_receipts import NEVER_NS, NoReceipts
from ustreamer.transports.zenoh.receipts.receipt_keys import receipt_id, uuid_of
from ustreamer.transports.zenoh.retransmit import AnsweredRequests
from ustreamer.transports.zenoh.route_publishers import (
    DISCOVERY_NS,
    RoutePublisher,
    RoutePublishers,
    route_of,
)
from ustreamer.transports.zenoh.sent_keeper import AwaitedKeeper, Put
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID

_FORGOTTEN_NS: Final = 10_000_000_000
"""Twice the longest wait of a put: a put that is not remembered then never will be."""


class MissingReceipts(NoReceipts):
    """The puts without a receipt. Its caller holds the lock of all puts, except for `keep_overdue`."""

    def __init__(
        self,
        awaited: AwaitedReceipts,
        publishers: RoutePublishers,
        store: SentStore | None,
        monotonic_ns: Callable[[], int],
        remembered_since: Callable[[int], list[Put]],
        put_again: Callable[[int, UMessage], None],
        answered_requests: AnsweredRequests,
    ) -> None:
        """`remembered_since` reads the memory. `put_again` puts a message that has not been answered, or counts it."""
        self.awaited: Final = awaited
        self.keeper: Final = None if store is None else AwaitedKeeper(store)
        """The puts in the store, with a store."""
        self._publishers = publishers
        self._monotonic_ns = monotonic_ns
        self._remembered_since = remembered_since
        self._put_again = put_again
        self._answered_requests = answered_requests
        self._first_put_times: dict[bytes, int] = {}
        """The time of the first put of each message that was put again and waits for a receipt."""
        self._received = 0
        """`awaited.received` when the received ones were removed."""
        self._newly_blocked: deque[tuple[Hashable, Sequence[tuple[int, UMessage]]]] = deque()
        awaited.sent_to = self._sent_to
        if store is not None:
            awaited.restore(store.receivers())

    # --- periodically -------------------------------------------------------------------------------------------------

    @property
    def oldest_ns(self) -> int:
        """When the oldest put was made that is not blocked: it must be remembered."""
        return self.awaited.oldest_kept_ns

    def awaiting_publishers(self) -> set[Hashable]:
        """The publishers of the remembered puts without a receipt. It reads them all, which may take 0.1 s."""
        oldest_ns = self.oldest_ns
        if oldest_ns == NEVER_NS:
            return set()
        publishers = {receipt_id(each[2].id): each[0] for each in self._remembered_since(oldest_ns)}
        received = self.received_of(publishers.keys())
        return {publisher for id, publisher in publishers.items() if id not in received}

    def keep_overdue(self) -> None:
        """Store the receivers, and the puts whose receipt is overdue. Release the puts that have it. Waits for no put."""
        keeper = self.keeper
        if keeper is None:
            return
        self._keep_receivers(keeper)
        now_ns = self._monotonic_ns()
        overdue = self.awaited.overdue(now_ns, keeper.known)
        blocked = self._pop_blocked(keeper)
        if overdue or blocked:
            known = blocked | (self._remembered_of(overdue) if overdue else {})
            found = self._evicted_of(overdue, known.keys()) | known
            answered = {id for id, each in found.items() if self._answered_requests.has(each[2])}
            keeper.keep({id: each for id, each in found.items() if id not in answered})
            # A put in progress is remembered later.
            keeper.ignore(
                id
                for id, put_ns in overdue.items()
                if id in answered or (id not in found and now_ns - put_ns > _FORGOTTEN_NS)
            )
            busy = (
                (each[0], [each[1:]]) for id, each in blocked.items() if id not in answered | keeper.known
            )
            self._newly_blocked.extend(busy)  # again at the next tick
        answered = {id for id, request in keeper.requests.items() if request in self._answered_requests}
        keeper.release(self.awaited.received_of(keeper.known) | answered)

    def _pop_blocked(self, keeper: AwaitedKeeper) -> dict[bytes, Put]:
        """The puts of publishers that lost their subscribers just now. Their receipts will not come soon."""
        found: dict[bytes, Put] = {}
        while self._newly_blocked:
            publisher, puts = self._newly_blocked.popleft()
            found.update((receipt_id(message.id), (publisher, put_ns, message)) for put_ns, message in puts)
        return {
            id: each for id, each in found.items() if id not in keeper.known and self.awaited.is_awaited(id)
        }

    def _keep_receivers(self, keeper: AwaitedKeeper) -> None:
        """Store the tokens of the receivers, if they have changed."""
        awaited = self.awaited
        if not awaited.are_tokens_unstored:
            return
        awaited.are_tokens_unstored = False  # before the tokens are read: another one may come meanwhile
        if not keeper.keep_receivers(awaited.tokens()):
            awaited.are_tokens_unstored = True

    def retransmit(self) -> None:
        """Put again what counts as lost."""
        awaited = self.awaited
        if awaited.changed:
            self._update_receivers()
        if awaited.received != self._received:
            self._received = awaited.received
            for id in awaited.received_of(self._first_put_times.keys()):
                del self._first_put_times[id]
        self._block_kept()
        lost = awaited.lost(self._monotonic_ns())
        if not lost:
            return
        now_ns = self._monotonic_ns()
        remembered, forgotten = self._remembered_since_first(lost), dict[bytes, int]()
        position = {id: at for at, id in enumerate(remembered)}  # a batch has one time
        for id in sorted(lost, key=lambda id: (self.first_put_ns(id, lost[id]), position.get(id, -1))):
            found = remembered[id][1:] if id in remembered else self._read_stored(id, lost[id])
            if found is None:
                if self._may_be_kept(id, now_ns - lost[id]):
                    awaited.postpone(id)
                else:
                    forgotten[id] = lost[id]
            elif self._has_closed_route(found[1]):
                # `PossibleLosses.collect` blocks a remembered one, if its publisher is still declared. Else the next tick
                # finds it again.
                awaited.postpone(id)
            else:
                self._retransmit_put(id, *found)
        if forgotten:
            self._abandon(forgotten, remembered.keys())

    def _read_stored(self, id: bytes, put_ns: int) -> tuple[int, UMessage] | None:
        """A put of this time in the store; None if it is not there."""
        stored = None if self.keeper is None else self.keeper.read(id)
        return None if stored is None else (put_ns, stored[1])

    def _block_kept(self) -> None:
        """Block what was kept since the last call, if its publisher has lost its subscribers meanwhile."""
        for publisher, ids in self.keeper.pop_new() if self.keeper is not None else ():
            if not isinstance(publisher, RoutePublisher) or publisher not in self._publishers:
                continue  # undeclared meanwhile: no subscriber makes it put them again
            if not publisher.open:
                self.awaited.block(ids)

    def _may_be_kept(self, id: bytes, age_ns: int) -> bool:
        """Whether the disk may have this put from before, so that `keep_overdue` keeps it soon."""
        return self.keeper is not None and id not in self.keeper.known and age_ns < SENT_FROM_DISK_NS

    def _sent_to(self) -> set[Receiver]:
        return {receiver for each in self._publishers if each.open for receiver in each.receivers}

    def _abandon(self, forgotten: Mapping[bytes, int], remembered: AbstractSet[bytes]) -> None:
        """Abandon these, which nothing remembers, and the older ones for which that holds too.

        A probe finds only the newest one, so the others would wait for ever.
        """
        stored = frozenset[bytes]() if self.keeper is None else self.keeper.stored
        self.awaited.abandon([*(self.awaited.before(forgotten) - remembered - stored | forgotten.keys())])

    def _update_receivers(self) -> None:
        """Determine the receivers of all publishers again.

        The token of a receiver may come after the first puts to it: these wait for its receipt too.
        """
        self.awaited.changed = False
        since_ns: dict[tuple[Hashable, Receiver], int] = {}
        for publisher in self._publishers:
            before, receivers = publisher.receivers, self._publishers.receivers_of(publisher.route)
            publisher.receivers = tuple(receivers)
            for receiver, at_ns in receivers.items():
                if receiver not in before:
                    was_there = at_ns - publisher.opened_ns < DISCOVERY_NS
                    since_ns[publisher, receiver] = publisher.opened_ns if was_there else at_ns
        puts = {receiver: dict[bytes, int]() for _, receiver in since_ns}
        for origin, put_ns, message in self._remembered_since(min(since_ns.values())) if since_ns else ():
            for receiver, ids in puts.items():
                if put_ns >= since_ns.get((origin, receiver), NEVER_NS):
                    ids[receipt_id(message.id)] = put_ns
        self.awaited.await_earlier(puts)

    def _has_closed_route(self, message: UMessage) -> bool:
        """Whether the publisher of this message has no subscriber, or none can be declared now."""
        publisher = self._publishers.find(route_of(message.attributes))
        return self._publishers.is_full if publisher is None else not publisher.open

    def _retransmit_put(self, id: bytes, put_ns: int, message: UMessage) -> None:
        self.awaited.begin_retransmit(id)
        self._put_again(put_ns, message)
        if not self.awaited.is_awaited(id):
            self.awaited.forget([id])

    def _evicted_of(self, ids: Mapping[bytes, int], remembered: AbstractSet[bytes]) -> dict[bytes, Put]:
        """Of these, with the times of their puts, the evicted ones whose messages were on disk before the put."""
        evicted = ids.keys() - remembered
        found = self.keeper.sent_from_disk(evicted) if self.keeper is not None and evicted else {}
        publisher_of = self._publishers.find
        return {id: (publisher_of(route_of(each.attributes)), ids[id], each) for id, each in found.items()}

    def _remembered_of(self, ids: Mapping[bytes, int]) -> dict[bytes, Put]:
        """The remembered puts with these ids, in order. `ids` are in the form of receipts, with the times of the puts."""
        return {id: each for id, each in self._remembered_since_first(ids).items() if id in ids}

    def _remembered_since_first(self, ids: Mapping[bytes, int]) -> dict[bytes, Put]:
        """All remembered puts since the oldest of these, by id."""
        return {receipt_id(each[2].id): each for each in self._remembered_since(min(ids.values()))}

    # --- publishers that lost their subscribers -----------------------------------------------------------------------

    def is_awaited(self, message: UMessage) -> bool:
        """Whether a receipt of this message is missing."""
        return self.awaited.is_awaited(receipt_id(message.id))

    def received_of(self, ids: KeysView[bytes]) -> AbstractSet[bytes]:
        """Those of `ids` that wait for no receipt."""
        return self.awaited.received_of(ids)

    def forget(self, ids: Sequence[bytes]) -> None:
        """Wait for no receipt of these."""
        self.awaited.forget(ids)

    def stop_waiting(self, id: bytes) -> list[Receiver]:
        """As `AwaitedReceipts.stop_waiting`: it is put again now."""
        return self.awaited.stop_waiting(id)

    def count_left(self, id: bytes, receivers: Sequence[Receiver]) -> None:
        """As `AwaitedReceipts.count_left`: a put was made again that waited for these."""
        self.awaited.count_left(id, receivers)

    def on_put_again(self, id: bytes, put_ns: int, now_ns: int) -> None:
        """A put of `put_ns` was made again at `now_ns`."""
        self._first_put_times.setdefault(id, put_ns)
        if self.keeper is not None:
            self.keeper.on_put_again(id, now_ns)

    def first_put_ns(self, id: bytes, put_ns: int) -> int:
        """When this was put first, if it was put again and has no receipt yet. Else `put_ns`, the time of its last put."""
        return self._first_put_times.get(id, put_ns)

    def block(self, publisher: RoutePublisher, puts: Sequence[tuple[int, UMessage]]) -> None:
        """A publisher will put these again, and what the store has of it, when it has a subscriber."""
        self.awaited.block([receipt_id(message.id) for _, message in puts])
        if self.keeper is not None:
            self._newly_blocked.append((publisher, puts))
            self.awaited.block(self.keeper.ids_of(publisher))

    def has_stored(self, publisher: RoutePublisher) -> bool:
        """Whether the store has puts of this publisher without a receipt."""
        return self.keeper is not None and self.keeper.has_puts_of(publisher)

    def stored_between(self, first_ns: int, last_ns: int) -> int:
        """The number of first and last times between these, both included, of the puts in the store."""
        return 0 if self.keeper is None else self.keeper.count_between(first_ns, last_ns)

    def stored_times(self, id: bytes) -> set[int]:
        """When this was put first, and last; empty if it is not in the store."""
        return set() if self.keeper is None else self.keeper.put_times(id)

    def stored_ids(self, publisher: RoutePublisher, known: AbstractSet[bytes]) -> list[bytes]:
        """The puts of a publisher without a receipt that the store has, without those in `known`, in order."""
        keeper = self.keeper
        if keeper is None:
            return []
        ids = (id for id in keeper.ids_of(publisher) if id not in known and self.awaited.is_awaited(id))
        return sorted(ids, key=lambda id: self.first_put_ns(id, min(keeper.put_times(id))))

    def stored_of(
        self, publisher: RoutePublisher, known: AbstractSet[bytes]
    ) -> Iterator[tuple[int, UMessage]]:
        """As `stored_ids`, read one by one: the time of the put, and the message."""
        for id in self.stored_ids(publisher, known):
            found = None if self.keeper is None else self.keeper.read(id)
            if found is None:
                continue
            if self._answered_requests.has(found[1]):
                self.awaited.forget([id])  # it is not put again
            else:
                yield found

    # --- the end ------------------------------------------------------------------------------------------------------

    def miss_left(self) -> set[UUID]:
        """As `AwaitedReceipts.miss_left`: the next process does not know these receivers."""
        return {id for id in map(uuid_of, self.awaited.miss_left()) if id not in self._answered_requests}

    def remembered(self) -> Iterator[tuple[int, RoutePublisher, UMessage]]:
        """The remembered puts, with their times, but no answered Requests."""
        awaited = self.awaited.all_waiting()
        for publisher, put_ns, message in self._remembered_of(awaited).values() if awaited else ():
            if isinstance(publisher, RoutePublisher) and not self._answered_requests.has(message):
                yield put_ns, publisher, message

    def others(self, known: AbstractSet[UUID]) -> dict[UUID, int]:
        """All puts without those in `known`, with their times, but no answered Requests."""
        waiting = {uuid_of(id): put_ns for id, put_ns in self.awaited.all_waiting().items()}
        answered = self._answered_requests
        return {id: at for id, at in waiting.items() if id not in known and id not in answered}
