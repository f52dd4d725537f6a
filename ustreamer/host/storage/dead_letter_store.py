# SPDX-License-Identifier: Apache-2.0
"""Dead letters on disk, in the bounded store `<state_dir>/dead-letters`.

Above the limits, the oldest letters of the network with the most letters leave. So one network cannot displace the
letters of the others.

    key      8 bytes, a number that rises by one
    value    frame of version 1 (`framed_record`); its body is MessagePack

Record 0 holds the next number, so no number is used twice. `LmdbStore` has the files and their quarantine. The
directory is readable by its owner only: attributes can have a token. The holder of the state directory's lock owns the
store.
"""

import logging
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.core.routing.router import SELF
from ustreamer.core.storage.environment import DELETE_BATCH, map_size_for
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import encode_frame, frame_body
from ustreamer.core.storage.lmdb_store import LmdbStore, Record
from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.core.storage.store_reader import RecordChunk, StoreReader, records_of
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.wire import decode, encode

DIRECTORY: Final = "dead-letters"
"""Below state_dir."""
_KEY: Final = struct.Struct(">Q")
_NEXT: Final = 0
"""The number of the record that holds the next number."""

log = logging.getLogger("ustreamer.dead_letters")


class DeadLettersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[dead_letters]: the most letters (0: no store), their bytes, and the largest payload that is kept."""

    messages: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    bytes: Annotated[int, Meta(ge=4096, le=1 << 40)] = 64_000_000
    payload_bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 1_000_000


class StoredDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A stored dead letter. `payload` is None if it was larger than the limit; times are ms since the epoch."""

    attributes: bytes
    payload: bytes | None
    payload_size: int
    code: int
    reason: str
    endpoint: str
    ingress: str
    attempts: int
    first_attempt_ms: int
    last_attempt_ms: int

    @classmethod
    def from_dead_letter(cls, letter: DeadLetter, payload_bytes: int) -> "StoredDeadLetter":
        message = letter.message
        return cls(
            encode(message.id, message.attributes),
            message.payload if len(message.payload) <= payload_bytes else None,
            len(message.payload),
            int(letter.status.code),
            letter.status.message,
            letter.endpoint,
            letter.ingress,
            letter.attempts,
            letter.first_attempt_ms,
            letter.last_attempt_ms,
        )

    @property
    def message(self) -> UMessage:
        """The message as received, without a payload that was not stored."""
        return UMessage(*decode(self.attributes), self.payload or b"")

    @property
    def status(self) -> UStatus:
        return UStatus(UCode.from_number(self.code), self.reason)


def encode_record(number: int, letter: StoredDeadLetter | int) -> tuple[bytes, bytes]:
    """Key and value of a letter, or of the next number for number 0."""
    key = _KEY.pack(number)
    return key, encode_frame(key, msgspec.msgpack.encode(letter))


def _verified_body(key: bytes, value: bytes) -> bytes:
    if len(key) != _KEY.size:
        raise StoreDamaged(f"record {key.hex()}: a key of {len(key)} bytes, expected {_KEY.size}")
    return frame_body(key, value)


def decode_letter(key: bytes, value: bytes) -> tuple[int, StoredDeadLetter]:
    """The number and the letter of a record. Raises StoreDamaged."""
    try:
        letter = msgspec.msgpack.decode(_verified_body(key, value), type=StoredDeadLetter)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"record {key.hex()}: {error}") from error
    return _KEY.unpack(key)[0], letter


# --- external readers ---------------------------------------------------------------------------------------


def read_letters(
    directory: Path, mode: Literal["verify", "snapshot"] = "snapshot"
) -> Iterator[tuple[int, StoredDeadLetter]]:
    """All letters of a store with their numbers; none if there is no store. A child process reads the file.

    Takes at most 20 s and 1 s for each 4 MiB. Raises StoreDamaged for any damage.
    """
    if not (directory / DATA_FILE).exists():
        return
    with StoreReader(mode, directory) as reader:
        for key, value in reader.records():
            if key != _KEY.pack(_NEXT):
                yield decode_letter(key, value)


# --- the store --------------------------------------------------------------------------------------------------------


