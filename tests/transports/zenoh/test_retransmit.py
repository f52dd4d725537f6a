# SPDX-License-Identifier: Apache-2.0
"""The retransmit buffer keeps exactly the last puts, in order and within its bounds, single or in batches."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ustreamer.testing.messages import TOPIC
from ustreamer.transports.zenoh.decoder import HEAD
from ustreamer.transports.zenoh.retransmit import (
    OVERHEAD_BYTES,
    AnsweredRequests,
    Origin,
    RetransmitBuffer,
    RetransmitConfig,
)
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import reqid_field

NS_PER_MS = 1_000_000
CALLER = UUri("beta.vin1", 0xE, 1, 0)
PUBLISHERS = "north", "south"
ATTRIBUTES = publish(UUID(0, 0), TOPIC).attributes
ORIGINS: list[Origin] = [Origin(publisher, ATTRIBUTES) for publisher in PUBLISHERS]


def head(number: int) -> bytes:
    return HEAD.pack(b"\x01\x0a\x12\x09", number, b"\x11", 1 << 63 | number)


class BufferModel:
    """A buffer and a list of all puts, from which the expected content follows."""

    def __init__(self, **bounds: int) -> None:
        self.replay = RetransmitConfig(**bounds)
        self.buffer = RetransmitBuffer(self.replay)
        self.appended: list[tuple[str, int, UMessage]] = []
        self.now_ns = 1

    def append(self, count: int, size: int, publisher: int, *, together: bool) -> None:
        numbers = range(len(self.appended), len(self.appended) + count)
        payloads = [bytes([number % 251]) * size for number in numbers]
        for number, payload in zip(numbers, payloads, strict=True):
            message = UMessage(UUID(number, 1 << 63 | number), ATTRIBUTES, payload)
            self.appended.append((PUBLISHERS[publisher], self.now_ns, message))
        heads, origin = [head(number) for number in numbers], ORIGINS[publisher]
        if together:
            tail = b"what they have in common" * (count % 3)
            self.buffer.append([origin], self.now_ns, [each + tail for each in heads], payloads)
            return
        for each, payload in zip(heads, payloads, strict=True):
            self.buffer.append([origin], self.now_ns, [each], [payload])

    def stored(self) -> list[tuple[str, int, UMessage]]:
        by_publisher = self.buffer.messages_of(set(PUBLISHERS))
        found = [(name, *each) for name in PUBLISHERS for each in by_publisher.get(name, ())]
        assert all(self.buffer.messages_of({name}).get(name) == by_publisher.get(name) for name in PUBLISHERS)
        return sorted(found, key=lambda each: each[2].id)


steps = st.lists(
    st.tuples(st.integers(1, 70), st.integers(0, 300), st.integers(0, 1), st.booleans(), st.integers(0, 40)),
    max_size=30,
)


@given(steps, st.integers(1, 60_000), st.integers(1, 100))
@example([(16, 0, 0, False, 0), (47, 1, 0, False, 0), (1, 0, 0, False, 0)], 64 * OVERHEAD_BYTES, 1)
@example(
    [(62, 4, 0, True, 0), (1, 0, 0, False, 0)], 64 * OVERHEAD_BYTES, 1
)  # the first nearly fills the bounds
@example([(128, 0, 0, True, 0), (1, 0, 0, False, 0)], 60_000, 1)
@example([(67, 4, 1, False, 0), (1, 1, 1, False, 0), (1, 1, 0, True, 0)], 64 * 201, 100)
def test_the_newest_messages_are_kept_within_all_bounds(
    operations: list[tuple[int, int, int, bool, int]], size: int, window_ms: int
) -> None:
    notes = BufferModel(bytes=size, ms=window_ms)
    largest = 0
    for count, payload, publisher, together, pause_ms in operations:
        notes.now_ns += pause_ms * NS_PER_MS
        notes.append(count, payload, publisher, together=together)
        at_once = count if together else 1  # such a batch is dropped as a whole
        largest = max(largest, at_once * (payload + OVERHEAD_BYTES))
        known = notes.stored()
        assert known == notes.appended[len(notes.appended) - len(known) :]  # the newest, as they were
        assert 1 <= len(known) == len(notes.buffer)
        occupied = sum(len(message.payload) + OVERHEAD_BYTES for _, _, message in known)
        assert occupied <= max(size, largest)


@pytest.mark.parametrize("together", [True, False])
def test_at_most_a_32nd_is_dropped_early(together: bool) -> None:
    notes = BufferModel(bytes=640 * 210)
    notes.append(640, 10, 0, together=False)
    notes.append(10, 10, 1, together=together)
    assert len(notes.stored()) >= 620


def test_messages_older_than_the_window_are_dropped_with_the_next_one() -> None:
    notes = BufferModel(ms=100)
    notes.append(3, 10, 0, together=False)
    notes.now_ns += 50 * NS_PER_MS
    notes.append(1, 10, 1, together=False)
    assert len(notes.stored()) == 4
    notes.now_ns += 60 * NS_PER_MS
    notes.append(1, 10, 0, together=False)
    assert [message.id.msb for _, _, message in notes.stored()] == [3, 4]


def test_without_a_window_the_buffer_is_disabled() -> None:
    assert not RetransmitBuffer(RetransmitConfig(ms=0)).is_enabled
    assert RetransmitBuffer(RetransmitConfig()).is_enabled


def test_a_response_is_kept_with_its_reqid() -> None:
    notes = BufferModel()
    answers = [answer(number) for number in range(200)]
    origin = Origin("north", msgspec.structs.replace(answers[0].attributes, reqid=None), are_responses=True)
    for each in answers:
        assert each.attributes.reqid is not None
        stored = reqid_field(each.attributes.reqid) + each.payload
        notes.buffer.append([origin], 1, [head(each.id.msb)], [stored])
    assert notes.buffer.messages_of({"north"}) == {"north": [(1, each) for each in answers]}


def answer(number: int) -> UMessage:
    sent_request = request(UUID(0x7000, 1 << 63 | number), CALLER, TOPIC.with_resource(1), ttl=5)
    return response(UUID(number, 1 << 63 | number), sent_request, b"%d" % number)


# --- blocks of several parts ------------------------------------------------------------------------------------------

WINDOW_MS = 6_400
BLOCK_MS = WINDOW_MS // 64
TAILS = [b"", b"t", b"a much longer tail, of another topic", b"", b"\x01\x0a\x12\x09"]


def tailed(notes: BufferModel, count: int, tail: bytes, publisher: int = 0) -> None:
    """Note some together, with this tail behind their heads."""
    first = len(notes.appended)
    messages = [
        UMessage(UUID(number, 1 << 63 | number), ATTRIBUTES, b"%d" % number * (number % 3))
        for number in range(first, first + count)
    ]
    notes.appended += [(PUBLISHERS[publisher], notes.now_ns, each) for each in messages]
    heads = [head(each.id.msb) + tail for each in messages]
    notes.buffer.append([ORIGINS[publisher]], notes.now_ns, heads, [each.payload for each in messages])


@pytest.mark.parametrize("turn", range(len(TAILS)))
def test_parts_of_a_block_keep_their_time_tail_and_publisher(turn: int) -> None:
    notes = BufferModel(ms=WINDOW_MS)
    for number, tail in enumerate(TAILS[turn:] + TAILS[:turn]):
        tailed(notes, 1 + number * 3 % 5, tail, number % 2)
        notes.now_ns += 1 + number
        notes.append(number, 5, (number + 1) % 2, together=False)
        notes.now_ns += NS_PER_MS
    assert notes.stored() == notes.appended
    assert len(notes.buffer._blocks) == 1
    assert len({put_ns for _, put_ns, _ in notes.appended}) > 5


@given(
    st.lists(
        st.tuples(
            st.integers(1, 9), st.sampled_from(TAILS), st.integers(0, 1), st.integers(0, NS_PER_MS * BLOCK_MS)
        ),
        max_size=30,
    ),
    st.sampled_from([64 * 300, 64 * 7 * 300, 64 * 200 * 300]),
)
def test_tails_and_times_are_kept_apart_in_blocks_of_any_size(
    operations: list[tuple[int, bytes, int, int]], size: int
) -> None:
    notes = BufferModel(bytes=size, ms=WINDOW_MS)
    for count, tail, publisher, pause_ns in operations:
        tailed(notes, count, tail, publisher)
        notes.now_ns += pause_ns
    known = notes.stored()
    assert known == notes.appended[len(notes.appended) - len(known) :]
    largest = OVERHEAD_BYTES + 8
    assert len(known) >= min(len(notes.appended), (size - 2 * (size // 64)) // largest - 10)


@pytest.mark.parametrize("late_ns", [0, 1, BLOCK_MS * NS_PER_MS])
@pytest.mark.parametrize("together", [True, False])
def test_a_block_is_as_old_as_the_newest_in_it(late_ns: int, together: bool) -> None:
    """Messages older than the window stay until their whole block is older."""
    notes = BufferModel(ms=WINDOW_MS)
    begun_ns = notes.now_ns
    tailed(notes, 3, b"t")
    notes.now_ns += late_ns
    notes.append(2, 5, 1, together=together)
    # The edge of the window belongs to it, and the next message is not part of the block.
    notes.now_ns = begun_ns + late_ns + WINDOW_MS * NS_PER_MS
    notes.append(1, 5, 0, together=together)
    assert notes.stored() == notes.appended
    notes.now_ns += 1
    notes.append(1, 5, 0, together=together)
    assert notes.stored() == notes.appended[5:]


def test_the_edge_of_the_window_belongs_to_it_also_where_a_block_gets_full() -> None:
    notes = BufferModel(ms=WINDOW_MS)
    begun_ns = notes.now_ns
    tailed(notes, 3, b"t")
    notes.now_ns = begun_ns + WINDOW_MS * NS_PER_MS
    tailed(notes, 200, b"")
    assert notes.stored() == notes.appended
    notes.now_ns += 1
    tailed(notes, 200, b"")
    assert notes.stored() == notes.appended[3:]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("size", [0, 500])
def test_bytes_are_bounded_between_reads(size: int, together: bool) -> None:
    notes = BufferModel(bytes=64 * 1_000)
    for _ in range(50):
        notes.append(10, size, 0, together=together)
        assert len(notes.buffer) <= 64 * 1_000 // (size + OVERHEAD_BYTES)
    assert len(notes.buffer) > 50
    known = notes.stored()
    assert known == notes.appended[len(notes.appended) - len(known) :]


def test_a_put_after_a_64th_of_the_window_starts_a_block() -> None:
    notes = BufferModel(ms=WINDOW_MS)
    begun_ns = notes.now_ns
    tailed(notes, 3, b"t")
    notes.now_ns += BLOCK_MS * NS_PER_MS + 1
    tailed(notes, 3, b"")
    notes.now_ns = begun_ns + WINDOW_MS * NS_PER_MS + 1
    tailed(notes, 1, b"")
    assert notes.stored() == notes.appended[3:]


# --- confirmed and evicted --------------------------------------------------------------------------------------------


def test_confirmed_puts_are_dropped_and_later_ones_stay() -> None:
    notes = BufferModel()
    for _ in range(4):
        notes.append(100, 5, 0, together=True)
        notes.now_ns += 1_000 * NS_PER_MS
    notes.buffer.confirmed_ns = 1 + 2_000 * NS_PER_MS
    notes.buffer.drop_confirmed()
    assert notes.stored() == notes.appended[200:]
    assert notes.buffer.pop_evicted() == []


@pytest.mark.parametrize("together", [True, False])
def test_confirmed_puts_are_dropped_while_messages_are_appended(together: bool) -> None:
    notes = BufferModel()
    for _ in range(100):
        notes.append(62, 5, 0, together=together)
        notes.now_ns += 10 * NS_PER_MS
        notes.buffer.confirmed_ns = notes.now_ns - 50 * NS_PER_MS
        assert len(notes.buffer) <= 7 * 62


def evicted_since(notes: BufferModel, since_ns: int) -> int:
    return sum(number for newest_ns, number in notes.buffer.pop_evicted() if newest_ns >= since_ns)


@pytest.mark.parametrize("confirmed", [0, 30])
def test_each_unconfirmed_put_is_kept_or_counted_as_evicted(confirmed: int) -> None:
    notes = BufferModel(bytes=64 * 1_000)
    put_ns = []
    for _ in range(100):
        put_ns.append(notes.now_ns)
        notes.append(10, 5, 0, together=True)
        notes.now_ns += 60 * NS_PER_MS
        notes.buffer.confirmed_ns = put_ns[min(len(put_ns) - 1, confirmed)] if confirmed else 0
    notes.buffer.drop_confirmed()
    kept = notes.buffer.messages_since(put_ns[confirmed])
    assert len(kept) + evicted_since(notes, put_ns[confirmed]) == 10 * (100 - confirmed)
    assert notes.buffer.pop_evicted() == []


def test_only_what_was_read_of_its_publisher_is_not_counted_when_it_is_evicted() -> None:
    notes = BufferModel(bytes=64 * 1_000)
    for publisher in (0, 1, 0, 1):
        notes.append(5, 5, publisher, together=True)
    assert len(notes.buffer.messages_of({"north"})["north"]) == 10
    notes.append(400, 5, 0, together=True)
    evicted = 10 * 2 + 400 - len(notes.buffer)
    assert evicted_since(notes, 0) == evicted - 10


def test_the_read_times_of_publishers_are_bounded() -> None:
    notes = BufferModel(ms=100)
    for number in range(100):
        notes.append(1, 5, 0, together=True)
        notes.buffer.messages_of({f"publisher {number}"})
        notes.now_ns += 10 * NS_PER_MS
    assert len(notes.buffer._read) <= 12


def test_the_times_of_evictions_are_bounded() -> None:
    """Without a TCP link nothing is confirmed."""
    notes = BufferModel(bytes=64 * 1_000)
    for _ in range(3_000):
        notes.append(10, 5, 0, together=True)
        notes.now_ns += 25 * NS_PER_MS
    evicted = notes.buffer.pop_evicted()
    assert len(evicted) <= 512
    assert sum(number for _, number in evicted) == 30_000 - len(notes.buffer)


def test_evictions_without_a_pause_are_forgotten_when_their_puts_have_arrived() -> None:
    notes = BufferModel(bytes=64 * 1_000)
    for _ in range(500):
        notes.append(10, 5, 0, together=True)
        notes.now_ns += 5 * NS_PER_MS
        notes.buffer.confirmed_ns = notes.now_ns - 500 * NS_PER_MS
    unconfirmed = 10 * 500 // 5 - len(notes.buffer)
    assert unconfirmed <= evicted_since(notes, 0) <= unconfirmed + 10 * 50 // 5 + 62


def test_what_was_read_after_a_loss_is_not_counted_when_it_is_evicted() -> None:
    notes = BufferModel(ms=100)
    notes.append(50, 5, 0, together=True)
    assert len(notes.stored()) == 50
    notes.now_ns += 10 * NS_PER_MS
    notes.append(7, 5, 0, together=True)
    notes.now_ns += 200 * NS_PER_MS
    notes.append(1, 5, 0, together=True)
    assert len(notes.buffer) == 1
    assert evicted_since(notes, 0) == 7


def test_a_held_buffer_keeps_all_up_to_twice_its_bytes_and_reports_that_it_is_full() -> None:
    notes = BufferModel(bytes=100 * 205, ms=100)
    notes.buffer.hold = True
    assert not notes.buffer.is_full
    for number in range(190):
        notes.append(1, 5, 0, together=False)
        notes.now_ns += NS_PER_MS
        assert notes.buffer.is_full == (number >= 98)
    assert notes.buffer.messages_since(0) == notes.appended
    assert notes.buffer.pop_evicted() == []
    notes.append(100, 5, 0, together=False)
    assert len(notes.buffer) <= 200
    assert len(notes.buffer) + evicted_since(notes, 0) == 290


@pytest.mark.parametrize("together", [True, False])
def test_messages_since_a_time_include_the_newest(together: bool) -> None:
    notes = BufferModel()
    for _ in range(10):
        notes.append(20, 5, 0, together=together)
        notes.now_ns += NS_PER_MS
    found = notes.buffer.messages_since(1 + 5 * NS_PER_MS)
    assert found == notes.appended[100:]
    assert notes.buffer.messages_since(notes.now_ns) == []


# --- answered ---------------------------------------------------------------------------------------------------------

halves = st.integers(0, 2**64 - 1)


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.lists(st.builds(UUID, halves, halves), max_size=8), st.booleans()), max_size=12),
)
@example(
    2, [([UUID(1, 2)], True), ([UUID(2, 1)], True), ([UUID(1, 1), UUID(2, 2)], True)]
)  # two halves are no id
@example(2, [([UUID(3, 4)], True), ([UUID(1, 1), UUID(3, 4)], True), ([UUID(2, 2)], True)])  # a repeated one
def test_the_last_answered_requests_are_known(most: int, operations: list[tuple[list[UUID], bool]]) -> None:
    answered = AnsweredRequests(most)
    notified: list[UUID] = []
    for batch, asks in operations:
        answered.add_reqids(batch)
        notified += batch
        if not asks:
            continue
        assert all(each in answered for each in notified[len(notified) - min(most, len(notified)) :])
        assert sum(each in answered for each in set(notified)) <= most
        assert UUID(3, 4) not in answered or UUID(3, 4) in notified


def test_unread_answered_requests_are_bounded() -> None:
    answered = AnsweredRequests(10)
    for number in range(1_000):
        answered.add_reqids([UUID(number, number)])
        assert len(answered._unindexed) <= 2 * 20
    assert [number for number in range(1_000) if UUID(number, number) in answered] == list(range(990, 1_000))
    assert not answered._unindexed  # indexed once, and not at every query
