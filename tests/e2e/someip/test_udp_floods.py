# SPDX-License-Identifier: Apache-2.0
"""ECUs that send faster than the streamer reads: each datagram is read or counted as dropped.

The streamer is stopped for the first half of each flood, so that every machine drops datagrams. What a loud ECU costs
the others depends on the socket: the first eight configured ECUs have one each.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.wire import Uri
from tests.waiting import wait_until

ECUS: Final = 8
FIRST_SERVICE: Final = 0x2000
FLOOD: Final = 10_000
"""Events of each ECU. The receive buffer of a socket takes 2 730 at most."""
LOUD: Final = 100
"""Events of a loud ECU for each event of another one."""
FEW: Final = 200
"""Events of a quiet ECU. Each socket takes 330, also with the default limit of Linux for receive buffers."""
_PAYLOAD: Final = bytes(64)
_WITHIN_S: Final = 100

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {someip}
sd = false
receive_buffer = 1_048_576

{services}
[egress.backbone]
queue_messages = 200_000
queue_bytes = 100_000_000
max_age_ms = 600_000

[plugins.usubscription]
"""

_SERVICE: Final = """\
[[endpoints.chassis.services]]
service = {service}
instance = 1
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{port}"

"""


class Flood(NamedTuple):
    """Datagrams of each ECU, and those of them that the streamer forwarded; counters of the SOME/IP endpoint."""

    sent: list[int]
    read: list[int]
    counters: dict[str, int]

    @property
    def lost_shares(self) -> list[float]:
        return [1 - read / sent for read, sent in zip(self.read, self.sent, strict=True)]

    def assert_all_counted(self) -> None:
        """Sent = read + dropped, and every datagram that was read is forwarded."""
        assert self.counters["datagrams"] + self.counters["udp_dropped"] == sum(self.sent)
        assert self.counters["datagrams"] == self.counters["received"] == sum(self.read)

    def __str__(self) -> str:
        ecus = zip(self.sent, self.lost_shares, strict=True)
        return "sent, lost of each ECU: " + " ".join(f"{sent} {share:.1%}" for sent, share in ecus)


class Scene:
    """A streamer with eight ECUs; a Zenoh node has subscribed their events."""

    def __init__(self, process: StreamerProcess, someip: int, ecu_ports: Sequence[int]) -> None:
        self.ecu_ports = ecu_ports
        self._process = process
        self._someip = someip

    def send(self, rounds: int, ecu_ports: Sequence[int], loud: int = 0) -> Flood:
        """Let each ECU send an event in each round from its port, and the first ECU `loud` more.

        Waits until the streamer has read what the kernel kept. Floods are counted each for itself.
        """
        before = self._counted()
        with ExitStack() as sockets:
            sends = [sockets.enter_context(self._ecu_socket(port)).send for port in ecu_ports]
            with self._stopped():
                _send(rounds // 2, sends, loud)
            _send(rounds - rounds // 2, sends, loud)
        sent = [rounds * (1 + loud), *[rounds] * (ECUS - 1)]

        def counted() -> Flood:
            now = self._counted()
            return Flood(
                sent,
                [after - earlier for after, earlier in zip(now.read, before.read, strict=True)],
                {name: count - before.counters[name] for name, count in now.counters.items()},
            )

        def is_accounted() -> bool:
            now = counted()
            datagrams, dropped = now.counters["datagrams"], now.counters["udp_dropped"]
            return datagrams + dropped >= sum(sent) and sum(now.read) >= datagrams

        wait_until(is_accounted, "every datagram to be read or counted as dropped", _WITHIN_S)
        flood = counted()
        print(flood)
        return flood

    def _ecu_socket(self, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1", port))
        made.connect(("127.0.0.1", self._someip))
        return made

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """The streamer does not run, and the kernel receives for it."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            stat = Path(f"/proc/{self._process.pid}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the stop")
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def _counted(self) -> Flood:
        """Counters since the start."""
        found = statistics(self._process.config.parent / "state")
        read = {each["topic"].removeprefix("up:"): each["delivered"] for each in found["targets"]}
        return Flood([], [read.get(str(topic), 0) for topic in topics()], found["endpoints"]["chassis"])


def _send(rounds: int, sends: Sequence[Callable[[bytes], int]], loud: int) -> None:
    events = [wire.event(FIRST_SERVICE + number, 0x8001, _PAYLOAD) for number in range(ECUS)]
    pairs = [*zip(sends, events, strict=True), *[(sends[0], events[0])] * loud]
    for _ in range(rounds):
        for send, event in pairs:
            send(event)


def topics() -> list[Uri]:
    return [Uri("chassis", FIRST_SERVICE + number, 1, 0x8001) for number in range(ECUS)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    [backbone], (someip, *ecu_ports) = tcp_ports(1), udp_ports(1 + ECUS)
    services = "".join(
        _SERVICE.format(service=FIRST_SERVICE + number, port=port) for number, port in enumerate(ecu_ports)
    )
    config = tmp_path_factory.mktemp("floods") / "flood.toml"
    config.write_text(_CONFIG.format(backbone=backbone, someip=someip, services=services), encoding="utf-8")
    with (
        StreamerProcess(config) as process,
        ZenohEntity(backbone, "hpc.vin1", listen_to="up/hpc.vin1/**") as app,
    ):
        for topic in topics():
            app.subscribe(topic)
        app.session.declare_subscriber("up/chassis/**", lambda _: None)  # the inbox would be too slow
        yield Scene(process, someip, ecu_ports)


def test_every_datagram_of_a_flood_is_read_or_counted_as_dropped(scene: Scene) -> None:
    flood = scene.send(FLOOD, scene.ecu_ports)
    flood.assert_all_counted()
    assert min(flood.lost_shares) > 0


def test_eight_equal_ecus_on_one_socket_lose_equal_shares(scene: Scene) -> None:
    """From ports that are not configured, so that they share the socket of the endpoint."""
    flood = scene.send(FLOOD, udp_ports(ECUS))
    flood.assert_all_counted()
    assert min(flood.lost_shares) > 0
    assert max(flood.lost_shares) - min(flood.lost_shares) < 0.3


def test_a_loud_ecu_costs_ecus_with_a_socket_of_their_own_nothing(scene: Scene) -> None:
    flood = scene.send(FEW, scene.ecu_ports, loud=LOUD)
    flood.assert_all_counted()
    assert flood.lost_shares[0] > 0
    assert flood.read[1:] == flood.sent[1:]


def test_a_loud_ecu_costs_ecus_on_the_same_socket_their_share_of_the_loss(scene: Scene) -> None:
    """The kernel drops what arrives while the buffer is full, from any sender."""
    flood = scene.send(FEW, udp_ports(ECUS), loud=LOUD)
    flood.assert_all_counted()
    assert min(flood.lost_shares) > 0