class _LetterSizes:
    """The bytes of each letter by number, in order, and by network. The total is `bytes`."""

    def __init__(self) -> None:
        self.bytes = 0
        self._letters: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self._networks: dict[str, OrderedDict[int, int]] = {}
        self._network_bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._letters)

    def __contains__(self, number: int) -> bool:
        return number in self._letters

    def __iter__(self) -> Iterator[int]:
        return iter(self._letters)

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._letters)

    def add(self, number: int, network: str, size: int) -> None:
        """Add a letter, with a number above all others."""
        self._letters[number] = network, size
        self._networks.setdefault(network, OrderedDict())[number] = size
        self._network_bytes[network] += size
        self.bytes += size

    def remove(self, number: int) -> tuple[int, str, int]:
        """Remove a letter; its number, network and bytes."""
        network, size = self._letters.pop(number)
        letters = self._networks[network]
        del letters[number]
        self._network_bytes[network] -= size
        self.bytes -= size
        if not letters:
            del self._networks[network], self._network_bytes[network]
        return number, network, size

    def pop_displaced(self, messages: int, size: int) -> Iterator[tuple[int, str, int]]:
        """Remove letters until the limits hold: the oldest of the network with the most letters, or the most bytes."""
        while len(self) > messages or self.bytes > size:
            if len(self) > messages:
                network = max(self._networks, key=lambda each: len(self._networks[each]))
            else:
                network = max(self._network_bytes, key=self._network_bytes.__getitem__)
            number = next(iter(self._networks[network]))
            yield self.remove(number)

    def restore(self, added: Iterable[int], displaced: Iterable[tuple[int, str, int]]) -> None:
        """Undo a change that the disk refused."""
        for each in displaced:
            self.add(*each)
        for number in added:
            self.remove(number)
        self._letters = OrderedDict(sorted(self._letters.items()))
        self._networks = {name: OrderedDict(sorted(each.items())) for name, each in self._networks.items()}


def network_of(ingress: str, endpoint: str) -> str:
    """The network that causes a letter: that of the message; of the streamer's own messages, that of the receiver.

    A sender cannot forge it, unlike its address.
    """
    return endpoint if ingress in ("", SELF) else ingress


class _Contents(msgspec.Struct):
    next: int
    """The next number."""
    sizes: _LetterSizes = msgspec.field(default_factory=_LetterSizes)


class _LettersLayout:
    """A `StoreLayout`: nothing of a damaged store stays, which is for diagnosis only."""

    @staticmethod
    def first_record() -> Record:
        return encode_record(_NEXT, 1)

    @staticmethod
    def read(chunks: Iterator[RecordChunk]) -> _Contents:
        records = records_of(chunks)
        key, value = next(records, (b"", b""))
        if key != _KEY.pack(_NEXT):
            raise StoreDamaged("the record of the next number is missing")
        try:
            found = _Contents(msgspec.msgpack.decode(_verified_body(key, value), type=int))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreDamaged(f"the next number: {error}") from error
        for each, content in records:
            number, letter = decode_letter(each, content)
            found.sizes.add(number, network_of(letter.ingress, letter.endpoint), len(content))
        if len(found.sizes) and next(reversed(found.sizes)) >= found.next:
            raise StoreDamaged(f"the next number, {found.next}, is in use")
        return found

    @staticmethod
    def salvage(reader: StoreReader) -> Iterable[Iterable[Record]]:
        return ()


