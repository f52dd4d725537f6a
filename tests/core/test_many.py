# SPDX-License-Identifier: Apache-2.0
"""Many messages at once are decided about as one by one: `dispatch` is the oracle of `take_all`."""

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_throttle.plugin import ThrottleConfig, ThrottlePlugin

from ustreamer.core.chain import Delivery, Filter
from ustreamer.core.ledger import Verdict
from ustreamer.core.routes import Decision, Places, Router
from ustreamer.hookspecs import PluginContext
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.utransport import BulkListener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.core.conftest import Holding, Sent, Verdicts, World

NS_PER_MS = 1_000_000
NOW_MS = 1_700_000_000_000
CHASSIS = [UUri("chassis", 0x1234, 1, 0x8001 + number) for number in range(3)]
SPOOFED = UUri("hpc", 0x1234, 1, 0x8001)
APPS = [
    UUri("hpc", 0x10, 1, 0),
    UUri("cloud", 0x11, 1, 0),
    UUri("dash", 0x12, 1, 0),
    UUri("dash", 0x13, 1, 0),
]
KINDS = [UMessageType.PUBLISH] * 4 + [
    UMessageType.NOTIFICATION,
    UMessageType.REQUEST,
    UMessageType.RESPONSE,
    UMessageType.RESPONSE,
]


class Sketch(msgspec.Struct, frozen=True):
    kind: UMessageType
    topic: UUri
    sink: UUri
    ttl: int | None
    age_ms: int
    valid: bool
    flaw: str

    def message(self, number: int) -> UMessage:
        id = UUID(NOW_MS - self.age_ms << 16 | 0x7000 * self.valid, 1 << 63 | number)
        match self.kind:
            case UMessageType.PUBLISH:
                return publish(id, self.topic, b"%d" % number, ttl=self.ttl)
            case UMessageType.NOTIFICATION:
                return notification(id, self.topic, self.sink, b"%d" % number, ttl=self.ttl)
            case UMessageType.RESPONSE:
                return UMessage(id, self.answer(number), b"%d" % number)
            case _:
                caller, method = self.topic.with_resource(0), self.sink.with_resource(1)
                return request(id, caller, method, ttl=self.ttl or 50, priority=UPriority.CS4)

    def answer(self, number: int) -> UAttributes:
        """To a request of its own each; `flaw` is what is wrong with it."""
        return UAttributes(
            type=UMessageType.RESPONSE,
            source=self.topic.with_resource(0 if self.flaw == "source" else 1),
            sink=None if self.flaw == "sink" else self.sink,
            priority=UPriority.CS1 if self.flaw == "priority" else UPriority.CS4,
            ttl=self.ttl,
            reqid=None
            if self.flaw == "no reqid"
            else UUID(0x7000 * (self.flaw != "reqid"), 1 << 63 | number),
            token="t" if self.flaw == "token" else None,
        )


sketches = st.builds(
    Sketch,
    st.sampled_from(KINDS),
    st.sampled_from([*CHASSIS, *CHASSIS, SPOOFED]),
    st.sampled_from([*APPS, UUri("mars", 1, 1, 0)]),
    st.sampled_from([None, None, 20]),
    st.sampled_from([0, 0, 0, 30]),
    st.sampled_from([True] * 9 + [False]),
    st.sampled_from([""] * 8 + ["source", "sink", "priority", "no reqid", "reqid", "token"]),
)
wishes = st.lists(
    st.tuples(
        st.sampled_from(CHASSIS),
        st.sampled_from(APPS),
        st.sampled_from([0, 0, 5 * NS_PER_MS, 50 * NS_PER_MS]),
    ),
    max_size=8,
)


class Story(msgspec.Struct, frozen=True):
    """What is wished, and helpings of messages that come one ms after another."""

    wishes: list[tuple[UUri, UUri, int]]
    helpings: list[list[Sketch]]
    mode: str
    window: int


stories = st.builds(
    Story,
    wishes,
    st.lists(st.lists(sketches, min_size=1, max_size=12), max_size=5),
    st.sampled_from(["drop", "latest"]),
    st.sampled_from([0, 0, 8]),
)


