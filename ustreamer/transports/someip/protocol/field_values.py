# SPDX-License-Identifier: Apache-2.0
"""The last value of each field (docs/decisions/0032-fields.md). In: events. Out: values for late subscribers."""

from collections.abc import Iterable
from threading import Event, Lock
from typing import Final

from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

MAX_FIELD_CACHE_BYTES: Final = 1 << 20
"""Limit of all field values of one direction. A value above the limit is not kept; new subscribers wait for the next."""


class FieldValues:
    """The last value of each of `fields`. Any thread may call it."""

    def __init__(self, fields: Iterable[UUri]) -> None:
        self.fields = frozenset(fields)
        self.changed = Event()
        """Set with each new value."""
        self.dropped = 0
        self._values: dict[UUri, UMessage] = {}
        self._bytes = 0
        self._lock = Lock()

    def add_fields(self, fields: Iterable[UUri]) -> None:
        """Keep the values of further fields from now on."""
        self.fields = self.fields.union(fields)

    def keep(self, message: UMessage) -> None:
        """Keep the value in `message`, an event of a field. A value that is too long leaves none, not an older one."""
        topic = message.attributes.source
        with self._lock:
            self._remove(topic)
            if self._bytes + len(message.payload) > MAX_FIELD_CACHE_BYTES:
                self.dropped += 1
            else:
                self._values[topic] = message
                self._bytes += len(message.payload)
        self.changed.set()

    def keep_if_newer(self, message: UMessage) -> None:
        """As `keep`, unless the known value was published later."""
        known = self.find(message.attributes.source)
        if known is None or known.id.time_ms <= message.id.time_ms:
            self.keep(message)

    def forget(self, topics: Iterable[UUri]) -> None:
        """Drop values that become obsolete: their events are not received any more."""
        with self._lock:
            for topic in topics:
                self._remove(topic)

    def _remove(self, topic: UUri) -> None:
        old = self._values.pop(topic, None)
        self._bytes -= 0 if old is None else len(old.payload)

    def find(self, topic: UUri) -> UMessage | None:
        """The value of a field; None if there is none."""
        with self._lock:
            return self._values.get(topic)

    def matching(self, pattern: UUri) -> list[UMessage]:
        """The values of the fields that `pattern`, a topic or one of every instance, matches."""
        if pattern.is_specific:
            found = self.find(pattern)
            return [] if found is None else [found]
        with self._lock:
            return [each for topic, each in self._values.items() if pattern.matches(topic)]

    def all_values(self) -> list[UMessage]:
        """All values, in no order."""
        with self._lock:
            return list(self._values.values())

    def __len__(self) -> int:
        return len(self._values)
