# SPDX-License-Identifier: Apache-2.0
"""SOME/IP-TP in the configuration: segment size and pace, and the limits of incomplete messages."""

from typing import Annotated, Final

from msgspec import Meta, Struct

OFFSET_UNIT: Final = 16
"""Unit of an offset in bytes."""
MAX_UNSEGMENTED_BYTES: Final = 1_400
"""A larger payload over UDP needs segments: SOME/IP permits no IP fragments (feat_req_someip_318)."""
# [impl->TP-779]
DEFAULT_SEGMENT_BYTES: Final = 1_392
"""Payload bytes of a segment: with all headers, one Ethernet frame."""
# The last multiple of 16 that fits into a datagram with both headers.
_MAX_SEGMENT_BYTES: Final = 65_472
_NS_PER_US: Final = 1_000


# [impl->TP-773]
class TpSegmentation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Segmentation of messages longer than `segment_bytes`, with at least `separation_us` between two segments of one
    message.
    """

    segment_bytes: Annotated[int, Meta(ge=OFFSET_UNIT, le=_MAX_SEGMENT_BYTES, multiple_of=OFFSET_UNIT)] = (
        DEFAULT_SEGMENT_BYTES
    )
    separation_us: Annotated[int, Meta(ge=0, le=1_000_000)] = 0

    @property
    def separation_ns(self) -> int:
        return self.separation_us * _NS_PER_US


# [impl->TP-788]
def resolve_segmentation(
    own_setting: bool | TpSegmentation | None, service_setting: bool | TpSegmentation
) -> TpSegmentation | None:
    """The segmentation of an event or method: `own_setting` if it has one, else the setting of its service."""
    setting = service_setting if own_setting is None else own_setting
    if setting is True and isinstance(service_setting, TpSegmentation):
        return service_setting
    if isinstance(setting, TpSegmentation):
        return setting
    return TpSegmentation() if setting else None


class TpLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of incomplete messages. Bytes are memory cost, slightly more than the payload.

    * `message_bytes`: the longest payload; `segments`: segments of one message.
    * `peer_bytes`, `peer_messages`: of one peer, which is a host with all its ports. `total_bytes`, `peers`: in
      total.
    * `timeout_ms`: from the first segment of a message to its last.
    * `waiting_bytes`, `waiting_messages`: payload of outgoing messages that are not sent completely.
    """

    message_bytes: Annotated[int, Meta(ge=16, le=1 << 28)] = 131_072
    segments: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    peer_bytes: Annotated[int, Meta(ge=4_096, le=1 << 30)] = 262_144
    peer_messages: Annotated[int, Meta(ge=1, le=65_536)] = 32
    total_bytes: Annotated[int, Meta(ge=4_096, le=1 << 32)] = 786_432
    peers: Annotated[int, Meta(ge=1, le=65_536)] = 256
    timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 5_000
    waiting_bytes: Annotated[int, Meta(ge=16, le=1 << 30)] = 1_048_576
    waiting_messages: Annotated[int, Meta(ge=1, le=65_536)] = 1_024

    def contradiction(self) -> str | None:
        """Why a message of `message_bytes` could never be complete; None if it can."""
        if self.peer_bytes < self.message_bytes:
            return f"peer_bytes: {self.peer_bytes}, expected at least message_bytes, {self.message_bytes}"
        if self.total_bytes < self.peer_bytes:
            return f"total_bytes: {self.total_bytes}, expected at least peer_bytes, {self.peer_bytes}"
        return None
