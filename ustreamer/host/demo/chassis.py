# SPDX-License-Identifier: Apache-2.0
"""The simulated chassis: one ECU with plain SOME/IP over UDP and without uProtocol."""

import struct
from threading import Event, Thread
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.host.demo.ecu import SimulatedEcu
from ustreamer.host.demo.rates import RateMeter
from ustreamer.host.runtime.clock import SYSTEM_CLOCK

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


class Chassis(SimulatedEcu):
    """Sends wheel speeds and door events to one address, and serves the climate method."""

    def __init__(self, address: tuple[str, int], streamer: tuple[str, int]) -> None:
        super().__init__(streamer, address, {(CLIMATE, SET_TEMPERATURE): lambda payload: payload}, MAJOR)
        self._publishing_stopped = Event()
        self.published: dict[tuple[int, int], RateMeter] = {}
        self._threads = [
            Thread(target=self._drive, name="chassis wheels", daemon=True),
            Thread(target=self._open_doors, name="chassis doors", daemon=True),
            *self._threads,
        ]

    def stop_publishing(self) -> None:
        """Stop sending events; the climate service continues."""
        self._publishing_stopped.set()

    def close(self) -> None:
        self._publishing_stopped.set()
        super().close()

    def reset_rates(self) -> None:
        """Reset the counters."""
        with self._lock:
            self.published.clear()

    def rate(self, service: int, event: int) -> RateMeter:
        with self._lock:
            return self.published.get((service, event), RateMeter()).copy()

    def send_event(self, service: int, event: int, payload: bytes = b"") -> None:
        with self._lock:
            self.published.setdefault((service, event), RateMeter()).record_event(SYSTEM_CLOCK.monotonic_ns())
        super().send_event(service, event, payload)

    def _drive(self) -> None:
        for tick in self._ticks(WHEEL_HZ):
            for number, event in enumerate(WHEEL_EVENTS.values()):
                speed = 13.9 + 0.1 * number + (tick % 200) / 100
                self.send_event(WHEELS, event, struct.pack(">f", speed))
            self.send_event(WHEELS, STEERING_EVENT, struct.pack(">h", tick % 200 - 100))

    def _open_doors(self) -> None:
        for tick in self._ticks(DOOR_HZ):
            self.send_event(DOORS, DOOR_EVENT, struct.pack(">BB", tick % 4, tick // 4 % 2))

    def _ticks(self, hz: float) -> "PeriodicTicks":
        return PeriodicTicks(hz, self._publishing_stopped)


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
