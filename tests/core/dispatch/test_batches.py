# SPDX-License-Identifier: Apache-2.0
"""Batches have the results of single messages: `Ingress.dispatch` is the oracle of `Ingress.on_batch`."""

from asyncio import CancelledError
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_throttle.plugin import ThrottleConfig, ThrottlePlugin

from tests.response_batches import batch_of_responses
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.core.routing.router import AuthorityTable, Router, RoutingDecision
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.batch import MIN_BATCH, IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.utransport import BatchListener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.core.conftest import BatchListEgress, HoldingFilter, ListEgress, Sent, VerdictFilter, World

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
        """Attributes of a Response to a request of its own; `flaw` is the broken part."""
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
subscription_lists = st.lists(
    st.tuples(
        st.sampled_from(CHASSIS),
        st.sampled_from(APPS),
        st.sampled_from([0, 0, 5 * NS_PER_MS, 50 * NS_PER_MS]),
    ),
    max_size=8,
)


class Story(msgspec.Struct, frozen=True):
    """Subscriptions, and batches of messages at intervals of 1 ms; more subscriptions follow half-way."""

    subscription_lists: list[tuple[UUri, UUri, int]]
    later: list[tuple[UUri, UUri, int]]
    sketched_batches: list[list[Sketch]]
    mode: str | None
    """The mode of the throttle; None: no filters."""
    window: int
    denied: bool
    """Whether the second topic is denied."""


def aged(sketch: Sketch, ages_ms: list[int]) -> list[Sketch]:
    """Messages that differ in their ages only."""
    return [msgspec.structs.replace(sketch, age_ms=each, valid=True) for each in ages_ms]


often = st.builds(
    Sketch,
    st.sampled_from([UMessageType.PUBLISH] * 3 + KINDS),
    st.sampled_from([*CHASSIS[:2], *CHASSIS[:2], SPOOFED]),
    st.sampled_from(APPS),
    st.sampled_from([None, 20]),
    st.just(0),
    st.just(True),
    st.sampled_from(["", "", "no reqid", "sink"]),
)
alike = st.builds(
    aged, often, st.lists(st.sampled_from([0] * 9 + [15, 18, 30]), min_size=1, max_size=2 * MIN_BATCH)
)
stories = st.builds(
    Story,
    subscription_lists,
    subscription_lists,
    # Three rounds: without a route, with a route, and with a rebuilt route after the later subscriptions.
    st.lists(st.one_of(st.lists(sketches, min_size=1, max_size=12), alike), max_size=3).map(
        lambda each: each * 3
    ),
    st.sampled_from([None, None, "drop", "latest"]),
    st.sampled_from([0, 0, 0, 8]),
    st.booleans(),
)


def play(world: "World", story: Story, form: str) -> "World":
    """Play the story in a world: each batch as a list, as a column batch if possible, or message by message."""
    for subscription in story.subscription_lists:
        world.directory.subscribe(*subscription)
    number = 0
    for turn, sketched_batch in enumerate(story.sketched_batches):
        if turn == len(story.sketched_batches) // 2:
            for subscription in story.later:
                world.directory.subscribe(*subscription)
        messages = [each.message(number + n) for n, each in enumerate(sketched_batch)]
        number += len(messages)
        if form == "one by one":
            for message in messages:
                world.receive("chassis", message)
        else:
            is_column_batch = form == "column batches" and all(each.id.is_valid for each in messages)
            run = (
                MessageBatch.from_messages(messages) or batch_of_responses(messages)
                if is_column_batch
                else None
            )
            world.ingress("chassis").on_batch(run or messages)
        world.check()
        world.time.advance(ms=1)
        world.fire()
    world.time.advance(ms=200)
    world.run()
    world.check()
    return world


