# SPDX-License-Identifier: Apache-2.0
"""The life cycle of a remote subscription: two streamers with their own networks, subscribers here, publishers there.

A spy on the network between the streamers receives the calls of the near uSubscription. After the kill of a streamer
in any state, the lists of both sides and the flow of messages show the result.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Final, NamedTuple

import pytest
import zenoh

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SUBSCRIPTION_CHANGE, Metronome, ZenohEntity, ZenohSample, eventually
from tests.e2e.rigs.rates import assert_rate
from tests.e2e.rigs.subscriber import (
    SUBSCRIBE_PENDING,
    SUBSCRIBED,
    UNSUBSCRIBED,
    Subscriber,
    Update,
    subscribe_request_v4,
    subscription_request,
)
from tests.e2e.rigs.two_streamers import FAR_AUTHORITY, NEAR_AUTHORITY, TwoStreamers, two_streamers
from tests.e2e.rigs.wire import Uri

NEAR_USUBSCRIPTION: Final = Uri(NEAR_AUTHORITY, 0, 3)
"""The uSubscription of the near side, which subscribes at the far side."""
FAR_USUBSCRIPTION: Final = Uri(FAR_AUTHORITY, 0, 3)

NO_SUBSCRIBERS: Final[dict[Uri, int]] = {}

CREATE_TOPIC, DEPRECATE_TOPIC, RESET = 4, 5, 9

_numbers: Final = count(1)


@pytest.fixture(scope="module")
def streamers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoStreamers]:
    with two_streamers(tmp_path_factory.mktemp("two")) as running:
        yield running


class RemoteScenario:
    """Both streamers, linked, and the applications of one test."""

    def __init__(self, both: TwoStreamers, applications: ExitStack) -> None:
        self.both, self.near, self.far = both, both.near, both.far
        self._applications = applications
        self.publisher = self.far_application()
        self.reader = self.near_application()
        self.topic = self.publisher.address.at(0x8001)

    def near_application(self) -> Subscriber:
        return self._applications.enter_context(self.near.new_application())

    def far_application(self) -> Subscriber:
        return self._applications.enter_context(self.far.new_application())

    def spy(self) -> ZenohEntity:
        return self._applications.enter_context(self.both.spy())

    def publish(self, topic: Uri | None = None) -> bytes:
        """Publish a unique payload and return it."""
        payload = b"publication %d" % next(_numbers)
        self.publisher.publish(topic or self.topic, payload)
        return payload

    def assert_flows(self, *to: ZenohEntity) -> None:
        """Check that a publication reaches each peer once."""
        payload = self.publish()
        for peer in to:
            peer.inbox.wait_one(lambda each: each.is_event and each.payload == payload)
            assert len(peer.inbox.items(lambda each: each.is_event and each.payload == payload)) == 1

    def assert_quiet(self, *others: ZenohEntity) -> None:
        """Check that a publication reaches neither the near side nor `others`, while one on a newly subscribed topic
        does.
        """
        marker = self.publisher.address.at(0x9000 + next(_numbers))
        self.reader.subscribe_and_wait(marker)
        silent, received = self.publish(), self.publish(marker)
        for peer in (self.reader, *others):
            peer.inbox.wait_one(lambda each: each.is_event and each.payload == received)
            assert peer.inbox.items(lambda each: each.payload == silent) == []

    def wait_subscribed(self) -> None:
        """Wait until both sides list the reader's subscription, and check the flow."""
        eventually(lambda: self.far.listed_states(self.topic), {NEAR_USUBSCRIPTION: SUBSCRIBED})
        eventually(lambda: self.near.listed_states(self.topic), {self.reader.address: SUBSCRIBED})
        self.assert_flows(self.reader)

    def wait_unsubscribed(self) -> None:
        """Wait until both lists are empty, and check that no message flows."""
        eventually(lambda: self.near.listed_states(self.topic), NO_SUBSCRIBERS)
        eventually(lambda: self.far.listed_states(self.topic), NO_SUBSCRIBERS)
        self.assert_quiet()
        assert self.far.listed_states(self.topic) == NO_SUBSCRIBERS


