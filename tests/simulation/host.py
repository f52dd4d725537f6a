# SPDX-License-Identifier: Apache-2.0
"""The simulated machine: the real streamer, started, stopped and killed, with its log.

Real: `Streamer` with its dispatcher, egress queues, send threads, dead letters, durable queues, the uSubscription
plugin, and the Zenoh transport above the session. Simulated: threads, clocks, Zenoh sessions, TCP, stores.
"""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import msgspec
import zenoh
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.plugin import UsubscriptionPlugin
from ustreamer_wamp.plugin import WampPlugin, WampSection

from tests.simulation import primitives
from tests.simulation.disk import SimDisk, SimOs
from tests.simulation.scheduler import NS_PER_MS, Process, Scheduler, Task
from tests.simulation.someip.ip_files import SimKernel
from tests.simulation.someip.ip_kernel import SimModules
from tests.simulation.someip.ip_network import SimIpNetwork
from tests.simulation.someip.network import CHASSIS, STREAMER_IP, SomeipConfig, someip_endpoint
from tests.simulation.wamp import ROUTER, SimWampServer
from tests.simulation.zenoh_link import wait_link_end
from tests.simulation.zenoh_network import SimNetwork
from tests.simulation.zenoh_session import SimFifoChannel, SimSession, network_of
from ustreamer.core.base.clock import Clock
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.host.config.config import StreamerConfig
from ustreamer.host.egress import durable_queue  # noqa: F401 - product modules are patched only if they are loaded
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.host.storage import received_ids  # noqa: F401
from ustreamer.host.storage.dead_letter_store import DIRECTORY
from ustreamer.transport_port import EndpointConfig
from ustreamer.transports.zenoh import transport  # noqa: F401
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.receipts import awaited_receipts, receipt_giver  # noqa: F401

STATE_DIR: Final = Path("/simulated/state")
PLUGINS: Final[Mapping[str, type]] = {"usubscription": UsubscriptionPlugin, "wamp": WampPlugin}
DRAIN_S: Final = 5.0
INSIDE, OUTSIDE = "inside", "outside"
AUTHORITIES: Final = {INSIDE: ("hpc",), OUTSIDE: ("cloud",)}
_KINDS: Final = plugins.transport_kinds(plugins.class_plugin_manager(PLUGINS))


class HostConfig(NamedTuple):
    """The configuration of the streamer that the seed decides."""

    durable: bool = False
    retransmit_bytes: int = 16_000_000
    queue_messages: int = 10_000
    max_age_ms: int = 30_000
    wamp: bool = False
    read_ledger_ms: int = 0
    """The time between two readings of the live ledger; 0 reads none."""
    max_publishers: int = 16_384
    receipts: bool = False
    """Whether the endpoint outside has receipts, and the application there gives them."""
    gives_receipts: bool = False
    """With `receipts`: the streamer gives them, too. The application expects them, and the endpoint inside is durable."""
    someip: SomeipConfig | None = None
    """The endpoint of a SOME/IP network; None is none."""

    def streamer_config(self) -> StreamerConfig:
        limits = EgressLimits(queue_messages=self.queue_messages, max_age_ms=self.max_age_ms)
        endpoints: dict[str, EndpointConfig] = {
            name: ZenohEndpoint(
                transport="zenoh",
                authorities=authorities,
                connect=(f"tcp/{name}:7447",),
                retransmit_bytes=self.retransmit_bytes,
                peers=False,
                max_publishers=self.max_publishers,
                durable=self.durable and (name == OUTSIDE or self.gives_receipts),
                receipts=self.receipts and name == OUTSIDE,
            )
            for name, authorities in AUTHORITIES.items()
        }
        if self.someip is not None:
            endpoints[CHASSIS] = someip_endpoint(self.someip)
        sections: dict[str, msgspec.Struct] = {"usubscription": UsubscriptionConfig(history=0)}
        if self.wamp:
            section = WampSection(listen="ws://127.0.0.1:1/ws", anonymous=True, process=False)
            endpoints.update(section.endpoints("hpc"))
            sections["wamp"] = section
        return StreamerConfig(
            base=STATE_DIR,
            authority="hpc",
            state_dir=STATE_DIR,
            endpoints=endpoints,
            egress=dict.fromkeys(("default", *endpoints), limits),
            plugins=sections,
        )


class LogEntry(NamedTuple):
    """A record of the streamer's log."""

    at_ns: int
    process: str
    level: int
    event: str
    extra: Mapping[str, Any]
    error: str | None


class Run(NamedTuple):
    """One process of the streamer."""

    process: Process
    main: Task
    commands: primitives.SimQueue
    stopped: list[int]
    """The result of the orderly stop."""
    failures: list[str]


