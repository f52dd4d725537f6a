# SPDX-License-Identifier: Apache-2.0
"""The audit finds each planted violation and no other; what is exactly at a limit is none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from ustreamer_pipeline import schemas
from ustreamer_pipeline.audit import RULES, audit
from ustreamer_pipeline.audit_rules import Tables
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.schemas import Table

MS = 1_000_000
PERIOD = 100 * MS
WALL_MS = 1_763_700_000_000
Row = dict[str, Any]

COUNTS = tuple(verdict.lower() for verdict in schemas.VERDICTS)


class Recording:
    """One clean run of one gateway, row by row; a test spoils it."""

    def __init__(self, gateway: str = "vin1", run: int = 7) -> None:
        self.about: Row = {"gateway": gateway, "run": run, "date": None}
        self.deliveries: list[Row] = []
        self.gaps: list[Row] = []
        self.counters: list[Row] = []
        self.dead_letters: list[Row] = []
        self.tolerance = 0.1
        self.stopped = True
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

    def at(self, *, verdict: str = "DELIVERED", egress: str = "backbone", number: int = 10) -> Row:
        return [each for each in self.deliveries if (each["verdict"], each["egress"]) == (verdict, egress)][
            number
        ]

    def without(self, *seqs: int) -> None:
        self.deliveries = [each for each in self.deliveries if each["seq"] not in seqs]

    def tables(self, spark: SparkSession, next_seq: int | None = None) -> Tables:
        end = 1 + max(each["seq"] for each in self.deliveries) if next_seq is None else next_seq
        counters = self.counters or [self.books()]
        segments = [
            {
                "number": 0,
                "began_us": 0,
                "first_seq": 0,
                "next_seq": end,
                "rows": 0,
                "end": "STOPPED" if self.stopped else None,
            }
        ]
        epochs = [
            {
                "epoch": 0,
                "since_us": 0,
                "since_ns": 0,
                "settings": json.dumps({"throttle": {"tolerance": self.tolerance}}),
            }
        ]
        return Tables(
            frame(spark, schemas.DELIVERIES, self.deliveries),
            *(
                frame(spark, table, [self.about | each for each in rows])
                for table, rows in (
                    (schemas.EPOCHS, epochs),
                    (schemas.GAPS, self.gaps),
                    (schemas.COUNTERS, counters),
                    (schemas.SEGMENTS, segments),
                    (schemas.DEAD_LETTERS, self.dead_letters),
                )
            ),
        )

    def books(self) -> Row:
        """What the dispatcher counted, if everything was recorded."""
        counts = {
            name: sum(each["verdict"] == verdict for each in self.deliveries)
            for verdict, name in zip(schemas.VERDICTS, COUNTS, strict=True)
        }
        return {"time_us": 0, "final": True, "received": sum(counts.values()), **counts, "queued": 0}


def frame(spark: SparkSession, table: Table, rows: list[Row]) -> Any:
    loose = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
    return spark.createDataFrame([tuple(each.get(name) for name in table.names) for each in rows], loose)


def broken(spark: SparkSession, recording: Recording, **kwargs: Any) -> dict[str, list[int | None]]:
    """The rules that are broken, and the rows that do it."""
    verdict = audit(recording.tables(spark, **kwargs))
    found: dict[str, list[int | None]] = {}
    for each in verdict.examples:
        found.setdefault(each["rule"], []).append(each["seq"])
    assert {name: count for name, count in verdict.counts.items() if count} == {
        name: len(rows) for name, rows in found.items()
    }
    return found


def test_a_clean_recording_breaks_nothing(spark: SparkSession) -> None:
    verdict = audit(Recording().tables(spark))
    assert (verdict.clean, verdict.examples, verdict.gateways) == (True, [], 1)
    assert verdict.counts == dict.fromkeys(RULES, 0)


def burst(recording: Recording, count: int, short_by: int) -> int:
    """`count` messages more, of which the last is `short_by` ns too early; its seq."""
    # From where the clean part ends, far away. N messages take at least (N - 1) periods less a period and a tenth.
    start = 60_000 * MS
    last = start + (count - 1) * PERIOD - PERIOD - PERIOD // 10 - short_by
    times = [start + (last - start) * n // (count - 1) for n in range(count)]
    rows = [recording.publish(at, "backbone") for at in times]
    seq = rows[-1]["seq"]
    assert isinstance(seq, int)
    return seq


@pytest.mark.parametrize("count", [3, 4, 50])
def test_a_rate_at_the_limit_is_none_and_1_ns_above_it_is_one(spark: SparkSession, count: int) -> None:
    at_limit = Recording()
    burst(at_limit, count, 0)
    assert broken(spark, at_limit) == {}
    above = Recording()
    seq = burst(above, count, 1)
    assert broken(spark, above) == {"rate": [seq]}


def test_with_tolerance_0_every_gap_is_a_period(spark: SparkSession) -> None:
    recording = Recording()
    recording.tolerance = 0.0
    recording.publish(60_000 * MS, "backbone")
    recording.publish(60_100 * MS, "backbone")
    assert broken(spark, recording) == {}
    early = recording.publish(60_200 * MS - 1, "backbone")
    assert broken(spark, recording) == {"rate": [early["seq"]]}


Spoil = Callable[[Recording], list[int | None]]


def throttled_notification(recording: Recording) -> list[int | None]:
    row = recording.deliveries[-1]
    row["verdict"] = "THROTTLED"
    return [row["seq"]]


def throttled_without_limit(recording: Recording) -> list[int | None]:
    return [recording.publish(9_000 * MS, "tablet", verdict="THROTTLED", period_ns=0)["seq"]]


def overtaken(recording: Recording) -> list[int | None]:
    first, second = recording.at(number=3), recording.at(number=4)
    first["seq"], second["seq"] = second["seq"], first["seq"]
    return [first["seq"]]


def sent_too_late(recording: Recording) -> list[int | None]:
    row = recording.at()
    row.update(ttl_ms=20, queue_wait_us=20_001)
    return [row["seq"]]


def old_on_arrival(recording: Recording) -> list[int | None]:
    row = recording.at()
    row.update(ttl_ms=20, id_msb=row["id_msb"] - (21 << 16), queue_wait_us=0)
    return [row["seq"]]


def sent_back(recording: Recording) -> list[int | None]:
    row = recording.at()
    row["ingress"] = "backbone"
    return [row["seq"]]


def throttled_dead_letter(recording: Recording) -> list[int | None]:
    row = recording.at(verdict="THROTTLED")
    recording.dead_letters.append({"seq": row["seq"]})
    return [row["seq"]]


def two_answers(recording: Recording) -> list[int | None]:
    recording.answer(300, 6_000 * MS, 101)
    return [next(each["seq"] for each in recording.deliveries if each["id_lsb"] == 101)]


def no_answer(recording: Recording) -> list[int | None]:
    return [recording.request(60, 6_000 * MS, verdict="EXPIRED")["seq"]]


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("never_throttled", throttled_notification),
        ("never_throttled", throttled_without_limit),
        ("order", overtaken),
        ("expired", sent_too_late),
        ("expired", old_on_arrival),
        ("echo", sent_back),
        ("letters", throttled_dead_letter),
        ("answers", two_answers),
        ("answers", no_answer),
    ],
)
def test_each_planted_violation_is_found_and_no_other(spark: SparkSession, rule: str, spoil: Spoil) -> None:
    recording = Recording()
    expected = spoil(recording)
    assert broken(spark, recording) == {rule: expected}


def at_its_ttl(recording: Recording) -> None:
    recording.at().update(ttl_ms=20, queue_wait_us=20_000)


def from_the_future(recording: Recording) -> None:
    row = recording.at()
    row.update(ttl_ms=20, id_msb=row["id_msb"] + (5_000 << 16), queue_wait_us=20_000)


def other_class_overtakes(recording: Recording) -> None:
    first, second = recording.at(egress="tablet", number=3), recording.at(egress="tablet", number=4)
    first["seq"], second["seq"] = second["seq"], first["seq"]


def a_delivered_request_that_nobody_answers(recording: Recording) -> None:
    recording.request(70, 6_000 * MS)


def released_by_a_stop(recording: Recording) -> None:
    for n in range(5):
        row = recording.publish(30_000 * MS + n, "tablet", verdict="DEAD_LETTERED", code=14, held=True)
        recording.dead_letters.append({"seq": row["seq"]})


def a_new_limit(recording: Recording) -> None:
    """Twice as fast from one moment on; by the old one that would be too fast."""
    for n in range(40):
        recording.publish(
            30_000 * MS + n * PERIOD // 2, "backbone", period_ns=PERIOD // 2, tuned_ns=29_999 * MS
        )


@pytest.mark.parametrize(
    "change",
    [
        at_its_ttl,
        from_the_future,
        other_class_overtakes,
        a_delivered_request_that_nobody_answers,
        released_by_a_stop,
        a_new_limit,
    ],
)
def test_what_looks_like_a_violation_and_is_none(
    spark: SparkSession, change: Callable[[Recording], None]
) -> None:
    recording = Recording()
    change(recording)
    assert broken(spark, recording) == {}


# --- what is missing --------------------------------------------------------------------------------------------------


def gap(first_seq: int, rows: int, **by_verdict: int) -> Row:
    counts = dict.fromkeys(COUNTS, 0) | by_verdict if by_verdict else {}
    return {"cause": "OVERRUN", "first_seq": first_seq, "rows": rows, "from_us": 0, "until_us": 0, **counts}


def lossy(first: int, count: int) -> tuple[Recording, dict[str, int]]:
    """Rows are taken away behind the dispatcher's back; and what they were."""
    recording = Recording()
    recording.counters = [recording.books()]
    gone = [each["verdict"] for each in recording.deliveries if first <= each["seq"] < first + count]
    recording.without(*range(first, first + count))
    return recording, {
        name: gone.count(verdict) for verdict, name in zip(schemas.VERDICTS, COUNTS, strict=True)
    }


