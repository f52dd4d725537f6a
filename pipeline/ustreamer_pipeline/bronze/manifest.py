# SPDX-License-Identifier: Apache-2.0
"""The manifest: the recordings that a lake has imported. One file of JSON lines, replaced atomically.

The lines are: the version, the result of each file seen, the segments in bronze, and the pending days. A day becomes
pending before its tables are touched, and is removed when its tables are complete. After a crash the next run
therefore rebuilds it.
"""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ustreamer_pipeline.bronze.landing import Landed, SegmentSummary
from ustreamer_pipeline.errors import DamagedError, UnavailableError
from ustreamer_pipeline.folders import local_folder
from ustreamer_pipeline.recording.layout import LAYOUTS

VERSION: Final = 2
"""2: the small tables have clock steps and monotonic times. In a lake of version 1 all days are rebuilt."""
NAME: Final = "manifest.jsonl"

Key = tuple[str, int, int]
Unit = tuple[str, int]
"""A gateway and a day: rebuilt as a whole."""


@dataclass(frozen=True)
class ManifestFile:
    """A file at the time of its import, and the layouts known at that time.

    It is read again after a change of size or time, and after a refusal by a reader that knew other layouts.
    """

    path: str
    size: int
    mtime_ns: int
    complete: bool
    refused: str | None = None
    copy: str | None = None
    raw: str = ""
    layouts: list[int] = field(default_factory=lambda: sorted(LAYOUTS))


@dataclass
class Manifest:
    files: dict[str, ManifestFile] = field(default_factory=dict)
    segments: dict[Key, SegmentSummary] = field(default_factory=dict)
    pending: set[Unit] = field(default_factory=set)
    _is_old: bool = False

    def is_new(self, path: str, size: int, mtime_ns: int) -> bool:
        seen = self.files.get(path)
        return (
            seen is None
            or (seen.size, seen.mtime_ns) != (size, mtime_ns)
            or (seen.refused is not None and seen.layouts != sorted(LAYOUTS))
        )

    def record_landed(self, landed: Landed) -> bool:
        """Register the result of a file. True if bronze has new content; the affected days are then pending."""
        segment = landed.segment
        self.files[landed.path] = ManifestFile(
            landed.path,
            landed.size,
            landed.mtime_ns,
            segment is not None and segment.complete,
            landed.refused,
            landed.copy,
            landed.raw.hex(),
        )
        if segment is None:
            return False
        old = self.segments.get(segment.key)
        if old is not None and (old.crc, old.file) == (segment.crc, segment.file):
            return False
        self.segments[segment.key] = segment
        days = segment.all_days | (old.all_days if old else set())
        self.pending |= {(segment.gateway, day) for day in days}
        # The previous segment decides which rows of the next one are duplicates, so the next one is rebuilt as well.
        following = self.segments.get((segment.gateway, segment.run, segment.number + 1))
        if following is not None:
            self.pending |= {(segment.gateway, day) for day in following.all_days}
        return True

    @property
    def refused(self) -> list[ManifestFile]:
        return sorted((seen for seen in self.files.values() if seen.refused), key=lambda seen: seen.path)

    def by_unit(self) -> dict[Unit, list[SegmentSummary]]:
        """Segments of every gateway and day, sorted by run and number."""
        found: dict[Unit, list[SegmentSummary]] = {}
        for key in sorted(self.segments):
            segment = self.segments[key]
            for day in segment.all_days:
                found.setdefault((segment.gateway, day), []).append(segment)
        return found

    def first_new_seq(self, segment: SegmentSummary) -> int:
        """Lowest seq that the previous segment does not contain."""
        before = self.segments.get((segment.gateway, segment.run, segment.number - 1))
        return max(segment.first_seq, before.next_seq if before else 0)

    # ---------------------------------------------------------------------------------------------------- on disk

    @classmethod
    def load(cls, lake: str) -> "Manifest":
        """Read the manifest of a lake. Raises DamagedError with the line number."""
        place = Path(lake) / NAME
        manifest = cls()
        number = 0
        try:
            with place.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    manifest._load_line(number, json.loads(line))
        except FileNotFoundError:
            return manifest
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedError(
                f"{place}:{number}: {error}: expected a manifest of version {VERSION}; move the lake aside and ingest again"
            ) from error
        if manifest._is_old:
            manifest.pending |= manifest.by_unit().keys()
        return manifest

    def _load_line(self, number: int, line: dict[str, Any]) -> None:
        match line:
            case {"version": version} if number == 1:
                if version not in (1, VERSION):
                    raise ValueError(f"version {version}")
                self._is_old = version < VERSION
            case {"file": dict(value)} if number > 1:
                seen = ManifestFile(**value)
                self.files[seen.path] = seen
            case {"segment": dict(value)} if number > 1:
                segment = SegmentSummary(**value)
                self.segments[segment.key] = segment
            case {"pending": [str(gateway), int(day)]} if number > 1:
                self.pending.add((gateway, day))
            case _:
                raise ValueError(f"{str(line)[:80]!r}")

    def _lines(self) -> Iterator[dict[str, Any]]:
        yield {"version": VERSION}
        yield from ({"file": asdict(seen)} for _, seen in sorted(self.files.items()))
        yield from ({"segment": asdict(segment)} for _, segment in sorted(self.segments.items()))
        yield from ({"pending": unit} for unit in sorted(self.pending))

    def save(self, lake: str) -> None:
        """Replace the file atomically: after a power cut the old or the new file exists."""
        descriptor, temporary = tempfile.mkstemp(dir=lake, prefix=".manifest-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in self._lines())
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(Path(lake) / NAME)


@contextmanager
def lake_lock(lake: str) -> Iterator[None]:
    """Allow one writer at a time; creates the lake's folder.

    Raises UsageError for a URL, UnavailableError if another writer runs.
    """
    folder = local_folder(lake)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnavailableError(f"{lake}: another ingest, or a compaction, is running") from error
        for leftover in folder.glob(".manifest-*"):  # from a process that died while saving
            with contextlib.suppress(FileNotFoundError):
                leftover.unlink()
        yield


def require_folder(folder: str) -> Path:
    """Path of the recordings. Raises UnavailableError if it does not exist."""
    top = Path(folder)
    if not top.exists():
        raise UnavailableError(f"{folder}: expected a folder of recordings, or one of them")
    return top


def list_recordings(folders: Iterable[str], suffixes: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
    """(path, size, mtime_ns) of every recording below the folders, sorted by path. A recording itself is also
    accepted.
    """
    for folder in folders:
        top = require_folder(folder)
        paths = [top] if top.is_file() else sorted(top.rglob("*"))
        for path in paths:
            if path.name.endswith(suffixes):
                with contextlib.suppress(FileNotFoundError):  # finished or deleted during the search
                    status = path.stat()
                    yield str(path.resolve()), status.st_size, status.st_mtime_ns
