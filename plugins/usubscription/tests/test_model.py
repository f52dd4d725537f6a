# SPDX-License-Identifier: Apache-2.0
"""The whole service against plain dicts: requests of both versions, restarts, passing time, and another device. [R26]

The other device's answers come, come late, are lost, or are refusals by somebody on the way; its link goes and comes.
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
from ustreamer_usubscription.model.declared_topics import any_instance

from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import ANY, UUri

if TYPE_CHECKING:
    from tests.conftest import Desk

FAR = "device3"
TOPICS = st.sampled_from([UUri(a, 1, 1, r) for a in ("device1", "device2", FAR) for r in (0x8000, 0x8001)])
TOPICS_V4 = TOPICS | st.sampled_from([UUri(a, 0xFFFF0001, 1, 0x8000) for a in ("device2", FAR)])
UNSUBSCRIBED, PENDING, SUBSCRIBED, LEAVING = range(4)
SUBSCRIBE, UNSUBSCRIBE = 1, 2
MEANINGS = {SUBSCRIBED: "granted", PENDING: "deferred", UNSUBSCRIBED: "refused"}
# As the standard's diagram has it; what is not in here changes nothing.
MACHINE = {
    (UNSUBSCRIBED, "wanted"): PENDING,
    (PENDING, "granted"): SUBSCRIBED,
    (PENDING, "refused"): UNSUBSCRIBED,
    (PENDING, "unwanted"): LEAVING,
    (SUBSCRIBED, "deferred"): PENDING,
    (SUBSCRIBED, "refused"): UNSUBSCRIBED,
    (SUBSCRIBED, "unwanted"): LEAVING,
    (LEAVING, "wanted"): PENDING,
    (LEAVING, "answered"): UNSUBSCRIBED,
}
METHOD = {PENDING: SUBSCRIBE, SUBSCRIBED: SUBSCRIBE, LEAVING: UNSUBSCRIBE}
ON_THE_WAY = [UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED]
APPS = st.sampled_from([UUri("device1", n, 1, 0) for n in (1, 2, 0x10)])
PERIODS_MS = st.sampled_from([None, 0, 10, 25])
LIFETIMES_MS = st.sampled_from([None, -1, 0, 700, 1500, 60_000])
LIMIT = 9


class Wish(NamedTuple):
    period_ms: int
    expire_ms: int | None


Told = tuple[int, UUri, UUri, UUri, int]
"""(version, to whom, topic, subscriber, state)"""


def told_by(desk: "Desk") -> list[Told]:
    """Every notification since the last call; the state in the numbers of version 3."""
    desk.fetch()  # ends what has expired
    desk.fetch()  # and when this is answered, that has been told
    received, desk.notified[:] = list(desk.notified), []
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


class Service(RuleBasedStateMachine):
    """Drives a desk, and keeps a dict of what there should be."""

    make: Callable[..., "Desk"]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.desk = self.make(Path(self.folder.name), max_subscriptions=LIMIT).start()
        self.model: dict[tuple[UUri, UUri], Wish] = {}
        self.watching: set[tuple[UUri, UUri]] = set()
        self.versions: dict[tuple[UUri, UUri], int] = {}
        self.to_tell: list[Told] = []
        self.remote: dict[UUri, int] = {}
        self.open: dict[UUri, UMessage] = {}
        self.late: list[UMessage] = []
        self.said: dict[UUri, tuple[int, UUri, int, int | None]] = {}

    def teardown(self) -> None:
        self.everything_comes_to_rest()
        self.desk.stop()
        self.folder.cleanup()

    def standing(self) -> dict[tuple[UUri, UUri], Wish]:
        """The model without what has expired."""
        now = self.desk.now_ms
        for pair, wish in list(self.model.items()):
            if wish.expire_ms is not None and wish.expire_ms < now:
                self.ends(pair)
        return self.model

    def ends(self, pair: tuple[UUri, UUri]) -> None:
        if self.model.pop(pair, None):
            self.tell(pair, UNSUBSCRIBED)
            if not self.clients(pair[0]):
                self.happens(pair[0], "unwanted")

    def becomes(self, pair: tuple[UUri, UUri], wish: Wish, version: int = 3) -> int:
        """The state in which the subscription is now."""
        self.versions[pair] = version  # whoever asks again in other words changes nothing but these
        changed = self.model.get(pair) != wish
        self.model[pair] = wish
        self.happens(pair[0], "wanted")
        if changed:
            self.tell(pair, self.state_of(pair[0]))
        return self.state_of(pair[0])

    # --- the other device ---------------------------------------------------------------------------------------------

    def clients(self, topic: UUri) -> list[tuple[UUri, UUri]]:
        return [pair for pair in self.model if pair[0] == topic]

    def state_of(self, topic: UUri) -> int:
        return self.remote.get(topic, UNSUBSCRIBED) if topic.authority_name == FAR else SUBSCRIBED

    def happens(self, topic: UUri, event: str) -> None:
        if topic.authority_name != FAR:
            return
        before = self.remote.pop(topic, UNSUBSCRIBED)
        after = MACHINE.get((before, event), before)
        if after != UNSUBSCRIBED:
            self.remote[topic] = after
        if METHOD.get(before) != METHOD.get(after) and topic in self.open:
            self.late.append(self.open.pop(topic))
        if after != before and event in MEANINGS.values():
            for pair in self.clients(topic):
                self.tell(pair, after)
                if after == UNSUBSCRIBED:
                    del self.model[pair]

    @invariant()
    def the_calls_of_the_service_are_noted(self) -> None:
        self.standing()
        for call in self.desk.calls():
            method, topic, _, _ = asked = self.desk.asked_in(call)
            if topic not in self.remote:  # told of it by a hint that came too late
                assert method == UNSUBSCRIBE
                self.desk.grant(call)
                continue
            assert METHOD[self.remote[topic]] == method
            if topic in self.open:
                self.late.append(self.open[topic])
            self.open[topic], self.said[topic] = call, asked

    @precondition(lambda self: self.open)
    @rule(data=st.data(), state=st.sampled_from(sorted(MEANINGS)))
    def the_other_device_answers(self, data: st.DataObject, state: int) -> None:
        self.standing()
        topic = data.draw(st.sampled_from(sorted(self.open)))
        if topic in self.open:
            self.answer(topic, state)

    def answer(self, topic: UUri, state: int) -> None:
        call = self.open.pop(topic)
        subscribes = self.desk.asked_in(call)[0] == SUBSCRIBE
        self.desk.grant(call, state)
        self.happens(topic, MEANINGS[state] if subscribes else "answered")

    @precondition(lambda self: self.open)
    @rule(data=st.data(), code=st.sampled_from([*ON_THE_WAY, UCode.NOT_FOUND, UCode.PERMISSION_DENIED]))
    def the_other_device_or_somebody_on_the_way_refuses(self, data: st.DataObject, code: UCode) -> None:
        self.standing()
        topic = data.draw(st.sampled_from(sorted(self.open)))
        call = self.open.pop(topic)
        self.desk.refuse(call, code)
        if code not in ON_THE_WAY:
            self.happens(topic, "refused" if self.desk.asked_in(call)[0] == SUBSCRIBE else "answered")

    @precondition(lambda self: self.late)
    @rule(data=st.data(), state=st.sampled_from(sorted(MEANINGS)))
    def an_answer_comes_too_late(self, data: st.DataObject, state: int) -> None:
        self.desk.grant(data.draw(st.sampled_from(self.late)), state)

    @precondition(lambda self: self.remote)
    @rule(data=st.data(), state=st.integers(0, 3))
    def the_other_device_tells_of_a_change(self, data: st.DataObject, state: int) -> None:
        self.desk.hint(data.draw(st.sampled_from(sorted(self.remote))), state)

    @rule(up=st.booleans())
    def the_link_turns(self, up: bool) -> None:
        self.desk.links.turn(FAR, up=up)

    @rule()
    def answers_are_awaited_in_vain(self) -> None:
        self.desk.advance(s=300)
        self.late += self.open.values()  # a new call for each, or none while the link is down
        self.open.clear()

    def everything_comes_to_rest(self) -> None:
        """When the link is up and all is answered, the other device has been told what is wanted, and nothing is open."""
        self.desk.links.turn(FAR, up=True)
        for _ in range(4):
            self.standing()
            self.desk.advance(s=60)
            self.the_calls_of_the_service_are_noted()
            for topic in list(self.open):
                self.answer(topic, SUBSCRIBED)
        self.the_calls_of_the_service_are_noted()
        assert self.open == {}
        assert set(self.remote.values()) <= {SUBSCRIBED}
        for topic in self.remote:
            wishes = [self.model[pair] for pair in self.clients(topic)]
            ends = [wish.expire_ms for wish in wishes]
            end = None if None in ends else max(each for each in ends if each is not None)
            assert self.said[topic] == (SUBSCRIBE, topic, min(wish.period_ms for wish in wishes), end)
        assert self.desk.statistics("remote_topics") == len(self.remote)

    # --- clients ------------------------------------------------------------------------------------------------------

    def tell(self, pair: tuple[UUri, UUri], state: int) -> None:
        topic, app = pair
        concerned = {(self.versions[pair], app)}
        concerned |= {(3, entity) for watched, entity in self.watching if watched == topic}
        concerned |= {(4, entity) for watched, entity in self.watching if watched == ANY}
        self.to_tell += [(version, entity, topic, app, state) for version, entity in concerned]

    @rule(topic=TOPICS_V4, app=APPS, period_ms=PERIODS_MS, lifetime_ms=LIFETIMES_MS)
    def subscribe_in_version_4(
        self, topic: UUri, app: UUri, period_ms: int | None, lifetime_ms: int | None
    ) -> None:
        model = self.standing()
        expire_ms = None if lifetime_ms is None else self.desk.now_ms + lifetime_ms
        wanted = pb4.SubscribeRequest(topic=topic.to_pb(), sample_period=period_ms)
        if expire_ms is not None:
            wanted.expiration.FromMilliseconds(expire_ms)
        answer = self.desk.call(1, wanted, caller=app, version=4)
        full = lifetime_ms != -1 and (topic, app) not in model and len(model) == LIMIT
        assert (answer.attributes.commstatus is not None) is full
        if full:
            return
        status = pb4.SubscribeResponse.FromString(answer.payload).status
        if lifetime_ms == -1:
            assert status == pb4.STATUS_UNSUBSCRIBED
            self.ends((topic, app))
        else:
            assert status - 1 == self.becomes((topic, app), Wish(period_ms or 0, expire_ms), 4)

    @rule(topic=TOPICS_V4, app=APPS)
    def unsubscribe_in_version_4(self, topic: UUri, app: UUri) -> None:
        self.standing()
        wanted = pb4.UnsubscribeRequest(topic=topic.to_pb())
        self.desk.asked(pb4.UnsubscribeResponse, 2, wanted, caller=app, version=4)
        self.ends((topic, app))

    @rule(app=APPS, joins=st.booleans())
    def watch_everything(self, app: UUri, joins: bool) -> None:
        self.standing()
        self.desk.asked(pb4.NotificationsResponse, 4 if joins else 5, caller=app, version=4)
        (self.watching.add if joins else self.watching.discard)((ANY, app))

    @rule(topics=TOPICS_V4, app=APPS)
    def fetch_by_filters(self, topics: UUri, app: UUri) -> None:
        wanted = pb4.FetchSubscriptionsRequest(topic_filter=topics.to_pb(), subscriber_filter=app.to_pb())
        found = self.desk.asked(pb4.FetchSubscriptionsResponse, 3, wanted, version=4).subscriptions
        expected = sorted(str(topic) for topic, by in self.standing() if by == app and topics.matches(topic))
        assert [str(UUri.from_pb(each.topic)) for each in found] == expected

    @rule(topic=TOPICS, app=APPS, period_ms=PERIODS_MS, lifetime_ms=LIFETIMES_MS)
    def subscribe(self, topic: UUri, app: UUri, period_ms: int | None, lifetime_ms: int | None) -> None:
        model = self.standing()
        expire_ms = None if lifetime_ms is None else self.desk.now_ms + lifetime_ms
        wanted = self.desk.subscription_request(topic, sample_period_ms=period_ms, expire_ms=expire_ms)
        answer = self.desk.call(1, wanted, caller=app)
        if lifetime_ms == -1:
            self.ends((topic, app))
            state = UNSUBSCRIBED
        elif (topic, app) not in model and len(model) == LIMIT:
            assert answer.attributes.commstatus is not None
            assert answer.attributes.commstatus.name == "RESOURCE_EXHAUSTED"
            return
        else:
            state = self.becomes((topic, app), Wish(period_ms or 0, expire_ms))
        assert answer.attributes.commstatus is None
        assert pb.SubscriptionResponse.FromString(answer.payload).status.state == state

    @rule(topic=TOPICS, app=APPS)
    def unsubscribe(self, topic: UUri, app: UUri) -> None:
        self.desk.unsubscribe(topic, caller=app)
        self.standing()
        self.ends((topic, app))

    @rule(topic=TOPICS, app=APPS, joins=st.booleans())
    def watch(self, topic: UUri, app: UUri, joins: bool) -> None:
        self.standing()
        if joins:
            self.desk.register(topic, caller=app)
            self.watching.add((topic, app))
        else:
            self.desk.unregister(topic, caller=app)
            self.watching.discard((topic, app))

    @rule(likely=st.integers(0, 4))
    def reset(self, likely: int) -> None:
        if likely:
            return  # one that happens all the time would leave nothing to look at
        self.desk.reset()
        for pair in list(self.standing()):
            self.ends(pair)
        self.watching.clear()

    @rule(calls=st.lists(st.tuples(TOPICS, APPS, st.booleans()), min_size=2, max_size=6))
    def several_at_once(self, calls: list[tuple[UUri, UUri, bool]]) -> None:
        model = self.standing()
        open_before = {topic: (call, METHOD[self.remote[topic]]) for topic, call in self.open.items()}
        with self.desk.held():
            waiting = [
                self.desk.post(1, self.desk.subscription_request(topic), caller=app)
                if joins
                else self.desk.post(2, pb.UnsubscribeRequest(topic=topic.to_pb()), caller=app)
                for topic, app, joins in calls
            ]
        for reqid, (topic, app, joins) in zip(waiting, calls, strict=True):
            refused = self.desk.answer(reqid).attributes.commstatus is not None
            assert refused is (joins and (topic, app) not in model and len(model) == LIMIT)
            if not joins:
                self.ends((topic, app))
            elif not refused:
                self.becomes((topic, app), Wish(0, None))
        for topic, (
            call,
            method,
        ) in open_before.items():  # there and back in one transaction: nobody was called
            if call in self.late and METHOD.get(self.remote.get(topic, UNSUBSCRIBED)) == method:
                self.late.remove(call)
                self.open[topic] = call

    @rule(ms=st.sampled_from([1, 500, 1000, 2000]))
    def time_passes(self, ms: int) -> None:
        self.desk.advance(ms=ms)

    @rule()
    def restart(self) -> None:
        self.desk.restart()
        self.late += self.open.values()
        self.open.clear()

    @precondition(lambda self: self.model)
    @rule(app=APPS, offset=st.integers(0, 4))
    def fetch_by_subscriber(self, app: UUri, offset: int) -> None:
        found = self.desk.fetch(subscriber=app, offset=offset).subscriptions
        expected = sorted(str(topic) for topic, subscriber in self.standing() if subscriber == app)
        assert [str(UUri.from_pb(each.topic)) for each in found] == expected[offset:]

    @invariant()
    def everybody_is_told_of_every_change(self) -> None:
        self.standing()
        told = told_by(self.desk)
        assert sorted(told) == sorted(self.to_tell)
        for pair in {(topic, app) for _, _, topic, app, _ in told}:
            heard = [each[-1] for each in told if each[1:4] == (pair[1], *pair)]
            assert heard == [each[-1] for each in self.to_tell if each[1:4] == (pair[1], *pair)]
        self.to_tell.clear()
        assert self.desk.registered() == self.watching

    @invariant()
    def everything_is_listed_and_routed(self) -> None:
        found = self.desk.fetch().subscriptions
        model = self.standing()
        expected = sorted((str(topic), str(app), wish) for (topic, app), wish in model.items())
        assert [
            (
                str(UUri.from_pb(s.topic)),
                str(UUri.from_pb(s.subscriber.uri)),
                s.attributes.sample_period_ms,
                s.status.state,
            )
            for s in found
        ] == [(topic, app, wish.period_ms, self.state_of(UUri.parse(topic))) for topic, app, wish in expected]
        for topic in {topic for topic, _ in model}:
            exact = [(app, wish.period_ms) for of, app, wish in expected if of == str(topic)]
            pattern = str(any_instance(topic))
            wild = [(app, wish.period_ms) for of, app, wish in expected if of == pattern != str(topic)]
            assert [
                (str(app), period // 1_000_000) for app, period in self.desk.routed(topic)
            ] == exact + wild


def drive(make_desk: "Callable[..., Desk]", examples: int, steps: int) -> int:
    """Run the machine; the steps that it made."""
    made = 0

    class Driven(Service):
        make = staticmethod(make_desk)

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


def test_the_service_is_what_a_dict_is(make_desk: "Callable[..., Desk]") -> None:
    """[utest->dsn~usubscription-state-machine~1]"""
    assert drive(make_desk, examples=20, steps=25) > 200


@pytest.mark.soak
def test_the_service_is_what_a_dict_is_for_many_steps(make_desk: "Callable[..., Desk]") -> None:
    """Hypothesis chooses how many steps an example has, so they are counted."""
    made = examples = 0
    while made < 100_000:
        made += drive(make_desk, examples=200, steps=100)
        examples += 200
    print(f"steps={made} examples={examples} divergences=0")
