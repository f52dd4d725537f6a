# SPDX-License-Identifier: Apache-2.0
"""The replay of a gateway, compared with its gates message by message, for any split into batches."""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.replay.gate import Limit
from ustreamer_pipeline.replay.gate_inputs import Tolerances, settings_fault
from ustreamer_pipeline.replay.links import MAX_AGE_MS, OVERHEAD_BYTES, QUEUE_BYTES, QUEUE_MESSAGES
from ustreamer_pipeline.replay.replay import GatewayReplay
from ustreamer_pipeline.replay.rows import COLUMNS, QUEUE_COLUMNS
from ustreamer_pipeline.replay.target_replay import MessageSlice, ReplayTarget, TargetReplay, ThrottleSettings
from ustreamer_pipeline.replay.whatif_scenarios import (
    Scenario,
    ScenarioLink,
    ScenarioRate,
    Subscribe,
    Ttl,
    Unsubscribe,
    sweep,
)
from ustreamer_throttle.gate import Gate, Sampler
from ustreamer_throttle.pacer import Pacer

from ustreamer.core.egress.limits import OVERHEAD_BYTES as GATEWAYS_OVERHEAD
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.subscriptions import period_of

MS = 1_000_000
SECOND = 1_000 * MS
START = 10**12
WALL_MS = 1_763_700_000_000
TOLERANCE = 0.1

INTS = {name: pa.int64() for name in (*COLUMNS, *QUEUE_COLUMNS)}
TEXT = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        (name, TEXT if name in ("source", "subscriber", "ingress", "egress", "type", "verdict") else kind)
        for name, kind in INTS.items()
    ]
)


class Sender(NamedTuple):
    topic: str
    times: list[int]


def row(at: int, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "run": 1,
        "delivery": 1,
        "received_ns": at,
        "arrived_ns": at,
        "settled_ns": at + 100_000,
        "period_ns": 0,
        "tuned_ns": 0,
        "epoch": 0,
        "size": 10,
        "code": None,
        "source": "//chassis/1/1/8001",
        "subscriber": None,
        "ingress": "chassis",
        "egress": "backbone",
        "type": "PUBLISH",
        "verdict": "DELIVERED",
        "id_msb": (WALL_MS + (at - START) // MS) << 16 | 0x7000,
        "id_lsb": at,
        "received_us": WALL_MS * 1_000 + (at - START) // 1_000,
        "ttl_ms": None,
    }
    assert not fields.keys() - known.keys()
    return known | fields


def replayed(
    rows: Sequence[dict[str, Any]],
    scenarios: Sequence[Scenario] = (),
    *,
    batch: int = 1_000_000,
    tolerances: Tolerances | None = None,
    losses: dict[int, list[int]] | None = None,
) -> GatewayReplay:
    replay = GatewayReplay(scenarios, tolerances or {}, TOLERANCE, losses)
    for start in range(0, len(rows), batch):
        replay.feed(pa.RecordBatch.from_pylist(list(rows[start : start + batch]), schema=SCHEMA))
    replay.finish()
    return replay


def passed(replay: GatewayReplay, scenario: int, **wanted: str | None) -> int:
    return sum(
        int(total.messages[scenario])
        for total in replay.totals
        if all(getattr(total.target, name) == value for name, value in wanted.items())
    )


def traffic(rng: random.Random, topics: int = 3, seconds: float = 3.0) -> list[Sender]:
    senders = []
    for number in range(topics):
        period, now, times = (
            SECOND / rng.choice([3, 20, 77, 200, 1_000]),
            float(START + rng.randrange(SECOND)),
            [],
        )
        while (now := now + period * rng.uniform(0.6, 1.4)) < START + seconds * SECOND:
            times.append(int(now))
        senders.append(Sender(f"//chassis/{number + 1:X}/1/8001", times))
    return senders


def decided(
    sender: Sender, delivery: int, limits: list[tuple[int, int]], **fields: Any
) -> list[dict[str, Any]]:
    """Rows as the gate decides; `limits` are (start, period), 0 for none."""
    rows: list[dict[str, Any]] = []
    gate: Gate | None = None
    period = tuned = 0
    changes = list(limits)
    for at in sender.times:
        before = period
        while (
            changes and changes[0][0] <= at
        ):  # a gateway reads the limit at a message, so of several changes it uses the last
            tuned, period = changes.pop(0)
        if not period:
            gate = None
        elif gate is None:
            gate = Gate(period, TOLERANCE)
        elif period != before:
            gate.retune(period, tuned)
        verdict = "DELIVERED" if gate is None or gate.admit(at) else "THROTTLED"
        rows.append(
            row(
                at,
                delivery=delivery,
                source=sender.topic,
                verdict=verdict,
                period_ns=period,
                tuned_ns=tuned,
                **fields,
            )
        )
    return rows


def in_order(*parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((each for part in parts for each in part), key=lambda each: each["received_ns"])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 7, 100, 10**6]))
def test_without_changes_every_verdict_is_as_recorded(seed: int, batch: int) -> None:
    rng = random.Random(seed)
    rows, throttled = [], 0
    for number, sender in enumerate(traffic(rng)):
        for target, subscriber in enumerate([None, "//tablet/1/1/0"]):
            limits = [(0, rng.choice([0, period_of(10), period_of(60), period_of(100)]))]
            for _ in range(rng.randrange(3)):
                at = START + rng.randrange(3 * SECOND)
                limits = [*limits, (at, rng.choice([0, period_of(5), period_of(33)]))]
            rows += decided(sender, 1 + number * 2 + target, sorted(limits), subscriber=subscriber)
    rows = in_order(rows)
    throttled = sum(each["verdict"] == "THROTTLED" for each in rows)
    replay = replayed(rows, [Scenario("nothing")], batch=batch if len(rows) < 3_000 else max(batch, 50))
    assert (replay.check.decided, replay.check.differing) == (len(rows), 0)
    for scenario in (0, 1):
        assert passed(replay, scenario) == len(rows) - throttled


