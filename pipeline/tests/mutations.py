# SPDX-License-Identifier: Apache-2.0
"""Mutations of recordings: what a gateway with a defect, or a person, could write. Checksums stay valid.

`load_runs` reads real recordings, `mutate` changes one of them, `write_run` writes it as the recording of a gateway of
its own. A mutation returns False where the run has no place for it. None of them is one that no reader can notice:
the last recordings of a run may not have arrived yet, and the first ones may be deleted.
"""

import random
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from ustreamer_recorder.events import (
    Anchor,
    Counters,
    Damage,
    End,
    Event,
    Letter,
    Row,
    SubscriptionChange,
    Target,
)
from ustreamer_recorder.layout import CountersCause, EndCause, SegmentHeader
from ustreamer_recorder.reader import read_header, read_segment
from ustreamer_recorder.segments import list_segments
from ustreamer_recorder.writer import SegmentWriter

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.subscriptions import Change
from ustreamer.uprotocol.uattributes import UMessageType

GATEWAY: Final = "hpc.vin1"
EDGE_NS: Final = 1_500_000_000
"""Around a change of a subscription the audit accepts the targets before and after it, for one second."""
_BLOCK_EVENTS: Final = 100


@dataclass
class Part:
    """One recording of a run."""

    header: SegmentHeader
    events: list[Event]


Place = tuple[int, int]
"""The part of an event, and its position there."""


