# SPDX-License-Identifier: Apache-2.0
"""The puts that a `SentStore` keeps, as the keeper counts them. With a sender: test_possible_losses.py."""

from collections.abc import Collection, Hashable, Sequence

from ustreamer.testing.durable_contract import RecordedSentStore
from ustreamer.testing.messages import TOPIC, new_id
from ustreamer.transports.zenoh.receipts.receipt_keys import receipt_id
from ustreamer.transports.zenoh.sent_keeper import AwaitedKeeper, SentKeeper
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID


class Store(RecordedSentStore):
    """A store that is busy after `free` calls. It refuses payloads from `limit` on."""

    def __init__(self, free: int = 100) -> None:
        super().__init__()
        self.free = free
        self.limit = 1_000
        self.calls: list[tuple[Hashable, list[int]]] = []

    def _is_free(self) -> bool:
        self.free -= 1
        return self.free >= 0

    def keep(self, route: Hashable, messages: Sequence[UMessage]) -> Collection[UUID] | None:
        if not self._is_free():
            return None
        self.calls.append((route, [int(each.payload) for each in messages]))
        return [each.id for each in messages if int(each.payload) < self.limit]

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> bool:
        free = self._is_free()
        if free:
            self.calls.append((route, []))
        return free


def put(publisher: str, n: int) -> tuple[str, int, UMessage]:
    return publisher, n, publish(new_id(), TOPIC, b"%d" % n)


def test_the_puts_of_a_publisher_are_stored_together_in_order() -> None:
    keeper = SentKeeper(store := Store())
    assert not keeper.has_puts
    assert keeper.keep([put("a", 1), put("b", 2), put("a", 3)])
    assert store.calls == [("a", [1, 3]), ("b", [2])]
    assert keeper.last_puts() == [("a", 3), ("b", 2)]


def test_puts_made_again_count_with_their_new_time() -> None:
    keeper = SentKeeper(Store())
    keeper.keep([put("a", 1)])
    keeper.on_put_again("a", 9)
    keeper.on_put_again("unknown", 9)
    assert keeper.last_puts() == [("a", 9)]


def test_a_released_publisher_is_forgotten() -> None:
    keeper = SentKeeper(store := Store())
    keeper.keep([put("a", 1), put("b", 2)])
    keeper.release(["a"])
    assert store.calls[-1] == ("a", [])
    assert keeper.last_puts() == [("b", 2)]


def test_a_busy_store_is_left_alone_until_the_next_call() -> None:
    keeper = SentKeeper(store := Store(free=1))
    assert not keeper.keep([put("a", 1), put("b", 2), put("c", 3)])
    assert (store.calls, store.free) == ([("a", [1])], -1)
    store.free = 1
    keeper.release(["a", "b", "c"])
    assert [publisher for publisher, _ in keeper.last_puts()] == ["b", "c"]


def test_what_is_above_the_limits_of_the_store_does_not_count_as_stored() -> None:
    keeper = AwaitedKeeper(store := Store())
    store.limit = 2
    puts = {receipt_id(each[2].id): each for each in (put("a", n) for n in range(1, 4))}
    keeper.keep(puts)
    assert keeper.known == puts.keys()  # not given again
    assert keeper.ids_of("a") == list(puts)[:1]
    assert keeper.count_between(1, 3) == 1
    keeper.release(list(puts)[1:])
    assert keeper.known == {next(iter(puts))}
    assert store.calls == [("receipts", [1, 2, 3])]
