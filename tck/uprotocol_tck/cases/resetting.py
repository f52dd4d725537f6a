# SPDX-License-Identifier: Apache-2.0
"""Reset, which ends every subscription of the subject. These cases run alone."""

from typing import Final

from uprotocol_tck.case import Need, case, check_equal
from uprotocol_tck.uprotocol import Code
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import World

BOTH: Final = (3, 4)


@case("req~usubscription-reset-only-usubscription~1", versions=BOTH, needs=[Need.RESET], disturbs=True)
def only_a_usubscription_may_reset(world: World) -> None:
    """A Reset of any entity that is no uSubscription is refused with PERMISSION_DENIED and ends nothing."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    check_equal(app.ask(app.dialect.methods.reset, b"").head.code, Code.PERMISSION_DENIED, "the outcome")
    check_equal(app.state_of(topic), State.SUBSCRIBED, "the listed state")


def _check_reset(world: World) -> None:
    app, observer, topic = world.app(), world.app(), world.topic()
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    observer.register(topic)
    other = world.far_usubscription()
    response = other.ask_ok(other.dialect.methods.reset, b"")
    check_equal(response.payload, b"", "the payload of the response")
    app.wait_change(topic, State.UNSUBSCRIBED)
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED, count=2)
    world.quiet()
    # It may be notified of the Reset itself, also late; before its registration there was the first Subscribe.
    later = [each for each in observer.changes(topic) if each.state is State.SUBSCRIBED]
    check_equal(later, [], "notifications of an entity whose registration has ended")


@case(
    "req~usubscription-reset~1",
    "dsn~usubscription-reset-protobuf~1",
    versions=(3,),
    needs=[Need.RESET, Need.OTHER],
    disturbs=True,
)
def a_reset_ends_all_subscriptions_and_registrations(world: World) -> None:
    """Reset, of another uSubscription, ends every subscription and registration, and notifies the subscribers."""
    _check_reset(world)


@case(
    "req~usubscription-reset~1",
    "req~usubscription-reset-method_id~1",
    "req~usubscription-reset-request-signature~1",
    "req~usubscription-reset-response-signature~1",
    versions=(4,),
    needs=[Need.RESET, Need.OTHER],
    disturbs=True,
)
def a_reset_of_version_4_ends_all_subscriptions_and_registrations(world: World) -> None:
    """Reset, method 6 with empty messages, ends every subscription and registration, and notifies the subscribers."""
    _check_reset(world)


@case("req~usubscription-reset~1", versions=BOTH, needs=[Need.RESET, Need.OTHER, Need.RESTART], disturbs=True)
def what_a_reset_ended_does_not_return(world: World) -> None:
    """Reset flushes the stored subscriptions and registrations, too: none returns after a restart."""
    app, observer, topic = world.app(), world.app(), world.topic()
    app.subscribe(topic)
    observer.register(topic)
    other = world.far_usubscription()
    other.ask_ok(other.dialect.methods.reset, b"")
    world.restart()
    check_equal(app.subscriptions(topic), [], "the subscriptions after the restart")
    later = world.app()
    later.subscribe(topic)
    later.wait_change(topic, State.SUBSCRIBED)
    world.quiet()
    found = observer.changes(topic, later.address)
    check_equal(found, [], "notifications of an entity whose registration has ended")
