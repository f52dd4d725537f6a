# SPDX-License-Identifier: Apache-2.0
"""Between two SOME/IP networks of one streamer a message leaves as it came, byte for byte.

The CRC of an AUTOSAR E2E profile covers the header from the request id on, and the receiver checks it.
"""

import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs.entities import DEADLINE_S
from tests.e2e.rigs.ports import udp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from ustreamer.transports.someip.protocol.e2e import E2eChecker, E2eProtector, E2eResult, covered_header
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig, E2eProfile

SERVICE: Final = 0x1234
EVENT, THROTTLED_EVENT, METHOD = 0x8001, 0x8002, 0x0001
NOTIFICATION, REQUEST, RESPONSE, ERROR = 0x02, 0x00, 0x80, 0x81
BURST: Final = 40

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
events = [{{ id = 0x8001 }}]
methods = [0x0001]
remote = "{ecu}"
[[endpoints.a.services]]
service = 0x1235
major = 1
events = [{{ id = 0x8002 }}]
remote = "{ecu}"

[endpoints.b]
transport = "someip"
authorities = ["b"]
bind = "127.0.0.1"
port = {b}
[[endpoints.b.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001 }}]
methods = [0x0001]
offered = true
provider = "//a/1234/1/0"
remote = "{client}"
[[endpoints.b.services]]
service = 0x1235
major = 1
events = [{{ id = 0x8002 }}]
offered = true
provider = "//a/1235/1/0"
receivers = [{{ address = "{slow}", max_frequency = 5 }}]
"""


def message(
    method: int, client: int, session: int, kind: int, payload: bytes, service: int = SERVICE
) -> bytes:
    """A SOME/IP message of interface version 1, from the specification alone."""
    head = struct.pack(
        ">HHIHHBBBB", service, method, 8 + len(payload), client, session, 1, 1, kind, kind == ERROR
    )
    return head + payload


class Bridge:
    """An ECU on network a, a client and a throttled receiver on network b, and the streamer between them."""

    def __init__(self, exit_stack: ExitStack, directory: Path) -> None:
        self.ecu, self.client, self.slow = (self._socket(exit_stack) for _ in range(3))
        port_a, port_b = udp_ports(2)
        self.a, self.b = ("127.0.0.1", port_a), ("127.0.0.1", port_b)
        names = {
            name: "{}:{}".format(*getattr(self, name).getsockname()) for name in ("ecu", "client", "slow")
        }
        config = directory / "ustreamer.toml"
        config.write_text(_CONFIG.format(a=port_a, b=port_b, **names), encoding="utf-8")
        exit_stack.enter_context(StreamerProcess(config))

    @staticmethod
    def _socket(exit_stack: ExitStack) -> socket.socket:
        opened = exit_stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        opened.bind(("127.0.0.1", 0))
        opened.settimeout(DEADLINE_S)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        return opened


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    with ExitStack() as exit_stack:
        yield Bridge(exit_stack, tmp_path_factory.mktemp("bridge"))


def test_single_events_are_unchanged(bridge: Bridge) -> None:
    for client, session in ((0, 0x4711), (0, 1), (0, 0xFFFF), (0, 0), (0x0063, 0x8000)):
        sent = message(EVENT, client, session, NOTIFICATION, b"speed")
        bridge.ecu.sendto(sent, bridge.a)
        assert bridge.client.recv(2_048) == sent


def test_bursts_of_events_are_unchanged(bridge: Bridge) -> None:
    sessions = random.Random(20).sample(range(0x10000), BURST)
    sent = [message(EVENT, 0, session, NOTIFICATION, session.to_bytes(4)) for session in sessions]
    for each in sent:
        bridge.ecu.sendto(each, bridge.a)
    assert [bridge.client.recv(2_048) for _ in sent] == sent


def test_calls_and_their_responses_are_unchanged(bridge: Bridge) -> None:
    for session, kind in ((0x0102, RESPONSE), (0x7001, ERROR), (0, RESPONSE), (0xFFFF, RESPONSE)):
        sent = message(METHOD, 0x0063, session, REQUEST, b"question")
        bridge.client.sendto(sent, bridge.b)
        assert bridge.ecu.recv(2_048) == sent
        answer = message(METHOD, 0x0063, session, kind, b"answer")
        bridge.ecu.sendto(answer, bridge.a)
        assert bridge.client.recv(2_048) == answer


def test_concurrent_calls_with_one_request_id_are_both_answered(bridge: Bridge) -> None:
    """The second one gets another session: only one call at a time can have a request id."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second:
        second.bind(("127.0.0.1", 0))
        second.settimeout(DEADLINE_S)
        received = []
        for number, client in enumerate((bridge.client, second)):
            client.sendto(message(METHOD, 0x0063, 0x0900, REQUEST, b"%d" % number), bridge.b)
            received.append(bridge.ecu.recv(2_048))
        assert [each[8:12].hex() for each in received] == ["00630900", "00630901"]
        for each in reversed(received):
            bridge.ecu.sendto(each[:14] + bytes([RESPONSE, 0]) + each[16:], bridge.a)
        for number, client in enumerate((bridge.client, second)):
            assert client.recv(2_048) == message(METHOD, 0x0063, 0x0900, RESPONSE, b"%d" % number)


