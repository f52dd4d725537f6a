# SPDX-License-Identifier: Apache-2.0
"""The promises of the streamer, as queries for violating rows. Frames in, one frame of FINDINGS out.

Every rule is exact: a value at the limit is no violation. Rows that the recording itself lacks (announced gaps,
deleted segments, the last flush before a kill) are no violation. A rule on whole sequences skips sequences with
unknown parts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ustreamer_throttle.gate import DEFAULT_TOLERANCE, MAX_TOLERANCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FINDINGS: Final = ("rule", "gateway", "run", "seq", "time_us", "subject", "expected", "found")
"""Columns of a finding. `seq` is null for a finding about a whole run."""

GRACE_NS: Final = 600_000_000_000
"""For this time after a clock step, or for its ttl, a message may look too old (core/delivery/expiry.py)."""

MIN_CLOCK_STEP_MS: Final = 1_000
"""The streamer treats a smaller step as drift and does not remember the clock before it (core/delivery/expiry.py)."""

UNSEEN_NS: Final = 70_000_000_000
"""Maximum delay until the recorder notices a clock step: the longest flush interval, and a margin for a busy machine.
"""

DRIFT_MS: Final = 50
"""Maximum difference between the wall clock and the recorded one without an anchor (docs/recordings.md)."""


@dataclass(frozen=True)
class Tables:
    """Tables of silver, as in `schemas`. Read `epochs` through `tolerances_of`.

    `in_order` has the findings of `ordered_pass`; None: they are not computed.
    """

    deliveries: "DataFrame"
    epochs: "DataFrame"
    gaps: "DataFrame"
    counters: "DataFrame"
    segments: "DataFrame"
    dead_letters: "DataFrame"
    leaps: "DataFrame"
    quarantine: "DataFrame"
    in_order: "DataFrame | None" = None


Rule = Callable[[Tables], "DataFrame"]


def _finding(
    frame: "DataFrame", rule: str, subject: "Column", expected: "Column", found: "Column"
) -> "DataFrame":
    from pyspark.sql import functions as f

    time = f.col("received_us") if "received_us" in frame.columns else f.col("time_us")
    seq = f.col("seq") if "seq" in frame.columns else f.lit(None)
    return frame.select(
        f.lit(rule).alias("rule"),
        "gateway",
        "run",
        seq.cast("long").alias("seq"),
        time.alias("time_us"),
        subject.alias("subject"),
        expected.alias("expected"),
        found.alias("found"),
    )


def _target() -> "Column":
    from pyspark.sql import functions as f

    return f.concat_ws(" ", "source", f.concat_ws("", f.lit("-> "), "egress"), "subscriber")


def tolerances_of(epochs: "DataFrame") -> "DataFrame":
    """gateway, run, epoch, tolerance, throttled: settings of the throttle in each configuration."""
    from pyspark.sql import functions as f

    throttle = f.get_json_object("settings", "$.throttle")
    return epochs.select(
        "gateway",
        "run",
        "epoch",
        f.get_json_object("settings", "$.throttle.tolerance").cast("double").alias("tolerance"),
        f.get_json_object("settings", "$.throttle.max_delay_ms").cast("int").alias("max_delay_ms"),
        # get_json_object returns null for a JSON null and for a missing key; then only the default is known.
        throttle.isNotNull().alias("throttled"),
    ).dropDuplicates(["gateway", "run", "epoch"])


# --- rates --------------------------------------------------------------------------------------------------


def rate(tables: Tables) -> "DataFrame":
    """No target above its max_frequency: any window T has at most T / period + 2 + tolerance messages.

    For N messages from first to last this is (N - 1) * period - (period + early) <= T, all in whole ns; with
    tolerance 0 every gap is at least a period. Where messages of a bunch may wait, T / period + 2.5 holds. The query compares each message with the strictest window before it,
    found by a running minimum.
    A stretch is one limit of one gate: a change of the limit starts a new one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    passed = tables.deliveries.where(
        "period_ns > 0 AND delivery > 0 AND verdict IN ('DELIVERED', 'EXPIRED', 'DEAD_LETTERED')"
        # Messages that a stop removed from a filter did not pass it. Those that waited for a link had left it before.
        " AND NOT (held AND verdict = 'DEAD_LETTERED' AND code = 14 AND settled_ns = received_ns)"
    ).join(f.broadcast(tolerances_of(tables.epochs)), ["gateway", "run", "epoch"], "left")
    tolerance = f.coalesce("tolerance", f.lit(DEFAULT_TOLERANCE))
    tolerance = f.when((tolerance > 0) & (f.coalesce("max_delay_ms", f.lit(0)) > 0), MAX_TOLERANCE).otherwise(
        tolerance
    )
    slack = f.when(tolerance == 0, f.lit(0)).otherwise(
        f.col("period_ns") + f.floor(tolerance * f.col("period_ns"))
    )
    stretch = ("gateway", "run", "delivery", "period_ns", "tuned_ns", "tolerance")
    by_time = Window.partitionBy(*stretch).orderBy("received_ns", "seq")
    so_far = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ahead = (
        passed.withColumn("slack", slack)
        .withColumn("number", f.row_number().over(by_time) - 1)
        .withColumn("lead_ns", f.col("number") * f.col("period_ns") - f.col("received_ns"))
        .withColumn("most", f.min(f.struct("lead_ns", "number", "received_ns")).over(so_far))
    )
    count = f.col("number") - f.col("most.number") + 1
    window_ns = f.col("received_ns") - f.col("most.received_ns")
    least_ns = (count - 1) * f.col("period_ns") - f.col("slack")
    return _finding(
        ahead.where(f.col("lead_ns") - f.col("most.lead_ns") > f.col("slack")),
        "rate",
        _target(),
        f.format_string("%d messages in at least %d ns (period %d ns)", count, least_ns, "period_ns"),
        f.format_string("%d ns", window_ns),
    )


