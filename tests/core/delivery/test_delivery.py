# SPDX-License-Identifier: Apache-2.0
"""A delivery target and the filters in front of it, without routing."""

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pytest

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.uprotocol.batch import MIN_BATCH, MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import BatchListEgress, HoldingFilter, VerdictFilter, World

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
DASH = UUri("dash", 7, 1, 0)

Offer = Callable[..., UMessage]


@pytest.fixture
def delivery(world: "World") -> Delivery:
    return Delivery(world.ingress("chassis"), world.egress["backbone"], TOPIC)


@pytest.fixture
def offer(world: "World", delivery: Delivery) -> Offer:
    """Offers a message as an ingress does, which has counted it before; returns the message."""

    def offer(now_ns: int = 0, to: Delivery = delivery) -> UMessage:
        message = publish(world.id(), TOPIC)
        world.ingress("chassis").ledger.received += 1
        to.offer(message, now_ns)
        return message

    return offer


def test_without_filters_every_message_reaches_the_egress(
    world: "World", delivery: Delivery, offer: Offer
) -> None:
    message = offer(now_ns=5)
    assert len(world.egress["backbone"]) == 1
    world.send()
    assert world.egress["backbone"].messages == [message]
    assert (delivery.received, delivery.delivered, delivery.throttled) == (1, 1, 0)


def test_filters_run_in_order_with_the_same_message_and_time(
    world: "World", delivery: Delivery, offer: Offer, answering: "type[VerdictFilter]"
) -> None:
    order: list[str] = []

    class Noting(Filter):
        def __init__(self, name: str) -> None:
            self.name = name

        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            order.append(self.name)
            return None

    last = answering([])
    delivery.set_filters((Noting("a"), Noting("b"), last))
    message = offer(now_ns=77)
    assert order == ["a", "b"]
    assert last.calls == [(message, 77)]
    assert len(world.egress["backbone"]) == 1


@pytest.mark.parametrize("verdict", [Verdict.THROTTLED, Verdict.DENIED])
def test_the_first_verdict_stops_the_filter_chain(
    world: "World", delivery: Delivery, offer: Offer, answering: "type[VerdictFilter]", verdict: Verdict
) -> None:
    behind = answering([])
    delivery.set_filters((answering([]), answering([verdict]), behind))
    stopped = offer(now_ns=3)
    assert behind.calls == []
    assert world.tap_calls == [(stopped, delivery, verdict, None, 0)]
    assert world.times == [(3, 3)]
    assert world.ingress("chassis").ledger.settled[verdict] == 1
    assert delivery.throttled == (verdict is Verdict.THROTTLED)
    assert (delivery.received, delivery.delivered) == (1, 0)
    offer()
    assert len(behind.calls) == 1


def test_set_filters_replaces_the_filter_chain(
    world: "World", delivery: Delivery, offer: Offer, answering: "type[VerdictFilter]"
) -> None:
    delivery.set_filters((answering([Verdict.DENIED] * 9),))
    offer()
    delivery.set_filters(())
    offer()
    assert (world.verdicts(), len(world.egress["backbone"])) == ([Verdict.DENIED], 1)


def test_a_released_message_passes_only_the_filters_after_its_holder(
    world: "World",
    delivery: Delivery,
    offer: Offer,
    holding: "type[HoldingFilter]",
    answering: "type[VerdictFilter]",
) -> None:
    before, holder, behind = answering([]), holding(delivery, 100), answering([])
    delivery.set_filters((before, holder, behind))
    message = offer(now_ns=0)
    assert (len(world.egress["backbone"]), world.ledger().queued) == (0, 1)
    delivery.release_held(holder, 99)
    assert world.ledger().queued == 1
    assert behind.calls == []
    delivery.release_held(holder, 100)
    assert (len(before.calls), behind.calls) == (1, [(message, 100)])
    assert (len(world.egress["backbone"]), world.ledger().queued) == (1, 1)
    world.send()
    assert world.egress["backbone"].messages == [message]


