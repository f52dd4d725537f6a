# SPDX-License-Identifier: Apache-2.0
"""Hostile ECUs in a process of their own, which say anything at all as fast as they are told to.

    python -m tests.e2e.flood DATA_PORT SD_PORT TCP_PORT

For each line on stdin, `SECONDS RATE`, so many datagrams a second leave for so long, and ten connections a second are opened;
then the number of datagrams is written. The first line is READY.
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

from tests.e2e import wire
from tests.e2e.plain_ecu import ACK, FIND, OFFER, SUBSCRIBE, TCP, discovery, endpoint, entry

HOSTS: Final = [f"127.0.0.{number}" for number in range(60, 100)]
STREAMER: Final = "127.0.0.1"
_HELPING: Final = 20  # datagrams between two looks at the clock
_CONNECTIONS_HZ: Final = 10
_MOST_CONNECTIONS: Final = 20


class Hostile:
    """All of them. Seeds are fixed: a failure comes again."""

    def __init__(self, data: int, sd: int, tcp: int) -> None:
        self._dice = random.Random(1)
        self._data, self._sd, self._tcp = (STREAMER, data), sd, (STREAMER, tcp)
        self._sockets = [self._opened(host) for host in HOSTS]
        self._connections: list[socket.socket] = []
        self._session = 0
        self._kinds: list[Callable[[], tuple[bytes, tuple[str, int]]]] = [
            self._discovery,
            self._wrong_discovery,
            self._crowd,
            self._segment,
            self._message,
            self._noise,
        ]

    def _opened(self, host: str) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, self._sd))
        return opened

    def _ids(self) -> int:
        return self._dice.choice([0x1234, 0x3001, 0x4001, 0x7777])

    def _discovery(self) -> tuple[bytes, tuple[str, int]]:
        """Well-formed, and without sense: services that others have, event groups that nobody has, reboots, short ttls."""
        dice = self._dice
        kind = dice.choice([FIND, OFFER, OFFER, SUBSCRIBE, SUBSCRIBE, ACK])
        group = dice.choice([1, 2, 9]) if kind in {SUBSCRIBE, ACK} else 0
        said = entry(kind, self._ids(), dice.choice([0, 1, 3, 0xFFFFFF]), group)
        option = endpoint((dice.choice(HOSTS), dice.randrange(1, 0xFFFF)), dice.choice([17, TCP]))
        message = discovery(dice.randrange(1, 0xFFFF), dice.random() < 0.5, said, option)
        # Not to the group: the ECU that behaves would have to bear it as well, and it is not the ECU that is measured.
        return message, (STREAMER, self._sd)

    def _wrong_discovery(self) -> tuple[bytes, tuple[str, int]]:
        message, to = self._discovery()
        raw = bytearray(message)
        raw[self._dice.randrange(16, len(raw))] ^= self._dice.randrange(1, 256)
        return bytes(raw[: self._dice.randrange(16, len(raw) + 1)]), to

    def _crowd(self) -> tuple[bytes, tuple[str, int]]:
        """More entries than one ECU may have, of the one that has the fewest scruples."""
        said = entry(FIND, 0x4001, 3, 0xFFFF_FFFF, 0) * 40
        self._sockets[0].sendto(discovery(self._dice.randrange(1, 0xFFFF), True, said), (STREAMER, self._sd))
        return self._discovery()

    def _segment(self) -> tuple[bytes, tuple[str, int]]:
        """Of a message that never becomes whole; some lie over each other."""
        self._session = self._session % 0xFFFF + 1
        at = self._dice.choice([0, 0, 16, 64, 0xFFFF_FFE0])
        part = struct.pack(">I", at | 1) + bytes(self._dice.choice([16, 64, 1_392]))
        session = self._dice.choice([1, self._session])
        return wire.someip(self._ids(), 0x8001, 0x22, part, session=session), self._data

    def _message(self) -> tuple[bytes, tuple[str, int]]:
        kind = self._dice.choice([0x00, 0x01, 0x02, 0x80, 0x81, 0x55])
        method = self._dice.choice([0x0077, 0x8001, 0x8FFF])
        length = self._dice.choice([None, None, 0, 7, 0xFFFF_FFFF])
        return wire.someip(self._ids(), method, kind, b"forged", client=3, length=length), self._data

    def _noise(self) -> tuple[bytes, tuple[str, int]]:
        return self._dice.randbytes(self._dice.randrange(64)), self._data

    def _connect(self) -> None:
        """One more connection, which says what is no stream, or nothing, and stays."""
        opened = socket.socket()
        opened.settimeout(0.1)
        with suppress(OSError):  # whoever has too many is turned away
            opened.bind((self._dice.choice(HOSTS), 0))
            opened.connect(self._tcp)
            opened.sendall(
                self._dice.choice([b"", self._dice.randbytes(64), wire.event(0x1234, 0x8001)[:12]])
            )
        self._connections.append(opened)
        while len(self._connections) > _MOST_CONNECTIONS:
            self._connections.pop(0).close()

    def rage(self, seconds: float, rate: float) -> int:
        """Send `rate` datagrams a second for `seconds`; how many there were."""
        began = time.monotonic()
        sent = connected = 0
        while (elapsed := time.monotonic() - began) < seconds:
            if sent >= elapsed * rate:
                time.sleep(_HELPING / rate)
                continue
            for _ in range(_HELPING):
                datagram, to = self._dice.choice(self._kinds)()
                with suppress(OSError):
                    self._dice.choice(self._sockets).sendto(datagram, to)
            sent += _HELPING
            if connected < elapsed * _CONNECTIONS_HZ:
                self._connect()
                connected += 1
        return sent


class Flood:
    """That process."""

    def __init__(self, data: int, sd: int, tcp: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.flood", str(data), str(sd), str(tcp)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "READY\n"

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def begin(self, seconds: float, rate: float) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{seconds} {rate}\n")
        self._process.stdin.flush()

    def wait_sent(self) -> int:
        """Until what was begun has ended; how many datagrams that were."""
        return int(self._line())

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
    hostile = Hostile(*map(int, sys.argv[1:]))
    print("READY", flush=True)
    for line in sys.stdin:
        seconds, rate = map(float, line.split())
        print(hostile.rage(seconds, rate), flush=True)


if __name__ == "__main__":
    _main()
