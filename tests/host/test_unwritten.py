# SPDX-License-Identifier: Apache-2.0
"""What waits for the disk, by itself: its bounds, whose part of them is used up, and in which order it is written."""

from tests.core.test_egress_queue import ANN, BOB, FOR
from tests.host.test_lanes import event
from ustreamer.core.egress.limits import EgressLimits, Queued
from ustreamer.host.egress.write_buffer import Unwritten
from ustreamer.uprotocol.uuri import UUri

LIMITS = EgressLimits(queue_messages=6, queue_bytes=1_000)


def queued(subscriber: UUri | None, size: int) -> Queued:
    return Queued(FOR[subscriber], event(0), 0, size)


def test_one_subscriber_has_half_of_it_and_what_has_none_all() -> None:
    unwritten = Unwritten(LIMITS)
    items = [queued(ANN, 100) for _ in range(3)]
    for item in items:
        assert unwritten.has_room_for(ANN, 100)
        unwritten.add(item)
    assert [unwritten.has_room_for(each, 100) for each in (ANN, BOB, None)] == [False, True, True]
    assert (unwritten.of(ANN), unwritten.of(BOB), len(unwritten)) == (3, 0, 3)
    assert unwritten.remove(items[0])
    assert not unwritten.remove(items[0])
    assert [unwritten.has_room_for(ANN, size) for size in (300, 301)] == [True, False]
    assert [unwritten.has_room(size) for size in (800, 801)] == [True, False]
    unwritten.use(EgressLimits(queue_messages=1, queue_bytes=1))
    assert not unwritten.has_room(1)
    assert not unwritten.has_room_for(ANN, 1)
    for item in items[1:]:
        unwritten.remove(item)
    assert (len(unwritten), list(unwritten), unwritten.of(ANN), unwritten._of_each) == (0, [], 0, {})


def test_the_oldest_are_written_first_as_many_as_fit_and_one_in_any_case() -> None:
    unwritten = Unwritten(LIMITS)
    items = [queued(None, size) for size in (100, 200, 300)]
    for item in items:
        unwritten.add(item)
    assert unwritten.first(9, 300) == items[:2]
    assert unwritten.first(1, 300) == items[:1]
    assert unwritten.first(9, 1) == items[:1]
    assert list(unwritten) == items
