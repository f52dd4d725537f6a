# SPDX-License-Identifier: Apache-2.0
"""The tables of a report for one gateway, each made in one pass over its deliveries in order.

A table gets the rows of each batch, all of one run, and the end of each run. In memory are its groups, not its rows.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.columns import Codes, Dictionary
from ustreamer_pipeline.replay.rows import Ints
from ustreamer_pipeline.report import latency_bins
from ustreamer_pipeline.report.causes import cause_of
from ustreamer_pipeline.report.delivery_columns import (
    DEAD_LETTERED,
    DELIVERED,
    EXPIRED,
    PUBLISH,
    THROTTLED,
    DeliveryColumns,
    text_array,
)
from ustreamer_pipeline.report.grouped_rows import GroupedRows
from ustreamer_pipeline.report.steps import merged_width_s, step_of
from ustreamer_pipeline.schemas import VERDICTS


class GatewayTable(ABC):
    """One table of one gateway."""

    name: ClassVar[str]

    @abstractmethod
    def add(self, rows: DeliveryColumns) -> None:
        """The next rows of the run."""

    def end_run(self) -> None:  # noqa: B027  # most tables do not depend on runs
        """The run has no more rows."""

    @abstractmethod
    def table(self) -> pa.Table:
        """The rows of the table; texts are texts."""


def _only(value: int, where: Codes, numbers: Ints) -> Ints:
    """The numbers where `where` has this value, otherwise 0."""
    return np.where(where == value, numbers, 0)


class Totals(GatewayTable):
    """All rows: by verdict, their bytes, their first and last time, and the number of runs."""

    name = "gateways"

    def __init__(self) -> None:
        self._rows = np.zeros(len(VERDICTS), np.int64)
        self._bytes = np.zeros(len(VERDICTS), np.int64)
        self._times_us: list[int] = []
        self._runs = 0

    def add(self, rows: DeliveryColumns) -> None:
        self._rows += np.bincount(rows.verdict, minlength=len(VERDICTS))
        # The sums of a batch are exact as float64: below 2^53.
        self._bytes += np.bincount(rows.verdict, rows.size, len(VERDICTS)).astype(np.int64)
        times_us = [*self._times_us, int(rows.received_us.min()), int(rows.received_us.max())]
        self._times_us = [min(times_us), max(times_us)]

    def end_run(self) -> None:
        self._runs += 1

    def table(self) -> pa.Table:
        if not self._times_us:
            return pa.table({})
        counts = dict(zip(map(str.lower, VERDICTS), self._rows.tolist(), strict=True))
        row = {
            "rows": int(self._rows.sum()),
            **counts,
            "bytes": int(self._bytes.sum()),
            "saved_bytes": int(self._bytes[THROTTLED]),
            "from_us": self._times_us[0],
            "until_us": self._times_us[1],
            "runs": self._runs,
        }
        return pa.Table.from_pylist([row])


class OverTime(GatewayTable):
    """Rows by time step and verdict, and the delivered bytes. Steps divide those of a fleet (steps.py)."""

    name = "over_time"
    _KEYS: Final = ("time_s", "verdict")
    _AGGREGATES: Final[dict[str, str]] = {"rows": "sum", "delivered_bytes": "sum"}

    def __init__(self) -> None:
        self._width_s = 1
        self._span_us: tuple[int, int] | None = None
        self._groups = GroupedRows(self._KEYS, self._AGGREGATES)

    def add(self, rows: DeliveryColumns) -> None:
        first, last = int(rows.received_us.min()), int(rows.received_us.max())
        if self._span_us is not None:
            first, last = min(first, self._span_us[0]), max(last, self._span_us[1])
        self._span_us = first, last
        self._widen(merged_width_s((last - first) / 1e6))
        self._groups.add(
            {
                "time_s": step_of(rows.received_us // 1_000_000, self._width_s),
                "verdict": rows.verdict,
                "rows": np.ones(len(rows.verdict), np.int64),
                "delivered_bytes": _only(DELIVERED, rows.verdict, rows.size),
            }
        )

    def _widen(self, width_s: int) -> None:
        """Merge the steps into wider ones."""
        if width_s <= self._width_s:
            return
        self._width_s = width_s
        narrow = self._groups.table()
        columns = {name: narrow[name] for name in narrow.column_names}
        columns["time_s"] = step_of(narrow["time_s"].to_numpy(), width_s)
        self._groups = GroupedRows(self._KEYS, self._AGGREGATES)
        if narrow.num_rows:
            self._groups.add(columns)

    def table(self) -> pa.Table:
        found = self._groups.table()
        times, at = np.unique(found["time_s"].to_numpy(), return_inverse=True)
        counts = np.zeros((len(VERDICTS), len(times)), np.int64)
        delivered_bytes = np.zeros(len(times), np.int64)
        counts[found["verdict"].to_numpy(), at] = found["rows"].to_numpy()
        np.add.at(delivered_bytes, at, found["delivered_bytes"].to_numpy())
        return pa.table(
            {
                "time_s": times,
                "rows": counts.sum(axis=0),
                **dict(zip(map(str.lower, VERDICTS), counts, strict=True)),
                "delivered_bytes": delivered_bytes,
            }
        )


class Losses(GatewayTable):
    """Undelivered messages by verdict, code, cause, and endpoint."""

    name = "losses"

    def __init__(self, texts: Dictionary) -> None:
        self._texts = texts
        self._groups = GroupedRows(
            ("verdict", "code", "cause", "endpoint"), {"rows": "sum", "from_us": "min", "until_us": "max"}
        )

    def add(self, rows: DeliveryColumns) -> None:
        lost = np.flatnonzero((rows.verdict == EXPIRED) | (rows.verdict == DEAD_LETTERED))
        if not len(lost):
            return
        egress, received_us = rows.egress[lost], rows.received_us[lost]
        self._groups.add(
            {
                "verdict": rows.verdict[lost],
                "code": rows.codes(lost),
                "cause": self._causes(rows.reasons(lost)),
                "endpoint": np.where(egress < 0, rows.ingress[lost], egress),
                "rows": np.ones(len(lost), np.int64),
                "from_us": received_us,
                "until_us": received_us,
            }
        )

    def _causes(self, reasons: pa.DictionaryArray) -> Ints:
        known = [cause_of(text) for text in reasons.dictionary.to_pylist()]
        numbers = np.array([self._texts.number(each) for each in (*known, "no reason given")], np.int64)
        causes: Ints = numbers[reasons.indices.fill_null(len(known)).to_numpy()]
        return causes

    def table(self) -> pa.Table:
        found = self._groups.table()
        columns = {name: found[name] for name in found.column_names}
        for name in ("verdict", "cause", "endpoint"):
            columns[name] = text_array(self._texts, found[name].to_numpy())
        columns["code"] = pa.array(
            [None if code < 0 else code for code in found["code"].to_pylist()], pa.int32()
        )
        return pa.table(columns)


class Throttle(GatewayTable):
    """Published and passed messages of each target with a limit, the bytes saved, and the seconds they took."""

    name = "throttle"
    _KEYS: Final = ("source", "egress", "subscriber", "period_ns")
    _SUMS: Final = ("published", "passed", "saved_bytes")

    def __init__(self, texts: Dictionary) -> None:
        self._texts = texts
        self._totals = GroupedRows(self._KEYS, dict.fromkeys((*self._SUMS, "span_ns"), "sum"))
        self._begin_run()

    def _begin_run(self) -> None:
        times = {"first_ns": "min", "last_ns": "max"}
        self._of_run = GroupedRows(self._KEYS, {**dict.fromkeys(self._SUMS, "sum"), **times})

    def add(self, rows: DeliveryColumns) -> None:
        limited = np.flatnonzero((rows.period_ns > 0) & (rows.delivery > 0) & (rows.type == PUBLISH))
        if not len(limited):
            return
        verdict, arrived_ns = rows.verdict[limited], rows.arrived_ns[limited]
        self._of_run.add(
            {
                **{name: getattr(rows, name)[limited] for name in self._KEYS},
                "published": np.ones(len(limited), np.int64),
                "passed": (verdict != THROTTLED).astype(np.int64),
                "saved_bytes": _only(THROTTLED, verdict, rows.size[limited]),
                "first_ns": arrived_ns,
                "last_ns": arrived_ns,
            }
        )

    def end_run(self) -> None:
        """The monotonic clock belongs to a run: seconds are summed per run, then over runs."""
        found = self._of_run.table()
        span_ns = found["last_ns"].to_numpy() - found["first_ns"].to_numpy()
        if len(span_ns):
            columns = {name: found[name] for name in (*self._KEYS, *self._SUMS)}
            self._totals.add({**columns, "span_ns": span_ns})
        self._begin_run()

    def table(self) -> pa.Table:
        found = self._totals.table()
        texts = {
            name: text_array(self._texts, found[name].to_numpy())
            for name in ("source", "egress", "subscriber")
        }
        columns = {name: found[name] for name in ("period_ns", *self._SUMS)}
        return pa.table({**texts, **columns, "seconds": found["span_ns"].to_numpy() / 1e9})


class Latency(GatewayTable):
    """Percentiles of the latency and the wait of delivered messages, per link. `bins` has their counts."""

    name = "latency"

    def __init__(self, texts: Dictionary) -> None:
        self._texts = texts
        self._groups = GroupedRows(latency_bins.KEYS, latency_bins.AGGREGATES)

    def add(self, rows: DeliveryColumns) -> None:
        delivered = np.flatnonzero((rows.verdict == DELIVERED) & (rows.egress >= 0))
        if not len(delivered):
            return
        for measure, times in enumerate((rows.latency_us, rows.queue_wait_us)):
            times_us = times[delivered]
            self._groups.add(
                {
                    "egress": rows.egress[delivered],
                    "measure": np.full(len(delivered), measure, np.int64),
                    "bin": latency_bins.bin_of(times_us),
                    "rows": np.ones(len(delivered), np.int64),
                    "top_us": times_us,
                }
            )

    def bins(self) -> pa.Table:
        """The counts of bins, with the texts of links."""
        found = self._groups.table()
        links = text_array(self._texts, found["egress"].to_numpy())
        return found.set_column(0, "egress", links)

    def table(self) -> pa.Table:
        rows = list(latency_bins.percentiles(self._groups.table()))
        for row in rows:
            row["egress"] = self._texts.text(row["egress"])
        return pa.Table.from_pylist(rows)
