# SPDX-License-Identifier: Apache-2.0
"""Subscriptions at ECUs without uSubscription: requests and service discovery states in, responses out."""

from collections.abc import Iterable

import msgspec
import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscribeRequest,
    SubscriptionUpdate,
    status_in,
    subscribe_request,
    subscription_update_in,
    unsubscribe_request,
)
from ustreamer.transports.someip.config import ServiceConfig
from ustreamer.transports.someip.discovery.usubscription_proxy import (
    MAX_SUBSCRIBERS,
    EcuSubscriptionState,
    EcuUsubscription,
    EventgroupKey,
    EventgroupRequest,
)
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

OWN = UUri("hpc.vin1", 0, 3, 0)
CLOUD = UUri("cloud", 0, 3, 0)
FIRST, SECOND, THIRD = (UUri("chassis", 0x1234, 1, event) for event in (0x8001, 0x8002, 0x8003))
OTHER_INSTANCE = UUri("chassis", 0x2_1234, 1, 0x8001)
EVERY = UUri("chassis", 0xFFFF_1234, 1, 0x8001)
PLACED = UUri("chassis", 0x5555, 1, 0x8001)
KEY, OTHER_KEY = ServiceKey(0x1234, 1, 1), ServiceKey(0x1234, 2, 1)
GROUP, OTHER_GROUP = EventgroupKey(KEY, 1), EventgroupKey(OTHER_KEY, 1)
RELIABLE = EventgroupKey(KEY, 2)

SERVICES = msgspec.convert(
    [
        {
            "service": 0x1234,
            "major": 1,
            "events": [
                {"id": 0x8001, "eventgroup": 1},
                {"id": 0x8002, "eventgroup": 1},
                {"id": 0x8003, "eventgroup": 2, "protocol": "tcp"},
            ],
        },
        {"service": 0x1234, "instance": 2, "major": 1, "events": [{"id": 0x8001, "eventgroup": 1}]},
        {"service": 0x5555, "major": 1, "events": [{"id": 0x8001}], "remote": "10.0.0.5:30500"},
    ],
    list[ServiceConfig],
)


class UsubscriptionRig:
    """The uSubscription of `chassis`, called with encoded requests."""

    def __init__(self, services: Iterable[ServiceConfig] = SERVICES) -> None:
        self.clock = ManualClock()
        self.ids = UuidSource(self.clock.clock().wall_ms)
        self.ecus = EcuUsubscription("chassis", "hpc.vin1", services, self.clock.clock(), self.ids.next)

    def send_request(self, method: int, payload: bytes, caller: UUri = OWN, version: int = 3) -> UMessage:
        sink = UUri("chassis", 0, version, method)
        requested = request(self.ids.next(), caller, sink, payload, UPayloadFormat.PROTOBUF, ttl=1_000)
        [answer] = self.ecus.on_request(requested)
        assert answer.attributes.reqid == requested.id
        assert answer.attributes.source == sink
        return answer

    def subscribe(self, topic: UUri, caller: UUri = OWN, expire_ms: int | None = None) -> Status:
        answer = self.send_request(
            1, subscribe_request(SubscribeRequest(topic, expire_ms)).SerializeToString(), caller
        )
        assert answer.attributes.commstatus is None, decode_status(answer.payload)
        return status_in(3, answer.payload, answer.attributes.payload_format)

    def subscribe_4(self, topic: UUri) -> Status:
        requested = pb4.SubscribeRequest(topic=topic.to_pb(), sample_period=10)
        answer = self.send_request(1, requested.SerializeToString(), version=4)
        return status_in(4, answer.payload, answer.attributes.payload_format)

    def unsubscribe(self, topic: UUri, caller: UUri = OWN) -> None:
        answer = self.send_request(2, unsubscribe_request(topic).SerializeToString(), caller)
        assert answer.attributes.commstatus is None

    def refused(self, topic: UUri, caller: UUri = OWN) -> UCode | None:
        answer = self.send_request(1, subscribe_request(SubscribeRequest(topic)).SerializeToString(), caller)
        return answer.attributes.commstatus


def updates_in(messages: list[UMessage]) -> list[tuple[UUri, SubscriptionUpdate | None]]:
    assert all(each.attributes.type is UMessageType.NOTIFICATION for each in messages)
    return [(each.attributes.source, subscription_update_in(each)) for each in messages]


