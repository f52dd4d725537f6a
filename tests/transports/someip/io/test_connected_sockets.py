# SPDX-License-Identifier: Apache-2.0
"""Connected sockets: only one sender reaches them, and no datagram of other senders is lost."""

import errno
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.transports.someip.endpoint_rig import (
    EVENT,
    OPEN_DOOR,
    REQUEST,
    TOPIC,
    WITHIN_S,
    Bench,
    BlockingListener,
    Peer,
)
from tests.waiting import wait_until
from ustreamer.transports.someip.io import connected_sockets
from ustreamer.transports.someip.io.connected_sockets import (
    MAX_PEER_SOCKETS,
    PerPeerSockets,
    attach_sender_filter,
    open_connected,
)
from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.udp import bind_udp
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.mapping import SomeipRefusal
from ustreamer.transports.someip.rpc.exchange import Exchange
from ustreamer.uprotocol.batch import MAX_BATCH, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.uuri import ANY, UUri

METHOD = UUri.parse("//chassis/CD/4/B")
APP = UUri.parse("//device1/3AB/1/0")
BUFFER = 1 << 20


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def peer(stack: ExitStack, host: str = "127.0.0.1") -> Peer:
    made = Peer(host)
    stack.callback(made.socket.close)
    return made


def own(stack: ExitStack, host: str = "127.0.0.1") -> socket.socket:
    opened = bind_udp((host, 0))
    stack.callback(opened.close)
    return opened


def found(opened: socket.socket) -> list[bytes]:
    """The received datagrams; on loopback a sent datagram is there at once."""
    datagrams = []
    while select.select([opened], [], [], 0)[0]:
        datagrams.append(opened.recv(2_048))
    return datagrams


# ----------------------------------------------------------------------------------------------------------- one socket


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_connected_socket_receives_its_sender_and_the_own_socket_all_others(
    stack: ExitStack, host: str
) -> None:
    endpoint, ecu = own(stack, host), peer(stack)
    opened = open_connected([endpoint], ecu.address, BUFFER)
    stack.callback(opened.close)
    to = ("127.0.0.1", endpoint.getsockname()[1])
    same_host, other_host = peer(stack), peer(stack, "127.0.0.2")
    for number, each in enumerate((ecu, same_host, other_host, ecu)):
        each.socket.sendto(b"%d" % number, to)
    assert found(opened) == [b"0", b"3"]
    assert found(endpoint) == [b"1", b"2"]


@pytest.mark.parametrize("unknown_sender", ["127.0.0.1", "127.0.0.2"])
def test_no_other_sender_reaches_a_socket_before_it_is_connected(
    stack: ExitStack, unknown_sender: str
) -> None:
    """A bound socket that is not connected yet receives from any sender, except for its filter."""
    ecu, other = peer(stack), peer(stack, unknown_sender)
    opened = own(stack)
    attach_sender_filter(opened, ecu.address)
    for each in (other, ecu, other):
        each.socket.sendto(str(each).encode(), opened.getsockname())
    assert found(opened) == [str(ecu).encode()]


