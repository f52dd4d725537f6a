# SPDX-License-Identifier: Apache-2.0
"""What a replay of gates needs besides the rows: tolerances, times of missing rows, and runs that were cut off.

In: rows of the small tables of one gateway. Out: `GateInputs`. Pure.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ustreamer_throttle.gate import MAX_DELAY_NS, MAX_TOLERANCE, NS_PER_MS

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.recording.rows import DAY_US, day_text
from ustreamer_pipeline.replay.target_replay import ThrottleSettings
from ustreamer_pipeline.schemas import COUNTERS, EPOCHS, GAPS, SEGMENTS

EVENT_COLUMNS: Final = (
    *("table", "run", "epoch", "settings", "number", "began_us", "began_ns", "first_seq", "next_seq", "end"),
    *("from_ns", "until_ns", "final", "queued"),
)
"""Columns of the small tables that this module reads."""

Tolerances = Mapping[tuple[int, int], ThrottleSettings | float | None]
"""Settings of the throttle by run and epoch, or their tolerance alone; None for a gateway without a throttle, where no
limit holds.
"""

Losses = Mapping[int, Collection[int]]
"""By run, times (received_ns) at which missing rows begin or end: the state of gates is unknown after them."""

Row = Mapping[str, Any]


class GateInputs(NamedTuple):
    """`cut_off` are the runs that ended with messages in a queue, or may have: these have no row."""

    tolerances: Tolerances
    losses: Losses
    cut_off: Collection[int]


def gate_inputs(gateway: str, events: Iterable[Row], since: str = "") -> GateInputs:
    """Inputs for one gateway; rows before the date `since` are not read. Raises DamagedError."""
    tables: dict[str, list[Row]] = {}
    for row in events:
        tables.setdefault(row["table"], []).append(row)
    segments, gaps = tables.get(SEGMENTS.name, []), tables.get(GAPS.name, [])
    return GateInputs(
        _tolerances(gateway, tables.get(EPOCHS.name, ())),
        _losses(segments, gaps, since),
        _cut_off(segments, tables.get(COUNTERS.name, ())),
    )


def _tolerances(gateway: str, epochs: Iterable[Row]) -> Tolerances:
    """A configuration without the key `throttle` is left out: the tolerance is then the default."""
    found: dict[tuple[int, int], ThrottleSettings | float | None] = {}
    for row in epochs:
        fault = settings_fault(row)
        if fault is not None:
            raise DamagedError(
                f"epochs: {gateway}, run {row['run']}: expected {fault}, found {row['settings']!r}"
            )
        settings = json.loads(row["settings"])
        if "throttle" in settings:
            throttle = settings["throttle"]
            found[row["run"], row["epoch"]] = None if throttle is None else _throttle_settings(throttle)
    return found


def settings_fault(epoch: Row) -> str | None:
    """What was expected in the settings of a row of the table `epochs`; None if they are valid."""
    try:
        throttle = json.loads(epoch["settings"]).get("throttle")
        settings = None if throttle is None else _throttle_settings(throttle)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return "JSON with throttle.tolerance"
    if settings is None:
        return None
    if not 0 <= settings.tolerance <= MAX_TOLERANCE:
        return f"a throttle.tolerance of 0 to {MAX_TOLERANCE}"
    if not 0 <= settings.max_delay_ns <= MAX_DELAY_NS:
        return f"a throttle.max_delay_ms of 0 to {MAX_DELAY_NS // NS_PER_MS}"
    if settings.mode not in ("drop", "latest"):
        return "a throttle.mode of drop or latest"
    return None if all(map(_is_pattern, settings.latest)) else "UUris in throttle.latest"


def _is_pattern(text: str) -> bool:
    try:
        UUri.parse(text)
    except (UStatusError, AttributeError):
        return False
    return True


def _throttle_settings(throttle: Mapping[str, Any]) -> ThrottleSettings:
    """Raises KeyError, TypeError, ValueError, AttributeError, OverflowError."""
    return ThrottleSettings(
        float(throttle["tolerance"]),
        int(throttle.get("max_delay_ms", 0)) * NS_PER_MS,
        throttle.get("mode", "drop"),
        tuple(throttle.get("latest", ())),
    )


def _losses(segments: Iterable[Row], gaps: Iterable[Row], since: str) -> Losses:
    """The beginning of a run is missing if its first segment is missing or precedes the date `since`."""
    found: dict[int, set[int]] = {}
    in_order = sorted(segments, key=itemgetter("run", "number"))
    for run, of_run in groupby(in_order, key=itemgetter("run")):
        next_seq = before_ns = 0
        for row in of_run:
            if day_text(row["began_us"] // DAY_US) < since or row["first_seq"] > next_seq:
                found.setdefault(run, set()).update((before_ns, row["began_ns"]))
            next_seq, before_ns = row["next_seq"], row["began_ns"]
    for row in gaps:
        found.setdefault(row["run"], set()).update((row["from_ns"], row["until_ns"]))
    return found


def _cut_off(segments: Iterable[Row], counters: Iterable[Row]) -> Collection[int]:
    """All runs, except those that stopped with an empty queue by the dispatcher's counters."""
    emptied = {row["run"] for row in counters if row["final"] and not row["queued"]}
    of_run = [(row["run"], row["end"]) for row in segments]
    stopped = {run for run, end in of_run if end == "STOPPED"}
    return frozenset(run for run, _ in of_run) - (stopped & emptied)
