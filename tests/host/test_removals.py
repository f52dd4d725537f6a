# SPDX-License-Identifier: Apache-2.0
"""What was sent stays on disk until it is out of our hands."""

from ustreamer.core.base.clock import ManualClock
from ustreamer.host.egress.delete_buffer import Removals

REST = 10


def test_a_key_rests_before_it_is_removed_and_all_leave_in_order() -> None:
    time = ManualClock()
    removals = Removals(time.clock().monotonic_ns, REST)
    removals.add(b"1")
    time.now_ns += 4
    removals.add(b"2")
    assert (removals.take(), len(removals), removals.left_s) == ([], 2, 6e-9)
    time.now_ns += 6
    assert (removals.take(), len(removals), removals.left_s) == ([b"1"], 1, 4e-9)
    time.now_ns += 40
    assert (removals.left_s, removals.take(), len(removals), removals.left_s) == (0.0, [b"2"], 0, 0.0)


def test_what_nobody_has_sent_and_what_is_left_at_the_end_need_no_rest() -> None:
    removals = Removals(ManualClock().clock().monotonic_ns, REST)
    removals.add(b"sent")
    removals.add(b"unreadable", rested=True)
    assert removals.take() == [b"unreadable"]
    assert removals.take(all_of_them=True) == [b"sent"]
