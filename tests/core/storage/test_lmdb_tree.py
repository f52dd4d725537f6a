# SPDX-License-Identifier: Apache-2.0
"""The tree reader against LMDB. The tests of the subscription store flip thousands of bits in it."""

import struct
from pathlib import Path

import lmdb
import pytest

from ustreamer.core.storage.environment import open_environment
from ustreamer.core.storage.lmdb_tree import LmdbTree
from ustreamer.core.storage.reader_table import DATA_FILE

MAP = 1 << 26


@pytest.fixture
def stored(tmp_path: Path) -> dict[bytes, bytes]:
    """Records of every size, written, overwritten and deleted in several transactions."""
    with open_environment(tmp_path, MAP, mode=0o600) as env:
        for start in range(0, 600, 100):
            with env.begin(write=True) as txn:
                for number in range(start, start + 100):
                    txn.put(b"%04d" % number, b"v" * (number * 17 % 9000))
                    txn.delete(b"%04d" % (number - 150))
        with env.begin() as txn:
            return dict(txn.cursor())


def test_the_tree_has_the_records_of_lmdb(tmp_path: Path, stored: dict[bytes, bytes]) -> None:
    tree = LmdbTree((tmp_path / DATA_FILE).read_bytes())
    assert list(tree.records()) == list(stored.items())
    assert (tree.entries, tree.lost_pages, tree.missing_pages) == (len(stored), 0, 0)
    assert tree.transaction_error() == ""


def test_no_page_is_used_and_free(tmp_path: Path, stored: dict[bytes, bytes]) -> None:
    tree = LmdbTree((tmp_path / DATA_FILE).read_bytes())
    assert tree.used_pages()
    assert tree.free_pages()
    assert not tree.used_pages() & tree.free_pages()


def test_a_truncated_file_returns_only_correct_records(tmp_path: Path, stored: dict[bytes, bytes]) -> None:
    whole = (tmp_path / DATA_FILE).read_bytes()
    tree = LmdbTree(whole[: len(whole) // 2])
    found = {key: value for key, value in tree.records() if len(value) == len(stored.get(key, b""))}
    assert found.items() <= stored.items()
    assert tree.missing_pages > 0


@pytest.mark.parametrize("nodes_end", [0, 15, 16, 17, 19, 4097])
def test_the_records_of_pages_whose_lists_of_nodes_end_anywhere_are_lost(
    tmp_path: Path, stored: dict[bytes, bytes], nodes_end: int
) -> None:
    """`lower`, the end of the list of nodes, is at byte 12 of a page. A page has at least 16 bytes before it."""
    data = bytearray((tmp_path / DATA_FILE).read_bytes())
    for page in range(2, len(data) // 4096):
        struct.pack_into("=H", data, page * 4096 + 12, nodes_end)
    tree = LmdbTree(bytes(data))
    found = {key for key, _ in tree.records()}
    assert found < stored.keys()
    assert tree.entries == len(stored)


def test_an_empty_file_has_no_record() -> None:
    tree = LmdbTree(b"")
    assert list(tree.records()) == []
    assert tree.lost_pages > 0


def test_the_tree_is_that_of_the_lmdb_in_use() -> None:
    assert lmdb.version()[:2] == (0, 9)