@pytest.mark.parametrize("verdict", [Verdict.THROTTLED, Verdict.DENIED])
def test_a_filter_after_the_holder_can_stop_a_released_message(
    world: "World",
    delivery: Delivery,
    offer: Offer,
    holding: "type[HoldingFilter]",
    answering: "type[VerdictFilter]",
    verdict: Verdict,
) -> None:
    holder = holding(delivery, 100)
    delivery.set_filters((holder, answering([verdict])))
    offer()
    delivery.release_held(holder, 100)
    assert (world.verdicts(), world.ledger().queued) == ([verdict], 0)


def test_a_second_filter_can_hold_a_message_that_the_first_releases(
    world: "World", delivery: Delivery, offer: Offer, holding: "type[HoldingFilter]"
) -> None:
    first, second = holding(delivery, 100), holding(delivery, 50)
    delivery.set_filters((first, second))
    message = offer()
    delivery.release_held(first, 100)
    assert (world.ingress("chassis").held, len(world.egress["backbone"])) == (1, 0)
    delivery.release_held(second, 150)
    assert (world.ingress("chassis").held, len(world.egress["backbone"])) == (0, 1)
    world.send()
    assert world.egress["backbone"].messages == [message]


def test_a_held_message_replaced_by_a_newer_one_is_throttled(
    world: "World", delivery: Delivery, offer: Offer, holding: "type[HoldingFilter]"
) -> None:
    holder = holding(delivery, 100)
    delivery.set_filters((holder,))
    older, newer = offer(now_ns=0), offer(now_ns=30)
    assert world.tap_calls == [(older, delivery, Verdict.THROTTLED, None, 0)]
    assert world.times == [(30, 30)]
    assert (delivery.received, delivery.throttled, world.ledger().queued) == (2, 1, 1)
    delivery.release_held(holder, 100)
    world.send()
    assert world.egress["backbone"].messages == [newer]


def test_a_released_message_without_subscription_has_no_subscriber(
    world: "World", delivery: Delivery, offer: Offer, holding: "type[HoldingFilter]"
) -> None:
    holder = holding(delivery, 100)
    delivery.set_filters((holder,))
    message = offer()
    delivery.release_held(holder, 100, subscribed=False)
    assert world.tap_calls == [(message, delivery, Verdict.NO_SUBSCRIBER, None, 0)]
    delivery.release_held(holder, 200, subscribed=False)  # nothing is held: nothing happens
    assert len(world.tap_calls) == 1


def test_the_message_of_a_removed_filter_passes_the_new_chain_before_newer_ones(
    world: "World", delivery: Delivery, offer: Offer, holding: "type[HoldingFilter]"
) -> None:
    """A subscriber lifts its limit while a message is held."""
    holder = holding(delivery, 100)
    delivery.set_filters((holder,))
    first = offer()
    delivery.set_filters((), 50)
    second = offer(now_ns=60)
    delivery.release_held(holder, 100)  # its timer: nothing is left to release
    world.send()
    assert world.egress["backbone"].messages == [first, second]


def test_a_filter_that_stays_keeps_its_held_message(
    world: "World", delivery: Delivery, offer: Offer, holding: "type[HoldingFilter]"
) -> None:
    holder = holding(delivery, 100)
    delivery.set_filters((holder,))
    message = offer()
    delivery.set_filters((holder, holding(delivery, 50)), 50)
    world.send()
    assert world.egress["backbone"].messages == []
    delivery.set_filters((holder,), 60)
    delivery.release_held(holder, 100)
    world.send()
    assert world.egress["backbone"].messages == [message]


def test_settling_calls_every_tap_with_all_details(world: "World", delivery: Delivery, offer: Offer) -> None:
    message = offer(now_ns=3)
    reason = UStatus(UCode.INTERNAL, "broken")
    world.egress["backbone"]._queue.pop_batch()
    delivery.settle(world.egress["backbone"].ledger, message, Verdict.DEAD_LETTERED, 3, 9, reason, attempts=4)
    assert world.tap_calls == [(message, delivery, Verdict.DEAD_LETTERED, reason, 4)]
    assert world.times == [(3, 9)]
    assert world.egress["backbone"].ledger.settled[Verdict.DEAD_LETTERED] == 1


