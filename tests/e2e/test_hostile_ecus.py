# SPDX-License-Identifier: Apache-2.0
"""An ECU that behaves is served as ever while forty others on the same network say anything at all."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Event
from typing import Final, NamedTuple

from tests.e2e import wire
from tests.e2e.car import CLIMATE, OFFERED, SPEED, CarPorts, configuration, offered, service
from tests.e2e.ecu import Ecu, Seen
from tests.e2e.flood import Flood
from tests.e2e.peers import ECHO, USUBSCRIPTION, Metronome, ZenohPeer
from tests.e2e.streamer import StreamerProcess
from tests.e2e.wire import Uri

TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
HZ: Final = 200
PHASE_S: Final = 1.0
PHASES: Final = 5
RATE: Final = 2_000.0
"""Datagrams a second of all hostile ECUs together."""
CALLS: Final = 10
NOISE_S: Final = 0.005
"""What this machine may add to a 99th percentile by itself."""
MOST_TIMES: Final = 2.0
MOST_GROWTH: Final = 4_000_000

SERVICES: Final = (
    service(SPEED, "events = [{ id = 0x8001, eventgroup = 1 }]"),
    service(CLIMATE, "methods = [0x0001]"),
    offered(
        OFFERED,
        'events = [{ id = 0x8001, eventgroup = 1 }, { id = 0x8002, eventgroup = 2, protocol = "tcp" }]',
        'methods = [0x0001, { id = 0x0003, protocol = "tcp" }]',
    ),
)


class Scene(NamedTuple):
    process: StreamerProcess
    app: ZenohPeer
    ecu: Ecu
    flood: Flood
    address: tuple[str, int]

    @property
    def memory(self) -> int:
        """Bytes of the streamer that are in memory."""
        pages = Path(f"/proc/{self.process._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * 4096

    def refused(self) -> dict[str, int]:
        """What the streamer has counted of it, in its last words."""
        [stopped] = [line for line in self.process.log if line["event"] == "stopped"]
        return {
            name: count
            for name, count in stopped["endpoints"]["chassis"].items()
            if "refused" in name and count
        }


@contextmanager
def running(directory: Path) -> Iterator[Scene]:
    ports = CarPorts.free()
    config = directory / "hostile.toml"
    config.write_text(configuration(ports, *SERVICES, timings={}), encoding="utf-8")
    with ExitStack() as stack:
        process = stack.enter_context(StreamerProcess(config))
        app = stack.enter_context(ZenohPeer(ports.zenoh, "hpc.vin1"))
        ecu = stack.enter_context(Ecu("127.0.0.10", ports.sd))
        ecu.offer(SPEED, 1)
        ecu.offer(CLIMATE)
        app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(TOPIC))
        ecu.seen.one(lambda seen: seen == Seen("subscribed", SPEED, 1))
        yield Scene(
            process,
            app,
            ecu,
            stack.enter_context(Flood(ports.data, ports.sd, ports.tcp)),
            ("127.0.0.1", ports.data),
        )


def p99(ages: list[float]) -> float:
    assert len(ages) >= HZ * PHASE_S * 0.5, f"{len(ages)} events"
    return sorted(ages)[len(ages) * 99 // 100]


class Phase(NamedTuple):
    """The events that were sent in a second, with a flood or without one."""

    flooded: bool
    events: range


def phases_of(scene: Scene, sent_at: list[float]) -> Iterator[Phase]:
    """One after the other, calm and flooded in turn; while it is flooded, the ECU is called as well."""
    clock = Event()  # nobody sets it: to wait for it is to let time pass, which is what is measured
    for number in range(2 * PHASES):
        first = len(sent_at)
        if number % 2:
            scene.flood.begin(PHASE_S, RATE)
            for call in range(CALLS):
                answer = scene.app.call(Uri("chassis", CLIMATE, 1, ECHO), b"%d" % call)
                assert answer.payload == b"%d" % call
            assert scene.flood.wait_sent() > RATE * PHASE_S / 4
        else:
            clock.wait(PHASE_S)
        yield Phase(bool(number % 2), range(first, len(sent_at)))


def test_hostile_ecus_do_not_hold_up_one_that_behaves(tmp_path: Path) -> None:
    with running(tmp_path) as scene:
        sent_at: list[float] = []

        def beat(number: int) -> None:
            sent_at.append(time.monotonic())
            scene.ecu.emit(SPEED, 0x8001, b"%d" % number, scene.address)

        scene.flood.begin(PHASE_S, RATE)  # what is kept of strangers is kept from here on
        scene.flood.wait_sent()
        memory = scene.memory
        with Metronome(HZ, beat):
            phases = list(phases_of(scene, sent_at))
        scene.app.wait_events(TOPIC, len(sent_at))
        grown = scene.memory - memory
        heard = {int(sample.payload): sample.at for sample in scene.app.events(TOPIC)}
        scene.process.stop()

    ages = {phase: p99([heard[each] - sent_at[each] for each in phase.events]) for phase in phases}
    # A busy machine holds up one phase or another; a flood that is felt is felt in all of its own.
    calm = median(age for phase, age in ages.items() if not phase.flooded)
    stormy = min(age for phase, age in ages.items() if phase.flooded)
    all_of_them = ", ".join(
        f"{'flood' if each.flooded else 'calm'} {age * 1e3:.1f}" for each, age in ages.items()
    )
    said = f"p99 in ms: {all_of_them}; {grown} bytes more; {scene.refused()}"
    print(said)
    assert stormy < calm * MOST_TIMES + NOISE_S, said
    assert grown < MOST_GROWTH, said
    kinds = {
        "sd_rate",
        "sd_offer_foreign",
        "sd_subscribe_unknown",
        "tp_overlap",
        "tp_timeout",
        "length_too_small",
    }
    assert {f"refused_{kind}" for kind in kinds} <= set(scene.refused()), said
