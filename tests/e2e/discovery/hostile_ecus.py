# SPDX-License-Identifier: Apache-2.0
"""Hostile ECUs in their own process: they send malformed and forged messages at a given rate.

    python -m tests.e2e.discovery.hostile_ecus DATA_PORT SD_PORT TCP_PORT

The first output line is READY. Each input line `SECONDS RATE` sends RATE datagrams per second for SECONDS and opens
ten connections per second; the output is the number of datagrams.
"""

import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.e2e.discovery.raw_sd_ecu import (
    ACK_ENTRY,
    FIND_ENTRY,
    OFFER_ENTRY,
    SUBSCRIBE_ENTRY,
    TCP_PROTOCOL,
    endpoint_option,
    sd_entry,
    sd_message,
)
from tests.e2e.rigs import wire

HOSTS: Final = [f"127.0.0.{number}" for number in range(60, 100)]
STREAMER: Final = "127.0.0.1"
_BATCH: Final = 20  # datagrams between two clock reads
_CONNECTIONS_HZ: Final = 10
_MOST_CONNECTIONS: Final = 20


class HostileEcus:
    """All hostile ECUs. The seeds are fixed, so a failure is reproducible."""

    def __init__(self, data: int, sd: int, tcp: int) -> None:
        self._rng = random.Random(1)
        self._data, self._sd, self._tcp = (STREAMER, data), sd, (STREAMER, tcp)
        self._sockets = [self._open_socket(host) for host in HOSTS]
        self._connections: list[socket.socket] = []
        self._session = 0
        self._makers: list[Callable[[], tuple[bytes, tuple[str, int]]]] = [
            self._discovery,
            self._corrupt_discovery,
            self._too_many_entries,
            self._segment,
            self._message,
            self._random_bytes,
        ]

    def _open_socket(self, host: str) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, self._sd))
        return opened

    def _random_service(self) -> int:
        return self._rng.choice([0x1234, 0x3001, 0x4001, 0x7777])

    def _discovery(self) -> tuple[bytes, tuple[str, int]]:
        """Well-formed but invalid: foreign services, unknown event groups, reboots, short ttls."""
        rng = self._rng
        kind = rng.choice([FIND_ENTRY, OFFER_ENTRY, OFFER_ENTRY, SUBSCRIBE_ENTRY, SUBSCRIBE_ENTRY, ACK_ENTRY])
        group = rng.choice([1, 2, 9]) if kind in {SUBSCRIBE_ENTRY, ACK_ENTRY} else 0
        entry_bytes = sd_entry(kind, self._random_service(), rng.choice([0, 1, 3, 0xFFFFFF]), group)
        option = endpoint_option(
            (rng.choice(HOSTS), rng.randrange(1, 0xFFFF)), rng.choice([17, TCP_PROTOCOL])
        )
        message = sd_message(rng.randrange(1, 0xFFFF), rng.random() < 0.5, entry_bytes, option)
        # Unicast and not multicast: the well-behaved ECU must not bear the load, because the test measures the
        # streamer.
        return message, (STREAMER, self._sd)

    def _corrupt_discovery(self) -> tuple[bytes, tuple[str, int]]:
        message, to = self._discovery()
        raw = bytearray(message)
        raw[self._rng.randrange(16, len(raw))] ^= self._rng.randrange(1, 256)
        return bytes(raw[: self._rng.randrange(16, len(raw) + 1)]), to

    def _too_many_entries(self) -> tuple[bytes, tuple[str, int]]:
        """One ECU sends more entries than its rate limit."""
        entry_bytes = sd_entry(FIND_ENTRY, 0x4001, 3, 0xFFFF_FFFF, 0) * 40
        self._sockets[0].sendto(
            sd_message(self._rng.randrange(1, 0xFFFF), True, entry_bytes), (STREAMER, self._sd)
        )
        return self._discovery()

    def _segment(self) -> tuple[bytes, tuple[str, int]]:
        """A segment of a message that never completes; some segments overlap."""
        self._session = self._session % 0xFFFF + 1
        at = self._rng.choice([0, 0, 16, 64, 0xFFFF_FFE0])
        part = struct.pack(">I", at | 1) + bytes(self._rng.choice([16, 64, 1_392]))
        session = self._rng.choice([1, self._session])
        return wire.someip(self._random_service(), 0x8001, 0x22, part, session=session), self._data

    def _message(self) -> tuple[bytes, tuple[str, int]]:
        kind = self._rng.choice([0x00, 0x01, 0x02, 0x80, 0x81, 0x55])
        method = self._rng.choice([0x0077, 0x8001, 0x8FFF])
        length = self._rng.choice([None, None, 0, 7, 0xFFFF_FFFF])
        return wire.someip(
            self._random_service(), method, kind, b"forged", client=3, length=length
        ), self._data

    def _random_bytes(self) -> tuple[bytes, tuple[str, int]]:
        return self._rng.randbytes(self._rng.randrange(64)), self._data

    def _open_connection(self) -> None:
        """Open one more connection that sends garbage or nothing, and keep it open."""
        opened = socket.socket()
        opened.settimeout(0.1)
        with suppress(OSError):  # the streamer refuses connections above its limit
            opened.bind((self._rng.choice(HOSTS), 0))
            opened.connect(self._tcp)
            opened.sendall(self._rng.choice([b"", self._rng.randbytes(64), wire.event(0x1234, 0x8001)[:12]]))
        self._connections.append(opened)
        while len(self._connections) > _MOST_CONNECTIONS:
            self._connections.pop(0).close()

    def send_datagrams(self, seconds: float, rate: float) -> int:
        """Send `rate` datagrams per second for `seconds`; returns their number."""
        began = time.monotonic()
        sent = connected = 0
        while (elapsed := time.monotonic() - began) < seconds:
            if sent >= elapsed * rate:
                time.sleep(_BATCH / rate)
                continue
            for _ in range(_BATCH):
                datagram, to = self._rng.choice(self._makers)()
                with suppress(OSError):
                    self._rng.choice(self._sockets).sendto(datagram, to)
            sent += _BATCH
            if connected < elapsed * _CONNECTIONS_HZ:
                self._open_connection()
                connected += 1
        return sent


class HostileEcuProcess:
    """Starts and controls the process."""

    def __init__(self, data: int, sd: int, tcp: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.discovery.hostile_ecus", str(data), str(sd), str(tcp)],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read_line() == "READY\n"

    def _read_line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def start_flood(self, seconds: float, rate: float) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{seconds} {rate}\n")
        self._process.stdin.flush()

    def wait_sent(self) -> int:
        """Wait for the end of the flood; returns the number of datagrams."""
        return int(self._read_line())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


def _main() -> None:
    hostile = HostileEcus(*map(int, sys.argv[1:]))
    print("READY", flush=True)
    for line in sys.stdin:
        seconds, rate = map(float, line.split())
        print(hostile.send_datagrams(seconds, rate), flush=True)


if __name__ == "__main__":
    _main()
