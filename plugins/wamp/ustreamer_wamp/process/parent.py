# SPDX-License-Identifier: Apache-2.0
"""The streamer's side of the process of the sessions: starts it, reads from it, restarts it, ends it.

Two threads. `wamp feed` writes what waits in the inbox (`feed`); only this thread waits for a slow child. `wamp process`
reads what the child sends, and starts another child after its end.
"""

import logging
import os
import socket
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Final, Protocol

import msgspec

from ustreamer.core.base.backoff import backoff_ns
from ustreamer.core.base.log_limit import LIMITED, limited
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import HeaderDecoder
from ustreamer_wamp.config import Place, WampConfig
from ustreamer_wamp.process import frames
from ustreamer_wamp.process.feed import STALL_S, Feed, Inbox
from ustreamer_wamp.vehicle.batch import rate_entity
from ustreamer_wamp.vehicle.patterns import Pattern, PatternSink

log = logging.getLogger("ustreamer.wamp")

MAX_KNOWN_TOPICS: Final = 4_096
"""Topics of other devices that the child knows; senders choose their number."""
_CHILD: Final = "ustreamer_wamp.process.child"
_BUFFER_BYTES: Final = 16_384
"""Of the socket: what is in it cannot be replaced by newer events."""
_START_S: Final = 30.0
_CLOSE_S: Final = 10.0
_LAST_PUBLICATIONS_S: Final = 2.0
"""For the publications that the sessions have accepted, at a stop."""
_FIRST_PAUSE_MS: Final = 250
_MAX_PAUSE_MS: Final = 30_000


class StreamerSide(Inbox, Protocol):
    """What the process needs of the endpoint."""

    @property
    def patterns(self) -> PatternSink: ...

    def dispatch(self, message: UMessage) -> bool: ...

    def on_process_change(self, up: bool) -> None: ...


