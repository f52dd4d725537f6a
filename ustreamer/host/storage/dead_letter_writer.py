# SPDX-License-Identifier: Apache-2.0
"""The thread that puts dead letters on disk, so that nobody else waits for it."""

import logging
from collections.abc import Mapping
from threading import Condition, Thread
from typing import Final

from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig, DeadLetterStore, StoredDeadLetter
from ustreamer.uprotocol.ustatus import UStatusError

log = logging.getLogger("ustreamer.dead_letters")

MAX_QUEUED: Final = 10_000
MAX_QUEUED_BYTES: Final = 16_000_000
_BATCH: Final = 500  # letters of one transaction


class DeadLetterWriter:
    """Takes letters over without waiting, and appends them to a store in batches. What does not fit is counted."""

    def __init__(self, store: DeadLetterStore, limits: DeadLettersConfig) -> None:
        """With `limits.messages` 0 nothing is kept and the store is not touched."""
        self.store = store
        self._limits = limits
        self._queued: list[DeadLetter | StoredDeadLetter] = []
        self._queued_bytes = 0
        self._changed = Condition()
        self._writing = False
        self._closing = False
        self._counts = {"persisted": 0, "not_persisted": 0}
        self._failing = False
        self._thread = Thread(target=self._run, name="dead letters", daemon=True)

    def start(self) -> None:
        if self._limits.messages:
            self._thread.start()

    def enqueue_letter(self, letter: DeadLetter) -> None:
        """Take a letter over, in 1 us; the newest are not kept if the disk does not follow. Never waits for it."""
        if not self._limits.messages:
            return
        size = len(letter.message.payload)
        queued: DeadLetter | StoredDeadLetter = letter
        if size > self._limits.payload_bytes:
            queued, size = (
                StoredDeadLetter.from_dead_letter(letter, self._limits.payload_bytes),
                0,
            )  # which lets the payload go
        with self._changed:
            if len(self._queued) >= MAX_QUEUED or self._queued_bytes + size > MAX_QUEUED_BYTES:
                self._counts["not_persisted"] += 1
                return
            self._queued.append(queued)
            self._queued_bytes += size
            if len(self._queued) == 1:
                self._changed.notify_all()

    def _run(self) -> None:
        if self.store.path.exists():
            self._append([])  # what is there is looked at now, and not when the first letter is in a hurry
        while batch := self._next_batch():
            self._append(batch)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _next_batch(self) -> list[StoredDeadLetter]:
        """Wait for letters and take some; none when it is time to end."""
        with self._changed:
            while not self._queued and not self._closing:
                self._changed.wait()
            batch, self._queued = self._queued[:_BATCH], self._queued[_BATCH:]
            self._queued_bytes -= sum(len(each.message.payload) for each in batch if type(each) is DeadLetter)
            self._writing = bool(batch)
        return [self._to_stored(each) for each in batch]

    def _to_stored(self, letter: DeadLetter | StoredDeadLetter) -> StoredDeadLetter:
        if isinstance(letter, StoredDeadLetter):
            return letter
        return StoredDeadLetter.from_dead_letter(letter, self._limits.payload_bytes)

    def _append(self, batch: list[StoredDeadLetter]) -> None:
        try:
            if batch:
                self.store.append(batch)
            else:
                self.store.open()
        except (
            UStatusError
        ) as error:  # a full disk takes nothing more; the streamer goes on, and the books say so
            self._counts["not_persisted"] += len(batch)
            if not self._failing:
                extra = {"reason": error.message, "letters": len(batch)}
                log.error("dead_letters.not_persisted", extra=extra)  # noqa: TRY400 - the reason says it all
            self._failing = True
            return
        self._counts["persisted"] += len(batch)
        self._failing = False

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until all that was taken over is on disk; whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued and not self._writing, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Put on disk what waits, and close the store. May be repeated."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():  # else it is in a commit that hangs, and closing would wait for that
            self.store.close()

    def statistics(self) -> Mapping[str, int]:
        """`persisted` and `not_persisted` since the start, `waiting` now, and what the store says."""
        return {**self._counts, "waiting": len(self._queued), **self.store.statistics()}
