# SPDX-License-Identifier: Apache-2.0
"""The whole chain: a streamer under load is killed and restarted; its recordings become tables; the tables match its
ledger.
"""

import json
import shutil
from collections.abc import Callable
from itertools import groupby
from operator import ge, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.audited_mutants import audited_mutants
from tests.mutations import MUTATIONS, load_runs, mutants
from tests.real_runs import settled_rows
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.gold.audit import PROMISES
from ustreamer_pipeline.gold.gateway_audit import audit_gateway
from ustreamer_pipeline.gold.rules.dead_letters import MissingDeadLetters
from ustreamer_pipeline.gold.rules.decisions import Decisions
from ustreamer_pipeline.gold.rules.expiry import Early
from ustreamer_pipeline.gold.rules.numbers import Changes, Segments
from ustreamer_pipeline.gold.rules.targets import PublicationTargets
from ustreamer_pipeline.replay.files import read_gateway
from ustreamer_pipeline.schemas import COUNTERS, DELIVERIES, VERDICTS

from tests.e2e.rigs.entities import Metronome, SomeipNode, ZenohEntity, eventually
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.vehicle import Vehicle, free_ports, write_config

HZ = 20
HZ_OF_ECU = 200
SETTINGS = """
tolerance = 0.1
latest = ["//chassis/1234/1/8003"]

[egress.cloud]
retry = { first_ms = 240000, max_ms = 240000 }

[plugins.recorder]
flush_ms = 50
segment_s = 1
"""
RULES = (PublicationTargets, MissingDeadLetters, Early, Segments, Changes, Decisions)
FAULTED = {name for rule in RULES for name in rule.PROMISES}
"""Rules whose faults are below; test_audit.py has those of the others."""
AUDITED = tuple(dict.fromkeys(("run", "held", *(name for rule in RULES for name in rule.COLUMNS))))
Row = dict[str, Any]
COUNTS = [verdict.lower() for verdict in VERDICTS]


