# SPDX-License-Identifier: Apache-2.0
"""A fixed run of a Zenoh endpoint on loopback: key expression, attachment, payload and priority of each put.

Key expressions of filters and the keys of liveliness tokens come from the functions that the transport uses.
"""

from pathlib import Path

import msgspec
import zenoh

from tests.golden.frames import Frame
from tests.transports.zenoh.sessions import endpoint, free_locator, plain_session, wait_for_link
from ustreamer.core.peers.election import Announcement, AnnouncementRole
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.transports.zenoh.keys import filter_key
from ustreamer.transports.zenoh.tokens.token_keys import advertisement_key, announcement_key
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import (
    UMessage,
    error_response,
    notification,
    publish,
    request,
    response,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

OWN = "device1"
TOPIC = UUri(OWN, 0x10AB, 3, 0x80CD)
APP = UUri("device2", 0x300EF, 4, 0)
METHOD = UUri("device2", 0xCD, 4, 0xB)
CALLER = UUri(OWN, 0x403AB, 3, 0)
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def run(_directory: Path) -> list[Frame]:
    """The frames of the run."""
    transport = endpoint(OWN, listen=(locator := free_locator(),))
    transport.open()  # first: a session that finds no listener waits 1 s before it tries again
    try:
        with plain_session(connect=[locator]) as session:
            wait_for_link(transport)
            subscriber = session.declare_subscriber("**")
            frames = _single_messages(transport, subscriber) + _batches(transport, subscriber)
    finally:
        transport.close()
    return [*frames, *_filter_keys(), *_token_keys()]


def _ids() -> UuidSource:
    return UuidSource(lambda: 1_700_000_000_000, lambda _: 0x1234_5678)


def _messages() -> dict[str, UMessage]:
    """A message for each type, and for each attribute."""
    ids = _ids()
    asked = request(ids.next(), CALLER, METHOD, b"q", UPayloadFormat.PROTOBUF, ttl=5_000)
    plain = UAttributes(type=UMessageType.PUBLISH, source=TOPIC)
    changed = msgspec.structs.replace
    variants = {
        "no payload": plain,
        "unknown fields": changed(plain, unknown=bytes.fromhex("a2060161")),
        "traceparent": changed(plain, traceparent=TRACEPARENT, ttl=0),
        "own authority left out": changed(plain, source=UUri("", 0x10AB, 3, 0x80CD)),
        "an instance": changed(plain, source=UUri(OWN, 0xFFFE_0001, 0xFE, 0xFFFE)),
        **{f"priority {each.name}": changed(plain, priority=each) for each in UPriority},
        **{f"format {each.name}": changed(plain, payload_format=each) for each in UPayloadFormat},
    }
    secret = changed(asked.attributes, permission_level=2, token="tok", traceparent=TRACEPARENT)
    return {
        "publication": publish(ids.next(), TOPIC, b"\x00\x01\xff", ttl=5_000),
        "notification": notification(ids.next(), TOPIC, APP, b"n"),
        "request": asked,
        "request with token": UMessage(ids.next(), secret, b"s"),
        "response": response(ids.next(), asked, b"r"),
        "error response": error_response(ids.next(), asked, UStatus(UCode.NOT_FOUND, "no such seat")),
        **{name: UMessage(ids.next(), attributes) for name, attributes in variants.items()},
    }


def _frames(name: str, sample: zenoh.Sample) -> list[Frame]:
    assert sample.attachment is not None
    return [
        (f"{name}, key", str(sample.key_expr).encode()),
        (f"{name}, attachment", sample.attachment.to_bytes()),
        (f"{name}, payload", sample.payload.to_bytes()),
        (f"{name}, priority", str(sample.priority).encode()),
    ]


def _single_messages(
    transport: ZenohTransport, subscriber: "zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]"
) -> list[Frame]:
    """Each message twice: its header is encoded first, and then cached."""
    frames = list[Frame]()
    for name, message in _messages().items():
        for again in ("", " again"):
            transport.send(message)
            frames += _frames(name + again, subscriber.recv())
    return frames


def _batches(
    transport: ZenohTransport, subscriber: "zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]"
) -> list[Frame]:
    """Publications and responses in columns, and a mixed batch of one priority: Zenoh orders no other."""
    messages, ids = _messages(), _ids()
    new_ids = [ids.next() for _ in range(9)]
    payloads = [b"%03d" % number for number in range(9)]
    publications = MessageBatch(messages["publication"].attributes, _columns(new_ids), payloads)
    attributes = msgspec.structs.replace(messages["response"].attributes, reqid=None)
    reqids = [UUID(each.msb, each.lsb + 1) for each in new_ids]
    responses = MessageBatch(attributes, _columns(new_ids), payloads, reqids)
    transmit = transport.batch_transmitter(None)
    frames = list[Frame]()
    for name, batch in (
        ("publication in a batch", publications),
        ("response in a batch", responses),
        ("mixed batch", [messages["publication"], messages["notification"]] * 2),
    ):
        assert transmit(batch) == len(batch)
        for number in range(len(batch)):
            frames += _frames(f"{name} {number}", subscriber.recv())
    return frames


def _columns(ids: list[UUID]) -> IdColumns:
    return IdColumns([each.msb for each in ids], [each.lsb for each in ids])


def _filter_keys() -> list[Frame]:
    """The key expressions of listeners."""
    any_instance = UUri(OWN, 0xFFFF_10AB, 3, 0x80CD)
    filters = {
        "everything published": (ANY, None),
        "everything with a sink": (ANY, ANY),
        "one topic": (TOPIC, None),
        "every instance": (any_instance, None),
        "to one entity": (ANY, CALLER),
        "own authority left out": (UUri("", 0x10AB, 3, 0x80CD), METHOD),
    }
    return [
        (f"filter, {name}", filter_key(source, sink, OWN).encode())
        for name, (source, sink) in filters.items()
    ]


def _token_keys() -> list[Frame]:
    """The keys of liveliness tokens of a streamer."""
    router = ("00000000000000a1", "backbone", "hpc.vin1")
    announcements = [
        Announcement(*router, role, subject)
        for role in AnnouncementRole
        for subject in ("hpc.vin1", "*", "[2001::7]")
    ]
    advertisements = [
        TopicAdvertisement(*router, TOPIC, period_ns) for period_ns in (0, 16_666_667, 1_000_000_000)
    ]
    return [
        *((f"token {each.role} {each.subject}", announcement_key(each).encode()) for each in announcements),
        *((f"token of period {each.period_ns}", advertisement_key(each).encode()) for each in advertisements),
    ]
