# SPDX-License-Identifier: Apache-2.0
"""An egress outage that is longer than the lease, at 200 messages per second: nothing is lost, reordered or
duplicated.

The outages run in parallel, each with its own streamer. The negative control is the same outage with a replay window
of 0: the messages written into the dying link are then lost, and the ledger counts them as delivered.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.delivery.outage_scenarios import (
    DETECTION_S,
    HZ,
    LEASE_S,
    MAX_LOST_IN_KILL,
    Outage,
    OutageOutcome,
    acknowledged_and_lost,
    packets_dropped,
    router_killed,
    router_stalled,
    subscriber_killed,
)
from tests.e2e.rigs.cable import unsupported_reason
from tests.e2e.rigs.streamer import assert_ledger_balanced

OUTAGES: Final[dict[str, Outage]] = {
    "subscriber killed": subscriber_killed,
    "router killed": router_killed,
    "packets dropped": packets_dropped,
    "acknowledged and lost": acknowledged_and_lost,
}
REPLAY_MS: Final = 15_000
OUTAGE_S: Final = LEASE_S + 5.0
"""Zenoh closes a link without packets when the lease of 10 s has expired."""


def run_outages(directory: Path, seconds: float) -> dict[str, OutageOutcome]:
    """Run all outages in parallel, and packet drop without a replay window."""
    with ThreadPoolExecutor() as pool:
        futures = {
            name: pool.submit(outage, directory / name.replace(" ", "-"), seconds, REPLAY_MS)
            for name, outage in OUTAGES.items()
        }
        futures["control"] = pool.submit(packets_dropped, directory / "control", seconds, 0)
        return {name: future.result() for name, future in futures.items()}


@pytest.fixture(scope="module")
def terminal(pytestconfig: pytest.Config) -> pytest.TerminalReporter:
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    why = unsupported_reason()
    if why:
        reporter.write_line(f"no cable to cut ({why}): a relay that drops everything replaces it")
    return reporter


@pytest.fixture(scope="module")
def outages(
    tmp_path_factory: pytest.TempPathFactory,
    terminal: pytest.TerminalReporter,
) -> dict[str, OutageOutcome]:
    return run_outages(tmp_path_factory.mktemp("outages"), OUTAGE_S)


def assert_at_least_once(name: str, outcome: OutageOutcome) -> None:
    """Check accepted = delivered + dead-lettered + expired, the order, and fewer duplicates than 3 s of traffic.

    A router that is cut off, or killed with unread data, may have been frozen for 2.6 s.
    """
    ledger = outcome.ledger
    assert_ledger_balanced(ledger)
    ended = ledger["dead_lettered"] + ledger["expired"]
    if name == "subscriber killed":
        ended += min(len(outcome.lost), MAX_LOST_IN_KILL)
    assert len(outcome.lost) <= ended, outcome
    assert len(outcome.first_received) + ended >= outcome.sent, outcome
    assert outcome.duplicates < 3 * HZ, outcome
    assert outcome.first_received == sorted(outcome.first_received), outcome


@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_longer_than_the_lease_loses_nothing_and_keeps_the_order(
    outages: dict[str, OutageOutcome], name: str
) -> None:
    assert_at_least_once(name, outages[name])


@pytest.mark.soak
def test_a_router_that_stops_during_the_replay_of_queued_messages_loses_nothing(tmp_path: Path) -> None:
    """It stops for longer than a put waits by Zenoh's default."""
    stalled = router_stalled(tmp_path / "stalled", 30, REPLAY_MS)
    assert_ledger_balanced(stalled.ledger)
    assert stalled.lost == [], stalled
    assert stalled.first_received == sorted(stalled.first_received), stalled


def test_without_a_replay_window_messages_in_a_dying_link_are_lost(
    outages: dict[str, OutageOutcome],
) -> None:
    control = outages["control"]
    assert_ledger_balanced(control.ledger)  # the ledger cannot count this loss
    assert control.ledger["dead_lettered"] == 0
    assert control.ledger["expired"] == 0
    # All messages written before Zenoh detected the dead link.
    assert len(control.lost) > HZ * DETECTION_S / 2, control
    assert outages["packets dropped"].retransmitted > HZ * DETECTION_S / 2
    # Zenoh detects acknowledged but lost packets when the lease expires.
    assert outages["acknowledged and lost"].retransmitted > HZ * LEASE_S / 2


@pytest.mark.soak
def test_an_outage_of_five_minutes_loses_nothing_and_keeps_the_order(
    tmp_path: Path, terminal: pytest.TerminalReporter
) -> None:
    outcomes = run_outages(tmp_path, 300)
    for name, outcome in outcomes.items():
        terminal.write_line(f"{name}: {outcome}")
    for name in OUTAGES:
        assert_at_least_once(name, outcomes[name])
    assert outcomes["control"].lost
