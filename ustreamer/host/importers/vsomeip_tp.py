# SPDX-License-Identifier: Apache-2.0
"""`someip-tp` of a vsomeip service: what is sent in segments, and how. What is received in segments, we always read."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ustreamer.transports.someip.protocol.tp_config import Segmenting

SENT: Final = {True: "service-to-client", False: "client-to-service"}
"""The direction in which we send, by whether the service is offered by us."""
_KEYS: Final = {"max-segment-length": "segment_bytes", "separation-time": "separation_us"}

Leave = Callable[[str, str], None]
Number = Callable[[object], int]


def segmented(
    place: str, raw: object, offered: bool, number: Number, leave: Leave
) -> Mapping[int, bool | dict[str, int]]:
    """Method or event id -> `tp` in our words. What cannot be carried over is told to `leave`, with its place."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        leave(place, "left out: expected an object")
        return {}
    direction = SENT[offered]
    for key in raw:
        if key in SENT.values() and key != direction:
            leave(f"{place}.{key}", "what comes in segments is always read")
        elif key != direction:
            leave(f"{place}.{key}", "not known")
    return dict(_entries(f"{place}.{direction}", raw.get(direction, []), number, leave))


def _entries(
    place: str, listed: object, number: Number, leave: Leave
) -> Iterator[tuple[int, bool | dict[str, int]]]:
    if not isinstance(listed, list):
        leave(place, "left out: expected an array")
        return
    for index, each in enumerate(listed):
        where = f"{place}[{index}]"
        try:
            if isinstance(each, dict):
                yield number(each.get("method")), _how(where, each, number, leave)
            else:
                yield number(each), True
        except ValueError as error:
            leave(where, f"left out: {error}")


def _how(place: str, entry: dict[str, Any], number: Number, leave: Leave) -> bool | dict[str, int]:
    """vsomeip's separation time is in microseconds, and its segment length is that of the payload, as ours."""
    found: dict[str, int] = {}
    for key, value in entry.items():
        ours = _KEYS.get(key)
        if ours is None:
            if key != "method":
                leave(f"{place}.{key}", "not known")
            continue
        try:
            msgspec.convert({ours: number(value)}, Segmenting)
        except ValueError as error:
            leave(f"{place}.{key}", f"left out: {error}")
        else:
            found[ours] = number(value)
    return found or True
