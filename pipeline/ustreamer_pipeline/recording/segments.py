# SPDX-License-Identifier: Apache-2.0
"""One recording: bytes in, records out. Only whole blocks are valid (docs/recordings.md, "Reading"). Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.recording.batch_records import expand_batches
from ustreamer_pipeline.recording.layout import (
    ANCHOR,
    BLOCK_MAGIC,
    BLOCK_RECORDS,
    BLOCK_TYPE,
    CELL,
    END,
    HEADER,
    HEADER_TYPE,
    LAYOUTS,
    MAGIC,
    STRING,
    STRING_BYTES,
    STRINGS_MAX,
    TARGET,
    TYPES,
    Ints,
    Records,
)

RAW_MAX: Final = 4_096
"""Maximum damaged bytes per row of the quarantine; bronze has all bytes."""

NO_HEADER: Final = "bytes of a header, or zeros"
"""The reason of a file that a power cut left without a header."""

MAX_WALL_MS: Final = (1 << 47) - 1
"""The wall clock of a recording, in ms since 1970: up to the year 6429, so that each time has a date."""

_LARGEST: Final = (1 << 63) - 1
_MOST: Final = {"run": _LARGEST, "first_seq": _LARGEST, "first_change": _LARGEST, "wall_ms": MAX_WALL_MS}
_NAME: Final = re.compile(r"([0-9a-f]{16})-(\d{6,})\.useg(\.open)?")
_US_PER_MS: Final = 1_000


class RecordingRefused(ValueError):
    """No part of the file is usable. The message has the found and the expected value."""


@dataclass(frozen=True)
class Header:
    gateway: str
    run: int
    number: int
    layout: int
    mono_ns: int
    wall_ms: int
    first_seq: int
    first_change: int = 0


class _Moment(NamedTuple):
    """One moment on both clocks."""

    us: int
    ns: int

    @classmethod
    def of_block(cls, block: Any) -> "_Moment":
        return cls(clipped_ms(int(block["wall_ms"])) * _US_PER_MS, int(block["mono_ns"]))


@dataclass(frozen=True)
class Fault:
    """Unusable bytes: their offset, the reason, the first of them, and the rows they held as far as known."""

    offset: int
    reason: str
    raw: bytes
    first_seq: int = 0
    rows: int = 0
    from_us: int = 0
    until_us: int = 0
    from_ns: int = 0
    until_ns: int = 0


@dataclass(frozen=True)
class Segment:
    """The valid part of a recording.

    `cells` are its records in order, 96 bytes each, with BATCH records expanded; `offsets` are their positions.
    `length` is the end of the last whole block. `torn`: bytes without a whole block follow, as after a kill or in an
    incomplete copy.
    """

    header: Header
    cells: Records
    offsets: Ints
    length: int
    next_seq: int
    torn: bool
    faults: tuple[Fault, ...] = field(default=())

    @cached_property
    def kinds(self) -> npt.NDArray[np.uint8]:
        return self.cells.view(np.uint8).reshape(-1, CELL)[:, 0] if len(self.cells) else np.zeros(0, np.uint8)

    def positions_of(self, kind: int) -> Ints:
        """Positions in `cells` of the records of a kind."""
        return np.flatnonzero(self.kinds == kind)

    def records(self, kind: int) -> Records:
        """The records of a kind, in order, with their fields."""
        return self.cells[self.positions_of(kind)].view(TYPES[kind])

    @cached_property
    def strings(self) -> dict[int, str]:
        """Text by id. Incomplete and non-UTF-8 texts are left out; rows that use them go to quarantine."""
        return dict(_decode_strings(self.cells, self.positions_of(STRING)))

    @cached_property
    def targets(self) -> dict[int, Any]:
        """The TARGET record by its number."""
        return {int(record["target"]): record for record in self.records(TARGET)}

    @cached_property
    def end(self) -> Any | None:
        """The END record; None in a segment without a regular end."""
        ends = self.records(END)
        return ends[-1] if len(ends) else None

    @cached_property
    def _anchors(self) -> tuple[Ints, Ints]:
        """(mono_ns, wall_us) in order of mono_ns; the header in a file without ANCHOR."""
        anchors = self.records(ANCHOR)
        if not len(anchors):
            return np.array([self.header.mono_ns]), np.array([self.header.wall_ms * _US_PER_MS])
        order = np.argsort(anchors["mono_ns"], kind="stable")
        wall_ms = np.clip(anchors["wall_ms"][order], 0, MAX_WALL_MS)
        return anchors["mono_ns"][order], wall_ms * _US_PER_MS

    def wall_us(self, mono_ns: Ints) -> Ints:
        """Monotonic readings of this run as UTC in microseconds, by the last anchor at or before each."""
        mono, wall = self._anchors
        at = np.maximum(np.searchsorted(mono, mono_ns, side="right") - 1, 0)
        there: Ints = wall[at] + (mono_ns - mono[at]) // 1_000
        return there


def clipped_ms(wall_ms: int) -> int:
    """A time of the wall clock, moved into the range of dates."""
    return min(max(wall_ms, 0), MAX_WALL_MS)


def parse_name(name: str) -> tuple[int, int]:
    """Run and number from a file name. Raises RecordingRefused."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise RecordingRefused(
            f"named {name!r}: expected <run, 16 hex digits>-<number, 6 digits>.useg, or .useg.open"
        )
    return int(match[1], 16), int(match[2])


