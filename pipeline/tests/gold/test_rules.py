# SPDX-License-Identifier: Apache-2.0
"""Rules against their definitions, which compare each row with each other one, for any rows split into any batches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import floor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_pipeline.gold.gateway_audit import audit_gateway
from ustreamer_pipeline.gold.rules import PROMISES
from ustreamer_pipeline.gold.rules.fields import Consistent
from ustreamer_pipeline.gold.rules.places import OnePlace
from ustreamer_pipeline.gold.rules.run import FINDINGS
from ustreamer_pipeline.gold.rules.target_rows import Example
from ustreamer_pipeline.gold.rules.target_stretches import TargetStretches
from ustreamer_pipeline.gold.rules.targets import PublicationTargets
from ustreamer_pipeline.groups import Groups
from ustreamer_pipeline.recording.rows import DAY_US
from ustreamer_pipeline.replay.order import Span
from ustreamer_pipeline.schemas import DELIVERIES, TYPES, VERDICTS
from ustreamer_throttle.gate import MAX_PERIOD_NS

Row = dict[str, Any]
Finding = tuple[Any, ...]

GATEWAY: Final = "hpc.vin1"
SCHEMA: Final = pa.schema([field.with_nullable(True) for field in DELIVERIES.arrow_schema()])
SECOND: Final = 1_000_000_000
STEP_US: Final = 1_000_000
TOLERANCES: Final = (0.0, 0.1)
"""Of the configurations 0 and 1."""
PASSED: Final = ("DELIVERED", "EXPIRED", "DEAD_LETTERED")

CASES: Final = settings(max_examples=200, deadline=None)

VERDICT: Final = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5])
"""Most are delivered: rules compare these with each other."""

LARGE: Final = st.sampled_from([-(1 << 63), -5, -1, 0, 1, 1 << 31, (1 << 63) - 1])


@st.composite
def rows_in_order(draw: st.DrawFn, most: int = 30) -> list[Row]:
    """Rows of two runs with few different values, so that many are equal in some."""
    small, few = st.integers(0, 20), st.integers(0, 1)
    made = draw(st.lists(st.tuples(few, small, small, few, few, few, few, VERDICT, few), max_size=most))
    rows = [_row(*each) for each in made]
    return sorted(rows, key=lambda row: (row["run"], row["received_ns"], row["seq"]))


def _row(
    run: int,
    at: int,
    seq: int,
    delivery: int,
    period: int,
    tuned: int,
    epoch: int,
    verdict: int,
    subscriber: int,
) -> Row:
    row: Row = dict.fromkeys(DELIVERIES.names)
    return row | {
        "run": run,
        "seq": seq,
        "received_ns": at,
        "arrived_ns": at,
        "settled_ns": at,
        "priority": 1,
        "received_us": at * STEP_US,
        "delivery": delivery,
        "tuned_ns": tuned,
        "epoch": epoch,
        "size": 1,
        "period_ns": 5 * period + 2,
        "verdict": VERDICTS[verdict],
        "type": "PUBLISH",
        "held": False,
        "source": "//a/1/1/8001",
        "ingress": "a",
        "egress": "b",
        "id_msb": at,
        "id_lsb": seq,
        "subscriber": "//b/1/1/0" if subscriber else None,
    }


cuts = st.one_of(st.just(list(range(30))), st.lists(st.integers(0, 30), max_size=6))


def found_by(
    rule: str, rows: Sequence[Row], at: Sequence[int], events: Sequence[Row] = (), unread: Sequence[Span] = ()
) -> list[Finding]:
    """Findings of a rule about rows that are split into batches at these places."""
    places = [0, *sorted(each for each in at if each < len(rows)), len(rows)]
    batches = [
        pa.RecordBatch.from_pylist(list(rows[start:end]), schema=SCHEMA) for start, end in pairwise(places)
    ]
    found = audit_gateway(
        GATEWAY, events, lambda names: [each.select(names) for each in batches], [rule], unread=unread
    )
    names = [name for name in FINDINGS if name not in ("rule", "gateway")]
    return sorted(tuple(each[name] for name in names) for some in found for each in some)


def target_of(row: Row) -> str:
    return " ".join(each for each in (row["source"], "->", row["egress"], row["subscriber"]) if each)


# --- rate ---------------------------------------------------------------------------------------------------------


def configurations() -> list[Row]:
    return [
        {
            "table": "epochs",
            "run": run,
            "epoch": epoch,
            "settings": f'{{"throttle": {{"tolerance": {each}}}}}',
        }
        for run in (0, 1)
        for epoch, each in enumerate(TOLERANCES)
    ]


def too_fast(rows: Sequence[Row]) -> Iterator[Finding]:
    """Each message that ends a window with too many messages, with the strictest window before it."""
    limits: dict[Any, list[Row]] = {}
    for row in rows:
        if row["verdict"] in PASSED and row["delivery"]:
            key = (*(row[name] for name in ("run", "delivery", "period_ns", "tuned_ns", "epoch")),)
            limits.setdefault(key, []).append(row)
    for (run, _, period, _, epoch), same in limits.items():
        tolerance = TOLERANCES[epoch]
        slack = period + floor(tolerance * period) if tolerance else 0
        for last, row in enumerate(same):
            lacks = [
                (period * (first - last) + row["received_ns"] - same[first]["received_ns"], first)
                for first in range(last + 1)
            ]
            lack, first = min(lacks)
            if lack < -slack:
                count, window = last - first + 1, row["received_ns"] - same[first]["received_ns"]
                least = (count - 1) * period - slack
                expected = f"{count} messages in at least {least} ns (period {period} ns)"
                yield run, row["seq"], row["received_us"], target_of(row), expected, f"{window} ns"


@CASES
@given(rows_in_order(), cuts)
def test_a_rate_is_too_high_if_any_window_has_too_many_messages(rows: list[Row], at: list[int]) -> None:
    assert found_by("rate", rows, at, configurations()) == sorted(too_fast(rows))


def test_a_rate_is_checked_with_an_absurd_period() -> None:
    """3 messages in 2 s: a product of the numbers does not fit in 64 bits."""
    for period in (1 << 62, (1 << 63) - 1):
        rows = [_row(0, at * SECOND, at, 1, 0, 0, 0, 0, 0) | {"period_ns": period} for at in range(3)]
        for at in ([], [1], [1, 2]):
            ((_, seq, _, _, expected, found),) = found_by("rate", rows, at, configurations()[1:2])
            assert (seq, found) == (2, f"{2 * SECOND} ns")
            assert (
                expected
                == f"3 messages in at least {2 * period - period - floor(0.1 * period)} ns (period {period} ns)"
            )


# --- valid --------------------------------------------------------------------------------------------------------


def test_each_invalid_value_is_named_once() -> None:
    rows = [_row(0, at, at, 1, 0, 0, 0, 0, 1) for at in range(10)]
    rows[3] |= {"source": "speed"}
    rows[4] |= {"source": "speed", "sink": "//B/1/1/0"}
    rows[5] |= {"verdict": "LOST"}
    rows[6] |= {"type": "CALL"}
    rows[7] |= {"period_ns": -1}
    rows[8] |= {"period_ns": MAX_PERIOD_NS + 1}
    change = {"table": "subscriptions", "run": 0, "number": 4, "time_us": 7}
    expected = {
        ("source of a message", "'speed'"): 3,
        ("sink of a message", "'//B/1/1/0'"): 4,
        ("verdict of a message", "'LOST'"): 5,
        ("type of a message", "'CALL'"): 6,
        ("period of a target", "-1 ns"): 7,
        ("topic of change 4 of the subscriptions", "'x'"): None,
        ("subscriber of change 4 of the subscriptions", "None"): None,
    }
    found = [
        each
        for some in audit_gateway(
            GATEWAY,
            [change | {"topic": "x", "subscriber": None}],
            lambda names: [pa.RecordBatch.from_pylist(rows, schema=SCHEMA).select(names)],
            ["valid"],
        )
        for each in some
    ]
    assert {(each["subject"], each["found"]): each["seq"] for each in found} == expected
    assert len(found) == len(expected)
    assert {each["expected"] for each in found if each["seq"] in {3, 4}} == {
        "a UUri, as up://authority/1234/1/8001"
    }


@pytest.mark.parametrize(
    ("throttle", "expected"),
    [
        ("5", "JSON with throttle.tolerance"),
        ('{"tolerance": 1e999}', "a throttle.tolerance of 0 to 0.5"),
        ('{"tolerance": NaN}', "a throttle.tolerance of 0 to 0.5"),
        ('{"tolerance": -1}', "a throttle.tolerance of 0 to 0.5"),
        ('{"tolerance": 0.1, "max_delay_ms": -1}', "a throttle.max_delay_ms of 0 to 1000"),
        ('{"tolerance": 0.1, "mode": "all"}', "a throttle.mode of drop or latest"),
        ('{"tolerance": 0.1, "latest": ["speed"]}', "UUris in throttle.latest"),
        ('{"tolerance": 0.1, "latest": [1]}', "UUris in throttle.latest"),
    ],
)
def test_a_run_with_invalid_settings_is_named_and_others_are_judged(throttle: str, expected: str) -> None:
    """Both runs have the same row too much, which `decided` finds in the run with valid settings."""
    at = [(0, "DELIVERED"), (1, "DELIVERED"), (2, "DELIVERED"), (100, "DELIVERED")]
    rows = [
        _row(run, time, seq, 1, 0, 0, 0, VERDICTS.index(verdict), 0) | {"period_ns": 50}
        for run in (0, 1)
        for seq, (time, verdict) in enumerate(at)
    ]
    events = [
        configurations()[0] | {"settings": f'{{"throttle": {throttle}}}'},
        configurations()[2],
    ]
    assert [found[4] for found in found_by("valid", rows, [], events)] == [expected]
    assert {found[0] for found in found_by("decided", rows, [], events)} == {1}
    assert {found[0] for found in found_by("rate", rows, [], events)} == {0, 1}


def test_a_topic_that_is_no_address_does_not_end_the_audit() -> None:
    settings = '{"throttle": {"tolerance": 0.1, "latest": ["//a/1/1/8001"]}}'
    rows = [_row(0, at * SECOND, at, 1, 0, 0, 0, 0, 0) | {"source": "speed"} for at in range(3)]
    rows += [_row(1, 0, 0, 7, 0, 0, 0, 0, 0) | {"egress": None}]
    change = {
        "table": "subscriptions",
        "run": 0,
        "number": 0,
        "time_us": 0,
        "time_ns": 0,
        "change": "PRESENT",
    }
    segment = {"number": 0, "first_seq": 0, "next_seq": 3, "began_us": 0, "began_ns": 0, "end": "STOPPED"}
    events = [
        configurations()[0] | {"settings": settings},
        change | {"topic": "speed", "subscriber": None, "period_ns": 0},
        {"table": "segments", "run": 0, **segment, "first_change": 0, "next_change": 1},
    ]
    assert not found_by("decided", rows, [], events)
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    found = [
        each for some in audit_gateway(GATEWAY, events, lambda names: [batch.select(names)]) for each in some
    ]
    assert {each["found"] for each in found if each["rule"] == "valid"} == {"'speed'", "None"}


# --- consistent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"attempts": 0}, "an attempt of a delivered message"),
        ({"verdict": "THROTTLED", "attempts": 1}, "no attempt without a delivery"),
        ({"verdict": "NO_SUBSCRIBER", "attempts": 1}, "no attempt without a delivery"),
        ({"code": 13}, "no code without a failure"),
        ({"verdict": "DEAD_LETTERED"}, "the code of the failure"),
        ({"delivery": 0}, "a target of the message"),
        ({"sink": "//b/1/1/1"}, "no sink of a publication"),
        ({"type": "NOTIFICATION"}, "a sink of the message"),
        ({"type": "RESPONSE", "sink": "//b/1/1/0"}, "the request of a response"),
        ({"topic": "//a/1/1/8002"}, "the source as topic of the target"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(fields: Row, expected: str) -> None:
    rows = [_row(0, at, at, 1, 0, 0, 0, 0, 0) | {"attempts": 1, "topic": "//a/1/1/8001"} for at in range(3)]
    assert not found_by("consistent", rows, [])
    rows[1] |= fields
    ((_, seq, _, _, promise, _),) = found_by("consistent", rows, [])
    assert (seq, promise) == (1, expected)
    rows[1]["verdict"] = "DENIED"  # its fields may be the reason
    assert not found_by("consistent", rows, [])


# --- place --------------------------------------------------------------------------------------------------------


def test_an_authority_is_behind_the_endpoint_of_most_rows_of_a_configuration() -> None:
    rows = [_row(0, at, at, 1, 0, 0, 0, 0, 0) for at in range(6)]
    call = {"type": "REQUEST", "sink": f"//{GATEWAY}/1/1/1"}
    rows[1] |= call | {"source": "//b/1/1/0", "ingress": "b", "egress": "self"}
    rows[2] |= call | {"source": "//b/1/1/0", "ingress": "b", "egress": "c"}  # an entity with that authority
    assert not found_by("place", rows, [3])
    rows[3] |= {"epoch": 1, "ingress": "c"}  # a reload moved it
    rows[4] |= {"verdict": "DENIED", "ingress": "b"}
    assert not found_by("place", rows, [3])
    rows[5] |= {"ingress": "b"}
    ((_, seq, _, subject, expected, found),) = found_by("place", rows, [3])
    assert (seq, subject, expected, found) == (5, "endpoint of a", "a, as 1 messages", "b, 1 messages")
    rows[5] |= {"ingress": "a", "type": "NOTIFICATION", "sink": "//a/1/1/0", "egress": "self"}
    assert [each[5] for each in found_by("place", rows, [3])] == ["self, 1 messages"]


# --- dead letters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, []),
        ({"id_lsb": 9}, ["id (1, 9)"]),
        ({"source": "//a/1/1/8002"}, ["source //a/1/1/8002"]),
        ({"sink": "//b/1/1/0"}, ["sink //b/1/1/0"]),
        ({"code": None}, ["code None"]),
    ],
)
def test_a_dead_letter_is_that_of_its_row(fields: Row, found: list[str]) -> None:
    rows = [_row(0, at, at, 1, 0, 0, 0, 3, 0) | {"code": 14} for at in range(3)]
    letter = {"table": "dead_letters", "run": 0, "seq": 1, "time_us": 0, "id_msb": 1, "id_lsb": 1}
    letter |= {"source": "//a/1/1/8001", "sink": None, "code": 14} | fields
    assert [each[5] for each in found_by("dead_letters", rows, [], [letter])] == found
    assert [each[5] for each in found_by("dead_letters", rows, [], [letter] * 2)] == sorted([*found, "2"])


# --- order --------------------------------------------------------------------------------------------------------


def overtaken(rows: Sequence[Row]) -> Iterator[Finding]:
    """Each delivered message with a later one of its stream in front of it."""
    delivered = [row for row in rows if row["verdict"] == "DELIVERED"]
    for row in delivered:
        before = [
            (other["received_ns"], other["seq"])
            for other in delivered
            if other["seq"] < row["seq"]
            and (other["run"], other["subscriber"]) == (row["run"], row["subscriber"])
        ]
        latest_ns, seq = max(before, default=(0, 0))
        if latest_ns > row["received_ns"]:
            expected = f"before seq {seq}, which came {latest_ns - row['received_ns']} ns later"
            place = row["run"], row["seq"], row["received_us"]
            yield *place, target_of(row), expected, "delivered after it"


@CASES
@given(rows_in_order(), cuts)
def test_a_message_is_overtaken_if_a_later_one_has_a_smaller_number(rows: list[Row], at: list[int]) -> None:
    assert found_by("order", rows, at) == sorted(overtaken(rows))


# --- sequence -----------------------------------------------------------------------------------------------------


@st.composite
def announcements(draw: st.DrawFn) -> list[Row]:
    """Gaps and recordings of both runs. Recordings follow one another; some are missing."""
    events: list[Row] = []
    for run in (0, 1):
        first = 0
        for number in range(draw(st.integers(0, 4))):
            rows = draw(st.integers(0, 8))
            if draw(st.booleans()):
                events.append(
                    {
                        "table": "segments",
                        "run": run,
                        "number": number,
                        "first_seq": first,
                        "next_seq": first + rows,
                        "began_us": number,
                        "began_ns": 0,
                        "end": None,
                    }
                )
            first += rows + draw(st.integers(0, 1))  # a recording may begin later than the one before ended
        for first, rows in draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=3)):
            gap = {"from_ns": 0, "until_ns": 0, "first_seq": first, "rows": rows}
            events.append({"table": "gaps", "run": run, **gap})
    return events


def numbers_amiss(rows: Sequence[Row], events: Sequence[Row]) -> Iterator[Finding]:
    for run in {row["run"] for row in (*rows, *events)}:
        segments = [row for row in events if (row["table"], row["run"]) == ("segments", run)]
        announced = [row for row in events if (row["table"], row["run"]) == ("gaps", run)]
        known = Counter[int]()
        for row in announced:
            known[row["first_seq"]] += row["rows"]
        number = next_seq = 0
        for row in segments:
            if row["number"] > number:
                known[next_seq] += row["first_seq"] - next_seq
            number, next_seq = row["number"] + 1, row["next_seq"]
        there = {row["seq"]: row["received_us"] for row in reversed(rows) if row["run"] == run}
        end = {next_seq: max(row["began_us"] for row in segments)} if segments else {}
        before = -1
        for seq, time_us in sorted((end | there).items()):
            missing = seq - before - 1
            announced_rows = sum(known[first] for first in range(before + 1, seq))
            if missing > announced_rows and (seq in there or seq > max(there, default=-1)):
                expected = f"rows {before + 1} to {seq - 1}, or a gap that says so"
                found = f"{missing} rows missing, {announced_rows} of them announced"
                yield run, seq, time_us, "rows of the run", expected, found
            before = seq if seq in there else before
        yield from _twice(run, [row for row in rows if row["run"] == run])


def _twice(run: int, rows: Sequence[Row]) -> Iterator[Finding]:
    seen: set[int] = set()
    named: set[tuple[int, int]] = set()
    for row in rows:
        place = row["seq"], row["received_us"]
        if row["seq"] in seen and place not in named:
            named.add(place)
            yield run, *place, "rows of the run", "each seq once", "twice"
        seen.add(row["seq"])


@CASES
@given(rows_in_order(), cuts, announcements())
def test_each_number_is_there_once_or_announced(rows: list[Row], at: list[int], events: list[Row]) -> None:
    assert set(found_by("sequence", rows, at, events)) == set(numbers_amiss(rows, events))


def stored(row: Row, day: int) -> Row:
    return row | {"received_us": day * DAY_US + row["received_us"]}


def test_a_run_with_rows_of_other_dates_is_not_judged_by_its_numbers() -> None:
    """A run from day 1 to day 3 with numbers 0 to 8, of which 4 is missing. Each day has three of them."""
    rows = [stored(_row(0, seq, seq, 1, 0, 0, 0, 0, 0), 1 + seq // 3) for seq in range(9) if seq != 4]
    segment = {
        "number": 0,
        "first_seq": 0,
        "next_seq": 9,
        "began_us": DAY_US,
        "began_ns": 0,
        "end": "STOPPED",
    }
    counts = dict.fromkeys((verdict.lower() for verdict in VERDICTS), 0)
    final = {"final": True, "time_us": 3 * DAY_US, "received": 9, "queued": 0, **counts, "delivered": 9}
    events = [{"table": "segments", "run": 0, **segment}, {"table": "counters", "run": 0, **final}]
    for unread, expected in (
        ([], 1),
        ([Span((0, 5), (0, 9))], 0),
        ([Span((-1, 0), (0, 0)), Span((2, 0), (2, 0))], 0),
        ([Span((1, 0), (3, 9))], 1),
    ):
        for rule in ("sequence", "ledger"):
            assert len(found_by(rule, rows, [], events, unread)) == expected


def test_a_gate_is_not_judged_by_rows_of_other_dates() -> None:
    """The clock was set back over midnight: row 1, which is not read, is the reason that row 2 was throttled."""
    rows = [
        _row(0, at, seq, 1, 0, 0, 0, VERDICTS.index(verdict), 0) | {"period_ns": 100}
        for seq, (at, verdict) in enumerate([(0, "DELIVERED"), (100, "DELIVERED"), (130, "THROTTLED")])
    ]
    rows.append(rows[1] | {"run": 1, "seq": 0, "received_ns": 130, "arrived_ns": 130})
    assert len(found_by("decided", [rows[0], *rows[2:]], [])) == 1
    for unread in (Span((0, 100), (0, 100)), Span((0, 50), (0, 110)), Span((-1, 0), (0, 200))):
        assert not found_by("decided", [rows[0], *rows[2:]], [], unread=[unread])
    assert len(found_by("decided", [rows[0], *rows[2:]], [], unread=[Span((1, 0), (1, 5))])) == 1


def test_a_message_is_not_judged_by_its_rows_of_other_dates() -> None:
    """Each message has a row for two subscribers; the second row of message 5 has another date, before row 6."""
    rows = [
        row | {"arrived_ns": row["received_ns"] - at % 2 * SECOND, "id_msb": row["id_msb"] - at % 2 * SECOND}
        for at, row in enumerate(
            _row(0, (at - at % 2) * 10 * SECOND + at % 2 * SECOND, at, 1 + at % 2, 0, 1, 0, 0, 1)
            | {"subscriber": f"//b/{1 + at % 2}/1/0", "id_lsb": at // 2, "received_us": 0}
            for at in range(8)
        )
    ]
    change = {
        "table": "subscriptions",
        "run": 0,
        "time_ns": 0,
        "time_us": 0,
        "change": "PRESENT",
        "period_ns": 2,
    }
    changes = [
        change | {"number": at, "topic": "//a/1/1/8001", "subscriber": f"//b/{1 + at}/1/0"} for at in range(2)
    ]
    segment = {"number": 0, "first_seq": 0, "next_seq": 8, "began_us": 0, "began_ns": 0, "end": "STOPPED"}
    events = [{"table": "segments", "run": 0, **segment, "first_change": 0, "next_change": 2}, *changes]
    assert not found_by("starved", rows, [], events)
    lost = rows.pop(5)
    assert len(found_by("starved", rows, [], events)) == 1
    unread = Span((0, lost["received_ns"]), (0, lost["received_ns"]))
    assert not found_by("starved", rows, [], events, unread=[unread])
    later = lost["received_ns"] + 61 * SECOND
    assert len(found_by("starved", rows, [], events, unread=[Span((0, later), (0, later))])) == 1


# --- answers ------------------------------------------------------------------------------------------------------


@st.composite
def calls(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    few = st.integers(0, 3)
    for at, (kind, verdict, id_lsb, request) in enumerate(
        draw(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 5), few, few), max_size=20))
    ):
        row = _row(0, at, at, 1, 0, 0, 0, verdict, 0) | {
            "type": TYPES[kind],
            "id_msb": 7,
            "sink": "//b/1/1/1",
        }
        answered = {"request_msb": 7, "request_lsb": request} if kind == 2 else {}
        rows.append(row | {"id_lsb": id_lsb} | answered)
    return rows


@CASES
@given(calls(), cuts, st.booleans())
def test_a_failed_request_has_one_answer(rows: list[Row], at: list[int], is_stopped: bool) -> None:
    segment = {"number": 0, "first_seq": 0, "next_seq": len(rows), "began_us": 0, "began_ns": 0}
    events = [{"table": "segments", "run": 0, **segment, "end": "STOPPED" if is_stopped else None}]
    expected = []
    for row in rows:
        if row["type"] != "REQUEST":
            continue
        given = {
            other["id_lsb"]
            for other in rows
            if other["type"] == "RESPONSE"
            and other["verdict"] != "DENIED"
            and other["request_lsb"] == row["id_lsb"]
        }
        is_delivered = row["verdict"] == "DELIVERED"
        if len(given) > 1 or (not given and not is_delivered and is_stopped):
            promise = "at most one Response" if is_delivered else "one Response"
            found = f"{len(given)}, to a request that was {row['verdict']}"
            place = 0, row["seq"], row["received_us"]
            expected.append((*place, "request to //b/1/1/1", promise, found))
    assert found_by("answers", rows, at, events) == sorted(expected)


# --- all ----------------------------------------------------------------------------------------------------------


@CASES
@given(rows_in_order(), cuts, st.sampled_from(sorted(PROMISES)))
def test_batches_make_no_difference(rows: list[Row], at: list[int], rule: str) -> None:
    if rule == "sequence":  # of two rows with one number, either is the second
        rows = [
            row for place, row in enumerate(rows) if row["seq"] not in {each["seq"] for each in rows[:place]}
        ]
    assert found_by(rule, rows, at, configurations()) == found_by(rule, rows, [], configurations())


@CASES
@given(st.lists(st.tuples(st.integers(-1, 2), LARGE, st.integers(-1, 2)), max_size=20), cuts)
def test_equal_combinations_have_one_number_in_all_batches(
    rows: list[tuple[int, ...]], at: list[int]
) -> None:
    groups, numbers = Groups(), []
    places = [0, *sorted(each for each in at if each < len(rows)), len(rows)]
    for start, end in pairwise(places):
        columns = np.array(rows[start:end], dtype=np.int64).reshape(-1, 3).T
        numbers += groups.numbers(list(columns)).tolist()
    assert [list(groups.combinations)[number] for number in numbers] == rows
    assert len(groups) == len(set(rows))


def test_a_stretch_of_two_batches_names_its_first_row() -> None:
    first, second = Example(1, 10, 20, 3), Example(4, 40, 15, 2)
    assert first.merge(second) == second.merge(first) == Example(1, 10, 15, 5)


def test_a_rule_reads_the_columns_that_it_compares() -> None:
    assert PublicationTargets.COLUMNS == TargetStretches.COLUMNS
    for rule in (Consistent, OnePlace, PublicationTargets):
        assert {"seq", "verdict", "source"} <= set(rule.COLUMNS) <= set(DELIVERIES.names)
