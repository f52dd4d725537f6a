# SPDX-License-Identifier: Apache-2.0
"""The exporter's thread: notes of the queue in, requests to the collector out, and counts of all spans.

While the collector is away, one request waits for it and the queue fills. Then later spans are dropped and counted, so
an outage costs a bounded memory and no message waits for it.
"""

import logging
import os
from threading import Event, Thread
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer_tracing.collector import CollectorClient, ExportResult
from ustreamer_tracing.config import TracingConfig
from ustreamer_tracing.span_queue import SpanQueue
from ustreamer_tracing.spans import WallTime, export_request

log = logging.getLogger("ustreamer.tracing")

SPANS_PER_REQUEST: Final = 512
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 30.0
_REPORT_NS: Final = 60_000_000_000
"""The least time between two log lines about lost spans."""


class SpanExporter:
    """Exports from `start` to `close`."""

    def __init__(self, config: TracingConfig, authority: str, clock: Clock, queue: SpanQueue) -> None:
        self._flush_s = config.flush_ms / 1000
        self._url = config.collector
        self._authority = authority
        self._queue = queue
        self._monotonic_ns = clock.monotonic_ns
        self._wall = WallTime(clock)
        self._client = CollectorClient(config)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="tracing", daemon=True)
        self._unsent: tuple[bytes, int] | None = None  # an encoded request that is tried again, and its spans
        self._retry_s = 0.0  # above 0 while the collector is away
        self._reported = 0  # lost spans in the last log line about them
        self._reported_ns: int | None = None
        self._reason = ""
        self.exported = self.refused = self.dropped = self.invalid = 0

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Export what waits, with one try, and end. May be repeated, and called without `start`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        wait_s, ended = self._flush_s, False
        while not ended:
            ended = self._stopping.wait(wait_s)
            try:
                self._flush()
            except Exception:  # a defect of the exporter; it continues with later spans
                log.exception("tracing.failed")
            wait_s = max(self._flush_s, self._retry_s)
        if self._unsent is not None:
            self.dropped += self._unsent[1]
        self.dropped += len(self._queue.pop(len(self._queue.notes)))
        log.info(
            "tracing.stopped", extra={"exported": self.exported, "invalid": self.invalid, **self._lost()}
        )

    def _flush(self) -> None:
        """Export the spans that are queued now; later ones wait for the next flush, so a flood has a bounded cost."""
        left = len(self._queue.notes)
        while self._export_unsent() and left:
            notes = self._queue.pop(min(left, SPANS_PER_REQUEST))
            left -= len(notes)
            request = export_request(self._authority, notes, self._wall.offset_ns(), lambda: os.urandom(8))
            spans = len(request.resource_spans[0].scope_spans[0].spans)
            self.invalid += len(notes) - spans
            if spans:
                self._unsent = request.SerializeToString(), spans
        self.dropped += self._queue.pop_dropped()
        self._report_lost()

    def _export_unsent(self) -> bool:
        """Send the request that waits. False if the collector is away."""
        if self._unsent is None:
            return True
        body, spans = self._unsent
        result = self._client.export(body, spans)
        if result.try_again:
            self._on_away(result)
            return False
        self._unsent = None
        self.exported += spans - result.refused
        self.refused += result.refused
        if self._retry_s:
            self._retry_s = 0.0
            log.info("tracing.resumed", extra={"collector": self._url})
        if result.reason:
            self._reason = result.reason
        return True

    def _on_away(self, result: ExportResult) -> None:
        self._reason = result.reason
        if not self._retry_s:
            log.warning("tracing.collector_away", extra={"collector": self._url, "reason": result.reason})
        doubled = min(max(2 * self._retry_s, _FIRST_RETRY_S), _LAST_RETRY_S)
        self._retry_s = max(doubled, min(result.retry_after_s, 10 * _LAST_RETRY_S))

    def _lost(self) -> dict[str, int]:
        return {"dropped": self.dropped, "refused": self.refused}

    def _report_lost(self) -> None:
        now_ns, lost = self._monotonic_ns(), self.dropped + self.refused
        is_due = self._reported_ns is None or now_ns - self._reported_ns >= _REPORT_NS
        if lost > self._reported and is_due:
            log.warning("tracing.spans_lost", extra={**self._lost(), "reason": self._reason})
            self._reported, self._reported_ns = lost, now_ns