# [utest->RPC-732, RPC-354, SD-430]
def test_the_first_topic_subscribes_the_group_and_the_last_one_ends_it() -> None:
    rig = UsubscriptionRig()

    assert rig.subscribe(FIRST) is Status.SUBSCRIBE_PENDING
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, True, False)]
    assert rig.subscribe(SECOND) is Status.SUBSCRIBE_PENDING
    rig.unsubscribe(FIRST)
    assert rig.ecus.pop_eventgroup_requests() == []
    rig.unsubscribe(SECOND)
    rig.unsubscribe(SECOND)
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, False, False)]


def in_two_groups() -> UsubscriptionRig:
    events = [
        {"id": 0x8001, "eventgroup": [1, 2]},
        {"id": 0x8002, "eventgroup": 2},
        {"id": 0x8003, "eventgroup": [3, 1]},
    ]
    rig = UsubscriptionRig()
    services = msgspec.convert([{"service": 0x1234, "major": 1, "events": events}], list[ServiceConfig])
    rig.ecus = EcuUsubscription("chassis", "hpc.vin1", services, rig.clock.clock(), rig.ids.next)
    return rig


def test_only_the_first_of_several_groups_of_an_event_is_subscribed() -> None:
    rig = in_two_groups()
    rig.subscribe(FIRST)
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, True, False)]
    rig.unsubscribe(FIRST)
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, False, False)]


# [utest->RPC-59]
def test_a_subscribed_group_also_serves_its_other_events() -> None:
    rig, second = in_two_groups(), EventgroupKey(KEY, 2)
    rig.subscribe(SECOND)
    rig.ecus.on_eventgroup_state(second, EcuSubscriptionState.SUBSCRIBED)
    assert rig.subscribe(FIRST) is Status.SUBSCRIBED
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(second, True, False)]
    rig.unsubscribe(SECOND)
    rig.subscribe(THIRD)  # the first group of FIRST must not be subscribed for this
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(EventgroupKey(KEY, 3), True, False)]
    rig.unsubscribe(FIRST)
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(second, False, False)]


def test_a_refused_group_does_not_block_the_other_group_of_an_event() -> None:
    rig, second = in_two_groups(), EventgroupKey(KEY, 2)
    rig.subscribe(SECOND)
    rig.ecus.on_eventgroup_state(second, EcuSubscriptionState.REFUSED)
    assert rig.subscribe(FIRST) is Status.SUBSCRIBE_PENDING
    assert rig.ecus.pop_eventgroup_requests() == [
        EventgroupRequest(second, True, False),
        EventgroupRequest(GROUP, True, False),
    ]


def test_a_released_event_returns_to_its_first_group() -> None:
    rig, second = in_two_groups(), EventgroupKey(KEY, 2)
    rig.subscribe(SECOND)
    rig.subscribe(FIRST)
    rig.unsubscribe(FIRST)
    rig.ecus.on_eventgroup_state(second, EcuSubscriptionState.REFUSED)
    assert rig.subscribe(FIRST) is Status.SUBSCRIBE_PENDING
    assert rig.ecus.pop_eventgroup_requests() == [
        EventgroupRequest(second, True, False),
        EventgroupRequest(GROUP, True, False),
    ]


def test_a_group_with_a_tcp_event_is_subscribed_over_tcp() -> None:
    rig = UsubscriptionRig()
    rig.subscribe(THIRD)
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(RELIABLE, True, True)]


def test_a_group_with_udp_and_tcp_events_is_subscribed_over_both() -> None:
    events = [{"id": 0x8001, "eventgroup": 1}, {"id": 0x8002, "eventgroup": 1, "protocol": "tcp"}]
    service = msgspec.convert({"service": 0x1234, "major": 1, "events": events}, ServiceConfig)
    rig = UsubscriptionRig([service])
    rig.subscribe(FIRST)
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, True, True, mixed=True)]


def test_a_topic_with_a_configured_address_is_subscribed_immediately() -> None:
    rig = UsubscriptionRig()
    assert rig.subscribe(PLACED) is Status.SUBSCRIBED
    assert rig.ecus.pop_eventgroup_requests() == []


