# SPDX-License-Identifier: Apache-2.0
"""The thread that writes dead letters to disk. Letters of the dispatcher in, batches for the store out."""

import logging
from collections import Counter
from collections.abc import Mapping
from threading import Condition, Thread
from typing import Final

from ustreamer.core.base.log_limit import limited
from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.host.storage.dead_letter_store import (
    DeadLettersConfig,
    DeadLetterStore,
    StoredDeadLetter,
    network_of,
)
from ustreamer.uprotocol.ustatus import UStatusError

log = logging.getLogger("ustreamer.dead_letters")

MAX_QUEUED: Final = 10_000
MAX_QUEUED_BYTES: Final = 16_000_000
MAX_QUEUED_OF_NETWORK: Final = MAX_QUEUED // 2
_BATCH: Final = 500  # letters of one transaction
_RETRY_S: Final = 1.0  # for a store that the disk refuses to write


class DeadLetterWriter:
    """Queues letters without waiting and appends them to a store in batches. Letters above the limits are counted."""

    def __init__(self, store: DeadLetterStore, limits: DeadLettersConfig) -> None:
        """With `limits.messages` 0 no letter is stored and the store is not touched."""
        self.store = store
        self._limits = limits
        self._queued: list[DeadLetter | StoredDeadLetter] = []
        self._queued_bytes = 0
        self._by_network: Counter[str] = Counter()
        self._changed = Condition()
        self._writing = 0  # letters of the batch in progress
        self._closing = False
        self._counts = {"persisted": 0, "not_persisted": 0}
        self._failing = False
        self._thread = Thread(target=self._run, name="dead letters", daemon=True)

    def start(self) -> None:
        """Create the store and start the thread. Raises NotWritable if no store can be written."""
        if self._limits.messages:
            self.store.require_writable()
            if not self.store.path.exists():
                self._append([])
            self._thread.start()

    def enqueue_letter(self, letter: DeadLetter) -> None:
        """Queue a letter in 1 us, without waiting for the disk. A full queue drops the newest letter."""
        if not self._limits.messages:
            return
        size = len(letter.message.payload)
        queued: DeadLetter | StoredDeadLetter = letter
        if size > self._limits.payload_bytes:
            # The stored form releases the payload.
            queued, size = StoredDeadLetter.from_dead_letter(letter, self._limits.payload_bytes), 0
        with self._changed:
            network = network_of(letter.ingress, letter.endpoint)
            if (
                len(self._queued) >= MAX_QUEUED
                or self._queued_bytes + size > MAX_QUEUED_BYTES
                or self._by_network[network] >= MAX_QUEUED_OF_NETWORK
            ):
                self._counts["not_persisted"] += 1
                return
            self._queued.append(queued)
            self._by_network[network] += 1
            self._queued_bytes += size
            if len(self._queued) == 1:
                self._changed.notify_all()

    def _run(self) -> None:
        self._append([])  # check the store now, not with the first letter; that can take seconds
        while (batch := self._next_batch()) is not None:
            if not batch:
                self.store.retry()
                continue
            self._append(batch)
            with self._changed:
                self._writing = 0
                self._changed.notify_all()

    def _next_batch(self) -> list[StoredDeadLetter] | None:
        """Wait for letters and return a batch; an empty one if a degraded store is due; None at the end."""
        with self._changed:
            while not self._queued:
                if self._closing:
                    return None
                if not self._changed.wait(_RETRY_S if self.store.is_degraded else None):
                    return []
            batch, self._queued = self._queued[:_BATCH], self._queued[_BATCH:]
            self._by_network.subtract(network_of(each.ingress, each.endpoint) for each in batch)
            self._queued_bytes -= sum(len(each.message.payload) for each in batch if type(each) is DeadLetter)
            self._writing = len(batch)
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
        except UStatusError as error:  # on a full disk the streamer continues and counts the letters
            self._counts["not_persisted"] += len(batch)
            if not self._failing:
                extra = {"reason": error.message, "letters": len(batch), **limited()}
                log.error("dead_letters.not_persisted", extra=extra)  # noqa: TRY400 - the reason is enough
            self._failing = True
            return
        self._counts["persisted"] += len(batch)
        self._failing = False

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every queued letter is on disk; false after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued and not self._writing, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write the queued letters and close the store. May be repeated.

        What is not on disk in time counts as `not_persisted`.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self.store.close()
            return
        with self._changed:  # a commit hangs, and closing would wait for it
            self._counts["not_persisted"] += len(self._queued) + self._writing
            self._queued, self._writing = [], 0

    def statistics(self) -> Mapping[str, int]:
        """`persisted` and `not_persisted` since the start, `waiting` now, and the store's statistics."""
        return {**self._counts, "waiting": len(self._queued), **self.store.statistics()}
