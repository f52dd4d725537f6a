# SPDX-License-Identifier: Apache-2.0
"""The writer thread: notes of the queue in, in small batches; records of the journal out."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.journal import Journal
from ustreamer_recorder.note_queue import NoteQueue, Skipped
from ustreamer_recorder.segments import list_segments, recover_segments

log = logging.getLogger("ustreamer.recorder")

NOTES_PER_STEP: Final = 128
"""Notes between two pauses: 0.1 ms, the longest wait of the path's threads for the interpreter."""
BATCH_NOTES_PER_STEP: Final = 32
"""The same if notes of many rows are queued. A pause costs as much as writing two of them."""
BUSY_ROWS: Final = 500
"""With more rows at once, the writer continues after `BUSY_DRAIN_S`, before the next flush."""
BUSY_DRAIN_S: Final = 0.02
LOCK_NAME: Final = ".lock"
_PAUSE_S: Final = 0.001
_MAX_RUN: Final = 2**63 - 1


class Recorder:
    """Records from `open` to `close`. Notes from before `open` wait in the queue."""

    def __init__(
        self,
        config: RecorderConfig,
        directory: Path,
        authority: str,
        clock: Clock,
        note_queue: NoteQueue,
        ledger: Callable[[], LedgerSnapshot],
        states: StoreStates | None = None,
    ) -> None:
        """Constructing it touches no file."""
        self._config = config
        self._directory = directory
        self._authority = authority
        self._clock = clock
        self._note_queue = note_queue
        self._ledger = ledger
        self._states = states
        # Two streamers would delete each other's recordings to stay below `max_bytes`.
        self._lock = FileLock(directory / LOCK_NAME, "no other streamer that records there")
        self._owns_directory = self._is_recovered = False
        self._stopping = Event()
        self._is_busy = True
        self._thread = Thread(target=self._run, name="recorder", daemon=True)

    def open(self) -> None:
        """Lock the directory and start the writer. Raises UStatusError if another streamer has the directory.

        Any other error of the directory is retried later: messages are forwarded without a recording.
        """
        try:
            self._acquire_directory()
        except OSError as error:
            log.error("recorder.disk", extra={"directory": str(self._directory), "reason": str(error)})  # noqa: TRY400
        self._thread.start()

    def _acquire_directory(self) -> None:
        if not self._owns_directory:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock.acquire()
            self._owns_directory = True

    def _prepare(self) -> None:
        """Runs before each segment, on the writer's thread."""
        try:
            self._acquire_directory()
            if not self._is_recovered:
                recover_segments(self._directory)
                self._is_recovered = True
        except UStatusError as error:  # another streamer has the lock and may release it
            raise OSError(error.message) from error

    def close(self, timeout_s: float) -> None:
        """Record the queued notes and end. May be repeated, and called without `open`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():  # else the disk hangs, and the process keeps the directory
            self._lock.release()

    def _run(self) -> None:
        run = self._new_run()
        journal = Journal(
            self._config, self._directory, self._authority, self._clock, run, self._prepare, self._states
        )
        journal.tick(Skipped())  # opens the first segment
        ended = False
        while not ended:
            try:
                ended = self._wait_for_flush(journal)
                self._drain(journal)
                if journal.is_count_due:  # a reading waits for the messages in progress
                    journal.count(self._ledger())
                journal.tick(self._note_queue.pop_skipped())
            except Exception:  # a defect of the recorder; it continues with later notes
                log.exception("recorder.failed")
        journal.finish(self._ledger())
        log.info("recorder.stopped", extra={"rows": journal.next_seq, "skipped": journal.skipped_rows})

    def _wait_for_flush(self, journal: Journal) -> bool:
        """Wait for the next flush; true if the recorder is stopping.

        Under load the writer drains the queue meanwhile: the notes of 200 ms at 500 000 rows/s are 3 MB, and the cold
        memory costs the path 0.2 us a message.
        """
        left_s = self._config.flush_ms / 1000
        while left_s > 0:
            pause_s = min(left_s, BUSY_DRAIN_S) if self._is_busy else left_s
            if self._stopping.wait(pause_s):
                return True
            left_s -= pause_s
            if left_s > 0:
                self._drain(journal)
        return False

    def _drain(self, journal: Journal) -> None:
        """Write the notes that are queued now; later notes wait for the next call."""
        notes, note_queue = self._note_queue.notes, self._note_queue
        left = len(notes)
        self._is_busy = note_queue.waiting >= BUSY_ROWS
        hurry_above = self._config.buffer_rows // 4
        while left:
            count = min(left, BATCH_NOTES_PER_STEP if note_queue.has_batches else NOTES_PER_STEP)
            journal.write(notes, count, note_queue)
            left -= count
            if left and note_queue.waiting < hurry_above and not self._stopping.is_set():
                self._stopping.wait(_PAUSE_S)

    def _new_run(self) -> int:
        """A number above every run in the directory, also after the wall clock was set back: runs sort by age."""
        run = ((self._clock.wall_ms() << 16) | int.from_bytes(os.urandom(2), "big")) & _MAX_RUN
        try:
            last = max((each.run for each in list_segments(self._directory)), default=-1)
        except OSError:
            return run
        # A file with the greatest number leaves no number above it; then any free number is used.
        return max(run, last + 1) if last < _MAX_RUN else run
