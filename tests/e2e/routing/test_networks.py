# SPDX-License-Identifier: Apache-2.0
"""Two Zenoh networks with the streamer between them."""

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.rates import assert_rate, publish_until_flowed
from tests.e2e.rigs.vehicle import CLOUD_PROVIDER, Vehicle


def test_each_network_gets_a_topic_at_its_own_rate(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity
) -> None:
    topic, unlimited = vehicle.unused_topic(), vehicle.unused_topic()
    app.subscribe(unlimited)
    app.subscribe(topic, max_frequency=50.0)
    fleet.subscribe(topic, max_frequency=20.0)
    everything = publish_until_flowed(vehicle, app, [topic], unlimited, seconds=2.0)
    assert_rate(app.events(topic), 50, everything)
    assert_rate(fleet.events(topic), 20, everything, tolerance=0.03)


def test_a_network_gets_the_fastest_requested_rate(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as slow:
        slow.subscribe(topic, max_frequency=1.0)
        app.subscribe(topic)
        for number in range(20):
            vehicle.send_event(topic, b"%d" % number)
        assert len(slow.wait_events(topic, 20)) == 20


def test_a_topic_of_one_network_reaches_its_subscriber_in_the_other(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity
) -> None:
    topic, other = app.address.at(0x8001), app.address.at(0x8002)
    fleet.subscribe(topic)
    app.publish(other, b"no receiver")
    sent = app.publish(topic, b"for the fleet")
    [sample] = fleet.wait_events(topic)
    # A dispatcher forwards a message: it is the same one there.
    assert sample.key == wire.key(topic)
    assert sample.head == wire.Attributes(sent, wire.PUBLISH, topic, priority=wire.CS1)
    assert sample.payload == b"for the fleet"
    assert fleet.events(other) == []


def test_all_attributes_of_a_message_are_forwarded(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity
) -> None:
    topic = app.address.at(0x8001)
    fleet.subscribe(topic)
    sent = wire.Attributes(
        wire.new_id(),
        wire.PUBLISH,
        topic,
        priority=wire.CS3,
        ttl=60_000,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        payload_format=3,
    )
    app.send_message(sent, b"{}")
    assert fleet.wait_events(topic)[0].head == sent


def test_a_late_publication_is_not_forwarded(vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity) -> None:
    topic = app.address.at(0x8001)
    fleet.subscribe(topic)
    now = wire.new_id()
    a_minute_ago = now._replace(msb=now.msb - (60_000 << 16))
    app.send_message(wire.Attributes(a_minute_ago, wire.PUBLISH, topic, priority=wire.CS1, ttl=1000), b"late")
    app.send_message(
        wire.Attributes(a_minute_ago, wire.PUBLISH, topic, priority=wire.CS1, ttl=120_000), b"in time"
    )
    app.send_message(
        wire.Attributes(a_minute_ago, wire.PUBLISH, topic, priority=wire.CS1, ttl=0), b"for ever"
    )
    assert [each.payload for each in fleet.wait_events(topic, 2)] == [b"in time", b"for ever"]


def test_calls_and_notifications_go_to_the_network_of_their_sink(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity
) -> None:
    notified = wire.Attributes(
        wire.new_id(), wire.NOTIFICATION, app.address.at(0x8001), fleet.address, priority=wire.CS1
    )
    app.send_message(notified, b"look at this")
    sample = fleet.inbox.wait_one(lambda each: each.head.id == notified.id)  # Updates may arrive, too
    assert (sample.key, sample.head, sample.payload) == (notified.key, notified, b"look at this")

    sent_request = fleet.send_request(app.address.at(0x0001), b"how are you", ttl=3000)
    question = app.inbox.wait_one(lambda each: each.head.id == sent_request)
    assert question.payload == b"how are you"
    app.respond(question, b"fine")
    answer = fleet.wait_response(sent_request)
    assert (answer.payload, answer.head.ttl, answer.head.source) == (b"fine", 3000, app.address.at(0x0001))


@pytest.mark.parametrize("authority", ["hpc.vin1", "chassis"])
def test_a_publication_with_a_foreign_authority_is_refused(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity, authority: str
) -> None:
    topic, marker = vehicle.unused_topic()._replace(authority=authority), vehicle.unused_topic()
    app.subscribe(topic)
    app.subscribe(marker)
    fleet.publish(topic, b"forged")
    # First the publications of the cloud are followed to their decision, then the way to the vehicle is to its end.
    notifications = f"{authority} was forged".encode()
    fleet.publish(CLOUD_PROVIDER.at(0x8001), notifications)
    vehicle.receiver.inbox.wait_one(lambda frame: frame.head.payload == notifications)
    vehicle.send_event(marker)
    app.wait_events(marker)
    assert app.events(topic) == []
