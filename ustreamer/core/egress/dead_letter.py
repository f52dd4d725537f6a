# SPDX-License-Identifier: Apache-2.0
"""Dead letters: undeliverable messages, published on `//<authority>/4/1/8000` with the reason (DSP-5 to DSP-8)."""

from threading import Lock
from typing import Final

import msgspec

from ustreamer.core.egress.limits import OVERHEAD_BYTES
from ustreamer.uprotocol.pb import ustreamer_v1 as pb
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import encode

USTREAMER: Final = 4  # the reserved uEntity core.ustreamer
USTREAMER_VERSION: Final = 1
DEAD_LETTER_RESOURCE: Final = 0x8000
LETTER_BURST: Final = 10_000
"""Letters for one endpoint from one other that are made even if all come at once: the default bound of a queue."""
LETTERS_PER_S: Final = 500
"""Letters for one endpoint from one other per second after the burst."""
_NS_PER_S: Final = 1_000_000_000


def dead_letter_topic(authority: str) -> UUri:
    return UUri(authority, USTREAMER, USTREAMER_VERSION, DEAD_LETTER_RESOURCE)


class DeadLetter(msgspec.Struct, frozen=True):
    """An undeliverable message: the reason, the egress endpoint, the attempts and their times (ms since the epoch).

    `ingress` is the endpoint that received the message.
    """

    message: UMessage
    status: UStatus
    endpoint: str
    attempts: int
    first_attempt_ms: int
    last_attempt_ms: int
    ingress: str = ""

    def to_message(self, id: UUID, topic: UUri) -> UMessage:
        """The publication for subscribers of the dead-letter topic."""
        entry = pb.DeadLetter(
            payload=self.message.payload,
            endpoint=self.endpoint,
            attempts=self.attempts,
        )
        entry.attributes.ParseFromString(encode(self.message.id, self.message.attributes))
        entry.status.code = int(self.status.code)
        entry.status.message = self.status.message
        entry.first_attempt.FromMilliseconds(self.first_attempt_ms)
        entry.last_attempt.FromMilliseconds(self.last_attempt_ms)
        return publish(id, topic, entry.SerializeToString(), UPayloadFormat.PROTOBUF)


class DeadLetterRate:
    """Counts dead letters by reason, and bounds those that can come in bulk.

    A token bucket per pair of endpoints bounds them: messages of one network leave the letters of the others.

    `suppressed` counts the refused letters.

    The bucket holds `LETTER_BURST`. A letter costs 40 us in all: making, storing and publishing. So `LETTERS_PER_S`
    cost 2 % of a core per endpoint. They are added together, once per second: if they were added one by one, each
    letter would wake the writing and the publishing thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # By endpoint and ingress: the letters left, and the time of the last addition.
        self._left: dict[tuple[str, str], tuple[int, int]] = {}
        self._counts: dict[tuple[str, UCode], int] = {}
        self.suppressed = 0

    def count(self, endpoint: str, reason: UCode) -> None:
        """Count an undeliverable message, whether `admit` refuses its letter or not."""
        with self._lock:
            self._counts[endpoint, reason] = self._counts.get((endpoint, reason), 0) + 1

    def counts(self) -> dict[tuple[str, UCode], int]:
        """The undeliverable messages by endpoint and reason. From any thread."""
        return dict(self._counts)

    def admit(self, endpoint: str, now_ns: int, ingress: str = "") -> bool:
        """Whether a letter may be made now for this pair of configured names. Counts a refusal."""
        pair = endpoint, ingress
        with self._lock:
            left, since_ns = self._left.get(pair, (LETTER_BURST, now_ns))
            if now_ns - since_ns >= _NS_PER_S:
                seconds = (now_ns - since_ns) // _NS_PER_S
                left = min(LETTER_BURST, left + seconds * LETTERS_PER_S)
                since_ns += seconds * _NS_PER_S
            self._left[pair] = (max(0, left - 1), since_ns)
            self.suppressed += not left
            return left > 0


class DeadLetterBuffer:
    """Dead letters that wait to be published. Bounded: a full buffer drops the newest and counts it as `unpublished`.

    The default bounds equal those of an egress queue: a source can overflow a queue faster than letters are written
    (95 000/s against 40 000/s, measured without a network).
    """

    def __init__(self, limit: int = 10_000, limit_bytes: int = 16_000_000) -> None:
        """Bounds in letters and in bytes of memory that their messages occupy."""
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._waiting: list[DeadLetter] = []
        self._bytes = 0
        self.unpublished = 0

    def add_letter(self, letter: DeadLetter) -> bool:
        """Add a letter; return True if the buffer was empty, so that the caller must schedule a `pop_letters`."""
        size = _size(letter)
        with self._lock:
            if len(self._waiting) >= self._limit or self._bytes + size > self._limit_bytes:
                self.unpublished += 1
                return False
            self._waiting.append(letter)
            self._bytes += size
            return len(self._waiting) == 1

    def pop_letters(self, limit: int | None = None) -> list[DeadLetter]:
        """Pop all letters, or the oldest `limit`; a caller that leaves some must schedule another call."""
        with self._lock:
            end = len(self._waiting) if limit is None else limit
            letters, self._waiting = self._waiting[:end], self._waiting[end:]
            self._bytes -= sum(map(_size, letters))
        return letters

    def abandon_rest(self) -> None:
        """Count the waiting letters as `unpublished`: the streamer has stopped."""
        self.unpublished += len(self.pop_letters())

    def __len__(self) -> int:
        return len(self._waiting)


def _size(letter: DeadLetter) -> int:
    return len(letter.message.payload) + OVERHEAD_BYTES
