# SPDX-License-Identifier: Apache-2.0
"""What is measured: rigs of a generator and a sink, with a forwarder between them or without.

All rigs stay up for the whole run; one that is not being measured waits in its receiving calls.
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

from benchmarks import links, wire
from benchmarks.board import FLOW, RECEIVED, SENT, TIMED, Board
from benchmarks.children import Child, ChildError, console_script, module

_START_S: Final = 30.0
_CONNECT_S: Final = 20.0

CONFIG: Final = f"""\
authority = "{wire.STREAMER}"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["{wire.STREAMER}"]
mode = "peer"
listen = ["tcp/{links.LOOPBACK}:{{zenoh}}"]

[endpoints.chassis]
transport = "someip"
authorities = ["{wire.ECU}"]
bind = "{links.LOOPBACK}"
port = {{someip}}
sd = false

[[endpoints.chassis.services]]
service = {wire.SERVICE:#06x}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
remote = "{links.LOOPBACK}:{{ecu}}"

[[endpoints.chassis.services]]
service = {wire.OFFERED:#06x}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
offered = true
provider = "up://{wire.STREAMER}/{wire.OFFERED:X}/{wire.MAJOR}/0"
remote = "{links.LOOPBACK}:{{receiver}}"

[plugins.usubscription]
[plugins.throttle]
"""
"""A streamer with its default plugins, one ECU that sends and one address that receives."""


CLOUD: Final = f"""
[endpoints.cloud]
transport = "zenoh"
authorities = ["{wire.CLOUD}"]
mode = "peer"
listen = ["tcp/{links.LOOPBACK}:{{other}}"]
"""
"""A second Zenoh network."""

ZENOH_CONFIG: Final = f"""\
authority = "{wire.STREAMER}"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["{wire.STREAMER}"]
mode = "peer"
listen = ["tcp/{links.LOOPBACK}:{{zenoh}}"]


[plugins.usubscription]
[plugins.throttle]
"""
"""A streamer between two Zenoh networks; subscribers live in the second."""


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
    LIBRARY = "library"


class Rig(msgspec.Struct, frozen=True):
    """A generator, a sink, the board they share, and the forwarder between them (None: they speak to each other)."""

    direction: Direction
    subject: Subject
    generator: Child
    sink: Child
    board: Board
    forwarder: Child | None = None


class Ports(msgspec.Struct, frozen=True):
    """Ports of one forwarder: its own two, and those of the ECU that sends and of the one that receives."""

    zenoh: int
    someip: int
    ecu: int
    receiver: int

    @classmethod
    def free(cls) -> "Ports":
        """Four that nobody uses now; all are held until all are found, so that no two are the same."""
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_DGRAM, socket.SOCK_DGRAM)
        with ExitStack() as held:
            sockets = [held.enter_context(socket.socket(socket.AF_INET, kind)) for kind in kinds]
            for each in sockets:
                each.bind((links.LOOPBACK, 0))
            return cls(*(each.getsockname()[1] for each in sockets))


class Stage:
    """Starts processes in a temporary directory and ends all of them: `with Stage(directory, payload) as stage`."""

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
        ):  # generators and sinks first: nothing is under way when a streamer ends
            child.end()

    def ledger(self) -> dict[str, int]:
        """The books of the streamers that this stage had, added up, `unaccounted` among them; after the stage has ended.

        Raises ChildError if one did not end as it should.
        """
        return _added([self._ledger_of(each) for each in self._streamers])

    def _ledger_of(self, streamer: Child) -> dict[str, int]:
        if (code := streamer.end()) != 0:
            raise ChildError(f"{streamer.name}: ended with {code}, expected 0{streamer.log_tail()}")
        return ledger_in(streamer.log_lines())

    def start(self, name: str, command: list[str]) -> Child:
        """A process that has said READY."""
        child = Child(name, command, self._directory)
        self._children.append(child)
        child.expect("READY", _START_S)
        return child

    # --- forwarders ---------------------------------------------------------------------------------------------------

    def streamer(self, subject: Subject = Subject.STREAMER) -> tuple[Rig, Rig]:
        """Both directions through one streamer process, with its default plugins and, if it is so called, the recorder."""
        ports = Ports.free()
        plugins = "[plugins.recorder]\n" if subject is Subject.RECORDED else ""
        streamer = self.streamer_of(subject.name.lower(), CONFIG + plugins, ports)
        return (
            self._someip_to_zenoh(subject, ports, lambda: streamer, "subscribe"),
            self._zenoh_to_someip(subject, ports, lambda: streamer),
        )

    def between_zenohs(self, subject: Subject) -> Rig:
        """From one Zenoh network to another, through a streamer or a bare forwarder."""
        ports, other = Ports.free(), Ports.free()
        if subject is Subject.BARE:
            command = module("bare", "zenoh-to-zenoh", ports.zenoh, other.zenoh)
            between = self.start("bare-zenoh-to-zenoh", command)
        else:
            config = ZENOH_CONFIG + CLOUD.replace("{other}", str(other.zenoh))
            between = self.streamer_of("between-zenohs", config, ports)
        board = self._board(f"{subject.name.lower()}-zenoh-to-zenoh")
        options = ("other",) if subject is Subject.BARE else ("other", "subscribe")
        sink = self._sink(board, "zenoh-client", other.zenoh, *options)
        generator = self._generator(board, "zenoh", ports.zenoh)
        return connected(Rig(Direction.ZENOH_TO_ZENOH, subject, generator, sink, board, between))

    def three_ways(self, ports: Ports, cloud: int) -> Rig:
        """From SOME/IP to an application that has subscribed, through a streamer that has another Zenoh endpoint too."""
        streamer = self.streamer_of("three-ways", CONFIG + CLOUD.replace("{other}", str(cloud)), ports)
        return self._someip_to_zenoh(Subject.STREAMER, ports, lambda: streamer, "subscribe")

    def fan_out(self, config: str, ports: Ports) -> Rig:
        """From Zenoh to receivers at any address of this machine, which share one sink."""
        board = self._board("fan-out")
        sink = self._sink(board, "udp-anywhere", ports.receiver)
        streamer = self.streamer_of("fan-out", config, ports)
        generator = self._generator(board, "zenoh", ports.zenoh)
        return connected(Rig(Direction.ZENOH_TO_SOMEIP, Subject.STREAMER, generator, sink, board, streamer))

    def streamer_of(self, name: str, config: str, ports: Ports) -> Child:
        """A streamer with this configuration, in which the names of ports stand in braces."""
        directory = self._directory / name
        directory.mkdir()
        path = directory / "streamer.toml"
        path.write_text(config.format(**msgspec.structs.asdict(ports)), encoding="utf-8")
        streamer = self.start(name, self.command(path))
        self._streamers.append(streamer)
        return streamer

    def command(self, path: Path) -> list[str]:
        """What runs a streamer with the configuration at `path`."""
        return [console_script("ustreamer"), "run", str(path), "--log", "json"]

    def bare(self) -> tuple[Rig, Rig]:
        """Each direction through a bare forwarder of its own."""
        one, other = Ports.free(), Ports.free()
        events = module("bare", "udp-to-zenoh", one.zenoh, one.someip)
        publications = module("bare", "zenoh-to-udp", other.zenoh, other.someip, other.receiver)
        return (
            self._someip_to_zenoh(Subject.BARE, one, lambda: self.start("bare-udp-to-zenoh", events)),
            self._zenoh_to_someip(Subject.BARE, other, lambda: self.start("bare-zenoh-to-udp", publications)),
        )

    def direct(self) -> tuple[Rig, Rig]:
        """The generator and the sink of each protocol with nothing in between: what they can do by themselves."""
        one, other = Ports.free(), Ports.free()
        udp, zenoh = self._board("direct-udp"), self._board("direct-zenoh")
        udp_sink = self._sink(udp, "udp", one.receiver)
        udp_generator = self._generator(udp, "udp", one.ecu, one.receiver)
        zenoh_sink = self._sink(zenoh, "zenoh-peer", other.zenoh)
        zenoh_generator = self._generator(zenoh, "zenoh", other.zenoh)
        return (
            connected(Rig(Direction.UDP, Subject.DIRECT, udp_generator, udp_sink, udp)),
            connected(Rig(Direction.ZENOH, Subject.DIRECT, zenoh_generator, zenoh_sink, zenoh)),
        )

    def _someip_to_zenoh(
        self, subject: Subject, ports: Ports, forwarder: Callable[[], Child], *options: str
    ) -> Rig:
        board = self._board(f"{subject.name.lower()}-someip-to-zenoh")
        between = forwarder()
        sink = self._sink(board, "zenoh-client", ports.zenoh, *options)
        generator = self._generator(board, "udp", ports.ecu, ports.someip)
        return connected(Rig(Direction.SOMEIP_TO_ZENOH, subject, generator, sink, board, between))

    def _zenoh_to_someip(self, subject: Subject, ports: Ports, forwarder: Callable[[], Child]) -> Rig:
        board = self._board(f"{subject.name.lower()}-zenoh-to-someip")
        sink = self._sink(board, "udp", ports.receiver)
        between = forwarder()
        generator = self._generator(board, "zenoh", ports.zenoh)
        return connected(Rig(Direction.ZENOH_TO_SOMEIP, subject, generator, sink, board, between))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _board(self, name: str) -> Board:
        return Board(self._directory / f"{name}.board")

    def _generator(self, board: Board, kind: str, *ports: int) -> Child:
        command = module("generators", kind, board.path, self._payload, *ports)
        return self.start(f"{board.path.stem}-generator", command)

    def _sink(self, board: Board, kind: str, port: int, *options: str) -> Child:
        return self.start(f"{board.path.stem}-sink", module("sinks", kind, board.path, port, *options))


def ledger_in(log: Sequence[str]) -> dict[str, int]:
    """The ledger that a streamer's last word gives, and what it leaves unaccounted. ChildError if it has none."""
    for line in reversed(log):
        said = json.loads(line)
        if said["event"] == "stopped":
            ledger: dict[str, int] = said["ledger"]
            return {**ledger, "unaccounted": 2 * ledger["received"] - sum(ledger.values())}
    raise ChildError(f"no ledger in {len(log)} lines of the streamer's log")


def _added(ledgers: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(each[name] for each in ledgers) for name in (ledgers[0] if ledgers else ())}


def connected(rig: Rig) -> Rig:
    """Wait until the first message has come through. Raises ChildError if none does."""
    rig.board[FLOW], rig.board[TIMED] = 0, 1
    deadline = time.monotonic() + _CONNECT_S
    while not rig.board[RECEIVED]:
        if time.monotonic() > deadline:
            between = rig.forwarder.log_tail() if rig.forwarder else ""
            raise ChildError(
                f"{rig.direction}, {rig.subject}: none of {rig.board[SENT]} messages came through within "
                f"{_CONNECT_S:g} s{rig.generator.log_tail()}{rig.sink.log_tail()}{between}"
            )
        rig.generator.say("ping")
        rig.generator.expect("DONE", _START_S)
        time.sleep(0.05)
    return rig
