# SPDX-License-Identifier: Apache-2.0
"""Testbeds: rigs of a generator and a sink, with or without a forwarder between them.

All rigs run until the end; an idle rig blocks in its receiving calls.
"""

import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import msgspec

from benchmarks.harness.child_process import Child, ChildError, console_script, module_command
from benchmarks.harness.shared_counters import AGES_ENABLED, RECEIVED, SEND_ENABLED, SENT, SharedCounters
from benchmarks.traffic import sockets, wire

_START_S: Final = 30.0
_CONNECT_S: Final = 20.0

CONFIG: Final = f"""\
authority = "{wire.STREAMER}"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["{wire.STREAMER}"]
mode = "peer"
listen = ["tcp/{sockets.LOOPBACK}:{{zenoh}}"]

[endpoints.chassis]
transport = "someip"
authorities = ["{wire.ECU}"]
bind = "{sockets.LOOPBACK}"
port = {{someip}}
sd = false

[[endpoints.chassis.services]]
service = {wire.SERVICE:#06x}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
remote = "{sockets.LOOPBACK}:{{ecu}}"

[[endpoints.chassis.services]]
service = {wire.OFFERED:#06x}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
offered = true
provider = "up://{wire.STREAMER}/{wire.OFFERED:X}/{wire.MAJOR}/0"
remote = "{sockets.LOOPBACK}:{{receiver}}"

[plugins.usubscription]
[plugins.throttle]
"""
"""A streamer with the default plugins, one sending ECU and one receiving address."""


CLOUD_ENDPOINT: Final = f"""
[endpoints.cloud]
transport = "zenoh"
authorities = ["{wire.CLOUD}"]
mode = "peer"
listen = ["tcp/{sockets.LOOPBACK}:{{other}}"]
"""
"""A second Zenoh network."""

ZENOH_CONFIG: Final = f"""\
authority = "{wire.STREAMER}"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["{wire.STREAMER}"]
mode = "peer"
listen = ["tcp/{sockets.LOOPBACK}:{{zenoh}}"]


[plugins.usubscription]
[plugins.throttle]
"""
"""A streamer between two Zenoh networks; subscribers are in the second."""


class Direction(StrEnum):
    SOMEIP_TO_ZENOH = "SOME/IP -> Zenoh"
    ZENOH_TO_SOMEIP = "Zenoh -> SOME/IP"
    SOMEIP = "SOME/IP -> SOME/IP"
    UDP = "UDP -> UDP"
    ZENOH_TO_ZENOH = "Zenoh -> other Zenoh"
    ZENOH = "Zenoh -> Zenoh"


class Subject(StrEnum):
    BARE = "bare"
    STREAMER = "streamer"
    RECORDED = "recorder on"
    DIRECT = "direct"
    SOMEIP_LIBRARY = "library"
    REFERENCE = "reference"


class Rig(msgspec.Struct, frozen=True):
    """A generator, a sink, their shared counters, and the forwarder between them (None: direct).

    `progress` is the counter of messages at saturation: RECEIVED or, where a forwarder drops messages on purpose,
    NEWEST_PLUS_1. `expected` counts the sent messages that RECEIVED shall reach.
    """

    direction: Direction
    subject: Subject
    generator: Child
    sink: Child
    counters: SharedCounters
    forwarder: Child | None = None
    progress: int = RECEIVED
    expected: int = SENT


class Ports(msgspec.Struct, frozen=True):
    """Ports of one forwarder: its own two, and those of the sending ECU and the receiver."""

    zenoh: int
    someip: int
    ecu: int
    receiver: int

    @classmethod
    def free(cls) -> "Ports":
        """Four free ports."""
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_DGRAM, socket.SOCK_DGRAM)
        return cls(*free_ports(kinds))


_returned_ports: Final[set[int]] = set()


def free_ports(kinds: Sequence[socket.SocketKind]) -> list[int]:
    """A free port for each socket type. No port is returned twice, as one forwarder has ports of several calls."""
    with ExitStack() as held:  # the kernel gives no port twice while it is held
        return [_new_port(kind, held) for kind in kinds]


def _new_port(kind: socket.SocketKind, held: ExitStack) -> int:
    while True:
        opened = held.enter_context(socket.socket(socket.AF_INET, kind))
        opened.bind((sockets.LOOPBACK, 0))
        port: int = opened.getsockname()[1]
        if port not in _returned_ports:
            _returned_ports.add(port)
            return port


