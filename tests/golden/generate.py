# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.golden.generate`: writes the golden files that are missing. It never changes an existing one.

    files/<run>.txt        the frames of a run
    files/<store>.mdb.gz   a compacted copy of the store that a run wrote
    files/<segment>.gz     a segment of the recording, byte for byte; it needs no text file

The runs need no network but loopback.
"""

import gzip
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import lmdb

from tests.golden import (
    publisher_run,
    recording_run,
    sd_run,
    someip_run,
    store_runs,
    usubscription_run,
    wamp_run,
    zenoh_run,
)
from tests.golden.frames import Run, format_frames

FILES: Final = Path(__file__).parent / "files"
RECORDING: Final = "recording"
RUNS: Final[Mapping[str, Run]] = {
    "someip": someip_run.run,
    "sd": sd_run.run,
    "publisher": publisher_run.run,
    "zenoh": zenoh_run.run,
    "wamp": wamp_run.run,
    "usubscription": usubscription_run.run,
    "spool": store_runs.run_spool,
    "dead_letters": store_runs.run_dead_letters,
    RECORDING: recording_run.run,
}
STORES: Final[Mapping[str, str]] = {
    "usubscription": usubscription_run.STORE,
    "spool": store_runs.SPOOL,
    "dead_letters": store_runs.DEAD_LETTERS,
}
"""The runs that write a store, and its directory below that of the run."""


def compacted(store: Path) -> bytes:
    """An LMDB environment as one file without free pages."""
    with (
        tempfile.TemporaryDirectory() as directory,
        lmdb.open(str(store), readonly=True, lock=False) as env,
    ):
        env.copy(directory, compact=True)
        return (Path(directory) / "data.mdb").read_bytes()


def unpacked(name: str) -> bytes:
    """The content of a compressed golden file."""
    return gzip.decompress((FILES / f"{name}.gz").read_bytes())


def golden_files(name: str) -> dict[str, bytes]:
    """The golden files of a run, by file name."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        text = format_frames(RUNS[name](directory)).encode()
        binary = dict[str, bytes]()
        if name in STORES:
            binary[f"{name}.mdb"] = compacted(directory / STORES[name])
        segments = sorted((directory / recording_run.RECORDING).glob("*.useg*"))
        binary |= {each.name: each.read_bytes() for each in segments}
    packed = {f"{each}.gz": gzip.compress(data, mtime=0) for each, data in binary.items()}
    return packed if name == RECORDING else {f"{name}.txt": text, **packed}


def main() -> None:
    FILES.mkdir(exist_ok=True)
    for run in RUNS:
        for name, content in golden_files(run).items():
            if not (FILES / name).exists():
                (FILES / name).write_bytes(content)
                print(f"{FILES / name}: written, {len(content)} bytes")


if __name__ == "__main__":
    main()
