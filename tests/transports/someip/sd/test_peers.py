# SPDX-License-Identifier: Apache-2.0
import pytest

from ustreamer.transports.someip.sd.peers import Peer, Peers

SECOND = 1_000_000_000


def addresses(number: int) -> list[tuple[str, int]]:
    return [(f"10.0.0.{each}", 30490) for each in range(1, number + 1)]


def test_a_newcomer_takes_the_place_of_the_one_that_was_silent_longest_and_is_not_in_use() -> None:
    first, second, third, fourth = addresses(4)
    peers = Peers(3, 10, in_use=lambda address: address == second)
    for address in (first, second, third, first):
        assert peers.heard(address, 0) is not None

    known = peers.heard(first, 0)
    assert peers.heard(fourth, 0) is not None  # for `third`
    assert peers.heard(first, 0) is known
    assert len(peers) == 3


def test_there_is_no_room_while_all_are_in_use() -> None:
    peers = Peers(2, 10, in_use=lambda _: True)
    assert [peers.heard(address, 0) is not None for address in addresses(3)] == [True, True, False]
    assert len(peers) == 2


def test_unicasts_are_numbered_for_each_peer() -> None:
    one, other = addresses(2)
    peers = Peers(2, 10, in_use=lambda _: False)
    for address in (one, other):
        peers.heard(address, 0)
    assert [peers.number(one), peers.number(one), peers.number(other)] == [(1, True), (2, True), (1, True)]


def test_a_peer_that_was_forgotten_never_hears_a_number_again() -> None:
    one, other, third = addresses(3)
    peers = Peers(1, 10, in_use=lambda _: False)
    heard: dict[tuple[str, int], list[int]] = {one: [], other: [], third: []}
    for address in (one, other, one, third, one, other):
        peers.heard(address, 0)
        heard[address] += [peers.number(address)[0] for _ in range(5)]
    peers.heard(third, 0)
    heard[one] += [peers.number(one)[0] for _ in range(2)]  # an answer to one that is gone
    for numbers in heard.values():
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ([(0, 10), (0, 1)], [True, False]),
        ([(0, 10), (SECOND, 5), (SECOND, 1)], [True, True, False]),
        ([(0, 4), (100 * SECOND, 10), (100 * SECOND, 1)], [True, True, False]),
        ([(SECOND, 10), (0, 1)], [True, False]),  # a clock that goes back earns nothing
        ([(0, 11), (0, 10)], [False, True]),
    ],
)
def test_a_peer_gets_its_burst_and_then_its_rate(asked: list[tuple[int, int]], granted: list[bool]) -> None:
    peer = Peer(("10.0.0.1", 30490), 0, 10, 0)
    assert [peer.may(entries, 5, 10, now) for now, entries in asked] == granted
