# SPDX-License-Identifier: Apache-2.0
"""Receivers as processes that write the log of `ustreamer recordings prove`, each line at once.

    python -m tests.e2e.faults.receivers zenoh LOG TOPIC HOST PORT     a client of a router or a streamer
    python -m tests.e2e.faults.receivers udp LOG TOPIC HOST PORT       binds PORT; the payload of an event is its id
    python -m tests.e2e.faults.receivers tcp LOG TOPIC HOST PORT       connects to PORT

Output: READY. SIGTERM writes the end and ends the process.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

import zenoh

from tests.e2e.rigs.entities import wait_declared
from tests.e2e.rigs.wire import Attributes, Id

ENDPOINTS = {"zenoh": "backbone", "udp": "chassis", "tcp": "chassis"}
"""The endpoint of the streamer that each kind of receiver is behind."""
PATIENCE_S = 4.0
"""A router keeps the messages of a silent client at least for this time."""
SETTLING_S = 2.0
"""A client that was silent is linked again within this time, or notices that it is not."""
UNREAD_S = 1.0
"""Messages of this time may have been unread when the process stopped. A closed link costs them as well."""
_SOMEIP_HEADER = 16
_POLL_S = 0.1


class LogFile:
    """A log in the format of `ustreamer recordings prove`; docs/recordings.md. The start is its first line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._lock = Lock()
        self._before_start: list[bytes] | None = []
        self.settling = Lock()
        """Held until an absence is logged."""

    def write(self, *lines: dict[str, object]) -> None:
        """Write lines with the time of now, at once."""
        data = b"".join(map(_line, lines))
        with self._lock:
            if self._before_start is None:
                os.write(self._file, data)
            else:
                self._before_start.append(data)

    def start(self, **fields: object) -> None:
        """Write a start, and the messages that came before it. A killed process may have left half a line."""
        with self._lock:
            os.write(self._file, b"\n" + _line(fields) + b"".join(self._before_start or ()))
            self._before_start = None


def _line(fields: dict[str, object]) -> bytes:
    return json.dumps(fields | {"time_ms": time.time_ns() // 1_000_000}).encode() + b"\n"


def id_text(id: Id) -> str:
    """A UUID as text."""
    msb, lsb = f"{id.msb:016x}", f"{id.lsb:016x}"
    return f"{msb[:8]}-{msb[8:12]}-{msb[12:]}-{lsb[:4]}-{lsb[4:]}"


def receive_zenoh(log: LogFile, start: dict[str, object], host: str, port: int) -> zenoh.Session:
    def on_sample(sample: zenoh.Sample) -> None:
        attachment = b"" if sample.attachment is None else sample.attachment.to_bytes()
        attributes = Attributes.decode(attachment[1:])
        log.write({"id": id_text(attributes.id), "topic": str(attributes.sink or attributes.source)})

    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([f"tcp/{host}:{port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("connect/timeout_ms", "-1")  # a client that starts without its network keeps trying
    session = zenoh.open(config)
    session.declare_subscriber("up/*/*/*/*/*/{}/{}/{}/{}/{}", on_sample)
    wait_declared(session)
    log.start(**start)
    Thread(target=watch_router, args=(session, log), daemon=True).start()
    return session


def watch_router(session: zenoh.Session, log: LogFile) -> None:
    """Log each stop of this process that may have cost it messages of its router.

    A router drops the messages of a silent client, and no streamer learns of it. A streamer without a router between
    sends them again, and is not excused.
    """
    seen = time.monotonic()
    while True:
        now = time.monotonic()
        if now - seen > PATIENCE_S and list(session.info.routers_zid()):
            with log.settling:
                wait_linked(session)
                log.write({"away_ms": round((time.monotonic() - seen + UNREAD_S) * 1000)})
        seen = time.monotonic()
        time.sleep(_POLL_S)


def wait_linked(session: zenoh.Session) -> None:
    """Wait until the session has had a router for some time, and this router knows the subscriber."""
    linked = time.monotonic()
    while time.monotonic() - linked < SETTLING_S:
        time.sleep(_POLL_S)
        linked = linked if list(session.info.routers_zid()) else time.monotonic()
    wait_declared(session)


def receive_udp(log: LogFile, start: dict[str, object], host: str, port: int) -> None:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22
    )  # for what a stopped streamer sends at once
    receiver.bind((host, port))
    log.start(**start)

    def run() -> None:
        while True:
            data = receiver.recv(65_536)
            with suppress(BlockingIOError):
                while True:
                    data += receiver.recv(65_536, socket.MSG_DONTWAIT)
            log_events(log, data)

    Thread(target=run, daemon=True).start()


def receive_tcp(log: LogFile, start: dict[str, object], host: str, port: int) -> None:
    def run() -> None:
        for connection in connections(host, port):
            data = b""
            with suppress(ConnectionError):
                while piece := connection.recv(65_536):
                    data = log_events(log, data + piece)

    log.start(**start)  # what is sent before the connection waits in the streamer
    Thread(target=run, daemon=True).start()


def connections(host: str, port: int) -> Iterator[socket.socket]:
    """A new connection after each that ended."""
    while True:
        with socket.socket() as connection:
            try:
                connection.connect((host, port))
            except OSError:
                time.sleep(0.02)
                continue
            yield connection


def log_events(log: LogFile, data: bytes) -> bytes:
    """Log the payloads of all whole SOME/IP messages; the rest."""
    lines: list[dict[str, object]] = []
    at = 0
    while len(data) >= at + 8 and len(data) >= at + 8 + (
        length := int.from_bytes(data[at + 4 : at + 8], "big")
    ):
        lines.append({"id": data[at + _SOMEIP_HEADER : at + 8 + length].decode()})
        at += 8 + length
    log.write(*lines)
    return data[at:]


def main(kind: str, path: str, topic: str, host: str, port: str) -> None:
    log = LogFile(Path(path))
    start: dict[str, object] = {"receiver": Path(path).stem, "endpoint": ENDPOINTS[kind], "expects": [topic]}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    receive: Callable[..., object] = {"zenoh": receive_zenoh, "udp": receive_udp, "tcp": receive_tcp}[kind]
    held = receive(log, start, host, int(port))  # a session ends with its last reference
    os.write(1, b"READY\n")
    signal.sigwait({signal.SIGTERM})
    with log.settling:
        log.write({"end": True})
    del held
    os._exit(0)  # no message may follow the end


if __name__ == "__main__":
    main(*sys.argv[1:])
