# SPDX-License-Identifier: Apache-2.0
"""A swap of the router, or changed results of one router, while messages come in. The ledger law holds."""

from collections.abc import Iterable
from threading import Event, Thread
from typing import TYPE_CHECKING

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.router import AuthorityTable, Router
from ustreamer.uprotocol.umessage import notification, publish
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import HoldingFilter, VerdictFilter, World

SPEED = UUri("chassis", 0x1234, 1, 0x8001)
CLOUD, APP, TRUCK = UUri("cloud", 1, 1, 0), UUri("hpc", 0x10, 1, 0), UUri("truck", 1, 1, 0)
UNICAST = {"backbone": False, "chassis": True, "dash": True, "self": False}
DEADLINE_S = 30.0


def router(world: "World", **authorities: str) -> Router:
    return Router(AuthorityTable(authorities), world.directory, UNICAST)


def emit(world: "World", payload: bytes) -> None:
    world.receive("chassis", publish(world.id(), SPEED, payload))


def sent(world: "World", endpoint: str) -> list[bytes]:
    world.run()
    return [message.payload for message in world.egress[endpoint].messages]


def test_after_a_swap_new_messages_use_the_new_router_and_queued_ones_the_old_one(
    world: "World",
) -> None:
    world.directory.subscribe(SPEED, CLOUD)
    emit(world, b"old")  # queued, not sent yet
    world.dispatcher.swap_router(router(world, chassis="chassis", cloud="dash"))
    emit(world, b"new")
    assert (sent(world, "backbone"), sent(world, "dash")) == ([b"old"], [b"new"])


def test_a_swap_changes_every_ingress_including_the_local_one(world: "World") -> None:
    toward = {name: notification(world.id(), SPEED, TRUCK, name.encode()) for name in ("before", "after")}
    world.receive("chassis", toward["before"])
    world.dispatcher.swap_router(router(world, chassis="chassis", hpc="backbone", truck="dash"))
    world.receive("chassis", toward["after"])
    own = notification(world.id(), UUri("hpc", 4, 1, 0x8001), TRUCK, b"own")
    world.receive("self", own)
    assert sent(world, "dash") == [b"after"]
    settled = {each.message.id: each.verdict for each in world.tap_calls}
    assert settled[toward["before"].id] is Verdict.DEAD_LETTERED
    assert settled[own.id] is Verdict.DENIED  # the new authority table hosts no service


def test_a_swap_makes_filters_again_after_its_changes(
    build: "type[World]", answering: "type[VerdictFilter]"
) -> None:
    quiet: list[bool] = [False]

    def filters(delivery: Delivery) -> Iterable[Filter]:
        return [answering([Verdict.DENIED] * 9)] if quiet[0] else []

    world = build(filters=filters)
    world.directory.subscribe(SPEED, CLOUD)
    emit(world, b"loud")
    world.dispatcher.swap_router(world.dispatcher.router, lambda: quiet.__setitem__(0, True))
    emit(world, b"quiet")
    assert sent(world, "backbone") == [b"loud"]
    assert world.ledger().denied == 1


def test_a_message_held_during_a_swap_is_still_sent(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    held: list[HoldingFilter] = []

    def filters(delivery: Delivery) -> Iterable[Filter]:
        if delivery.topic is None or held:
            return []  # at the second call: the removed filter still holds a message
        held.append(holding(delivery, 1_000_000))
        return held

    world = build(filters=filters)
    world.directory.subscribe(SPEED, CLOUD)
    emit(world, b"held")
    world.dispatcher.swap_router(world.dispatcher.router)
    world.time.advance(ms=1)
    assert sent(world, "backbone") == [b"held"]


def test_no_message_is_dispatched_during_a_swap(world: "World") -> None:
    world.directory.subscribe(SPEED, CLOUD)
    emit(world, b"first")
    arrived = Event()

    def come_in() -> None:
        emit(world, b"meanwhile")
        arrived.set()

    def changes() -> None:
        thread.start()
        assert not arrived.wait(0.05)

    thread = Thread(target=come_in)
    world.dispatcher.swap_router(router(world, chassis="chassis", cloud="dash"), changes)
    thread.join(DEADLINE_S)
    assert (sent(world, "backbone"), sent(world, "dash")) == ([b"first"], [b"meanwhile"])


def test_a_pause_holds_at_once_also_for_queued_messages(world: "World") -> None:
    paused = PausedDirectory(world.directory)
    world.dispatcher.swap_router(
        Router(
            AuthorityTable({"chassis": "chassis", "cloud": "backbone", "hpc": "backbone"}), paused, UNICAST
        )
    )
    world.directory.subscribe(SPEED, CLOUD)
    emit(world, b"queued")
    paused.pause(SPEED, CLOUD)
    world.dispatcher.update_paused(SPEED)
    emit(world, b"2")
    assert (sent(world, "backbone"), world.ledger().queued) == ([], 2)
    paused.resume(SPEED, CLOUD)
    world.dispatcher.update_paused(SPEED)
    emit(world, b"3")
    assert sent(world, "backbone") == [b"queued", b"2", b"3"]
    assert world.ledger().no_subscriber == 0


def test_a_held_message_for_a_paused_subscriber_waits_in_the_queue(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    world = build(filters=lambda delivery: [holding(delivery, 1_000_000)] if delivery.topic else [])
    paused = PausedDirectory(world.directory)
    places = AuthorityTable({"chassis": "chassis", "cloud": "backbone"})
    world.dispatcher.swap_router(Router(places, paused, UNICAST))
    world.directory.subscribe(SPEED, CLOUD)
    emit(world, b"held")
    paused.pause(SPEED, CLOUD)
    world.dispatcher.update_paused(SPEED)
    world.time.advance(ms=1)
    assert (sent(world, "backbone"), world.ledger().queued) == ([], 1)


def test_a_paused_delivery_without_a_route_is_resumed_by_the_directory(world: "World") -> None:
    """The topic was evicted, or its messages were restored from disk: no later message updates the delivery."""
    paused = PausedDirectory(world.directory)
    world.dispatcher.swap_router(
        Router(AuthorityTable({"chassis": "chassis", "cloud": "backbone"}), paused, UNICAST)
    )
    world.directory.subscribe(SPEED, CLOUD)
    restored = world.dispatcher.restored_delivery("chassis", "backbone", SPEED, None)
    assert not restored.is_still_paused()
    paused.pause(SPEED, CLOUD)
    assert restored.is_still_paused()
    world.directory.unsubscribe(SPEED, CLOUD)
    assert not restored.is_still_paused()


def test_a_dead_letter_is_stored_with_its_ingress(world: "World") -> None:
    kept: list[tuple[str, str, bytes]] = []
    world.dispatcher._on_dead_letter = lambda letter: kept.append(
        (letter.ingress, letter.endpoint, letter.message.payload)
    )
    world.receive("chassis", notification(world.id(), SPEED, UUri("mars", 1, 1, 0), b"nowhere"))
    world.receive("chassis", notification(world.id(), SPEED, APP, b"late", ttl=1))
    world.time.advance(ms=5)
    world.run()
    assert kept == [("chassis", "chassis", b"nowhere"), ("chassis", "backbone", b"late")]
