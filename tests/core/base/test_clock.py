# SPDX-License-Identifier: Apache-2.0
from ustreamer.core.base.clock import ManualClock


def test_a_manual_clock_moves_by_calls_only() -> None:
    clock = ManualClock(wall_ms=1000).clock()
    assert [clock.monotonic_ns(), clock.monotonic_ns()] == [0, 0]
    assert clock.wall_ms() == 1000


def test_both_readings_move_together() -> None:
    time = ManualClock(wall_ms=1000)
    clock = time.clock()  # made earlier: it reads the present time
    time.advance(s=1.5, ms=2, ns=1)
    assert clock.monotonic_ns() == 1_502_000_001
    assert clock.wall_ms() == 2502
    time.advance(ms=0.5)
    assert (clock.monotonic_ns(), clock.wall_ms()) == (1_502_500_001, 2502)


def test_a_clock_step_moves_the_wall_clock_only_in_either_direction() -> None:
    time = ManualClock(wall_ms=1000)
    clock = time.clock()
    time.step(s=2, ms=5)
    assert (clock.monotonic_ns(), clock.wall_ms()) == (0, 3005)
    time.step(ms=-3000)
    assert (clock.monotonic_ns(), clock.wall_ms()) == (0, 5)
