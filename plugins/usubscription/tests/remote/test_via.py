# SPDX-License-Identifier: Apache-2.0
"""Topics that are subscribed at a device in between, which relays the subscription."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.remote.earlier_upstreams import EarlierUpstreams

from ustreamer.core.base.links import LinkStates
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import error_response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import ServiceRig

    MakeRig = Callable[..., ServiceRig]

OWN, FAR, NEAR = "device1", "device4", "device3"
TOPIC = UUri(FAR, 0x10AB, 3, 0x8000)
STATUS = pb.SubscriptionStatus


def state(rig: "ServiceRig") -> int | None:
    found = rig.fetch(TOPIC).subscriptions
    return found[0].status.state if found else None


def test_a_topic_is_subscribed_at_the_device_in_between_until_that_one_has_it(make_rig: "MakeRig") -> None:
    rig = make_rig(via={FAR: NEAR}).start()
    rig.subscribe(TOPIC)
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(NEAR, 0, 3, 1)
    assert rig.remote_request_fields(call)[:2] == (1, TOPIC)
    forged = error_response(UUID(0x7000, 2 << 62), call, UStatus(UCode.NOT_FOUND, "no"))
    rig.client.send(replace(forged, attributes=replace(forged.attributes, source=UUri(FAR, 0, 3, 1))))
    rig.remote_grants(call, STATUS.SUBSCRIBE_PENDING)
    assert state(rig) == STATUS.SUBSCRIBE_PENDING
    rig.remote_notifies(TOPIC, STATUS.SUBSCRIBED, source=UUri(FAR, 0, 3, 0x8000))
    assert rig.take_remote_requests() == []  # only the called device notifies of its changes
    rig.remote_notifies(TOPIC, STATUS.SUBSCRIBED, source=UUri(NEAR, 0, 3, 0x8000))
    rig.remote_grants(rig.take_remote_request())
    assert state(rig) == STATUS.SUBSCRIBED
    rig.unsubscribe(TOPIC)
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(NEAR, 0, 3, 2)
    rig.remote_grants(call)
    assert state(rig) is None


def test_the_link_and_the_version_are_those_of_the_device_in_between(make_rig: "MakeRig") -> None:
    rig = make_rig(via={FAR: NEAR}).start()
    rig.links.set_state(NEAR, up=False)
    rig.links.set_state(FAR, up=True)
    rig.subscribe(TOPIC)
    assert rig.take_remote_requests() == []
    assert rig.statistics("pending_link_down") == 1
    rig.links.set_state(NEAR, up=True)
    rig.take_remote_request()
    rig.advance(s=1)
    rig.fetch()
    [probe] = rig.probes
    assert probe.attributes.sink == UUri(NEAR, 0, 4, 1)
    rig.remote_grants(probe)
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(NEAR, 0, 4, 1)
    rig.remote_grants(call)
    assert state(rig) == STATUS.SUBSCRIBED


@pytest.mark.parametrize("via", [{OWN: NEAR}, {FAR: OWN}])
def test_a_served_authority_needs_no_device_in_between(make_rig: "MakeRig", via: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"via: '{OWN}' is served by this streamer"):
        make_rig(via=via)


def test_a_name_that_is_no_authority_is_refused() -> None:
    with pytest.raises(ValueError, match="via"):
        UsubscriptionConfig(via={"FAR": "near"})


def test_a_device_is_not_in_between_itself() -> None:
    with pytest.raises(ValueError, match=f"via.{FAR}: '{FAR}' is the device itself; expected one in between"):
        UsubscriptionConfig(via={FAR: FAR})


def test_both_devices_must_live_behind_endpoints() -> None:
    found = UsubscriptionConfig(via={FAR: NEAR}).patterns()
    assert [(each.key, each.pattern.authority_name) for each in found] == [("via", NEAR), ("via", FAR)]


def calls_of(rig: "ServiceRig") -> list[tuple[str, int, int]]:
    """(device, version, method) of the calls about the topic since the last time."""
    found = []
    for call in rig.take_remote_requests():
        assert call.attributes.sink is not None
        assert rig.remote_request_fields(call)[1] == TOPIC
        sink = call.attributes.sink
        found.append((sink.authority_name, sink.ue_version_major, sink.resource_id))
        rig.remote_grants(call)
    return sorted(found)


@pytest.mark.parametrize(("before", "after"), [({FAR: NEAR}, {}), ({}, {FAR: NEAR})])
def test_a_changed_via_ends_the_subscription_at_the_device_before(
    make_rig: "MakeRig", before: dict[str, str], after: dict[str, str]
) -> None:
    devices = [before.get(FAR, FAR), after.get(FAR, FAR)]
    rig = make_rig(via=before).start()
    rig.subscribe(TOPIC)
    assert calls_of(rig) == [(devices[0], 3, 1)]
    rig.config["via"] = after
    rig.restart()
    assert calls_of(rig) == sorted([(devices[0], 3, 2), (devices[1], 3, 1)])
    rig.restart()
    assert calls_of(rig) == [(devices[1], 3, 1)]
    rig.config["via"] = before
    rig.restart()
    assert calls_of(rig) == sorted([(devices[0], 3, 1), (devices[1], 3, 2)])


def test_the_unsubscribe_at_the_device_before_is_repeated_until_it_is_answered(make_rig: "MakeRig") -> None:
    rig = make_rig(via={FAR: NEAR}).start()
    rig.subscribe(TOPIC)
    calls_of(rig)
    rig.config["via"] = {}
    rig.restart()
    rig.take_remote_requests()  # no answer
    rig.restart()
    [ending] = [each for each in rig.take_remote_requests() if rig.remote_request_fields(each)[0] == 2]
    forged = error_response(UUID(0x7000, 2 << 62), ending, UStatus(UCode.NOT_FOUND, "no"))
    rig.client.send(replace(forged, attributes=replace(forged.attributes, source=UUri(FAR, 0, 3, 2))))
    for code, pause_s, version in ((UCode.UNAVAILABLE, 1, 3), (UCode.UNIMPLEMENTED, 0, 4)):
        rig.remote_refuses(ending, code)
        rig.advance(s=pause_s)
        [ending] = rig.take_remote_requests()
        assert ending.attributes.sink == UUri(NEAR, 0, version, 2)
    rig.remote_refuses(ending, UCode.UNIMPLEMENTED)
    rig.restart()
    assert calls_of(rig) == [(FAR, 3, 1)]


def test_after_a_silence_of_the_device_before_it_is_called_in_the_other_version(make_rig: "MakeRig") -> None:
    rig = make_rig(via={FAR: NEAR}).start()
    rig.subscribe(TOPIC)
    calls_of(rig)
    rig.config["via"] = {}
    rig.restart()
    versions = []
    for _ in range(3):
        calls = [each.attributes.sink for each in rig.take_remote_requests()]
        versions += [
            each.ue_version_major for each in calls if each is not None and each.authority_name == NEAR
        ]
        rig.advance(s=300)
    assert versions == [3, 4, 3]


@pytest.mark.parametrize("damaged", [b'{"via": 1}', b'{"via": {"\xff": "device3"}}', b""])
def test_a_damaged_file_of_the_last_via_ends_nothing(make_rig: "MakeRig", damaged: bytes) -> None:
    rig = make_rig(via={FAR: NEAR}).start()
    rig.subscribe(TOPIC)
    calls_of(rig)
    rig.stop()
    (rig.state_dir / "usubscription.via").write_bytes(damaged)
    rig.config["via"] = {}
    rig.restart()
    assert calls_of(rig) == [(FAR, 3, 1)]


@pytest.mark.parametrize(("name", "ends"), [(NEAR, True), ("gone", False)])
def test_only_a_device_behind_an_endpoint_is_called(tmp_path: Path, name: str, *, ends: bool) -> None:
    links = LinkStates(lambda authority: None if authority == "gone" else authority)
    EarlierUpstreams(tmp_path / "via", {FAR: name}, links).load([])
    after = EarlierUpstreams(tmp_path / "via", {}, links)
    after.load([TOPIC])
    assert [key for key, _ in after.pop_due(0)] == [(name, TOPIC)] * ends


def ended_in_version_4(rig: "ServiceRig") -> set[UUri]:
    """The topics that the device before ends in version 4, where it refuses version 3."""
    ended = set()
    for _ in range(3):
        for call in rig.take_remote_requests():
            sink = call.attributes.sink
            assert sink is not None
            if sink.ue_version_major == 3:
                rig.remote_refuses(call, UCode.UNIMPLEMENTED)
            elif sink.authority_name == NEAR and sink.resource_id == 2:
                rig.remote_grants(call)
                ended.add(rig.remote_request_fields(call)[1])
    return ended


def test_each_topic_ends_at_a_device_that_refuses_version_3(make_rig: "MakeRig") -> None:
    topics = [TOPIC, TOPIC.with_resource(0x8001), TOPIC.with_resource(0x8002)]
    rig = make_rig(via={FAR: NEAR}).start()
    for each in topics:
        rig.subscribe(each)
        rig.remote_grants(rig.take_remote_request())
    rig.config["via"] = {}
    rig.restart()
    assert ended_in_version_4(rig) == set(topics)


def test_after_a_silence_each_of_two_topics_is_called_in_the_other_version(make_rig: "MakeRig") -> None:
    rig = make_rig(via={FAR: NEAR}).start()
    for each in (TOPIC, TOPIC.with_resource(0x8001)):
        rig.subscribe(each)
        rig.remote_grants(rig.take_remote_request())
    rig.config["via"] = {}
    rig.restart()
    rig.take_remote_requests()
    rig.advance(s=300)
    sinks = [each.attributes.sink for each in rig.take_remote_requests()]
    assert [each for each in sinks if each is not None and each.authority_name == NEAR] == [
        UUri(NEAR, 0, 4, 2)
    ] * 2


def test_a_topic_of_every_instance_ends_in_version_4(make_rig: "MakeRig") -> None:
    topic = UUri(FAR, 0xFFFF_10AB, 3, 0x8000)
    rig = make_rig(via={FAR: NEAR}).start()
    rig.call(1, pb4.SubscribeRequest(topic=topic.to_pb()), version=4)
    rig.remote_grants(rig.take_remote_request())
    rig.config["via"] = {}
    rig.restart()
    sinks = [each.attributes.sink for each in rig.take_remote_requests()]
    assert UUri(NEAR, 0, 4, 2) in sinks
