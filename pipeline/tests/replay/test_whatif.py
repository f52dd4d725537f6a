# SPDX-License-Identifier: Apache-2.0
"""The command `whatif`, from files of silver to its output, on Spark."""

import datetime as dt
import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.sample_lakes import list_lake
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.errors import DamagedError, UnavailableError, UsageError
from ustreamer_pipeline.gold.audit import PROMISES
from ustreamer_pipeline.lake.snapshot import load_snapshot
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import write_rows
from ustreamer_pipeline.recording.rows import DAY_US
from ustreamer_pipeline.replay.files import event_files_of, files_of, read_gateway
from ustreamer_pipeline.replay.gate_inputs import gate_inputs
from ustreamer_pipeline.replay.target_replay import ThrottleSettings
from ustreamer_pipeline.replay.whatif import fleet_links, whatif
from ustreamer_pipeline.replay.whatif_print import percent_change, short_number, text_table
from ustreamer_pipeline.replay.whatif_scenarios import Scenario, parse, sweep
from ustreamer_pipeline.schemas import DELIVERIES, EPOCHS, SEGMENTS, WIDE
from ustreamer_throttle.gate import Gate

from ustreamer.core.routing.subscriptions import period_of

MS = 1_000_000
WALL_US = 1_763_700_000_000_000
HZ = 20
DAYS = ("2026-11-20", "2026-11-21")


def rows(seed: int, count: int = 2_000) -> list[dict[str, Any]]:
    """Rows of one gateway: a topic of 100 Hz for a subscriber with 20 Hz."""
    rng, gate, now, made = random.Random(seed), Gate(period_of(HZ), 0.1), 10**12, []
    for seq in range(count):
        now += int(10 * MS * rng.uniform(0.8, 1.2))
        us = WALL_US + (now - 10**12) // 1_000
        known = dict.fromkeys(DELIVERIES.names) | {
            "run": 1,
            "seq": seq,
            "id_msb": us // 1_000 << 16 | 0x7000,
            "id_lsb": now,
            "received_us": us,
            "received_ns": now,
            "arrived_ns": now,
            "settled_ns": now + 50_000,
            "source": "//chassis/1/1/8001",
            "topic": "//chassis/1/1/8001",
            "type": "PUBLISH",
            "priority": 1,
            "size": 100,
            "ingress": "chassis",
            "egress": "backbone",
            "verdict": "DELIVERED" if gate.admit(now) else "THROTTLED",
            "attempts": 1,
            "queue_wait_us": 0,
            "latency_us": 50,
            "held": False,
            "delivery": 1,
            "period_ns": period_of(HZ),
            "tuned_ns": 0,
            "epoch": 0,
        }
        made.append(known)
    return made


def write(lake: Path, gateway: str, parts: dict[str, list[dict[str, Any]]]) -> None:
    """Files as ingest writes them: dates and gateways are folders, not columns."""
    schema = pa.schema(
        [field for field in DELIVERIES.arrow_schema() if field.name not in ("date", "gateway")]
    )
    for date, part in parts.items():
        folder = lake / DELIVERIES.folder / f"date={date}" / f"gateway={gateway}"
        folder.mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(part, schema=schema), folder / "part-0.parquet", row_group_size=300
        )
    list_lake(lake)


def day_number(date: str) -> int:
    return (dt.date.fromisoformat(date) - dt.date(1970, 1, 1)).days


