# SPDX-License-Identifier: Apache-2.0
"""Rules on subscriptions against targets: `subscribed`, `limit`, `starved`, `once`.

A finding is a stretch of rows with one violation, and names the first of them. Rows are compared in columns; Python
runs once for each topic, target and change of a subscription.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.gold.change_numbers import change_faults
from ustreamer_pipeline.gold.predicted_targets import SLACK_NS, Periods, TopicSubscribers
from ustreamer_pipeline.gold.rules.expiry import is_from_disk
from ustreamer_pipeline.gold.rules.run import Columns, Row, RunRows, RunRule, RunTables, take_rows
from ustreamer_pipeline.groups import Groups, distinct, starts_of_equal, stretches
from ustreamer_pipeline.replay.rows import Ints

MAX_HOLD_NS: Final = 60_000_000_000
"""Rows of one message are together within its longest period, up to this one."""


def change_topics(gateway: str) -> frozenset[str]:
    """The topics of a gateway that also reach entities without a subscription, which only listen on a network."""
    return frozenset(f"up://{gateway}/0/{version}/8000" for version in (3, 4))


class _Example(NamedTuple):
    """The first row of a stretch: its place, and the number of its rows."""

    seq: int
    time_us: int
    arrived_ns: int
    rows: int

    def merge(self, other: "_Example") -> "_Example":
        """The example of both stretches together."""
        first, second = sorted((self, other), key=lambda each: each.seq)
        return first._replace(
            rows=first.rows + second.rows, arrived_ns=min(first.arrived_ns, second.arrived_ns)
        )


class _Target(NamedTuple):
    """Where a message goes: `subscriber` is None in a multicast domain, both are None without a target."""

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


class PublicationTargets(RunRule):
    """Every target of a publication has a subscription, with the limit that its subscribers asked for; every subscriber
    is a target of each message, and gets it once.

    Stretches are collected while rows come in, and judged at the end, when the endpoints of all entities are known.
    """

    PROMISES: ClassVar = {
        "subscribed": "every target of a publication has a subscription",
        "limit": "every target has the limit that its subscribers asked for",
        "starved": "every subscriber is a target of each message",
        "once": "no target gets one message twice",
    }
    COLUMNS = (
        *("seq", "id_msb", "id_lsb", "received_us", "received_ns", "arrived_ns", "delivery", "period_ns"),
        *("tuned_ns", "source", "sink", "subscriber", "ingress", "egress", "type", "verdict"),
    )
    _OF_MESSAGES = (
        *("seq", "id_msb", "id_lsb", "received_us", "received_ns", "arrived_ns", "period_ns"),
        *("source", "ingress", "egress", "subscriber", "verdict"),
    )

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._changes = _known_changes(run)
        self._is_whole, self._is_emptied = run.is_whole, run.is_emptied
        self._broadcast = change_topics(run.gateway)
        self._topics: dict[str, TopicSubscribers] = {}
        self._multicast: dict[str, bool] = {}
        self._stretches: dict[_Stretch, _Example] = {}
        self._reached: dict[_Reached, _Example] = {}
        self._last_delivered: dict[tuple[str, str, _Target], int] = {}
        self._waiting: dict[str, npt.NDArray[Any]] | None = None
        self._hold_ns = SLACK_NS

    # --- in -------------------------------------------------------------------------------------------------

    def feed(self, rows: RunRows) -> None:
        self._learn_endpoints(rows)
        # A message that was denied, expired or failed on arrival had no targets.
        published = (rows["delivery"] > 0) | rows.is_verdict("NO_SUBSCRIBER")
        published &= rows.is_type("PUBLISH") & ~is_from_disk(rows)
        chosen = take_rows({name: rows[name] for name in self._OF_MESSAGES}, np.flatnonzero(published))
        self._hold_ns = min(
            max(self._hold_ns, int(chosen["period_ns"].max(initial=0)) + SLACK_NS), MAX_HOLD_NS
        )
        self._collect_stretches(chosen, rows.number("DELIVERED"))
        if self._waiting is not None:
            chosen = {name: np.concatenate([self._waiting[name], chosen[name]]) for name in chosen}
        border = int(rows["received_ns"][-1]) - self._hold_ns
        self._waiting = self._collect_messages(chosen, border)

    def _text(self, code: Any) -> str:
        text = self.run.dictionary.text(int(code))
        assert text is not None
        return text

    def _subscribers(self, source: str) -> TopicSubscribers:
        if source not in self._topics:
            self._topics[source] = TopicSubscribers(source, self._changes or ())
        return self._topics[source]

    def _learn_endpoints(self, rows: RunRows) -> None:
        """A target shows its subscriber or sink behind its egress, an accepted message its source behind its ingress."""
        has_target = rows["delivery"] > 0
        for name in ("subscriber", "sink"):
            for egress, entity in _distinct(rows, has_target & (rows[name] >= 0), "egress", name):
                self.run.endpoints.add(self._text(entity), self._text(egress))
        sent = (rows.is_type("PUBLISH") | rows.is_type("REQUEST")) & ~rows.is_verdict("DENIED")
        for ingress, source in _distinct(rows, sent, "ingress", "source"):
            self.run.endpoints.add(self._text(source), self._text(ingress))
        for egress, subscriber in _distinct(
            rows, has_target & rows.is_type("PUBLISH"), "egress", "subscriber"
        ):
            self._multicast[self._text(egress)] = subscriber < 0

    def _collect_stretches(self, rows: Columns, delivered_code: int) -> None:
        for source, here in _by_source(rows):
            first, last = self._changes_around(source, here["arrived_ns"], here["received_ns"])
            columns = [here[name] for name in ("ingress", "egress", "subscriber", "period_ns")]
            for key, _, example in _groups([*columns, first, last], here):
                ingress, egress, subscriber, period_ns, from_change, to_change = key
                names = self._text(source), self._text(ingress), self._target(egress, subscriber)
                stretch = _Stretch(*names, period_ns, from_change, to_change)
                known = self._stretches.get(stretch)
                self._stretches[stretch] = example if known is None else known.merge(example)
            # Rows are in order: the last one of each target.
            delivered = np.flatnonzero(here["verdict"] == delivered_code)
            groups = Groups()
            number = groups.numbers([each[delivered] for each in columns[:3]])
            last_of = np.zeros(len(groups), dtype=np.int64)
            last_of[number] = delivered
            for (ingress, egress, subscriber), at in zip(groups.combinations, last_of.tolist(), strict=True):
                place = self._text(source), self._text(ingress), self._target(egress, subscriber)
                self._last_delivered[place] = int(here["arrived_ns"][at])

    def _changes_around(self, source: int, from_ns: Ints, until_ns: Ints) -> tuple[Ints, Ints]:
        """Least and greatest number of changes of the topic's subscriptions that may be in effect in these times."""
        subscribers = self._subscribers(self._text(source))
        first = np.searchsorted(subscribers.surely_ns, from_ns, side="right")
        return first, np.searchsorted(subscribers.perhaps_ns, until_ns, side="right")

    def _target(self, egress: int, subscriber: int) -> _Target:
        return _Target(self.run.dictionary.text(egress), self.run.dictionary.text(subscriber))

    def _collect_messages(self, rows: Columns, border_ns: int) -> dict[str, npt.NDArray[Any]]:
        """Group rows by message. Returns the rows of messages that arrived after `border_ns`: more may follow."""
        if not len(rows["seq"]):
            return dict(rows)
        order = np.lexsort((rows["seq"], rows["id_msb"], rows["id_lsb"], rows["ingress"], rows["source"]))
        rows = take_rows(rows, order)
        starts, number = _messages(rows)
        ready = (np.minimum.reduceat(rows["arrived_ns"], starts) < border_ns)[number]
        self._collect_reached(take_rows(rows, np.flatnonzero(ready)))
        return take_rows(rows, np.flatnonzero(~ready))

    def _collect_reached(self, rows: Columns) -> None:
        """Rows of whole messages, in order of messages."""
        if not len(rows["seq"]):
            return
        starts, number = _messages(rows)
        groups = Groups()
        place = groups.numbers([rows["egress"], rows["subscriber"]])
        targets = [self._target(egress, subscriber) for egress, subscriber in groups.combinations]
        self._check_once(rows, number, place, targets)
        # Each target is a random number, and a set of targets is their sum.
        weights = np.random.default_rng(0).integers(1, 1 << 62, len(targets), dtype=np.int64)
        heads = take_rows(rows, starts) | {
            "arrived_ns": np.minimum.reduceat(rows["arrived_ns"], starts),
            "targets": np.add.reduceat(weights[place], starts),
            "start": starts,
            "end": np.append(starts[1:], len(place)),
        }
        for source, here in _by_source(heads):
            first, last = self._changes_around(source, here["arrived_ns"], here["arrived_ns"])
            for _, at, example in _groups([here["ingress"], here["targets"], first, last], here):
                reached = frozenset(targets[each] for each in place[here["start"][at] : here["end"][at]])
                names = self._text(source), self._text(here["ingress"][at])
                found = _Reached(*names, reached, int(first[at]), int(last[at]))
                known = self._reached.get(found)
                self._reached[found] = example if known is None else known.merge(example)

    # --- rules on rows --------------------------------------------------------------------------------------

    def _check_once(self, rows: Columns, message: Ints, target: Ints, targets: Sequence[_Target]) -> None:
        """A message has one row for each target. A message that came in twice has two times of arrival."""
        key = message * len(targets) + target
        order = np.argsort(key, kind="stable")
        again = order[1:][key[order][1:] == key[order][:-1]]
        suspicious = np.flatnonzero(np.isin(key, key[again])) if len(again) else again
        rows_of: dict[tuple[int, int], list[int]] = {}
        for at in suspicious.tolist():
            rows_of.setdefault((int(key[at]), int(rows["arrived_ns"][at])), []).append(at)
        for at in (same[0] for same in rows_of.values() if len(same) > 1):
            subject = f"{self._text(rows['source'][at])} -> {targets[target[at]].egress}"
            place = int(rows["seq"][at]), int(rows["received_us"][at])
            self._add("once", *place, subject, "one row of a message for a target", "two")

    # --- out ------------------------------------------------------------------------------------------------

    def end(self) -> None:
        if self._waiting is not None:
            self._collect_reached(self._waiting)
        if self._changes is not None:
            for stretch, example in self._stretches.items():
                self._judge_stretch(stretch, example)
            for reached, example in self._reached.items():
                self._judge_reached(reached, example)

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
            self._add_stretch(
                "subscribed", example, subject, "a subscription", f"none, {example.rows} messages"
            )
        elif stretch.period_ns not in allowed:
            expected = " or ".join(f"{each} ns" for each in sorted(allowed))
            self._add_stretch("limit", example, subject, f"period {expected}", f"{stretch.period_ns} ns")

    def _periods_of_target(self, periods: Periods, target: _Target) -> set[int]:
        """Periods that the target may have, by these subscriptions; none without a subscription."""
        if target.subscriber is not None:
            return {periods[target.subscriber]} if target.subscriber in periods else set()
        surely = [each for name, each in periods.items() if self.run.endpoints.find(name) == target.egress]
        perhaps = [each for name, each in periods.items() if self.run.endpoints.find(name) is None]
        known = {min(surely)} if surely else set()
        return known | {each for each in perhaps if not surely or each < min(surely)}

    def _judge_reached(self, reached: _Reached, example: _Example) -> None:
        """Every subscriber behind another endpoint is reached, by the targets before or after a close change."""
        if not self._is_whole:
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
            queued = not self._is_emptied and example.arrived_ns >= self._last_delivered.get(place, 0)
            if queued and not without_targets:
                continue  # still in the queue at the end
            subject = f"{reached.source} -> {target.egress}"
            subject += "" if target.subscriber is None else f" {target.subscriber}"
            found = "no subscriber" if without_targets else "other targets only"
            self._add_stretch(
                "starved", example, subject, "a row for this subscriber", f"{found}, {example.rows} messages"
            )

    def _target_of(self, subscriber: str, ingress: str) -> _Target | None:
        """The target of a subscriber; None if its endpoint is unknown, or is the ingress."""
        endpoint = self.run.endpoints.find(subscriber)
        if endpoint is None or endpoint == ingress or endpoint not in self._multicast:
            return None
        return _Target(endpoint, None if self._multicast[endpoint] else subscriber)

    def _add_stretch(self, rule: str, example: _Example, subject: str, expected: str, found: str) -> None:
        self._add(rule, example.seq, example.time_us, subject, expected, found)


