# SPDX-License-Identifier: Apache-2.0
"""SOME/IP-TP, sending: the bytes of segments, their pace, their order and their limits."""

import pytest

from tests.transports.someip.protocol.tp_messages import cut, message, read
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, UnencodableMessage, encode
from ustreamer.transports.someip.protocol.tp import MAX_OFFSET, Reassembly
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation
from ustreamer.transports.someip.protocol.tp_segmenter import (
    RETRY_INTERVAL_NS,
    RETRY_TIMEOUT_NS,
    TpQueueFull,
    TpSegmenter,
    split_into_segments,
)

PEER: Address = ("10.0.0.2", 30509)
OTHER: Address = ("10.0.0.3", 30509)
MS = 1_000_000
SLOW = TpSegmentation(segment_bytes=32, separation_us=5_000)
AT_ONCE = TpSegmentation(segment_bytes=16)


def noise(length: int) -> bytes:
    return bytes(range(251)) * (length // 251) + bytes(range(length % 251))


# --- segments ---------------------------------------------------------------------------------------------------------


# [utest->TP-764, TP-763, TP-765, TP-766, TP-832, TP-767, TP-770, TP-771, TP-773, TP-777, TP-779]
def test_3000_bytes_are_three_segments_with_these_bytes() -> None:
    payload = noise(3_000)
    datagrams = list(split_into_segments(message(payload, 7)))

    # ids | length = 8 + 4 + n | client, session | versions, type 0x22, code | offset and more flag
    assert [datagram[:20].hex(" ", 4) for datagram in datagrams] == [
        "12348778 0000057c 00000007 01012200 00000001",
        "12348778 0000057c 00000007 01012200 00000571",
        "12348778 000000e4 00000007 01012200 00000ae0",
    ]
    assert b"".join(datagram[20:] for datagram in datagrams) == payload


# [utest->TP-772, TP-778, TP-780]
@pytest.mark.parametrize(
    ("length", "size", "lengths"),
    [
        (1, 1_392, [1]),
        (1_392, 1_392, [1_392]),  # no empty segment at the end
        (2_784, 1_392, [1_392, 1_392]),
        (1_393, 1_392, [1_392, 1]),
        (100, 47, [32, 32, 32, 4]),
        (0, 16, [0]),
    ],
)
def test_all_segments_but_the_last_are_a_multiple_of_16(length: int, size: int, lengths: list[int]) -> None:
    parts = [each.payload for each in cut(message(noise(length)), size)]
    assert [len(part) - 4 for part in parts] == lengths
    assert [part[3] & 1 for part in parts] == [1] * (len(parts) - 1) + [0]


# [utest->TP-774]
@pytest.mark.parametrize(
    ("plain", "tp"), [(0x00, 0x20), (0x01, 0x21), (0x02, 0x22), (0x80, 0xA0), (0x81, 0xA1)]
)
def test_every_message_type_survives_segmentation(plain: int, tp: int) -> None:
    whole = message(noise(100), message_type=plain, return_code=5, client=9)
    parts = cut(whole, 64)
    assert {part.message_type for part in parts} == {tp}
    reassembly = Reassembly(TpLimits())
    assert [reassembly.feed(part, PEER, 0) for part in parts] == [None, whole]


def test_an_unsegmentable_message_is_refused() -> None:
    for size in (0, 15, -1):
        with pytest.raises(UnencodableMessage, match="segment_bytes"):
            split_into_segments(message(b"x"), size)
    with pytest.raises(UnencodableMessage, match="message_type"):
        split_into_segments(message(bytes(4), message_type=int(MessageType.TP_REQUEST)))
    assert MAX_OFFSET == 0xFFFF_FFF0


# --- pacing -----------------------------------------------------------------------------------------------------------


def paced(pacer: TpSegmenter, until_ms: float = 10_000) -> list[tuple[float, Address, int, int]]:
    """(ms, address, session, offset) of all segments, each sent when it is due."""
    sends = []
    while (now_ns := pacer.next_deadline_ns) is not None and now_ns <= until_ms * MS:
        due = pacer.next_due(now_ns)
        if due is None:
            continue  # the end of a pause
        found = read(due.datagram)
        offset = int.from_bytes(found.payload[:4], "big") & MAX_OFFSET if found.is_tp else -1
        sends.append((now_ns / MS, due.address, found.session, offset))
        pacer.on_sent(due, now_ns)
    return sends


def put(
    pacer: TpSegmenter,
    size: int,
    session: int,
    to: Address = PEER,
    how: TpSegmentation = SLOW,
    at_ms: int = 0,
) -> None:
    pacer.put_nowait(message(bytes(size), session), to, how, at_ms * MS)


# [utest->TP-801]
def test_segments_are_sent_with_a_pause_between_them() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 100, 1, at_ms=3)
    assert paced(pacer) == [(3, PEER, 1, 0), (8, PEER, 1, 32), (13, PEER, 1, 64), (18, PEER, 1, 96)]
    assert pacer.pending == (0, 0)
    assert pacer.next_deadline_ns is None