def test_a_verdict_that_contradicts_the_gate_is_named() -> None:
    rows = decided(
        Sender("//chassis/1/1/8001", [START + n * 10 * MS for n in range(500)]), 7, [(0, period_of(20))]
    )
    wrong = rows[123] | {"verdict": "DELIVERED" if rows[123]["verdict"] == "THROTTLED" else "THROTTLED"}
    check = replayed([*rows[:123], wrong, *rows[124:]]).check
    assert (check.differing, check.examples) == (1, [(1, 7, rows[123]["received_ns"], 0)])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([37, 10**6]), st.sampled_from([2.0, 10.0, 30.0, 100.0]))
def test_another_rate_passes_the_messages_that_its_gate_admits(seed: int, batch: int, hz: float) -> None:
    rng = random.Random(seed)
    senders = traffic(rng)
    rows = in_order(*(decided(sender, n, [(0, period_of(50))]) for n, sender in enumerate(senders, 1)))
    replay = replayed(rows, [*sweep([hz], topic="//chassis/1/1/8001"), *sweep([0])], batch=batch)
    gate = Gate(period_of(hz), TOLERANCE)
    assert passed(replay, 1, topic=senders[0].topic) == sum(map(gate.admit, senders[0].times))
    assert passed(replay, 1, topic=senders[1].topic) == passed(replay, 0, topic=senders[1].topic)
    assert passed(replay, 2) == len(rows)


def test_a_scenario_with_the_recorded_limit_for_a_while_keeps_its_own_gate() -> None:
    sender = Sender("//chassis/1/1/8001", [START + n * 7 * MS + n % 3 * MS for n in range(900)])
    changes = [(0, period_of(50)), (START + 2 * SECOND, period_of(20)), (START + 4 * SECOND, period_of(3))]
    rows = decided(sender, 1, changes)
    for batch in (101, 10**6):
        gate = Gate(period_of(20), TOLERANCE)
        replay = replayed(rows, sweep([20]), batch=batch)
        assert replay.check.differing == 0
        assert passed(replay, 1) == sum(map(gate.admit, sender.times))