def write_segments(lake: Path, gateway: str, parts: dict[str, list[tuple[int, int, int]]]) -> None:
    """Rows of the table `segments` for (number, first_seq, next_seq)."""
    schema = pa.schema([field for field in WIDE.arrow_schema() if field.name not in ("date", "gateway")])
    for date, part in parts.items():
        folder = lake / WIDE.folder / f"date={date}" / f"gateway={gateway}"
        folder.mkdir(parents=True)
        made = [
            {
                "table": SEGMENTS.name,
                "run": 1,
                "number": n,
                "began_us": day_number(date) * DAY_US + first * 10_000,
                "began_ns": 10**12 + first * 10 * MS,
                "first_seq": first,
                "next_seq": end,
                "rows": 0,
            }
            for n, first, end in part
        ]
        pq.write_table(pa.Table.from_pylist(made, schema=schema), folder / "part-0.parquet")
    list_lake(lake)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three gateways: one has a recording over midnight, the name of another one needs escaping by Spark. Read only."""
    tmp_path = tmp_path_factory.mktemp("lake")
    write(tmp_path, "vin1", {DAYS[1]: rows(1)})
    over_midnight = rows(2)
    write(tmp_path, "vin2", {DAYS[0]: over_midnight[:777], DAYS[1]: over_midnight[777:]})
    write(tmp_path, "a%3Ab", {DAYS[1]: rows(3, 500)})
    write_segments(tmp_path, "vin1", {DAYS[1]: [(0, 0, 2_000)]})
    write_segments(tmp_path, "vin2", {DAYS[0]: [(0, 0, 777)], DAYS[1]: [(1, 777, 2_000)]})
    write_segments(tmp_path, "a%3Ab", {DAYS[1]: [(0, 0, 500)]})
    return tmp_path


def at_rate(hz: float) -> int:
    total = 0
    for seed, count in ((1, 2_000), (2, 2_000), (3, 500)):
        gate = Gate(period_of(hz), 0.1)
        total += sum(gate.admit(each["received_ns"]) for each in rows(seed, count))
    return total


def test_one_pass_over_all_gateways_answers_every_scenario(spark: SparkSession, lake: Path) -> None:
    files = files_of(str(lake))
    assert {gateway: len(names) for gateway, names in files.items()} == {"vin1": 1, "vin2": 2, "a:b": 1}
    result = whatif(spark, files, sweep([5, 50]), batch_rows=256)
    links = {row.scenario: row for row in fleet_links(result).collect()}
    assert {name: row.messages for name, row in links.items()} == {
        "recorded": at_rate(20),
        "5 Hz": at_rate(5),
        "50 Hz": at_rate(50),
    }
    assert {row.gateways for row in links.values()} == {3}
    assert {row.bytes for row in links.values()} == {row.messages * 100 for row in links.values()}
    checks = result.where("kind = 'check'").collect()
    assert sum(row.unknown for row in checks) == 0
    assert sum(row.decided for row in checks) == 4_500
    assert sum(row.differing for row in checks) == 0
    assert (links["5 Hz"].recorded, links["5 Hz"].offered) == (at_rate(20), 4_500)


def test_interleaved_days_are_replayed_in_order(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wall clock is set back over midnight, and a segment of the repeated day is lost."""
    made = rows(4)
    for row in made[1_000:]:
        row["received_us"] -= 3_600_000_000
    before = [*made[:800], *made[1_000:1_200], *made[1_300:1_400]]
    write(tmp_path, "vin1", {DAYS[0]: before, DAYS[1]: [*made[800:1_000], *made[1_400:]]})
    segments = [(0, 0, 1_000), (1, 1_000, 1_200), (3, 1_300, 2_000)]
    write_segments(tmp_path, "vin1", {DAYS[0]: segments})
    assert main(["whatif", str(tmp_path), "--hz", "5", "--json"]) == 0
    check = json.loads(capsys.readouterr().out)["check"]
    # A steady publisher never pauses, so the state of its gate stays unknown. A row of the lost segment may precede
    # the next one.
    behind = [row for row in made if row["received_ns"] >= 10**12 + 1_000 * 10 * MS]
    assert (check["rows"], check["differing"], check["unknown"]) == (1_900, 0, len(behind) - 100)


