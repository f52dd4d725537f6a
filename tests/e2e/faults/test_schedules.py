# SPDX-License-Identifier: Apache-2.0
"""The schedules of seeds."""

from tests.e2e.faults.schedules import DURATIONS_S, ROUTER_FAULTS, schedule_of


def test_a_seed_always_gives_the_same_schedule() -> None:
    assert [schedule_of(seed) for seed in range(50)] == [schedule_of(seed) for seed in range(50)]


def test_even_seeds_have_one_fault_and_odd_seeds_two_of_different_nodes() -> None:
    for seed in range(200):
        kinds = [each.kind.split()[-1] for each in schedule_of(seed).faults]
        assert len(kinds) == len(set(kinds)) == 1 + seed % 2


def test_a_hundred_seeds_have_every_fault_and_router_faults_only_with_a_router() -> None:
    schedules = [schedule_of(seed) for seed in range(100)]
    assert {fault.kind for each in schedules for fault in each.faults} == DURATIONS_S.keys()
    for each in schedules:
        assert each.has_router or not ROUTER_FAULTS & {fault.kind for fault in each.faults}
    assert len({(each.has_router, each.durable, each.protocol) for each in schedules}) == 8
