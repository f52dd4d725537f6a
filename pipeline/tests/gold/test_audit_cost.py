# SPDX-License-Identifier: Apache-2.0
"""The cost of an audit is linear in runs and in subscriptions: counted in calls of functions, which are the same on
every machine.
"""

import cProfile
import json
import pstats
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from ustreamer_pipeline.gold.gateway_audit import audit_gateway
from ustreamer_pipeline.schemas import DELIVERIES

Row = dict[str, Any]

GATEWAY = "hpc.vin1"
SECOND = 1_000_000_000
SCHEMA = pa.schema([field.with_nullable(True) for field in DELIVERIES.arrow_schema()])
SETTINGS = json.dumps({"throttle": {"tolerance": 0.1}})


def delivery(run: int, seq: int, topic: str) -> Row:
    at = (5 + seq) * SECOND
    row: Row = dict.fromkeys(DELIVERIES.names)
    return row | {
        "run": run,
        "seq": seq,
        "received_ns": at,
        "arrived_ns": at,
        "settled_ns": at,
        "received_us": at // 1_000,
        "priority": 1,
        "delivery": 1,
        "tuned_ns": 1,
        "epoch": 0,
        "size": 1,
        "period_ns": 0,
        "held": False,
        "verdict": "DELIVERED",
        "type": "PUBLISH",
        "source": topic,
        "ingress": "chassis",
        "egress": "backbone",
        "id_msb": at,
        "id_lsb": seq,
        "attempts": 1,
        "queue_wait_us": 0,
    }


def run_of(
    number: int, topics: Sequence[str], patterns: Sequence[str], rows: int
) -> tuple[list[Row], list[Row]]:
    """Deliveries and small tables of one run with a subscription to each pattern."""
    deliveries = [delivery(number, seq, topics[seq % len(topics)]) for seq in range(rows)]
    changes = [
        {
            "number": at,
            "time_ns": 1,
            "change": "PRESENT",
            "topic": each,
            "subscriber": "up://hpc/1/1/0",
            "period_ns": 0,
        }
        for at, each in enumerate(patterns)
    ]
    segment = {"number": 0, "first_seq": 0, "next_seq": rows, "began_us": 0, "began_ns": 0, "end": "STOPPED"}
    events = [
        {"table": "segments", **segment, "first_change": 0, "next_change": len(changes)},
        {"table": "epochs", "epoch": 0, "settings": SETTINGS},
        *({"table": "subscriptions", "time_us": 0, **each} for each in changes),
    ]
    return deliveries, [{"run": number, **event} for event in events]


def calls_of(*runs: tuple[list[Row], list[Row]]) -> int:
    """Calls of functions in an audit without findings."""
    rows = pa.RecordBatch.from_pylist([row for deliveries, _ in runs for row in deliveries], schema=SCHEMA)
    events = [row for _, small in runs for row in small]
    profile = cProfile.Profile()
    found = profile.runcall(lambda: list(audit_gateway(GATEWAY, events, lambda names: [rows.select(names)])))
    assert not any(found)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_short_run_costs_as_much_among_many_as_among_few() -> None:
    topic = "up://chassis/1000/1/8000"
    counts = [
        calls_of(*(run_of(number, [topic], [topic], 10) for number in range(count))) for count in (50, 200)
    ]
    per_run = [count // runs for count, runs in zip(counts, (50, 200), strict=True)]
    assert per_run[1] <= per_run[0]
    assert per_run[1] < 3_000  # 3,400 for three rules less, before runs shared the columns of a batch


def test_topics_and_patterns_cost_what_each_of_them_costs() -> None:
    counts = []
    for count in (100, 400):
        topics = [f"up://chassis/{number:X}/1/8000" for number in range(1, count + 1)]
        patterns = [f"up://chassis/{number:X}/FF/8000" for number in range(1, count + 1)]
        counts.append(calls_of(run_of(1, topics, [*topics, *patterns], 2 * count)))
    assert counts[1] < 4.4 * counts[0]
