# SPDX-License-Identifier: Apache-2.0
"""Input of a replay from the events of a recording: rows as the table `deliveries` has them, settings of the throttle."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from ustreamer_pipeline.replay.rows import COLUMNS, TEXTS
from ustreamer_pipeline.replay.target_replay import ThrottleSettings
from ustreamer_recorder.events import Config, Row

SCHEMA: Final = pa.schema([(name, pa.string() if name in TEXTS else pa.int64()) for name in COLUMNS])
RUN: Final = 1
_SIGN_BIT: Final = 1 << 63
_NS_PER_MS: Final = 1_000_000


def recorded_settings(events: Sequence[object]) -> dict[tuple[int, int], ThrottleSettings]:
    """The settings of the throttle by run and epoch."""
    found = {}
    for each in events:
        if isinstance(each, Config):
            throttle = json.loads(each.text)["throttle"]
            max_delay_ns = throttle.get("max_delay_ms", 0) * _NS_PER_MS
            found[RUN, each.epoch] = ThrottleSettings(throttle["tolerance"], max_delay_ns)
    return found


def recorded_rows(events: Sequence[object]) -> list[dict[str, Any]]:
    """The rows in the order of the table `deliveries`."""
    rows = (each for each in events if isinstance(each, Row))
    return [_table_row(each) for each in sorted(rows, key=lambda row: (row.received_ns, row.seq))]


def _table_row(row: Row) -> dict[str, Any]:
    return {
        "run": RUN,
        "delivery": row.target.delivery,
        "received_ns": row.received_ns,
        "arrived_ns": row.arrived_ns,
        "settled_ns": row.settled_ns,
        "period_ns": row.target.period_ns,
        "tuned_ns": row.target.tuned_ns,
        "epoch": row.epoch,
        "size": row.size,
        "code": row.code,
        "source": row.source,
        "subscriber": row.target.subscriber,
        "ingress": row.target.ingress,
        "egress": row.target.egress,
        "type": row.type.name,
        "verdict": row.verdict.name,
        "id_msb": (row.id.msb + _SIGN_BIT) % (2 * _SIGN_BIT) - _SIGN_BIT,
    }