@pytest.fixture
def scene(streamers: TwoStreamers) -> Iterator[RemoteScenario]:
    streamers.start()  # an earlier failed test may have left them killed or stopped
    with ExitStack() as applications:
        yield RemoteScenario(streamers, applications)


# --- requests to the far side -------------------------------------------------------------------------------


class UsubscriptionCall(NamedTuple):
    """A call of the far uSubscription: its method and payload."""

    method: int
    payload: bytes


def subscribe_call(
    topic: Uri, *, period_ms: int | None = None, expire_s: int | None = None
) -> UsubscriptionCall:
    """A Subscribe for applications that requested this period: two thirds of it, so that our limit is exact."""
    upstream_ms = None if period_ms is None else period_ms * 2 // 3
    return UsubscriptionCall(
        wire.SUBSCRIBE, subscription_request(topic, period_ms=upstream_ms, expire_s=expire_s)
    )


def unsubscribe_call(topic: Uri) -> UsubscriptionCall:
    return UsubscriptionCall(wire.UNSUBSCRIBE, wire.topic_request(topic))


def _is_call_about(topic: Uri) -> Callable[[ZenohSample], bool]:
    methods = {FAR_USUBSCRIPTION.at(wire.SUBSCRIBE), FAR_USUBSCRIPTION.at(wire.UNSUBSCRIBE)}
    topic_field = wire.topic_request(topic)
    return lambda each: each.head.sink in methods and each.payload.startswith(topic_field)


def calls_about(spy: ZenohEntity, topic: Uri) -> list[UsubscriptionCall]:
    """Calls of the far uSubscription about a topic so far, in order."""
    found = spy.inbox.items(_is_call_about(topic))
    return [UsubscriptionCall(each.head.sink.resource, each.payload) for each in found if each.head.sink]


def assert_calls(spy: ZenohEntity, topic: Uri, *expected: UsubscriptionCall) -> None:
    """Wait for this number of calls about a topic, and check them."""
    spy.inbox.wait_count(_is_call_about(topic), len(expected))
    assert calls_about(spy, topic) == list(expected)


# --- handwritten messages -----------------------------------------------------------------------------------

_TOPIC: Final = Uri("device2", 0x10AB, 3, 0x80CD)
_SUBSCRIBER: Final = Uri("device1", 0x300EF, 4)
_IN_2026: Final = 1_781_565_900
_CALL: Final = wire.Attributes(
    wire.Id(0x018D548EA8E07000, 0x8000000000000001),
    wire.REQUEST,
    Uri("device1", 0, 3),
    Uri("device2", 0, 3, 1),
    priority=wire.CS4,
    ttl=300_000,
    payload_format=wire.PROTOBUF,
)

# The same messages encoded by protobuf's own compiler and library.
HANDWRITTEN_VECTORS: Final = {
    "SubscriptionRequest": (
        subscription_request(_TOPIC, expire_s=_IN_2026, period_ms=1000),
        "0a120a076465766963653210ab21180320cd81021a0b0a0608cc93c2d10618e807",
    ),
    "SubscribeRequest of version 4": (
        subscribe_request_v4(_TOPIC, expire_s=_IN_2026, period_ms=1000),
        "0a120a076465766963653210ab21180320cd8102120608cc93c2d10618e807",
    ),
    "UAttributes of a remote Subscribe": (
        _CALL.encode(),
        "0a12090070e0a88e548d0111010000000000008010021a0b0a07646576696365311803220d0a076465766963653218032001280530e0a7126002",
    ),
}


@pytest.mark.parametrize("name", HANDWRITTEN_VECTORS)
def test_handwritten_messages_equal_those_of_a_library(name: str) -> None:
    by_hand, by_library = HANDWRITTEN_VECTORS[name]
    assert by_hand.hex() == by_library