def throttled(world: "type[World]", story: Story, egress_class: "type[ListEgress]") -> "World":
    made: list[World] = []

    def schedule(when_ns: int, action: object) -> None:
        made[0]._schedule(when_ns, action)  # type: ignore[arg-type]

    plugin = ThrottlePlugin(
        msgspec.convert({"mode": story.mode or "drop"}, ThrottleConfig),
        PluginContext("hpc", (), None, None, schedule),  # type: ignore[arg-type]
    )

    def filters(delivery: Delivery) -> "Iterable[Filter]":
        found = plugin.ustreamer_filters(delivery) if story.mode else None
        return () if found is None else (found,)

    rules = [AccessRule(allow=False, source=str(CHASSIS[1])), AccessRule(allow=True)]
    access = {"chassis": AccessPolicy("chassis", rules)} if story.denied else {}
    made.append(
        world(filters, dedup_windows={"chassis": story.window}, access=access, egress_class=egress_class)
    )
    return made[0]


def verdicts(world: "World") -> Counter[tuple[UMessage, Verdict]]:
    """The verdicts on incoming messages; responses and dead letters have random ids."""
    return Counter(
        (each.message, each.verdict) for each in world.tap_calls if each.message.id.lsb < 1 << 63 | 1000
    )


@settings(max_examples=80, deadline=None)
@given(story=stories)
@pytest.mark.parametrize("form", ["lists", "column batches"])
def test_a_batch_has_the_results_of_its_single_messages(
    story: Story, unchecked: "type[World]", batch_egress: "type[BatchListEgress]", form: str
) -> None:
    one = play(throttled(unchecked, story, batch_egress), story, "one by one")
    many = play(throttled(unchecked, story, batch_egress), story, form)
    assert many.ledger() == one.ledger()
    assert many.dispatcher.refused_counts() == one.dispatcher.refused_counts()
    assert targets(many) == targets(one)
    assert verdicts(many) == verdicts(one)
    for name, egress in many.egress.items():
        assert streams(egress.sent) == streams(one.egress[name].sent)


def targets(world: "World") -> Counter[object]:
    """The statistics of all targets."""
    return Counter(world.ingress("chassis").target_statistics())


def streams(sent: "list[Sent]") -> dict[object, list[UMessage]]:
    """The messages of each target by source and sink, in order: the order that is guaranteed."""
    found: dict[object, list[UMessage]] = {}
    for subscriber, message in sent:
        if message.id.lsb < 1 << 63 | 1000:
            stream = subscriber, message.attributes.source, message.attributes.sink
            found.setdefault(stream, []).append(message)
    return found


def event(world: "World", topic: UUri = CHASSIS[0], ttl: int | None = None) -> UMessage:
    return publish(world.id(), topic, ttl=ttl)


def test_an_ingress_is_a_batch_listener(world: "World") -> None:
    assert isinstance(world.ingress("chassis"), BatchListener)


def test_a_message_without_a_cached_route_does_not_overtake_others(world: "World") -> None:
    world.directory.subscribe(CHASSIS[0], APPS[0])
    first = event(world)
    world.receive("chassis", first)
    ingress, messages = world.ingress("chassis"), [event(world) for _ in range(6)]
    # Equal attributes in another object, and another ttl: own routes, one stream.
    messages[3] = msgspec.structs.replace(messages[3], attributes=event(world, ttl=500).attributes)
    ingress.on_batch(messages)
    world.run()
    assert world.egress["backbone"].messages == [first, *messages]


def answers(world: "World", number: int, sink: UUri = APPS[0]) -> list[UMessage]:
    """Responses, each to its own request."""
    own_request = request(world.id(), sink, CHASSIS[0].with_resource(1), ttl=1_000)
    return [response(world.id(), UMessage(world.id(), own_request.attributes)) for _ in range(number)]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("together", [True, False])
def test_responses_to_one_requester_share_a_route(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch, together: bool, window: int
) -> None:
    world = build(dedup_windows={"chassis": window})
    decided: list[UAttributes] = []
    decide = Router.decide

    def counting(router: Router, ingress: str, attributes: UAttributes) -> RoutingDecision:
        decided.append(attributes)
        return decide(router, ingress, attributes)

    monkeypatch.setattr(Router, "decide", counting)
    ingress, sent = world.ingress("chassis"), [*answers(world, 3), *answers(world, 3, APPS[1])]
    if together:
        ingress.on_batch(sent)
    else:
        for each in sent:
            ingress.dispatch(each)
    world.run()
    assert len(decided) == 2
    assert world.egress["backbone"].messages == sent
    # An invalid reqid is refused, although the route does not depend on it.
    wrong = answers(world, 1)[0]
    bad = msgspec.structs.replace(wrong.attributes, reqid=UUID(1, 1))
    ingress.on_batch([UMessage(world.id(), bad), UMessage(world.id(), bad)])
    assert ingress.refused["invalid"] == 2


