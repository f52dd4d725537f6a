# SPDX-License-Identifier: Apache-2.0
"""Puts that wait for a receipt: remembered, put again from the memory and the store, and reported at a stop."""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain, repeat
from threading import Lock

import pytest
import zenoh

from tests.transports.zenoh.publisher_bench import Bench, MakeBench, numbered
from tests.transports.zenoh.sessions import CLOCK
from tests.waiting import wait_until
from ustreamer.testing.durable_contract import RecordedSentStore
from ustreamer.testing.messages import ALPHA, TOPIC
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh import possible_losses
from ustreamer.transports.zenoh.decoder import HEAD, ID_TAG, VERSION_AND_TAGS
from ustreamer.transports.zenoh.link_monitor import UnconfirmedSpan
from ustreamer.transports.zenoh.possible_losses import PossibleLosses
from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts
from ustreamer.transports.zenoh.receipts.missing_receipts import MissingReceipts
from ustreamer.transports.zenoh.receipts.no_receipts import NEVER_NS
from ustreamer.transports.zenoh.receipts.receipt_keys import (
    ReceiptGiverId,
    receipt_id,
    receipt_key,
    token_key,
)
from ustreamer.transports.zenoh.retransmit import Origin, RetransmitConfig
from ustreamer.transports.zenoh.route_publishers import RoutePublisher, RoutePublishers
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, any_at

GIVER = ReceiptGiverId("cloud", "link", "1")
TOKEN = token_key(GIVER, ListenerFilters(ANY, None))
OTHER_TOKEN = token_key(GIVER, ListenerFilters(ANY, any_at("cloud")))
"""For other messages than those of the publisher."""


WINDOW_NS = 1_000_000_000