def test_messages_of_a_library_are_decoded_by_hand() -> None:
    topic, subscriber = "0a120a076465766963653210ab21180320cd8102", "0a0f0a076465766963653110ef810c1804"
    answer = bytes.fromhex("0a0208011a12" + topic[4:])
    assert wire.SubscriptionResponse.decode(answer) == (SUBSCRIBE_PENDING, _TOPIC)
    update = bytes.fromhex(topic + "1211" + subscriber + "1a020802")
    assert Update.decode(update) == Update(_TOPIC, _SUBSCRIBER, SUBSCRIBED)
    change = bytes.fromhex(topic + "120f" + subscriber[4:] + "1803")
    assert Update.decode_v4(change) == Update(_TOPIC, _SUBSCRIBER, SUBSCRIBED)


# --- the whole life cycle -----------------------------------------------------------------------------------


# [itest->req~usubscription-subscribe-remote~1] [itest->req~usubscription-subscribe-remote-pending~1]
# [itest->req~usubscription-subscribe-remote-response~1] [itest->req~usubscription-unsubscribe-last-remote~1]
# [itest->dsn~usubscription-subscribe-remote-subscriber-change~1]
def test_a_remote_topic_flows_from_the_first_subscriber_to_the_last(scene: RemoteScenario) -> None:
    reader, second, other_host = scene.reader, scene.near_application(), scene.far_application()
    topic, spy = scene.topic, scene.spy()

    assert reader.request_subscription(topic) == SUBSCRIBE_PENDING
    reader.wait_notified(topic, SUBSCRIBED)
    assert reader.notified_states(topic) == [SUBSCRIBE_PENDING, SUBSCRIBED]
    assert scene.near.listed_states(topic) == {reader.address: SUBSCRIBED}
    assert scene.far.subscribers(topic) == [NEAR_USUBSCRIPTION]
    scene.assert_flows(reader, spy)

    assert other_host.request_subscription(topic) == SUBSCRIBED  # a local subscription is granted at once
    assert scene.far.subscribers(topic) == sorted([NEAR_USUBSCRIPTION, other_host.address])
    assert second.request_subscription(topic) == SUBSCRIBED  # the topic flows already
    assert scene.near.listed_states(topic) == {reader.address: SUBSCRIBED, second.address: SUBSCRIBED}
    scene.assert_flows(reader, second, other_host, spy)

    reader.unsubscribe(topic)
    reader.wait_notified(topic, UNSUBSCRIBED)
    assert scene.near.listed_states(topic) == {second.address: SUBSCRIBED}
    scene.assert_flows(second, other_host, spy)
    assert scene.far.subscribers(topic) == sorted([NEAR_USUBSCRIPTION, other_host.address])

    second.unsubscribe(topic)
    second.wait_notified(topic, UNSUBSCRIBED)
    assert scene.near.listed_states(topic) == NO_SUBSCRIBERS
    eventually(lambda: scene.far.subscribers(topic), [other_host.address])
    scene.assert_quiet(spy)
    scene.assert_flows(other_host)
    assert len(spy.events(topic)) == len(reader.events(topic)) == 3


# [itest->req~usubscription-change-topic~1]
def test_every_change_is_published_as_well(scene: RemoteScenario) -> None:
    observer, changes = scene.near_application(), NEAR_USUBSCRIPTION.at(SUBSCRIPTION_CHANGE)
    assert observer.request_subscription(changes) == SUBSCRIBED
    scene.reader.subscribe_and_wait(scene.topic)
    scene.reader.unsubscribe(scene.topic)

    def received() -> list[int]:
        updates = [Update.decode(each.payload) for each in observer.events(changes)]
        return [each.state for each in updates if each[:2] == (scene.topic, scene.reader.address)]

    eventually(received, [SUBSCRIBE_PENDING, SUBSCRIBED, UNSUBSCRIBED])


# --- one call for all ---------------------------------------------------------------------------------------


