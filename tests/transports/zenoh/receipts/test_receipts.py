# SPDX-License-Identifier: Apache-2.0
"""Receipts: their keys, the puts that wait for them, the copies that are dropped; and two endpoints that use them."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Final

import pytest
import zenoh

from tests.transports.zenoh.sessions import CLOCK, free_locator, plain_session
from tests.waiting import wait_until
from ustreamer.host.storage.received_ids import CAPACITY
from ustreamer.testing.durable_contract import RecordedReceivedStore
from ustreamer.testing.messages import ALPHA, BETA, TOPIC, new_id
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.keys import EVERY_KEY, message_key
from ustreamer.transports.zenoh.receipts.awaited_puts import NEVER_NS, AwaitedPuts
from ustreamer.transports.zenoh.receipts.awaited_receipts import (
    MAX_AWAITED,
    MAX_RECEIVERS,
    AwaitedReceipts,
    Receiver,
)
from ustreamer.transports.zenoh.receipts.receipt_giver import RECENT_IDS, ReceiptGiver, ReceiptListener
from ustreamer.transports.zenoh.receipts.receipt_keys import (
    EVERY_RECEIPT,
    ID_BYTES,
    ReceiptGiverId,
    check_receipt,
    parse_receipt_key,
    parse_token_key,
    receipt_id,
    receipt_ids,
    receipt_key,
    split_receipt,
    token_key,
)
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri, any_at

NS_PER_S: Final = 1_000_000_000
WINDOW_NS: Final = 15 * NS_PER_S
GIVER: Final = ReceiptGiverId("cloud.eu", "link", "0123456789abcdef")
EVERY_PUBLICATION: Final = ListenerFilters(ANY, None)
TOKEN: Final = token_key(GIVER, EVERY_PUBLICATION)


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [EVERY_PUBLICATION, ListenerFilters(any_at("a"), TOPIC)])
def test_keys_name_the_giver_and_its_filters(filters: ListenerFilters) -> None:
    assert parse_receipt_key(receipt_key(GIVER)) == GIVER
    assert parse_token_key(token_key(GIVER, filters)) == (GIVER, filters)
    assert zenoh.KeyExpr(EVERY_RECEIPT).includes(zenoh.KeyExpr(receipt_key(GIVER)))
    assert not zenoh.KeyExpr(EVERY_RECEIPT).intersects(zenoh.KeyExpr(token_key(GIVER, filters)))
    assert not zenoh.KeyExpr(EVERY_KEY).intersects(zenoh.KeyExpr(receipt_key(GIVER)))


@pytest.mark.parametrize("key", ["up-receipts/2/a/b/0", "up-receipts/1/a/b/xyz", "up-receipts/1/a/b/0/c", ""])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(UStatusError):
        parse_receipt_key(key)
    with pytest.raises(UStatusError):
        parse_token_key(f"{key}/-")


def test_a_receipt_has_the_ids_as_in_attachments() -> None:
    messages = numbered(0, 9)
    batch = MessageBatch.from_messages(messages)
    assert batch is not None
    ids = [receipt_id(each.id) for each in messages]
    assert receipt_ids(messages) == receipt_ids(batch) == b"".join(ids)
    assert split_receipt(b"".join(ids)) == ids
    check_receipt(b"".join(ids))
    with pytest.raises(UStatusError):
        check_receipt(b"".join(ids)[1:])


# --- copies -----------------------------------------------------------------------------------------------------------


class Failing:
    """A listener that raises at its first call."""

    def __init__(self) -> None:
        self.calls: list[list[UMessage]] = []

    def __call__(self, message: UMessage, /) -> None:
        self.on_batch([message])

    def on_batch(self, messages: Sequence[UMessage], /) -> None:
        self.calls.append(list(messages))
        if len(self.calls) == 1:
            raise ValueError("the first one")


@pytest.mark.parametrize("size", [1, 3])
def test_a_message_that_the_listener_did_not_take_gets_no_receipt_and_its_copy_is_new(size: int) -> None:
    giver, inner = ReceiptGiver(GIVER, CLOCK.monotonic_ns), Failing()
    listener = ReceiptListener(inner, giver)
    messages = numbered(0, size)

    def deliver() -> None:
        if size == 1:
            listener(messages[0])
        else:
            listener.on_batch(messages)

    with pytest.raises(ValueError, match="the first one"):
        deliver()
    assert not giver._pending
    deliver()
    deliver()
    assert inner.calls == [messages, messages]
    assert (len(giver._pending), giver.duplicates) == (2, size)


def test_the_ids_that_wait_for_a_receipt_are_bounded() -> None:
    giver, batch = ReceiptGiver(GIVER, CLOCK.monotonic_ns), bytes(ID_BYTES * 128)
    for _ in range(5 * RECENT_IDS // 128):
        giver.record(batch)
    assert len(giver._pending) == 4 * RECENT_IDS // 128
    giver._move_safe()
    giver._give()
    giver.record(batch)
    assert len(giver._pending) == 1


class FailingStore(RecordedReceivedStore):
    """All messages are safe at once. Each of the first calls fails: Zenoh may panic, which is no Exception."""

    failures = 2

    def safe_before_ns(self) -> int:
        self.failures -= 1
        if self.failures >= 0:
            raise SystemExit("on purpose")
        return NEVER_NS


def test_an_error_does_not_end_the_receipts(caplog: pytest.LogCaptureFixture) -> None:
    giver = ReceiptGiver(GIVER, CLOCK.monotonic_ns)
    giver.store = FailingStore()
    with plain_session() as session:
        giver.start(session)
        giver.record(id_of(1))
        wait_until(lambda: giver.given == 1 or not (giver._thread and giver._thread.is_alive()))
        giver.close()
    assert giver.given == 1
    assert {each.message for each in caplog.records} == {"zenoh.receipts_failed"}


# --- puts that wait ---------------------------------------------------------------------------------------------------


class Awaited(AwaitedReceipts):
    """With a clock that the test sets. Another subscriber receives messages, unless the test changes `sent_to`."""

    MAX_STEP_NS = NEVER_NS

    def __init__(self) -> None:
        self.now_ns = 100 * NS_PER_S
        super().__init__("own", lambda: self.now_ns, WINDOW_NS)
        self._advanced_ns = self.now_ns
        self.sent_to = lambda: set(self._receivers.values())

    def appear(self, instance: str = "1") -> Receiver:
        self.on_token(token_key(GIVER._replace(instance=instance), EVERY_PUBLICATION), is_present=True)
        [receiver] = self.receivers_of(TOPIC, None)
        return receiver

    def disappear(self, instance: str = "1") -> None:
        self.on_token(token_key(GIVER._replace(instance=instance), EVERY_PUBLICATION), is_present=False)

    def put(self, *ids: bytes) -> None:
        """Put these now, for all receivers."""
        for receiver in self.receivers_of(TOPIC, None):
            receiver.puts.append((self.now_ns, b"".join(ids)))

    def give(self, *ids: bytes) -> None:
        self.on_receipt(receipt_key(GIVER._replace(instance="1")), b"".join(ids))


def id_of(number: int) -> bytes:
    return b"%017d" % number


def test_a_put_waits_until_its_receipt() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.put(id_of(1), id_of(2))
    awaited.give(id_of(1), id_of(9))
    assert (awaited.is_awaited(id_of(1)), awaited.is_awaited(id_of(2)), awaited.count) == (False, True, 1)
    awaited.now_ns += NS_PER_S - 1
    assert list(awaited.overdue(awaited.now_ns, {id_of(7)})) == [id_of(2)]
    assert awaited.lost(awaited.now_ns) == {}  # the receiver may be slow


def test_only_matching_puts_wait_and_none_for_the_own_tokens() -> None:
    awaited = Awaited()
    awaited.on_token(token_key(GIVER._replace(instance="own"), EVERY_PUBLICATION), is_present=True)
    assert awaited.receivers_of(TOPIC, None) == {}
    receiver = awaited.appear()
    assert list(awaited.receivers_of(TOPIC, None)) == [receiver]
    assert awaited.receivers_of(TOPIC, UUri(BETA, 1, 1, 0)) == {}


def test_a_put_before_one_with_a_receipt_is_lost_after_a_second() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.put(id_of(1))
    awaited.now_ns += NS_PER_S + 1
    awaited.put(id_of(2))
    assert awaited.lost(awaited.now_ns) == {}
    awaited.give(id_of(2))
    assert list(awaited.lost(awaited.now_ns)) == [id_of(1)]


def test_without_receipts_the_newest_put_is_made_again_ever_more_rarely() -> None:
    awaited = Awaited()
    receiver = awaited.appear()
    awaited.put(id_of(1), id_of(2))
    for seconds in (1, 2, 4, 8):
        awaited.now_ns += seconds * NS_PER_S - 1
        assert awaited.lost(awaited.now_ns) == {}
        awaited.now_ns += 1
        assert list(awaited.lost(awaited.now_ns)) == [id_of(2)]
        receiver.puts.forget([id_of(2)])
        awaited.put(id_of(2))
    awaited.give(id_of(2))
    assert list(awaited.lost(awaited.now_ns)) == [id_of(1)]


def test_a_put_that_is_lost_again_and_again_is_given_up() -> None:
    awaited = Awaited()
    receiver = awaited.appear()
    tries = 0
    while not awaited.missing:
        tries += 1
        receiver.puts.forget([id_of(1)])
        awaited.put(id_of(1))
        awaited.now_ns += 2 * NS_PER_S
        awaited.put(id_of(2))
        awaited.give(id_of(2))
        awaited.lost(awaited.now_ns)
    assert 1 < tries < 20
    assert (awaited.missing, awaited.count) == (1, 0)


def test_a_probe_that_cannot_be_made_now_does_not_allow_one_more_retransmission() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.put(id_of(1))
    awaited.now_ns += NS_PER_S
    assert list(awaited.lost(awaited.now_ns)) == [id_of(1)]
    awaited.postpone(id_of(1))
    assert awaited._retransmissions == {}


@pytest.mark.parametrize("end", ["forgotten", "late receipt", "trimmed"])
def test_the_retransmissions_of_a_put_are_counted_only_while_it_waits(end: str) -> None:
    awaited = Awaited()
    receiver = awaited.appear()
    lost = [id_of(each) for each in range(1_000)]
    awaited.put(*lost)
    awaited.now_ns += 2 * NS_PER_S
    awaited.put(id_of(1_001))
    awaited.give(id_of(1_001))
    assert list(awaited.lost(awaited.now_ns)) == lost
    for id in lost:
        awaited.begin_retransmit(id)
    assert len(awaited._retransmissions) == 1_000
    if end == "forgotten":
        awaited.forget(lost)
    elif end == "late receipt":
        awaited.give(*lost)
    else:
        awaited.put(*lost, *(id_of(each) for each in range(2_000, 2_000 + MAX_AWAITED)))
        awaited.lost(awaited.now_ns)
        assert len(receiver.puts) == MAX_AWAITED
    assert awaited._retransmissions == {}


def test_what_a_receiver_had_not_confirmed_is_lost_when_it_is_back() -> None:
    awaited = Awaited()
    receiver = awaited.appear()
    awaited.put(id_of(1))
    awaited.disappear()
    awaited.now_ns += 2 * NS_PER_S
    assert list(awaited.receivers_of(TOPIC, None)) == [receiver]  # it may return
    awaited.put(id_of(2))
    awaited.now_ns += NS_PER_S
    assert awaited.appear(instance="2") is receiver
    assert awaited.lost(awaited.now_ns) == {}  # the receipts may be on their way
    awaited.now_ns += NS_PER_S + 1
    assert list(awaited.lost(awaited.now_ns)) == [id_of(1), id_of(2)]


def test_a_receiver_that_is_ready_lacks_at_once_what_was_put_while_it_was_away() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.put(id_of(1))
    awaited.disappear()
    awaited.now_ns += NS_PER_S // 1_000
    awaited.appear(instance="2")
    awaited.put(id_of(2))
    assert awaited.lost(awaited.now_ns) == {}
    awaited.on_receipt(receipt_key(GIVER._replace(instance="2")), b"")
    assert list(awaited.lost(awaited.now_ns)) == [id_of(1)]


def test_a_new_process_waits_for_the_receivers_of_the_last_one() -> None:
    earlier, awaited = Awaited(), Awaited()
    earlier.appear()
    assert earlier.are_tokens_unstored
    awaited.restore([*earlier.tokens(), "up-receipts/2/a key of another version"])
    [receiver] = awaited.receivers_of(TOPIC, None)
    awaited.put(id_of(1))
    awaited.now_ns += WINDOW_NS - NS_PER_S
    assert awaited.lost(awaited.now_ns) == {}
    assert awaited.appear(instance="2") is receiver
    awaited.on_receipt(receipt_key(GIVER._replace(instance="2")), b"")
    assert list(awaited.lost(awaited.now_ns)) == [id_of(1)]
    assert awaited.refused == 0


def test_a_restored_receiver_that_does_not_return_leaves_when_the_window_ends() -> None:
    awaited = Awaited()
    awaited.restore([TOKEN])
    awaited.put(id_of(1))
    awaited.now_ns += WINDOW_NS
    assert awaited.lost(awaited.now_ns) == {}
    assert (awaited.tokens(), awaited.missing, awaited.are_tokens_unstored) == ([TOKEN], 0, False)
    awaited.now_ns += NS_PER_S
    assert awaited.lost(awaited.now_ns) == {}
    assert (awaited.tokens(), awaited.missing, awaited.are_tokens_unstored) == ([], 1, True)


def test_the_stored_tokens_are_those_that_puts_wait_for() -> None:
    awaited = Awaited()
    awaited.appear(instance="1")
    awaited.appear(instance="2")
    awaited.disappear(instance="1")
    tokens = [token_key(GIVER._replace(instance=each), EVERY_PUBLICATION) for each in "12"]
    assert awaited.tokens() == tokens
    awaited.are_tokens_unstored = False
    awaited.now_ns += NS_PER_S + 1
    awaited.lost(awaited.now_ns)
    assert (awaited.tokens(), awaited.are_tokens_unstored) == (tokens[1:], True)


def test_a_receipt_counts_only_from_a_process_that_announced_it_and_only_for_its_own_puts() -> None:
    awaited = Awaited()
    awaited.appear()
    other = ReceiptGiverId("other", "link", "7")
    awaited.on_token(token_key(other, ListenerFilters(ANY, any_at(BETA))), is_present=True)
    awaited.put(id_of(1))
    for forger in other, GIVER._replace(instance="7"), GIVER._replace(endpoint="cable"):
        awaited.on_receipt(receipt_key(forger), id_of(1))
        assert awaited.is_awaited(id_of(1))
    assert (awaited.refused, awaited.received) == (0, 0)
    awaited.disappear()  # the last receipts of a stop come after the token
    awaited.on_receipt(receipt_key(GIVER._replace(instance="1")), id_of(1))
    assert not awaited.is_awaited(id_of(1))


def test_a_put_before_the_token_waits_unless_its_receipt_has_come() -> None:
    awaited = Awaited()
    awaited.give(id_of(1))
    receiver = awaited.appear()
    awaited.put(id_of(3))
    awaited.give(id_of(2))
    awaited.await_earlier({receiver: dict.fromkeys(map(id_of, (0, 1, 2)), awaited.now_ns - 1)})
    assert list(receiver.puts.before(NEVER_NS)) == [id_of(0), id_of(3)]
    assert awaited.refused == 0


def test_new_puts_do_not_wait_for_a_receiver_that_is_away_for_long() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.put(id_of(1), id_of(2))
    awaited.block([id_of(1)])
    awaited.disappear()
    awaited.now_ns += WINDOW_NS + NS_PER_S + 1
    assert awaited.lost(awaited.now_ns) == {}
    assert awaited.changed
    assert awaited.receivers_of(TOPIC, None) == {}
    assert (awaited.is_awaited(id_of(1)), awaited.missing) == (True, 1)  # its publisher puts it again


def test_the_window_runs_only_while_others_receive() -> None:
    awaited = Awaited()
    receiver = awaited.appear()
    awaited.put(id_of(1))
    awaited.disappear()
    awaited.block([id_of(1)])
    for _ in range(3):
        awaited.sent_to = frozenset
        awaited.now_ns += 3 * WINDOW_NS
        awaited.lost(awaited.now_ns)
        awaited.sent_to = lambda: {receiver}
        awaited.now_ns += WINDOW_NS // 3
        awaited.lost(awaited.now_ns)
    assert not receiver.has_left
    awaited.now_ns += NS_PER_S
    awaited.lost(awaited.now_ns)
    assert receiver.has_left


def test_the_window_runs_while_a_put_waits_that_no_publisher_would_make_again() -> None:
    awaited = Awaited()
    awaited.sent_to = frozenset
    awaited.appear()
    awaited.put(id_of(1))
    awaited.disappear()
    awaited.now_ns += WINDOW_NS + 1
    awaited.lost(awaited.now_ns)
    assert (awaited.is_awaited(id_of(1)), awaited.missing) == (False, 1)


def test_without_ticks_no_window_runs() -> None:
    """As without a link: then the publishers may be open until the next tick."""
    awaited = Awaited()
    awaited.MAX_STEP_NS = AwaitedReceipts.MAX_STEP_NS  # type: ignore[misc]
    awaited.appear()
    awaited.put(id_of(1))
    awaited.disappear()
    awaited.now_ns += 3 * WINDOW_NS
    awaited.lost(awaited.now_ns)
    assert (awaited.is_awaited(id_of(1)), awaited.missing) == (True, 0)


def test_a_new_receiver_replaces_one_that_is_away_and_that_no_put_waits_for() -> None:
    awaited = Awaited()
    awaited.sent_to = frozenset
    tokens = [
        token_key(GIVER._replace(endpoint=f"e{n}"), EVERY_PUBLICATION) for n in range(MAX_RECEIVERS + 2)
    ]
    for each in tokens[:MAX_RECEIVERS]:
        awaited.on_token(each, is_present=True)
    for each in tokens[1:3]:
        awaited.on_token(each, is_present=False)
        awaited.now_ns += 1
    awaited.on_token(tokens[MAX_RECEIVERS], is_present=True)
    assert set(awaited.tokens()) == {tokens[0], *tokens[2 : MAX_RECEIVERS + 1]}
    awaited.put(id_of(1))
    awaited.on_token(tokens[MAX_RECEIVERS + 1], is_present=True)
    assert (awaited.refused, len(awaited.tokens())) == (1, MAX_RECEIVERS)


def test_a_put_that_is_given_up_counts_for_each_receiver() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.on_token(token_key(GIVER._replace(endpoint="second"), EVERY_PUBLICATION), is_present=True)
    awaited.put(id_of(1), id_of(2))
    awaited.give(id_of(2))
    awaited.abandon([id_of(1), id_of(2)])
    assert (awaited.missing, awaited.count) == (3, 0)


def test_a_receiver_that_has_left_makes_the_publishers_forget_it() -> None:
    """Also with a window of less than a second: its tokens still count then."""
    awaited = Awaited()
    awaited._window_ns = NS_PER_S // 2
    awaited.appear()
    awaited.disappear()
    awaited.changed = False
    awaited.now_ns += NS_PER_S // 2 + 1
    awaited.lost(awaited.now_ns)
    assert awaited.changed
    assert awaited.receivers_of(TOPIC, None) == {}


def test_what_a_receiver_that_left_had_not_confirmed_still_waits_for_the_others() -> None:
    awaited = Awaited()
    awaited.appear()
    other = token_key(ReceiptGiverId("other.eu", "link", "2"), EVERY_PUBLICATION)
    awaited.on_token(other, is_present=True)
    awaited.disappear()
    awaited.now_ns += WINDOW_NS
    awaited.put(id_of(1), id_of(2))
    awaited.now_ns += 1
    assert awaited.lost(awaited.now_ns) == {}
    assert awaited.missing == 2  # of the receiver that left
    assert awaited.all_waiting().keys() == {id_of(1), id_of(2)}


def test_receivers_that_left_with_blocked_puts_make_room_for_new_ones() -> None:
    awaited = Awaited()
    names = [ReceiptGiverId(f"bench{number}", "link", "1") for number in range(MAX_RECEIVERS + 1)]
    for each in names[:-1]:
        awaited.on_token(token_key(each, EVERY_PUBLICATION), is_present=True)
    awaited.put(id_of(1))
    awaited.block([id_of(1)])
    awaited.on_token(token_key(names[-1], EVERY_PUBLICATION), is_present=True)
    assert (len(awaited.receivers_of(TOPIC, None)), awaited.refused) == (MAX_RECEIVERS, 1)
    for each in names[:-1]:
        awaited.on_token(token_key(each, EVERY_PUBLICATION), is_present=False)
    awaited.now_ns += WINDOW_NS + NS_PER_S + 1
    awaited.lost(awaited.now_ns)
    awaited.on_token(token_key(names[-1], EVERY_PUBLICATION), is_present=True)
    assert len(awaited.receivers_of(TOPIC, None)) == 1
    assert awaited.is_awaited(id_of(1))  # its publisher puts it again
    awaited.forget([id_of(1)])
    assert awaited.count == 0


def test_a_blocked_put_waits_although_many_idle_receivers_leave() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.put(id_of(1))
    awaited.block([id_of(1)])
    awaited.disappear()
    awaited.now_ns += WINDOW_NS + NS_PER_S + 1
    awaited.lost(awaited.now_ns)
    names = [ReceiptGiverId(f"bench{number}", "link", "1") for number in range(MAX_RECEIVERS)]
    for is_present in (True, False):
        for each in names:
            awaited.on_token(token_key(each, EVERY_PUBLICATION), is_present=is_present)
    awaited.now_ns += WINDOW_NS + NS_PER_S + 1
    awaited.lost(awaited.now_ns)
    assert awaited.is_awaited(id_of(1))


def test_the_receivers_that_left_are_bounded_and_their_puts_count_as_missing() -> None:
    awaited, ids = Awaited(), count()
    for number in range(3 * MAX_RECEIVERS):
        key = token_key(ReceiptGiverId(f"bench{number}", "link", "1"), EVERY_PUBLICATION)
        awaited.on_token(key, is_present=True)
        puts = [id_of(next(ids)) for _ in range(number + 1)]
        awaited.put(*puts)
        awaited.block(puts)
        awaited.on_token(key, is_present=False)
        awaited.now_ns += WINDOW_NS + NS_PER_S + 1
        awaited.lost(awaited.now_ns)
    dropped, remaining = range(2 * MAX_RECEIVERS), range(2 * MAX_RECEIVERS, 3 * MAX_RECEIVERS)
    assert awaited.missing == sum(number + 1 for number in dropped)
    assert awaited.count == sum(number + 1 for number in remaining)


def test_only_the_ids_of_waiting_puts_count_as_received() -> None:
    awaited = Awaited()
    awaited.appear()
    awaited.put(id_of(1))
    awaited.give(id_of(1), *(id_of(number) for number in range(100, 199)))
    awaited.give(id_of(1))
    assert awaited.received == 1


def test_an_ended_filter_counts_no_longer() -> None:
    awaited = Awaited()
    receiver = awaited.appear()
    key = token_key(GIVER._replace(instance="1"), ListenerFilters(ANY, any_at(BETA)))
    awaited.on_token(key, is_present=True)
    assert list(awaited.receivers_of(TOPIC, UUri(BETA, 1, 1, 0))) == [receiver]
    awaited.on_token(key, is_present=False)
    awaited.now_ns += NS_PER_S + 1
    awaited.lost(awaited.now_ns)
    assert awaited.receivers_of(TOPIC, UUri(BETA, 1, 1, 0)) == {}
    assert list(awaited.receivers_of(TOPIC, None)) == [receiver]


def test_a_receiver_recognizes_all_copies_of_what_a_sender_awaits() -> None:
    """The three limits of decision 31 are one."""
    assert MAX_AWAITED == RECENT_IDS == CAPACITY


def test_the_puts_of_a_receiver_are_bounded() -> None:
    puts = AwaitedPuts()
    for each in range(MAX_AWAITED + 10):
        puts.append((each, id_of(each)))
    assert list(puts.trim(MAX_AWAITED)) == [id_of(each) for each in range(10)]
    assert (len(puts), puts.oldest_ns) == (MAX_AWAITED, 10)
    assert not puts.trim(MAX_AWAITED)


def test_unreadable_tokens_and_receipts_are_counted() -> None:
    awaited = Awaited()
    awaited.on_token("up-receipts/1/a", is_present=True)
    awaited.on_receipt(receipt_key(GIVER), b"x")
    awaited.on_receipt("up-receipts/1/a", b"")
    assert awaited.refused == 3


def test_a_receiver_with_too_many_listeners_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    awaited = Awaited()
    topics = (TOPIC.with_resource(0x8000 + number) for number in range(1, 65))
    keys = [token_key(GIVER, ListenerFilters(topic, None)) for topic in topics]
    for key in 2 * keys:
        awaited.on_token(key, is_present=True)
    assert awaited.refused == 0
    awaited.on_token(TOKEN, is_present=True)
    assert awaited.refused == 1
    assert caplog.records[-1].__dict__["why"] == "more than 64 listeners of receiver 'cloud.eu'"
    awaited.on_token(keys[-1], is_present=False)
    awaited.on_token(TOKEN, is_present=True)
    assert awaited.refused == 1


# --- two endpoints ----------------------------------------------------------------------------------------------------


def numbered(first: int, end: int) -> list[UMessage]:
    return [publish(new_id(), TOPIC, b"%d" % each) for each in range(first, end)]


class Link:
    """An endpoint that sends, and endpoints that receive. All give and expect receipts, unless the test says not."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._instances = count(1)
        self.here = free_locator()
        self.sender = self.open(ALPHA, listen=(self.here,))
        self.received: list[int] = []

    def open(self, authority: str, *, receipts: bool = True, **keys: object) -> ZenohTransport:
        config = ZenohEndpoint(transport="zenoh", authorities=(authority,), receipts=receipts, **keys)  # type: ignore[arg-type]
        context = EndpointContext("link", authority, CLOCK, instance=f"{next(self._instances):016x}")
        transport = ZenohTransport(config, context)
        self._stack.callback(transport.close)
        transport.open()
        return transport

    def receiver(self, *, receipts: bool = True) -> ZenohTransport:
        receiver = self.open(BETA, receipts=receipts, connect=(self.here,))
        first: list[UMessage] = []

        def on_message(message: UMessage) -> None:
            number = int(message.payload)
            if number < 0:
                first.append(message)
            else:
                self.received.append(number)

        receiver.register_listener(ANY, None, on_message)
        wait_until(lambda: self.sender._link_monitor.up)
        wait_until(lambda: self.send(-1) and first)
        return receiver

    def send(self, *numbers: int) -> list[UMessage]:
        messages = [publish(new_id(), TOPIC, b"%d" % each) for each in numbers]
        for each in messages:
            self.sender.send(each)
        return messages

    def receiver_count(self) -> int:
        """The receivers whose receipts the next put waits for."""
        wait_until(lambda: self.sender._link_monitor.up)
        self.sender.send(publish(new_id(), TOPIC, b"0"))
        assert self.sender._sender is not None
        [publisher] = self.sender._sender._publishers
        return len(publisher.receivers)

    def count(self, name: str, transport: ZenohTransport | None = None) -> int:
        return (transport or self.sender).statistics()[name]


