# SPDX-License-Identifier: Apache-2.0
"""The packed index of loaded subscriptions, and the contents of chunks."""

from collections.abc import Iterator

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.compact_index import BLOCK_RECORDS, CompactIndex
from ustreamer_usubscription.store.records import (
    layout_value,
    put_observer,
    put_subscription,
    put_topic,
)
from ustreamer_usubscription.store.store import RecordChange

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import LAYOUT_KEY
from ustreamer.core.storage.store_reader import RecordChunk
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

AUTHORITIES = st.sampled_from(["a", "a-b", "a0", "b", "FFFF"])
ENTITIES = st.sampled_from([1, 0xFFFF, 0x1_0001, 0xFFFE_FFFF, 0xFFFF_0001, 0xFFFF_FFFE])
TOPICS = st.builds(UUri, AUTHORITIES, ENTITIES, st.just(1), st.sampled_from([0x8000, 0x8001]))
SUBSCRIBERS = st.builds(UUri, AUTHORITIES, st.integers(0, 40), st.just(1), st.just(0))
ENTRIES = st.lists(st.builds(SubscriptionRecord, TOPICS, SUBSCRIBERS), unique_by=lambda each: each.pair)


def in_blocks(entries: list[SubscriptionRecord], size: int) -> tuple[list[SubscriptionRecord], CompactIndex]:
    """The same in the order of the store, and packed."""
    ordered = sorted(entries, key=lambda each: put_subscription(each).key)
    keys, values = (
        [put_subscription(each).key for each in ordered],
        [put_subscription(each).value or b"" for each in ordered],
    )
    packed = CompactIndex()
    for at in range(0, len(keys), size):
        packed.add_block(keys[at : at + size], values[at : at + size])
    return ordered, packed


@given(ENTRIES, st.integers(1, 5), TOPICS)
def test_block_boundaries_do_not_change_the_result(
    entries: list[SubscriptionRecord], size: int, other: UUri
) -> None:
    ordered, packed = in_blocks(entries, size)
    topics = {each.topic for each in ordered}
    assert list(packed) == ordered
    assert len(packed) == len(ordered)
    assert list(packed.topics()) == sorted(topics, key=str)
    assert packed.wildcard_topic_count() == sum(topic.ue_instance == ANY_INSTANCE for topic in topics)
    for topic in (*topics, other, *topics):  # there and back again
        row = tuple(each for each in ordered if each.topic == topic)
        assert packed.subscriptions_of(topic) == row
        assert (topic in packed) is bool(row)


@pytest.mark.parametrize("count", [0, 1, BLOCK_RECORDS, BLOCK_RECORDS + 1])
def test_many_subscriptions_are_packed_at_once(count: int) -> None:
    changes = sorted(
        put_subscription(SubscriptionRecord(UUri("a", n, 1, 0x8000), UUri("a", 1, 1, 0)))
        for n in range(count)
    )
    packed = CompactIndex(
        [key for key, _ in changes], [value or b"" for _, value in changes], may_expire=False
    )
    assert len(list(packed)) == len(packed) == count
    assert (packed.may_expire, list(packed.expiring())) == (False, [])


# --- requests of a reader -----------------------------------------------------------------------------------

TOPIC, APP = UUri("a", 1, 1, 0x8000), UUri("a", 2, 1, 0)
EVERY_KIND = [
    RecordChange(LAYOUT_KEY, layout_value()),
    put_observer(Observer(TOPIC, APP)),
    *(put_subscription(SubscriptionRecord(TOPIC, UUri("a", n, 1, 0), expire_ms=n or None)) for n in range(3)),
    put_topic(TOPIC, TopicState.ACTIVE),
]


def sent(changes: list[RecordChange], size: int) -> Iterator[RecordChunk]:
    """In batches of that many records, as a reader would send them."""
    for at in range(0, len(changes), size):
        some = changes[at : at + size]
        keys, values = [change.key for change in some], [change.value or b"" for change in some]
        yield msgspec.msgpack.encode((keys, values)), keys, values


@pytest.mark.parametrize("size", range(1, len(EVERY_KIND) + 1))
def test_chunk_boundaries_do_not_mix_kinds_of_records(size: int) -> None:
    found = store_contents.contents_from_chunks(sent(EVERY_KIND, size))
    assert list(found.all_records()) == [tuple(change) for change in EVERY_KIND[1:]]
    assert [entry.subscriber.ue_id for entry in found.subscriptions] == [0, 1, 2]
    assert [entry.expire_ms for entry in found.subscriptions.expiring()] == [1, 2]
    assert [key for key, _ in found.records_with_prefix(b"t/")] == [EVERY_KIND[-1].key]


@pytest.mark.parametrize("at", range(1, len(EVERY_KIND)))
@pytest.mark.parametrize("size", [1, 3, len(EVERY_KIND)])
def test_one_damaged_record_is_found(at: int, size: int) -> None:
    changes = list(EVERY_KIND)
    key, value = changes[at]
    changes[at] = RecordChange(key, (value or b"")[:-1] + b"?")
    with pytest.raises(StoreDamaged, match="checksum"):
        store_contents.contents_from_chunks(sent(changes, size))
