# SPDX-License-Identifier: Apache-2.0
"""What is remembered of what was put: exactly that, in order, and within its bounds, however it was noted."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.contract import TOPIC
from ustreamer.transports.zenoh.replay import HEAD, OVERHEAD_BYTES, Memory, Origin, Replay
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


class Notes:
    """What a memory is told, and what it should know."""

    def __init__(self, **bounds: int) -> None:
        self.replay = Replay(**bounds)
        self.memory = Memory(self.replay)
        self.noted: list[tuple[str, int, UMessage]] = []
        self.now_ns = 1

    def note(self, count: int, size: int, publisher: int, *, together: bool) -> None:
        numbers = range(len(self.noted), len(self.noted) + count)
        payloads = [bytes([number % 251]) * size for number in numbers]
        for number, payload in zip(numbers, payloads, strict=True):
            message = UMessage(UUID(number, 1 << 63 | number), ATTRIBUTES, payload)
            self.noted.append((PUBLISHERS[publisher], self.now_ns, message))
        heads, origin = [head(number) for number in numbers], ORIGINS[publisher]
        if together:
            self.memory.note(origin, [self.now_ns] * count, heads, payloads)
            return
        for each, payload in zip(heads, payloads, strict=True):
            self.memory.note_one(origin, self.now_ns, each, payload)

    def known(self) -> list[tuple[str, int, UMessage]]:
        found = [(name, *each) for name in PUBLISHERS for each in self.memory.of(name)]
        return sorted(found, key=lambda each: each[2].id)


steps = st.lists(
    st.tuples(st.integers(1, 70), st.integers(0, 300), st.integers(0, 1), st.booleans(), st.integers(0, 40)),
    max_size=30,
)


@given(steps, st.integers(1, 600), st.integers(1, 60_000), st.integers(1, 100))
def test_the_newest_are_known_within_all_bounds(
    story: list[tuple[int, int, int, bool, int]], messages: int, size: int, window_ms: int
) -> None:
    notes = Notes(messages=messages, bytes=size, ms=window_ms)
    largest = 0
    for count, payload, publisher, together, pause_ms in story:
        notes.now_ns += pause_ms * NS_PER_MS
        notes.note(count, payload, publisher, together=together)
        at_once = count if together else 1  # such a helping is let go of as a whole
        largest = max(largest, at_once * (payload + OVERHEAD_BYTES))
        known = notes.known()
        assert known == notes.noted[len(notes.noted) - len(known) :]  # the newest, as they were
        assert 1 <= len(known) == len(notes.memory)
        assert len(known) <= max(messages, at_once)
        occupied = sum(len(message.payload) + OVERHEAD_BYTES for _, _, message in known)
        assert occupied <= max(size, largest)


@pytest.mark.parametrize("together", [True, False])
def test_a_64th_at_most_is_let_go_of_before_its_time(together: bool) -> None:
    notes = Notes(messages=640)
    notes.note(640, 10, 0, together=False)
    notes.note(10, 10, 1, together=together)
    assert len(notes.known()) >= 630


def test_what_is_older_than_the_window_goes_with_the_next_message() -> None:
    notes = Notes(ms=100)
    notes.note(3, 10, 0, together=False)
    notes.now_ns += 50 * NS_PER_MS
    notes.note(1, 10, 1, together=False)
    assert len(notes.known()) == 4
    notes.now_ns += 60 * NS_PER_MS
    notes.note(1, 10, 0, together=False)
    assert [message.id.msb for _, _, message in notes.known()] == [3, 4]


def test_without_a_window_nothing_is_asked_for() -> None:
    assert not Memory(Replay(ms=0)).is_on
    assert Memory(Replay()).is_on


def test_an_answer_is_known_with_its_own_reqid() -> None:
    notes = Notes()
    answers = [answer(number) for number in range(200)]
    origin = Origin("north", msgspec.structs.replace(answers[0].attributes, reqid=None), answers=True)
    for each in answers:
        assert each.attributes.reqid is not None
        notes.memory.note_one(origin, 1, head(each.id.msb), reqid_field(each.attributes.reqid) + each.payload)
    assert notes.memory.of("north") == [(1, each) for each in answers]


def answer(number: int) -> UMessage:
    asked = request(UUID(0x7000, 1 << 63 | number), CALLER, TOPIC.with_resource(1), ttl=5)
    return response(UUID(number, 1 << 63 | number), asked, b"%d" % number)