class SessionsProcess:
    """A `ustreamer_wamp.transport.SessionsPort` with the sessions in a child process."""

    def __init__(
        self,
        config: WampConfig,
        place: Place,
        streamer: StreamerSide,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self.urls: list[str] = []
        """The listening addresses, with the assigned port in place of 0."""
        self._config = config
        self._child_config = config
        """The section that the child had at its start."""
        self._place = place
        self._streamer = streamer
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader = frames.reader_in_streamer(config)
        self._topics: Collection[UUri] = ()
        self._known_topics: OrderedDict[UUri, None] = OrderedDict()
        self._stopping = Event()  # no other child is started
        self._publications_ended = Event()
        self._closed = False
        self._call_soon: Callable[[], None] | None = None
        self._threads: list[Thread] = []
        self._decode_header = HeaderDecoder().decode
        self._counts: Counter[str] = Counter()
        self._feed = Feed(streamer, monotonic_ns, self._counts, self._kill)
        self.write_at_once: Callable[[UUri, UMessage], bool] = self._feed.write_at_once
        self._earlier_counts: Counter[str] = Counter()  # of children that have ended
        self._report = frames.Report({}, {})

    # --- the endpoint's side ------------------------------------------------------------------------------------

    def open(self, topics: Collection[UUri]) -> None:
        self._topics = topics
        self._start()
        self._streamer.on_process_change(True)
        for name, run in (("wamp process", self._supervise), ("wamp feed", self._feed.run)):
            thread = Thread(target=run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def change_users(self, config: WampConfig) -> None:
        self._config = config
        self._feed.send_control(frames.ChangeUsers(frames.pack_config(config)))

    def stop_accepting(self) -> None:
        self._stopping.set()
        self._publications_ended.clear()
        self._feed.send_control(frames.StopAccepting())  # also for a child that is being started
        if self._feed.is_attached and not self._publications_ended.wait(_LAST_PUBLICATIONS_S):
            log.warning("wamp.publications_not_ended", extra={"seconds": _LAST_PUBLICATIONS_S})

    def close(self) -> None:
        before = self._counts["events_no_subscriber"]
        self._stopping.set()
        self._feed.close()
        for each in self._threads:
            each.join(_CLOSE_S / len(self._threads))
        if any(each.is_alive() for each in self._threads):  # the child does not read or does not end
            self._kill()
            for each in self._threads:
                each.join(_CLOSE_S)
        self._threads.clear()
        self._closed = True
        if lost := self._counts["events_no_subscriber"] - before:
            log.warning("wamp.events_lost", extra={"events": lost})

    def wake(self) -> bool:
        self._feed.wake()
        return not self._closed

    def run_soon(self, function: Callable[[], None]) -> None:
        self._call_soon = function

    def on_topic_seen(self, topic: UUri) -> None:
        known = self._known_topics
        if topic in known or topic.authority_name in self._place.serves:
            return
        if self._feed.waiting_control_frames >= MAX_KNOWN_TOPICS:
            return  # the child is slow; the topic is new at its next lookup
        if len(known) >= MAX_KNOWN_TOPICS:
            with suppress(KeyError):  # another thread was faster
                known.popitem(last=False)
        known[topic] = None
        self._feed.send_control(frames.SeenTopic(str(topic)))

    def has_subscriber(self, entity: UUri) -> bool:
        return self._feed.is_attached

    @property
    def session_count(self) -> int:
        return self._report.gauges.get("sessions_now", 0)

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        return {(reason, peer): count for reason, peer, count in self._report.refusals}

    def statistics(self) -> Mapping[str, int]:
        report = self._report
        return {
            **(self._earlier_counts + Counter(dict(self._counts)) + Counter(report.counts)),
            **report.gauges,
        }

    # --- the life of the child ----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start a child that listens. Raises UStatusError(UNAVAILABLE)."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        ours.settimeout(STALL_S)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _CHILD, str(theirs.fileno())],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            self._reader = frames.reader_in_streamer(self._config)
            self._exchange_first_frames(ours)
        except (OSError, frames.InvalidFrame) as error:
            ours.close()
            self._end_process()
            raise UStatusError(UCode.UNAVAILABLE, f"the process of the WAMP sessions: {error}") from error
        except UStatusError:
            ours.close()
            self._end_process()
            raise
        self._socket = ours
        self._feed.attach(ours)
        if (config := self._config) is not self._child_config:  # it has changed during the start
            self.change_users(config)

    def _exchange_first_frames(self, connected: socket.socket) -> None:
        # After a restart the same ports: clients come back to them.
        self._child_config = config = self._config
        if self.urls:
            config = msgspec.structs.replace(config, listen=tuple(self.urls))
        topics = [str(each) for each in (*self._topics, *self._known_topics)]
        connected.sendall(frames.pack(frames.Start(frames.pack_config(config), self._place, topics)))
        connected.settimeout(_START_S)
        while (frame := self._reader.next_frame()) is None:
            data = connected.recv(65_536)
            if not data:
                raise UStatusError(UCode.UNAVAILABLE, "the process of the WAMP sessions ended at its start")
            self._reader.feed(data)
        connected.settimeout(STALL_S)
        if isinstance(frame, frames.Failed):
            raise UStatusError(UCode.UNAVAILABLE, frame.reason)
        if not isinstance(frame, frames.Ready):
            raise frames.InvalidFrame(type(frame).__name__)
        self.urls = frame.urls

    def _supervise(self) -> None:
        """On the thread `wamp process`: read from the child, and start another one when it has ended."""
        while True:
            self._receive()
            self._socket = None
            self._feed.detach()
            self._publications_ended.set()
            code = self._end_process()
            if code or not self._stopping.is_set():
                log.warning("wamp.process_ended", extra={"exit_code": code, **limited()})
            if self._stopping.is_set():
                return
            self._earlier_counts.update(self._report.counts)
            self._report = frames.Report({}, {})
            self._streamer.on_process_change(False)
            self._run_soon()
            if not self._restart():
                return
            self._counts["process_restarts"] += 1
            self._streamer.on_process_change(True)

    def _restart(self) -> bool:
        """Start a child, with growing pauses; False if the streamer stops."""
        failures = 0
        while not self._stopping.wait(backoff_ns(_FIRST_PAUSE_MS, _MAX_PAUSE_MS, failures) / 1e9):
            try:
                self._start()
            except UStatusError as error:
                failures += 1
                log.warning("wamp.process_not_started", extra={"reason": error.message, **limited()})
            else:
                return True
        return False

    def _end_process(self) -> int | None:
        """Wait for the end of a child whose socket is closed, or kill it; its exit code."""
        process = self._process
        if process is None:
            return None
        try:
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None
        return process.returncode

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    # --- from the child -----------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Process the frames of the child until it ends."""
        connected = self._socket
        assert connected is not None
        silent = False
        try:
            while True:
                while (frame := self._reader.next_frame()) is not None:
                    self._on_frame(frame)
                self._run_soon()
                try:
                    data = connected.recv(65_536)
                except TimeoutError:  # the first one may be that of a machine that stood still
                    if silent:
                        log.warning("wamp.process_stalled", extra={"seconds": 2 * STALL_S, **limited()})
                        self._kill()
                        return
                    silent = True
                    continue
                silent = False
                if not data:
                    return
                self._reader.feed(data)
        except OSError:
            return
        except (frames.InvalidFrame, UStatusError) as error:
            log.warning("wamp.process_invalid", extra={"reason": str(error), **limited()})
            self._kill()

    def _on_frame(self, frame: frames.FromSessions) -> None:
        match frame:
            case frames.SessionMessage(header, payload):
                self._streamer.dispatch(UMessage(*self._decode_header(header), payload))
            case frames.PatternChange(rate, topic, match, period_ns):
                pattern = Pattern(rate_entity(self._place.authority, rate), topic, match)
                if period_ns is None:
                    self._streamer.patterns.remove_pattern(pattern)
                else:
                    self._streamer.patterns.add_pattern(pattern, period_ns)
            case frames.Report():
                self._report = frame
            case frames.PublicationsEnded():
                self._publications_ended.set()
            case frames.ForwardedLog():
                _write(frame)

    def _run_soon(self) -> None:
        function, self._call_soon = self._call_soon, None
        if function is not None:
            function()


def _write(line: frames.ForwardedLog) -> None:
    """Write a line of the child to the log of the streamer."""
    logger = logging.getLogger(line.logger)
    if not logger.isEnabledFor(line.level):
        return
    fields = {name: value for name, value in line.fields.items() if name not in _STANDARD}
    about = fields.get(LIMITED)
    fields[LIMITED] = tuple(about) if isinstance(about, list) else ()  # every line: the child may be hostile
    standard = {"name": line.logger, "levelno": line.level, "levelname": logging.getLevelName(line.level)}
    logger.handle(logging.makeLogRecord({**fields, **standard, "msg": line.event}))


_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
