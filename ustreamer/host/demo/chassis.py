# SPDX-License-Identifier: Apache-2.0
"""The simulated chassis: one ECU with plain SOME/IP over UDP and without uProtocol."""

import socket
import struct
from threading import Event, Lock, Thread
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.host.demo.rates import RateMeter
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transports.someip.protocol.codec import (
    MessageType,
    ReturnCode,
    SomeIpMessage,
    encode,
    next_session,
    split,
)

WHEELS: Final = 0x1234
WHEEL_EVENTS: Final = {"front left": 0x8001, "front right": 0x8002, "rear left": 0x8003, "rear right": 0x8004}
STEERING_EVENT: Final = 0x8005  # has no subscriber, so it gets the verdict NO_SUBSCRIBER
DOORS: Final = 0x2001
DOOR_EVENT: Final = 0x8001
CLIMATE: Final = 0x3001
SET_TEMPERATURE: Final = 0x0001
MAJOR: Final = 1

WHEEL_HZ: Final = 100
DOOR_HZ: Final = 4

_NS_PER_S: Final = 1_000_000_000


class Chassis:
    """Sends wheel speeds and door events to one address, and serves the climate method."""

    def __init__(self, address: tuple[str, int], streamer: tuple[str, int]) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(0.2)
        self._streamer = streamer
        self._stop = Event()
        self._publishing_stopped = Event()
        self._lock = Lock()
        self._sessions: dict[tuple[int, int], int] = {}
        self.published: dict[tuple[int, int], RateMeter] = {}
        self.calls = 0
        self._threads = [
            Thread(target=self._drive, name="chassis wheels", daemon=True),
            Thread(target=self._open_doors, name="chassis doors", daemon=True),
            Thread(target=self._serve, name="chassis climate", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop_publishing(self) -> None:
        """Stop sending events; the climate service continues."""
        self._publishing_stopped.set()

    def close(self) -> None:
        self._publishing_stopped.set()
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2.0)
        self._socket.close()

    def reset_rates(self) -> None:
        """Reset the counters."""
        with self._lock:
            self.published.clear()

    def rate(self, service: int, event: int) -> RateMeter:
        with self._lock:
            return self.published.get((service, event), RateMeter()).copy()

    # --- events ------------------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        for tick in self._ticks(WHEEL_HZ):
            for number, event in enumerate(WHEEL_EVENTS.values()):
                speed = 13.9 + 0.1 * number + (tick % 200) / 100
                self._publish(WHEELS, event, struct.pack(">f", speed))
            self._publish(WHEELS, STEERING_EVENT, struct.pack(">h", tick % 200 - 100))

    def _open_doors(self) -> None:
        for tick in self._ticks(DOOR_HZ):
            self._publish(DOORS, DOOR_EVENT, struct.pack(">BB", tick % 4, tick // 4 % 2))

    def _ticks(self, hz: float) -> "PeriodicTicks":
        return PeriodicTicks(hz, self._publishing_stopped)

    def _publish(self, service: int, event: int, payload: bytes) -> None:
        with self._lock:
            session = self._sessions[service, event] = next_session(self._sessions.get((service, event), 0))
            self.published.setdefault((service, event), RateMeter()).record_event(SYSTEM_CLOCK.monotonic_ns())
        message = SomeIpMessage(
            service, event, 0, session, MAJOR, MessageType.NOTIFICATION, ReturnCode.E_OK, payload
        )
        self._socket.sendto(encode(message), self._streamer)

    # --- the climate method ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                datagram, sender = self._socket.recvfrom(65_536)
            except TimeoutError:
                continue
            for request in split(datagram)[0]:
                if request.message_type == MessageType.REQUEST:
                    self._socket.sendto(encode(self._respond(request)), sender)

    def _respond(self, request: SomeIpMessage) -> SomeIpMessage:
        self.calls += 1
        known = (request.service, request.method) == (CLIMATE, SET_TEMPERATURE)
        return SomeIpMessage(
            request.service,
            request.method,
            request.client,
            request.session,
            request.interface_version,
            MessageType.RESPONSE if known else MessageType.ERROR,
            ReturnCode.E_OK if known else ReturnCode.E_UNKNOWN_METHOD,
            request.payload if known else b"",
        )


class PeriodicTicks:
    """Counts up at `hz` until stopped.

    A late tick does not delay later ones, and missed ticks are skipped, as in a cyclic task of an ECU.
    """

    def __init__(self, hz: float, stop: Event, clock: Clock = SYSTEM_CLOCK) -> None:
        self._period_ns = round(_NS_PER_S / hz)
        self._stop = stop
        self._now_ns = clock.monotonic_ns
        self._due_ns = self._now_ns()
        self._tick = -1

    def __iter__(self) -> "PeriodicTicks":
        return self

    def __next__(self) -> int:
        left_s = (self._due_ns - self._now_ns()) / _NS_PER_S
        if self._stop.wait(max(0.0, left_s)):
            raise StopIteration
        missed = max(0, (self._now_ns() - self._due_ns) // self._period_ns)
        self._due_ns += (missed + 1) * self._period_ns
        self._tick += missed + 1
        return self._tick
