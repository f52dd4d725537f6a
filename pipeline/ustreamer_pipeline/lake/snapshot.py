# SPDX-License-Identifier: Apache-2.0
"""The files of the tables at one version of the manifest.

A commit creates the next version `manifest/<number>.jsonl`, and no file of a table is changed or replaced. A reader
loads the newest version whose tables are complete, and reads the files that it lists: these stay for KEEP_S after a
later version drops them. An ingest that runs, or that was ended, is therefore never seen half.

The first line of a version has the number of the newest complete version, which may be its own.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ustreamer_pipeline.errors import DamagedError, UnavailableError
from ustreamer_pipeline.lake.storage import Storage, storage_of

VERSION: Final = 4
"""Layout of the manifest and of the tables. 3: numbered versions. 4: the first change of a recording (schemas.py)."""
OLDER: Final = (3,)
"""Versions of lakes whose tables the next ingest rebuilds from bronze."""
FOLDER: Final = "manifest"
KEEP_S: Final = 86_400.0
SMALL: Final = "table"
LARGE: Final = "large"
"""Keys of the lines with a TableFile."""


class TableFile(NamedTuple):
    """The file of one table, gateway and day (since 1970)."""

    table: str
    gateway: str
    day: int
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Snapshot:
    """The files of all tables of a lake at one version."""

    lake: str
    storage: Storage
    number: int = 0
    files: list[TableFile] = field(default_factory=list)
    large: list[TableFile] = field(default_factory=list)
    """Files of whole days, which compaction wrote; their gateway is empty."""

    def files_of(self, table: str) -> list[TableFile]:
        """The files of units, sorted by gateway and day."""
        return sorted(file for file in self.files if file.table == table)

    def uri(self, file: TableFile) -> str:
        """Path or URL of a file."""
        path = self.storage.path(file.name)
        return path if self.storage.is_local else f"s3://{path}"

    def large_of(self, table: str) -> list[TableFile]:
        return sorted(file for file in self.large if file.table == table)

    def small_of(self, table: str) -> list[TableFile]:
        """The files of units whose day has no large files."""
        days = {file.day for file in self.large_of(table)}
        return [file for file in self.files_of(table) if file.day not in days]


def version_name(number: int) -> str:
    return f"{FOLDER}/{number:020d}.jsonl"


def last_version(storage: Storage) -> int:
    """Number of the newest version; 0 without one."""
    names = [file.name for file in storage.list_files(FOLDER) if file.name.endswith(".jsonl")]
    return int(Path(names[-1]).stem) if names else 0


def load_snapshot(lake: str | Path) -> Snapshot:
    """The newest complete version. Raises UnavailableError for a lake whose first ingest was not completed."""
    storage = storage_of(str(lake))
    while True:
        number = last_version(storage)
        if not number:
            return Snapshot(str(lake), storage)
        try:
            lines = _lines(storage, number)
            complete = _complete_version(storage.path(version_name(number)), lines)
            if not complete:
                raise UnavailableError(
                    f"{lake}: an ingest runs or was ended, and none was completed: ingest again"
                )
            if complete != number:
                lines = _lines(storage, complete)
        except FileNotFoundError:  # newer versions were made and this one removed meanwhile
            continue
        return _snapshot(str(lake), storage, complete, lines)


def snapshot_at(lake: str, number: int) -> Snapshot:
    """The version with this number, or none of a lake without a version. Raises UnavailableError if it was removed."""
    storage = storage_of(lake)
    if not number:
        return Snapshot(lake, storage)
    try:
        return _snapshot(lake, storage, number, _lines(storage, number))
    except FileNotFoundError as error:
        raise UnavailableError(f"{lake}: version {number} was removed: read a newer one") from error


def _snapshot(lake: str, storage: Storage, number: int, lines: list[str]) -> Snapshot:
    files, large = (
        [TableFile(*json.loads(line)[kind]) for line in lines if line.startswith(f'{{"{kind}":')]
        for kind in (SMALL, LARGE)
    )
    return Snapshot(lake, storage, number, files, large)


def snapshot_of(lake: "str | Path | Snapshot") -> Snapshot:
    return lake if isinstance(lake, Snapshot) else load_snapshot(lake)


def _lines(storage: Storage, number: int) -> list[str]:
    return storage.read(version_name(number)).decode().splitlines()


def _complete_version(place: str, lines: list[str]) -> int:
    """Number of the newest complete version, from the first line of a version. Raises DamagedError."""
    try:
        line = json.loads(lines[0])
        if line["version"] in OLDER:
            raise UnavailableError(f"{place}: tables of an earlier version: ingest again, to rebuild them")
        if line["version"] != VERSION or not isinstance(line["complete"], int):
            raise ValueError(f"version {line['version']}")
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise DamagedError(f"{place}:1: {error}: expected version {VERSION}") from error
    return int(line["complete"])
