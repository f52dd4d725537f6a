# SPDX-License-Identifier: Apache-2.0
"""The listeners of a message: matched once per distinct source and sink, and again after each change."""

from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec

from ustreamer.transports.someip.protocol.field_values import FieldValues
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import UUri, check_filters

if TYPE_CHECKING:
    from ustreamer.transports.someip.discovery.eventgroup_checks import EventTimes

MAX_LISTENERS: Final = 256
_MAX_CACHED: Final = 8_192  # cached pairs of source and sink


class _Registration(msgspec.Struct, frozen=True):
    source: UUri
    sink: UUri | None
    listener: Listener

    def matches(self, attributes: UAttributes) -> bool:
        if not self.source.matches(attributes.source):
            return False
        if self.sink is None or attributes.sink is None:
            return self.sink is attributes.sink
        return self.sink.matches(attributes.sink)


class _Table:
    """The registrations at one moment and the matches found with them; a change creates another table."""

    __slots__ = ("cache", "registrations")

    def __init__(self, registrations: tuple[_Registration, ...]) -> None:
        self.registrations = registrations
        self.cache: BoundedCache[tuple[UUri, UUri | None], tuple[Listener, ...]] = BoundedCache(_MAX_CACHED)


class Listeners:
    """Registered listeners. Any thread changes them; only the receiving thread calls `listeners_for`."""

    def __init__(self, authority: str, fields: FieldValues, event_times: "EventTimes | None" = None) -> None:
        """`authority` replaces an empty authority in a filter. `fields` keeps the values of fields, `event_times` the
        times of events whose silence is limited.
        """
        self._authority = authority
        self._fields = fields
        self._event_times = event_times
        self._lock = Lock()
        self._table = _Table(())

    def register(self, source: UUri, sink: UUri | None, listener: Listener) -> None:
        """Add a listener, unless it is registered with these filters. Raises as `UTransport.register_listener`."""
        added = self._registration(source, sink, listener)
        with self._lock:
            registrations = self._table.registrations
            if added in registrations:
                return
            if len(registrations) >= MAX_LISTENERS:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED, f"listeners: {MAX_LISTENERS} are registered, the limit"
                )
            self._table = _Table((*registrations, added))

    def unregister(self, source: UUri, sink: UUri | None, listener: Listener) -> None:
        """Remove a listener. Raises as `UTransport.unregister_listener`; a call that has begun may still run."""
        removed = self._registration(source, sink, listener)
        with self._lock:
            registrations = self._table.registrations
            if removed not in registrations:
                raise UStatusError(UCode.NOT_FOUND, f"no such listener for source {source}, sink {sink}")
            self._table = _Table(tuple(each for each in registrations if each != removed))

    def clear_cache(self) -> None:
        """Match all messages again: there are further fields, or events whose silence is limited."""
        with self._lock:
            self._table = _Table(self._table.registrations)

    def _registration(self, source: UUri, sink: UUri | None, listener: Listener) -> _Registration:
        check_filters(source, sink)
        sink = sink and sink.with_authority(self._authority)
        return _Registration(source.with_authority(self._authority), sink, listener)

    def listeners_for(self, attributes: UAttributes) -> tuple[Listener, ...]:
        """The listeners for a message with these attributes, each once, in order of registration.

        An event of a field goes first to the keeper of field values; the time of an event is noted before.
        """
        table = self._table
        # The key holds all that `matches` reads: two responses never have the same attributes.
        ends = attributes.source, attributes.sink
        found = table.cache.get(ends)
        if found is None:
            found = tuple(
                dict.fromkeys(each.listener for each in table.registrations if each.matches(attributes))
            )
            if attributes.source in self._fields.fields and attributes.sink is None:
                found = (self._fields.keep, *found)  # first: a value that is sent is known
            times = self._event_times
            if times is not None and attributes.source in times.topics and attributes.sink is None:
                found = (times.note, *found)
            table.cache.add(ends, found)
        return found
