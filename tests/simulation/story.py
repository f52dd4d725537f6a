# SPDX-License-Identifier: Apache-2.0
"""A story: the configuration and the steps that a seed decides; its run; and its shrinking.

A fault is one step with a begin and an end. Two faults may overlap. In the end every fault is over, the streamer gets
time to send what waits, and stops.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from tests.simulation.actor import STOP_LIMIT_S, Actor
from tests.simulation.disk import SimDisk
from tests.simulation.host import INSIDE, OUTSIDE, HostConfig, SimHost, simulated
from tests.simulation.host_oracle import Violation
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import NS_PER_MS, NS_PER_S, Scheduler, SimulationStuck
from tests.simulation.world import LATE_TOPICS, NOTICES, SHARED, TOPICS, World
from tests.simulation.zenoh_link import LEASE_NS, LinkSizes
from tests.simulation.zenoh_network import SimNetwork

_SETTLE_S: Final = 45
_CONFIRMED_NS: Final = 3 * NS_PER_S
_STILL_NS: Final = 7 * NS_PER_S

DEFAULT_SIZES: Final = LinkSizes(128_000, 2_500_000, 1_500_000)
SMALL_SIZES: Final = LinkSizes(4_000, 8_000, 4_000)


class Step(NamedTuple):
    """One step: when, what, and its arguments. Times are ms of virtual time."""

    at_ms: int
    kind: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:7.3f} s  {self.kind} {' '.join(map(str, self.args))}"


class Story(NamedTuple):
    """All decisions of a seed. The seed also decides the interleaving of threads."""

    seed: int
    steps: tuple[Step, ...]
    config: HostConfig = HostConfig()
    sizes: LinkSizes = DEFAULT_SIZES
    commit_ms: int = 8
    interrupt_every: int = 0
    has_backend: bool = False
    """Whether two applications outside receive the shared flows."""
    put_wait_ms: int = 5_000
    """How long a put of the streamer waits for room."""

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.config}, {self.sizes}, commits of {self.commit_ms} ms"
        if self.interrupt_every:
            head += f", interrupt_every={self.interrupt_every}"
        if self.has_backend:
            head += ", with a backend"
        if self.put_wait_ms != 5_000:
            head += f", puts wait for {self.put_wait_ms} ms"
        return "\n".join((head, *map(str, self.steps)))


class Result(NamedTuple):
    """The outcome of a run."""

    violations: list[Violation]
    notes: dict[str, int]
    """What the simulated networks did."""
    switches: int
    sent: int
    received: int
    fingerprint: int
    """Equal for two runs with the same interleaving."""


# --- steps ------------------------------------------------------------------------------------------------------------

_YEARS_MS: Final = 450_000_000_000
"""A clock glitch to the year 2038."""
_DURATIONS_MS: Final = ((50, 1_000), (1_000, 4_500), (4_500, 9_000), (10_500, 16_000))
_BACKEND_SHARE: Final = 0.15
"""The share of the seeds with a second application outside."""
_FREEZE_SHARE: Final = 0.1
"""The share of the seeds in which the streamer's process is frozen."""
FAULTS: Final = (
    "freeze",
    "router",
    "cut",
    "stall",
    "stop",
    "kill",
    "power",
    "disk",
    "slow disk",
    "reload",
    "clock",
)


def _draw_fault(rng: Random, kind: str, at_ms: int) -> Step:
    duration_ms = rng.randrange(*rng.choice(_DURATIONS_MS))
    network = rng.choice((OUTSIDE, OUTSIDE, OUTSIDE, INSIDE))
    match kind:
        case "freeze" | "router" | "cut":
            return Step(at_ms, kind, (network, duration_ms))
        case "stall":
            return Step(at_ms, kind, (min(duration_ms, 9_000),))
        case "disk":
            return Step(at_ms, kind, (rng.choice(("full", "read-only", "error")), duration_ms))
        case "slow disk":
            return Step(at_ms, kind, (rng.choice((50, 360, 2_000)), duration_ms))
        case "reload":
            return Step(at_ms, kind)
        case "clock":
            return Step(
                at_ms, kind, (rng.choice((-3_600_000, -2_000, 2_000, 3_600_000, _YEARS_MS)), duration_ms)
            )
        case _:
            return Step(at_ms, kind, (min(duration_ms, 5_000),))


def _draw_publish(rng: Random, at_ms: int) -> Step:
    flow = rng.choice(("event", "event", "event5", "notice", "call", "back"))
    every_us = rng.choice((20, 200, 2_000, 10_000, 40_000))
    count = rng.choice((1, 20, 100, 250, 250))
    size = rng.choice((8, 8, 100, 1_000))
    ttl_ms = rng.choice((0, 0, 0, 500, 30_000))
    return Step(at_ms, "publish", (flow, count, every_us, size, ttl_ms))


