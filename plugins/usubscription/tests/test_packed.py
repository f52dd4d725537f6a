# SPDX-License-Identifier: Apache-2.0
"""Subscriptions that were loaded and not yet looked at, in blocks."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, Tracked
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.compact_index import BLOCK, Packed
from ustreamer_usubscription.store.records import (
    LAYOUT_KEY,
    StoreDamaged,
    layout_value,
    put,
    put_observer,
    put_topic,
)
from ustreamer_usubscription.store.store import Change

from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

AUTHORITIES = st.sampled_from(["a", "a-b", "a0", "b", "FFFF"])
ENTITIES = st.sampled_from([1, 0xFFFF, 0x1_0001, 0xFFFE_FFFF, 0xFFFF_0001, 0xFFFF_FFFE])
TOPICS = st.builds(UUri, AUTHORITIES, ENTITIES, st.just(1), st.sampled_from([0x8000, 0x8001]))
SUBSCRIBERS = st.builds(UUri, AUTHORITIES, st.integers(0, 40), st.just(1), st.just(0))
ENTRIES = st.lists(st.builds(Tracked, TOPICS, SUBSCRIBERS), unique_by=lambda each: each.pair)


def in_blocks(entries: list[Tracked], size: int) -> tuple[list[Tracked], Packed]:
    """The same in the order of the store, and packed."""
    ordered = sorted(entries, key=lambda each: put(each).key)
    keys, values = [put(each).key for each in ordered], [put(each).value or b"" for each in ordered]
    packed = Packed()
    for at in range(0, len(keys), size):
        packed.add(keys[at : at + size], values[at : at + size])
    return ordered, packed


@given(ENTRIES, st.integers(1, 5), TOPICS)
def test_wherever_the_blocks_end_it_is_the_same(entries: list[Tracked], size: int, other: UUri) -> None:
    ordered, packed = in_blocks(entries, size)
    topics = {each.topic for each in ordered}
    assert list(packed) == ordered
    assert len(packed) == len(ordered)
    assert list(packed.topics()) == sorted(topics, key=str)
    assert packed.wild_topics() == sum(topic.ue_instance == ANY_INSTANCE for topic in topics)
    for topic in (*topics, other, *topics):  # there and back again
        row = tuple(each for each in ordered if each.topic == topic)
        assert packed.row(topic) == row
        assert (topic in packed) is bool(row)


@pytest.mark.parametrize("count", [0, 1, BLOCK, BLOCK + 1])
def test_many_are_packed_at_once(count: int) -> None:
    changes = sorted(put(Tracked(UUri("a", n, 1, 0x8000), UUri("a", 1, 1, 0))) for n in range(count))
    packed = Packed([key for key, _ in changes], [value or b"" for _, value in changes], may_expire=False)
    assert len(list(packed)) == len(packed) == count
    assert (packed.may_expire, list(packed.expiring())) == (False, [])


# --- what a reader sends ----------------------------------------------------------------------------------------------

TOPIC, APP = UUri("a", 1, 1, 0x8000), UUri("a", 2, 1, 0)
EVERY_KIND = [
    Change(LAYOUT_KEY, layout_value()),
    put_observer(Observer(TOPIC, APP)),
    *(put(Tracked(TOPIC, UUri("a", n, 1, 0), expire_ms=n or None)) for n in range(3)),
    put_topic(TOPIC, TopicState.ACTIVE),
]


def sent(changes: list[Change], size: int) -> Iterator[store_contents.Chunk]:
    """As a reader would send it, so many records at a time."""
    for at in range(0, len(changes), size):
        some = changes[at : at + size]
        keys, values = [change.key for change in some], [change.value or b"" for change in some]
        yield msgspec.msgpack.encode((keys, values)), keys, values


@pytest.mark.parametrize("size", range(1, len(EVERY_KIND) + 1))
def test_records_of_every_kind_are_told_apart_wherever_chunks_end(tmp_path: Path, size: int) -> None:
    found = store_contents.gathered(tmp_path, sent(EVERY_KIND, size))
    assert list(found.records()) == [tuple(change) for change in EVERY_KIND[1:]]
    assert [entry.subscriber.ue_id for entry in found.subscriptions] == [0, 1, 2]
    assert [entry.expire_ms for entry in found.subscriptions.expiring()] == [1, 2]
    assert [key for key, _ in found.of(b"t/")] == [EVERY_KIND[-1].key]


@pytest.mark.parametrize("at", range(1, len(EVERY_KIND)))
@pytest.mark.parametrize("size", [1, 3, len(EVERY_KIND)])
def test_one_wrong_record_among_them_is_found(tmp_path: Path, at: int, size: int) -> None:
    changes = list(EVERY_KIND)
    key, value = changes[at]
    changes[at] = Change(key, (value or b"")[:-1] + b"?")
    with pytest.raises(StoreDamaged, match="checksum"):
        store_contents.gathered(tmp_path, sent(changes, size))
