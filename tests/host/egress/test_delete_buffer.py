# SPDX-License-Identifier: Apache-2.0
"""The record of a sent message stays on disk for a delay."""

from ustreamer.core.base.clock import ManualClock
from ustreamer.host.egress.delete_buffer import DeleteBuffer

REST = 10


def test_a_key_rests_before_it_is_removed_and_all_leave_in_order() -> None:
    time = ManualClock()
    removals = DeleteBuffer(time.clock().monotonic_ns, REST)
    removals.add_key(b"1")
    time.now_ns += 4
    removals.add_key(b"2")
    assert (removals.pop_due(), len(removals), removals.remaining_s) == ([], 2, 6e-9)
    time.now_ns += 6
    assert (removals.pop_due(), len(removals), removals.remaining_s) == ([b"1"], 1, 4e-9)
    time.now_ns += 40
    assert (removals.remaining_s, removals.pop_due(), len(removals), removals.remaining_s) == (
        0.0,
        [b"2"],
        0,
        0.0,
    )


def test_unsent_and_final_keys_are_due_at_once() -> None:
    removals = DeleteBuffer(ManualClock().clock().monotonic_ns, REST)
    removals.add_key(b"sent")
    removals.add_key(b"unreadable", due_now=True)
    assert removals.pop_due() == [b"unreadable"]
    assert removals.pop_due(everything=True) == [b"sent"]
