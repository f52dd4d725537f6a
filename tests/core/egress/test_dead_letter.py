# SPDX-License-Identifier: Apache-2.0
"""Dead letters as messages, and their buffer. Their creation is tested in test_dispatcher.py."""

from collections.abc import Callable
from threading import Thread

import pytest

from ustreamer.core.egress.dead_letter import (
    LETTER_BURST,
    LETTERS_PER_S,
    DeadLetter,
    DeadLetterBuffer,
    DeadLetterRate,
    _size,
    dead_letter_topic,
)
from ustreamer.uprotocol.pb import ustreamer_v1 as pb
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode

ID = UUID(0x018D548EA8E07000, 0x8000000000000001)
OTHER_ID = UUID(0x018D548EA8E07000, 0x8000000000000002)
LOST = UMessage(
    ID,
    UAttributes(
        type=UMessageType.REQUEST,
        source=UUri("cloud", 1, 1, 0),
        sink=UUri("chassis", 0x1234, 1, 1),
        priority=UPriority.CS4,
        ttl=5000,
        token="tok",
        permission_level=2,
        unknown=bytes.fromhex("a00601"),
    ),
    b"\x00\xff payload",
)


def letter(text: str = "link down", message: UMessage = LOST) -> DeadLetter:
    return DeadLetter(
        message, UStatus(UCode.UNAVAILABLE, text), "chassis", 3, 1_700_000_000_123, 1_700_000_005_999
    )


def test_the_dead_letter_topic_belongs_to_the_streamer_of_the_authority() -> None:
    assert str(dead_letter_topic("hpc.vin1")) == "up://hpc.vin1/4/1/8000"


def test_a_dead_letter_is_a_publication_with_header_payload_reason_and_history() -> None:
    publication = letter().to_message(OTHER_ID, dead_letter_topic("hpc"))
    publication.check(strict=True)
    assert publication.id == OTHER_ID
    assert publication.attributes.type is UMessageType.PUBLISH
    assert publication.attributes.source == UUri("hpc", 4, 1, 0x8000)
    assert publication.attributes.payload_format is UPayloadFormat.PROTOBUF

    entry = pb.DeadLetter()
    entry.ParseFromString(publication.payload)
    assert decode(entry.attributes.SerializeToString()) == (ID, LOST.attributes)
    assert entry.payload == LOST.payload
    assert (entry.status.code, entry.status.message) == (UCode.UNAVAILABLE, "link down")
    assert (entry.endpoint, entry.attempts) == ("chassis", 3)
    assert entry.first_attempt.ToMilliseconds() == 1_700_000_000_123
    assert entry.last_attempt.ToMilliseconds() == 1_700_000_005_999


# ----------------------------------------------------------------------------------------------------------- the box


def test_letters_are_popped_once_in_order() -> None:
    box = DeadLetterBuffer()
    letters = [letter(text) for text in "abc"]
    for each in letters:
        box.add_letter(each)
    assert len(box) == 3
    assert box.pop_letters() == letters
    assert box.pop_letters() == []
    assert len(box) == 0


def test_only_the_first_letter_in_an_empty_buffer_requires_a_pop() -> None:
    box = DeadLetterBuffer()
    assert [box.add_letter(letter()), box.add_letter(letter())] == [True, False]
    box.pop_letters()
    assert box.add_letter(letter()) is True


def test_a_full_buffer_drops_and_counts_the_newest_letter() -> None:
    box = DeadLetterBuffer(limit=2)
    assert [box.add_letter(letter(text)) for text in "abcd"] == [True, False, False, False]
    assert [each.status.message for each in box.pop_letters()] == ["a", "b"]
    assert box.unpublished == 2


def test_the_byte_bound_is_freed_by_popped_letters() -> None:
    box = DeadLetterBuffer(limit_bytes=2 * _size(letter()))
    assert [box.add_letter(letter(text)) for text in "abc"] == [True, False, False]
    assert box.unpublished == 1
    assert [each.status.message for each in box.pop_letters(1)] == ["a"]
    assert box.add_letter(letter("d")) is False
    assert [each.status.message for each in box.pop_letters()] == ["b", "d"]


class Interrupted(list[DeadLetter]):
    """A list that, just after its length has been read, waits for another thread to do its work; once."""

    interrupt: Callable[[], object] | None = None

    def __len__(self) -> int:
        length = super().__len__()
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()
        return length


@pytest.mark.parametrize("waiting", [0, 1, 2])
def test_a_letter_added_during_a_pop_on_another_thread_is_kept(waiting: int) -> None:
    """Either the letter is popped, or `add_letter` requests a pop; otherwise no later letter would request one."""
    box = DeadLetterBuffer()
    box._waiting = queue = Interrupted()
    for _ in range(waiting):
        box.add_letter(letter())
    collector = Thread(target=box.pop_letters)

    def collect() -> None:
        collector.start()
        collector.join(0.05)  # with a lock in the buffer the other thread runs afterwards

    queue.interrupt = collect
    called_for = box.add_letter(letter("meanwhile"))
    collector.join(30)
    assert called_for or len(box) == 0


def admitted(rate: DeadLetterRate, endpoint: str, count: int, now_ns: int) -> int:
    return sum(rate.admit(endpoint, now_ns) for _ in range(count))


def test_a_burst_of_letters_is_made_whole_and_then_500_per_second_together() -> None:
    rate, second = DeadLetterRate(), 1_000_000_000
    assert admitted(rate, "cloud", LETTER_BURST + 7, 5) == LETTER_BURST
    assert rate.suppressed == 7
    assert admitted(rate, "cloud", 1, 4 + second) == 0
    assert admitted(rate, "cloud", 1_000, 5 + second) == LETTERS_PER_S
    assert admitted(rate, "cloud", 2_000, 5 + 4 * second) == 3 * LETTERS_PER_S
    assert rate.suppressed == 7 + 1 + 500 + 500


def test_each_endpoint_has_its_own_letters_and_a_pause_restores_a_burst_at_most() -> None:
    rate, hour = DeadLetterRate(), 3_600_000_000_000
    assert admitted(rate, "cloud", LETTER_BURST, 5) == LETTER_BURST
    assert admitted(rate, "chassis", 10, 5) == 10
    assert admitted(rate, "cloud", 2 * LETTER_BURST, 5 + hour) == LETTER_BURST
    assert rate.suppressed == LETTER_BURST