def sampled(sender: Sender, period: int, late_ns: list[int]) -> list[dict[str, Any]]:
    """Rows of mode `latest`, with late timers."""
    sampler, rows, timer = Sampler[int](Gate(period, TOLERANCE)), [], 0

    def ended(item: int, at: int, verdict: str) -> None:
        fields = {"source": sender.topic, "period_ns": period, "arrived_ns": item, "id_lsb": item}
        rows.append(row(at, verdict=verdict, **fields))

    for number, now in enumerate([*sender.times, sender.times[-1] + 100 * SECOND]):
        if sampler.due_ns is not None and timer <= now:
            released = sampler.release(timer)
            assert released is not None
            ended(released, timer, "DELIVERED")
        if number == len(sender.times):
            break
        held_before = sampler.due_ns is not None
        passes, displaced = sampler.offer(now, now)
        if displaced is not None:
            ended(displaced, now, "THROTTLED")
        if passes:
            ended(now, now, "DELIVERED")
        elif not held_before:
            assert sampler.due_ns is not None
            timer = sampler.due_ns + late_ns[number % len(late_ns)]
    return rows


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([9, 10**6]),
    st.lists(st.integers(0, 30 * MS), min_size=1, max_size=9),
)
def test_held_and_released_messages_are_as_recorded(seed: int, batch: int, late_ns: list[int]) -> None:
    sender = traffic(random.Random(seed), topics=1)[0]
    rows = sampled(sender, period_of(13), late_ns)
    replay = replayed(rows, [Scenario("nothing")], batch=batch)
    assert (replay.check.decided, replay.check.differing) == (len(sender.times), 0)
    assert passed(replay, 1) == passed(replay, 0)


def test_in_mode_latest_another_rate_releases_the_latest_messages() -> None:
    sender = Sender("//chassis/1/1/8001", [START + n * 7 * MS for n in range(2_000)])
    replay = replayed(sampled(sender, period_of(20), [0]), sweep([5]))
    expected = [each for each in sampled(sender, period_of(5), [0]) if each["verdict"] == "DELIVERED"]
    assert passed(replay, 1) == len(expected)


MAX_DELAY = 100 * MS


