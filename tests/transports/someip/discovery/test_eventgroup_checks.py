# SPDX-License-Identifier: Apache-2.0
"""Due event groups: fields without a value, and events that are silent for too long."""

import pytest

from ustreamer.transports.someip.discovery.eventgroup_checks import (
    EventgroupChecks,
    EventgroupFacts,
    EventTimes,
)
from ustreamer.transports.someip.discovery.usubscription_proxy import EventgroupKey
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

GROUP = EventgroupKey(ServiceKey(0x1234, 1, 1), 7)
FAST, SLOW = (UUri("chassis", 0x1234, 1, event) for event in (0x8001, 0x8002))
MS = 1_000_000


class Bench:
    """The checks of one group, at a time that the test moves in milliseconds."""

    def __init__(self, limits_ms: dict[UUri, int], *, lacks_values: bool = False) -> None:
        self.now_ms, self.lacks_values = 1_000, lacks_values
        self.times = EventTimes(lambda: self.now_ms * MS)
        self.times.add_topics(frozenset(limits_ms))
        facts = EventgroupFacts(lambda group: self.lacks_values, lambda group: limits_ms, self.times.last_ns)
        self.checks = EventgroupChecks(facts, initial_event_ms=1_000)
        self.checks.start(GROUP, self.now_ms * MS)

    def event(self, topic: UUri) -> None:
        self.times.note(publish(UUID(0, 0), topic, b""))

    def silent_times(self, until_ms: int) -> list[int]:
        """The times at which the group is silent, up to `until_ms`. Each deadline is met exactly."""
        found = []
        while (due_ns := self.checks.next_deadline_ns) is not None and due_ns <= until_ms * MS:
            self.now_ms = due_ns // MS
            found += [self.now_ms for _ in self.checks.pop_silent_groups(due_ns)]
            list(self.checks.pop_groups_without_value(due_ns))
        self.now_ms = until_ms
        return found


# [utest->SD-439]
def test_a_silent_group_is_due_after_doubled_pauses_up_to_a_minute() -> None:
    bench = Bench({FAST: 10_000})
    assert bench.silent_times(200_000) == [11_000, 31_000, 71_000, 111_000, 151_000, 191_000]


# [utest->SD-439]
def test_each_event_delays_the_check_and_ends_the_doubling() -> None:
    bench = Bench({FAST: 100})
    assert bench.silent_times(1_350) == [1_100, 1_300]
    bench.event(FAST)
    assert bench.silent_times(1_650) == []
    bench.event(FAST)
    assert bench.silent_times(1_800) == [1_750]


# [utest->SD-439]
def test_a_group_is_silent_if_one_of_its_events_is() -> None:
    bench = Bench({FAST: 100, SLOW: 1_000})
    for at in range(1_050, 2_000, 50):
        assert bench.silent_times(at) == []
        bench.event(FAST)
    assert bench.silent_times(2_040) == [2_000]


@pytest.mark.parametrize("limits", [{}, {FAST: 100}])
def test_nothing_is_due_after_the_end_of_the_subscription(limits: dict[UUri, int]) -> None:
    bench = Bench(limits, lacks_values=True)
    bench.checks.stop(GROUP)
    assert bench.checks.next_deadline_ns is None
    bench.checks.stop(GROUP)


# [utest->SD-691]
def test_a_group_with_a_missing_value_is_due_until_the_value_is_there() -> None:
    bench = Bench({}, lacks_values=True)
    for due_ms in (2_000, 4_000, 8_000):
        assert bench.checks.next_deadline_ns == due_ms * MS
        assert list(bench.checks.pop_groups_without_value(due_ms * MS)) == [GROUP]
    bench.lacks_values = False
    assert list(bench.checks.pop_groups_without_value(16_000 * MS)) == []
    assert bench.checks.next_deadline_ns is None
