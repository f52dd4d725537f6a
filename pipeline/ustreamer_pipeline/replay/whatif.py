# SPDX-License-Identifier: Apache-2.0
"""The what-if analysis: traffic of gateways under other limits, subscribers and queues. One pass over silver answers all
scenarios.

The first scenario is always `recorded`: nothing is changed, and every replayed verdict of the throttle must equal the
recorded one. Settings that a scenario does not change come from the recording.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from ustreamer_pipeline.replay.files import BATCH_ROWS, read_gateway, read_small_tables, spread
from ustreamer_pipeline.replay.gate_inputs import EVENT_COLUMNS, GateInputs, gate_inputs
from ustreamer_pipeline.replay.replay import GatewayReplay, columns_for
from ustreamer_pipeline.replay.whatif_scenarios import RECORDED, Scenario

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_TOLERANCE: Final = 0.1
"""Tolerance of a gateway without a recorded one."""

RESULT: Final = pa.schema(
    [
        ("kind", pa.string()),  # target, link or check
        ("number", pa.int32()),  # of the scenario; 0 is the recorded one
        ("scenario", pa.string()),
        ("gateway", pa.string()),
        ("ingress", pa.string()),
        ("egress", pa.string()),
        ("topic", pa.string()),  # null: requests, responses and notifications
        ("subscriber", pa.string()),
        ("offered", pa.int64()),  # messages before the throttle
        ("offered_bytes", pa.int64()),
        ("recorded", pa.int64()),  # messages after the throttle, as recorded
        ("recorded_bytes", pa.int64()),
        ("messages", pa.int64()),  # messages after the throttle, in this scenario
        ("bytes", pa.int64()),
        ("seconds", pa.float64()),
        ("peak_bytes_s", pa.int64()),
        ("delivered", pa.int64()),  # from here on only in scenarios with links or a ttl
        ("dead_lettered", pa.int64()),
        ("expired", pa.int64()),
        ("peak_messages", pa.int64()),
        ("peak_queue_bytes", pa.int64()),
        ("longest_wait_us", pa.int64()),
        ("decided", pa.int64()),  # of a check
        ("unknown", pa.int64()),
        ("differing", pa.int64()),
        ("examples", pa.string()),  # JSON: (run, delivery, received_ns, seq) of differing rows
    ]
)
DDL: Final = ", ".join(
    f"{field.name} {({'int64': 'bigint', 'int32': 'int', 'double': 'double', 'string': 'string'})[str(field.type)]}"
    for field in RESULT
)


def replay_gateway(
    gateway: str,
    batches: Iterable[pa.RecordBatch],
    scenarios: Sequence[Scenario],
    inputs: GateInputs,
) -> list[dict[str, Any]]:
    """Replay one gateway. Returns rows of RESULT without null columns."""
    replay = GatewayReplay(scenarios, inputs.tolerances, DEFAULT_TOLERANCE, inputs.losses, inputs.cut_off)
    for batch in batches:
        replay.feed(batch)
    replay.finish()
    names = [RECORDED, *(scenario.name for scenario in scenarios)]
    seconds = replay.duration_ns / 1e9
    rows: list[dict[str, Any]] = []
    egresses = sorted({total.target.egress for total in replay.totals})
    for number, name in enumerate(names):
        about = {"number": number, "scenario": name, "gateway": gateway, "seconds": seconds}
        rows += (
            {
                "kind": "target",
                **about,
                **total.target._asdict(),
                "offered": total.offered,
                "offered_bytes": total.offered_bytes,
                "recorded": total.recorded,
                "recorded_bytes": total.recorded_bytes,
                "messages": int(total.messages[number]),
                "bytes": int(total.bytes[number]),
            }
            for total in replay.totals
        )
        queues = {link.egress: link for at, link in replay.links() if at == number}
        for egress in egresses:
            mine = [total for total in replay.totals if total.target.egress == egress]
            queue = queues.get(egress)
            rows.append(
                {
                    "kind": "link",
                    **about,
                    "egress": egress,
                    "offered": sum(each.offered for each in mine),
                    "offered_bytes": sum(each.offered_bytes for each in mine),
                    "recorded": sum(each.recorded for each in mine),
                    "recorded_bytes": sum(each.recorded_bytes for each in mine),
                    "messages": sum(int(each.messages[number]) for each in mine),
                    "bytes": sum(int(each.bytes[number]) for each in mine),
                    "peak_bytes_s": replay.peak(number, egress),
                    **(
                        {
                            "delivered": queue.delivered,
                            "dead_lettered": queue.dead_lettered,
                            "expired": queue.expired,
                            "peak_messages": queue.peak_messages,
                            "peak_queue_bytes": queue.peak_bytes,
                            "longest_wait_us": queue.longest_wait_us,
                        }
                        if queue
                        else {}
                    ),
                }
            )
    check = replay.check
    rows.append(
        {
            "kind": "check",
            "number": 0,
            "scenario": RECORDED,
            "gateway": gateway,
            "seconds": seconds,
            "offered": replay.rows,
            "decided": check.decided,
            "unknown": check.unknown,
            "differing": check.differing,
            "examples": json.dumps(check.examples) if check.examples else None,
        }
    )
    return rows


def _replay_task(
    scenarios: bytes, since: str, batch_rows: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: a gateway, its files of deliveries and of small tables per row."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parsed = msgspec.json.decode(scenarios, type=list[Scenario])
        for batch in batches:
            for row in batch.to_pylist():
                events = read_small_tables(row["events"] or (), EVENT_COLUMNS)
                inputs = gate_inputs(row["gateway"], events, since)
                rows = read_gateway(row["files"], columns_for(parsed), batch_rows)
                result = replay_gateway(row["gateway"], rows, parsed, inputs)
                yield pa.RecordBatch.from_pylist(result, schema=RESULT)

    return work


def whatif(
    spark: "SparkSession",
    files: Mapping[str, Sequence[str]],
    scenarios: Sequence[Scenario],
    events: Mapping[str, Sequence[str]] | None = None,
    since: str = "",
    batch_rows: int = BATCH_ROWS,
    counts: Mapping[str, int] | None = None,
) -> "DataFrame":
    """The table RESULT for the gateways of `files`, whose files are in order. Spark shuffles only file names.

    `events` has the small tables of each gateway, `counts` its number of deliveries, so that the largest are the first.
    Deliveries before the date `since` are not in `files`.
    """
    rows = [(gateway, list(names), list((events or {}).get(gateway, ()))) for gateway, names in files.items()]
    weights = [(counts or {}).get(gateway, 0) for gateway in files]
    table = spread(spark, rows, "gateway string, files array<string>, events array<string>", weights)
    work = _replay_task(msgspec.json.encode(list(scenarios)), since, batch_rows)
    return table.mapInArrow(work, DDL)


def fleet_links(result: "DataFrame") -> "DataFrame":
    """Each scenario and link, summed over all gateways. Peaks are those of the busiest gateway."""
    from pyspark.sql import functions as F  # noqa: N812  # what every PySpark program calls it

    sums = (
        "offered",
        "recorded",
        "recorded_bytes",
        "messages",
        "bytes",
        "delivered",
        "dead_lettered",
        "expired",
    )
    # A sum of floats would depend on the order of the tasks, and so on the number of executors.
    exact_seconds = F.sum(F.col("seconds").cast("decimal(28,9)")).cast("double")
    most = ("peak_bytes_s", "peak_messages", "peak_queue_bytes", "longest_wait_us")
    return (
        result.where("kind = 'link'")
        .groupBy("number", "scenario", "egress")
        .agg(
            F.count("*").alias("gateways"),
            *(F.sum(name).alias(name) for name in sums),
            exact_seconds.alias("seconds"),
            *(F.max(name).alias(name) for name in most),
        )
        .orderBy("number", "egress")
    )


def fleet_subscribers(result: "DataFrame") -> "DataFrame":
    """Each scenario and subscriber, summed over all gateways. A multicast target counts as one subscriber."""
    from pyspark.sql import functions as F  # noqa: N812

    return (
        result.where("kind = 'target'")
        .groupBy("number", "scenario", "egress", "subscriber")
        .agg(
            *(
                F.sum(name).alias(name)
                for name in ("offered", "recorded", "recorded_bytes", "messages", "bytes")
            )
        )
        .orderBy("number", "egress", "subscriber")
    )
