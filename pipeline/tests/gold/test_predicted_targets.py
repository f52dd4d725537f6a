# SPDX-License-Identifier: Apache-2.0
"""The subscribers of a topic over time, and the endpoints that rows show."""

from typing import Any

from ustreamer_pipeline.gold.predicted_targets import SLACK_NS, Endpoints, TopicSubscribers
from ustreamer_pipeline.gold.rules.dead_letters import dead_letter_topic

from ustreamer.core.egress import dead_letter

TOPIC = "up://chassis/1234/1/8001"
ONE, OTHER = "up://hpc/1/1/0", "up://hpc/2/1/0"


def change(
    time_ns: int, kind: str, subscriber: str, period_ns: int = 0, topic: str = TOPIC
) -> dict[str, Any]:
    return {
        "time_ns": time_ns,
        "change": kind,
        "subscriber": subscriber,
        "period_ns": period_ns,
        "topic": topic,
    }


def test_each_change_of_a_matching_subscription_is_a_step() -> None:
    found = TopicSubscribers(
        TOPIC,
        [
            change(1, "PRESENT", ONE, 50),
            change(2, "SUBSCRIBED", OTHER, 0, "up://chassis/FFFF1234/1/FFFF"),
            change(3, "SUBSCRIBED", OTHER, 0, "up://chassis/1235/1/8001"),
            change(4, "CHANGED", ONE, 20),
            change(5, "SUBSCRIBED", OTHER, 10),
            change(6, "UNSUBSCRIBED", ONE, 20),
        ],
    )
    assert found.between(0, 9) == [
        {},
        {ONE: 50},
        {ONE: 50, OTHER: 0},
        {ONE: 20, OTHER: 0},
        {ONE: 20, OTHER: 0},  # the faster of two patterns
        {OTHER: 0},
    ]
    assert found.surely_ns.tolist() == [1, *(at + SLACK_NS for at in (2, 4, 5, 6))]
    assert found.perhaps_ns.tolist() == [at - SLACK_NS for at in (1, 2, 4, 5, 6)]


def test_an_entity_lives_where_its_authority_was_seen_unless_rows_contradict() -> None:
    endpoints = Endpoints()
    endpoints.add(ONE, "backbone")
    assert [endpoints.find(each) for each in (ONE, OTHER, "up://cloud/1/1/0")] == [
        "backbone",
        "backbone",
        None,
    ]
    endpoints.add("up://hpc/0/3/0", "self")  # a service that the gateway hosts
    assert [endpoints.find(each) for each in ("up://hpc/0/3/0", OTHER)] == ["self", "backbone"]
    endpoints.add("up://hpc/3/1/0", "cloud")
    assert [endpoints.find(each) for each in (ONE, OTHER)] == ["backbone", None]


def test_the_topic_of_dead_letters_is_that_of_the_gateway() -> None:
    assert dead_letter_topic("hpc.vin1") == str(dead_letter.dead_letter_topic("hpc.vin1"))
