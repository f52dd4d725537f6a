# SPDX-License-Identifier: Apache-2.0
"""SOME/IP-TP: the bytes of segments, reassembly in any order, and every contradiction between segments."""

import gc
import random
import tracemalloc
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.someip.protocol.tp_messages import cut, message
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage
from ustreamer.transports.someip.protocol.tp import MAX_OFFSET, Reassembly, TpReason, TpRefused
from ustreamer.transports.someip.protocol.tp_config import TpLimits

PEER: Address = ("10.0.0.2", 30509)
OTHER: Address = ("10.0.0.3", 30509)
MS = 1_000_000


def segment(offset: int, part: bytes, more: bool, session: int = 1, **changes: int) -> SomeIpMessage:
    return message(
        (offset | more).to_bytes(4, "big") + part,
        session,
        **{"message_type": int(MessageType.TP_NOTIFICATION), **changes},
    )


def noise(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


# --- reassembly -------------------------------------------------------------------------------------------------------


def feed(reassembly: Reassembly, *parts: SomeIpMessage, peer: Address = PEER) -> list[object]:
    """For each segment: None, the message, or the reason of its refusal."""
    outcomes = [reassembly.feed(part, peer, 0) for part in parts]
    return [each.reason if isinstance(each, TpRefused) else each for each in outcomes]


# [utest->TP-767, TP-783, TP-785, TP-789]
@given(st.binary(max_size=600), st.integers(1, 8), st.randoms(use_true_random=False))
def test_segments_in_any_order_with_duplicates_form_the_message(
    payload: bytes, units: int, rng: random.Random
) -> None:
    whole = message(payload)
    parts = cut(whole, 16 * units)
    shuffled = parts[:]
    rng.shuffle(shuffled)
    again = [each for part in shuffled[:-1] for each in [part] * rng.randint(1, 3)]
    reassembly = Reassembly(TpLimits())
    assert feed(reassembly, *again, shuffled[-1]) == [None] * len(again) + [whole]
    assert reassembly.statistics() == {
        "tp_open": 0,
        "tp_bytes": 0,
        "tp_completed": 1,
        "tp_duplicates": len(again) - len(parts) + 1,
    }


def test_an_empty_last_segment_is_a_valid_end() -> None:
    whole = message(bytes(32))
    parts = [
        segment(0, bytes(16), more=True),
        segment(16, bytes(16), more=True),
        segment(32, b"", more=False),
    ]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        assert feed(Reassembly(TpLimits()), *(parts[index] for index in order)) == [None, None, whole]


# [utest->TP-781, TP-794, TP-787, TP-795, TP-793, TP-803]
def test_messages_are_distinguished_by_peer_ids_session_and_type() -> None:
    wholes = [
        (message(noise(100, 1)), PEER),
        (message(noise(100, 2)), OTHER),
        (message(noise(100, 3), 2), PEER),
        (message(noise(100, 4), client=1), PEER),
        (message(noise(100, 5), method=0x8779), PEER),
        (message(noise(100, 6), message_type=0x00), PEER),
    ]
    reassembly = Reassembly(TpLimits())
    got = []
    columns = zip(*(cut(whole, 16) for whole, _ in wholes), strict=True)
    for column in columns:
        for part, (_, peer) in zip(column, wholes, strict=True):
            got.append(reassembly.feed(part, peer, 0))
    assert [each for each in got if each is not None] == [whole for whole, _ in wholes]


A16, B16 = b"a" * 16, b"b" * 16


# [utest->TP-768, TP-769]
@pytest.mark.parametrize("bits", [0b0010, 0b0100, 0b1000, 0b1110])
def test_the_reserved_bits_of_a_segment_are_ignored(bits: int) -> None:
    parts = [
        message((offset | bits | more).to_bytes(4, "big") + A16, message_type=0x22)
        for offset, more in ((0, True), (16, False))
    ]
    assert feed(Reassembly(TpLimits()), *parts) == [None, message(A16 * 2)]


# [utest->TP-784]
def test_the_last_segment_to_arrive_gives_the_return_code() -> None:
    first, last = segment(0, A16, more=True), segment(16, A16, more=False, return_code=2)
    assert feed(Reassembly(TpLimits()), first, last) == [None, message(A16 * 2, return_code=2)]
    assert feed(Reassembly(TpLimits()), last, first) == [None, message(A16 * 2)]


# [utest->TP-802]
def test_an_event_that_a_later_one_overtook_is_abandoned() -> None:
    older, newer = cut(message(A16 * 3, 1), 16), cut(message(B16 * 2, 2), 16)
    reassembly = Reassembly(TpLimits())
    assert feed(reassembly, *older[:2], *newer) == [None, None, None, message(B16 * 2, 2)]
    assert reassembly.next_deadline_ns == 0
    assert [each.reason for each in reassembly.expire(0)] == [TpReason.TP_OVERTAKEN]
    assert feed(reassembly, older[2]) == [TpReason.TP_ABANDONED]
    assert reassembly.next_deadline_ns is None


@pytest.mark.parametrize(
    "other", [{"method": 0x0001, "message_type": 0}, {"client": 1}, {"method": 0x8779}, {"service": 0x1235}]
)
def test_a_request_and_another_event_are_not_overtaken(other: dict[str, int]) -> None:
    older = cut(message(A16 * 2, 1, **other), 16)
    newer_fields = other if "message_type" in other else {}
    newer = cut(message(B16 * 2, 2, **newer_fields), 16)
    outcomes = feed(Reassembly(TpLimits()), older[0], *newer, older[1])
    assert outcomes == [None, None, message(B16 * 2, 2, **newer_fields), message(A16 * 2, 1, **other)]


LIES = {
    "no room for the offset": ([message(b"\0\0\0", message_type=0x22)], [TpReason.TP_TRUNCATED]),
    "nothing, and more": ([segment(0, b"", more=True)], [TpReason.TP_EMPTY]),
    "not a multiple of 16": ([segment(0, b"x" * 17, more=True)], [TpReason.TP_UNALIGNED]),
    "too long": ([segment(131_072, b"x", more=False)], [TpReason.TP_TOO_LONG]),
    "far too long": ([segment(MAX_OFFSET, A16, more=True)], [TpReason.TP_TOO_LONG]),
    "other bytes in the same place": (
        [segment(16, A16, more=True), segment(16, B16, more=True)],
        [None, TpReason.TP_OVERLAP],
    ),
    "it reaches into the next one": (
        [segment(32, A16, more=True), segment(16, A16 + A16, more=True)],
        [None, TpReason.TP_OVERLAP],
    ),
    "it begins in the last one": (
        [segment(16, A16 + A16, more=True), segment(32, A16, more=True)],
        [None, TpReason.TP_OVERLAP],
    ),
    "it covers another one": (
        [segment(32, A16, more=True), segment(16, A16 * 3, more=True)],
        [None, TpReason.TP_OVERLAP],
    ),
    "behind the end": (
        [segment(16, A16, more=False), segment(32, A16, more=True)],
        [None, TpReason.TP_INCONSISTENT],
    ),
    "another end": (
        [segment(32, A16, more=False), segment(16, A16, more=False)],
        [None, TpReason.TP_INCONSISTENT],
    ),
    "an end before what is there": (
        [segment(32, A16, more=True), segment(16, A16, more=False)],
        [None, TpReason.TP_INCONSISTENT],
    ),
    "the same bytes, and now it is the end": (
        [segment(16, A16, more=True), segment(32, A16, more=True), segment(16, A16, more=False)],
        [None, None, TpReason.TP_INCONSISTENT],
    ),
    "another version": (
        [segment(0, A16, more=True), segment(16, A16, more=True, interface_version=2)],
        [None, TpReason.TP_INCONSISTENT],
    ),
}


# [utest->TP-781, TP-782, TP-810, TP-792]
@pytest.mark.parametrize(("parts", "outcomes"), LIES.values(), ids=LIES)
def test_an_invalid_segment_is_refused_and_its_message_abandoned(
    parts: list[SomeIpMessage], outcomes: list[TpReason | None]
) -> None:
    reassembly = Reassembly(TpLimits())
    assert feed(reassembly, *parts) == outcomes
    assert reassembly.statistics()["tp_bytes"] == 0
    # The later segments of the message are refused; other messages of the peer are not.
    if outcomes != [TpReason.TP_TRUNCATED]:
        assert feed(reassembly, segment(48, A16, more=True)) == [TpReason.TP_ABANDONED]
    assert feed(reassembly, *cut(message(A16 * 2, 2), 16)) == [None, message(A16 * 2, 2)]


def test_a_refusal_names_its_message_and_reason() -> None:
    refused = Reassembly(TpLimits()).feed(segment(0, b"x" * 17, more=True, session=9), PEER, 0)
    assert isinstance(refused, TpRefused)
    assert refused.peer == PEER
    assert refused.detail == (
        "message 0x12348778 session 9: 17 bytes and more to follow, expected a multiple of 16"
    )


def test_a_message_without_sessions_starts_again_after_an_incomplete_one() -> None:
    reassembly = Reassembly(TpLimits())
    first = [segment(0, A16, more=True, session=0), segment(16, A16, more=True, session=0)]
    second = [segment(0, B16, more=True, session=0), segment(16, B16, more=False, session=0)]
    outcomes = feed(reassembly, *first, *second)
    assert outcomes == [None, None, TpReason.TP_OVERLAP, message(B16 * 2, 0)]
    single = segment(0, b"c", more=False, session=0)
    assert feed(reassembly, first[0], single) == [None, message(b"c", 0)]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_number_of_segments_is_limited() -> None:
    reassembly = Reassembly(TpLimits(segments=3))
    assert feed(reassembly, *(segment(16 * n, A16, more=True) for n in range(5))) == [
        None,
        None,
        None,
        TpReason.TP_SEGMENTS,
        TpReason.TP_ABANDONED,
    ]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (TpLimits(peer_bytes=10_000), TpReason.TP_PEER_LIMIT),
        (TpLimits(peer_messages=3), TpReason.TP_PEER_LIMIT),
        (TpLimits(total_bytes=10_000), TpReason.TP_LIMIT),
    ],
)
def test_a_peer_above_its_limit_is_rejected(limits: TpLimits, reason: TpReason) -> None:
    reassembly = Reassembly(limits)
    parts = [segment(0, bytes(1_392), more=True, session=session) for session in range(1, 20)]
    outcomes = feed(reassembly, *parts)
    taken = outcomes.count(None)
    assert outcomes == [None] * taken + [reason] * (19 - taken)
    assert 2 <= taken <= 4
    other = feed(reassembly, *cut(message(bytes(1_000)), 512), peer=OTHER)
    assert (other[-1] == message(bytes(1_000))) is (reason is TpReason.TP_PEER_LIMIT)
    reassembly.expire(5_000 * MS)
    assert feed(reassembly, *cut(message(bytes(100), 30), 64)) == [None, message(bytes(100), 30)]


