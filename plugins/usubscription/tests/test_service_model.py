# SPDX-License-Identifier: Apache-2.0
"""The whole service against plain dicts: requests of both versions, restarts, passing time, and another device. [R26]

The other device's responses arrive, arrive late, are lost, or are errors of a dispatcher on the path. Its link goes
down and up.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ustreamer_usubscription.model.declared_topics import any_instance_pattern

from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import ANY, UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

REMOTE_AUTHORITY = "device3"
TOPICS = st.sampled_from(
    [UUri(a, 1, 1, r) for a in ("device1", "device2", REMOTE_AUTHORITY) for r in (0x8000, 0x8001)]
)
TOPICS_V4 = TOPICS | st.sampled_from([UUri(a, 0xFFFF0001, 1, 0x8000) for a in ("device2", REMOTE_AUTHORITY)])
UNSUBSCRIBED, PENDING, SUBSCRIBED, UNSUBSCRIBE_PENDING = range(4)
SUBSCRIBE, UNSUBSCRIBE = 1, 2
MEANINGS = {SUBSCRIBED: "granted", PENDING: "deferred", UNSUBSCRIBED: "refused"}
# As in the diagram of the standard; other inputs change nothing.
MACHINE = {
    (UNSUBSCRIBED, "wanted"): PENDING,
    (PENDING, "granted"): SUBSCRIBED,
    (PENDING, "refused"): UNSUBSCRIBED,
    (PENDING, "unwanted"): UNSUBSCRIBE_PENDING,
    (SUBSCRIBED, "deferred"): PENDING,
    (SUBSCRIBED, "refused"): UNSUBSCRIBED,
    (SUBSCRIBED, "unwanted"): UNSUBSCRIBE_PENDING,
    (UNSUBSCRIBE_PENDING, "wanted"): PENDING,
    (UNSUBSCRIBE_PENDING, "answered"): UNSUBSCRIBED,
}
METHOD = {PENDING: SUBSCRIBE, SUBSCRIBED: SUBSCRIBE, UNSUBSCRIBE_PENDING: UNSUBSCRIBE}
NOT_DELIVERED = [UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED]
APPS = st.sampled_from([UUri("device1", n, 1, 0) for n in (1, 2, 0x10)])
PERIODS_MS = st.sampled_from([None, 0, 10, 25])
LIFETIMES_MS = st.sampled_from([None, -1, 0, 700, 1500, 60_000])
LIMIT = 9


class DesiredSubscription(NamedTuple):
    period_ms: int
    expire_ms: int | None


NotifiedChange = tuple[int, UUri, UUri, UUri, int]
"""(version, receiver, topic, subscriber, state)"""


def take_notifications(rig: "ServiceRig") -> list[NotifiedChange]:
    """Every notification since the last call; the state in the numbers of version 3."""
    rig.fetch()  # ends expired subscriptions
    rig.fetch()  # once this response arrives, all earlier notifications have arrived
    received, rig.notifications[:] = list(rig.notifications), []
    found = []
    for message in received:
        version, sink = message.attributes.source.ue_version_major, message.attributes.sink
        assert sink is not None
        if version == 3:
            update = pb.Update.FromString(message.payload)
            topic, subscriber, state = update.topic, update.subscriber.uri, int(update.status.state)
        else:
            change = pb4.Subscription.FromString(message.payload)
            topic, subscriber, state = change.topic, change.subscriber, change.status - 1
        found.append((version, sink, UUri.from_pb(topic), UUri.from_pb(subscriber), state))
    return found


class ServiceStateMachine(RuleBasedStateMachine):
    """Drives a rig, and keeps a dict of the expected state."""

    make: Callable[..., "ServiceRig"]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.rig = self.make(Path(self.folder.name), max_subscriptions=LIMIT).start()
        self.model: dict[tuple[UUri, UUri], DesiredSubscription] = {}
        self.observers: set[tuple[UUri, UUri]] = set()
        self.versions: dict[tuple[UUri, UUri], int] = {}
        self.expected_notifications: list[NotifiedChange] = []
        self.remote: dict[UUri, int] = {}
        self.open_calls: dict[UUri, UMessage] = {}
        self.late_calls: list[UMessage] = []
        self.last_requests: dict[UUri, tuple[int, UUri, int, int | None]] = {}

    def teardown(self) -> None:
        self.all_calls_complete()
        self.rig.stop()
        self.folder.cleanup()

    def current_model(self) -> dict[tuple[UUri, UUri], DesiredSubscription]:
        """The model without expired subscriptions."""
        now = self.rig.now_ms
        for pair, desired in list(self.model.items()):
            if desired.expire_ms is not None and desired.expire_ms < now:
                self.end_subscription(pair)
        return self.model

    def end_subscription(self, pair: tuple[UUri, UUri], *, notifies_subscriber: bool = True) -> None:
        if self.model.pop(pair, None):
            self.expect_notification(pair, UNSUBSCRIBED, notifies_subscriber=notifies_subscriber)
            if not self.clients(pair[0]):
                self.apply_event(pair[0], "unwanted")

    def put_subscription(
        self, pair: tuple[UUri, UUri], desired: DesiredSubscription, version: int = 3
    ) -> int:
        """The state in which the subscription is now."""
        self.versions[pair] = version  # a repeated request in another version changes only these
        changed = self.model.get(pair) != desired
        self.model[pair] = desired
        self.apply_event(pair[0], "wanted")
        if changed:
            self.expect_notification(pair, self.state_of(pair[0]))
        return self.state_of(pair[0])

    # --- the other device ---------------------------------------------------------------------------------------------

    def clients(self, topic: UUri) -> list[tuple[UUri, UUri]]:
        return [pair for pair in self.model if pair[0] == topic]

    def state_of(self, topic: UUri) -> int:
        return (
            self.remote.get(topic, UNSUBSCRIBED) if topic.authority_name == REMOTE_AUTHORITY else SUBSCRIBED
        )

    def apply_event(self, topic: UUri, event: str) -> None:
        if topic.authority_name != REMOTE_AUTHORITY:
            return
        before = self.remote.pop(topic, UNSUBSCRIBED)
        after = MACHINE.get((before, event), before)
        if after != UNSUBSCRIBED:
            self.remote[topic] = after
        if METHOD.get(before) != METHOD.get(after) and topic in self.open_calls:
            self.late_calls.append(self.open_calls.pop(topic))
        if after != before and event in MEANINGS.values():
            for pair in self.clients(topic):
                self.expect_notification(pair, after)
                if after == UNSUBSCRIBED:
                    del self.model[pair]

    @invariant()
    def the_calls_of_the_service_are_noted(self) -> None:
        self.current_model()
        for call in self.rig.take_remote_requests():
            method, topic, _, _ = fields = self.rig.remote_request_fields(call)
            if topic not in self.remote:  # notified by an update that arrived too late
                assert method == UNSUBSCRIBE
                self.rig.remote_grants(call)
                continue
            assert METHOD[self.remote[topic]] == method
            if topic in self.open_calls:
                self.late_calls.append(self.open_calls[topic])
            self.open_calls[topic], self.last_requests[topic] = call, fields

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data(), state=st.sampled_from(sorted(MEANINGS)))
    def the_other_device_answers(self, data: st.DataObject, state: int) -> None:
        self.current_model()
        topic = data.draw(st.sampled_from(sorted(self.open_calls)))
        if topic in self.open_calls:
            self.grant_call(topic, state)

    def grant_call(self, topic: UUri, state: int) -> None:
        call = self.open_calls.pop(topic)
        subscribes = self.rig.remote_request_fields(call)[0] == SUBSCRIBE
        self.rig.remote_grants(call, state)
        self.apply_event(topic, MEANINGS[state] if subscribes else "answered")

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data(), code=st.sampled_from([*NOT_DELIVERED, UCode.NOT_FOUND, UCode.PERMISSION_DENIED]))
    def the_other_device_or_a_dispatcher_on_the_path_rejects(self, data: st.DataObject, code: UCode) -> None:
        self.current_model()
        topic = data.draw(st.sampled_from(sorted(self.open_calls)))
        call = self.open_calls.pop(topic)
        self.rig.remote_refuses(call, code)
        if code not in NOT_DELIVERED:
            self.apply_event(
                topic, "refused" if self.rig.remote_request_fields(call)[0] == SUBSCRIBE else "answered"
            )

    @precondition(lambda self: self.late_calls)
    @rule(data=st.data(), state=st.sampled_from(sorted(MEANINGS)))
    def a_response_arrives_too_late(self, data: st.DataObject, state: int) -> None:
        self.rig.remote_grants(data.draw(st.sampled_from(self.late_calls)), state)

    @precondition(lambda self: self.remote)
    @rule(data=st.data(), state=st.integers(0, 3))
    def the_other_device_notifies_of_a_change(self, data: st.DataObject, state: int) -> None:
        self.rig.remote_notifies(data.draw(st.sampled_from(sorted(self.remote))), state)

    @rule(up=st.booleans())
    def the_link_turns(self, up: bool) -> None:
        self.rig.links.set_state(REMOTE_AUTHORITY, up=up)

    @rule()
    def answers_are_awaited_in_vain(self) -> None:
        self.rig.advance(s=300)
        self.late_calls += self.open_calls.values()  # a new call for each, or none while the link is down
        self.open_calls.clear()

    def all_calls_complete(self) -> None:
        """When the link is up and all responses arrived, the other device has the desired subscription, and no call
        is pending.
        """
        self.rig.links.set_state(REMOTE_AUTHORITY, up=True)
        for _ in range(4):
            self.current_model()
            self.rig.advance(s=60)
            self.the_calls_of_the_service_are_noted()
            for topic in list(self.open_calls):
                self.grant_call(topic, SUBSCRIBED)
        self.the_calls_of_the_service_are_noted()
        assert self.open_calls == {}
        assert set(self.remote.values()) <= {SUBSCRIBED}
        for topic in self.remote:
            desired_here = [self.model[pair] for pair in self.clients(topic)]
            ends = [desired.expire_ms for desired in desired_here]
            end = None if None in ends else max(each for each in ends if each is not None)
            assert self.last_requests[topic] == (
                SUBSCRIBE,
                topic,
                min(desired.period_ms for desired in desired_here) * 2 // 3,  # with headroom
                end,
            )
        assert self.rig.statistics("remote_topics") == len(self.remote)

    # --- clients ------------------------------------------------------------------------------------------------------

    def expect_notification(
        self, pair: tuple[UUri, UUri], state: int, *, notifies_subscriber: bool = True
    ) -> None:
        topic, app = pair
        concerned = {(self.versions[pair], app)} if notifies_subscriber else set()
        concerned |= {(3, entity) for watched, entity in self.observers if watched == topic}
        concerned |= {(4, entity) for watched, entity in self.observers if watched == ANY}
        self.expected_notifications += [(version, entity, topic, app, state) for version, entity in concerned]

    @rule(topic=TOPICS_V4, app=APPS, period_ms=PERIODS_MS, lifetime_ms=LIFETIMES_MS)
    def subscribe_in_version_4(
        self, topic: UUri, app: UUri, period_ms: int | None, lifetime_ms: int | None
    ) -> None:
        model = self.current_model()
        expire_ms = None if lifetime_ms is None else self.rig.now_ms + lifetime_ms
        wanted = pb4.SubscribeRequest(topic=topic.to_pb(), sample_period=period_ms)
        if expire_ms is not None:
            wanted.expiration.FromMilliseconds(expire_ms)
        answer = self.rig.call(1, wanted, caller=app, version=4)
        full = lifetime_ms != -1 and (topic, app) not in model and len(model) == LIMIT
        assert (answer.attributes.commstatus is not None) is full
        if full:
            return
        status = pb4.SubscribeResponse.FromString(answer.payload).status
        if lifetime_ms == -1:
            assert status == pb4.STATUS_UNSUBSCRIBED
            self.end_subscription((topic, app))
        else:
            assert status - 1 == self.put_subscription(
                (topic, app), DesiredSubscription(period_ms or 0, expire_ms), 4
            )

    @rule(topic=TOPICS_V4, app=APPS)
    def unsubscribe_in_version_4(self, topic: UUri, app: UUri) -> None:
        self.current_model()
        wanted = pb4.UnsubscribeRequest(topic=topic.to_pb())
        self.rig.call_for(pb4.UnsubscribeResponse, 2, wanted, caller=app, version=4)
        self.end_subscription((topic, app), notifies_subscriber=False)

    @rule(app=APPS, joins=st.booleans())
    def watch_everything(self, app: UUri, joins: bool) -> None:
        self.current_model()
        self.rig.call_for(pb4.NotificationsResponse, 4 if joins else 5, caller=app, version=4)
        (self.observers.add if joins else self.observers.discard)((ANY, app))

    @rule(topics=TOPICS_V4, app=APPS)
    def fetch_by_filters(self, topics: UUri, app: UUri) -> None:
        wanted = pb4.FetchSubscriptionsRequest(topic_filter=topics.to_pb(), subscriber_filter=app.to_pb())
        found = self.rig.call_for(pb4.FetchSubscriptionsResponse, 3, wanted, version=4).subscriptions
        expected = sorted(
            str(topic) for topic, by in self.current_model() if by == app and topics.matches(topic)
        )
        assert [str(UUri.from_pb(each.topic)) for each in found] == expected

    @rule(topic=TOPICS, app=APPS, period_ms=PERIODS_MS, lifetime_ms=LIFETIMES_MS)
    def subscribe(self, topic: UUri, app: UUri, period_ms: int | None, lifetime_ms: int | None) -> None:
        model = self.current_model()
        expire_ms = None if lifetime_ms is None else self.rig.now_ms + lifetime_ms
        wanted = self.rig.subscription_request(topic, sample_period_ms=period_ms, expire_ms=expire_ms)
        answer = self.rig.call(1, wanted, caller=app)
        if lifetime_ms == -1:
            self.end_subscription((topic, app))
            state = UNSUBSCRIBED
        elif (topic, app) not in model and len(model) == LIMIT:
            assert answer.attributes.commstatus is not None
            assert answer.attributes.commstatus.name == "RESOURCE_EXHAUSTED"
            return
        else:
            state = self.put_subscription((topic, app), DesiredSubscription(period_ms or 0, expire_ms))
        assert answer.attributes.commstatus is None
        assert pb.SubscriptionResponse.FromString(answer.payload).status.state == state

    @rule(topic=TOPICS, app=APPS)
    def unsubscribe(self, topic: UUri, app: UUri) -> None:
        self.rig.unsubscribe(topic, caller=app)
        self.current_model()
        self.end_subscription((topic, app))

    @rule(topic=TOPICS, app=APPS, joins=st.booleans())
    def watch(self, topic: UUri, app: UUri, joins: bool) -> None:
        self.current_model()
        if joins:
            self.rig.register(topic, caller=app)
            self.observers.add((topic, app))
        else:
            self.rig.unregister(topic, caller=app)
            self.observers.discard((topic, app))

    @rule(likely=st.integers(0, 4))
    def reset(self, likely: int) -> None:
        if likely:
            return  # one that happens all the time would leave nothing to look at
        self.rig.reset()
        for pair in list(self.current_model()):
            self.end_subscription(pair)
        self.observers.clear()

    @rule(calls=st.lists(st.tuples(TOPICS, APPS, st.booleans()), min_size=2, max_size=6))
    def several_at_once(self, calls: list[tuple[UUri, UUri, bool]]) -> None:
        model = self.current_model()
        open_before = {topic: (call, METHOD[self.remote[topic]]) for topic, call in self.open_calls.items()}
        with self.rig.service_blocked():
            waiting = [
                self.rig.send_request(1, self.rig.subscription_request(topic), caller=app)
                if joins
                else self.rig.send_request(2, pb.UnsubscribeRequest(topic=topic.to_pb()), caller=app)
                for topic, app, joins in calls
            ]
        for reqid, (topic, app, joins) in zip(waiting, calls, strict=True):
            refused = self.rig.wait_response(reqid).attributes.commstatus is not None
            assert refused is (joins and (topic, app) not in model and len(model) == LIMIT)
            if not joins:
                self.end_subscription((topic, app))
            elif not refused:
                self.put_subscription((topic, app), DesiredSubscription(0, None))
        for topic, (
            call,
            method,
        ) in open_before.items():  # changed and reverted in one transaction: no callback
            if call in self.late_calls and METHOD.get(self.remote.get(topic, UNSUBSCRIBED)) == method:
                self.late_calls.remove(call)
                self.open_calls[topic] = call

    @rule(ms=st.sampled_from([1, 500, 1000, 2000]))
    def time_passes(self, ms: int) -> None:
        self.rig.advance(ms=ms)

    @rule()
    def restart(self) -> None:
        self.rig.restart()
        self.late_calls += self.open_calls.values()
        self.open_calls.clear()

    @precondition(lambda self: self.model)
    @rule(app=APPS, offset=st.integers(0, 4))
    def fetch_by_subscriber(self, app: UUri, offset: int) -> None:
        found = self.rig.fetch(subscriber=app, offset=offset).subscriptions
        expected = sorted(str(topic) for topic, subscriber in self.current_model() if subscriber == app)
        assert [str(UUri.from_pb(each.topic)) for each in found] == expected[offset:]

    @invariant()
    def every_subscriber_is_notified_of_every_change(self) -> None:
        self.current_model()
        notified = take_notifications(self.rig)
        assert sorted(notified) == sorted(self.expected_notifications)
        for pair in {(topic, app) for _, _, topic, app, _ in notified}:
            states = [each[-1] for each in notified if each[1:4] == (pair[1], *pair)]
            assert states == [
                each[-1] for each in self.expected_notifications if each[1:4] == (pair[1], *pair)
            ]
        self.expected_notifications.clear()
        assert self.rig.registered_observers() == self.observers

    @invariant()
    def everything_is_listed_and_routed(self) -> None:
        found = self.rig.fetch().subscriptions
        model = self.current_model()
        expected = sorted((str(topic), str(app), desired) for (topic, app), desired in model.items())
        assert [
            (
                str(UUri.from_pb(s.topic)),
                str(UUri.from_pb(s.subscriber.uri)),
                s.attributes.sample_period_ms,
                s.status.state,
            )
            for s in found
        ] == [
            (topic, app, desired.period_ms, self.state_of(UUri.parse(topic)))
            for topic, app, desired in expected
        ]
        for topic in {topic for topic, _ in model}:
            exact = [(app, desired.period_ms) for of, app, desired in expected if of == str(topic)]
            pattern = str(any_instance_pattern(topic))
            wild = [(app, desired.period_ms) for of, app, desired in expected if of == pattern != str(topic)]
            assert [
                (str(app), period // 1_000_000) for app, period in self.rig.routed_subscribers(topic)
            ] == exact + wild


def drive(make_rig: "Callable[..., ServiceRig]", examples: int, steps: int) -> int:
    """Run the machine; returns its steps."""
    made = 0

    class Driven(ServiceStateMachine):
        make = staticmethod(make_rig)

        @invariant()
        def one_more_step(self) -> None:
            nonlocal made
            made += 1

    run_state_machine_as_test(
        Driven,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return made


def test_the_service_matches_a_dict(make_rig: "Callable[..., ServiceRig]") -> None:
    """[utest->dsn~usubscription-state-machine~1]"""
    made = drive(make_rig, examples=20, steps=25)
    print(f"steps={made} divergences=0")
    assert made > 200


@pytest.mark.soak
def test_the_service_matches_a_dict_for_many_steps(make_rig: "Callable[..., ServiceRig]") -> None:
    """Hypothesis chooses how many steps an example has, so they are counted."""
    made = examples = 0
    while made < 100_000:
        made += drive(make_rig, examples=200, steps=100)
        examples += 200
    print(f"steps={made} examples={examples} divergences=0")
