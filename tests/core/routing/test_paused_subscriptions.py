# SPDX-License-Identifier: Apache-2.0
"""A pause marks the subscriptions of one subscriber and no other."""

from collections.abc import Iterable, Sequence

import pytest

from ustreamer.core.routing import paused_subscriptions as module
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.router import AuthorityTable, Router
from ustreamer.core.routing.subscriptions import PausedSubscription, StaticDirectory, Subscription
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

SPEED, DOORS = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
ALL = UUri("chassis", 0x1234, 1, 0xFFFF)
FLEET, DASH = UUri("cloud", 1, 1, 0), UUri("dash", 2, 1, 0)


@pytest.fixture
def directory() -> PausedDirectory:
    subscriptions = [
        Subscription(topic, subscriber) for topic in (SPEED, DOORS) for subscriber in (FLEET, DASH)
    ]
    return PausedDirectory(StaticDirectory(subscriptions))


def subscriber(directory: PausedDirectory, topic: UUri) -> Sequence[UUri]:
    """The subscribers that have not paused `topic`."""
    return [
        each.subscriber for each in directory.subscribers(topic) if not isinstance(each, PausedSubscription)
    ]


def test_a_subscriber_does_not_receive_a_paused_topic_until_it_resumes(directory: PausedDirectory) -> None:
    assert directory.pause(SPEED, FLEET)
    assert (subscriber(directory, SPEED), subscriber(directory, DOORS)) == ([DASH], [FLEET, DASH])
    assert directory.resume(SPEED, FLEET)
    assert subscriber(directory, SPEED) == [FLEET, DASH]


def test_a_pattern_pauses_all_matching_topics_and_is_resumed_by_the_same_pattern(
    directory: PausedDirectory,
) -> None:
    directory.pause(ALL, DASH)
    assert (subscriber(directory, SPEED), subscriber(directory, DOORS)) == ([FLEET], [FLEET])
    assert not directory.resume(SPEED, DASH)
    assert subscriber(directory, SPEED) == [FLEET]
    assert directory.resume(ALL, DASH)
    assert subscriber(directory, SPEED) == [FLEET, DASH]


def test_a_repeated_pause_or_resume_changes_nothing(directory: PausedDirectory) -> None:
    assert [directory.pause(SPEED, FLEET), directory.pause(SPEED, FLEET)] == [True, False]
    assert [directory.resume(SPEED, FLEET), directory.resume(SPEED, FLEET)] == [True, False]


def test_a_target_is_paused_if_all_its_subscribers_have_paused_and_has_the_period_of_the_others() -> None:
    subscriptions = [Subscription(SPEED, FLEET, 20), Subscription(SPEED, DASH, 10)]
    directory = PausedDirectory(StaticDirectory(subscriptions))
    router = Router(
        AuthorityTable({"cloud": "net", "dash": "net", "chassis": "car"}), directory, {"net": False}
    )
    assert router.subscribed_targets("car", SPEED) == (Target("net", None, 10),)
    directory.pause(SPEED, DASH)
    assert router.subscribed_targets("car", SPEED) == (Target("net", None, 20),)
    directory.pause(SPEED, FLEET)
    assert router.subscribed_targets("car", SPEED) == (Target("net", None, 10, paused=True),)


def test_every_change_is_saved_before_it_is_in_force_and_restored() -> None:
    saved: list[list[tuple[UUri, UUri]]] = []
    subscriptions = StaticDirectory([Subscription(SPEED, FLEET)])
    directory = PausedDirectory(subscriptions, lambda pauses: saved.append(list(pauses)))
    directory.pause(SPEED, FLEET)
    directory.pause(ALL, FLEET)
    directory.resume(SPEED, FLEET)
    assert saved == [[(SPEED, FLEET)], [(SPEED, FLEET), (ALL, FLEET)], [(ALL, FLEET)]]
    after_restart = PausedDirectory(subscriptions)
    after_restart.restore(saved[1])
    assert list(after_restart.all_paused()) == saved[1]
    assert after_restart.resume(SPEED, FLEET)
    assert subscriber(after_restart, SPEED) == []


def test_a_pause_that_cannot_be_saved_is_refused_and_a_resume_is_in_force_all_the_same() -> None:
    full = False

    def save(pauses: Iterable[tuple[UUri, UUri]]) -> None:
        if full:
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, "the disk is full")

    directory = PausedDirectory(StaticDirectory([Subscription(SPEED, FLEET)]), save)
    directory.pause(SPEED, FLEET)
    full = True
    with pytest.raises(UStatusError, match="full"):
        directory.pause(DOORS, FLEET)
    assert directory.paused_by(FLEET) == [SPEED]
    with pytest.raises(UStatusError, match="full"):
        directory.resume(SPEED, FLEET)
    assert directory.paused_by(FLEET) == []


def test_paused_topics_are_listed_in_a_stable_order(directory: PausedDirectory) -> None:
    for topic, subscriber in [(DOORS, DASH), (SPEED, FLEET), (SPEED, DASH)]:
        directory.pause(topic, subscriber)
    assert directory.paused_by(DASH) == [SPEED, DOORS]
    assert directory.paused_by(UUri("dash", 3, 1, 0)) == []
    assert list(directory.all_paused()) == [(SPEED, FLEET), (SPEED, DASH), (DOORS, DASH)]


@pytest.mark.parametrize(
    ("limit", "others"), [("MAX_PAUSED", DASH), ("MAX_PAUSED_PER_SUBSCRIBER", FLEET)], ids=["all", "one"]
)
def test_the_number_of_paused_topics_is_bounded(
    directory: PausedDirectory, monkeypatch: pytest.MonkeyPatch, limit: str, others: UUri
) -> None:
    monkeypatch.setattr(module, limit, 2)
    directory.pause(SPEED, FLEET)
    directory.pause(DOORS, others)
    with pytest.raises(UStatusError, match="2 topics") as refused:
        directory.pause(ALL, FLEET)
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert not directory.pause(SPEED, FLEET)  # a repeated pause does not count
    assert directory.resume(SPEED, FLEET)
    assert directory.pause(ALL, FLEET)


def test_the_version_is_that_of_the_inner_directory(directory: PausedDirectory) -> None:
    directory.pause(SPEED, FLEET)
    assert directory.version == directory.inner.version == 0
    places = AuthorityTable({})
    assert Router(places, directory, {}).version_source is directory.inner
    assert Router(places, directory.inner, {}).version_source is directory.inner
