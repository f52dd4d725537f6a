# SPDX-License-Identifier: Apache-2.0
"""The subscribers of a topic over time: looked up, with the result of a comparison of the topic with each pattern."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_pipeline.gold.topic_subscribers import SLACK_NS, SubscriptionChanges

from ustreamer.uprotocol.uuri import UUri

TOPIC = "up://chassis/1234/1/8001"
ONE, OTHER = "up://hpc/1/1/0", "up://hpc/2/1/0"

Row = dict[str, Any]


def change(time_ns: int, kind: str, subscriber: str, period_ns: int = 0, topic: str = TOPIC) -> Row:
    return {
        "time_ns": time_ns,
        "change": kind,
        "subscriber": subscriber,
        "period_ns": period_ns,
        "topic": topic,
    }


def periods_after_each(topic: str, changes: list[Row]) -> list[dict[str, int]]:
    subscribers = SubscriptionChanges(changes).of_topic(topic)
    return [dict(subscribers.after(number)) for number in range(len(subscribers.surely_ns) + 1)]


def test_each_change_of_a_matching_subscription_is_a_step() -> None:
    changes = [
        change(1, "PRESENT", ONE, 50),
        change(2, "SUBSCRIBED", OTHER, 0, "up://chassis/FFFF1234/1/FFFF"),
        change(3, "SUBSCRIBED", OTHER, 0, "up://chassis/1235/1/8001"),
        change(4, "CHANGED", ONE, 20),
        change(5, "SUBSCRIBED", OTHER, 10),
        change(6, "UNSUBSCRIBED", ONE, 20),
    ]
    assert periods_after_each(TOPIC, changes) == [
        {},
        {ONE: 50},
        {ONE: 50, OTHER: 0},
        {ONE: 20, OTHER: 0},
        {ONE: 20, OTHER: 0},  # the faster of two patterns
        {OTHER: 0},
    ]
    found = SubscriptionChanges(changes).of_topic(TOPIC)
    assert found.surely_ns.tolist() == [1, *(at + SLACK_NS for at in (2, 4, 5, 6))]
    assert found.perhaps_ns.tolist() == [at - SLACK_NS for at in (1, 2, 4, 5, 6)]
    assert [found.after(number) for number in (5, 1)] == [{OTHER: 0}, {ONE: 50}]  # in any order


def test_subscriptions_that_are_present_at_the_beginning_are_one_step() -> None:
    changes = [change(1, "PRESENT", ONE, 50), change(2, "PRESENT", OTHER), change(3, "UNSUBSCRIBED", ONE)]
    assert periods_after_each(TOPIC, changes) == [{}, {ONE: 50, OTHER: 0}, {OTHER: 0}]
    found = SubscriptionChanges(changes).of_topic(TOPIC)
    assert (found.surely_ns.tolist(), found.perhaps_ns.tolist()) == (
        [2, 3 + SLACK_NS],
        [1 - SLACK_NS, 3 - SLACK_NS],
    )


def test_a_text_that_is_no_address_matches_itself() -> None:
    changes = [
        change(1, "SUBSCRIBED", ONE, topic="speed"),
        change(2, "SUBSCRIBED", OTHER, topic="//*/FFFF/FF/FFFF"),
    ]
    assert periods_after_each("speed", changes) == [{}, {ONE: 0}]
    assert periods_after_each("brake", changes) == [{}]


_ADDRESS = st.tuples(
    st.sampled_from(["a", "b", "*"]),
    st.sampled_from([0x1, 0x2, 0xFFFF, 0x1_0001, 0xFFFF_0001, 0xFFFF_FFFF]),
    st.sampled_from([1, 2, 0xFF]),
    st.sampled_from([0x8000, 0x8001, 0xFFFF]),
)


@given(st.lists(_ADDRESS, max_size=12), _ADDRESS)
def test_a_topic_has_the_subscribers_whose_pattern_matches_it(
    patterns: list[tuple[str, int, int, int]], topic: tuple[str, int, int, int]
) -> None:
    changes = [
        change(at, "SUBSCRIBED", f"//s/{at:X}/1/0", topic=str(UUri(*pattern)))
        for at, pattern in enumerate(patterns)
    ]
    expected = {
        f"//s/{at:X}/1/0": 0 for at, pattern in enumerate(patterns) if UUri(*pattern).matches(UUri(*topic))
    }
    assert periods_after_each(str(UUri(*topic)), changes)[-1] == expected


@pytest.mark.parametrize("version", ["1", "FF"])
def test_a_topic_is_not_compared_with_the_subscriptions_of_other_topics(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def parse(text: str) -> UUri:
        parsed.append(text)
        return UUri("chassis", int(text.split("/")[3], 16), int(text.split("/")[4], 16), 0x8001)

    topics = [f"up://chassis/{number:X}/1/8001" for number in range(1, 1001)]
    patterns = [f"up://chassis/{number:X}/{version}/8001" for number in range(1, 1001)]
    monkeypatch.setattr("ustreamer_pipeline.gold.topic_subscribers.UUri.parse", parse)
    changes = SubscriptionChanges([change(1, "PRESENT", ONE, topic=pattern) for pattern in patterns])
    assert all(changes.of_topic(topic).after(1) == {ONE: 0} for topic in topics)
    assert len(parsed) == len(patterns) + len(topics)
