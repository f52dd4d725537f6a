# SPDX-License-Identifier: Apache-2.0
"""Keeps payloads only around triggers: from some time before a trigger until some time after it.

In: each message with its verdict, and each payload that is due, in the order of their notes. Out: the payloads to write.
Pure; the writer's thread owns it.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.note_queue import SampleNote

MAX_SAMPLES: Final = 100_000
MAX_BYTES: Final = 32_000_000
"""Bounds of the payloads that wait for a trigger. Above them the oldest are dropped."""
_MAX_HEADERS: Final = 16_384  # as many as cached routes of an ingress


class TriggerWindow:
    """Payloads that wait for a trigger, and the end of the present window."""

    def __init__(
        self, topics: Sequence[UUri], verdicts: Collection[Verdict], before_ns: int, after_ns: int
    ) -> None:
        """A trigger is a publication of one of the topics, or any message with one of the verdicts."""
        self.dropped = 0
        """Payloads that were dropped because of a bound, and not because of their age."""
        self._topics = topics
        self._verdicts = frozenset(verdicts)
        self._before_ns, self._after_ns = before_ns, after_ns
        self._waiting: deque[SampleNote] = deque()
        self._bytes = 0
        self._until_ns = -1
        self._headers: BoundedCache[UAttributes, bool] = BoundedCache(_MAX_HEADERS)

    def observe(self, attributes: UAttributes, verdict: Verdict, arrived_ns: int) -> list[SampleNote]:
        """One message. A trigger opens the window or makes it longer; returns the payloads that waited for it."""
        if verdict not in self._verdicts and not self._is_trigger_topic(attributes):
            return []
        self._until_ns = max(self._until_ns, arrived_ns + self._after_ns)
        self._remove_older(arrived_ns - self._before_ns)
        found = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return found

    def add(self, note: SampleNote) -> bool:
        """Whether to write a payload now. Any other one waits for a trigger, as long as the time before it."""
        if note.arrived_ns <= self._until_ns:
            return True
        self._remove_older(note.arrived_ns - self._before_ns)
        self._waiting.append(note)
        self._bytes += len(note.payload)
        while len(self._waiting) > MAX_SAMPLES or self._bytes > MAX_BYTES:
            self._remove_oldest()
            self.dropped += 1
        return False

    def _is_trigger_topic(self, attributes: UAttributes) -> bool:
        if not self._topics:
            return False
        known = self._headers.get(attributes)
        if known is None:
            known = attributes.type is UMessageType.PUBLISH and any(
                topic.matches(attributes.source) for topic in self._topics
            )
            if attributes.is_cacheable:
                self._headers.add(attributes, known)
        return known

    def _remove_older(self, than_ns: int) -> None:
        while self._waiting and self._waiting[0].arrived_ns < than_ns:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        self._bytes -= len(self._waiting.popleft().payload)
