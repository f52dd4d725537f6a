# SPDX-License-Identifier: Apache-2.0
"""Adaptive reads: a datagram after a pause alone, accumulated datagrams as a batch; all of them, in order."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.transports.someip.endpoint_rig import Peer
from ustreamer.transports.someip.io.adaptive_reader import make_reader
from ustreamer.transports.someip.io.connected_sockets import open_connected
from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.recvmmsg import DatagramBatch
from ustreamer.transports.someip.io.udp import bind_udp
from ustreamer.transports.someip.protocol.addresses import Address

Taken = list[tuple[str, list[bytes]]]


class Bench:
    """A socket with its reader, a peer, and a clock that only advances during a read."""

    def __init__(self, stack: ExitStack, *, direct: bool) -> None:
        self.received: Taken = []
        self.senders: list[Address] = []
        self.now_ns = 1_000_000_000
        self.tick_ns = 60_000
        self.quiet = True
        self.own = bind_udp(("127.0.0.1", 0))
        stack.callback(self.own.close)
        self.peer = Peer("127.0.0.1")
        stack.callback(self.peer.socket.close)
        self.socket = self.own
        if direct:
            self.socket = open_connected([self.own], self.peer.address, 1 << 20)
            stack.callback(self.socket.close)
        sender = self.peer.address if direct else None
        clock: Callable[[], int] = lambda: self.now_ns  # noqa: E731
        self.batch: DatagramBatch | None = DatagramBatch()
        self.read: Handler = make_reader(
            self.socket, sender, lambda: self.batch, self._on_batch, self._on_datagram, clock
        )
        self._numbers = count(1)

    def _on_batch(self, batch: DatagramBatch) -> bool:
        self.received.append(("together", list(batch.datagrams())))
        self.senders += batch.senders()
        return self._finish_tick()

    def _on_datagram(self, datagram: bytes, address: Address, received_ms: int) -> bool:
        self.received.append(("alone", [datagram]))
        self.senders.append(address)
        return self._finish_tick()

    def _finish_tick(self) -> bool:
        self.now_ns += self.tick_ns
        return self.quiet

    def send(self, number: int = 1) -> None:
        for _ in range(number):
            self.peer.socket.sendto(b"%d" % next(self._numbers), self.own.getsockname())

    def pause(self, ns: int) -> None:
        self.now_ns += ns


@pytest.fixture(params=[False, True], ids=["own", "direct"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack, direct=request.param)


def test_a_first_datagram_is_delivered_alone(bench: Bench) -> None:
    bench.send(3)
    assert bench.read(1) is True
    assert bench.received == [("alone", [b"1"])]
    assert bench.senders == [bench.peer.address]


def test_accumulated_datagrams_are_delivered_as_a_batch(bench: Bench) -> None:
    bench.send(4)
    bench.read(1)
    bench.read(1)
    assert bench.received == [("alone", [b"1"]), ("together", [b"2", b"3", b"4"])]
    assert bench.senders == [bench.peer.address] * 4


@pytest.mark.parametrize(
    ("part", "how"), [(0.0, "together"), (0.24, "together"), (0.26, "alone"), (5.0, "alone")]
)
def test_a_pause_is_a_quarter_of_the_previous_read(bench: Bench, part: float, how: str) -> None:
    """Independent of the speed of the machine."""
    for bench.tick_ns in (5_000, 60_000, 2_000_000):
        bench.received.clear()
        bench.pause(10**9)
        bench.send()
        bench.read(1)
        bench.pause(int(part * bench.tick_ns))
        bench.send()
        bench.read(1)
        assert [each for each, _ in bench.received] == ["alone", how]


def test_batches_continue_until_a_batch_of_one(bench: Bench) -> None:
    bench.send(3)
    for arrived in (0, 0, 5, 2, 1, 1, 2):
        bench.send(arrived)
        bench.read(1)
        bench.pause(10**6 if arrived else 0)
    assert [(each, len(taken)) for each, taken in bench.received] == [
        ("alone", 1),
        ("together", 2),
        ("together", 5),
        ("together", 2),
        ("together", 1),
        ("alone", 1),
        ("alone", 1),
    ]


@pytest.mark.parametrize("quiet", [True, False])
def test_the_reader_returns_the_result_of_its_callback(bench: Bench, *, quiet: bool) -> None:
    bench.quiet = quiet
    bench.send(3)
    assert [bench.read(1), bench.read(1)] == [quiet, quiet]


@pytest.mark.parametrize("together", [False, True])
def test_an_empty_socket_delivers_nothing(bench: Bench, *, together: bool) -> None:
    """As after a wrong checksum, or with a reused file descriptor number."""
    if together:
        bench.send(1)
        bench.read(1)
    bench.received.clear()
    bench.quiet = False
    assert bench.read(1) is False
    assert [each for _, each in bench.received] in ([], [[]])
    bench.pause(10**6)
    bench.send(1)
    bench.read(1)
    assert bench.received[-1][0] == "alone"  # nothing does not count as a batch


def test_no_datagram_is_lost_at_any_timing(bench: Bench) -> None:
    poller = Poller()
    poller.add(bench.socket.fileno(), bench.read)
    sent = 0
    for arrived, pause_ns in [
        (1, 0),
        (1, 10**6),
        (4, 0),
        (3, 1_000),
        (1, 10**9),
        (2, 14_000),
        (150, 0),
        (1, 0),
    ]:
        bench.pause(pause_ns)
        bench.send(arrived)
        sent += arrived
        while poller.wait(0):
            pass
    poller.close()
    assert [each for _, taken in bench.received for each in taken] == [b"%d" % n for n in range(1, sent + 1)]


def test_an_icmp_error_of_a_send_does_not_stop_receiving() -> None:
    with ExitStack() as stack:
        bench = Bench(stack, direct=True)
        address = bench.peer.address
        bench.peer.socket.close()
        for _ in range(3):
            bench.own.sendto(b"to a closed port", address)
        with pytest.raises(ConnectionRefusedError):  # the behaviour without the protection
            bench.socket.recv(10)
        bench.own.sendto(b"to a closed port", address)
        assert bench.read(1) is False
        back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stack.callback(back.close)
        back.bind(address)
        back.sendto(b"here", bench.own.getsockname())
        assert bench.read(1) is True
        assert bench.received == [("alone", [b"here"])]