def told(world: "World", story: Story, *, together: bool) -> "World":
    """The story in a world: each helping as one, or message by message."""
    for wish in story.wishes:
        world.directory.subscribe(*wish)
    number = 0
    for helping in story.helpings:
        messages = [each.message(number + n) for n, each in enumerate(helping)]
        number += len(messages)
        if together:
            world.ingress("chassis").take_all(messages)
        else:
            for message in messages:
                world.receive("chassis", message)
        world.check()
        world.time.advance(ms=1)
        world.fire()
    world.time.advance(ms=200)
    world.run()
    world.check()
    return world


def throttled(world: "type[World]", story: Story) -> "World":
    made: list[World] = []

    def schedule(when_ns: int, action: object) -> None:
        made[0]._schedule(when_ns, action)  # type: ignore[arg-type]

    plugin = ThrottlePlugin(
        msgspec.convert({"mode": story.mode}, ThrottleConfig),
        PluginContext("hpc", (), None, None, schedule),  # type: ignore[arg-type]
    )

    def filters(delivery: Delivery) -> "Iterable[Filter]":
        found = plugin.ustreamer_filters(delivery)
        return () if found is None else (found,)

    made.append(world(filters, duplicate_windows={"chassis": story.window}))
    return made[0]


def verdicts(world: "World") -> Counter[tuple[UMessage, Verdict]]:
    """On what came in; answers and dead letters have ids of their own."""
    return Counter(
        (each.message, each.verdict) for each in world.seen if each.message.id.lsb < 1 << 63 | 1000
    )


@settings(max_examples=150, deadline=None)
@given(story=stories)
def test_many_at_once_end_as_they_would_one_by_one(story: Story, unchecked: "type[World]") -> None:
    one, many = (told(throttled(unchecked, story), story, together=each) for each in (False, True))
    assert many.books() == one.books()
    assert many.dispatcher.refused() == one.dispatcher.refused()
    assert verdicts(many) == verdicts(one)
    for name, lane in many.lanes.items():
        assert streams(lane.sent) == streams(one.lanes[name].sent)


def streams(sent: "list[Sent]") -> dict[object, list[UMessage]]:
    """What each target got of each source and sink, in its order: more order is not promised."""
    found: dict[object, list[UMessage]] = {}
    for subscriber, message in sent:
        if message.id.lsb < 1 << 63 | 1000:
            stream = subscriber, message.attributes.source, message.attributes.sink
            found.setdefault(stream, []).append(message)
    return found


def event(world: "World", topic: UUri = CHASSIS[0], ttl: int | None = None) -> UMessage:
    return publish(world.id(), topic, ttl=ttl)


def test_an_ingress_is_a_listener_for_many(world: "World") -> None:
    assert isinstance(world.ingress("chassis"), BulkListener)


def test_what_has_no_plan_yet_does_not_overtake_what_has(world: "World") -> None:
    world.directory.subscribe(CHASSIS[0], APPS[0])
    first = event(world)
    world.receive("chassis", first)
    ingress, messages = world.ingress("chassis"), [event(world) for _ in range(6)]
    # Another object, and then another ttl: plans of their own, and one stream.
    messages[3] = msgspec.structs.replace(messages[3], attributes=event(world, ttl=500).attributes)
    ingress.take_all(messages)
    world.run()
    assert world.lanes["backbone"].messages == [first, *messages]


def answers(world: "World", number: int, sink: UUri = APPS[0]) -> list[UMessage]:
    """To a request each."""
    asked = request(world.id(), sink, CHASSIS[0].with_resource(1), ttl=1_000)
    return [response(world.id(), UMessage(world.id(), asked.attributes)) for _ in range(number)]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("together", [True, False])
def test_answers_to_one_requester_have_one_plan(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch, together: bool, window: int
) -> None:
    world = build(duplicate_windows={"chassis": window})
    asked: list[UAttributes] = []
    decide = Router.decide

    def counting(router: Router, ingress: str, attributes: UAttributes) -> Decision:
        asked.append(attributes)
        return decide(router, ingress, attributes)

    monkeypatch.setattr(Router, "decide", counting)
    ingress, sent = world.ingress("chassis"), [*answers(world, 3), *answers(world, 3, APPS[1])]
    if together:
        ingress.take_all(sent)
    else:
        for each in sent:
            ingress.dispatch(each)
    world.run()
    assert len(asked) == 2
    assert world.lanes["backbone"].messages == sent
    # What the plan does not depend on is looked at all the same.
    wrong = answers(world, 1)[0]
    bad = msgspec.structs.replace(wrong.attributes, reqid=UUID(1, 1))
    ingress.take_all([UMessage(world.id(), bad), UMessage(world.id(), bad)])
    assert ingress.refused["invalid"] == 2


