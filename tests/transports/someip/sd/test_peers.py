# SPDX-License-Identifier: Apache-2.0
"""The peer table: its bounds, its rate limits and the session numbers of unicasts."""

import pytest
from someip.sd import _SessionStorage

from ustreamer.transports.someip.protocol.codec import MAX_SESSION
from ustreamer.transports.someip.sd.peers import MAX_PORTS_PER_HOST, HostRateLimiter, SdPeers

SECOND = 1_000_000_000


def addresses(number: int) -> list[tuple[str, int]]:
    return [(f"10.0.0.{each}", 30490) for each in range(1, number + 1)]


def test_a_new_peer_evicts_the_least_recently_active_idle_one() -> None:
    first, second, third, fourth = addresses(4)
    peers = SdPeers(3, 10, in_use=lambda address: address == second)
    for address in (first, second, third, first):
        assert peers.on_message(address, 0) is not None

    known = peers.on_message(first, 0)
    assert peers.on_message(fourth, 0) is not None  # for `third`
    assert peers.on_message(first, 0) is known
    assert len(peers) == 3


def test_no_peer_is_added_while_all_are_in_use() -> None:
    peers = SdPeers(2, 10, in_use=lambda _: True)
    assert [peers.on_message(address, 0) is not None for address in addresses(3)] == [True, True, False]
    assert len(peers) == 2


# [utest->SD-765]
def test_unicasts_are_numbered_for_each_peer() -> None:
    one, other = addresses(2)
    peers = SdPeers(2, 10, in_use=lambda _: False)
    for address in (one, other):
        peers.on_message(address, 0)
    assert [peers.next_session(one), peers.next_session(one), peers.next_session(other)] == [
        (1, True),
        (2, True),
        (1, True),
    ]


def test_unicast_numbers_wrap_without_a_reboot_for_an_independent_receiver() -> None:
    [peer] = addresses(1)
    peers, receiver = SdPeers(1, 10, in_use=lambda _: False), _SessionStorage()
    peers.on_message(peer, 0)
    numbers = [peers.next_session(peer) for _ in range(MAX_SESSION + 100)]
    assert numbers[MAX_SESSION - 1 : MAX_SESSION + 1] == [(MAX_SESSION, True), (1, False)]
    assert not any(receiver.check_received(peer, False, flag, session) for session, flag in numbers)


def test_an_evicted_peer_never_gets_a_session_number_twice() -> None:
    one, other, third = addresses(3)
    peers = SdPeers(1, 10, in_use=lambda _: False)
    numbers_of: dict[tuple[str, int], list[int]] = {one: [], other: [], third: []}
    for address in (one, other, one, third, one, other):
        peers.on_message(address, 0)
        numbers_of[address] += [peers.next_session(address)[0] for _ in range(5)]
    peers.on_message(third, 0)
    numbers_of[one] += [peers.next_session(one)[0] for _ in range(2)]  # a response to a peer that has left
    for numbers in numbers_of.values():
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("requests", "granted"),
    [
        ([(0, 10), (0, 1)], [True, False]),
        ([(0, 10), (SECOND, 5), (SECOND, 1)], [True, True, False]),
        ([(0, 4), (100 * SECOND, 10), (100 * SECOND, 1)], [True, True, False]),
        ([(SECOND, 10), (0, 1)], [True, False]),  # a clock step back adds no tokens
        ([(0, 11), (0, 10)], [False, True]),
    ],
)
def test_a_host_gets_its_burst_and_then_its_rate(
    requests: list[tuple[int, int]], granted: list[bool]
) -> None:
    host = HostRateLimiter(10, 0)
    assert [host.allow(entries, 5, 10, now) for now, entries in requests] == granted


def test_many_ports_do_not_raise_the_rate_of_a_host() -> None:
    peers = SdPeers(100, 10, in_use=lambda _: False)
    taken = 0
    for port in range(1, 1_000):
        peer = peers.on_message(("10.0.0.1", port), 0)
        assert peer is not None
        taken += peer.allow(1, 5, 10, 0)
    assert (taken, len(peers)) == (10, MAX_PORTS_PER_HOST)
    other = peers.on_message(("10.0.0.2", 30490), 0)
    assert other is not None
    assert other.allow(10, 5, 10, 0)


def test_ports_in_use_are_not_evicted() -> None:
    first = ("10.0.0.2", 30490)
    peers = SdPeers(2 * MAX_PORTS_PER_HOST, 10, in_use=lambda address: address != first)
    assert peers.on_message(first, 0) is not None
    found = [peers.on_message(("10.0.0.1", port), 0) for port in range(1, 100)]
    assert [each is not None for each in found] == [True] * MAX_PORTS_PER_HOST + [False] * (
        99 - MAX_PORTS_PER_HOST
    )
    assert len(peers) == MAX_PORTS_PER_HOST + 1


def test_an_eviction_does_not_reset_the_rate_limit_of_the_host() -> None:
    peers = SdPeers(1, 10, in_use=lambda _: False)
    one = peers.on_message(("10.0.0.1", 1), 0)
    assert one is not None
    assert one.allow(10, 5, 10, 0)
    again = peers.on_message(("10.0.0.1", 2), 0)
    assert again is not None
    assert not again.allow(1, 5, 10, 0)


def test_a_new_port_evicts_the_least_recently_active_one() -> None:
    peers = SdPeers(100, 10, in_use=lambda _: False)
    known = {port: peers.on_message(("10.0.0.1", port), 0) for port in range(MAX_PORTS_PER_HOST)}
    peers.on_message(("10.0.0.1", 0), 0)
    peers.on_message(("10.0.0.1", MAX_PORTS_PER_HOST), 0)
    assert peers.on_message(("10.0.0.1", 0), 0) is known[0]
    assert peers.on_message(("10.0.0.1", 1), 0) is not known[1]


def test_evicted_hosts_leave_no_state() -> None:
    peers = SdPeers(3, 10, in_use=lambda _: False)
    for number in range(1_000):
        peers.on_message((f"10.0.{number // 256}.{number % 256}", 30490), 0)
    assert (len(peers), len(peers._limiters)) == (3, 3)
