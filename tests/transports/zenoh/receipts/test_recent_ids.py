# SPDX-License-Identifier: Apache-2.0
"""The ids of received messages: each copy is detected, in any order and any batch."""

from collections.abc import Sequence
from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ustreamer.testing.messages import TOPIC
from ustreamer.transports.zenoh.receipts import recent_ids
from ustreamer.transports.zenoh.receipts.receipt_keys import receipt_id, receipt_ids
from ustreamer.transports.zenoh.receipts.recent_ids import RecentIds
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

_VERSION_7: Final = 0x7000
_VARIANT: Final = 0b10 << 62
_MANY: Final = 100_000


def message(number: int, lsb: int = 0, topic: UUri = TOPIC) -> UMessage:
    return publish(UUID(number << 16 | _VERSION_7, _VARIANT | topic.ue_id << 1 | lsb), topic, b"")


def topic_of(number: int) -> UUri:
    return UUri("a", number, 1, 0x8000)


def are_new(recent: RecentIds, messages: Sequence[UMessage], *, joined: bool = False) -> list[bool]:
    """With `joined` as a batch, if they have one source."""
    given_messages = (MessageBatch.from_messages(messages) if joined else None) or messages
    new = recent.are_new(given_messages, receipt_ids(messages))
    return [True] * len(messages) if new is None else list(new)


MESSAGES: Final = st.builds(
    message, st.integers(1, 12), st.integers(0, 1), st.sampled_from([TOPIC, topic_of(1)])
)
BATCHES: Final = st.lists(
    st.tuples(
        st.lists(MESSAGES, min_size=1, max_size=6).flatmap(
            lambda each: st.sampled_from([each, sorted(each, key=lambda one: one.id)])
        ),
        st.booleans(),
    ),
    max_size=12,
)


@given(BATCHES, st.lists(MESSAGES, max_size=3))
def test_each_copy_is_detected_in_any_order(
    batches: list[tuple[list[UMessage], bool]], restored: list[UMessage]
) -> None:
    recent = RecentIds(_MANY, [receipt_id(each.id) for each in restored])
    seen = {each.id for each in restored}
    for messages, joined in batches:
        expected = []
        for each in messages:
            expected.append(each.id not in seen)
            seen.add(each.id)
        assert are_new(recent, messages, joined=joined) == expected


@given(st.lists(st.lists(st.builds(message, st.integers(1, 30), st.integers(0, 1)), min_size=1), max_size=6))
def test_a_batch_is_judged_like_single_messages(batches: list[list[UMessage]]) -> None:
    joined, single = RecentIds(_MANY), RecentIds(_MANY)
    for messages in batches:
        batch = MessageBatch.from_messages(messages)
        assert batch is not None
        assert joined._rise_in_batch(batch, receipt_ids(batch)) == single._rise(messages)
        assert joined._highest == single._highest


@pytest.mark.parametrize("joined", [True, False])
def test_rising_ids_stay_joined_until_one_does_not_rise(joined: bool) -> None:
    recent = RecentIds(_MANY)
    assert all(are_new(recent, [message(number) for number in range(1, 10)], joined=joined))
    assert all(are_new(recent, [message(1, topic=topic_of(1)), message(2, topic=topic_of(1))], joined=joined))
    assert not recent._young.entries
    assert are_new(recent, [message(9), message(10), message(10)], joined=joined) == [False, True, False]
    assert len(recent._young.entries) == 12


@pytest.mark.parametrize("rising", [True, False])
def test_the_last_ids_are_remembered_and_twice_as_many_at_most(rising: bool) -> None:
    recent = RecentIds(10)
    numbers = range(1, 101) if rising else range(100, 0, -1)
    for number in numbers:
        assert are_new(recent, [message(number)]) == [True]
    assert len(recent._young) + len(recent._old) <= 20
    assert not any(are_new(recent, [message(number) for number in numbers[-10:]]))
    assert all(are_new(recent, [message(number) for number in numbers[:79]]))


@pytest.mark.parametrize("joined", [True, False])
def test_forgotten_ids_are_new_again(joined: bool) -> None:
    recent, messages = RecentIds(_MANY), [message(number) for number in range(1, 4)]
    are_new(recent, messages, joined=joined)
    recent.forget(receipt_id(messages[1].id))
    assert are_new(recent, messages, joined=joined) == [False, True, False]
    assert are_new(recent, messages, joined=joined) == [False, False, False]


def test_a_copy_of_a_source_that_was_forgotten_is_detected() -> None:
    recent, sources = RecentIds(_MANY), recent_ids._MAX_SOURCES + 10
    for number in range(sources):
        assert are_new(recent, [message(number + 1, topic=topic_of(number))]) == [True]
    assert len(recent._highest) == recent_ids._MAX_SOURCES
    for number in range(20):
        assert are_new(recent, [message(number + 1, topic=topic_of(number))]) == [False]
    assert are_new(recent, [message(5, 1, topic_of(0))]) == [True]