class DeadLetterStore:
    """The dead letters in directory `path`. Constructing it touches no file. Safe from any thread."""

    def __init__(self, path: Path, limits: DeadLettersConfig, states: StoreStates | None = None) -> None:
        self.path = path
        self.damaged = 0
        """Stores that were moved aside."""
        self.displaced = 0
        """Letters that newer ones displaced."""
        self._limits = limits
        self._lock = Lock()
        self._store = LmdbStore("store", path, map_size_for(limits.bytes), _LettersLayout(), states=states)
        self._sizes = _LetterSizes()
        self._next = 1

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the store. A damaged one is moved aside and logged. Raises as `LmdbStore.open`. May be
        repeated.
        """
        with self._lock:
            self._ensure_open()

    def require_writable(self) -> None:
        """Raises NotWritable if this process may not write the store."""
        self._store.require_writable()

    def _ensure_open(self) -> None:
        if self._store.is_open:
            return
        found = self._store.open()
        self._next, self._sizes = found.next, found.sizes
        if quarantine := self._store.quarantine:
            self.damaged += 1
            extra = {
                "store": str(self.path),
                "reason": quarantine.reason,
                "moved_to": str(quarantine.path),
            }
            log.error("dead_letters.store_damaged", extra=extra)

    def close(self) -> None:
        """Close the store; appended letters are on disk already. May be repeated."""
        with self._lock:
            self._store.close()

    @property
    def is_degraded(self) -> bool:
        """Whether the disk refused the last write."""
        return self._store.is_degraded

    def retry(self) -> None:
        """As `LmdbStore.retry`."""
        with self._lock:
            self._store.retry()

    # --- changes ------------------------------------------------------------------------------------------------------

    def append(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Store letters in one transaction; others leave if the limits are exceeded (`_LetterSizes.pop_displaced`).

        Raises UStatusError as `LmdbStore.open` and `LmdbStore.commit`.
        """
        with self._lock:
            self._ensure_open()
            numbers = range(self._next, self._next + len(letters))
            added = [encode_record(number, letter) for number, letter in zip(numbers, letters, strict=True)]
            sizes = self._sizes
            for number, letter, (_, value) in zip(numbers, letters, added, strict=True):
                sizes.add(number, network_of(letter.ingress, letter.endpoint), len(value))
            displaced = list(sizes.pop_displaced(self._limits.messages, self._limits.bytes))
            evicted = {number for number, _, _ in displaced}
            try:
                self._store.commit(
                    [
                        *((_KEY.pack(number), None) for number in evicted if number < self._next),
                        *(each for number, each in zip(numbers, added, strict=True) if number not in evicted),
                        encode_record(_NEXT, self._next + len(letters)),
                    ],
                )
            except UStatusError:
                sizes.restore(numbers, displaced)
                raise
            self._next += len(letters)
            self.displaced += len(evicted)

    def delete(self, numbers: Iterable[int] | None = None) -> int:
        """Delete these letters, or all; return how many existed. Raises as `append`."""
        with self._lock:
            if not self._exists():
                return 0
            self._ensure_open()
            wanted = list(self._sizes) if numbers is None else dict.fromkeys(numbers)
            present = [number for number in wanted if number in self._sizes]
            for at in range(0, len(present), DELETE_BATCH):
                batch = present[at : at + DELETE_BATCH]
                self._store.commit([(_KEY.pack(number), None) for number in batch])
                for number in batch:
                    self._sizes.remove(number)
        return len(present)

    # --- reading ------------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """The numbers of all letters, oldest first. Raises as `open`."""
        with self._lock:
            if self._exists():
                self._ensure_open()
            return list(self._sizes)

    def _exists(self) -> bool:
        return self._store.is_open or self.path.exists()

    def get(self, number: int) -> StoredDeadLetter:
        """One letter. Raises UStatusError(NOT_FOUND) for an unknown number, and StoreDamaged."""
        with self._lock:
            value = None
            if self._exists():
                self._ensure_open()
                value = self._store.get(_KEY.pack(number))
        if value is None:
            raise UStatusError(UCode.NOT_FOUND, f"dead letter {number}: there is none of this number")
        return decode_letter(_KEY.pack(number), value)[1]

    def statistics(self) -> Mapping[str, int]:
        """`stored` and `stored_bytes` now; `displaced` letters and `damaged` stores so far."""
        return {
            "stored": len(self._sizes),
            "stored_bytes": self._sizes.bytes,
            "displaced": self.displaced,
            "damaged": self.damaged,
        }


def purge_letters(path: Path, numbers: Iterable[int] | None) -> int:
    """Delete letters from a store that no streamer uses; return how many existed. A damaged store is moved aside."""
    if not (path / DATA_FILE).exists():
        return 0
    store = DeadLetterStore(path, DeadLettersConfig(bytes=max(64_000_000, (path / DATA_FILE).stat().st_size)))
    try:
        return store.delete(numbers)
    finally:
        store.close()
