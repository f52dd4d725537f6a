# SPDX-License-Identifier: Apache-2.0
"""Named byte strings, and the text file that holds them: one line per frame, `<name>: <hex>`."""

from collections.abc import Callable, Iterable
from pathlib import Path

Frame = tuple[str, bytes]
"""A unique name and the bytes."""

Run = Callable[[Path], list[Frame]]
"""A fixed run in an empty directory: no real clock, no random id, no address chosen by the kernel in a frame."""


def format_frames(frames: Iterable[Frame]) -> str:
    """The text of a golden file. Raises ValueError for a name that occurs twice."""
    lines: dict[str, str] = {}
    for name, data in frames:
        if name in lines:
            raise ValueError(f"frame {name!r}: occurs twice, expected a unique name")
        lines[name] = f"{name}: {data.hex()}\n"
    return "".join(lines.values())


def parse_frames(text: str) -> list[Frame]:
    """The inverse of `format_frames`."""
    parted = (line.rpartition(": ") for line in text.splitlines())
    return [(name, bytes.fromhex(data)) for name, _, data in parted]


def numbered(name: str, found: Iterable[bytes]) -> list[Frame]:
    """Frames with a number from 1 behind the name."""
    return [(f"{name} {number}", data) for number, data in enumerate(found, 1)]
