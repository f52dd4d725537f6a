# SPDX-License-Identifier: Apache-2.0
"""Throughput of a spool, storing and removing messages: `python -m benchmarks.spool [DIRECTORY]`.

Messages come in batches of 64. Each batch is a transaction that is on disk when the call returns. The reference is
LMDB's own put of the same bytes.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lmdb

from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import SpoolRecord, encode_key, encode_value

BATCH: Final = 64
BATCHES: Final = 100
SIZES: Final = (100, 1000, 8000)


def rate(batch: Callable[[int], object]) -> float:
    """Messages per second, if `batch(number)` stores or removes one batch."""
    start = time.perf_counter()
    for number in range(BATCHES):
        batch(number)
    return BATCHES * BATCH / (time.perf_counter() - start)


def spool_rates(directory: Path, size: int) -> tuple[float, float]:
    message = SpoolRecord(
        b"a" * 60, b"p" * size, "chassis", "up://chassis/1234/1/8001", None, 1, 2, b"b" * 8, 2
    )
    spool = Spool(directory / "spool", SpoolLimits(1_000_000, 1 << 32))
    spool.open()
    keys: list[bytes] = []

    commit_rate = rate(lambda _: keys.extend(spool.commit([(1, message)] * BATCH)))
    remove_rate = rate(lambda number: spool.delete_messages(keys[number * BATCH : (number + 1) * BATCH]))
    spool.close()
    return commit_rate, remove_rate


def lmdb_rate(directory: Path, size: int) -> float:
    value = encode_value(b"key", SpoolRecord(b"a" * 60, b"p" * size, "chassis", "", None, 1, 2, b"b" * 8, 2))
    with lmdb.open(str(directory / "plain"), map_size=1 << 32) as env:

        def put(number: int) -> None:
            with env.begin(write=True) as txn:
                for each in range(number * BATCH, (number + 1) * BATCH):
                    txn.put(encode_key(1, each), value)

        return rate(put)


def main(directory_path: str | None = None) -> None:
    print(
        f"{'payload':>8} {'added/s':>9} {'removed/s':>10} {'plain puts/s':>13}   in transactions of {BATCH}"
    )
    for size in SIZES:
        with tempfile.TemporaryDirectory(dir=directory_path) as directory:
            added, removed = spool_rates(Path(directory), size)
            plain = lmdb_rate(Path(directory), size)
        print(f"{size:>8} {added:>9,.0f} {removed:>10,.0f} {plain:>13,.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
