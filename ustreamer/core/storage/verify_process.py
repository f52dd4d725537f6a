# SPDX-License-Identifier: Apache-2.0
"""The process that reads a store: `python -m ustreamer.core.storage.verify_process MODE DIRECTORY`.

A damaged data.mdb can end the process that reads it (a truncated file by SIGBUS, a wrong page number by an assertion
or SIGSEGV) or keep it busy forever. This process reads the file, and its parent accepts only the output:

    walk      every record, through LMDB; then the pages of the tree: each has its own number, none is a free one,
              all are of the last transaction, and their records are as many as its meta page counts
    verify    LMDB's verifier first, which reads every page including the list of free pages; then as `walk`
    snapshot  every record, through LMDB, as of one moment; a streamer may be writing meanwhile
    salvage   every record that the tree still leads to, page by page and without LMDB

Output on stdout: chunks, each after its length in 4 bytes: MessagePack [[key, ...], [value, ...]]. At the end length 0
and, in 4 bytes, the number of unreadable pages. Exit code 0; or 3 for damage, with one line on stderr.

The module imports little, not even pathlib or msgspec, because every start of a streamer waits for it: 25 ms for a
small store. With msgspec it would be 49 ms, which only a large store is worth.
"""

import resource
import struct
import sys
from collections.abc import Iterable, Iterator
from errno import EDQUOT, EFBIG, EIO, ENOENT, ENOSPC, EROFS
from itertools import chain, islice, pairwise
from mmap import PROT_READ, mmap
from operator import itemgetter, lt
from typing import IO, Final, TypeAlias

import lmdb

from ustreamer.core.storage.lmdb_tree import LmdbTree
from ustreamer.core.storage.reader_table import DATA_FILE, allocate_reader_table

EXIT_DAMAGED: Final = 3
LENGTH_PREFIX: Final = struct.Struct(">I")

_CHUNK_RECORDS: Final = 1024  # about 100 KiB of subscriptions
_CHUNK_BYTES: Final = 1 << 20  # of values; a chunk of large messages has up to _STEP_RECORDS more
_STEP_RECORDS: Final = 16
_FEW_RECORDS: Final = 65_536  # packing them without msgspec takes less time than its import
_KEY: Final = itemgetter(0)
_VALUE: Final = itemgetter(1)
# MessagePack: an array of two; an array and a byte string, followed by their lengths in 4 bytes.
_PAIR, _ARRAY_32, _BIN_32 = b"\x92", 0xDD, 0xC6
_pack_header: Final = struct.Struct(">BI").pack

_Record: TypeAlias = tuple[bytes, bytes]


class DataFileDamaged(Exception):
    """LMDB or its verifier rejects the file."""


