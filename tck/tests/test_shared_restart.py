# SPDX-License-Identifier: Apache-2.0
"""Cases that restart the subject run next to each other, and share the restart."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from uprotocol_tck.case import Case, CaseFailed, Need, NotJudged
from uprotocol_tck.runner import _grouped_by_restart
from uprotocol_tck.shared_restart import SharedRestart
from uprotocol_tck.stop import Stop

DEADLINE_S = 20.0


class _Subject:
    """Counts its restarts."""

    def __init__(self) -> None:
        self.restarts = 0

    def restart(self) -> float:
        self.restarts += 1
        return float(self.restarts)


def _run(*bodies: Callable[[SharedRestart], float], stop: Stop | None = None) -> list[float | Exception]:
    """Run bodies next to each other; the result or the exception of each."""
    shared = SharedRestart(len(bodies), stop or Stop())

    def run(body: Callable[[SharedRestart], float]) -> float:
        try:
            return body(shared)
        finally:
            shared.leave()

    with ThreadPoolExecutor(len(bodies)) as pool:
        futures = [pool.submit(run, each) for each in bodies]
        return [each.exception(DEADLINE_S) or each.result() for each in futures]  # type: ignore[misc]


def test_the_subject_restarts_once_for_all_cases() -> None:
    subject = _Subject()
    assert _run(*[lambda shared: shared.restart(subject.restart)] * 3) == [1.0, 1.0, 1.0]
    assert subject.restarts == 1


def test_a_second_restart_is_of_those_that_still_run() -> None:
    subject = _Subject()

    def twice(shared: SharedRestart) -> float:
        shared.restart(subject.restart)
        return shared.restart(subject.restart)

    assert _run(twice, twice, lambda shared: shared.restart(subject.restart)) == [2.0, 2.0, 1.0]


def test_a_case_that_ends_before_the_restart_is_not_awaited() -> None:
    subject = _Subject()
    assert _run(lambda shared: shared.restart(subject.restart), lambda _: 0.0) == [1.0, 0.0]


def test_a_restart_that_fails_fails_every_case() -> None:
    def fails() -> float:
        raise CaseFailed("--restart exits with 1")

    found = _run(*[lambda shared: shared.restart(fails)] * 2)
    assert [str(each) for each in found] == ["--restart exits with 1"] * 2


def test_the_end_of_the_run_ends_the_wait_for_the_other_cases() -> None:
    stop = Stop()

    def stops(shared: SharedRestart) -> float:
        stop.set("Ctrl-C")
        with pytest.raises(NotJudged):
            shared.restart(_Subject().restart)
        return 0.0

    waits, stopped = _run(lambda shared: shared.restart(_Subject().restart), stops, stop=stop)
    assert isinstance(waits, NotJudged)
    assert stopped == 0.0


def test_cases_that_reset_before_the_restart_are_a_group_of_their_own() -> None:
    needs = [(), (Need.RESET, Need.RESTART), (Need.RESTART,), (Need.RESTART, Need.OTHER), (Need.RESET,)]
    cases = [
        Case(f"{number}", (), "streamer", "", lambda _: None, each, 0, True)
        for number, each in enumerate(needs)
    ]
    groups = _grouped_by_restart(enumerate(cases))
    assert [[number for number, _ in each] for each in groups] == [[0], [1], [2, 3], [4]]