@pytest.fixture(autouse=True)
def never_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine does not hold more in memory than the tests expect."""
    monkeypatch.setattr(possible_losses, "_HOLD_AFTER_NS", NEVER_NS)


class AwaitedDuringPuts(AwaitedReceipts):
    """Calls `on_read` where the monitor thread reads the oldest put: another thread may put at that moment."""

    def __init__(self) -> None:
        super().__init__("own", CLOCK.monotonic_ns, WINDOW_NS)
        self.on_read: Callable[[], None] = lambda: None

    @property
    def oldest_kept_ns(self) -> int:
        self.on_read()
        return super().oldest_kept_ns


class LossesRig:
    """`PossibleLosses` with one publisher and one receiver. The memory has room for three small messages."""

    def __init__(self, bench: Bench, memory: int = 3 * 201) -> None:
        self.bench = bench
        self.awaited, self.store = AwaitedDuringPuts(), RecordedSentStore()
        self.again: list[int] = []
        self.most_again = 1_000
        """Then the session is closed."""
        self.opened: list[Hashable] = []
        self._subscriber: zenoh.Subscriber[zenoh.Handler[zenoh.Sample]] | None = None
        context = EndpointContext("backbone", ALPHA, CLOCK)
        self.publishers = RoutePublishers(bench.session, context, limit=1, awaited=self.awaited)
        self.losses = PossibleLosses(
            context,
            bench.links,
            self.publishers,
            Lock(),
            self._put_again,
            self.opened.append,
            RetransmitConfig(bytes=memory),
            bench.answered,
            self.store,
            self.awaited,
        )
        assert isinstance(self.losses._receipts, MissingReceipts)
        self.receipts = self.losses._receipts
        self.awaited.on_token(TOKEN, is_present=True)
        [self.receiver] = self.awaited.receivers_of(TOPIC, None)
        self.publisher = self.publishers.declare(numbered(0).attributes)
        self.publishers.add(self.publisher)
        self.losses.on_tick()  # the publisher knows its receiver

    def _put_again(self, put_ns: int, message: UMessage) -> bool:
        if len(self.again) >= self.most_again:
            raise UStatusError(UCode.UNAVAILABLE, "closed")
        self.again.append(int(message.payload))
        self._put(message, message.payload)
        return True

    def put(self, number: int, padding: int = 0) -> UMessage:
        message = numbered(number)
        self._put(message, message.payload + bytes(padding))
        return message

    def _put(self, message: UMessage, payload: bytes) -> None:
        now_ns = CLOCK.monotonic_ns()
        for each in self.publisher.receivers:
            each.puts.append((now_ns, receipt_id(message.id)))
        head = HEAD.pack(VERSION_AND_TAGS, message.id.msb, ID_TAG, message.id.lsb)
        self.losses.append((Origin(self.publisher, message.attributes),), now_ns, (head,), (payload,))

    def are_stored(self, number: int) -> bool:
        self.losses.on_tick()
        return len(self.store.ids()) == number

    def tick_until(self, condition: Callable[[], bool], what: str) -> None:
        def is_met() -> bool:
            self.losses.on_tick()
            return condition()

        wait_until(is_met, what)

    def lose_subscriber(self) -> None:
        assert self._subscriber is not None
        self.again.clear()
        self._subscriber.undeclare()  # type: ignore[no-untyped-call]
        wait_until(lambda: not self.publisher.open, "the loss")
        self.losses.on_tick()

    def return_receiver(self) -> None:
        """The receiver is away, and present again. What was put before that counts as lost after `confirm_nothing`."""
        for is_present in (False, True):
            self.awaited.on_token(TOKEN, is_present=is_present)

    def confirm_nothing(self) -> None:
        """An empty receipt: the subscribers of the receiver are declared."""
        self.awaited.on_receipt(receipt_key(GIVER), b"")

    def put_first_again(self) -> None:
        """Two puts, and the first one again, after the second one."""
        self.find_subscriber()
        self.put(0)
        self.return_receiver()
        self.put(1)
        self.confirm_nothing()
        self.tick_until(lambda: self.again == [0], "the put before the receiver returned")

    def end_window(self) -> None:
        """The receiver is away, while another subscriber receives other messages of its announcement."""
        self.awaited.on_token(TOKEN, is_present=False)
        self.awaited.sent_to = lambda: {self.receiver}
        self.tick_until(lambda: self.receiver.has_left, "the end of its window")

    def find_subscriber(self) -> None:
        self.opened.clear()
        self._subscriber = self.bench.listen()
        wait_until(lambda: bool(self.opened), "the route")

    def put_six(self) -> None:
        """All six are in the store, the last three in memory."""
        self.find_subscriber()
        for first in (0, 3):
            for number in range(first, first + 3):
                self.put(number)
            wait_until(lambda: self.are_stored(first + 3), "overdue receipts")  # noqa: B023  called at once
        assert self.losses.remembered_count == 3


def test_a_put_without_a_receipt_stays_remembered_if_another_put_is_made_during_a_tick(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    puts = LossesRig(bench, 16_000_000)
    puts.put(0, 2_000_000)  # a block of its own
    put_ns = CLOCK.monotonic_ns()
    bench.links._confirmed_ns = lambda now_ns: now_ns  # type: ignore[method-assign]  # the next node has read it
    wait_until(lambda: bench.links.confirmed_ns > put_ns, "the confirmation of the next node")

    def put_once() -> None:
        puts.awaited.on_read = lambda: None
        puts.put(1, 2_000_000)

    puts.awaited.on_read = put_once
    puts.losses.on_tick()
    assert puts.losses.remembered_count == 2


def test_a_stop_counts_puts_without_a_receipt_that_neither_the_memory_nor_the_store_has(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    puts, begin_ns = LossesRig(bench), CLOCK.monotonic_ns()
    messages = [puts.put(number) for number in range(7)]
    puts.awaited.on_receipt(receipt_key(GIVER), receipt_id(messages[0].id))
    puts.store.keep("receipts", messages[1:2])
    bench.answered.add_reqids([messages[2].id])
    bench.links.unconfirmed_spans = lambda: [UnconfirmedSpan(begin_ns, 1 << 61, 1 << 62)]  # type: ignore[method-assign]
    left, forgotten, stored = puts.losses.unconfirmed()
    assert [int(each.payload) for each in left] == [4, 5, 6]
    assert stored == [messages[1].id]
    # Evicted: 0 to 3. The span has all of them, so 0, which has arrived, and 2, which is answered, count too.
    assert forgotten == puts.losses.not_retransmitted == 3
    bench.links.unconfirmed_spans = list  # type: ignore[method-assign]
    left, forgotten, stored = puts.losses.unconfirmed()
    assert ([int(each.payload) for each in left], forgotten, stored) == ([4, 5, 6], 1, [messages[1].id])


def test_a_receiver_that_appears_while_the_store_is_written_is_stored_at_the_next_tick(
    make_bench: MakeBench,
) -> None:
    puts = LossesRig(make_bench())
    store, keep_receivers = puts.store, puts.store.keep_receivers
    second = token_key(GIVER._replace(endpoint="second"), ListenerFilters(ANY, None))

    def keep_while_one_appears(receivers: Sequence[str]) -> bool:
        store.keep_receivers = keep_receivers  # type: ignore[method-assign]
        puts.awaited.on_token(second, is_present=True)
        return keep_receivers(receivers)

    puts.awaited.on_token(
        token_key(GIVER._replace(instance="2"), ListenerFilters(ANY, None)), is_present=True
    )
    store.keep_receivers = keep_while_one_appears  # type: ignore[method-assign]
    puts.losses.on_tick()
    assert second not in store.receivers()
    store.busy = True
    puts.losses.on_tick()
    store.busy = False
    puts.losses.on_tick()
    assert second in store.receivers()


def test_what_was_put_from_the_disk_is_not_given_up_before_it_is_kept(make_bench: MakeBench) -> None:
    """The receiver is back before these puts are overdue, and the memory has no room for all of them."""
    puts = LossesRig(make_bench())
    puts.find_subscriber()
    messages = [puts.put(number) for number in range(7)]
    puts.store.on_disk = {each.id: each for each in messages[:4]}
    for is_present in (False, True):
        puts.awaited.on_token(TOKEN, is_present=is_present)
    puts.awaited.on_receipt(receipt_key(GIVER), b"")
    puts.losses.on_tick()
    assert (puts.again, puts.awaited.missing) == ([4, 5, 6], 0)
    puts.tick_until(lambda: set(puts.again) == set(range(7)), "the puts from the disk")
    assert puts.awaited.missing == 0


def test_what_is_kept_after_its_route_has_closed_is_put_again_when_it_opens(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    puts.find_subscriber()
    messages = [puts.put(number) for number in range(7)]
    puts.store.on_disk = {each.id: each for each in messages[:4]}
    puts.lose_subscriber()
    puts.tick_until(lambda: len(puts.receipts.stored_ids(puts.publisher, frozenset())) == 7, "the write")
    puts.losses.on_tick()
    assert puts.receiver.puts.oldest_ns == NEVER_NS  # all are blocked
    puts.find_subscriber()
    assert sorted(puts.again) == list(range(7))


def test_what_a_lost_subscriber_has_not_confirmed_is_kept_before_it_is_overdue(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench(), 16_000_000)
    puts.find_subscriber()
    messages = [puts.put(number) for number in range(3)]
    puts.awaited.on_receipt(receipt_key(GIVER), receipt_id(messages[0].id))
    puts.awaited._latency_ns = 500_000_000
    puts.store.busy = True
    puts.lose_subscriber()
    puts.losses.on_tick()
    puts.store.busy = False
    puts.losses.on_tick()
    assert [puts.store.read("receipts", each.id) for each in messages] == [None, *messages[1:]]
    puts.awaited.on_receipt(receipt_key(GIVER), receipt_id(messages[1].id))
    puts.losses.on_tick()
    assert [puts.store.read("receipts", each.id) for each in messages] == [None, None, messages[2]]


def test_what_was_put_from_the_disk_and_is_not_remembered_any_more_is_kept(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    messages = [puts.put(number) for number in range(7)]
    puts.store.on_disk = {each.id: each for each in messages[:4]}
    puts.tick_until(lambda: len(puts.store.messages()) == 7, "the write of the overdue ones")
    assert puts.receipts.stored_ids(puts.publisher, frozenset()) == [receipt_id(each.id) for each in messages]


@pytest.mark.parametrize("is_undeclared", [False, True])
def test_what_is_not_remembered_any_more_is_put_again_from_the_store(
    make_bench: MakeBench, *, is_undeclared: bool
) -> None:
    """Without the read from the store, the bound of the memory would lose messages that are on disk.

    Where the publisher was undeclared, the put declares the next one.
    """
    puts = LossesRig(make_bench())
    puts.put_six()
    awaited, publisher = puts.awaited, puts.publisher
    awaited.on_token(TOKEN, is_present=False)
    awaited.on_token(TOKEN, is_present=True)
    publisher.open = False
    for _ in range(20):
        awaited.on_receipt(receipt_key(GIVER), b"")  # it has returned
        puts.losses.on_tick()
    assert puts.again == []
    if is_undeclared:
        assert puts.publishers.pop_idle(NEVER_NS) is publisher
    else:
        publisher.open = True

    def are_put_again() -> bool:
        puts.losses.on_tick()  # puts nothing while the monitor holds the lock
        return len(puts.again) >= 3

    wait_until(are_put_again, "puts from the store")
    assert puts.again[:3] == [0, 1, 2]
    assert awaited.missing == 0


def test_when_a_subscriber_is_back_the_store_and_the_memory_are_put_again_in_order(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    puts = LossesRig(bench)
    puts.put_six()
    for _ in range(2):  # the second time, the memory has evicted repetitions as well
        puts.lose_subscriber()
        puts.find_subscriber()
        assert [number for number in puts.again if number < 10] == [0, 1, 2, 3, 4, 5]
        assert (puts.losses.not_retransmitted, puts.awaited.missing) == (0, 0)
    puts.losses.on_subscriber_found(puts.publisher)  # a second task of the monitor
    assert [number for number in puts.again if number < 10] == [0, 1, 2, 3, 4, 5]
    assert puts.losses.retransmitted == 12


@pytest.mark.parametrize(("memory", "remembered"), [(3 * 201, [0, 2, 3]), (1_000_000, [0, 1, 2, 3])])
def test_what_was_put_again_alone_keeps_its_place_before_newer_messages(
    make_bench: MakeBench, memory: int, remembered: list[int]
) -> None:
    puts = LossesRig(make_bench(), memory)
    puts.find_subscriber()
    puts.put(0)
    puts.return_receiver()
    puts.put(1)
    wait_until(lambda: puts.are_stored(2), "overdue receipts")
    puts.confirm_nothing()
    puts.tick_until(lambda: puts.again == [0], "the put before the receiver returned")
    puts.put(2)
    puts.put(3)
    puts.lose_subscriber()
    left = [int(each.payload) for each in puts.losses.unconfirmed().messages]
    assert (left, set(left) & set(remembered)) == (sorted(left), set(remembered))
    puts.find_subscriber()
    assert puts.again == [0, 1, 2, 3]


def test_what_was_put_again_alone_is_put_again_before_newer_messages_on_an_open_route(
    make_bench: MakeBench,
) -> None:
    puts = LossesRig(make_bench(), 1_000_000)
    puts.put_first_again()
    puts.return_receiver()
    puts.confirm_nothing()
    puts.tick_until(lambda: len(puts.again) == 3, "both puts")
    assert puts.again == [0, 0, 1]


def test_what_only_the_store_has_is_put_again_in_the_order_of_the_first_puts(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    puts.put_first_again()
    wait_until(lambda: puts.are_stored(2), "overdue receipts")
    for number in range(2, 5):  # the memory evicts the others
        puts.put(number)
    puts.lose_subscriber()
    puts.find_subscriber()
    assert puts.again == [0, 1, 2, 3, 4]


def test_only_publishers_with_a_missing_receipt_keep_their_places(make_bench: MakeBench) -> None:
    """Else the publishers of other topics fill all places, and what was lost of further topics waits for ever."""
    puts = LossesRig(make_bench(), 1_000_000)
    puts.store.busy = True
    puts.find_subscriber()
    message = puts.put(0)
    other = puts.publishers.declare(numbered(1, 7).attributes)
    puts.publishers.add(other)
    used_ns = CLOCK.monotonic_ns()
    puts.bench.links._confirmed_ns = lambda now_ns: now_ns  # type: ignore[method-assign]  # a sign of life
    wait_until(lambda: puts.bench.links.confirmed_ns > used_ns, "the next sample")

    def idle() -> RoutePublisher | None:
        puts.losses.on_tick()
        return puts.publishers.pop_idle(puts.losses.needed_since_ns, puts.losses.is_needed)

    assert [idle(), idle()] == [other, None]
    puts.awaited.on_receipt(receipt_key(GIVER), receipt_id(message.id))
    assert idle() is puts.publisher


def test_the_publishers_with_a_missing_receipt_are_searched_once_in_a_second(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search reads all remembered puts."""
    monkeypatch.setattr(possible_losses, "_FIND_NEEDED_NS", NEVER_NS)
    puts = LossesRig(make_bench(), 1_000_000)
    puts.find_subscriber()
    puts.put(0)
    used_ns, searches = CLOCK.monotonic_ns(), list[set[Hashable]]()
    search = puts.receipts.awaiting_publishers

    def counted() -> set[Hashable]:
        searches.append(search())
        return searches[-1]

    monkeypatch.setattr(puts.receipts, "awaiting_publishers", counted)
    puts.bench.links._confirmed_ns = lambda now_ns: now_ns  # type: ignore[method-assign]  # a sign of life
    wait_until(lambda: puts.bench.links.confirmed_ns > used_ns, "the next sample")
    puts.tick_until(lambda: bool(searches), "the first search")
    puts.losses.on_tick()
    assert len(searches) == 1
    assert puts.losses.is_needed(puts.publisher)


