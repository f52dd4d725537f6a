# SPDX-License-Identifier: Apache-2.0
"""Landing: check a recording, copy it into bronze compressed, and summarize it.

Executors run it, one file at a time, and may run it twice. The file name in bronze depends on the content only, and a
file is written as a whole.
"""

import contextlib
import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from zlib import crc32

import numpy as np

from ustreamer_pipeline.lake.storage import Storage, storage_of
from ustreamer_pipeline.recording import events
from ustreamer_pipeline.recording.layout import DELIVERY
from ustreamer_pipeline.recording.rows import DAY_US, EPOCH, day_of
from ustreamer_pipeline.recording.samples import has_samples, sample_days
from ustreamer_pipeline.recording.segments import RAW_MAX, RecordingRefused, Segment, read_segment
from ustreamer_pipeline.schemas import QUARANTINE

if TYPE_CHECKING:
    import pyarrow as pa

BRONZE: Final = "bronze"
REFUSED: Final = "refused"


@dataclass(frozen=True)
class SegmentSummary:
    """Content of a segment in bronze, as far as planning needs it.

    `file` is relative to the lake. `length` counts the valid bytes, `crc` covers all bytes. `days` (since 1970, UTC)
    are the days with deliveries and their counts; `event_days` have rows of the small tables.
    `faults` counts records and byte ranges for the quarantine that are not deliveries. `min_ns` is the earliest
    received_ns.
    """

    gateway: str
    run: int
    number: int
    file: str
    length: int
    crc: int
    rows: int
    days: list[tuple[int, int]]
    event_days: list[int]
    faults: int
    min_ns: int
    first_seq: int
    next_seq: int
    complete: bool
    sampled: bool = False
    """Whether it has payloads that were kept by topic."""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.gateway, self.run, self.number

    @property
    def progress(self) -> tuple[int, int]:
        """More of a recording has more rows, or more bytes."""
        return self.rows, self.length

    @property
    def all_days(self) -> set[int]:
        return {*self.event_days, *(day for day, _ in self.days)}

    def rows_of(self, day: int) -> int:
        return dict(self.days).get(day, 0)


@dataclass(frozen=True)
class Landed:
    """Result for one file: a segment in bronze (its own, or a longer one that existed), or a refusal."""

    path: str
    size: int
    mtime_ns: int
    segment: SegmentSummary | None
    refused: str | None
    copy: str | None
    raw: bytes


def land(path: str, lake: str) -> Landed:
    """Import one file. An unusable file is copied to `refused`, with the reason in the result.

    Raises FileNotFoundError if the file was removed.
    """
    try:
        status = Path(path).stat()
        buffer = Path(path).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:  # -1 is no file's size: the next run reads the file again
        return Landed(path, -1, 0, None, f"cannot be read: {error}", None, b"")
    try:
        segment = read_segment(buffer, Path(path).name)
        summary = _store_better(segment, buffer, storage_of(lake))
    except RecordingRefused as error:
        copy = f"{REFUSED}/{crc32(buffer):08x}-{Path(path).name}.zst"
        _write(storage_of(lake), copy, buffer)
        return Landed(path, status.st_size, status.st_mtime_ns, None, str(error), copy, buffer[:RAW_MAX])
    return Landed(path, status.st_size, status.st_mtime_ns, summary, None, None, b"")


def _store_better(segment: Segment, buffer: bytes, storage: Storage) -> SegmentSummary:
    """Keep this segment in bronze unless bronze has a more complete one, and return the summary of the better one.

    Raises RecordingRefused if both are valid and differ.
    """
    ours = buffer[: segment.length] + buffer[segment.length :].rstrip(b"\0")
    folder, stem = bronze_place(segment)
    best, best_bytes, best_name = segment, ours, f"{folder}/{stem}.{crc32(ours):08x}.useg.zst"
    for file in storage.list_files(folder):
        if not Path(file.name).name.startswith(f"{stem}."):
            continue
        have = read_bronze(storage, file.name)
        old = read_segment(have, segment_file(file.name))
        common = min(old.length, segment.length)
        if not (old.faults or segment.faults) and have[:common] != ours[:common]:
            raise RecordingRefused(
                f"differs from {file.name}, which came first: one run and number is one recording"
            )
        if _completeness(old, have) >= _completeness(best, best_bytes):
            best, best_bytes, best_name = old, have, file.name
    if best is segment:
        _write(storage, best_name, ours)
    return summarize(best, best_bytes, best_name)


def _completeness(segment: Segment, buffer: bytes) -> tuple[int, int, int]:
    return len(segment.cells), segment.length, len(buffer)


def bronze_place(segment: Segment) -> tuple[str, str]:
    """Folder of a segment relative to the lake, by the date of its header, and the beginning of its file name.

    The name continues with the CRC of the content: a file in bronze never changes.
    """
    header = segment.header
    date = EPOCH + dt.timedelta(days=header.wall_ms * 1_000 // DAY_US)
    gateway = quote(header.gateway, safe="")
    return f"{BRONZE}/date={date}/gateway={gateway}", f"{header.run:016x}-{header.number:06d}"


def segment_file(name: str) -> str:
    """Original file name of a recording in bronze."""
    return f"{Path(name).name.split('.')[0]}.useg"


def summarize(segment: Segment, buffer: bytes, name: str) -> SegmentSummary:
    rows = segment.records(DELIVERY)
    received = rows["received_ns"]
    days, counts = np.unique(day_of(segment.wall_us(received)), return_counts=True)
    found = list(events.find_event_rows(segment, name, len(rows)))
    return SegmentSummary(
        segment.header.gateway,
        segment.header.run,
        segment.header.number,
        name,
        segment.length,
        crc32(buffer),
        len(rows),
        list(zip(days.tolist(), counts.tolist(), strict=True)),
        sorted({wall_us // DAY_US for _, wall_us, _ in found} | sample_days(segment)),
        sum(table is QUARANTINE for table, _, _ in found),
        int(received.min()) if len(rows) else 0,
        segment.header.first_seq,
        segment.next_seq,
        segment.end is not None,
        has_samples(segment),
    )


def read_bronze(storage: Storage, name: str) -> bytes:
    """Bytes of a recording, uncompressed."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(storage.read(name)), "zstd") as stream:
        whole: bytes = stream.read()
    return whole


def _write(storage: Storage, name: str, buffer: bytes) -> None:
    """Write `buffer` compressed and as a whole."""
    import pyarrow as pa

    packed = pa.BufferOutputStream()
    # Level 1, the default: 23 of a row's 96 bytes remain.
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(buffer)
    storage.write(name, packed.getvalue().to_pybytes())


def landing_task(paths: list[list[str]], lake: str) -> Any:
    """The function of a `mapInArrow` over task numbers: lands the files of a task and yields one JSON text per file."""

    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for task in batch.column(0).to_pylist():
                for path in paths[task]:
                    with contextlib.suppress(
                        FileNotFoundError
                    ):  # the ring of the gateway removed it meanwhile
                        landed = land(path, lake)
                        yield pa.RecordBatch.from_pydict({"landed": [json.dumps(landed_to_json(landed))]})

    return run


def landed_to_json(landed: Landed) -> dict[str, Any]:
    return {**asdict(landed), "raw": landed.raw.hex()}


def landed_from_json(value: dict[str, Any]) -> Landed:
    segment = value["segment"]
    return Landed(
        **{
            **value,
            "raw": bytes.fromhex(value["raw"]),
            "segment": None if segment is None else SegmentSummary(**segment),
        }
    )