def test_a_tap_receives_the_times_of_arrival_release_send_and_settling(
    world: "World", delivery: Delivery, offer: Offer, holding: "type[HoldingFilter]"
) -> None:
    first, second = holding(delivery, 100), holding(delivery, 50)
    delivery.set_filters((first, second))
    offer(now_ns=10)
    delivery.release_held(first, 110)
    delivery.release_held(second, 160)  # two filters held it: the arrival is the call of the first one
    world.time.advance(ns=200)
    world.send()
    delivery.set_filters(())
    offer(now_ns=300)
    world.time.advance(ns=300)
    world.send()
    assert world.times == [(160, 200), (300, 500)]
    assert world.more_times == [(10, 200), (300, 500)]
    assert delivery._arrival_ns == {}


@pytest.mark.parametrize(
    "end", ["superseded", "stopped behind", "abandoned", "holder fails", "not requested"]
)
def test_a_tap_receives_the_arrival_time_of_a_held_message_for_every_verdict(
    world: "World",
    delivery: Delivery,
    offer: Offer,
    holding: "type[HoldingFilter]",
    answering: "type[VerdictFilter]",
    end: str,
) -> None:
    holder = holding(delivery, 100)
    delivery.set_filters((holder, answering([Verdict.DENIED])))
    offer(now_ns=10)
    match end:
        case "superseded":
            offer(now_ns=200)
            delivery.abandon_held(300, UStatus(UCode.ABORTED))
        case "stopped behind":
            delivery.release_held(holder, 200)
        case "abandoned":
            delivery.abandon_held(200, UStatus(UCode.ABORTED))
        case "holder fails":
            holder.release_due = lambda _: 1 / 0  # type: ignore[method-assign, assignment, return-value]
            delivery.release_held(holder, 200)
        case _:
            delivery.release_held(holder, 200, subscribed=False)
    assert (world.times[0], world.more_times[0]) == ((200, 200), (10, 0))
    assert delivery._arrival_ns == {}


def test_without_a_tap_no_arrival_time_is_kept(
    world: "World", delivery: Delivery, offer: Offer, holding: "type[HoldingFilter]"
) -> None:
    ingress = world.ingress("chassis")
    taps, ingress.taps = ingress.taps, ()
    holder = holding(delivery, 100)
    delivery.set_filters((holder,))
    offer(now_ns=10)
    delivery.release_held(holder, 110)
    assert (len(world.egress["backbone"]), delivery._arrival_ns) == (1, {})
    ingress.taps = taps
    world.time.advance(ns=200)
    world.send()
    assert (world.times, world.more_times) == ([(110, 200)], [(110, 200)])


def test_a_unicast_target_sends_to_its_subscriber(world: "World", offer: Offer) -> None:
    to_dash = Delivery(world.ingress("chassis"), world.egress["dash"], TOPIC, DASH, 5)
    message = offer(to=to_dash)
    world.send()
    assert world.egress["dash"].sent == [(DASH, message)]


def test_the_repr_of_a_delivery_shows_topic_endpoints_and_period(world: "World", delivery: Delivery) -> None:
    to_dash = Delivery(world.ingress("chassis"), world.egress["dash"], TOPIC, DASH, 5)
    by_sink = Delivery(world.ingress("chassis"), world.egress["dash"])
    assert (to_dash.ingress, to_dash.endpoint) == ("chassis", "dash")
    assert repr(delivery) == "<Delivery up://chassis/1234/1/8001 chassis -> backbone period_ns=0>"
    assert repr(to_dash) == (
        "<Delivery up://chassis/1234/1/8001 chassis -> dash for up://dash/7/1/0 period_ns=5>"
    )
    assert repr(by_sink) == "<Delivery unicast chassis -> dash period_ns=0>"


def test_a_filter_can_key_state_weakly_by_its_delivery(world: "World") -> None:
    state: WeakKeyDictionary[Delivery, int] = WeakKeyDictionary()
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], TOPIC)
    state[delivery] = 1
    del delivery
    assert len(state) == 0


