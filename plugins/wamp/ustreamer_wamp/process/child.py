# SPDX-License-Identifier: Apache-2.0
"""The process of the sessions: `python -m ustreamer_wamp.process.child DESCRIPTOR`.

`DESCRIPTOR` is its end of a socket pair; the first frame has the section. The process ends after a frame `Close`, and
when the streamer is gone. It ignores SIGINT and SIGTERM, which a terminal or systemd sends to all processes: the
streamer ends it in order. It has a lower priority than the streamer, and is the first to go when memory is short.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Final

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import HeaderDecoder, HeaderEncoder
from ustreamer_wamp.process import frames
from ustreamer_wamp.sessions import ROUTES_REBUILD_DELAY_S, Sessions
from ustreamer_wamp.vehicle.batch import VehicleBatch, VehicleEvent, rate_entity
from ustreamer_wamp.vehicle.mapping import Decode
from ustreamer_wamp.vehicle.patterns import Pattern

_CLOCK: Final = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)  # noqa: TID251  # of this process
_TURN_NS: Final = 20_000_000
"""Time for messages of the streamer in one iteration of the loop, which serves clients in between."""
_BATCH_FRAMES: Final = 32
_RECEIVE_BYTES: Final = 65_536  # its memory comes from the heap, and the unused part is returned
_REPORT_S: Final = 0.25
_UNCHANGED_REPORTS: Final = 20
"""One of so many is sent although nothing has changed: the streamer ends a process that is silent."""
_MAX_UNSENT_BYTES: Final = 1 << 20
"""Bytes for the streamer that wait; above, publications of clients are refused, and log lines and reports dropped."""
_FINISH_S: Final = 5.0
"""For the streamer to take what waits, at the end of this process."""
_NICE: Final = 5
_OOM_SCORE: Final = "500"


class StreamerLink:
    """The connection to the streamer: a `ustreamer_wamp.sessions.Vehicle`. All calls on the loop's thread.

    Without a transport of asyncio, which takes five calls to read one event.
    """

    def __init__(self, start: frames.Start, connected: socket.socket) -> None:
        self.patterns = self
        self.sessions = Sessions(frames.unpack_config(start.config), start.place, _CLOCK, self)
        self.ended = ThreadEvent()
        """The streamer is gone, or wants this process to end."""
        self._authority = start.place.authority
        self._reader = frames.reader_in_child()
        self._socket = connected
        self._unsent = bytearray()
        self._is_reading = self._is_blocked = self._is_lost = False
        self._header_of = HeaderEncoder().encode
        self._attributes_of = HeaderDecoder().decode
        self._realm = self.sessions.router.realm
        self._deliver_lone_event = self.sessions.bridge.deliver_lone_event
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed_patterns: dict[Pattern, int | None] = {}
        self._sent_patterns: set[Pattern] = set()
        """The patterns that the streamer has, but for the changed ones."""
        self._sends_patterns_soon = False
        self._reported: frames.Report | None = None
        self._unchanged = 0

    def open(self) -> None:
        """Read and write, after what has been sent before."""
        self._loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        self._unsent[:0] = frames.pack(frames.Ready(list(self.sessions.router.server.urls)))
        self._report()
        self._resume_reading()

    def _on_lost(self) -> None:
        """The streamer is gone."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._is_lost = True
        self._unsent.clear()
        self.ended.set()

    # --- from the streamer ----------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        if self._loop is not None and not self._is_reading and not self._is_lost:
            self._is_reading = True
            self._loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._on_lost()
            return
        try:
            frame = self._reader.take_lone_frame(data)
            if type(frame) is frames.Event:
                id, attributes = self._attributes_of(frame.header)
                entity = rate_entity(self._authority, frame.rate)
                self._deliver_lone_event(
                    self._realm, entity, UMessage(id, attributes, frame.payload), frame.value
                )
                return
            self._reader.feed(data)
        except BaseException:
            self._on_lost()  # a defect: the streamer starts another process
            raise
        self._process_frames()

    def _process_frames(self) -> None:
        """Process frames for a while. The others wait for the next iteration; meanwhile nothing more is read."""
        until_ns = time.monotonic_ns() + _TURN_NS  # noqa: TID251  # of this process
        try:
            while self._process_batch():
                if time.monotonic_ns() >= until_ns and self._loop is not None:  # noqa: TID251  # of this process
                    self._is_reading = False
                    self._loop.remove_reader(self._socket)
                    self._loop.call_soon(self._process_frames)
                    return
        except BaseException:
            self._on_lost()  # as above
            raise
        self._resume_reading()

    def _process_batch(self) -> bool:
        """Deliver some frames; whether there may be more."""
        events: list[VehicleEvent] = []
        addressed: list[UMessage] = []
        dropped: dict[tuple[UUri, UUri], int] = {}
        frame = None
        for _ in range(_BATCH_FRAMES):
            frame = self._reader.next_frame()
            match frame:
                case frames.Event(rate, header, payload, value):
                    message = UMessage(*self._attributes_of(header), payload)
                    events.append((rate_entity(self._authority, rate), message, value))
                case frames.Addressed(header, payload):
                    addressed.append(UMessage(*self._attributes_of(header), payload))
                case frames.DroppedEvents(rate, topic, count):
                    dropped[rate_entity(self._authority, rate), UUri.parse(topic)] = count
                case frames.SeenTopic(topic):
                    self.sessions.pattern_subscriptions.observe(UUri.parse(topic))
                case frames.ChangeUsers(config):
                    self.sessions.change_users(frames.unpack_config(config))
                case frames.StopAccepting():
                    self.sessions.stop_accepting()
                    self.send(frames.PublicationsEnded())
                case frames.Close():
                    self.ended.set()
                case None:
                    break
        self.sessions.deliver(VehicleBatch(addressed, dropped, events))
        return frame is not None

    # --- to the streamer ------------------------------------------------------------------------------------

    def dispatch(self, message: UMessage) -> bool:
        """Send a message of a session; False for a publication above _MAX_UNSENT_BYTES, which is not sent."""
        is_publication = message.attributes.type is UMessageType.PUBLISH
        if is_publication and self._is_full:
            return False
        self.send(frames.SessionMessage(self._header_of(message.id, message.attributes), message.payload))
        return True

    def decoder(self, topic: UUri) -> Decode | None:
        """None: the streamer has the plugins, and sends the values."""
        return None

    def add_pattern(self, pattern: Pattern, period_ns: int) -> None:
        self._change_pattern(pattern, period_ns)

    def remove_pattern(self, pattern: Pattern) -> None:
        self._change_pattern(pattern, None)

    def _change_pattern(self, pattern: Pattern, period_ns: int | None) -> None:
        """Each change of patterns rebuilds all routes, so changes within a time are sent together."""
        if not self._sends_patterns_soon:
            self._sends_patterns_soon = True
            asyncio.get_running_loop().call_later(ROUTES_REBUILD_DELAY_S, self._send_patterns)
        if period_ns is None and pattern not in self._sent_patterns:
            self._changed_patterns.pop(pattern, None)  # the streamer never had it
        else:
            self._changed_patterns[pattern] = period_ns

    def _send_patterns(self) -> None:
        if self._is_full:  # a later change of the same pattern replaces the earlier one
            asyncio.get_running_loop().call_later(ROUTES_REBUILD_DELAY_S, self._send_patterns)
            return
        self._sends_patterns_soon = False
        for pattern, period_ns in self._changed_patterns.items():
            entity, topic, match = pattern
            self.send(frames.PatternChange(entity.ue_instance, topic, match, period_ns))
            (self._sent_patterns.discard if period_ns is None else self._sent_patterns.add)(pattern)
        self._changed_patterns.clear()

    def _report(self) -> None:
        report = self.report()
        self._unchanged += 1
        if not self._is_full and (report != self._reported or self._unchanged >= _UNCHANGED_REPORTS):
            self._reported, self._unchanged = report, 0
            self.send(report)
        asyncio.get_running_loop().call_later(_REPORT_S, self._report)

    def report(self) -> frames.Report:
        """The counters and gauges of now."""
        refusals = [(*key, count) for key, count in self.sessions.refused_by_peer().items()]
        return frames.Report(dict(self.sessions.counts), self.sessions.gauges(), refusals)

    def send_log_line(self, line: frames.ForwardedLog) -> None:
        """Send a line, or count it where too much waits for the streamer."""
        if self._is_full:
            self.sessions.counts["log_lines_dropped"] += 1
        else:
            self.send(line)

    def send(self, frame: frames.FromSessions) -> None:
        """Write a frame now, or when the streamer takes more. Dropped if the streamer is gone."""
        if self._is_lost:
            return
        self._unsent += frames.pack(frame)
        if self._loop is not None and not self._is_blocked:
            self._write()

    def finish(self) -> None:
        """Write what waits and the last report, on any thread, after the end of the loop."""
        with suppress(OSError):
            self._socket.settimeout(_FINISH_S)
            self._socket.sendall(self._unsent + frames.pack(self.report()))

    @property
    def unsent_bytes(self) -> int:
        """Bytes of frames that the socket has not taken."""
        return len(self._unsent)

    @property
    def _is_full(self) -> bool:
        return self.unsent_bytes > _MAX_UNSENT_BYTES

    def _write(self) -> None:
        """Write what the streamer takes now, and the rest when it takes more."""
        assert self._loop is not None
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._on_lost()
            return
        if self._unsent and not self._is_blocked:
            self._loop.add_writer(self._socket, self._write)
        elif self._is_blocked and not self._unsent:
            self._loop.remove_writer(self._socket)
        self._is_blocked = bool(self._unsent)


