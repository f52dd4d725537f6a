# SPDX-License-Identifier: Apache-2.0
"""The rule `consistent`: the fields of one row against each other."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ustreamer_pipeline.gold.rules.run import TARGET, Mask, RunRows, RunRule


class Consistent(RunRule):
    """A verdict has the attempts, the code and the target that lead to it, and a type has its addresses.

    A denied message may have any fields: they may be the reason of the denial.
    """

    PROMISES: ClassVar = {"consistent": "the fields of a row agree with each other"}
    COLUMNS = (
        *("seq", "received_us", "verdict", "type", "attempts", "code", "sink", "topic", "delivery"),
        *("request_msb", *TARGET),
    )

    def feed(self, rows: RunRows) -> None:
        for broken, expected, column in _contradictions(rows):
            for at in np.flatnonzero(broken).tolist():
                value = rows.text(column, at) if column in ("sink", "topic") else int(rows[column][at])
                what = f"{rows.text('type', at)}, {rows.text('verdict', at)}"
                found = f"{what}, {'none' if value in (None, -1) else f'{column} {value}'}"
                self._add_row(rows, at, rows.target(at), expected, found)


def _contradictions(rows: RunRows) -> Iterator[tuple[Mask, str, str]]:
    """Rows that contradict themselves: which, what is expected, and the column that shows it."""
    delivered, throttled = rows.is_verdict("DELIVERED"), rows.is_verdict("THROTTLED")
    accepted, published = ~rows.is_verdict("DENIED"), rows.is_type("PUBLISH")
    has_sink = rows["sink"] >= 0
    yield delivered & (rows["attempts"] == 0), "an attempt of a delivered message", "attempts"
    untried = throttled | rows.is_verdict("NO_SUBSCRIBER")
    yield untried & (rows["attempts"] > 0), "no attempt without a delivery", "attempts"
    yield (delivered | throttled) & (rows["code"] >= 0), "no code without a failure", "code"
    yield rows.is_verdict("DEAD_LETTERED") & (rows["code"] < 0), "the code of the failure", "code"
    yield (delivered | throttled) & (rows["delivery"] <= 0), "a target of the message", "delivery"
    yield accepted & published & has_sink, "no sink of a publication", "sink"
    yield accepted & ~published & ~has_sink, "a sink of the message", "sink"
    responses = accepted & rows.is_type("RESPONSE")
    yield responses & (rows["request_msb"] == -1), "the request of a response", "request_msb"
    other_topic = (rows["topic"] >= 0) & (rows["topic"] != rows["source"])
    yield accepted & published & other_topic, "the source as topic of the target", "topic"