def test_a_filter_without_admit_is_named_in_the_error(world: "World") -> None:
    class Forgetful(Filter):
        pass

    with pytest.raises(TypeError, match=r"Forgetful has no verdict: define admit\(message"):
        Forgetful().admit(publish(world.id(), TOPIC), 0)
    assert Forgetful().release_due(0) is None


# ------------------------------------------------------------------------------------------------------- many at once


@pytest.fixture
def bulky(
    build: "type[World]", batch_egress: "type[BatchListEgress]"
) -> "tuple[BatchListEgress, Delivery, World]":
    world = build(egress_class=batch_egress)
    queue: BatchListEgress = world.egress["backbone"]  # type: ignore[assignment]
    return queue, Delivery(world.ingress("chassis"), queue, TOPIC), world


def leave(
    world: "World", delivery: Delivery, messages: list[UMessage], *, has_ttl: bool = False
) -> list[int]:
    """Collect messages as an ingress does after the filters, each with its arrival time."""
    world.ingress("chassis").ledger.received += len(messages)
    times_ns = list(range(len(messages)))
    delivery.outgoing.items = [
        (delivery, message, at_ns) for message, at_ns in zip(messages, times_ns, strict=True)
    ]
    delivery.outgoing.flush(has_ttl=has_ttl)
    assert delivery.outgoing.items == []
    return times_ns


@pytest.mark.parametrize("has_ttl", [False, True])
@pytest.mark.parametrize(
    ("number", "differ", "given"),
    [
        (0, False, None),
        (1, False, None),
        (2, False, tuple),
        (MIN_BATCH - 1, False, tuple),
        (MIN_BATCH, False, MessageBatch),
        (3 * MIN_BATCH, False, MessageBatch),
        (MIN_BATCH, True, tuple),
        (3 * MIN_BATCH, True, tuple),
    ],
)
def test_equal_messages_leave_as_a_batch_and_others_as_a_list(
    bulky: "tuple[BatchListEgress, Delivery, World]",
    number: int,
    differ: bool,
    given: type | None,
    has_ttl: bool,
) -> None:
    queue, delivery, world = bulky
    messages = [publish(world.id(), TOPIC, b"%d" % n, ttl=500 if has_ttl else None) for n in range(number)]
    if differ:
        messages[-1] = publish(messages[-1].id, TOPIC.with_resource(0x8002), b"last")
    times_ns = leave(world, delivery, messages, has_ttl=has_ttl)
    if given is None:
        assert queue.batches == []
    else:
        ((together, at_ns, extra),) = queue.batches
        assert (type(together), list(together)) == (given, messages)
        assert (list(at_ns), extra) == (times_ns, has_ttl)
    world.run()
    assert queue.messages == messages


@pytest.mark.parametrize("ttl", [None, 500])
@pytest.mark.parametrize("number", [1, 2, MIN_BATCH - 1, MIN_BATCH, 3 * MIN_BATCH])
def test_a_batch_is_offered_unchanged_however_short(
    bulky: "tuple[BatchListEgress, Delivery, World]", number: int, ttl: int | None
) -> None:
    queue, delivery, world = bulky
    run = MessageBatch.from_messages([publish(world.id(), TOPIC, b"%d" % n, ttl=ttl) for n in range(number)])
    assert run is not None
    world.ingress("chassis").ledger.received += number
    delivery.offer_batch(run, 7)
    assert delivery.received == number
    if number > 1:
        ((together, at_ns, has_ttl),) = queue.batches
        assert together is run
        assert (list(at_ns), has_ttl) == ([7] * number, ttl is not None)
    world.run()
    assert (queue.messages, delivery.delivered) == (list(run), number)
    assert [received_ns for received_ns, _ in world.times] == [7] * number


def test_an_egress_without_batches_receives_single_messages(world: "World", delivery: Delivery) -> None:
    run = MessageBatch.from_messages([publish(world.id(), TOPIC, b"%d" % n) for n in range(2 * MIN_BATCH)])
    assert run is not None
    world.ingress("chassis").ledger.received += len(run)
    delivery.offer_batch(run, 7)
    world.run()
    assert world.egress["backbone"].messages == list(run)