# [itest->req~usubscription-remote-max-timeout~1] [itest->dsn~usubscription-unsubscribe-remote-subscriber-change~1]
@pytest.mark.parametrize(
    "rate", [{}, {"period_ms": 1000, "expire_s": 4_102_444_800}], ids=["no rate", "a rate"]
)
def test_calls_of_the_far_side_conform_to_the_standard(scene: RemoteScenario, rate: dict[str, int]) -> None:
    topic, spy = scene.topic, scene.spy()
    sent_request = subscribe_call(topic, **rate)
    scene.reader.subscribe_and_wait(topic, subscription_request(topic, **rate))
    scene.reader.unsubscribe(topic)
    assert_calls(spy, topic, sent_request, unsubscribe_call(topic))
    for method, sample in zip((1, 2), spy.inbox.items(_is_call_about(topic)), strict=True):
        assert_is_call(sample, NEAR_USUBSCRIPTION, FAR_USUBSCRIPTION.at(method))
        assert sample.key == f"up/a.vin1/0/0/3/0/b.vin1/0/0/3/{method}"


def assert_is_call(sample: ZenohSample, source: Uri, sink: Uri) -> None:
    """Check that the request is one between uSubscriptions, byte by byte except the payload."""
    expected = wire.Attributes(
        sample.head.id,
        wire.REQUEST,
        source,
        sink,
        priority=wire.CS4,
        ttl=300_000,
        payload_format=wire.PROTOBUF,
    )
    assert sample.attachment == expected.attachment
    assert sample.key == expected.key
    assert sample.priority == zenoh.Priority.INTERACTIVE_LOW
    assert sample.head.id.is_version_7
    assert abs(sample.head.id.time_ms - time.time() * 1000) < 10_000


def test_the_far_side_is_called_once_for_any_number_of_subscribers(scene: RemoteScenario) -> None:
    topic, spy = scene.topic, scene.spy()
    readers = [scene.reader, *(scene.near_application() for _ in range(7))]
    requests = [
        each.send_request(NEAR_USUBSCRIPTION.at(wire.SUBSCRIBE), wire.topic_request(topic))
        for each in readers
    ]
    for reader, request in zip(readers, requests, strict=True):
        answered = wire.SubscriptionResponse.decode(reader.wait_response(request).payload).state
        assert answered in {SUBSCRIBE_PENDING, SUBSCRIBED}
        if answered == SUBSCRIBE_PENDING:
            reader.wait_notified(topic, SUBSCRIBED)
    assert scene.near.listed_states(topic) == {each.address: SUBSCRIBED for each in readers}
    last = readers.pop()
    for reader in readers:
        reader.unsubscribe(topic)
    scene.assert_flows(last)
    last.unsubscribe(topic)
    assert_calls(spy, topic, subscribe_call(topic), unsubscribe_call(topic))
    scene.assert_quiet(spy)
    assert calls_about(spy, topic) == [subscribe_call(topic), unsubscribe_call(topic)]


# --- rate and end -------------------------------------------------------------------------------------------


def test_the_far_side_receives_the_fastest_rate(scene: RemoteScenario) -> None:
    topic, spy = scene.topic, scene.spy()
    slow, fast, every = scene.reader, scene.near_application(), scene.near_application()
    expected = [subscribe_call(topic, period_ms=100)]
    slow.subscribe_and_wait(topic, subscription_request(topic, max_frequency=10.0))
    assert_calls(spy, topic, *expected)
    assert_crosses_at(1000 / 66, scene, spy)

    fast.request_subscription(topic, subscription_request(topic, period_ms=20))
    expected.append(subscribe_call(topic, period_ms=20))
    assert_calls(spy, topic, *expected)
    eventually(lambda: listed_attributes(scene), {wire.field(3, 13)})
    assert_crosses_at(1000 / 13, scene, spy)

    every.request_subscription(topic)
    expected.append(subscribe_call(topic))
    assert_calls(spy, topic, *expected)
    every.unsubscribe(topic)
    expected.append(subscribe_call(topic, period_ms=20))
    assert_calls(spy, topic, *expected)
    fast.unsubscribe(topic)
    expected.append(subscribe_call(topic, period_ms=100))
    assert_calls(spy, topic, *expected)
    slow.unsubscribe(topic)
    assert_calls(spy, topic, *expected, unsubscribe_call(topic))


