# SPDX-License-Identifier: Apache-2.0
"""What the caller of a SOME/IP service is told when no answer comes: the status of each case. Pure."""

from ustreamer.transports.someip.protocol.correlation import OutboundCall
from ustreamer.uprotocol.ustatus import UCode, UStatus


def ttl_expired(call: OutboundCall) -> UStatus:
    """Its ttl is over (SIP-3)."""
    host, port = call.remote
    return UStatus(
        UCode.DEADLINE_EXCEEDED,
        f"{host}:{port} did not answer within the ttl of {call.request.attributes.ttl} ms",
    )


def streamer_stopped(call: OutboundCall) -> UStatus:
    """We go."""
    host, port = call.remote
    return UStatus(UCode.UNAVAILABLE, f"the streamer was stopped before {host}:{port} answered")


def service_unavailable(call: OutboundCall, reason: str) -> UStatus:
    """The service goes."""
    host, port = call.remote
    return UStatus(UCode.UNAVAILABLE, f"{call.callee} went ({reason}) before {host}:{port} answered")


def connection_closed(call: OutboundCall) -> UStatus:
    """The connection goes that the answer would have come over."""
    host, port = call.remote
    return UStatus(UCode.UNAVAILABLE, f"the connection with {host}:{port} ended before it answered")
