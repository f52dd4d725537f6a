# SPDX-License-Identifier: Apache-2.0
"""What the caller of a SOME/IP service is told when no answer comes: the status of each case. Pure."""

from ustreamer.transports.someip.protocol.correlation import Call
from ustreamer.uprotocol.ustatus import UCode, UStatus


def no_answer(call: Call) -> UStatus:
    """Its ttl is over (SIP-3)."""
    host, port = call.remote
    return UStatus(
        UCode.DEADLINE_EXCEEDED,
        f"{host}:{port} did not answer within the ttl of {call.request.attributes.ttl} ms",
    )


def not_read(call: Call) -> UStatus:
    """We go."""
    host, port = call.remote
    return UStatus(UCode.UNAVAILABLE, f"the streamer was stopped before {host}:{port} answered")


def service_gone(call: Call, why: str) -> UStatus:
    """The service goes."""
    host, port = call.remote
    return UStatus(UCode.UNAVAILABLE, f"{call.callee} went ({why}) before {host}:{port} answered")


def connection_gone(call: Call) -> UStatus:
    """The connection goes that the answer would have come over."""
    host, port = call.remote
    return UStatus(UCode.UNAVAILABLE, f"the connection with {host}:{port} ended before it answered")
