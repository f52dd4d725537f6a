# SPDX-License-Identifier: Apache-2.0
"""Segments from numpy arrays, 0.2 us per record, with the bytes that the recorder writes (a test compares them)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from ustreamer_pipeline.recording.layout import (
    ANCHOR,
    ANSWER,
    BLOCK_MAGIC,
    BLOCK_RECORDS,
    BLOCK_TYPE,
    CELL,
    CONFIG,
    DELIVERY,
    HEADER,
    HEADER_TYPE,
    MAGIC,
    STRING,
    STRING_BYTES,
    TARGET,
    TYPES,
    Records,
)
from ustreamer_pipeline.recording.segments import Header


@dataclass(frozen=True)
class TargetText:
    """A TARGET record with its texts."""

    target: int
    delivery: int
    ingress: str
    egress: str | None = None
    topic: str | None = None
    subscriber: str | None = None
    period_ns: int = 0
    tuned_ns: int = 0


class StringTable:
    """Ids for texts, in the order of first use."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __getitem__(self, text: str | None) -> int:
        return 0 if text is None else self.ids.setdefault(text, len(self.ids) + 1)

    def records(self, text: str) -> Records:
        data = text.encode()
        parts = max(1, -(-len(data) // STRING_BYTES))
        made = empty_records(STRING, parts)
        made["part"] = np.arange(parts)
        made["id"] = self.ids[text]
        made["length"] = len(data)
        padded = data.ljust(parts * STRING_BYTES, b"\0")
        made["bytes"] = np.frombuffer(padded, f"V{STRING_BYTES}")
        return as_cells(made)


def empty_records(kind: int, count: int) -> Records:
    """Records of a kind; all other fields are zero."""
    made = np.zeros(count, TYPES[kind])
    made["kind"] = kind
    return made


def make_record(kind: int, **fields: Any) -> Records:
    """One record."""
    made = empty_records(kind, 1)
    for name, value in fields.items():
        made[name] = value
    return as_cells(made)


def as_cells(records: Records) -> Records:
    """Records without field names, so that different kinds fit in one array."""
    return records.view(f"V{CELL}")


def preamble(
    header: Header,
    strings: StringTable,
    targets: Iterable[TargetText],
    epoch: int,
    since_ns: int,
    settings: Mapping[str, object],
) -> Records:
    """The first records of a segment: ANCHOR, CONFIG, TARGETs, and every text of `strings` before its use."""
    written: set[str] = set()
    parts = [make_record(ANCHOR, mono_ns=header.mono_ns, wall_ms=header.wall_ms)]

    def string_id(text: str | None) -> int:
        key = strings[text]
        if text is not None and text not in written:
            written.add(text)
            parts.append(strings.records(text))
        return key

    text = string_id(json.dumps(settings))
    parts.append(make_record(CONFIG, epoch=epoch, since_ns=since_ns, text=text))
    for target in targets:
        texts = {
            name: string_id(getattr(target, name)) for name in ("ingress", "egress", "topic", "subscriber")
        }
        numbers = {name: getattr(target, name) for name in ("target", "delivery", "period_ns", "tuned_ns")}
        parts.append(make_record(TARGET, **texts, **numbers))
    for text_left in list(strings.ids):
        string_id(text_left)
    return np.concatenate(parts)


def encode_segment(header: Header, records: list[Records], *, mono_ns: int, wall_ms: int) -> bytes:
    """A whole segment: the header, and each array of records in its own blocks, all with the same time stamp."""
    blocks = [piece for array in records for piece in _blocks(array)]
    whole = np.zeros(sum(len(block) + 1 for block in blocks), f"V{CELL}")
    heads = whole.view(BLOCK_TYPE)
    at, next_seq = 0, header.first_seq
    view = whole.view(np.uint8).data
    for number, block in enumerate(blocks):
        whole[at + 1 : at + 1 + len(block)] = block
        rows = np.flatnonzero(block.view(TYPES[DELIVERY])["kind"] == DELIVERY)
        following = int(block[rows[-1:]].view(TYPES[DELIVERY])["seq"][0]) + 1 if len(rows) else next_seq
        head = heads[at : at + 1]
        start = CELL * at
        head["magic"] = BLOCK_MAGIC
        head["records_crc"] = crc32(view[start + CELL : start + CELL * (1 + len(block))])
        head["count"], head["run"], head["segment"], head["number"] = (
            len(block),
            header.run,
            header.number,
            number,
        )
        head["first_seq"], head["next_seq"] = next_seq, following
        head["mono_ns"], head["wall_ms"] = mono_ns, wall_ms
        head["crc"] = crc32(view[start : start + CELL])
        at += 1 + len(block)
        next_seq = following
    return encode_header(header) + whole.tobytes()


def _blocks(records: Records) -> Iterable[Records]:
    """An ANSWER is in the block of its row."""
    kinds = records.view(TYPES[ANSWER])["kind"]
    start = 0
    while start < len(records):
        stop = min(start + BLOCK_RECORDS, len(records))
        if stop < len(records) and kinds[stop] == ANSWER:
            stop -= 1
        yield records[start:stop]
        start = stop


def encode_header(header: Header) -> bytes:
    authority = header.gateway.encode()
    made = np.zeros(1, HEADER_TYPE)
    made["magic"] = np.frombuffer(MAGIC, "V8")
    made["layout"], made["record"], made["header"], made["length"] = (
        header.layout,
        CELL,
        HEADER,
        len(authority),
    )
    made["run"], made["number"], made["first_seq"] = header.run, header.number, header.first_seq
    made["first_change"] = header.first_change
    made["mono_ns"], made["wall_ms"] = header.mono_ns, header.wall_ms
    made["authority"] = np.frombuffer(authority.ljust(192, b"\0"), "V192")
    made["crc"] = crc32(made.tobytes())
    return made.tobytes()


def file_name(header: Header) -> str:
    return f"{header.run:016x}-{header.number:06d}.useg"
