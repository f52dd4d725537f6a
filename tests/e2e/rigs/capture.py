# SPDX-License-Identifier: Apache-2.0
"""A capture of a network in a file, decoded by tshark: a SOME/IP dissector that shares no code with the streamer."""

import os
import shutil
import socket
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Final, NamedTuple, Self

import pytest

from tests.e2e.rigs.entities import DEADLINE_S, Inbox, eventually

_READ_S: Final = 60.0
_RAW_IP: Final = 101  # LINKTYPE_RAW
_TRUE: Final = {"1", "True"}
_COLUMNS: Final = (
    "frame.number",
    "_ws.malformed",
    "_ws.expert.message",
    "tcp.stream",
    "someip.messagetype.tp",
    "someip.tp.reassembled.length",
    "someipsd.flags.reboot",
    "someipsd.entry.type",
    "someipsd.entry.ttl",
)


class _Row(NamedTuple):
    """A frame with SOME/IP in it, or one that tshark could not read."""

    frame: str
    malformed: str
    expert_message: str
    stream: str
    segment: str
    reassembled: str
    reboot: str
    entry_types: str
    ttls: str


def skip_without_tshark() -> None:
    """Skip the test without a tshark that may capture; in CI nothing is skipped."""
    for program in ("tshark", "dumpcap"):
        if shutil.which(program) is None:
            missing = f"no {program} that may be run (Debian package tshark; `make interop` installs it)"
            if os.environ.get("CI") == "true":
                pytest.fail(f"{missing}; in CI nothing is skipped")
            pytest.skip(missing)


class Capture:
    """All packets on any interface of this namespace that match `what` (a pcap filter), written to `file`.

    `host` is an address of ours that fits.
    """

    def __init__(self, file: Path, pcap_filter: str, host: str) -> None:
        self._file, self._host = file, host
        self._stderr_lines: Inbox[str] = Inbox("dumpcap")
        self._process = subprocess.Popen(
            ["dumpcap", "-q", "-i", "any", "-f", pcap_filter, "-B", "16", "-w", file],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self._stderr_lines.wait_one(lambda line: line.startswith("File: ") or not line)
        assert self._process.poll() is None, "".join(self._stderr_lines.items())

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self._stderr_lines.append(line)
        self._stderr_lines.append("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._wait_written()
        finally:
            self._end()

    def _wait_written(self) -> None:
        """dumpcap does not write packets that it has not read when it is stopped.

        So this waits for a packet after all others.
        """
        end = b"this is the end of " + os.urandom(8).hex().encode()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((self._host, 0))

            def is_written() -> bool:
                probe.sendto(end, probe.getsockname())
                return end in self._file.read_bytes()

            eventually(is_written, True)

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self._process.stderr
        self._process.stderr.close()


class Dissection(NamedTuple):
    """The frames that tshark found in a capture."""

    malformed_frames: list[str]
    """Frames that tshark could not decode completely, as tshark prints them."""
    expert_messages: list[str]
    """The faults that its SOME/IP dissectors report in decoded frames."""
    packets: int
    """Those with SOME/IP in them, and `over_tcp` of them."""
    over_tcp: int
    segments: int
    reassembled: int
    entries: Counter[tuple[int, bool]]
    """Entries of service discovery by type, and whether their ttl is 0."""
    reboots: Counter[bool]
    """Messages of service discovery by their reboot flag."""


def dissect(file: Path, udp: Iterable[int], tcp: Iterable[int] = ()) -> Dissection:
    """Decode a capture with tshark; traffic of those ports is SOME/IP."""
    rows = _rows(file, udp, tcp)
    entries = Counter(
        (int(kind, 0), int(ttl, 0) == 0)
        for row in rows
        for kind, ttl in zip(row.entry_types.split(","), row.ttls.split(","), strict=True)
        if kind
    )
    return Dissection(
        malformed_frames=[str(row) for row in rows if row.malformed],
        expert_messages=[str(row) for row in rows if _is_about_someip(row)],
        packets=len(rows),
        over_tcp=sum(bool(row.stream) for row in rows),
        segments=sum(row.segment in _TRUE for row in rows),
        reassembled=sum(bool(row.reassembled) for row in rows),
        entries=entries,
        reboots=Counter(row.reboot in _TRUE for row in rows if row.reboot),
    )


def _is_about_someip(row: _Row) -> bool:
    """Expert messages of TCP are about TCP. A port from 33434 on, which the kernel may choose, looks as a traceroute."""
    return bool(row.expert_message) and not row.stream and "Possible traceroute" not in row.expert_message


def _rows(file: Path, udp: Iterable[int], tcp: Iterable[int]) -> list[_Row]:
    done = subprocess.run(
        [
            *("tshark", "-n", "-r", file, "-Y", "someip or _ws.malformed", "-T", "fields"),
            *("-o", f"someip.ports.udp:{_list(udp)}", "-o", f"someip.ports.tcp:{_list(tcp)}"),
            *(part for column in _COLUMNS for part in ("-e", column)),
        ],
        capture_output=True,
        text=True,
        timeout=_READ_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [_Row(*line.split("\t")) for line in done.stdout.splitlines()]


def _list(ports: Iterable[int]) -> str:
    return ",".join(map(str, ports))


def write_datagrams(file: Path, port: int, datagrams: Sequence[bytes]) -> None:
    """A handwritten capture of datagrams from and to `port`."""
    with file.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2_C3D4, 2, 4, 0, 0, 65_535, _RAW_IP))
        for number, datagram in enumerate(datagrams):
            udp = struct.pack(">HHHH", port, port, 8 + len(datagram), 0) + datagram
            ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(udp), 0, 0, 1, 17, 0, 0x7F00_0001, 0x7F00_0001)
            out.write(struct.pack("<IIII", number, 0, 20 + len(udp), 20 + len(udp)) + ip + udp)
