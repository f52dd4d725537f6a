# SPDX-License-Identifier: Apache-2.0
"""Shares and bursts of what arrived, and their table."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from benchmarks.chains.rows import ROWS, TOPICS, ChainTopic, Row
from benchmarks.chains.testbed import Arrival, running_chain

MIN_SHARE: Final = 0.99
BOUND: Final = 2.5
"""Messages above limit * T in any window (ustreamer_throttle.gate)."""
_NS_PER_S: Final = 1_000_000_000


def burst(arrivals: Sequence[Arrival], limit_hz: float, *, from_sending: bool) -> float:
    """The most by which any closed window holds more messages than limit * T.

    A window begins with the arrival of its first message, or with its sending.
    """
    begins = [each.sent_ns if from_sending else each.arrived_ns for each in arrivals]
    first = [index - began_ns * limit_hz / _NS_PER_S for index, began_ns in enumerate(begins)]
    last = [index - each.arrived_ns * limit_hz / _NS_PER_S for index, each in enumerate(arrivals)]
    return 1 + max(
        (lead - least for lead, least in zip(last, accumulate(first, min), strict=True)), default=-1
    )


def _figures(topic: ChainTopic, published: int, arrivals: list[Arrival], *, bunched: bool) -> dict[str, Any]:
    row = ROWS[topic.row]
    numbers = [each.number for each in arrivals]
    possible = min(published, row.limit_hz * published / row.hz)
    return {
        "published_hz": row.hz,
        "jitter": row.jitter,
        "limit_hz": row.limit_hz,
        "from": "someip" if row.is_someip else "zenoh",
        "streamers": topic.depth,
        "mode": "latest" if topic.latest else "drop",
        "bunched": bunched,
        "published": published,
        "delivered": len(arrivals),
        "share": len(arrivals) / possible,
        "burst": burst(arrivals, row.limit_hz, from_sending=False),
        "certain_burst": burst(arrivals, row.limit_hz, from_sending=True),
        "in_order": numbers == sorted(set(numbers)),
    }


def measured(directory: Path, seconds: float = 12.0) -> list[dict[str, Any]]:
    rows = []
    with running_chain(directory, TOPICS) as chain:
        for bunched in (False, True):
            for latest in (False, True):
                topics = [
                    each
                    for each in TOPICS
                    if each.latest is latest and not (bunched and ROWS[each.row].is_someip)
                ]
                counts = chain.publish(topics, seconds, bunched=bunched)
                rows += [
                    _figures(topic, count, chain.arrivals(topic), bunched=bunched)
                    for topic, count in zip(topics, counts, strict=True)
                ]
    return rows


def is_exact(row: dict[str, Any]) -> bool:
    return bool(row["share"] >= MIN_SHARE and row["certain_burst"] <= BOUND and row["in_order"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    columns = [(bunched, mode) for bunched in (False, True) for mode in ("drop", "latest")]
    heads = [f"{'bunched' if bunched else 'steady'}, {mode}" for bunched, mode in columns]
    lines = [f"{'published, jitter':<26}{'limit':>7}" + "".join(f"{each:>19}" for each in heads)]
    for row in ROWS:
        name = f"{row.hz:>4} Hz +-{row.jitter * 100:>2.0f} %" + (" SOME/IP" if row.is_someip else "")
        cells = [_cell(row, rows, bunched, mode) for bunched, mode in columns]
        lines.append(f"{name:<26}{row.limit_hz:>4} Hz" + "".join(f"{each:>19}" for each in cells))
    by_arrival, certain = (max(row[name] for row in rows) for name in ("burst", "certain_burst"))
    inexact = sum(not is_exact(row) for row in rows)
    return "\n".join(
        [
            *lines,
            "delivered of min(published, limit) behind one, two and three streamers",
            f"largest burst of a window by arrival: {by_arrival:.2f}; from sending to arrival: {certain:.2f}",
            f"expected: a share of at least {MIN_SHARE}, in order, from sending to arrival at most {BOUND}; not so: {inexact} of {len(rows)}",
        ]
    )


def _cell(row: Row, rows: Sequence[dict[str, Any]], bunched: bool, mode: str) -> str:
    wanted = row.hz, row.jitter, row.limit_hz, "someip" if row.is_someip else "zenoh", bunched, mode
    keys = "published_hz", "jitter", "limit_hz", "from", "bunched", "mode"
    return (
        " ".join(f"{each['share']:.3f}" for each in rows if tuple(each[key] for key in keys) == wanted) or "-"
    )