class BenchRig:
    """Starts processes in a temporary directory and ends all of them: `with BenchRig(directory, payload) as rig`."""

    def __init__(self, directory: Path, payload: int) -> None:
        self._directory = directory
        self._payload = payload
        self._children: list[Child] = []
        self._streamers: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(
            self._children
        ):  # traffic.generators and traffic.sinks first: no message is in transit when a streamer ends
            child.stop()

    def ledger(self) -> dict[str, int]:
        """Sum of the ledgers of all streamers of this testbed, including `unaccounted`; available after the testbed
        has ended.

        Raises ChildError if a streamer did not end regularly.
        """
        return _sum_ledgers([self._ledger_of(each) for each in self._streamers])

    def _ledger_of(self, streamer: Child) -> dict[str, int]:
        if (code := streamer.stop()) != 0:
            raise ChildError(f"{streamer.name}: ended with {code}, expected 0{streamer.log_tail()}")
        return ledger_from_log(streamer.log_lines())

    def start_process(self, name: str, command: list[str], within_s: float = _START_S) -> Child:
        """Start a process and wait for READY."""
        child = Child(name, command, self._directory)
        self._children.append(child)
        child.wait_line("READY", within_s)
        return child

    # --- forwarders ---------------------------------------------------------------------------------------------------

    def streamer_rigs(self, subject: Subject = Subject.STREAMER) -> tuple[Rig, Rig]:
        """Both directions through one streamer process, with the default plugins and, for that subject, the recorder."""
        ports = Ports.free()
        plugins = "[plugins.recorder]\n" if subject is Subject.RECORDED else ""
        streamer = self.start_streamer(subject.name.lower(), CONFIG + plugins, ports)
        return (
            self._someip_to_zenoh(subject, ports, lambda: streamer, "subscribe"),
            self._zenoh_to_someip(subject, ports, lambda: streamer),
        )

    def zenoh_to_zenoh(self, subject: Subject) -> Rig:
        """From one Zenoh network to another, through a streamer or a bare forwarder."""
        ports, other = Ports.free(), Ports.free()
        if subject is Subject.BARE:
            command = module_command("traffic.bare_forwarders", "zenoh-to-zenoh", ports.zenoh, other.zenoh)
            forwarder = self.start_process("bare-zenoh-to-zenoh", command)
        else:
            config = ZENOH_CONFIG + CLOUD_ENDPOINT.replace("{other}", str(other.zenoh))
            forwarder = self.start_streamer("between-zenohs", config, ports)
        counters = self._open_counters(f"{subject.name.lower()}-zenoh-to-zenoh")
        options = ("other",) if subject is Subject.BARE else ("other", "subscribe")
        sink = self._sink(counters, "zenoh-client", other.zenoh, *options)
        generator = self._generator(counters, "zenoh", ports.zenoh)
        return wait_connected(Rig(Direction.ZENOH_TO_ZENOH, subject, generator, sink, counters, forwarder))

    def with_second_zenoh(self, ports: Ports, cloud: int) -> Rig:
        """From SOME/IP to a subscribed application, through a streamer that also has another Zenoh endpoint."""
        streamer = self.start_streamer(
            "three-ways", CONFIG + CLOUD_ENDPOINT.replace("{other}", str(cloud)), ports
        )
        return self._someip_to_zenoh(Subject.STREAMER, ports, lambda: streamer, "subscribe")

    def fan_out_rig(self, config: str, ports: Ports) -> Rig:
        """From Zenoh to receivers at any loopback address, which share one sink."""
        counters = self._open_counters("fan-out")
        sink = self._sink(counters, "udp-anywhere", ports.receiver)
        streamer = self.start_streamer("fan-out", config, ports)
        generator = self._generator(counters, "zenoh", ports.zenoh)
        return wait_connected(
            Rig(Direction.ZENOH_TO_SOMEIP, Subject.STREAMER, generator, sink, counters, streamer)
        )

    def start_streamer(self, name: str, config: str, ports: Ports) -> Child:
        """A streamer with this configuration; names of ports are in braces."""
        directory = self._directory / name
        directory.mkdir()
        path = directory / "streamer.toml"
        path.write_text(config.format(**msgspec.structs.asdict(ports)), encoding="utf-8")
        streamer = self.start_process(name, self.streamer_command(path))
        self._streamers.append(streamer)
        return streamer

    def streamer_command(self, path: Path) -> list[str]:
        """Command that runs a streamer with the configuration at `path`."""
        return [console_script("ustreamer"), "run", str(path), "--log-format", "json"]

    def bare_rigs(self) -> tuple[Rig, Rig]:
        """Each direction through its own bare forwarder."""
        one, other = Ports.free(), Ports.free()
        events = module_command("traffic.bare_forwarders", "udp-to-zenoh", one.zenoh, one.someip)
        publications = module_command(
            "traffic.bare_forwarders", "zenoh-to-udp", other.zenoh, other.someip, other.receiver
        )
        return (
            self._someip_to_zenoh(Subject.BARE, one, lambda: self.start_process("bare-udp-to-zenoh", events)),
            self._zenoh_to_someip(
                Subject.BARE, other, lambda: self.start_process("bare-zenoh-to-udp", publications)
            ),
        )

    def direct_rigs(self) -> tuple[Rig, Rig]:
        """Generator and sink of each protocol without a forwarder: their own limits."""
        one, other = Ports.free(), Ports.free()
        udp, zenoh = self._open_counters("direct-udp"), self._open_counters("direct-zenoh")
        udp_sink = self._sink(udp, "udp", one.receiver)
        udp_generator = self._generator(udp, "udp", one.ecu, one.receiver)
        zenoh_sink = self._sink(zenoh, "zenoh-peer", other.zenoh)
        zenoh_generator = self._generator(zenoh, "zenoh", other.zenoh)
        return (
            wait_connected(Rig(Direction.UDP, Subject.DIRECT, udp_generator, udp_sink, udp)),
            wait_connected(Rig(Direction.ZENOH, Subject.DIRECT, zenoh_generator, zenoh_sink, zenoh)),
        )

    def _someip_to_zenoh(
        self, subject: Subject, ports: Ports, forwarder: Callable[[], Child], *options: str
    ) -> Rig:
        counters = self._open_counters(f"{subject.name.lower()}-someip-to-zenoh")
        started = forwarder()
        sink = self._sink(counters, "zenoh-client", ports.zenoh, *options)
        generator = self._generator(counters, "udp", ports.ecu, ports.someip)
        return wait_connected(Rig(Direction.SOMEIP_TO_ZENOH, subject, generator, sink, counters, started))

    def _zenoh_to_someip(self, subject: Subject, ports: Ports, forwarder: Callable[[], Child]) -> Rig:
        counters = self._open_counters(f"{subject.name.lower()}-zenoh-to-someip")
        sink = self._sink(counters, "udp", ports.receiver)
        started = forwarder()
        generator = self._generator(counters, "zenoh", ports.zenoh)
        return wait_connected(Rig(Direction.ZENOH_TO_SOMEIP, subject, generator, sink, counters, started))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _open_counters(self, name: str) -> SharedCounters:
        return SharedCounters(self._directory / f"{name}.counters")

    def _generator(self, counters: SharedCounters, kind: str, *ports: int) -> Child:
        command = module_command("traffic.generators", kind, counters.path, self._payload, *ports)
        return self.start_process(f"{counters.path.stem}-generator", command)

    def _sink(self, counters: SharedCounters, kind: str, port: int, *options: str) -> Child:
        return self.start_process(
            f"{counters.path.stem}-sink", module_command("traffic.sinks", kind, counters.path, port, *options)
        )