def _draw_steps(rng: Random) -> list[Step]:
    until_ms = rng.choice((2_000, 6_000, 15_000))
    # Few kinds in one seed: then also rare pairs meet often.
    kinds = rng.sample(FAULTS, rng.choice((1, 2, 2, 3)))
    steps = []
    for _ in range(rng.choice((0, 1, 2, 2, 3))):
        at_ms = rng.randrange(100, until_ms)
        steps.append(_draw_fault(rng, rng.choice(kinds), at_ms))
        steps.append(_draw_publish(rng, max(0, at_ms - rng.choice((1, 3, rng.randrange(1_000))))))
        if rng.random() < 0.5:  # two faults at once
            steps.append(_draw_fault(rng, rng.choice(kinds), at_ms + rng.choice((0, 20, 500, 3_000))))
    steps += [_draw_publish(rng, rng.randrange(until_ms)) for _ in range(rng.randrange(1, 4))]
    for number in range(rng.choice((0, 0, 1, 3))):
        at_ms = rng.randrange(until_ms)
        steps.append(Step(at_ms, "subscribe", (number, rng.choice((0, 600)))))
        steps.append(Step(at_ms, "publish", (f"late{number}", 120, rng.choice((2_000, 40_000)), 8, 0)))
    return steps


def generate(seed: int) -> Story:
    """The story of a seed."""
    return _with_freeze(_with_backend(_with_rare_settings(_draw_story(seed))))


def _with_freeze(story: Story) -> Story:
    """The story, in some seeds with a streamer that is frozen, often for about a lease."""
    rng = Random(f"freeze of {story.seed}")  # its own, as for rare settings
    if rng.random() >= _FREEZE_SHARE:
        return story
    fault_at_ms = next((step.at_ms for step in story.steps if step.kind in FAULTS), 1_000)
    at_ms = max(0, fault_at_ms + rng.randrange(-9_000, 3_000))
    ms = rng.randrange(*rng.choice(((50, 7_500), (7_500, 10_500), (7_500, 10_500), (10_500, 14_000))))
    steps = *story.steps, Step(at_ms, "freeze streamer", (ms,)), _draw_publish(rng, at_ms)
    return story._replace(steps=tuple(sorted(steps)))


def _with_backend(story: Story) -> Story:
    """The story, in some seeds with a second application outside, and with subscriptions that end and return.

    More than half of these have receipts.
    """
    rng = Random(f"second receiver of {story.seed}")  # its own, as for rare settings
    if rng.random() >= _BACKEND_SHARE:
        return story
    steps = story.steps
    fault_at_ms = next((step.at_ms for step in steps if step.kind in FAULTS), 1_000)
    for _ in range(rng.choice((1, 2, 3))):
        every_us, size = rng.choice((200, 2_000, 20_000)), rng.choice((8, 100, 1_000))
        at_ms = max(0, fault_at_ms + rng.randrange(-1_500, 500))
        steps = *steps, Step(at_ms, "publish", ("shared", rng.choice((60, 250)), every_us, size, 0))
    for _ in range(rng.choice((0, 1, 2, 3))):
        at_ms = max(0, fault_at_ms + rng.randrange(-1_500, 4_000))
        away_ms = rng.choice((rng.randrange(1, 60), rng.randrange(60, 4_000), rng.randrange(4_000, 18_000)))
        who = rng.choice(("first", "backend", "both"))
        steps = (
            *steps,
            Step(at_ms, "unsubscribe", (who, rng.choice((1, 4, 12)), rng.getrandbits(16), away_ms)),
        )
    if rng.random() < 0.4:
        at_ms = max(0, fault_at_ms + rng.randrange(-1_500, 1_500))
        steps = *steps, Step(at_ms, "stall backend", (rng.randrange(500, 9_000),))
    config = story.config._replace(receipts=story.config.receipts or rng.random() < 0.6)
    return story._replace(config=config, steps=tuple(sorted(steps)), has_backend=True)


def _with_rare_settings(story: Story) -> Story:
    """The story, in some seeds with receipts or with fewer publishers than routes."""
    rng = Random(f"rare settings of {story.seed}")  # its own: the other decisions of a seed stay as they were
    config, steps = story.config, story.steps
    if rng.random() < 0.15:
        config = config._replace(receipts=True)
    if rng.random() < 0.15:
        config = config._replace(max_publishers=16)
        fault_at_ms = next((step.at_ms for step in steps if step.kind in FAULTS), 1_000)
        for _ in range(rng.choice((1, 2))):
            at_ms = max(0, fault_at_ms + rng.randrange(-1_500, 500))
            every_us, size = rng.choice((200, 2_000, 20_000)), rng.choice((8, 100, 1_000))
            steps = *steps, Step(at_ms, "publish", ("notices", rng.choice((60, 250)), every_us, size, 0))
    return story._replace(config=config, steps=tuple(sorted(steps)))


