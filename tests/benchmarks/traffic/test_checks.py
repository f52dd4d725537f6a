# SPDX-License-Identifier: Apache-2.0
"""The checks of a run find a lost message, a message out of order, a wrong rate, and a call answered twice or not."""

from typing import Any

import pytest

from benchmarks.traffic.checks import CallCounts, TopicChecks, TopicCounts, check_topics
from benchmarks.traffic.models import MODELS, VEHICLE, TrafficModel

PLAIN = TrafficModel("plain", 4)
LIMITED = TrafficModel("limited", 10, limits=True, service_topics=2)
"""Topics 8 and 9 have 5 Hz; the subscription of topic 1 comes and goes."""
_NS_PER_S = 1_000_000_000


def received(model: TrafficModel, numbers: list[int]) -> dict[str, Any]:
    counts = TopicCounts(model)
    for number in numbers:
        counts.on_message(number, number * 1_000_000)
    return counts.report()


def checked(model: TrafficModel, numbers: list[int], sent: int) -> TopicChecks:
    return check_topics(model, model.counts(0, sent), received(model, numbers), limits=True, switched=True)


def test_all_messages_in_order_pass() -> None:
    assert checked(PLAIN, list(range(100)), 100).passed


def test_a_missing_message_is_lost() -> None:
    found = checked(PLAIN, [number for number in range(100) if number != 50], 100)
    assert (found.lost, found.out_of_order, found.passed) == (1, 0, False)


@pytest.mark.parametrize(("numbers", "disordered"), [([4, 0], 1), ([0, 0], 1), ([1, 0], 0)])
def test_order_is_that_of_each_topic(numbers: list[int], disordered: int) -> None:
    assert received(PLAIN, numbers)["out_of_order"] == disordered


def test_a_report_begins_new_counts_and_keeps_the_order() -> None:
    counts = TopicCounts(PLAIN)
    assert not counts.on_message(4, 0)
    assert sum(counts.report()["received"]) == 1
    assert counts.on_message(0, 0)
    assert counts.report()["received"] == [1, 0, 0, 0]


def limited_report(received_8: int, seconds: float) -> dict[str, Any]:
    found = received(LIMITED, [])
    found["received"] = [1_000] * 8 + [received_8, 0]
    found["times_ns"] = {"8": [0, round(seconds * _NS_PER_S)]}
    return found


@pytest.mark.parametrize(
    ("messages", "inaccurate", "above"), [(501, 0, 0), (497, 0, 0), (493, 1, 0), (507, 0, 0), (512, 1, 1)]
)
def test_a_rate_off_by_more_than_a_hundredth_is_found(messages: int, inaccurate: int, above: int) -> None:
    sent = [1_000] * 8 + [6_000, 0, 0]
    found = check_topics(LIMITED, sent, limited_report(messages, 100.0), limits=True, switched=True)
    assert (found.limited, found.inaccurate, found.above_limit) == (1, inaccurate, above)
    assert found.worst_rate == pytest.approx((messages - 1) / 500)


def test_the_rate_of_a_slow_publisher_is_not_compared() -> None:
    sent = [1_000] * 8 + [900, 0, 0]
    found = check_topics(LIMITED, sent, limited_report(400, 100.0), limits=True, switched=True)
    assert (found.limited, found.inaccurate, found.passed) == (0, 0, True)


def test_without_a_throttle_every_topic_is_complete() -> None:
    sent = [1_000] * 8 + [900, 0, 0]
    found = check_topics(LIMITED, sent, limited_report(400, 100.0), limits=False, switched=True)
    assert found.lost == 500


def test_a_topic_whose_subscription_comes_and_goes_may_miss_messages() -> None:
    report = received(LIMITED, [0, 2])
    sent = [1, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert check_topics(LIMITED, sent, report, limits=True, switched=True).lost == 0
    assert check_topics(LIMITED, sent, report, limits=True, switched=False).lost == 5


def test_counts_are_those_of_the_sequence() -> None:
    model = TrafficModel("few", 3, rates_hz=(1.0, 10.0), calls=0.05)
    length = len(model.sequence)
    for first, end in [(0, 10), (length - 3, length + 3), (5, 2 * length + 7), (4, 4)]:
        expected = [0] * 4
        for number in range(first, end):
            expected[model.sequence[number % length]] += 1
        assert model.counts(first, end) == expected


def test_a_fifth_of_the_vehicle_topics_is_throttled() -> None:
    limited = [topic for topic in range(VEHICLE.topics) if VEHICLE.limit_hz(topic) is not None]
    assert len(limited) == VEHICLE.topics / 5
    switched = [topic for topic in range(VEHICLE.topics) if VEHICLE.is_switched(topic)]
    assert len(switched) > 10
    assert not set(limited) & set(switched)
    assert not any(MODELS["500"].limit_hz(topic) for topic in range(500))


def test_each_call_is_answered_once() -> None:
    calls = CallCounts()
    for number in range(4):
        calls.on_request(number)
    for number in (0, 1, 1, 7):
        calls.on_response(number, 2_000 if number else None)
    assert calls.report() == {
        "answered": 2, "unanswered": 2, "unexpected": 2, "p50_us": 2.0, "p99_us": 2.0,
    }  # fmt: skip
    calls.on_response(3, None)
    assert calls.report() == {
        "answered": 1, "unanswered": 1, "unexpected": 0, "p50_us": 0.0, "p99_us": 0.0,
    }  # fmt: skip
