# SPDX-License-Identifier: Apache-2.0
"""The bytes of a recording as numpy types, written from docs/recordings.md and not from the recorder."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]

LAYOUT: Final = 2
"""The layout that this package writes: 2 has BATCH records, 1 had none."""
LAYOUTS: Final = frozenset({1, 2})
"""The layouts that this version reads; all others are refused. An incompatible change gets a new number."""

CELL: Final = 96
HEADER: Final = 288
BLOCK_RECORDS: Final = 2_048
MAGIC: Final = b"USEG\r\n\x1a\n"
BLOCK_MAGIC: Final = int.from_bytes(b"UBLK", "little")
SUFFIXES: Final = (".useg", ".useg.open")

STRING, TARGET, DELIVERY, ANSWER, SUBSCRIPTION, DEAD_LETTER = range(1, 7)
PAYLOAD, ANCHOR, GAP, CONFIG, COUNTERS, END, BATCH, SAMPLES, SAMPLES_PART = range(7, 16)
"""Kinds: the first byte of a record."""

HELD: Final = 1
HAS_TTL: Final = 2
TIMES: Final = 4
SIZES: Final = 8
"""Flags; the last two exist in BATCH records only."""
MAX_BATCH_ROWS: Final = 1_024
PAYLOAD_KEPT: Final = 1
NO_CODE: Final = 255
NO_LIMIT_OF_ATTEMPTS: Final = 65_535
STRING_BYTES: Final = 84
STRINGS_MAX: Final = 65_536
PAYLOAD_BYTES: Final = 80
GAP_CAUSES: Final = ("OVERRUN", "DISK", "UNFIT")
ENDS: Final = ("CONTINUED", "STOPPED")

Fields = Mapping[str, tuple[int, Any]]


def _record(size: int, fields: Fields) -> np.dtype[np.void]:
    """A record of `size` bytes with named fields at their offsets."""
    return np.dtype(
        {
            "names": list(fields),
            "offsets": [offset for offset, _ in fields.values()],
            "formats": [form for _, form in fields.values()],
            "itemsize": size,
        }
    )


HEADER_TYPE: Final = _record(
    HEADER,
    {
        "magic": (0, "V8"),
        "layout": (8, "<u2"),
        "record": (10, "<u2"),
        "header": (12, "<u2"),
        "length": (14, "<u2"),
        "run": (16, "<u8"),
        "number": (24, "<u4"),
        "crc": (28, "<u4"),
        "mono_ns": (32, "<i8"),
        "wall_ms": (40, "<i8"),
        "first_seq": (48, "<u8"),
        "first_change": (56, "<u8"),
        "authority": (96, "V192"),
    },
)

BLOCK_TYPE: Final = _record(
    CELL,
    {
        "magic": (0, "<u4"),
        "crc": (4, "<u4"),
        "records_crc": (8, "<u4"),
        "count": (12, "<u4"),
        "run": (16, "<u8"),
        "segment": (24, "<u4"),
        "number": (28, "<u4"),
        "first_seq": (32, "<u8"),
        "next_seq": (40, "<u8"),
        "mono_ns": (48, "<i8"),
        "wall_ms": (56, "<i8"),
    },
)

_KIND: Final = {"kind": (0, "u1")}

TYPES: Final = {
    STRING: _record(
        CELL, {**_KIND, "part": (2, "<u2"), "id": (4, "<u4"), "length": (8, "<u4"), "bytes": (12, "V84")}
    ),
    TARGET: _record(
        CELL,
        {
            **_KIND,
            "target": (4, "<u4"),
            "delivery": (8, "<u4"),
            "ingress": (12, "<u4"),
            "egress": (16, "<u4"),
            "topic": (20, "<u4"),
            "subscriber": (24, "<u4"),
            "period_ns": (28, "<i8"),
            "tuned_ns": (36, "<i8"),
        },
    ),
    DELIVERY: _record(
        CELL,
        {
            **_KIND,
            "flags": (1, "u1"),
            "verdict": (2, "u1"),
            "code": (3, "u1"),
            "type": (4, "u1"),
            "priority": (5, "u1"),
            "attempts": (6, "<u2"),
            "seq": (8, "<i8"),
            "id_msb": (16, "<i8"),
            "id_lsb": (24, "<i8"),
            "arrived_ns": (32, "<i8"),
            "received_ns": (40, "<i8"),
            "first_attempt_ns": (48, "<i8"),
            "settled_ns": (56, "<i8"),
            "target": (64, "<u4"),
            "source": (68, "<u4"),
            "sink": (72, "<u4"),
            "size": (76, "<u4"),
            "ttl_ms": (80, "<u4"),
            "reason": (84, "<u4"),
            "epoch": (88, "<u4"),
        },
    ),
    ANSWER: _record(
        CELL, {**_KIND, "seq": (8, "<i8"), "request_msb": (16, "<i8"), "request_lsb": (24, "<i8")}
    ),
    SUBSCRIPTION: _record(
        CELL,
        {
            **_KIND,
            "change": (1, "u1"),
            "number": (8, "<i8"),
            "time_ns": (16, "<i8"),
            "period_ns": (24, "<i8"),
            "topic": (32, "<u4"),
            "subscriber": (36, "<u4"),
        },
    ),
    DEAD_LETTER: _record(
        CELL,
        {
            **_KIND,
            "flags": (1, "u1"),
            "code": (2, "u1"),
            "seq": (8, "<i8"),
            "id_msb": (16, "<i8"),
            "id_lsb": (24, "<i8"),
            "time_ns": (32, "<i8"),
            "target": (40, "<u4"),
            "source": (44, "<u4"),
            "sink": (48, "<u4"),
            "reason": (52, "<u4"),
            "attempts": (56, "<u4"),
            "size": (60, "<u4"),
            "kept": (64, "<u4"),
            "parts": (68, "<u4"),
        },
    ),
    PAYLOAD: _record(
        CELL, {**_KIND, "part": (2, "<u2"), "length": (4, "<u4"), "seq": (8, "<i8"), "bytes": (16, "V80")}
    ),
    ANCHOR: _record(
        CELL,
        {**_KIND, "cause": (1, "u1"), "mono_ns": (8, "<i8"), "wall_ms": (16, "<i8"), "leap_ms": (24, "<i8")},
    ),
    GAP: _record(
        CELL,
        {
            **_KIND,
            "cause": (1, "u1"),
            "first_seq": (8, "<i8"),
            "from_ns": (16, "<i8"),
            "until_ns": (24, "<i8"),
            "rows": (32, ("<i8", (6,))),
            "changes": (80, "<i8"),
            "letters": (88, "<i8"),
        },
    ),
    CONFIG: _record(CELL, {**_KIND, "epoch": (4, "<u4"), "since_ns": (8, "<i8"), "text": (16, "<u4")}),
    COUNTERS: _record(
        CELL,
        {
            **_KIND,
            "cause": (1, "u1"),
            "mono_ns": (8, "<i8"),
            "ledger": (16, ("<i8", (8,))),
            "next_seq": (80, "<i8"),
            "skipped": (88, "<i8"),
        },
    ),
    END: _record(
        CELL,
        {
            **_KIND,
            "cause": (1, "u1"),
            "mono_ns": (8, "<i8"),
            "wall_ms": (16, "<i8"),
            "next_seq": (24, "<i8"),
            "next_change": (32, "<i8"),
        },
    ),
    BATCH: _record(
        CELL,
        {
            **_KIND,
            "flags": (1, "u1"),
            "rows": (2, "<u2"),
            "type": (4, "u1"),
            "priority": (5, "u1"),
            "records": (6, "<u2"),
            "seq": (8, "<i8"),
            "time_ns": (16, "<i8"),
            "settled_ns": (24, "<i8"),
            "target": (32, "<u4"),
            "source": (36, "<u4"),
            "sink": (40, "<u4"),
            "ttl_ms": (44, "<u4"),
            "epoch": (48, "<u4"),
            "size": (52, "<u4"),
        },
    ),
    SAMPLES: _record(
        CELL,
        {
            **_KIND,
            "compression": (1, "u1"),
            "parts": (2, "<u2"),
            "samples": (4, "<u4"),
            "length": (8, "<u4"),
            "packed": (12, "<u4"),
            "from_ns": (16, "<i8"),
            "until_ns": (24, "<i8"),
            "dropped": (32, "<i8"),
        },
    ),
    SAMPLES_PART: _record(CELL, {**_KIND, "part": (2, "<u2"), "length": (4, "<u4"), "bytes": (8, "V88")}),
}
"""Fields of each kind of record. Halves of UUIDs are signed, as in every table; the bits are the same."""
