# SPDX-License-Identifier: Apache-2.0
"""Notes in, records of segments out, with the numbers of rows and targets and the counts of missing rows.

The writer's thread owns everything here.
"""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer_recorder import layout
from ustreamer_recorder.batch_note import BatchNote
from ustreamer_recorder.config import LARGEST_BLOCK, RecorderConfig
from ustreamer_recorder.encoder import SegmentEncoder
from ustreamer_recorder.events import (
    Anchor,
    Config,
    Counters,
    End,
    Gap,
    Letter,
    Sample,
    Samples,
    SubscriptionChange,
)
from ustreamer_recorder.layout import (
    HAS_TTL,
    HELD,
    NO_CODE,
    AnchorCause,
    BlockHeader,
    CountersCause,
    EndCause,
    GapCause,
    SegmentHeader,
)
from ustreamer_recorder.lost_blocks import count_lost
from ustreamer_recorder.note_queue import (
    ROW_ARRIVED_NS,
    ROW_ATTEMPTS,
    ROW_ATTRIBUTES,
    ROW_DESTINATION,
    ROW_ID,
    ROW_LETTER,
    ROW_REASON,
    ROW_RECEIVED_NS,
    ROW_SETTLED_NS,
    ROW_SIZE,
    ROW_VERDICT,
    ChangeNote,
    ConfigNote,
    DeadLetterNote,
    Note,
    NoteQueue,
    RateChangeNote,
    RowNote,
    SampleNote,
    SingleNote,
    Skipped,
    row_of,
)
from ustreamer_recorder.segments import Quota, SegmentFile, enforce_quota
from ustreamer_recorder.targets import Targets

log = logging.getLogger("ustreamer.recorder")

CLOCK_STEP_MS: Final = 50
RETRY_NS: Final = 10_000_000_000
"""The pause before the next attempt after an error of the disk."""
COUNTERS_NS: Final = 10_000_000_000
ROW_BYTES: Final = 24
"""The least share of `segment_bytes` for a row: a reader that expands a file needs four times its size, not six."""
SAMPLES_BYTES: Final = 32_768
"""Payloads of this size together are compressed and written before the next flush."""
_MAX_HEADERS: Final = 16_384  # distinct headers in the cache, as many as cached routes of an ingress
_MAX_CONFIGS: Final = 16  # versions of the configuration
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


class _HeaderIds(NamedTuple):
    """The fields that messages of one header share, as ids of the present segment."""

    type: int
    priority: int
    flags: int
    ttl_ms: int
    source: int
    sink: int
    request: tuple[int, int] | None


