# SPDX-License-Identifier: Apache-2.0
"""Converts `someip-tp` of a vsomeip service: the messages to send in segments. Received segments are always
reassembled.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ustreamer.transports.someip.protocol.tp_config import TpSegmentation

SENT_DIRECTION: Final = {True: "service-to-client", False: "client-to-service"}
"""The direction that the streamer sends in, by whether it offers the service."""
_KEYS: Final = {"max-segment-length": "segment_bytes", "separation-time": "separation_us"}

NoteLeftOut = Callable[[str, str], None]
ParseNumber = Callable[[object], int]


def tp_by_message_id(
    place: str, raw: object, offered: bool, parse_number: ParseNumber, note_left_out: NoteLeftOut
) -> Mapping[int, bool | dict[str, int]]:
    """Method or event id -> value of `tp`. `note_left_out` receives each omission with its place."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        note_left_out(place, "left out: expected an object")
        return {}
    direction = SENT_DIRECTION[offered]
    for key in raw:
        if key in SENT_DIRECTION.values() and key != direction:
            note_left_out(f"{place}.{key}", "received segments are always reassembled")
        elif key != direction:
            note_left_out(f"{place}.{key}", "not known")
    return dict(_entries(f"{place}.{direction}", raw.get(direction, []), parse_number, note_left_out))


def _entries(
    place: str, listed: object, parse_number: ParseNumber, note_left_out: NoteLeftOut
) -> Iterator[tuple[int, bool | dict[str, int]]]:
    if not isinstance(listed, list):
        note_left_out(place, "left out: expected an array")
        return
    for index, each in enumerate(listed):
        where = f"{place}[{index}]"
        try:
            if isinstance(each, dict):
                yield parse_number(each.get("method")), _tp_settings(where, each, parse_number, note_left_out)
            else:
                yield parse_number(each), True
        except ValueError as error:
            note_left_out(where, f"left out: {error}")


def _tp_settings(
    place: str, entry: dict[str, Any], parse_number: ParseNumber, note_left_out: NoteLeftOut
) -> bool | dict[str, int]:
    """The `tp` settings of one entry. Units are the same: the separation time in microseconds, the segment length of
    the payload.
    """
    found: dict[str, int] = {}
    for key, value in entry.items():
        ours = _KEYS.get(key)
        if ours is None:
            if key != "method":
                note_left_out(f"{place}.{key}", "not known")
            continue
        try:
            msgspec.convert({ours: parse_number(value)}, TpSegmentation)
        except ValueError as error:
            note_left_out(f"{place}.{key}", f"left out: {error}")
        else:
            found[ours] = parse_number(value)
    return found or True