def assert_crosses_at(hz: float, scene: RemoteScenario, spy: ZenohEntity) -> None:
    """Publish at 100 Hz for a second, and check the rate on the network between the streamers."""
    witness, before = (
        scene.far_application(),
        len(spy.events(scene.topic)),
    )  # receives every publication

    def beat(_: int) -> None:
        scene.publish()

    with Metronome(100, beat):
        witness.wait_events(scene.topic, 100)
    assert_rate(spy.events(scene.topic)[before:], hz, witness.events(scene.topic), tolerance=0.05)


def listed_attributes(scene: RemoteScenario) -> set[bytes]:
    """Attributes of the near side in the list of the far side."""
    answer = scene.far.probe.call_successfully(
        FAR_USUBSCRIPTION.at(wire.FETCH_SUBSCRIPTIONS), wire.topic_request(scene.topic)
    )
    return {each.attributes or b"" for each in wire.subscriptions_in(answer.payload)}


def test_the_far_side_receives_the_latest_end(scene: RemoteScenario) -> None:
    topic, spy = scene.topic, scene.spy()
    soon, late = int(time.time()) + 600, int(time.time()) + 1200
    first, second, forever = scene.reader, scene.near_application(), scene.near_application()
    expected = [subscribe_call(topic, expire_s=soon)]
    first.subscribe_and_wait(topic, expected[0].payload)
    second.request_subscription(topic, subscription_request(topic, expire_s=late))
    expected.append(subscribe_call(topic, expire_s=late))
    assert_calls(spy, topic, *expected)
    forever.request_subscription(topic)
    expected.append(subscribe_call(topic))
    assert_calls(spy, topic, *expected)
    forever.unsubscribe(topic)
    expected.append(subscribe_call(topic, expire_s=late))
    assert_calls(spy, topic, *expected)
    second.unsubscribe(topic)
    expected.append(subscribe_call(topic, expire_s=soon))
    assert_calls(spy, topic, *expected)
    eventually(lambda: listed_attributes(scene), {wire.field(1, wire.field(1, soon))})


def test_a_slower_subscriber_changes_nothing_at_the_far_side(scene: RemoteScenario) -> None:
    topic, spy = scene.topic, scene.spy()
    slower = scene.near_application()
    scene.reader.subscribe_and_wait(topic, subscription_request(topic, period_ms=20))
    assert slower.request_subscription(topic, subscription_request(topic, period_ms=50)) == SUBSCRIBED
    slower.unsubscribe(topic)
    scene.reader.unsubscribe(topic)
    assert_calls(spy, topic, subscribe_call(topic, period_ms=20), unsubscribe_call(topic))


# [itest->req~usubscription-subscribe-expiration~1]
def test_an_expired_subscription_ends_at_the_far_side(scene: RemoteScenario) -> None:
    topic, rest, spy = scene.topic, scene.near_application(), scene.spy()
    expected = [subscribe_call(topic, period_ms=100)]
    rest.subscribe_and_wait(topic, subscription_request(topic, period_ms=100))
    soon = int(time.time()) + 3
    scene.reader.request_subscription(topic, subscription_request(topic, period_ms=20, expire_s=soon))
    scene.reader.wait_notified(topic, UNSUBSCRIBED)
    # By the calls: a listed state may change before it is read.
    assert_calls(spy, topic, *expected, subscribe_call(topic, period_ms=20), *expected)
    eventually(lambda: listed_attributes(scene), {wire.field(3, 66)})
    rest.unsubscribe(topic)
    scene.wait_unsubscribed()


# --- kills in every state -----------------------------------------------------------------------------------


def subscribe_unsent(scene: RemoteScenario) -> None:
    """SUBSCRIBE_PENDING, and the far side was killed before."""
    scene.far.kill()
    assert scene.reader.request_subscription(scene.topic) == SUBSCRIBE_PENDING
    assert scene.near.listed_states(scene.topic) == {scene.reader.address: SUBSCRIBE_PENDING}