@pytest.fixture
def link() -> Iterator[Link]:
    with ExitStack() as stack:
        yield Link(stack)


def test_every_put_gets_a_receipt_and_a_copy_is_dropped(link: Link) -> None:
    receiver = link.receiver()
    wait_until(lambda: link.sender.statistics()["receipts_waiting"] == 0)
    given = link.count("receipts_given", receiver)
    wait_until(
        lambda: link.sender.awaits_receipt(link.send(0)[0].id)
    )  # the token of the receiver has arrived
    messages = link.send(*range(1, 100))
    wait_until(lambda: link.count("receipts_given", receiver) >= given + 99)
    wait_until(lambda: link.count("receipts_waiting") == 0)
    assert not any(map(link.sender.awaits_receipt, (each.id for each in messages)))
    assert link.received[-99:] == list(range(1, 100))
    link.sender.send(messages[0])
    wait_until(lambda: link.count("receipt_duplicates", receiver) == 1)
    wait_until(lambda: link.count("receipts_waiting") == 0)
    assert link.received.count(1) == 1


def test_an_unregistered_listener_is_released(link: Link) -> None:
    listener = Failing()
    released = weakref.ref(listener)
    link.sender.register_listener(ANY, None, listener)
    link.sender.register_listener(ANY, None, listener)
    assert len(link.sender._registrations) == 1
    with pytest.raises(UStatusError):
        link.sender.unregister_listener(ANY, None, Failing())
    link.sender.unregister_listener(ANY, None, listener)
    del listener
    wait_until(lambda: gc.collect() >= 0 and released() is None)


