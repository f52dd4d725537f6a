# SPDX-License-Identifier: Apache-2.0
"""All tables of a report, computed by Spark and small enough for one machine; `page` renders them."""

import csv
import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.errors import UnavailableError, UsageError
from ustreamer_pipeline.lake.snapshot import snapshot_of
from ustreamer_pipeline.replay.files import event_files_of, files_of, rows_of
from ustreamer_pipeline.report import series, tables
from ustreamer_pipeline.report.gateway_pass import partial_tables
from ustreamer_pipeline.report.steps import step_width_s
from ustreamer_pipeline.schemas import SIGNALS, VERDICTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_ROWS: Final = 100_000
"""Maximum rows per table. `cut` counts the rest, which stays in the lake; figures of the fleet include it."""

Row = dict[str, Any]


@dataclass(frozen=True)
class FleetReport:
    """`tables` by name; `fleet` has the sums over all gateways; `width_s` is the time step of `over_time`.

    `cut` has the number of rows that are not in a table, by name of the table.
    """

    tables: dict[str, list[Row]]
    fleet: Row
    width_s: int
    cut: dict[str, int]

    @property
    def totals(self) -> dict[str, int]:
        """Rows by verdict, over all gateways."""
        names = ("rows", *(verdict.lower() for verdict in VERDICTS))
        return {name: self.fleet[name] for name in names}

    @property
    def delivery_ratio(self) -> float | None:
        """Delivered share of the messages due for delivery."""
        totals = self.totals
        meant = totals["delivered"] + totals["expired"] + totals["dead_lettered"]
        return totals["delivered"] / meant if meant else None


def report(
    spark: "SparkSession",
    lake: str,
    since: str = "",
    until: str = LAST_DATE,
    step: Callable[[str], None] = lambda _: None,
    signals: Sequence[tuple[str, str]] = (),
) -> FleetReport:
    """Compute all tables; `step` gets the name of each table first. `signals` are (topic, signal); empty topic: any.

    Raises UnavailableError without deliveries, UsageError for a signal without values.
    """
    within = f"date >= '{since or '0001-01-01'}' AND date <= '{until}'"
    snapshot = snapshot_of(lake)
    files, events = files_of(snapshot, since, until), event_files_of(snapshot, since, until)
    made: dict[str, list[Row]] = {}
    cut: dict[str, int] = {}

    def collect(name: str, frame: "DataFrame") -> None:
        step(name)
        rows = [row.asDict() for row in frame.limit(MAX_ROWS + 1).collect()]
        made[name] = rows[:MAX_ROWS]
        if len(rows) > MAX_ROWS:
            cut[name] = frame.count() - MAX_ROWS

    step("gateways")
    # One pass over the files; each table is a query on its result.
    partials = partial_tables(spark, files, events, counts=rows_of(snapshot, since, until)).persist()
    try:
        fleet = tables.fleet(partials).collect()[0].asDict()
        if not fleet["gateways"]:
            raise UnavailableError(f"{lake}: no deliveries there: ingest first")
        width_s = step_width_s((fleet["until_us"] - fleet["from_us"]) / 1e6)
        if signals:
            samples = SIGNALS.read_table(spark, snapshot).where(within)
            by_time = series.signals(spark, snapshot, signals, width_s, since, until)
            collect("signals", by_time.orderBy("topic", "signal", "time_s"))
            _require_values(made["signals"], signals, samples)
        for name, frame in _queries(partials, width_s).items():
            collect(name, frame)
    finally:
        partials.unpersist()
    return FleetReport(made, fleet, width_s, cut)


def _queries(partials: "DataFrame", width_s: int) -> dict[str, "DataFrame"]:
    """The query of each table but `signals`, by name."""
    return {
        "gateways": tables.gateways(partials),
        "fleet_over_time": tables.fleet_over_time(partials, width_s),
        "over_time": tables.over_time(partials, width_s),
        "losses": tables.losses(partials),
        "latency": tables.latency(partials),
        "throttle": tables.throttle(partials),
        "queues": tables.queues(partials),
        "talkers": tables.talkers(partials),
        "subscriptions": tables.lifetimes(partials),
        "missing": tables.missing(partials),
    }


def _require_values(rows: list[Row], signals: Sequence[tuple[str, str]], samples: "DataFrame") -> None:
    """Raise UsageError for a signal without values, with the names of those that have some."""
    for topic, name in signals:
        if not any(row["signal"] == name and topic in ("", row["topic"]) for row in rows):
            found = samples.where("value_double IS NOT NULL").select("signal").distinct().orderBy("signal")
            have = ", ".join(row["signal"] for row in found.limit(20).collect())
            place = f"{topic}:{name}" if topic else name
            raise UsageError(f"--signal {place}: no numbers; signals with numbers: {have or 'none'}")


def write_tables(made: FleetReport, folder: Path) -> list[Path]:
    """Write each table as CSV, with times as ISO 8601 in UTC, and all tables to `report.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in made.tables.items():
        path = folder / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if rows:
                writer.writerow([key.removesuffix("_us") if _is_time(key) else key for key in rows[0]])
            for row in rows:
                writer.writerow([moment(value) if _is_time(key) else value for key, value in row.items()])
        written.append(path)
    whole = folder / "report.json"
    summary = {
        "totals": made.totals,
        "gateways": made.fleet["gateways"],
        "delivery_ratio": made.delivery_ratio,
        "width_s": made.width_s,
        "cut": made.cut,
    }
    whole.write_text(json.dumps({**summary, "tables": made.tables}, indent=1), encoding="utf-8")
    return [*written, whole]


def _is_time(key: str) -> bool:
    return key in ("from_us", "until_us", "peak_us")


def moment(us: int | None) -> str:
    """A time in us since 1970 as UTC text, to the second; empty for None."""
    return (
        "" if us is None else dt.datetime.fromtimestamp(us // 1_000_000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    )
