# SPDX-License-Identifier: Apache-2.0
"""Stories of a streamer with a SOME/IP network: generation, run, and kinds of steps. They have seeds of their own.

    python -m tests.simulation --someip --seeds 0 200

A story has traffic in both directions between Zenoh and two ECUs, and faults of ECUs, cables, the link, the streamer
and Zenoh. In the end all faults are over, one more message of each flow must arrive, and the streamer stops.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.actor import Actor
from tests.simulation.disk import SimDisk
from tests.simulation.host import INSIDE, OUTSIDE, HostConfig, SimHost, simulated
from tests.simulation.host_oracle import Violation
from tests.simulation.scheduler import NS_PER_S, Scheduler, SimulationStuck
from tests.simulation.someip.ip_network import Quality, SimIpNetwork
from tests.simulation.someip.network import ECU_A, ECU_B, FLOWS, STREAMER_IP, SomeipConfig
from tests.simulation.someip.oracle import Fault, SomeipOracle
from tests.simulation.someip.world import SomeipWorld
from tests.simulation.story import Result, Step, Story
from tests.simulation.zenoh_network import SimNetwork

_SETTLE_S: Final = 45
_RECOVERED_S: Final = 9
"""Longer than any pause between two attempts: to connect, to offer, to send a segment again."""
_STILL_NS: Final = 8 * NS_PER_S
_PROBE_S: Final = 3
_OPEN_NS: Final = 1 << 62
REFUSALS: Final = (errno.EPERM, errno.ENOBUFS, errno.EAGAIN)
_DURATIONS_MS: Final = ((50, 1_000), (1_000, 4_500), (4_500, 9_000))
NETWORK_FAULTS: Final = ("ecu kill", "ecu power", "ecu freeze", "cable", "link", "refuse")
FAULTS: Final = (*NETWORK_FAULTS, "loss", "freeze", "stop", "kill", "power", "reload")


# --- generation -------------------------------------------------------------------------------------------------------


def _draw_fault(rng: Random, kind: str, at_ms: int) -> Step:
    duration_ms = rng.randrange(*rng.choice(_DURATIONS_MS))
    ecu = rng.choice((ECU_A.ip, ECU_A.ip, ECU_B.ip))
    match kind:
        case "ecu kill" | "ecu power" | "ecu freeze":
            return Step(at_ms, kind, (ecu, duration_ms))
        case "cable":
            return Step(at_ms, kind, (rng.choice((ecu, STREAMER_IP)), duration_ms))
        case "loss":
            quality = (rng.choice((0.0, 0.05, 0.5)), rng.choice((0.0, 0.2)), rng.choice((0.0, 0.2)))
            return Step(at_ms, kind, (*quality, duration_ms))
        case "refuse":
            return Step(at_ms, kind, (rng.choice(REFUSALS), min(duration_ms, 4_000)))
        case "freeze":
            return Step(at_ms, kind, (OUTSIDE, min(duration_ms, 3_500)))
        case "reload":
            return Step(at_ms, kind)
        case _:
            return Step(at_ms, kind, (min(duration_ms, 5_000),))


def _draw_publish(rng: Random, at_ms: int, fault: Step | None = None) -> Step:
    """Draw traffic, often of the ECU that has the fault."""
    about = [each for each in FLOWS if fault is not None and fault.args[:1] == (each.ecu.ip,)]
    flow = rng.choice(about if about and rng.random() < 0.7 else FLOWS).name
    every_us = rng.choice((5, 20, 200, 2_000, 10_000, 40_000))
    count = rng.choice((1, 20, 100, 200, 200))
    size = rng.choice((12, 12, 100, 1_000))
    ttl_ms = rng.choice((0, 0, 0, 500, 5_000))
    return Step(at_ms, "publish", (flow, count, every_us, size, ttl_ms))


def generate(seed: int) -> Story:
    """The story of a seed."""
    rng = Random(f"SOME/IP {seed}")
    until_ms = rng.choice((2_000, 6_000, 12_000))
    kinds = rng.sample(FAULTS, rng.choice((1, 2, 2, 3)))
    steps = []
    for _ in range(rng.choice((0, 1, 2, 2, 3))):
        at_ms = rng.randrange(100, until_ms)
        fault = _draw_fault(rng, rng.choice(kinds), at_ms)
        steps.append(fault)
        for _ in range(rng.choice((1, 2, 3))):
            after_ms = rng.choice((-1, -5, -rng.randrange(1_500), 20, 200))
            steps.append(_draw_publish(rng, max(0, at_ms + after_ms), fault))
        if fault.kind in ("ecu kill", "ecu power") and rng.random() < 0.4:  # it dies with unread data
            frozen_ms = min(at_ms, rng.choice((10, 50, 90, 200, 2_000)))
            steps.append(Step(at_ms - frozen_ms, "ecu freeze", (fault.args[0], frozen_ms + 20)))
        if rng.random() < 0.5:  # two faults at once
            steps.append(_draw_fault(rng, rng.choice(kinds), at_ms + rng.choice((0, 20, 500, 3_000))))
    steps += [_draw_publish(rng, rng.randrange(until_ms)) for _ in range(rng.randrange(1, 5))]
    someip = SomeipConfig(
        receive_buffer=rng.choice((4_194_304, 4_194_304, 100_000, 4_096)),
        send_buffer=rng.choice((1_048_576, 1_048_576, 8_192)),
        ack_timeout_ms=rng.choice((30_000, 30_000, 3_000)),
    )
    config = HostConfig(queue_messages=rng.choice((10_000, 10_000, 100)), someip=someip)
    return Story(seed, tuple(sorted(steps)), config, interrupt_every=rng.choice((0, 7, 50)))


# --- a run ------------------------------------------------------------------------------------------------------------


class _SomeipActor(Actor):
    """The actor of a story with a SOME/IP network."""

    def __init__(self, story: Story, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.zenoh = {name: SimNetwork(scheduler, name, story.sizes) for name in (INSIDE, OUTSIDE)}
        self.network = SimIpNetwork(scheduler)
        disk = SimDisk(scheduler, story.commit_ms)
        self.host = SimHost(scheduler, self.zenoh, disk, story.config, self.network)
        assert self.host.kernel is not None
        self.world = SomeipWorld(scheduler, self.zenoh, self.network, self.host.kernel)
        self.faults: list[Fault] = []

    # --- steps --------------------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> None:
        """Enter the actions of a step."""
        args, host = step.args, self.host
        if step.kind.startswith("ecu"):
            ecu = self.world.ecus[args[0]]
            begin = {"ecu kill": ecu.kill, "ecu power": ecu.cut_power, "ecu freeze": ecu.freeze}[step.kind]
            self._between(step, begin, ecu.thaw if step.kind == "ecu freeze" else ecu.start, args[0])
            return
        match step.kind:
            case "publish":
                self._at(step.at_ms, lambda: self._send(*args))
            case "reload":
                self._at(step.at_ms, host.reload)
            case "cable":
                self._between(
                    step, lambda: self._cut(args[0], True), lambda: self._cut(args[0], False), args[0]
                )
            case "link":
                streamer = self.network.hosts[STREAMER_IP]
                self._between(
                    step, lambda: streamer.set_link(up=False), lambda: streamer.set_link(up=True), STREAMER_IP
                )
            case "refuse":
                self._between(step, lambda: self._refuse(args[0]), lambda: self._refuse(0), STREAMER_IP)
            case "loss":
                quality = Quality(*args[:3])
                self._between(step, lambda: self._set_quality(quality), lambda: self._set_quality(Quality()))
            case "freeze":
                network = self.zenoh[args[0]]
                self._between(step, network.freeze, network.thaw)
            case _:
                begin = {"stop": host.stop, "kill": host.kill, "power": host.cut_power}[step.kind]
                self._between(step, begin, self._start, STREAMER_IP if step.kind != "stop" else "")

    def _between(self, step: Step, begin: Callable[[], None], end: Callable[[], None], ip: str = "") -> None:
        """Begin and end a fault. One with the address of a host is noted for the oracle."""
        place = len(self.faults)

        def note_begin() -> None:
            nonlocal place
            place = len(self.faults)
            if ip:
                self.faults.append(Fault(step.kind, ip, self.scheduler.now_ns, _OPEN_NS))
            begin()

        def note_end() -> None:
            end()
            if ip:
                self.faults[place] = self.faults[place]._replace(end_ns=self.scheduler.now_ns)

        self._at(step.at_ms, note_begin)
        self._at(step.at_ms + step.args[-1], note_end)

    def _cut(self, ip: str, is_cut: bool) -> None:
        self.network.hosts[ip].is_cut = is_cut

    def _refuse(self, code: int) -> None:
        self.network.hosts[STREAMER_IP].refusal = code

    def _set_quality(self, quality: Quality) -> None:
        self.network.quality = quality

    def send_one(self, flow: str, left: int, size: int, ttl_ms: int) -> None:
        """As `Actor.send_one`."""
        self.world.send(flow, size, ttl_ms)

    # --- the whole ----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Do all actions, end all faults, wait, probe each flow, and stop."""
        self.host.start()
        for ecu in self.world.ecus.values():
            ecu.start()
        self.world.subscribe()
        self.scheduler.sleep(3 * NS_PER_S)
        self._do_all()
        self.scheduler.sleep(_RECOVERED_S * NS_PER_S)
        self._wait(self._has_settled, _SETTLE_S)
        self._probe()
        self._stop()

    def _probe(self) -> None:
        """Send one message of each flow: each must arrive."""
        probes = []
        for flow in FLOWS:
            self.world.send(flow.name, 12, 0)
            probes.append(next(reversed(self.world.sent)))
        self.scheduler.sleep(_PROBE_S * NS_PER_S)
        missing = [FLOWS[key[0]].name for key in probes if not self.world.has_arrived(key)]
        if missing:
            self.world.unserved.append(f"after all faults no message of {', '.join(missing)} arrives")

    def _has_settled(self) -> bool:
        """Whether all messages have arrived, or nothing has moved for a while."""
        world = self.world
        moved = (
            len(world.received),
            len(world.on_wire),
            len(world.taken),
            sum(world.responses.values()),
            self._unsent,
            *(len(each.put_ns) for each in self.zenoh.values()),
        )
        is_still = self._is_still(moved, _STILL_NS)
        return is_still or (
            not self._unsent and all(map(world.has_arrived, world.sent.keys() - world.refused))
        )

    def release(self) -> None:
        """Empty all objects of the run. The product has structs without `gc`, which would keep them forever."""
        self.host.release()
        for network in self.zenoh.values():
            network.release()
        self.network.release()
        for each in (self.scheduler, self.host, self.world):
            vars(each).clear()


def run(story: Story) -> Result:
    """Run a story with a SOME/IP network."""
    scheduler = Scheduler(story.seed, story.interrupt_every)
    actor = _SomeipActor(story, scheduler)
    for step in story.steps:
        actor.plan(step)
    violations: list[Violation] = []
    with simulated(actor.host):
        try:
            actor.act()
        except SimulationStuck as error:
            violations.append(Violation("stuck", str(error)))
        kinds = {step.kind for step in story.steps if step.kind != "publish"}
        violations += SomeipOracle(actor.world, actor.host, kinds, actor.faults).judge()
    world, notes = actor.world, dict(actor.network.notes)
    history = scheduler.now_ns, scheduler.switches, tuple(map(tuple, world.received.values()))
    counts = scheduler.switches, len(world.sent), len(world.received)
    actor.release()
    return Result(violations, notes, *counts, hash(history))