def test_without_receipts_on_both_sides_nothing_waits(link: Link) -> None:
    receiver = link.receiver(receipts=False)
    messages = link.send(*range(10))
    wait_until(lambda: len(link.received) == 10)
    assert not any(map(link.sender.awaits_receipt, (each.id for each in messages)))
    assert "receipts_waiting" not in receiver.statistics()


def test_a_plain_entity_gets_the_same_samples_and_no_receipts(link: Link) -> None:
    samples: list[zenoh.Sample] = []
    with plain_session(connect=[link.here]) as session:
        session.declare_subscriber(EVERY_KEY, samples.append)
        link.receiver()
        wait_until(lambda: link.receiver_count() == 1 and len(samples) > 1)
        wait_until(lambda: link.count("receipts_received") > 0)
    [plain] = {(str(each.key_expr), each.source_info, each.encoding) for each in samples}
    assert plain == (message_key(TOPIC, None, ALPHA), None, zenoh.Encoding.ZENOH_BYTES)


def test_a_receiver_that_was_lost_with_unread_messages_gets_them_when_it_is_back(link: Link) -> None:
    """A plain session stands for a receiver: it gives no receipt for a message that it loses."""
    link_id = ReceiptGiverId(BETA, "link", "99")
    with plain_session(connect=[link.here]) as session:
        session.declare_subscriber(EVERY_KEY, lambda _: None)
        token = session.liveliness().declare_token(token_key(link_id, EVERY_PUBLICATION))
        wait_until(lambda: link.receiver_count() == 1)
        link.send(5)
        token.undeclare()  # type: ignore[no-untyped-call]
    receiver = link.open(BETA, connect=(link.here,))
    receiver.register_listener(ANY, None, lambda message: link.received.append(int(message.payload)))
    wait_until(lambda: 5 in link.received and link.count("receipts_waiting") == 0)
    assert link.received == sorted(link.received)


