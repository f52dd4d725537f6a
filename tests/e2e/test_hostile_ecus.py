# SPDX-License-Identifier: Apache-2.0
"""An ECU that behaves is served as ever while forty others on the same network say anything at all."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tests.e2e import wire
from tests.e2e.car import CLIMATE, OFFERED, SPEED, CarPorts, configuration, offered, service
from tests.e2e.ecu import Ecu, Seen
from tests.e2e.flood import Flood
from tests.e2e.peers import ECHO, USUBSCRIPTION, Metronome, ZenohPeer
from tests.e2e.ports import tcp_ports, udp_ports
from tests.e2e.streamer import StreamerProcess
from tests.e2e.wire import Uri

TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
HZ: Final = 200
PHASE_S: Final = 1.0
PHASES: Final = 5
"""Of each kind, and more where none of the floods was as it is to be."""
MOST_PHASES: Final = 20
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
    elsewhere: Flood
    """The same of what it takes to make it, and nothing of it for the streamer."""
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


def deaf_ports(stack: ExitStack) -> tuple[int, int]:
    """Two where all that comes is taken and forgotten."""
    opened = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
    for each, port in zip(opened, udp_ports(2), strict=True):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", port))
    first, second = (each.getsockname()[1] for each in opened)
    return first, second


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
            stack.enter_context(Flood(*deaf_ports(stack), *tcp_ports(1))),
            ("127.0.0.1", ports.data),
        )


def p99(ages: list[float]) -> float:
    assert len(ages) >= HZ * PHASE_S * 0.5, f"{len(ages)} events"
    return sorted(ages)[len(ages) * 99 // 100]


class Phase(NamedTuple):
    """A second with a flood here or elsewhere, and how old the events were that were sent in it."""

    flooded: bool
    p99_s: float


def play(scene: Scene, sent_at: list[float], *, flooded: bool) -> Phase:
    """A second of flood, here or elsewhere; meanwhile, the ECU is called as well."""
    first, flood = len(sent_at), scene.flood if flooded else scene.elsewhere
    flood.begin(PHASE_S, RATE)
    for call in range(CALLS):
        answer = scene.app.call(Uri("chassis", CLIMATE, 1, ECHO), b"%d" % call)
        assert answer.payload == b"%d" % call
    assert flood.wait_sent() > RATE * PHASE_S / 4
    events = range(first, len(sent_at))
    heard = {int(each.payload): each.at for each in scene.app.wait_events(TOPIC, events.stop)}
    return Phase(flooded, p99([heard[each] - sent_at[each] for each in events]))


def is_held_up(phases: Sequence[Phase]) -> bool:
    """A busy machine holds up one phase or another, and who makes a flood keeps it busy.

    A flood that is felt here is felt in all of its own phases, and elsewhere in none.
    """
    calm = median(each.p99_s for each in phases if not each.flooded)
    stormy = min(each.p99_s for each in phases if each.flooded)
    return stormy >= calm * MOST_TIMES + NOISE_S


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
            phases: list[Phase] = []
            while len(phases) < 2 * PHASES or (is_held_up(phases) and len(phases) < 2 * MOST_PHASES):
                phases += [play(scene, sent_at, flooded=flooded) for flooded in (False, True)]
        scene.app.wait_events(TOPIC, len(sent_at))
        grown = scene.memory - memory
        scene.process.stop()

    ages = ", ".join(f"{'here' if each.flooded else 'elsewhere'} {each.p99_s * 1e3:.1f}" for each in phases)
    said = f"p99 in ms: {ages}; {grown} bytes more; {scene.refused()}"
    print(said)
    assert not is_held_up(phases), said
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
