# SPDX-License-Identifier: Apache-2.0
"""One authority cannot take the places of the others: shares of subscriptions, registrations, topics and requests."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from ustreamer_usubscription.inbox import MAX_BATCH, ServiceInbox

from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]
OWN, SERVED = "device1", "device2"
GREEDY = [UUri("device3", number, 1, 0) for number in range(1, 12)]
OTHER = UUri("device4", 1, 1, 0)
TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD)


@pytest.mark.parametrize("restarted", [False, True])
def test_forged_subscriptions_of_one_authority_leave_room_for_others(
    make_rig: MakeRig, restarted: bool
) -> None:
    rig = make_rig(max_subscriptions_per_authority=10).start()
    for caller in GREEDY[:10]:
        rig.call(1, rig.subscription_request(), caller=caller)
    if restarted:
        rig.restart()
    refused = rig.call_refused(1, rig.subscription_request(), caller=GREEDY[10])
    assert (refused.code, refused.message) == (
        UCode.RESOURCE_EXHAUSTED,
        "10 subscriptions of 'device3' are kept, max_subscriptions_per_authority is 10",
    )
    assert rig.statistics("refused_share") == 1
    rig.call(1, rig.subscription_request(), caller=GREEDY[0])  # again: no new place
    rig.call(1, rig.subscription_request(), caller=OTHER)
    rig.call(2, pb.UnsubscribeRequest(topic=TOPIC.to_pb()), caller=GREEDY[0])
    rig.call(1, rig.subscription_request(), caller=GREEDY[10])
    assert rig.call_refused(1, rig.subscription_request(), caller=GREEDY[0]).code is UCode.RESOURCE_EXHAUSTED


def test_a_share_counts_what_the_same_transaction_has_added(make_rig: MakeRig) -> None:
    rig = make_rig(max_subscriptions_per_authority=3).start()
    with rig.service_blocked():
        asked = [rig.send_request(1, rig.subscription_request(), caller=each) for each in GREEDY[:5]]
    codes = [rig.wait_response(each).attributes.commstatus for each in asked]
    assert codes == [None] * 3 + [UCode.RESOURCE_EXHAUSTED] * 2


def test_registrations_and_topics_have_shares(make_rig: MakeRig) -> None:
    rig = make_rig(
        max_registrations_per_authority=2, max_topics_per_authority=2, topic_lifecycle="track"
    ).start()
    register = pb.NotificationsRequest(topic=TOPIC.to_pb())
    for caller in GREEDY[:2]:
        rig.call(6, register, caller=caller)
    assert "max_registrations_per_authority" in rig.call_refused(6, register, caller=GREEDY[2]).message
    rig.call(6, register, caller=OTHER)

    def create(authority: str, number: int) -> tuple[pb.CreateTopicRequest, UUri]:
        topic = UUri(authority, 0x10, 1, 0x8000 + number)
        return pb.CreateTopicRequest(topic=topic.to_pb()), topic.with_resource(0)

    for number in range(2):
        request, producer = create(SERVED, number)
        rig.call(4, request, caller=producer)
    request, producer = create(SERVED, 2)
    assert "max_topics_per_authority" in rig.call_refused(4, request, caller=producer).message
    request, producer = create(OWN, 2)
    rig.call(4, request, caller=producer)


def test_one_authority_cannot_fill_the_queue_of_requests() -> None:
    inbox: ServiceInbox[int] = ServiceInbox(10, 3)
    for number in range(3):
        inbox.put_nowait(number, "device3")
    with pytest.raises(UStatusError, match="3 requests of 'device3' wait"):
        inbox.put_nowait(3, "device3")
    inbox.put_nowait(4, "device4")
    assert inbox.wait_batch() == [0, 4, 1, 2]
    inbox.put_nowait(5, "device3")
    assert MAX_BATCH > len(inbox) == 1


def test_queries_of_one_authority_do_not_delay_the_request_of_another(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    with rig.service_blocked():
        queries = [
            rig.send_request(3, pb.FetchSubscriptionsRequest(topic=TOPIC.to_pb()), caller=GREEDY[0])
            for _ in range(520)
        ]
        asked = rig.send_request(1, rig.subscription_request(), caller=OTHER)
    assert rig.wait_response(asked).attributes.commstatus is None
    rig.wait_response(queries[-1])
    answered_before = rig.response_order.index(asked)
    assert answered_before <= 4  # the query that blocked the service, and the turn of the other authority
