# SPDX-License-Identifier: Apache-2.0
"""The streamer's side of the process of the sessions: starts it, feeds it, restarts it, ends it.

Two threads. `wamp feed` writes what waits in the inbox; only this thread waits for a slow child. `wamp process` reads
what the child sends, and starts another child after its end.
"""

import logging
import os
import socket
import subprocess
import sys
from collections import Counter, OrderedDict, deque
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
from ustreamer.uprotocol.wire import HeaderDecoder, HeaderEncoder
from ustreamer_wamp.config import Place, WampConfig
from ustreamer_wamp.process import frames
from ustreamer_wamp.vehicle.batch import VehicleBatch, VehicleEvent, rate_entity
from ustreamer_wamp.vehicle.mapping import Decode, pack_value
from ustreamer_wamp.vehicle.patterns import Pattern, PatternSink

log = logging.getLogger("ustreamer.wamp")

MAX_KNOWN_TOPICS: Final = 4_096
"""Topics of other devices that the child knows; senders choose their number."""
_CHILD: Final = "ustreamer_wamp.process.child"
_BUFFER_BYTES: Final = 16_384
"""Of the socket: what is in it cannot be replaced by newer events."""
_START_S: Final = 30.0
_STALL_S: Final = 30.0
"""A child that reads nothing for this time, or sends nothing for twice this time, is killed."""
_CLOSE_S: Final = 10.0
_FIRST_PAUSE_MS: Final = 250
_MAX_PAUSE_MS: Final = 30_000
_MAX_DECODERS: Final = 4096


class StreamerSide(Protocol):
    """What the process needs of the endpoint."""

    @property
    def patterns(self) -> PatternSink: ...

    @property
    def decoder(self) -> Callable[[UUri], Decode | None]: ...

    def dispatch(self, message: UMessage) -> bool: ...

    def next_batch(self) -> tuple[VehicleBatch, bool]: ...

    def on_process_change(self, up: bool) -> None: ...