def _known_changes(run: RunTables) -> Sequence[Row] | None:
    """The changes of subscriptions in order. None after a missing change, which may have been any change."""
    if not run.segments:
        return None
    changes = sorted(run.subscriptions, key=lambda row: row["number"])
    is_complete = [row["number"] for row in changes] == list(range(len(changes)))
    is_complete &= not any(change_faults(run.segments, changes, run.gaps))
    is_complete &= not any(row["changes"] is None or row["changes"] for row in run.gaps)
    return changes if is_complete else None


def _messages(rows: Columns) -> tuple[Ints, Ints]:
    """Start of each message, and the message of each row. Rows of a message are together."""
    starts = starts_of_equal(*(rows[name] for name in ("id_msb", "id_lsb", "ingress", "source")))
    return starts, np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows["seq"])))


def _by_source(rows: Columns) -> Iterable[tuple[int, dict[str, npt.NDArray[Any]]]]:
    """The rows of each source, in their order."""
    order = np.argsort(rows["source"], kind="stable")
    sources = rows["source"][order]
    for start, end in stretches(starts_of_equal(sources), len(order)):
        yield int(sources[start]), take_rows(rows, order[start:end])


def _distinct(rows: RunRows, where: npt.NDArray[np.bool_], *names: str) -> Iterable[tuple[int, ...]]:
    """Distinct values of these columns in the chosen rows."""
    at = np.flatnonzero(where)
    return distinct([rows[name][at] for name in names])


def _groups(
    columns: Sequence[npt.NDArray[Any]], rows: Columns
) -> Iterable[tuple[tuple[int, ...], int, _Example]]:
    """Rows with equal values of these columns: the values, the position of the first by seq, and the example."""
    groups = Groups()
    number = groups.numbers(columns)
    order = np.lexsort((rows["seq"], number))
    starts = starts_of_equal(number[order])
    counts = np.diff(starts, append=len(order))
    arrived = np.minimum.reduceat(rows["arrived_ns"][order], starts) if len(starts) else starts
    firsts = zip(groups.combinations, order[starts].tolist(), counts.tolist(), arrived.tolist(), strict=True)
    for values, at, count, first in firsts:
        yield values, at, _Example(int(rows["seq"][at]), int(rows["received_us"][at]), first, count)
