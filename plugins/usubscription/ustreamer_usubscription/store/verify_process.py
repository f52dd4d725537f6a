# SPDX-License-Identifier: Apache-2.0
"""Reads a store in a process of its own: `python -m ustreamer_usubscription.store.verify_process MODE DIRECTORY`.

A damaged data.mdb can end the process that reads it (a truncated one by SIGBUS, a wrong page number by an assertion or
SIGSEGV) or keep it busy for ever. So this process reads it, and its parent believes only what comes out:

    walk      every record, through LMDB; then that every page of the tree is the one it says it is and none is a former
              one, and that they are of the last transaction and as many as it left
    verify    the same after LMDB's own verifier, which reads every page, the list of free pages included
    beside    every record, through LMDB, as they were at one moment, while a streamer may be writing
    salvage   what the tree still leads to, page by page and without LMDB

On stdout, each after its length in 4 bytes: MessagePack [[key, key, ...], [value, value, ...]]; at the end length 0 and, in 4
bytes, how many pages could not be read. Exit code 0; or 3 and one line on stderr that says what is wrong.

Imports little, not even pathlib, because every start of a streamer waits for it: 30 ms until the first record.
"""

import resource
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from mmap import PROT_READ, mmap
from operator import itemgetter, lt
from typing import IO, Final, NamedTuple

import lmdb
import msgspec

DAMAGED: Final = 3
"""Exit code."""
LENGTH: Final = struct.Struct(">I")
DATA: Final = "data.mdb"

_CHUNK: Final = 1024  # records; about 100 KiB
_KEY: Final = itemgetter(0)
_VALUE: Final = itemgetter(1)
_encode: Final = msgspec.msgpack.Encoder().encode


class Unreadable(Exception):
    """What LMDB's engine or its verifier says about the file."""


