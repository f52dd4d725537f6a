# SPDX-License-Identifier: Apache-2.0
"""`someip-tp` of a vsomeip service: what is sent in segments, and how. What is received in segments, we always read."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ustreamer.transports.someip.protocol.tp_config import TpSegmentation

SENT_DIRECTION: Final = {True: "service-to-client", False: "client-to-service"}
"""The direction in which we send, by whether the service is offered by us."""
_KEYS: Final = {"max-segment-length": "segment_bytes", "separation-time": "separation_us"}

NoteLeftOut = Callable[[str, str], None]
ParseNumber = Callable[[object], int]


def tp_by_message_id(
    place: str, raw: object, offered: bool, parse_number: ParseNumber, note_left_out: NoteLeftOut
) -> Mapping[int, bool | dict[str, int]]:
    """Method or event id -> `tp` in our words. What cannot be carried over is told to `leave`, with its place."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        note_left_out(place, "left out: expected an object")
        return {}
    direction = SENT_DIRECTION[offered]
    for key in raw:
        if key in SENT_DIRECTION.values() and key != direction:
            note_left_out(f"{place}.{key}", "what comes in segments is always read")
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
    """vsomeip's separation time is in microseconds, and its segment length is that of the payload, as ours."""
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
