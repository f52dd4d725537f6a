# SPDX-License-Identifier: Apache-2.0
"""The same answers in the lazy frames of Polars, whose engine may stream. The number of threads is set at the import."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
from ustreamer_pipeline.schemas import DELIVERIES, EVENTS_FOLDER, SAMPLED_FOLDER, VERDICTS

from benchmarks.analyses.answers import COLUMNS, SIGNALS, STEP_S, Answer, answer_of
from benchmarks.analyses.lakes import TOPIC

Frames = Mapping[str, pl.LazyFrame]

_FOLDERS: Final = {"deliveries": DELIVERIES.folder, "events": EVENTS_FOLDER, "sampled": SAMPLED_FOLDER}
_STEP_US: Final = STEP_S * 1_000_000
_HANDED_OVER: Final = ("DELIVERED", "EXPIRED", "DEAD_LETTERED")


def answers(task: str, lake: Path) -> Answer:
    """The tables of a task."""
    tables = {"audit": _audit, "report": _report, "signals": _signals}[task](lake)
    frames = [tables[name].select(columns) for name, columns in COLUMNS[task].items()]
    made = [frame.collect(engine="streaming") for frame in frames]
    return answer_of({name: frame.rows() for name, frame in zip(COLUMNS[task], made, strict=True)})


def _scan(lake: Path, name: str) -> pl.LazyFrame:
    return pl.scan_parquet(f"{lake}/{_FOLDERS[name]}/*/*/*.parquet", hive_partitioning=True)


# --- audit ----------------------------------------------------------------------------------------------------------


def _audit(lake: Path) -> Frames:
    deliveries, events = _scan(lake, "deliveries"), _scan(lake, "events")
    rules = {
        "rate": _rate(deliveries, events),
        "order": _order(deliveries),
        "sequence": _sequence(deliveries, events),
    }
    found = [
        frame.select(pl.lit(name).alias("rule"), "gateway", "run", "seq") for name, frame in rules.items()
    ]
    return {"findings": pl.concat(found)}


def _rate(deliveries: pl.LazyFrame, events: pl.LazyFrame) -> pl.LazyFrame:
    settings = pl.col("settings").str
    tolerances = events.filter(pl.col("table") == "epochs").select(
        *("gateway", "run", "epoch"),
        settings.json_path_match("$.throttle.tolerance").cast(pl.Float64).alias("tolerance"),
        settings.json_path_match("$.throttle.max_delay_ms").cast(pl.Int64).alias("max_delay_ms"),
    )
    key = ["gateway", "run", "epoch"]
    waits = (pl.col("tolerance") > 0) & (pl.col("max_delay_ms") > 0)
    stretch = ["gateway", "run", "delivery", "period_ns", "tuned_ns", "tolerance"]
    removed = (
        pl.col("held")
        & (pl.col("verdict") == "DEAD_LETTERED")
        & (pl.col("code").fill_null(0) == 14)
        & (pl.col("settled_ns") == pl.col("received_ns"))
    )
    passed = (
        deliveries.filter(
            (pl.col("period_ns") > 0)
            & (pl.col("delivery") > 0)
            & pl.col("verdict").is_in(_HANDED_OVER)
            & ~removed
        )
        .select(*key, "delivery", "period_ns", "tuned_ns", "received_ns", "seq")
        .join(tolerances.unique(subset=key), on=key, how="left")
        .with_columns(
            pl.when(waits).then(0.5).otherwise(pl.col("tolerance").fill_null(0.1)).alias("tolerance")
        )
        .sort("received_ns", "seq")
    )
    number = pl.int_range(pl.len()).over(stretch)
    slack = pl.col("period_ns") + (pl.col("tolerance") * pl.col("period_ns")).floor().cast(pl.Int64)
    return (
        passed.with_columns((number * pl.col("period_ns") - pl.col("received_ns")).alias("lead_ns"))
        .with_columns(pl.col("lead_ns").cum_min().over(stretch).alias("least_ns"))
        .filter(
            pl.col("lead_ns") - pl.col("least_ns")
            > pl.when(pl.col("tolerance") == 0).then(0).otherwise(slack)
        )
    )


def _order(deliveries: pl.LazyFrame) -> pl.LazyFrame:
    stream = ["gateway", "run", "ingress", "source", "sink", "priority", "egress", "subscriber"]
    return (
        deliveries.filter(pl.col("verdict") == "DELIVERED")
        .select(*stream, "seq", "received_ns")
        .sort("seq")
        .with_columns(pl.col("received_ns").cum_max().shift(1).over(stream).alias("latest_ns"))
        .filter(pl.col("received_ns") < pl.col("latest_ns"))
    )


def _sequence(deliveries: pl.LazyFrame, events: pl.LazyFrame) -> pl.LazyFrame:
    in_run = ["gateway", "run"]
    segments = events.filter(pl.col("table") == "segments").sort("number")
    ends = segments.group_by(in_run).agg(pl.col("next_seq").max().alias("seq"))
    numbers = pl.concat(
        [
            deliveries.select(*in_run, "seq", pl.lit(True).alias("is_row")),
            ends.select(*in_run, "seq", pl.lit(False).alias("is_row")),
        ]
    )
    holes = (
        numbers.sort("seq", "is_row", descending=[False, True])
        .with_columns(pl.col("seq").shift(1, fill_value=-1).over(in_run).alias("before"))
        .with_columns((pl.col("seq") - pl.col("before") - 1).alias("missing"))
        .filter((pl.col("missing") > 0) | ((pl.col("missing") < 0) & pl.col("is_row")))
    )
    steps = segments.select(
        *in_run,
        pl.col("next_seq").shift(1, fill_value=0).over(in_run).alias("from_seq"),
        (pl.col("number") - pl.col("number").shift(1, fill_value=-1).over(in_run)).alias("step"),
        "first_seq",
    ).filter((pl.col("step") > 1) & (pl.col("first_seq") > pl.col("from_seq")))
    announced = pl.concat(
        [
            events.filter(pl.col("table") == "gaps").select(*in_run, "first_seq", "rows"),
            steps.select(
                *in_run,
                pl.col("from_seq").alias("first_seq"),
                (pl.col("first_seq") - pl.col("from_seq")).alias("rows"),
            ),
        ]
    )
    is_inside = (pl.col("first_seq") > pl.col("before")) & (pl.col("first_seq") < pl.col("seq"))
    return (
        holes.join(announced, on=in_run, how="left")
        .group_by(*in_run, "seq", "missing")
        .agg(pl.col("rows").filter(is_inside).sum().alias("known"))
        .filter((pl.col("missing") < 0) | (pl.col("known") < pl.col("missing")))
    )


# --- report ---------------------------------------------------------------------------------------------------------


def _report(lake: Path) -> Frames:
    deliveries = _scan(lake, "deliveries")
    return {
        "gateways": _gateways(deliveries),
        "over_time": _over_time(deliveries),
        "losses": _losses(deliveries),
        "throttle": _throttle(deliveries),
        "queues": _queues(deliveries),
        "talkers": _talkers(deliveries),
    }


def _counts() -> list[pl.Expr]:
    return [(pl.col("verdict") == each).sum().alias(each.lower()) for each in VERDICTS]


def _size_of(verdict: str) -> pl.Expr:
    return pl.col("size").filter(pl.col("verdict") == verdict).sum()


def _gateways(deliveries: pl.LazyFrame) -> pl.LazyFrame:
    return deliveries.group_by("gateway").agg(
        pl.len().alias("rows"),
        *_counts(),
        pl.col("size").sum().alias("bytes"),
        _size_of("THROTTLED").alias("saved_bytes"),
        pl.col("received_us").min().alias("from_us"),
        pl.col("received_us").max().alias("until_us"),
        pl.col("run").n_unique().alias("runs"),
    )


def _over_time(deliveries: pl.LazyFrame) -> pl.LazyFrame:
    step = (pl.col("received_us") // _STEP_US * STEP_S).alias("time_s")
    return deliveries.group_by(step, "gateway").agg(
        pl.len().alias("rows"), *_counts(), _size_of("DELIVERED").alias("delivered_bytes")
    )


def _losses(deliveries: pl.LazyFrame) -> pl.LazyFrame:
    cause = pl.col("reason").fill_null("no reason given").str.replace_all(r"\d+", "N").alias("cause")
    endpoint = pl.coalesce("egress", "ingress").alias("endpoint")
    return (
        deliveries.filter(pl.col("verdict").is_in(["EXPIRED", "DEAD_LETTERED"]))
        .group_by("verdict", "code", cause, endpoint)
        .agg(
            pl.len().alias("rows"),
            pl.col("gateway").n_unique().alias("gateways"),
            pl.col("received_us").min().alias("from_us"),
            pl.col("received_us").max().alias("until_us"),
        )
    )


def _throttle(deliveries: pl.LazyFrame) -> pl.LazyFrame:
    target = ["gateway", "source", "egress", "subscriber", "period_ns"]
    is_limited = (pl.col("period_ns") > 0) & (pl.col("delivery") > 0) & (pl.col("type") == "PUBLISH")
    by_run = (
        deliveries.filter(is_limited)
        .group_by(*target, "run")
        .agg(
            pl.len().alias("published"),
            (pl.col("verdict") != "THROTTLED").sum().alias("passed"),
            _size_of("THROTTLED").alias("saved_bytes"),
            ((pl.col("arrived_ns").max() - pl.col("arrived_ns").min()) / 1e9).alias("seconds"),
        )
    )
    sums = [pl.col(name).sum() for name in ("published", "passed", "saved_bytes", "seconds")]
    return by_run.group_by(target).agg(sums).filter(pl.col("seconds") > 0)


def _queues(deliveries: pl.LazyFrame) -> pl.LazyFrame:
    taken = deliveries.filter(
        pl.col("egress").is_not_null()
        & (pl.col("settled_ns") > pl.col("received_ns"))
        & pl.col("verdict").is_in(_HANDED_OVER)
    )
    link = ["gateway", "run", "egress"]
    moves = pl.concat(
        [
            taken.select(*link, pl.col("received_ns").alias("at_ns"), pl.lit(1).alias("one"), "size"),
            taken.select(
                *link, pl.col("settled_ns").alias("at_ns"), pl.lit(-1).alias("one"), -pl.col("size")
            ),
        ]
    )
    return (
        moves.sort("at_ns", "one")
        .with_columns(pl.col("one", "size").cum_sum().over(link))
        .group_by("gateway", "egress")
        .agg(pl.col("one").max().alias("peak_messages"), pl.col("size").max().alias("peak_bytes"))
    )


def _talkers(deliveries: pl.LazyFrame) -> pl.LazyFrame:
    message = ("gateway", "run", "source", "type", "arrived_ns", "id_msb", "id_lsb")
    messages = deliveries.group_by(message).agg(pl.col("size").max())
    return messages.group_by("source", "type").agg(
        pl.len().alias("messages"),
        pl.col("size").sum().alias("bytes"),
        pl.col("gateway").n_unique().alias("gateways"),
    )


# --- signals --------------------------------------------------------------------------------------------------------


def _signals(lake: Path) -> Frames:
    signals = _scan(lake, "sampled").filter((pl.col("table") == "signals") & (pl.col("topic") == TOPIC))
    step = (pl.col("time_us") // _STEP_US * STEP_S).alias("time_s")
    value: Any = pl.col("value_double")
    series = (
        signals.filter(pl.col("signal").is_in(SIGNALS) & value.is_not_null())
        .group_by("topic", "signal", step)
        .agg(
            value.mean().alias("average"),
            value.min().alias("lowest"),
            value.max().alias("highest"),
            pl.len().alias("values"),
            pl.col("gateway").n_unique().alias("gateways"),
        )
    )
    wide = signals.group_by("gateway", "date", "run", "time_us", "time_ns", "id_msb", "id_lsb").agg(
        value.filter(pl.col("signal") == name).first().alias(name) for name in SIGNALS
    )
    messages = wide.group_by("gateway").agg(pl.len().alias("messages"), pl.col(*SIGNALS).max())
    return {"series": series, "messages": messages}
