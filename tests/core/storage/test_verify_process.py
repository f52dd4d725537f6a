# SPDX-License-Identifier: Apache-2.0
"""The records that the process sends, in chunks: whole, in order, and none out of order. With files: test_spool.py."""

import io
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.core.storage.number_store import number_store, records
from ustreamer.core.storage import verify_process
from ustreamer.core.storage.store_reader import StoreReader
from ustreamer.core.storage.verify_process import LENGTH_PREFIX, DataFileDamaged


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def sent(numbers: list[int]) -> list[list[bytes]]:
    """The keys of each chunk that is sent for records with these keys."""
    out = io.BytesIO()
    count = verify_process._send_records(out, [(key(number), b"v") for number in numbers], ordered=True)
    assert count == len(numbers)
    out.seek(0)
    chunks = []
    while prefix := out.read(LENGTH_PREFIX.size):
        keys, values = msgspec.msgpack.decode(
            out.read(LENGTH_PREFIX.unpack(prefix)[0]), type=tuple[list[bytes], list[bytes]]
        )
        assert values == [b"v"] * len(keys)
        chunks.append(keys)
    return chunks


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_process, "_CHUNK_RECORDS", 4)
    monkeypatch.setattr(verify_process, "_STEP_RECORDS", 2)


@pytest.mark.usefixtures("_small_chunks")
def test_records_are_sent_once_and_in_order() -> None:
    chunks = sent(list(range(1, 11)))
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    assert [each for chunk in chunks for each in chunk] == [key(number) for number in range(1, 11)]


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("again", [0, 3], ids=["earlier key", "same key"])
@pytest.mark.parametrize("behind", [4, 5], ids=["in the next chunk", "in the middle of a chunk"])
def test_a_record_out_of_order_is_damage(behind: int, again: int) -> None:
    """LMDB with a wrong page number returns records twice."""
    numbers = list(range(1, 9))
    numbers[behind] = numbers[behind - 1] if again else 0
    with pytest.raises(DataFileDamaged, match="comes after"):
        sent(numbers)


@pytest.mark.usefixtures("_small_chunks")
def test_a_large_store_is_sent_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its later chunks are packed by msgspec."""
    monkeypatch.setattr(verify_process, "_FEW_RECORDS", 4)
    chunks = sent(list(range(1, 11)))
    assert [each for chunk in chunks for each in chunk] == [key(number) for number in range(1, 11)]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_both_packers_pack_records_of_any_size(size: int) -> None:
    columns = [b"", b"key"], [bytes(size), b"value"]
    for pack in (verify_process._pack_chunk, verify_process._pack_many):
        assert msgspec.msgpack.decode(pack(*columns), type=tuple[list[bytes], list[bytes]]) == columns


def test_the_process_starts_without_msgspec() -> None:
    """A start of the streamer waits for the process, and this import would double the wait."""
    code = f"import sys, {verify_process.__name__}; print('msgspec' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_a_snapshot_makes_no_file_next_to_the_store(tmp_path: Path) -> None:
    """A file of another user would keep the streamer from writing the store."""
    store = number_store(tmp_path / "s")
    store.open()
    store.commit(records([1, 2]))
    store.close()
    (store.path / "lock.mdb").unlink()
    with StoreReader("snapshot", store.path) as reader:
        assert len(list(reader.records())) == 3
    assert [each.name for each in store.path.iterdir()] == ["data.mdb"]