def test_a_throttled_receiver_sees_gaps_and_no_other_change(bridge: Bridge) -> None:
    sent, received = list[bytes](), list[bytes]()
    bridge.slow.settimeout(0.02)
    give_up = time.monotonic() + DEADLINE_S
    while (len(received) < 3 or len(received) == len(sent)) and time.monotonic() < give_up:
        session = len(sent) + 1
        sent.append(message(THROTTLED_EVENT, 0, session, NOTIFICATION, session.to_bytes(2), 0x1235))
        bridge.ecu.sendto(sent[-1], bridge.a)
        with suppress(TimeoutError):
            received.append(bridge.slow.recv(2_048))
    assert received == sorted(received)
    assert set(received) < set(sent)
    assert len(received) >= 3


@pytest.mark.soak
@pytest.mark.parametrize("profile", ["P01", "P04", "P05", "P06", "P07", "P11"])
@pytest.mark.parametrize("throttled", [False, True])
def test_ten_thousand_events_of_each_e2e_profile_are_valid(
    bridge: Bridge, profile: E2eProfile, throttled: bool
) -> None:
    """The ECU protects, the receiver checks; for the streamer the payload is opaque."""
    how = E2eConfig(profile=profile, data_id=0x2D, covers_header=True)
    protector, checker = E2eProtector(how), E2eChecker(how)
    service, event = (0x1235, THROTTLED_EVENT) if throttled else (SERVICE, EVENT)
    receiver = bridge.slow if throttled else bridge.client
    results = Counter[E2eResult]()
    receiver.settimeout(DEADLINE_S)
    for first in range(1, 10_001, BURST):
        for session in range(first, first + BURST):
            payload = protector.protect(covered_header(session, 1, NOTIFICATION, 0), bytes(32))
            protector.advance()
            bridge.ecu.sendto(message(event, 0, session, NOTIFICATION, payload, service), bridge.a)
        receiver.setblocking(not throttled)
        with suppress(BlockingIOError):
            for _ in range(BURST):
                received = receiver.recv(2_048)
                results[checker.check(received[8:16], received[16:])] += 1
        receiver.settimeout(DEADLINE_S)
    if throttled:
        if not results:  # the streamer may be later than all sends
            received = receiver.recv(2_048)
            results[checker.check(received[8:16], received[16:])] += 1
        assert not results[
            E2eResult.ERROR
        ]  # a gap of as many events as the counter has values looks like a repetition
    else:
        assert results == {E2eResult.OK: 10_000}
