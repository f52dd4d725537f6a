# SPDX-License-Identifier: Apache-2.0
"""R25: router, ECU, streamer and subscriber start in random orders; an event of the ECU arrives at the subscriber."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

import zenoh

from tests.e2e.delivery.outage_scenarios import ZenohProcess
from tests.e2e.discovery.sd_vehicle import QUICK_SD_TIMINGS, SdVehiclePorts, sd_vehicle_toml, service_toml
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, USUBSCRIPTION, Metronome, ZenohEntity
from tests.e2e.rigs.sd_ecu import SdEcu
from tests.e2e.rigs.streamer import START_S, StreamerProcess
from tests.e2e.rigs.wire import Uri

SPEED: Final = 0x1234
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
HZ: Final = 50
LONGEST_GAP_S: Final = 1.0
_PATIENCE_S: Final = 0.5


class Network:
    """The four participants. Each `start_*` returns when its process or thread is there, not when it is connected."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._stack = stack
        self._ports = SdVehiclePorts.free()
        self._config = directory / "order.toml"
        text = sd_vehicle_toml(self._ports, service_toml(SPEED, "events = [{ id = 0x8001, eventgroup = 1 }]"))
        listen = f'listen = ["tcp/127.0.0.1:{self._ports.zenoh}"]'
        assert listen in text
        self._config.write_text(text.replace(listen, listen.replace("listen", "connect")), encoding="utf-8")
        self.received = Event()
        self._closing = Event()
        self.streamer: StreamerProcess | None = None
        self.starts: dict[str, Callable[[], None]] = {
            "router": self._start_router,
            "ecu": self._start_ecu,
            "streamer": self._start_streamer,
            "subscriber": self._start_subscriber,
        }

    def _start_router(self) -> None:
        router = ZenohProcess("router", self._ports.zenoh)
        self._stack.callback(router.kill)
        router.wait_ready()

    def _start_ecu(self) -> None:
        ecu = self._stack.enter_context(SdEcu("127.0.0.10", self._ports.sd))
        ecu.offer(SPEED, 1)

        def beat(number: int) -> None:
            for destination in list(ecu.event_subscribers.get((SPEED, 1), ())):
                ecu.send_event(SPEED, 0x8001, b"%d" % number, destination)

        self._stack.enter_context(Metronome(HZ, beat))

    def _start_streamer(self) -> None:
        self.streamer = StreamerProcess(self._config)
        self._stack.callback(self._end_streamer)
        self.streamer.stdout.wait_one(lambda line: line == "READY\n", START_S)

    def _end_streamer(self) -> None:
        assert self.streamer is not None
        assert self.streamer.is_alive, self.streamer.output
        self.streamer.kill()

    def _start_subscriber(self) -> None:
        """An application that connects and subscribes until it succeeds, as applications have to."""

        def run() -> None:
            entity: ZenohEntity | None = None
            while not self._closing.is_set():
                with suppress(zenoh.ZError, AssertionError):
                    entity = entity or ZenohEntity(self._ports.zenoh, "hpc.vin1")
                    method, payload = USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(TOPIC)
                    entity.wait_response(entity.send_request(method, payload), _PATIENCE_S)
                    entity.wait_events(TOPIC)
                    self.received.set()
                    break
                time.sleep(0.05)
            if entity is not None:
                entity.session.close()  # type: ignore[no-untyped-call]

        thread = Thread(target=run, name="subscriber")
        thread.start()
        self._stack.callback(thread.join, DEADLINE_S)
        self._stack.callback(self._closing.set)


def _run(directory: Path, order: list[str], gaps: list[float]) -> float:
    """The time from the last start to the first event at the subscriber, in s."""
    directory.mkdir()
    pause = Event()
    with ExitStack() as stack:
        network = Network(directory, stack)
        for name, gap in zip(order, gaps, strict=True):
            pause.wait(gap)
            network.starts[name]()
        began = time.monotonic()
        assert network.received.wait(DEADLINE_S), f"no event after {' '.join(order)}"
        return time.monotonic() - began


def test_any_start_order_converges(tmp_path: Path, trials: int, seed: int) -> None:
    assert QUICK_SD_TIMINGS["cyclic_offer_delay_ms"] == 200
    rng, taken = random.Random(seed), []
    names, orders = ["router", "ecu", "streamer", "subscriber"], set()
    for number in range(trials):
        order = rng.sample(names, len(names))
        orders.add(tuple(order))
        gaps = [rng.uniform(0, LONGEST_GAP_S) for _ in order]
        taken.append(_run(tmp_path / str(number), order, gaps))
        print(f"starts=1 first_{order[0]}=1")
    p95 = sorted(taken)[int(0.95 * trials)]
    print(f"orders={len(orders)} unconverged={trials - len(taken)} p95_s={p95:.2f} worst_s={max(taken):.2f}")
