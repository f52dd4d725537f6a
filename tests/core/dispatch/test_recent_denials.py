# SPDX-License-Identifier: Apache-2.0
"""Denied messages by their addresses, with times."""

import pytest

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.dispatch.recent_denials import MAX_DENIALS, RecentDenial, RecentDenials
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

METHOD = UUri("car", 0x10, 1, 1)
DENIED = RoutingDecision((), Verdict.DENIED, UStatus(UCode.PERMISSION_DENIED, "no rule"), "access")


def call_of(ue_id: int) -> UAttributes:
    return UAttributes(type=UMessageType.REQUEST, source=UUri("cloud", ue_id, 1, 0), sink=METHOD)


def test_the_denials_of_an_address_are_a_series_with_its_times() -> None:
    denials = RecentDenials("outside")
    for now_ms in (1_000, 3_000):
        denials.add(call_of(7), DENIED, now_ms)
    expected = RecentDenial("outside", UUri("cloud", 7, 1, 0), METHOD, "access", "no rule", 2, 1_000, 3_000)
    assert denials.about(METHOD) == [expected]
    assert denials.about(UUri("cloud", 7, 1, 0)) == [expected]
    assert denials.about(UUri("cloud", 8, 1, 0)) == []


def test_a_minute_without_a_denial_ends_a_series() -> None:
    denials = RecentDenials("outside")
    for now_ms in (1_000, 61_001):
        denials.add(call_of(7), DENIED, now_ms)
    [found] = denials.about(METHOD)
    assert (found.count, found.first_ms, found.last_ms) == (1, 61_001, 61_001)
    assert found.is_current(121_001)
    assert not found.is_current(121_002)


def test_the_series_that_ended_first_are_forgotten() -> None:
    denials = RecentDenials("outside")
    for number in (*range(MAX_DENIALS), 0, MAX_DENIALS):
        denials.add(call_of(number), DENIED, 1_000)
    assert [each.source.ue_id for each in denials.about(METHOD)] == [*range(2, MAX_DENIALS), 0, MAX_DENIALS]


@pytest.mark.parametrize(
    ("count", "lasted_ms", "pause_ms", "expected"),
    [
        (1, 0, 1_000, True),
        (1, 0, 1_001, False),
        (11, 1_000, 1_000, True),
        (11, 1_000, 1_001, False),
        (3, 20_000, 30_000, True),
        (3, 20_000, 30_001, False),
        (2, 50_000, 60_001, False),
    ],
)
def test_denials_go_on_for_three_mean_intervals(
    count: int, lasted_ms: int, pause_ms: int, *, expected: bool
) -> None:
    denial = RecentDenial("outside", METHOD, None, "spoofed", "", count, 0, lasted_ms)
    assert denial.goes_on(lasted_ms + pause_ms) is expected
