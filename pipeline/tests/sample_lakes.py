# SPDX-License-Identifier: Apache-2.0
"""Lakes for tests, whose files are not those of an ingest."""

import datetime as dt
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ustreamer_pipeline.bronze.manifest import Manifest
from ustreamer_pipeline.lake.snapshot import TableFile, last_version
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