def ledger_from_log(log: Sequence[str]) -> dict[str, int]:
    """The ledger from the streamer's last log record, and its unaccounted part. ChildError if there is none."""
    for line in reversed(log):
        record = json.loads(line)
        if record["event"] == "streamer.stopped":
            ledger: dict[str, int] = record["ledger"]
            return {**ledger, "unaccounted": 2 * ledger["received"] - sum(ledger.values())}
    raise ChildError(f"no ledger in {len(log)} lines of the streamer's log")


def _sum_ledgers(ledgers: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(each[name] for each in ledgers) for name in (ledgers[0] if ledgers else ())}


def wait_connected(rig: Rig) -> Rig:
    """Wait until the first message arrives. Raises ChildError if none does."""
    rig.counters[SEND_ENABLED], rig.counters[AGES_ENABLED] = 0, 1
    deadline = time.monotonic() + _CONNECT_S
    while not rig.counters[RECEIVED]:
        if time.monotonic() > deadline:
            forwarder_log = rig.forwarder.log_tail() if rig.forwarder else ""
            raise ChildError(
                f"{rig.direction}, {rig.subject}: none of {rig.counters[SENT]} messages arrived within "
                f"{_CONNECT_S:g} s{rig.generator.log_tail()}{rig.sink.log_tail()}{forwarder_log}"
            )
        rig.generator.send_command("ping")
        rig.generator.wait_line("DONE", _START_S)
        time.sleep(0.05)
    return rig