def drive(place: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Run a streamer twice. Returns the ledger of the first run shortly before its kill, and of the second run after
    its stop.

    The first run has a stretch without subscribers, reloads, changed and removed subscriptions, held messages (mode
    `latest`), and messages in the queue of an unreachable endpoint when it is killed.
    """
    ports = free_ports()
    config = write_config(place, ports)
    text = f"{config.read_text()}\n{SETTINGS}"
    config.write_text(text)
    recordings = place / "state" / "recordings"
    with SomeipNode(ports.ecu) as ecu, SomeipNode(ports.receiver) as receiver:
        first = StreamerProcess(config)
        vehicle = Vehicle(ports, first.wait_ready(), ecu, receiver)
        plain, limited, latest, _ = topics = [vehicle.unused_topic() for _ in range(4)]

        def beat(number: int) -> None:
            for each in topics:
                vehicle.send_event(each, b"%d" % number)

        def wait_rows(more: int) -> None:
            rows = settled_rows(recordings) + more
            eventually(lambda: settled_rows(recordings) >= rows, True)

        def reload(tolerance: float) -> None:
            reloads = len([line for line in first.stderr.items() if '"streamer.reloaded"' in line])
            config.write_text(text.replace("tolerance = 0.1", f"tolerance = {tolerance}"))
            first.send_sighup()
            first.stderr.wait_count(lambda line: '"streamer.reloaded"' in line, reloads + 1)

        with ZenohEntity(ports.backbone, "hpc.vin1", 0x10A0) as app, Metronome(HZ_OF_ECU, beat):
            wait_rows(100)
            reload(0.2)
            wait_rows(100)
            app.subscribe(plain)
            app.subscribe(limited, max_frequency=float(HZ))
            app.subscribe(latest, max_frequency=float(HZ))
            with ZenohEntity(ports.backbone, "hpc.vin1", 0x10A1) as other:
                for hz in (60.0, 33.0):
                    other.subscribe(latest, max_frequency=hz)
                    wait_rows(100)
                    other.unsubscribe(latest)
                    wait_rows(50)
            for tolerance in (0.5, 0.0, 0.3, 0.1):
                reload(tolerance)
                wait_rows(100)
            with ZenohEntity(ports.cloud, "cloud", 0x2001) as cloud:
                cloud.subscribe(limited, max_frequency=float(HZ))
                cloud.subscribe(latest, max_frequency=float(HZ))
                cloud.wait_events(latest, 10)
            first.stderr.wait_one(lambda line: '"zenoh.link_down"' in line and '"cloud"' in line)
            first.stderr.wait_one(lambda line: '"egress.unavailable"' in line and '"cloud"' in line)
            wait_rows(500)
            before_kill: dict[str, int] = statistics(place / "state")["ledger"]
            eventually(lambda: settled_rows(recordings) >= sum(before_kill[each] for each in COUNTS), True)
            first.kill()  # while events come in
        second = StreamerProcess(config)
        Vehicle(ports, second.wait_ready(), ecu, receiver)
        with (
            ZenohEntity(ports.backbone, "hpc.vin1", 0x10A0) as app,
            ZenohEntity(ports.cloud, "cloud", 0x2001) as cloud,
        ):

            def all_received() -> bool:
                now = statistics(place / "state")
                sent = [now["endpoints"][name]["sent"] for name in ("backbone", "cloud")]
                received = [len(entity.inbox.items()) for entity in (app, cloud)]
                return not now["ledger"]["queued"] and all(map(ge, received, sent))

            with Metronome(HZ_OF_ECU, beat):
                app.wait_events(plain, 120)
            eventually(all_received, True)
        second.stop()
    return before_kill, second.ledger


def rows_of(spark: SparkSession, lake: Path) -> list[dict[str, Any]]:
    """By run, the oldest first."""
    counted = (
        DELIVERIES.read_table(spark, lake).groupBy("run").pivot("verdict", list(VERDICTS)).count().na.fill(0)
    )
    return [
        {name: row[verdict] for name, verdict in zip(COUNTS, VERDICTS, strict=True)}
        for row in counted.orderBy("run").collect()
    ]


class Chain(NamedTuple):
    """The recordings of both runs, their tables, and the ledgers: of the killed run shortly before its kill."""

    recordings: Path
    lake: Path
    killed: dict[str, int]
    stopped: dict[str, int]


@pytest.fixture(scope="module")
def chain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    place = tmp_path_factory.mktemp("chain")
    killed, stopped = drive(place)
    made = Chain(place / "state" / "recordings", place / "lake", killed, stopped)
    assert main(["ingest", str(made.recordings), str(made.lake)]) == 0
    return made


@pytest.mark.timeout(400)
def test_the_tables_match_the_ledger_of_the_dispatcher(
    chain: Chain, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recordings, lake, before_kill, ledger = chain
    once = rows_of(spark, lake)
    assert main(["ingest", str(recordings), str(lake)]) == 0
    killed, stopped = rows_of(spark, lake)
    assert [killed, stopped] == once
    # The killed run has all flushed rows, the stopped run has all rows.
    assert all(killed[name] >= before_kill[name] for name in COUNTS)
    assert stopped == {name: ledger[name] for name in COUNTS}
    assert min(stopped["delivered"], stopped["throttled"], killed["throttled"]) > 50
    last = COUNTERS.read_table(spark, lake).where("final").collect()
    assert [{name: row[name] for name in COUNTS} for row in last] == [stopped]

    capsys.readouterr()
    assert main(["audit", str(lake), "--json"]) == 0
    audited = json.loads(capsys.readouterr().out)
    assert audited["counts"] == dict.fromkeys(PROMISES, 0)
    assert audited["rows"] == sum(map(sum, (each.values() for each in once)))

    assert main(["report", str(lake), str(tmp_path / "out")]) == 0
    totals = json.loads((tmp_path / "out" / "report.json").read_text())["totals"]
    assert {name: totals[name] for name in COUNTS} == {name: killed[name] + stopped[name] for name in COUNTS}
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_a_replay_with_nothing_changed_decides_as_the_streamer_did(
    chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, _ = recorded_rows(chain.lake)
    by_epoch: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        by_epoch.setdefault((row["run"], row["epoch"]), []).append(row)
    assert any(all(not row["delivery"] for row in some) for some in by_epoch.values())
    assert any(row["held"] for row in rows)
    capsys.readouterr()
    assert main(["whatif", str(chain.lake), "--hz", f"{HZ / 2:g},0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["check"]["differing"] == 0
    assert answer["check"]["decided"] > 300
    # The killed run had messages in a queue. They have passed the gate, and have no row.
    assert 0 < answer["check"]["unknown"] < 0.2 * answer["check"]["decided"]
    links = {(row["scenario"], row["egress"]): row for row in answer["links"]}
    recorded, halved, unlimited = (
        links[name, "backbone"] for name in ("recorded", f"{HZ / 2:g} Hz", "no limit")
    )
    assert recorded["messages"] == recorded["recorded"]
    assert halved["messages"] < recorded["messages"] < unlimited["messages"] == unlimited["offered"]
    assert links["recorded", "cloud"]["messages"] == links["recorded", "cloud"]["recorded"]


# --- faults in a real recording ---------------------------------------------------------------------------------------


def recorded_rows(lake: Path) -> tuple[list[Row], list[Row]]:
    """Rows of the deliveries in order, and of all small tables."""
    files = sorted(map(str, lake.glob("silver/deliveries/*/*/*.parquet")))
    rows = [row for batch in read_gateway(files, AUDITED) for row in batch.to_pylist()]
    events = [
        row
        for path in lake.glob("silver/events/*/*/*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    return rows, events


Fault = Callable[[list[Row], list[Row]], None]
FAULTS: dict[str, Fault] = {}


def fault(*of: str) -> Callable[[Fault], Fault]:
    """Register a fault that the rules `of` must find, and no other rule."""

    def register(seed: Fault) -> Fault:
        FAULTS[f"{' '.join(of)}: {seed.__name__}"] = seed
        return seed

    return register


def chosen(rows: list[Row], *, last_run: bool = True, **wanted: Any) -> list[Row]:
    """Rows with these values in the stopped run, far from a change of subscriptions."""
    run = max(row["run"] for row in rows)
    some = [
        row
        for row in rows
        if (row["run"] == run) == last_run and all(row[name] == value for name, value in wanted.items())
    ]
    return some[len(some) // 2 :]


def topic(number: int) -> str:
    return f"up://chassis/1234/1/{0x8000 + number:X}"


PLAIN, LIMITED, LATEST = topic(1), topic(2), topic(3)


@fault("subscribed")
def delivered_to_an_endpoint_without_a_subscription(rows: list[Row], events: list[Row]) -> None:
    for number, row in enumerate(chosen(rows, source=PLAIN, egress="backbone")[-5:]):
        seq = 10_000_000 + number
        rows.insert(rows.index(row) + 1, row | {"egress": "cloud", "seq": seq, "delivery": 99})


@fault("subscribed")
def delivered_after_the_end_of_the_subscription(rows: list[Row], events: list[Row]) -> None:
    subscribed = [row for row in events if row["table"] == "subscriptions"]
    run = min(row["run"] for row in subscribed)
    mine = [row for row in subscribed if row["run"] == run]
    (asked,) = [row for row in mine if row["topic"] == PLAIN]
    end = {"change": "UNSUBSCRIBED", "number": len(mine), "time_ns": asked["time_ns"] + 10**8}
    events.append(asked | end)


@fault("limit", "decided")
def a_looser_limit_than_requested(rows: list[Row], events: list[Row]) -> None:
    for row in chosen(rows, source=LIMITED, egress="backbone"):
        row["period_ns"] = 10**9 // HZ // 2


@fault("limit", "decided")
def a_limit_that_is_not_applied(rows: list[Row], events: list[Row]) -> None:
    for row in chosen(rows, source=LATEST, egress="backbone"):
        row["period_ns"] = 0


@fault("limit", "decided")
def a_stricter_limit_than_requested(rows: list[Row], events: list[Row]) -> None:
    for row in chosen(rows, source=LATEST, egress="cloud"):
        row["period_ns"] = 10**9


@fault("starved")
def no_subscriber_for_an_entity_that_had_subscribed(rows: list[Row], events: list[Row]) -> None:
    for row in chosen(rows, source=PLAIN)[-5:]:
        row.update(verdict="NO_SUBSCRIBER", delivery=0, egress=None)


@fault("starved")
def one_message_without_one_of_its_targets(rows: list[Row], events: list[Row]) -> None:
    # A throttled one: without a delivered one, the gate would have passed the next.
    rows.remove(chosen(rows, source=LIMITED, egress="cloud", verdict="THROTTLED")[0])


@fault("starved")
def a_subscriber_that_gets_nothing(rows: list[Row], events: list[Row]) -> None:
    run = max(row["run"] for row in rows)
    rows[:] = [row for row in rows if (row["run"], row["source"], row["egress"]) != (run, LATEST, "cloud")]


@fault("once")
def one_message_twice_for_one_target(rows: list[Row], events: list[Row]) -> None:
    row = chosen(rows, source=PLAIN, egress="backbone", verdict="DELIVERED")[0]
    rows.insert(rows.index(row) + 1, row | {"seq": 10_000_000})


@fault("early")
def expired_before_its_ttl(rows: list[Row], events: list[Row]) -> None:
    row = chosen(rows, source=PLAIN, verdict="DELIVERED")[0]
    row.update(verdict="EXPIRED", ttl_ms=10_000)
    events.append({"table": "dead_letters", "run": row["run"], "seq": row["seq"]})


@fault("missing_dead_letters")
def a_failed_message_without_a_dead_letter(rows: list[Row], events: list[Row]) -> None:
    chosen(rows, source=PLAIN, verdict="DELIVERED")[0]["verdict"] = "DEAD_LETTERED"


@fault("decided")
def a_message_within_the_period_that_the_limit_passed(rows: list[Row], events: list[Row]) -> None:
    chosen(rows, source=LIMITED, egress="backbone", verdict="THROTTLED")[0]["verdict"] = "DELIVERED"


@fault("decided")
def a_due_message_that_the_limit_did_not_pass(rows: list[Row], events: list[Row]) -> None:
    chosen(rows, source=LIMITED, egress="backbone", verdict="DELIVERED")[0]["verdict"] = "THROTTLED"


@fault("changes")
def a_change_that_is_missing(rows: list[Row], events: list[Row]) -> None:
    changes = [row for row in events if row["table"] == "subscriptions"]
    events.remove(max(changes, key=itemgetter("run", "number")))


@fault("changes")
def a_change_that_is_there_twice(rows: list[Row], events: list[Row]) -> None:
    changes = [row for row in events if row["table"] == "subscriptions"]
    events.append(dict(max(changes, key=itemgetter("run", "number"))))


@fault("segments")
def a_segment_that_is_missing(rows: list[Row], events: list[Row]) -> None:
    segments = sorted(
        (row for row in events if row["table"] == "segments"), key=lambda row: (row["run"], row["number"])
    )
    assert segments[1]["run"] == segments[2]["run"]
    events.remove(segments[1])


def rules_that_find(rows: list[Row], events: list[Row]) -> set[str]:
    schema = pa.schema([DELIVERIES.arrow_schema().field(each).with_nullable(True) for each in AUDITED])
    batches = [
        pa.RecordBatch.from_pylist(rows[start : start + 1_000], schema=schema)
        for start in range(0, len(rows), 1_000)
    ]
    found = audit_gateway("hpc.vin1", events, lambda _: batches, FAULTED)
    return {each["rule"] for some in found for each in some}


def rules_of(name: str) -> set[str]:
    return set(name.partition(":")[0].split())


@pytest.fixture(scope="module")
def clean(chain: Chain) -> tuple[list[Row], list[Row]]:
    return recorded_rows(chain.lake)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_real_recording_is_found_by_its_rule(
    name: str, clean: tuple[list[Row], list[Row]]
) -> None:
    rows, events = ([dict(row) for row in some] for some in clean)
    FAULTS[name](rows, events)
    assert rules_that_find(rows, events) == rules_of(name)


def test_a_message_that_an_earlier_run_kept_on_disk_needs_no_subscription_in_this_run(
    clean: tuple[list[Row], list[Row]],
) -> None:
    rows, events = ([dict(row) for row in some] for some in clean)
    events = [row for row in events if row["table"] != "subscriptions" or row["topic"] != PLAIN]
    for row in rows:
        if row["source"] == PLAIN and row["delivery"]:
            row["tuned_ns"] = 0
    for _, numbered in groupby(
        sorted((row for row in events if row["table"] == "subscriptions"), key=itemgetter("run", "number")),
        key=itemgetter("run"),
    ):
        for number, row in enumerate(numbered):
            row["number"] = number
    for row in events:
        if row["table"] == "segments":
            row.update(first_change=0, next_change=None)
    assert rules_that_find(rows, events) == set()


def test_every_rule_on_rows_in_order_has_a_fault() -> None:
    assert set().union(*map(rules_of, FAULTS)) == FAULTED


@pytest.mark.timeout(400)
def test_a_lost_recording_and_a_flipped_bit_of_a_header_are_found(
    chain: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recordings = tmp_path / "recordings"
    shutil.copytree(chain.recordings, recordings)
    files = sorted(recordings.glob("*.useg"))
    lost, flipped = files[1], files[-1]
    assert lost.name[:16] == files[2].name[:16]
    lost.unlink()
    damaged = bytearray(flipped.read_bytes())
    damaged[50] ^= 1  # of the number of the first row
    flipped.write_bytes(damaged)
    assert main(["ingest", str(recordings), str(tmp_path / "lake")]) == 0
    capsys.readouterr()
    assert main(["audit", str(tmp_path / "lake"), "--rules", "readable,segments", "--json"]) == 1
    audited = json.loads(capsys.readouterr().out)
    assert audited["counts"] == {"readable": 1, "segments": 1}
    (named,) = [each["subject"] for each in audited["examples"] if each["rule"] == "readable"]
    assert Path(named).name == flipped.name


@pytest.mark.timeout(400)
def test_each_kind_of_mutation_of_a_real_recording_is_found(
    chain: Chain, spark: SparkSession, tmp_path: Path
) -> None:
    """One of each kind that fits the stopped run; test_mutations.py has 1,000 of many runs."""
    stopped = load_runs(chain.recordings)[-1:]
    made = dict(mutants(stopped, len(MUTATIONS)))
    assert len(made) > 15
    audited = audited_mutants(spark, tmp_path, [("nothing", stopped[0]), *made.items()])
    assert [each.name for each in audited if not each.is_found] == ["nothing"]
