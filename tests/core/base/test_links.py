# SPDX-License-Identifier: Apache-2.0
"""Link states as tables, and against a model that counts."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.base.links import LinkState, LinkStates

ENDPOINTS = {"hpc": "backbone", "cloud": "backbone", "chassis": "chassis"}
UP, DOWN = True, False


def links() -> LinkStates:
    return LinkStates(ENDPOINTS.get)


@pytest.mark.parametrize(
    ("reports", "link"),
    [
        ([], LinkState(UP, 0)),  # no report yet
        ([UP], LinkState(UP, 1)),
        ([DOWN], LinkState(DOWN, 0)),
        ([DOWN, UP], LinkState(UP, 1)),
        ([UP, DOWN], LinkState(DOWN, 1)),
        ([UP, DOWN, UP], LinkState(UP, 2)),
        ([UP, UP, UP], LinkState(UP, 3)),  # others joined
        ([DOWN, DOWN, UP, UP, DOWN, DOWN], LinkState(DOWN, 2)),
    ],
)
def test_a_link_has_its_last_reported_state_and_counts_link_ups(reports: list[bool], link: LinkState) -> None:
    known = links()
    for up in reports:
        known.set_state("backbone", up=up)
    assert known.state_of("hpc") == link


@pytest.mark.parametrize(
    ("authority", "link"),
    [
        pytest.param("hpc", LinkState(DOWN, 0), id="behind the endpoint"),
        pytest.param("cloud", LinkState(DOWN, 0), id="behind it too"),
        pytest.param("chassis", LinkState(UP, 0), id="behind one that never reported"),
        pytest.param("mars", LinkState(UP, 0), id="behind none"),
    ],
)
def test_a_report_covers_exactly_the_authorities_behind_the_endpoint(authority: str, link: LinkState) -> None:
    known = links()
    known.set_state("backbone", up=False)
    assert known.state_of(authority) == link


@pytest.mark.parametrize(
    ("reports", "link"),
    [
        ([], LinkState(UP, 1)),
        ([UP], LinkState(UP, 2)),
        ([DOWN], LinkState(DOWN, 0)),
        ([UP, DOWN], LinkState(DOWN, 1)),
    ],
)
def test_a_ready_peer_counts_as_a_link_up_but_does_not_raise_a_link_that_is_down(
    reports: list[bool], link: LinkState
) -> None:
    known, calls = links(), []
    for up in reports:
        known.set_state("backbone", up=up)
    known.watch(lambda: calls.append(known.state_of("hpc")))
    known.on_peer_joined("backbone")
    assert known.state_of("hpc") == link
    assert calls == [link] * link.up


def test_without_an_authority_table_every_link_is_up() -> None:
    known = LinkStates()
    known.set_state("backbone", up=False)
    assert known.state_of("hpc") == LinkState(UP, 0)


def test_watchers_are_called_after_every_change_and_only_then_and_find_the_new_state() -> None:
    known = links()
    seen: list[LinkState] = []
    known.watch(lambda: seen.append(known.state_of("hpc")))
    for up in (UP, UP, DOWN, DOWN, UP):
        known.set_state("backbone", up=up)
    assert seen == [LinkState(UP, 1), LinkState(UP, 2), LinkState(DOWN, 2), LinkState(UP, 3)]


def test_watchers_run_on_the_reporting_thread() -> None:
    known = links()
    threads: list[int] = []
    known.watch(lambda: threads.append(threading.get_ident()))
    noticing = threading.Thread(target=lambda: known.set_state("backbone", up=False))
    noticing.start()
    noticing.join(30)
    assert threads == [noticing.ident]


def test_an_exception_of_a_watcher_is_raised_after_all_watchers_ran() -> None:
    known = links()
    called: list[str] = []

    def broken() -> None:
        called.append("broken")
        raise ValueError("a plugin's mistake")

    for each in (lambda: called.append("first"), broken, lambda: called.append("last")):
        known.watch(each)
    with pytest.raises(ValueError, match="a plugin's mistake"):
        known.set_state("backbone", up=False)
    assert called == ["first", "broken", "last"]
    assert known.state_of("hpc") == LinkState(DOWN, 0)


def test_a_watcher_may_read_states_add_watchers_and_report() -> None:
    known = links()
    late: list[LinkState] = []

    def busy() -> None:
        if known.state_of("chassis").up:
            known.watch(lambda: late.append(known.state_of("chassis")))
            known.set_state("chassis", up=False)

    known.watch(busy)
    turning = threading.Thread(target=lambda: known.set_state("backbone", up=False), daemon=True)
    turning.start()
    turning.join(30)
    assert not turning.is_alive()
    assert late == [LinkState(DOWN, 0)]


def test_no_report_of_many_threads_is_lost() -> None:
    each, workers = 500, 4
    known = LinkStates(lambda authority: authority)
    together = threading.Barrier(workers)

    def flap(name: str) -> None:
        together.wait(30)
        for _ in range(each):
            known.set_state(name, up=True)
            known.set_state(name, up=False)

    threads = [threading.Thread(target=flap, args=(f"link {n}",), daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [known.state_of(f"link {n}") for n in range(workers)] == [LinkState(DOWN, each)] * workers


REPORTS = st.lists(st.tuples(st.sampled_from(["backbone", "chassis", "unused"]), st.booleans()), max_size=30)


@given(reports=REPORTS)
def test_links_equal_the_last_report_and_watchers_run_per_change(
    reports: list[tuple[str, bool]],
) -> None:
    known = links()
    calls: list[None] = []
    known.watch(lambda: calls.append(None))
    changes = 0
    for endpoint, up in reports:
        known.set_state(endpoint, up=up)
    for endpoint in ("backbone", "chassis", "unused"):
        own_reports = [up for name, up in reports if name == endpoint]
        # Reports that are changes: the first, each link-up, and a loss after a link-up.
        reported = [up for n, up in enumerate(own_reports) if n == 0 or up or own_reports[n - 1]]
        changes += len(reported)
        for authority in (name for name, place in ENDPOINTS.items() if place == endpoint):
            assert known.state_of(authority) == LinkState(reported[-1] if reported else UP, sum(reported))
    assert len(calls) == changes
