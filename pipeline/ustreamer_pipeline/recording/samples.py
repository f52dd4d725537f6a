# SPDX-License-Identifier: Apache-2.0
"""SAMPLES records: the payloads that a recorder kept by topic. Pure: a segment in, samples out."""

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from ustreamer_pipeline.recording.layout import SAMPLES, SAMPLES_PART, TYPES
from ustreamer_pipeline.recording.rows import DAY_US
from ustreamer_pipeline.recording.segments import Segment

ZLIB: Final = 1
_SAMPLE: Final = Struct("<qqqIIIB3x")


class PayloadSample(NamedTuple):
    """The payload of one publication. `payload` is shorter than `size` if it was cut."""

    id_msb: int
    id_lsb: int
    time_ns: int
    topic: str
    size: int
    format: int
    payload: bytes


class SamplesFault(NamedTuple):
    """SAMPLES that cannot be decoded: the position of the record in `cells`, and the reason."""

    position: int
    reason: str


def has_samples(segment: Segment) -> bool:
    return bool(segment.records(SAMPLES)["samples"].sum())


def dropped_samples(segment: Segment) -> int:
    """The number of payloads that the recorder dropped."""
    return int(segment.records(SAMPLES)["dropped"].sum())


def sample_days(segment: Segment) -> set[int]:
    """Days (since 1970, UTC) that may have samples."""
    heads = segment.records(SAMPLES)
    return {
        day
        for begin, end in zip(
            segment.wall_us(heads["from_ns"]), segment.wall_us(heads["until_ns"]), strict=True
        )
        for day in range(int(begin) // DAY_US, int(end) // DAY_US + 1)
    }


def read_samples(segment: Segment) -> Iterator[PayloadSample | SamplesFault]:
    """The samples of a segment in the order of the file."""
    for position in segment.positions_of(SAMPLES).tolist():
        head = segment.cells[position : position + 1].view(TYPES[SAMPLES])[0]
        try:
            yield from _decode(segment, head, position)
        except (ValueError, LookupError, zlib.error) as error:
            yield SamplesFault(position, f"SAMPLES: {error}")


def _decode(segment: Segment, head: Any, position: int) -> list[PayloadSample]:
    count, packed, length = int(head["parts"]), int(head["packed"]), int(head["length"])
    parts = segment.cells[position + 1 : position + 1 + count].view(TYPES[SAMPLES_PART])
    whole = (
        len(parts) == count
        and np.all(parts["kind"] == SAMPLES_PART)
        and np.array_equal(parts["part"], np.arange(count))
    )
    if not whole or head["compression"] != ZLIB:
        raise ValueError(f"expected {packed} bytes of compression {ZLIB} in {count} parts directly after it")
    data = parts["bytes"].tobytes()[:packed]
    unpacked = zlib.decompressobj().decompress(data, length + 1) if packed else b""
    if len(unpacked) != length:
        raise ValueError(f"{len(unpacked)} bytes or more: expected {length}")
    found, at = [], 0
    for _ in range(int(head["samples"])):
        if at + _SAMPLE.size > length:
            raise ValueError(f"{length} bytes: expected {head['samples']} samples")
        msb, lsb, time_ns, topic, size, kept, form = _SAMPLE.unpack_from(unpacked, at)
        at += _SAMPLE.size + kept
        if topic not in segment.strings:
            raise LookupError(f"string {topic} is not in the file")
        payload = unpacked[at - kept : at]
        found.append(PayloadSample(msb, lsb, time_ns, segment.strings[topic], size, form, payload))
    return found
