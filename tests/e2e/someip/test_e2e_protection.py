# SPDX-License-Identifier: Apache-2.0
"""E2E protection at the streamer: events of an ECU are checked, and offered events are protected again.

The ECU and the receiver compute the CRC of profile 4 bit by bit, from the specification alone.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs.entities import DEADLINE_S, eventually
from tests.e2e.rigs.ports import udp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics

DROPPING, MARKING = 0x1234, 0x1235
"""The services whose invalid events are dropped, and marked."""
ECU_ID, OWN_ID = 0x0100_002D, 0x0A0B_0C0D

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"
[plugins.throttle]

[endpoints.a]
transport = "someip"
authorities = ["a"]
bind = "127.0.0.1"
port = {a}
[[endpoints.a.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, e2e = {{ profile = "P04", data_id = {ecu_id} }} }}]
remote = "{ecu}"
[[endpoints.a.services]]
service = 0x1235
major = 1
events = [{{ id = 0x8001, e2e = {{ profile = "P04", data_id = {ecu_id}, on_error = "mark" }} }}]
remote = "{ecu}"

[endpoints.b]
transport = "someip"
authorities = ["b"]
bind = "127.0.0.1"
port = {b}
[[endpoints.b.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, e2e = {{ profile = "P04", data_id = {own_id} }} }}]
offered = true
provider = "//a/1234/1/0"
remote = "{receiver}"
receivers = [{{ address = "{slow}", max_frequency = 5 }}]
[[endpoints.b.services]]
service = 0x1235
major = 1
events = [{{ id = 0x8001, e2e = {{ profile = "P04", data_id = {own_id} }} }}]
offered = true
provider = "//a/1235/1/0"
remote = "{receiver}"
"""


def crc32p4(data: bytes) -> int:
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC8DF_352F if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def event(service: int, session: int, counter: int, data: bytes, data_id: int = ECU_ID) -> bytes:
    """An event that profile 4 protects, with the SOME/IP header from the request id on."""
    covered = struct.pack(">HHBBBB", 0, session, 1, 1, 2, 0)
    fields = struct.pack(">HHI", 8 + 12 + len(data), counter, data_id)
    crc = crc32p4(covered + fields + data)
    payload = fields + crc.to_bytes(4) + data
    return struct.pack(">HHI", service, 0x8001, 8 + len(payload)) + covered + payload


class Vehicle:
    """An ECU on network a, a receiver on network b, and the streamer between them."""

    def __init__(self, exit_stack: ExitStack, directory: Path) -> None:
        self._ecu, self._receiver, self.slow = (
            exit_stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(3)
        )
        for each in (self._ecu, self._receiver, self.slow):
            each.bind(("127.0.0.1", 0))
            each.settimeout(DEADLINE_S)
        port_a, port_b = udp_ports(2)
        self._a = "127.0.0.1", port_a
        self._state = directory / "state"
        config = directory / "ustreamer.toml"
        config.write_text(
            _CONFIG.format(
                a=port_a,
                b=port_b,
                ecu="{}:{}".format(*self._ecu.getsockname()),
                receiver="{}:{}".format(*self._receiver.getsockname()),
                slow="{}:{}".format(*self.slow.getsockname()),
                ecu_id=ECU_ID,
                own_id=OWN_ID,
            ),
            encoding="utf-8",
        )
        exit_stack.enter_context(StreamerProcess(config))

    def send(self, *events: bytes) -> None:
        for each in events:
            self._ecu.sendto(each, self._a)

    def receive(self) -> bytes:
        return self._receiver.recv(2_048)

    def count(self, name: str) -> int:
        number: int = statistics(self._state)["endpoints"]["a"][name]
        return number


@pytest.fixture(scope="module")
def vehicle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vehicle]:
    with ExitStack() as exit_stack:
        yield Vehicle(exit_stack, tmp_path_factory.mktemp("e2e"))


def session_of(datagram: bytes) -> int:
    return int.from_bytes(datagram[10:12])


def test_invalid_events_are_dropped_and_the_others_protected_again_without_gaps(vehicle: Vehicle) -> None:
    valid = [event(DROPPING, 7 + counter, counter, b"data%d" % counter) for counter in range(3)]
    counted = ("e2e_ok", "e2e_some_lost", "refused_e2e_error", "refused_e2e_repeated")
    before = [vehicle.count(each) for each in counted]
    corrupt = valid[1][:-1] + b"?"
    replayed_with_another_session = valid[0][:11] + b"\xee" + valid[0][12:]
    vehicle.send(valid[0], corrupt, replayed_with_another_session, valid[0], valid[2])
    received = [vehicle.receive() for _ in range(2)]
    assert received == [
        event(DROPPING, session_of(each), number, data, OWN_ID)
        for number, (each, data) in enumerate(zip(received, [b"data0", b"data2"], strict=True))
    ]
    expected = [number + more for number, more in zip(before, [1, 1, 2, 1], strict=True)]
    eventually(lambda: [vehicle.count(each) for each in counted], expected)


def test_a_marked_event_is_sent_with_an_invalid_crc(vehicle: Vehicle) -> None:
    """The receiver must find it as corrupt as it is; a new CRC would hide the fault."""
    corrupt = event(MARKING, 1, 0, b"data")[:-1] + b"?"
    vehicle.send(corrupt, event(MARKING, 2, 1, b"fine"))
    first, second = vehicle.receive(), vehicle.receive()
    right = event(MARKING, session_of(first), 0, b"dat?", OWN_ID)
    assert first[:24] + first[28:] == right[:24] + right[28:]
    assert first[24:28] == bytes(each ^ 0xFF for each in right[24:28])
    assert second == event(MARKING, session_of(second), 1, b"fine", OWN_ID)


def has_gap(received: list[bytes]) -> bool:
    """Whether the streamer has dropped an event between two of these."""
    sessions = list(map(session_of, received))
    return any(after - before > 1 for before, after in pairwise(sessions))


def test_a_throttled_receiver_of_protected_events_sees_no_gaps(vehicle: Vehicle) -> None:
    received, counter = list[bytes](), 100
    vehicle.slow.settimeout(0.02)
    give_up = time.monotonic() + DEADLINE_S
    while (len(received) < 3 or not has_gap(received)) and time.monotonic() < give_up:
        counter += 1
        vehicle.send(event(DROPPING, counter, counter, b"%d" % counter))
        vehicle.receive()
        with suppress(TimeoutError):
            received.append(vehicle.slow.recv(2_048))
    counters = [int.from_bytes(each[18:20]) for each in received]
    assert counters == list(range(counters[0], counters[0] + len(received)))
    assert received == [
        event(DROPPING, session_of(each), number, each[28:], OWN_ID)
        for number, each in zip(counters, received, strict=True)
    ]
    assert has_gap(received)
