# SPDX-License-Identifier: Apache-2.0
"""Stores that are moved aside, and their replacements."""

from pathlib import Path

from ustreamer.core.storage.store_files import (
    MAX_QUARANTINED,
    finish_replacement,
    quarantined_stores,
    replace_store,
    sibling,
)


def store(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "data.mdb").write_text(content)
    return path


def content(path: Path) -> str:
    return (path / "data.mdb").read_text()


def test_a_replacement_takes_the_place_of_the_store(tmp_path: Path) -> None:
    path = store(tmp_path / "s", "old")
    store(sibling(path, "new"), "new")
    quarantine = replace_store(path, date="20260101T000000Z")
    assert quarantine.name == "s.damaged-1-20260101T000000Z"
    assert (content(path), content(quarantine)) == ("new", "old")


def test_only_the_latest_stores_of_a_label_stay(tmp_path: Path) -> None:
    path = tmp_path / "s"
    other = store(tmp_path / "s.layout1-1", "migrated")
    for number in range(MAX_QUARANTINED + 2):
        replace_store(store(path, str(number)))
    assert [(number, content(each)) for number, each in quarantined_stores(path)] == [
        (3, "2"),
        (4, "3"),
        (5, "4"),
    ]
    assert other.exists()


def test_an_interrupted_replacement_is_completed_only_without_a_store(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store(sibling(path, "new"), "new")
    finish_replacement(path)
    assert content(path) == "new"
    store(sibling(path, "new"), "incomplete")
    finish_replacement(path)
    assert content(path) == "new"
