# SPDX-License-Identifier: Apache-2.0
"""The write buffer alone: its limits, the subscriber limits, and the order of writes."""

from tests.core.egress.test_subscriber_queue import ANN, BOB, FOR
from tests.host.egress.test_endpoint_queue import event
from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.host.egress.write_buffer import WriteBuffer
from ustreamer.uprotocol.uuri import UUri

LIMITS = EgressLimits(queue_messages=6, queue_bytes=1_000)


def queued(subscriber: UUri | None, size: int) -> QueuedMessage:
    return QueuedMessage(FOR[subscriber], event(0), 0, size)


def test_one_subscriber_can_use_half_of_the_queue() -> None:
    unwritten = WriteBuffer(LIMITS)
    items = [queued(ANN, 100) for _ in range(3)]
    for item in items:
        assert unwritten.has_room_for_subscriber(ANN, 100)
        unwritten.add_message(item)
    assert [unwritten.has_room_for_subscriber(each, 100) for each in (ANN, BOB, None)] == [False, True, True]
    assert (unwritten.message_count_for(ANN), unwritten.message_count_for(BOB), len(unwritten)) == (3, 0, 3)
    assert unwritten.remove_message(items[0])
    assert not unwritten.remove_message(items[0])
    assert [unwritten.has_room_for_subscriber(ANN, size) for size in (300, 301)] == [True, False]
    assert [unwritten.has_room(size) for size in (800, 801)] == [True, False]
    unwritten.set_limits(EgressLimits(queue_messages=1, queue_bytes=1))
    assert not unwritten.has_room(1)
    assert not unwritten.has_room_for_subscriber(ANN, 1)
    for item in items[1:]:
        unwritten.remove_message(item)
    assert (len(unwritten), list(unwritten), unwritten.message_count_for(ANN), unwritten._by_subscriber) == (
        0,
        [],
        0,
        {},
    )


def test_the_oldest_are_written_first_as_many_as_fit_and_one_in_any_case() -> None:
    unwritten = WriteBuffer(LIMITS)
    items = [queued(None, size) for size in (100, 200, 300)]
    for item in items:
        unwritten.add_message(item)
    assert unwritten.peek_batch(9, 300) == items[:2]
    assert unwritten.peek_batch(1, 300) == items[:1]
    assert unwritten.peek_batch(9, 1) == items[:1]
    assert list(unwritten) == items
