# SPDX-License-Identifier: Apache-2.0
"""ECUs that send faster than the streamer reads: each datagram is read or counted as dropped.

What a loud ECU costs the others depends on the socket: the first eight configured ECUs have one each.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.wire import Uri
from tests.e2e.someip.udp_senders import FIRST_SERVICE
from tests.waiting import wait_until

ECUS: Final = 8
FLOOD: Final = 859_400
LOUD_MS: Final = 4_000
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

{services}
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


class Scene:
    """A streamer with eight ECUs; a Zenoh node has subscribed their events."""

    def __init__(self, directory: Path, someip: int, ecu_ports: Sequence[int]) -> None:
        self.ecu_ports = ecu_ports
        self._state = directory / "state"
        self._someip = someip

    def send(self, how: str, count: int, ecu_ports: Sequence[int]) -> Flood:
        """Let the ECUs send from these ports, and wait until the streamer has read what the kernel kept."""
        command = [sys.executable, "-m", "tests.e2e.someip.udp_senders", how, count, self._someip, *ecu_ports]
        done = subprocess.run(
            list(map(str, command)),
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            check=True,
            timeout=_WITHIN_S,
        )
        sent = json.loads(done.stdout)

        def is_accounted() -> bool:
            found = statistics(self._state)
            counters: dict[str, int] = found["endpoints"]["chassis"]
            forwarded: int = sum(each["delivered"] for each in found["targets"])
            dropped = counters["udp_dropped"]
            return counters["datagrams"] + dropped >= sum(sent) and forwarded >= counters["datagrams"]

        wait_until(is_accounted, "every datagram to be read or counted as dropped", _WITHIN_S)
        found = statistics(self._state)
        read = {each["topic"].removeprefix("up:"): each["delivered"] for each in found["targets"]}
        return Flood(sent, [read[str(topic)] for topic in topics()], found["endpoints"]["chassis"])


def topics() -> list[Uri]:
    return [Uri("chassis", FIRST_SERVICE + number, 1, 0x8001) for number in range(ECUS)]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with flooded_streamer(tmp_path) as scene:
        yield scene


@contextmanager
def flooded_streamer(directory: Path) -> Iterator[Scene]:
    [backbone], (someip, *ecu_ports) = tcp_ports(1), udp_ports(1 + ECUS)
    services = "".join(
        _SERVICE.format(service=FIRST_SERVICE + number, port=port) for number, port in enumerate(ecu_ports)
    )
    config = directory / "flood.toml"
    config.write_text(_CONFIG.format(backbone=backbone, someip=someip, services=services), encoding="utf-8")
    with StreamerProcess(config), ZenohEntity(backbone, "hpc.vin1", listen_to="up/hpc.vin1/**") as app:
        for topic in topics():
            app.subscribe(topic)
        app.session.declare_subscriber("up/chassis/**", lambda _: None)  # the inbox would be too slow
        yield Scene(directory, someip, ecu_ports)


def test_every_datagram_of_a_flood_is_read_or_counted_as_dropped(scene: Scene) -> None:
    flood = scene.send("equal", FLOOD, scene.ecu_ports)
    print(f"{sum(flood.sent)} sent, {sum(flood.read)} read, {flood.counters['udp_dropped']} dropped")
    flood.assert_all_counted()
    assert flood.counters["udp_dropped"] > 0, "the streamer is too fast for this test"


def test_eight_equal_ecus_on_one_socket_lose_equal_shares(scene: Scene) -> None:
    """From ports that are not configured, so that they share the socket of the endpoint."""
    flood = scene.send("equal", FLOOD, udp_ports(ECUS))
    print("lost of each ECU:", *(f"{share:.0%}" for share in flood.lost_shares))
    flood.assert_all_counted()
    assert max(flood.lost_shares) - min(flood.lost_shares) < 0.3


def test_a_loud_ecu_costs_ecus_with_a_socket_of_their_own_nothing(scene: Scene) -> None:
    flood = scene.send("loud", LOUD_MS, scene.ecu_ports)
    print(
        "sent, lost of each ECU:",
        *(f"{n} {share:.1%}" for n, share in zip(flood.sent, flood.lost_shares, strict=True)),
    )
    flood.assert_all_counted()
    assert flood.lost_shares[0] > 0, "the ECU is not loud enough for this test"
    assert flood.read[1:] == flood.sent[1:]


def test_a_loud_ecu_costs_ecus_on_the_same_socket_their_share_of_the_loss(scene: Scene) -> None:
    """The kernel drops what arrives while the buffer is full, from any sender."""
    flood = scene.send("loud", LOUD_MS, udp_ports(ECUS))
    print(
        "sent, lost of each ECU:",
        *(f"{n} {share:.1%}" for n, share in zip(flood.sent, flood.lost_shares, strict=True)),
    )
    flood.assert_all_counted()
    assert min(flood.lost_shares) > 0, "the ECU is not loud enough for this test"
