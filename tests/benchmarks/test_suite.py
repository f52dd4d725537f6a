# SPDX-License-Identifier: Apache-2.0
"""Every part of the suite runs and returns plausible figures. The tests assert no speed."""

import json
import math
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import calls, fan_out, growth, rates, suite, switching
from benchmarks.rates import IdealLimiter, NaiveLimiter


def all_positive(found: dict[str, Any], *names: str) -> bool:
    return all(math.isfinite(found[name]) and found[name] > 0 for name in names)


def test_a_message_is_measured_with_few_and_many_subscriptions(tmp_path: Path) -> None:
    rows = growth.measured(tmp_path, (10, 200), 1)
    assert [(row["count"], row["wildcard"]) for row in rows] == [
        (10, False),
        (200, False),
        (10, True),
        (200, True),
    ]
    assert all(all_positive(row, "message_us", "scattered_us", "route_build_us", "ratio") for row in rows)
    assert [row["ratio"] for row in rows if row["count"] == 10] == [1, 1]
    assert "200 instance *" in growth.table(rows)


def test_limits_are_measured_live(tmp_path: Path) -> None:
    rows = rates.measured(tmp_path, 1.0)
    assert len(rows) == len(rates.ROWS)
    for row in rows:
        assert 0 < row["delivered"] <= row["published"] < row["published_hz"] * (row["seconds"] + 0.1) + 2
        # A gate passes no more than its limit, two more, and a tenth (ustreamer_throttle.gate).
        assert row["delivered"] <= row["limit_hz"] * (row["seconds"] + 1.0) + 3
        assert row["arrived"] == row["published"]  # the recording has every message
        assert 0 < row["possible"] <= row["limit_hz"] * (row["seconds"] + 1.0) + 3
        assert row["nominal_fidelity"] <= row["fidelity"]
    assert rates.table(rows).count("Hz +-") == len(rows)


def test_the_usual_limiter_measures_from_the_last_passed_message() -> None:
    limiter = NaiveLimiter(100)
    for ms in (0, 9, 10, 19, 29, 30):
        limiter.on_message(ms * 1_000_000)
    assert limiter.passed == 3  # 0, 10, 29


@settings(max_examples=50)
@given(st.lists(st.integers(0, 400), max_size=10))
def test_the_ideal_limiter_passes_the_maximum(gaps: list[int]) -> None:
    """Compared with all choices: N messages need N - 1 periods less 1.1, and less 0.1 after the end of a pause."""
    arrivals = list(accumulate(gaps))
    ideal = IdealLimiter(1_000_000_000 / 100)  # a period of 100 ns
    for now_ns in arrivals:
        ideal.on_message(now_ns)
    starts = [0, *(n + 1 for n, (one, other) in enumerate(pairwise(arrivals)) if other - one > 250)]
    most = 0
    for begin, end in pairwise([*starts, len(arrivals)]):
        its = arrivals[begin:end]
        most += max(
            number
            for number in range(len(its) + 1)
            if any(conforms_to_rate(its[0] if its else 0, chosen) for chosen in combinations(its, number))
        )
    assert ideal.passed == most


def conforms_to_rate(since: int, chosen: tuple[int, ...]) -> bool:
    return all(each - since >= number * 100 - 10 for number, each in enumerate(chosen)) and all(
        later - first >= (position - 1) * 100 - 10
        for start, first in enumerate(chosen)
        for position, later in enumerate(chosen[start + 1 :], 1)
    )


