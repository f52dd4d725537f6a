# SPDX-License-Identifier: Apache-2.0
"""ECUs on a real link to another network namespace: found, called, subscribed and served, with reboots and link
losses.

One scenario (`namespace_scenario.py`) runs all steps, and tshark dissects the traffic. Without namespaces, the tests
are
skipped with a reason; `test_discovery.py` tests the message exchange on loopback.
"""

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e.discovery.namespace_scenario import ECU_KILLS, NamespaceOutcome, run_scenario_isolated
from tests.e2e.discovery.raw_sd_ecu import ACK_ENTRY, FIND_ENTRY, OFFER_ENTRY, SUBSCRIBE_ENTRY
from tests.e2e.rigs.cable import unsupported_reason
from tests.e2e.rigs.capture import Dissection, dissect, skip_without_tshark, write_datagrams
from tests.e2e.rigs.streamer import assert_ledger_balanced

PEERS: Final = 20
REBOOTS: Final = 120
SOON_S: Final = 1.0
CYCLE_S: Final = 0.2
"""The Offer cycle of an ECU that does not notice the link's return."""
ARP_S: Final = 1.0
"""The ARP retry interval of the kernel, if the first request was lost because the link was not yet up."""

# Checked by hand, by scapy and by the package someip, before the implementation existed.
EVENT: Final = bytes.fromhex("123487780000000c000000070101020001020304")
GOLDEN_OFFER: Final = bytes.fromhex(
    "ffff8100000000300000000101010200c000000000000010010000101234567801000003000000000000000c"
    "000904007f0000010011772d"
)
GOLDEN_SUBSCRIBE: Final = bytes.fromhex(
    "ffff8100000000300000000301010200c000000000000010060000101234567801000003000044650000000c"
    "000904007f00000100119c40"
)


class ScenarioRun(NamedTuple):
    outcome: NamespaceOutcome
    capture: Path


@pytest.fixture(scope="module")
def scenario_run(tmp_path_factory: pytest.TempPathFactory) -> ScenarioRun:
    why = unsupported_reason()
    if why:
        pytest.skip(f"no network namespaces on this machine: {why}")
    directory = tmp_path_factory.mktemp("namespaces")
    return ScenarioRun(run_scenario_isolated(directory, PEERS, REBOOTS), directory / "cable.pcapng")


@pytest.fixture(scope="module")
def seen(scenario_run: ScenarioRun) -> Dissection:
    skip_without_tshark()
    ports = scenario_run.outcome.ports
    udp = {ports.sd, ports.data, *scenario_run.outcome.data_ports}
    return dissect(scenario_run.capture, udp, {ports.tcp, ports.trunk})


def test_every_reboot_is_detected_exactly_once(scenario_run: ScenarioRun) -> None:
    """With duplicates, reordered datagrams and wrapped session numbers."""
    outcome = scenario_run.outcome
    assert outcome.reboots == REBOOTS + ECU_KILLS
    assert outcome.reboots <= outcome.reboots_counted <= outcome.reboots + outcome.busy_gaps, outcome


def test_a_rebooted_ecu_is_subscribed_within_a_second_of_its_first_offer(scenario_run: ScenarioRun) -> None:
    assert len(scenario_run.outcome.resubscribed) == REBOOTS
    assert max(scenario_run.outcome.resubscribed) < SOON_S + scenario_run.outcome.max_stall_s


def test_a_killed_ecu_is_subscribed_within_a_second_of_its_return(scenario_run: ScenarioRun) -> None:
    assert len(scenario_run.outcome.after_kill) == ECU_KILLS
    assert max(scenario_run.outcome.after_kill) < SOON_S + scenario_run.outcome.max_stall_s


def test_a_returning_link_restores_the_subscription(scenario_run: ScenarioRun) -> None:
    assert len(scenario_run.outcome.after_link) == 2
    assert max(scenario_run.outcome.after_link) < SOON_S + CYCLE_S + ARP_S + scenario_run.outcome.max_stall_s


def test_the_ledger_is_balanced_at_the_end(scenario_run: ScenarioRun) -> None:
    assert_ledger_balanced(scenario_run.outcome.ledger)


def test_an_independent_dissector_finds_no_malformed_frame(seen: Dissection) -> None:
    assert seen.malformed_frames == []
    assert seen.expert_messages == []


def test_the_capture_contains_every_kind_of_traffic(seen: Dissection) -> None:
    assert seen.packets > 10 * REBOOTS / 2
    assert seen.over_tcp >= 5
    assert seen.segments >= 3 * 4
    assert seen.reassembled >= 3
    there = {key for key, count in seen.entries.items() if count}
    stopped = True
    for kind in (FIND_ENTRY, OFFER_ENTRY, SUBSCRIBE_ENTRY, ACK_ENTRY):
        assert (kind, not stopped) in there, seen.entries
    assert seen.entries[OFFER_ENTRY, not stopped] > REBOOTS
    assert seen.entries[ACK_ENTRY, not stopped] > REBOOTS
    assert (OFFER_ENTRY, stopped) in there, seen.entries
    assert seen.reboots[True]
    assert seen.reboots[False], "no session number has wrapped"


@pytest.mark.parametrize(
    ("datagrams", "malformed"),
    [
        ([EVENT, GOLDEN_OFFER, GOLDEN_SUBSCRIBE], 0),
        ([EVENT, GOLDEN_OFFER[:-6], GOLDEN_SUBSCRIBE], 1),
        ([EVENT[:-2]], 1),
    ],
    ids=["golden", "an offer cut off", "an event cut off"],
)
def test_the_dissector_detects_a_malformed_frame(
    tmp_path: Path, datagrams: list[bytes], malformed: int
) -> None:
    skip_without_tshark()
    write_datagrams(tmp_path / "planted.pcap", 30490, datagrams)
    seen = dissect(tmp_path / "planted.pcap", [30490])
    assert len(seen.malformed_frames) == malformed, seen
    assert seen.packets == len(datagrams)