def test_what_is_kept_of_an_undeclared_publisher_can_be_put_again_by_the_next_one(
    make_bench: MakeBench,
) -> None:
    """Blocked puts wait for a subscriber of their publisher, and this one will have none."""
    puts = LossesRig(make_bench())
    puts.put(0)
    assert puts.publishers.pop_idle(NEVER_NS, lambda _: False) is puts.publisher
    wait_until(lambda: puts.are_stored(1), "the overdue receipt")
    puts.losses.on_tick()
    assert not puts.publisher.open
    assert not puts.receiver.puts.has_blocked


def test_what_the_store_has_waits_for_its_subscriber_longer_than_the_window(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    puts.put_six()
    puts.lose_subscriber()
    puts.awaited.on_token(TOKEN, is_present=False)
    end_ns = CLOCK.monotonic_ns() + 2 * WINDOW_NS
    wait_until(lambda: CLOCK.monotonic_ns() > end_ns, "the end of the window")
    puts.losses.on_tick()
    assert len(puts.store.ids()) == 6
    puts.awaited.on_token(TOKEN, is_present=True)
    puts.find_subscriber()
    assert (puts.again, puts.awaited.missing) == ([0, 1, 2, 3, 4, 5], 0)


def test_a_stop_without_an_outage_reports_nothing_that_is_in_the_store(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    puts.put_six()
    puts.lose_subscriber()
    left, forgotten, stored = puts.losses.unconfirmed()
    assert ([int(each.payload) for each in left], forgotten, len(stored)) == ([3, 4, 5], 0, 3)


def test_a_stop_while_messages_are_put_again_loses_none_of_the_others(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    puts.put_six()
    puts.lose_subscriber()
    puts.most_again = 2
    puts.opened.clear()
    _subscriber = puts.bench.listen()
    wait_until(puts.publisher.has_subscriber, "the subscriber")
    puts.losses.on_subscriber_found(puts.publisher)
    assert (puts.again, puts.publisher.open, puts.opened) == ([0, 1], False, [])
    left, forgotten, stored = puts.losses.unconfirmed()
    assert ({int(each.payload) for each in left}, forgotten, len(stored)) == ({0, 1, 3, 4, 5}, 0, 1)


def test_a_publisher_with_puts_in_the_store_stays(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    message = puts.put(0)
    wait_until(lambda: puts.are_stored(1), "the overdue receipt")
    assert puts.publishers.pop_idle(NEVER_NS, puts.losses.has_stored) is None
    puts.awaited.on_receipt(receipt_key(GIVER), receipt_id(message.id))
    puts.losses.on_tick()
    assert puts.publishers.pop_idle(NEVER_NS, puts.losses.has_stored) is puts.publisher


def test_what_an_undeclared_publisher_had_to_put_again_is_counted_once(make_bench: MakeBench) -> None:
    """Without it, nothing could put it again before newer messages."""
    puts = LossesRig(make_bench())
    puts.put_six()
    puts.lose_subscriber()
    assert puts.publishers.pop_lost_before(0) is None
    assert puts.publishers.pop_lost_before(NEVER_NS) is puts.publisher
    puts.losses.on_undeclared(puts.publisher)
    assert puts.losses.not_retransmitted == 6
    assert not puts.awaited.count
    puts.losses.on_tick()
    assert (puts.losses.unconfirmed(), puts.losses.not_retransmitted) == (([], 0, []), 6)


def test_a_response_that_comes_while_requestsare_stored_leaves_nothing_behind(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = LossesRig(make_bench())
    answers = chain([False], repeat(True))
    monkeypatch.setattr(puts.bench.answered, "has", lambda message: next(answers))
    message = puts.put(0)
    wait_until(lambda: puts.are_stored(1), "the overdue receipt")
    puts.awaited.on_receipt(receipt_key(GIVER), receipt_id(message.id))
    puts.losses.on_tick()
    keeper = puts.receipts.keeper
    assert keeper is not None
    assert (puts.store.ids(), keeper.ids_of(puts.publisher)) == ([], [])


def test_a_put_of_a_receiver_that_left_is_unconfirmed_after_a_closed_session_refused_it(
    make_bench: MakeBench,
) -> None:
    puts = LossesRig(make_bench())
    puts.put_six()
    puts.lose_subscriber()
    puts.end_window()
    puts.publisher.receivers = ()
    puts.most_again = 0
    _subscriber = puts.bench.listen()
    wait_until(puts.publisher.has_subscriber, "the subscriber")
    puts.losses.on_subscriber_found(puts.publisher)
    puts.losses.on_tick()
    left, forgotten, stored = puts.losses.unconfirmed()
    assert len(left) + forgotten + len(stored) == 6


def test_what_is_put_again_counts_as_missing_for_a_receiver_that_has_left(make_bench: MakeBench) -> None:
    """Another subscriber is back, and gets it: this receiver never will."""
    puts = LossesRig(make_bench(), 16_000_000)
    for number in range(6):
        puts.put(number)
    puts.find_subscriber()
    puts.lose_subscriber()
    puts.end_window()
    puts.losses.on_tick()
    puts.find_subscriber()
    assert (puts.again, puts.awaited.missing, puts.awaited.count) == ([0, 1, 2, 3, 4, 5], 6, 0)


def test_what_is_put_again_waits_for_a_receiver_whose_token_is_late(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench(), 16_000_000)
    puts.awaited.on_token(OTHER_TOKEN, is_present=True)
    puts.find_subscriber()
    for number in range(6):
        puts.put(number)
    puts.lose_subscriber()
    puts.awaited.on_token(TOKEN, is_present=False)
    puts.tick_until(lambda: not puts.publisher.receivers, "the end of the token")
    puts.find_subscriber()
    assert (puts.again, puts.awaited.count) == ([0, 1, 2, 3, 4, 5], 0)
    puts.awaited.on_token(TOKEN, is_present=True)
    puts.losses.on_tick()
    assert puts.awaited.count == 6


def test_puts_that_nothing_remembers_are_abandoned_with_the_probe(make_bench: MakeBench) -> None:
    """A probe finds only the newest of them. The others would wait for ever."""
    puts = LossesRig(make_bench())
    for number in range(6):
        puts.put(number)
    receivers, puts.publisher.receivers = puts.publisher.receivers, ()
    for number in range(6, 9):
        puts.put(number)
    puts.publisher.receivers = receivers
    puts.tick_until(lambda: puts.awaited.missing > 0, "the first probe")
    assert (puts.awaited.missing, puts.awaited.count) == (6, 0)


def test_what_the_store_has_is_not_abandoned_with_a_probe(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench())
    puts.put_six()
    puts.put(6)
    receivers, puts.publisher.receivers = puts.publisher.receivers, ()
    for number in range(7, 10):
        puts.put(number)
    puts.publisher.receivers = receivers
    puts.tick_until(lambda: puts.awaited.missing > 0, "the first probe")
    assert (puts.awaited.missing, puts.awaited.count, len(puts.store.ids())) == (1, 6, 6)


def test_a_receiver_that_has_left_counts_once_although_its_publisher_does_not_know_it_yet(
    make_bench: MakeBench,
) -> None:
    puts = LossesRig(make_bench(), 16_000_000)
    for number in range(6):
        puts.put(number)
    puts.find_subscriber()
    puts.lose_subscriber()
    receivers = puts.publisher.receivers
    puts.end_window()
    puts.publisher.receivers = receivers
    puts.find_subscriber()
    puts.tick_until(lambda: not puts.awaited.count, "the next tick")
    assert puts.awaited.missing == 6


def test_an_answered_request_of_the_store_waits_no_more_when_a_subscriber_is_back(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = LossesRig(make_bench())
    puts.put_six()
    puts.lose_subscriber()
    monkeypatch.setattr(puts.bench.answered, "has", lambda message: int(message.payload) == 1)
    puts.find_subscriber()
    assert (sorted(puts.again), puts.awaited.count, puts.awaited.missing) == ([0, 2, 3, 4, 5], 5, 0)


def test_no_window_of_a_receiver_ends_while_its_publishers_have_no_subscriber(make_bench: MakeBench) -> None:
    puts = LossesRig(make_bench(), 16_000_000)
    puts.find_subscriber()
    puts.put(0)
    puts.lose_subscriber()
    puts.awaited.on_token(TOKEN, is_present=False)
    end_ns = CLOCK.monotonic_ns() + 2 * WINDOW_NS
    puts.tick_until(lambda: CLOCK.monotonic_ns() > end_ns, "twice the window")
    assert (puts.receiver.has_left, puts.awaited.missing) == (False, 0)
    puts.find_subscriber()
    back_ns = CLOCK.monotonic_ns()
    puts.tick_until(lambda: puts.receiver.has_left or not puts.awaited.count, "the end of its window")
    assert CLOCK.monotonic_ns() > back_ns + WINDOW_NS * 7 // 10
    assert (puts.awaited.missing, puts.awaited.count) == (1, 0)
