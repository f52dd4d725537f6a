# SPDX-License-Identifier: Apache-2.0
"""ECUs on a real link, beyond a cable into another network namespace: found, called, subscribed, served, and never quite there.

One play (`namespaces.py`) has all of it, and tshark reads what has gone over the cable. Where no namespace can be made, all of
this is skipped and says why; `test_discovery.py` shows the exchange itself on loopback.
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
REBOOTS: Final = 500
SOON_S: Final = 1.0
CYCLE_S: Final = 0.2
"""Between two Offers of an ECU of which nothing is said when the link comes up."""
ARP_S: Final = 1.0
"""Until the kernel asks again who has an address, if its first question was lost because the link was not quite up."""

# Agreed by hand, by scapy and by the package someip, before there was a streamer.
EVENT: Final = bytes.fromhex("123487780000000c000000070101020001020304")
GOLDEN_OFFER: Final = bytes.fromhex(
    "ffff8100000000300000000101010200c000000000000010010000101234567801000003000000000000000c"
    "000904007f0000010011772d"
)
GOLDEN_SUBSCRIBE: Final = bytes.fromhex(
    "ffff8100000000300000000301010200c000000000000010060000101234567801000003000044650000000c"
    "000904007f00000100119c40"
)


class Played(NamedTuple):
    outcome: NamespaceOutcome
    capture: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    why = unsupported_reason()
    if why:
        pytest.skip(f"no network namespaces on this machine: {why}")
    directory = tmp_path_factory.mktemp("namespaces")
    return Played(run_scenario_isolated(directory, PEERS, REBOOTS), directory / "cable.pcapng")


@pytest.fixture(scope="module")
def seen(played: Played) -> Dissection:
    skip_without_tshark()
    ports = played.outcome.ports
    udp = {ports.sd, ports.data, *played.outcome.data_ports}
    return dissect(played.capture, udp, {ports.tcp, ports.trunk})


def test_every_reboot_is_noticed_and_none_imagined(played: Played) -> None:
    """Among duplicates, datagrams that overtake each other, and session numbers that begin again."""
    outcome = played.outcome
    assert outcome.reboots == REBOOTS + ECU_KILLS
    assert outcome.reboots <= outcome.reboots_counted <= outcome.reboots + outcome.busy_gaps, outcome


def test_an_ecu_that_has_rebooted_is_subscribed_within_a_second_of_its_first_offer(played: Played) -> None:
    assert len(played.outcome.resubscribed) == REBOOTS
    assert max(played.outcome.resubscribed) < SOON_S + played.outcome.max_stall_s


def test_an_ecu_that_was_killed_is_subscribed_within_a_second_of_its_return(played: Played) -> None:
    assert len(played.outcome.after_kill) == ECU_KILLS
    assert max(played.outcome.after_kill) < SOON_S + played.outcome.max_stall_s


def test_a_link_that_comes_back_brings_the_subscription_back(played: Played) -> None:
    assert len(played.outcome.after_link) == 2
    assert max(played.outcome.after_link) < SOON_S + CYCLE_S + ARP_S + played.outcome.max_stall_s


def test_the_books_are_kept_through_all_of_it(played: Played) -> None:
    assert_ledger_balanced(played.outcome.ledger)


def test_an_independent_dissector_finds_no_frame_of_the_whole_play_malformed(seen: Dissection) -> None:
    assert seen.malformed_frames == []
    assert seen.expert_messages == []


def test_all_of_it_was_in_the_capture(seen: Dissection) -> None:
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
def test_a_planted_frame_is_found_malformed_and_golden_ones_are_not(
    tmp_path: Path, datagrams: list[bytes], malformed: int
) -> None:
    skip_without_tshark()
    write_datagrams(tmp_path / "planted.pcap", 30490, datagrams)
    seen = dissect(tmp_path / "planted.pcap", [30490])
    assert len(seen.malformed_frames) == malformed, seen
    assert seen.packets == len(datagrams)
