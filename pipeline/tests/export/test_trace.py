# SPDX-License-Identifier: Apache-2.0
"""The story of one message has each of its rows, on every gateway, in order of time."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.sample_lakes import list_lake
from ustreamer_pipeline import schemas
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.commands import trace as command
from ustreamer_pipeline.export.address_trace import trace_address
from ustreamer_pipeline.export.trace import trace
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import write_rows
from ustreamer_pipeline.schemas import Table

CREATED_MS = 1_700_000_000_000
DAY = CREATED_MS // 86_400_000
MSB, LSB = CREATED_MS << 16 | 0x7001, 0b10 << 62 | 5
ID = "018bcfe5-6800-7001-8000-000000000005"
TOPIC = "up://chassis/1/1/8001"
SIGNED = {"id_msb": MSB, "id_lsb": LSB - 2**64}


def write(lake: Path, gateway: str, table: Table, *rows: dict[str, Any]) -> None:
    stored = schemas.STORED_IN.get(table.folder, table)
    filled = [dict.fromkeys(stored.names) | {"table": table.name} | row for row in rows]
    named = [{name: row[name] for name in stored.names} for row in filled]
    write_rows(storage_of(str(lake)), stored, gateway, DAY, named)
    list_lake(lake)


def delivery(at_ms: int, **fields: Any) -> dict[str, Any]:
    known = {
        "received_us": (CREATED_MS + at_ms) * 1_000,
        "run": 1,
        "delivery": 1,
        "period_ns": 0,
        "source": TOPIC,
        "type": "PUBLISH",
        "verdict": "DELIVERED",
        "ingress": "chassis",
        "egress": "backbone",
        "latency_us": 120,
        "size": 4,
    }
    return known | SIGNED | fields


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("lake")
    late = delivery(9, verdict="EXPIRED", egress="cloud", reason="waited 9 ms", id_lsb=7)
    answer = delivery(
        30, id_lsb=8, type="RESPONSE", sink="up://app/7/1/0", request_msb=MSB, request_lsb=LSB - 2**64
    )
    write(
        lake, "vin1", schemas.DELIVERIES, delivery(1), delivery(2, egress="cloud", verdict="THROTTLED"), late
    )
    write(
        lake, "vin2", schemas.DELIVERIES, delivery(20, ingress="cloud", subscriber="up://app/7/1/0"), answer
    )
    letter = {"time_us": (CREATED_MS + 25) * 1_000, "endpoint": "backbone", "reason": "full", "source": TOPIC}
    write(lake, "vin2", schemas.DEAD_LETTERS, letter | SIGNED)
    change = {
        "run": 1,
        "time_us": CREATED_MS * 1_000,
        "topic": "up://chassis/FFFF0001/1/FFFF",
        "subscriber": "up://app/7/1/0",
        "change": "SUBSCRIBED",
        "period_ns": 50_000_000,
    }
    write(lake, "vin3", schemas.SUBSCRIPTIONS, change, change | {"topic": "up://chassis/1/1/8002"})
    value = {"time_us": CREATED_MS * 1_000, "signal": "speed", "value_double": 1.5, "unit": "m/s"}
    write(lake, "vin1", schemas.SIGNALS, value | SIGNED, value | {"id_msb": 1, "id_lsb": 2})
    return lake


def test_each_row_of_a_message_is_there_in_order_of_time(lake: Path) -> None:
    events = trace(str(lake), ID.upper())
    assert [(each.time_us // 1_000 - CREATED_MS, each.gateway, each.text) for each in events] == [
        (0, "vin1", "signal speed = 1.5 m/s"),
        (1, "vin1", "DELIVERED PUBLISH up://chassis/1/1/8001, chassis -> backbone, 120 us, 4 B"),
        (2, "vin1", "THROTTLED PUBLISH up://chassis/1/1/8001, chassis -> cloud, 120 us, 4 B"),
        (20, "vin2", "DELIVERED PUBLISH up://chassis/1/1/8001, cloud -> up://app/7/1/0, 120 us, 4 B"),
        (25, "vin2", "dead letter at backbone: full"),
        (30, "vin2", "DELIVERED RESPONSE up://app/7/1/0, chassis -> backbone, 120 us, 4 B"),
    ]


def test_the_command_prints_the_story_or_one_line(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.HELP
    assert main(["trace", str(lake), ID]) == 0
    assert capsys.readouterr().out.startswith("2023-11-14 22:13:20.000000  vin1  signal speed = 1.5 m/s\n")
    assert main(["trace", str(lake), ID, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["gateway"] == "vin1"
    assert main(["trace", str(lake), "nothing"]) == 2
    assert main(["trace", str(lake), ID.replace("5", "6")]) == 69
    assert "no row of message" in capsys.readouterr().err


def test_the_story_of_a_topic_has_its_subscriptions_messages_and_dead_letters(lake: Path) -> None:
    events = trace_address(str(lake), "//chassis/1/1/8001")
    assert [(each.time_us // 1_000 - CREATED_MS, each.gateway, each.text) for each in events] == [
        (
            0,
            "vin3",
            "SUBSCRIBED up://chassis/FFFF0001/1/FFFF by up://app/7/1/0, at most 20 Hz",
        ),
        (1, "vin1", f"{TOPIC}, chassis -> backbone, without a limit, for 0.0 s: 1 DELIVERED"),
        (2, "vin1", f"{TOPIC}, chassis -> cloud, without a limit, for 0.0 s: 1 EXPIRED, 1 THROTTLED"),
        (20, "vin2", f"{TOPIC}, cloud -> backbone up://app/7/1/0, without a limit, for 0.0 s: 1 DELIVERED"),
        (25, "vin2", f"dead letter of {TOPIC} at backbone: full"),
        (30, "vin2", f"{TOPIC}, chassis -> backbone up://app/7/1/0, without a limit, for 0.0 s: 1 DELIVERED"),
    ]


def test_the_story_of_a_subscriber_has_its_subscriptions_and_messages(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(lake), "//app/7/1/0"]) == 0
    told = [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert told == [
        "vin3  SUBSCRIBED up://chassis/1/1/8002 by up://app/7/1/0, at most 20 Hz",
        "vin3  SUBSCRIBED up://chassis/FFFF0001/1/FFFF by up://app/7/1/0, at most 20 Hz",
        f"vin1  {TOPIC}, chassis -> backbone, without a limit, for 0.0 s: 1 DELIVERED",
        f"vin1  {TOPIC}, chassis -> cloud, without a limit, for 0.0 s: 1 EXPIRED, 1 THROTTLED",
        f"vin2  {TOPIC}, cloud -> backbone up://app/7/1/0, without a limit, for 0.0 s: 1 DELIVERED",
        f"vin2  {TOPIC}, chassis -> backbone up://app/7/1/0, without a limit, for 0.0 s: 1 DELIVERED",
    ]
    assert main(["trace", str(lake), "//app/7/1/0", "--since", "2023-11-15"]) == 69
    assert "no row of //app/7/1/0" in capsys.readouterr().err
