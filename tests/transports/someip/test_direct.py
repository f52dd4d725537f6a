# SPDX-License-Identifier: Apache-2.0
"""Sockets that one sender only can reach: nobody else gets in by them, and nothing is lost beside them."""

import errno
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.transports.someip.test_transport import (
    EVENT,
    OPEN_DOOR,
    REQUEST,
    TOPIC,
    Bench,
    Peer,
    wait_until,
)
from ustreamer.transports.someip import direct
from ustreamer.transports.someip.datagrams import bound
from ustreamer.transports.someip.direct import MAX_SOCKETS, Direct, accept_only, beside
from ustreamer.transports.someip.mapping import Refusal
from ustreamer.transports.someip.poller import Poller
from ustreamer.uprotocol.umessage import request
from ustreamer.uprotocol.uuri import UUri

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
    opened = bound((host, 0))
    stack.callback(opened.close)
    return opened


def found(opened: socket.socket) -> list[bytes]:
    """What has come, which on loopback is there when it has been sent."""
    datagrams = []
    while select.select([opened], [], [], 0)[0]:
        datagrams.append(opened.recv(2_048))
    return datagrams


# ----------------------------------------------------------------------------------------------------------- one socket


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_what_one_sender_sends_comes_there_and_all_else_to_the_own_one(stack: ExitStack, host: str) -> None:
    endpoint, ecu = own(stack, host), peer(stack)
    opened = beside([endpoint], ecu.address, BUFFER)
    stack.callback(opened.close)
    to = ("127.0.0.1", endpoint.getsockname()[1])
    same_host, other_host = peer(stack), peer(stack, "127.0.0.2")
    for number, each in enumerate((ecu, same_host, other_host, ecu)):
        each.socket.sendto(b"%d" % number, to)
    assert found(opened) == [b"0", b"3"]
    assert found(endpoint) == [b"1", b"2"]


@pytest.mark.parametrize("stranger", ["127.0.0.1", "127.0.0.2"])
def test_before_it_is_connected_nobody_else_gets_in_either(stack: ExitStack, stranger: str) -> None:
    """Bound and not connected yet, any datagram reaches it: the filter is what keeps it out."""
    ecu, other = peer(stack), peer(stack, stranger)
    opened = own(stack)
    accept_only(opened, ecu.address)
    for each in (other, ecu, other):
        each.socket.sendto(str(each).encode(), opened.getsockname())
    assert found(opened) == [str(ecu).encode()]


