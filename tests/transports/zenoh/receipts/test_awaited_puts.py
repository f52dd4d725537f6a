# SPDX-License-Identifier: Apache-2.0
"""The puts without a receipt equal a dict of ids, whatever the order of receipts."""

from itertools import count
from queue import SimpleQueue
from random import Random
from threading import Thread
from typing import Final

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ustreamer.transports.zenoh.receipts.awaited_puts import NEVER_NS, AwaitedPuts
from ustreamer.transports.zenoh.receipts.receipt_keys import split_receipt

_SIZES: Final = st.integers(1, 5)
_SEEDS: Final = st.randoms(use_true_random=False)


def ids_from(first: int, size: int = 1) -> list[bytes]:
    return [b"%017d" % number for number in range(first, first + size)]


class AwaitedPutsMachine(RuleBasedStateMachine):
    """Compares with `waiting` and `blocked`, two dicts of ids with their times."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = AwaitedPuts()
        self.waiting: dict[bytes, int] = {}
        self.blocked: dict[bytes, int] = {}
        self.numbers = count(1_000_000)
        self.now_ns = 1_000_000

    def new_ids(self, size: int) -> list[bytes]:
        return ids_from(next(self.numbers) * 10, size)

    @property
    def known(self) -> list[bytes]:
        return [*self.blocked, *self.waiting]

    def confirm(self, ids: list[bytes]) -> None:
        times = [max(self.waiting.pop(each, 0), self.blocked.pop(each, 0)) for each in ids]
        confirmed = self.puts.confirm(b"".join(ids))
        assert set(confirmed.times) == {each for each in times if each}
        assert list(confirmed.unknown) == [id for id, put_ns in zip(ids, times, strict=True) if not put_ns]

    @rule(size=_SIZES)
    def put(self, size: int) -> None:
        self.now_ns += 1
        ids = self.new_ids(size)
        self.waiting |= dict.fromkeys(ids, self.now_ns)
        self.puts.append((self.now_ns, b"".join(ids)))

    @rule(number=st.integers(0, 12))
    def confirm_the_oldest(self, number: int) -> None:
        self.confirm(list(self.waiting)[:number])

    @rule(number=st.integers(1, 6), skipped=st.integers(1, 3))
    def confirm_after_a_gap(self, number: int, skipped: int) -> None:
        self.confirm(list(self.waiting)[skipped:][:number])

    @rule(number=st.integers(1, 6), unknown=st.integers(0, 2), rng=_SEEDS)
    def confirm_in_any_order(self, number: int, unknown: int, rng: Random) -> None:
        ids = self.known[:number] + self.new_ids(unknown)
        rng.shuffle(ids)
        self.confirm(ids)

    @rule(rng=_SEEDS)
    def forget(self, rng: Random) -> None:
        ids = [each for each in self.known if rng.random() < 0.3]
        for each in ids:
            self.waiting.pop(each, 0)
            self.blocked.pop(each, 0)
        self.puts.forget(ids)

    @rule(rng=_SEEDS)
    def block(self, rng: Random) -> None:
        ids = [each for each in self.known if rng.random() < 0.3]
        for each in ids:
            if each in self.waiting:
                self.blocked[each] = self.waiting.pop(each)
        self.puts.block(ids)

    @rule(size=_SIZES, age=st.integers(1, 10))
    def add_earlier(self, size: int, age: int) -> None:
        earlier = dict.fromkeys(self.new_ids(size), self.now_ns - age)
        newer = {id: put_ns for id, put_ns in self.waiting.items() if put_ns >= self.now_ns - age}
        self.waiting = {id: at for id, at in self.waiting.items() if id not in newer} | earlier | newer
        self.puts.add_earlier(earlier)

    @rule(limit=st.integers(3, 8))
    def trim(self, limit: int) -> None:
        excess = [*self.waiting, *self.blocked][: max(0, len(self.known) - limit)]
        for each in excess:
            self.waiting.pop(each, 0)
            self.blocked.pop(each, 0)
        assert list(self.puts.trim(limit)) == excess

    @rule(age=st.integers(0, 10))
    def list_old_ones(self, age: int) -> None:
        before_ns = self.now_ns - age
        old = {id: put_ns for id, put_ns in self.waiting.items() if put_ns < before_ns}
        assert list(self.puts.before(before_ns).items()) == list(old.items())

    @rule(age=st.integers(0, 10), rng=_SEEDS)
    def list_all_old_ones(self, age: int, rng: Random) -> None:
        before_ns = self.now_ns - age
        known = {each for each in self.known if rng.random() < 0.3}
        old = {
            id: at for id, at in (self.waiting | self.blocked).items() if at < before_ns and id not in known
        }
        assert self.puts.all_before(before_ns, known) == old
        left = set(self.known) | {b"other"}
        self.puts.subtract_from(left)
        assert left == {b"other"}

    @rule(size=_SIZES)
    def add_blocked(self, size: int) -> None:
        blocked = dict.fromkeys(self.new_ids(size), self.now_ns)
        self.blocked |= blocked
        self.puts.add_blocked(blocked)

    @rule(rng=_SEEDS)
    def look_up(self, rng: Random) -> None:
        for each in [*self.known, *ids_from(1)]:
            if rng.random() < 0.3:
                assert (each in self.puts) is (each in self.waiting or each in self.blocked)

    @invariant()
    def equal_in_number_and_at_both_ends(self) -> None:
        assert len(self.puts) == len(self.known)
        assert self.puts.has_blocked is bool(self.blocked)
        assert self.puts.oldest_ns == min(self.waiting.values(), default=NEVER_NS)
        newest = next(((put_ns, id) for id, put_ns in reversed(self.waiting.items())), None)
        assert self.puts.newest == newest


def test_it_equals_a_dict_of_ids() -> None:
    run_state_machine_as_test(AwaitedPutsMachine)


def test_each_put_of_another_thread_is_confirmed_once() -> None:
    puts, put, number = AwaitedPuts(), SimpleQueue[tuple[int, bytes]](), 20_000

    def send() -> None:
        for put_ns in range(1, number + 1):
            each = put_ns, b"".join(ids_from(put_ns * 10, 1 + put_ns % 7))
            puts.append(each)
            put.put(each)

    sender = Thread(target=send)
    sender.start()
    for turn in range(number):
        put_ns, ids = put.get(timeout=30)
        if turn % 1_000 == 0:
            assert split_receipt(ids)[0] in puts
        confirmed = puts.confirm(ids)
        assert (set(confirmed.times), confirmed.unknown) == ({put_ns}, ())
    sender.join()
    assert len(puts) == 0
