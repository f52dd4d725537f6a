# SPDX-License-Identifier: Apache-2.0
# Fast path of a dict of ids, which is its oracle; compared by
# tests/transports/zenoh/receipts/test_awaited_puts.py::test_it_equals_a_dict_of_ids
"""The puts of one receiver that have no receipt yet.

In: puts, and the ids of receipts. Out: which puts wait.

Receipts nearly always come in the order of the puts. So the ids of a batch stay joined, and a receipt is compared with
the joined ids: 0.06 us per id. Overdue puts become entries of a dict: 0.3 us per id. With another order or a gap, all
puts do.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice, repeat
from operator import itemgetter
from threading import Lock
from typing import Final, NamedTuple

from ustreamer.transports.zenoh.receipts.receipt_keys import ID_BYTES, split_receipt

NEVER_NS: Final = 1 << 62
_MAX_COUNTED: Final = 1_024  # batches: to count their ids takes 0.1 ms


class Confirmed(NamedTuple):
    """The puts that a receipt confirmed: their monotonic times in ns, one for each batch or id.

    `unknown` are the ids in the receipt that did not wait.
    """

    times: Sequence[int]
    unknown: Sequence[bytes]


class AwaitedPuts:
    """Ids with the monotonic times of their puts in ns, the oldest first. Thread-safe."""

    __slots__ = ("_blocked", "_in_order", "_lock", "_waiting", "append")

    def __init__(self) -> None:
        self._in_order: deque[tuple[int, bytes]] = deque()
        """The newest puts: the time and the joined ids of each batch. All others are older."""
        self._waiting: dict[bytes, int] = {}
        self._blocked: dict[bytes, int] = {}
        """Of publishers that have lost their subscribers: these are put again when one is back."""
        self._lock = Lock()
        # One operation of a deque, so it needs no lock.
        self.append: Final = self._in_order.append
        """Add a put, just before it: its time, and its joined ids, at least one."""

    def __len__(self) -> int:
        with self._lock:
            joined = sum(len(ids) for _, ids in list(self._in_order))
            return len(self._waiting) + len(self._blocked) + joined // ID_BYTES

    def __contains__(self, id: bytes) -> bool:
        with self._lock:
            return id in self._waiting or id in self._blocked or id in self._index()

    def subtract_from(self, ids: set[bytes]) -> None:
        """Remove from `ids` what waits."""
        with self._lock:
            for puts in self._waiting, self._blocked:
                ids -= puts.keys() & ids
            if ids and self._in_order:  # some may wait again
                ids -= self._index().keys() & ids

    def _index(self, before_ns: int = NEVER_NS) -> dict[bytes, int]:
        """All that is not blocked, or that part of it with all puts before this time. The caller holds the lock."""
        in_order, waiting = self._in_order, self._waiting
        while in_order and in_order[0][0] < before_ns:
            put_ns, ids = in_order.popleft()
            waiting.update(zip(split_receipt(ids), repeat(put_ns)))
        return waiting

    def confirm(self, ids: bytes) -> Confirmed:
        """The receiver gave a receipt with these joined ids: they wait no more."""
        with self._lock:
            if self._blocked:
                return self._confirm_each(split_receipt(ids))
            times, at, in_order, waiting = list[int](), 0, self._in_order, self._waiting
            while waiting and at < len(ids):  # the oldest ones
                put_ns = waiting.pop(ids[at : at + ID_BYTES], 0)
                if not put_ns:
                    break
                times.append(put_ns)
                at += ID_BYTES
            while at < len(ids):
                put_ns, first = in_order[0] if in_order else (0, b"")
                if first and ids.startswith(first, at):
                    in_order.popleft()
                elif first.startswith(ids[at:]):  # the receipt ends within a batch
                    in_order[0] = put_ns, first[len(ids) - at :]
                else:
                    return self._confirm_each(split_receipt(ids[at:]), times)
                times.append(put_ns)
                at += len(first)
            return Confirmed(times, ())

    def _confirm_each(self, ids: Sequence[bytes], times: Sequence[int] = ()) -> Confirmed:
        """As `confirm`, id by id. `times` are those of the ids before. The caller holds the lock."""
        found = list(map(self._index().pop, ids, repeat(0)))
        if self._blocked:
            found = list(map(max, found, map(self._blocked.pop, ids, repeat(0))))
        if 0 not in found:
            return Confirmed([*times, *found], ())
        unknown = [id for id, put_ns in zip(ids, found, strict=True) if not put_ns]
        return Confirmed([*times, *filter(None, found)], unknown)

    def forget(self, ids: Sequence[bytes]) -> None:
        """Wait for no receipt of these."""
        if not ids:
            return
        with self._lock:
            for pop in self._index().pop, self._blocked.pop:
                deque(map(pop, ids, repeat(None)), maxlen=0)

    def block(self, ids: Sequence[bytes]) -> None:
        """The publisher of these has lost its subscribers."""
        if not ids:
            return
        with self._lock:
            waiting = self._index()
            for id in ids:
                put_ns = waiting.pop(id, None)
                if put_ns is not None:
                    self._blocked[id] = put_ns

    def add_blocked(self, blocked: Mapping[bytes, int]) -> None:
        """Add puts of publishers that have lost their subscribers."""
        with self._lock:
            self._blocked.update(blocked)

    def add_earlier(self, earlier: Mapping[bytes, int]) -> None:
        """Wait for the receipts of puts that were made some time ago."""
        if not earlier:
            return
        with self._lock:
            self._waiting = dict(sorted({**earlier, **self._index()}.items(), key=itemgetter(1)))

    def trim(self, limit: int) -> Sequence[bytes]:
        """Forget the oldest puts above the bound; returns their ids."""
        if len(self._in_order) > _MAX_COUNTED:
            with self._lock:
                self._index()
        excess = len(self) - limit
        if excess <= 0:
            return ()
        with self._lock:
            ids = list(islice(chain(self._index(), self._blocked), excess))
        self.forget(ids)
        return ids

    def before(self, before_ns: int) -> dict[bytes, int]:
        """The puts before this time that are not blocked, with their times."""
        if self.oldest_ns >= before_ns:
            return {}
        with self._lock:
            return {id: put_ns for id, put_ns in self._index(before_ns).items() if put_ns < before_ns}

    def all_before(self, before_ns: int, known: AbstractSet[bytes]) -> dict[bytes, int]:
        """The puts before this time, also blocked ones, with their times and without those in `known`; in any order."""
        found: dict[bytes, int] = {}
        with self._lock:
            for puts in self._index(before_ns), self._blocked:
                if puts:  # no call of Python for each: it may be a retransmit window of them
                    new = puts.keys() - known
                    found.update((id, puts[id]) for id in new if puts[id] < before_ns)
        return found

    @property
    def has_blocked(self) -> bool:
        """Whether a put is blocked."""
        return bool(self._blocked)

    @property
    def oldest_ns(self) -> int:
        """When the oldest put was made that is not blocked."""
        with self._lock:
            if self._waiting:
                return next(iter(self._waiting.values()))
            return self._in_order[0][0] if self._in_order else NEVER_NS

    @property
    def newest(self) -> tuple[int, bytes] | None:
        """The time and the id of the newest put that is not blocked."""
        with self._lock:
            if self._in_order:
                put_ns, ids = self._in_order[-1]
                return put_ns, ids[-ID_BYTES:]
            return next(((put_ns, id) for id, put_ns in reversed(self._waiting.items())), None)
