# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.delays PATHS [ARGUMENTS OF PYTEST]`: run tests while background threads of the product stall.

A busy machine stalls threads. Here each call and return of product code on a background thread may stall for up to
`MAX_DELAY_S`. A test that relies on the speed of such a thread fails in one of a few runs, where next to busy loops it
fails in one of some hundred. `SEED` (environment, default 1) makes other stalls. Processes that a test starts run
without stalls. A call costs 0.05 ms more on average: a test that needs some thousand messages per second fails for
that reason alone.
"""

import os
import random
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

PRODUCT: Final = tuple(f"{Path(__file__).parents[1] / each}/" for each in ("ustreamer", "plugins"))
DELAY_PROBABILITY: Final = 0.003
MAX_DELAY_S: Final = 0.03


class RandomDelays:
    """A profile function for threads: at random it stalls the thread where product code is called or returns."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._never = threading.Event()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return") or self._random.random() >= DELAY_PROBABILITY:
            return
        file = frame.f_code.co_filename
        if file.startswith(PRODUCT) and "/tests/" not in file:
            self._never.wait(self._random.random() * MAX_DELAY_S)


def main(arguments: list[str]) -> int:
    if not arguments:
        print("name the tests to run, for example tests/host/egress", file=sys.stderr)
        return 2
    threading.setprofile(RandomDelays(int(os.environ.get("SEED", "1"))))
    return pytest.main(["-q", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