def test_the_limit_of_a_host_includes_all_its_ports() -> None:
    reassembly = Reassembly(TpLimits(peer_messages=3, peers=2))
    outcomes = [feed(reassembly, segment(0, A16, more=True), peer=("10.0.0.9", port)) for port in range(1, 6)]
    assert outcomes == [[None], [None], [None], [TpReason.TP_PEER_LIMIT], [TpReason.TP_PEER_LIMIT]]
    assert feed(reassembly, *cut(message(bytes(100)), 64)) == [None, message(bytes(100))]


def test_the_number_of_peers_is_limited() -> None:
    reassembly = Reassembly(TpLimits(peers=2))
    outcomes = [
        feed(reassembly, segment(0, A16, more=True), peer=(f"10.0.0.{number}", 1)) for number in range(4)
    ]
    assert outcomes == [[None], [None], [TpReason.TP_LIMIT], [TpReason.TP_LIMIT]]


# [utest->TP-796]
def test_an_incomplete_message_is_abandoned_at_the_timeout() -> None:
    reassembly = Reassembly(TpLimits(timeout_ms=100))
    reassembly.feed(segment(0, A16, more=True, session=1), PEER, 0)
    reassembly.feed(segment(0, A16, more=True, session=2), PEER, 50 * MS)
    reassembly.feed(segment(16, A16, more=True, session=1), PEER, 99 * MS)
    assert reassembly.next_deadline_ns == 100 * MS
    assert reassembly.expire(100 * MS - 1) == []
    (late,) = reassembly.expire(100 * MS)
    assert (late.reason, late.peer) == (TpReason.TP_TIMEOUT, PEER)
    assert late.detail == "message 0x12348778: 32 bytes after 100 ms"
    assert reassembly.next_deadline_ns == 150 * MS
    assert len(reassembly.expire(150 * MS)) == 1
    assert reassembly.statistics()["tp_bytes"] == 0