def subscribe_unanswered(scene: RemoteScenario) -> None:
    """SUBSCRIBE_PENDING, and the far side has not read the request yet."""
    scene.far.freeze()
    assert scene.reader.request_subscription(scene.topic) == SUBSCRIBE_PENDING
    assert scene.near.listed_states(scene.topic) == {scene.reader.address: SUBSCRIBE_PENDING}


def subscribed(scene: RemoteScenario) -> None:
    scene.reader.subscribe_and_wait(scene.topic)
    scene.assert_flows(scene.reader)


def unsubscribe_unsent(scene: RemoteScenario) -> None:
    """UNSUBSCRIBE_PENDING, and the far side was killed before."""
    subscribed(scene)
    scene.far.kill()
    scene.reader.unsubscribe(scene.topic)
    assert scene.near.listed_states(scene.topic) == NO_SUBSCRIBERS


def unsubscribe_unanswered(scene: RemoteScenario) -> None:
    """UNSUBSCRIBE_PENDING, and the far side has not read the request yet."""
    subscribed(scene)
    scene.far.freeze()
    scene.reader.unsubscribe(scene.topic)
    assert scene.near.listed_states(scene.topic) == NO_SUBSCRIBERS


def kill_far(scene: RemoteScenario) -> None:
    if scene.far.running:
        scene.far.kill()
    scene.both.start()


def kill_and_erase_far(scene: RemoteScenario) -> None:
    if scene.far.running:
        scene.far.kill()
    scene.far.lose_state()
    scene.both.start()


def kill_near(scene: RemoteScenario) -> None:
    """The near side restarts before the killed far side restarts."""
    scene.near.kill()
    scene.far.thaw()
    scene.near.start()
    scene.both.start()


def both_die(scene: RemoteScenario) -> None:
    scene.near.kill()
    kill_far(scene)


STATES: Final = (
    subscribe_unsent,
    subscribe_unanswered,
    subscribed,
    unsubscribe_unsent,
    unsubscribe_unanswered,
)
CASES: Final = (
    *((state, kill_near) for state in STATES),
    *((state, kill_and_erase_far) for state in STATES if state is not subscribe_unsent),
    (subscribe_unsent, kill_far),
    (unsubscribe_unanswered, kill_far),
    (subscribe_unanswered, both_die),
)
"""A near side that is killed must restore every state from its store. The other kills repeat its parts in pairs."""


def _name(function: Callable[[RemoteScenario], None]) -> str:
    return function.__name__.replace("_", " ")


# [itest->req~usubscription-remote-retry-indefinitely~1] [itest->req~usubscription-subscribe-persistency~1]
@pytest.mark.parametrize(("state", "death"), CASES, ids=_name)
def test_subscriptions_recover_from_a_kill_of_either_side_in_any_state(
    scene: RemoteScenario, state: Callable[[RemoteScenario], None], death: Callable[[RemoteScenario], None]
) -> None:
    state(scene)
    death(scene)
    if state in {unsubscribe_unsent, unsubscribe_unanswered}:
        scene.wait_unsubscribed()
    else:
        scene.reader.wait_notified(scene.topic, SUBSCRIBED)
        scene.wait_subscribed()


# [itest->req~usubscription-subscribe-unsubscribe-pending~1]
def test_a_subscribe_before_the_far_side_returns_is_granted(scene: RemoteScenario) -> None:
    unsubscribe_unsent(scene)
    assert scene.reader.request_subscription(scene.topic) == SUBSCRIBE_PENDING
    scene.both.start()
    scene.reader.wait_notified(scene.topic, SUBSCRIBED, times=2)
    scene.wait_subscribed()


