# SPDX-License-Identifier: Apache-2.0
"""R5 and R8: an egress that is away for a time, and a router that is killed or stalls again and again."""

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.e2e.delivery.outage_scenarios import OutageOutcome, router_killed
from tests.e2e.delivery.test_outages import OUTAGES, REPLAY_MS, run_outages
from tests.e2e.rigs.streamer import VERDICTS

AT_ONCE: Final = 3
SHORT_S: Final = 3.0
LONG_S: Final = 30.0


def unaccounted(outcome: OutageOutcome) -> int:
    """The messages that neither arrived nor ended in a verdict other than delivered."""
    ledger = outcome.ledger
    ended = ledger["dead_lettered"] + ledger["expired"]
    broken = abs(ledger["received"] - sum(ledger[each] for each in VERDICTS))
    return max(0, len(outcome.lost) - ended) + broken


def reordered(outcome: OutageOutcome) -> int:
    first = outcome.first_received
    return sum(later < earlier for earlier, later in pairwise(first))


def test_an_outage_loses_nothing(tmp_path: Path, trials: int) -> None:
    """`trials` is the length of the outage in s."""
    outcomes = run_outages(tmp_path, trials)
    for name in OUTAGES:
        each = outcomes[name]
        duplicates = 100 * each.duplicates / each.sent
        print(f"accepted={each.sent} lost={len(each.lost)} unaccounted={unaccounted(each)}")
        print(f"duplicates_percent={duplicates:.2f} reordered={reordered(each)}")
    print(f"outage_s={trials} outages={len(OUTAGES)} control_lost={len(outcomes['control'].lost)}")


def test_a_router_that_is_killed_loses_nothing(tmp_path: Path, trials: int, seed: int) -> None:
    rng = random.Random(seed)
    longest = SHORT_S if trials < 10 else LONG_S
    downtimes = [rng.uniform(0.1, longest) for _ in range(trials)]

    def run(number: int) -> OutageOutcome:
        return router_killed(tmp_path / str(number), downtimes[number], REPLAY_MS)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(run, range(trials)):
            print(f"kills=1 accepted={outcome.sent} lost={len(outcome.lost)} reordered={reordered(outcome)}")
            print(f"unaccounted={unaccounted(outcome)} retransmitted={outcome.retransmitted}")
