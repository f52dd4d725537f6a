# SPDX-License-Identifier: Apache-2.0
"""The rules that need a gateway's rows in order: subscriptions against targets, dead letters, and early expiry.

In: the rows of one gateway in order (run, received_ns, seq), and its small tables. Out: findings.

A finding is a stretch of rows with one violation, and names the first of them. Rows are compared in columns; Python
runs once for each topic, target and change of a subscription.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from ustreamer_throttle.gate import DEFAULT_TOLERANCE

from ustreamer_pipeline.gold.change_numbers import change_faults
from ustreamer_pipeline.gold.predicted_targets import (
    SLACK_NS,
    Endpoints,
    Ints,
    Periods,
    TopicSubscribers,
)
from ustreamer_pipeline.replay.gate_inputs import GateInputs
from ustreamer_pipeline.replay.replay import GatewayReplay
from ustreamer_pipeline.replay.rows import Dictionary, int_column

COLUMNS: Final = (
    *("run", "seq", "id_msb", "id_lsb", "received_us", "received_ns", "arrived_ns", "settled_ns", "ttl_ms"),
    *("delivery", "period_ns", "tuned_ns", "source", "sink", "subscriber", "ingress", "egress", "type"),
    "verdict",
    *("epoch", "size", "code"),
)
"""Columns that the rules read."""

PROMISES: Final[Mapping[str, str]] = {
    "subscribed": "every target of a publication has a subscription",
    "limit": "every target has the limit that its subscribers asked for",
    "starved": "every subscriber is a target of each message",
    "once": "no target gets one message twice",
    "lettered": "everything that expired or failed has a dead letter",
    "early": "nothing expires before its ttl",
    "segments": "no recording is missing between two of its run",
    "changes": "every change of a subscription is there, or announced as missing",
    "decided": "every limit passes the messages that a second gate passes",
}
"""The promise of each rule, by name."""

MAX_HOLD_NS: Final = 60_000_000_000
"""Rows of one message are together within its longest period, up to this one."""

DRIFT_MS: Final = 50
"""Maximum difference between the wall clock and the recorded one without an anchor (docs/recordings.md)."""

CLOCK_STEP_NS: Final = 600_000_000_000
"""Around a step of the wall clock, for this time, ages are not judged."""


def dead_letter_topic(gateway: str) -> str:
    """The topic of a gateway's dead letters."""
    return f"up://{gateway}/4/1/8000"


def change_topics(gateway: str) -> frozenset[str]:
    """The topics of a gateway that also reach entities without a subscription, which only listen on a network."""
    return frozenset(f"up://{gateway}/0/{version}/8000" for version in (3, 4))


Rows = Mapping[str, npt.NDArray[Any]]


class SmallTables(NamedTuple):
    """Rows of the small tables of one gateway."""

    subscriptions: Sequence[Mapping[str, Any]]
    dead_letters: Sequence[Mapping[str, Any]]
    gaps: Sequence[Mapping[str, Any]]
    segments: Sequence[Mapping[str, Any]]
    counters: Sequence[Mapping[str, Any]]
    leaps: Sequence[Mapping[str, Any]]


class _Example(NamedTuple):
    """The first row of a stretch: its place, and the number of its rows."""

    seq: int
    time_us: int
    arrived_ns: int
    rows: int

    def merge(self, other: "_Example") -> "_Example":
        first, second = sorted((self, other), key=lambda each: each.seq)
        return first._replace(
            rows=first.rows + second.rows, arrived_ns=min(first.arrived_ns, second.arrived_ns)
        )


class _Target(NamedTuple):
    egress: str | None
    subscriber: str | None


class _Stretch(NamedTuple):
    """Rows of one topic and target with one limit, between the same changes of subscriptions."""

    source: str
    ingress: str
    target: _Target
    period_ns: int
    first: int
    last: int


class _Reached(NamedTuple):
    """Messages of one topic that reached the same targets, between the same changes of subscriptions."""

    source: str
    ingress: str
    targets: frozenset[_Target]
    first: int
    last: int


