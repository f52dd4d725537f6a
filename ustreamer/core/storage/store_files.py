# SPDX-License-Identifier: Apache-2.0
"""The directories next to a store: its replacement, and the damaged or older stores that were moved aside.

    <name>/                  the store
    <name>.new/              a replacement; it is complete if <name> is missing
    <name>.<label>-<n>.../   stores that were moved aside under a label such as `damaged`; the latest three

The number and not a date orders the stores that were moved aside: the clock of an ECU can be set back.
"""

import os
import re
from pathlib import Path
from typing import Final

MAX_QUARANTINED: Final = 3
"""Stores of one label that are kept."""
DAMAGED: Final = "damaged"


def sibling(path: Path, suffix: str) -> Path:
    """The path `<name>.<suffix>` next to the store."""
    return path.with_name(f"{path.name}.{suffix}")


def remove_store(path: Path) -> None:
    """Remove a store, if it exists, as far as the disk permits."""
    if path.exists():
        import shutil  # with three libraries for compression; few starts remove a store

        shutil.rmtree(path, ignore_errors=True)


def replace_store(path: Path, label: str = DAMAGED, date: str = "") -> Path:
    """Move the store aside and `<name>.new`, if there is one, into its place; return where the old store is.

    After a crash at any point, `finish_replacement` completes the move.
    """
    number = max((number for number, _ in quarantined_stores(path, label)), default=0) + 1
    quarantine = sibling(path, f"{label}-{number}{date and f'-{date}'}")
    path.rename(quarantine)
    finish_replacement(path)
    for _, old in quarantined_stores(path, label)[:-MAX_QUARANTINED]:
        remove_store(old)
    return quarantine


def finish_replacement(path: Path) -> None:
    """Move a replacement into place if a crash left the store's place empty."""
    new = sibling(path, "new")
    if new.exists() and not path.exists():
        new.rename(path)
        sync_directory(path.parent)


def quarantined_stores(path: Path, label: str = DAMAGED) -> list[tuple[int, Path]]:
    """The stores that were moved aside under `label`, each with its number, in ascending order."""
    named = re.compile(rf"{re.escape(path.name)}\.{label}-(\d{{1,9}})(-\w+)?")
    candidates = ((named.fullmatch(each.name), each) for each in path.parent.iterdir())
    return sorted((int(match[1]), each) for match, each in candidates if match)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut, as fsync of a file does for its bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