class Journal:
    """Writes the recording of one run. Errors of disk or message are counted and never raised."""

    def __init__(
        self,
        config: RecorderConfig,
        directory: Path,
        authority: str,
        clock: Clock,
        run: int,
        prepare: Callable[[], None] = lambda: None,
        states: StoreStates | None = None,
    ) -> None:
        """`prepare` runs before each segment; its OSError counts as an error of the disk. `states` receives these."""
        self.run = run
        self.skipped_rows = 0
        self._config = config
        self._directory = directory
        self._authority = authority
        self._clock = clock
        self._prepare = prepare
        self._states = states or StoreStates()
        self._quota = Quota(config.max_bytes, config.max_age_days, config.keep_free_bytes)
        # The end of the segment has room for one more block and for END.
        self._rotate_at = config.segment_bytes - 2 * LARGEST_BLOCK
        self._file: SegmentFile | None = None
        self._encoder: SegmentEncoder | None = None
        self._lost_block = b""
        self._number = 0  # the number of the next segment
        self._next_seq = 0  # the number of the next row while no segment is open
        self._next_change = 0
        self._gaps: dict[GapCause, Skipped] = {}
        self._no_warning_until_ns = self._retry_ns = self._opened_ns = self._synced_ns = self._counted_ns = 0
        self._counted_seq = 0
        self._unsynced = False
        self._failing = False
        self._anchor = Anchor(clock.monotonic_ns(), clock.wall_ms())
        self._expiry = Expiry(clock)  # a glitch of the clock makes no recording too old
        self._configs = [Config(0, 0, "{}")]
        self._epoch = self._epoch_ns = 0
        self._is_configured = False
        self._reported_unencodable = False
        self._targets = Targets()
        self._headers: BoundedCache[UAttributes, _HeaderIds] = BoundedCache(_MAX_HEADERS)
        self._window = config.trigger_window()
        self._samples: list[Sample] = []
        self._samples_bytes = self._dropped_samples = 0

    @property
    def next_seq(self) -> int:
        """The number of rows so far, with the missing rows."""
        return self._next_seq if self._encoder is None else self._encoder.next_seq

    # --- notes --------------------------------------------------------------------------------------------------------

    def write(self, notes: deque[Note], count: int, note_queue: NoteQueue) -> None:
        """Record `count` notes, or count them as missing. A row of a batch costs a tenth of a single row."""
        for _ in range(count):
            note = notes.popleft()
            if isinstance(note, BatchNote):
                self._write_batch(note, note_queue)
            else:
                self._write_one(note, note_queue)

    def _write_batch(self, batch: BatchNote, note_queue: NoteQueue) -> None:
        """Record messages that were delivered together, as many at once as fit in one block."""
        note_queue.batch_popped(batch)
        if self._window is not None:
            self._check_trigger(batch.attributes, Verdict.DELIVERED, batch.time_ns(len(batch) - 1))
        done = 0
        while done < len(batch):
            written = self._write_rows(batch, done)
            if not written:
                self._write_one(row_of(batch, done), note_queue)
            done += written or 1

    def _write_rows(self, batch: BatchNote, begin: int) -> int:
        """Write rows of a batch from row `begin` on; return how many, or 0 if the row needs `_write_one`."""
        encoder, attributes = self._encoder, batch.attributes
        known, state = self._headers.get(attributes), self._targets.states.get(id(batch.delivery))
        received_ns = batch.time_ns(begin)
        if (
            encoder is None
            or encoder.size > self._rotate_at
            or known is None
            or state is None
            or received_ns < state.tuned_ns
            or received_ns < self._epoch_ns
            or state.target not in encoder.targets
        ):
            return 0
        type_, priority, flags, ttl_ms, source, sink, _ = known
        return encoder.pack_rows(
            flags, type_, priority, state.target, source, sink, ttl_ms, self._epoch, batch, begin
        )

    def _write_one(self, note: SingleNote, note_queue: NoteQueue) -> None:
        """Record any note except a batch."""
        if self._encoder is not None and self._encoder.size > self._rotate_at:
            self._rotate(EndCause.ROTATED)
        if self._window is not None and isinstance(note, tuple):
            self._check_trigger(note[ROW_ATTRIBUTES], note[ROW_VERDICT], note[ROW_ARRIVED_NS])
        encoder = self._encoder
        try:
            if not isinstance(note, tuple):
                self._event(encoder, note)
            elif encoder is None:
                self._count_missing(note, GapCause.DISK)
            else:
                self._row(encoder, note)
        except Exception as error:  # noqa: BLE001  # also a number that does not fit, or an invalid value
            self._on_note_failed(note, error)
        if isinstance(note, SampleNote):
            note_queue.payload_written(note)
        elif isinstance(note, tuple) and note[ROW_LETTER] is not None:
            self._letter(note, note[ROW_LETTER])
            note_queue.payload_written(note[ROW_LETTER])

    def _on_note_failed(self, note: SingleNote, error: Exception) -> None:
        if isinstance(error, OSError):
            self._count_missing(note, GapCause.DISK)
            self._on_disk_error(error)
            return
        if not self._reported_unencodable:
            log.error("recorder.row_not_encodable", exc_info=error)
        self._reported_unencodable = True
        self._count_missing(note, GapCause.UNFIT)

    def _row(self, encoder: SegmentEncoder, note: RowNote) -> None:
        id_, attributes, size, destination, verdict, reason, attempts, arrived_ns, received_ns, *times, _ = (
            note
        )
        first_attempt_ns, settled_ns = times
        known = self._headers.get(attributes) or self._header_ids(encoder, attributes)
        target = self._targets.target_for(destination, received_ns)
        encoder.add_target(target)
        text = None if reason is None else reason.message
        reason_id = encoder.string_id(text)
        if known.request is not None:
            encoder.ensure_room_for_answer()
        encoder.pack_row(
            known.flags if arrived_ns == received_ns else known.flags | HELD,
            verdict,
            NO_CODE if reason is None else reason.code,
            known.type,
            known.priority,
            attempts,
            id_.msb,
            id_.lsb,
            arrived_ns,
            received_ns,
            first_attempt_ns,
            settled_ns,
            target.target,
            known.source,
            known.sink,
            size,
            known.ttl_ms,
            reason_id,
            self._epoch_at(received_ns),
        )
        if known.request is not None:
            encoder.answer(*known.request)

    def _header_ids(self, encoder: SegmentEncoder, attributes: UAttributes) -> _HeaderIds:
        sink, reqid = attributes.sink, attributes.reqid
        known = _HeaderIds(
            attributes.type,
            attributes.priority_class,
            0 if attributes.ttl is None else HAS_TTL,
            attributes.ttl or 0,
            encoder.string_id(str(attributes.source)),
            0 if sink is None else encoder.string_id(str(sink)),
            None if reqid is None else (reqid.msb, reqid.lsb),
        )
        if attributes.is_cacheable:
            self._headers.add(attributes, known)
        return known

    def _epoch_at(self, received_ns: int) -> int:
        """The epoch of the configuration at that time; the oldest known one for an earlier time."""
        earlier = [each.epoch for each in self._configs if each.since_ns <= received_ns]
        return (earlier or [self._configs[0].epoch])[-1]

    def _letter(self, note: RowNote, letter: DeadLetterNote) -> None:
        """Write the dead letter of the last row."""
        encoder = self._encoder
        if encoder is None:
            return  # missing with its row
        attributes, reason = note[ROW_ATTRIBUTES], note[ROW_REASON]
        try:
            encoder.letter(
                Letter(
                    seq=encoder.next_seq - 1,
                    id=note[ROW_ID],
                    time_ns=note[ROW_SETTLED_NS],
                    target=self._targets.target_for(note[ROW_DESTINATION], note[ROW_RECEIVED_NS]),
                    source=str(attributes.source),
                    sink=None if attributes.sink is None else str(attributes.sink),
                    attempts=note[ROW_ATTEMPTS],
                    size=note[ROW_SIZE],
                    code=None if reason is None else reason.code,
                    reason=None if reason is None else reason.message,
                    payload=letter.payload,
                )
            )
        except OSError as error:
            self._gap(GapCause.DISK).letters += 1
            self._on_disk_error(error)

    def _event(
        self, encoder: SegmentEncoder | None, note: RateChangeNote | ChangeNote | ConfigNote | SampleNote
    ) -> None:
        match note:
            case RateChangeNote(delivery, period_ns, tuned_ns):
                target = self._targets.new_target(delivery, period_ns, tuned_ns)
                if encoder is not None:
                    encoder.add_target(target)
            case ConfigNote(text, since_ns):
                epoch = self._configs[-1].epoch + 1 if self._is_configured else 0
                known = self._configs[-_MAX_CONFIGS:] if self._is_configured else []
                self._configs = [*known, Config(epoch, since_ns, text)]
                self._is_configured = True
                self._epoch, self._epoch_ns = epoch, since_ns
                if encoder is not None:
                    encoder.config(self._configs[-1])
            case ChangeNote():
                self._change(encoder, note)
            case SampleNote():
                self._sample(encoder, note)

    def _check_trigger(self, attributes: UAttributes, verdict: Verdict, arrived_ns: int) -> None:
        assert self._window is not None
        for note in self._window.observe(attributes, verdict, arrived_ns):
            self._keep_sample(self._encoder, note)

    def _sample(self, encoder: SegmentEncoder | None, note: SampleNote) -> None:
        if self._window is None or self._window.add(note):
            self._keep_sample(encoder, note)
        if self._window is not None:
            self._dropped_samples += self._window.dropped
            self._window.dropped = 0

    def _keep_sample(self, encoder: SegmentEncoder | None, note: SampleNote) -> None:
        if encoder is None:
            self._dropped_samples += 1
            return
        attributes = note.attributes
        self._samples.append(
            Sample(
                note.id,
                note.arrived_ns,
                str(attributes.source),
                note.size,
                note.payload,
                attributes.payload_format,
            )
        )
        self._samples_bytes += layout.SAMPLE.size + len(note.payload)
        if self._samples_bytes >= SAMPLES_BYTES:
            self._write_samples(encoder)

    def _write_samples(self, encoder: SegmentEncoder) -> None:
        """Write the collected payloads and the number of dropped ones."""
        samples, dropped = tuple(self._samples), self._dropped_samples
        self._samples.clear()
        self._samples_bytes = self._dropped_samples = 0
        if samples or dropped:
            times_ns = [each.arrived_ns for each in samples] or [self._clock.monotonic_ns()]
            encoder.samples(Samples(min(times_ns), max(times_ns), samples, dropped))

    def _change(self, encoder: SegmentEncoder | None, note: ChangeNote) -> None:
        if encoder is None:
            self._count_missing(note, GapCause.DISK)
            return
        subscription = note.subscription
        encoder.change(
            SubscriptionChange(
                encoder.next_change,
                note.time_ns,
                note.change,
                str(subscription.topic),
                str(subscription.subscriber),
                subscription.period_ns,
            )
        )

    # --- missing rows ------------------------------------------------------------------------------------------------

    def _gap(self, cause: GapCause) -> Skipped:
        return self._gaps.setdefault(cause, Skipped())

    def _count_missing(self, note: SingleNote, cause: GapCause) -> None:
        """Count a note that was not recorded."""
        gap = self._gap(cause)
        if isinstance(note, tuple):
            gap.rows[note[ROW_VERDICT]] += 1
            gap.letters += note[ROW_LETTER] is not None
            gap.include_time(note[ROW_SETTLED_NS])
        elif isinstance(note, ChangeNote):
            gap.changes += 1
            gap.include_time(note.time_ns)

    def _write_gaps(self, encoder: SegmentEncoder) -> None:
        for cause, gap in list(self._gaps.items()):
            if gap:
                a, b, c, d, e, f = gap.rows
                rows = (a, b, c, d, e, f)
                encoder.gap(
                    Gap(encoder.next_seq, cause, gap.from_ns, gap.until_ns, rows, gap.changes, gap.letters)
                )
                self.skipped_rows += sum(rows)
                self._warn_of_gap(cause, sum(rows))
            del self._gaps[cause]

    def _warn_of_gap(self, cause: GapCause, rows: int) -> None:
        """Log a gap, at most once in RETRY_NS; the recording has each gap."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._no_warning_until_ns:
            self._no_warning_until_ns = now_ns + RETRY_NS
            log.warning("recorder.gap", extra={"cause": cause.name, "rows": rows})

    def _on_disk_error(self, error: OSError) -> None:
        """Count the unwritten records as missing and pause the recording for RETRY_NS."""
        encoder, file, lost = self._encoder, self._file, self._lost_block
        self._encoder, self._file, self._lost_block = None, None, b""
        self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
        if encoder is not None:
            first_seq, waiting = encoder.pending
            head = BlockHeader.find(lost, 0)
            gap = self._gap(GapCause.DISK)
            changes, gap.samples = gap.changes, len(self._samples)
            self._samples.clear()
            self.skipped_rows -= count_lost(lost + waiting, gap)
            self._dropped_samples += gap.samples
            self._next_seq = first_seq if head is None else head.first_seq
            self._next_change = encoder.next_change - (gap.changes - changes)
        if not self._failing:
            log.error("recorder.disk", extra={"directory": str(self._directory), "reason": str(error)})
        self._failing = True
        self._states.on_refused(str(self._directory), str(error))
        if file is not None:
            try:
                file.finish()
            except OSError as failed:  # the next start finishes the file
                log.warning(
                    "recorder.segment_not_finished", extra={"file": str(file.path), "reason": str(failed)}
                )

    # --- segments -----------------------------------------------------------------------------------------------------

    def tick(self, skipped: Skipped) -> None:
        """End the block, sync and rotate if due. `skipped`: the notes that the queue dropped."""
        self._gap(GapCause.OVERRUN).merge(skipped)
        self._dropped_samples += skipped.samples
        self._expiry.observe_clock()
        now_ns, wall_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        if self._encoder is None and now_ns >= self._retry_ns:
            self._open(now_ns, wall_ms)
        encoder, file = self._encoder, self._file
        if encoder is None or file is None:
            return
        encoder.now = now_ns, wall_ms
        try:
            self._check_clock_step(encoder, now_ns, wall_ms)
            self._write_gaps(encoder)
            self._write_samples(encoder)
            encoder.end_block()
            if self._unsynced and now_ns - self._synced_ns >= self._config.sync_ms * _NS_PER_MS:
                file.sync()
                self._synced_ns, self._unsynced = now_ns, False
        except OSError as error:
            self._on_disk_error(error)
            return
        rows = encoder.next_seq - encoder.header.first_seq
        is_old = now_ns - self._opened_ns >= self._config.segment_s * _NS_PER_S
        if encoder.is_full or rows > self._config.segment_bytes // ROW_BYTES or (is_old and rows):
            self._rotate(EndCause.ROTATED)

    @property
    def is_count_due(self) -> bool:
        """Whether `count` would record the ledger now."""
        return (
            self._encoder is not None
            and self._encoder.next_seq != self._counted_seq
            and self._clock.monotonic_ns() - self._counted_ns >= COUNTERS_NS
        )

    def count(self, ledger: LedgerSnapshot) -> None:
        """Record the dispatcher's ledger, if it is due."""
        now_ns, encoder = self._clock.monotonic_ns(), self._encoder
        if encoder is None or not self.is_count_due:
            return
        self._counted_ns, self._counted_seq = now_ns, encoder.next_seq
        try:
            self._counters(encoder, CountersCause.RUNNING, ledger, now_ns)
        except OSError as error:
            self._on_disk_error(error)

    def _counters(
        self, encoder: SegmentEncoder, cause: CountersCause, ledger: LedgerSnapshot, now_ns: int
    ) -> None:
        encoder.counters(Counters(cause, now_ns, ledger, encoder.next_seq, self.skipped_rows))

    def finish(self, ledger: LedgerSnapshot) -> None:
        """End the run. The journal writes nothing afterwards."""
        self._retry_ns = 0
        self.tick(Skipped())
        encoder = self._encoder
        if encoder is None:
            return
        try:
            self._counters(encoder, CountersCause.STOPPED, ledger, self._clock.monotonic_ns())
        except OSError as error:
            self._on_disk_error(error)
            return
        self._rotate(EndCause.STOPPED)

    def _rotate(self, cause: EndCause) -> None:
        encoder, file = self._encoder, self._file
        assert encoder is not None
        assert file is not None
        now_ns, wall_ms = encoder.now = self._clock.monotonic_ns(), self._clock.wall_ms()
        try:
            self._write_samples(encoder)
            encoder.end(End(cause, now_ns, wall_ms, encoder.next_seq, encoder.next_change))
            encoder.end_block()
        except OSError as error:
            self._on_disk_error(error)
            return
        self._next_seq, self._next_change = encoder.next_seq, encoder.next_change
        self._encoder = self._file = None
        try:
            file.finish()
        except OSError as error:
            self._on_disk_error(error)
            return
        if cause is EndCause.ROTATED:
            self._open(now_ns, wall_ms)

    def _open(self, now_ns: int, wall_ms: int) -> None:
        header = SegmentHeader(
            self._authority, self.run, self._number, now_ns, wall_ms, self._next_seq, self._next_change
        )
        reserve = self._config.segment_bytes
        try:
            self._prepare()
            enforce_quota(self._directory, self._quota, reserve, self._expiry.earliest_wall_ms())
            self._file = SegmentFile(
                self._directory, header, reserve, 0o600 if self._config.payloads else 0o640
            )
        except OSError as error:
            self._on_disk_error(error)
            return
        if self._failing:
            log.warning("recorder.resumed", extra={"directory": str(self._directory)})
        self._failing = False
        self._states.on_written(str(self._directory))
        self._number += 1
        self._opened_ns = self._synced_ns = now_ns
        self._headers.clear()
        self._encoder = encoder = SegmentEncoder(header, self._emit)
        # A clock step between two files has no CLOCK_STEP anchor.
        self._anchor = Anchor(now_ns, wall_ms, AnchorCause.SEGMENT, self._clock_step_ms(now_ns, wall_ms))
        encoder.anchor(self._anchor)
        if self._is_configured:
            encoder.config(self._configs[-1])
        self._write_gaps(encoder)

    def _emit(self, block: bytes) -> None:
        assert self._file is not None
        self._lost_block = block
        self._file.write(block)
        self._lost_block = b""
        self._unsynced = True

    def _check_clock_step(self, encoder: SegmentEncoder, now_ns: int, wall_ms: int) -> None:
        clock_step_ms = self._clock_step_ms(now_ns, wall_ms)
        if clock_step_ms:
            self._anchor = Anchor(now_ns, wall_ms, AnchorCause.CLOCK_STEP, clock_step_ms)
            encoder.anchor(self._anchor)

    def _clock_step_ms(self, now_ns: int, wall_ms: int) -> int:
        """The clock step since the last anchor; 0 below CLOCK_STEP_MS, which is drift."""
        clock_step_ms = wall_ms - self._anchor.wall_ms - (now_ns - self._anchor.mono_ns) // _NS_PER_MS
        return clock_step_ms if abs(clock_step_ms) >= CLOCK_STEP_MS else 0