def test_an_ack_a_loss_and_a_nack_notify_the_subscribers() -> None:
    rig = UsubscriptionRig()
    rig.subscribe(FIRST)
    source = UUri("chassis", 0, 3, 0x8000)

    for state, status in (
        (EcuSubscriptionState.SUBSCRIBED, Status.SUBSCRIBED),
        (EcuSubscriptionState.PENDING, Status.SUBSCRIBE_PENDING),
        (EcuSubscriptionState.REFUSED, Status.UNSUBSCRIBED),
    ):
        assert updates_in(rig.ecus.on_eventgroup_state(GROUP, state)) == [
            (source, SubscriptionUpdate(FIRST, OWN, status))
        ]
        assert rig.ecus.on_eventgroup_state(GROUP, state) == []  # notified once
    assert rig.ecus.on_eventgroup_state(OTHER_GROUP, EcuSubscriptionState.SUBSCRIBED) == []


def test_a_later_subscriber_of_a_subscribed_topic_gets_that_state() -> None:
    rig = UsubscriptionRig()
    rig.subscribe(FIRST)
    rig.ecus.on_eventgroup_state(GROUP, EcuSubscriptionState.SUBSCRIBED)

    assert rig.subscribe(FIRST) is Status.SUBSCRIBED
    assert rig.subscribe(SECOND, CLOUD) is Status.SUBSCRIBED


def test_after_a_nack_a_subscriber_is_refused_and_may_retry() -> None:
    rig = UsubscriptionRig()
    rig.subscribe(FIRST)
    rig.ecus.on_eventgroup_state(GROUP, EcuSubscriptionState.REFUSED)
    rig.ecus.pop_eventgroup_requests()

    assert rig.subscribe(FIRST) is Status.UNSUBSCRIBED
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, False, False)]
    assert rig.subscribe(FIRST) is Status.SUBSCRIBE_PENDING
    assert rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, True, False)]


def test_a_refused_group_granted_by_a_later_offer_is_notified() -> None:
    rig = UsubscriptionRig()
    rig.subscribe(FIRST)
    rig.ecus.on_eventgroup_state(GROUP, EcuSubscriptionState.REFUSED)
    assert updates_in(rig.ecus.on_eventgroup_state(GROUP, EcuSubscriptionState.SUBSCRIBED))[0][
        1
    ] == SubscriptionUpdate(FIRST, OWN, Status.SUBSCRIBED)


def test_a_topic_of_every_instance_has_their_best_state() -> None:
    rig = UsubscriptionRig()

    assert rig.subscribe_4(EVERY) is Status.SUBSCRIBE_PENDING
    assert {each.group for each in rig.ecus.pop_eventgroup_requests()} == {GROUP, OTHER_GROUP}
    [(source, news)] = updates_in(rig.ecus.on_eventgroup_state(OTHER_GROUP, EcuSubscriptionState.SUBSCRIBED))
    assert (source, news) == (
        UUri("chassis", 0, 4, 0x8000),
        SubscriptionUpdate(EVERY, OWN, Status.SUBSCRIBED),
    )
    assert rig.ecus.on_eventgroup_state(GROUP, EcuSubscriptionState.REFUSED) == []
    assert updates_in(rig.ecus.on_eventgroup_state(OTHER_GROUP, EcuSubscriptionState.REFUSED))[0][
        1
    ] == SubscriptionUpdate(EVERY, OWN, Status.UNSUBSCRIBED)


def ended_after(rig: UsubscriptionRig, ms: int) -> bool:
    """Whether the subscription of the only topic ends within `ms` from now."""
    rig.clock.advance(ms=ms)
    rig.ecus.expire_subscriptions(rig.clock.now_ns)
    return rig.ecus.pop_eventgroup_requests() == [EventgroupRequest(GROUP, False, False)]


def subscribe_for_5_s(rig: UsubscriptionRig) -> None:
    rig.subscribe(FIRST, expire_ms=rig.clock.clock().wall_ms() + 5_000)
    rig.ecus.pop_eventgroup_requests()


def test_a_subscription_ends_at_its_expiry() -> None:
    rig = UsubscriptionRig()
    subscribe_for_5_s(rig)
    assert not ended_after(rig, 4_999)
    assert ended_after(rig, 2)
    assert rig.ecus.next_deadline_ns is None


