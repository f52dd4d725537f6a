# SPDX-License-Identifier: Apache-2.0
"""Reads a spool in a process of its own: `python -m ustreamer.host.storage.spool_reader MODE DIRECTORY [NEW]`.

A damaged data.mdb can end the process that reads it (a truncated one by SIGBUS, a wrong page number by an assertion), so
its parent maps only what this one came through:

    walk       every record by its checksum
    verify     LMDB's verifier, which reads every page, and then the same
    forward    copy what is right to the spool in NEW, which is made, from the first record on, as far as it goes
    backward   the same from the last record on, into the NEW that `forward` has made

`walk` and `verify` print one line of JSON, a `Summary`. Exit code 0; or 3 for damage and 4 for a later layout, and one
line on stderr that says what is wrong.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb
import msgspec

from ustreamer.core.egress.limits import CLASSES
from ustreamer.host.storage.spool_records import (
    LAYOUT,
    LAYOUT_KEY,
    SpoolDamaged,
    check_layout,
    decode_key,
    encode_value,
    verify_record,
)
from ustreamer.uprotocol.ustatus import UStatusError

DAMAGED: Final = 3
NEWER_LAYOUT: Final = 4
_BATCH: Final = 16  # records of one transaction: what a death in the middle costs at most


class SpoolSummary(msgspec.Struct):
    """What is in a spool: messages, bytes of keys and values, and the last sequence of each class; the damaged keys, in hex."""

    messages: list[int] = msgspec.field(default_factory=lambda: [0] * CLASSES)
    bytes: list[int] = msgspec.field(default_factory=lambda: [0] * CLASSES)
    last: list[int] = msgspec.field(default_factory=lambda: [0] * CLASSES)
    damaged: list[str] = []


def main(mode: str, directory: Path, new: Path | None = None) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # to die of what it reads is what this process is for
    try:
        if new is not None:
            _copy(directory, new, backward=mode == "backward")
            return 0
        if mode == "verify":
            _verify(directory)
        summary = _walk(directory)
    except (lmdb.Error, SpoolDamaged, OSError, ValueError) as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        return DAMAGED
    except UStatusError as error:
        print(error.message, file=sys.stderr)
        return NEWER_LAYOUT
    print(msgspec.json.encode(summary).decode())
    return 0


def _verify(directory: Path) -> None:
    from lmdb import verify  # only where it is needed: 40 ms

    try:
        problems: list[str] = verify.verify(str(directory))  # type: ignore[no-untyped-call]
    except verify.VerifyError as error:
        raise SpoolDamaged(str(error)) from error
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise SpoolDamaged(problems[0] + more)


def _walk(directory: Path) -> SpoolSummary:
    summary = SpoolSummary(damaged=[])
    with _open_readonly(directory) as env, env.begin() as txn, txn.cursor() as cursor:
        check_layout(txn.get(LAYOUT_KEY))
        for key, value in cursor:
            if key == LAYOUT_KEY:
                continue
            try:
                rank, sequence = decode_key(key)
                verify_record(key, value)
            except SpoolDamaged:
                summary.damaged.append(key.hex())
                continue
            summary.messages[rank] += 1
            summary.bytes[rank] += len(key) + len(value)
            summary.last[rank] = sequence
    return summary


def _open_readonly(directory: Path) -> lmdb.Environment:
    return lmdb.open(str(directory), readonly=True, lock=False, create=False)


def _copy(directory: Path, new: Path, *, backward: bool) -> None:
    size = 4 * (directory / "data.mdb").stat().st_size + (1 << 26)
    new.mkdir(mode=0o700, exist_ok=True)
    with lmdb.open(str(new), map_size=size, sync=False, mode=0o600) as target:
        with target.begin(write=True) as txn:
            txn.put(LAYOUT_KEY, encode_value(LAYOUT_KEY, LAYOUT))
        with _open_readonly(directory) as env, env.begin() as reading, reading.cursor() as cursor:
            records = cursor.iterprev() if backward else iter(cursor)
            complete = False
            while not complete:
                with target.begin(write=True) as txn:
                    complete = _copy_batch(records, txn)


def _copy_batch(records: Iterator[tuple[bytes, bytes]], target: lmdb.Transaction) -> bool:
    """Copy some records; whether there are no more, or none that can be read."""
    for _ in range(_BATCH):
        try:
            record = next(records, None)
        except lmdb.Error:
            return True
        if record is None:
            return True
        if _is_valid(*record):
            target.put(*record)
    return False


def _is_valid(key: bytes, value: bytes) -> bool:
    try:
        decode_key(key)
        verify_record(key, value)
    except SpoolDamaged:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(Path, sys.argv[2:])))
