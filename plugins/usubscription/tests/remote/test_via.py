# SPDX-License-Identifier: Apache-2.0
"""Topics that are subscribed at a device in between, which relays the subscription."""

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from ustreamer_usubscription.config import UsubscriptionConfig

from ustreamer.uprotocol.pb import usubscription_v3 as pb
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
