# SPDX-License-Identifier: Apache-2.0
"""The tree in the file of an LMDB store, read without LMDB: the bytes of a file in, records and damage out."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from mmap import mmap
from typing import Final, NamedTuple

_META_HEADER: Final = struct.Struct("=IIQQ")  # magic, version, address, size of the map
_DB_HEADER: Final = struct.Struct(
    "=IHHQQQQQ"
)  # pad, flags, depth, pages (branch, leaf, overflow), entries, root
_META_TAIL: Final = struct.Struct("=QQ")  # last page, transaction
_PAGE_HEADER: Final = struct.Struct("=QHHHH")  # number, pad, flags, lower, upper
_NODE_HEADER: Final = struct.Struct("=HHHH")  # size or page: low, high; flags; size of the key
_NUMBER: Final = struct.Struct("=Q")
_META_PAGE_COUNT: Final = 2
_MAX_DEPTH: Final = 32  # pages above each other
_MAGIC: Final = 0xBEEF_C0DE
_BRANCH, _LEAF, _META_PAGE = 0x01, 0x02, 0x08
_OVERFLOW_FLAG: Final = 0x01
_NO_PAGE: Final = (1 << 64) - 1


class MetaPage(NamedTuple):
    """The content of one of the two meta pages, which transactions write in turn."""

    transaction: int
    root: int
    free_root: int
    last_page: int
    """The number of the last page in use."""
    entries: int


class LmdbTree:
    """The newest tree in a file of LMDB 0.9 (64 bit, this machine's byte order), without its invalid parts.

    The reader follows the tree from its root only. Other pages of the file hold deleted records, whole and with a valid
    checksum. `lost_pages` counts unreadable pages.

    No checksum covers the transaction number in a meta page: after one flipped bit the older tree looks like the
    newest. Each transaction lists the pages that it frees under its own number, so the greatest number in the tree of
    free pages confirms the transaction.
    """

    def __init__(self, data: bytes | mmap) -> None:
        self._data = data
        self._page_size = 4096
        self._visited_pages: set[int] = set()
        self._stale_pages: set[int] = set()
        self.lost_pages = 0
        self._meta_pages = self._read_meta_pages()

    @property
    def missing_pages(self) -> int:
        """Pages in use after the end of the file."""
        last = self._meta_pages[0].last_page if self._meta_pages else 0
        return max(last + 1 - len(self._data) // self._page_size, 0)

    @property
    def entries(self) -> int:
        """The number of records by the meta page."""
        return self._meta_pages[0].entries if self._meta_pages else 0

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values as stored; the caller verifies their checksums.

        Free pages are skipped: only a damaged page number leads to one.
        """
        self._stale_pages = self.free_pages()
        return self._records(self.leaf_offsets())

    def _records(self, leaves: Iterable[int]) -> Iterator[tuple[bytes, bytes]]:
        for at in leaves:
            yield from filter(None, [self._record(at, node) for node in self._nodes(at)])

    def used_pages(self) -> set[int]:
        """The numbers of the branch and leaf pages, without the overflow pages of large values."""
        for _ in self.leaf_offsets():
            pass
        return set(self._visited_pages)

    def free_pages(self) -> set[int]:
        """The numbers of the pages that later transactions may overwrite."""
        found: set[int] = set()
        for key, value in (
            self._records(self._leaf_offsets(self._meta_pages[0].free_root)) if self._meta_pages else ()
        ):
            if len(key) != _NUMBER.size or len(value) % _NUMBER.size:
                self.lost_pages += 1
            else:
                found.update(struct.unpack(f"={len(value) // _NUMBER.size}Q", value)[1:])
        return found

    def transaction_error(self) -> str:
        """The error in the numbers of the last two transactions; empty if there is none."""
        numbers = [meta.transaction for meta in self._meta_pages]
        if len(numbers) != _META_PAGE_COUNT or abs(numbers[0] - numbers[1]) != 1:
            return f"its meta pages are of transactions {numbers}, which do not follow each other"
        for meta in self._meta_pages:
            freed = self._last_freeing_transaction(meta)
            if freed not in {None, meta.transaction}:
                return f"its meta page of transaction {meta.transaction} is that of {freed}"
        return ""

    def _read_meta_pages(self) -> list[MetaPage]:
        """The readable meta pages, the newest first."""
        for size in (4096, 8192, 16384, 32768, 65536):
            found = [meta for at in (0, size) if (meta := self._read_meta_page(at, size))]
            if found:
                self._page_size = size
                return max((found, found[::-1]), key=self._credibility)
        return []

    def _credibility(self, metas: Sequence[MetaPage]) -> tuple[int, int]:
        """A sort key: how consistent it is that the first page is the newest and the second its predecessor."""
        freed = [self._last_freeing_transaction(meta) for meta in metas]
        claimed = {metas[0].transaction, *filter(None, freed[:1])}

        def contradictions(newest: int) -> int:
            numbers = zip(metas, freed, range(newest, newest - 2, -1), strict=False)
            return sum((meta.transaction != is_) + (last not in {None, is_}) for meta, last, is_ in numbers)

        return -min(map(contradictions, claimed)), freed[0] or metas[0].transaction

    def _last_freeing_transaction(self, meta: MetaPage) -> int | None:
        """The last transaction that freed pages, as all but the first do; None if it cannot be read."""
        number = meta.free_root
        for _ in range(_MAX_DEPTH):
            at = number * self._page_size
            if number == _NO_PAGE or at + self._page_size > len(self._data):
                return None
            own, _, flags, lower, upper = _PAGE_HEADER.unpack_from(self._data, at)
            if (
                own != number
                or flags not in {_BRANCH, _LEAF}
                or not _PAGE_HEADER.size <= lower <= self._page_size
            ):
                return None
            nodes = struct.unpack_from(
                f"={(lower - _PAGE_HEADER.size) // 2}H", self._data, at + _PAGE_HEADER.size
            )
            if not nodes:
                return None
            node = nodes[-1]
            if min(nodes) != upper or node + _NODE_HEADER.size + _NUMBER.size > self._page_size:
                return None
            if flags == _LEAF:
                freed: int = _NUMBER.unpack_from(self._data, at + node + _NODE_HEADER.size)[0]
                return freed
            number = self._child(at + node)
        return None

    def _read_meta_page(self, at: int, size: int) -> MetaPage | None:
        """A meta page for pages of `size` bytes."""
        if at + 152 > len(self._data):
            return None
        own, _, flags, _, _ = _PAGE_HEADER.unpack_from(self._data, at)
        magic, version, _, _ = _META_HEADER.unpack_from(self._data, at + 16)
        pad, _, _, _, _, _, _, free_root = _DB_HEADER.unpack_from(self._data, at + 40)
        # LMDB rejects a file with one wrong field. A salvage accepts it: the other meta page is one transaction old.
        matches = (own * size == at, flags == _META_PAGE, magic == _MAGIC, version == 1, pad == size)
        if sum(matches) < len(matches) - 1:
            return None
        _, _, _, _, _, _, entries, root = _DB_HEADER.unpack_from(self._data, at + 88)
        last, transaction = _META_TAIL.unpack_from(self._data, at + 136)
        return MetaPage(transaction, root, free_root, last, entries)

    def leaf_offsets(self) -> Iterator[int]:
        """The offsets of the leaf pages, in the order of their keys: 2 us each."""
        self.lost_pages += len(self._meta_pages) < _META_PAGE_COUNT
        return self._leaf_offsets(self._meta_pages[0].root) if self._meta_pages else iter(())

    def _leaf_offsets(self, root: int) -> Iterator[int]:
        pending_pages = [] if root == _NO_PAGE else [root]
        while pending_pages:
            number = pending_pages.pop()
            at = number * self._page_size
            if (
                number in self._visited_pages
                or number in self._stale_pages
                or at + self._page_size > len(self._data)
            ):
                self.lost_pages += 1
                continue
            self._visited_pages.add(number)
            own, _, flags, lower, _ = _PAGE_HEADER.unpack_from(self._data, at)
            if (
                own != number
                or flags not in {_BRANCH, _LEAF}
                or not _PAGE_HEADER.size <= lower <= self._page_size
            ):
                self.lost_pages += 1
            elif flags == _LEAF:
                yield at
            else:
                pending_pages += [self._child(at + node) for node in reversed(self._nodes(at))]

    def _nodes(self, at: int) -> tuple[int, ...]:
        """The offsets of the nodes in a page, in the order of their keys."""
        _, _, _, lower, upper = _PAGE_HEADER.unpack_from(self._data, at)
        nodes = struct.unpack_from(
            f"={(lower - _PAGE_HEADER.size) // 2}H", self._data, at + _PAGE_HEADER.size
        )
        if not nodes:
            return nodes
        self.lost_pages += len(set(nodes)) < len(nodes)
        if max(nodes) + _NODE_HEADER.size > self._page_size or min(nodes) < upper:
            self.lost_pages += 1
            # The gap before `upper` holds deleted nodes.
            return tuple(node for node in nodes if upper <= node <= self._page_size - _NODE_HEADER.size)
        return nodes

    def _child(self, at: int) -> int:
        low, high, top, _ = _NODE_HEADER.unpack_from(self._data, at)
        return int(low | high << 16 | top << 32)

    def _record(self, page: int, node: int) -> tuple[bytes, bytes] | None:
        low, high, flags, key_size = _NODE_HEADER.unpack_from(self._data, page + node)
        start = page + node + _NODE_HEADER.size
        key, at = self._data[start : start + key_size], start + key_size
        if flags & _OVERFLOW_FLAG:
            try:
                at = _NUMBER.unpack_from(self._data, at)[0] * self._page_size + _PAGE_HEADER.size
            except struct.error:  # the node ends after the end of the file
                self.lost_pages += 1
                return None
        return key, self._data[at : at + (low | high << 16)]