class GatewayAudit:
    """Audits one gateway. Pass its batches in order, then call `finish` and read `findings`."""

    def __init__(self, gateway: str, tables: SmallTables, inputs: GateInputs) -> None:
        self.findings: list[dict[str, Any]] = []
        self._gateway = gateway
        self._tables = tables
        self._dictionary = Dictionary()
        self._endpoints = Endpoints()
        self._run: _RunAudit | None = None
        self._gates = GatewayReplay([], inputs.tolerances, DEFAULT_TOLERANCE, inputs.losses, inputs.cut_off)

    def feed(self, batch: pa.RecordBatch) -> None:
        """Audit the next rows."""
        self._gates.feed(batch)
        runs = int_column(batch, "run")
        cuts = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]
        for start, end in pairwise(cuts):
            if start == end:
                continue
            run = int(runs[start])
            if self._run is None or self._run.run != run:
                self._end_run()
                tables = _of_run(self._tables, run)
                self._run = _RunAudit(self._gateway, run, tables, self._dictionary, self._endpoints)
            self._run.feed(batch.slice(start, end - start))

    def finish(self) -> None:
        """The gateway has no more rows."""
        self._end_run()
        self._gates.finish()
        self.findings += [*self._missing_segments(), *self._change_faults(), *self._other_decisions()]

    def _other_decisions(self) -> Iterable[dict[str, Any]]:
        """Verdicts of limits that a replay with the recorded settings does not give (replay/gate.py)."""
        for run, delivery, time_ns, seq in self._gates.check.examples:
            subject = f"the limit of delivery {delivery} at {time_ns} ns"
            example = _Example(seq, self._began_us(run), 0, 1)
            found = f"another one, {self._gates.check.differing} of this gateway"
            yield _finding("decided", self._gateway, run, example, subject, "the verdict of a gate", found)

    def _began_us(self, run: int) -> int:
        return min((row["began_us"] for row in self._tables.segments if row["run"] == run), default=0)

    def _change_faults(self) -> Iterable[dict[str, Any]]:
        for run in sorted({row["run"] for row in self._tables.segments}):
            tables = _of_run(self._tables, run)
            for fault in change_faults(tables.segments, tables.subscriptions, tables.gaps):
                example = _Example(-1, fault.time_us, 0, 1)
                found = _finding(
                    "changes", self._gateway, run, example, "subscriptions", fault.expected, fault.found
                )
                yield found | {"seq": None}

    def _missing_segments(self) -> Iterable[dict[str, Any]]:
        """A gateway deletes its oldest recordings first, so only the first ones of a run may be missing."""
        found = {(row["run"], row["number"]): row for row in self._tables.segments}
        for before, after in pairwise(sorted(found)):
            if before[0] == after[0] and before[1] + 1 < after[1]:
                row = found[after]
                example = _Example(row["first_seq"], row["began_us"], 0, 1)
                expected = f"numbers {before[1] + 1} to {after[1] - 1}"
                yield _finding("segments", self._gateway, after[0], example, "recordings", expected, "none")

    def _end_run(self) -> None:
        if self._run is not None:
            self.findings += self._run.finish()
        self._run = None


def _of_run(tables: SmallTables, run: int) -> SmallTables:
    return SmallTables(*([row for row in rows if row["run"] == run] for rows in tables))


