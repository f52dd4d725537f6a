# SPDX-License-Identifier: Apache-2.0
"""Reason codes of MQTT 5 as codes of uProtocol, as up-transport-mqtt5-rust maps them."""

from typing import Final

from ustreamer.uprotocol.ustatus import UCode

_CODES: Final = {
    0x84: UCode.UNIMPLEMENTED,  # unsupported protocol version
    0x85: UCode.INVALID_ARGUMENT,  # client identifier not valid
    0x86: UCode.UNAUTHENTICATED,  # bad user name or password
    0x87: UCode.PERMISSION_DENIED,  # not authorized
    0x88: UCode.UNAVAILABLE,  # server unavailable
    0x89: UCode.UNAVAILABLE,  # server busy
    0x8A: UCode.PERMISSION_DENIED,  # banned
    0x8C: UCode.UNAUTHENTICATED,  # bad authentication method
    0x95: UCode.RESOURCE_EXHAUSTED,  # packet too large
    0x96: UCode.RESOURCE_EXHAUSTED,  # message rate too high
    0x97: UCode.RESOURCE_EXHAUSTED,  # quota exceeded
    0x9E: UCode.UNIMPLEMENTED,  # shared subscriptions not supported
    0x9F: UCode.RESOURCE_EXHAUSTED,  # connection rate exceeded
    0xA0: UCode.RESOURCE_EXHAUSTED,  # maximum connect time
    0xA2: UCode.UNIMPLEMENTED,  # wildcard subscriptions not supported
}
FIRST_FAILURE: Final = 0x80
ENDS_CONNECTIONS: Final = 0x80
"""Unspecified error: for a message with which the broker ended each connection."""
TOPIC_REFUSALS: Final = frozenset({0x87, 0x90})  # not authorized, topic name invalid
"""In a PUBACK: the broker will refuse other messages of this topic, too."""
PASSING_ENDS: Final = frozenset(
    {
        0x88,  # server unavailable
        0x89,  # server busy
        0x8B,  # server shutting down
        0x8D,  # keep alive timeout
        0x8E,  # session taken over
        0x96,  # message rate too high
        0x97,  # quota exceeded
        0x98,  # administrative action
        0x9C,  # use another server
        0x9D,  # server moved
        0x9F,  # connection rate exceeded
        0xA0,  # maximum connect time
    }
)
"""Why a connection ended: the broker may accept the same messages on the next one."""
PASSING: Final = frozenset({UCode.UNAVAILABLE, UCode.RESOURCE_EXHAUSTED})
"""A start goes on after these: the broker may accept the connection later."""


def ucode_of(reason_code: int) -> UCode:
    """The code of a failure; INTERNAL for reasons without an equal."""
    return _CODES.get(reason_code, UCode.INTERNAL)
