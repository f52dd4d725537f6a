# SPDX-License-Identifier: Apache-2.0
"""The simulated ECU with methods of the caller."""

import socket

from ustreamer.host.demo.ecu import SimulatedEcu
from ustreamer.transports.someip.protocol.codec import MessageType, ReturnCode, SomeIpMessage, encode, split


def test_an_ecu_numbers_the_sessions_of_each_event_and_answers_its_methods() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as streamer:
        streamer.bind(("127.0.0.1", 0))
        streamer.settimeout(30)
        with SimulatedEcu(streamer.getsockname(), methods={(0x3001, 1): bytes.upper}) as ecu:

            def received() -> SomeIpMessage:
                [message] = split(streamer.recv(65_536))[0]
                return message

            for event in (0x8001, 0x8001, 0x8002):
                ecu.send_event(0x1234, event, b"x")
            events = [received() for _ in range(3)]
            assert [(each.method, each.session) for each in events] == [(0x8001, 1), (0x8001, 2), (0x8002, 1)]
            for method in (1, 2):
                sent_request = SomeIpMessage(0x3001, method, 7, 8, 1, MessageType.REQUEST, payload=b"abc")
                streamer.sendto(encode(sent_request), ecu.address)
            answers = [received() for _ in range(2)]
        assert [(each.method, each.return_code, each.payload) for each in answers] == [
            (1, ReturnCode.E_OK, b"ABC"),
            (2, ReturnCode.E_UNKNOWN_METHOD, b""),
        ]
        assert ecu.calls == 2
