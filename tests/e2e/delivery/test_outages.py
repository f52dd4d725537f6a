# SPDX-License-Identifier: Apache-2.0
"""Half a minute without an egress, at 200 messages a second: everything is accounted for, arrives in order, and once.

The outages run side by side, each with a streamer of its own. The negative control is the same outage with a replay
window of 0: what was put into the dying link is then lost, and the books do not know it.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.delivery.outage_scenarios import (
    DETECTION_S,
    HZ,
    LEASE_S,
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
    "packets swallowed": acknowledged_and_lost,
}
REPLAY_MS: Final = 15_000


def run_outages(directory: Path, seconds: float) -> dict[str, OutageOutcome]:
    """All outages, side by side, and the dropping of packets without a replay window."""
    with ThreadPoolExecutor() as side_by_side:
        futures = {
            name: side_by_side.submit(outage, directory / name.replace(" ", "-"), seconds, REPLAY_MS)
            for name, outage in OUTAGES.items()
        }
        futures["control"] = side_by_side.submit(packets_dropped, directory / "control", seconds, 0)
        return {name: future.result() for name, future in futures.items()}


@pytest.fixture(scope="module")
def terminal(pytestconfig: pytest.Config) -> pytest.TerminalReporter:
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    why = unsupported_reason()
    if why:
        reporter.write_line(f"no cable to cut ({why}): a relay that swallows everything stands in for it")
    return reporter


@pytest.fixture(scope="module")
def half_a_minute(
    tmp_path_factory: pytest.TempPathFactory,
    terminal: pytest.TerminalReporter,
) -> dict[str, OutageOutcome]:
    return run_outages(tmp_path_factory.mktemp("outages"), 30)


def assert_at_least_once(outcome: OutageOutcome) -> None:
    """accepted = delivered + dead-lettered + expired; duplicates under 1 %; none out of order."""
    ledger = outcome.ledger
    assert_ledger_balanced(ledger)
    ended = ledger["dead_lettered"] + ledger["expired"]
    assert len(outcome.lost) <= ended, outcome
    assert len(outcome.first_received) + ended >= outcome.sent, outcome
    assert outcome.duplicates < outcome.sent / 100, outcome
    assert outcome.first_received == sorted(outcome.first_received), outcome


@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_of_half_a_minute_loses_nothing_and_keeps_the_order(
    half_a_minute: dict[str, OutageOutcome], name: str
) -> None:
    assert_at_least_once(half_a_minute[name])


@pytest.mark.soak  # not yet always: see docs/delivery.md, What is not promised
def test_a_router_that_stands_still_while_it_gets_what_has_waited_loses_nothing(tmp_path: Path) -> None:
    """Zenoh closes its link and says so seconds later. What was on its way at full speed comes twice, in part."""
    stalled = router_stalled(tmp_path / "stalled", 30, REPLAY_MS)
    assert_ledger_balanced(stalled.ledger)
    assert stalled.lost == [], stalled
    assert stalled.first_received == sorted(stalled.first_received), stalled
    assert stalled.replayed, stalled


def test_without_a_replay_window_what_was_put_into_a_dying_link_is_lost(
    half_a_minute: dict[str, OutageOutcome],
) -> None:
    control = half_a_minute["control"]
    assert_ledger_balanced(control.ledger)  # the books cannot know
    assert control.ledger["dead_lettered"] == 0
    assert control.ledger["expired"] == 0
    # All that was put until it was noticed that nothing is taken.
    assert len(control.lost) > HZ * DETECTION_S / 2, control
    assert half_a_minute["packets dropped"].replayed > HZ * DETECTION_S / 2
    # What is acknowledged and lost is noticed when the lease is over.
    assert half_a_minute["packets swallowed"].replayed > HZ * LEASE_S / 2


@pytest.mark.soak
def test_an_outage_of_five_minutes_loses_nothing_and_keeps_the_order(
    tmp_path: Path, terminal: pytest.TerminalReporter
) -> None:
    outcomes = run_outages(tmp_path, 300)
    for name, outcome in outcomes.items():
        terminal.write_line(f"{name}: {outcome}")
    for name in OUTAGES:
        assert_at_least_once(outcomes[name])
    assert outcomes["control"].lost