def never_throttled(tables: Tables) -> "DataFrame":
    """Requests, responses and notifications are never throttled, nor are publications without a limit."""
    from pyspark.sql import functions as f

    frame = tables.deliveries.where("verdict = 'THROTTLED' AND (type != 'PUBLISH' OR period_ns = 0)")
    return _finding(
        frame,
        "never_throttled",
        _target(),
        f.lit("only publications with a limit are throttled"),
        f.format_string("%s with period %d ns", "type", "period_ns"),
    )


# --- order, expiry, addresses -------------------------------------------------------------------------------


def order(tables: Tables) -> "DataFrame":
    """Messages keep their order of arrival per source, sink, class and target. Row numbers follow the order of
    verdicts.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    stream = Window.partitionBy(
        "gateway", "run", "ingress", "source", "sink", "priority", "egress", "subscriber"
    )
    before = stream.orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    delivered = tables.deliveries.where("verdict = 'DELIVERED'").withColumn(
        "latest", f.max(f.struct("received_ns", "seq")).over(before)
    )
    return _finding(
        delivered.where("received_ns < latest.received_ns"),
        "order",
        _target(),
        f.format_string(
            "before seq %d, which came %d ns later",
            "latest.seq",
            f.col("latest.received_ns") - f.col("received_ns"),
        ),
        f.lit("delivered after it"),
    )


def expired(tables: Tables) -> "DataFrame":
    """No message is handed to a transport after its ttl: made + ttl, and at most ttl after its arrival.

    The rule uses the most favourable clock that the streamer may have read (core/delivery/expiry.py): the wall clock,
    the clock before a recent step, and the clock after a step that the recorder had not noticed. It skips retried
    messages, whose recorded attempt is not the successful one.
    """
    from pyspark.sql import functions as f

    made_ms = f.shiftrightunsigned("id_msb", 16)
    # The gateway reads its wall clock in whole ms, after it has recorded the arrival.
    left_ms = f.least(made_ms + f.col("ttl_ms") + DRIFT_MS - f.floor(f.col("received_us") / 1_000), "ttl_ms")
    late = (
        tables.deliveries.where("verdict = 'DELIVERED' AND ttl_ms > 0 AND attempts = 1")
        .withColumn("made_ms", made_ms)
        .withColumn("left_ms", left_ms)
        .where(_too_late())
    )
    return _finding(
        late.join(_unexpired_by_another_clock(late, tables.leaps), ["gateway", "run", "seq"], "left_anti"),
        "expired",
        _target(),
        f.format_string("sent within %d us (ttl %d ms)", f.col("left_ms") * 1_000, "ttl_ms"),
        f.format_string("sent after %d us", "queue_wait_us"),
    )


def _too_late() -> "Column":
    from pyspark.sql import functions as f

    return (f.col("queue_wait_us") > f.col("left_ms") * 1_000) | (f.col("left_ms") < 0)


def _unexpired_by_another_clock(late: "DataFrame", leaps: "DataFrame") -> "DataFrame":
    """gateway, run, seq of messages that were unexpired by the clock before or after a step."""
    from pyspark.sql import functions as f

    clocks = leaps.select("gateway", "run", "leap_ms", f.col("time_ns").alias("leapt_ns"), "time_us")
    after_ms = f.floor(
        (f.col("time_us") + f.floor((f.col("received_ns") - f.col("leapt_ns")) / 1_000)) / 1_000
    )
    since_ns = f.col("received_ns") - f.col("leapt_ns")
    remembered = (f.abs("leap_ms") > MIN_CLOCK_STEP_MS) & since_ns.between(
        0, f.greatest(f.lit(GRACE_NS), f.col("ttl_ms") * 1_000_000) + UNSEEN_NS
    )
    unseen = since_ns.between(-UNSEEN_NS, -1)
    age_ms = after_ms - f.when(remembered, f.col("leap_ms")).otherwise(0) - f.col("made_ms")
    left_ms = f.least(f.col("ttl_ms") + DRIFT_MS - age_ms, "ttl_ms")
    # Made after any time the old clock showed: the maker has another clock, and the old one proves nothing.
    excused = unseen | (remembered & (age_ms >= -MIN_CLOCK_STEP_MS))
    return (
        late.join(clocks, ["gateway", "run"])
        .where(excused)
        .withColumn("left_ms", left_ms)
        .where(~_too_late())
        .select("gateway", "run", "seq")
    )


def echo(tables: Tables) -> "DataFrame":
    """A message never returns to the endpoint it came from."""
    from pyspark.sql import functions as f

    frame = tables.deliveries.where("egress = ingress AND verdict = 'DELIVERED'")
    return _finding(
        frame, "echo", _target(), f.lit("any other endpoint"), f.concat(f.lit("back to "), f.col("egress"))
    )


def letters(tables: Tables) -> "DataFrame":
    """A dead letter stands for an expired or failed message, never for a throttled one."""
    from pyspark.sql import functions as f

    rows = tables.deliveries.select(
        "gateway", "run", "seq", "received_us", "source", "egress", "subscriber", "verdict"
    )
    frame = (
        tables.dead_letters.select("gateway", "run", "seq")
        .join(rows, ["gateway", "run", "seq"])
        .where("verdict NOT IN ('EXPIRED', 'DEAD_LETTERED')")
    )
    return _finding(
        frame,
        "letters",
        _target(),
        f.lit("dead letters of EXPIRED or DEAD_LETTERED"),
        f.concat(f.lit("one of "), f.col("verdict")),
    )


# --- answers ------------------------------------------------------------------------------------------------


def answers(tables: Tables) -> "DataFrame":
    """A request that was not delivered gets exactly one Response, and no request gets two.

    The service decides about the response to a delivered request. In a run with gaps a response may be missing from
    the recording, so only duplicates count there.
    """
    from pyspark.sql import functions as f

    given = (
        tables.deliveries.where("type = 'RESPONSE' AND request_msb IS NOT NULL AND verdict != 'DENIED'")
        .groupBy("gateway", "run", f.col("request_msb").alias("id_msb"), f.col("request_lsb").alias("id_lsb"))
        .agg(f.countDistinct(f.struct("id_msb", "id_lsb")).alias("given"))
    )
    requests = tables.deliveries.where("type = 'REQUEST'")
    frame = (
        requests.join(given, ["gateway", "run", "id_msb", "id_lsb"], "left")
        .join(_holes(tables), ["gateway", "run"], "left")
        .withColumn("given", f.coalesce("given", f.lit(0)))
        .where("given > 1 OR (given = 0 AND verdict != 'DELIVERED' AND holes IS NULL)")
    )
    return _finding(
        frame,
        "answers",
        f.concat_ws(" ", f.lit("request to"), "sink"),
        f.when(f.col("verdict") == "DELIVERED", "at most one Response").otherwise("one Response"),
        f.format_string("%d, to a request that was %s", "given", "verdict"),
    )


def _holes(tables: Tables) -> "DataFrame":
    """gateway, run, holes: rows that are missing or may be missing, as in a run without a regular stop."""
    from pyspark.sql import functions as f

    missing = tables.gaps.groupBy("gateway", "run").agg(f.sum("rows").alias("holes"))
    runs = tables.segments.groupBy("gateway", "run").agg(
        f.min("number").alias("first"),
        (f.max("number") - f.min("number") + 1 - f.countDistinct("number")).alias("lost"),
        f.max(f.when(f.col("end") == "STOPPED", 1).otherwise(0)).alias("stopped"),
    )
    odd = runs.where("first > 0 OR lost > 0 OR stopped = 0").select(
        "gateway", "run", f.lit(1).cast("long").alias("holes")
    )
    return missing.unionByName(odd).groupBy("gateway", "run").agg(f.sum("holes").alias("holes"))