@pytest.mark.parametrize(("first", "count"), [(0, 2), (10, 3), (70, 4)])
def test_rows_that_are_missing_without_a_word_are_found(spark: SparkSession, first: int, count: int) -> None:
    recording, _ = lossy(first, count)
    end = 1 + max(each["seq"] for each in Recording().deliveries)
    found = broken(spark, recording, next_seq=end)
    assert found.pop("sequence") == [min(first + count, end)]
    assert found.pop("ledger")
    assert set(found) <= {"answers"}


def test_rows_that_were_announced_as_missing_are_none(spark: SparkSession) -> None:
    recording, gone = lossy(10, 6)
    recording.gaps = [gap(10, 2), gap(12, 4)]
    assert broken(spark, recording) == {}  # of damaged bytes nobody knows the verdicts
    recording.gaps = [gap(10, 6, **gone)]
    assert broken(spark, recording) == {}
    recording.gaps = [gap(10, 5, **gone)]
    assert broken(spark, recording) == {"sequence": [16]}
    recording.gaps = [gap(10, 6, **gone | {"delivered": gone["delivered"] + 1})]
    assert broken(spark, recording) == {"ledger": [None]}


def test_a_row_that_is_there_twice_is_found(spark: SparkSession) -> None:
    recording = Recording()
    recording.counters = [recording.books()]
    recording.deliveries.append(recording.deliveries[-2])
    assert broken(spark, recording) == {"sequence": [recording.deliveries[-1]["seq"]], "ledger": [None]}


