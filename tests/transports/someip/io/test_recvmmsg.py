# SPDX-License-Identifier: Apache-2.0
"""Batches of datagrams: the result is the datagrams, senders and columns that `recv` would give one by one."""

import ctypes
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from random import Random
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.someip.endpoint_rig import EVENT, Bench
from tests.transports.someip.loopback_rig import FAR, OURS, SECOND, LoopbackReceiver
from tests.waiting import wait_until
from ustreamer.transports.someip.io import recvmmsg
from ustreamer.transports.someip.io.recvmmsg import DatagramBatch
from ustreamer.transports.someip.io.udp import bind_udp
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH
from ustreamer.uprotocol.batch import MAX_BATCH

AROUND_SESSION = ">8s4x4s"
NEAR = 1_472


def of_sizes(sizes: Sequence[int], seed: int = 0) -> list[bytes]:
    """Random datagrams of these sizes."""
    rng = Random(seed)
    return [rng.randbytes(size) for size in sizes]


def unpacked(datagrams: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """The oracle: each datagram alone, then the columns."""
    header = Struct(AROUND_SESSION)
    rows = [(*header.unpack_from(each), each[HEADER_LENGTH:]) for each in datagrams]
    return list(zip(*rows, strict=True))


# ---------------------------------------------------------------------------------------------------------- datagrams

EDGES = [0, 1, 15, 16, 1_471, 1_472, 1_473, 9_000, 65_507]


@pytest.mark.parametrize("sizes", [EDGES, EDGES[::-1], [65_507] * 3, [0, 0], [1_473, 1_472] * 20])
def test_each_datagram_is_complete_and_in_order(loop: LoopbackReceiver, sizes: list[int]) -> None:
    sent = of_sizes(sizes)
    message_batch = loop.receive_batch(sent)
    assert (len(message_batch), message_batch.sizes) == (len(sizes), sizes)
    assert message_batch.datagrams() == sent


def test_datagrams_above_the_batch_size_are_received_next(loop: LoopbackReceiver) -> None:
    sent = [b"%d" % number for number in range(2 * MAX_BATCH + 3)]
    loop.send(sent)
    numbers, taken = [], []
    while number := loop.receive():
        numbers.append(number)
        taken += loop.batch.datagrams()
    assert (numbers, taken) == ([MAX_BATCH, MAX_BATCH, 3], sent)


def test_an_empty_socket_gives_an_empty_batch(loop: LoopbackReceiver) -> None:
    loop.receive_batch(of_sizes([20] * 10))
    assert loop.receive() == 0
    assert (len(loop.batch), loop.batch.sizes, loop.batch.datagrams()) == (0, [], [])
    assert loop.batch.columns(AROUND_SESSION) is None


def test_datagrams_and_columns_survive_the_next_receive(loop: LoopbackReceiver) -> None:
    """A payload is valid as long as its message; the buffer until the next receive."""
    first = of_sizes([100] * 10)
    datagrams, columns = loop.receive_batch(first).datagrams(), loop.batch.columns(AROUND_SESSION)
    loop.receive_batch(of_sizes([100] * 10, seed=1))
    assert (datagrams, columns) == (first, unpacked(first))


# ------------------------------------------------------------------------------------------- results of the system call


def failing(code: int) -> Callable[..., int]:
    """A system call that fails with `code`."""

    def call(*_: object) -> int:
        ctypes.set_errno(code)
        return -1

    return call


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR])
def test_no_datagram_and_a_signal_are_no_errors(
    loop: LoopbackReceiver, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    loop.receive_batch([b"before"])
    monkeypatch.setattr(loop.batch, "_recvmmsg", failing(code))
    assert (loop.receive(), loop.batch.sizes) == (0, [])


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EBADF])
def test_any_other_error_is_raised(
    loop: LoopbackReceiver, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    loop.receive_batch([b"before"])
    monkeypatch.setattr(loop.batch, "_recvmmsg", failing(code))
    with pytest.raises(OSError) as caught:
        loop.receive()
    assert (caught.value.errno, loop.batch.sizes) == (code, [])


def test_an_icmp_error_is_raised_once_and_receiving_continues(loop: LoopbackReceiver) -> None:
    with ExitStack() as stack:
        peer, opened = bind_udp(("127.0.0.1", 0)), bind_udp(("127.0.0.1", 0))
        stack.enter_context(closing(opened))
        address = peer.getsockname()
        opened.connect(address)
        peer.close()
        opened.send(b"to a closed port")
        loop.receive_batch([b"before"])
        with pytest.raises(ConnectionRefusedError):
            loop.batch.receive(opened.fileno())
        assert loop.batch.datagrams() == []
        assert loop.batch.receive(opened.fileno()) == 0
        back = stack.enter_context(closing(bind_udp(address)))
        back.sendto(b"here", opened.getsockname())
        assert loop.batch.receive(opened.fileno()) == 1
        assert loop.batch.datagrams() == [b"here"]


# -------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    "sizes",
    [
        [20, 21],
        [20] * 20 + [19],
        [0],
        [HEADER_LENGTH - 1] * 3,
        [NEAR + 1] * 3,
        [NEAR, NEAR + 1],
        [9_000] * 3,
        [HEADER_LENGTH] * (MAX_BATCH - 1) + [HEADER_LENGTH + 1],
    ],
)
def test_several_sizes_or_an_unsupported_size_have_no_columns(
    loop: LoopbackReceiver, sizes: list[int]
) -> None:
    assert loop.receive_batch(of_sizes(sizes)).columns(AROUND_SESSION) is None


