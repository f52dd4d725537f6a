# SPDX-License-Identifier: Apache-2.0
"""What may be lost with a TCP connection: all that was not acknowledged, and what may not have been read."""

from hypothesis import given
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.unacked_window import OVERHEAD_BYTES, UnackedWindow

WAY, OTHER = object(), object()
REPLAY_NS = 100


def window(*written: tuple[bytes, int], limit: int = 10_000, replay_ns: int = REPLAY_NS) -> UnackedWindow:
    made = UnackedWindow(limit, replay_ns)
    for data, at_ns in written:
        made.add_sent(data, WAY, at_ns, None, resend_if_unread=True)
    return made


def lost(made: UnackedWindow, acked: int, *, read: bool = True) -> list[bytes]:
    return [each.data for each in made.unconfirmed(acked, all_read=read)]


def test_what_was_not_acknowledged_to_its_last_byte_is_lost_in_order() -> None:
    made = window((b"aaa", 0), (b"bbb", 0), (b"ccc", 0), replay_ns=0)

    assert lost(made, acked=5) == [b"bbb", b"ccc"]


def test_all_that_was_acknowledged_and_read_is_not() -> None:
    assert lost(window((b"aaa", 0), (b"bbb", 0)), acked=6) == []


def test_an_end_in_good_order_with_something_on_its_way_is_not_in_good_order() -> None:
    assert lost(window((b"aaa", 0), (b"bbb", 0)), acked=3, read=True) == [b"aaa", b"bbb"]


def test_what_was_acknowledged_shortly_before_a_reset_may_not_have_been_read() -> None:
    made = window((b"old", 0), (b"new", 50), (b"end", 120), (b"out", 500))

    assert lost(made, acked=9, read=False) == [b"new", b"end", b"out"]


def test_shortly_before_is_counted_from_the_last_that_arrived_and_not_from_the_end() -> None:
    made = window((b"one", 0), (b"two", 10))
    made.acknowledge(6)
    made.add_sent(b"cut", WAY, 1_000_000, None, resend_if_unread=True)

    assert lost(made, acked=6, read=False) == [b"one", b"two", b"cut"]


def test_without_a_replay_only_what_was_not_acknowledged_is_lost() -> None:
    assert lost(window((b"one", 0), (b"two", 0), replay_ns=0), acked=3, read=False) == [b"two"]


def test_what_must_not_be_read_twice_is_sent_again_only_if_it_has_not_arrived() -> None:
    made = UnackedWindow(10_000, REPLAY_NS)
    made.add_sent(b"one", WAY, 0, None, resend_if_unread=False)
    made.add_sent(b"two", WAY, 0, None, resend_if_unread=False)

    assert lost(made, acked=3, read=False) == [b"two"]


def test_room_is_what_is_not_acknowledged() -> None:
    size = 3 + OVERHEAD_BYTES
    made = window((b"one", 0), (b"two", 0), limit=2 * size)

    assert not made.has_room(0)
    made.acknowledge(3)
    assert made.has_room(3)
    assert not made.has_room(4)


def test_one_message_has_room_however_long_it_is() -> None:
    assert window(limit=10).has_room(1_000_000)


def test_what_goes_another_way_and_has_not_arrived_is_taken_out_and_nothing_else() -> None:
    made = UnackedWindow(10_000, REPLAY_NS)
    for data, way in ((b"one", WAY), (b"two", OTHER), (b"six", WAY), (b"ten", OTHER)):
        made.add_sent(data, way, 0, None, resend_if_unread=True)

    assert [each.data for each in made.remove_for_peer(WAY, 3)] == [b"six"]
    assert [each.data for each in made.unconfirmed(6, all_read=False)] == [b"one", b"two", b"ten"]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 50), st.integers(0, 400)), max_size=60),
    st.integers(0, 200),
)
def test_nothing_that_was_not_acknowledged_is_forgotten_and_what_is_kept_is_bounded(
    steps: list[tuple[int, int, int]], replay_ns: int
) -> None:
    limit = 2_000
    made = UnackedWindow(limit, replay_ns)
    now = acked = 0
    ends: list[int] = []
    for size, later, acknowledged in steps:
        now += later
        acked = min(acked + acknowledged, made.written_bytes)
        if not made.has_room(size):
            made.acknowledge(acked)
        if made.has_room(size):
            made.add_sent(bytes(size), WAY, now, None, resend_if_unread=True)
            ends.append(made.written_bytes)
        assert made.unacked_bytes <= limit
    kept = made.unconfirmed(acked, all_read=False)
    assert [each.end_offset for each in kept if each.end_offset > acked] == [
        end for end in ends if end > acked
    ]
    assert sum(each.size for each in kept if each.end_offset <= acked) <= limit
