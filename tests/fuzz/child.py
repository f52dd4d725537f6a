# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz.child BORDER DIRECTORY OPTION...`: the process that atheris drives through one border.

The options are those of libFuzzer, which is inside atheris. It ends the process itself: with the code 0 after the last
input, or with another one and the input in a file `crash-*` of DIRECTORY. The slowest input so far is printed.
"""

import importlib
import sys
import time
from pathlib import Path
from typing import Final

import atheris

MAX_INPUT_NS: Final = 100_000_000
"""CPU time for one input, with the cost of measuring coverage."""
_PACKAGES: Final = [
    "ustreamer",
    "ustreamer_wamp",
    "ustreamer_usubscription",
    "ustreamer_mqtt",
    "ustreamer_recorder",
]
_MEMORY_MB: Final = 1_024


class SlowInput(Exception):
    """An input took longer than MAX_INPUT_NS."""


def main(name: str, directory: Path, options: list[str]) -> None:
    with atheris.instrument_imports(include=_PACKAGES):
        border = importlib.import_module("tests.fuzz.borders").BORDERS[name]
    take = border.make(directory)
    slowest_ns = 0

    def take_timed(data: bytes) -> None:
        nonlocal slowest_ns
        began_ns = time.thread_time_ns()
        take(data)
        took_ns = time.thread_time_ns() - began_ns
        if took_ns > slowest_ns:
            slowest_ns = took_ns
            print(f"slowest_us {took_ns // 1_000}", file=sys.stderr)
            if took_ns > MAX_INPUT_NS:
                raise SlowInput(f"{took_ns // 1_000_000} ms for {len(data)} bytes")

    bounds = [
        f"-max_len={border.max_length}",
        f"-rss_limit_mb={_MEMORY_MB}",
        f"-artifact_prefix={directory}/",
    ]
    atheris.Setup([sys.argv[0], *bounds, *options], take_timed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