def test_the_filter_is_attached_before_the_socket_is_bound(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def noting(opened: socket.socket, sender: tuple[str, int]) -> None:
        seen.append(opened.getsockname())
        attach_sender_filter(opened, sender)

    monkeypatch.setattr(connected_sockets, "attach_sender_filter", noting)
    stack.callback(open_connected([own(stack)], peer(stack).address, BUFFER).close)
    assert seen == [("0.0.0.0", 0)]  # unbound


def test_no_other_process_can_share_the_address(stack: ExitStack) -> None:
    endpoint = own(stack)
    opened = open_connected([endpoint], peer(stack).address, BUFFER)
    stack.callback(opened.close)
    thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(thief.close)
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with pytest.raises(OSError, match="in use"):
        thief.bind(endpoint.getsockname())


def test_a_failed_open_leaves_the_sockets_unchanged(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOPROTOOPT, "no filters here")

    monkeypatch.setattr(connected_sockets, "attach_sender_filter", refused)
    endpoint, ecu, poller = own(stack), peer(stack), Poller()
    stack.callback(poller.close)
    sockets = PerPeerSockets()
    sockets.open(endpoint, [ecu.address], BUFFER, poller, lambda opened, sender: lambda events: None)
    assert len(sockets) == 0
    ecu.socket.sendto(b"1", endpoint.getsockname())
    assert found(endpoint) == [b"1"]
    assert endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


def test_senders_above_the_limit_reach_the_own_socket(stack: ExitStack) -> None:
    endpoint, poller = own(stack), Poller()
    stack.callback(poller.close)
    ecus = [peer(stack) for _ in range(MAX_PEER_SOCKETS + 2)]
    taken: list[tuple[bytes, Address]] = []

    def reader(opened: socket.socket, sender: Address) -> Handler:
        return lambda events: taken.append((opened.recv(100), sender))

    sockets = PerPeerSockets()
    stack.callback(sockets.close)
    sockets.open(endpoint, [each.address for each in (*ecus, *ecus)], BUFFER, poller, reader)
    assert len(sockets) == MAX_PEER_SOCKETS
    for each in ecus:
        each.socket.sendto(str(each).encode(), endpoint.getsockname())
    poller.wait(0)
    assert len(taken) == MAX_PEER_SOCKETS
    assert set(taken) == {(str(each).encode(), each.address) for each in ecus[:MAX_PEER_SOCKETS]}
    assert found(endpoint) == [str(each).encode() for each in ecus[MAX_PEER_SOCKETS:]]
    sockets.close()
    assert len(sockets) == 0


# ------------------------------------------------------------------------------------------------------- the endpoint


@pytest.fixture
def bench(stack: ExitStack) -> Bench:
    bench = Bench(stack)
    bench.endpoint.open()
    assert len(bench.endpoint._peer_sockets) == 1
    return bench


def count_refused(bench: Bench) -> int:
    return sum(n for name, n in bench.endpoint.statistics().items() if name.startswith("refused_"))


def test_an_endpoint_receives_its_ecu_and_all_other_senders(bench: Bench, stack: ExitStack) -> None:
    """The ECU from its own port, from another port, and an unknown sender."""
    bench.ecu.send(bench.endpoint, EVENT)
    assert bench.listener.next().attributes.source == TOPIC
    bench.second.send(bench.endpoint, EVENT)
    assert bench.listener.next().attributes.source == TOPIC
    peer(stack, "127.0.0.2").send(bench.endpoint, EVENT)
    refused = f"refused_{SomeipRefusal.EVENT_ADDRESS}"
    wait_until(lambda: bench.endpoint.statistics()[refused] == 1)
    statistics = bench.endpoint.statistics()
    assert (statistics["datagrams"], statistics["received"], statistics[refused]) == (3, 2, 1)


def test_other_messages_on_a_connected_socket_are_processed_in_order(bench: Bench) -> None:
    """A request is answered to its source address, and a malformed datagram is counted."""
    bench.ecu.send(bench.endpoint, EVENT, OPEN_DOOR, EVENT, b"short", EVENT[:-1], EVENT + EVENT)
    kinds = [bench.listener.next().attributes.type.name for _ in range(5)]
    assert kinds == ["PUBLISH", "REQUEST", "PUBLISH", "PUBLISH", "PUBLISH"]
    wait_until(lambda: count_refused(bench) == 2)
    assert bench.endpoint.statistics()["datagrams"] == 6


def test_responses_on_a_connected_socket_take_the_fast_path(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together with events, and in order."""
    taken: list[bytes] = []
    monkeypatch.setattr(
        bench.endpoint._inbound, "_on_any_datagram", lambda datagram, address: taken.append(datagram)
    )
    answers = []
    for _ in range(3):
        bench.endpoint.send(request(bench.ids.next(), APP, METHOD, b"hi", ttl=30_000))
        sent_request = bench.ecu.receive()
        answers.append(sent_request[:14] + b"\x80" + sent_request[15:])
    bench.ecu.send(bench.endpoint, answers[0], EVENT, *answers[1:], EVENT)
    kinds = [bench.listener.next().attributes.type.name for _ in range(5)]
    assert kinds == ["RESPONSE", "PUBLISH", "RESPONSE", "RESPONSE", "PUBLISH"]
    assert taken == []


def test_an_ecu_is_received_again_after_a_restart(bench: Bench, stack: ExitStack) -> None:
    bench.ecu.socket.close()
    for _ in range(3):
        bench.endpoint.send(request(bench.ids.next(), APP, METHOD, b"hi", ttl=30_000))
    back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(back.close)
    back.bind(bench.ecu.address)
    back.settimeout(30)
    bench.endpoint.send(request(bench.ids.next(), APP, METHOD, b"hi", ttl=30_000))
    sent_request = back.recv(2_048)
    assert sent_request[:4] == REQUEST[:4]
    back.sendto(sent_request[:14] + b"\x80" + sent_request[15:], bench.endpoint.address)
    back.sendto(EVENT, bench.endpoint.address)
    assert [bench.listener.next().attributes.type.name for _ in range(2)] == ["RESPONSE", "PUBLISH"]


def test_a_flood_of_one_sender_does_not_block_other_senders(bench: Bench) -> None:
    for _ in range(20):
        bench.ecu.send(bench.endpoint, *[EVENT] * 100)
        bench.second.send(bench.endpoint, OPEN_DOOR)
    kinds = [bench.listener.next().attributes.type.name for _ in range(2_020)]
    assert (kinds.count("PUBLISH"), kinds.count("REQUEST")) == (2_000, 20)


class Typed(BlockingListener):
    """A batch listener that also records the type of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[type] = []

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        self.types.append(type(messages))
        super().on_batch(messages)


def received_together(
    bench: Bench, datagrams: Sequence[bytes], sender: Peer | None = None
) -> tuple[Typed, dict[str, int], list[UMessage]]:
    """Send one event, then `sent` while a listener handles it; returns listener, counters and messages."""
    sender = sender or bench.ecu
    held, another = Typed(), bench.another(bench.config())
    for sink in (None, ANY):
        another.register_listener(ANY, sink, held)
    another.open()
    assert len(another._peer_sockets) == 1
    # Before its first turn the thread reads each datagram of the own socket alone.
    wait_until(lambda: another.receiving_threads()[0].turns > 0)
    sender.send(another, EVENT)
    assert held.entered.wait(WITHIN_S)
    begin = time.monotonic()
    sender.send(another, *datagrams)
    # A gap of a quarter of this read is a pause, after which one datagram is read alone.
    wait_until(lambda: time.monotonic() - begin >= 0.1)
    held.go.set()
    wait_until(lambda: another.statistics()["datagrams"] == 1 + len(datagrams))
    another.stop_receiving()  # so that all counted messages are delivered
    messages = []
    while not held.is_quiet():
        messages.append(held.next())
    assert messages[0].payload == b"hello"
    return held, dict(another.statistics()), messages[1:]


def test_datagrams_that_the_kernel_drops_while_a_listener_is_busy_are_counted_also_after_the_close(
    bench: Bench,
) -> None:
    held, another = BlockingListener(), bench.another(bench.config(receive_buffer=4_096))
    for sink in (None, ANY):
        another.register_listener(ANY, sink, held)
    another.open()
    bench.ecu.send(another, EVENT)
    assert held.entered.wait(WITHIN_S)
    bench.ecu.send(another, *[EVENT] * 300)  # to the connected socket
    bench.second.send(another, *[OPEN_DOOR] * 200)  # to the socket of the endpoint
    assert another.statistics()["udp_dropped"] > 300
    held.go.set()
    wait_until(lambda: another.statistics()["datagrams"] + another.statistics()["udp_dropped"] == 501)
    another.close()
    assert another.statistics()["datagrams"] + another.statistics()["udp_dropped"] == 501


def numbered(number: int, size: int = 5) -> bytes:
    """An event with its number as payload."""
    payload = number.to_bytes(2).rjust(size, b"\0")
    return EVENT[:4] + (8 + size).to_bytes(4) + EVENT[8:16] + payload


def test_a_burst_of_equal_events_is_delivered_as_batches_in_order(bench: Bench) -> None:
    sent = [numbered(number) for number in range(2 * MAX_BATCH + 20)]
    held, statistics, received = received_together(bench, sent)
    assert [each.payload for each in received] == [each[16:] for each in sent]
    assert [each.attributes.source for each in received] == [TOPIC] * len(sent)
    ids = [each.id for each in received]
    assert ids == sorted(set(ids))
    assert (held.batches, held.types) == ([MAX_BATCH, MAX_BATCH, 20], [MessageBatch] * 3)
    assert (statistics["datagrams"], statistics["received"]) == (1 + len(sent), 1 + len(sent))


def test_events_from_before_the_connected_socket_are_delivered_first(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ECU sends while the endpoint opens: its first datagrams reach the own socket."""
    bench = Bench(stack)
    early, late = [numbered(each) for each in range(50)], [numbered(each) for each in range(50, 400)]
    open_sockets = PerPeerSockets.open

    def open_between(sockets: PerPeerSockets, *arguments: Any) -> None:
        bench.ecu.send(bench.endpoint, *early)
        open_sockets(sockets, *arguments)
        bench.ecu.send(bench.endpoint, *late)

    monkeypatch.setattr(PerPeerSockets, "open", open_between)
    bench.endpoint.open()
    received = [bench.listener.next().payload for _ in (*early, *late)]
    assert received == [each[16:] for each in (*early, *late)]


def test_equal_events_are_decoded_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event of each batch is decoded."""
    looked_at: list[bytes] = []
    event = Exchange.match_event

    def looking(exchange: Exchange, datagram: bytes, host: str) -> UAttributes | None:
        looked_at.append(datagram)
        return event(exchange, datagram, host)

    monkeypatch.setattr(Exchange, "match_event", looking)
    held, _, received = received_together(bench, [numbered(number) for number in range(MAX_BATCH + 20)])
    assert (held.batches, len(received), len(looked_at)) == ([MAX_BATCH, 20], MAX_BATCH + 20, 1 + 2)


def test_a_burst_on_the_own_socket_is_delivered_as_batches(bench: Bench) -> None:
    sent = [numbered(number, 5 + number % 2) for number in range(100)]  # of several sizes
    held, statistics, received = received_together(bench, sent, bench.second)
    assert [each.payload for each in received] == [each[16:] for each in sent]
    assert set(held.types) == {MessageBatch}
    assert sum(held.batches) == len(sent)
    assert (statistics["datagrams"], statistics["received"]) == (1 + len(sent), 1 + len(sent))


def test_messages_behind_a_burst_keep_their_order_and_all_are_counted(bench: Bench) -> None:
    burst = [numbered(number) for number in range(MAX_BATCH + 10)]
    others = [numbered(500, 6), OPEN_DOOR, *[numbered(600 + number) for number in range(20)], b"short"]
    held, statistics, received = received_together(bench, [*burst, *others, numbered(700)])
    expected = [*burst, *others[:-1], numbered(700)]
    assert [each.payload for each in received] == [each[16:] for each in expected]
    assert (held.batches[0], held.types[0]) == (MAX_BATCH, MessageBatch)
    assert statistics["datagrams"] == 1 + len(expected) + 1
    assert statistics["received"] == 1 + len(expected)
    assert sum(n for name, n in statistics.items() if name.startswith("refused_")) == 1


def test_a_burst_without_a_listener_is_counted(bench: Bench) -> None:
    another = bench.another(bench.config())
    another.open()
    bench.ecu.send(another, *[EVENT] * 50)
    wait_until(lambda: another.statistics()["datagrams"] == 50)
    another.stop_receiving()
    statistics = another.statistics()
    assert (statistics["received"], statistics["no_listener"]) == (0, 50)
