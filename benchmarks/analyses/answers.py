# SPDX-License-Identifier: Apache-2.0
"""The answers that all engines must give: names and columns of their tables, and when two answers are equal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ustreamer_pipeline.schemas import VERDICTS

RULES: Final = ("rate", "order", "sequence")
"""Rules of the audit that are queries over rows. The others need the rules of addresses, or a gateway's rows in order."""
STEP_S: Final = 60
"""Time step of a report."""
COUNTS: Final = tuple(verdict.lower() for verdict in VERDICTS)
SIGNALS: Final = ("speed", "torque", "soc", "temperature")

SCENARIOS: Final = 1
"""Scenarios of a what-if besides the recorded one."""

COLUMNS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "audit": {"findings": ("rule", "gateway", "run", "seq")},
    # Not compared: percentiles, which Spark approximates, and the time of a peak, of which there may be several.
    "report": {
        "gateways": ("gateway", "rows", *COUNTS, "bytes", "saved_bytes", "from_us", "until_us", "runs"),
        "over_time": ("time_s", "gateway", "rows", *COUNTS, "delivered_bytes"),
        "losses": ("verdict", "code", "cause", "endpoint", "rows", "gateways", "from_us", "until_us"),
        "throttle": (
            *("gateway", "source", "egress", "subscriber", "period_ns"),
            *("published", "passed", "saved_bytes", "seconds"),
        ),
        "queues": ("gateway", "egress", "peak_messages", "peak_bytes"),
        "talkers": ("source", "type", "messages", "bytes", "gateways"),
    },
    "ingest": {"verdicts": ("verdict", "rows")},
    "whatif": {"links": ("number", "egress", "messages", "bytes")},
    "signals": {
        "series": ("topic", "signal", "time_s", "average", "lowest", "highest", "values", "gateways"),
        "messages": ("gateway", "messages", *SIGNALS),
    },
}
"""Columns by task and table."""

Row = tuple[Any, ...]
Answer = dict[str, list[Row]]
"""Rows by table, in the order of their texts."""


def answer_of(tables: Mapping[str, Sequence[Row]]) -> Answer:
    """The rows in an order that does not depend on the engine. No row differs from another in a fraction only."""
    return {name: sorted(map(tuple, rows), key=_key) for name, rows in tables.items()}


def _key(row: Row) -> str:
    return repr([None if isinstance(each, float) else each for each in row])


def links_of(totals: Mapping[tuple[int, str], tuple[int, int]]) -> Answer:
    """The answer of a what-if."""
    return answer_of({"links": [(*link, *sums) for link, sums in totals.items()]})


def difference(one: Answer, other: Answer) -> str | None:
    """The first difference; None for equal answers. Fractions are equal to nine digits: sums have no fixed order."""
    if one.keys() != other.keys():
        return f"tables {sorted(one)} and {sorted(other)}"
    for name, rows in one.items():
        if len(rows) != len(other[name]):
            return f"{name}: {len(rows)} and {len(other[name])} rows"
        for mine, its in zip(rows, other[name], strict=True):
            if not all(map(_is_equal, mine, its)):
                return f"{name}: {mine} and {its}"
    return None


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other