# [itest->req~usubscription-unsubscribe-subscribe-pending~1]
def test_an_unsubscribe_before_the_far_side_returns_is_effective(scene: RemoteScenario) -> None:
    subscribe_unsent(scene)
    scene.reader.unsubscribe(scene.topic)
    scene.reader.wait_notified(scene.topic, UNSUBSCRIBED)
    assert scene.near.listed_states(scene.topic) == NO_SUBSCRIBERS
    scene.both.start()
    scene.wait_unsubscribed()


# [itest->req~usubscription-unsubscribe-subscribe-pending~1]
def test_an_unsubscribe_before_the_far_side_responds_is_effective(scene: RemoteScenario) -> None:
    subscribe_unanswered(scene)
    scene.reader.unsubscribe(scene.topic)
    assert scene.near.listed_states(scene.topic) == NO_SUBSCRIBERS
    scene.far.thaw()  # the far side responds to the Subscribe too late
    scene.wait_unsubscribed()
    assert scene.reader.notified_states(scene.topic) == [SUBSCRIBE_PENDING, UNSUBSCRIBED]


# --- the far side rejects -----------------------------------------------------------------------------------

_STRICT: Final = """\
topic_lifecycle = "enforce"
permissions = [{ topic = "//b.vin1/FFFFFFFF/1/A000", level = 0 }]
"""
PERMITTED, FORBIDDEN = 0x8001, 0xA000


def never_created(scene: RemoteScenario) -> Uri:
    return scene.publisher.address.at(PERMITTED)


def deprecated(scene: RemoteScenario) -> Uri:
    topic = scene.publisher.address.at(PERMITTED)
    for method in (CREATE_TOPIC, DEPRECATE_TOPIC):
        scene.publisher.call_successfully(FAR_USUBSCRIPTION.at(method), wire.topic_request(topic))
    return topic


def forbidden(scene: RemoteScenario) -> Uri:
    return scene.publisher.address.at(FORBIDDEN)


@pytest.fixture(scope="module")
def strict_streamers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoStreamers]:
    with two_streamers(tmp_path_factory.mktemp("strict"), _STRICT) as running:
        yield running


@pytest.fixture
def strict_scene(strict_streamers: TwoStreamers) -> Iterator[RemoteScenario]:
    strict_streamers.start()
    with ExitStack() as applications:
        yield RemoteScenario(strict_streamers, applications)


@pytest.mark.parametrize("refused", [never_created, deprecated, forbidden], ids=_name)
def test_a_refusal_by_the_far_side_ends_every_subscription_with_a_reason(
    strict_scene: RemoteScenario, refused: Callable[[RemoteScenario], Uri]
) -> None:
    scene = strict_scene
    readers = scene.reader, scene.near_application()
    topic = refused(scene)
    scene.far.freeze()  # so that both subscriptions exist when the response arrives
    for reader in readers:
        assert reader.request_subscription(topic) == SUBSCRIBE_PENDING
    scene.far.thaw()
    for reader in readers:
        assert reader.wait_notified(topic, UNSUBSCRIBED).message
    assert scene.near.listed_states(topic) == NO_SUBSCRIBERS
    assert scene.far.listed_states(topic) == NO_SUBSCRIBERS


def test_after_a_refusal_a_new_subscribe_is_possible(strict_scene: RemoteScenario) -> None:
    scene, topic = strict_scene, strict_scene.topic
    assert scene.reader.request_subscription(topic) == SUBSCRIBE_PENDING
    scene.reader.wait_notified(topic, UNSUBSCRIBED)
    scene.publisher.call_successfully(FAR_USUBSCRIPTION.at(CREATE_TOPIC), wire.topic_request(topic))
    scene.reader.subscribe_and_wait(topic)
    scene.wait_subscribed()


def test_a_refusal_is_received_after_a_kill_as_well(strict_scene: RemoteScenario) -> None:
    scene, topic = strict_scene, strict_scene.topic
    subscribe_unsent(scene)
    scene.both.start()
    assert scene.reader.wait_notified(topic, UNSUBSCRIBED).message
    assert scene.near.listed_states(topic) == NO_SUBSCRIBERS