class LogToStreamer(logging.Handler):
    """The log of this process, as frames."""

    def __init__(
        self,
        run_on_loop: Callable[[Callable[[frames.ForwardedLog], None], frames.ForwardedLog], bool],
        link: StreamerLink,
    ) -> None:
        super().__init__()
        self._run_on_loop = run_on_loop
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        plain = msgspec.to_builtins(fields, enc_hook=str)
        line = frames.ForwardedLog(record.name, record.levelno, record.getMessage(), plain)
        self._run_on_loop(self._link.send_log_line, line)


_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _yield_to_streamer() -> None:
    """Give the streamer the CPU and the memory first. Where that is not permitted, both are equal."""
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def _receive_start(connected: socket.socket) -> frames.Start | None:
    """Wait for the first frame; None if the streamer is gone. Raises OSError and InvalidFrame."""
    reader = frames.reader_in_child()
    while (frame := reader.next_frame()) is None:
        # Nothing follows the first frame until the answer.
        data = connected.recv(65_536)
        if not data:
            return None
        reader.feed(data)
    assert isinstance(frame, frames.Start)
    return frame


def main(descriptor: int) -> int:
    """Serve clients until the streamer ends this process. Returns the exit code: 1 if it could not start."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _yield_to_streamer()
    connected = socket.socket(fileno=descriptor)
    start = _receive_start(connected)
    if start is None:
        return 1
    link = StreamerLink(start, connected)
    server = link.sessions.router.server
    root = logging.getLogger("ustreamer")
    root.addHandler(LogToStreamer(server.run_on_loop, link))
    root.setLevel(logging.INFO)
    root.propagate = False
    try:
        link.sessions.open([UUri.parse(each) for each in start.topics])
    except UStatusError as error:
        with suppress(OSError):
            connected.sendall(frames.pack(frames.Failed(error.message)))
        return 1
    server.run_on_loop(link.open)
    link.ended.wait()
    link.sessions.close()
    link.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
