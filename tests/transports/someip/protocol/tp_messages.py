# SPDX-License-Identifier: Apache-2.0
"""The rig of the SOME/IP-TP tests: long messages, their segments, and their reassembly."""

from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, split
from ustreamer.transports.someip.protocol.tp_config import DEFAULT_SEGMENT_BYTES
from ustreamer.transports.someip.protocol.tp_segmenter import split_into_segments


def message(payload: bytes, session: int = 1, **changes: int) -> SomeIpMessage:
    fields = {
        "service": 0x1234,
        "method": 0x8778,
        "client": 0,
        "session": session,
        "interface_version": 1,
        "message_type": int(MessageType.NOTIFICATION),
        "return_code": 0,
        **changes,
    }
    return SomeIpMessage(**fields, payload=payload)


def read(datagram: bytes) -> SomeIpMessage:
    (found,), refused = split(datagram)
    assert refused == []
    return found


def cut(whole: SomeIpMessage, size: int = DEFAULT_SEGMENT_BYTES) -> list[SomeIpMessage]:
    return [read(datagram) for datagram in split_into_segments(whole, size)]