def read_header(buffer: bytes | memoryview, name: str) -> Header:
    """Header of a file. Raises RecordingRefused for a damaged header, an unknown layout and a wrong file name."""
    run, number = parse_name(name)
    if len(buffer) < HEADER or not any(buffer[:HEADER]):
        raise RecordingRefused(f"{min(len(buffer), HEADER)} {NO_HEADER}: expected {HEADER}")
    head = np.frombuffer(buffer, HEADER_TYPE, 1)[0]
    if bytes(head["magic"]) != MAGIC:
        raise RecordingRefused(f"begins with {bytes(head['magic'])!r}: expected {MAGIC!r}")
    if int(head["layout"]) not in LAYOUTS:
        known = ", ".join(map(str, sorted(LAYOUTS)))
        raise RecordingRefused(f"layout {head['layout']}: this version reads {known}")
    raw = bytearray(buffer[:HEADER])
    raw[28:32] = bytes(4)
    if (
        crc32(raw) != head["crc"]
        or (head["record"], head["header"]) != (CELL, HEADER)
        or not 0 < head["length"] <= 192
    ):
        raise RecordingRefused("the header does not match its checksum")
    try:
        gateway = bytes(head["authority"])[: head["length"]].decode()
    except UnicodeDecodeError as error:
        raise RecordingRefused(f"the authority is not UTF-8: {error}") from error
    for field_name, most in _MOST.items():
        if not 0 <= head[field_name] <= most:
            raise RecordingRefused(f"{field_name} {head[field_name]}: expected 0 to {most}")
    if (run, number) != (int(head["run"]), int(head["number"])):
        raise RecordingRefused(
            f"named run {run:016x} number {number}: the header says {head['run']:016x}, {head['number']}"
        )
    return Header(
        gateway,
        run,
        number,
        int(head["layout"]),
        int(head["mono_ns"]),
        int(head["wall_ms"]),
        int(head["first_seq"]),
        int(head["first_change"]),
    )


