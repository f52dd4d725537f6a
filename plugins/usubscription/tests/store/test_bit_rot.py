# SPDX-License-Identifier: Apache-2.0
"""Random single-bit flips in a whole store: none gives wrong data, silently missing data, or a crash of the streamer.

A child process flips each bit, reads the store as the verify process does and accepts the same stores. A bit that
crashes the child would crash the verify process, which counts as detected damage. test_damage.py does the same with a
few flips and the whole start.
"""

import io
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from ustreamer_usubscription.events import SubscriptionEvent
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.store import (
    SubscriptionStore,
    delete_subscription,
    put_observer,
    put_subscription,
    put_topic,
)

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage import verify_process
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.lmdb_tree import LmdbTree
from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.core.storage.store_reader import RecordChunk, StoreReader, unpack_chunk
from ustreamer.core.storage.verify_process import LENGTH_PREFIX
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("device2", 0x10AB, 3, 0x80CD)
PAGE: Final = 4096
META: Final = 152  # the bytes of a meta page that are used
MODES: Final = ("walk", "verify")
HARMLESS: Final = {"unnoticed", "found", "missing", "crashed, found", "crashed, missing"}


def filled(path: Path) -> None:
    """Write a store with records of every kind and size. Some records were changed or deleted again."""
    store = SubscriptionStore(path, 16 << 20, history=100)
    store.open()
    rng = random.Random(1)
    for number in range(0, 300, 10):
        some = [UUri("device1", each, 1, 0) for each in range(number, number + 10)]
        events = [SubscriptionEvent(each.ue_id, TOPIC, each, Status.SUBSCRIBED, "why") for each in some]
        entries = [
            SubscriptionRecord(TOPIC, each, details=b"d" * rng.choice([0, 100, 3900])) for each in some
        ]
        store.commit(
            [*map(put_subscription, entries), *(put_observer(Observer(TOPIC, each)) for each in some[:2])],
            events,
        )
        store.commit(
            [delete_subscription(TOPIC, some[0]), put_subscription(SubscriptionRecord(TOPIC, some[1], 7))]
        )
        store.commit([put_topic(TOPIC.with_resource(0x8000 + number), TopicState.ACTIVE)])
    # Without the last transaction the content is wrong, although all counts of records are right.
    store.commit([put_subscription(SubscriptionRecord(TOPIC, UUri("device1", 6, 1, 0), 8))])
    store.close()
    drop_reserve(path / DATA_FILE)


def drop_reserve(file: Path) -> None:
    """Truncate a file to its pages in use: a bit of the others means nothing."""
    os.truncate(file, (LmdbTree(file.read_bytes())._meta_pages[0].last_page + 1) * PAGE)


# --- the child process, which a bit flip can crash ----------------------------------------------------------


def chunks(mode: str, directory: Path, lost: list[int] | None = None) -> Iterator[RecordChunk]:
    """The chunks of a verify process; adds its lost pages to `lost`. Raises StoreDamaged for its exit code."""
    out = io.BytesIO()
    if verify_process.main(mode, str(directory), out):
        raise StoreDamaged("complaint")
    out.seek(0)
    while length := LENGTH_PREFIX.unpack(out.read(LENGTH_PREFIX.size))[0]:
        data = out.read(length)
        yield data, *unpack_chunk(data)
    if lost is not None:
        lost += LENGTH_PREFIX.unpack(out.read(LENGTH_PREFIX.size))


