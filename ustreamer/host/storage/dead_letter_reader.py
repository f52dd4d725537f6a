# SPDX-License-Identifier: Apache-2.0
"""Reads a store of dead letters in a process of its own: `python -m ustreamer.host.storage.dead_letter_reader MODE DIRECTORY`.

A damaged data.mdb can end the process that reads it (a truncated one by SIGBUS, a wrong page number by an assertion), so
its parent believes only what comes out of this one:

    verify    LMDB's verifier, which reads every page, and then every record; for a store that nobody uses
    snapshot  every record as they were at one moment, while a streamer may be writing

On stdout, for each record, the lengths of key and value in 4 bytes each, key and value; at the end two lengths of 0. Exit
code 0; or 3 and one line on stderr that says what is wrong.
"""

import resource
import struct
import sys
from typing import IO, Final

import lmdb

DAMAGED: Final = 3
"""Exit code."""
LENGTHS: Final = struct.Struct(">II")


class StoreVerifyFailed(Exception):
    """What LMDB's verifier says about the file."""


def main(mode: str, directory: str, out: IO[bytes]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # to die of what it reads is what this process is for
    try:
        if mode == "verify":
            _verify(directory)
        _walk(out, directory, snapshot=mode == "snapshot")
    except (lmdb.Error, StoreVerifyFailed, OSError, ValueError) as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        return DAMAGED
    out.write(LENGTHS.pack(0, 0))
    out.flush()
    return 0


def _verify(directory: str) -> None:
    from lmdb import verify  # only where it is needed: 40 ms

    try:
        problems: list[str] = verify.verify(directory)  # type: ignore[no-untyped-call]
    except verify.VerifyError as error:
        raise StoreVerifyFailed(str(error)) from error
    if problems:
        raise StoreVerifyFailed(
            f"{problems[0]} (and {len(problems) - 1} more)" if problems[1:] else problems[0]
        )


def _walk(out: IO[bytes], directory: str, *, snapshot: bool) -> None:
    with (
        # The lock is what keeps a writer from using pages anew that are being read.
        lmdb.open(directory, readonly=True, lock=snapshot, create=False) as env,
        env.begin() as txn,
        txn.cursor() as cursor,
    ):
        for key, value in cursor:
            out.write(LENGTHS.pack(len(key), len(value)) + key + value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.stdout.buffer))
