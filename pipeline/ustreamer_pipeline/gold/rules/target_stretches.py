# SPDX-License-Identifier: Apache-2.0
"""Rows of publications as stretches: what the rules on targets compare with subscriptions at the end of a run.

Rows are compared in columns; Python runs once for each topic, target and change of a subscription.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.gold.predicted_targets import PublicationTarget
from ustreamer_pipeline.gold.rules.expiry import is_from_disk
from ustreamer_pipeline.gold.rules.run import Columns, Mask, RunRows, RunTables, take_rows
from ustreamer_pipeline.gold.rules.target_rows import (
    MESSAGE_KEY,
    Example,
    distinct_values,
    examples,
    message_starts,
    places_by_value,
)
from ustreamer_pipeline.gold.topic_subscribers import SLACK_NS, SubscriptionChanges
from ustreamer_pipeline.groups import Groups
from ustreamer_pipeline.replay.rows import Ints

WAITING_ROWS: Final = 1_000
"""So many rows wait for the next batch. A run that is shorter is grouped by message once, at its end."""

MAX_HOLD_NS: Final = 60_000_000_000
"""Rows of one message are together within its longest period, up to this one."""

_LEAST: Final = -(1 << 63)
_MAX_BITS: Final = 40
"""With a bit for each target, the sum of 2 ** 23 rows of a message fits."""


class TargetStretch(NamedTuple):
    """Rows of one topic and target with one limit, between the same changes of subscriptions."""

    source: str
    ingress: str
    target: PublicationTarget
    period_ns: int
    first: int
    last: int


class ReachedTargets(NamedTuple):
    """Messages of one topic that reached the same targets, between the same changes of subscriptions."""

    source: str
    ingress: str
    targets: frozenset[PublicationTarget]
    first: int
    last: int


class DoubledTarget(NamedTuple):
    """The second row of a message for one target: its place."""

    seq: int
    time_us: int
    source: str
    egress: str | None


class TargetStretches:
    """Collects the rows of publications of one run, in order."""

    COLUMNS = (
        *("seq", "id_msb", "id_lsb", "received_us", "received_ns", "arrived_ns", "delivery", "period_ns"),
        *("tuned_ns", "source", "sink", "subscriber", "ingress", "egress", "type", "verdict"),
    )
    _OF_MESSAGES = (
        *("seq", "id_msb", "id_lsb", "received_us", "received_ns", "arrived_ns", "period_ns"),
        *("source", "ingress", "egress", "subscriber", "verdict"),
    )

    def __init__(self, run: RunTables, changes: SubscriptionChanges) -> None:
        self.stretches: dict[TargetStretch, Example] = {}
        self.reached: dict[ReachedTargets, Example] = {}
        self.multicast: dict[str, bool] = {}
        """Whether the targets of an endpoint are multicast domains."""
        self.last_delivered_ns: dict[tuple[str, str, PublicationTarget], int] = {}
        """Arrival of the last delivered message, by topic, ingress and target."""
        self._changes = changes
        self._dictionary = run.dictionary
        self._endpoints = run.endpoints
        self._unread_ns = run.unread_ns
        self._waiting: dict[str, npt.NDArray[Any]] | None = None
        self._hold_ns = SLACK_NS

    def feed(self, rows: RunRows) -> Iterator[DoubledTarget]:
        """Collect the next rows. Returns targets that got a message twice."""
        self._learn_endpoints(rows)
        # A message that was denied, expired or failed on arrival had no targets.
        published = (rows["delivery"] > 0) | rows.is_verdict("NO_SUBSCRIBER")
        published &= rows.is_type("PUBLISH") & ~is_from_disk(rows)
        chosen = take_rows({name: rows[name] for name in self._OF_MESSAGES}, np.flatnonzero(published))
        longest_ns = int(chosen["period_ns"].max(initial=0))
        self._hold_ns = max(self._hold_ns, min(longest_ns, MAX_HOLD_NS - SLACK_NS) + SLACK_NS)
        self._collect_stretches(chosen)
        self._collect_last_delivered(chosen, rows.number("DELIVERED"))
        if self._waiting is not None:
            chosen = {name: np.concatenate([self._waiting[name], chosen[name]]) for name in chosen}
        return self._collect_messages(chosen, int(rows["received_ns"][-1]) - self._hold_ns)

    def end(self) -> Iterator[DoubledTarget]:
        """The run has no more rows. Returns targets that got a message twice."""
        return (
            iter(())
            if self._waiting is None
            else self._collect_reached(take_rows(self._waiting, _order_by_message(self._waiting)))
        )

    def _learn_endpoints(self, rows: RunRows) -> None:
        """A target shows its subscriber or sink behind its egress, an accepted message its source behind its ingress."""
        has_target = (rows["delivery"] > 0) & (rows["egress"] >= 0)
        for name in ("subscriber", "sink"):
            for egress, entity in distinct_values(rows, has_target & (rows[name] >= 0), "egress", name):
                self._endpoints.add(self._text(entity), self._text(egress))
        sent = (rows.is_type("PUBLISH") | rows.is_type("REQUEST")) & ~rows.is_verdict("DENIED")
        for ingress, source in distinct_values(rows, sent, "ingress", "source"):
            self._endpoints.add(self._text(source), self._text(ingress))
        for egress, subscriber in distinct_values(
            rows, has_target & rows.is_type("PUBLISH"), "egress", "subscriber"
        ):
            self.multicast[self._text(egress)] = subscriber < 0

    def _text(self, code: Any) -> str:
        text = self._dictionary.text(int(code))
        assert text is not None
        return text

    def _target(self, egress: int, subscriber: int) -> PublicationTarget:
        return PublicationTarget(self._dictionary.text(egress), self._dictionary.text(subscriber))

    def _changes_around(self, sources: Ints, from_ns: Ints, until_ns: Ints) -> tuple[Ints, Ints]:
        """Least and greatest number of changes of each topic's subscriptions that may be in effect in these times."""
        first = np.zeros(len(sources), dtype=np.int64)
        last = np.zeros(len(sources), dtype=np.int64)
        for source, at in places_by_value(sources):
            subscribers = self._changes.of_topic(self._text(source))
            if len(subscribers.surely_ns):
                first[at] = np.searchsorted(subscribers.surely_ns, from_ns[at], side="right")
                last[at] = np.searchsorted(subscribers.perhaps_ns, until_ns[at], side="right")
        return first, last

    def _collect_stretches(self, rows: Columns) -> None:
        around = self._changes_around(rows["source"], rows["arrived_ns"], rows["received_ns"])
        columns = [rows[name] for name in ("source", "ingress", "egress", "subscriber", "period_ns")]
        for key, _, example in examples([*columns, *around], rows):
            source, ingress, egress, subscriber, period_ns, first, last = key
            names = self._text(source), self._text(ingress), self._target(egress, subscriber)
            _merge(self.stretches, TargetStretch(*names, period_ns, first, last), example)

    def _collect_last_delivered(self, rows: Columns, delivered_code: int) -> None:
        """Rows are in order: the last one of each target."""
        delivered = np.flatnonzero(rows["verdict"] == delivered_code)
        groups = Groups()
        number = groups.numbers(
            [rows[name][delivered] for name in ("source", "ingress", "egress", "subscriber")]
        )
        last_of = np.zeros(len(groups), dtype=np.int64)
        last_of[number] = rows["arrived_ns"][delivered]
        for (source, ingress, *target), last_ns in zip(groups.combinations, last_of.tolist(), strict=True):
            self.last_delivered_ns[self._text(source), self._text(ingress), self._target(*target)] = last_ns

    def _collect_messages(self, rows: Columns, border_ns: int) -> Iterator[DoubledTarget]:
        """Group rows by message. The rows of messages that arrived after `border_ns` wait: more may follow."""
        self._waiting = dict(rows)
        if len(rows["seq"]) <= WAITING_ROWS:
            return iter(())
        order = _order_by_message(rows)
        starts, number = message_starts({name: rows[name][order] for name in MESSAGE_KEY})
        ready = (np.minimum.reduceat(rows["arrived_ns"][order], starts) < border_ns)[number]
        self._waiting = take_rows(rows, order[~ready])
        return self._collect_reached(take_rows(rows, order[ready]))

    def _collect_reached(self, rows: Columns) -> Iterator[DoubledTarget]:
        """Rows of whole messages, in order of messages."""
        if not len(rows["seq"]):
            return iter(())
        starts, number = message_starts(rows)
        groups = Groups()
        place = groups.numbers([rows["egress"], rows["subscriber"]])
        targets = [self._target(*target) for target in groups.combinations]
        heads = take_rows(rows, starts) | {
            "arrived_ns": np.minimum.reduceat(rows["arrived_ns"], starts),
            "targets": np.add.reduceat(_set_numbers(len(targets))[place], starts),
            "start": starts,
            "end": np.append(starts[1:], len(place)),
        }
        if self._unread_ns:
            heads = take_rows(heads, ~self._may_be_unread(heads["arrived_ns"]))
        around = self._changes_around(heads["source"], heads["arrived_ns"], heads["arrived_ns"])
        columns = [heads[name] for name in ("source", "ingress", "targets")]
        for key, at, example in examples([*columns, *around], heads):
            source, ingress, _, first, last = key
            here = frozenset(targets[each] for each in place[heads["start"][at] : heads["end"][at]].tolist())
            reached = ReachedTargets(self._text(source), self._text(ingress), here, first, last)
            _merge(self.reached, reached, example)
        if not _may_be_doubled(place, starts):
            return iter(())
        return self._doubled(rows, number * len(targets) + place)

    def _may_be_unread(self, arrived_ns: Ints) -> Mask:
        """Which messages may have rows of other dates, which are not read."""
        found: Mask = np.zeros(len(arrived_ns), dtype=np.bool_)
        for first_ns, last_ns in self._unread_ns:
            found |= (arrived_ns >= max(first_ns, MAX_HOLD_NS + _LEAST) - MAX_HOLD_NS) & (
                arrived_ns <= last_ns
            )
        return found

    def _doubled(self, rows: Columns, key: Ints) -> Iterator[DoubledTarget]:
        """A message has one row for each target: `key` is the message and the target of a row. A message that came in
        twice has two times of arrival.
        """
        order = np.argsort(key, kind="stable")
        again = order[1:][key[order][1:] == key[order][:-1]]
        suspicious = np.flatnonzero(np.isin(key, key[again])) if len(again) else again
        rows_of: dict[tuple[int, int], list[int]] = {}
        for at in suspicious.tolist():
            rows_of.setdefault((int(key[at]), int(rows["arrived_ns"][at])), []).append(at)
        for at in (same[0] for same in rows_of.values() if len(same) > 1):
            place = int(rows["seq"][at]), int(rows["received_us"][at])
            yield DoubledTarget(
                *place, self._text(rows["source"][at]), self._dictionary.text(rows["egress"][at])
            )


def _may_be_doubled(place: Ints, starts: Ints) -> bool:
    """Whether a message has two rows of one target, or there are too many targets for this test, which needs no sort."""
    if int(place.max()) >= _MAX_BITS:
        return True
    bits = np.int64(1) << place
    # The sum of bits exceeds their union exactly if one is there twice.
    return bool((np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)).any())


def _order_by_message(rows: Columns) -> Ints:
    """Permutation that puts the rows of one message together, by seq."""
    order: Ints = np.lexsort((rows["seq"], rows["id_msb"], rows["id_lsb"], rows["ingress"], rows["source"]))
    return order


def _random_numbers(count: int) -> Ints:
    return np.random.default_rng(0).integers(1, 1 << 62, count, dtype=np.int64)


_NUMBERS: Final = _random_numbers(1_000)


def _set_numbers(count: int) -> Ints:
    """A random number for each of so many targets. A set of targets is the sum of its numbers."""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else _random_numbers(count)


def _merge(found: dict[Any, Example], key: Any, example: Example) -> None:
    known = found.get(key)
    found[key] = example if known is None else known.merge(example)
