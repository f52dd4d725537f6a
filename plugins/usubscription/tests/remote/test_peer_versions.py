# SPDX-License-Identifier: Apache-2.0
"""Devices whose uSubscription has one version of the interface only, tested over a bus.

The service and its store are real; the other uSubscription is a script.
"""

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from ustreamer_usubscription.remote.peer_versions import MAX_PEERS, PeerVersions

from ustreamer.core.base.links import LinkStates
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage, response
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

OWN, FAR = "device1", "device3"
US3, US4 = UUri(OWN, 0, 3, 0), UUri(OWN, 0, 4, 0)
TOPICS = [UUri(FAR, 0x10AB, 3, 0x8000 + number) for number in range(100)]
REMOTE = TOPICS[0]
EVERY = UUri(FAR, ANY_INSTANCE << 16 | 1, 1, 0x8000)
SUBSCRIBE, UNSUBSCRIBE = 1, 2
SUBSCRIBED = pb.SubscriptionStatus.SUBSCRIBED


def version_of(call: UMessage) -> int:
    """The version of the interface of a call, which its source and its sink agree on."""
    assert call.attributes.sink is not None
    assert call.attributes.source.ue_version_major == call.attributes.sink.ue_version_major
    return call.attributes.sink.ue_version_major


def answer_in_one_version(rig: "ServiceRig", only: int) -> list[tuple[int, int]]:
    """Answer all calls as a device that has version `only`; (method, version) of each call."""
    answered = []
    while calls := rig.take_remote_requests():
        for call in calls:
            assert call.attributes.sink is not None
            answered.append((call.attributes.sink.resource_id, version_of(call)))
            if version_of(call) == only:
                rig.remote_grants(call)
            else:
                rig.remote_refuses(call, UCode.UNIMPLEMENTED)
    return answered


def states(rig: "ServiceRig", topic: UUri = REMOTE) -> list[int]:
    return [each.status.state for each in rig.fetch(topic).subscriptions]


def test_a_device_with_version_4_only_is_called_in_version_4_from_then_on(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    assert answer_in_one_version(rig, 4) == [(SUBSCRIBE, 3), (SUBSCRIBE, 4)]
    assert states(rig) == [SUBSCRIBED]
    rig.subscribe(TOPICS[1])
    rig.unsubscribe(REMOTE)
    assert answer_in_one_version(rig, 4) == [(SUBSCRIBE, 4), (UNSUBSCRIBE, 4)]
    assert (states(rig), states(rig, TOPICS[1])) == ([], [SUBSCRIBED])


def test_a_hundred_calls_that_were_under_way_are_all_repeated_in_version_4(rig: "ServiceRig") -> None:
    for topic in TOPICS:
        rig.subscribe(topic)
    answer_in_one_version(rig, 4)
    assert [states(rig, topic) for topic in TOPICS] == [[SUBSCRIBED]] * len(TOPICS)


def test_after_the_link_came_up_version_3_is_tried_first(rig: "ServiceRig") -> None:
    rig.links.set_state(FAR, up=True)
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, 4)
    rig.links.set_state(FAR, up=False)
    rig.links.set_state(FAR, up=True)
    assert answer_in_one_version(rig, 3) == [(SUBSCRIBE, 3)]
    assert states(rig) == [SUBSCRIBED]


def test_a_device_that_lost_version_4_is_called_in_version_3(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, 4)
    rig.subscribe(TOPICS[1])
    assert answer_in_one_version(rig, 3) == [(SUBSCRIBE, 4), (SUBSCRIBE, 3)]
    assert states(rig, TOPICS[1]) == [SUBSCRIBED]


def test_after_a_restart_the_last_unsubscribe_finds_its_version(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, 4)
    rig.unsubscribe(REMOTE)
    rig.take_remote_requests()
    rig.restart()
    assert answer_in_one_version(rig, 4) == [(UNSUBSCRIBE, 3), (UNSUBSCRIBE, 4)]


def test_a_device_without_either_version_ends_the_subscription(rig: "ServiceRig") -> None:
    """[utest->LIF-19]"""
    rig.subscribe(REMOTE)
    assert answer_in_one_version(rig, 5) == [(SUBSCRIBE, 3), (SUBSCRIBE, 4)]
    assert states(rig) == []
    update = pb.Update.FromString(rig.notifications[-1].payload)
    assert update.status.message == f"core.usubscription of {FAR!r}: UNIMPLEMENTED: no"


def test_a_device_that_never_answered_is_called_in_both_versions_in_turn(rig: "ServiceRig") -> None:
    """It may listen at the methods of version 4 only: then no answer is UNIMPLEMENTED."""
    rig.subscribe(REMOTE)
    versions = []
    for pause_s in (1, 2, 4, 8):
        call = rig.take_remote_request()
        versions.append(version_of(call))
        rig.remote_refuses(call, UCode.UNAVAILABLE)
        rig.advance(s=pause_s)
    assert versions == [3, 4, 3, 4]