def test_an_abandoned_message_is_removed_after_the_timeout() -> None:
    reassembly = Reassembly(TpLimits(timeout_ms=100))
    feed(reassembly, segment(0, b"", more=True))
    again = segment(16, A16, more=True)
    late = reassembly.feed(again, PEER, 100 * MS - 1)
    assert isinstance(late, TpRefused)
    assert late.reason is TpReason.TP_ABANDONED
    assert reassembly.feed(again, PEER, 100 * MS) is None


def any_segment(number: int, rng: random.Random) -> tuple[SomeIpMessage, Address]:
    """A mostly well-formed segment that never completes a message."""
    peer = (f"10.{rng.randrange(256)}.0.{rng.randrange(256)}", 1) if rng.random() < 0.5 else PEER
    size = rng.choice([16, 16, 64, 1_392])
    offset = 16 * rng.randrange(1, 8_000)
    part = rng.randbytes(size)
    return segment(offset, part, True, rng.randrange(0x10000), client=rng.randrange(0x10000)), peer


def of_one_message(number: int, rng: random.Random) -> tuple[SomeIpMessage, Address]:
    return segment(16 * (number % 8_000), rng.randbytes(16), more=True), PEER


def first_segment(number: int, rng: random.Random) -> tuple[SomeIpMessage, Address]:
    return segment(0, b"x" * 16, True, number, client=number), PEER


