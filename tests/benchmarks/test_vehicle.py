# SPDX-License-Identifier: Apache-2.0
"""Traffic with many topics: the models are what they say, and every message of a run is counted and in order."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.harness.checked_run import soak
from benchmarks.harness.checkouts import CheckoutTestbed
from benchmarks.harness.measure import Load
from benchmarks.harness.testbed import Direction, Subject
from benchmarks.traffic import wire
from benchmarks.traffic.models import MODELS, SEQUENCE, VEHICLE, model_named
from benchmarks.vehicle import (
    DIRECTIONS,
    ColdStart,
    cold_starts,
    main,
    measure_cold,
    measure_endpoints,
    measure_model,
    table,
)

LOAD = Load(warm_up_s=0.1, saturated_s=0.2, paced_messages=100, fast_messages=300)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].rates_hz is None])
def test_a_plain_model_has_its_topics_in_turn(name: str) -> None:
    model = MODELS[name]
    assert list(model.sequence[: 2 * model.topics]) == 2 * list(range(model.topics))
    assert len(model.sequence) % model.topics == 0, "the turn goes on where the sequence repeats"
    addresses = {model.address(each) for each in range(model.topics)}
    assert len(addresses) == model.topics
    assert all(0x8001 <= each.resource < 0xFFFF for each in addresses)
    apart = model_named(model.set_apart().name)
    assert apart.sequence == model.sequence
    addresses = {apart.address(each) for each in range(model.topics)}
    assert len({each.service for each in addresses}) == model.topics
    assert {each.resource for each in addresses} == {0x8001}


def test_the_vehicle_model_has_few_fast_topics_many_slow_ones_and_bursts() -> None:
    model = MODELS["vehicle"]
    counts = Counter(model.sequence)
    assert len(model.sequence) == SEQUENCE
    assert 0.049 * SEQUENCE < counts.pop(model.call) < 0.051 * SEQUENCE
    assert len(counts) == model.topics
    busiest = sorted(counts.values(), reverse=True)
    assert sum(busiest[:100]) > 0.8 * counts.total()
    repeats = sum(a == b for a, b in zip(model.sequence, model.sequence[1:], strict=False))
    assert repeats > 0.2 * SEQUENCE


@pytest.mark.parametrize("direction", DIRECTIONS.values())
def test_every_message_through_the_streamer_is_counted_and_in_order(
    tmp_path: Path, direction: Direction
) -> None:
    found = measure_model(tmp_path, MODELS["8"], [Path()], LOAD, 1, direction)
    assert [(each.lost, each.out_of_order) for each in found.figures.values()] == [(0, 0), (0, 0)]
    assert all(each.passed for each in found.checks.values())
    assert found.ledger["unaccounted"] == 0
    assert found.ledger["delivered"] > 1_000
    assert table(MODELS["8"], direction, found).count("\n") == 4


def test_a_cold_start_reports_loss_and_age(tmp_path: Path) -> None:
    found = measure_cold(tmp_path, MODELS["8"], Path(), 2_000, 500, priority=wire.CS1 + 2)
    assert (found.lost, found.out_of_order, len(found.arrivals)) == (0, 0, 500)
    assert "lost 0, disorder 0" in found.text()
    assert found.ledger["delivered"] > 500


MS = 1_000_000


@pytest.mark.parametrize(
    ("arrivals", "lost", "sustained"),
    [
        ([MS] * 1_000, 0, True),
        ([MS] * 1_000, 1, False),
        ([], 0, False),
        ([90 * MS] * 500 + [MS] * 500, 0, True),
        ([101 * MS] * 20 + [MS] * 980, 0, False),
        ([101 * MS] * 9 + [MS] * 991, 0, True),
        # The queue grows: a longer run exceeds any limit.
        ([number * MS // 20 for number in range(1_000)], 0, False),
    ],
)
def test_a_pace_is_sustained_without_loss_and_without_a_growing_queue(
    arrivals: list[int], lost: int, sustained: bool
) -> None:
    assert ColdStart(20_000, arrivals, lost, 0, {}).is_sustained is sustained


def cold_start(hz: float, p99_ms: int, *, lost: int = 0, disorder: int = 0, dead: int = 0) -> ColdStart:
    return ColdStart(hz, [p99_ms * MS] * 20 + [MS] * 980, lost, disorder, {"dead_lettered": dead})


def test_cold_starts_are_compared_at_the_highest_pace_of_the_bare_forwarder() -> None:
    calls: list[tuple[Path | None, float]] = []

    def run(tree: Path | None, hz: float) -> ColdStart:
        calls.append((tree, round(hz)))
        return ColdStart(hz, [(150 if hz > 13_000 else 40) * MS] * 20 + [MS] * 980, 0, 0, {})

    *_, bare, ours = cold_starts(run, [Path("ours")], 20_000, 2)
    search = [(None, hz) for hz in (20_000, 20_000, 16_000, 16_000, 12_800)]
    assert calls == search + [(None, 12_800), (Path("ours"), 12_800)] * 2
    assert bare == ("bare: p99 at 12800/s: median 40.0, 40.0 to 40.0 ms", True)
    assert ours == ("ours: p99 at 12800/s: median 40.0, 40.0 to 40.0 ms", True)


@pytest.mark.parametrize(
    ("changes", "passed"),
    [({}, True), ({"lost": 1}, False), ({"disorder": 1}, False), ({"dead": 1}, False)],
)
def test_a_cold_start_passes_only_without_loss_disorder_and_dead_letters(
    changes: dict[str, int], passed: bool
) -> None:
    def run(tree: Path | None, hz: float) -> ColdStart:
        return cold_start(hz, 40, **changes) if tree else cold_start(hz, 40)

    *_, (_, ours) = cold_starts(run, [Path("ours")], 20_000, 1)
    assert ours is passed


def test_a_cold_start_fails_above_100_ms_at_a_pace_that_the_bare_forwarder_sustains() -> None:
    def run(tree: Path | None, hz: float) -> ColdStart:
        return ColdStart(hz, [(150 if tree else 40) * MS] * 20 + [MS] * 980, 0, 0, {})

    *_, (text, ours) = cold_starts(run, [Path("ours")], 20_000, 1)
    assert (text, ours) == ("ours: p99 at 20000/s: median 150.0, 150.0 to 150.0 ms", False)


def test_a_machine_too_busy_for_every_pace_is_reported_and_compared_nevertheless() -> None:
    def run(tree: Path | None, hz: float) -> ColdStart:
        return cold_start(hz, 40, lost=tree is None)

    results = list(cold_starts(run, [Path("ours")], 20_000, 1))
    assert ("bare sustains no pace down to 6554/s", False) in results
    assert results[-1][0].startswith("ours: p99 at 20000/s: median 40.0")


def test_the_command_refuses_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--models", "7"])
    assert "invalid choice: '7'" in capsys.readouterr().err


def test_vehicle_traffic_has_calls_limits_and_changing_subscriptions(tmp_path: Path) -> None:
    with CheckoutTestbed(tmp_path) as testbed:
        rig = testbed.topics_rig(VEHICLE, Direction.ZENOH_TO_ZENOH, Subject.STREAMER)
        found = soak(rig, VEHICLE, 2_000.0, 3.0)
    checks = found.checks
    assert (checks.topics.lost, checks.topics.out_of_order, checks.topics.above_limit) == (0, 0, 0)
    assert checks.calls["answered"] > 200
    assert [checks.calls[name] for name in ("unanswered", "unexpected", "missing")] == [0, 0, 0]
    assert checks.switches > 0
    assert found.first_mb > 0
    assert testbed.ledger()["throttled"] > 0


def test_endpoints_without_traffic_are_measured(tmp_path: Path) -> None:
    text = measure_endpoints(tmp_path, Path(), 4, LOAD)
    assert "  4 endpoints: READY after" in text
    assert "lost 0, disorder 0" in text


@pytest.mark.parametrize("number", ["1", "65"])
def test_the_number_of_endpoints_is_limited(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--endpoints", number])
    assert "expected 2..64" in capsys.readouterr().err