def test_a_clock_glitch_ends_no_subscription_of_before_or_during_it() -> None:
    """The own uSubscription grants the same grace period and does not know of an end here."""
    rig = UsubscriptionRig()
    right_ms = rig.clock.clock().wall_ms()
    rig.clock.step(s=3_600)
    assert rig.subscribe(FIRST, expire_ms=right_ms + 5_000) is Status.SUBSCRIBE_PENDING
    rig.ecus.pop_eventgroup_requests()
    assert not ended_after(rig, 4_999)
    rig.clock.step(s=-3_600)
    assert ended_after(rig, 2)


def test_a_subscription_lasts_longer_if_the_clock_is_set_back() -> None:
    rig = UsubscriptionRig()
    subscribe_for_5_s(rig)
    rig.clock.step(s=-10)
    assert not ended_after(rig, 5_001)
    assert not ended_after(rig, 9_999)
    assert ended_after(rig, 1)


def test_an_unlimited_renewal_outlives_the_first_expiry() -> None:
    rig = UsubscriptionRig()
    rig.subscribe(FIRST, expire_ms=rig.clock.clock().wall_ms() + 5_000)
    rig.subscribe(FIRST)
    assert rig.ecus.next_deadline_ns is None


def test_a_past_expiry_subscribes_nothing() -> None:
    rig = UsubscriptionRig()
    assert rig.subscribe(FIRST, expire_ms=1) is Status.UNSUBSCRIBED
    assert rig.ecus.pop_eventgroup_requests() == []


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (UUri("chassis", 0x9999, 1, 0x8001), UCode.NOT_FOUND),
        (UUri("chassis", 0x1234, 2, 0x8001), UCode.NOT_FOUND),
        (UUri("chassis", 0x1234, 1, 0x8009), UCode.NOT_FOUND),
        (UUri("hpc.vin1", 0x1234, 1, 0x8001), UCode.INVALID_ARGUMENT),
    ],
)
def test_an_unconfigured_topic_is_refused(topic: UUri, code: UCode) -> None:
    rig = UsubscriptionRig()
    assert rig.refused(topic) is code
    assert rig.ecus.pop_eventgroup_requests() == []
    assert rig.ecus.statistics() == {"sd_topics": 0, "sd_eventgroups": 0}


@pytest.mark.parametrize(("version", "method"), [(3, 3), (3, 8), (5, 1)])
def test_other_methods_and_versions_are_unimplemented(version: int, method: int) -> None:
    assert (
        UsubscriptionRig().send_request(method, b"", version=version).attributes.commstatus
        is UCode.UNIMPLEMENTED
    )


def test_a_malformed_request_is_refused() -> None:
    assert UsubscriptionRig().send_request(1, b"\xff").attributes.commstatus is UCode.INVALID_ARGUMENT


def test_the_number_of_subscribers_of_a_topic_is_limited() -> None:
    rig = UsubscriptionRig()
    for number in range(MAX_SUBSCRIBERS):
        rig.subscribe(FIRST, UUri(f"cloud{number}", 0, 3, 0))
    assert rig.refused(FIRST, CLOUD) is UCode.RESOURCE_EXHAUSTED
    rig.unsubscribe(FIRST, UUri("cloud0", 0, 3, 0))
    assert rig.subscribe(FIRST, CLOUD) is Status.SUBSCRIBE_PENDING


def test_the_router_gets_remote_subscribers_only() -> None:
    rig = UsubscriptionRig()
    rig.subscribe(FIRST)
    assert (rig.ecus.subscribers(FIRST), rig.ecus.version) == ((), 0)

    rig.subscribe(FIRST, CLOUD)
    assert rig.ecus.subscribers(FIRST) == [Subscription(FIRST, CLOUD)]
    assert rig.ecus.version == 1
    rig.subscribe(FIRST, CLOUD)
    assert rig.ecus.version == 1
    rig.unsubscribe(FIRST, CLOUD)
    assert (list(rig.ecus.subscribers(FIRST)), rig.ecus.version) == ([], 2)


def test_a_subscriber_of_every_instance_is_notified_of_each() -> None:
    rig = UsubscriptionRig()
    requested = pb4.SubscribeRequest(topic=EVERY.to_pb(), sample_period=10)
    rig.send_request(1, requested.SerializeToString(), CLOUD, version=4)
    assert rig.ecus.subscribers(OTHER_INSTANCE) == [Subscription(EVERY, CLOUD, 10_000_000)]
    assert rig.ecus.subscribers(SECOND) == []