def test_a_receiver_that_was_away_gets_its_messages_although_others_had_a_subscriber_meanwhile(
    link: Link,
) -> None:
    """The publisher keeps its subscriber, and the node of that one shows that it has read everything."""
    link_id = ReceiptGiverId(BETA, "link", "99")
    with plain_session(connect=[link.here]) as monitor:
        monitor.declare_subscriber(EVERY_KEY, lambda _: None)
        with plain_session(connect=[link.here]) as session:
            token = session.liveliness().declare_token(token_key(link_id, EVERY_PUBLICATION))
            wait_until(lambda: link.receiver_count() == 1)
            link.send(*range(1, 201))
            assert link.count("receipts_waiting") >= 200
            token.undeclare()  # type: ignore[no-untyped-call]
        sent_ns = CLOCK.monotonic_ns()
        wait_until(lambda: link.sender._link_monitor.confirmed_ns > sent_ns)
        receiver = link.open(BETA, connect=(link.here,))
        receiver.register_listener(ANY, None, lambda message: link.received.append(int(message.payload)))
        wait_until(lambda: link.count("receipts_waiting") == 0)
    assert sorted(each for each in link.received if each) == list(range(1, 201))
    assert link.count("receipts_missing") == 0


def test_at_a_stop_only_what_has_no_receipt_is_unconfirmed(link: Link) -> None:
    link.receiver()
    known_ns = CLOCK.monotonic_ns() + NS_PER_S // 2  # a receiver that is announced later was not there
    wait_until(lambda: CLOCK.monotonic_ns() > known_ns and link.count("receipts_waiting") == 0)
    link_id = ReceiptGiverId("other", "link", "99")
    with plain_session(connect=[link.here]) as session:
        wait_until(lambda: link.receiver_count() == 1)
        link.send(1)
        token = session.liveliness().declare_token(token_key(link_id, EVERY_PUBLICATION))
        wait_until(lambda: link.receiver_count() == 2)
        link.send(2)
        unconfirmed = link.sender.finish()
        token.undeclare()  # type: ignore[no-untyped-call]
    assert 2 in {int(each.payload) for each in unconfirmed.messages} <= {0, 2}
