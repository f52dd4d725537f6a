# SPDX-License-Identifier: Apache-2.0
"""Writes a segment file from events, for generators of recordings and for tests. The streamer uses `segments`.

header = SegmentHeader("hpc.vin1", run=1, number=0, mono_ns=0, wall_ms=1_700_000_000_000)
with SegmentWriter(directory, header) as segment:
    segment.add_event(Row(...))
"""

from pathlib import Path
from types import TracebackType
from typing import Self

from ustreamer_recorder.encoder import SegmentEncoder
from ustreamer_recorder.events import (
    Anchor,
    Config,
    Counters,
    End,
    Event,
    Gap,
    Letter,
    Row,
    Samples,
    SubscriptionChange,
    Target,
)
from ustreamer_recorder.layout import OPEN_SUFFIX, SUFFIX, EndCause, SegmentHeader, segment_name


class SegmentWriter:
    """One segment file. It has the name of an open file until `close`; leaving a `with` block closes it.

    The writer adds only an anchor with the header's two times at the beginning, and END at `close`.
    """

    def __init__(self, directory: Path, header: SegmentHeader) -> None:
        """Raises FileExistsError if the file exists, open or finished."""
        self.path = directory / segment_name(header.run, header.number)
        if self.path.exists():
            raise FileExistsError(f"{self.path} is there already")
        self.open_path = self.path.with_name(self.path.name.removesuffix(SUFFIX) + OPEN_SUFFIX)
        self._file = self.open_path.open("xb")
        self._file.write(header.pack())
        self._encoder = SegmentEncoder(header, self._write)
        self._encoder.anchor(Anchor(header.mono_ns, header.wall_ms))

    def _write(self, block: bytes) -> None:
        self._file.write(block)

    def add_event(self, event: Event) -> None:
        """Write `event` unchecked, so that tests can plant faults."""
        encoder = self._encoder
        match event:
            case Target():
                encoder.add_target(event)
            case Row():
                encoder.row(event)
            case Letter():
                encoder.letter(event)
            case Samples():
                encoder.samples(event)
            case SubscriptionChange():
                encoder.change(event)
            case Gap():
                encoder.gap(event)
            case Config():
                encoder.config(event)
            case Counters():
                encoder.counters(event)
            case Anchor():
                encoder.anchor(event)
            case End():
                encoder.end(event)

    def flush(self, mono_ns: int, wall_ms: int) -> None:
        """End the block with these times and write it to the file."""
        self._encoder.now = mono_ns, wall_ms
        self._encoder.end_block()
        self._file.flush()

    def close(self, cause: EndCause | None = EndCause.STOPPED) -> Path:
        """Finish the file and return its path; None: without END, as after a crash."""
        encoder = self._encoder
        if cause is not None:
            encoder.end(End(cause, *encoder.now, encoder.next_seq, encoder.next_change))
        encoder.end_block()
        self._file.close()
        return self.open_path.rename(self.path)

    def abandon(self) -> Path:
        """Leave the file open, as a killed process does, and return its path. Flushed blocks are in it."""
        self._file.close()
        return self.open_path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._file.closed:
            self.close()
