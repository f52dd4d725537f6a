# SPDX-License-Identifier: Apache-2.0
"""Several runs of the kit at one subject: a Zenoh node stands for its network."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from uprotocol_tck import other_runs
from uprotocol_tck.case import NotJudged
from uprotocol_tck.other_runs import OtherRuns
from uprotocol_tck.probe import Network

DEADLINE_S = 10.0


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, node: str) -> Iterator[Callable[[], Network]]:
    """Opens a session of one network, whose node never restarts."""
    monkeypatch.setattr(other_runs, "SETTLE_S", 0.1)
    with ExitStack() as stack:

        def opened() -> Network:
            made = Network(node, DEADLINE_S)
            stack.callback(made.leave)
            return made

        yield opened


def test_no_two_runs_have_the_same_instance(
    network: Callable[[], Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_runs, "MAX_INSTANCE", 4)  # so that there are three
    runs = [OtherRuns(network()) for _ in range(3)]
    assert sorted(each.instance for each in runs) == [1, 2, 3]
    assert all(each.has(other.instance) is (each is not other) for each in runs for other in runs)


def test_the_entities_of_a_run_that_ended_belong_to_no_run(network: Callable[[], Network]) -> None:
    left = network()
    run, ended = OtherRuns(network()), OtherRuns(left)
    assert run.has(ended.instance)
    left.leave()
    until_s, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while run.has(ended.instance):  # until the node of the network knows the end
        assert time.monotonic() < until_s
        pause.wait(0.01)


def test_a_run_without_others_disturbs_at_once(network: Callable[[], Network]) -> None:
    notes: list[str] = []
    run = OtherRuns(network(), notes.append)
    for _ in range(2):
        with run.exclusive():
            pass
    assert notes == []


def test_of_two_runs_that_wait_one_disturbs_at_a_time(network: Callable[[], Network]) -> None:
    """Each enters its exclusive part once, and leaves the network after it."""
    networks = [network(), network()]
    runs = [OtherRuns(each) for each in networks]
    inside, entered = threading.Semaphore(1), []

    def disturb(run: OtherRuns, own: Network) -> None:
        with run.exclusive():
            assert inside.acquire(blocking=False), "two runs disturb at a time"
            entered.append(run)
            inside.release()
        own.leave()

    threads = [threading.Thread(target=disturb, args=each) for each in zip(runs, networks, strict=True)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(3 * DEADLINE_S)
    assert len(entered) == 2
    assert {*entered} == {*runs}


def test_a_run_does_not_wait_without_end(network: Callable[[], Network]) -> None:
    notes: list[str] = []
    busy, run = OtherRuns(network()), OtherRuns(network(), notes.append, wait_s=0.1)
    with pytest.raises(NotJudged, match="another run of the kit is at the subject for more than 0.1 s"):
        run.exclusive().__enter__()
    assert notes == ["another run of the kit is at the subject; this run waits up to 0.1 s"]
    assert busy.has(run.instance)


def test_a_run_does_not_begin_while_another_one_disturbs(network: Callable[[], Network]) -> None:
    disturbing = OtherRuns(network())
    with (
        disturbing.exclusive(),
        pytest.raises(NotJudged, match="another run of the kit disturbs the subject for more than 0.1 s"),
    ):
        OtherRuns(network(), wait_s=0.1)
    OtherRuns(network(), wait_s=DEADLINE_S)


def test_what_another_run_needs_for_itself_is_left_while_this_one_waits(
    network: Callable[[], Network],
) -> None:
    other = network()
    OtherRuns(other)
    run = OtherRuns(network(), wait_s=DEADLINE_S)
    steps = []

    class Away:
        def __enter__(self) -> None:
            steps.append("left")
            other.leave()

        def __exit__(self, *_: object) -> None:
            steps.append("returned")

    with run.exclusive(Away):
        steps.append("disturbs")
    assert steps == ["left", "returned", "disturbs"]
