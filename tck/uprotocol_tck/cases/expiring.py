# SPDX-License-Identifier: Apache-2.0
"""The expiration of a subscription, and its sample period."""

from typing import Final

from uprotocol_tck.case import case, check, check_equal
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import EARLY_MS, World

BOTH: Final = (3, 4)
LATER_MS: Final = 3_600_000


@case("req~usubscription-subscribe-expiration~1", versions=BOTH)
def a_subscription_ends_at_its_expiration(world: World) -> None:
    """A subscription ends when its expiration has passed, and not before."""
    app, topic = world.app(), world.topic()
    expire_ms = world.soon_ms()
    check_equal(app.subscribe(topic, expire_ms=expire_ms), State.SUBSCRIBED, "the response to Subscribe")
    while (state := app.state_of(topic)) is State.SUBSCRIBED:
        asked_ms = world.now_ms()
        check(
            asked_ms < expire_ms + app.network.deadline_s * 1000,
            "the subscription is listed after its expiration",
        )
        world.pass_ms(20)
    check_equal(state, State.UNSUBSCRIBED, "the listed state at the end")
    check(world.now_ms() >= expire_ms - EARLY_MS, "the subscription ended before its expiration")


@case("req~usubscription-subscribe-expiration~1", "req~usubscription-register-notifications~1", versions=(4,))
def the_end_at_the_expiration_is_notified(world: World) -> None:
    """The subscriber, and each entity that registered, is notified of the end of a subscription that expires."""
    app, observer, topic = world.app(), world.app(), world.topic()
    observer.register(topic)
    app.subscribe(topic, expire_ms=world.soon_ms())
    for each in (app, observer):
        each.wait_change(topic, State.UNSUBSCRIBED, app.address)


@case("req~usubscription-subscribe-no-expiration~1", versions=BOTH)
def a_subscription_without_expiration_has_no_end(world: World) -> None:
    """A subscription without an expiration is listed without one, and stays when others end.

    So is one whose subscriber had an expiration, and subscribed again without one.
    """
    app, again, other, topic = world.app(), world.app(), world.app(), world.topic()
    soon_ms = world.soon_ms()
    again.subscribe(topic, expire_ms=soon_ms)
    for each in (app, again):
        each.subscribe(topic)
    other.subscribe(topic, expire_ms=soon_ms)
    other.wait_state(topic, State.UNSUBSCRIBED)
    listed = {each.subscriber: each.expire_ms for each in app.subscriptions(topic)}
    check_equal(set(listed.items()), {(app.address, None), (again.address, None)}, "the listed expirations")


@case("req~usubscription-subscribe-expiration-extension~1", versions=BOTH)
def another_subscribe_moves_the_expiration(world: World) -> None:
    """Another Subscribe with a later expiration replaces the earlier one."""
    app, other, topic = world.app(), world.app(), world.topic()
    soon_ms = world.soon_ms()
    later_ms = soon_ms + LATER_MS
    app.subscribe(topic, expire_ms=soon_ms)
    check_equal(app.subscribe(topic, expire_ms=later_ms), State.SUBSCRIBED, "the second response")
    (listed,) = app.subscriptions(topic)
    check_equal(listed.expire_ms, later_ms, "the listed expiration")
    other.subscribe(topic, expire_ms=soon_ms)
    other.wait_state(topic, State.UNSUBSCRIBED)
    check_equal(app.state_of(topic), State.SUBSCRIBED, "the state after the first expiration")


@case("req~usubscription-subscribe-expiration-extension~1", versions=(4,))
def another_subscribe_may_bring_the_expiration_forward(world: World) -> None:
    """In version 4 any other expiration replaces the earlier one, also an earlier one."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic, expire_ms=world.now_ms() + LATER_MS)
    earlier_ms = world.now_ms() + LATER_MS // 2
    app.subscribe(topic, expire_ms=earlier_ms)
    check_equal([each.expire_ms for each in app.subscriptions(topic)], [earlier_ms], "the listed expiration")


@case("dsn~usubscription-subscription-expiration-datatype~1", versions=BOTH)
def an_expiration_has_whole_milliseconds(world: World) -> None:
    """An expiration is an instant, exact to the millisecond."""
    app, topic = world.app(), world.topic()
    expire_ms = (world.now_ms() + LATER_MS) // 1000 * 1000 + 123
    app.subscribe(topic, expire_ms=expire_ms)
    check_equal([each.expire_ms for each in app.subscriptions(topic)], [expire_ms], "the listed expiration")


@case("dsn~usubscription-sample-period-datatype~1", versions=(4,))
def a_sample_period_is_any_number_of_32_bits(world: World) -> None:
    """A sample period is a uint32: it is listed as it was requested."""
    app = world.app()
    for period_ms in (1, 250, 0xFFFF_FFFF):
        topic = world.topic()
        app.subscribe(topic, period_ms=period_ms)
        check_equal([each.period_ms for each in app.subscriptions(topic)], [period_ms], "the listed period")


@case("req~usubscription-past-subscription-expiration~1", versions=(4,))
def an_expiration_in_the_past_registers_nothing(world: World) -> None:
    """A Subscribe whose expiration has passed registers nothing, and its response is UNSUBSCRIBED."""
    app, topic = world.app(), world.topic()
    check_equal(app.subscribe(topic, expire_ms=world.now_ms() - 60_000), State.UNSUBSCRIBED, "the response")
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")


@case("req~usubscription-subscribe-expiration-extension-past~1", versions=(4,))
def an_expiration_moved_into_the_past_ends_the_subscription(world: World) -> None:
    """A subscription whose expiration is updated into the past ends."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    check_equal(app.subscribe(topic, expire_ms=world.now_ms() - 60_000), State.UNSUBSCRIBED, "the response")
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")
