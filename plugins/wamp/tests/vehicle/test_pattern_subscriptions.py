# SPDX-License-Identifier: Apache-2.0
"""Patterns as topics that are requested from uSubscription. The test plays uSubscription, and grants by default."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_wamp.broker import matches
from ustreamer_wamp.uri import Match
from ustreamer_wamp.vehicle import pattern_subscriptions
from ustreamer_wamp.vehicle.mapping import topic_of
from ustreamer_wamp.vehicle.pattern_subscriptions import PatternSubscriptions
from ustreamer_wamp.vehicle.patterns import Pattern
from ustreamer_wamp.vehicle.usubscription_client import UsubscriptionClient

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.routing.usubscription_codec import (
    Status,
    pack_payload,
    subscribe_in,
    subscribe_response,
    unsubscribe_in,
    update_message,
)
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

ONE, TWO = (UUri("wamp.hpc", number << 16 | 0x8001, 1, 0) for number in (1, 2))
SPEED, RPM, DOORS = (UUri("vcu", 0x2001, 1, resource) for resource in (0x8001, 0x8002, 0x8003))
SECOND = UUri("vcu", 0x2_2001, 1, 0x8001)
HERE = UUri("hpc", 0x2001, 1, 0x8001)
EVERY = UUri("vcu", 0xFFFF_2001, 1, 0x8001)
MS = 1_000_000
FORM = UPayloadFormat.PROTOBUF


class PatternRig:
    """A pattern subscription and its uSubscription: the granted topics by subscriber, with the period."""

    def __init__(self, limit: int = 100) -> None:
        self.clock = ManualClock()
        monotonic_ns, wall_ms = self.clock.clock()
        self.ids = UuidSource(wall_ms)
        self.calls: list[UMessage] = []
        self.versions: set[int] = set()
        self.granted: dict[tuple[UUri, UUri], int] = {}
        self.refuses: set[UUri] = set()
        self.subscribe_calls = Counter[UUri]()
        self.ended_by_us = 0
        self.usubscription = UsubscriptionClient("hpc", self.ids, self.calls.append, monotonic_ns, Counter())
        self.patterns = PatternSubscriptions(self.usubscription, limit, ("hpc", "wamp.hpc"))
        self.ended: list[UUri] = []
        self.usubscription.on_subscription_ended = self._ended

    def _ended(self, entity: UUri, topic: UUri, why: str) -> None:
        self.ended.append(topic)
        self.patterns.on_subscription_ended(entity, topic)

    def answer_all(self) -> None:
        """Answer calls until there are no more."""
        while self.calls:
            self._answer(self.calls.pop(0))

    def _answer(self, call: UMessage) -> None:
        entity, sink = call.attributes.source, call.attributes.sink
        assert sink is not None
        version, method = sink.ue_version_major, sink.resource_id
        answer = (b"", FORM)
        if method == 1:
            subscription = subscribe_in(version, call.payload, FORM)
            self.subscribe_calls[subscription.topic] += 1
            self.versions.add(version)
            if subscription.topic in self.refuses:
                status = UStatus(UCode.NOT_FOUND, "no such topic")
                self.usubscription.on_response(error_response(self.ids.next(), call, status))
                return
            self.granted[entity, subscription.topic] = subscription.period_ns
            answer = pack_payload(subscribe_response(version, subscription.topic, Status.SUBSCRIBED), FORM)
        elif method == 2:
            self.ended_by_us += 1
            self.granted.pop((entity, unsubscribe_in(version, call.payload, FORM)), None)
        else:
            fetch_request = pb4.FetchSubscriptionsRequest.FromString(call.payload)
            pair = (UUri.from_pb(fetch_request.subscriber_filter), UUri.from_pb(fetch_request.topic_filter))
            found = [pb4.Subscription()] if pair in self.granted else []
            answer = pack_payload(pb4.FetchSubscriptionsResponse(subscriptions=found), FORM)
        self.usubscription.on_response(response(self.ids.next(), call, *answer))

    def end(self, entity: UUri, topic: UUri, version: int = 3) -> None:
        """End a subscription as uSubscription does when another device rejects it."""
        del self.granted[entity, topic]
        payload = update_message(version, topic, entity, Status.UNSUBSCRIBED).SerializeToString()
        source = UUri("hpc", 0, version, 0x8000)
        update = notification(self.ids.next(), source, entity, payload, FORM)
        assert self.usubscription.is_subscription_update(update)
        self.usubscription.on_subscription_update(update)
        self.answer_all()

    def add_pattern(
        self, topic: str, match: Match = "prefix", entity: UUri = ONE, period_ns: int = 0
    ) -> Pattern:
        pattern = Pattern(entity, topic, match)
        self.patterns.add_pattern(pattern, period_ns)
        self.answer_all()
        return pattern

    def observe(self, *topics: UUri) -> None:
        for topic in topics:
            self.patterns.observe(topic)
        self.answer_all()

    def topics(self, entity: UUri = ONE) -> set[UUri]:
        return {topic for of, topic in self.granted if of == entity}

    def leave(self, entity: UUri) -> None:
        """End all subscriptions of an entity."""
        for pattern in [each for each in self.patterns._periods if each.entity == entity]:
            self.patterns.remove_pattern(pattern)
        for topic in list(self.patterns._named.get(entity, ())):
            self.patterns.unsubscribe(entity, topic)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(s=seconds)
        self.usubscription.tick(self.clock.now_ns)
        self.patterns.tick(self.clock.now_ns)
        self.answer_all()


@pytest.fixture
def rig() -> PatternRig:
    return PatternRig()


def test_a_pattern_subscribes_configured_observed_and_later_topics(rig: PatternRig) -> None:
    rig.patterns.configure([SPEED, UUri("other", 0x2001, 1, 0x8001)])
    rig.observe(RPM)
    pattern = rig.add_pattern("up.vcu.")
    assert rig.topics() == {SPEED, RPM}
    rig.observe(DOORS)
    assert rig.topics() == {SPEED, RPM, DOORS}
    assert rig.patterns.topic_count == 3
    rig.patterns.remove_pattern(pattern)
    rig.answer_all()
    assert rig.granted == {}
    assert (rig.patterns.topic_count, len(rig.usubscription)) == (0, 0)


def test_a_topic_configured_after_a_pattern_is_subscribed_too(rig: PatternRig) -> None:
    rig.add_pattern("up.vcu.")
    rig.patterns.configure([SPEED])
    rig.answer_all()
    assert rig.topics() == {SPEED}


def test_topics_that_the_streamer_serves_are_not_requested(rig: PatternRig) -> None:
    rig.add_pattern("")
    rig.add_pattern("up.hpc.2001..1.8001", "wildcard")
    rig.patterns.configure([HERE])
    rig.observe(HERE, UUri("wamp.hpc", 1, 1, 0x8000))
    assert rig.granted == {}
    assert not rig.patterns.is_unknown(HERE)


def test_every_instance_of_an_entity_is_one_topic_of_version_4(rig: PatternRig) -> None:
    pattern = rig.add_pattern("up.vcu.2001..1.8001", "wildcard", period_ns=16_666_667)
    assert rig.granted == {(ONE, EVERY): 17 * MS}, "in whole ms, and none more often than requested"
    assert rig.versions == {4}
    # Known topics are requested by name as well, because the other device may support version 3 only.
    rig.observe(SECOND, RPM)
    assert rig.topics() == {EVERY, SECOND}
    rig.add_pattern("up.vcu.")
    rig.end(ONE, EVERY, version=4)
    assert rig.topics() == {SECOND, RPM}
    rig.pass_time(61)
    assert rig.topics() == {EVERY, SECOND, RPM}
    rig.patterns.remove_pattern(pattern)
    rig.answer_all()
    assert rig.topics() == {SECOND, RPM}, "those of the prefix"


def test_a_topic_that_is_refused_or_ends_is_tried_again_every_minute(rig: PatternRig) -> None:
    rig.refuses.add(RPM)
    rig.observe(SPEED, RPM)
    pattern = rig.add_pattern("up.vcu.")
    assert rig.topics() == {SPEED}
    assert rig.patterns.waiting_topic_count == 1
    rig.end(ONE, SPEED)
    assert (rig.topics(), rig.ended, rig.patterns.waiting_topic_count) == (set(), [SPEED], 2)
    rig.pass_time(61)
    assert rig.topics() == {SPEED}
    assert rig.subscribe_calls[RPM] == 2
    for _ in range(10):
        rig.pass_time(1)
    assert rig.subscribe_calls[RPM] == 2
    rig.refuses.clear()
    rig.pass_time(61)
    assert (rig.topics(), rig.patterns.waiting_topic_count) == ({SPEED, RPM}, 0)
    rig.refuses.add(DOORS)
    rig.observe(DOORS)
    assert rig.patterns.waiting_topic_count == 1
    rig.patterns.remove_pattern(pattern)
    rig.answer_all()
    rig.pass_time(61)
    assert (rig.granted, rig.patterns.waiting_topic_count) == ({}, 0)
    assert rig.subscribe_calls[DOORS] == 1, "it has no subscriber any more"


def test_the_topics_of_a_repeated_pattern_are_subscribed_again() -> None:
    rig = PatternRig()
    rig.observe(SPEED, DOORS)
    pattern = rig.add_pattern("up.vcu.2001.0.1.8001")
    rig.add_pattern(topic_of(DOORS))
    rig.patterns.repeat_pattern(pattern)
    rig.answer_all()
    assert rig.subscribe_calls == {SPEED: 2, DOORS: 1}
    assert rig.topics() == {SPEED, DOORS}


def test_a_rate_has_no_more_topics_than_its_patterns_allow_and_takes_others_when_there_is_room() -> None:
    rig = PatternRig(limit=2)
    rig.observe(*(UUri("vcu", 0x2001, 1, 0x8000 + number) for number in range(5)))
    first = rig.add_pattern("up.vcu.2001.0.1.8000")
    rig.add_pattern("up.vcu.")
    rig.add_pattern("up.vcu.", entity=TWO)
    assert [len(rig.topics(each)) for each in (ONE, TWO)] == [4, 2]
    assert rig.patterns.waiting_topic_count == 4
    rig.patterns.remove_pattern(first)
    rig.observe(UUri("vcu", 0x2001, 1, 0x9000))
    assert len(rig.topics()) == 4
    rig.leave(ONE)
    rig.answer_all()
    assert (rig.topics(), len(rig.topics(TWO)), rig.patterns.waiting_topic_count) == (set(), 2, 4)


def test_no_topic_is_subscribed_for_patterns_where_the_limit_is_none() -> None:
    rig = PatternRig(limit=0)
    rig.observe(SPEED)
    rig.add_pattern("up.vcu.")
    assert rig.granted == {}
    rig.patterns.subscribe(ONE, SPEED, 0, lambda refusal: None)
    rig.answer_all()
    assert rig.topics() == {SPEED}, "this one has a name"


def test_observed_topics_are_stored_within_limits(rig: PatternRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_subscriptions, "MAX_OBSERVED_TOPICS", 3)
    monkeypatch.setattr(pattern_subscriptions, "MAX_RETRY_TOPICS", 2)
    many = [UUri("vcu", 0x2001, 1, 0x8000 + number) for number in range(10)]
    rig.observe(*many)
    assert [rig.patterns.is_unknown(each) for each in many] == [True] * 7 + [False] * 3
    rig.refuses.update(many)
    rig.add_pattern("up.vcu.")
    assert rig.patterns.waiting_topic_count == 2


def test_a_subscriber_of_a_topic_by_name_as_well_is_notified_of_that_subscription(rig: PatternRig) -> None:
    rig.refuses.add(SPEED)
    rig.observe(SPEED)
    notified: list[object] = []
    rig.patterns.add_pattern(Pattern(ONE, "up.vcu.", "prefix"), 0)
    rig.patterns.subscribe(ONE, SPEED, 0, notified.append)
    rig.answer_all()
    assert [each is not None for each in notified] == [True]
    rig.refuses.clear()
    rig.patterns.subscribe(ONE, SPEED, 5 * MS, notified.append)
    rig.answer_all()
    assert notified[1:] == [None]


def test_a_withdrawn_waiting_subscription_is_answered_at_once_also_where_a_pattern_continues(
    rig: PatternRig,
) -> None:
    rig.observe(SPEED)
    rig.add_pattern("up.vcu.", period_ns=20 * MS)
    notified: list[object] = []
    rig.patterns.subscribe(ONE, SPEED, 10 * MS, notified.append)
    rig.patterns.unsubscribe(ONE, SPEED)
    assert notified == [None]
    rig.answer_all()
    assert rig.granted == {(ONE, SPEED): 20 * MS}


def test_a_rejected_topic_subscription_leaves_no_state(rig: PatternRig) -> None:
    for number in range(10):
        topic = UUri("vcu", 0x2001, 1, 0x8000 + number)
        rig.refuses.add(topic)
        rig.patterns.subscribe(ONE, topic, 0, lambda refusal: None)
    rig.answer_all()
    assert (rig.patterns._named, len(rig.usubscription)) == ({}, 0)


def test_a_topic_with_a_name_and_a_pattern_ends_after_both_ended(rig: PatternRig) -> None:
    """Not even for a moment: another device ends a topic at the first Unsubscribe."""
    rig.observe(SPEED)
    rig.patterns.subscribe(ONE, SPEED, 20 * MS, lambda refusal: None)
    pattern = rig.add_pattern("up.vcu.", period_ns=10 * MS)
    assert rig.granted == {(ONE, SPEED): 10 * MS}
    rig.patterns.remove_pattern(pattern)
    rig.answer_all()
    assert rig.granted == {(ONE, SPEED): 20 * MS}
    rig.add_pattern("up.vcu.", period_ns=10 * MS)
    rig.patterns.unsubscribe(ONE, SPEED)
    rig.answer_all()
    assert rig.granted == {(ONE, SPEED): 10 * MS}
    assert rig.ended_by_us == 0
    rig.patterns.remove_pattern(pattern)
    rig.answer_all()
    assert (rig.granted, rig.ended_by_us) == ({}, 1)


# --- against a model ----------------------------------------------------------------------------------------

TOPICS = (SPEED, RPM, SECOND, HERE, UUri("cloud", 0x2001, 1, 0x8001))
PATTERNS: tuple[tuple[str, Match], ...] = (
    ("up.vcu.", "prefix"),
    ("up.vcu.2001.0", "prefix"),
    ("up..2001...8001", "wildcard"),
    ("up.vcu.2001..1.8001", "wildcard"),
    ("", "prefix"),
)
PERIODS = (0, 10 * MS, 20 * MS)
entities = st.sampled_from((ONE, TWO))
step = st.one_of(
    st.tuples(st.just("put"), entities, st.sampled_from(PATTERNS), st.sampled_from(PERIODS)),
    st.tuples(st.just("remove"), entities, st.sampled_from(PATTERNS), st.just(0)),
    st.tuples(st.just("want"), entities, st.sampled_from(TOPICS), st.sampled_from(PERIODS)),
    st.tuples(st.just("forget"), entities, st.sampled_from(TOPICS), st.just(0)),
    st.tuples(st.just("learn"), st.just(ONE), st.sampled_from(TOPICS), st.just(0)),
    st.tuples(st.just("leave"), entities, st.just(None), st.just(0)),
    st.tuples(st.just("answer"), st.just(ONE), st.just(None), st.just(0)),
)


class Model:
    """The subscriptions of each entity, as sets; their union is compared with uSubscription."""

    def __init__(self) -> None:
        self.names: dict[tuple[UUri, UUri], int] = {}
        self.patterns: dict[Pattern, int] = {}
        self.known: set[UUri] = set()

    def expected(self) -> dict[tuple[UUri, UUri], int]:
        found: dict[tuple[UUri, UUri], int] = dict(self.names)
        for pattern, period_ns in self.patterns.items():
            topics = {each for each in self.known if matches(pattern.topic, pattern.match, topic_of(each))}
            if pattern.topic == "up.vcu.2001..1.8001":
                topics.add(EVERY)
            for topic in topics:
                pair = (pattern.entity, topic)
                found[pair] = min(period_ns, found.get(pair, period_ns))
        return found

    def leave(self, entity: UUri) -> None:
        self.names = {pair: period for pair, period in self.names.items() if pair[0] != entity}
        self.patterns = {each: period for each, period in self.patterns.items() if each.entity != entity}


@settings(max_examples=300)
@given(st.lists(step, min_size=10, max_size=60))
def test_in_any_order_usubscription_matches_the_union_of_names_and_patterns(
    steps: list[tuple[str, UUri, object, int]],
) -> None:
    rig, model = PatternRig(), Model()
    for what, entity, which, period_ns in steps:
        if isinstance(which, UUri):
            if what == "want":
                rig.patterns.subscribe(entity, which, period_ns, lambda refusal: None)
                model.names[entity, which] = period_ns
            elif what == "forget":
                rig.patterns.unsubscribe(entity, which)
                model.names.pop((entity, which), None)
            else:
                rig.patterns.observe(which)
                model.known |= {which} - {HERE}
        elif isinstance(which, tuple):
            pattern = Pattern(entity, *which)
            if what == "put":
                rig.patterns.add_pattern(pattern, period_ns)
                model.patterns[pattern] = period_ns
            else:
                rig.patterns.remove_pattern(pattern)
                model.patterns.pop(pattern, None)
        elif what == "leave":
            rig.leave(entity)
            model.leave(entity)
        else:
            rig.answer_all()
    rig.answer_all()
    assert rig.granted == model.expected()
    for entity in (ONE, TWO):
        rig.leave(entity)
    rig.answer_all()
    assert (rig.granted, len(rig.usubscription), rig.patterns.topic_count) == ({}, 0, 0)
