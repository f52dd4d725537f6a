# SPDX-License-Identifier: Apache-2.0
"""The topic lifecycle that the standard had until 2024, in its three modes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.declared_topics import DeclaredTopics, TopicState, any_instance_pattern
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.requests import operations
from ustreamer_usubscription.requests.policy import SubscriptionPolicy
from ustreamer_usubscription.requests.requests import CallContext
from ustreamer_usubscription.store.store import (
    RecordChange,
    SubscriptionStore,
    put_topic,
)
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, SERVED = "device1", "device2"
APP, OTHER_APP = UUri(OWN, 0x300EF, 4, 0), UUri(OWN, 0x42, 1, 0)
ID = UUID(0x7000, 2 << 62)
TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD)
PRODUCER = TOPIC.with_resource(0)
SUBSCRIBE, CREATE, DEPRECATE = 1, 4, 5


def declare(rig: "ServiceRig", method: int, topic: UUri = TOPIC) -> None:
    answer = rig.call(method, pb.CreateTopicRequest(topic=topic.to_pb()), caller=topic.with_resource(0))
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)


# Steps of a producer, and the response to a Subscribe afterwards in each mode; None is SUBSCRIBED.
LIFE: list[tuple[list[int], UCode | None, UCode | None]] = [
    ([], None, UCode.NOT_FOUND),
    ([CREATE], None, None),
    ([CREATE, CREATE], None, None),
    ([CREATE, DEPRECATE], UCode.FAILED_PRECONDITION, UCode.FAILED_PRECONDITION),
    ([CREATE, DEPRECATE, DEPRECATE], UCode.FAILED_PRECONDITION, UCode.FAILED_PRECONDITION),
    ([CREATE, DEPRECATE, CREATE], None, None),
]


@pytest.mark.parametrize("mode", ["track", "enforce"])
@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize(("steps", "tracked", "enforced"), LIFE, ids=[str(steps) for steps, *_ in LIFE])
def test_the_state_of_a_topic_decides_whether_it_can_be_subscribed(
    make_rig: MakeRig,
    steps: list[int],
    tracked: UCode | None,
    enforced: UCode | None,
    mode: str,
    restarted: bool,
) -> None:
    """[utest->LIF-1] [utest->LIF-2] [utest->LIF-3]"""
    rig = make_rig(topic_lifecycle=mode).start()
    for step in steps:
        declare(rig, step)
    if restarted:
        rig.restart()
    answer = rig.call(SUBSCRIBE, rig.subscription_request())
    assert answer.attributes.commstatus == (tracked if mode == "track" else enforced)
    assert len(rig.pairs()) == (answer.attributes.commstatus is None)


def test_errors_contain_the_reason(make_rig: MakeRig) -> None:
    """[utest->LIF-2]"""
    rig = make_rig(topic_lifecycle="enforce").start()
    why = rig.call_refused(SUBSCRIBE, rig.subscription_request()).message
    assert why == f"topic {TOPIC}: its producer has not called CreateTopic"
    declare(rig, CREATE)
    declare(rig, DEPRECATE)
    why = rig.call_refused(SUBSCRIBE, rig.subscription_request()).message
    assert why == f"topic {TOPIC}: deprecated by its producer"


@pytest.mark.parametrize("method", [CREATE, DEPRECATE])
def test_without_a_lifecycle_its_methods_are_not_there(rig: "ServiceRig", method: int) -> None:
    wanted = pb.CreateTopicRequest(topic=TOPIC.to_pb())
    assert rig.call_refused(method, wanted, caller=PRODUCER).code is UCode.UNIMPLEMENTED


def test_without_a_lifecycle_earlier_declarations_have_no_effect_and_remain_stored(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(topic_lifecycle="track").start()
    declare(rig, DEPRECATE)
    for mode, code in (("off", None), ("track", UCode.FAILED_PRECONDITION)):
        rig.config["topic_lifecycle"] = mode
        rig.restart()
        assert rig.call(SUBSCRIBE, rig.subscription_request()).attributes.commstatus == code


@pytest.mark.parametrize(("mode", "code"), [("track", None), ("enforce", UCode.NOT_FOUND)])
def test_deprecating_a_topic_that_was_not_created(make_rig: MakeRig, mode: str, code: UCode | None) -> None:
    rig = make_rig(topic_lifecycle=mode).start()
    wanted = pb.DeprecateTopicRequest(topic=TOPIC.to_pb())
    assert rig.call(DEPRECATE, wanted, caller=PRODUCER).attributes.commstatus == code


@pytest.mark.parametrize(
    "caller",
    [
        UUri(OWN, 0x10AB, 3, 0),
        UUri(SERVED, 0x10AC, 3, 0),
        UUri(SERVED, 0x110AB, 3, 0),
        UUri(SERVED, 0x10AB, 4, 0),
    ],
    ids=["another authority", "another entity", "another instance", "another version"],
)
@pytest.mark.parametrize("method", [CREATE, DEPRECATE])
def test_only_its_producer_declares_a_topic(make_rig: MakeRig, method: int, caller: UUri) -> None:
    """[utest->LIF-5]"""
    rig = make_rig(topic_lifecycle="track").start()
    status = rig.call_refused(method, pb.CreateTopicRequest(topic=TOPIC.to_pb()), caller=caller)
    assert str(status) == f"PERMISSION_DENIED: topic {TOPIC}: the caller is {caller}, expected its producer"
    assert rig.statistics("topics") == 0


@pytest.mark.parametrize("method", [CREATE, DEPRECATE])
@pytest.mark.parametrize(
    ("topic", "why"),
    [
        (UUri(SERVED, 0x10AB, 3, 0), "is not a topic"),
        (UUri(SERVED, 0x10AB, 0xFF, 0x8000), "version is a wildcard"),
        (UUri(SERVED, 0xFFFF10AB, 3, 0x8000), "instance is a wildcard"),
        (UUri("device3", 0x10AB, 3, 0x8000), "has a uSubscription of its own"),
    ],
)
def test_a_topic_that_cannot_be_declared_is_refused(
    make_rig: MakeRig, method: int, topic: UUri, why: str
) -> None:
    """[utest->LIF-4] [utest->LIF-9]"""
    rig = make_rig(topic_lifecycle="enforce").start()
    status = rig.call_refused(
        method, pb.CreateTopicRequest(topic=topic.to_pb()), caller=UUri(topic.authority_name, 0x10AB, 3, 0)
    )
    assert status.code is UCode.INVALID_ARGUMENT
    assert why in status.message


def test_deprecating_neither_changes_nor_announces_existing_subscriptions(make_rig: MakeRig) -> None:
    """[utest->LIF-6]"""
    rig = make_rig(topic_lifecycle="enforce").start()
    declare(rig, CREATE)
    rig.register()
    rig.subscribe()
    rig.take_v3_notifications()
    version = rig.plugin.directory.version
    declare(rig, DEPRECATE)
    assert (rig.take_v3_notifications(), rig.routed_subscribers(), rig.plugin.directory.version) == (
        [],
        [(APP, 0)],
        version,
    )
    assert rig.call_refused(SUBSCRIBE, rig.subscription_request()).code is UCode.FAILED_PRECONDITION
    rig.restart()
    assert rig.routed_subscribers() == [(APP, 0)]
    rig.unsubscribe()
    assert rig.pairs() == []


def test_enforcing_ends_the_subscriptions_of_topics_that_were_not_created(make_rig: MakeRig) -> None:
    """[utest->LIF-7]"""
    rig = make_rig(topic_lifecycle="track").start()
    created = UUri(OWN, 0x42, 1, 0x8000)
    declare(rig, CREATE, created)
    for topic in (TOPIC, created):
        rig.subscribe(topic)
    rig.register(TOPIC)
    rig.take_v3_notifications()
    rig.config["topic_lifecycle"] = "enforce"
    rig.restart()
    assert rig.take_v3_notifications() == [
        (APP, TOPIC, APP, "UNSUBSCRIBED"),
        (OTHER_APP, TOPIC, APP, "UNSUBSCRIBED"),
    ]
    assert rig.pairs() == [(created, APP)]
    rig.config["topic_lifecycle"] = "off"
    rig.restart()
    assert rig.pairs() == [(created, APP)]


@pytest.mark.parametrize(
    "topic",
    [UUri(OWN, 0, 3, 0x8000), UUri(OWN, 0, 4, 0x8000), UUri(OWN, 4, 1, 0x8000)],
    ids=["changes in version 3", "changes in version 4", "dead letters"],
)
def test_the_topics_of_the_streamer_itself_exist_without_create_topic(make_rig: MakeRig, topic: UUri) -> None:
    rig = make_rig(topic_lifecycle="enforce").start()
    assert rig.subscribe(topic) == pb.SubscriptionStatus.SUBSCRIBED
    rig.restart()
    assert rig.pairs() == [(topic, APP)]


def test_a_reset_does_not_change_the_declarations_of_producers(make_rig: MakeRig) -> None:
    rig = make_rig(topic_lifecycle="enforce").start()
    declare(rig, CREATE)
    rig.reset()
    assert rig.subscribe() == pb.SubscriptionStatus.SUBSCRIBED


def test_one_topic_too_many_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig(topic_lifecycle="track", max_topics=1).start()
    declare(rig, CREATE)
    second = TOPIC.with_resource(0x8000)
    status = rig.call_refused(CREATE, pb.CreateTopicRequest(topic=second.to_pb()), caller=PRODUCER)
    assert str(status) == "RESOURCE_EXHAUSTED: 1 topics are kept, max_topics is 1"
    declare(rig, DEPRECATE)


FIRST, SECOND, EVERY = TOPIC, UUri(SERVED, 0x110AB, 3, 0x80CD), UUri(SERVED, 0xFFFF10AB, 3, 0x80CD)
ACTIVE, DEPRECATED = TopicState.ACTIVE, TopicState.DEPRECATED


@pytest.mark.parametrize("drafted", [False, True], ids=["committed", "in the same draft"])
@pytest.mark.parametrize(
    ("states", "tracked", "enforced"),
    [
        ({}, None, UCode.NOT_FOUND),
        ({FIRST: ACTIVE}, None, None),
        ({FIRST: DEPRECATED}, None, UCode.FAILED_PRECONDITION),
        ({FIRST: DEPRECATED, SECOND: ACTIVE}, None, None),
        ({FIRST: DEPRECATED, SECOND: DEPRECATED}, None, UCode.FAILED_PRECONDITION),
        ({TOPIC.with_resource(0x8000): ACTIVE}, None, UCode.NOT_FOUND),
    ],
)
@pytest.mark.parametrize("mode", ["off", "track", "enforce"])
def test_a_topic_of_every_instance_may_be_had_as_long_as_one_may(
    states: dict[UUri, TopicState],
    tracked: UCode | None,
    enforced: UCode | None,
    drafted: bool,
    mode: str,
) -> None:
    """[utest->LIF-2] Version 4 has such topics."""
    config = msgspec.convert({"topic_lifecycle": mode}, UsubscriptionConfig)
    state = ServiceState({OWN, SERVED}, InMemoryDirectory())
    if not drafted:
        state.declared_topics.apply(states)
    transaction = Transaction(state, config, 0)
    for topic, declared in states.items() if drafted else ():
        transaction.declare_topic(topic, declared)
    call = CallContext(ID, APP, OWN, {SERVED}, policy=SubscriptionPolicy(config, OWN))
    code = {"off": None, "track": tracked, "enforce": enforced}[mode]
    if code is None:
        assert operations.subscribe(SubscriptionRecord(EVERY, APP), call, transaction) == (
            Status.SUBSCRIBED,
            "",
        )
        return
    with pytest.raises(UStatusError) as refused:
        operations.subscribe(SubscriptionRecord(EVERY, APP), call, transaction)
    assert (refused.value.code, transaction.subscription_changes) == (code, [])


def test_topics_are_found_by_themselves_and_by_the_pattern_of_every_instance() -> None:
    topics, other = DeclaredTopics(), UUri(SERVED, 0x110AB, 3, 0x80CD)
    topics.load([(TOPIC, TopicState.ACTIVE), (other, TopicState.DEPRECATED)])
    assert topics.find(TOPIC) is TopicState.ACTIVE
    assert list(topics.instances_of(any_instance_pattern(TOPIC))) == [TOPIC, other]
    assert list(topics.instances_of(any_instance_pattern(TOPIC.with_resource(0x8000)))) == []
    topics.apply({TOPIC: TopicState.DEPRECATED})
    assert (topics.find(TOPIC), topics.count) == (TopicState.DEPRECATED, 2)


@pytest.mark.parametrize("state", [0, 3])
def test_a_topic_in_an_unknown_state_is_rejected(tmp_path: "Path", state: int) -> None:
    store = SubscriptionStore(tmp_path / "store", 1 << 20)
    store.open()
    change = put_topic(TOPIC, TopicState.ACTIVE)
    store.commit([change])
    assert list(store.load_declared_topics()) == [(TOPIC, TopicState.ACTIVE)]
    store.commit([put_topic(TOPIC, state)])  # type: ignore[arg-type]
    with pytest.raises(StoreDamaged, match="expected a topic of layout 3"):
        list(store.load_declared_topics())
    store.commit([RecordChange(change.key, b"\2" * 9)])
    with pytest.raises(StoreDamaged, match="checksum"):
        list(store.load_declared_topics())
    store.close()