@pytest.mark.parametrize("number", [1, MAX_BATCH])
@pytest.mark.parametrize("size", [HEADER_LENGTH, HEADER_LENGTH + 1, 100, NEAR - 1, NEAR])
def test_columns_hold_the_fields_of_each_datagram(loop: LoopbackReceiver, number: int, size: int) -> None:
    for seed, size_now in enumerate((NEAR, size)):  # after larger datagrams in the same place
        sent = of_sizes([size_now] * number, seed)
        columns = loop.receive_batch(sent).columns(AROUND_SESSION)
        assert columns is not None
        assert [tuple(each) for each in columns] == unpacked(sent)


@settings(max_examples=40, deadline=None)
@given(
    takes=st.lists(
        st.one_of(
            st.lists(st.sampled_from([*EDGES[:-1], 20, 100]), min_size=1, max_size=20),
            st.tuples(st.integers(0, 1_600), st.integers(1, MAX_BATCH)).map(lambda each: [each[0]] * each[1]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_successive_batches_equal_the_sent_datagrams(loop: LoopbackReceiver, takes: list[list[int]]) -> None:
    for seed, sizes in enumerate(takes):
        sent = of_sizes(sizes, seed)
        message_batch = loop.receive_batch(sent)
        assert message_batch.datagrams() == sent
        columns = message_batch.columns(AROUND_SESSION)
        if len(set(sizes)) == 1 and HEADER_LENGTH <= sizes[0] <= NEAR:
            assert columns is not None
            assert [tuple(each) for each in columns] == unpacked(sent)
        else:
            assert columns is None


# -------------------------------------------------------------------------------------------------------------- senders


def addresses(loop: LoopbackReceiver, names: Sequence[str]) -> list[Address]:
    return [loop.sender(each).getsockname() for each in names]


NAMES = st.one_of(
    st.lists(st.sampled_from([OURS, SECOND, FAR]), min_size=1, max_size=20),
    st.tuples(st.sampled_from([OURS, SECOND, FAR]), st.integers(1, MAX_BATCH)).map(
        lambda each: [each[0]] * each[1]
    ),
)


@settings(max_examples=40, deadline=None)
@given(takes=st.lists(NAMES, min_size=1, max_size=4))
def test_successive_batches_have_the_senders_of_recvfrom(
    loop: LoopbackReceiver, takes: list[list[str]]
) -> None:
    """Senders of an earlier, larger batch stay in memory and must not show."""
    for names in takes:
        message_batch = loop.receive_batch([b"x"] * len(names), names)
        expected = addresses(loop, names)
        assert message_batch.senders() == expected
        assert message_batch.common_sender == (expected[0] if len(set(expected)) == 1 else None)


@pytest.mark.parametrize("where", [0, 1, MAX_BATCH // 2, MAX_BATCH - 1])
@pytest.mark.parametrize("other", [SECOND, FAR])
def test_one_other_sender_means_no_common_sender(loop: LoopbackReceiver, where: int, other: str) -> None:
    names = [OURS] * MAX_BATCH
    names[where] = other
    message_batch = loop.receive_batch([b"x"] * MAX_BATCH, names)
    assert (message_batch.common_sender, message_batch.senders()) == (None, addresses(loop, names))


def test_an_empty_batch_has_no_senders(loop: LoopbackReceiver) -> None:
    loop.receive_batch([b"x"] * 3)
    assert (loop.receive(), loop.batch.senders()) == (0, [])


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_sender_cache_is_bounded_and_correct(
    loop: LoopbackReceiver, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(recvmmsg, "_MAX_CACHED", kept)
    names = [f"127.0.0.{3 + number % 5} of {number % 10}" for number in range(40)]
    fresh = DatagramBatch()
    for start in range(0, len(names), 8):
        loop.send([b"x"] * 8, names[start : start + 8])
        assert fresh.receive(loop.receiver.fileno()) == 8
        assert fresh.senders() == addresses(loop, names[start : start + 8])
        assert len(fresh._addresses) <= kept


def test_a_cached_sender_is_reused(loop: LoopbackReceiver) -> None:
    first, second = loop.receive_batch([b"x"] * 2).senders()
    assert first is second is loop.receive_batch([b"x"]).common_sender


# ----------------------------------------------------------------------------------------------------- without recvmmsg


class NoSuchFunction:
    """A C library without recvmmsg."""

    def __init__(self, *_: object, **__: object) -> None: ...


class NoSuchCall:
    """A kernel without recvmmsg."""

    def __init__(self, *_: object, **__: object) -> None:
        self.recvmmsg = failing(errno.ENOSYS)


WITHOUT = pytest.mark.parametrize("library", [NoSuchFunction, NoSuchCall])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@WITHOUT
def test_without_recvmmsg_a_batch_cannot_be_created(monkeypatch: pytest.MonkeyPatch, library: type) -> None:
    monkeypatch.setattr(ctypes, "CDLL", library)
    with pytest.raises(OSError) as caught:
        DatagramBatch()
    assert caught.value.errno == errno.ENOSYS


@WITHOUT
def test_without_recvmmsg_an_endpoint_receives_each_datagram_alone(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, library: type, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", library)
    bench = Bench(stack)
    bench.endpoint.open()

    def is_reported() -> bool:
        """A thread that reads faster than the burst arrives reads each datagram alone anyway."""
        bench.ecu.send(bench.endpoint, *burst(300))
        received = [bench.listener.next().payload for _ in range(300)]
        assert received == [b"%05d" % number for number in range(300)]
        return bool(caplog.records)

    wait_until(is_reported, "the report")
    assert [each.msg for each in caplog.records] == ["someip.no_batches"]


def test_all_sockets_of_an_endpoint_share_the_memory_of_one(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch per socket would cost 8 MB of addresses, and as much memory after large datagrams."""
    made: list[DatagramBatch] = []

    def making(*, ipv6: bool) -> DatagramBatch:
        assert not ipv6
        made.append(DatagramBatch())
        return made[-1]

    monkeypatch.setattr(recvmmsg, "DatagramBatch", making)
    bench = Bench(stack)
    bench.endpoint.open()
    assert (len(bench.endpoint._peer_sockets), len(made)) == (1, 0)
    for peer in (bench.ecu, bench.second):
        peer.send(bench.endpoint, *burst(300))
        assert [bench.listener.next().payload for _ in range(300)] == [
            b"%05d" % number for number in range(300)
        ]
    assert len(made) == 1


def burst(length: int) -> list[bytes]:
    """Events that arrive together; the payloads are their numbers."""
    return [EVENT[:-5] + b"%05d" % number for number in range(length)]
