# SPDX-License-Identifier: Apache-2.0
"""A streamer with a SOME/IP network over TCP and a Zenoh network, and its peers: a receiver, and an ECU's service."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Final, NamedTuple, Self

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, Inbox, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.subscriber import Subscriber
from tests.e2e.rigs.wire import Uri

PROVIDER: Final = Uri("hpc.vin1", 0x8401, 1)
ECU: Final = Uri("chassis", 0x1234, 1)
SERVICE, OFFERED = 0x1234, 0x4001
HZ: Final = 500.0
PATIENCE_S: Final = 30.0

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "{state}"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{ports.backbone}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "{near}"
port = {ports.udp}
port_tcp = {ports.tcp}
request_ttl_ms = 10000
tcp = {{ {limits} }}

[[endpoints.chassis.services]]
service = 0x1234
major = 1
protocol = "tcp"
events = [{{ id = 0x8001 }}]
methods = [0x0001]
remote = "{far}:{ports.ecu}"

[[endpoints.chassis.services]]
service = 0x4001
major = 1
protocol = "tcp"
events = [{{ id = 0x8001 }}, {{ id = 0x8002, protocol = "udp" }}]
methods = [0x0001]
offered = true
provider = "//hpc.vin1/8401/1/0"
remote = "{far}:{ports.receiver}"

[egress.chassis]
queue_bytes = 64000000

[plugins.usubscription]
"""


class TcpPorts(NamedTuple):
    backbone: int
    tcp: int
    ecu: int
    udp: int
    receiver: int


class TcpScenario(NamedTuple):
    """A streamer, and a Zenoh application that provides the offered service."""

    ports: TcpPorts
    process: StreamerProcess
    app: Subscriber


@contextmanager
def running(
    directory: Path,
    limits: str = "retry_max_ms = 100",
    launch: Callable[[Path], StreamerProcess] = StreamerProcess,
    state: str = "state",
    hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.1"),
) -> Iterator[TcpScenario]:
    """`launch` starts the streamer; `state` is its state directory; `hosts` are the streamer's and the ECU's."""
    ports = TcpPorts(*tcp_ports(3), *udp_ports(2))
    config = directory / "tcp.toml"
    near, far = hosts
    text = _CONFIG.format(ports=ports, limits=limits, state=state, near=near, far=far)
    config.write_text(text, encoding="utf-8")
    with (
        launch(config) as process,
        Subscriber(ports.backbone, PROVIDER.authority, PROVIDER.ue_id) as app,
    ):
        app.wait_responding(app.usubscription.at(wire.FETCH_SUBSCRIBERS))
        yield TcpScenario(ports, process, app)


class TcpReceiver:
    """One process of `tests.e2e.someip.tcp_receiver`."""

    def __init__(self, port: int) -> None:
        self.inbox: Inbox[str] = Inbox("receiver")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.someip.tcp_receiver", str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._reader = Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()
        self.inbox.wait_one(lambda line: line == "READY", PATIENCE_S)

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                if line.endswith("\n"):
                    self.inbox.append(line.strip())

    def wait_numbers(self, count: int) -> None:
        self.inbox.wait_count(str.isdigit, count, PATIENCE_S)

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> list[int]:
        """SIGKILL; returns the received numbers."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        return [int(line) for line in self.inbox.items(str.isdigit)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def payload(number: int, size: int = 1_000) -> bytes:
    return number.to_bytes(4, "big") + bytes(size)


def numbers(peer: ZenohEntity, topic: Uri, count: int) -> list[int]:
    """The numbers of at least `count` events."""
    return [int.from_bytes(sample.payload[:4], "big") for sample in peer.wait_events(topic, count)]


def assert_consecutive(life: list[int]) -> None:
    assert life == list(range(life[0], life[0] + len(life)))


class TcpService:
    """An ECU's service: a listening socket, on loopback if it is not given."""

    def __init__(self, port: int, listener: socket.socket | None = None) -> None:
        self._listener = listener or socket.create_server(("127.0.0.1", port))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self.connections: list[socket.socket] = []

    def accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(DEADLINE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections.append(connection)
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.connections, self._listener):
            each.close()
