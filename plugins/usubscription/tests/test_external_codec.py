# SPDX-License-Identifier: Apache-2.0
"""Lists and updates of another uSubscription as subscriptions, without a service."""

import pytest
from google.protobuf.message import Message
from ustreamer_usubscription.external.codec import change_in, fetch_request, page_in

from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

IDS = UuidSource(lambda: 1_700_000_000_000)
TOPIC = uri.UUri(authority_name="chassis", ue_id=0x1234, ue_version_major=1, resource_id=0x8001)
APP = uri.UUri(ue_id=0x10, ue_version_major=1)
"""Without an authority: that of the service."""


def answer(payload: Message | bytes, version: int) -> UMessage:
    client, service = UUri("hpc", 4, 1, 0), UUri("hpc", 0, version, 3)
    asked = request(IDS.next(), client, service, ttl=1_000)
    content = payload if isinstance(payload, bytes) else payload.SerializeToString()
    return response(IDS.next(), asked, content, UPayloadFormat.PROTOBUF)


def subscription_v3(state: int, topic: uri.UUri = TOPIC) -> pb3.Subscription:
    found = pb3.Subscription(topic=topic, subscriber=pb3.SubscriberInfo(uri=APP))
    found.status.state = state
    return found


def test_version_3_has_pages_and_version_4_has_none() -> None:
    assert fetch_request(3, 0) == pb3.FetchSubscriptionsRequest()
    assert fetch_request(3, 7) == pb3.FetchSubscriptionsRequest(offset=7)
    assert fetch_request(4, 7) == pb4.FetchSubscriptionsRequest()


def test_a_page_has_the_routed_subscriptions_with_the_authority_of_the_service() -> None:
    subscribed, unsubscribed = (
        subscription_v3(state)
        for state in (pb3.SubscriptionStatus.SUBSCRIBED, pb3.SubscriptionStatus.UNSUBSCRIBED)
    )
    listed = pb3.FetchSubscriptionsResponse(subscriptions=[subscribed, unsubscribed], has_more_records=True)
    page = page_in(answer(listed, 3), 3, "hpc")
    [entry] = page.subscriptions
    assert (str(entry.topic), str(entry.subscriber)) == ("up://chassis/1234/1/8001", "up://hpc/10/1/0")
    assert (page.length, page.skipped, page.has_more) == (2, 0, True)


def test_an_entry_that_cannot_be_read_hides_no_other() -> None:
    method = uri.UUri(authority_name="chassis", ue_id=0x1234, ue_version_major=1, resource_id=1)
    state = pb3.SubscriptionStatus.SUBSCRIBED
    listed = pb3.FetchSubscriptionsResponse(
        subscriptions=[subscription_v3(state, method), subscription_v3(state)]
    )
    page = page_in(answer(listed, 3), 3, "hpc")
    assert (len(page.subscriptions), page.length, page.skipped) == (1, 2, 1)


def test_a_page_that_is_no_protobuf_is_refused() -> None:
    with pytest.raises(UStatusError) as caught:
        page_in(answer(b"\xff\xff", 3), 3, "hpc")
    assert caught.value.code is UCode.INVALID_ARGUMENT


def test_an_update_that_cannot_be_read_is_no_change() -> None:
    broken = publish(
        IDS.next(), UUri("hpc", 0, 3, 0x8000), b"\xff\xff", payload_format=UPayloadFormat.PROTOBUF
    )
    assert change_in(broken, "hpc") is None