class SimHost:
    """The machine of the streamer. `start`, `stop` and `kill` are calls of the story."""

    def __init__(
        self,
        scheduler: Scheduler,
        networks: Mapping[str, SimNetwork],
        disk: SimDisk,
        config: HostConfig,
        ip_network: SimIpNetwork | None = None,
    ) -> None:
        """`ip_network` is the network of `config.someip`."""
        self.scheduler = scheduler
        self.networks = networks
        self.disk = disk
        self.config = config
        self._streamers: list[Streamer] = []
        self.runs: list[Run] = []
        self.killed_at_ns: dict[Process, int] = {}
        self.log: list[LogEntry] = []
        self.wamp_servers: list[SimWampServer] = []
        self.unaccounted_readings: list[tuple[int, int]] = []
        """The readings of the live ledger that are not balanced: time and number."""
        self.letters_before_stop = 0
        """The number of dead letters before the last stop, with working links and nothing to wait for."""
        self.final_start_ns: int | None = None
        """The time of a start after which nothing may be left to send."""
        self.clock_offset_ms = self.clock_stepped_ns = 0
        self.has_started_ahead = False
        """True if a process started while the wall clock was ahead: it judged dates by that clock."""
        self.is_stopping = False
        self._boot = 1
        self._booted_ns = 0
        self.kernel: SimKernel | None = None
        """The sockets of the machine, with `ip_network`."""
        if ip_network is not None:
            self.kernel = SimKernel(scheduler, ip_network.add_host(STREAMER_IP), self._wall_ns)

    @property
    def is_up(self) -> bool:
        return bool(self.runs) and not self.runs[-1].process.killed and self.runs[-1].main.alive

    @property
    def letter_count(self) -> int:
        """The number of stored dead letters."""
        return max(0, len(self.disk.stores.get(str(STATE_DIR / DIRECTORY), ())) - 1)

    def _clock(self) -> Clock:
        booted_ns, scheduler = self._booted_ns, self.scheduler
        return Clock(
            lambda: scheduler.monotonic_ns() - booted_ns, lambda: scheduler.wall_ms() + self.clock_offset_ms
        )

    def _wall_ns(self, at_ns: int) -> int:
        """The wall clock of the machine at a time of the scheduler."""
        return at_ns + (self.scheduler.wall_offset_ms + self.clock_offset_ms) * NS_PER_MS

    def start(self) -> None:
        """Start the process; returns when the streamer is ready, or failed."""
        self.is_stopping = False
        if self.kernel is not None:
            self.kernel.host.is_on = True
        self.has_started_ahead |= self.clock_offset_ms > 0
        process = Process(f"streamer {len(self.runs) + 1}")
        commands = primitives.SimQueue()
        ready = primitives.SimEvent()
        stopped: list[int] = []
        failures: list[str] = []

        def main() -> None:
            try:
                config = self.config.streamer_config()
                streamer = Streamer(config, _KINDS, PLUGINS, self._clock())
                self._streamers.append(streamer)
                streamer.start()
                ready.set()
                if self.config.read_ledger_ms:
                    primitives.SimThread(target=lambda: self._read_ledger(streamer), name="readings").start()
                while (command := commands.get()) is not None:
                    command(streamer)
                stopped.append(streamer.stop(DRAIN_S))
            except Exception as error:  # noqa: BLE001
                failures.append(f"{process.name}: {type(error).__name__}: {error}")
            finally:
                if not process.killed:
                    ready.set()
                    self._end(process)

        task = self.scheduler.spawn(f"{process.name} main", main, process)
        self.runs.append(Run(process, task, commands, stopped, failures))
        ready.wait(60)

    def _read_ledger(self, streamer: Streamer) -> None:
        while not self.runs[-1].stopped:
            self.scheduler.sleep(self.config.read_ledger_ms * NS_PER_MS)
            unaccounted = streamer.ledger().unaccounted
            if unaccounted:
                self.unaccounted_readings.append((self.scheduler.now_ns, unaccounted))

    def stop(self) -> None:
        """SIGTERM: the streamer begins to stop."""
        if self.is_up:
            self.is_stopping = True
            self.runs[-1].commands.put(None)

    def wait_stopped(self, timeout_s: float) -> bool:
        return self.scheduler.join(self.runs[-1].main, round(timeout_s * 1e9))

    def reload(self) -> None:
        if self.is_up:
            self.runs[-1].commands.put(lambda streamer: streamer.reload(self.config.streamer_config()))

    def freeze(self, ns: int) -> None:
        """SIGSTOP, and SIGCONT after that time."""
        if self.is_up and self.runs[-1].process.frozen is None:
            process = self.runs[-1].process
            self.scheduler.freeze(process)
            sessions = [each for network in self.networks.values() for each in network.sessions]
            for each in sessions:
                each.on_frozen()
            self.scheduler.call_after(ns, lambda: self._thaw(process, sessions))

    def _thaw(self, process: Process, sessions: Sequence[SimSession]) -> None:
        if process.frozen is not None:
            self.scheduler.thaw(process)
            for each in sessions:
                each.on_thawed()

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_up:
            process = self.runs[-1].process
            self.killed_at_ns[process] = self.scheduler.now_ns
            self.scheduler.kill(process)
            self._end(process)

    def cut_power(self) -> None:
        """As a kill; the clock that counts from the boot begins again."""
        if self.kernel is not None:
            self.kernel.host.cut_power()
        self.kill()
        self.disk.cut_power()
        self._boot += 1
        self._booted_ns = self.scheduler.now_ns - 20_000 * NS_PER_MS

    def step_clock(self, ms: int) -> None:
        """Step the wall clock of the machine."""
        self.clock_offset_ms += ms
        self.clock_stepped_ns = self.scheduler.now_ns

    def release(self) -> None:
        """Cut the references between the routes of all streamers: structs without `gc` would keep them forever."""
        for streamer in self._streamers:
            for name in streamer.transports:
                vars(streamer.dispatcher.ingress(name)).clear()
            for each in streamer.transports.values():
                vars(each).clear()
            vars(streamer).clear()

    def open_session(self, config: zenoh.Config) -> SimSession:
        """Replaces `zenoh.open`."""
        return SimSession(self.networks[network_of(config)], self.scheduler.current.process)

    def new_wamp_server(self, *args: Any, **kwargs: Any) -> SimWampServer:
        """Replaces the class `WampServer`."""
        server = SimWampServer(self.scheduler, *args, **kwargs)
        self.wamp_servers.append(server)
        return server

    def boot_id(self) -> bytes:
        return b"%016d" % self._boot

    def _end(self, process: Process) -> None:
        for network in self.networks.values():
            network.forget(process)
        if self.kernel is not None:
            self.kernel.end_process(process)

    def on_record(self, record: logging.LogRecord) -> None:
        scheduler = self.scheduler
        if scheduler.current.process.killed:
            return
        error = record.exc_info[1] if record.exc_info else None
        text = None if error is None else f"{type(error).__name__}: {error}"
        fields = {name: value for name, value in vars(record).items() if name not in _LOG_FIELDS}
        entry = (scheduler.now_ns, scheduler.current.process.name, record.levelno, record.getMessage())
        self.log.append(LogEntry(*entry, fields, text))


