# SPDX-License-Identifier: Apache-2.0
import time

from ustreamer.host.runtime.clock import SYSTEM_CLOCK


def test_the_wall_clock_reads_ms_since_the_epoch() -> None:
    before = time.time()
    reading = SYSTEM_CLOCK.wall_ms()
    assert int(before * 1000) <= reading <= time.time() * 1000
    assert isinstance(reading, int)


def test_the_monotonic_clock_reads_ns_of_the_clock_that_never_steps() -> None:
    before = time.monotonic_ns()
    assert before <= SYSTEM_CLOCK.monotonic_ns() <= time.monotonic_ns()