def test_answers_go_where_the_authority_lives_after_a_change_of_places(world: "World") -> None:
    ingress = world.ingress("chassis")
    ingress.take_all(answers(world, 2))
    moved = Places({"hpc": "dash", "chassis": "chassis"})
    unicast = {"backbone": False, "chassis": True, "dash": True}
    world.dispatcher.swap(Router(moved, world.directory, unicast))
    later = answers(world, 2)
    ingress.take_all(later)
    world.run()
    assert world.lanes["dash"].messages == later


def test_a_wish_that_changes_between_two_helpings_holds_from_the_second_on(world: "World") -> None:
    world.directory.subscribe(CHASSIS[0], APPS[0])
    helpings = [[event(world) for _ in range(3)] for _ in range(3)]
    ingress = world.ingress("chassis")
    ingress.take_all(helpings[0])
    world.directory.subscribe(CHASSIS[0], APPS[2])
    ingress.take_all(helpings[1])
    world.directory.unsubscribe(CHASSIS[0], APPS[0])
    ingress.take_all(helpings[2])
    world.run()
    assert world.lanes["backbone"].messages == helpings[0] + helpings[1]
    assert world.lanes["dash"].messages == helpings[1] + helpings[2]


def test_filters_are_told_the_time_of_each_message_and_others_share_one(
    build: "type[World]", answering: "type[Verdicts]"
) -> None:
    asked = answering([])
    world = build(lambda delivery: (asked,) if delivery.topic == CHASSIS[0] else ())
    for topic in CHASSIS[:2]:
        world.directory.subscribe(topic, APPS[0])
    ingress, reading = world.ingress("chassis"), world.clock.monotonic_ns

    def ticking() -> int:
        world.time.now_ns += 1
        return reading()

    ingress._monotonic_ns = ticking
    for message in (event(world), event(world, CHASSIS[1])):
        ingress.dispatch(message)
    asked.asked.clear()
    world.times.clear()
    before_ns = world.time.now_ns
    ingress.take_all([event(world, CHASSIS[number % 2]) for number in range(6)])
    assert world.time.now_ns == before_ns + 4  # one for all, and one for each that a filter is asked about
    assert [now_ns - before_ns for _, now_ns in asked.asked] == [2, 3, 4]


def test_a_filter_that_fails_takes_nothing_else_with_it(build: "type[World]") -> None:
    class Fails(Filter):
        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            if message.payload == b"3":
                raise ValueError(message.payload)
            return None

    world = build(lambda _: (Fails(),))
    world.directory.subscribe(CHASSIS[0], APPS[0])
    messages = [publish(world.id(), CHASSIS[0], b"%d" % number) for number in range(6)]
    world.ingress("chassis").take_all(messages)
    world.run()
    assert [each.payload for each in world.lanes["backbone"].messages] == [b"0", b"1", b"2", b"4", b"5"]
    assert world.verdicts().count(Verdict.DEAD_LETTERED) == 1


def test_what_was_decided_before_an_end_in_the_middle_leaves_and_so_does_what_comes_later(
    unchecked: "type[World]",
) -> None:
    class Ends(Filter):
        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            if message.payload == b"3":
                raise SystemExit  # no mistake of the kind that is contained
            return None

    world = unchecked(lambda _: (Ends(),))
    world.directory.subscribe(CHASSIS[0], APPS[0])
    messages = [publish(world.id(), CHASSIS[0], b"%d" % number) for number in range(8)]
    with pytest.raises(SystemExit):
        world.ingress("chassis").take_all(messages[:6])
    world.ingress("chassis").take_all(messages[6:])
    world.run()
    assert [each.payload for each in world.lanes["backbone"].messages] == [b"0", b"1", b"2", b"6", b"7"]


def test_what_a_filter_holds_is_let_go_in_its_place(build: "type[World]", holding: "type[Holding]") -> None:
    world = build(lambda delivery: (holding(delivery, 5 * NS_PER_MS),))
    world.directory.subscribe(CHASSIS[0], APPS[0])
    messages = [event(world) for _ in range(4)]
    world.ingress("chassis").take_all(messages)
    assert world.books().queued == 1
    world.time.advance(ms=6)
    world.run()
    assert world.lanes["backbone"].messages == messages[-1:]
    assert world.verdicts().count(Verdict.THROTTLED) == 3
