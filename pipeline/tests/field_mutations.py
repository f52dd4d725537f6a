# SPDX-License-Identifier: Apache-2.0
"""Mutations of single fields of real recordings, which leave a row that no gateway writes. Counters stay equal.

As in mutations.py, a mutation returns False where the run has no place for it.
"""

import random
from collections.abc import Callable
from typing import Any, Final

import msgspec
from tests.mutations import Mutation, Place, Run
from ustreamer_recorder.events import Letter, Row

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID

FIELD_MUTATIONS: Final[dict[str, Mutation]] = {}


def _register(name: str, chosen: Callable[[Row], bool], fields: Callable[[Row], dict[str, Any]]) -> None:
    """A mutation that changes fields of one of the chosen rows."""

    def mutation(run: Run, rng: random.Random) -> bool:
        places = run.places(Row, chosen)
        if not places:
            return False
        place = rng.choice(places)
        run.change(place, **fields(run.at(place)))
        return True

    FIELD_MUTATIONS[name] = mutation


def _is_delivered(row: Row) -> bool:
    return row.verdict is Verdict.DELIVERED and row.type is UMessageType.PUBLISH


def _is_throttled(row: Row) -> bool:
    return row.verdict is Verdict.THROTTLED


def _has_request(row: Row) -> bool:
    return row.request is not None


_register("delivered_without_an_attempt", _is_delivered, lambda _: {"attempts": 0, "first_attempt_ns": 0})
_register("delivered_with_the_code_of_a_failure", _is_delivered, lambda _: {"code": 13})
_register(
    "throttled_after_an_attempt",
    _is_throttled,
    lambda row: {"attempts": 3, "first_attempt_ns": row.received_ns},
)
_register("a_publication_with_a_sink", _is_delivered, lambda _: {"sink": "//hpc.vin1/10A0/1/0"})
_register("a_notification_without_a_sink", _is_delivered, lambda _: {"type": UMessageType.NOTIFICATION})
_register("a_response_without_its_request", _has_request, lambda _: {"request": None})
_register("the_source_is_no_address", _is_delivered, lambda _: {"source": "speed"})


def _with_target(run: Run, place: Place, **fields: Any) -> bool:
    run.change(place, target=run.new_target(run.at(place).target, **fields))
    return True


def a_target_of_another_topic(run: Run, rng: random.Random) -> bool:
    places = run.places(Row, lambda row: _is_delivered(row) and row.target.topic is not None)
    return bool(places) and _with_target(run, rng.choice(places), topic="//chassis/1234/1/8ABC")


def a_publication_from_another_endpoint(run: Run, rng: random.Random) -> bool:
    """Of an authority with other messages, which show where it is."""
    places = run.places(Row, lambda row: _is_delivered(row) and "//chassis/" in row.source)
    if len(places) < 5:
        return False
    place = rng.choice(places)
    target = run.at(place).target
    known = {row.target.ingress for row in run.all(Row)} - {target.ingress, target.egress, "self"}
    return _with_target(run, place, ingress=rng.choice(sorted(known or {"cloud"})))


def _of_letter(fields: Callable[[Letter], dict[str, Any]]) -> Mutation:
    def mutation(run: Run, rng: random.Random) -> bool:
        places = run.places(Letter)
        if not places:
            return False
        place = rng.choice(places)
        run.change(place, **fields(run.at(place)))
        return True

    return mutation


def a_dead_letter_twice(run: Run, rng: random.Random) -> bool:
    places = run.places(Letter)
    if not places:
        return False
    place = rng.choice(places)
    run.insert(place, msgspec.structs.replace(run.at(place)))
    return True


FIELD_MUTATIONS.update(
    a_target_of_another_topic=a_target_of_another_topic,
    a_publication_from_another_endpoint=a_publication_from_another_endpoint,
    a_dead_letter_twice=a_dead_letter_twice,
    a_dead_letter_of_another_message=_of_letter(
        lambda each: {"id": UUID(each.id.msb ^ 1 << 20, each.id.lsb)}
    ),
    a_dead_letter_of_another_source=_of_letter(lambda _: {"source": "//chassis/1234/1/8ABC"}),
    a_dead_letter_with_another_code=_of_letter(lambda _: {"code": 3}),
)


def field_mutants(runs: list[Run], of_each: int) -> list[tuple[str, Run]]:
    """Up to so many mutations of each kind, each of another run."""
    made: list[tuple[str, Run]] = []
    for name, mutation in FIELD_MUTATIONS.items():
        found = 0
        for number, run in enumerate(runs):
            changed = run.copy()
            if found < of_each and mutation(changed, random.Random(number)):
                found += 1
                made.append((name, changed))
    return made