def _draw_story(seed: int) -> Story:
    """The decisions of a seed without rare settings."""
    rng = Random(seed)
    steps = _draw_steps(rng)
    has_sessions = rng.random() < 0.1
    if has_sessions:
        for _ in range(rng.randrange(1, 4)):
            steps.append(Step(rng.randrange(2_000), "sessions", (rng.randrange(1, 8),)))
            steps.append(Step(rng.randrange(10_000), "leave", (rng.randrange(1, 8),)))
    return Story(
        seed,
        tuple(sorted(steps)),
        HostConfig(
            durable=rng.random() < 0.35,
            retransmit_bytes=rng.choice((16_000_000, 16_000_000, 130_000, 20_000)),
            queue_messages=rng.choice((10_000, 10_000, 200)),
            wamp=has_sessions,
            read_ledger_ms=rng.choice((0, 0, 0, 0, 0, 0, 21)),
        ),
        rng.choice((DEFAULT_SIZES, DEFAULT_SIZES, LinkSizes(16_000, 64_000, 32_000), SMALL_SIZES)),
        commit_ms=rng.choice((1, 8, 40)),
        interrupt_every=rng.choice((0, 7, 50)),
        put_wait_ms=put_wait_ms(seed),
    )


def put_wait_ms(seed: int) -> int:
    """As long as without a file, or longer. From a generator of its own: other draws stay as they are."""
    return Random(f"put waits of {seed}").choice((5_000, 15_000))


# --- a run ------------------------------------------------------------------------------------------------------------


