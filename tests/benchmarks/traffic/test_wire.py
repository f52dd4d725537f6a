# SPDX-License-Identifier: Apache-2.0
"""The handwritten bytes of the generators are valid for the codecs of the streamer."""

from ustreamer_usubscription.requests.requests import subscription_record

from benchmarks.traffic import wire
from ustreamer.transports.someip.protocol import codec
from ustreamer.uprotocol import UAttributes, UMessageType, UPayloadFormat, UPriority, UUri
from ustreamer.uprotocol.pb import usubscription_v3
from ustreamer.uprotocol.uattributes import check_attributes
from ustreamer.uprotocol.wire import decode


def uuri(address: wire.Address) -> UUri:
    return UUri(address.authority, address.service, address.version, address.resource)


def read(attachment: bytes) -> UAttributes:
    assert attachment[0] == 1
    id, attributes = decode(attachment[1:])
    assert id.is_valid
    assert (id.time_ms, id.lsb & 0xFFFF_FFFF) == (1_700_000_000_000, 42)
    check_attributes(attributes)
    return attributes


def test_a_publication_is_decoded_by_the_streamer() -> None:
    attachment = wire.attachment_head(1_700_000_000_000, 42) + wire.publish_tail(wire.APP_TOPIC)
    assert read(attachment) == UAttributes(
        type=UMessageType.PUBLISH, source=uuri(wire.APP_TOPIC), priority=UPriority.CS1
    )


def test_a_subscribe_request_is_decoded_by_the_streamer() -> None:
    tail = wire.request_tail(wire.SUBSCRIBER, wire.SUBSCRIBE, 2_000)
    assert read(wire.attachment_head(1_700_000_000_000, 42) + tail) == UAttributes(
        type=UMessageType.REQUEST,
        source=uuri(wire.SUBSCRIBER),
        sink=uuri(wire.SUBSCRIBE),
        priority=UPriority.CS4,
        ttl=2_000,
        payload_format=UPayloadFormat.PROTOBUF,
    )
    decoded = usubscription_v3.SubscriptionRequest.FromString(wire.subscription_request(wire.ECU_TOPIC))
    assert UUri.from_pb(decoded.topic) == uuri(wire.ECU_TOPIC)


def test_a_subscription_has_the_limit_of_the_request() -> None:
    body = wire.subscription_request(wire.ECU_TOPIC, 8.0)
    decoded = usubscription_v3.SubscriptionRequest.FromString(body)
    record = subscription_record(uuri(wire.ECU_TOPIC), uuri(wire.SUBSCRIBER), decoded.attributes)
    assert record.period_ns == 125_000_000


def test_a_someip_request_is_decoded_by_the_streamer() -> None:
    message, _ = codec.decode(wire.someip_request(0x3000, 1, 0x77, 9, b"body"))
    assert message == codec.SomeIpMessage(
        0x3000, 1, 0x77, 9, wire.MAJOR, codec.MessageType.REQUEST, 0, b"body"
    )


def test_only_the_state_subscribed_counts_as_subscribed() -> None:
    states = usubscription_v3.SubscriptionStatus.State
    for state in (states.UNSUBSCRIBED, states.SUBSCRIBE_PENDING, states.SUBSCRIBED):
        status = usubscription_v3.SubscriptionStatus(state=state)
        response = usubscription_v3.SubscriptionResponse(status=status, topic=uuri(wire.ECU_TOPIC).to_pb())
        assert wire.is_subscribed(response.SerializeToString()) is (state == states.SUBSCRIBED)
    assert not wire.is_subscribed(b"")


def test_keys_are_those_of_the_specification() -> None:
    assert wire.publish_key(wire.ECU_TOPIC) == "up/chassis/1234/0/1/8001/{}/{}/{}/{}/{}"
    assert wire.unicast_key(wire.SUBSCRIBER, wire.SUBSCRIBE) == "up/hpc.vin1/10A1/0/1/0/hpc.vin1/0/0/3/1"


def test_an_event_is_a_someip_notification_whose_payload_ends_in_number_and_stamp() -> None:
    body = wire.payload(64, 42, 7)
    datagram = wire.someip_event(wire.SERVICE, wire.EVENT, wire.session(0xFFFF), body)
    (message,), malformed = codec.split(datagram)
    assert malformed == []
    assert message == codec.SomeIpMessage(
        wire.SERVICE, wire.EVENT, 0, 1, wire.MAJOR, codec.MessageType.NOTIFICATION, 0, body
    )
    assert len(body) == 64
    assert wire.TAIL.unpack_from(datagram, len(datagram) - wire.TAIL.size) == (42, 7)
