# SPDX-License-Identifier: Apache-2.0
"""A flood of malformed messages from forty hosts delays no well-behaved ECU; claimed reboots do not fill the log."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tests.e2e.discovery.hostile_ecus import HostileEcuProcess
from tests.e2e.discovery.raw_sd_ecu import FIND_ENTRY, sd_entry, sd_message
from tests.e2e.discovery.sd_vehicle import (
    CLIMATE,
    OFFERED,
    SPEED,
    SdVehicle,
    SdVehiclePorts,
    offered_service_toml,
    sd_vehicle_toml,
    service_toml,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, USUBSCRIPTION, Metronome, ZenohEntity, eventually
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SdEcu, SdNotification
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.wire import Uri

TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
HZ: Final = 200
PHASE_S: Final = 0.7
LEAST_SHARE: Final = 0.1
"""Of the events and of the flood that is sent in a phase: a busy machine delays their senders too."""
PHASES: Final = 3
"""Minimum phases of each kind; more follow while every flood looks like a delay."""
MOST_PHASES: Final = 20
RATE: Final = 2_000.0
"""Datagrams per second of all hostile ECUs together."""
CALLS: Final = 10
NOISE_S: Final = 0.005
"""The noise of the machine in a 99th percentile."""
MOST_TIMES: Final = 2.0
MOST_GROWTH: Final = 4_000_000

SERVICES: Final = (
    service_toml(SPEED, "events = [{ id = 0x8001, eventgroup = 1 }]"),
    service_toml(CLIMATE, "methods = [0x0001]"),
    offered_service_toml(
        OFFERED,
        'events = [{ id = 0x8001, eventgroup = 1 }, { id = 0x8002, eventgroup = 2, protocol = "tcp" }]',
        'methods = [0x0001, { id = 0x0003, protocol = "tcp" }]',
    ),
)

_SHORT_TP_TIMEOUT: Final = "tp = { timeout_ms = 1000 }"


class HostileScenario(NamedTuple):
    process: StreamerProcess
    app: ZenohEntity
    ecu: SdEcu
    flood: HostileEcuProcess
    control_flood: HostileEcuProcess
    """The control: the same load on the machine, without load on the streamer."""
    address: tuple[str, int]

    @property
    def memory(self) -> int:
        """The resident memory of the streamer in bytes."""
        pages = Path(f"/proc/{self.process._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * 4096

    def refused_counts(self) -> dict[str, int]:
        """The refusal counters in the final statistics of the streamer."""
        [stopped] = [line for line in self.process.log_records if line["event"] == "streamer.stopped"]
        return {
            name: count
            for name, count in stopped["endpoints"]["chassis"].items()
            if "refused" in name and count
        }


def discarding_ports(stack: ExitStack) -> tuple[int, int]:
    """Two ports; all datagrams to them are discarded."""
    opened = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
    for each, port in zip(opened, udp_ports(2), strict=True):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", port))
    first, second = (each.getsockname()[1] for each in opened)
    return first, second


@contextmanager
def running(directory: Path) -> Iterator[HostileScenario]:
    ports = SdVehiclePorts.free()
    config = directory / "hostile.toml"
    config.write_text(
        sd_vehicle_toml(ports, *SERVICES, timings={}, chassis=_SHORT_TP_TIMEOUT), encoding="utf-8"
    )
    with ExitStack() as stack:
        process = stack.enter_context(StreamerProcess(config))
        app = stack.enter_context(ZenohEntity(ports.zenoh, "hpc.vin1"))
        ecu = stack.enter_context(SdEcu("127.0.0.10", ports.sd))
        ecu.offer(SPEED, 1)
        ecu.offer(CLIMATE)
        app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(TOPIC))
        ecu.notifications.wait_one(lambda seen: seen == SdNotification("subscribed", SPEED, 1))
        yield HostileScenario(
            process,
            app,
            ecu,
            stack.enter_context(HostileEcuProcess(ports.data, ports.sd, ports.tcp)),
            stack.enter_context(HostileEcuProcess(*discarding_ports(stack), *tcp_ports(1))),
            ("127.0.0.1", ports.data),
        )


def p99(ages: list[float]) -> float:
    assert len(ages) >= HZ * PHASE_S * LEAST_SHARE, f"{len(ages)} events"
    return sorted(ages)[len(ages) * 99 // 100]


class Phase(NamedTuple):
    """A period with a flood at the streamer or at the control, and the 99th percentile of event ages."""

    flooded: bool
    p99_s: float


def run_phase(scene: HostileScenario, sent_at: list[float], *, flooded: bool) -> Phase:
    """Run a flood at the streamer or at the control, and call the ECU meanwhile."""
    first, flood = len(sent_at), scene.flood if flooded else scene.control_flood
    flood.start_flood(PHASE_S, RATE)
    for call in range(CALLS):
        answer = scene.app.call(Uri("chassis", CLIMATE, 1, ECHO), b"%d" % call)
        assert answer.payload == b"%d" % call
    assert flood.wait_sent() >= RATE * PHASE_S * LEAST_SHARE
    events = range(first, len(sent_at))
    received_at = {int(each.payload): each.received_at for each in scene.app.wait_events(TOPIC, events.stop)}
    return Phase(flooded, p99([received_at[each] - sent_at[each] for each in events]))


def is_held_up(phases: Sequence[Phase]) -> bool:
    """Whether the flood delays events.

    The machine delays single phases at random, and the flood generator loads it. A real delay is in all flooded
    phases, compared with the median of the control phases.
    """
    calm = median(each.p99_s for each in phases if not each.flooded)
    stormy = min(each.p99_s for each in phases if each.flooded)
    return stormy >= calm * MOST_TIMES + NOISE_S


def test_hostile_ecus_do_not_delay_a_well_behaved_one(tmp_path: Path) -> None:
    with running(tmp_path) as scene:
        sent_at: list[float] = []

        def beat(number: int) -> None:
            sent_at.append(time.monotonic())
            scene.ecu.send_event(SPEED, 0x8001, b"%d" % number, scene.address)

        scene.flood.start_flood(PHASE_S, RATE)  # tables of unknown senders fill up before the memory baseline
        scene.flood.wait_sent()
        memory = scene.memory
        with Metronome(HZ, beat):
            phases: list[Phase] = []
            while len(phases) < 2 * PHASES or (is_held_up(phases) and len(phases) < 2 * MOST_PHASES):
                phases += [run_phase(scene, sent_at, flooded=flooded) for flooded in (False, True)]
        scene.app.wait_events(TOPIC, len(sent_at))
        grown = scene.memory - memory
        scene.process.stop()

    ages = ", ".join(f"{'here' if each.flooded else 'elsewhere'} {each.p99_s * 1e3:.1f}" for each in phases)
    summary = f"p99 in ms: {ages}; {grown} bytes more; {scene.refused_counts()}"
    print(summary)
    assert not is_held_up(phases), summary
    assert grown < MOST_GROWTH, summary
    kinds = {
        "sd_rate",
        "sd_offer_foreign",
        "sd_subscribe_unknown",
        "tp_overlap",
        "tp_timeout",
        "length_too_small",
    }
    assert {f"refused_{kind}" for kind in kinds} <= set(scene.refused_counts()), summary


REBOOTS: Final = 400
SHOWN_EVERY_S: Final = 2.0


def test_a_host_that_claims_a_reboot_with_each_message_gets_few_log_lines(tmp_path: Path) -> None:
    with ExitStack() as stack:
        vehicle = SdVehicle(stack, tmp_path, service_toml(CLIMATE, "methods = [0x0001]"))
        hostile = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        hostile.bind(("127.0.0.66", 0))
        began = time.monotonic()
        for number in range(REBOOTS):
            entry = sd_entry(FIND_ENTRY, 0x7777, 3, number, 0)  # other bytes, so no duplicate
            hostile.sendto(sd_message(1, True, entry), ("127.0.0.1", vehicle.ports.sd))
            if number % 20 == 0:
                statistics(tmp_path / "state")  # a round trip through the streamer paces the sender
        eventually(lambda: statistics(tmp_path / "state")["endpoints"]["chassis"]["sd_reboots"], REBOOTS - 1)
        vehicle.process.stop()
        most = 2 + (time.monotonic() - began) / SHOWN_EVERY_S
    lines = [each for each in vehicle.process.log_records if each["event"] == "someip.rebooted"]
    assert {each["peer"] for each in lines} == {"127.0.0.66"}
    assert len(lines) <= most
    assert len(lines) + sum(each.get("suppressed", 0) for each in lines) == REBOOTS - 1
