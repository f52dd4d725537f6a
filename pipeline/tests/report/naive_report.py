# SPDX-License-Identifier: Apache-2.0
"""The tables of a report counted row by row: slow, and with all rows in memory."""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from ustreamer_pipeline.schemas import VERDICTS

Row = dict[str, Any]
Key = Callable[[Row], Hashable]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def size_of(rows: Iterable[Row], verdict: str) -> int:
    return sum(row["size"] for row in rows if row["verdict"] == verdict)


def counts(rows: Sequence[Row]) -> Row:
    return {each.lower(): sum(row["verdict"] == each for row in rows) for each in VERDICTS}


def naive_totals(rows: Sequence[Row]) -> Row:
    times = [row["received_us"] for row in rows]
    return {
        "rows": len(rows),
        **counts(rows),
        "bytes": sum(row["size"] for row in rows),
        "saved_bytes": size_of(rows, "THROTTLED"),
        "from_us": min(times),
        "until_us": max(times),
        "runs": len({row["run"] for row in rows}),
    }


def naive_over_time(rows: Sequence[Row], width_s: int) -> list[Row]:
    steps = grouped(
        ({**row, "time_s": row["received_us"] // 1_000_000 // width_s * width_s} for row in rows), "time_s"
    )
    return [
        {
            "time_s": time_s,
            "rows": len(group),
            **counts(group),
            "delivered_bytes": size_of(group, "DELIVERED"),
        }
        for (time_s,), group in sorted(steps.items())
    ]


def naive_losses(rows: Sequence[Row]) -> list[Row]:
    lost = [
        {
            **row,
            "cause": re.sub(r"\d", "N", re.sub(r"\d+", "0", row["reason"] or "no reason given")),
            "endpoint": row["egress"] or row["ingress"],
        }
        for row in rows
        if row["verdict"] in ("EXPIRED", "DEAD_LETTERED")
    ]
    names = ("verdict", "code", "cause", "endpoint")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "rows": len(group),
            "from_us": min(row["received_us"] for row in group),
            "until_us": max(row["received_us"] for row in group),
        }
        for key, group in grouped(lost, *names).items()
    ]


def naive_throttle(rows: Sequence[Row]) -> list[Row]:
    names = ("source", "egress", "subscriber", "period_ns")
    limited = [row for row in rows if row["period_ns"] and row["delivery"] and row["type"] == "PUBLISH"]
    found = []
    for key, group in grouped(limited, *names).items():
        times = [[row["arrived_ns"] for row in run] for run in grouped(group, "run").values()]
        found.append(
            {
                **dict(zip(names, key, strict=True)),
                "published": len(group),
                "passed": sum(row["verdict"] != "THROTTLED" for row in group),
                "saved_bytes": size_of(group, "THROTTLED"),
                "seconds": sum(max(each) - min(each) for each in times) / 1e9,
            }
        )
    return found


def naive_talkers(rows: Sequence[Row]) -> list[Row]:
    messages = grouped(rows, "source", "type", "run", "arrived_ns", "id_msb", "id_lsb")
    first = [group[0] for group in messages.values()]
    return [
        {"source": source, "type": kind, "messages": len(group), "bytes": sum(row["size"] for row in group)}
        for (source, kind), group in grouped(first, "source", "type").items()
    ]


def naive_queues(rows: Sequence[Row]) -> dict[str, tuple[int, int, set[int]]]:
    """By link: the most messages and bytes, and the times of the most messages."""
    taken = [
        row
        for row in rows
        if row["verdict"] in ("DELIVERED", "EXPIRED", "DEAD_LETTERED")
        and row["settled_ns"] > row["received_ns"]
    ]
    found: dict[str, tuple[int, int, set[int]]] = {}
    for (_, egress), group in grouped(taken, "run", "egress").items():
        for now in group:
            inside = [row for row in group if row["received_ns"] <= now["received_ns"] < row["settled_ns"]]
            most, most_bytes, times = found.get(egress, (0, 0, set()))
            if len(inside) > most:
                times = set()
            if len(inside) >= most:
                times = times | {
                    row["received_us"] for row in group if row["received_ns"] == now["received_ns"]
                }
            size = sum(row["size"] for row in inside)
            found[egress] = max(most, len(inside)), max(most_bytes, size), times
    return found


def naive_latencies(rows: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    """By link and measure: the sorted times of delivered messages."""
    delivered = [row for row in rows if row["verdict"] == "DELIVERED" and row["egress"]]
    return {
        egress: {
            "": sorted(row["latency_us"] for row in group),
            "wait_": sorted(row["queue_wait_us"] for row in group),
        }
        for (egress,), group in grouped(delivered, "egress").items()
    }