def test_a_batch_of_responses_uses_the_route_of_a_single_one(
    bulky: "World", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is passed on whole, whatever its requests are."""
    ingress, first = bulky.ingress("chassis"), answers(bulky, 1)
    ingress.dispatch(first[0])
    monkeypatch.setattr(Router, "decide", None)
    sent = answers(bulky, 5)
    run = batch_of_responses(sent)
    assert run is not None
    ingress.on_batch(run)
    [(given, _, has_ttl)] = received_batches(bulky)
    assert (given is run, has_ttl) == (True, True)
    bulky.run()
    assert bulky.egress["backbone"].messages == [*first, *sent]


CHANGES: dict[str, dict[str, object]] = {
    "answers as most are": {},
    "without ttl": {"ttl": None},
    "ttl 0": {"ttl": 0},
    "too short a ttl": {"ttl": 1},
    "no sink": {"sink": None},
    "no priority of an answer": {"priority": UPriority.CS1},
    "no answers": {"type": UMessageType.REQUEST},
    "no endpoint": {"sink": UUri("mars", 1, 1, 0)},
    "spoofed": {"source": SPOOFED.with_resource(1)},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("known", [False, True])
def test_a_batch_of_responses_has_the_results_of_single_ones(
    build: "type[World]",
    batch_egress: "type[BatchListEgress]",
    changes: dict[str, object],
    window: int,
    known: bool,
) -> None:
    """With and without a cached route, in time and expired, valid and invalid."""
    ends = []
    for together in (True, False):
        world = build(dedup_windows={"chassis": window}, egress_class=batch_egress)
        ingress = world.ingress("chassis")
        like, *sent = (
            UMessage(each.id, msgspec.structs.replace(each.attributes, **changes), b"%d" % n)
            for n, each in enumerate(answers(world, 7))
        )
        if known:
            ingress.dispatch(like)
        world.time.advance(ms=3)
        run = batch_of_responses(sent)
        assert run is not None
        if together:
            ingress.on_batch(run)
        else:
            for each in sent:
                ingress.dispatch(each)
        world.run()
        numbers = [each.payload for each in world.egress["backbone"].messages]
        own_payloads = {like.payload, *(each.payload for each in sent)}  # dead letters have random ids
        verdict_counts = Counter((each.message.payload, each.verdict) for each in world.tap_calls)
        verdict_counts = Counter(
            {each: number for each, number in verdict_counts.items() if each[0] in own_payloads}
        )
        assert verdict_counts.total() + ingress.refused["invalid"] == 6 + known
        ends.append((numbers, verdict_counts, world.ledger(), ingress.refused, targets(world)))
    assert ends[0] == ends[1]


def test_responses_follow_an_authority_to_its_new_endpoint(world: "World") -> None:
    ingress = world.ingress("chassis")
    ingress.on_batch(answers(world, 2))
    moved = AuthorityTable({"hpc": "dash", "chassis": "chassis"})
    unicast = {"backbone": False, "chassis": True, "dash": True}
    world.dispatcher.swap_router(Router(moved, world.directory, unicast))
    later = answers(world, 2)
    ingress.on_batch(later)
    world.run()
    assert world.egress["dash"].messages == later


def test_a_subscription_change_between_two_batches_holds_from_the_second(world: "World") -> None:
    world.directory.subscribe(CHASSIS[0], APPS[0])
    sketched_batches = [[event(world) for _ in range(3)] for _ in range(3)]
    ingress = world.ingress("chassis")
    ingress.on_batch(sketched_batches[0])
    world.directory.subscribe(CHASSIS[0], APPS[2])
    ingress.on_batch(sketched_batches[1])
    world.directory.unsubscribe(CHASSIS[0], APPS[0])
    ingress.on_batch(sketched_batches[2])
    world.run()
    assert world.egress["backbone"].messages == sketched_batches[0] + sketched_batches[1]
    assert world.egress["dash"].messages == sketched_batches[1] + sketched_batches[2]


def test_filters_receive_a_time_per_message_and_other_deliveries_share_one(
    build: "type[World]", answering: "type[VerdictFilter]"
) -> None:
    recording_filter = answering([])
    world = build(lambda delivery: (recording_filter,) if delivery.topic == CHASSIS[0] else ())
    for topic in CHASSIS[:2]:
        world.directory.subscribe(topic, APPS[0])
    ingress, reading = world.ingress("chassis"), world.clock.monotonic_ns

    def ticking() -> int:
        world.time.now_ns += 1
        return reading()

    ingress._monotonic_ns = ticking
    for message in (event(world), event(world, CHASSIS[1])):
        ingress.dispatch(message)
    recording_filter.calls.clear()
    world.times.clear()
    before_ns = world.time.now_ns
    ingress.on_batch([event(world, CHASSIS[number % 2]) for number in range(6)])
    assert world.time.now_ns == before_ns + 4  # one reading for all, and one per message with a filter
    assert [now_ns - before_ns for _, now_ns in recording_filter.calls] == [2, 3, 4]


def test_a_failing_filter_affects_no_other_delivery(build: "type[World]") -> None:
    class Fails(Filter):
        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            if message.payload == b"3":
                raise ValueError(message.payload)
            return None

    world = build(lambda _: (Fails(),))
    world.directory.subscribe(CHASSIS[0], APPS[0])
    messages = [publish(world.id(), CHASSIS[0], b"%d" % number) for number in range(6)]
    world.ingress("chassis").on_batch(messages)
    world.run()
    assert [each.payload for each in world.egress["backbone"].messages] == [b"0", b"1", b"2", b"4", b"5"]
    assert world.verdicts().count(Verdict.DEAD_LETTERED) == 1


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), CancelledError()])
def test_a_filter_that_exits_costs_one_message_of_a_batch(build: "type[World]", error: BaseException) -> None:
    class Exits(Filter):
        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            if message.payload == b"3":
                raise error
            return None

    world = build(lambda _: (Exits(),))
    world.directory.subscribe(CHASSIS[0], APPS[0])
    world.ingress("chassis").on_batch([publish(world.id(), CHASSIS[0], b"%d" % each) for each in range(6)])
    world.run()
    assert [each.payload for each in world.egress["backbone"].messages] == [b"0", b"1", b"2", b"4", b"5"]
    assert world.verdicts().count(Verdict.DEAD_LETTERED) == 1


def test_an_exception_inside_a_batch_holds_back_no_message(
    unchecked: "type[World]",
) -> None:
    """A defect of the dispatcher itself: plugins are contained."""
    failing = False

    class NoticesThree(Filter):
        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            nonlocal failing
            failing = message.payload == b"2"
            return None

    world = unchecked(lambda _: (NoticesThree(),))
    world.directory.subscribe(CHASSIS[0], APPS[0])
    messages = [publish(world.id(), CHASSIS[0], b"%d" % number) for number in range(8)]
    ingress, read_clock = world.ingress("chassis"), world.ingress("chassis")._monotonic_ns

    def clock() -> int:
        nonlocal failing
        if failing:
            failing = False
            raise RuntimeError("defect")
        return read_clock()

    ingress._monotonic_ns = clock
    with pytest.raises(RuntimeError):
        ingress.on_batch(messages[:6])
    ingress.on_batch(messages[6:])
    world.run()
    assert [each.payload for each in world.egress["backbone"].messages] == [b"0", b"1", b"2", b"6", b"7"]


def test_a_held_message_is_released_in_its_order(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    world = build(lambda delivery: (holding(delivery, 5 * NS_PER_MS),))
    world.directory.subscribe(CHASSIS[0], APPS[0])
    messages = [event(world) for _ in range(4)]
    world.ingress("chassis").on_batch(messages)
    assert world.ledger().queued == 1
    world.time.advance(ms=6)
    world.run()
    assert world.egress["backbone"].messages == messages[-1:]
    assert world.verdicts().count(Verdict.THROTTLED) == 3


# ------------------------------------------------------------------------------------------------------- column batches


def column_batch(
    world: "World", number: int = 4, ttl: int | None = None, topic: UUri = CHASSIS[0]
) -> MessageBatch:
    run = MessageBatch.from_messages([publish(world.id(), topic, b"%d" % n, ttl=ttl) for n in range(number)])
    assert run is not None
    return run


def received_batches(
    world: "World", egress_name: str = "backbone"
) -> "list[tuple[Sequence[UMessage], Sequence[int], bool]]":
    """The batches that a queue received since the last call."""
    found: BatchListEgress = world.egress[egress_name]  # type: ignore[assignment]
    sketched_batches, found.batches = found.batches, []
    return sketched_batches


@pytest.fixture
def bulky(build: "type[World]", batch_egress: "type[BatchListEgress]") -> "World":
    return build(egress_class=batch_egress)


@pytest.mark.parametrize("ttl", [None, 500])
def test_a_batch_without_filters_is_passed_on_whole(bulky: "World", ttl: int | None) -> None:
    """To each target, with one clock reading."""
    for app in (APPS[0], APPS[2], APPS[3]):
        bulky.directory.subscribe(CHASSIS[0], app)
    ingress = bulky.ingress("chassis")
    first = column_batch(bulky, ttl=ttl)
    ingress.on_batch(first)
    for egress_name in ("backbone", "dash"):
        assert all(
            messages is not first for messages, *_ in received_batches(bulky, egress_name)
        )  # there was no cached route yet
    reading = bulky.clock.monotonic_ns

    def ticking() -> int:
        bulky.time.now_ns += 1
        return reading()

    ingress._monotonic_ns = ticking
    before_ns, run = bulky.time.now_ns, column_batch(bulky, ttl=ttl)
    ingress.on_batch(run)
    assert bulky.time.now_ns == before_ns + 1
    given = [*received_batches(bulky), *received_batches(bulky, "dash")]
    assert len(given) == 3
    for messages, times_ns, has_ttl in given:
        assert messages is run
        assert (list(times_ns), has_ttl) == ([before_ns + 1] * 4, ttl is not None)
    assert bulky.ledger().received == 2 * 4 * 3
    bulky.run()
    assert bulky.egress["backbone"].messages == [*first, *run]
    assert bulky.verdicts() == [Verdict.DELIVERED] * 24


def test_a_batch_of_one_equals_the_single_message(bulky: "World") -> None:
    bulky.directory.subscribe(CHASSIS[0], APPS[0])
    sent = [column_batch(bulky, 1) for _ in range(3)]
    for each in sent:
        bulky.ingress("chassis").on_batch(each)
    bulky.run()
    assert received_batches(bulky) == []
    assert bulky.egress["backbone"].messages == [*sent[0], *sent[1], *sent[2]]


@pytest.mark.parametrize("age_ms", [19, 20, 21])
@pytest.mark.parametrize("where", [0, 2, 4])
def test_expired_messages_of_a_batch_expire_and_the_others_pass(
    bulky: "World", age_ms: int, where: int
) -> None:
    bulky.directory.subscribe(CHASSIS[0], APPS[0])
    ingress = bulky.ingress("chassis")
    ingress.on_batch(column_batch(bulky, ttl=20))
    bulky.run()
    bulky.time.advance(ms=1_000)
    now_ms = bulky.clock.wall_ms()
    msbs = [(now_ms - (age_ms if n == where else 0)) << 16 | 0x7000 for n in range(5)]
    attributes = column_batch(bulky, ttl=20).attributes
    run = MessageBatch(
        attributes, IdColumns(msbs, [1 << 63 | n for n in range(5)]), [b"%d" % n for n in range(5)]
    )
    ingress.on_batch(run)
    bulky.run()
    verdicts = {each.message.id: each.verdict for each in bulky.tap_calls}
    expected = [Verdict.EXPIRED if age_ms > 20 and n == where else Verdict.DELIVERED for n in range(5)]
    assert [verdicts[each.id] for each in run] == expected
    # The ingress settles it, so no target counts it.
    late = [each.delivery for each in bulky.tap_calls if each.verdict is Verdict.EXPIRED]
    assert late == [None] * expected.count(Verdict.EXPIRED)
    (target,) = ingress.target_statistics()
    assert target.received == 4 + expected.count(Verdict.DELIVERED)


def test_each_message_of_a_batch_without_subscriber_is_in_the_ledger(bulky: "World") -> None:
    for _ in range(2):
        bulky.ingress("chassis").on_batch(column_batch(bulky))
    assert bulky.verdicts() == [Verdict.NO_SUBSCRIBER] * 8
    assert received_batches(bulky) == []


def test_a_denied_or_spoofed_batch_has_no_target(
    build: "type[World]", batch_egress: "type[BatchListEgress]"
) -> None:
    rules = [AccessRule(allow=False, source=str(CHASSIS[1])), AccessRule(allow=True)]
    world = build(access={"chassis": AccessPolicy("chassis", rules)}, egress_class=batch_egress)
    for topic in (CHASSIS[1], SPOOFED):
        world.directory.subscribe(topic, APPS[0])
    for _ in range(2):
        for topic in (CHASSIS[1], SPOOFED):
            world.ingress("chassis").on_batch(column_batch(world, topic=topic))
    one_by_one = build(access={"chassis": AccessPolicy("chassis", rules)}, egress_class=batch_egress)
    for _ in range(2):
        for topic in (CHASSIS[1], SPOOFED):
            for each in column_batch(one_by_one, topic=topic):
                one_by_one.receive("chassis", each)
    assert world.dispatcher.refused_counts() == one_by_one.dispatcher.refused_counts()
    assert Counter(world.verdicts()) == Counter(one_by_one.verdicts())
    assert received_batches(world) == []


def test_a_batch_uses_the_subscriptions_of_its_time(bulky: "World") -> None:
    """A cached route is not used after a change of the directory."""
    bulky.directory.subscribe(CHASSIS[0], APPS[0])
    ingress, column_batches = bulky.ingress("chassis"), [column_batch(bulky) for _ in range(4)]
    ingress.on_batch(column_batches[0])
    bulky.directory.subscribe(CHASSIS[0], APPS[2])
    ingress.on_batch(column_batches[1])
    bulky.directory.unsubscribe(CHASSIS[0], APPS[0])
    ingress.on_batch(column_batches[2])
    bulky.directory.unsubscribe(CHASSIS[0], APPS[2])
    ingress.on_batch(column_batches[3])
    bulky.run()
    assert bulky.egress["backbone"].messages == [*column_batches[0], *column_batches[1]]
    assert bulky.egress["dash"].messages == [*column_batches[1], *column_batches[2]]
    assert bulky.verdicts().count(Verdict.NO_SUBSCRIBER) == 4


def test_a_filter_sees_each_message_of_a_batch(
    build: "type[World]", batch_egress: "type[BatchListEgress]", answering: "type[VerdictFilter]"
) -> None:
    recording_filter = answering([None, Verdict.THROTTLED] * 4)
    world = build(
        lambda delivery: (recording_filter,) if delivery.endpoint == "dash" else (), egress_class=batch_egress
    )
    for app in (APPS[0], APPS[2]):
        world.directory.subscribe(CHASSIS[0], app)
    column_batches = [column_batch(world), column_batch(world)]
    for each in column_batches:
        world.ingress("chassis").on_batch(each)
    world.run()
    everything = [*column_batches[0], *column_batches[1]]
    assert [message for message, _ in recording_filter.calls] == everything
    assert world.egress["backbone"].messages == everything
    assert world.egress["dash"].messages == everything[::2]


def test_with_a_dedup_window_no_batch_is_forwarded_twice(
    build: "type[World]", batch_egress: "type[BatchListEgress]"
) -> None:
    world = build(dedup_windows={"chassis": 100}, egress_class=batch_egress)
    world.directory.subscribe(CHASSIS[0], APPS[0])
    first, second = column_batch(world), column_batch(world)
    for each in (first, second, first, second[1:3]):
        world.ingress("chassis").on_batch(each)
    world.run()
    assert world.egress["backbone"].messages == [*first, *second]
    assert world.ingress("chassis").refused["duplicate"] == 6