def test_the_filter_is_there_before_the_address(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def noting(opened: socket.socket, sender: tuple[str, int]) -> None:
        seen.append(opened.getsockname())
        accept_only(opened, sender)

    monkeypatch.setattr(direct, "accept_only", noting)
    stack.callback(beside([own(stack)], peer(stack).address, BUFFER).close)
    assert seen == [("0.0.0.0", 0)]  # which is none


def test_nobody_else_can_take_the_address(stack: ExitStack) -> None:
    endpoint = own(stack)
    opened = beside([endpoint], peer(stack).address, BUFFER)
    stack.callback(opened.close)
    thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(thief.close)
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with pytest.raises(OSError, match="in use"):
        thief.bind(endpoint.getsockname())


def test_if_it_cannot_be_had_all_is_as_it_was(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOPROTOOPT, "no filters here")

    monkeypatch.setattr(direct, "accept_only", refused)
    endpoint, ecu, poller = own(stack), peer(stack), Poller()
    stack.callback(poller.close)
    sockets = Direct(lambda datagrams, sender: None)
    sockets.open(endpoint, [ecu.address], BUFFER, poller)
    assert len(sockets) == 0
    ecu.socket.sendto(b"1", endpoint.getsockname())
    assert found(endpoint) == [b"1"]
    assert endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


def test_there_are_so_many_and_the_others_come_to_the_own_one(stack: ExitStack) -> None:
    endpoint, poller = own(stack), Poller()
    stack.callback(poller.close)
    ecus = [peer(stack) for _ in range(MAX_SOCKETS + 2)]
    taken: list[tuple[bytes, tuple[str, int]]] = []

    def take(datagrams: Sequence[bytes], sender: tuple[str, int]) -> None:
        taken.extend((each, sender) for each in datagrams)

    sockets = Direct(take)
    stack.callback(sockets.close)
    sockets.open(endpoint, [each.address for each in (*ecus, *ecus)], BUFFER, poller)
    assert len(sockets) == MAX_SOCKETS
    for each in ecus:
        each.socket.sendto(str(each).encode(), endpoint.getsockname())
    poller.wait(0)
    assert sorted(taken) == sorted((str(each).encode(), each.address) for each in ecus[:MAX_SOCKETS])
    assert found(endpoint) == [str(each).encode() for each in ecus[MAX_SOCKETS:]]
    sockets.close()
    assert len(sockets) == 0


def test_what_icmp_says_of_something_sent_is_no_end_of_receiving(stack: ExitStack) -> None:
    endpoint, ecu, poller = own(stack), peer(stack), Poller()
    stack.callback(poller.close)
    taken: list[bytes] = []
    sockets = Direct(lambda datagrams, sender: taken.extend(datagrams))
    stack.callback(sockets.close)
    sockets.open(endpoint, [ecu.address], BUFFER, poller)
    ecu.socket.close()
    for _ in range(3):
        endpoint.sendto(b"is there anybody?", ecu.address)
    (opened,) = sockets._sockets
    with pytest.raises(ConnectionRefusedError):  # as it is without the precaution
        opened.recv(10)
    endpoint.sendto(b"is there anybody?", ecu.address)
    poller.wait(0)
    back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(back.close)
    back.bind(ecu.address)
    endpoint.sendto(b"now?", ecu.address)
    back.sendto(b"here", endpoint.getsockname())
    poller.wait(0)
    assert taken == [b"here"]


# ------------------------------------------------------------------------------------------------------- the endpoint


@pytest.fixture
def bench(stack: ExitStack) -> Bench:
    bench = Bench(stack)
    bench.endpoint.open()
    assert len(bench.endpoint._direct) == 1
    return bench


def test_an_endpoint_hears_its_ecu_and_everybody_else_as_before(bench: Bench, stack: ExitStack) -> None:
    """The ECU from its own port, from another one, and somebody who is not believed."""
    bench.ecu.send(bench.endpoint, EVENT)
    assert bench.ears.next().attributes.source == TOPIC
    bench.second.send(bench.endpoint, EVENT)
    assert bench.ears.next().attributes.source == TOPIC
    peer(stack, "127.0.0.2").send(bench.endpoint, EVENT)
    wait_until(lambda: bench.endpoint.statistics()[f"refused_{Refusal.EVENT_ADDRESS}"] == 1)
    statistics = bench.endpoint.statistics()
    assert (statistics["datagrams"], statistics["received"]) == (3, 2)


def test_what_is_no_event_is_taken_from_there_too_in_its_order(bench: Bench) -> None:
    """A request is answered to where it came from, and what is malformed is counted."""
    bench.ecu.send(bench.endpoint, EVENT, OPEN_DOOR, EVENT, b"short", EVENT[:-1], EVENT + EVENT)
    kinds = [bench.ears.next().attributes.type.name for _ in range(5)]
    assert kinds == ["PUBLISH", "REQUEST", "PUBLISH", "PUBLISH", "PUBLISH"]
    wait_until(lambda: bench.endpoint.statistics()["datagrams"] == 6)
    assert sum(n for name, n in bench.endpoint.statistics().items() if name.startswith("refused_")) == 2


def test_answers_go_their_short_way_from_there_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together with events, and in their order."""
    taken: list[bytes] = []
    monkeypatch.setattr(bench.endpoint, "_take", lambda datagram, address: taken.append(datagram))
    answers = []
    for _ in range(3):
        bench.endpoint.send(request(bench.ids.next(), APP, METHOD, b"hi", ttl=30_000))
        asked = bench.ecu.receive()
        answers.append(asked[:14] + b"\x80" + asked[15:])
    bench.ecu.send(bench.endpoint, answers[0], EVENT, *answers[1:], EVENT)
    kinds = [bench.ears.next().attributes.type.name for _ in range(5)]
    assert kinds == ["RESPONSE", "PUBLISH", "RESPONSE", "RESPONSE", "PUBLISH"]
    assert taken == []


def test_an_ecu_that_was_away_is_heard_when_it_is_back(bench: Bench, stack: ExitStack) -> None:
    bench.ecu.socket.close()
    for _ in range(3):
        bench.endpoint.send(request(bench.ids.next(), APP, METHOD, b"hi", ttl=30_000))
    back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(back.close)
    back.bind(bench.ecu.address)
    back.settimeout(30)
    bench.endpoint.send(request(bench.ids.next(), APP, METHOD, b"hi", ttl=30_000))
    asked = back.recv(2_048)
    assert asked[:4] == REQUEST[:4]
    back.sendto(asked[:14] + b"\x80" + asked[15:], bench.endpoint.address)
    back.sendto(EVENT, bench.endpoint.address)
    assert [bench.ears.next().attributes.type.name for _ in range(2)] == ["RESPONSE", "PUBLISH"]


def test_a_flood_of_one_sender_keeps_nobody_else_from_being_heard(bench: Bench) -> None:
    for _ in range(20):
        bench.ecu.send(bench.endpoint, *[EVENT] * 100)
        bench.second.send(bench.endpoint, OPEN_DOOR)
    kinds = [bench.ears.next().attributes.type.name for _ in range(2_020)]
    assert (kinds.count("PUBLISH"), kinds.count("REQUEST")) == (2_000, 20)
