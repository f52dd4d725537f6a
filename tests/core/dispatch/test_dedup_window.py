# SPDX-License-Identifier: Apache-2.0
"""A duplicate is dropped if its id is in a bounded window."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.dispatch.dedup_window import DedupWindow
from ustreamer.uprotocol.umessage import publish, request
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

TOPIC, DASH = UUri("chassis", 1, 1, 0x8000), UUri("dash", 7, 1, 0)


def id_of(number: int) -> UUID:
    return UUID(number << 16 | 0x7000, 1 << 63)


@given(st.integers(1, 8), st.lists(st.integers(0, 20)))
def test_an_id_is_stored_for_one_to_two_windows(window: int, numbers: list[int]) -> None:
    recent = DedupWindow(window)
    taken: list[int] = []
    for number in numbers:
        new = recent.first_seen(id_of(number))
        if number in taken[-window:]:
            assert not new
        if number not in taken[-2 * window :]:
            assert new
        if new:
            taken.append(number)
        assert len(recent) <= 2 * window


@pytest.mark.parametrize(
    ("a", "b"),
    [(UUID(1, 2), UUID(2, 1)), (UUID(1, 2), UUID(1, 3)), (UUID(1, 2), UUID(3, 2)), (UUID(0, 1), UUID(1, 0))],
)
def test_ids_differ_by_either_half(a: UUID, b: UUID) -> None:
    recent = DedupWindow(4)
    assert [recent.first_seen(each) for each in (a, b, a, b)] == [True, True, False, False]


def test_a_duplicate_is_counted_and_not_in_the_ledger(build: "type[World]") -> None:
    world = build(dedup_windows={"chassis": 4})
    world.directory.subscribe(TOPIC, DASH)
    messages = [publish(world.id(), TOPIC, b"%d" % n) for n in range(3)]
    for each in [*messages, *messages]:
        world.receive("chassis", each)
    world.send()
    assert world.egress["dash"].messages == messages
    assert world.ledger().received == 3
    assert world.dispatcher.refused_counts()["chassis"]["duplicate"] == 3


def test_a_duplicate_request_is_dispatched_once_and_answered_once(build: "type[World]") -> None:
    world = build(dedup_windows={"backbone": 4})
    own_request = request(world.id(), UUri("hpc", 0x10, 1, 0), UUri("mars", 1, 1, 1), ttl=1000)
    for _ in range(2):
        world.receive("backbone", own_request)
    world.run()
    assert [each.attributes.reqid for each in world.egress["backbone"].messages] == [own_request.id]


def test_a_loop_endpoint_drops_duplicates_while_it_is_one(build: "type[World]") -> None:
    world = build(dedup_windows={"dash": 4})
    world.directory.subscribe(TOPIC, DASH)
    world.dispatcher.set_loop_endpoints(frozenset({"chassis", "dash"}))
    message = publish(world.id(), TOPIC)
    for _ in range(3):
        world.receive("chassis", message)
    world.dispatcher.set_loop_endpoints(frozenset({"chassis"}))  # the stored ids stay
    world.receive("chassis", message)
    world.send()
    assert world.egress["dash"].messages == [message]
    world.dispatcher.set_loop_endpoints(frozenset())
    world.receive("chassis", message)
    for _ in range(2):
        world.receive("dash", message)
    world.send()
    assert world.egress["dash"].messages == [message] * 2
    assert {name: each["duplicate"] for name, each in world.dispatcher.refused_counts().items()} == {
        "self": 0,
        "chassis": 3,
        "dash": 1,  # its own window is unchanged
    }


def test_with_a_window_routes_are_cached_and_rebuilt_as_without(build: "type[World]") -> None:
    world = build(dedup_windows={"chassis": 100})
    world.directory.subscribe(TOPIC, DASH)
    for _ in range(10):
        world.receive("chassis", publish(world.id(), TOPIC))
    assert world.directory.queries == 1
    world.directory.unsubscribe(TOPIC, DASH)
    world.receive("chassis", publish(world.id(), TOPIC))
    assert world.directory.queries == 2
    world.dispatcher.invalidate_routes()
    world.receive("chassis", publish(world.id(), TOPIC))
    assert world.directory.queries == 3
    world.send()
    assert len(world.egress["dash"].messages) == 10


def test_each_endpoint_has_its_own_window_or_none(build: "type[World]") -> None:
    world = build(dedup_windows={"chassis": 4, "dash": 0})
    message = publish(world.id(), TOPIC)
    for endpoint in ("dash", "dash", "backbone", "chassis", "chassis"):
        world.receive(endpoint, message)
    assert {
        name: each["duplicate"] for name, each in world.dispatcher.refused_counts().items() if name != "self"
    } == {
        "dash": 0,
        "backbone": 0,
        "chassis": 1,
    }
