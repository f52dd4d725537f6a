# SPDX-License-Identifier: Apache-2.0
"""Tools send into the networks of a configuration as its nodes do. Replays into a real streamer are end-to-end tests."""

import re
import socket
from pathlib import Path

import pytest

from ustreamer.host.runtime.network_sender import NetworkSender
from ustreamer.transports.someip.protocol.addresses import format_address, is_ipv6
from ustreamer.transports.someip.protocol.codec import MessageType, decode
from ustreamer.uprotocol import UCode, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.umessage import publish

CONFIG = """
authority = "hpc"
state_dir = "state"

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "{host}"
port = {port}
sd = false

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "{ecu}"
"""
IDS = UuidSource(lambda: 1_700_000_000_000)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_event_is_sent_from_the_address_of_its_ecu(host: str, tmp_path: Path) -> None:
    family = socket.AF_INET6 if is_ipv6(host) else socket.AF_INET
    streamer, ecu = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
    with streamer, ecu:
        for each in (streamer, ecu):
            try:
                each.bind((host, 0))
            except OSError as error:
                pytest.skip(f"no {host} on this machine: {error.strerror}")
            each.settimeout(30)
        port, remote = streamer.getsockname()[1], format_address(ecu.getsockname()[:2])
        file = tmp_path / "streamer.toml"
        file.write_text(CONFIG.format(host=host, port=port, ecu=remote))
        event = publish(IDS.next(), UUri("chassis", 0x1234, 1, 0x8001), b"\x01\x02")
        with NetworkSender(file) as networks:
            assert networks.authority == "hpc"
            with pytest.raises(UStatusError, match=re.escape(f"the address {remote} of the ECU")) as raised:
                networks.publish(event)
            assert raised.value.code is UCode.UNAVAILABLE
            address = ecu.getsockname()
            ecu.close()
            networks.publish(event)
            datagram, sender = streamer.recvfrom(65_536)
            message = decode(datagram)[0]
            assert sender == address
            assert (message.service, message.method, message.payload) == (0x1234, 0x8001, b"\x01\x02")
            assert message.message_type == MessageType.NOTIFICATION
            for topic in (UUri("chassis", 0x9999, 1, 0x8001), UUri("cloud", 1, 1, 0x8001)):
                with pytest.raises(UStatusError, match="its node cannot be replaced"):
                    networks.publish(publish(IDS.next(), topic))
            with pytest.raises(UStatusError, match="its node cannot be replaced"):
                networks.call(UUri("chassis", 7, 1, 0), UUri("hpc", 0, 3, 1), b"")