_LOG_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message"}


class _Handler(logging.Handler):
    def __init__(self, host: SimHost) -> None:
        super().__init__()
        self.emit = host.on_record  # type: ignore[method-assign]


class _Zenoh:
    """The module `zenoh` as the transport sees it."""

    def __init__(self, host: SimHost) -> None:
        self.open = host.open_session

    def __getattr__(self, name: str) -> object:
        return getattr(zenoh, name)


@contextmanager
def simulated(host: SimHost) -> Iterator[None]:
    """Replace what the product gets from the machine, for the time of one run."""
    scheduler, networks = host.scheduler, host.networks

    def find_link(src: str, _: str) -> object:
        sessions = (each for network in networks.values() for each in network.sessions)
        return next((each.link for each in sessions if each.name == src and each.link is not None), None)

    seeded = SimpleNamespace(Random=lambda: Random(scheduler.rng.getrandbits(64)))
    entropy = SimpleNamespace(urandom=scheduler.rng.randbytes)
    zenoh_modules, storage = "ustreamer.transports.zenoh", "ustreamer.host.storage"
    others: dict[tuple[str, str], object] = {
        (f"{zenoh_modules}.transport", "zenoh"): _Zenoh(host),
        (f"{zenoh_modules}.transport", "atexit"): SimpleNamespace(
            register=lambda _: None, unregister=lambda _: None
        ),
        (f"{zenoh_modules}.link_monitor", "find_link"): find_link,
        (f"{zenoh_modules}.link_monitor", "wait_link_end"): wait_link_end,
        (f"{zenoh_modules}.subscriber", "FifoChannel"): SimFifoChannel,
        (f"{zenoh_modules}.route_publishers", "MAX_EXTRA"): 16,  # with a limit of 16: fewer than `NOTICES`
        (f"{storage}.spool", "LmdbStore"): host.disk.store,
        (f"{storage}.dead_letter_store", "LmdbStore"): host.disk.store,
        (ROUTER, "WampServer"): host.new_wamp_server,
        (ROUTER, "secrets"): SimpleNamespace(
            randbits=scheduler.rng.getrandbits, token_bytes=scheduler.rng.randbytes
        ),
        ("ustreamer_usubscription.store.store", "LmdbStore"): host.disk.store,
        ("ustreamer.uprotocol.uuid", "random"): seeded,
        ("ustreamer.host.runtime.streamer", "os"): entropy,
        ("ustreamer.host.egress.durable_queue", "_boot_id"): host.boot_id,
        (f"{storage}.received_ids", "os"): SimOs(host.disk),
    }
    if host.kernel is not None:
        others |= SimModules(host.kernel).replacements()
    log, handler = logging.getLogger("ustreamer"), _Handler(host)
    before = log.level, log.propagate
    random_state = random.getstate()
    random.seed(scheduler.rng.getrandbits(64))
    primitives.use(scheduler)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        with primitives.installed(others):
            yield
            for run in host.runs:
                if run.process.tasks:
                    scheduler.kill(run.process)
    finally:
        random.setstate(random_state)
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