def test_messages_of_a_stream_are_in_order_and_streams_do_not_wait() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 64, 1)
    put(pacer, 64, 2)
    put(pacer, 64, 3, OTHER)
    pacer.put_nowait(message(bytes(48), 4, method=0x8779), PEER, SLOW, 0)
    assert sorted(paced(pacer)) == [
        (0, PEER, 1, 0),
        (0, PEER, 4, 0),
        (0, OTHER, 3, 0),
        (5, PEER, 1, 32),
        (5, PEER, 4, 32),
        (5, OTHER, 3, 32),
        (10, PEER, 2, 0),
        (15, PEER, 2, 32),
    ]


def test_a_short_message_behind_a_long_one_waits_and_is_not_segmented() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 64, 1)
    short = message(b"short", 2)
    pacer.put_nowait(short, PEER, SLOW, 0)
    assert pacer.is_pending((PEER, short.message_id))
    assert not pacer.is_pending((OTHER, short.message_id))

    assert [session for _, _, session, _ in paced(pacer, 9)] == [1, 1]
    due = pacer.next_due(10 * MS)
    assert due is not None
    assert due.datagram == encode(short)


def test_the_pause_is_kept_before_the_next_message() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 64, 1)
    assert len(paced(pacer, 5)) == 2
    put(pacer, 64, 2, at_ms=6)
    assert paced(pacer, 9) == []
    assert len(paced(pacer, 10)) == 1


def test_without_a_pause_streams_are_served_round_robin() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 40, 1, PEER, AT_ONCE)
    put(pacer, 40, 2, OTHER, AT_ONCE)
    assert [(session, offset) for _, _, session, offset in paced(pacer, 0)] == [
        (1, 0), (2, 0), (1, 16), (2, 16), (1, 32), (2, 32),
    ]  # fmt: skip
    assert (pacer.pending, pacer.next_deadline_ns) == ((0, 0), None)


def test_the_queue_is_bounded_in_bytes_and_messages() -> None:
    pacer = TpSegmenter(100, 3)
    put(pacer, 60, 1)
    with pytest.raises(TpQueueFull, match="message of 41 bytes: 60 of 100 bytes in 1 messages wait"):
        put(pacer, 41, 2)
    put(pacer, 40, 3)
    put(pacer, 0, 4)
    with pytest.raises(TpQueueFull):
        put(pacer, 0, 5)
    assert len(paced(pacer)) == 2 + 2 + 1
    put(pacer, 100, 6, at_ms=20_000)


def test_a_blocked_segment_is_tried_again_in_its_order() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 64, 1)
    first = pacer.next_due(0)
    assert first is not None
    assert pacer.on_send_blocked(first, 0)
    assert pacer.next_due(RETRY_INTERVAL_NS - 1) is None
    again = pacer.next_due(RETRY_INTERVAL_NS)
    assert again == first
    assert not pacer.on_sent(first, RETRY_INTERVAL_NS)
    assert paced(pacer) == [(6, PEER, 1, 32)]


def test_a_message_blocked_for_too_long_is_dropped_and_the_next_one_sent() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 64, 1)
    put(pacer, 64, 2)
    tries = 0
    kept = True
    while kept:
        now_ns = pacer.next_deadline_ns
        assert now_ns is not None
        due = pacer.next_due(now_ns)
        assert due is not None
        kept = pacer.on_send_blocked(due, now_ns)
        tries += 1
    assert tries == RETRY_TIMEOUT_NS // RETRY_INTERVAL_NS + 1
    assert pacer.pending == (64, 1)
    assert [session for _, _, session, _ in paced(pacer)] == [2, 2]


def test_a_dropped_message_leaves_no_state() -> None:
    pacer = TpSegmenter(1_000_000)
    put(pacer, 64, 1)
    due = pacer.next_due(0)
    assert due is not None
    pacer.drop_message(due, 0)
    assert (pacer.pending, pacer.next_deadline_ns) == ((0, 0), None)
