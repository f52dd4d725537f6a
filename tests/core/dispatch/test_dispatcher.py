# SPDX-License-Identifier: Apache-2.0
"""The dispatcher with everything but a network: routes, refusals, responses, dead letters, held messages, the ledger.

Every test ends with the ledger law, see conftest.py.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pytest

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.egress.dead_letter import LETTER_BURST
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.pb import ustreamer_v1 as pb
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at
from ustreamer.uprotocol.wire import decode, decode_status

if TYPE_CHECKING:
    from tests.core.conftest import HoldingFilter, VerdictFilter, World

SPEED, DOORS = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
METHOD = UUri("chassis", 0x1234, 1, 1)
APP, CLOUD = UUri("hpc", 0x10, 1, 0), UUri("cloud", 1, 1, 0)
DASH, DASH_2 = UUri("dash", 7, 1, 0), UUri("dash", 8, 1, 0)
NOWHERE = UUri("mars", 1, 1, 1)
USUBSCRIPTION = UUri("hpc", 0, 3, 1)
DEAD_LETTERS = UUri("hpc", 4, 1, 0x8000)

BROKEN = UStatusError(UCode.INTERNAL, "cannot be mapped")
LINK_DOWN = UStatusError(UCode.UNAVAILABLE, "link down")
SECOND_NS = 1_000_000_000

REFUSALS = ("invalid", "spoofed", "identity", "access", "authorisation", "duplicate", "deferred_to_peer")


def event(world: "World", topic: UUri = SPEED, payload: bytes = b"", **more: object) -> UMessage:
    return publish(world.id(), topic, payload, **more)  # type: ignore[arg-type]


def call(world: "World", method: UUri = METHOD, reply_to: UUri = APP, ttl: int = 5000) -> UMessage:
    return request(world.id(), reply_to, method, b"question", UPayloadFormat.RAW, ttl=ttl)


def responses(world: "World", endpoint: str) -> list[UMessage]:
    world.run()
    sent = world.egress[endpoint].messages
    return [each for each in sent if each.attributes.type is UMessageType.RESPONSE]


def letters(world: "World") -> list[pb.DeadLetter]:
    """The dead letters that the subscriber at the backbone has received."""
    world.run()
    entries = []
    for message in world.egress["backbone"].messages:
        if message.attributes.source == DEAD_LETTERS:
            message.check(strict=True)
            entries.append(pb.DeadLetter())
            entries[-1].ParseFromString(message.payload)
    return entries


# ------------------------------------------------------------------------------------------------ the path of a message


def test_an_event_is_forwarded_from_the_chassis_to_the_cloud(world: "World") -> None:
    # Without a subscriber: one delivery with the verdict NO_SUBSCRIBER.
    unwanted = event(world, payload=b"\x01")
    world.receive("chassis", unwanted)
    assert world.tap_calls == [(unwanted, None, Verdict.NO_SUBSCRIBER, None, 0)]

    # With a subscriber: the message waits in the queue of the backbone only.
    world.directory.subscribe(SPEED, CLOUD)
    world.time.advance(ms=5)
    message = event(world, payload=b"\x02")
    world.receive("chassis", message)
    assert {name: len(egress) for name, egress in world.egress.items() if len(egress)} == {"backbone": 1}
    assert world.ledger().queued == 1

    # The queue sends the same object, so neither header nor payload has changed.
    world.time.advance(ms=3)
    world.send()
    ((subscriber, sent),) = world.egress["backbone"].sent
    assert subscriber is None
    assert sent is message
    assert (world.tap_calls[-1].verdict, world.tap_calls[-1].attempts) == (Verdict.DELIVERED, 1)
    assert world.times[-1] == (5_000_000, 8_000_000)

    # The ledger.
    ledger = world.ledger()
    assert (ledger.received, ledger.delivered, ledger.no_subscriber, ledger.queued) == (2, 1, 1, 0)
    assert world.dispatcher.target_statistics() == [
        TargetStatistics(SPEED, "chassis", "backbone", None, 0, 1, 1, 0)
    ]
    assert world.dispatcher.refused_counts() == {
        SELF: dict.fromkeys(REFUSALS, 0),
        "chassis": dict.fromkeys(REFUSALS, 0),
    }


def test_a_call_is_forwarded_to_the_chassis_and_its_response_returns(world: "World") -> None:
    own_request = call(world)
    world.receive("backbone", own_request)
    world.send()
    assert world.egress["chassis"].sent == [(None, own_request)]
    own_response = response(world.id(), own_request, b"answer")
    world.receive("chassis", own_response)
    world.send()
    assert world.egress["backbone"].sent == [(None, own_response)]
    assert world.ledger().delivered == 2


def test_a_call_of_a_hosted_service_stays_in_the_process(world: "World") -> None:
    own_request = call(world, USUBSCRIPTION, DASH)
    world.receive("dash", own_request)
    world.send()
    assert world.egress[SELF].messages == [own_request]
    own_response = response(world.id(), own_request)
    world.receive(SELF, own_response)
    world.send()
    assert world.egress["dash"].sent == [(None, own_response)]


def test_every_unicast_subscriber_and_every_domain_gets_one_copy(world: "World") -> None:
    for subscriber in (DASH, APP, CLOUD, DASH_2):
        world.directory.subscribe(SPEED, subscriber)
    message = event(world)
    world.receive("chassis", message)
    world.send()
    assert world.egress["backbone"].sent == [(None, message)]
    assert world.egress["dash"].sent == [(DASH, message), (DASH_2, message)]
    assert (world.ledger().received, world.ledger().delivered) == (3, 3)


def test_order_of_arrival_is_kept_for_each_target(world: "World") -> None:
    world.directory.subscribe(SPEED, DASH)
    world.directory.subscribe(DOORS, DASH)
    messages = [event(world, topic) for topic in (SPEED, DOORS, SPEED, SPEED, DOORS)]
    for each in messages:
        world.receive("chassis", each)
    world.send()
    assert world.egress["dash"].messages == messages


# --------------------------------------------------------------------------------------------------- routes and changes


def test_a_change_of_subscriptions_counts_from_the_next_message(world: "World") -> None:
    def targets_of_next() -> list[str]:
        sent = {name: len(egress.sent) for name, egress in world.egress.items()}
        world.receive("chassis", event(world))
        world.send()
        return [name for name, egress in world.egress.items() if len(egress.sent) > sent[name]]

    assert targets_of_next() == []
    world.directory.subscribe(SPEED, APP)
    assert targets_of_next() == ["backbone"]
    world.directory.subscribe(SPEED, DASH)
    assert targets_of_next() == ["backbone", "dash"]
    world.directory.unsubscribe(SPEED, APP)
    assert targets_of_next() == ["dash"]
    world.directory.unsubscribe(SPEED, DASH)
    assert targets_of_next() == []


def test_the_directory_is_read_once_per_topic_and_version(world: "World") -> None:
    world.directory.subscribe(SPEED, APP)
    for _ in range(10):
        world.receive("chassis", event(world, SPEED))
        world.receive("chassis", event(world, DOORS))
    assert world.directory.queries == 2
    world.directory.touch()
    for _ in range(10):
        world.receive("chassis", event(world, SPEED))
    assert world.directory.queries == 3


def test_a_change_while_a_route_is_built_makes_the_route_stale_and_not_wrong(
    world: "World", monkeypatch: pytest.MonkeyPatch
) -> None:
    send_request = world.directory.subscribers

    def subscribers(topic: UUri) -> list[object]:
        answer: list[object] = [*send_request(topic)]
        monkeypatch.undo()
        world.directory.subscribe(SPEED, DASH)  # by another thread, after the read
        return answer

    monkeypatch.setattr(world.directory, "subscribers", subscribers)
    first, second = event(world), event(world)
    world.receive("chassis", first)
    world.receive("chassis", second)
    world.send()
    assert world.egress["dash"].messages == [second]


class Made:
    """A filter factory that records its calls."""

    def __init__(self, make: Callable[[Delivery], Iterable[Filter]] = lambda _: ()) -> None:
        self.recorded: list[tuple[Delivery, int]] = []
        self._make = make

    def __call__(self, delivery: Delivery) -> Iterable[Filter]:
        self.recorded.append((delivery, delivery.period_ns))
        return self._make(delivery)


def test_a_delivery_and_its_filters_survive_a_change_of_another_subscription(
    build: "type[World]", answering: "type[VerdictFilter]"
) -> None:
    made = Made(lambda _: [answering([None, Verdict.THROTTLED, None, Verdict.THROTTLED])])
    world = build(made)
    world.directory.subscribe(SPEED, DASH, 5)
    changes: list[Callable[[], object]] = [
        lambda: None,
        world.directory.touch,
        lambda: world.directory.subscribe(SPEED, DASH_2, 5),
        lambda: world.directory.unsubscribe(SPEED, DASH_2),
    ]
    for change in changes:
        change()
        world.receive("chassis", event(world))
    world.run()
    deliveries = [delivery for delivery, _ in made.recorded]
    assert [each.subscriber for each in deliveries] == [DASH, DASH_2]
    assert [each.verdict for each in world.tap_calls if each.delivery is deliveries[0]] == [
        Verdict.THROTTLED,
        Verdict.THROTTLED,
        Verdict.DELIVERED,
        Verdict.DELIVERED,
    ]


def test_a_changed_period_makes_filters_again_for_the_same_delivery(build: "type[World]") -> None:
    made = Made()
    world = build(made)
    for period_ns in (5, 5, 7, 0):
        world.directory.subscribe(SPEED, DASH, period_ns)
        world.receive("chassis", event(world))
    assert [period_ns for _, period_ns in made.recorded] == [5, 7, 0]
    assert len({id(delivery) for delivery, _ in made.recorded}) == 1
    (statistics,) = world.dispatcher.target_statistics()
    assert (statistics.period_ns, statistics.received) == (0, 4)


def test_the_filters_made_after_a_change_are_the_ones_that_decide(
    build: "type[World]", answering: "type[VerdictFilter]"
) -> None:
    world = build(lambda delivery: [answering([Verdict.THROTTLED] * 9)] if delivery.period_ns else [])
    for period_ns in (5, 0, 5):
        world.directory.subscribe(SPEED, DASH, period_ns)
        world.receive("chassis", event(world))
    world.send()
    assert world.verdicts() == [Verdict.THROTTLED, Verdict.THROTTLED, Verdict.DELIVERED]


def test_filters_use_a_new_period_from_the_next_message(build: "type[World]") -> None:
    tuned: list[tuple[int, int]] = []

    def filters(delivery: Delivery) -> list[Filter]:
        tuned.append((delivery.period_since_ns, delivery.period_ns))
        return []

    world = build(filters=filters)
    for period_ns in (5, 7):
        world.directory.subscribe(SPEED, APP, period_ns)
        world.time.advance(ms=10)
        world.receive("chassis", event(world))
        world.time.advance(ms=10)
        world.receive("chassis", event(world))
    assert tuned == [(10_000_000, 5), (30_000_000, 7)]
    world.time.advance(ms=10)
    world.dispatcher.swap_router(world.dispatcher.router)
    assert tuned[2:] == [(50_000_000, 7)]


def test_the_time_that_filters_receive_never_runs_backwards(build: "type[World]") -> None:
    """The clock is read under the lock; otherwise two threads could be dispatched out of order."""

    class Noting(Filter):
        times: ClassVar[list[int]] = []

        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            self.times.append(now_ns)
            return None

    world = build(filters=lambda _: [Noting()])
    world.directory.subscribe(SPEED, APP)
    ingress = world.ingress("chassis")
    recorded = Event()
    read, world_time = ingress._monotonic_ns, world.time

    def slow() -> int:
        recorded.set()
        return read()

    ingress._monotonic_ns = slow
    with ThreadPoolExecutor(1) as pool, ingress.locked():
        later = pool.submit(ingress.dispatch, event(world))
        assert not recorded.wait(0.05)  # it waits for the lock and has not read the clock
        world_time.advance(ms=1)
        ingress.dispatch(event(world))
        world_time.advance(ms=1)
    later.result(30)
    assert Noting.times == [1_000_000, 2_000_000]


def test_a_multicast_domain_has_the_rate_of_its_fastest_subscriber(build: "type[World]") -> None:
    made = Made()
    world = build(made)
    for subscriber, period_ns in ((APP, 9), (CLOUD, 5), (CLOUD, 20)):
        world.directory.subscribe(SPEED, subscriber, period_ns)
        world.receive("chassis", event(world))
    assert [period_ns for _, period_ns in made.recorded] == [9, 5, 9]
    assert made.recorded[0][0].subscriber is None


def test_a_new_target_is_described_before_its_filters_are_made(build: "type[World]") -> None:
    recorded: list[tuple[str, str, UUri | None, UUri | None, int]] = []

    def factory(delivery: Delivery) -> Iterable[Filter]:
        recorded.append(
            (delivery.ingress, delivery.endpoint, delivery.topic, delivery.subscriber, delivery.period_ns)
        )
        return ()

    world = build(factory)
    world.directory.subscribe(SPEED, DASH, 5)
    world.receive("chassis", event(world))
    world.receive("backbone", call(world))
    world.receive("backbone", call(world))
    assert recorded == [("chassis", "dash", SPEED, DASH, 5), ("backbone", "chassis", None, None, 0)]


def test_a_target_ends_with_its_last_subscriber_and_a_new_one_starts_from_zero(
    build: "type[World]",
) -> None:
    made = Made()
    world = build(made)
    for change in (world.directory.subscribe, world.directory.unsubscribe, world.directory.subscribe):
        change(SPEED, DASH)
        world.receive("chassis", event(world))
    assert len({id(delivery) for delivery, _ in made.recorded}) == 2
    (statistics,) = world.dispatcher.target_statistics()
    assert statistics.received == 1


def test_messages_of_one_topic_share_their_targets_for_any_other_header_fields(
    build: "type[World]",
) -> None:
    made = Made()
    world = build(made)
    world.directory.subscribe(SPEED, DASH)
    for more in ({}, {"priority": UPriority.CS5}, {"ttl": 1000}, {"payload_format": UPayloadFormat.RAW}):
        world.receive("chassis", event(world, **more))
    assert len(made.recorded) == 1
    (statistics,) = world.dispatcher.target_statistics()
    assert statistics.received == 4


def test_the_statistics_of_a_target_count_its_messages(
    build: "type[World]", answering: "type[VerdictFilter]"
) -> None:
    world = build(lambda _: [answering([None, Verdict.THROTTLED, Verdict.DENIED])])
    world.directory.subscribe(SPEED, DASH, 5)
    for _ in range(4):
        world.receive("chassis", event(world))
    world.send()
    assert world.dispatcher.target_statistics() == [
        TargetStatistics(SPEED, "chassis", "dash", DASH, 5, 4, 2, 1)
    ]


def test_the_route_cache_is_bounded_and_stays_correct(build: "type[World]") -> None:
    world = build(route_limit=3)
    ingress = world.ingress("chassis")
    topics = [SPEED.with_resource(0x8000 + n) for n in range(10)]
    for topic in topics[::2]:
        world.directory.subscribe(topic, DASH)
    for topic in topics * 2:
        ingress.dispatch(event(world, topic))
        assert len(ingress._routes) <= 3
    world.send()
    assert [each.attributes.source for each in world.egress["dash"].messages] == topics[::2] * 2


def test_a_route_that_cannot_repeat_is_not_cached(world: "World") -> None:
    for n in range(5):
        own_request = call(world)
        token = msgspec.structs.replace(own_request.attributes, token=f"token {n}")
        world.receive("backbone", UMessage(own_request.id, token))
        world.receive("chassis", response(world.id(), own_request))
    assert not world.ingress("backbone")._routes
    assert len(world.ingress("chassis")._routes) == 1  # one route for all responses
    world.send()
    assert world.ledger().delivered == 10


def test_a_sender_that_invents_topics_does_not_fill_memory(build: "type[World]") -> None:
    """Under a wildcard subscription the sender chooses the number of topics."""
    world = build(route_limit=8)
    world.directory.subscribe(any_at("chassis"), DASH)
    for n in range(100):
        world.receive("chassis", event(world, UUri("chassis", n, 1, 0x8000)))
        assert len(world.dispatcher.target_statistics()) <= 8
    world.send()
    assert world.ledger().delivered == 100


def test_an_authority_that_invents_topics_displaces_no_target_of_others(build: "type[World]") -> None:
    """A displaced target would lose its counters, and its rate limit would start again."""
    world = build(route_limit=8)
    for authority in ("hpc", "cloud"):
        world.directory.subscribe(any_at(authority), DASH)
    others = [UUri("hpc", 0x100 + n, 1, 0x8000) for n in range(4)]
    for topic in others:
        world.receive("backbone", event(world, topic))
    for n in range(100):
        world.receive("backbone", event(world, UUri("cloud", 0x100 + n, 1, 0x8000)))
    for topic in others:
        world.receive("backbone", event(world, topic))
    kept = {each.topic: each.received for each in world.dispatcher.target_statistics()}
    assert [kept.get(topic) for topic in others] == [2] * 4
    assert len(kept) == 8


def test_above_the_limit_the_oldest_topic_is_evicted_alone(build: "type[World]") -> None:
    """Its rate limit starts again with its next message. Those of the others go on."""
    world = build(route_limit=16)
    world.directory.subscribe(any_at("chassis"), DASH)
    topics = [UUri("chassis", n, 1, 0x8000) for n in range(24)]
    for count, topic in enumerate(topics, 1):
        for ttl in (None, 5_000):  # two routes
            message = event(world, topic)
            world.receive(
                "chassis", UMessage(message.id, msgspec.structs.replace(message.attributes, ttl=ttl))
            )
        deliveries = world.ingress("chassis")._deliveries
        assert list(deliveries.topics) == topics[max(0, count - 16) : count]
        sources = {key.source for key in world.ingress("chassis")._routes if isinstance(key, UAttributes)}
        assert sources <= deliveries.topics, "an evicted topic has no route, so no second delivery"


def test_a_topic_without_subscribers_has_no_target(world: "World") -> None:
    world.directory.subscribe(DOORS, DASH)
    for topic in (SPEED, DOORS):
        world.receive("chassis", event(world, topic))
    assert list(world.ingress("chassis")._deliveries.topics) == [DOORS]


def test_an_ingress_is_made_once(world: "World") -> None:
    assert world.ingress("chassis") is world.ingress("chassis")
    assert world.ingress("chassis") is not world.ingress("dash")


# -------------------------------------------------------------------------------------------------------------- expired


def stale(world: "World", make: Callable[[], UMessage]) -> UMessage:
    """A message that arrives one millisecond after the end of its ttl."""
    message = make()
    world.time.advance(ms=(message.attributes.ttl or 0) + 1)
    return message


def test_an_expired_event_is_one_delivery_and_a_dead_letter_and_is_not_answered(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    for subscriber in (DASH, DASH_2):
        world.directory.subscribe(SPEED, subscriber)
    message = stale(world, lambda: event(world, ttl=50))
    world.receive("chassis", message)
    (seen,) = world.tap_calls
    assert (seen.message, seen.delivery, seen.verdict) == (message, None, Verdict.EXPIRED)
    assert seen.reason == UStatus(UCode.DEADLINE_EXCEEDED, "ttl of 50 ms had run out on arrival at 'chassis'")
    (letter,) = letters(world)
    assert decode(letter.attributes.SerializeToString()) == (message.id, message.attributes)
    assert (letter.status.code, letter.endpoint, letter.attempts) == (UCode.DEADLINE_EXCEEDED, "chassis", 0)
    assert responses(world, "chassis") == []
    assert world.egress["dash"].sent == []


def test_an_expired_request_is_answered_deadline_exceeded(world: "World") -> None:
    own_request = stale(world, lambda: call(world, ttl=50))
    world.receive("backbone", own_request)
    (answer,) = responses(world, "backbone")
    answer.check(strict=True)
    assert (answer.attributes.reqid, answer.attributes.sink) == (own_request.id, APP)
    assert answer.attributes.commstatus is UCode.DEADLINE_EXCEEDED
    assert decode_status(answer.payload).message == "ttl of 50 ms had run out on arrival at 'backbone'"
    assert world.egress["chassis"].sent == []


@pytest.mark.parametrize(
    ("ttl", "after_ms", "passes"), [(50, 50, True), (50, 51, False), (0, 10**9, True), (None, 10**9, True)]
)
def test_a_message_expires_when_its_ttl_is_exceeded_also_under_a_known_plan(
    world: "World", ttl: int | None, after_ms: int, passes: bool
) -> None:
    world.directory.subscribe(SPEED, DASH)
    fresh, old = event(world, ttl=ttl), event(world, ttl=ttl)
    world.receive("chassis", fresh)
    world.send()
    world.time.advance(ms=after_ms)
    world.receive("chassis", old)
    world.send()
    assert (world.egress["dash"].messages == [fresh, old]) is passes


def test_a_message_that_expires_in_the_queue_is_counted_and_its_requester_gets_an_error(
    world: "World",
) -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    world.egress["chassis"].failure = LINK_DOWN
    own_request = call(world, ttl=50)
    world.receive("backbone", own_request)
    world.send()
    assert world.ledger().queued == 1
    world.time.advance(ms=51)
    (answer,) = responses(world, "backbone")
    assert (answer.attributes.reqid, answer.attributes.commstatus) == (
        own_request.id,
        UCode.DEADLINE_EXCEEDED,
    )
    (letter,) = letters(world)
    assert (letter.endpoint, letter.attempts) == ("chassis", 1)
    assert world.ledger().expired == 1


UPDATES = UUri("hpc", 0, 3, 0x8000)


def waits_too_long(world: "World", endpoint: str, message: UMessage, seconds: float) -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    world.egress["chassis"].failure = LINK_DOWN
    world.receive(endpoint, message)
    world.send()
    world.time.advance(s=seconds)


def test_above_a_burst_expired_messages_are_counted_and_answered_but_make_no_dead_letters(
    world: "World",
) -> None:
    world.directory.subscribe(SPEED, DASH)
    message = stale(world, lambda: event(world, ttl=50))
    for _ in range(LETTER_BURST + 3):
        world.receive("chassis", message)
    # Of the same endpoint, for its letters are used up.
    own_request = stale(
        world, lambda: request(world.id(), SPEED.with_resource(0), APP.with_resource(1), ttl=50)
    )
    world.receive("chassis", own_request)
    assert world.ledger().expired == LETTER_BURST + 4
    assert world.ledger().unaccounted == 0
    assert world.dispatcher.dead_letter_rate.suppressed == 4
    (answer,) = responses(world, "chassis")
    assert answer.attributes.reqid == own_request.id


def test_an_expired_notification_of_a_hosted_service_is_no_dead_letter(
    world: "World",
) -> None:
    waits_too_long(world, SELF, notification(world.id(), UPDATES, METHOD.with_resource(0), ttl=50), 0.051)
    assert letters(world) == []
    assert (world.ledger().expired, world.ledger().dead_lettered) == (1, 0)


def test_other_expired_notifications_and_those_without_a_ttl_are_dead_letters(world: "World") -> None:
    own = notification(world.id(), UPDATES, METHOD.with_resource(0))
    foreign = notification(world.id(), APP.with_resource(0x8000), METHOD.with_resource(0), ttl=50)
    waits_too_long(world, "backbone", foreign, 0.051)
    assert len(letters(world)) == 1
    waits_too_long(world, SELF, own, 31)
    assert len(letters(world)) == 2


def test_a_notification_that_cannot_be_sent_is_a_dead_letter(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    world.egress["chassis"].failure = BROKEN
    world.receive(SELF, notification(world.id(), UPDATES, METHOD.with_resource(0), ttl=50))
    world.send()
    assert [each.status.code for each in letters(world)] == [UCode.INTERNAL]


# -------------------------------------------------------------------------------------------------- invalid and spoofed


def broken(message: UMessage, **change: object) -> UMessage:
    return UMessage(message.id, msgspec.structs.replace(message.attributes, **change), message.payload)


def with_id(message: UMessage, version: int) -> UMessage:
    bad = UUID(message.id.msb & ~0xF000 | version << 12, message.id.lsb)
    return UMessage(bad, message.attributes, message.payload)


ANSWERED: dict[str, Callable[["World"], UMessage]] = {
    "priority CS3": lambda world: broken(call(world), priority=UPriority.CS3),
    "no ttl": lambda world: broken(call(world), ttl=None),
}
UNANSWERED: dict[str, Callable[["World"], UMessage]] = {
    "a request with an id of version 4": lambda world: with_id(call(world), 4),
    "a request without a sink": lambda world: broken(call(world), sink=None),
    "a request to a topic": lambda world: broken(call(world), sink=SPEED),
    "a request to any instance of a method": lambda world: broken(call(world), sink=UUri("chassis", 0xFFFF1234, 1, 1)),
    "a request from a method": lambda world: broken(call(world), source=APP.with_resource(1)),
    "a request from any source": lambda world: broken(call(world), source=UUri("*", 1, 1, 0)),
    "a publication on a method": lambda world: event(world, UUri("hpc", 0x10, 1, 1)),
    "a publication with an id of version 4": lambda world: with_id(event(world, UUri("hpc", 1, 1, 0x8000)), 4),
    "a notification without a sink": lambda world: broken(notification(world.id(), SPEED, APP), sink=None),
    "a response to nothing": lambda world: broken(response(world.id(), call(world)), reqid=None),
    "a message of no type": lambda world: UMessage(world.id(), UAttributes(type=UMessageType.UNSPECIFIED, source=APP)),
}  # fmt: skip


@pytest.mark.parametrize("kind", [UMessageType.PUBLISH, UMessageType.NOTIFICATION, UMessageType.RESPONSE])
def test_an_invalid_message_with_the_addresses_of_a_request_is_not_answered(
    world: "World", kind: UMessageType
) -> None:
    own_request = call(world)
    world.receive(
        "backbone",
        msgspec.structs.replace(
            own_request, attributes=msgspec.structs.replace(own_request.attributes, type=kind)
        ),
    )
    assert world.dispatcher.refused_counts()["backbone"]["invalid"] == 1
    assert responses(world, "backbone") == []


@pytest.mark.parametrize("make", ANSWERED.values(), ids=ANSWERED)
def test_an_invalid_request_is_not_in_the_ledger_and_is_answered_invalid_argument(
    world: "World", make: Callable[["World"], UMessage]
) -> None:
    own_request = make(world)
    world.receive("backbone", own_request)
    assert world.ingress("backbone").ledger.received == 0
    assert world.dispatcher.refused_counts()["backbone"]["invalid"] == 1
    (answer,) = responses(world, "backbone")
    assert (answer.attributes.sink, answer.attributes.reqid) == (APP, own_request.id)
    assert answer.attributes.commstatus is UCode.INVALID_ARGUMENT
    assert decode_status(answer.payload).message.startswith("REQUEST: expected ")


@pytest.mark.parametrize("make", UNANSWERED.values(), ids=UNANSWERED)
def test_an_invalid_message_that_has_no_requester_is_counted_and_not_answered(
    world: "World", make: Callable[["World"], UMessage]
) -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    world.receive("backbone", make(world))
    world.run()
    assert world.dispatcher.refused_counts()["backbone"]["invalid"] == 1
    assert world.ledger().received == 0
    assert [egress.sent for egress in world.egress.values()] == [[], [], [], []]


def test_an_invalid_id_is_refused_also_when_the_header_is_known(world: "World") -> None:
    world.directory.subscribe(SPEED, DASH)
    message = event(world)
    world.receive("chassis", message)
    world.receive("chassis", with_id(event(world), 4))
    world.send()
    assert world.egress["dash"].messages == [message]
    assert world.dispatcher.refused_counts()["chassis"]["invalid"] == 1


def test_a_spoofed_event_is_denied_counted_and_neither_answered_nor_a_dead_letter(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    world.directory.subscribe(SPEED, DASH)
    world.receive("backbone", event(world))
    world.receive("backbone", event(world))
    assert {why: n for why, n in world.dispatcher.refused_counts()["backbone"].items() if n} == {"spoofed": 2}
    assert world.ledger().denied == 2
    assert (responses(world, "backbone"), letters(world)) == ([], [])
    assert world.egress["dash"].sent == []


@pytest.mark.parametrize("source", [APP, UUri("hpc", 0, 3, 0), UUri("mars", 1, 1, 0)], ids=str)
def test_the_error_response_to_a_spoofed_request_is_sent_to_its_endpoint_and_not_to_its_source(
    world: "World", source: UUri
) -> None:
    own_request = call(world, METHOD, source)
    world.receive("dash", own_request)
    (answer,) = responses(world, "dash")
    assert answer.attributes.commstatus is UCode.PERMISSION_DENIED
    assert (answer.attributes.sink, answer.attributes.reqid) == (source, own_request.id)
    assert f"source {source} does not live behind endpoint 'dash'" in decode_status(answer.payload).message
    assert world.ledger().denied == 1
    assert [len(world.egress[name].sent) for name in ("backbone", "chassis", SELF)] == [0, 0, 0]


# ----------------------------------------------------------------------------------------- undeliverable, and responses


@pytest.mark.parametrize(
    ("failure", "code"),
    [(BROKEN, UCode.INTERNAL), (UStatusError(UCode.UNIMPLEMENTED, "no such thing"), UCode.UNIMPLEMENTED)],
)
def test_a_request_that_cannot_be_sent_is_a_dead_letter_and_is_answered_with_the_reason(
    world: "World", failure: UStatusError, code: UCode
) -> None:
    world.directory.subscribe(DEAD_LETTERS, CLOUD)
    world.egress["chassis"].failure = failure
    own_request = call(world, reply_to=DASH)
    world.receive("dash", own_request)
    (answer,) = responses(world, "dash")
    assert decode_status(answer.payload) == failure.status
    assert answer.attributes.commstatus is code
    assert (answer.attributes.source, answer.attributes.sink) == (METHOD, DASH)
    (letter,) = letters(world)
    assert (letter.endpoint, letter.attempts, letter.payload) == ("chassis", 1, b"question")
    assert world.ledger().dead_lettered == 1


def test_a_request_to_an_unknown_authority_is_unavailable(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    own_request = call(world, NOWHERE)
    world.receive("backbone", own_request)
    (answer,) = responses(world, "backbone")
    assert answer.attributes.commstatus is UCode.UNAVAILABLE
    assert "no endpoint for authority 'mars'" in decode_status(answer.payload).message
    (letter,) = letters(world)
    assert (letter.endpoint, letter.attempts, letter.status.code) == ("backbone", 0, UCode.UNAVAILABLE)
    assert (world.ledger().dead_lettered, world.tap_calls[0].delivery) == (1, None)


def test_a_failed_request_of_a_hosted_service_is_answered_to_that_service(world: "World") -> None:
    own_request = call(world, NOWHERE, UUri("hpc", 0, 3, 0))
    world.receive(SELF, own_request)
    (answer,) = responses(world, SELF)
    assert (answer.attributes.reqid, answer.attributes.commstatus) == (own_request.id, UCode.UNAVAILABLE)


def test_a_message_to_its_own_ingress_has_no_subscriber(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    world.receive("backbone", call(world, UUri("cloud", 1, 1, 1)))
    assert world.verdicts() == [Verdict.NO_SUBSCRIBER]
    assert (responses(world, "backbone"), letters(world)) == ([], [])


NOT_REQUESTS: dict[str, Callable[["World"], UMessage]] = {
    "publish": lambda world: event(world, ttl=50),
    "notification": lambda world: notification(world.id(), SPEED, DASH, ttl=50),
    "response": lambda world: response(world.id(), call(world, METHOD, DASH, ttl=50)),
}


@pytest.mark.parametrize("make", NOT_REQUESTS.values(), ids=NOT_REQUESTS)
@pytest.mark.parametrize("trouble", ["expired", "spoofed", "send fails", "queue full", "no endpoint"])
def test_nothing_but_a_request_is_ever_answered(
    build: "type[World]", make: Callable[["World"], UMessage], trouble: str
) -> None:
    world = build(limits=EgressLimits(queue_messages=1 if trouble == "queue full" else 9))
    world.directory.subscribe(SPEED, DASH)
    message = make(world)
    if trouble == "expired":
        world.time.advance(ms=51)
    elif trouble == "send fails":
        world.egress["dash"].failure = BROKEN
    elif trouble == "queue full":
        world.receive(
            "backbone", notification(world.id(), UUri("hpc", 1, 1, 0x8000), DASH, priority=UPriority.CS6)
        )
    elif trouble == "no endpoint":
        message = broken(message, sink=message.attributes.sink and NOWHERE.with_resource(0))
        world.directory.unsubscribe(SPEED, DASH)
    world.receive("backbone" if trouble == "spoofed" else "chassis", message)
    assert [responses(world, name) for name in world.egress] == [[], [], [], []]
    assert message not in world.egress["dash"].messages


def test_the_answer_to_a_request_is_not_filtered(
    build: "type[World]", answering: "type[VerdictFilter]"
) -> None:
    world = build(lambda _: [answering([Verdict.DENIED] * 9)])
    world.receive("backbone", call(world, NOWHERE))
    assert len(responses(world, "backbone")) == 1


def test_a_response_that_cannot_be_sent_is_a_dead_letter_without_another_response(world: "World") -> None:
    world.egress["backbone"].failure = BROKEN
    world.receive("backbone", call(world, NOWHERE))
    world.run()
    assert (world.ledger().dead_lettered, world.ledger().received) == (
        2,
        4,
    )  # and two dead letters without subscribers


# --------------------------------------------------------------------------------------------------------- dead letters


def test_a_dead_letter_has_the_number_and_times_of_its_attempts(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, CLOUD)
    message = notification(world.id(), UUri("hpc", 1, 1, 0x8000), DASH, b"\x00\xff", UPayloadFormat.RAW)
    world.receive("backbone", message)
    started_ms = world.clock.wall_ms()
    for failure in (LINK_DOWN, LINK_DOWN, BROKEN):
        world.time.advance(s=1)
        world.egress["dash"].failure = failure
        world.send()
    world.time.advance(s=4)
    (letter,) = letters(world)
    assert decode(letter.attributes.SerializeToString()) == (message.id, message.attributes)
    assert letter.payload == b"\x00\xff"
    assert (letter.status.code, letter.status.message) == (UCode.INTERNAL, "cannot be mapped")
    assert (letter.endpoint, letter.attempts) == ("dash", 3)
    assert letter.first_attempt.ToMilliseconds() == started_ms + 1000
    assert letter.last_attempt.ToMilliseconds() == started_ms + 3000


def test_a_message_that_expires_while_it_waits_has_the_time_of_its_last_attempt(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, CLOUD)
    world.egress["dash"].failure = LINK_DOWN
    sent = notification(world.id(), UUri("hpc", 1, 1, 0x8000), DASH, ttl=4000)
    world.receive("backbone", sent)
    started_ms = world.clock.wall_ms()
    for _ in range(3):  # attempts at 2 s and 4 s fail, at 6 s it has expired
        world.time.advance(s=2)
        world.send()
    (letter,) = letters(world)
    assert (letter.attempts, letter.status.code) == (2, UCode.DEADLINE_EXCEEDED)
    assert letter.first_attempt.ToMilliseconds() == started_ms + 2000
    assert letter.last_attempt.ToMilliseconds() == started_ms + 4000


def test_a_message_that_was_never_tried_has_the_time_of_its_arrival(build: "type[World]") -> None:
    world = build(limits=EgressLimits(queue_messages=1))
    world.directory.subscribe(DEAD_LETTERS, CLOUD)
    world.time.advance(s=1)
    arrived_ms = world.clock.wall_ms()
    for _ in range(2):
        world.receive("backbone", notification(world.id(), UUri("hpc", 1, 1, 0x8000), DASH))
    (letter,) = letters(world)
    assert (letter.attempts, letter.status.code) == (0, UCode.RESOURCE_EXHAUSTED)
    assert letter.first_attempt.ToMilliseconds() == letter.last_attempt.ToMilliseconds() == arrived_ms


def test_dead_letters_are_published_later_and_all_together(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, APP)
    for _ in range(3):
        world.receive(
            "backbone", notification(world.id(), UUri("hpc", 1, 1, 0x8000), NOWHERE.with_resource(0))
        )
    assert len(world.egress["backbone"]) == 0
    assert world.fire() == 1
    assert len(world.egress["backbone"]) == 3
    world.receive("backbone", notification(world.id(), UUri("hpc", 1, 1, 0x8000), NOWHERE.with_resource(0)))
    assert world.fire() == 1


def test_many_dead_letters_are_published_in_batches_without_loss(
    build: "type[World]",
) -> None:
    world = build()
    world.directory.subscribe(DEAD_LETTERS, APP)
    for _ in range(9_000):
        world.receive(
            "backbone", notification(world.id(), UUri("hpc", 1, 1, 0x8000), NOWHERE.with_resource(0))
        )
    portions = 0
    while world.fire():  # other due timers are called in between
        portions += 1
    assert portions == 90
    assert len(world.egress["backbone"]) == 9_000
    assert world.dispatcher.dead_letters.unpublished == 0


def test_a_dead_letter_without_subscribers_counts_as_no_subscriber(world: "World") -> None:
    world.receive("backbone", notification(world.id(), UUri("hpc", 1, 1, 0x8000), NOWHERE.with_resource(0)))
    world.run()
    assert world.verdicts() == [Verdict.DEAD_LETTERED, Verdict.NO_SUBSCRIBER]
    assert world.tap_calls[1].message.attributes.source == DEAD_LETTERS


@pytest.mark.parametrize("failure", [BROKEN, None], ids=["send fails", "queue full"])
def test_a_dead_letter_never_makes_another(build: "type[World]", failure: UStatusError | None) -> None:
    world = build(limits=EgressLimits(queue_messages=1))
    world.directory.subscribe(DEAD_LETTERS, DASH)
    world.egress["dash"].failure = failure
    for _ in range(2):
        world.receive(
            "backbone", notification(world.id(), UUri("hpc", 1, 1, 0x8000), NOWHERE.with_resource(0))
        )
    world.run()
    assert world.ledger().dead_lettered == (4 if failure else 3)
    assert world.dispatcher.dead_letters.unpublished == (2 if failure else 1)
    assert len(world.dispatcher.dead_letters) == 0


def test_only_the_streamer_can_publish_dead_letters(world: "World") -> None:
    world.directory.subscribe(DEAD_LETTERS, DASH)
    world.receive("backbone", event(world, DEAD_LETTERS))
    world.run()
    assert world.verdicts() == [Verdict.DENIED]
    assert world.egress["dash"].sent == []


# --------------------------------------------------------------------------------------------------- retry and overflow


def test_a_message_that_the_link_refuses_stays_queued_and_is_sent_later(world: "World") -> None:
    world.directory.subscribe(SPEED, DASH)
    world.egress["dash"].failure = LINK_DOWN
    messages = [event(world) for _ in range(3)]
    for each in messages:
        world.receive("chassis", each)
        world.send()
    assert (world.ledger().queued, world.verdicts()) == (3, [])
    world.egress["dash"].failure = None
    world.send()
    assert world.egress["dash"].messages == messages
    assert [each.attempts for each in world.tap_calls] == [4, 1, 1]


def test_a_full_queue_refuses_the_newest_message_as_a_dead_letter(build: "type[World]") -> None:
    world = build(limits=EgressLimits(queue_messages=2, subscriber_messages=2))
    world.directory.subscribe(DEAD_LETTERS, CLOUD)
    world.directory.subscribe(SPEED, DASH)
    messages = [event(world) for _ in range(3)]
    for each in messages:
        world.receive("chassis", each)
    assert [(each.message, each.verdict) for each in world.tap_calls] == [
        (messages[2], Verdict.DEAD_LETTERED)
    ]
    (letter,) = letters(world)
    assert (letter.status.code, letter.endpoint) == (UCode.RESOURCE_EXHAUSTED, "dash")
    assert world.egress["dash"].messages == messages[:2]


def test_a_message_of_higher_priority_evicts_another_whose_requester_receives_an_error(
    build: "type[World]",
) -> None:
    world = build(limits=EgressLimits(queue_messages=1))
    own_request = call(world, reply_to=DASH)
    world.receive("dash", own_request)
    urgent = notification(
        world.id(), UUri("hpc", 1, 1, 0x8000), METHOD.with_resource(0), priority=UPriority.CS6
    )
    world.receive("backbone", urgent)
    (answer,) = responses(world, "dash")
    assert (answer.attributes.reqid, answer.attributes.commstatus) == (
        own_request.id,
        UCode.RESOURCE_EXHAUSTED,
    )
    assert world.egress["chassis"].messages == [urgent]


# -------------------------------------------------------------------------------------------------------- held messages


@pytest.fixture
def held_world(build: "type[World]", holding: "type[HoldingFilter]") -> "World":
    """A world in which every delivery with a period holds messages for that period."""

    def factory(delivery: Delivery) -> Iterator[Filter]:
        if delivery.period_ns:
            yield holding(delivery, delivery.period_ns)

    world = build(factory)
    world.directory.subscribe(SPEED, DASH, SECOND_NS)
    return world


def test_a_held_message_is_queued_until_its_time_has_come(held_world: "World") -> None:
    message = event(held_world)
    held_world.receive("chassis", message)
    held_world.time.advance(s=0.9)
    held_world.run()
    assert (held_world.ledger().queued, held_world.verdicts()) == (1, [])
    held_world.time.advance(s=0.1)
    held_world.run()
    assert held_world.egress["dash"].sent == [(DASH, message)]
    assert held_world.ingress("chassis").held == 0


@pytest.mark.parametrize("step_s", [0, -3_600])
def test_a_message_that_is_held_longer_than_its_ttl_expires_also_after_a_clock_step(
    held_world: "World", step_s: int
) -> None:
    held_world.directory.subscribe(DEAD_LETTERS, APP)
    sent = []
    for ttl in (500, 1_500):
        sent.append(event(held_world, ttl=ttl))
        held_world.receive("chassis", sent[-1])
        held_world.time.step(s=step_s)
        held_world.time.advance(s=1)
        held_world.run()
    assert held_world.egress["dash"].messages == sent[1:]
    assert held_world.ledger().expired == 1
    (letter,) = letters(held_world)
    assert (letter.status.code, letter.endpoint) == (UCode.DEADLINE_EXCEEDED, "dash")


def test_a_newer_message_takes_the_place_of_the_held_one_which_is_throttled(held_world: "World") -> None:
    messages = [event(held_world) for _ in range(3)]
    for each in messages:
        held_world.receive("chassis", each)
    assert held_world.ledger().queued == 1
    held_world.time.advance(s=1)
    held_world.run()
    assert [(each.message, each.verdict) for each in held_world.tap_calls] == [
        (messages[0], Verdict.THROTTLED),
        (messages[1], Verdict.THROTTLED),
        (messages[2], Verdict.DELIVERED),
    ]
    assert held_world.dispatcher.target_statistics()[0].throttled == 2


def test_a_subscriber_that_unsubscribes_does_not_get_a_held_message(held_world: "World") -> None:
    held_world.directory.subscribe(SPEED, DASH_2, SECOND_NS)
    message = event(held_world)
    held_world.receive("chassis", message)
    held_world.directory.unsubscribe(SPEED, DASH)
    held_world.time.advance(s=1)
    held_world.run()
    assert held_world.egress["dash"].sent == [(DASH_2, message)]
    assert sorted(held_world.verdicts()) == [Verdict.DELIVERED, Verdict.NO_SUBSCRIBER]


def test_a_subscriber_that_returns_starts_without_held_messages(held_world: "World") -> None:
    held_world.receive("chassis", event(held_world))
    held_world.directory.unsubscribe(SPEED, DASH)
    held_world.receive("chassis", event(held_world))
    held_world.directory.subscribe(SPEED, DASH, SECOND_NS)
    held_world.time.advance(s=0.5)
    newest = event(held_world)
    held_world.receive("chassis", newest)
    held_world.time.advance(s=0.5)
    held_world.run()
    assert held_world.verdicts() == [Verdict.NO_SUBSCRIBER, Verdict.NO_SUBSCRIBER]
    held_world.time.advance(s=0.5)
    held_world.run()
    assert held_world.egress["dash"].messages == [newest]


def test_a_held_message_is_delivered_after_its_limit_is_lifted(held_world: "World") -> None:
    held, free = event(held_world), event(held_world)
    held_world.receive("chassis", held)
    held_world.directory.subscribe(SPEED, DASH, 0)
    held_world.receive("chassis", free)
    held_world.time.advance(s=1)
    held_world.run()
    assert sorted(held_world.egress["dash"].messages, key=lambda each: each.id) == [held, free]
    assert held_world.ledger().queued == 0


def test_a_change_of_another_subscription_does_not_affect_a_held_message(held_world: "World") -> None:
    message = event(held_world)
    held_world.receive("chassis", message)
    held_world.directory.touch()
    held_world.directory.subscribe(SPEED, CLOUD)
    held_world.time.advance(s=1)
    held_world.run()
    assert held_world.egress["dash"].messages == [message]


def hold_of_evicted_topic(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> "tuple[World, list[UMessage]]":
    """A world that holds a message of each of two topics, with room for the routes of one."""
    world = build(lambda delivery: [holding(delivery, SECOND_NS)], route_limit=1)
    messages = [event(world, topic) for topic in (SPEED, DOORS)]
    for each in messages:
        world.directory.subscribe(each.attributes.source, DASH, SECOND_NS)
    for each in messages:
        world.receive("chassis", each)
    return world, messages


def test_a_held_message_is_delivered_after_its_topic_was_evicted(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    world, messages = hold_of_evicted_topic(build, holding)
    world.time.advance(s=1)
    world.run()
    assert world.egress["dash"].messages == messages


def test_a_held_message_of_an_evicted_topic_has_a_verdict_after_a_stop(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    world, messages = hold_of_evicted_topic(build, holding)
    abandoned = world.dispatcher.abandon_held(UStatus(UCode.UNAVAILABLE, "stopped"))
    assert sorted(each.id for each in abandoned) == sorted(each.id for each in messages)
    assert world.ledger().queued == 0


def test_a_held_message_of_an_ended_subscription_has_a_verdict_after_a_stop(held_world: "World") -> None:
    world, held = held_world, event(held_world)
    world.receive("chassis", held)
    world.directory.unsubscribe(SPEED, DASH)
    world.receive("chassis", event(world))
    assert world.dispatcher.abandon_held(UStatus(UCode.UNAVAILABLE, "stopped")) == [held]
    assert world.ledger().queued == 0


def test_a_held_notification_needs_no_subscription(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    world = build(lambda delivery: [holding(delivery, SECOND_NS)])
    message = notification(world.id(), SPEED, DASH)
    world.receive("chassis", message)
    world.directory.touch()
    world.time.advance(s=1)
    world.run()
    assert world.egress["dash"].messages == [message]


# --------------------------------------------------------------------------------------------------------- many threads


class SlowFilter(Filter):
    """A filter whose first call waits for a second thread; records the number of threads inside."""

    def __init__(self) -> None:
        self.most_inside = 0
        self._inside = 0
        self._met = Event()

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        self._linger()
        return None

    def release_due(self, now_ns: int) -> UMessage | None:
        self._linger()
        return None

    def _linger(self) -> None:
        self._inside += 1
        self.most_inside = max(self.most_inside, self._inside)
        if self._inside > 1:
            self._met.set()
        self._met.wait(0.1)
        self._inside -= 1


@pytest.mark.parametrize("other", ["message", "timer"])
def test_calls_of_a_filter_never_overlap_across_threads(build: "type[World]", other: str) -> None:
    lingering = SlowFilter()
    world = build(lambda _: [lingering])
    world.directory.subscribe(SPEED, DASH)
    world.receive("chassis", event(world))
    (delivery,) = world.ingress("chassis")._deliveries._by_topic[SPEED]
    delivery.wake_at(0, lingering)
    messages = [event(world) for _ in range(2)]
    start = Barrier(2)

    def receive(message: UMessage) -> None:
        start.wait(30)
        world.receive("chassis", message)

    def wake() -> None:
        start.wait(30)
        world.fire()

    with ThreadPoolExecutor() as threads:
        first = threads.submit(receive, messages[0])
        second = threads.submit(receive, messages[1]) if other == "message" else threads.submit(wake)
        for running in (first, second):
            running.result(30)
    assert lingering.most_inside == 1


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Thread switches every 10 us instead of every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


MESSAGES = 300


@pytest.mark.usefixtures("eager_switching")
def test_concurrent_dispatch_neither_loses_nor_duplicates(build: "type[World]") -> None:
    world = build(limits=EgressLimits(queue_messages=10**6, queue_bytes=10**9))
    sources = {
        "chassis": (SPEED, DOORS),
        "backbone": (UUri("hpc", 1, 1, 0x8000), UUri("cloud", 1, 1, 0x8000)),
    }
    for topic in (*sources["chassis"], *sources["backbone"]):
        for subscriber in (DASH, DASH_2):
            world.directory.subscribe(topic, subscriber)
    lots = [
        (world.ingress(endpoint).dispatch, [event(world, topic) for _ in range(MESSAGES)])
        for endpoint, topics in sources.items()
        for topic in topics
    ]
    start = Barrier(len(lots))

    def receive(dispatch: Callable[[UMessage], None], messages: list[UMessage]) -> None:
        start.wait(30)
        for each in messages:
            dispatch(each)

    with ThreadPoolExecutor() as threads:
        for running in [threads.submit(receive, *lot) for lot in lots]:
            running.result(30)
    world.run()
    for subscriber in (DASH, DASH_2):
        sent = [message for to, message in world.egress["dash"].sent if to == subscriber]
        for _, messages in lots:
            topic = messages[0].attributes.source
            assert [each for each in sent if each.attributes.source == topic] == messages
    assert world.ledger().delivered == 2 * 4 * MESSAGES


@pytest.mark.usefixtures("eager_switching")
def test_the_law_holds_while_everything_changes_at_once(  # noqa: C901  one scenario, in order
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    """Three endpoints receive, queues send, fail and overflow, subscriptions change, filters hold, time passes."""

    def factory(delivery: Delivery) -> Iterator[Filter]:
        if delivery.period_ns:
            yield holding(delivery, delivery.period_ns)

    world = build(factory, limits=EgressLimits(queue_messages=20))
    world.directory.subscribe(DEAD_LETTERS, CLOUD)
    for name in ("chassis", "backbone", "dash", SELF):
        world.ingress(name)
    done = Event()

    def receive_events() -> None:
        for n in range(MESSAGES):
            world.receive("chassis", publish(UUID(n << 16 | 0x7000, 1 << 63), SPEED))

    def receive_calls(endpoint: str, client: UUri) -> None:
        for n in range(MESSAGES):
            method = NOWHERE if n % 7 == 0 else METHOD
            wall_ms = world.clock.wall_ms() - (99 if n % 11 == 0 else 0)
            world.receive(
                endpoint, request(UUID(wall_ms << 16 | 0x7000, 1 << 63 | n), client, method, ttl=50)
            )

    def change() -> None:
        while not done.is_set():
            for period_ns in (0, 1_000_000, 2_000_000):
                world.directory.subscribe(SPEED, DASH, period_ns)
                world.directory.subscribe(SPEED, CLOUD, 2_000_000 - period_ns)
            world.directory.unsubscribe(SPEED, DASH)

    def send() -> None:
        failures = [None, LINK_DOWN, None, BROKEN]
        turn = 0
        while not done.is_set():
            for egress in world.egress.values():
                egress.failure = failures[turn % len(failures)]
                egress.send()
            turn += 1

    def tick() -> None:
        while not done.is_set():
            world.time.advance(ms=1)
            world.fire()

    with ThreadPoolExecutor() as threads:
        background = [threads.submit(work) for work in (change, send, tick)]
        try:
            receiving = [
                threads.submit(receive_events),
                threads.submit(receive_events),
                threads.submit(receive_calls, "backbone", APP),
                threads.submit(receive_calls, "dash", DASH),
            ]
            for running in receiving:
                running.result(60)
        finally:
            done.set()
        for running in background:
            running.result(30)
    for egress in world.egress.values():
        egress.failure = None
    world.time.advance(s=1)
    world.run()
    assert world.ledger().queued == 0
    assert world.ledger().received >= 4 * MESSAGES