class _ZenohActor(Actor):
    """The actor of a story with Zenoh networks."""

    def __init__(self, story: Story, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.networks = {
            name: SimNetwork(scheduler, name, story.sizes, story.put_wait_ms * NS_PER_MS)
            for name in (INSIDE, OUTSIDE)
        }
        self.disk = SimDisk(scheduler, story.commit_ms)
        self.host = SimHost(scheduler, self.networks, self.disk, story.config)
        self.world = World(
            scheduler,
            self.networks,
            receipts=story.config.receipts,
            gives_receipts=story.config.gives_receipts,
            has_backend=story.has_backend,
        )
        self._story = story

    def plan(self, step: Step) -> None:
        """Enter the actions of a step."""
        at_ms, args = step.at_ms, step.args
        match step.kind:
            case "publish" | "subscribe" | "sessions" | "leave" | "unsubscribe" | "reload":
                self._at(at_ms, lambda: self._act_once(step.kind, args))
                if step.kind == "unsubscribe":
                    self._at(at_ms + args[-1], lambda: None)  # the story does not end before
            case "freeze":
                network = self.networks[args[0]]
                self._between(step, network.freeze, network.thaw)
            case "router":
                network = self.networks[args[0]]
                self._between(step, network.kill_router, network.start_router)
            case "cut":
                network = self.networks[args[0]]
                self._between(step, network.cut, network.join_cable)
            case "stall":
                network, app = self.networks[OUTSIDE], self.world.apps[OUTSIDE]
                self._between(step, lambda: network.stall(app), lambda: network.unstall(app))
            case "stall backend":
                network, backend = self.networks[OUTSIDE], self.world.backend
                assert backend is not None
                self._between(step, lambda: network.stall(backend), lambda: network.unstall(backend))
            case "freeze streamer":
                self._between(step, lambda: self.host.freeze(args[0] * NS_PER_MS), lambda: None)
            case "stop":
                self._between(step, self.host.stop, self._start)
            case "kill":
                self._between(step, self.host.kill, self._start)
            case "power":
                self._between(step, self.host.cut_power, self._start)
            case "disk":
                self._between(
                    step, lambda: self.disk.set_refusal(args[0]), lambda: self.disk.set_refusal(None)
                )
            case "slow disk":
                normal_ms = self._story.commit_ms
                self._between(
                    step, lambda: self.disk.set_commit_ms(args[0]), lambda: self.disk.set_commit_ms(normal_ms)
                )
            case "clock":
                self._between(
                    step, lambda: self.host.step_clock(args[0]), lambda: self.host.step_clock(-args[0])
                )

    def _act_once(self, kind: str, args: tuple[Any, ...]) -> None:
        """Do a step whose end, if any, the world plans."""
        match kind:
            case "publish":
                self._send(*args)
            case "subscribe":
                self.world.subscribe(LATE_TOPICS[args[0]], *args[1:])
            case "reload":
                self.host.reload()
            case "unsubscribe":
                self.world.unsubscribe(*args)
            case _:
                self._change_sessions(kind, *args)

    def _between(self, step: Step, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._at(step.at_ms, begin)
        self._at(step.at_ms + step.args[-1], end)

    def send_one(self, flow: str, left: int, size: int, ttl_ms: int) -> None:
        """As `Actor.send_one`; a group of flows takes turns."""
        flows = {"notices": NOTICES, "shared": SHARED}.get(flow, (flow,))
        self.world.send(flows[left % len(flows)], size, ttl_ms)

    def _change_sessions(self, kind: str, count: int) -> None:
        for server in self.host.wamp_servers[-1:] if self.host.is_up else ():
            if kind == "leave":
                server.disconnect(count)
            else:
                server.connect(count, TOPICS)

    def start_host(self) -> None:
        """As `Actor.start_host`; a streamer does not start on a disk that refuses."""
        self.disk.set_refusal(None)
        super().start_host()

    def release(self) -> None:
        """Empty all objects of the run. The product has structs without `gc`, which would keep them forever."""
        self.host.release()
        for network in self.networks.values():
            network.release()
        for each in (self.scheduler, self.disk, self.host, self.world):
            vars(each).clear()

    def act(self) -> None:
        """Do all actions, end all faults, wait, and stop."""
        self.host.start()
        for topic in TOPICS:
            self.world.subscribe(topic)
        self._wait(lambda: len(self.world.subscribed_at_ns) == len(TOPICS), 10)
        self._do_all()
        self._wait(self._has_settled, _SETTLE_S)
        # A stop keeps or reports what was sent just before a link was lost.
        self.scheduler.sleep(_CONFIRMED_NS)
        self._stop()
        if self.host.config.durable:
            self._restart_once()

    def _restart_once(self) -> None:
        """Start and stop once more: the disk must hold nothing that has arrived."""
        self.host.final_start_ns = self.scheduler.now_ns
        self.host.start()
        self.scheduler.sleep(2 * NS_PER_S)
        self.host.stop()
        self.host.wait_stopped(STOP_LIMIT_S)

    def _has_settled(self) -> bool:
        """Whether all messages have arrived, or nothing has moved for a while."""
        moved = (
            len(self.world.received),
            len(self.world.received_by_backend),
            self._unsent,
            *(len(each.put_ns) for each in self.networks.values()),
        )
        is_still = self._is_still(moved, _STILL_NS)
        return is_still or self._has_arrived()

    def _has_arrived(self) -> bool:
        taken = (id for network in self.networks.values() for id in network.taken if id in self.world.sent)
        is_sent = not self._unsent and not self.world.unreceipted
        return is_sent and all(self.world.has_arrived(id) for id in taken)


_NO_FAULTS: Final = frozenset({"publish", "subscribe", "sessions", "leave"})


def faults_of(story: Story) -> frozenset[str]:
    """The kinds of faults in a story; those of a network with its name. A short freeze of the streamer ends no link."""
    steps = (
        step
        for step in story.steps
        if step.kind not in _NO_FAULTS
        and (step.kind != "freeze streamer" or step.args[0] * NS_PER_MS > LEASE_NS // 2)
    )
    return frozenset(
        f"{step.kind} {step.args[0]}" if step.kind in ("freeze", "router", "cut") else step.kind
        for step in steps
    )


def run(story: Story) -> Result:
    """Run a story."""
    scheduler = Scheduler(story.seed, story.interrupt_every)
    actor = _ZenohActor(story, scheduler)
    for step in story.steps:
        actor.plan(step)
    violations: list[Violation] = []
    with simulated(actor.host):
        try:
            actor.act()
        except SimulationStuck as error:
            violations.append(Violation("stuck", str(error)))
        oracle = Oracle(actor.world, actor.host, faults_of(story))
        violations += oracle.judge()
    notes = {text: count for network in actor.networks.values() for text, count in network.notes.items()}
    world = actor.world
    history = scheduler.now_ns, scheduler.switches, tuple(map(tuple, world.received.values()))
    counts = scheduler.switches, len(world.sent), len(world.received)
    actor.release()
    return Result(violations, notes, *counts, hash(history))


def shrink(
    story: Story, kinds: Sequence[str], limit: int = 60, run_story: Callable[[Story], Result] = run
) -> Story:
    """The same story with fewer steps, in which a violation of one of `kinds` still occurs."""

    def fails(candidate: Story) -> bool:
        return any(each.kind in kinds for each in run_story(candidate).violations)

    tries = 0
    is_shorter = True
    while is_shorter and tries < limit:
        is_shorter = False
        for dropped in range(len(story.steps) - 1, -1, -1):
            steps = story.steps[:dropped] + story.steps[dropped + 1 :]
            tries += 1
            if fails(story._replace(steps=steps)):
                story, is_shorter = story._replace(steps=steps), True
    return story
