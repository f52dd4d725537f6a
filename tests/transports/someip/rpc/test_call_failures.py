# SPDX-License-Identifier: Apache-2.0
"""The failure that a caller gets without a response: a UCode, and the address that did not answer."""

import pytest

from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.correlation import OutboundCall
from ustreamer.transports.someip.rpc.call_failures import (
    connection_closed,
    service_unavailable,
    streamer_stopped,
    ttl_expired,
)
from ustreamer.uprotocol.umessage import request
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

APP, METHOD = UUri("device1", 0x3AB, 1, 0), UUri("chassis", 0xCD, 4, 0xB)


def call(remote: Address) -> OutboundCall:
    return OutboundCall(request(UuidSource(lambda: 0).next(), APP, METHOD, ttl=70), 0xCD, 0xB, remote)


UDP, TCP = call(("10.0.0.2", 30501)), call(TcpAddress("10.0.0.2", 30501))


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (ttl_expired(UDP), UCode.DEADLINE_EXCEEDED, "10.0.0.2:30501 did not answer within the ttl of 70 ms"),
        (streamer_stopped(UDP), UCode.UNAVAILABLE, "the streamer was stopped before 10.0.0.2:30501 answered"),
        (
            service_unavailable(UDP, "stopped"),
            UCode.UNAVAILABLE,
            "up://chassis/CD/4/0 went (stopped) before 10.0.0.2:30501 answered",
        ),
        (
            connection_closed(TCP),
            UCode.UNAVAILABLE,
            "the connection with 10.0.0.2:30501 ended before it answered",
        ),
    ],
)
def test_the_failure_names_the_service_address_and_the_cause(status: UStatus, code: UCode, text: str) -> None:
    assert status == UStatus(code, text)