def test_books_that_do_not_balance_are_found(spark: SparkSession) -> None:
    recording = Recording()
    recording.counters = [recording.books() | {"queued": 1}]
    assert broken(spark, recording) == {"ledger": [None]}
    recording.counters = [recording.books() | {"queued": 1, "final": False}]
    assert broken(spark, recording) == {}


def test_of_a_killed_run_an_answer_may_be_missing(spark: SparkSession) -> None:
    recording = Recording()
    no_answer(recording)
    recording.stopped = False
    assert broken(spark, recording) == {}
    two_answers(recording)
    assert list(broken(spark, recording)) == ["answers"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_names_rows_and_ends_with_1(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = Recording()
    row = recording.at()
    row["ingress"] = "backbone"
    lake(spark, recording, tmp_path)
    assert main(["audit", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "FAIL  echo             nothing goes back where it came from: 1 times not" in told
    assert f"vin1 run 7 seq {row['seq']}: //chassis/1/1/8001 -> backbone" in told
    assert "ok    rate             no target above its max_frequency" in told
    assert main(["audit", str(tmp_path), "--rules", "rate,order", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"rate": 0, "order": 0}


def test_mistakes_in_the_call_are_said(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path), "--rules", "rate,speed"]) == 2
    assert main(["audit", str(tmp_path), "--since", "yesterday"]) == 2
    assert main(["audit", str(tmp_path)]) == 69
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(
        "ustreamer-pipeline audit: --rules speed: expected some of rate, never_throttled,"
    )
    assert told[1] == "ustreamer-pipeline audit: --since yesterday: expected a date, as 2026-11-21"
    assert told[2].endswith("no deliveries there: ingest first")


def lake(spark: SparkSession, recording: Recording, path: Path) -> None:
    from pyspark.sql import functions as f

    tables = recording.tables(spark)
    dated = f.lit("2026-11-21").cast("date")
    tables.deliveries.withColumn("date", dated).write.partitionBy("date", "gateway").parquet(
        schemas.DELIVERIES.path(path)
    )
    events = {
        schemas.EPOCHS: tables.epochs,
        schemas.COUNTERS: tables.counters,
        schemas.SEGMENTS: tables.segments,
        schemas.DEAD_LETTERS: tables.dead_letters,
    }
    for table, frame in events.items():
        named = frame.withColumn("table", f.lit(table.name)).withColumn("date", dated)
        named.write.mode("append").partitionBy("date", "gateway").parquet(schemas.WIDE.path(path))
