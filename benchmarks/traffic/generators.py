# SPDX-License-Identifier: Apache-2.0
"""The generators: number and stamp messages and send them as fast as the sink's credit allows, or at a given pace.

    python -m benchmarks.traffic.generators udp  COUNTERS PAYLOAD UDP_PORT TARGET_PORT
    python -m benchmarks.traffic.generators zenoh COUNTERS PAYLOAD ZENOH_PORT

The commands `ping`, `flow WINDOW SECONDS` and `pace HZ COUNT` are lines on stdin; each is answered by `DONE` on stdout.
`flow` ends when SEND_ENABLED of the shared counters is 0, or after SECONDS. `report` is answered by a line of JSON.
"""

import errno
import json
import socket
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from struct import Struct
from typing import Final

from benchmarks.harness.shared_counters import NEWEST_PLUS_1, SEND_ENABLED, SENT, SharedCounters
from benchmarks.traffic import sockets, wire

BURST: Final = 64
_UDP_SEGMENT: Final = 103  # linux/udp.h: the kernel splits one send into datagrams of this size
_UDP_SEND_MAX: Final = 65_507
_PAUSE_S: Final = 0.0001
_STALL_NS: Final = 250_000_000  # without progress for this time, messages in transit count as lost
_NS_PER_S: Final = 1_000_000_000


class Generator(ABC):
    """Sends numbered messages; `number` is that of the next one."""

    def __init__(self, counters: SharedCounters) -> None:
        self.counters = counters
        self.number = counters[SENT]

    @abstractmethod
    def send_burst(self) -> None:
        """Send `burst` messages without a time stamp, and advance `number`."""

    @abstractmethod
    def send_one(self) -> None:
        """Send one message with the present as its time stamp, and advance `number`."""

    burst = BURST

    def report(self) -> object:
        """The messages that the generator received since the last report, as JSON. By default it receives none."""
        return None

    def ping(self) -> None:
        self.send_one()
        self.counters[SENT] = self.number

    def send_windowed(self, window: int, seconds: float) -> None:
        """Keep at most `window` messages in transit.

        The credit of a lost message returns when a newer message has arrived, or none has for a while.
        """
        counters = self.counters
        now_ns = time.monotonic_ns()
        end_ns = now_ns + round(seconds * _NS_PER_S)
        credited, since_ns = self.number, now_ns  # earlier messages have arrived or are lost
        while counters[SEND_ENABLED] and now_ns < end_ns:
            newest, now_ns = counters[NEWEST_PLUS_1], time.monotonic_ns()
            if newest > credited:
                credited, since_ns = newest, now_ns
            elif now_ns - since_ns > _STALL_NS:
                credited, since_ns = self.number, now_ns
            if self.number + self.burst - credited > window:
                time.sleep(_PAUSE_S)
                continue
            self.send_burst()
            counters[SENT] = self.number

    def send_paced(self, hz: float, count: int) -> None:
        """Send `count` messages, one every 1/`hz` s; a late message does not delay the next ones."""
        period_ns = round(_NS_PER_S / hz)
        due_ns = time.monotonic_ns()
        for _ in range(count):
            left_ns = due_ns - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / _NS_PER_S)
            self.send_one()
            due_ns += period_ns
        self.counters[SENT] = self.number


class UdpGenerator(Generator):
    """An ECU that sends SOME/IP notifications, in bursts of one send if the kernel can split them."""

    def __init__(self, counters: SharedCounters, payload: int, port: int, target: int) -> None:
        super().__init__(counters)
        self._socket = sockets.udp_socket(port, target)
        self._payload = payload
        self._size = wire.SOMEIP_HEADER.size + payload
        self.burst = min(BURST, _UDP_SEND_MAX // self._size)
        event = wire.someip_event(wire.SERVICE, wire.EVENT, 1, wire.payload(payload, 0, 0))
        self._datagrams = bytearray(event * self.burst)
        self._segmented = _enable_segmentation(self._socket, self._size)

    def send_burst(self) -> None:
        size, datagrams = self._size, self._datagrams
        pack_session, pack_tail = Struct(">H").pack_into, wire.TAIL.pack_into
        tail = size - wire.TAIL.size
        for start, number in zip(
            range(0, len(datagrams), size), range(self.number, self.number + self.burst), strict=True
        ):
            pack_session(datagrams, start + wire.SESSION_OFFSET, wire.session(number))
            pack_tail(datagrams, start + tail, number, 0)
        if self._segmented:
            self._send(datagrams)
        else:
            view = memoryview(datagrams)
            for start in range(0, len(datagrams), size):
                self._send(view[start : start + size])
        self.number += self.burst

    def send_one(self) -> None:
        body = wire.payload(self._payload, self.number, time.monotonic_ns())
        self._send(wire.someip_event(wire.SERVICE, wire.EVENT, wire.session(self.number), body))
        self.number += 1

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._socket.send(data)
        except ConnectionRefusedError:
            # An earlier datagram had no receiver; it is missing at the sink and counted there.
            self._socket.send(data)


def _enable_segmentation(sock: socket.socket, size: int) -> bool:
    """Whether the kernel splits a send of `sock` into datagrams of `size` bytes."""
    try:
        sock.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
    except OSError as error:
        if error.errno not in {errno.ENOPROTOOPT, errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        return False
    return True


class ZenohGenerator(Generator):
    """An application that publishes on a uProtocol topic."""

    def __init__(self, counters: SharedCounters, payload: int, port: int) -> None:
        super().__init__(counters)
        self._session = sockets.zenoh_client(port)
        self._publisher = sockets.blocking_publisher(self._session, wire.publish_key(wire.APP_TOPIC))
        self._tail = wire.publish_tail(wire.APP_TOPIC)
        self._padding = bytes(payload - wire.TAIL.size)

    def send_burst(self) -> None:
        put, pack, head = self._publisher.put, wire.TAIL.pack, wire.attachment_head
        padding, tail, now_ms = self._padding, self._tail, wall_ms()
        for number in range(self.number, self.number + self.burst):
            put(padding + pack(number, 0), attachment=head(now_ms, number) + tail)
        self.number += self.burst

    def send_one(self) -> None:
        attachment = wire.attachment_head(wall_ms(), self.number) + self._tail
        body = self._padding + wire.TAIL.pack(self.number, time.monotonic_ns())
        self._publisher.put(body, attachment=attachment)
        self.number += 1


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


_KINDS: Final = {"udp": UdpGenerator, "zenoh": ZenohGenerator}


def main(kind: str, counters_path: str, *numbers: str) -> None:
    serve_commands(_KINDS[kind](SharedCounters(Path(counters_path)), *map(int, numbers)))


def serve_commands(generator: Generator) -> None:
    """Report READY, then execute the commands on stdin until it closes."""
    sockets.print_ready()
    for line in sys.stdin:
        match line.split():
            case ["ping"]:
                generator.ping()
            case ["flow", window, seconds]:
                generator.send_windowed(int(window), float(seconds))
            case ["pace", hz, count]:
                generator.send_paced(float(hz), int(count))
            case ["report"]:
                print(json.dumps(generator.report()), flush=True)
                continue
            case _:
                raise ValueError(f"{line!r}: expected ping, flow WINDOW SECONDS, pace HZ COUNT or report")
        print("DONE", flush=True)
    sockets.exit_now()


if __name__ == "__main__":
    main(*sys.argv[1:])
