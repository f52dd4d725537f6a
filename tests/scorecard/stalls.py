# SPDX-License-Identifier: Apache-2.0
"""R7: the measurement of `test_isolation`: one of eight receivers is stopped, and the others are measured."""

from pathlib import Path
from statistics import median
from typing import Final

from tests.e2e.delivery.test_isolation import BY_DEFAULT, QUICK, measure

ROUNDS: Final = 3
LONG_S: Final = 10


def test_a_stalled_receiver_delays_no_other_endpoint(tmp_path: Path, trials: int) -> None:
    """`trials` is the length of the stall in s. The median of three rounds counts: the machine may be busy in one."""
    rounds = []
    for number in range(ROUNDS):
        directory = tmp_path / str(number)
        directory.mkdir()
        patience = BY_DEFAULT if trials >= LONG_S else QUICK
        rounds.append(
            measure(directory, patience, calm_s=trials / 2, stall_s=float(trials), stalls_control=True)
        )
    ratio = median(each.separate.ratio for each in rounds)
    added = median(each.separate.stall_worst - each.separate.calm_p99 for each in rounds)
    dead = sum(each.ledger["dead_lettered"] for each in rounds)
    print(f"rounds={ROUNDS} healthy_p99_ratio={ratio:.2f} healthy_max_added_ms={1_000 * added:.0f}")
    print(f"healthy_lost={sum(each.separate.lost for each in rounds)} dead_letters={dead}")
    print(f"control_p99_ratio={max(each.shared.ratio for each in rounds):.0f}")