def main(mode: str, directory: str, out: IO[bytes]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash of this process is an expected result
    lost_pages = 0
    try:
        if mode == "salvage":
            tree = LmdbTree(_map_file(directory))
            count = _send_records(out, tree.records())
            lost_pages = tree.lost_pages or int(count < tree.entries)
        else:
            if mode == "verify":
                _run_lmdb_verifier(directory)
            count = _walk_records(out, directory, snapshot=mode == "snapshot")
            if mode != "snapshot":
                # After the last record: the parent still works on the records meanwhile.
                _check_tree(directory, count)
    except (lmdb.Error, DataFileDamaged, OSError, ValueError) as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        return EXIT_DAMAGED
    out.write(LENGTH_PREFIX.pack(0) + LENGTH_PREFIX.pack(lost_pages))
    out.flush()
    return 0


def _map_file(directory: str) -> mmap:
    with open(f"{directory}/{DATA_FILE}", "rb") as file:  # noqa: PTH123 (pathlib takes 9 ms to import)
        return mmap(file.fileno(), 0, prot=PROT_READ)


def _check_tree(directory: str, count: int) -> None:
    """Find damage that LMDB skips, and free pages, which hold whole records of earlier times. `count`: records sent."""
    # LMDB does not check the number in a page, and frees the page of that number when it copies this page.
    tree = LmdbTree(_map_file(directory))
    used = tree.used_pages()
    if tree.lost_pages:
        raise DataFileDamaged(f"{tree.lost_pages} pages in its tree cannot be read")
    if tree.missing_pages:
        raise DataFileDamaged(f"its last {tree.missing_pages} pages are missing")
    if wrong := tree.transaction_error():
        raise DataFileDamaged(wrong)
    if count != tree.entries:
        raise DataFileDamaged(f"{count} records, and its meta page says {tree.entries}")
    if stale_pages := used & tree.free_pages():
        raise DataFileDamaged(
            f"{len(stale_pages)} pages of its tree, the first of them {min(stale_pages)}, are free ones"
        )
    if tree.lost_pages:
        raise DataFileDamaged(f"{tree.lost_pages} pages in its list of free pages cannot be read")


def _run_lmdb_verifier(directory: str) -> None:
    from lmdb import verify

    try:
        problems: list[str] = verify.verify(directory)  # type: ignore[no-untyped-call]
    except verify.VerifyError as error:
        raise DataFileDamaged(str(error)) from error
    if problems:
        raise DataFileDamaged(
            f"{problems[0]} (and {len(problems) - 1} more)" if problems[1:] else problems[0]
        )


def _walk_records(out: IO[bytes], directory: str, *, snapshot: bool) -> int:
    """Send every record and return their number."""
    with (
        # The lock keeps a writer from reusing pages that are being read.
        lmdb.open(
            directory, readonly=True, lock=snapshot and _has_reader_table(directory), create=False
        ) as env,
        env.begin() as txn,
        txn.cursor() as cursor,
    ):
        return _send_records(out, cursor, ordered=True)


def _has_reader_table(directory: str) -> bool:
    """Whether the reader table can be mapped. If there is none, or no room for it, no streamer writes the store."""
    try:
        allocate_reader_table(directory, create=False)
    except OSError as error:
        if error.errno not in {ENOENT, ENOSPC, EDQUOT, EFBIG, EIO, EROFS}:
            raise
        return False
    return True


def _send_records(out: IO[bytes], records: Iterable[_Record], *, ordered: bool = False) -> int:
    rest = iter(records)
    last, count = b"", 0
    while chunk := _next_chunk(rest):
        keys, values = list(map(_KEY, chunk)), list(map(_VALUE, chunk))
        if ordered and not (last < keys[0] and all(map(lt, keys, keys[1:]))):
            after, key = next(pair for pair in pairwise([last, *keys]) if pair[0] >= pair[1])
            raise DataFileDamaged(f"record {key!r} comes after {after!r}")
        last = keys[-1]
        data = _pack_chunk(keys, values) if count < _FEW_RECORDS else _pack_many(keys, values)
        out.write(LENGTH_PREFIX.pack(len(data)) + data)
        count += len(chunk)
    return count


def _pack_chunk(keys: list[bytes], values: list[bytes]) -> bytes:
    """A chunk in MessagePack, without msgspec: 0.27 us for each record."""
    return _PAIR + _pack_column(keys) + _pack_column(values)


def _pack_many(keys: list[bytes], values: list[bytes]) -> bytes:
    """As `_pack_chunk` in 0.02 us for each record, after an import of 24 ms."""
    import msgspec

    return msgspec.msgpack.encode((keys, values))


def _pack_column(column: list[bytes]) -> bytes:
    elements = chain.from_iterable((_pack_header(_BIN_32, len(each)), each) for each in column)
    return b"".join([_pack_header(_ARRAY_32, len(column)), *elements])


def _next_chunk(records: Iterator[_Record]) -> list[_Record]:
    chunk: list[_Record] = []
    size = 0
    while (
        len(chunk) < _CHUNK_RECORDS and size < _CHUNK_BYTES and (some := list(islice(records, _STEP_RECORDS)))
    ):
        chunk += some
        size += sum(map(len, map(_VALUE, some)))
    return chunk


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.stdout.buffer))