def main(mode: str, directory: str, out: IO[bytes]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # to die of what it reads is what this process is for
    lost = 0
    try:
        if mode == "salvage":
            tree = Tree(_mapped(directory))
            count = _send(out, tree.records())
            lost = tree.lost or int(count < tree.entries)
        else:
            if mode == "verify":
                _verify(directory)
            count = _walk(out, directory, beside=mode == "beside")
            if mode != "beside":
                # Afterwards, while the parent is still busy with what it got; what LMDB does, it does to this process.
                _check(directory, count)
    except (lmdb.Error, Unreadable, OSError, ValueError) as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        return DAMAGED
    out.write(LENGTH.pack(0) + LENGTH.pack(lost))
    out.flush()
    return 0


def _mapped(directory: str) -> mmap:
    with open(f"{directory}/{DATA}", "rb") as file:  # noqa: PTH123 (pathlib takes 9 ms to import)
        return mmap(file.fileno(), 0, prot=PROT_READ)


def _check(directory: str, count: int) -> None:
    """Find what LMDB passes over, and what would give former data, each record of which is whole; `count` it had."""
    # LMDB believes the number that a page says it has, and puts that page on the list of free ones when it copies this one.
    tree = Tree(_mapped(directory))
    used = tree.used()
    if tree.lost:
        raise Unreadable(f"{tree.lost} pages of its tree are none")
    if tree.missing:
        raise Unreadable(f"its last {tree.missing} pages are missing")
    if wrong := tree.wrong_transactions():
        raise Unreadable(wrong)
    if count != tree.entries:
        raise Unreadable(f"{count} records, and its meta page says {tree.entries}")
    if former := used & tree.free():
        raise Unreadable(f"{len(former)} pages of its tree, the first of them {min(former)}, are free ones")
    if tree.lost:
        raise Unreadable(f"{tree.lost} pages of its list of free ones are none")


def _verify(directory: str) -> None:
    from lmdb import verify

    try:
        problems: list[str] = verify.verify(directory)  # type: ignore[no-untyped-call]
    except verify.VerifyError as error:
        raise Unreadable(str(error)) from error
    if problems:
        raise Unreadable(f"{problems[0]} (and {len(problems) - 1} more)" if problems[1:] else problems[0])


def _walk(out: IO[bytes], directory: str, *, beside: bool) -> int:
    """Send every record; how many there are."""
    with (
        # The lock is what keeps a writer from using pages anew that are being read.
        lmdb.open(directory, readonly=True, lock=beside, create=False) as env,
        env.begin() as txn,
        txn.cursor() as cursor,
    ):
        return _send(out, cursor, ordered=True)


def _send(out: IO[bytes], records: Iterable[tuple[bytes, bytes]], *, ordered: bool = False) -> int:
    rest = iter(records)
    last, count = b"", 0
    while chunk := list(islice(rest, _CHUNK)):
        keys, values = list(map(_KEY, chunk)), list(map(_VALUE, chunk))
        if ordered and not (last < keys[0] and all(map(lt, keys, keys[1:]))):
            after, key = next(pair for pair in pairwise([last, *keys]) if pair[0] >= pair[1])
            raise Unreadable(f"record {key!r} comes after {after!r}")
        last = keys[-1]
        data = _encode((keys, values))
        out.write(LENGTH.pack(len(data)) + data)
        count += len(chunk)
    return count


# --- the tree, without LMDB ---------------------------------------------------------------------------------------------

_META: Final = struct.Struct("=IIQQ")  # magic, version, address, size of the map
_DB: Final = struct.Struct("=IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_TAIL: Final = struct.Struct("=QQ")  # last page, transaction
_PAGE: Final = struct.Struct("=QHHHH")  # number, pad, flags, lower, upper
_NODE: Final = struct.Struct("=HHHH")  # size or page: low, high; flags; size of the key
_NUMBER: Final = struct.Struct("=Q")
_METAS: Final = 2
_DEEPEST: Final = 32  # pages above each other
_MAGIC: Final = 0xBEEF_C0DE
_BRANCH, _LEAF, _META_PAGE = 0x01, 0x02, 0x08
_BIG: Final = 0x01
_NONE: Final = (1 << 64) - 1


class Meta(NamedTuple):
    """What a meta page says: one of two, which transactions write in turn."""

    transaction: int
    root: int
    free_root: int
    last: int
    """The number of the last page."""
    entries: int


class Tree:
    """The tree in a file of LMDB 0.9 (64 bit, this machine's byte order), without what makes no sense.

    It follows the newest tree from its root and nothing else: pages that lie about in the file hold records of former
    times, whole and with a right checksum, and would bring back what was deleted. `lost` counts unreadable pages.

    Nothing covers the number of the transaction in a meta page, and one flipped bit makes the last tree but one the newest.
    But every transaction puts the pages that it frees under its number, so the greatest number in the tree of free pages
    says it once more.
    """

    def __init__(self, data: bytes | mmap) -> None:
        self._data = data
        self._size = 4096
        self._seen: set[int] = set()
        self._former: set[int] = set()
        self.lost = 0
        self._metas = self._all_metas()

    @property
    def missing(self) -> int:
        """Pages behind the end of the file."""
        last = self._metas[0].last if self._metas else 0
        return max(last + 1 - len(self._data) // self._size, 0)

    @property
    def entries(self) -> int:
        """How many records there should be."""
        return self._metas[0].entries if self._metas else 0

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values as they stand there; whether their bytes are right is for the checksums to say.

        A page on the list of free ones is a former one, to which a damaged number leads.
        """
        self._former = self.free()
        return self._records(self.leaves())

    def _records(self, leaves: Iterable[int]) -> Iterator[tuple[bytes, bytes]]:
        for at in leaves:
            yield from filter(None, [self._record(at, node) for node in self._nodes(at)])

    def used(self) -> set[int]:
        """The numbers of the pages with records and above, those of large values apart."""
        for _ in self.leaves():
            pass
        return set(self._seen)

    def free(self) -> set[int]:
        """The numbers of the pages that the next transactions may write to."""
        found: set[int] = set()
        for key, value in self._records(self._leaves(self._metas[0].free_root)) if self._metas else ():
            if len(key) != _NUMBER.size or len(value) % _NUMBER.size:
                self.lost += 1
            else:
                found.update(struct.unpack(f"={len(value) // _NUMBER.size}Q", value)[1:])
        return found

    def wrong_transactions(self) -> str:
        """What is wrong with the numbers of the last two transactions; empty if nothing is."""
        numbers = [meta.transaction for meta in self._metas]
        if len(numbers) != _METAS or abs(numbers[0] - numbers[1]) != 1:
            return f"its meta pages are of transactions {numbers}, which do not follow each other"
        for meta in self._metas:
            freed = self._freed_last(meta)
            if freed not in {None, meta.transaction}:
                return f"its meta page of transaction {meta.transaction} is that of {freed}"
        return ""

    def _all_metas(self) -> list[Meta]:
        """What can be read of them, the newest first."""
        for size in (4096, 8192, 16384, 32768, 65536):
            found = [meta for at in (0, size) if (meta := self._meta(at, size))]
            if found:
                self._size = size
                return max((found, found[::-1]), key=self._credible)
        return []

    def _credible(self, metas: Sequence[Meta]) -> tuple[int, int]:
        """To be compared: how well it goes together that the first of these is the newest, and the other one before."""
        freed = [self._freed_last(meta) for meta in metas]
        said = {metas[0].transaction, *filter(None, freed[:1])}

        def doubts(newest: int) -> int:
            numbers = zip(metas, freed, range(newest, newest - 2, -1), strict=False)
            return sum((meta.transaction != is_) + (last not in {None, is_}) for meta, last, is_ in numbers)

        return -min(map(doubts, said)), freed[0] or metas[0].transaction

    def _freed_last(self, meta: Meta) -> int | None:
        """The last transaction that freed pages, for which every one but the first has reason; None if that is not known."""
        number = meta.free_root
        for _ in range(_DEEPEST):
            at = number * self._size
            if number == _NONE or at + self._size > len(self._data):
                return None
            own, _, flags, lower, upper = _PAGE.unpack_from(self._data, at)
            if own != number or flags not in {_BRANCH, _LEAF} or not _PAGE.size < lower <= self._size:
                return None
            nodes = struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", self._data, at + _PAGE.size)
            node = nodes[-1]
            if min(nodes) != upper or node + _NODE.size + _NUMBER.size > self._size:
                return None
            if flags == _LEAF:
                freed: int = _NUMBER.unpack_from(self._data, at + node + _NODE.size)[0]
                return freed
            number = self._child(at + node)
        return None

    def _meta(self, at: int, size: int) -> Meta | None:
        """A meta page for pages of `size` bytes."""
        if at + 152 > len(self._data):
            return None
        own, _, flags, _, _ = _PAGE.unpack_from(self._data, at)
        magic, version, _, _ = _META.unpack_from(self._data, at + 16)
        pad, _, _, _, _, _, _, free_root = _DB.unpack_from(self._data, at + 40)
        # LMDB opens no file in which one of these is wrong; to salvage from it, the rest will do: the other meta page knows
        # nothing of the last transaction.
        signs = (own * size == at, flags == _META_PAGE, magic == _MAGIC, version == 1, pad == size)
        if sum(signs) < len(signs) - 1:
            return None
        _, _, _, _, _, _, entries, root = _DB.unpack_from(self._data, at + 88)
        last, transaction = _TAIL.unpack_from(self._data, at + 136)
        return Meta(transaction, root, free_root, last, entries)

    def leaves(self) -> Iterator[int]:
        """Where the pages with records begin, in the order of their keys: 2 us each."""
        self.lost += len(self._metas) < _METAS
        return self._leaves(self._metas[0].root) if self._metas else iter(())

    def _leaves(self, root: int) -> Iterator[int]:
        todo = [] if root == _NONE else [root]
        while todo:
            number = todo.pop()
            at = number * self._size
            if number in self._seen or number in self._former or at + self._size > len(self._data):
                self.lost += 1
                continue
            self._seen.add(number)
            own, _, flags, lower, _ = _PAGE.unpack_from(self._data, at)
            if own != number or flags not in {_BRANCH, _LEAF} or not _PAGE.size <= lower <= self._size:
                self.lost += 1
            elif flags == _LEAF:
                yield at
            else:
                todo += [self._child(at + node) for node in reversed(self._nodes(at))]

    def _nodes(self, at: int) -> tuple[int, ...]:
        """Where on a page its nodes are, in the order of their keys."""
        _, _, _, lower, upper = _PAGE.unpack_from(self._data, at)
        nodes = struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", self._data, at + _PAGE.size)
        if not nodes:
            return nodes
        self.lost += len(set(nodes)) < len(nodes)
        if max(nodes) + _NODE.size > self._size or min(nodes) < upper:
            self.lost += 1
            # In the gap before `upper` lie nodes that have been deleted.
            return tuple(node for node in nodes if upper <= node <= self._size - _NODE.size)
        return nodes

    def _child(self, at: int) -> int:
        low, high, top, _ = _NODE.unpack_from(self._data, at)
        return int(low | high << 16 | top << 32)

    def _record(self, page: int, node: int) -> tuple[bytes, bytes] | None:
        low, high, flags, key_size = _NODE.unpack_from(self._data, page + node)
        start = page + node + _NODE.size
        key, at = self._data[start : start + key_size], start + key_size
        if flags & _BIG:
            try:
                at = _NUMBER.unpack_from(self._data, at)[0] * self._size + _PAGE.size
            except struct.error:  # it would stand behind the end
                self.lost += 1
                return None
        return key, self._data[at : at + (low | high << 16)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.stdout.buffer))