class _RunAudit:
    """One run: collects stretches while rows come in, and judges them at the end, when all endpoints are known."""

    def __init__(
        self, gateway: str, run: int, tables: SmallTables, dictionary: Dictionary, endpoints: Endpoints
    ) -> None:
        self.run = run
        self._gateway = gateway
        self._dictionary = dictionary
        self._endpoints = endpoints
        self._found: list[dict[str, Any]] = []
        changes = sorted(tables.subscriptions, key=lambda row: row["number"])
        # A change that is missing may have been any change: then the subscriptions are unknown.
        is_complete = [row["number"] for row in changes] == list(range(len(changes)))
        is_complete &= not any(change_faults(tables.segments, changes, tables.gaps))
        is_complete &= not any(row["changes"] is None or row["changes"] for row in tables.gaps)
        self._changes = changes if is_complete else None
        numbers = sorted({row["number"] for row in tables.segments})
        self._whole = not tables.gaps and numbers == list(range(len(numbers)))
        stopped = any(row["end"] == "STOPPED" for row in tables.segments)
        self._emptied = stopped and any(row["final"] and not row["queued"] for row in tables.counters)
        self._letters = np.array(sorted({row["seq"] for row in tables.dead_letters}), dtype=np.int64)
        self._leaps_ns = [row["time_ns"] for row in tables.leaps]
        self._own_letters = dead_letter_topic(gateway)
        self._broadcast = change_topics(gateway)
        self._topics: dict[str, TopicSubscribers] = {}
        self._multicast: dict[str, bool] = {}
        self._stretches: dict[_Stretch, _Example] = {}
        self._reached: dict[_Reached, _Example] = {}
        self._last_delivered: dict[tuple[str, str, _Target], int] = {}
        self._waiting: dict[str, npt.NDArray[Any]] | None = None
        self._hold_ns = SLACK_NS
        self._last_seq = -1

    # --- in -------------------------------------------------------------------------------------------------

    def feed(self, batch: pa.RecordBatch) -> None:
        rows: dict[str, npt.NDArray[Any]] = {
            name: int_column(batch, name, -1) for name in COLUMNS if name not in _TEXTS
        }
        rows |= {name: self._dictionary.codes(batch.column(name)) for name in _TEXTS}
        self._last_seq = max(self._last_seq, int(rows["seq"].max()))
        self._check_letters(rows)
        self._check_expiry(rows)
        self._learn_endpoints(rows)
        published = rows["type"] == self._dictionary.number("PUBLISH")
        # A message that was denied, expired or failed on arrival had no targets.
        published &= (rows["delivery"] > 0) | (rows["verdict"] == self._dictionary.number("NO_SUBSCRIBER"))
        published &= ~_from_disk(rows)
        chosen = _take(rows, np.flatnonzero(published))
        self._hold_ns = min(
            max(self._hold_ns, int(chosen["period_ns"].max(initial=0)) + SLACK_NS), MAX_HOLD_NS
        )
        self._collect_stretches(chosen)
        if self._waiting is not None:
            chosen = {name: np.concatenate([self._waiting[name], chosen[name]]) for name in chosen}
        border = int(rows["received_ns"][-1]) - self._hold_ns
        self._waiting = self._collect_messages(chosen, border)

    def _text(self, code: Any) -> str:
        text = self._dictionary.text(int(code))
        assert text is not None
        return text

    def _subscribers(self, source: str) -> TopicSubscribers:
        if source not in self._topics:
            self._topics[source] = TopicSubscribers(source, self._changes or ())
        return self._topics[source]

    def _learn_endpoints(self, rows: Rows) -> None:
        """A target shows its subscriber or sink behind its egress, an accepted message its source behind its ingress."""
        number = self._dictionary.number
        for name in ("subscriber", "sink"):
            named = (rows["delivery"] > 0) & (rows[name] >= 0)
            for egress, entity in _distinct(rows, named, "egress", name):
                self._endpoints.add(self._text(entity), self._text(egress))
        sent = (rows["type"] == number("PUBLISH")) | (rows["type"] == number("REQUEST"))
        sent &= rows["verdict"] != number("DENIED")
        for ingress, source in _distinct(rows, sent, "ingress", "source"):
            self._endpoints.add(self._text(source), self._text(ingress))
        topics = (rows["delivery"] > 0) & (rows["type"] == number("PUBLISH"))
        for egress, subscriber in _distinct(rows, topics, "egress", "subscriber"):
            self._multicast[self._text(egress)] = subscriber < 0

    def _collect_stretches(self, rows: Rows) -> None:
        number = self._dictionary.number("DELIVERED")
        for source, here in _by_source(rows):
            first, last = self._changes_around(source, here["arrived_ns"], here["received_ns"])
            columns = [here[name] for name in ("ingress", "egress", "subscriber", "period_ns")]
            key = np.stack([*columns, first, last]).astype(np.int64)
            for at, example in _groups(key, here):
                ingress, egress, subscriber, period_ns, from_change, to_change = key[:, at].tolist()
                names = self._text(source), self._text(ingress), self._target(egress, subscriber)
                stretch = _Stretch(*names, period_ns, from_change, to_change)
                known = self._stretches.get(stretch)
                self._stretches[stretch] = example if known is None else known.merge(example)
            # Rows are in order: the last one of each target.
            delivered = np.flatnonzero(here["verdict"] == number)[::-1]
            _, last_of = np.unique(key[:3, delivered], axis=1, return_index=True)
            for at in delivered[last_of].tolist():
                ingress, egress, subscriber = key[:3, at].tolist()
                place = self._text(source), self._text(ingress), self._target(egress, subscriber)
                self._last_delivered[place] = int(here["arrived_ns"][at])

    def _changes_around(self, source: int, from_ns: Ints, until_ns: Ints) -> tuple[Ints, Ints]:
        """Least and greatest number of changes of the topic's subscriptions that may be in effect in these times."""
        subscribers = self._subscribers(self._text(source))
        first = np.searchsorted(subscribers.surely_ns, from_ns, side="right")
        return first, np.searchsorted(subscribers.perhaps_ns, until_ns, side="right")

    def _target(self, egress: int, subscriber: int) -> _Target:
        return _Target(self._dictionary.text(egress), self._dictionary.text(subscriber))

    def _collect_messages(self, rows: Rows, border_ns: int) -> dict[str, npt.NDArray[Any]]:
        """Group rows by message. Returns the rows of messages that arrived after `border_ns`: more may follow."""
        if not len(rows["seq"]):
            return dict(rows)
        order = np.lexsort((rows["seq"], rows["id_msb"], rows["id_lsb"], rows["ingress"], rows["source"]))
        rows = _take(rows, order)
        starts, number = _messages(rows)
        ready = (np.minimum.reduceat(rows["arrived_ns"], starts) < border_ns)[number]
        self._collect_reached(_take(rows, np.flatnonzero(ready)))
        return _take(rows, np.flatnonzero(~ready))

    def _collect_reached(self, rows: Rows) -> None:
        """Rows of whole messages, in order of messages."""
        if not len(rows["seq"]):
            return
        starts, number = _messages(rows)
        key = np.stack([rows["egress"], rows["subscriber"]]).astype(np.int64)
        distinct, place = np.unique(key, axis=1, return_inverse=True)
        targets, place = [self._target(*each) for each in distinct.T.tolist()], place.reshape(-1)
        self._check_once(rows, number, place, targets)
        # Each target is a random number, and a set of targets is their sum.
        weights = np.random.default_rng(0).integers(1, 1 << 62, len(targets), dtype=np.int64)
        heads = _take(rows, starts) | {
            "arrived_ns": np.minimum.reduceat(rows["arrived_ns"], starts),
            "targets": np.add.reduceat(weights[place], starts),
            "start": starts,
            "end": np.append(starts[1:], len(place)),
        }
        for source, here in _by_source(heads):
            first, last = self._changes_around(source, here["arrived_ns"], here["arrived_ns"])
            columns = np.stack([here["ingress"], here["targets"], first, last]).astype(np.int64)
            for at, example in _groups(columns, here):
                reached = frozenset(targets[each] for each in place[here["start"][at] : here["end"][at]])
                names = self._text(source), self._text(here["ingress"][at])
                found = _Reached(*names, reached, int(first[at]), int(last[at]))
                known = self._reached.get(found)
                self._reached[found] = example if known is None else known.merge(example)

    # --- rules on rows --------------------------------------------------------------------------------------

    def _check_once(self, rows: Rows, message: Ints, target: Ints, targets: Sequence[_Target]) -> None:
        """A message has one row for each target. A message that came in twice has two times of arrival."""
        key = np.stack([message, target, rows["arrived_ns"]])
        _, first, counts = np.unique(key, axis=1, return_index=True, return_counts=True)
        for at in first[counts > 1].tolist():
            subject = f"{self._text(rows['source'][at])} -> {targets[target[at]].egress}"
            example = _Example(int(rows["seq"][at]), int(rows["received_us"][at]), 0, 1)
            self._add("once", example, subject, "one row of a message for a target", "two")

    def _check_letters(self, rows: Rows) -> None:
        number = self._dictionary.number
        failed = (rows["verdict"] == number("EXPIRED")) | (rows["verdict"] == number("DEAD_LETTERED"))
        failed &= rows["source"] != number(self._own_letters)  # a dead letter has no dead letter
        failed &= ~np.isin(rows["seq"], self._letters)
        for at in np.flatnonzero(failed).tolist() if self._whole else ():
            example = _Example(int(rows["seq"][at]), int(rows["received_us"][at]), 0, 1)
            verdict = self._text(rows["verdict"][at])
            self._add(
                "lettered", example, self._text(rows["source"][at]), f"a dead letter of {verdict}", "none"
            )

    def _check_expiry(self, rows: Rows) -> None:
        """A message expires at the earliest `ttl` after it was made; made in the future counts as made on arrival."""
        expired = (rows["verdict"] == self._dictionary.number("EXPIRED")) & (rows["ttl_ms"] > 0)
        late = np.flatnonzero(expired & ~_from_disk(rows))
        if not len(late):
            return
        here = _take(rows, late)
        arrived_ms = here["received_us"] // 1_000 - (here["received_ns"] - here["arrived_ns"]) // 1_000_000
        made_ms = np.minimum(here["id_msb"].view(np.uint64) >> np.uint64(16), arrived_ms.astype(np.uint64))
        settled_ms = arrived_ms + (here["settled_ns"] - here["arrived_ns"]) // 1_000_000
        age_ms = settled_ms - made_ms.astype(np.int64)
        early = age_ms + DRIFT_MS < here["ttl_ms"]
        for leap_ns in self._leaps_ns:
            early &= np.abs(here["settled_ns"] - leap_ns) > CLOCK_STEP_NS
        for at in np.flatnonzero(early).tolist():
            example = _Example(int(here["seq"][at]), int(here["received_us"][at]), 0, 1)
            expected = f"not before its age is {here['ttl_ms'][at]} ms"
            self._add(
                "early", example, self._text(here["source"][at]), expected, f"expired at {age_ms[at]} ms"
            )

    # --- out ------------------------------------------------------------------------------------------------

    def finish(self) -> list[dict[str, Any]]:
        if self._waiting is not None:
            self._collect_reached(self._waiting)
        if not self._emptied:  # the last row may have lost its letter with the end of the file
            self._found = [
                each for each in self._found if each["rule"] != "lettered" or each["seq"] != self._last_seq
            ]
        if self._changes is not None:
            for stretch, example in self._stretches.items():
                self._judge_stretch(stretch, example)
            for reached, example in self._reached.items():
                self._judge_reached(reached, example)
        return self._found

    def _judge_stretch(self, stretch: _Stretch, example: _Example) -> None:
        """A target needs a subscription that leads to it, with the period that was asked for there."""
        egress, subscriber = stretch.target
        if egress is None:
            return  # a message without targets: `starved`
        subject = f"{stretch.source} -> {egress}{'' if subscriber is None else f' {subscriber}'}"
        allowed: set[int] = set()
        for periods in self._subscribers(stretch.source).between(stretch.first, stretch.last):
            allowed |= self._periods_of_target(periods, stretch.target)
        if subscriber is None and stretch.source in self._broadcast:
            allowed.add(0)
        if not allowed:
            self._add("subscribed", example, subject, "a subscription", f"none, {example.rows} messages")
        elif stretch.period_ns not in allowed:
            expected = " or ".join(f"{each} ns" for each in sorted(allowed))
            self._add("limit", example, subject, f"period {expected}", f"{stretch.period_ns} ns")

    def _periods_of_target(self, periods: Periods, target: _Target) -> set[int]:
        """Periods that the target may have, by these subscriptions; none without a subscription."""
        if target.subscriber is not None:
            return {periods[target.subscriber]} if target.subscriber in periods else set()
        surely = [each for name, each in periods.items() if self._endpoints.find(name) == target.egress]
        perhaps = [each for name, each in periods.items() if self._endpoints.find(name) is None]
        known = {min(surely)} if surely else set()
        return known | {each for each in perhaps if not surely or each < min(surely)}

    def _judge_reached(self, reached: _Reached, example: _Example) -> None:
        """Every subscriber behind another endpoint is reached, by the targets before or after a close change."""
        if not self._whole:
            return
        missing: list[set[_Target]] = []
        for periods in self._subscribers(reached.source).between(reached.first, reached.last):
            predicted = {self._target_of(name, reached.ingress) for name in periods} - {None}
            missing.append({each for each in predicted if each is not None} - reached.targets)
        if not all(missing):
            return
        for target in sorted(set.intersection(*missing), key=str):
            place = reached.source, reached.ingress, target
            without_targets = reached.targets == {_Target(None, None)}
            queued = not self._emptied and example.arrived_ns >= self._last_delivered.get(place, 0)
            if queued and not without_targets:
                continue  # still in the queue at the end
            subject = f"{reached.source} -> {target.egress}"
            subject += "" if target.subscriber is None else f" {target.subscriber}"
            found = "no subscriber" if without_targets else "other targets only"
            self._add(
                "starved", example, subject, "a row for this subscriber", f"{found}, {example.rows} messages"
            )

    def _target_of(self, subscriber: str, ingress: str) -> _Target | None:
        """The target of a subscriber; None if its endpoint is unknown, or is the ingress."""
        endpoint = self._endpoints.find(subscriber)
        if endpoint is None or endpoint == ingress or endpoint not in self._multicast:
            return None
        return _Target(endpoint, None if self._multicast[endpoint] else subscriber)

    def _add(self, rule: str, example: _Example, subject: str, expected: str, found: str) -> None:
        self._found.append(_finding(rule, self._gateway, self.run, example, subject, expected, found))


