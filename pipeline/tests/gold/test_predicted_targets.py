# SPDX-License-Identifier: Apache-2.0
"""The endpoints that rows show, and the targets that subscriptions predict."""

from ustreamer_pipeline.gold.predicted_targets import Endpoints, PredictedTargets, PublicationTarget
from ustreamer_pipeline.gold.rules.dead_letters import dead_letter_topic

from ustreamer.core.egress import dead_letter

ONE, OTHER = "up://hpc/1/1/0", "up://hpc/2/1/0"


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


def test_targets_are_behind_other_endpoints_and_have_the_shortest_period_of_a_multicast_domain() -> None:
    endpoints = Endpoints()
    endpoints.add(ONE, "backbone")
    endpoints.add("up://tablet/1/1/0", "wamp")
    periods = {ONE: 50, OTHER: 20, "up://tablet/1/1/0": 7, "up://nowhere/1/1/0": 10}
    predicted = PredictedTargets(periods, endpoints, {"backbone": True, "wamp": False})
    tablet, backbone = PublicationTarget("wamp", "up://tablet/1/1/0"), PublicationTarget("backbone", None)
    assert predicted.of_message_from("chassis") == {backbone, tablet}
    assert predicted.of_message_from("wamp") == {backbone}
    assert predicted.periods_of(backbone) == {20, 10}  # the subscriber without an endpoint may be there
    assert predicted.periods_of(tablet) == {7}
    assert predicted.periods_of(PublicationTarget("wamp", "up://tablet/2/1/0")) == set()
    assert predicted.periods_of(PublicationTarget("cloud", None)) == {10}
