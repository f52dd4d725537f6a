# SPDX-License-Identifier: Apache-2.0
"""The audit of one gateway: all rules in one pass over its rows in order.

In: rows of its small tables, and batches of its deliveries in order (run, received_ns, seq). Out: findings.

Memory: a batch, the state of the rules, and the findings of a batch. A rule that found something suspicious may read
the rows again (rules/run.py).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa
from ustreamer_throttle.gate import MAX_TOLERANCE

from ustreamer_pipeline.columns import Dictionary
from ustreamer_pipeline.gold.predicted_targets import Endpoints
from ustreamer_pipeline.gold.rules import PROMISES, RUN_RULES
from ustreamer_pipeline.gold.rules.decisions import Decisions
from ustreamer_pipeline.gold.rules.run import BatchColumns, Finding, Row, RunRows, RunRule, RunTables
from ustreamer_pipeline.groups import starts_of_equal, stretches
from ustreamer_pipeline.replay.gate_inputs import gate_inputs, settings_fault
from ustreamer_pipeline.replay.order import Span
from ustreamer_pipeline.replay.target_replay import ThrottleSettings
from ustreamer_pipeline.schemas import COUNTERS, DEAD_LETTERS, EPOCHS, GAPS, LEAPS, SEGMENTS, SUBSCRIPTIONS

Read = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Reads these columns of the deliveries of a gateway, in order."""

_SMALL_TABLES: Final = (SUBSCRIPTIONS, DEAD_LETTERS, GAPS, SEGMENTS, COUNTERS, EPOCHS, LEAPS)
_TABLES: Final = tuple(table.name for table in _SMALL_TABLES)
"""Fields of `RunTables` with the same names."""


def audit_gateway(
    gateway: str,
    events: Sequence[Row],
    read: Read,
    rules: Collection[str] = tuple(PROMISES),
    since: str = "",
    unread: Sequence[Span] = (),
) -> Iterator[list[Finding]]:
    """Findings of these rules about one gateway, in parts. `events` are rows of its small tables.

    Rows before the date `since` are not read; empty: no limit. `unread` are the files that are not read.
    """
    audit = _GatewayAudit(gateway, events, rules, since, unread)
    columns = audit.columns
    for batch in read(columns) if columns else ():
        yield audit.feed(batch)
    yield audit.end()
    if audit.columns_again:
        for batch in read(audit.columns_again):
            yield audit.feed_again(batch)
        yield audit.end_again()


