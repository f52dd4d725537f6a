# SPDX-License-Identifier: Apache-2.0
"""The combined subscription of all clients of a remote topic."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.remote_status import RemoteTopicStates
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.remote.remote_topics import RemoteTopics
from ustreamer_usubscription.requests.requests import MAX_DETAILS
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

from ustreamer.core.base.links import LinkStates
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.pb.usubscription_v3 import (
    SubscribeAttributes,
    SubscriberInfo,
    SubscriptionRequest,
    SubscriptionStatus,
    Update,
)
from ustreamer.uprotocol.umessage import UMessage, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("b", 1, 1, 0x8000)
APPS = [UUri("a", number, 1, 0) for number in range(1, 4)]
MS = 1_000_000


def subscribed(*entries: SubscriptionRecord) -> tuple[ServiceState, RemoteTopics]:
    """A service state in which these subscriptions are committed."""
    state = ServiceState({"a"}, InMemoryDirectory())
    upstream = RemoteTopics(
        state, "a", LinkStates(), UuidSource(lambda: 1), UsubscriptionConfig(), Path("no.via")
    )
    transaction = Transaction(state, UsubscriptionConfig(), 0)
    for entry in entries:
        transaction.put_subscription(entry)
    state.apply(transaction)
    upstream.on_transaction_end(transaction, 0, committed=True)
    return state, upstream


def requested_attributes(upstream: RemoteTopics) -> SubscribeAttributes:
    """The attributes in the one call that is due."""
    sent: list[UMessage] = []
    upstream.send_due_calls(sent.append, 0)
    [call] = sent
    return SubscriptionRequest.FromString(call.payload).attributes


@pytest.mark.parametrize(
    ("desired", "period_ms", "expire_ms"),
    [
        ([(100 * MS, 5), (20 * MS, 9)], 13, 9),
        ([(100 * MS, 5), (0, 9)], 0, 9),
        ([(100 * MS, None), (20 * MS, 9)], 13, None),
        ([(100 * MS, 5)], 66, 5),
    ],
    ids=["fastest and latest", "every message", "for ever", "one alone"],
)
def test_the_fastest_rate_and_the_latest_end_are_requested(
    desired: list[tuple[int, int | None]], period_ms: int, expire_ms: int | None
) -> None:
    """[utest->LIF-20] Half as many again as requested, so that the last limit on the path is exact."""
    entries = [SubscriptionRecord(TOPIC, app, *each) for app, each in zip(APPS, desired, strict=False)]
    attributes = requested_attributes(subscribed(*entries)[1])
    assert attributes.sample_period_ms == period_ms
    assert (attributes.expire.ToMilliseconds() if attributes.HasField("expire") else None) == expire_ms


def details(text: bytes) -> bytes:
    return SubscribeAttributes(details=[Any(type_url="t", value=text)]).SerializeToString()


def test_the_details_of_all_are_passed_on_each_once_and_no_more_than_may_be_kept() -> None:
    texts = [b"a", b"a", b"b" * (MAX_DETAILS - 20)]
    entries = [
        SubscriptionRecord(TOPIC, app, details=details(text)) for app, text in zip(APPS, texts, strict=True)
    ]
    assert [each.value[:1] for each in requested_attributes(subscribed(*entries)[1]).details] == [b"a", b"b"]
    entries[1] = SubscriptionRecord(TOPIC, APPS[1], details=details(b"c" * 20))
    together = requested_attributes(subscribed(*entries)[1])
    assert len(together.details) == 2
    assert SubscribeAttributes(details=together.details).ByteSize() <= MAX_DETAILS


def test_a_call_that_cannot_be_sent_is_repeated_later() -> None:
    _, upstream = subscribed(SubscriptionRecord(TOPIC, APPS[0]))

    def refuse(_: UMessage) -> None:
        raise UStatusError(UCode.UNAVAILABLE, "closed")

    upstream.send_due_calls(refuse, 0)
    assert upstream.statistics()["remote_open"] == 0
    due_ns = upstream.next_due_ns()
    assert due_ns is not None
    assert 500 * MS <= due_ns <= 1000 * MS
    sent: list[UMessage] = []
    upstream.send_due_calls(sent.append, due_ns)
    assert len(sent) == 1


def test_a_remote_topic_that_is_not_subscribed_is_not_kept() -> None:
    remotes = RemoteTopicStates()
    remotes.load([(TOPIC, Status.SUBSCRIBED)])
    assert (remotes.find(TOPIC), remotes.count, list(remotes)) == (Status.SUBSCRIBED, 1, [TOPIC])
    remotes.apply({TOPIC: None, UUri("b", 2, 1, 0x8000): None})
    assert (remotes.find(TOPIC), remotes.count) == (None, 0)


def notify_subscribed(upstream: RemoteTopics, state: ServiceState, topics: Iterable[UUri]) -> None:
    """The devices of these topics report subscriptions of ours."""
    ids = UuidSource(lambda: 1)
    for topic in topics:
        update = Update(
            topic=topic.to_pb(),
            subscriber=SubscriberInfo(uri=UUri("a", 0, 3, 0).to_pb()),
            status=SubscriptionStatus(state=SubscriptionStatus.SUBSCRIBED),
        )
        source, payload = UUri(topic.authority_name, 0, 3, 0x8000), update.SerializeToString()
        upstream.on_notification(notification(ids.next(), source, UUri("a", 0, 3, 0), payload), 0)
        upstream.on_transaction_end(Transaction(state, UsubscriptionConfig(), 0), 0, committed=True)


def unsubscribes(upstream: RemoteTopics) -> list[UMessage]:
    """The Unsubscribes that are due."""
    sent: list[UMessage] = []
    upstream.send_due_calls(sent.append, 0)
    return [
        each for each in sent if each.attributes.sink is not None and each.attributes.sink.resource_id == 2
    ]


@pytest.fixture
def few_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ustreamer_usubscription.remote.remote_topics.MAX_ORPHANS_OF_DEVICE", 10)
    monkeypatch.setattr("ustreamer_usubscription.remote.remote_topics.MAX_ORPHANS", 25)


@pytest.mark.parametrize(("devices", "ended"), [("b", 10), ("bc", 20), ("bcdefg", 25)])
def test_subscriptions_that_only_the_other_device_has_are_ended_within_a_bound(
    few_orphans: None, devices: str, ended: int
) -> None:
    """The other device chooses their number, and may never answer."""
    state, upstream = subscribed()
    for device in devices:
        notify_subscribed(upstream, state, (UUri(device, 1, 1, 0x8000 + number) for number in range(100)))
    assert len(unsubscribes(upstream)) == ended


@pytest.mark.parametrize("way", ["an answer", "a local Subscribe"])
def test_an_ended_one_makes_room(few_orphans: None, way: str) -> None:
    state, upstream = subscribed()
    topics = [TOPIC.with_resource(0x8000 + number) for number in range(11)]
    notify_subscribed(upstream, state, topics[:10])
    (call, *_) = unsubscribes(upstream)
    transaction = Transaction(state, UsubscriptionConfig(), 0)
    if way == "an answer":
        upstream.on_response(response(UuidSource(lambda: 2).next(), call), transaction, 0)
    else:
        transaction.put_subscription(SubscriptionRecord(topics[0], APPS[0]))
        state.apply(transaction)
    upstream.on_transaction_end(transaction, 0, committed=True)
    upstream.send_due_calls(lambda _: None, 0)
    notify_subscribed(upstream, state, topics[10:])
    assert len(unsubscribes(upstream)) == 1
