# SPDX-License-Identifier: Apache-2.0
"""The index in memory, held against plain dicts."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_usubscription.directory import MAX_RECENT_CHANGES, InMemoryDirectory
from ustreamer_usubscription.model.subscription import (
    SubscriptionRecord,
    SubscriptionStatusChange,
    TopicEntityPair,
)
from ustreamer_usubscription.store.compact_index import CompactIndex
from ustreamer_usubscription.store.records import put_subscription

from ustreamer.core.routing.subscriptions import Change, RecentSubscriptionChange
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.uuri import UUri

T1, T2 = UUri("a", 1, 1, 0x8001), UUri("a", 1, 1, 0x8002)
S1, S2, S10 = UUri("a", 0x1, 1, 0), UUri("a", 0x2, 1, 0), UUri("a", 0x10, 1, 0)


def directory(*entries: SubscriptionRecord) -> InMemoryDirectory:
    known = InMemoryDirectory()
    known.apply({entry.pair: entry for entry in entries})
    return known


def packed(entries: Iterable[SubscriptionRecord]) -> CompactIndex:
    """Subscriptions as loaded from the store."""
    changes = sorted(map(put_subscription, entries), key=lambda change: change.key)
    return CompactIndex([change.key for change in changes], [change.value or b"" for change in changes])


def subscribers(known: InMemoryDirectory, topic: UUri = T1) -> list[UUri]:
    return [entry.subscriber for entry in known.subscribers(topic)]


def test_subscribers_are_in_the_order_of_their_texts_for_any_order_of_arrival() -> None:
    """[utest->req~usubscription-fetch-subscribers-stable-sorting~1]"""
    known = directory(*(SubscriptionRecord(T1, s) for s in (S2, S10, S1)))
    assert subscribers(known) == [S1, S10, S2]  # as text, 10 sorts before 2
    known.apply({(T1, S1): SubscriptionRecord(T1, S1, 5)})
    assert subscribers(known) == [S1, S10, S2]


def test_a_topic_without_a_subscription_has_no_subscribers() -> None:
    known = directory(SubscriptionRecord(T1, S1))
    assert list(known.subscribers(T2)) == []
    known.apply({(T1, S1): None})
    assert list(known.subscribers(T1)) == []
    assert known.count == 0


CHANGES_OF_ONE = [
    (SubscriptionRecord(T1, S1, 7), True, "another period"),
    (None, True, "the end"),
    (SubscriptionRecord(T1, S1, 0, 99), False, "another expire"),
    (SubscriptionRecord(T1, S1, 0, None, b"x"), False, "other details"),
    (SubscriptionRecord(T1, S1), False, "the same once more"),
]


@pytest.mark.parametrize(
    ("change", "grows", "case"), CHANGES_OF_ONE, ids=[case for *_, case in CHANGES_OF_ONE]
)
def test_the_version_grows_exactly_when_routing_may_differ(
    change: SubscriptionRecord | None, grows: bool, case: str
) -> None:
    known = directory(SubscriptionRecord(T1, S1), SubscriptionRecord(T2, S1))
    before = known.version
    known.apply({(T1, S1): change})
    assert (known.version > before) is grows, case
    assert known.find((T1, S1)) == change


def test_every_topic_of_a_change_is_changed_also_after_the_first_that_matters() -> None:
    known = directory()
    known.apply(
        {
            (T1, S1): SubscriptionRecord(T1, S1),
            (T2, S1): SubscriptionRecord(T2, S1),
            (T2, S2): SubscriptionRecord(T2, S2),
        }
    )
    assert (subscribers(known, T1), subscribers(known, T2)) == ([S1], [S1, S2])


def test_a_snapshot_of_a_reader_does_not_change() -> None:
    known = directory(SubscriptionRecord(T1, S1), SubscriptionRecord(T1, S2))
    held = known.subscribers(T1)
    known.apply({(T1, S1): None, (T1, S10): SubscriptionRecord(T1, S10)})
    assert [entry.subscriber for entry in held] == [S1, S2]
    assert subscribers(known) == [S10, S2]


def test_ending_an_unknown_subscription_changes_nothing() -> None:
    known = directory(SubscriptionRecord(T1, S1))
    version = known.version
    known.apply({(T1, S2): None, (T2, S1): None})
    assert (known.version, list(known)) == (version, [SubscriptionRecord(T1, S1)])


def record_changes(known: InMemoryDirectory) -> list[tuple[Change, UUri, UUri, int]]:
    notified: list[tuple[Change, UUri, UUri, int]] = []
    known.watch(lambda each, change: notified.append((change, each.topic, each.subscriber, each.period_ns)))
    return notified


def test_a_watcher_is_notified_of_all_loaded_subscriptions() -> None:
    known = InMemoryDirectory()
    notified = record_changes(known)
    known.load_stored(
        packed([SubscriptionRecord(T2, S1, 5), SubscriptionRecord(T1, S2), SubscriptionRecord(T1, S1)])
    )
    assert notified == [(Change.PRESENT, T1, S1, 0), (Change.PRESENT, T1, S2, 0), (Change.PRESENT, T2, S1, 5)]


def test_a_watcher_may_bound_the_topics_of_loaded_subscriptions() -> None:
    """With a million subscriptions, the start need not decode all of them."""
    known = InMemoryDirectory()
    few, all_topics, none = [list[UUri]() for _ in range(3)]
    known.watch(lambda each, _: few.append(each.topic), 1)
    known.watch(lambda each, _: all_topics.append(each.topic))
    known.watch(lambda each, _: none.append(each.topic), 0)
    known.load_stored(packed([SubscriptionRecord(T2, S1), SubscriptionRecord(T1, S2)]))
    assert (few, all_topics, none) == ([T1], [T1, T2], [])


def test_a_change_is_in_effect_when_a_watcher_is_notified() -> None:
    known = InMemoryDirectory()
    seen: list[tuple[int, list[UUri], list[UUri]]] = []
    known.watch(lambda _, __: seen.append((known.version, subscribers(known, T1), subscribers(known, T2))))
    known.apply({(T1, S1): SubscriptionRecord(T1, S1), (T2, S2): SubscriptionRecord(T2, S2)})
    known.apply({(T1, S1): None})
    assert seen == [(1, [S1], [S2]), (1, [S1], [S2]), (2, [], [S2])]


def test_a_watcher_is_notified_of_every_routing_change_and_of_no_other() -> None:
    known = directory(SubscriptionRecord(T1, S1))
    notified = record_changes(known)
    for change, _, _ in CHANGES_OF_ONE:
        known.apply({(T1, S1): change})
    known.apply({(T1, S2): SubscriptionRecord(T1, S2, 3), (T2, S1): None})
    assert notified == [
        (Change.CHANGED, T1, S1, 7),
        (Change.UNSUBSCRIBED, T1, S1, 7),
        (Change.SUBSCRIBED, T1, S1, 0),
        (Change.SUBSCRIBED, T1, S2, 3),
    ]


# --- against a model --------------------------------------------------------------------------------------------------

ADDRESSES = st.integers(0, 0x20)
ENTRIES = st.builds(
    SubscriptionRecord,
    st.builds(UUri, st.sampled_from(["a", "b"]), st.just(1), st.just(1), st.integers(0x8000, 0x8004)),
    st.builds(UUri, st.sampled_from(["a", "b"]), ADDRESSES, st.just(1), st.just(0)),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([None, 10, 20, 30]),
)
BATCHES = st.lists(st.lists(st.tuples(ENTRIES, st.booleans()), max_size=8), max_size=8)


def in_order(model: dict[TopicEntityPair, SubscriptionRecord]) -> list[SubscriptionRecord]:
    return sorted(model.values(), key=lambda entry: (str(entry.topic), str(entry.subscriber)))


@given(BATCHES)
def test_it_matches_a_plain_dict(batches: list[list[tuple[SubscriptionRecord, bool]]]) -> None:
    known, model = InMemoryDirectory(), dict[TopicEntityPair, SubscriptionRecord]()
    for batch in batches:
        changes = {entry.pair: entry if stands else None for entry, stands in batch}
        known.apply(changes)
        model = {pair: entry for pair, entry in (model | changes).items() if entry is not None}
        assert list(known) == in_order(model)
        assert known.count == len(model)
        for topic in {topic for topic, _ in model}:
            assert list(known.subscribers(topic)) == [e for e in in_order(model) if e.topic == topic]
        for subscriber in {subscriber for _, subscriber in model}:
            assert known.subscribed_by(subscriber) == [
                e for e in in_order(model) if e.subscriber == subscriber
            ]
        ends = [entry.expire_ms for entry in model.values() if entry.expire_ms is not None]
        assert known.next_expiry_ms() == min(ends, default=None)


@given(BATCHES)
def test_loading_has_the_result_of_changing(batches: list[list[tuple[SubscriptionRecord, bool]]]) -> None:
    known = InMemoryDirectory()
    for batch in batches:
        known.apply({entry.pair: entry if stands else None for entry, stands in batch})
    loaded = InMemoryDirectory()
    loaded.load_stored(packed(known))
    assert list(loaded) == list(known)
    assert (loaded.count, loaded.next_expiry_ms()) == (known.count, known.next_expiry_ms())
    assert {e.subscriber: loaded.subscribed_by(e.subscriber) for e in known} == {
        e.subscriber: known.subscribed_by(e.subscriber) for e in known
    }


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_a_subscription_ends_after_its_expire_and_not_at_it() -> None:
    """[utest->req~usubscription-subscribe-expiration~1]"""
    known = directory(SubscriptionRecord(T1, S1, 0, 10), SubscriptionRecord(T1, S2))
    assert known.pop_expired(10) == []
    assert known.pop_expired(11) == [SubscriptionRecord(T1, S1, 0, 10)]
    assert known.pop_expired(11) == []


@pytest.mark.parametrize(("now", "until"), [(10, 20), (20, 10), (10, None)])
def test_only_the_newest_deadline_of_a_subscription_counts(now: int, until: int | None) -> None:
    known = directory(SubscriptionRecord(T1, S1, 0, now))
    known.apply({(T1, S1): SubscriptionRecord(T1, S1, 0, until)})
    assert known.next_expiry_ms() == until
    assert [entry.expire_ms for entry in known.pop_expired(100)] == ([] if until is None else [until])


def test_a_subscription_that_was_extended_does_not_end_at_its_first_deadline() -> None:
    """[utest->req~usubscription-subscribe-expiration-extension~1]"""
    known = directory(SubscriptionRecord(T1, S1, 0, 10))
    known.apply({(T1, S1): SubscriptionRecord(T1, S1, 0, 20)})
    assert known.pop_expired(11) == []
    assert known.pop_expired(21) == [SubscriptionRecord(T1, S1, 0, 20)]


def test_a_deadline_that_changed_and_changed_back_ends_once() -> None:
    known = directory(SubscriptionRecord(T1, S1, 0, 10))
    for expire_ms in (20, 10):
        known.apply({(T1, S1): SubscriptionRecord(T1, S1, 0, expire_ms)})
    assert len(known.pop_expired(11)) == 1


def test_a_renewal_that_rebuilds_the_deadlines_is_not_lost() -> None:
    known = InMemoryDirectory()
    for expire_ms in range(1, 5000):
        known.apply({(T1, S1): SubscriptionRecord(T1, S1, 0, expire_ms)})
        assert known.next_expiry_ms() == expire_ms


# --- decoded on demand --------------------------------------------------------------------------------------

FEW = [SubscriptionRecord(topic, subscriber, 5) for topic in (T1, T2) for subscriber in (S1, S10)]


def as_loaded() -> InMemoryDirectory:
    known = InMemoryDirectory()
    known.load_stored(packed(FEW))
    return known


def test_loaded_subscriptions_are_decoded_topic_by_topic_and_once() -> None:
    known = as_loaded()
    assert known.count == 4
    assert known._by_topic == {}
    row = known.subscribers(T1)
    assert row == tuple(FEW[:2])
    assert known.subscribers(T1) is row
    assert [*known._by_topic] == [T1]


def test_an_absent_topic_is_not_cached() -> None:
    known = as_loaded()
    assert known.subscribers(UUri("a", 1, 1, 0x8003)) == ()
    assert known._by_topic == {}


def test_one_topic_that_begins_like_another_is_not_taken_for_it() -> None:
    known = InMemoryDirectory()
    topics = [
        UUri("a", 1, 1, 0x8000),
        UUri("a", 1, 1, 0x800),
        UUri("a.b", 1, 1, 0x8000),
        UUri("a", 1, 0x18, 0),
    ]
    known.load_stored(packed(SubscriptionRecord(topic, S1) for topic in topics))
    assert [subscribers(known, topic) for topic in topics] == [[S1]] * 4


@pytest.mark.parametrize("look_first", [True, False])
def test_a_loaded_topic_whose_last_subscriber_left_does_not_reappear(look_first: bool) -> None:
    """[utest->req~usubscription-unsubscribe~1]"""
    known = as_loaded()
    if look_first:
        known.subscribers(T1)
    known.apply({(T1, S1): None, (T1, S10): None})
    assert known.subscribers(T1) == ()
    assert known.count == 2
    assert list(known) == FEW[2:]
    assert known.subscribers(T1) == ()
    assert [*known._by_topic] == [T2]


@given(BATCHES)
def test_loaded_and_then_changed_is_as_if_never_stored(
    batches: list[list[tuple[SubscriptionRecord, bool]]],
) -> None:
    never, stored = directory(*FEW), as_loaded()
    for batch in batches:
        changes = {entry.pair: entry if stays else None for entry, stays in batch}
        never.apply(changes)
        stored.apply(changes)
        assert stored.count == never.count
        assert {pair: stored.find(pair) for pair in changes} == {pair: never.find(pair) for pair in changes}
    assert list(stored) == list(never)
    assert stored.subscribed_by(S1) == never.subscribed_by(S1)
    assert stored.next_expiry_ms() == never.next_expiry_ms()


def test_readers_see_no_row_that_the_writer_has_replaced() -> None:
    """Readers decode while the writer ends subscriptions: an ended subscription must not be cached again."""
    many = [SubscriptionRecord(UUri("a", 1, 1, 0x8000 + number), S1) for number in range(2000)]
    known = InMemoryDirectory()
    known.load_stored(packed(many))
    going = Event()

    def read() -> None:
        while not going.is_set():
            for entry in many:
                known.subscribers(entry.topic)

    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(read) for _ in range(2)]
        for entry in many:
            known.apply({entry.pair: None})
            assert known.subscribers(entry.topic) == ()
        going.set()
    assert [done.result() for done in reading] == [None, None]
    assert [entry for entry in many if known.subscribers(entry.topic)] == []
    assert list(known) == []


def test_reports_list_stored_and_changed_subscriptions_and_keep_the_loaded_ones_packed() -> None:
    stored, changed = SubscriptionRecord(T1, S1), SubscriptionRecord(T2, S2)
    known = InMemoryDirectory()
    known.load_stored(packed([stored, SubscriptionRecord(T2, S1)]))
    known.apply({changed.pair: changed, (T2, S1): None})
    assert sorted(each.pair for each in known.list_subscriptions()) == [(T1, S1), (T2, S2)]


def test_the_latest_changes_are_remembered_with_time_and_reason() -> None:
    known = directory()
    entry = SubscriptionRecord(T1, S1)
    changes = [SubscriptionStatusChange(entry, Status.UNSUBSCRIBED, (), f"reason {n}") for n in range(5)]
    known.add_changes(changes * MAX_RECENT_CHANGES, 7)
    found = known.recent_changes()
    assert len(found) == MAX_RECENT_CHANGES
    assert found[-1] == RecentSubscriptionChange(T1, S1, "UNSUBSCRIBED", 7, "reason 4")