class Run:
    """The recordings of one run, in order."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self._targets = max((each.target for each in self.all(Target)), default=0)

    def new_target(self, target: Target, **fields: Any) -> Target:
        """A target with another number and these fields."""
        self._targets += 1
        return msgspec.structs.replace(target, target=self._targets, **fields)

    def copy(self) -> "Run":
        return Run([Part(part.header, list(part.events)) for part in self.parts])

    @property
    def is_stopped(self) -> bool:
        """Its last record is that of a regular stop, with an empty queue: rows and counters must be equal."""
        final = [each for each in self.all(Counters) if each.cause is CountersCause.STOPPED]
        ends = [each for each in self.all(End) if each.cause is EndCause.STOPPED]
        return bool(final and ends) and not final[-1].ledger.queued

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for part in self.parts for event in part.events if isinstance(event, kind)]

    def places(self, kind: type[Any], chosen: Callable[[Any], bool] = lambda _: True) -> list[Place]:
        return [
            (number, at)
            for number, part in enumerate(self.parts)
            for at, event in enumerate(part.events)
            if isinstance(event, kind) and chosen(event)
        ]

    def at(self, place: Place) -> Any:
        return self.parts[place[0]].events[place[1]]

    def change(self, place: Place, **fields: Any) -> None:
        self.parts[place[0]].events[place[1]] = msgspec.structs.replace(self.at(place), **fields)

    def remove(self, place: Place) -> None:
        del self.parts[place[0]].events[place[1]]

    def insert(self, place: Place, event: Event) -> None:
        self.parts[place[0]].events.insert(place[1], event)

    def shift_rows(self, from_seq: int, by: int) -> None:
        """Renumber the rows from `from_seq` on, so that numbers show no hole and no duplicate."""

        def moved(seq: int) -> int:
            return seq + by if seq >= from_seq else seq

        for part in self.parts:
            part.header = part.header._replace(first_seq=moved(part.header.first_seq))
            for at, event in enumerate(part.events):
                if isinstance(event, Row | Letter):
                    part.events[at] = msgspec.structs.replace(event, seq=moved(event.seq))
                elif isinstance(event, Counters | End):
                    part.events[at] = msgspec.structs.replace(event, next_seq=moved(event.next_seq))

    def shift_changes(self, from_number: int, by: int) -> None:
        """Renumber the changes of subscriptions from `from_number` on."""

        def moved(number: int) -> int:
            return number + by if number >= from_number else number

        for part in self.parts:
            part.header = part.header._replace(first_change=moved(part.header.first_change))
            for at, event in enumerate(part.events):
                if isinstance(event, SubscriptionChange):
                    part.events[at] = msgspec.structs.replace(event, number=moved(event.number))
                elif isinstance(event, End):
                    part.events[at] = msgspec.structs.replace(event, next_change=moved(event.next_change))


def load_runs(folder: Path) -> list[Run]:
    """All runs below a folder that have rows, the oldest first. Bytes after the last whole block are left out."""
    runs: dict[int, list[Part]] = {}
    for directory in sorted({path.parent for path in folder.rglob("*.useg*")}):
        for segment in list_segments(directory):
            data = segment.path.read_bytes()
            events = [
                event for event in read_segment(data, segment.path.name) if not isinstance(event, Damage)
            ]
            runs.setdefault(segment.run, []).append(Part(read_header(segment.path), events))
    return [run for run in (Run(parts) for _, parts in sorted(runs.items())) if run.all(Row)]


def write_run(run: Run, place: Path, gateway: str) -> None:
    """Write the recordings below `place`, as those of `gateway`."""
    place.mkdir(parents=True)
    for part in run.parts:
        header = part.header._replace(authority=gateway)
        writer = SegmentWriter(place, header)
        first_anchor = Anchor(header.mono_ns, header.wall_ms)
        for number, event in enumerate(part.events):
            if number % _BLOCK_EVENTS == 0:
                writer.flush(header.mono_ns, header.wall_ms)
            if event != first_anchor:
                writer.add_event(_renamed(event, gateway))
        writer.close(None)  # an END is among the events


def _renamed(event: Any, gateway: str) -> Any:
    """The event with the addresses of another gateway."""
    if not isinstance(event, Row | Target | SubscriptionChange | Letter):
        return event
    changed: dict[str, Any] = {}
    for name in ("source", "sink", "topic", "subscriber"):
        text = getattr(event, name, None)
        if text is not None and f"//{GATEWAY}/" in text:
            changed[name] = text.replace(f"//{GATEWAY}/", f"//{gateway}/")
    if isinstance(event, Row | Letter):
        changed["target"] = _renamed(event.target, gateway)
    return msgspec.structs.replace(event, **changed) if changed else event


# ------------------------------------------------------------------------------------------------------------ mutations

Mutation = Callable[[Run, random.Random], bool]
MUTATIONS: Final[dict[str, Mutation]] = {}


def mutation(change: Mutation) -> Mutation:
    MUTATIONS[change.__name__] = change
    return change


def mutate(run: Run, seed: int) -> tuple[str, Run] | None:
    """The mutation of this seed, and the changed run; None if no mutation fits."""
    rng = random.Random(seed)
    names = list(MUTATIONS)
    order = names[seed % len(names) :] + names[: seed % len(names)]
    for name in order:
        changed = run.copy()
        if MUTATIONS[name](changed, rng):
            return name, changed
    return None


def _is_limited(row: Row) -> bool:
    return row.type is UMessageType.PUBLISH and row.target.period_ns > 0 and row.target.delivery > 0


def _middle(places: list[Place]) -> list[Place]:
    """Without the first and last tenth, where a run begins or was cut off."""
    edge = len(places) // 10 + 1
    return places[edge:-edge]


def _settled_before_the_last_delivery(run: Run) -> Callable[[Row], bool]:
    """Rows of a target before its last delivered one: what follows may still be in a queue that was cut off."""
    last = {row.target.delivery: row.arrived_ns for row in run.all(Row) if row.verdict is Verdict.DELIVERED}
    return lambda row: row.arrived_ns < last.get(row.target.delivery, 0)


def _verdict_of_limited(run: Run, rng: random.Random, before: Verdict, after: Verdict) -> bool:
    is_certain = _settled_before_the_last_delivery(run)
    places = run.places(
        Row, lambda row: _is_limited(row) and row.verdict is before and not row.held and is_certain(row)
    )
    if len(places) < 5:
        return False
    place = rng.choice(_middle(places))
    attempts = 1 if after is Verdict.DELIVERED else 0
    first_ns = run.at(place).received_ns if attempts else 0
    run.change(place, verdict=after, attempts=attempts, first_attempt_ns=first_ns, code=None, reason=None)
    return True


@mutation
def a_throttled_message_is_delivered(run: Run, rng: random.Random) -> bool:
    return _verdict_of_limited(run, rng, Verdict.THROTTLED, Verdict.DELIVERED)


@mutation
def a_due_message_is_throttled(run: Run, rng: random.Random) -> bool:
    return _verdict_of_limited(run, rng, Verdict.DELIVERED, Verdict.THROTTLED)


@mutation
def a_message_without_a_limit_is_throttled(run: Run, rng: random.Random) -> bool:
    places = run.places(
        Row,
        lambda row: row.verdict is Verdict.DELIVERED and row.target.period_ns == 0 and row.target.delivery,
    )
    if not places:
        return False
    run.change(rng.choice(places), verdict=Verdict.THROTTLED, attempts=0, first_attempt_ns=0)
    return True


@mutation
def delivered_messages_fail_without_dead_letters(run: Run, rng: random.Random) -> bool:
    places = run.places(
        Row, lambda row: row.verdict is Verdict.DELIVERED and row.type is UMessageType.PUBLISH
    )
    if len(places) < 5:
        return False
    run.change(rng.choice(_middle(places)), verdict=Verdict.DEAD_LETTERED, code=14)
    return True


@mutation
def a_dead_letter_of_a_delivered_message(run: Run, rng: random.Random) -> bool:
    places = run.places(Row, lambda row: row.verdict is Verdict.DELIVERED and row.target.delivery)
    if not places:
        return False
    place = rng.choice(places)
    row = run.at(place)
    letter = Letter(row.seq, row.id, row.settled_ns, row.target, row.source, row.sink, 1, row.size)
    run.insert((place[0], place[1] + 1), letter)
    return True


@mutation
def a_message_expires_before_its_ttl(run: Run, rng: random.Random) -> bool:
    places = run.places(
        Row, lambda row: row.verdict is Verdict.DELIVERED and row.type is UMessageType.PUBLISH
    )
    if not places:
        return False
    place = rng.choice(places)
    run.change(place, verdict=Verdict.EXPIRED, ttl_ms=60_000)
    row = run.at(place)
    letter = Letter(row.seq, row.id, row.settled_ns, row.target, row.source, row.sink, 1, row.size)
    run.insert((place[0], place[1] + 1), letter)
    return True


@mutation
def a_message_goes_back_to_where_it_came_from(run: Run, rng: random.Random) -> bool:
    places = run.places(Row, lambda row: row.verdict is Verdict.DELIVERED and row.target.delivery)
    if not places:
        return False
    place = rng.choice(places)
    run.change(place, target=run.new_target(run.at(place).target, egress=run.at(place).target.ingress))
    return True


@mutation
def a_message_has_no_subscriber(run: Run, rng: random.Random) -> bool:
    """For a subscriber that has others before and after it, far from a change."""
    changes = [each.time_ns for each in run.all(SubscriptionChange) if each.change is not Change.PRESENT]
    places = run.places(
        Row,
        lambda row: (
            row.verdict is Verdict.DELIVERED
            and row.type is UMessageType.PUBLISH
            and row.target.topic is not None
            and row.target.period_ns == 0
            and all(abs(row.arrived_ns - at) > EDGE_NS for at in changes)
        ),
    )
    counted = Counts((run.at(place).id, run.at(place).source) for place in run.places(Row))
    alone = [place for place in _middle(places) if counted[run.at(place).id, run.at(place).source] == 1]
    if not alone:
        return False
    place = rng.choice(alone)
    to = run.at(place).target
    nowhere = run.new_target(to, delivery=0, egress=None, topic=None, subscriber=None, tuned_ns=0)
    run.change(
        place, verdict=Verdict.NO_SUBSCRIBER, target=nowhere, attempts=0, first_attempt_ns=0, code=None
    )
    return True


@mutation
def rows_are_lost(run: Run, rng: random.Random) -> bool:
    places = run.places(Row)
    if len(places) < 50:
        return False
    number, at = rng.choice(_middle(places))
    events, count = run.parts[number].events, rng.choice([1, 2, 20])
    kept = [
        event
        for place, event in enumerate(events)
        if not (at <= place < at + count and isinstance(event, Row | Letter))
    ]
    run.parts[number].events = kept
    return len(kept) < len(events)


@mutation
def a_row_is_lost_and_the_others_are_renumbered(run: Run, rng: random.Random) -> bool:
    """In a stopped run, whose counters show it; a run that was cut off has no exact ones."""
    places = run.places(Row, lambda row: row.verdict in {Verdict.DELIVERED, Verdict.THROTTLED})
    if not run.is_stopped or len(places) < 5:
        return False
    place = rng.choice(_middle(places))
    seq = run.at(place).seq
    run.remove(place)
    run.shift_rows(seq + 1, -1)
    return True


@mutation
def a_row_is_there_twice(run: Run, rng: random.Random) -> bool:
    place = rng.choice(run.places(Row))
    run.insert((place[0], place[1] + 1), run.at(place))
    return True


@mutation
def a_row_is_doubled_with_a_number_of_its_own(run: Run, rng: random.Random) -> bool:
    places = run.places(
        Row,
        lambda row: row.verdict is Verdict.DELIVERED and row.target.topic is not None and row.target.tuned_ns,
    )
    if len(places) < 5:
        return False
    place = rng.choice(_middle(places))
    row = run.at(place)
    run.shift_rows(row.seq + 1, 1)
    run.insert((place[0], place[1] + 1), msgspec.structs.replace(row, seq=row.seq + 1))
    return True


@mutation
def two_messages_of_a_target_change_places(run: Run, rng: random.Random) -> bool:
    streams: dict[Any, list[Place]] = {}
    for place in run.places(Row, lambda row: row.verdict is Verdict.DELIVERED):
        row = run.at(place)
        target = row.target.ingress, row.target.egress, row.target.subscriber
        streams.setdefault((row.source, row.sink, row.priority, *target), []).append(place)
    pairs = [
        (one, other)
        for places in streams.values()
        for one, other in pairwise(places)
        if run.at(one).received_ns < run.at(other).received_ns
    ]
    if not pairs:
        return False
    one, other = rng.choice(pairs)
    first, second = run.at(one), run.at(other)
    run.parts[one[0]].events[one[1]] = msgspec.structs.replace(second, seq=first.seq)
    run.parts[other[0]].events[other[1]] = msgspec.structs.replace(first, seq=second.seq)
    return True


def _with_other_period(run: Run, rng: random.Random, period_of: Callable[[int], int]) -> bool:
    """All messages of a target, or its second half, have another limit."""
    counted = Counts(row.target for row in run.all(Row) if _is_limited(row))
    often = [target for target, rows in counted.items() if rows >= 20]
    if not often:
        return False
    target = rng.choice(sorted(often, key=lambda each: each.target))
    places = run.places(Row, lambda row: row.target == target)
    places = places[rng.choice([0, len(places) // 2]) :]
    changed = run.new_target(target, period_ns=period_of(target.period_ns))
    for place in places:
        run.change(place, target=changed)
    return True


@mutation
def a_limit_is_looser(run: Run, rng: random.Random) -> bool:
    return _with_other_period(run, rng, lambda period_ns: period_ns // 2)


@mutation
def a_limit_is_stricter(run: Run, rng: random.Random) -> bool:
    return _with_other_period(run, rng, lambda period_ns: period_ns * 3)


@mutation
def a_limit_is_missing(run: Run, rng: random.Random) -> bool:
    return _with_other_period(run, rng, lambda _: 0)


@mutation
def a_subscription_is_removed(run: Run, rng: random.Random) -> bool:
    """Not one of the last recording of a run that was cut off: the cut may have come before it."""
    end = len(run.parts) if run.is_stopped else len(run.parts) - 1
    places = [place for place in run.places(SubscriptionChange) if place[0] < end]
    if not places:
        return False
    run.remove(rng.choice(places))
    return True


@mutation
def a_subscription_is_removed_and_the_others_are_renumbered(run: Run, rng: random.Random) -> bool:
    """One that matters: rows of its topic lie far from this change and from the next one of the topic."""
    places = [place for place in run.places(SubscriptionChange) if _matters(run, run.at(place))]
    if not places:
        return False
    place = rng.choice(places)
    number = run.at(place).number
    run.remove(place)
    run.shift_changes(number + 1, -1)
    return True


def _matters(run: Run, change: SubscriptionChange) -> bool:
    same = [each for each in run.all(SubscriptionChange) if each.topic == change.topic]
    before = [each for each in same if each.number < change.number]
    after = [each.time_ns for each in same if each.number > change.number]
    others = _periods(before), _periods([*before, change])
    if others[0] == others[1]:
        return False
    until_ns = min(after, default=1 << 62) - EDGE_NS
    rows = [
        row
        for row in run.all(Row)
        if row.source == change.topic and change.time_ns + EDGE_NS < row.arrived_ns < until_ns
    ]
    return len(rows) >= 5


def _periods(changes: list[SubscriptionChange]) -> dict[str, int]:
    """The shortest period of each authority, as in a multicast domain."""
    active: dict[str, int] = {}
    for each in changes:
        if each.change is Change.UNSUBSCRIBED:
            active.pop(each.subscriber, None)
        else:
            active[each.subscriber] = each.period_ns
    periods: dict[str, int] = {}
    for subscriber, period_ns in active.items():
        authority = subscriber.split("/")[2]
        periods[authority] = min(period_ns, periods.get(authority, period_ns))
    return periods


@mutation
def a_recording_is_missing(run: Run, rng: random.Random) -> bool:
    if len(run.parts) < 3:
        return False
    del run.parts[rng.randrange(1, len(run.parts) - 1)]
    return True


@mutation
def a_recording_is_cut(run: Run, rng: random.Random) -> bool:
    """Not the last one: a run that was cut off looks the same."""
    cuts = [
        (number, at)
        for number, at in run.places(Row)
        if number < len(run.parts) - 1 and at > len(run.parts[number].events) // 3
    ]
    if not cuts:
        return False
    number, at = rng.choice(cuts)
    del run.parts[number].events[at:]
    return True


@mutation
def the_counters_are_other_ones(run: Run, rng: random.Random) -> bool:
    places = run.places(Counters, lambda each: each.cause is CountersCause.STOPPED)
    if not run.is_stopped or not places:
        return False
    ledger = run.at(places[-1]).ledger
    name = rng.choice(["delivered", "throttled", "no_subscriber"])
    run.change(places[-1], ledger=msgspec.structs.replace(ledger, **{name: getattr(ledger, name) + 1}))
    return True


def mutants(runs: list[Run], count: int, seed: int = 0) -> Iterator[tuple[str, Run]]:
    """`count` mutations, in turn of all kinds and of all runs."""
    rng = random.Random(seed)
    made = number = 0
    while made < count:
        found = mutate(rng.choice(runs), seed + number)
        number += 1
        if found is not None:
            made += 1
            yield found
