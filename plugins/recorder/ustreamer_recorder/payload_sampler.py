# SPDX-License-Identifier: Apache-2.0
"""Selects the publications whose payloads are kept: by topic, at most one in a period, within a budget of bytes.

In: each publication and its time of arrival. Out: whether to keep its payload. Runs on the path of messages.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuri import UUri

NEVER_NS: Final = 1 << 63
_MAX_HEADERS: Final = 16_384  # as many as cached routes of an ingress
_NS_PER_S: Final = 1_000_000_000


class SampledTopic(msgspec.Struct, weakref=True):
    """A topic, and the earliest arrival of its next kept payload; NEVER_NS: no payload of it is kept."""

    next_ns: int = 0


class PayloadSampler:
    """The limits of one streamer. Any thread may call it."""

    def __init__(self, patterns: Sequence[UUri], hz: float, bytes_per_s: int) -> None:
        """At most `hz` payloads of each topic, and `bytes_per_s` of all topics, are kept."""
        self.headers: BoundedCache[UAttributes, SampledTopic] = BoundedCache(_MAX_HEADERS)
        """The topic of each header: one look-up per message, 0.05 us."""
        self._patterns = patterns
        self._period_ns = round(_NS_PER_S / hz)
        self._bytes_per_s = bytes_per_s
        self._lock = Lock()
        # While a cached header has a topic, all its headers share one limit. The latest topics stay also without one.
        self._topics: WeakValueDictionary[UUri, SampledTopic] = WeakValueDictionary()
        self._latest_topics: BoundedCache[UUri, SampledTopic] = BoundedCache(_MAX_HEADERS)
        self._second_ns = self._second_bytes = 0
        self._dropped = 0

    def topic_of(self, attributes: UAttributes) -> SampledTopic:
        """The topic of a header. Headers of one topic share their limit."""
        topic = self.headers.get(attributes)
        if topic is not None:
            return topic
        source = attributes.source
        with self._lock:
            if not self.matches(attributes):
                topic = SampledTopic(NEVER_NS)
            else:
                topic = self._topics.setdefault(source, SampledTopic())
                self._latest_topics.add(source, topic)
            if attributes.is_cacheable:
                self.headers.add(attributes, topic)
        return topic

    def matches(self, attributes: UAttributes) -> bool:
        """Whether it is a publication of a selected topic."""
        return attributes.type is UMessageType.PUBLISH and any(
            pattern.matches(attributes.source) for pattern in self._patterns
        )

    def admit(self, topic: SampledTopic, arrived_ns: int, size: int) -> bool:
        """Whether to keep a payload of `size` bytes now. One that is due and exceeds the budget is dropped, with count.

        A message has one verdict for each target: its payload is kept at the first one.
        """
        with self._lock:
            if arrived_ns < topic.next_ns:
                return False
            topic.next_ns = arrived_ns + self._period_ns
            if arrived_ns - self._second_ns >= _NS_PER_S:
                self._second_ns, self._second_bytes = arrived_ns, 0
            if self._second_bytes + size > self._bytes_per_s:
                self._dropped += 1
                return False
            self._second_bytes += size
        return True

    def count_dropped(self, payloads: int) -> None:
        """Count payloads that were admitted and not kept."""
        with self._lock:
            self._dropped += payloads

    def pop_dropped(self) -> int:
        """The number of payloads dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped
