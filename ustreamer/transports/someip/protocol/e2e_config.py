# SPDX-License-Identifier: Apache-2.0
"""E2E protection of an event in the configuration: `e2e = { profile = "P04", data_id = 0x2D }`."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

E2eProfile = Literal["P01", "P04", "P05", "P06", "P07", "P11"]
DataIdMode = Literal["both", "alternating", "low", "nibble"]
OnError = Literal["drop", "pass", "mark"]

_DATA_ID_BITS: Final = {"P01": 16, "P04": 32, "P05": 16, "P06": 16, "P07": 32, "P11": 16}
COUNTERS: Final = {"P01": 15, "P04": 1 << 16, "P05": 1 << 8, "P06": 1 << 8, "P07": 1 << 32, "P11": 15}
"""The number of values of the counter."""
_MODES: Final = {"P01": ("both", "alternating", "low", "nibble"), "P11": ("both", "nibble")}


# [impl->RPC-102]
class E2eConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The E2E protection of an event. An event of the network is checked, an offered one is protected.

    * `data_id`: as agreed with the ECU. P01 and P11 have a `data_id_mode`.
    * `offset`: bytes of the payload before the E2E header.
    * `covers_header`: whether the CRC and the length cover the last 8 bytes of the SOME/IP header, from the request id
      on. The default is False for P01 and P11, as of vsomeip, else True.
    * `strip`: the payload of the message has no E2E header: it is removed on the way in and inserted on the way out.
    * `max_delta_counter`: a larger step of the counter is a wrong sequence. The default accepts every step.
    * `on_error`: what happens to a received event that fails.
    * `crc_byte_order`: of P05 only. AUTOSAR sends it little-endian, vsomeip big-endian.
    """

    profile: Annotated[
        E2eProfile, Meta(description='that of the sender: "P01", "P04", "P05", "P06", "P07" or "P11"')
    ]
    data_id: Annotated[
        int, Meta(ge=0, le=0xFFFF_FFFF, description="that of the event, as agreed with the ECU")
    ]
    data_id_mode: DataIdMode = "both"
    offset: Annotated[int, Meta(ge=0, le=0xFFFF)] = 0
    covers_header: bool | None = None
    strip: bool = False
    max_delta_counter: Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)] | None = None
    on_error: OnError = "drop"
    crc_byte_order: Literal["little", "big"] = "little"

    def __post_init__(self) -> None:
        bits = _DATA_ID_BITS[self.profile]
        if self.data_id >> bits:
            raise ValueError(f"data_id: {self.data_id:#x}, expected at most {bits} bits for {self.profile}")
        modes = _MODES.get(self.profile, ("both",))
        if self.data_id_mode not in modes:
            expected = " or ".join(modes) if self.profile in _MODES else "none: it is for P01 and P11"
            raise ValueError(f"data_id_mode: {self.data_id_mode!r}, expected {expected}")
        if self.crc_byte_order == "big" and self.profile != "P05":
            raise ValueError("crc_byte_order: only for P05; the other profiles have one order")

    @property
    def keys_of_a_check(self) -> list[str]:
        """The keys with a value of their own that an event on the way out does not need."""
        values = {
            "on_error": self.on_error != "drop",
            "max_delta_counter": self.max_delta_counter is not None,
        }
        return [key for key, is_set in values.items() if is_set]

    @property
    def max_delta(self) -> int:
        """The largest step of the counter: it wraps at the number of its values."""
        return COUNTERS[self.profile] - 1

    @property
    def includes_header(self) -> bool:
        """`covers_header` or its default."""
        return self.profile not in _MODES if self.covers_header is None else self.covers_header
