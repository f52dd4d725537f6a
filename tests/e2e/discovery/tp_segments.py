# SPDX-License-Identifier: Apache-2.0
"""A reference SOME/IP-TP: a header of 16 bytes, offset and flag in 4 bytes, segments in multiples of 16 bytes."""

from collections.abc import Iterable

from tests.e2e.rigs import wire

TP_FLAG = 0x20


def tp_segments(
    service: int, method: int, message_type: int, payload: bytes, *, session: int, size: int = 1_392
) -> list[bytes]:
    """Split a message into segments of `size` bytes."""
    parts = [(at, payload[at : at + size]) for at in range(0, len(payload), size)]
    return [
        wire.someip(
            service,
            method,
            message_type | TP_FLAG,
            (at | (at + len(part) < len(payload))).to_bytes(4, "big") + part,
            session=session,
        )
        for at, part in parts
    ]


def tp_reassembled(datagrams: Iterable[bytes]) -> list[bytes]:
    """The payloads of all completely received messages, in the order of their last segments."""
    complete: list[bytes] = []
    open_: dict[bytes, bytes] = {}
    for raw in datagrams:
        if len(raw) < 20 or not raw[14] & TP_FLAG:
            continue
        ids, offset_field = raw[:4] + raw[8:12], int.from_bytes(raw[16:20], "big")
        at = offset_field & 0xFFFF_FFF0
        so_far = open_.get(ids, b"") if at else b""
        if len(so_far) == at:
            open_[ids] = so_far + raw[20:]
            if not offset_field & 1:
                complete.append(open_.pop(ids))
    return complete
