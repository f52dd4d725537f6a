# SPDX-License-Identifier: Apache-2.0
"""Held or broken, from measured windows."""

import msgspec
import pytest

from ustreamer.host.attack.verdicts import (
    MEMORY_FLOOR_BYTES,
    AttackVerdict,
    Measurement,
    StreamWindow,
    is_noise,
    judge,
    memory_limit,
    window,
)

QUIET = StreamWindow(sent=400, lost=0, foreign=0, p50_ms=1.0, p99_ms=8.0)
CALM = Measurement([QUIET] * 4, [QUIET] * 3, 100_000_000, 100_000_000)


def attacked(**keys: object) -> Measurement:
    return msgspec.structs.replace(CALM, attacked=[msgspec.structs.replace(QUIET, **keys)] * 3)


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (CALM, ""),
        (attacked(p99_ms=12.0), ""),
        (attacked(p99_ms=12.1), "the p99 of the vehicle path is 12.1 ms, without attack 8.0 ms"),
        (attacked(lost=1), "3 of 1200 vehicle messages are lost"),
        (attacked(foreign=2), "6 forged messages reached a subscriber"),
        (msgspec.structs.replace(CALM, effect="an outsider read it"), "an outsider read it"),
        (msgspec.structs.replace(CALM, alive=False), "the streamer has ended"),
        (msgspec.structs.replace(CALM, memory_after=116_000_000), ""),
        (msgspec.structs.replace(CALM, memory_after=117_000_000), "17 MB of memory are not given back"),
    ],
)
def test_an_attack_is_broken_by_what_it_does_to_the_vehicle(measured: Measurement, reason: str) -> None:
    result = judge("name", "family", measured)
    assert result.reasons == ((reason,) if reason else ())
    assert result.verdict is (AttackVerdict.BROKEN if reason else AttackVerdict.HELD)


def test_a_p99_below_the_floor_equals_any_other() -> None:
    fast = msgspec.structs.replace(QUIET, p99_ms=0.5)
    slower = msgspec.structs.replace(QUIET, p99_ms=9.9)
    result = judge("name", "family", msgspec.structs.replace(CALM, quiet=[fast], attacked=[slower]))
    assert (result.verdict, result.p99_ratio) == (AttackVerdict.HELD, 19.8)


def test_one_stall_of_the_machine_is_no_attack() -> None:
    stalled = msgspec.structs.replace(QUIET, p99_ms=500.0)
    measured = msgspec.structs.replace(CALM, attacked=[QUIET, stalled, QUIET])
    assert judge("name", "family", measured).verdict is AttackVerdict.HELD


def test_losses_of_the_quiet_windows_are_no_attack() -> None:
    lossy = msgspec.structs.replace(QUIET, lost=2)
    measured = msgspec.structs.replace(CALM, quiet=[QUIET, lossy], attacked=[lossy] * 3)
    assert judge("name", "family", measured).verdict is AttackVerdict.HELD


def test_only_what_a_busy_machine_explains_is_measured_again() -> None:
    def again(measured: Measurement) -> bool:
        return is_noise(judge("name", "family", measured).reasons, measured)

    assert not again(CALM)
    assert again(attacked(p99_ms=100.0))
    assert again(attacked(lost=50))
    assert not again(attacked(foreign=1))
    assert not again(msgspec.structs.replace(attacked(lost=50), effect="read"))
    assert not again(msgspec.structs.replace(attacked(lost=50), alive=False))


def test_memory_may_grow_by_a_tenth_or_by_the_floor() -> None:
    assert memory_limit(1_000_000_000) == 1_100_000_000
    assert memory_limit(50_000_000) == 50_000_000 + MEMORY_FLOOR_BYTES


def test_a_window_has_the_quantiles_of_what_arrived() -> None:
    latencies = [number * 1_000_000 for number in range(100, 0, -1)]
    assert window(latencies, 103, 1) == StreamWindow(103, 3, 1, 50.0, 99.0)
    assert window([], 5, 0) == StreamWindow(5, 5, 0, 0.0, 0.0)