def test_a_device_without_an_answer_is_called_in_the_other_version_after_the_timeout(
    rig: "ServiceRig",
) -> None:
    """A call waits for a listener as long as for an answer."""
    rig.subscribe(REMOTE)
    versions = []
    for _ in range(3):
        versions.append(version_of(rig.take_remote_request()))
        rig.advance(s=300)
    assert versions == [3, 4, 3]


def take_probes(rig: "ServiceRig") -> list[UMessage]:
    rig.fetch()
    rig.fetch()
    probes, rig.probes[:] = list(rig.probes), []
    return probes


def test_a_device_that_listens_in_version_4_only_is_found_within_a_second(rig: "ServiceRig") -> None:
    for topic in TOPICS[:3]:
        rig.subscribe(topic)
    assert [version_of(each) for each in rig.take_remote_requests()] == [3, 3, 3]
    rig.advance(ms=999)
    assert take_probes(rig) == []
    rig.advance(ms=1)
    [probe] = take_probes(rig)
    assert (version_of(probe), probe.attributes.ttl) == (4, 300_000)
    assert rig.remote_request_fields(probe)[:2] == (SUBSCRIBE, REMOTE)
    rig.remote_grants(probe)
    assert answer_in_one_version(rig, 4) == [(SUBSCRIBE, 4)] * 3
    assert [states(rig, topic) for topic in TOPICS[:3]] == [[SUBSCRIBED]] * 3
    rig.unsubscribe(REMOTE)
    assert answer_in_one_version(rig, 4) == [(UNSUBSCRIBE, 4)]
    rig.advance(s=10)
    assert take_probes(rig) == []


def test_a_slow_device_of_version_3_gets_one_probe_and_keeps_its_calls(rig: "ServiceRig") -> None:
    for topic in TOPICS[:3]:
        rig.subscribe(topic)
    calls = rig.take_remote_requests()
    rig.advance(s=100)
    [probe] = take_probes(rig)
    rig.remote_refuses(probe, UCode.UNIMPLEMENTED)
    for call in calls:
        rig.remote_grants(call)
    rig.advance(s=299)
    assert (rig.take_remote_requests(), take_probes(rig)) == ([], [])
    assert [states(rig, topic) for topic in TOPICS[:3]] == [[SUBSCRIBED]] * 3
    rig.subscribe(TOPICS[3])
    [call] = rig.take_remote_requests()
    rig.advance(s=10)
    for each in take_probes(rig):
        rig.answer_list(each)
    rig.advance(s=1)
    assert (rig.take_remote_requests(), take_probes(rig)) == ([], [])
    rig.remote_grants(call)
    assert states(rig, TOPICS[3]) == [SUBSCRIBED]


def test_a_device_that_answers_in_time_gets_no_probe(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    rig.remote_grants(rig.take_remote_request())
    rig.advance(s=2)
    assert take_probes(rig) == []


def test_a_device_that_never_answers_gets_two_calls_for_a_topic_in_300_s(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    versions = []
    for _ in range(4):
        versions.append(version_of(rig.take_remote_request()))
        rig.advance(s=1)
        versions += [version_of(each) for each in take_probes(rig)]
        rig.advance(s=299)
        assert take_probes(rig) == []
    assert versions == [3, 4, 4, 3, 3, 4, 4, 3]


def test_an_answer_to_a_probe_counts_from_the_called_device_on_the_same_link_only(rig: "ServiceRig") -> None:
    rig.links.set_state(FAR, up=True)
    rig.subscribe(REMOTE)
    rig.take_remote_request()
    rig.advance(s=1)
    [probe] = take_probes(rig)
    forged = response(UUID(0x7000, 2 << 62), probe)
    for source in (UUri("device4", 0, 4, 1), UUri(FAR, 7, 4, 1)):
        rig.client.send(replace(forged, attributes=replace(forged.attributes, source=source)))
    assert rig.take_remote_requests() == []
    rig.links.set_state(FAR, up=False)
    rig.advance(s=10)
    assert take_probes(rig) == []
    rig.links.set_state(FAR, up=True)
    assert version_of(rig.take_remote_request()) == 3


def test_after_the_link_came_up_a_device_is_probed_again(rig: "ServiceRig") -> None:
    rig.links.set_state(FAR, up=True)
    rig.subscribe(REMOTE)
    rig.take_remote_request()
    rig.advance(s=1)
    assert len(take_probes(rig)) == 1
    rig.links.set_state(FAR, up=False)
    rig.links.set_state(FAR, up=True)
    assert version_of(rig.take_remote_request()) == 3
    rig.advance(s=1)
    [probe] = take_probes(rig)
    rig.remote_grants(probe)
    assert answer_in_one_version(rig, 4) == [(SUBSCRIBE, 4)]


@pytest.mark.parametrize("version", [3, 4])
def test_a_device_that_answered_once_keeps_its_version_while_it_is_away(
    rig: "ServiceRig", version: int
) -> None:
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, version)
    rig.subscribe(TOPICS[1])
    for pause_s in (1, 2, 4):
        call = rig.take_remote_request()
        assert version_of(call) == version
        rig.remote_refuses(call, UCode.UNAVAILABLE)
        rig.advance(s=pause_s)


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)])
@pytest.mark.parametrize("answer", [None, UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED])
def test_a_device_behind_a_router_that_changed_its_version_is_found_by_a_probe(
    rig: "ServiceRig", before: int, after: int, answer: UCode | None
) -> None:
    """The link to the router stays up while the device gets another software."""
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, before)
    rig.subscribe(TOPICS[1])
    call = rig.take_remote_request()
    if answer is not None:
        rig.remote_refuses(call, answer)
    rig.advance(s=1)
    [v3, v4] = probes = take_probes(rig)
    assert [(version_of(each), each.attributes.ttl) for each in probes] == [(3, 10_000), (4, 10_000)]
    assert UUri.from_pb(pb.FetchSubscriptionsRequest.FromString(v3.payload).topic) == TOPICS[1]
    assert UUri.from_pb(pb4.FetchSubscriptionsRequest.FromString(v4.payload).topic_filter) == TOPICS[1]
    rig.advance(s=10)  # while it reboots
    probes = take_probes(rig)
    rig.take_remote_requests()
    [probe] = [each for each in probes if version_of(each) == after]
    rig.answer_list(probe)
    rig.advance(ms=999)
    assert rig.take_remote_requests() == []
    rig.advance(ms=1)
    assert answer_in_one_version(rig, after) == [(SUBSCRIBE, after)]
    assert states(rig, TOPICS[1]) == [SUBSCRIBED]
    rig.unsubscribe(REMOTE)
    assert answer_in_one_version(rig, after) == [(UNSUBSCRIBE, after)]