def test_the_command_prints_the_load_of_each_link(
    lake: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(lake), "--hz", "5"]) == 0
    told = capsys.readouterr().out
    assert "5 Hz" in told
    assert f"{(at_rate(5) / at_rate(20) - 1) * 100:+.1f} %" in told
    assert "4,500 decisions of 3 gateways replayed as recorded, 0 differ" in told
    assert (
        main(["whatif", str(lake), "--hz", "5", "--json", "--since", DAYS[1], "--out", str(tmp_path / "out")])
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    # The state of the gate of vin2 at midnight is unknown, and a steady publisher never pauses.
    check = answer["check"]
    assert (check["rows"], check["unknown"], check["differing"]) == (4_500 - 777, 2_000 - 777, 0)
    assert spark.read.parquet(str(tmp_path / "out")).where("kind = 'check'").count() == 3


def test_a_recording_that_contradicts_its_gate_ends_with_1_and_names_the_row(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = rows(1)
    wrong[5]["verdict"] = "DELIVERED" if wrong[5]["verdict"] == "THROTTLED" else "THROTTLED"
    write(tmp_path, "vin1", {DAYS[1]: wrong})
    assert main(["whatif", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "1 differ" in told
    assert str(wrong[5]["received_ns"]) in told


def test_invalid_arguments_are_named_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(tmp_path), "--hz", "1,x"]) == 2
    assert main(["whatif", str(tmp_path), "--hz", "1,1"]) == 2
    assert main(["whatif", str(tmp_path), "--topic", "//a/1/1/8001"]) == 2
    assert main(["whatif", str(tmp_path), "--scenarios", str(tmp_path / "none.toml")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert (
        told[0] == "ustreamer-pipeline whatif: --hz 1,x: expected numbers with commas between them, as 1,5,10"
    )
    assert told[1].endswith("two scenarios named '1 Hz' ('recorded' is always there)")
    assert told[2].endswith("of a sweep, so expected --hz as well")
    assert "none.toml" in told[3]


def test_a_lake_without_deliveries_is_an_error(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(tmp_path)]) == 69
    assert "no deliveries there: ingest first" in capsys.readouterr().err


def test_an_invalid_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DamagedError, match="a.parquet: "):
        list(read_gateway([str(tmp_path / "a.parquet")], ["run"]))
    pq.write_table(pa.table({"run": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DamagedError, match="b.parquet: no column seq: ingest again"):
        list(read_gateway([f"file://{tmp_path}/b.parquet"], ["run", "seq"]))


def test_files_are_in_order_of_days_and_of_one_gateway_only(lake: Path) -> None:
    names = {
        gateway: [Path(name).parts[-3:-1] for name in files] for gateway, files in files_of(str(lake)).items()
    }
    assert names["vin2"] == [(f"date={date}", "gateway=vin2") for date in DAYS]
    assert names["a:b"] == [(f"date={DAYS[1]}", "gateway=a%3Ab")]
    assert files_of(str(lake), until=DAYS[0]).keys() == {"vin2"}
    with pytest.raises(UnavailableError, match="no deliveries between 2100-01-01 and 9999"):
        files_of(str(lake), since="2100-01-01")


# --- scenarios --------------------------------------------------------------------------------------------------------

WRITTEN = """
[[scenario]]
name = "dashboards at 5 Hz"
tolerance = 0.2
rates = [{ topic = "//chassis/1/1/8001", hz = 5.0 }, { egress = "backbone", scale = 0.5 }]
subscribe = [{ topic = "//chassis/FFFF0002/1/FFFF", egress = "cloud", hz = 1.0 }]
unsubscribe = [{ egress = "tablet", subscriber = "//tablet/1/1/0" }]
links = [{ egress = "backbone", queue_messages = 100, bytes_per_s = 125_000 }]
ttl = [{ ttl_ms = 200 }]
"""


def test_a_scenario_is_parsed() -> None:
    (scenario,) = parse(WRITTEN, "a file")
    assert scenario.limit_for("//chassis/1/1/8001", "backbone", None, 7, 0.1) == (200_000_000, 0.2)
    assert scenario.limit_for("//chassis/9/1/8001", "backbone", None, 7, 0.1) == (14, 0.2)
    assert scenario.limit_for("//chassis/9/1/8001", "tablet", "//tablet/1/1/0", 7, 0.1) is None
    assert scenario.limit_for("//chassis/9/1/8001", "tablet", "//tablet/2/1/0", 7, 0.1) == (7, 0.2)
    assert scenario.added_targets("//chassis/10002/1/8001") == {("cloud", None): 1_000_000_000}
    assert scenario.added_targets("//chassis/1/1/8001") == {}
    assert scenario.ttl_ms("//x/1/1/8001", "any", None) == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[scenario]]\nname = 1", r"a file: Expected `str`, got `int` - at `\$.scenario\[0\].name`"),
        ('[[scenario]]\nname = "a"\nrate = 1', "unknown field `rate`"),
        ('[[scenario]]\nname = "a"\nrates = [{ hz = 1.0, scale = 2.0 }]', "expected either `hz` or `scale`"),
        ('[[scenario]]\nname = "a"\nrates = [{ hz = 1.0, topic = "//a/b" }]', "expected three segments"),
        ('[[scenario]]\nname = "a"\nrates = [{ hz = -1.0 }]', r"rates\[0\].hz"),
        ('[[scenario]]\nname = "a"\n[[scenario]]\nname = "a"', "two scenarios named 'a'"),
        ('[[scenario]]\nname = "recorded"', "two scenarios named 'recorded'"),
        ("[[scenario", "a file: "),
    ],
)
def test_a_mistake_in_a_scenario_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text, "a file")


