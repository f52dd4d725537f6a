# SPDX-License-Identifier: Apache-2.0
"""Admission without sockets: refusals, address groups, and the connection that ends for others."""

import pytest
from ustreamer_wamp.connections.admission import (
    CPU_BURST_NS,
    MAX_TRACKED_GROUPS,
    Admission,
    AdmissionLimits,
    Precedence,
    address_group_of,
)

S = 10**9


class Client:
    """A connection with the members that the admission uses."""

    def __init__(self, group: str, precedence: Precedence = Precedence.UNFINISHED) -> None:
        self.address_group = group
        self.precedence = precedence

    def evict(self, reason: str) -> None:
        raise AssertionError("the caller ends connections")


def filled(limits: AdmissionLimits, *groups: tuple[str, int, Precedence]) -> tuple[Admission, list[Client]]:
    """An admission with that many connections of each group."""
    admission = Admission(limits)
    clients = [Client(group, precedence) for group, count, precedence in groups for _ in range(count)]
    for each in clients:
        admission.add(each)
    return admission, clients


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("", ""),
    ],
)
def test_a_group_is_an_address_or_a_network_of_64_bits(address: str, group: str) -> None:
    assert address_group_of(address) == group


def test_a_share_has_so_many_connections_and_other_shares_have_theirs() -> None:
    admission, (first, _) = filled(AdmissionLimits(per_address_group=2), ("a", 2, Precedence.USER))
    assert [admission.has_room(group) for group in ("a", "b")] == [False, True]
    admission.remove(first)
    admission.remove(first)  # once more changes nothing
    assert (len(admission), admission.has_room("a")) == (1, True)


def test_a_share_connects_so_often() -> None:
    admission = Admission(AdmissionLimits(per_address_group=3, connects_per_s=2))
    assert [admission.may_connect("a", 0) for _ in range(5)] == [True, True, True, False, False]
    assert admission.may_connect("b", 0)
    assert [admission.may_connect("a", 1 * S) for _ in range(3)] == [True, True, False]
    assert all(admission.may_connect("", 0) for _ in range(9)), "not Unix sockets"


def test_a_share_that_takes_too_much_cpu_time_is_not_read_until_it_is_refilled() -> None:
    admission = Admission(AdmissionLimits(cpu_percent=10))
    burst = CPU_BURST_NS
    assert admission.spend_cpu("a", burst, 0) == 0
    assert admission.spend_cpu("a", S // 100, 0) == S // 10, "10 ms of CPU time at a tenth of a core"
    assert admission.spend_cpu("a", 0, S // 20) == S // 20
    assert admission.spend_cpu("a", 0, S // 10) == 0
    assert admission.spend_cpu("b", burst, 0) == admission.spend_cpu("", 9 * burst, 0) == 0


def test_shares_that_connected_long_ago_are_forgotten() -> None:
    admission = Admission(AdmissionLimits())
    for number in range(MAX_TRACKED_GROUPS + 10):
        admission.may_connect(str(number), 0)
    assert len(admission._rates) == MAX_TRACKED_GROUPS


U, A, K = Precedence.UNFINISHED, Precedence.ANONYMOUS, Precedence.USER


@pytest.mark.parametrize(
    ("held", "ends"),
    [
        ([("a", 3, U), ("b", 1, U)], 2),  # the newest of the largest group
        ([("a", 1, U), ("a", 2, A), ("b", 1, A)], 0),  # unfinished before anonymous
        ([("a", 3, A), ("b", 2, U)], 4),  # also of a smaller group
        ([("a", 3, A), ("b", 1, A)], 2),
        ([("a", 3, K), ("b", 2, A)], 4),  # never a user
        ([("a", 3, K), ("b", 1, A)], None),  # b is not larger than the group of the new connection
        ([("a", 1, U), ("b", 1, U)], None),
    ],
)
def test_the_largest_group_gives_its_place_to_a_new_one(
    held: list[tuple[str, int, Precedence]], ends: int | None
) -> None:
    admission, clients = filled(AdmissionLimits(connections=4), *held)
    found = admission.largest("new")
    assert (found and clients.index(found)) == ends  # type: ignore[arg-type]  # one of the clients


def test_a_group_gets_no_place_of_its_own_connections() -> None:
    admission, _ = filled(AdmissionLimits(connections=3), ("a", 3, U))
    assert admission.is_full()
    assert admission.largest("a") is None


def test_the_group_that_holds_the_most_gives_up_its_largest_connection() -> None:
    limits = AdmissionLimits(unfinished_bytes=100)
    admission, (a, b, other) = filled(limits, ("a", 2, A), ("b", 1, A))
    assert admission.charge(other, 50) is None
    assert admission.charge(a, 20) is None
    assert admission.charge(b, 30) is None
    assert admission.charge(a, 25) is b, "55 bytes are of group a"
    admission.remove(b)
    assert admission.unfinished_bytes == 75
    assert admission.charge(a, 0) is None
    admission.remove(other)
    assert admission.unfinished_bytes == 0
    assert admission.charge(other, 1000) is None, "it has no place any more"