class _GatewayAudit:
    """Audits one gateway: `feed` and `end`, then `feed_again` and `end_again` if there are columns to read again."""

    def __init__(
        self,
        gateway: str,
        events: Sequence[Row],
        rules: Collection[str],
        since: str,
        unread: Sequence[Span],
    ) -> None:
        self._gateway = gateway
        self._rules = frozenset(rules)
        self._chosen = [rule for rule in RUN_RULES if not self._rules.isdisjoint(rule.PROMISES)]
        self._tables = _by_run(events)
        self._unread = unread
        self._began_us = {
            run: min(row["began_us"] for row in tables[SEGMENTS.name])
            for run, tables in self._tables.items()
            if tables[SEGMENTS.name]
        }
        epochs = [row for row in events if row["table"] == EPOCHS.name]
        invalid = [row for row in epochs if settings_fault(row) is not None]
        others = (row for row in events if row["table"] != EPOCHS.name)
        valid = (row for row in epochs if settings_fault(row) is None)
        self._inputs = gate_inputs(gateway, chain(others, valid), since)
        self._settings: dict[int, dict[int, ThrottleSettings | float | None]] = {}
        for (run, epoch), settings in self._inputs.tolerances.items():
            self._settings.setdefault(run, {})[epoch] = settings
        for row in invalid:
            self._settings.setdefault(row["run"], {})[row["epoch"]] = MAX_TOLERANCE
        self._decisions: Decisions | None = None
        if not self._rules.isdisjoint(Decisions.PROMISES):
            unjudged = {row["run"] for row in invalid}
            self._decisions = Decisions(gateway, self._began_us, self._inputs, unread, unjudged)
        self._dictionary, self._endpoints = Dictionary(), Endpoints()
        self._run: tuple[int, list[RunRule]] | None = None
        self._ended: set[int] = set()
        self._again: dict[int, list[RunRule]] = {}

    @property
    def columns(self) -> list[str]:
        """Columns to read, each once."""
        names = dict.fromkeys(chain.from_iterable(rule.COLUMNS for rule in self._chosen))
        if self._decisions is not None:
            names |= dict.fromkeys(Decisions.COLUMNS)
        return list(dict.fromkeys(["run", *names])) if names else []

    @property
    def columns_again(self) -> list[str]:
        """Columns to read once more; none after a pass without suspicion."""
        rules = chain.from_iterable(self._again.values())
        names = dict.fromkeys(chain.from_iterable(rule.COLUMNS for rule in rules))
        return ["run", *names] if names else []

    def feed(self, batch: pa.RecordBatch) -> list[Finding]:
        """Check the next rows. Returns findings."""
        if self._decisions is not None:
            self._decisions.feed(batch)
        found: list[Finding] = []
        for run, rows in self._split_by_run(batch):
            if self._run is None or self._run[0] != run:
                found += self._end_run()
                self._run = run, self._begin_run(run)
            for rule in self._run[1]:
                rule.feed(rows)
                found += rule.take()
        return self._of_rules(found)

    def end(self) -> list[Finding]:
        """The gateway has no more rows. Returns findings, among them those about runs without rows."""
        found = self._end_run()
        for run in sorted(self._tables.keys() - self._ended):
            self._run = run, self._begin_run(run)
            found += self._end_run()
        if self._decisions is not None:
            found += self._decisions.end()
        return self._of_rules(found)

    def feed_again(self, batch: pa.RecordBatch) -> list[Finding]:
        """Check the next rows of the second read. Returns findings."""
        found: list[Finding] = []
        for run, rows in self._split_by_run(batch):
            for rule in self._again.get(run, ()):
                rule.feed_again(rows)
                found += rule.take()
        return self._of_rules(found)

    def end_again(self) -> list[Finding]:
        """The second read is complete. Returns findings."""
        found: list[Finding] = []
        for rule in chain.from_iterable(self._again.values()):
            rule.end_again()
            found += rule.take()
        return self._of_rules(found)

    def _split_by_run(self, batch: pa.RecordBatch) -> Iterator[tuple[int, RunRows]]:
        columns = BatchColumns(batch, self._dictionary)
        runs = columns["run"]
        for start, end in stretches(starts_of_equal(runs), len(runs)) if len(runs) else ():
            yield int(runs[start]), RunRows(columns, start, end)

    def _begin_run(self, run: int) -> list[RunRule]:
        tables = RunTables(
            self._gateway,
            run,
            **self._tables.get(run, {}),
            settings=self._settings.get(run, {}),
            unread_ns=[times for each in self._unread if (times := each.times_of(run))],
            dictionary=self._dictionary,
            endpoints=self._endpoints,
        )
        return [rule(tables) for rule in self._chosen]

    def _end_run(self) -> list[Finding]:
        found: list[Finding] = []
        if self._run is not None:
            run, rules = self._run
            for rule in rules:
                rule.end()
                found += rule.take()
            self._ended.add(run)
            again = [rule for rule in rules if rule.reads_again]
            if again:
                self._again[run] = again
        self._run = None
        return found

    def _of_rules(self, found: Iterable[Finding]) -> list[Finding]:
        return [each for each in found if each["rule"] in self._rules]


def _by_run(events: Iterable[Row]) -> dict[int, dict[str, list[Row]]]:
    """Rows of the tables of `RunTables`, by run and table."""
    found: dict[int, dict[str, list[Row]]] = {}
    for row in events:
        if row["table"] in _TABLES:
            run = found.setdefault(row["run"], {name: [] for name in _TABLES})
            run[row["table"]].append(row)
    return found
