# SPDX-License-Identifier: Apache-2.0
"""The dead letter store and its writer: limits, numbering, damage, a failing disk."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Final

import lmdb
import pytest

from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.core.storage import verify_process
from ustreamer.core.storage.errors import NotWritable, StoreDamaged
from ustreamer.host.storage import dead_letter_writer as writer_module
from ustreamer.host.storage.dead_letter_store import (
    DeadLettersConfig,
    DeadLetterStore,
    StoredDeadLetter,
    encode_record,
    purge_letters,
    read_letters,
)
from ustreamer.host.storage.dead_letter_writer import DeadLetterWriter
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

DEADLINE_S: Final = 30.0
LOST = UMessage(
    UUID(0x018D548EA8E07000, 0x8000000000000001),
    UAttributes(
        type=UMessageType.NOTIFICATION,
        source=UUri("cloud", 1, 1, 0x8001),
        sink=UUri("chassis", 0x1234, 1, 0),
        priority=UPriority.CS4,
        ttl=5000,
        token="tok",
        unknown=bytes.fromhex("a00601"),
    ),
    b"\x00\xff payload",
)


def letter(text: str = "link down", payload: bytes = LOST.payload) -> DeadLetter:
    message = UMessage(LOST.id, LOST.attributes, payload)
    return DeadLetter(message, UStatus(UCode.UNAVAILABLE, text), "chassis", 3, 1_000, 5_999, "backbone")


def stored(text: str = "link down", payload: bytes = b"x") -> StoredDeadLetter:
    return StoredDeadLetter.from_dead_letter(letter(text, payload), payload_bytes=1_000_000)


def reasons(directory: Path) -> list[tuple[int, str]]:
    return [(number, each.reason) for number, each in read_letters(directory)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "dead-letters"


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., DeadLetterStore]]:
    stores: list[DeadLetterStore] = []

    def made(**limits: int) -> DeadLetterStore:
        stores.append(DeadLetterStore(path, DeadLettersConfig(**limits)))
        return stores[-1]

    yield made
    for each in stores:
        each.close()


# ------------------------------------------------------------------------------------------------ stored data


def test_a_stored_letter_is_read_back_unchanged(make: Callable[..., DeadLetterStore], path: Path) -> None:
    store = make()
    store.append([StoredDeadLetter.from_dead_letter(letter(), 100)])
    [(number, found)] = read_letters(path)
    assert (number, found) == (1, store.get(1))
    assert found.message == LOST
    assert found.status == UStatus(UCode.UNAVAILABLE, "link down")
    assert (found.endpoint, found.ingress, found.attempts) == ("chassis", "backbone", 3)
    assert (found.first_attempt_ms, found.last_attempt_ms) == (1_000, 5_999)


@pytest.mark.parametrize(("size", "persisted"), [(10, True), (11, False)])
def test_a_payload_above_the_limit_is_not_stored(size: int, persisted: bool) -> None:
    found = StoredDeadLetter.from_dead_letter(letter(payload=b"x" * size), payload_bytes=10)
    assert (found.payload is not None, found.payload_size) == (persisted, size)


def test_letters_and_numbering_survive_a_restart(make: Callable[..., DeadLetterStore], path: Path) -> None:
    first = make()
    first.append([stored("a"), stored("b")])
    first.delete()
    first.append([stored("c")])
    first.close()
    second = make()
    second.append([stored("d")])
    assert reasons(path) == [(3, "c"), (4, "d")]
    assert second.numbers() == [3, 4]


def test_too_many_letters_displace_the_oldest(make: Callable[..., DeadLetterStore], path: Path) -> None:
    store = make(messages=3)
    store.append([stored("a"), stored("b")])
    store.append([stored("c"), stored("d"), stored("e")])
    assert reasons(path) == [(3, "c"), (4, "d"), (5, "e")]
    store.append([stored(text) for text in "fghij"])
    assert reasons(path) == [(8, "h"), (9, "i"), (10, "j")]
    assert store.statistics()["displaced"] == 7


def test_too_many_bytes_displace_the_oldest_letters(make: Callable[..., DeadLetterStore], path: Path) -> None:
    store = make(bytes=4096)
    for text in "abcd":
        store.append([stored(text, b"x" * 1500)])
    assert [reason for _, reason in reasons(path)] == ["c", "d"]
    assert store.statistics()["stored_bytes"] <= 4096


def test_a_smaller_limit_takes_effect_with_the_next_letter(make: Callable[..., DeadLetterStore]) -> None:
    first = make()
    first.append([stored(text) for text in "abcdef"])
    first.close()
    second = make(messages=2)
    second.append([stored("g")])
    assert second.numbers() == [6, 7]


def test_letters_are_deleted_by_number_and_all_together(make: Callable[..., DeadLetterStore]) -> None:
    store = make()
    store.append([stored(text) for text in "abcd"])
    assert store.delete([2, 3, 3, 99]) == 2
    assert store.numbers() == [1, 4]
    with pytest.raises(UStatusError) as missing:
        store.get(2)
    assert missing.value.code is UCode.NOT_FOUND
    assert store.delete() == 2
    assert store.statistics() == {"stored": 0, "stored_bytes": 0, "displaced": 0, "damaged": 0}


def test_an_unused_store_is_purged_from_outside(make: Callable[..., DeadLetterStore], path: Path) -> None:
    assert purge_letters(path, None) == 0
    assert not path.exists()
    store = make()
    store.append([stored(text) for text in "abc"])
    store.close()
    assert (purge_letters(path, [2]), reasons(path)) == (1, [(1, "a"), (3, "c")])
    assert (purge_letters(path, None), reasons(path)) == (2, [])


def test_the_store_is_readable_by_its_owner_only(make: Callable[..., DeadLetterStore], path: Path) -> None:
    make().append([stored()])
    assert path.stat().st_mode & 0o077 == 0
    assert (path / "data.mdb").stat().st_mode & 0o077 == 0


def test_the_first_letter_creates_the_store(make: Callable[..., DeadLetterStore], path: Path) -> None:
    make()
    assert not path.parent.exists()
    assert list(read_letters(path)) == []


# ----------------------------------------------------------------------------------------------------- damage


def overwritten(path: Path, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
        txn.put(key, value)


def flipped(path: Path, payload: bytes) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    at = bytes(data).find(payload)
    assert at > 0
    while at > 0:  # every copy, as LMDB leaves old pages about
        data[at] ^= 0xFF
        at = bytes(data).find(payload)
    (path / "data.mdb").write_bytes(bytes(data))


NEXT = (0).to_bytes(8, "big")
ONE = (1).to_bytes(8, "big")
DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("one bit", lambda path: flipped(path, b"needle"), "checksum"),
    ("another file", lambda path: (path / "data.mdb").write_bytes(b"\x5a" * 50_000), ""),
    ("another version", lambda path: overwritten(path, ONE, b"\x02" + b"\0" * 30), "version 2"),
    ("a short value", lambda path: overwritten(path, ONE, b"\x01"), "expected at least"),
    ("an unknown key", lambda path: overwritten(path, b"1", b"\x01" + b"\0" * 30), "expected 8"),
    ("no next number", lambda path: overwritten(path, NEXT, b""), "expected at least"),
    ("a next number in use", lambda path: overwritten(path, *encode_record(0, 1)), "is in use"),
]


@pytest.mark.parametrize(
    ("damage", "words"), [each[1:] for each in DAMAGES], ids=[each[0] for each in DAMAGES]
)
def test_a_damaged_store_is_moved_aside_and_an_empty_one_takes_its_place(
    make: Callable[..., DeadLetterStore],
    path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], object],
    words: str,
) -> None:
    first = make()
    first.append([stored("a", b"needle" * 10), stored("b", b"hay")])
    first.close()
    damage(path)
    second = make()
    with caplog.at_level(logging.ERROR):
        second.append([stored("c")])
    assert [reason for _, reason in reasons(path)] == ["c"]
    assert second.statistics()["damaged"] == 1
    assert (path.parent / "dead-letters.damaged-1").is_dir()
    [log_record] = [each for each in caplog.records if each.getMessage() == "dead_letters.store_damaged"]
    assert words in log_record.__dict__["reason"]


def test_reading_a_damaged_store_raises_an_error(make: Callable[..., DeadLetterStore], path: Path) -> None:
    store = make()
    store.append([stored("a", b"needle" * 10)])
    store.close()
    flipped(path, b"needle")
    with pytest.raises(StoreDamaged, match="checksum"):
        list(read_letters(path))
    os.truncate(path / "data.mdb", 5000)
    with pytest.raises(StoreDamaged, match="store "):
        list(read_letters(path))


def test_the_verify_process_prints_one_line_for_damage(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"\x5a" * 50_000)
    command = [sys.executable, "-m", verify_process.__name__, "verify", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (
        verify_process.EXIT_DAMAGED,
        "",
        1,
    )


def test_a_directory_that_cannot_hold_a_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = DeadLetterStore(tmp_path / "file" / "dead-letters", DeadLettersConfig())
    for use in (store.require_writable, lambda: store.append([stored()])):
        with pytest.raises(NotWritable, match="cannot be used: .*/file is a file"):
            use()


# --------------------------------------------------------------------------------------------------------- the thread


@pytest.fixture
def start_writer(make: Callable[..., DeadLetterStore]) -> Iterator[Callable[..., DeadLetterWriter]]:
    writers: list[DeadLetterWriter] = []

    def started(**limits: int) -> DeadLetterWriter:
        writers.append(DeadLetterWriter(make(**limits), DeadLettersConfig(**limits)))
        writers[-1].start()
        return writers[-1]

    yield started
    for each in writers:
        each.close(DEADLINE_S)


def test_the_writer_stores_letters_soon_and_all_when_closed(
    start_writer: Callable[..., DeadLetterWriter], path: Path
) -> None:
    writer = start_writer()
    for text in "abc":
        writer.enqueue_letter(letter(text))
    assert writer.wait_empty(DEADLINE_S)
    assert reasons(path) == [(1, "a"), (2, "b"), (3, "c")]
    for number in range(2000):
        writer.enqueue_letter(letter(str(number)))
    writer.close(DEADLINE_S)
    assert len(reasons(path)) == 2003
    assert (writer.statistics()["persisted"], writer.statistics()["not_persisted"]) == (2003, 0)


def test_letters_above_the_queue_limit_are_counted_without_waiting(
    start_writer: Callable[..., DeadLetterWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 3)
    writer = start_writer()
    stuck, sent_request, append = Event(), Event(), writer.store.append

    def hanging(letters: list[StoredDeadLetter]) -> None:
        sent_request.set()
        assert stuck.wait(DEADLINE_S)
        append(letters)

    monkeypatch.setattr(writer.store, "append", hanging)
    writer.enqueue_letter(letter("in the disk"))
    assert sent_request.wait(DEADLINE_S)
    for text in "abcde":
        writer.enqueue_letter(letter(text))
    assert (writer.statistics()["waiting"], writer.statistics()["not_persisted"]) == (3, 2)
    stuck.set()
    assert writer.wait_empty(DEADLINE_S)
    assert (writer.statistics()["persisted"], writer.statistics()["stored"]) == (4, 4)


def test_letters_that_are_not_on_disk_in_time_at_the_end_are_counted(
    start_writer: Callable[..., DeadLetterWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = start_writer()
    stuck, reached = Event(), Event()

    def hanging(letters: list[StoredDeadLetter]) -> None:
        reached.set()
        assert stuck.wait(DEADLINE_S)

    monkeypatch.setattr(writer.store, "append", hanging)
    writer.enqueue_letter(letter("in the disk"))
    assert reached.wait(DEADLINE_S)
    for text in "ab":
        writer.enqueue_letter(letter(text))
    for _ in range(2):
        writer.close(0.01)
        assert (writer.statistics()["waiting"], writer.statistics()["not_persisted"]) == (0, 3)
    stuck.set()


def test_the_queue_is_bounded_by_bytes(
    start_writer: Callable[..., DeadLetterWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 10)
    writer = start_writer()
    writer.enqueue_letter(letter(payload=b"x" * 11))
    assert writer.statistics()["not_persisted"] == 1


def test_a_failing_disk_is_counted_logged_once_and_retried(
    start_writer: Callable[..., DeadLetterWriter], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = start_writer()
    aside = path.rename(path.with_name("aside"))  # so that the file cannot be extended
    with caplog.at_level(logging.ERROR):
        for text in "ab":
            writer.enqueue_letter(letter(text))
            assert writer.wait_empty(DEADLINE_S)
    assert writer.statistics()["not_persisted"] == 2
    assert [each.getMessage() for each in caplog.records] == ["dead_letters.not_persisted"]
    aside.rename(path)
    writer.enqueue_letter(letter("c"))
    assert writer.wait_empty(DEADLINE_S)
    assert (writer.statistics()["persisted"], reasons(path)) == (1, [(1, "c")])


def test_a_limit_of_no_letters_creates_no_store(
    start_writer: Callable[..., DeadLetterWriter], path: Path
) -> None:
    writer = start_writer(messages=0)
    writer.enqueue_letter(letter())
    writer.close(DEADLINE_S)
    assert not path.exists()
    assert writer.statistics()["persisted"] == 0