def read_segment(buffer: bytes | memoryview, name: str) -> Segment:
    """The valid part of a file. Raises RecordingRefused if there is none."""
    header = read_header(buffer, name)
    cells = np.frombuffer(buffer, np.dtype(f"V{CELL}"), (len(buffer) - HEADER) // CELL, HEADER)
    heads = cells.view(BLOCK_TYPE)
    good = np.zeros(len(cells), np.bool_)
    faults: list[Fault] = []
    at, last, next_seq, written = (
        0,
        -1,
        header.first_seq,
        _Moment(header.wall_ms * _US_PER_MS, header.mono_ns),
    )
    while at < len(cells):
        block = _block(buffer, heads, at, header, last)
        found = at
        if block is None:
            following = _next_block(buffer, heads, at, header, last)
            if following is None:
                break
            found, block = following
        if found > at or int(block["number"]) != last + 1:
            rows = max(int(block["first_seq"]) - next_seq, 0)
            between = written, _Moment.of_block(block)
            faults.append(_fault(buffer, at, found, last, int(block["number"]), next_seq, rows, between))
        good[found + 1 : found + 1 + int(block["count"])] = True
        last, next_seq = int(block["number"]), int(block["next_seq"])
        written = _Moment.of_block(block)
        at = found + 1 + int(block["count"])
    where = np.flatnonzero(good)
    length = HEADER + CELL * at
    return Segment(
        header,
        *expand_batches(cells[where], HEADER + CELL * where),
        length,
        next_seq,
        torn=any(buffer[length:]) if len(buffer) - length < CELL else bool(np.any(_bytes(buffer, length))),
        faults=tuple(faults),
    )


def _bytes(buffer: bytes | memoryview, start: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8, len(buffer) - start, start)


def _block(buffer: bytes | memoryview, heads: Records, at: int, header: Header, last: int) -> Any | None:
    """The whole block at a cell, with a number above `last`; None if there is none."""
    head = heads[at]
    count = int(head["count"])
    if head["magic"] != BLOCK_MAGIC or not 0 < count <= BLOCK_RECORDS or at + 1 + count > len(heads):
        return None
    start = HEADER + CELL * at
    raw = bytearray(buffer[start : start + CELL])
    raw[4:8] = bytes(4)
    if crc32(raw) != head["crc"] or int(head["number"]) <= last:
        return None
    if (int(head["run"]), int(head["segment"])) != (header.run, header.number):
        return None
    records = memoryview(buffer)[start + CELL : start + CELL * (count + 1)]
    return head if crc32(records) == head["records_crc"] else None


def _next_block(
    buffer: bytes | memoryview, heads: Records, at: int, header: Header, last: int
) -> tuple[int, Any] | None:
    """The first whole block after a damaged cell: every cell with the magic number is checked."""
    for candidate in at + 1 + np.flatnonzero(heads["magic"][at + 1 :] == BLOCK_MAGIC):
        block = _block(buffer, heads, int(candidate), header, last)
        if block is not None:
            return int(candidate), block
    return None


def _fault(
    buffer: bytes | memoryview,
    at: int,
    found: int,
    last: int,
    number: int,
    first_seq: int,
    rows: int,
    between: tuple[_Moment, _Moment],
) -> Fault:
    start, stop = HEADER + CELL * at, HEADER + CELL * found
    reason = f"{stop - start} bytes between block {last} and block {number} are no whole block"
    raw = bytes(buffer[start : min(stop, start + RAW_MAX)])
    begins, ends = between
    return Fault(start, reason, raw, first_seq, rows, begins.us, ends.us, begins.ns, ends.ns)


def _decode_strings(cells: Records, where: Ints) -> Iterator[tuple[int, str]]:
    records = cells.view(TYPES[STRING])
    for position in where:
        head = records[position]
        if head["part"] or not 0 < head["id"] <= STRINGS_MAX:
            continue
        length = int(head["length"])
        parts = records[position : position + max(-(-length // STRING_BYTES), 1)]
        whole = b"".join(part.tobytes() for part in parts["bytes"])[:length]
        in_order = np.array_equal(parts["part"], np.arange(len(parts)))
        if (
            len(whole) == length
            and in_order
            and np.all(parts["id"] == head["id"])
            and np.all(parts["kind"] == STRING)
        ):
            try:
                yield int(head["id"]), whole.decode()
            except UnicodeDecodeError:
                continue
