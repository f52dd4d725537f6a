# SPDX-License-Identifier: Apache-2.0
"""The interface of version 4: its service, its methods and their signatures."""

from uprotocol_tck.case import case, check_equal
from uprotocol_tck.uprotocol import Code
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import World


@case(
    "req~usubscription-service_name~1",
    "req~usubscription-uentity_id~1",
    "req~usubscription-subscribe-method_id~1",
    "req~usubscription-subscribe-request-signature~1",
    "req~usubscription-subscribe-response-signature~1",
    versions=(4,),
)
def subscribe_is_method_1_of_entity_0(world: World) -> None:
    """Subscribe is method 1 of type 0; it takes topic, expiration and period, and returns topic and status."""
    app, topic = world.app(), world.topic()
    request = app.dialect.subscribe(topic, world.now_ms() + 3_600_000, 100)
    response = app.call(world.service.at(1), request)
    check_equal(response.head.code, Code.OK, "the outcome")
    check_equal(app.dialect.read_subscribed(response.payload), (State.SUBSCRIBED, topic), "status and topic")
    app.unsubscribe(topic)


@case(
    "req~usubscription-unsubscribe-method_id~1",
    "req~usubscription-unsubscribe-request-signature~1",
    "req~usubscription-unsubscribe-response-signature~1",
    versions=(4,),
)
def unsubscribe_is_method_2(world: World) -> None:
    """Unsubscribe is method 2; it takes a topic, always succeeds, and returns an empty message."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    for what in ("a subscription", "no subscription"):
        response = app.call(world.service.at(2), app.dialect.topic_request(topic))
        check_equal((response.head.code, response.payload), (Code.OK, b""), f"the response with {what}")
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")