def look(directory: Path) -> None:
    """For each line `bit mode` on stdin, flip the bit and print the result; mode `salvage` only salvages."""
    sys.stderr = io.StringIO()
    data = directory / DATA_FILE
    whole = data.read_bytes()
    expected = dict(store_contents.contents_from_chunks(chunks("verify", directory)).all_records())
    for line in sys.stdin:
        bit, mode = int(line.split()[0]), line.split()[1]
        with data.open("r+b") as file:
            os.pwrite(file.fileno(), bytes([whole[bit // 8] ^ 1 << bit % 8]), bit // 8)
            result = verdict(directory, mode, expected)
            os.pwrite(file.fileno(), whole[bit // 8 : bit // 8 + 1], bit // 8)
        print(result, flush=True)


def verdict(directory: Path, mode: str, expected: dict[bytes, bytes]) -> str:
    if mode != "salvage":
        try:
            found = dict(store_contents.contents_from_chunks(chunks(mode, directory)).all_records())
        except StoreDamaged:
            pass
        else:
            return "unnoticed" if found == expected else "ACCEPTED"
    saved: dict[bytes, bytes] = {}
    lost: list[int] = []
    lost += [
        store_contents.salvage_records(keys, values, saved)
        for _, keys, values in chunks("salvage", directory, lost)
    ]
    if not saved.items() <= expected.items():
        return "RESURRECTED"
    if saved != expected and not any(lost):
        return "SILENT"
    return "found" if len(saved) > 0.5 * len(expected) else "missing"


class BitFlipper:
    """Processes that look at a store, one after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._whole = (directory / DATA_FILE).read_bytes()
        self._process: subprocess.Popen[str] | None = None

    def flip_bit(self, bit: int, mode: str) -> str:
        if self._process is None:
            self._process = self._new_process()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(bit, mode, file=self._process.stdin, flush=True)
        result = self._process.stdout.readline().strip()
        if result:
            return result
        self.close()
        (self._directory / DATA_FILE).write_bytes(self._whole)
        assert mode != "salvage", f"bit {bit} ended the process that salvages"
        return f"crashed, {self.flip_bit(bit, 'salvage')}"

    def _new_process(self) -> "subprocess.Popen[str]":
        code = "import runpy, sys; from pathlib import Path; runpy.run_path(sys.argv[1])['look'](Path(sys.argv[2]))"
        return subprocess.Popen(
            [sys.executable, "-c", code, __file__, str(self._directory)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def results_of(directory: Path, bits: Iterable[int]) -> Counter[str]:
    """The outcome of flipping each of these bits, alternately after an orderly end and after a kill."""
    reader = BitFlipper(directory)
    result: Counter[str] = Counter()
    try:
        for number, bit in enumerate(bits):
            mode = MODES[number % 2]
            outcome = reader.flip_bit(bit, mode)
            assert outcome in HARMLESS, f"bit {bit % 8} of byte {bit // 8}, {mode}: {outcome}"
            result[outcome] += 1
    finally:
        reader.close()
    return result


def bits_of_metas(size: int) -> list[int]:
    """Every used bit of both meta pages; `size` is the size of the file."""
    assert size > 2 * PAGE
    return [(page * PAGE + at) * 8 + bit for page in (0, 1) for at in range(META) for bit in range(8)]


@pytest.mark.parametrize(
    ("flips", "every"), [(120, 19), pytest.param(10_000, 1, marks=pytest.mark.soak)], ids=["some", "many"]
)
def test_a_flipped_bit_gives_no_wrong_record_and_no_silent_loss(
    tmp_path: Path, flips: int, every: int
) -> None:
    """[utest->req~usubscription-subscribe~1]"""
    path = tmp_path / "s"
    filled(path)
    size = (path / DATA_FILE).stat().st_size
    rng = random.Random(flips)
    found = results_of(path, (rng.randrange(8 * size) for _ in range(flips)))
    metas = results_of(path, bits_of_metas(size)[::every])
    tried, unnoticed = flips + metas.total(), found["unnoticed"] + metas["unnoticed"]
    print(f"\nflips={tried} detected={tried - unnoticed} wrong_data_accepted=0 {dict(found)} {dict(metas)}")
    assert found["unnoticed"] < 0.6 * flips  # most of the file is in use, or nothing has been tried
    assert metas["missing"] > 0


def test_a_flipped_bit_in_a_transaction_number_loses_no_transaction(tmp_path: Path) -> None:
    """The last but one is valid, and LMDB falls back to it. Only the numbers of freed pages show the fault."""
    filled(tmp_path / "s")
    path = tmp_path / "s" / DATA_FILE
    whole, expected = path.read_bytes(), dict(store_contents.read_store(tmp_path / "s", "walk").all_records())
    for meta in (0, PAGE):
        for bit in range(64):
            hit = bytearray(whole)
            hit[meta + 144 + bit // 8] ^= 1 << bit % 8
            found = dict(LmdbTree(bytes(hit)).records())
            assert dict(list(found.items())[1:]) == expected  # without the layout record
            assert LmdbTree(bytes(hit)).transaction_error()
    assert not LmdbTree(whole).transaction_error()


# --- changes of several bits, which random flips seldom make ---


def leaf_with_many(tree: LmdbTree) -> int:
    """Where a page with many records begins."""
    return next(at for at in tree.leaf_offsets() if len(tree._nodes(at)) > 9)


def fewer_nodes(data: bytearray) -> None:
    at = leaf_with_many(LmdbTree(bytes(data)))
    data[at + 12 : at + 14] = (int.from_bytes(data[at + 12 : at + 14], "little") - 2).to_bytes(2, "little")


def more_nodes(data: bytearray) -> None:
    at = leaf_with_many(LmdbTree(bytes(data)))
    data[at + 12 : at + 14] = (int.from_bytes(data[at + 12 : at + 14], "little") + 4).to_bytes(2, "little")


def one_node_twice(data: bytearray) -> None:
    at = leaf_with_many(LmdbTree(bytes(data)))
    data[at + 18 : at + 20] = data[at + 20 : at + 22]


def former_page(data: bytearray) -> None:
    """Point the root to an older version of one of its pages, from before the last transaction."""
    tree = LmdbTree(bytes(data))
    free, root = tree.free_pages(), tree._meta_pages[0].root * PAGE

    def keys(at: int) -> set[bytes]:
        return {record[0] for node in tree._nodes(at) if (record := tree._record(at, node))}

    for node in tree._nodes(root):
        page = tree._child(root + node)
        for former in free:
            is_leaf = data[former * PAGE : former * PAGE + 8] == former.to_bytes(8, "little") and (
                data[former * PAGE + 10] == 2
            )
            if is_leaf and keys(former * PAGE) == keys(page * PAGE):
                data[root + node : root + node + 4] = former.to_bytes(4, "little")
                return
    raise AssertionError("no page has a former one that is still there")


@pytest.mark.parametrize(
    ("hit", "why"),
    [
        (fewer_nodes, r"\d+ records, and its meta page says \d+"),
        (more_nodes, "data.mdb: "),
        (one_node_twice, "comes after"),
        (former_page, "pages of its tree, the first of them .*, are free ones"),
    ],
)
def test_a_changed_page_is_found_and_salvaged_records_are_right(
    tmp_path: Path, hit: Callable[[bytearray], None], why: str
) -> None:
    path = tmp_path / "s"
    filled(path)
    expected = set(store_contents.read_store(path, "walk").all_records())
    data = bytearray((path / DATA_FILE).read_bytes())
    hit(data)
    (path / DATA_FILE).write_bytes(data)
    with pytest.raises(StoreDamaged, match=why):
        store_contents.read_store(path, "walk")
    with StoreReader("salvage", path) as reader:
        saved = store_contents.salvage_contents(reader)
    assert set(saved.all_records()) < expected or hit is more_nodes
    assert set(saved.all_records()) <= expected
    assert saved.lost_total > 0
