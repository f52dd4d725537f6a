# SPDX-License-Identifier: Apache-2.0
"""The list of compacted dates of a lake and their folders. One JSON file, replaced atomically.

A reader loads the list once. It reads a listed date from its large files and any other date from its small files. A
folder that is no longer listed stays for KEEP_S, for readers that loaded an older list.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ustreamer_pipeline.errors import DamagedError

VERSION: Final = 1
NAME: Final = "compacted.json"
FOLDER: Final = "compacted"
KEEP_S: Final = 86_400.0

Dates = dict[str, dict[str, str]]
"""Folder of the large files, relative to the lake, by date and table name."""


def load(lake: str | Path) -> Dates:
    """Read the list. Raises DamagedError with the file name."""
    place = Path(lake) / NAME
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DamagedError(f"{place}: {error}: expected JSON; remove it and compact again") from error
    match found:
        case {"version": version, "dates": dict(dates)} if version == VERSION and all(
            isinstance(folders, dict) and all(isinstance(each, str) for each in folders.values())
            for folders in dates.values()
        ):
            return dates
    raise DamagedError(
        f"{place}: {str(found)[:80]!r}: expected dates of version {VERSION}; remove it and compact again"
    )


def save(lake: str | Path, dates: Mapping[str, Mapping[str, str]]) -> None:
    """Replace the list: after a power cut the old or the new one exists."""
    descriptor, temporary = tempfile.mkstemp(dir=lake, prefix=".compacted-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "dates": dates}, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(Path(lake) / NAME)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def invalidate(lake: str | Path, changing: Iterable[str]) -> None:
    """Remove dates from the list because their small files are about to change."""
    dates = load(lake)
    changed = [date for date in set(changing) if date in dates]
    if changed:
        folders = [Path(lake) / folder for date in changed for folder in dates.pop(date).values()]
        save(lake, dates)
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                folder.touch()  # KEEP_S starts now


def clean(lake: str | Path, keep_s: float = KEEP_S) -> int:
    """Remove folders that have not been listed for `keep_s` seconds. Returns their number."""
    with tempfile.NamedTemporaryFile(dir=lake, prefix=".compacted-") as file:
        now_s = os.fstat(file.fileno()).st_mtime  # the clock that also sets the times of the folders
    listed = {folder for folders in load(lake).values() for folder in folders.values()}
    removed = 0
    for leftover in Path(lake).glob(".compacted-*"):
        leftover.unlink(missing_ok=True)
    for folder in (Path(lake) / FOLDER).glob("*/*"):
        if str(folder.relative_to(lake)) not in listed and now_s - folder.stat().st_mtime > keep_s:
            shutil.rmtree(folder)
            removed += 1
    return removed
