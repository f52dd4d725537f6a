# SPDX-License-Identifier: Apache-2.0
"""R9: ECUs that reboot, behind a real cable, and session numbers of which none may count as a reboot."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.discovery.namespace_scenario import ECU_KILLS, run_scenario_isolated
from tests.e2e.rigs.cable import unsupported_reason
from ustreamer.transports.someip.sd.sessions import PeerSessions, SessionVerdict, session_and_reboot_flag

PEERS: Final = 20
REBOOTS_PER_RUN: Final = 120
MESSAGES: Final = 1_000_000
STEP_NS: Final = 2_000_000
PER_MILLE_LOST, PER_MILLE_TWICE, PER_MILLE_LATE = 20, 20, 20


def test_each_reboot_of_an_ecu_is_detected_once(tmp_path: Path, trials: int) -> None:
    if reason := unsupported_reason():
        pytest.skip(f"no network namespace: {reason}")
    for number in range(0, trials, REBOOTS_PER_RUN):
        directory = tmp_path / str(number)
        directory.mkdir()
        found = run_scenario_isolated(directory, PEERS, min(REBOOTS_PER_RUN, trials - number))
        detected = found.reboots_counted
        missed, extra = max(0, found.reboots - detected), max(0, detected - found.reboots)
        print(f"reboots={found.reboots} detected={detected} undetected={missed}")
        # The rig counts how often it sent a duplicate so late that the datagram counts as a reboot.
        print(f"false={max(0, extra - found.busy_gaps)} late_by_the_rig={found.busy_gaps}")
        resubscribed = max((*found.resubscribed, *found.after_kill))
        print(f"resubscribe_s={resubscribed:.2f} rig_stall_s={found.max_stall_s:.2f}")
        assert len(found.after_kill) == ECU_KILLS


def _sent(rng: random.Random) -> Iterator[tuple[int, bool]]:
    """(number, multicast) in order of arrival: some are lost, some come twice, some after their successor."""
    counts, late = {True: 0, False: 0}, None
    for _ in range(MESSAGES):
        multicast = rng.random() < 0.5
        counts[multicast] += 1
        now, chance = (counts[multicast], multicast), rng.randrange(1_000)
        if chance < PER_MILLE_LOST:
            continue
        if chance < PER_MILLE_LOST + PER_MILLE_LATE and late is None:
            late = now
            continue
        yield now
        if chance >= 1_000 - PER_MILLE_TWICE:
            yield now
        if late is not None:
            yield late
            late = None


def test_no_million_of_messages_of_one_life_has_a_reboot(seed: int) -> None:
    """Session numbers wrap seven times per channel, and the reboot flag falls at the first wrap."""
    sessions, found = PeerSessions(), dict.fromkeys(SessionVerdict, 0)
    for at, (number, multicast) in enumerate(_sent(random.Random(seed))):
        session, flag = session_and_reboot_flag(number)
        found[sessions.observe(session, flag, multicast, number << 1 | multicast, at * STEP_NS)] += 1
    print(f"messages={MESSAGES} false={found[SessionVerdict.REBOOT]}")
    print(f"late={found[SessionVerdict.LATE]} duplicates={found[SessionVerdict.DUPLICATE]}")
    # The control: the same peer in a second life.
    assert sessions.observe(1, True, True, 1, MESSAGES * 2 * STEP_NS) is SessionVerdict.REBOOT
