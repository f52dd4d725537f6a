# SPDX-License-Identifier: Apache-2.0
"""The audit finds each planted violation and no other. A value exactly at a limit is no violation."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.sample_lakes import list_lake
from ustreamer_pipeline import schemas
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.gold.audit import PROMISES, AuditResult, audit, load
from ustreamer_pipeline.gold.ordered_pass import findings_in_order
from ustreamer_pipeline.gold.readable import PROMISE
from ustreamer_pipeline.gold.rules.addresses import Echo
from ustreamer_pipeline.gold.rules.answers import Answers
from ustreamer_pipeline.gold.rules.dead_letters import DeadLetters
from ustreamer_pipeline.gold.rules.expiry import Expired
from ustreamer_pipeline.gold.rules.ledger import LedgerLaw
from ustreamer_pipeline.gold.rules.numbers import SequenceNumbers
from ustreamer_pipeline.gold.rules.order import Order
from ustreamer_pipeline.gold.rules.rates import NeverThrottled, Rate
from ustreamer_pipeline.replay.files import event_files_of
from ustreamer_pipeline.schemas import UNKNOWN_GATEWAY, Table

MS = 1_000_000
SECOND = 1_000 * MS
HOUR_MS = 3_600_000
PERIOD = 100 * MS
WALL_MS = 1_763_700_000_000
Row = dict[str, Any]

COUNTS = tuple(verdict.lower() for verdict in schemas.VERDICTS)


class Recording:
    """One clean run of one gateway, row by row. A test case adds a violation."""

    def __init__(self, gateway: str = "vin1", run: int = 7) -> None:
        self.about: Row = {"gateway": gateway, "run": run, "date": None}
        self.deliveries: list[Row] = []
        self.gaps: list[Row] = []
        self.counters: list[Row] = []
        self.dead_letters: list[Row] = []
        self.leaps: list[Row] = []
        self.refused: list[Row] = []
        self.tolerance = 0.1
        self.stopped = True
        self.end: int | None = None
        self._clean()

    def _clean(self) -> None:
        for n in range(20):
            self.publish(n * PERIOD, "backbone")
            self.publish(n * PERIOD, "tablet", subscriber="//tablet/1/1/0", priority=n % 2)
            self.publish(n * PERIOD + 40 * MS, "backbone", verdict="THROTTLED")
        for n in range(5):
            self.call(n, 3_000 * MS + n * MS)
        failed = self.request(50, 4_000 * MS, verdict="DEAD_LETTERED", code=14, attempts=0)
        self.answer(51, 4_001 * MS, 50)
        self.dead_letters.append({"seq": failed["seq"]})
        self.row(5_000 * MS, delivery=0, egress=None, verdict="NO_SUBSCRIBER", period_ns=0)
        self.row(5_001 * MS, delivery=9, sink="//tablet/1/1/0", type="NOTIFICATION", period_ns=0)

    def row(self, at: int, **fields: Any) -> Row:
        seq = len(self.deliveries)
        made = dict.fromkeys(schemas.DELIVERIES.names) | self.about | {
            "seq": seq,
            "id_msb": (WALL_MS + at // MS) << 16 | 0x7000,
            "id_lsb": -seq,
            "received_us": WALL_MS * 1_000 + at // 1_000,
            "received_ns": at,
            "arrived_ns": at,
            "settled_ns": at + MS,
            "source": "//chassis/1/1/8001",
            "type": "PUBLISH",
            "priority": 1,
            "size": 10,
            "ingress": "chassis",
            "egress": "backbone",
            "verdict": "DELIVERED",
            "attempts": 1,
            "queue_wait_us": 500,
            "latency_us": 1_000,
            "held": False,
            "delivery": 1,
            "period_ns": PERIOD,
            "tuned_ns": 0,
            "epoch": 0,
        } | fields  # fmt: skip
        self.deliveries.append(made)
        return made

    def publish(self, at: int, egress: str, **fields: Any) -> Row:
        known = {"backbone": 1, "tablet": 2}
        return self.row(
            at, egress=egress, **{"delivery": known[egress], "topic": "//chassis/1/1/8001"} | fields
        )

    def request(self, id: int, at: int, **fields: Any) -> Row:
        known = {
            "source": "//tablet/1/1/0",
            "sink": "//chassis/2/1/1",
            "ingress": "tablet",
            "egress": "chassis",
        }
        return self.row(
            at, type="REQUEST", id_lsb=id, delivery=5, period_ns=0, ttl_ms=1_000, **known | fields
        )

    def answer(self, id: int, at: int, request: int, **fields: Any) -> Row:
        asked = next(each for each in self.deliveries if each["id_lsb"] == request)
        known = {
            "source": "//chassis/2/1/1",
            "sink": "//tablet/1/1/0",
            "ingress": "chassis",
            "egress": "tablet",
        }
        return self.row(
            at,
            type="RESPONSE",
            id_lsb=id,
            delivery=6,
            period_ns=0,
            request_msb=asked["id_msb"],
            request_lsb=request,
            **known | fields,
        )

    def call(self, number: int, at: int) -> None:
        self.request(100 + number, at)
        self.answer(200 + number, at + 100_000, 100 + number)

    def leap(self, ms: int, at: int = 0) -> None:
        """A step of the wall clock, after which it shows the time that `row` uses; of a later step, the time it then
        shows.
        """
        shown_us = WALL_MS * 1_000 + at // 1_000 + (ms * 1_000 if at > 0 else 0)
        self.leaps.append({"time_us": shown_us, "time_ns": at, "leap_ms": ms})

    def at(self, *, verdict: str = "DELIVERED", egress: str = "backbone", number: int = 10) -> Row:
        return [each for each in self.deliveries if (each["verdict"], each["egress"]) == (verdict, egress)][
            number
        ]

    def rows(self) -> dict[Table, list[Row]]:
        """Rows of every table that the audit reads."""
        end = self.end or 1 + max(each["seq"] for each in self.deliveries)
        segment = {"number": 0, "began_us": 0, "first_seq": 0, "next_seq": end, "rows": 0}
        settings = json.dumps({"throttle": {"tolerance": self.tolerance}})
        events = {
            schemas.EPOCHS: [{"epoch": 0, "since_us": 0, "since_ns": 0, "settings": settings}],
            schemas.GAPS: self.gaps,
            schemas.COUNTERS: self.counters or [self.ledger()],
            schemas.SEGMENTS: [segment | {"end": "STOPPED" if self.stopped else None}],
            schemas.DEAD_LETTERS: self.dead_letters,
            schemas.LEAPS: self.leaps,
        }
        refused = {"gateway": UNKNOWN_GATEWAY, "rows": 0}
        return {
            schemas.QUARANTINE: [refused | each for each in self.refused],
            schemas.DELIVERIES: [each | self.about for each in self.deliveries],
            **{table: [self.about | each for each in rows] for table, rows in events.items()},
        }

    def ledger(self) -> Row:
        """Counters of the dispatcher, if every delivery was recorded."""
        counts = {
            name: sum(each["verdict"] == verdict for each in self.deliveries)
            for verdict, name in zip(schemas.VERDICTS, COUNTS, strict=True)
        }
        return {"time_us": 0, "final": True, "received": sum(counts.values()), **counts, "queued": 0}


RULES = [
    *(
        name
        for rule in (Rate, NeverThrottled, Order, Expired, Echo, DeadLetters, Answers)
        for name in rule.PROMISES
    ),
    *(name for rule in (SequenceNumbers, LedgerLaw) for name in rule.PROMISES),
    "readable",
]
"""tests/test_chain.py has the rules that need real recordings."""


Broken = dict[str, list[int | None]]
Case = Callable[[Recording], Broken]
CASES: list[Case] = []


def case(add_violation: Case) -> Case:
    """Register a test case: a function that adds violations to one gateway and returns the expected rows by rule."""
    CASES.append(add_violation)
    return add_violation


# --- rates ------------------------------------------------------------------------------------------------------------


def burst(recording: Recording, count: int, short_by: int) -> Row:
    """Add `count` messages, the last one `short_by` ns too early. Returns the last one."""
    start = (
        60_000 * MS
    )  # far from the clean part. N messages need at least N - 1 periods, less a period and a tenth.
    length = (count - 1) * PERIOD - PERIOD - PERIOD // 10 - short_by
    rows = [recording.publish(start + length * n // (count - 1), "backbone") for n in range(count)]
    return rows[-1]


@case
def clean(recording: Recording) -> Broken:
    return {}


@case
def three_at_the_limit(recording: Recording) -> Broken:
    burst(recording, 3, 0)
    return {}


@case
def fifty_at_the_limit(recording: Recording) -> Broken:
    burst(recording, 50, 0)
    return {}


@case
def three_above_the_limit_by_1_ns(recording: Recording) -> Broken:
    return {"rate": [burst(recording, 3, 1)["seq"]]}


@case
def fifty_above_the_limit_by_1_ns(recording: Recording) -> Broken:
    return {"rate": [burst(recording, 50, 1)["seq"]]}


@case
def strict_and_every_gap_a_period(recording: Recording) -> Broken:
    recording.tolerance = 0.0
    recording.publish(60_000 * MS, "backbone")
    recording.publish(60_100 * MS, "backbone")
    return {}


@case
def strict_and_1_ns_early(recording: Recording) -> Broken:
    recording.tolerance = 0.0
    recording.publish(60_000 * MS, "backbone")
    return {"rate": [recording.publish(60_100 * MS - 1, "backbone")["seq"]]}


@case
def a_new_limit(recording: Recording) -> Broken:
    """Twice as fast from one moment on, which violates the old limit."""
    for n in range(40):
        recording.publish(
            30_000 * MS + n * PERIOD // 2, "backbone", period_ns=PERIOD // 2, tuned_ns=29_999 * MS
        )
    return {}


def dead_lettered_by_a_stop(recording: Recording, wait_ns: int) -> list[int]:
    """Five messages that a filter held and passed in 5 ns; the stop is that much later. Returns their numbers."""
    for n in range(5):
        at = 30_000 * MS + n
        fields = {"verdict": "DEAD_LETTERED", "code": 14, "held": True, "settled_ns": at + wait_ns}
        row = recording.publish(at, "tablet", **fields)
        recording.dead_letters.append({"seq": row["seq"]})
    return [row["seq"] for row in recording.deliveries[-5:]]


@case
def removed_from_a_filter_by_a_stop(recording: Recording) -> Broken:
    dead_lettered_by_a_stop(recording, 0)
    return {}


@case
def waiting_for_a_link_at_a_stop(recording: Recording) -> Broken:
    return {"rate": [*dead_lettered_by_a_stop(recording, 1)[2:]]}


@case
def a_throttled_notification(recording: Recording) -> Broken:
    recording.deliveries[-1]["verdict"] = "THROTTLED"
    return {"never_throttled": [recording.deliveries[-1]["seq"]]}


@case
def throttled_without_a_limit(recording: Recording) -> Broken:
    row = recording.publish(9_000 * MS, "tablet", verdict="THROTTLED", period_ns=0)
    return {"never_throttled": [row["seq"]]}


# --- order, ttl, addresses, dead letters --------------------------------------------------------------------


@case
def overtaken(recording: Recording) -> Broken:
    first, second = recording.at(number=3), recording.at(number=4)
    first["seq"], second["seq"] = second["seq"], first["seq"]
    return {"order": [first["seq"]]}


@case
def overtaken_by_another_class(recording: Recording) -> Broken:
    first, second = recording.at(egress="tablet", number=3), recording.at(egress="tablet", number=4)
    first["seq"], second["seq"] = second["seq"], first["seq"]
    return {}


@case
def sent_at_its_ttl(recording: Recording) -> Broken:
    recording.at().update(ttl_ms=20, queue_wait_us=20_000)
    return {}


@case
def sent_1_us_after_its_ttl(recording: Recording) -> Broken:
    recording.at().update(ttl_ms=20, queue_wait_us=20_001)
    return {"expired": [recording.at()["seq"]]}


@case
def from_the_future(recording: Recording) -> Broken:
    row = recording.at()
    row.update(ttl_ms=20, id_msb=row["id_msb"] + (5_000 << 16), queue_wait_us=20_000)
    return {}


def made_before(recording: Recording, ms: int, **fields: Any) -> Row:
    """A message with a ttl of 20 ms that is `ms` old at its arrival."""
    row = recording.at()
    row.update({"ttl_ms": 20, "id_msb": row["id_msb"] - (ms << 16), "queue_wait_us": 0} | fields)
    return row


@case
def too_old_on_arrival(recording: Recording) -> Broken:
    return {"expired": [made_before(recording, 71)["seq"]]}


@case
def too_old_by_what_a_clock_may_drift_without_an_anchor(recording: Recording) -> Broken:
    made_before(recording, 70)
    return {}


@case
def made_before_a_leap_and_sent_at_its_ttl(recording: Recording) -> Broken:
    recording.leap(HOUR_MS)
    made_before(recording, HOUR_MS + 5, queue_wait_us=20_000)
    return {}


@case
def made_before_the_first_of_two_leaps(recording: Recording) -> Broken:
    recording.leap(HOUR_MS)
    recording.leaps.append({"time_us": (WALL_MS - HOUR_MS) * 1_000, "time_ns": -MS, "leap_ms": 5 * HOUR_MS})
    made_before(recording, 6 * HOUR_MS + 5)
    return {}


@case
def sent_1_us_after_its_ttl_behind_a_leap(recording: Recording) -> Broken:
    recording.leap(HOUR_MS)
    return {"expired": [made_before(recording, HOUR_MS + 5, queue_wait_us=20_001)["seq"]]}


@case
def too_old_before_a_leap(recording: Recording) -> Broken:
    recording.leap(HOUR_MS)
    return {"expired": [made_before(recording, HOUR_MS + 71)["seq"]]}


@case
def made_later_than_the_clock_had_shown(recording: Recording) -> Broken:
    recording.leap(3 * HOUR_MS)
    return {"expired": [made_before(recording, HOUR_MS)["seq"]]}


@case
def a_leap_that_is_forgotten(recording: Recording) -> Broken:
    recording.leap(HOUR_MS, at=recording.at()["received_ns"] - 670 * SECOND - 1)
    return {"expired": [made_before(recording, HOUR_MS)["seq"]]}


@case
def a_leap_that_is_just_not_forgotten(recording: Recording) -> Broken:
    recording.leap(HOUR_MS, at=recording.at()["received_ns"] - 670 * SECOND)
    made_before(recording, HOUR_MS)
    return {}


@case
def a_leap_that_is_drift_to_the_streamer(recording: Recording) -> Broken:
    recording.leap(1_000)
    return {"expired": [made_before(recording, 1_000)["seq"]]}


@case
def the_smallest_leap(recording: Recording) -> Broken:
    recording.leap(1_001)
    made_before(recording, 1_001)
    return {}


@case
def before_the_recorder_saw_the_leap(recording: Recording) -> Broken:
    recording.leap(-HOUR_MS, at=recording.at()["received_ns"] + 70 * SECOND)
    made_before(recording, HOUR_MS)
    return {}


@case
def long_before_a_leap(recording: Recording) -> Broken:
    recording.leap(-HOUR_MS, at=recording.at()["received_ns"] + 70 * SECOND + 1)
    return {"expired": [made_before(recording, HOUR_MS)["seq"]]}


@case
def behind_a_leap_of_another_run(recording: Recording) -> Broken:
    recording.leap(HOUR_MS)
    recording.leaps[0]["run"] = 8
    return {"expired": [made_before(recording, HOUR_MS)["seq"]]}


@case
def sent_back(recording: Recording) -> Broken:
    recording.at()["ingress"] = "backbone"
    return {"echo": [recording.at()["seq"]]}


@case
def a_throttled_dead_letter(recording: Recording) -> Broken:
    row = recording.at(verdict="THROTTLED")
    recording.dead_letters.append({"seq": row["seq"]})
    return {"dead_letters": [row["seq"]]}


# --- answers ----------------------------------------------------------------------------------------------------------


def answered_twice(recording: Recording) -> int:
    recording.answer(300, 6_000 * MS, 101)
    return next(int(each["seq"]) for each in recording.deliveries if each["id_lsb"] == 101)


@case
def two_answers(recording: Recording) -> Broken:
    return {"answers": [answered_twice(recording)]}


@case
def no_answer(recording: Recording) -> Broken:
    return {"answers": [recording.request(60, 6_000 * MS, verdict="EXPIRED")["seq"]]}


@case
def a_service_that_does_not_answer(recording: Recording) -> Broken:
    recording.request(70, 6_000 * MS)
    return {}


@case
def killed_before_the_answer(recording: Recording) -> Broken:
    no_answer(recording)
    recording.stopped = False
    return {}


@case
def two_answers_of_one_that_was_killed(recording: Recording) -> Broken:
    recording.stopped = False
    return {"answers": [answered_twice(recording)]}


# --- missing data -------------------------------------------------------------------------------------------


def gap(first_seq: int, rows: int, **by_verdict: int) -> Row:
    counts = dict.fromkeys(COUNTS, 0) | by_verdict if by_verdict else {}
    return {"cause": "OVERRUN", "first_seq": first_seq, "rows": rows, "from_us": 0, "until_us": 0, **counts}


def lose(recording: Recording, first: int, count: int) -> dict[str, int]:
    """Remove rows without a change of the counters. Returns the removed rows by verdict."""
    recording.counters = [recording.ledger()]
    recording.end = len(recording.deliveries)
    gone = [each["verdict"] for each in recording.deliveries if first <= each["seq"] < first + count]
    recording.deliveries = [each for each in recording.deliveries if not first <= each["seq"] < first + count]
    return {name: gone.count(verdict) for verdict, name in zip(schemas.VERDICTS, COUNTS, strict=True)}


@case
def the_first_are_missing(recording: Recording) -> Broken:
    lose(recording, 0, 1)
    return {"sequence": [1], "ledger": [None]}


@case
def some_are_missing(recording: Recording) -> Broken:
    lose(recording, 9, 3)  # of two verdicts
    return {"sequence": [12], "ledger": [None, None]}


@case
def the_last_are_missing(recording: Recording) -> Broken:
    end = len(recording.deliveries)
    lose(recording, end - 2, 2)
    return {"sequence": [end], "ledger": [None, None]}


@case
def damaged_bytes(recording: Recording) -> Broken:
    lose(recording, 9, 6)
    recording.gaps = [gap(9, 2), gap(11, 4)]
    return {}


@case
def an_announced_gap(recording: Recording) -> Broken:
    recording.gaps = [gap(9, 6, **lose(recording, 9, 6))]
    return {}


@case
def a_gap_of_one_row_too_few(recording: Recording) -> Broken:
    recording.gaps = [gap(9, 5, **lose(recording, 9, 6))]
    return {"sequence": [15]}


@case
def a_gap_of_another_verdict(recording: Recording) -> Broken:
    gone = lose(recording, 9, 6)
    recording.gaps = [gap(9, 6, **gone | {"delivered": gone["delivered"] + 1})]
    return {"ledger": [None]}


@case
def a_row_twice(recording: Recording) -> Broken:
    recording.counters = [recording.ledger()]
    recording.deliveries.append(recording.deliveries[-2])
    return {"sequence": [recording.deliveries[-1]["seq"]], "ledger": [None]}


@case
def a_ledger_that_does_not_balance(recording: Recording) -> Broken:
    recording.counters = [recording.ledger() | {"queued": 1}]
    return {"ledger": [None]}


@case
def a_ledger_during_the_run(recording: Recording) -> Broken:
    recording.counters = [recording.ledger() | {"queued": 1, "final": False}]
    return {}


@case
def a_refused_row(recording: Recording) -> Broken:
    row = {"file": "1-000000.useg", "reason": "seq 9: was there already", "offset": 384, "rows": 1}
    recording.refused = [row | {"gateway": "a_refused_row"}]
    return {"readable": [None]}


@case
def refused_recordings(recording: Recording) -> Broken:
    recording.refused = [
        {"file": "1-000001.useg", "reason": "the header does not match its checksum; kept as refused/1"},
        {"file": "1-000002.useg", "reason": "0 bytes of a header, or zeros: expected 288; not kept"},
        {"file": "1-000003.useg", "reason": "96 bytes between block 1 and block 2", "offset": 288},
    ]
    return {}  # of no gateway: see below


# --- all rules in one audit ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted() -> dict[str, tuple[Recording, Broken]]:
    """A gateway for each case, with the expected findings."""
    made = {}
    for add_violation in CASES:
        recording = Recording(add_violation.__name__)
        made[add_violation.__name__] = recording, add_violation(recording)
    return made


@pytest.fixture(scope="module")
def verdict(
    spark: SparkSession,
    planted: dict[str, tuple[Recording, Broken]],
    tmp_path_factory: pytest.TempPathFactory,
) -> AuditResult:
    lake = tmp_path_factory.mktemp("planted")
    write_lake(lake, *(recording for recording, _ in planted.values()))
    return audit(load(spark, str(lake)), examples=1_000, rules=RULES)


@pytest.mark.parametrize("name", [add_violation.__name__ for add_violation in CASES])
def test_exactly_the_planted_violations_are_found(
    name: str, verdict: AuditResult, planted: dict[str, tuple[Recording, Broken]]
) -> None:
    found: Broken = {}
    for each in verdict.examples:
        if each["gateway"] == name:
            found.setdefault(each["rule"], []).append(each["seq"])
    assert found == planted[name][1]


def test_every_rule_has_a_case_that_violates_it(
    verdict: AuditResult, planted: dict[str, tuple[Recording, Broken]]
) -> None:
    assert {rule for _, broken in planted.values() for rule in broken} == set(RULES)
    expected = Counter(rule for _, broken in planted.values() for rule, rows in broken.items() for _ in rows)
    assert verdict.counts == dict.fromkeys(RULES, 0) | dict(expected) | {"readable": 2}
    refused = {each["gateway"]: each["subject"] for each in verdict.examples if each["rule"] == "readable"}
    assert refused == {UNKNOWN_GATEWAY: "1-000001.useg", "a_refused_row": "1-000000.useg"}
    assert (verdict.gateways, verdict.clean) == (len(CASES), False)


def test_a_gateway_without_any_row_lacks_the_rows_of_its_recordings_and_counters(
    spark: SparkSession, tmp_path: Path
) -> None:
    recording = Recording()
    recording.end, recording.counters = 68, [recording.ledger()]
    recording.deliveries.clear()
    write_lake(tmp_path, recording)
    found = findings_in_order(spark, {}, event_files_of(str(tmp_path)), ["sequence", "ledger"]).collect()
    assert {(row.rule, row.seq) for row in found} == {("sequence", 68), ("ledger", None)}
    assert PROMISES["readable"] == PROMISE


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_names_violating_rows_and_ends_with_1(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording()
    row = recording.at()
    row["ingress"] = "backbone"
    write_lake(tmp_path, recording)
    assert main(["audit", str(tmp_path), "--rules", "rate,echo"]) == 1
    output = capsys.readouterr().out
    assert "FAIL  echo             nothing goes back where it came from: 1 times not" in output
    assert f"vin1 run 7 seq {row['seq']}: //chassis/1/1/8001 -> backbone" in output
    assert "ok    rate             no target above its max_frequency" in output
    assert main(["audit", str(tmp_path), "--rules", "never_throttled", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"never_throttled": 0}


def test_a_damaged_file_is_one_line(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lake(tmp_path, Recording())
    file = next((tmp_path / schemas.DELIVERIES.folder).rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-9])
    assert main(["audit", str(tmp_path)]) == 74
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("ustreamer-pipeline audit: ")
    assert file.name in last


def test_invalid_arguments_are_named(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path), "--rules", "rate,speed"]) == 2
    assert main(["audit", str(tmp_path), "--rules", ""]) == 2
    assert main(["audit", str(tmp_path), "--rules", "rate,"]) == 2
    assert main(["audit", str(tmp_path), "--since", "yesterday"]) == 2
    assert main(["audit", str(tmp_path)]) == 69
    output = capsys.readouterr().err.splitlines()
    assert output[0].startswith(
        "ustreamer-pipeline audit: --rules speed: expected some of rate, never_throttled,"
    )
    for line, rules in zip(output[1:3], ("''", "'rate,'"), strict=True):
        expected = (
            f"ustreamer-pipeline audit: --rules {rules}: a rule without a name: expected some of rate, "
        )
        assert line.startswith(expected)
    assert output[3] == "ustreamer-pipeline audit: --since yesterday: expected a date, as 2026-11-21"
    assert output[4].endswith("no deliveries there: ingest first")


def write_lake(lake: Path, *recordings: Recording) -> None:
    """The tables of recordings as ingest writes them, without Spark."""
    for recording in recordings:
        for number, (table, rows) in enumerate(recording.rows().items()):
            stored = table if table in (schemas.DELIVERIES, schemas.QUARANTINE) else schemas.WIDE
            fields = [field.with_nullable(True) for field in stored.arrow_schema()]
            schema = pa.schema([field for field in fields if field.name not in {"date", "gateway"}])
            named = sorted((row | {"table": table.name} for row in rows), key=in_order)
            for gateway in {row["gateway"] for row in rows}:
                folder = lake / stored.folder / "date=2026-11-21" / f"gateway={gateway}"
                folder.mkdir(parents=True, exist_ok=True)
                mine = [row for row in named if row["gateway"] == gateway]
                name = f"{recording.about['gateway']}-{number}.parquet"
                pq.write_table(pa.Table.from_pylist(mine, schema=schema), folder / name)
    list_lake(lake)


def in_order(row: Row) -> tuple[int, ...]:
    return tuple(row.get(name) or 0 for name in ("run", "received_ns", "seq"))
