# SPDX-License-Identifier: Apache-2.0
"""The manifest: the recordings that a lake has imported, and the files of its tables. Versions of JSON lines.

The lines are: the layout, the result of each file seen, the segments in bronze, the pending days, the files of the
tables, and the files that were dropped and may still be read. A day becomes pending when bronze has new content of it.
It is removed by the version that lists its new files. After a crash the next run therefore rebuilds it.

A change is a function of a manifest. `commit` creates the next version with it. If another writer, perhaps on another
machine, created that version first, `commit` applies the change again, to the newer manifest.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from ustreamer_pipeline.bronze.landing import Landed, SegmentSummary
from ustreamer_pipeline.errors import DamagedError, UnavailableError
from ustreamer_pipeline.lake.snapshot import (
    KEEP_S,
    LARGE,
    OLDER,
    SMALL,
    VERSION,
    TableFile,
    last_version,
    version_name,
)
from ustreamer_pipeline.lake.storage import Storage
from ustreamer_pipeline.recording.layout import LAYOUTS
from ustreamer_pipeline.schemas import UNKNOWN_GATEWAY

KEPT_VERSIONS: Final = 10
OLD_NAME: Final = "manifest.jsonl"
"""The manifest of a lake of layout 1 or 2, whose days are all rebuilt."""
TABLE_FOLDERS: Final = ("silver", "quarantine", "compacted")

T = TypeVar("T")

Key = tuple[str, int, int]
Unit = tuple[str, int]
"""A gateway and a day: rebuilt as a whole."""
REFUSED_FILES: Final[Unit] = (UNKNOWN_GATEWAY, 0)
"""The unit of recordings that could not be read: their gateway and day are unknown."""


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
    """The content of one version, and changes for the next one.

    `number` is the version that was loaded, `complete` the newest one without pending days. `is_older`: its tables
    have the columns of an earlier version. `tables` has the files of
    each unit, `large` those of compacted days. `dropped` has files of older versions, and since when (s); None: since
    the version that is saved next.
    """

    files: dict[str, ManifestFile] = field(default_factory=dict)
    segments: dict[Key, SegmentSummary] = field(default_factory=dict)
    pending: set[Unit] = field(default_factory=set)
    tables: dict[Unit, list[TableFile]] = field(default_factory=dict)
    large: dict[int, list[TableFile]] = field(default_factory=dict)
    dropped: dict[str, float | None] = field(default_factory=dict)
    number: int = 0
    complete: int = 0
    is_older: bool = False

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
        seen = self.files.get(landed.path)
        if landed.refused is not None or (seen is not None and seen.refused is not None):
            self.pending.add(REFUSED_FILES)
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
        if old is not None and (old.crc == segment.crc or old.progress > segment.progress):
            return False
        if old is not None:
            self.dropped[old.file] = None
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

    # ---------------------------------------------------------------------------------------------------- tables

    def replace_files(self, unit: Unit, files: Iterable[TableFile]) -> None:
        """List the new files of a unit. Large files of its day have the old rows, and are dropped."""
        self.drop(self.tables.pop(unit, []))
        self.drop(self.large.pop(unit[1], []))
        self.tables[unit] = sorted(files)
        self.pending.discard(unit)

    def drop(self, files: Iterable[TableFile]) -> None:
        """Files that this version does not list any more; readers of older versions may still read them."""
        self.dropped.update((file.name, None) for file in files)

    def small_files(self, table: str, day: int) -> list[TableFile]:
        """The files of a table on a day, sorted by gateway."""
        return sorted(
            file
            for (_, at), files in self.tables.items()
            if at == day
            for file in files
            if file.table == table
        )

    def days(self) -> list[int]:
        """Days with rows."""
        return sorted({unit[1] for unit, files in self.tables.items() if files and unit != REFUSED_FILES})

    # ---------------------------------------------------------------------------------------------------- on disk

    @classmethod
    def load(cls, storage: Storage) -> "Manifest":
        """Read the newest version. Raises DamagedError with the line number."""
        number = last_version(storage)
        name = version_name(number) if number else OLD_NAME
        manifest = cls(number=number)
        at = 0
        try:
            for at, line in enumerate(storage.read(name).decode().splitlines(), 1):
                manifest._load_line(at, json.loads(line))
        except FileNotFoundError:
            return manifest if not number else cls.load(storage)  # a newer version has displaced it
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedError(
                f"{storage.path(name)}:{at}: {error}: expected a manifest of version {VERSION}; "
                "move the lake aside and ingest again"
            ) from error
        if not number or manifest.is_older:
            manifest.pending |= manifest.by_unit().keys()
        return manifest

    def _load_line(self, at: int, line: dict[str, Any]) -> None:
        match line:
            case {"version": version} if at == 1:
                if version not in ((*OLDER, VERSION) if self.number else (1, 2)):
                    raise ValueError(f"version {version}")
                self.is_older = version in OLDER
                self.complete = line["complete"] if version == VERSION else 0
            case {"file": dict(value)} if at > 1:
                seen = ManifestFile(**value)
                self.files[seen.path] = seen
            case {"segment": dict(value)} if at > 1:
                segment = SegmentSummary(**value)
                self.segments[segment.key] = segment
            case {"pending": [str(gateway), int(day)]} if at > 1:
                self.pending.add((gateway, day))
            case {"table": [*values]} if at > 1:
                file = TableFile(*values)
                self.tables.setdefault((file.gateway, file.day), []).append(file)
            case {"large": [*values]} if at > 1:
                file = TableFile(*values)
                self.large.setdefault(file.day, []).append(file)
            case {"dropped": [str(name), float(since_s)]} if at > 1:
                self.dropped[name] = since_s
            case _:
                raise ValueError(f"{str(line)[:80]!r}")

    def _lines(self) -> Iterator[dict[str, Any]]:
        yield {"version": VERSION, "complete": self.complete}
        yield from ({"file": asdict(seen)} for _, seen in sorted(self.files.items()))
        yield from ({"segment": asdict(segment)} for _, segment in sorted(self.segments.items()))
        yield from ({"pending": unit} for unit in sorted(self.pending))
        yield from ({SMALL: file} for _, files in sorted(self.tables.items()) for file in files)
        yield from ({LARGE: file} for _, files in sorted(self.large.items()) for file in files)
        yield from ({"dropped": each} for each in sorted(self.dropped.items()))

    def save(self, storage: Storage) -> bool:
        """Create the next version. False if another writer has created it."""
        number = self.number + 1
        self._date_dropped(storage)
        complete, self.complete = self.complete, self.complete if self.pending else number
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self._lines())
        if not storage.create(version_name(number), text.encode()):
            self.complete = complete
            return False
        self.number = number
        if 0 < number - KEPT_VERSIONS < self.complete:
            storage.remove(version_name(number - KEPT_VERSIONS))
        if number == 1:
            storage.remove(OLD_NAME)
        return True

    def _date_dropped(self, storage: Storage) -> None:
        """Give files that this version drops the time of now. A file that it lists is not dropped: a change that is
        applied again, after a commit whose answer was lost, meets its own files.
        """
        listed = self.table_names() | {segment.file for segment in self.segments.values()}
        now_s = storage.now_s() if None in self.dropped.values() else 0.0
        self.dropped = {
            name: now_s if since is None else since
            for name, since in self.dropped.items()
            if name not in listed
        }

    def table_names(self) -> set[str]:
        """Names of all files of the tables."""
        return {file.name for files in (*self.tables.values(), *self.large.values()) for file in files}


def commit(storage: Storage, manifest: Manifest, change: Callable[[Manifest], T]) -> tuple[Manifest, T]:
    """Apply `change` to the manifest, or to a newer one of another writer, and save it. Returns the saved one and the
    result of the change.
    """
    result = change(manifest)
    while not manifest.save(storage):
        manifest = Manifest.load(storage)
        result = change(manifest)
    return manifest, result


def remove_dropped(storage: Storage, manifest: Manifest, keep_s: float = KEEP_S) -> tuple[Manifest, int]:
    """Remove files that were dropped more than `keep_s` ago, and return their number.

    None with pending days: readers then still have an older version.
    """
    if manifest.pending or not manifest.dropped:
        return manifest, 0
    now_s = storage.now_s()
    due = {name for name, since in manifest.dropped.items() if since is not None and now_s - since >= keep_s}
    if not due:
        return manifest, 0
    for name in due:
        storage.remove(name)

    def forget(newest: Manifest) -> None:
        newest.dropped = {name: since for name, since in newest.dropped.items() if name not in due}

    return commit(storage, manifest, forget)[0], len(due)


def remove_orphans(storage: Storage, manifest: Manifest, keep_s: float = KEEP_S) -> int:
    """Remove files of runs that were ended before their commit, and return their number.

    In a bucket nothing shows whether another machine still writes them: there they stay for KEEP_S at least.
    """
    if not storage.is_local:
        keep_s = max(keep_s, KEEP_S)
    listed = manifest.table_names() | manifest.dropped.keys()
    now_s = storage.now_s()
    orphans = [
        file.name
        for folder in TABLE_FOLDERS
        for file in storage.list_files(folder)
        if file.name not in listed and now_s - file.time_s >= keep_s
    ]
    for name in orphans:
        storage.remove(name)
    return len(orphans)


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