def test_a_device_that_was_away_behind_a_router_is_called_in_its_version_again(rig: "ServiceRig") -> None:
    """Where it knows both, a subscription in the other one would be a second one."""
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, 3)
    rig.subscribe(TOPICS[1])
    versions = []
    for _ in range(3):
        versions.append(version_of(rig.take_remote_request()))
        take_probes(rig)
        rig.advance(s=300)
    assert versions == [3, 3, 3]
    rig.remote_grants(rig.take_remote_request())
    take_probes(rig)
    rig.subscribe(TOPICS[2])
    assert answer_in_one_version(rig, 3) == [(SUBSCRIBE, 3)]
    rig.advance(s=10)
    assert take_probes(rig) == []


@pytest.mark.parametrize("order", [1, -1])
def test_a_slow_device_of_both_versions_keeps_the_one_that_it_answered_in(
    rig: "ServiceRig", order: int
) -> None:
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, 3)
    rig.subscribe(TOPICS[1])
    call = rig.take_remote_request()
    rig.advance(s=1)
    for probe in take_probes(rig)[::order]:
        rig.answer_list(probe)
    rig.advance(s=100)
    assert (rig.take_remote_requests(), take_probes(rig)) == ([], [])
    rig.remote_grants(call)
    assert states(rig, TOPICS[1]) == [SUBSCRIBED]


def test_a_device_that_knows_no_lists_gets_the_next_probes_with_the_next_call(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, 3)
    rig.subscribe(TOPICS[1])
    rig.take_remote_requests()
    rig.advance(s=1)
    for probe in take_probes(rig):
        rig.remote_refuses(probe, UCode.UNIMPLEMENTED)
    rig.advance(s=298)
    assert (rig.take_remote_requests(), take_probes(rig)) == ([], [])
    rig.advance(s=3)
    assert [version_of(each) for each in rig.take_remote_requests()] == [3]
    assert len(take_probes(rig)) == 2


@pytest.mark.parametrize("subscriber", [US3, US4])
def test_a_lost_subscription_is_noticed_in_the_version_of_the_device(
    rig: "ServiceRig", subscriber: UUri
) -> None:
    rig.subscribe(REMOTE)
    answer_in_one_version(rig, subscriber.ue_version_major)
    rig.remote_notifies(REMOTE, pb.SubscriptionStatus.UNSUBSCRIBED, subscriber=subscriber)
    rig.advance(s=1)
    assert version_of(rig.take_remote_request()) == subscriber.ue_version_major


def test_a_topic_of_every_instance_has_version_4_whatever_the_device_refuses() -> None:
    versions = PeerVersions(LinkStates().state_of)
    assert versions.version_for(EVERY) == 4
    assert not versions.on_unimplemented(EVERY, 4)
    assert (versions.version_for(EVERY), versions.version_for(REMOTE)) == (4, 3)


def test_the_number_of_remembered_devices_is_bounded() -> None:
    versions = PeerVersions(LinkStates().state_of)
    topics = [UUri(f"device{number}", 1, 1, 0x8000) for number in range(MAX_PEERS + 1)]
    for topic in topics:
        versions.on_answer(topic, 4)
    assert versions.version_for(topics[1]) == versions.version_for(topics[-1]) == 4
    assert versions.version_for(topics[0]) == 3
