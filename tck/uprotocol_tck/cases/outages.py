# SPDX-License-Identifier: Apache-2.0
"""The network of the other device is away for some time. These cases run alone."""

from typing import Final

from uprotocol_tck.case import Need, case, check, check_equal
from uprotocol_tck.uprotocol import Code
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import World

AWAY: Final = (Need.OTHER_NETWORK,)


@case("DSP-2", "DSP-3", subject="streamer", needs=AWAY, disturbs=True)
def a_message_for_a_network_that_is_away_is_kept_and_sent_later(world: World) -> None:
    """A message that cannot be sent is queued, and sent when the network is there again, in order."""
    app = world.app()
    server_address = world.far_app().address
    method = server_address.at(0x51)
    with world.far_network_away():
        sent = [app.request(method, b"%d" % number, ttl=30_000) for number in range(3)]
        app.subscriptions(subscriber=app.address)  # a call after them: they have arrived at the subject
        world.quiet()
    server = world.far_app(server_address)
    server.serve(method)
    received = server.wait(
        lambda each: each.attributes is not None and each.attributes.id in sent,
        "the kept Requests",
        len(sent),
    )
    check_equal(list(dict.fromkeys(each.head.id for each in received)), sent, "the ids, in order")


@case("DSP-17", "dsn~up-attributes-ttl-timeout~1", subject="streamer", needs=AWAY, disturbs=True)
def a_request_that_expires_in_the_queue_is_answered(world: World) -> None:
    """A Request that cannot be sent within its ttl gets a Response with an error."""
    app, server = world.app(), world.far_app().address
    with world.far_network_away():
        request = app.request(server.at(0x51), b"?", ttl=700)
        response = app.wait_response(request, "the response of the dispatcher")
    check(
        response.head.code in {Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE},
        f"the outcome is {response.head.code.name}",
    )


@case("LIF-18", versions=(3, 4), needs=AWAY, disturbs=True)
def a_forwarded_subscribe_is_repeated_when_the_network_returns(world: World) -> None:
    """A Subscribe that the other device did not receive is sent when its network is there again."""
    app, topic = world.app(), world.other_topic()
    with world.far_network_away():
        check_equal(app.subscribe(topic), State.SUBSCRIBE_PENDING, "the response to Subscribe")
        world.quiet()
    world.remote.wait_call(topic, subscribe=True)  # not held: a subject may repeat it, and each is answered
    app.wait_state(topic, State.SUBSCRIBED)


@case(
    "req~usubscription-unsubscribe-last-remote~1",
    "req~usubscription-remote-retry-indefinitely~1",
    "LIF-18",
    versions=(3, 4),
    needs=AWAY,
    disturbs=True,
)
def a_forwarded_unsubscribe_is_repeated_when_the_network_returns(world: World) -> None:
    """An Unsubscribe that was not sent, or that expired on the path, is sent when the other network is there again."""
    app, unsent, expired = world.app(), world.other_topic(), world.other_topic()
    for each in (unsent, expired):
        app.subscribe(each)
        app.wait_state(each, State.SUBSCRIBED)
    world.remote.hold(expired)
    app.unsubscribe(expired)
    world.remote.wait_call(expired, subscribe=False).fail(Code.DEADLINE_EXCEEDED)
    world.quiet()
    with world.far_network_away():
        app.unsubscribe(unsent)
        world.quiet()
    world.remote.wait_call(unsent, subscribe=False)
    world.remote.wait_call(expired, subscribe=False, count=2)