def small_segment(number: int, rng: random.Random) -> tuple[SomeIpMessage, Address]:
    return segment(16 * (number // 40), rng.randbytes(16), True, number % 40), ("10.0.0.9", number % 4)


# More small segments: without their overhead, 16 384 of them would fit into `peer_bytes`.
@pytest.mark.parametrize(
    ("hostile", "count"),
    [(any_segment, 3_000), (of_one_message, 3_000), (first_segment, 3_000), (small_segment, 18_000)],
)
def test_hostile_segments_take_less_than_a_megabyte(
    hostile: Callable[[int, random.Random], tuple[SomeIpMessage, Address]], count: int
) -> None:
    rng = random.Random(1)
    reassembly = Reassembly(TpLimits())
    reassembly.feed(segment(0, A16, more=True), PEER, 0)  # one-time allocations
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            part, peer = hostile(number, rng)
            reassembly.feed(part, peer, number)
            if number % 1_000 == 0:
                reassembly.expire(number)
        gc.collect()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"segments={count} peak_kb={(peak - before) // 1_000}")
    assert peak - before < 1_000_000
    assert reassembly.statistics()["tp_bytes"] <= TpLimits().total_bytes


# [utest->TP-782, TP-783]
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.integers(0, 3),
            st.booleans(),
            st.integers(0, 2),
            st.integers(0, 2),
            st.integers(0, 60),
        ),
        max_size=200,
    )
)
def test_limits_hold_and_counters_balance_for_any_segments(
    steps: list[tuple[int, int, bool, int, int, int]],
) -> None:
    limits = TpLimits(
        message_bytes=256,
        segments=6,
        peer_bytes=4_096,
        peer_messages=3,
        total_bytes=6_000,
        peers=2,
        timeout_ms=100,
    )
    reassembly = Reassembly(limits)
    now = 0
    for offset, units, more, session, host, pause in steps:
        now += pause * MS
        part = bytes((session,)) * (16 * units)
        peer = (f"10.0.0.{host}", 1 + session % 2)
        reassembly.feed(segment(16 * offset, part, more, session), peer, now)
        if pause > 50:
            reassembly.expire(now)
        partials = reassembly._partials
        assert reassembly._bytes == sum(each.cost for each in partials.values()) <= limits.total_bytes
        assert len(reassembly._hosts) <= limits.peers
        for name, (number, used) in reassembly._hosts.items():
            of_host = [each for key, each in partials.items() if key[0][0] == name]
            assert (number, used) == (len(of_host), sum(each.cost for each in of_host))
            assert number <= limits.peer_messages
            assert used <= limits.peer_bytes
        for each in partials.values():
            assert each.received == sum(map(len, each.parts))
            assert len(each.parts) <= limits.segments
            ends = [start + len(found) for start, found in zip(each.starts, each.parts, strict=True)]
            assert all(end <= start for end, start in zip(ends, each.starts[1:], strict=False))
    reassembly.expire(now + 1_000 * MS)
    assert (reassembly._bytes, reassembly._hosts, reassembly.next_deadline_ns) == (0, {}, None)


# [utest->TP-792]
@given(st.binary(max_size=40), st.integers(0, 0xFFFF))
def test_arbitrary_bytes_never_raise(payload: bytes, session: int) -> None:
    reassembly = Reassembly(TpLimits())
    for kind in (0x20, 0x22, 0xA1):
        found = message(payload, session, message_type=kind)
        outcome = reassembly.feed(found, PEER, 0)
        assert outcome is None or isinstance(outcome, SomeIpMessage | TpRefused)


def test_large_messages_of_many_sizes_are_reassembled() -> None:
    limits = TpLimits(message_bytes=1 << 20, peer_bytes=4 << 20, total_bytes=4 << 20)
    reassembly = Reassembly(limits)
    for length, size in product((1, 15, 16, 17, 1_392, 65_536, 1 << 20), (1_392, 1_408)):
        whole = message(noise(length))
        assert feed(reassembly, *cut(whole, size))[-1] == whole
