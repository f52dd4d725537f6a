# SPDX-License-Identifier: Apache-2.0
"""The thread that puts dead letters on disk, so that nobody else waits for it."""

import logging
from collections.abc import Mapping
from threading import Condition, Thread
from typing import Final

from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig, DeadLetterStore, StoredLetter
from ustreamer.uprotocol.ustatus import UStatusError

log = logging.getLogger("ustreamer.dead_letters")

MAX_WAITING: Final = 10_000
MAX_WAITING_BYTES: Final = 16_000_000
_BATCH: Final = 500  # letters of one transaction


class DeadLetterKeeper:
    """Takes letters over without waiting, and appends them to a store in batches. What does not fit is counted."""

    def __init__(self, store: DeadLetterStore, limits: DeadLettersConfig) -> None:
        """With `limits.messages` 0 nothing is kept and the store is not touched."""
        self.store = store
        self._limits = limits
        self._waiting: list[DeadLetter | StoredLetter] = []
        self._waiting_bytes = 0
        self._changed = Condition()
        self._writing = False
        self._closing = False
        self._counts = {"kept": 0, "not_kept": 0}
        self._failing = False
        self._thread = Thread(target=self._run, name="dead letters", daemon=True)

    def start(self) -> None:
        if self._limits.messages:
            self._thread.start()

    def keep(self, letter: DeadLetter) -> None:
        """Take a letter over, in 1 us; the newest are not kept if the disk does not follow. Never waits for it."""
        if not self._limits.messages:
            return
        size = len(letter.message.payload)
        waiting: DeadLetter | StoredLetter = letter
        if size > self._limits.payload_bytes:
            waiting, size = (
                StoredLetter.of(letter, self._limits.payload_bytes),
                0,
            )  # which lets the payload go
        with self._changed:
            if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
                self._counts["not_kept"] += 1
                return
            self._waiting.append(waiting)
            self._waiting_bytes += size
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def _run(self) -> None:
        if self.store.path.exists():
            self._append([])  # what is there is looked at now, and not when the first letter is in a hurry
        while batch := self._next_batch():
            self._append(batch)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _next_batch(self) -> list[StoredLetter]:
        """Wait for letters and take some; none when it is time to end."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            self._waiting_bytes -= sum(
                len(each.message.payload) for each in batch if type(each) is DeadLetter
            )
            self._writing = bool(batch)
        return [self._stored(each) for each in batch]

    def _stored(self, letter: DeadLetter | StoredLetter) -> StoredLetter:
        if isinstance(letter, StoredLetter):
            return letter
        return StoredLetter.of(letter, self._limits.payload_bytes)

    def _append(self, batch: list[StoredLetter]) -> None:
        try:
            if batch:
                self.store.append(batch)
            else:
                self.store.open()
        except (
            UStatusError
        ) as error:  # a full disk takes nothing more; the streamer goes on, and the books say so
            self._counts["not_kept"] += len(batch)
            if not self._failing:
                extra = {"reason": error.message, "letters": len(batch)}
                log.error("dead_letters.not_kept", extra=extra)  # noqa: TRY400 - the reason says it all
            self._failing = True
            return
        self._counts["kept"] += len(batch)
        self._failing = False

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until all that was taken over is on disk; whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, timeout_s)

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
        """`kept` and `not_kept` since the start, `waiting` now, and what the store says."""
        return {**self._counts, "waiting": len(self._waiting), **self.store.statistics()}
