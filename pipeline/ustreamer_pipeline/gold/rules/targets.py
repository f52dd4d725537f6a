# SPDX-License-Identifier: Apache-2.0
"""Rules on subscriptions against targets: `subscribed`, `limit`, `starved`, `once`.

A finding is a stretch of rows with one violation, and names the first of them (target_stretches.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, TypeVar

from ustreamer_pipeline.gold.change_numbers import change_faults
from ustreamer_pipeline.gold.predicted_targets import PredictedTargets, PublicationTarget
from ustreamer_pipeline.gold.rules.run import Row, RunRows, RunRule, RunTables
from ustreamer_pipeline.gold.rules.target_rows import Example
from ustreamer_pipeline.gold.rules.target_stretches import (
    DoubledTarget,
    ReachedTargets,
    TargetStretch,
    TargetStretches,
)
from ustreamer_pipeline.gold.topic_subscribers import SubscriptionChanges, TopicSubscribers

NOWHERE: Final = PublicationTarget(None, None)
"""The target of a message without targets."""

MAX_KEPT: Final = 1_000_000
"""Subscribers of predictions that are kept for the next stretch."""

T = TypeVar("T", TargetStretch, ReachedTargets)


def change_topics(gateway: str) -> frozenset[str]:
    """The topics of a gateway that also reach entities without a subscription, which only listen on a network."""
    return frozenset(f"up://{gateway}/0/{version}/8000" for version in (3, 4))


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
    COLUMNS = TargetStretches.COLUMNS

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        changes = _known_changes(run)
        self._is_known = changes is not None
        self._changes = SubscriptionChanges(changes or ())
        self._collected = TargetStretches(run, self._changes)
        self._broadcast = change_topics(run.gateway)
        self._predicted: dict[tuple[TopicSubscribers, int], PredictedTargets] = {}
        self._kept = 0

    def feed(self, rows: RunRows) -> None:
        self._add_doubled(self._collected.feed(rows))

    def end(self) -> None:
        self._add_doubled(self._collected.end())
        if self._is_known:
            for stretch, example in _by_change(self._collected.stretches):
                self._judge_stretch(stretch, example)
            if self.run.is_whole:
                is_emptied = self.run.is_emptied
                for reached, example in _by_change(self._collected.reached):
                    self._judge_reached(reached, example, is_emptied=is_emptied)

    def _add_doubled(self, doubled: Iterable[DoubledTarget]) -> None:
        for seq, time_us, source, egress in doubled:
            self._add(
                "once", seq, time_us, f"{source} -> {egress}", "one row of a message for a target", "two"
            )

    def _judge_stretch(self, stretch: TargetStretch, example: Example) -> None:
        """A target needs a subscription that leads to it, with the period that was asked for there."""
        if stretch.target.egress is None:
            return  # a message without targets: `starved`
        predicted = self._predicted_between(stretch.source, stretch.first, stretch.last)
        allowed = set[int]().union(*(each.periods_of(stretch.target) for each in predicted))
        if stretch.target.subscriber is None and stretch.source in self._broadcast:
            allowed.add(0)
        subject = _subject(stretch.source, stretch.target)
        if not allowed:
            found = f"none, {example.rows} messages"
            self._add_example("subscribed", example, subject, "a subscription", found)
        elif stretch.period_ns not in allowed:
            expected = " or ".join(f"{each} ns" for each in sorted(allowed))
            self._add_example("limit", example, subject, f"period {expected}", f"{stretch.period_ns} ns")

    def _judge_reached(self, reached: ReachedTargets, example: Example, *, is_emptied: bool) -> None:
        """Every subscriber behind another endpoint is reached, by the targets before or after a close change."""
        states = self._predicted_between(reached.source, reached.first, reached.last)
        missing = next(states).of_message_from(reached.ingress) - reached.targets
        for each in states if missing else ():
            missing &= each.of_message_from(reached.ingress)
        for target in sorted(missing, key=str):
            last_ns = self._collected.last_delivered_ns.get((reached.source, reached.ingress, target), 0)
            without_targets = reached.targets == {NOWHERE}
            if not without_targets and not is_emptied and example.arrived_ns >= last_ns:
                continue  # still in the queue at the end
            found = "no subscriber" if without_targets else "other targets only"
            subject, found = _subject(reached.source, target), f"{found}, {example.rows} messages"
            self._add_example("starved", example, subject, "a row for this subscriber", found)

    def _predicted_between(self, topic: str, first: int, last: int) -> Iterator[PredictedTargets]:
        """The targets of a topic from one number of past changes of its subscriptions to another."""
        subscribers = self._changes.of_topic(topic)
        for number in range(first, last + 1):
            known = self._predicted.get((subscribers, number))
            if known is None:
                periods = subscribers.after(number)
                known = PredictedTargets(periods, self.run.endpoints, self._collected.multicast)
                self._kept += len(periods)
                if self._kept > MAX_KEPT:
                    self._predicted, self._kept = {}, len(periods)
                self._predicted[subscribers, number] = known
            yield known

    def _add_example(self, rule: str, example: Example, subject: str, expected: str, found: str) -> None:
        self._add(rule, example.seq, example.time_us, subject, expected, found)


def _by_change(found: Mapping[T, Example]) -> list[tuple[T, Example]]:
    """In the order of changes, as `TopicSubscribers.after` needs it to be fast."""
    return sorted(found.items(), key=lambda each: each[0].first)


def _subject(source: str, target: PublicationTarget) -> str:
    return f"{source} -> {target.egress}{'' if target.subscriber is None else f' {target.subscriber}'}"


def _known_changes(run: RunTables) -> Sequence[Row] | None:
    """The changes of subscriptions in order. None after a missing change, which may have been any change."""
    if not run.segments:
        return None
    changes = sorted(run.subscriptions, key=lambda row: row["number"])
    is_complete = [row["number"] for row in changes] == list(range(len(changes)))
    is_complete &= not any(change_faults(run.segments, changes, run.gaps))
    is_complete &= all(row["subscriber"] is not None for row in changes)
    is_complete &= not any(row["changes"] is None or row["changes"] for row in run.gaps)
    return changes if is_complete else None
