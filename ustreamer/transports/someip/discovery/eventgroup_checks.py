# SPDX-License-Identifier: Apache-2.0
"""Which acknowledged event groups must be subscribed again: a field has no value, or an event is silent for too long.

In: the start and the end of a subscription, the times of events, and the time. Out: due event groups. Each group that
stays without a value or silent is due after twice the last pause, up to a minute. Belongs to the receiving thread.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.transports.someip.discovery.usubscription_proxy import EventgroupKey
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

_NS_PER_MS: Final = 1_000_000
_MAX_PAUSE_MS: Final = 60_000


class EventTimes:
    """The time of the last event of each of `topics`. No other event reaches `note`, so others cost nothing."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self.topics: frozenset[UUri] = frozenset()
        self._monotonic_ns = monotonic_ns
        self._last_ns: dict[UUri, int] = {}

    def add_topics(self, topics: frozenset[UUri]) -> None:
        """Note the events of further topics from now on."""
        self.topics |= topics

    def note(self, message: UMessage) -> None:
        """Note an event of one of `topics`. It is a listener."""
        self._last_ns[message.attributes.source] = self._monotonic_ns()

    def last_ns(self, topic: UUri) -> int:
        """The time of the last event; 0 if there was none."""
        return self._last_ns.get(topic, 0)


class EventgroupFacts(NamedTuple):
    """What the checks need to know about an event group."""

    lacks_values: Callable[[EventgroupKey], bool]
    """Whether a field of the group has no value."""
    max_silences_ms: Callable[[EventgroupKey], Mapping[UUri, int]]
    """The limits of the events of the group that have one."""
    last_event_ns: Callable[[UUri], int]
    """The time of the last event of a topic."""


class _Silence:
    """The limits of a group, and the time and the factor of the present wait."""

    def __init__(self, limits_ms: Mapping[UUri, int], now_ns: int) -> None:
        self.limits_ns = {topic: limit * _NS_PER_MS for topic, limit in limits_ms.items()}
        self.shortest_ns = min(self.limits_ns.values())
        self.since_ns, self.factor = now_ns, 1


class EventgroupChecks:
    """The checks of all acknowledged event groups of an endpoint."""

    def __init__(self, facts: EventgroupFacts, initial_event_ms: int) -> None:
        self._facts = facts
        self._initial_event_ms = initial_event_ms
        self._value_checks: DeadlineQueue[EventgroupKey] = DeadlineQueue()
        self._value_pauses_ms: dict[EventgroupKey, int] = {}
        self._silence_checks: DeadlineQueue[EventgroupKey] = DeadlineQueue()
        self._silences: dict[EventgroupKey, _Silence] = {}

    def start(self, group: EventgroupKey, now_ns: int) -> None:
        """The ECU has acknowledged the subscription of a group."""
        self._check_values_after(group, self._initial_event_ms, now_ns)
        limits_ms = self._facts.max_silences_ms(group)
        if limits_ms:
            silence = self._silences[group] = _Silence(limits_ms, now_ns)
            self._silence_checks.schedule(group, now_ns + silence.shortest_ns)

    def stop(self, group: EventgroupKey) -> None:
        """The subscription has ended, or is pending again."""
        self._value_checks.cancel(group)
        self._value_pauses_ms.pop(group, None)
        self._silence_checks.cancel(group)
        self._silences.pop(group, None)

    @property
    def next_deadline_ns(self) -> int | None:
        """The time of the next check."""
        due = (self._value_checks.next_due, self._silence_checks.next_due)
        return min((each for each in due if each is not None), default=None)

    def _check_values_after(self, group: EventgroupKey, pause_ms: int, now_ns: int) -> None:
        self._value_pauses_ms[group] = pause_ms
        self._value_checks.schedule(group, now_ns + pause_ms * _NS_PER_MS)

    # [impl->SD-691]
    def pop_groups_without_value(self, now_ns: int) -> Iterator[EventgroupKey]:
        """The due groups with a field that has no value."""
        while (group := self._value_checks.pop_due(now_ns)) is not None:
            if self._facts.lacks_values(group):
                pause_ms = min(2 * self._value_pauses_ms[group], _MAX_PAUSE_MS)
                self._check_values_after(group, pause_ms, now_ns)
                yield group

    # [impl->SD-439]
    def pop_silent_groups(self, now_ns: int) -> Iterator[EventgroupKey]:
        """The due groups of which an event is silent for longer than its limit."""
        while (group := self._silence_checks.pop_due(now_ns)) is not None:
            if self._is_silent(group, now_ns):
                yield group

    def _is_silent(self, group: EventgroupKey, now_ns: int) -> bool:
        """Whether an event of a due group is silent. Schedules the next check."""
        silence = self._silences[group]
        last_ns = {topic: self._facts.last_event_ns(topic) for topic in silence.limits_ns}
        if all(each > silence.since_ns for each in last_ns.values()):
            silence.factor = 1
        end_ns = min(
            max(last_ns[topic], silence.since_ns) + limit_ns * silence.factor
            for topic, limit_ns in silence.limits_ns.items()
        )
        is_silent = end_ns <= now_ns
        if is_silent:
            silence.since_ns = now_ns
            if 2 * silence.factor * silence.shortest_ns <= _MAX_PAUSE_MS * _NS_PER_MS:
                silence.factor *= 2
            end_ns = now_ns + silence.shortest_ns * silence.factor
        self._silence_checks.schedule(group, end_ns)
        return is_silent