def settings_row(run: int, text: str) -> dict[str, Any]:
    return {"table": EPOCHS.name, "run": run, "epoch": 0, "since_us": 0, "since_ns": 0, "settings": text}


def test_the_tolerance_comes_from_the_recorded_configuration() -> None:
    texts = ['{"throttle": {"tolerance": 0.3}}', '{"throttle": null}', "{}"]
    rows = [settings_row(run, text) for run, text in enumerate(texts, 1)]
    assert gate_inputs("vin1", rows).tolerances == {(1, 0): ThrottleSettings(0.3), (2, 0): None}
    with pytest.raises(DamagedError, match="vin1, run 4: expected JSON with throttle.tolerance, found '{'"):
        gate_inputs("vin1", [settings_row(4, "{")])


def test_without_a_throttle_no_limit_is_enforced(spark: SparkSession, tmp_path: Path) -> None:
    all_passed = [each | {"verdict": "DELIVERED"} for each in rows(1, 300)]
    write(tmp_path, "vin1", {DAYS[1]: all_passed})
    row = dict.fromkeys(WIDE.names) | settings_row(1, '{"throttle": null}')
    named = [{name: row[name] for name in WIDE.names}]
    write_rows(storage_of(str(tmp_path)), WIDE, "vin1", day_number(DAYS[1]), named)
    list_lake(tmp_path)
    snapshot = load_snapshot(tmp_path)
    scenarios = [*sweep([20]), Scenario("same")]
    result = whatif(spark, files_of(snapshot), scenarios, event_files_of(snapshot))
    messages = {row.scenario: row.messages for row in fleet_links(result).collect()}
    expected = sum(each["verdict"] == "DELIVERED" for each in rows(1, 300))
    assert messages == {"recorded": 300, "20 Hz": expected, "same": 300}
    assert result.where("kind = 'check'").collect()[0].differing == 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "0"),
        (7, "7"),
        (7.25, "7.2"),
        (999, "999"),
        (999.9, "1.0 k"),
        (1_234, "1.2 k"),
        (123_456, "123 k"),
        (5e9, "5.0 G"),
    ],
)
def test_numbers_are_short(value: float, told: str) -> None:
    assert short_number(value) == told


def test_tables_line_up() -> None:
    assert [percent_change(5, 10), percent_change(10, 10), percent_change(5, 0)] == ["-50.0 %", "=", "-"]
    assert (
        text_table(["a", "b", "n"], [["long", "x", "1"], ["s", "y", "100"]])
        == "a     b    n\nlong  x    1\ns     y  100"
    )


def test_the_scenario_of_the_page_is_valid() -> None:
    page = (Path(__file__).parents[3] / "docs" / "analyses.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (scenario,) = parse(block, "docs/analyses.md")
    assert scenario.links[0].bytes_per_s == 125_000
    for rule in PROMISES:
        assert f"* `{rule}`: " in page
