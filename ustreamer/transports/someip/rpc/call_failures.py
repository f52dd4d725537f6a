# SPDX-License-Identifier: Apache-2.0
"""The status that a caller of a SOME/IP service receives instead of a response, one function per cause. Pure."""

from ustreamer.transports.someip.protocol.addresses import format_address
from ustreamer.transports.someip.protocol.correlation import OutboundCall
from ustreamer.uprotocol.ustatus import UCode, UStatus


def ttl_expired(call: OutboundCall) -> UStatus:
    """The ttl of the call has expired (SIP-3)."""
    return UStatus(
        UCode.DEADLINE_EXCEEDED,
        f"{format_address(call.remote)} did not answer within the ttl of {call.request.attributes.ttl} ms",
    )


def streamer_stopped(call: OutboundCall) -> UStatus:
    """This streamer stops."""
    return UStatus(
        UCode.UNAVAILABLE, f"the streamer was stopped before {format_address(call.remote)} answered"
    )


def service_unavailable(call: OutboundCall, reason: str) -> UStatus:
    """The service is gone."""
    return UStatus(
        UCode.UNAVAILABLE, f"{call.callee} went ({reason}) before {format_address(call.remote)} answered"
    )


def connection_closed(call: OutboundCall) -> UStatus:
    """The connection that the response would use is closed."""
    return UStatus(
        UCode.UNAVAILABLE, f"the connection with {format_address(call.remote)} ended before it answered"
    )
