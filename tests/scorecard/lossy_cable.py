# SPDX-License-Identifier: Apache-2.0
"""A cable between two network namespaces that loses, delays, reorders and limits packets.

Few kernels of test machines have netem. So each end is a TUN device, and this process carries the packets:

    python -m tests.scorecard.lossy_cable FAR_NAMESPACE

reads a JSON line of `Conditions` for each change. After the last one it writes what it dropped.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.e2e.rigs.cable import FAR_ADDRESS, NEAR_ADDRESS, run_system_command
from tests.e2e.rigs.entities import DEADLINE_S

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET: Final = 0x4000_0000
_QUEUE_S: Final = 0.4
"""Packets that would wait longer for a thin link are dropped, as by a router."""
_REORDER_S: Final = 0.01
_MTU: Final = 1_500


class Conditions(NamedTuple):
    """What happens to packets, in both directions."""

    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float = 0.0
    """0 is no limit."""


CLEAN: Final = Conditions()
PARTITION: Final = Conditions(loss=1.0)


class LossyCable:
    """As `tests.e2e.rigs.cable.Cable`, with `set` in place of `cut` and `heal`."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout
        self._holder.stdout.readline()
        self.far_namespace = f"/proc/{self._holder.pid}/ns/net"
        self.far_prefix: tuple[str, ...] = ("nsenter", f"--net={self.far_namespace}")
        self._carrier = subprocess.Popen(
            [sys.executable, "-m", "tests.scorecard.lossy_cable", self.far_namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._carrier.stdout
        assert self._carrier.stdout.readline() == "READY\n"
        for prefix, name, address in (((), "near", NEAR_ADDRESS), (self.far_prefix, "far", FAR_ADDRESS)):
            run_system_command(*prefix, "ip", "link", "set", "lo", "up")
            run_system_command(*prefix, "ip", "address", "add", f"{address}/24", "dev", name)
            run_system_command(*prefix, "ip", "link", "set", name, "up", "multicast", "on", "mtu", f"{_MTU}")

    def set(self, conditions: Conditions) -> None:
        assert self._carrier.stdin
        self._carrier.stdin.write(json.dumps(conditions) + "\n")
        self._carrier.stdin.flush()

    def close(self) -> dict[str, int]:
        """Remove the cable. Returns the dropped and carried packets, by kind; the second call returns nothing."""
        if self._carrier.returncode is not None:
            return {}
        written, _ = self._carrier.communicate(timeout=DEADLINE_S)
        self._holder.communicate(timeout=DEADLINE_S)
        counts: dict[str, int] = json.loads(written)
        return counts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_tun(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


def _open_far(namespace: str) -> int:
    """A TUN device in another namespace: the thread that opens it enters that namespace."""
    files: list[int] = []

    def run() -> None:
        entered = os.open(namespace, os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(entered, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        files.append(_open_tun("far"))
        os.close(entered)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return files[0]


def _kind(packet: bytes) -> str:
    if packet[0] >> 4 != 4:
        return "other"
    protocol = packet[9]
    if protocol == socket.IPPROTO_TCP:
        return "tcp"
    if protocol != socket.IPPROTO_UDP:
        return "other"
    size = (packet[0] & 15) * 4
    return f"udp{int.from_bytes(packet[size + 2 : size + 4], 'big')}"  # its destination port


class _Carrier:
    def __init__(self, near: int, far: int) -> None:
        self._other = {near: far, far: near}
        self._free_at = {near: 0.0, far: 0.0}
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = 0
        self._rng = random.Random(1)
        self.conditions = CLEAN
        self.counts: dict[str, int] = {}

    def run(self) -> None:
        """Carry packets until the end of stdin."""
        while True:
            left = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            ready, _, _ = select.select([*self._other, sys.stdin.fileno()], [], [], left)
            for file in ready:
                if file in self._other:
                    self._read(file)
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                self.conditions = Conditions(*json.loads(line))
            self._deliver()

    def _read(self, file: int) -> None:
        with suppress(BlockingIOError):
            while True:
                packet = os.read(file, 65_535)
                due = self._due(file, len(packet))
                carried = due is not None
                name = f"{'carried' if carried else 'dropped'} {_kind(packet)}"
                self.counts[name] = self.counts.get(name, 0) + 1
                if due is not None:
                    self._numbers += 1
                    heapq.heappush(self._waiting, (due, self._numbers, self._other[file], packet))

    def _due(self, file: int, size: int) -> float | None:
        """When a packet leaves; None if it is lost."""
        now, wanted = time.monotonic(), self.conditions
        if self._rng.random() < wanted.loss:
            return None
        due = now
        if wanted.bytes_per_s:
            due = max(now, self._free_at[file]) + size / wanted.bytes_per_s
            if due - now > _QUEUE_S:
                return None
            self._free_at[file] = due
        due += max(0.0, wanted.delay_ms + self._rng.uniform(-1, 1) * wanted.jitter_ms) / 1_000
        return due + _REORDER_S if self._rng.random() < wanted.reorder else due

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, file, packet = heapq.heappop(self._waiting)
            with suppress(OSError):  # the interface is not up yet
                os.write(file, packet)


def main(far_namespace: str) -> None:
    carrier = _Carrier(_open_tun("near"), _open_far(far_namespace))
    print("READY", flush=True)
    carrier.run()
    print(json.dumps(carrier.counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
