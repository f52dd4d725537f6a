# SPDX-License-Identifier: Apache-2.0
"""SOME/IP-TP in the configuration: how a long message is cut, and how much is kept of what is not whole."""

from typing import Annotated, Final

from msgspec import Meta, Struct

OFFSET_UNIT: Final = 16
"""Offsets count in units of so many bytes."""
DEFAULT_SEGMENT_BYTES: Final = 1_392
"""Bytes of payload in a segment: with all headers, an Ethernet frame."""
_MAX_SEGMENT_BYTES: Final = 65_472  # the last multiple of 16 that fits into a datagram with both headers
_NS_PER_US: Final = 1_000


class TpSegmentation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How messages that are longer than `segment_bytes` are sent; at least `separation_us` between two segments of one."""

    segment_bytes: Annotated[int, Meta(ge=OFFSET_UNIT, le=_MAX_SEGMENT_BYTES, multiple_of=OFFSET_UNIT)] = (
        DEFAULT_SEGMENT_BYTES
    )
    separation_us: Annotated[int, Meta(ge=0, le=1_000_000)] = 0

    @property
    def separation_ns(self) -> int:
        return self.separation_us * _NS_PER_US


def resolve_segmentation(
    own_setting: bool | TpSegmentation | None, service_setting: bool | TpSegmentation
) -> TpSegmentation | None:
    """What holds for an event or method that says `own` (None: nothing) of a service that says `of_service`."""
    setting = service_setting if own_setting is None else own_setting
    if setting is True and isinstance(service_setting, TpSegmentation):
        return service_setting
    if isinstance(setting, TpSegmentation):
        return setting
    return TpSegmentation() if setting else None


class TpLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is kept of what is not complete. Bytes are what it costs in memory, a bit more than the payload.

    * `message_bytes`: the longest payload; `segments`: pieces of one message.
    * `peer_bytes`, `peer_messages`: of one peer, which is a host, whatever ports it sends from. `total_bytes`, `peers`: in all.
    * `timeout_ms`: from the first segment of a message to its last.
    * `waiting_bytes`, `waiting_messages`: payload of what we send and is not sent whole; these bytes are the payload's.
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
        """Why a message of `message_bytes` could never be whole, which is then a mistake."""
        if self.peer_bytes < self.message_bytes:
            return f"peer_bytes: {self.peer_bytes}, expected at least message_bytes, {self.message_bytes}"
        if self.total_bytes < self.peer_bytes:
            return f"total_bytes: {self.total_bytes}, expected at least peer_bytes, {self.peer_bytes}"
        return None
