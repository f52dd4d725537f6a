# SPDX-License-Identifier: Apache-2.0
"""Tools send into the networks of a configuration as its nodes do. Replays into a real streamer are end-to-end tests."""

import socket
from pathlib import Path

import pytest

from ustreamer.host.runtime.network_sender import NetworkSender
from ustreamer.transports.someip.protocol.codec import MessageType, decode
from ustreamer.uprotocol import UCode, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.umessage import publish

CONFIG = """
authority = "hpc"
state_dir = "state"

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {port}
sd = false

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{ecu}"
"""
IDS = UuidSource(lambda: 1_700_000_000_000)


def test_an_event_is_sent_from_the_address_of_its_ecu(tmp_path: Path) -> None:
    streamer, ecu = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with streamer, ecu:
        for each in (streamer, ecu):
            each.bind(("127.0.0.1", 0))
            each.settimeout(30)
        port, remote = streamer.getsockname()[1], ecu.getsockname()[1]
        file = tmp_path / "streamer.toml"
        file.write_text(CONFIG.format(port=port, ecu=remote))
        event = publish(IDS.next(), UUri("chassis", 0x1234, 1, 0x8001), b"\x01\x02")
        with NetworkSender(file) as networks:
            assert networks.authority == "hpc"
            with pytest.raises(UStatusError, match=f"the address 127.0.0.1:{remote} of the ECU") as raised:
                networks.publish(event)
            assert raised.value.code is UCode.UNAVAILABLE
            ecu.close()
            networks.publish(event)
            datagram, sender = streamer.recvfrom(65_536)
            message = decode(datagram)[0]
            assert sender == ("127.0.0.1", remote)
            assert (message.service, message.method, message.payload) == (0x1234, 0x8001, b"\x01\x02")
            assert message.message_type == MessageType.NOTIFICATION
            for topic in (UUri("chassis", 0x9999, 1, 0x8001), UUri("cloud", 1, 1, 0x8001)):
                with pytest.raises(UStatusError, match="its node cannot be replaced"):
                    networks.publish(publish(IDS.next(), topic))
            with pytest.raises(UStatusError, match="its node cannot be replaced"):
                networks.call(UUri("chassis", 7, 1, 0), UUri("hpc", 0, 3, 1), b"")
