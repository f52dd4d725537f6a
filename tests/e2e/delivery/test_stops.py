# SPDX-License-Identifier: Apache-2.0
"""A stop while the router of the subscriber is frozen or gone, and a router that hangs at a high rate.

Each missing message is named by a dead letter, or arrives after the next start if the endpoint is durable. The rounds
run in parallel, each with its own streamer.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.delivery.stop_scenarios import (
    HANGS_S,
    StopOutcome,
    assert_all_reported,
    router_hangs,
    stop_during_outage,
)

FAULTS: Final = ("freeze", pytest.param("kill", marks=pytest.mark.soak))
KINDS: Final = {"plain": False, "durable": True}
HANG_HZ: Final = 2_000
HANG_S: Final = 12.0


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[StopOutcome]]]:
    """All stops at 200 messages/s."""
    directory = tmp_path_factory.mktemp("stops")
    with ThreadPoolExecutor(3) as pool:
        yield {
            f"{fault} {kind}": pool.submit(
                stop_during_outage, directory / f"{fault}-{kind}", fault, durable=durable
            )
            for fault in ("freeze", "kill", "none")
            for kind, durable in KINDS.items()
        }


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stop_while_the_router_is_frozen_or_gone_reports_what_is_missing(
    stops: dict[str, Future[StopOutcome]], fault: str
) -> None:
    outcome = stops[f"{fault} plain"].result()
    assert_all_reported(outcome)
    assert outcome.missing, outcome
    if (
        fault == "freeze"
    ):  # after a kill, a busy machine may send all events to the queue: none is unconfirmed
        assert outcome.unconfirmed, outcome
    assert outcome.code == (75 if outcome.unconfirmed else 0), outcome


@pytest.mark.parametrize("fault", FAULTS)
def test_a_durable_endpoint_sends_after_the_next_start_what_a_stop_could_not_confirm(
    stops: dict[str, Future[StopOutcome]], fault: str
) -> None:
    outcome = stops[f"{fault} durable"].result()
    assert outcome.missing == set(), outcome
    assert (outcome.named, outcome.unconfirmed, outcome.code) == ([], 0, 0), outcome
    assert set(range(outcome.sent)) - set(outcome.received), outcome  # the outage cost something
    assert outcome.received_later == sorted(set(outcome.received_later)), outcome


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_with_a_healthy_router_confirms_every_message(
    stops: dict[str, Future[StopOutcome]], kind: str
) -> None:
    outcome = stops[f"none {kind}"].result()
    assert outcome.received == list(range(outcome.sent)), outcome
    assert (outcome.received_later, outcome.unconfirmed, outcome.code) == ([], 0, 0), outcome


@pytest.mark.soak  # in `make test` the simulation hangs a router at 2 000/s
@pytest.mark.parametrize("kind", KINDS)
def test_a_router_that_hangs_at_a_high_rate_loses_nothing(tmp_path: Path, kind: str) -> None:
    outcome = router_hangs(tmp_path / "hang", durable=KINDS[kind], hz=HANG_HZ, hang_s=HANG_S)
    assert_all_reported(outcome)
    assert outcome.missing == set(), outcome


@pytest.mark.soak  # in `make test` the simulation does it
def test_a_router_that_resumes_without_its_clients_loses_nothing(tmp_path: Path) -> None:
    """Whether it drops the subscriber depends on the times of keep-alives: each of these hangs does so in most runs."""
    hangs = HANGS_S["resume"]
    with ThreadPoolExecutor(len(hangs)) as pool:
        outcomes = pool.map(
            lambda each: router_hangs(tmp_path / str(each), durable=False, hz=200, hang_s=each), hangs
        )
        for outcome in outcomes:
            assert_all_reported(outcome)
            assert outcome.missing == set(), outcome