class SessionsProcess:
    """A `ustreamer_wamp.transport.SessionsPort` with the sessions in a child process."""

    def __init__(self, config: WampConfig, place: Place, streamer: StreamerSide) -> None:
        self.urls: list[str] = []
        """The listening addresses, with the assigned port in place of 0."""
        self._config = config
        self._child_config = config
        """The section that the child has. The thread `wamp feed` sends it another one."""
        self._place = place
        self._streamer = streamer
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader = frames.reader_in_streamer(config)
        self._topics: Collection[UUri] = ()
        self._known_topics: OrderedDict[UUri, None] = OrderedDict()
        self._control_frames: deque[frames.ToSessions] = deque()
        self._has_work = Event()
        self._closing = Event()
        self._closed = False
        self._call_soon: Callable[[], None] | None = None
        self._threads: list[Thread] = []
        self._encode_header = HeaderEncoder().encode
        self._decode_header = HeaderDecoder().decode
        self._decoders: dict[UUri, Decode | None] = {}
        self._counts: Counter[str] = Counter()
        self._earlier_counts: Counter[str] = Counter()  # of children that have ended
        self._report = frames.Report({}, {})

    # --- the endpoint's side ------------------------------------------------------------------------------------

    def open(self, topics: Collection[UUri]) -> None:
        self._topics = topics
        self._start()
        self._streamer.on_process_change(True)
        for name, run in (("wamp process", self._supervise), ("wamp feed", self._feed)):
            thread = Thread(target=run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def change_users(self, config: WampConfig) -> None:
        self._config = config
        self._has_work.set()

    def stop_accepting(self) -> None:
        self._control_frames.append(frames.StopAccepting())
        self._has_work.set()

    def close(self) -> None:
        before = self._counts["events_no_subscriber"]
        self._closing.set()
        self._has_work.set()
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
        self._has_work.set()
        return not self._closed

    def run_soon(self, function: Callable[[], None]) -> None:
        self._call_soon = function

    def on_topic_seen(self, topic: UUri) -> None:
        known = self._known_topics
        if topic in known or topic.authority_name in self._place.serves:
            return
        if len(self._control_frames) >= MAX_KNOWN_TOPICS:
            return  # the child is slow; the topic is new at its next lookup
        if len(known) >= MAX_KNOWN_TOPICS:
            with suppress(KeyError):  # another thread was faster
                known.popitem(last=False)
        known[topic] = None
        self._control_frames.append(frames.SeenTopic(str(topic)))
        self._has_work.set()

    def has_subscriber(self, entity: UUri) -> bool:
        """The sessions of a child that has ended are gone."""
        return self._socket is not None

    @property
    def session_count(self) -> int:
        return self._report.gauges.get("sessions_now", 0)

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        return {(reason, peer): count for reason, peer, count in self._report.refusals}

    def statistics(self) -> Mapping[str, int]:
        report = self._report
        return {**(self._counts + self._earlier_counts + Counter(report.counts)), **report.gauges}

    # --- the life of the child ----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start a child that listens. Raises UStatusError(UNAVAILABLE)."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        ours.settimeout(_STALL_S)
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
        self._has_work.set()  # for a section that has changed during the start

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
        connected.settimeout(_STALL_S)
        if isinstance(frame, frames.Failed):
            raise UStatusError(UCode.UNAVAILABLE, frame.reason)
        if not isinstance(frame, frames.Ready):
            raise frames.InvalidFrame(type(frame).__name__)
        self.urls = frame.urls

    def _supervise(self) -> None:
        """On the thread `wamp process`: read from the child, and start another one when it has ended."""
        while True:
            self._receive()
            connected, self._socket = self._socket, None
            if connected is not None:
                connected.close()
            code = self._end_process()
            if self._closing.is_set():
                return
            log.warning("wamp.process_ended", extra={"exit_code": code, **limited()})
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
        while not self._closing.wait(backoff_ns(_FIRST_PAUSE_MS, _MAX_PAUSE_MS, failures) / 1e9):
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

    # --- to the child -------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """On the thread `wamp feed`: write what waits, until the streamer stops and nothing is left."""
        while True:
            self._has_work.wait()
            self._has_work.clear()
            closing = self._closing.is_set()
            more = True
            while more:
                batch, more = self._streamer.next_batch()
                self._send(batch)
            if closing:
                self._control_frames.append(frames.Close())
                self._send(VehicleBatch((), {}, ()))
                return

    def _send(self, batch: VehicleBatch) -> None:
        connected = self._socket
        if connected is None:  # its sessions are gone
            self._control_frames.clear()  # the next child gets the topics at its start
            self._count_lost(batch)
            return
        found = [frames.pack(self._control_frames.popleft()) for _ in range(len(self._control_frames))]
        config = self._config
        if config is not self._child_config:
            self._child_config = config
            found.append(frames.pack(frames.ChangeUsers(frames.pack_config(config))))
        found += [frames.pack(self._addressed_frame(each)) for each in batch.addressed]
        found += [
            frames.pack(frames.DroppedEvents(entity.ue_instance, str(topic), events))
            for (entity, topic), events in batch.dropped.items()
        ]
        found += [frames.pack(self._event_frame(each)) for each in batch.events]
        try:
            connected.sendall(b"".join(found))
        except TimeoutError:
            log.warning("wamp.process_stalled", extra={"seconds": _STALL_S, **limited()})
            self._count_lost(batch)
            self._kill()
        except OSError:  # the child has ended: the other thread detects it, too
            self._count_lost(batch)

    def _count_lost(self, batch: VehicleBatch) -> None:
        """Count events for sessions that have ended with their child."""
        self._counts["events_no_subscriber"] += len(batch.events) + sum(batch.dropped.values())

    def _addressed_frame(self, message: UMessage) -> frames.Addressed:
        return frames.Addressed(self._encode_header(message.id, message.attributes), message.payload)

    def _event_frame(self, event: VehicleEvent) -> frames.Event:
        entity, message, _ = event
        decode = self._decoder_of(message.attributes.source)
        value = pack_value(decode, message.payload) if decode is not None and message.payload else None
        header = self._encode_header(message.id, message.attributes)
        return frames.Event(entity.ue_instance, header, message.payload, value)

    def _decoder_of(self, topic: UUri) -> Decode | None:
        """The decoder of a plugin for a topic, asked for once."""
        if topic not in self._decoders:
            if len(self._decoders) >= _MAX_DECODERS:
                self._decoders.clear()
            try:
                self._decoders[topic] = self._streamer.decoder(topic)
            except Exception:  # an error of a plugin: show the payload undecoded
                self._decoders[topic] = None
                self._counts["decoder_errors"] += 1
                log.exception("wamp.decoder_failed", extra={"topic": str(topic), **limited()})
        return self._decoders[topic]

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
                        log.warning("wamp.process_stalled", extra={"seconds": 2 * _STALL_S, **limited()})
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
