# SPDX-License-Identifier: Apache-2.0
"""The attacker's bytes are what they claim to be: a frame that is malformed by mistake would attack nothing."""

import json
import socket
from threading import Thread

import pytest

from ustreamer.host.attack.clients import someip_host, zenoh_node
from ustreamer.host.attack.clients.wamp_socket import HELLO, WELCOME, WampSocket
from ustreamer.host.attack.target import WampPlace
from ustreamer.transports.someip.protocol.codec import SomeIpMessage, split
from ustreamer.transports.someip.sd.codec import decode_sd_message
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.uprotocol.uattributes import UAttributes, check_attributes
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

SOURCE, SINK = UUri("cloud", 0x1_0002, 1, 0x8001), UUri("hpc", 3, 1, 0)


def test_a_frame_is_valid_unless_a_field_is_overridden() -> None:
    datagram = someip_host.frame(0x1234, 0x8001, someip_host.NOTIFICATION, b"x", session=7, major=2)
    assert split(datagram) == ([SomeIpMessage(0x1234, 0x8001, 0, 7, 2, 2, 0, b"x")], [])
    [refused] = split(someip_host.frame(1, 1, 0, length=7))[1]
    assert refused.reason == "length_too_small"


def test_a_segment_has_its_offset_and_its_flag() -> None:
    [message], _ = split(someip_host.segment(1, 1, 0, 1_392, bytes(16), more=True, session=3))
    assert (message.is_tp, message.payload[:4]) == (True, (1_392 | 1).to_bytes(4, "big"))


def test_a_message_of_service_discovery_is_valid() -> None:
    entry = someip_host.sd_entry(someip_host.OFFER, 0x1234, 3, 9, instance=2, major=1)
    raw = someip_host.sd_message(entry, someip_host.endpoint_option(("127.0.0.9", 30_000)), session=5)
    [message], _ = split(raw)
    found, refused = decode_sd_message(message)
    [offer] = found.entries
    assert refused == []
    assert (offer.service, offer.instance, offer.ttl, len(offer.options)) == (0x1234, 2, 3, 1)


@pytest.mark.parametrize(
    "attributes",
    [
        zenoh_node.publication(SOURCE),
        zenoh_node.notification_attributes(SOURCE, SINK),
        zenoh_node.request_attributes(SINK, UUri("cloud", 2, 1, 1)),
        zenoh_node.response_attributes(UUri("cloud", 2, 1, 1), SINK, UUID(0x7000, 2 << 62)),
    ],
)
def test_messages_of_the_zenoh_node_are_valid_on_their_keys(attributes: UAttributes) -> None:
    check_attributes(attributes, strict=True)
    assert zenoh_node.key_of(attributes) == message_key(attributes.source, attributes.sink, "")


def test_the_wamp_client_joins_and_skips_events() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            seen.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            frame = connection.recv(65_536)
            seen.append(frame[6:] if frame[1] & 0x7F < 126 else frame[8:])
            for message in ([36, 1, 1, {}], [WELCOME, 9, {"x": "y" * 200}]):
                data = json.dumps(message).encode()
                size = bytes((len(data),)) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
                connection.sendall(b"\x81" + size + data)

    with server:
        thread = Thread(target=serve)
        thread.start()
        place = WampPlace("127.0.0.1", server.getsockname()[1], "/ws", True, "realm1", "", True)
        with WampSocket(place, "127.0.0.1") as client:
            assert client.join(authid="a")[:2] == [WELCOME, 9]
            with pytest.raises(ConnectionError):
                client.receive()
        thread.join()
    assert seen[0].startswith(b"GET /ws HTTP/1.1\r\n")
    assert json.loads(seen[1])[:2] == [HELLO, "realm1"]