def test_a_stopped_publisher_lowers_the_maximum() -> None:
    calm, stopped = IdealLimiter(100), IdealLimiter(100)
    for number in range(1_000):
        calm.on_message(number * 10_000_000)
        stopped.on_message(
            max(number, number // 100 * 100 + 4) * 10_000_000
        )  # the first four of each hundred are late
    assert (calm.passed, stopped.passed) == (1_000, 960)


def test_each_publication_reaches_every_receiver_without_a_limit(tmp_path: Path) -> None:
    found = fan_out.measured(tmp_path, (1, 3), rounds=1, seconds=0.05)
    assert [(each["receivers"], each["limited"]) for each in found] == [
        (1, False),
        (3, False),
        (1, True),
        (3, True),
    ]
    assert all(all_positive(each, "delivery_us", "decision_us") for each in found)
    assert [each["delivered"] for each in found[:2]] == [
        each["published"] * each["receivers"] for each in found[:2]
    ]
    assert found[3]["delivered"] < found[3]["published"] * 3


def test_calls_of_both_directions_are_answered_through_both_forwarders(tmp_path: Path) -> None:
    found = calls.measured(tmp_path, 1, 0.2)
    assert [each["direction"] for each in found] == ["Zenoh calls SOME/IP", "SOME/IP calls Zenoh"]
    for each in found:
        for subject in ("blind", "bare", "streamer", "ratio"):
            assert all_positive(each[subject], "calls_per_s", "cpu_us", "p50_us", "p99_us")
    assert calls.table(found).count("ratio") >= 2


def test_subscribing_under_load_begins_and_ends_the_flow(tmp_path: Path) -> None:
    found = switching.measured(tmp_path, 2)
    assert all_positive(found["subscribe_to_first_ms"], "median", "min", "max")
    assert all_positive(found["unsubscribe_to_answer_ms"], "median", "min", "max")
    assert found["unsubscribe_to_last_ms"]["max"] >= 0
    assert "2 times" in switching.table(found)


def test_the_suite_writes_its_results_and_prints_the_goals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    assert suite.main(["growth", "subscriptions", "--quick", "--out", str(out)]) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {"machine", "versions", "seconds", "growth", "subscriptions"} <= found.keys()
    assert found["part_seconds"].keys() == {"growth", "subscriptions"}
    out_text = capsys.readouterr().out
    assert out_text.startswith("parts: growth, subscriptions; at most 15 minutes")
    assert "== subscriptions (2 of 2)" in out_text
    assert "a message at any number of subscriptions" in out_text
    assert f"seconds: at most {suite.MAX_SECONDS}" in out_text


def test_a_suite_that_takes_longer_misses_its_goal() -> None:
    assert [suite.check_goals({"seconds": each})[0].met for each in (suite.MAX_SECONDS, 900.1)] == [
        True,
        False,
    ]


def test_results_are_compared_with_the_goals() -> None:
    def ratio(subject: str, rate: float, p99: float = 1.0) -> dict[str, Any]:
        spread = {"median": rate}
        return {
            "payload": 64, "direction": "a -> b", "subject": subject,
            "messages_per_s": spread, "p50_us": {"median": 1.0}, "p99_us": {"median": p99},
        }  # fmt: skip

    found = {
        "forwarding": {"ratios": [ratio("streamer", 0.7, 2.5), ratio("recorder on", 0.8)]},
        "calls": [{"direction": "up", "ratio": {"calls_per_s": 0.5}}],
        "growth": [{"ratio": 1.0}, {"ratio": 1.3}],
        "rates": [{"fidelity": 0.995}, {"fidelity": 1.0}],
        "chains": [{"share": each, "certain_burst": 2.5, "in_order": True} for each in (1.0, 0.98)],
    }
    met = [True, True, False, False, False, False, True, False]
    assert [each.met for each in suite.check_goals(found)] == met


def test_many_topics_have_a_goal_for_the_rate_and_for_loss_and_order() -> None:
    def row(model: str, rate: float, lost: int, out_of_order: int) -> dict[str, Any]:
        bare = {"messages_per_s": 100.0}
        streamer = {"messages_per_s": rate, "lost": lost, "out_of_order": out_of_order}
        return {"model": model, "figures": {"bare": bare, ".": streamer}}

    found = {"topics": [row("100", 66.0, 0, 0), row("500", 50.0, 1, 0), row("vehicle", 9.0, 0, 1)]}
    assert [each.met for each in suite.check_goals(found)] == [True, True, False, False, False]


def test_many_topics_are_a_part_whose_results_are_json(tmp_path: Path) -> None:
    part = suite.PARTS["topics"]
    found = json.loads(json.dumps(part.measure(tmp_path, True)))
    assert [each["model"] for each in found] == ["8"]
    assert part.table(found).count("\n") == 4


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit) as left:
        suite.main(["growht"])
    assert left.value.code == 2
