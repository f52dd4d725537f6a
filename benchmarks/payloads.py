# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.payloads`: cost of decoding and encoding a described payload, relative to handwritten code.

"by hand" is the least code for the same value: one `struct` call and a dict, a list, a decoded slice. It checks only
what `struct` checks. Rounds are short and alternate; the fastest of each counts, so other load has no effect. Exit
code 1 if decoding the struct of five scalars costs LIMIT times the handwritten code.

Other serializers are listed with their ratio to a bare `struct.Struct` for the same struct, measured once on another
machine. Their licences rule out an import here.
"""

import argparse
import json
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from ustreamer_payloads.plugin import PayloadsConfig

MAX_RATIO: Final = 3.0

_CALLS: Final = 1_000
_NAMES: Final = ("speed", "slip", "gear", "odometer", "angle")
_FIVE: Final = struct.Struct(">fHBIh")
_VALUE: Final = dict(zip(_NAMES, (13.5, 7, 2, 123_456, -30), strict=True))
_FLOATS: Final = [number / 4 for number in range(16)]
_TEXT: Final = "twenty characters ok"
_TYPES: Final[dict[str, Any]] = {
    "Five": {
        "kind": "struct",
        "members": [{"name": n, "type": t} for n, t in zip(_NAMES, ("f32", "u16", "u8", "u32", "i16"), strict=True)],
    },
    "Fives": {"kind": "array", "of": "Five"},
    "Floats": {"kind": "array", "of": "f32"},
    "Text": {"kind": "string"},
    "Mixed": {
        "kind": "struct",
        "length": 16,
        "members": [
            {"name": "five", "type": "Five"},
            {"name": "name", "type": "Text"},
            {"name": "on", "type": "bool"},
        ],
    },
}  # fmt: skip

OTHER_LIBRARIES: Final = {"someip-py": 2.53 / 0.075, "someipy": 2.28 / 0.075}
"""Decoding the struct of five scalars, relative to `Struct.unpack`, each in its version of 2026."""


class Case(NamedTuple):
    """One type: a value, and handwritten code to decode and encode its payload."""

    type: str
    value: Any
    read: Callable[[bytes], object]
    write: Callable[[Any], bytes]


def _read_five(payload: bytes) -> object:
    return dict(zip(_NAMES, _FIVE.unpack(payload), strict=True))


def _write_five(value: Any) -> bytes:
    return _FIVE.pack(value["speed"], value["slip"], value["gear"], value["odometer"], value["angle"])


def _read_fives(payload: bytes) -> object:
    return [dict(zip(_NAMES, each, strict=True)) for each in _FIVE.iter_unpack(payload[4:])]


def _write_fives(value: Any) -> bytes:
    return struct.pack(">I", _FIVE.size * len(value)) + b"".join(map(_write_five, value))


def _read_floats(payload: bytes) -> object:
    return list(struct.unpack_from(f">{(len(payload) - 4) // 4}f", payload, 4))


def _write_floats(value: Any) -> bytes:
    return struct.pack(f">I{len(value)}f", 4 * len(value), *value)


def _read_text(payload: bytes) -> str:
    return payload[7:-1].decode()


def _write_text(value: str) -> bytes:
    raw = b"\xef\xbb\xbf" + value.encode() + b"\0"
    return struct.pack(">I", len(raw)) + raw


def _read_mixed(payload: bytes) -> object:
    size = int.from_bytes(payload[15:19], "big")
    return {
        "five": _read_five(payload[2:15]),
        "name": _read_text(payload[15 : 19 + size]),
        "on": payload[19 + size] == 1,
    }


def _write_mixed(value: Any) -> bytes:
    body = _write_five(value["five"]) + _write_text(value["name"]) + bytes([value["on"]])
    return struct.pack(">H", len(body)) + body


CASES: Final = {
    "five scalars": Case("Five", _VALUE, _read_five, _write_five),
    "16 structs of five scalars": Case("Fives", [_VALUE] * 16, _read_fives, _write_fives),
    "16 f32": Case("Floats", _FLOATS, _read_floats, _write_floats),
    "a string of 20": Case("Text", _TEXT, _read_text, _write_text),
    "struct of struct, string, bool": Case(
        "Mixed", {"five": _VALUE, "name": _TEXT, "on": True}, _read_mixed, _write_mixed
    ),
}


def _us(call: Callable[[Any], object], argument: object) -> float:
    began_ns = time.perf_counter_ns()
    for _ in range(_CALLS):
        call(argument)
    return (time.perf_counter_ns() - began_ns) / 1_000 / _CALLS


def _fastest(rounds: int, *calls: tuple[Callable[[Any], object], object]) -> list[float]:
    """Microseconds of each variant, in alternating rounds."""
    return [
        min(times) for times in zip(*([_us(*call) for call in calls] for _ in range(rounds)), strict=True)
    ]


def measured(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds by case; `bare` is `Struct.unpack` of five scalars, without a dict."""
    topics = [{"topic": f"//a/{number:X}/1/8001", "type": type} for number, type in enumerate(_TYPES, 1)]
    config = msgspec.convert({"types": _TYPES, "topics": topics}, PayloadsConfig)
    descriptions = config.descriptions()
    figures: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        description, payload = descriptions[case.type], case.write(case.value)
        assert description.encode(case.value) == payload
        assert description.decode(payload) == case.read(payload) == case.value
        calls = [
            (description.decode, payload),
            (case.read, payload),
            (description.encode, case.value),
            (case.write, case.value),
        ]
        names = ("read", "read_by_hand", "write", "write_by_hand")
        figures[name] = dict(zip(names, _fastest(rounds, *calls), strict=True))
    five = _FIVE.pack(*_VALUE.values())
    figures["five scalars"]["bare"] = _fastest(rounds, (_FIVE.unpack, five))[0]
    return figures


def ratio(figures: dict[str, dict[str, float]]) -> float:
    """Decoding five scalars, relative to handwritten code."""
    five = figures["five scalars"]
    return five["read"] / five["read_by_hand"]


def table(figures: dict[str, dict[str, float]]) -> str:
    lines = [f"{'us':32}{'read':>8}{'by hand':>9}{'ratio':>7}{'write':>8}{'by hand':>9}{'ratio':>7}"]
    for name, each in figures.items():
        read, write = each["read"] / each["read_by_hand"], each["write"] / each["write_by_hand"]
        lines.append(
            f"{name:32}{each['read']:8.2f}{each['read_by_hand']:9.2f}{read:7.2f}"
            f"{each['write']:8.2f}{each['write_by_hand']:9.2f}{write:7.2f}"
        )
    five = figures["five scalars"]
    others = ", ".join(f"{name} {times:.0f}" for name, times in OTHER_LIBRARIES.items())
    lines.append(
        f"five scalars to a dict in times of Struct.unpack: {five['read'] / five['bare']:.1f} (to an object: {others})"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.payloads", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    figures = measured(arguments.rounds)
    print(json.dumps(figures) if arguments.json else table(figures))
    if ratio(figures) < MAX_RATIO:
        return 0
    print(
        f"five scalars cost {ratio(figures):.1f} times what they cost by hand; {MAX_RATIO} is the limit",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
