# SPDX-License-Identifier: Apache-2.0
"""Sessions on a whole streamer, as its subscribers. Every test ends with the ledger law."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_wamp.vehicle import pattern_subscriptions

from tests.waiting import wait_until
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import ANY, UUri

if TYPE_CHECKING:
    from tests.car import (
        DEADLINE_S,
        REMOTE_TOPIC,
        RPM,
        RPM_TOPIC,
        SECTION,
        SPEED,
        SPEED_TOPIC,
        Car,
        subscribed,
    )
    from tests.conftest import Peer
else:
    from plugins.wamp.tests.car import (
        DEADLINE_S,
        REMOTE_TOPIC,
        RPM,
        RPM_TOPIC,
        SECTION,
        SPEED,
        SPEED_TOPIC,
        Car,
        subscribed,
    )
    from plugins.wamp.tests.conftest import Peer


# --- subscriptions ------------------------------------------------------------------------------------------


def test_a_session_is_a_subscriber_like_any_other(car: Car) -> None:
    peer = car.peer().join()
    id = subscribed(peer, SPEED_TOPIC)
    ((topic, subscriber),) = car.subscriptions()
    assert topic == SPEED
    assert (subscriber.authority_name, subscriber.ue_type, subscriber.resource_id) == ("wamp.hpc", 0x8001, 0)
    message = car.publish(SPEED, b"\x00\x2a", ttl=60_000)
    car.publish(RPM, b"without a subscriber")
    code, subscription, publication, details, args, kwargs = peer.receive()
    assert (code, subscription, details, args) == (36, id, {}, [b"\x00\x2a"])
    assert 1 <= publication <= 2**53
    assert kwargs == {
        "id": str(message.id),
        "source": "up://car/2001/1/8001",
        "type": "publish",
        "priority": "CS1",
        "format": "RAW",
        "ttl": 60_000,
    }
    assert peer.request(34, 2, id) == [35, 2]
    wait_until(lambda: car.subscriptions() == [])
    car.publish(SPEED, b"later")
    assert peer.request(32, 3, {}, "com.other")[0] == 33, "no message in between"


def test_sessions_with_one_rate_are_one_subscriber(car: Car) -> None:
    peers = [car.peer(serializer).join() for serializer in ("json", "json", "msgpack", "cbor")]
    fast, *slow = ({"max_frequency": hz} for hz in (1e8, 0.01, 0.01))
    for peer, options in zip(peers, [fast, fast, *slow], strict=True):
        subscribed(peer, SPEED_TOPIC, options)
    assert len(car.subscriptions()) == 2
    for number in range(10):
        car.publish(SPEED, bytes([number]))
    for peer in peers[:2]:
        assert [peer.receive()[4] for _ in range(10)] == [[bytes([number])] for number in range(10)]
    for peer in peers[2:]:
        assert peer.receive()[4] == [b"\x00"]
    counts = [(each.delivered, each.throttled) for each in car.streamer.targets() if each.topic == SPEED]
    assert sorted(counts) == [(1, 9), (10, 0)]
    peers[0].socket.close()
    peers[2].socket.close()
    wait_until(partial(counted, car, "sessions_now", 2))
    car.publish(SPEED, b"staying")
    assert peers[1].receive()[4] == [b"staying"]
    assert len(car.subscriptions()) == 2
    peers[3].socket.close()
    wait_until(lambda: len(car.subscriptions()) == 1)


def test_each_session_subscribes_so_that_a_field_sends_its_value(car: Car) -> None:
    first, second = car.peer().join(), car.peer().join()
    for peer, calls in ((first, 1), (first, 1), (second, 2)):
        subscribed(peer, SPEED_TOPIC)
        wait_until(partial(counted, car, "calls", calls))
    assert len(car.subscriptions()) == 1


def test_a_session_has_the_rate_of_its_last_subscribe(car: Car) -> None:
    peer, other = car.peer().join(), car.peer().join()
    subscribed(other, SPEED_TOPIC, {"max_frequency": 0.01})
    for options in ({"max_frequency": 0.01}, {}, {"max_frequency": 0.02}, {}):
        subscribed(peer, SPEED_TOPIC, options)
    wait_until(lambda: len(car.subscriptions()) == 2)
    for number in range(3):
        car.publish(SPEED, bytes([number]))
    assert [peer.receive()[4] for _ in range(3)] == [[bytes([number])] for number in range(3)]
    assert other.receive()[4] == [b"\x00"]
    peer.socket.close()
    wait_until(lambda: len(car.subscriptions()) == 1)
    wait_until(partial(counted, car, "rates_now", 1))


def test_a_topic_of_another_device_is_requested_there(car: Car) -> None:
    sent_request: list[UMessage] = []
    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 1), sent_request.append)
    peer = car.peer().join()
    assert peer.request(32, 1, {}, REMOTE_TOPIC)[0] == 33
    (request,) = wait_until(lambda: sent_request)
    assert UUri.from_pb(pb.SubscriptionRequest.FromString(request.payload).topic) == UUri(
        "cloud", 0x10AB, 3, 0x80CD
    )
    peer.socket.close()
    unsubscribed: list[UMessage] = []
    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 2), unsubscribed.append)
    wait_until(lambda: car.subscriptions() == [])


def joined_knowing_of_revocation(car: Car) -> Peer:
    peer = car.peer()
    features = {"features": {"subscription_revocation": True}}
    assert peer.request(1, "realm1", {"roles": {"subscriber": features}})[0] == 2
    return peer


def ids_in(car: Car) -> list[int]:
    """The ids of all subscriptions in the realm."""
    return [each.id for each in car.local.router.realm.broker]


def counted(car: Car, name: str, value: int) -> bool:
    return car.streamer.endpoints()["wamp"].get(name, 0) == value


def test_a_later_rejection_by_another_device_is_reported(car: Car) -> None:
    """SUBSCRIBED does not wait for the other device, which may be offline.

    Its rejection is a separate UNSUBSCRIBED.
    """

    def refuse(message: UMessage) -> None:
        status = UStatus(UCode.PERMISSION_DENIED, "not for dashboards")
        car.outside.send(error_response(car.ids.next(), message, status))

    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 1), refuse)
    peer, old = joined_knowing_of_revocation(car), car.peer().join()
    id = subscribed(peer, REMOTE_TOPIC)
    code, request, details = peer.receive()
    assert (code, request, details["subscription"]) == (35, 0, id)
    assert details["reason"] == "up.subscription.ended"
    assert details["message"].endswith("PERMISSION_DENIED: not for dashboards")
    assert peer.request(34, 2, id)[4] == "wamp.error.no_such_subscription"
    # A client without support for revocation receives no notice of it, and may try again.
    wait_until(lambda: car.subscriptions() == [])
    for ended in (2, 3):
        again = subscribed(old, REMOTE_TOPIC)
        assert again > id
        wait_until(partial(counted, car, "subscriptions_ended", ended))
        wait_until(lambda: car.subscriptions() == [])
    assert old.request(34, 2, next(iter(ids_in(car)))) == [35, 2]
    wait_until(partial(counted, car, "remote_subscriptions", 0))


def test_a_reset_of_usubscription_is_reported(car: Car) -> None:
    peer = joined_knowing_of_revocation(car)
    ids = {subscribed(peer, topic) for topic in (SPEED_TOPIC, RPM_TOPIC)}
    rpc = RpcClient(car.outside, UUri("cloud", 0, 3, 0), car.ids)
    rpc.call(UUri("hpc", 0, 4, 6), ttl=5000)
    rpc.close()
    ended = [peer.receive() for _ in ids]
    assert {each[0] for each in ended} == {35}
    assert {each[2]["subscription"] for each in ended} == ids
    subscribed(peer, SPEED_TOPIC)
    car.publish(SPEED, b"again")
    assert peer.receive()[4] == [b"again"]


@pytest.mark.parametrize("how", ["close", "goodbye", "reset"])
def test_its_end_ends_its_subscriptions(car: Car, how: str) -> None:
    staying, leaving = car.peer().join(), car.peer("cbor").join()
    for peer, hz in ((staying, 1000), (leaving, 500)):
        for topic in (SPEED_TOPIC, RPM_TOPIC):
            subscribed(peer, topic, {"max_frequency": hz})
    assert len(car.subscriptions()) == 4
    if how == "goodbye":
        assert leaving.request(6, {}, "wamp.close.normal")[0] == 6
    elif how == "close":
        leaving.socket.close()
    else:
        leaving.socket.socket.close()
    wait_until(lambda: len(car.subscriptions()) == 2)
    car.publish(SPEED, b"x")
    assert staying.receive()[4] == [b"x"]
    wait_until(partial(counted, car, "rates_now", 1))


def test_an_event_for_a_rate_that_has_just_ended_has_no_subscriber_in_the_ledger(car: Car) -> None:
    has_subscriber = (
        car.local.has_subscriber
    )  # another process is asked for the rates of its sessions too late
    staying, leaving = car.peer().join(), car.peer().join()
    subscribed(staying, SPEED_TOPIC)
    subscribed(leaving, SPEED_TOPIC, {"max_frequency": 1e8})
    assert all(has_subscriber(subscriber) for _, subscriber in car.subscriptions())
    car.publish(SPEED, b"both")
    assert [peer.receive()[4] for peer in (staying, leaving)] == [[b"both"]] * 2
    before = car.streamer.ledger()
    car.wamp._dispatching = False  # so that uSubscription does not receive the end
    leaving.socket.close()
    wait_until(partial(counted, car, "rates_now", 1))
    for number in range(5):
        car.publish(SPEED, bytes([number]))
    assert [staying.receive()[4] for _ in range(5)] == [[bytes([number])] for number in range(5)]
    delivered = sorted(each.delivered for each in car.streamer.targets() if each.topic == SPEED)
    assert delivered == [1, 6]
    after = car.streamer.ledger()
    assert (after.no_subscriber - before.no_subscriber, after.dead_lettered) == (5, 0)


def test_sessions_of_a_killed_process_are_removed_at_the_next_start(
    make_car: Callable[..., Car], tmp_path: Path
) -> None:
    car = make_car()
    subscribed(car.peer().join(), SPEED_TOPIC)
    assert len(car.subscriptions()) == 1
    # As a kill does: the sessions end without a message to uSubscription.
    car.wamp._receiving = False
    car.wamp._dispatching = False
    car.stop()
    again = make_car()
    wait_until(partial(counted, again, "stale_subscriptions_removed", 1))
    wait_until(lambda: again.subscriptions() == [])


def test_a_rate_is_that_of_one_session_alone(car: Car) -> None:
    fast, slow = car.peer().join(), car.peer("msgpack").join()
    subscribed(fast, SPEED_TOPIC)
    subscribed(slow, SPEED_TOPIC, {"max_frequency": 0.01})
    for number in range(50):
        car.publish(SPEED, bytes([number]))
    assert [fast.receive()[4] for _ in range(50)] == [[bytes([number])] for number in range(50)]
    assert slow.receive()[4] == [b"\x00"]
    assert slow.request(32, 9, {}, SPEED_TOPIC)[0] == 33, "and with another SUBSCRIBE it has another rate"
    targets = wait_until(lambda: [each for each in car.streamer.targets() if each.throttled])
    assert [(each.throttled, each.endpoint) for each in targets] == [(49, "wamp")]
    car.publish(SPEED, b"all")
    assert slow.receive()[4] == [b"all"]


def test_a_rejection_by_usubscription_is_an_error(make_car: Callable[..., Car]) -> None:
    car = make_car(plugins='[plugins.usubscription]\ntopic_lifecycle = "enforce"')
    peer = car.peer().join()
    answer = peer.request(32, 1, {}, "up.hpc.2001.0.1.8001")
    assert (answer[0], answer[4]) == (8, "up.error.not_found")
    assert "2001" in answer[3]["message"]
    assert subscribed(peer, "com.not.of.the.vehicle")


def test_without_usubscription_topics_of_the_vehicle_cannot_be_had(make_car: Callable[..., Car]) -> None:
    car = make_car(plugins="[plugins.throttle]")
    peer = car.peer().join()
    # The first response is awaited for the whole timeout: another host on the network may be our uSubscription.
    answer = peer.request(32, 1, {}, SPEED_TOPIC)
    assert (answer[0], answer[4]) == (8, "up.error.deadline_exceeded")
    began = time.monotonic()
    for request in range(2, 5):
        answer = peer.request(32, request, {}, RPM_TOPIC)
        assert (answer[0], answer[4]) == (8, "up.error.deadline_exceeded")
    assert time.monotonic() - began < 4


def test_where_no_network_has_our_authority_it_is_known_that_there_is_no_usubscription(
    make_car: Callable[..., Car],
) -> None:
    car = make_car(plugins="[plugins.throttle]", living='"car"')
    began = time.monotonic()
    answer = car.peer().join().request(32, 1, {}, SPEED_TOPIC)
    assert (answer[0], answer[4]) == (8, "up.error.unavailable")
    assert "no endpoint for authority 'hpc'" in answer[3]["message"]
    assert time.monotonic() - began < 4


def test_a_client_that_leaves_before_the_response_leaves_no_subscription(car: Car) -> None:
    for _ in range(20):
        peer = car.peer().join()
        for request in range(1, 20):
            peer.send(32, request, {}, f"up.car.{request:x}.0.1.8001")
        peer.socket.socket.close()
    wait_until(partial(counted, car, "sessions_now", 0))
    wait_until(partial(counted, car, "remote_subscriptions", 0))
    wait_until(lambda: car.subscriptions() == [])


def test_more_subscriptions_than_parallel_calls_are_all_answered(car: Car) -> None:
    peer = car.peer("msgpack").join()
    for request in range(1, 901):
        peer.send(32, request, {}, f"up.car.{request:x}.0.1.8001")
    answers = [peer.receive() for _ in range(900)]
    assert {each[0] for each in answers} == {33}
    assert len({each[2] for each in answers}) == 900
    assert len(car.subscriptions()) == 900


# --- patterns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "topic"),
    [("prefix", "up.car."), ("prefix", ""), ("wildcard", "up..2001...8001"), ("wildcard", "up.car....")],
)
def test_a_pattern_receives_the_topics_that_pass(car: Car, match: str, topic: str) -> None:
    peer = car.peer().join()
    car.publish(SPEED, b"early")  # so that a route is cached, which must be rebuilt
    peer.send(32, 1, {"match": match}, topic)
    id = peer.receive()[2]

    def event() -> Any:
        car.publish(SPEED, b"x")
        received_messages = peer.receive_within(0.1)
        return (
            received_messages
            if received_messages and received_messages[3].get("topic") == SPEED_TOPIC
            else None
        )

    assert wait_until(event)[1] == id
    assert len(car.wamp.patterns) == 1
    peer.socket.close()
    wait_until(lambda: len(car.wamp.patterns) == 0)


def publish_outside(car: Car, topic: UUri) -> None:
    car.outside.send(publish(car.ids.next(), topic, b"x", UPayloadFormat.RAW))


@pytest.mark.parametrize("first", ["pattern", "publication"])
def test_a_pattern_subscribes_observed_topics_at_other_devices(car: Car, first: str) -> None:
    """The topic stays subscribed after the subscriber that caused its first event has left."""
    sent_request: list[UUri] = []
    unasked: list[UUri] = []

    def note(found: list[UUri], message: UMessage) -> None:
        found.append(UUri.from_pb(pb.SubscriptionRequest.FromString(message.payload).topic))

    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 1), partial(note, sent_request))
    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 2), partial(note, unasked))
    topic, other = UUri("cloud", 0x10AB, 3, 0x80CD), UUri("cloud", 0x10AC, 3, 0x80CD)
    if first == "publication":
        publish_outside(car, topic)
    peer = car.peer().join()
    id = peer.request(32, 1, {"match": "prefix", "max_frequency": 50}, "up.cloud.10ab.")[2]
    if first == "pattern":
        publish_outside(car, topic)
    publish_outside(car, other)
    car.publish(SPEED, b"x")  # that topic needs no request
    assert wait_until(lambda: sent_request) == [topic]
    ((known, subscriber),) = car.subscriptions()
    assert (known, subscriber.ue_type) == (topic, 0x8001)
    wait_until(partial(counted, car, "pattern_topics_now", 1))
    assert peer.request(34, 2, id)[0] in {35, 36}
    wait_until(lambda: car.subscriptions() == [])
    assert wait_until(lambda: unasked) == [topic]


def test_a_topic_of_a_pattern_that_another_device_rejects_is_tried_again(
    make_car: Callable[..., Car], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_subscriptions, "_RETRY_INTERVAL_NS", 100_000_000)
    car = make_car()
    assert car.local.counts is not None, "the interval is that of this process"
    sent_request: list[UMessage] = []

    def refuse(message: UMessage) -> None:
        sent_request.append(message)
        car.outside.send(
            error_response(car.ids.next(), message, UStatus(UCode.PERMISSION_DENIED, "not today"))
        )

    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 1), refuse)
    peer = joined_knowing_of_revocation(car)
    id = peer.request(32, 1, {"match": "prefix"}, "up.cloud.")[2]
    publish_outside(car, UUri("cloud", 0x10AB, 3, 0x80CD))
    assert peer.receive()[1] == id
    wait_until(lambda: len(sent_request) >= 3)
    publish_outside(car, UUri("cloud", 0x10AB, 3, 0x80CD))
    assert peer.receive()[:2] == [36, id], "a passing event is received all the same, and no end is announced"


def test_every_instance_of_an_entity_is_requested_in_version_4(car: Car) -> None:
    sent_request: list[UMessage] = []
    car.outside.register_listener(ANY, UUri("cloud", 0, 4, 1), sent_request.append)
    peer = car.peer().join()
    assert peer.request(32, 1, {"match": "wildcard"}, "up.cloud.10ab..3.80cd")[0] == 33
    (request,) = wait_until(lambda: sent_request)
    every = UUri("cloud", 0xFFFF_10AB, 3, 0x80CD)
    assert UUri.from_pb(pb4.SubscribeRequest.FromString(request.payload).topic) == every
    publish_outside(car, UUri("cloud", 0x7_10AB, 3, 0x80CD))
    assert peer.receive()[3] == {"topic": "up.cloud.10ab.7.3.80cd"}
    assert peer.receive_within(0.1) is None, (
        "a session receives an event once, whatever the number of matches"
    )
    peer.socket.close()
    wait_until(partial(counted, car, "remote_subscriptions", 0))
    wait_until(lambda: car.subscriptions() == [])


def test_how_many_topics_a_pattern_may_have_is_configured(make_car: Callable[..., Car]) -> None:
    car = make_car(section=SECTION + "max_pattern_topics = 2")
    peer = car.peer().join()
    assert peer.request(32, 1, {"match": "prefix"}, "up.cloud.")[0] == 33
    for number in range(5):
        publish_outside(car, UUri("cloud", 0x10AB, 3, 0x8000 + number))
    wait_until(partial(counted, car, "pattern_topics_waiting", 3))
    assert counted(car, "pattern_topics_now", 2)
    assert len(car.subscriptions()) == 2


def test_a_pattern_that_can_be_no_topic_concerns_the_vehicle_not(car: Car) -> None:
    peer = car.peer().join()
    for match, topic in (
        ("prefix", "com."),
        ("prefix", "upx"),
        ("wildcard", "up..1"),
        ("wildcard", "com....."),
    ):
        assert peer.request(32, 1, {"match": match}, topic)[0] == 33
    assert len(car.wamp.patterns) == 0


# --- stop ---------------------------------------------------------------------------------------------------


def test_sessions_that_end_during_a_stop_leave_nothing_queued(car: Car) -> None:
    """Each of them unsubscribes at uSubscription, before and after that has stopped."""
    peers = [car.peer().join() for _ in range(24)]
    for peer in peers:
        subscribed(peer, SPEED_TOPIC)
        subscribed(peer, RPM_TOPIC)

    def end_sessions() -> None:
        for peer in peers[::2]:
            peer.socket.close()

    ending = Thread(target=end_sessions, daemon=True)
    ending.start()
    car.stop()
    ending.join(DEADLINE_S)
    assert not ending.is_alive()
