# SPDX-License-Identifier: Apache-2.0
"""The messages that a TCP connection may lose: unacknowledged ones, and those that may be unread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.unacked_window import OVERHEAD_BYTES, UnackedWindow

PEER, OTHER = object(), object()
RETRANSMIT_NS = 100


def window(
    *written: tuple[bytes, int], limit: int = 10_000, retransmit_ns: int = RETRANSMIT_NS
) -> UnackedWindow:
    made = UnackedWindow(limit, retransmit_ns)
    for data, at_ns in written:
        made.add_sent(data, PEER, at_ns, None, resend_if_unread=True)
    return made


def lost(made: UnackedWindow, acked: int, *, read: bool = True) -> list[bytes]:
    return [each.data for each in made.unconfirmed(acked, all_read=read)]


def test_messages_not_fully_acknowledged_are_unconfirmed_in_order() -> None:
    made = window((b"aaa", 0), (b"bbb", 0), (b"ccc", 0), retransmit_ns=0)

    assert lost(made, acked=5) == [b"bbb", b"ccc"]


def test_acknowledged_and_read_messages_are_confirmed() -> None:
    assert lost(window((b"aaa", 0), (b"bbb", 0)), acked=6) == []


def test_an_orderly_close_with_bytes_in_flight_confirms_nothing() -> None:
    assert lost(window((b"aaa", 0), (b"bbb", 0)), acked=3, read=True) == [b"aaa", b"bbb"]


def test_messages_acknowledged_shortly_before_a_reset_are_unconfirmed() -> None:
    made = window((b"old", 0), (b"new", 50), (b"end", 120), (b"out", 500))

    assert lost(made, acked=9, read=False) == [b"new", b"end", b"out"]


def test_the_replay_window_ends_at_the_newest_acknowledged_message() -> None:
    made = window((b"one", 0), (b"two", 10))
    made.acknowledge(6)
    made.add_sent(b"cut", PEER, 1_000_000, None, resend_if_unread=True)

    assert lost(made, acked=6, read=False) == [b"one", b"two", b"cut"]


def test_without_replay_only_unacknowledged_messages_are_unconfirmed() -> None:
    assert lost(window((b"one", 0), (b"two", 0), retransmit_ns=0), acked=3, read=False) == [b"two"]


def test_a_message_that_must_not_be_read_twice_is_resent_only_if_unacknowledged() -> None:
    made = UnackedWindow(10_000, RETRANSMIT_NS)
    made.add_sent(b"one", PEER, 0, None, resend_if_unread=False)
    made.add_sent(b"two", PEER, 0, None, resend_if_unread=False)

    assert lost(made, acked=3, read=False) == [b"two"]


def test_room_depends_on_unacknowledged_bytes() -> None:
    size = 3 + OVERHEAD_BYTES
    made = window((b"one", 0), (b"two", 0), limit=2 * size)

    assert not made.has_room(0)
    made.acknowledge(3)
    assert made.has_room(3)
    assert not made.has_room(4)


def test_an_empty_window_has_room_for_any_message() -> None:
    assert window(limit=10).has_room(1_000_000)


@pytest.mark.parametrize(("since_ns", "moved"), [(0, [b"one", b"six"]), (1, [b"six"])])
def test_the_unconfirmed_messages_of_the_peer_move_if_they_are_not_too_old(
    since_ns: int, moved: list[bytes]
) -> None:
    made = UnackedWindow(10_000, RETRANSMIT_NS)
    for data, peer in ((b"one", PEER), (b"two", OTHER), (b"six", PEER), (b"ten", OTHER)):
        made.add_sent(data, peer, 0, None, resend_if_unread=True)

    assert [each.data for each in made.remove_for_peer(PEER, 6, since_ns)] == moved
    assert [each.data for each in made.unconfirmed(6, all_read=False)] == [b"two", b"ten"]
    assert made.unacked_bytes == 0


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 50), st.integers(0, 400)), max_size=60),
    st.integers(0, 200),
)
def test_no_unacknowledged_message_is_lost_and_the_window_is_bounded(
    steps: list[tuple[int, int, int]], retransmit_ns: int
) -> None:
    limit = 2_000
    made = UnackedWindow(limit, retransmit_ns)
    now = acked = 0
    ends: list[int] = []
    for size, later, acknowledged in steps:
        now += later
        acked = min(acked + acknowledged, made.written_bytes)
        if not made.has_room(size):
            made.acknowledge(acked)
        if made.has_room(size):
            made.add_sent(bytes(size), PEER, now, None, resend_if_unread=True)
            ends.append(made.written_bytes)
        assert made.unacked_bytes <= limit
    kept = made.unconfirmed(acked, all_read=False)
    assert [each.end_offset for each in kept if each.end_offset > acked] == [
        end for end in ends if end > acked
    ]
    assert sum(each.size for each in kept if each.end_offset <= acked) <= limit