# [itest->req~usubscription-reset~1]
def test_subscriptions_ended_by_a_reset_of_the_far_side_are_renewed(scene: RemoteScenario) -> None:
    subscribed(scene)
    spy = scene.spy()
    # Only a uSubscription may reset. On the wire this is any sender with its address behind its link.
    reset = wire.Attributes(
        wire.new_id(),
        wire.REQUEST,
        NEAR_USUBSCRIPTION,
        FAR_USUBSCRIPTION.at(RESET),
        priority=wire.CS4,
        ttl=5000,
        payload_format=wire.PROTOBUF,
    )
    spy.send_message(reset)
    ended = spy.inbox.wait_one(
        lambda each: (
            (each.head.type, each.head.source, each.head.sink)
            == (wire.NOTIFICATION, FAR_USUBSCRIPTION.at(SUBSCRIPTION_CHANGE), NEAR_USUBSCRIPTION)
            and Update.decode(each.payload)[:3] == (scene.topic, NEAR_USUBSCRIPTION, UNSUBSCRIBED)
        )
    )
    assert ended.head.id.time_ms >= reset.id.time_ms
    scene.wait_subscribed()


# --- version 4 ----------------------------------------------------------------------------------------------


def test_a_subscriber_of_version_4_gets_every_instance_of_a_remote_topic(scene: RemoteScenario) -> None:
    reader, publisher, spy = scene.reader, scene.publisher, scene.spy()
    near, far = NEAR_USUBSCRIPTION._replace(version=4), FAR_USUBSCRIPTION._replace(version=4)
    kind = publisher.address.ue_id
    topic = Uri(FAR_AUTHORITY, 0xFFFF0000 | kind, 1, 0x8001)
    instances = [topic._replace(ue_id=instance << 16 | kind) for instance in (0, 1, 0x2A)]

    answer = reader.call_successfully(near.at(wire.SUBSCRIBE), subscribe_request_v4(topic, period_ms=40))
    assert answer.payload == wire.field(1, topic.encode()) + wire.field(2, SUBSCRIBE_PENDING + 1)
    notified = reader.inbox.wait_count(
        lambda each: (
            (each.head.type, each.head.source, each.head.sink)
            == (wire.NOTIFICATION, near.at(SUBSCRIPTION_CHANGE), reader.address)
        ),
        2,
    )
    assert [Update.decode_v4(each.payload) for each in notified] == [
        Update(topic, reader.address, SUBSCRIBE_PENDING),
        Update(topic, reader.address, SUBSCRIBED),
    ]

    # Version 3 has no such topic, so the near side calls the far side in version 4.
    call = spy.inbox.wait_one(lambda each: each.head.sink == far.at(wire.SUBSCRIBE))
    assert_is_call(call, near, far.at(wire.SUBSCRIBE))
    assert call.payload == subscribe_request_v4(topic, period_ms=40 * 2 // 3)
    assert far_subscribers_v4(scene, topic) == [near]
    for instance in instances:
        payload = scene.publish(instance)
        [event] = reader.wait_events(instance)
        assert event.payload == payload

    assert reader.call_successfully(near.at(wire.UNSUBSCRIBE), wire.topic_request(topic)).payload == b""
    eventually(lambda: far_subscribers_v4(scene, topic), list[Uri]())
    before = [len(reader.events(instance)) for instance in instances]
    for instance in instances:
        scene.publish(instance)
    scene.assert_quiet()
    assert [len(reader.events(instance)) for instance in instances] == before


def far_subscribers_v4(scene: RemoteScenario, topic: Uri) -> list[Uri]:
    """Subscribers of exactly this topic at the far side; the topic may be one of every instance."""
    method = FAR_USUBSCRIPTION._replace(version=4).at(wire.FETCH_SUBSCRIPTIONS)
    answer = scene.far.probe.call_successfully(method, wire.field(1, topic.encode()))
    entries = wire.fields(answer.payload).get(1, [])
    updates = [Update.decode_v4(each) for each in entries if isinstance(each, bytes)]
    return [each.subscriber for each in updates if each.topic == topic]
