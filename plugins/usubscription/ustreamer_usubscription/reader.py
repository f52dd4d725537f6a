# SPDX-License-Identifier: Apache-2.0
"""Reads a store in a process of its own: `python -m ustreamer_usubscription.reader MODE DIRECTORY`.

A damaged data.mdb can end the process that reads it (a truncated one by SIGBUS, a wrong page number by an assertion or
SIGSEGV) or keep it busy for ever. So this process reads it, and its parent believes only what comes out:

    walk      every record, through LMDB; then that every page of the tree is the one it says it is
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
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from mmap import PROT_READ, mmap
from operator import itemgetter, lt
from typing import IO, Final

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
            _send(out, tree.records())
            lost = tree.lost
        else:
            if mode == "verify":
                _verify(directory)
            _walk(out, directory, beside=mode == "beside")
            if mode != "beside":
                # Afterwards, while the parent is still busy with what it got; what LMDB does, it does to this process.
                _check(directory)
    except (lmdb.Error, Unreadable, OSError, ValueError) as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        return DAMAGED
    out.write(LENGTH.pack(0) + LENGTH.pack(lost))
    out.flush()
    return 0


def _mapped(directory: str) -> mmap:
    with open(f"{directory}/{DATA}", "rb") as file:  # noqa: PTH123 (pathlib takes 9 ms to import)
        return mmap(file.fileno(), 0, prot=PROT_READ)


def _check(directory: str) -> None:
    # LMDB believes the number that a page says it has, and puts that page on the list of free ones when it copies this one.
    tree = Tree(_mapped(directory))
    for _ in tree.leaves():
        pass
    if tree.lost:
        raise Unreadable(f"{tree.lost} pages of its tree are none")
    if tree.missing:
        raise Unreadable(f"its last {tree.missing} pages are missing")


def _verify(directory: str) -> None:
    from lmdb import verify

    try:
        problems: list[str] = verify.verify(directory)  # type: ignore[no-untyped-call]
    except verify.VerifyError as error:
        raise Unreadable(str(error)) from error
    if problems:
        raise Unreadable(f"{problems[0]} (and {len(problems) - 1} more)" if problems[1:] else problems[0])


def _walk(out: IO[bytes], directory: str, *, beside: bool) -> None:
    with (
        # The lock is what keeps a writer from using pages anew that are being read.
        lmdb.open(directory, readonly=True, lock=beside, create=False) as env,
        env.begin() as txn,
        txn.cursor() as cursor,
    ):
        _send(out, cursor, ordered=True)


def _send(out: IO[bytes], records: Iterable[tuple[bytes, bytes]], *, ordered: bool = False) -> None:
    rest = iter(records)
    last = b""
    while chunk := list(islice(rest, _CHUNK)):
        keys, values = list(map(_KEY, chunk)), list(map(_VALUE, chunk))
        if ordered and not (last < keys[0] and all(map(lt, keys, keys[1:]))):
            after, key = next(pair for pair in pairwise([last, *keys]) if pair[0] >= pair[1])
            raise Unreadable(f"record {key!r} comes after {after!r}")
        last = keys[-1]
        data = _encode((keys, values))
        out.write(LENGTH.pack(len(data)) + data)


# --- the tree, without LMDB ---------------------------------------------------------------------------------------------

_META: Final = struct.Struct("=IIQQ")  # magic, version, address, size of the map
_DB: Final = struct.Struct("=IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_TAIL: Final = struct.Struct("=QQ")  # last page, transaction
_PAGE: Final = struct.Struct("=QHHHH")  # number, pad, flags, lower, upper
_NODE: Final = struct.Struct("=HHHH")  # size or page: low, high; flags; size of the key
_NUMBER: Final = struct.Struct("=Q")
_MAGIC: Final = 0xBEEF_C0DE
_BRANCH, _LEAF, _META_PAGE = 0x01, 0x02, 0x08
_BIG: Final = 0x01
_NONE: Final = (1 << 64) - 1


class Tree:
    """The tree in a file of LMDB 0.9 (64 bit, this machine's byte order), without what makes no sense.

    It follows the newest tree from its root and nothing else: pages that lie about in the file hold records of former
    times, whole and with a right checksum, and would bring back what was deleted. `lost` counts unreadable pages.
    """

    def __init__(self, data: bytes | mmap) -> None:
        self._data = data
        self._size = 4096
        self._seen: set[int] = set()
        self._last = 0
        self.lost = 0

    @property
    def missing(self) -> int:
        """Pages behind the end of the file; known once the root is."""
        return max(self._last + 1 - len(self._data) // self._size, 0)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values as they stand there; whether their bytes are right is for the checksums to say."""
        for at in self.leaves():
            yield from filter(None, [self._record(at, node) for node in self._nodes(at)])

    def _root(self) -> int | None:
        """The page at the top of the newest tree; None if no meta page can be read."""
        for size in (4096, 8192, 16384, 32768, 65536):
            found = [meta for at in (0, size) if (meta := self._meta(at, size))]
            if found:
                self._size = size
                _, root, self._last = max(found)
                return root
        return None

    def _meta(self, at: int, size: int) -> tuple[int, int, int] | None:
        """(transaction, root, last page) of a meta page for pages of `size` bytes."""
        if at + 152 > len(self._data):
            return None
        flags = _PAGE.unpack_from(self._data, at)[2]
        magic, version, _, _ = _META.unpack_from(self._data, at + 16)
        pad = _DB.unpack_from(self._data, at + 40)[0]
        if (flags, magic, version, pad) != (_META_PAGE, _MAGIC, 1, size):
            return None
        root: int = _DB.unpack_from(self._data, at + 88)[7]
        last, transaction = _TAIL.unpack_from(self._data, at + 136)
        return transaction, root, last

    def leaves(self) -> Iterator[int]:
        """Where the pages with records begin, in the order of their keys: 2 us each."""
        root = self._root()
        if root is None:
            self.lost += 1
        todo = [] if root in {None, _NONE} else [root]
        while todo:
            number = todo.pop()
            at = number * self._size
            if number in self._seen or at + self._size > len(self._data):
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
        lower = _PAGE.unpack_from(self._data, at)[3]
        nodes = struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", self._data, at + _PAGE.size)
        if nodes and max(nodes) + _NODE.size > self._size:
            self.lost += 1
            return tuple(node for node in nodes if node + _NODE.size <= self._size)
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