def bunched(hz: int, limit: int, late_ns: list[int], seconds: int = 4) -> list[dict[str, Any]]:
    """Rows of mode `drop` behind a network that stalls for 60 ms every 0.3 s, with late timers."""
    gate = Gate(period_of(limit), TOLERANCE, MAX_DELAY)
    pacer, rows, number = Pacer[tuple[int, int]](gate), [], 0
    stall, every = 60 * MS, 300 * MS

    def ended(arrived: int, made: int, at: int, verdict: str) -> None:
        msb = (WALL_MS + made // MS) << 16 | 0x7000
        fields = {"period_ns": period_of(limit), "arrived_ns": arrived, "id_msb": msb, "id_lsb": made}
        rows.append(row(at, verdict=verdict, **fields))

    def release(until: int) -> None:
        nonlocal number
        while pacer.due_ns is not None and (at := pacer.due_ns + late_ns[number % len(late_ns)]) <= until:
            number += 1
            item = pacer.release(at)
            if item is not None:
                ended(*item, at, "DELIVERED")

    for made in range(0, seconds * SECOND, SECOND // hz):
        behind = made % every > every - stall
        now = START + ((made // every + 1) * every if behind else made)
        release(now)
        if not gate.admit(now, (WALL_MS + made // MS) << 16 | 0x7000):
            ended(now, made, now, "THROTTLED")
        elif pacer.offer((now, made), 1, now):
            ended(now, made, now, "DELIVERED")
    release(1 << 62)
    rows.sort(key=lambda each: each["received_ns"])
    return rows


@pytest.mark.parametrize("batch", [7, 101, 10**6])
@pytest.mark.parametrize(("hz", "limit"), [(100, 100), (100, 77), (500, 60), (99, 100)])
@pytest.mark.parametrize("late_ns", [[0], [0, 3 * MS, 500_000]], ids=["punctual", "late"])
def test_bunches_are_replayed_as_recorded(hz: int, limit: int, late_ns: list[int], batch: int) -> None:
    rows = bunched(hz, limit, late_ns)
    settings_of = {(1, 0): ThrottleSettings(TOLERANCE, MAX_DELAY)}
    replay = replayed(rows, [Scenario("nothing")], batch=batch, tolerances=settings_of)
    assert (replay.check.decided, replay.check.differing) == (len(rows), 0)
    assert passed(replay, 1) == passed(replay, 0)
    assert any(each["arrived_ns"] != each["received_ns"] for each in rows)


def test_another_limit_passes_its_share_of_a_bunched_recording() -> None:
    replay = replayed(
        bunched(100, 100, [0]), sweep([50]), tolerances={(1, 0): ThrottleSettings(TOLERANCE, MAX_DELAY)}
    )
    assert replay.check.differing == 0
    assert abs(passed(replay, 1) - 200) <= 2


def test_a_recording_from_before_creation_times_is_replayed_by_arrival() -> None:
    times = [each["arrived_ns"] for each in bunched(100, 100, [0])]
    gate = Gate(period_of(100), TOLERANCE)
    rows = [
        {
            **each,
            "received_ns": each["arrived_ns"],
            "verdict": "DELIVERED" if gate.admit(now) else "THROTTLED",
        }
        for each, now in sorted(zip(bunched(100, 100, [0]), times, strict=True), key=lambda pair: pair[1])
    ]
    replay = replayed(rows, [Scenario("nothing")])
    assert replay.check.differing == 0


def test_each_run_and_each_delivery_has_its_own_gates() -> None:
    times = [START + n * MS for n in range(50)]
    once = decided(Sender("//chassis/1/1/8001", times), 1, [(0, SECOND)])
    again = decided(Sender("//chassis/1/1/8001", [at + 60 * MS for at in times]), 2, [(0, SECOND)])
    rebooted = [each | {"run": 2} for each in once]
    replay = replayed([*once, *again, *rebooted])
    assert replay.check.differing == 0
    assert passed(replay, 0) == 3


def test_the_tolerance_is_that_of_the_configuration_in_force() -> None:
    times = [START, START + 95 * MS, START + 200 * MS, START + 295 * MS]
    verdicts = ["DELIVERED", "DELIVERED", "DELIVERED", "THROTTLED"]
    rows = [
        row(at, period_ns=100 * MS, epoch=index // 2, verdict=verdict)
        for index, (at, verdict) in enumerate(zip(times, verdicts, strict=True))
    ]
    assert replayed(rows, tolerances={(1, 0): 0.1, (1, 1): 0.0}).check.differing == 0
    assert replayed(rows, tolerances={(1, 0): 0.1, (1, 1): 0.1}).check.differing == 1


def test_after_missing_rows_a_pause_makes_the_state_of_a_gate_known() -> None:
    times = [START + n * 10 * MS for n in range(100)] + [START + 5 * SECOND + n * 10 * MS for n in range(100)]
    rows = decided(Sender("//chassis/1/1/8001", times), 1, [(0, period_of(30))])
    lost = [*rows[:41], *rows[46:]]
    assert replayed(lost).check.differing > 0
    at_ns = rows[45]["received_ns"]
    for batch in (13, 5, 10**6):
        check = replayed(lost, losses={1: [at_ns]}, batch=batch).check
        assert (check.decided, check.differing) == (195, 0)
        assert check.unknown == 54
    assert replayed(lost[:50], losses={1: [at_ns]}).check.unknown == 9
    paced = ThrottleSettings(TOLERANCE, MAX_DELAY)
    check = replayed(lost[:50], tolerances={(1, 0): paced}, losses={1: [at_ns]}, batch=5).check
    assert (check.unknown, check.differing) == (9, 0)


@pytest.mark.parametrize(("hz", "limit"), [(100, 100), (100, 77), (500, 60), (99, 100)])
@pytest.mark.parametrize("batch", [7, 10**6])
def test_after_missing_rows_a_bunch_makes_no_gate_known(hz: int, limit: int, batch: int) -> None:
    """A gate that knows what it passed before a stall passes more of the bunch behind it."""
    rows = bunched(hz, limit, [0])
    rows += [each | {"delivery": 2, "subscriber": "//cloud/2/1/0"} for each in rows]
    rows.sort(key=lambda each: each["received_ns"])
    settings_of = {(1, 0): ThrottleSettings(TOLERANCE, MAX_DELAY)}
    for lost in range(60, 120, 7):
        at_ns = rows[lost]["received_ns"]
        left = [*rows[: lost - 20], *rows[lost:]]
        check = replayed(left, tolerances=settings_of, losses={1: [at_ns]}, batch=batch).check
        assert check.differing == 0
        assert check.unknown


@pytest.mark.parametrize(("more_ns", "unknown"), [(0, 1), (1, 0)])
def test_only_a_pause_that_ends_every_state_of_a_gate_makes_it_known(more_ns: int, unknown: int) -> None:
    """A gate may be due a period and its tolerance after the message that it passed last."""
    target = TargetReplay(ReplayTarget("chassis", "backbone", "//chassis/1/1/8001", None), (), TOLERANCE)
    target.reset_after_loss()
    period, early, _, pause = Limit.for_period(10 * MS, TOLERANCE)
    for number, at_ns in enumerate([START, START + pause + period + early + more_ns]):
        times = np.array([at_ns], dtype=np.int64)
        part = MessageSlice(times, times, np.ones(1, dtype=np.bool_), period, 0, TOLERANCE)
        assert target.replay(part)[0] == (unknown if number else 1)


def test_messages_without_a_gate_are_not_compared() -> None:
    rows = [
        row(START, period_ns=SECOND),
        row(START + 1, period_ns=SECOND, verdict="DENIED", code=7),
        row(START + 2, delivery=0, egress=None, verdict="NO_SUBSCRIBER"),
        row(START + 3, delivery=2, type="REQUEST", verdict="DEAD_LETTERED"),
        row(
            START + 9,
            arrived_ns=START + 4,
            settled_ns=START + 9,
            period_ns=SECOND,
            verdict="DEAD_LETTERED",
            code=14,
        ),
    ]
    replay = replayed(rows)
    assert (replay.check.decided, replay.check.differing, replay.rows) == (2, 0, 5)


def test_a_message_that_left_its_filter_and_waited_for_a_link_until_the_stop_was_decided() -> None:
    half = SECOND // 2
    rows = [
        row(START, period_ns=SECOND),
        row(
            START + SECOND,
            arrived_ns=START + half,
            settled_ns=START + 9 * SECOND,
            period_ns=SECOND,
            verdict="DEAD_LETTERED",
            code=14,
        ),
        row(
            START + 2 * SECOND,
            arrived_ns=START + SECOND + half,
            period_ns=SECOND,
            verdict="THROTTLED",
        ),
        row(START + 2 * SECOND + 1, arrived_ns=START + 2 * SECOND, period_ns=SECOND),
    ]
    replay = replayed(rows)
    assert (replay.check.decided, replay.check.differing) == (4, 0)


# --- subscribers ----------------------------------------------------------------------------------------------------


def test_an_added_subscriber_gets_every_message_once_at_its_rate() -> None:
    times = [START + n * 10 * MS for n in range(1_000)]
    rows = in_order(
        decided(Sender("//chassis/1/1/8001", times), 1, [(0, period_of(20))]),
        decided(
            Sender("//chassis/1/1/8001", times),
            2,
            [(0, period_of(10))],
            egress="tablet",
            subscriber="//tablet/1/1/0",
        ),
        [
            row(at + 1, delivery=0, source="//chassis/2/1/8001", egress=None, verdict="NO_SUBSCRIBER")
            for at in times
        ],
        [
            row(at + 2, delivery=0, source="//chassis/3/1/8001", egress=None, verdict="DENIED", code=7)
            for at in times
        ],
    )
    everything = Scenario("all", subscribe=(Subscribe("//chassis/FFFFFFFF/FF/FFFF", "cloud"),))
    slow = Scenario("slow", subscribe=(Subscribe("//chassis/1/1/8001", "cloud", hz=5),))
    faster = Scenario("faster", subscribe=(Subscribe("//chassis/1/1/8001", "backbone", hz=50),))
    back = Scenario("back", subscribe=(Subscribe("//chassis/1/1/8001", "chassis"),))
    for batch in (17, 10**6):
        replay = replayed(rows, [everything, slow, faster, back], batch=batch)
        assert passed(replay, 1, egress="cloud") == 2_000
        assert passed(replay, 0, egress="cloud") == 0
        assert passed(replay, 2, egress="cloud") == sum(map(Gate(period_of(5), TOLERANCE).admit, times))
        assert passed(replay, 3, egress="backbone") == sum(map(Gate(period_of(50), TOLERANCE).admit, times))
        assert passed(replay, 3, egress="tablet") == passed(replay, 0, egress="tablet")
        assert passed(replay, 4) == passed(replay, 0)


def test_a_removed_subscriber_gets_nothing_and_others_are_unchanged() -> None:
    times = [START + n * 10 * MS for n in range(100)]
    rows = in_order(
        decided(Sender("//chassis/1/1/8001", times), 1, [(0, 0)]),
        decided(
            Sender("//chassis/1/1/8001", times), 2, [(0, 0)], egress="tablet", subscriber="//tablet/1/1/0"
        ),
        [row(at + 5, delivery=3, type="REQUEST", egress="tablet") for at in times],
    )
    replay = replayed(rows, [Scenario("less", unsubscribe=(Unsubscribe(egress="tablet"),))])
    assert (passed(replay, 1, egress="backbone"), passed(replay, 1, egress="tablet")) == (100, 100)
    assert passed(replay, 1, subscriber="//tablet/1/1/0") == 0


def test_periods_are_those_of_the_gateway() -> None:
    for hz in (0.001, 1, 3, 7, 60, 77, 99.9, 1_000):
        assert Subscribe("//a/1/1/8001", "b", hz=hz).period_ns == period_of(hz)
        assert ScenarioRate(hz=hz).period_ns(5) == period_of(hz)
    assert ScenarioRate(hz=0).period_ns(5) == 0
    assert [ScenarioRate(scale=0.5).period_ns(ns) for ns in (100, 0)] == [200, 0]


# --- links ----------------------------------------------------------------------------------------------------------


def test_queues_have_the_defaults_of_a_gateway() -> None:
    usual = EgressLimits()
    assert (usual.queue_messages, usual.queue_bytes, usual.max_age_ms) == (
        QUEUE_MESSAGES,
        QUEUE_BYTES,
        MAX_AGE_MS,
    )
    assert OVERHEAD_BYTES == GATEWAYS_OVERHEAD


def burst(count: int, service_ns: int = MS, **fields: Any) -> list[dict[str, Any]]:
    """Simultaneous arrivals, sent in sequence."""
    return [row(START + n, settled_ns=START + (n + 1) * service_ns, id_lsb=n, **fields) for n in range(count)]


def test_a_short_queue_overflows_by_the_missing_capacity() -> None:
    scenarios = [
        Scenario("long", links=(ScenarioLink("backbone", queue_messages=99),)),
        Scenario("short", links=(ScenarioLink("backbone", queue_messages=30),)),
        Scenario("few bytes", links=(ScenarioLink("backbone", queue_bytes=2_100),)),
        Scenario("other link", links=(ScenarioLink("tablet", queue_messages=1),)),
    ]
    for batch in (1_000, 7):
        links = dict(replayed(burst(100), scenarios, batch=batch).links())
        assert [links[n].dead_lettered for n in (1, 2, 3, 4)] == [0, 69, 89, 0]
        assert [links[n].delivered for n in (1, 2, 3, 4)] == [100, 31, 11, 100]
        assert (links[1].peak_messages, links[2].peak_messages, links[3].peak_bytes) == (99, 30, 2_100)


def test_a_slower_link_and_a_shorter_ttl_expire_waiting_messages() -> None:
    scenarios = [
        Scenario("slower", links=(ScenarioLink("backbone", bytes_per_s=1_000),)),
        Scenario("ttl", ttl=(Ttl(ttl_ms=50),)),
        Scenario("border", ttl=(Ttl(ttl_ms=99),)),
        Scenario("old", links=(ScenarioLink("backbone", max_age_ms=20),)),
    ]
    links = dict(replayed(burst(100), scenarios).links())
    assert links[1].longest_wait_us == 989_999
    assert (links[2].delivered, links[2].expired) == (51, 49)
    assert (links[3].delivered, links[3].expired) == (100, 0)
    assert (links[4].delivered, links[4].expired) == (21, 79)


def test_the_busiest_second_of_a_link_is_found_across_batches() -> None:
    rows = [row(START + n * 100 * MS, size=100 if 20 <= n < 30 else 1) for n in range(100)]
    for batch in (3, 1_000):
        assert replayed(rows, batch=batch).peak(0, "backbone") == 1_000
    added = [Scenario("more", subscribe=(Subscribe("//chassis/1/1/8001", "backbone", "//x/1/1/0"),))]
    assert [replayed(rows, added, batch=batch).peak(1, "backbone") for batch in (3, 1_000)] == [2_000, 2_000]


def test_rows_out_of_order_are_refused_with_the_reason() -> None:
    with pytest.raises(DamagedError, match="^run 1: received_ns goes back; .*ingest again$"):
        replayed([row(START + 1), row(START)])
    with pytest.raises(DamagedError, match="received_ns goes back"):
        replayed([row(START + 1), row(START)], batch=1)


@pytest.mark.parametrize(
    "settings", ["[" * 100_000, "{", "[]", '{"throttle": {}}', '{"throttle": {"tolerance": "x"}}']
)
def test_settings_that_no_gateway_writes_are_named(settings: str) -> None:
    assert settings_fault({"settings": settings}) == "JSON with throttle.tolerance"
