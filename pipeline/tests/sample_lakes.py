# SPDX-License-Identifier: Apache-2.0
"""Lakes for tests, whose files are not those of an ingest; and what is in a lake."""

import datetime as dt
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from ustreamer_pipeline.bronze.manifest import Manifest
from ustreamer_pipeline.lake.snapshot import TableFile, last_version, load_snapshot
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.schemas import DELIVERIES, QUARANTINE, SAMPLED, WIDE

_UNIT: Final = re.compile(r"(.+)/date=([^/]+)/gateway=([^/]+)/[^/]+\.parquet")
_TABLES: Final = {table.folder: table.name for table in (DELIVERIES, WIDE, SAMPLED, QUARANTINE)}


def list_lake(lake: Path) -> None:
    """List all files that are in the folders of the tables now."""
    storage = storage_of(str(lake))
    manifest = Manifest(number=last_version(storage))
    for file in (each for folder in _TABLES for each in storage.list_files(folder)):
        match = _UNIT.fullmatch(file.name)
        assert match
        folder, date, gateway = match.groups()
        unit = unquote(gateway), (dt.date.fromisoformat(date) - dt.date(1970, 1, 1)).days
        listed = TableFile(_TABLES[folder], *unit, file.name, 0, file.bytes)
        manifest.tables.setdefault(unit, []).append(listed)
    assert manifest.save(storage)


def contents(lake: str) -> dict[str, list[Any]]:
    """Rows of every table, read without Spark from the files of the current snapshot, each after its partition."""
    found: dict[str, list[Any]] = {}
    snapshot = load_snapshot(lake)
    for table in (DELIVERIES, WIDE, QUARANTINE):
        rows: list[Any] = []
        for file in snapshot.files_of(table.name):
            place = snapshot.storage.path(file.name)
            partition = Path(file.name).parent.relative_to(table.folder)
            columns = pq.read_table(place, filesystem=snapshot.storage.system, partitioning=None).to_pydict()
            # In DELIVERIES the order of rows counts: one file has the ordered rows of one gateway's day.
            rows += [(str(partition), *values) for values in zip(*columns.values(), strict=True)]
        found[table.name] = rows if table is DELIVERIES else sorted(rows, key=repr)
    return found