def _finding(
    rule: str, gateway: str, run: int, example: _Example, subject: str, expected: str, found: str
) -> dict[str, Any]:
    return {
        "rule": rule,
        "gateway": gateway,
        "run": run,
        "seq": example.seq,
        "time_us": example.time_us,
        "subject": subject,
        "expected": expected,
        "found": found,
    }


_TEXTS: Final = ("source", "sink", "subscriber", "ingress", "egress", "type", "verdict")


def _from_disk(rows: Rows) -> npt.NDArray[np.bool_]:
    """Messages that an earlier run accepted and kept: their targets never got a limit, or the lack of one."""
    kept: npt.NDArray[np.bool_] = (rows["delivery"] > 0) & (rows["tuned_ns"] == 0)
    return kept


def _take(rows: Rows, where: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    return {name: column[where] for name, column in rows.items()}


def _messages(rows: Rows) -> tuple[Ints, Ints]:
    """Start of each message, and the message of each row. Rows of a message are together."""
    new = np.ones(len(rows["seq"]), dtype=np.bool_)
    new[1:] = False
    for name in ("id_msb", "id_lsb", "ingress", "source"):
        new[1:] |= rows[name][1:] != rows[name][:-1]
    return np.flatnonzero(new), np.cumsum(new) - 1


def _by_source(rows: Rows) -> Iterable[tuple[int, dict[str, npt.NDArray[Any]]]]:
    """The rows of each source, in their order."""
    order = np.argsort(rows["source"], kind="stable")
    sources, starts = np.unique(rows["source"][order], return_index=True)
    for source, (start, end) in zip(sources.tolist(), pairwise([*starts, len(order)]), strict=True):
        yield source, _take(rows, order[start:end])


def _distinct(rows: Rows, where: npt.NDArray[np.bool_], *names: str) -> Iterable[list[int]]:
    """Distinct values of these columns in the chosen rows."""
    if not where.any():
        return []
    values = np.stack([rows[name][where] for name in names]).astype(np.int64)
    found: list[list[int]] = np.unique(values, axis=1).T.tolist()
    return found


def _groups(key: Ints, rows: Rows) -> Iterable[tuple[int, _Example]]:
    """Rows with equal columns of `key`: the position of the first by seq, and the example of the group."""
    if not key.shape[1]:
        return
    order = np.lexsort((rows["seq"], *key))
    ordered = key[:, order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    starts = np.flatnonzero(new)
    counts = np.diff(starts, append=len(order))
    arrived = np.minimum.reduceat(rows["arrived_ns"][order], starts)
    for start, count, first in zip(starts.tolist(), counts.tolist(), arrived.tolist(), strict=True):
        at = int(order[start])
        yield at, _Example(int(rows["seq"][at]), int(rows["received_us"][at]), first, count)
