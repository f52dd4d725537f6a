# SPDX-License-Identifier: Apache-2.0
"""Lists and updates of a uSubscription, versions 3 and 4, as subscriptions."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from google.protobuf.message import Message

from ustreamer.core.routing.usubscription_codec import (
    NS_PER_MS,
    VERSION_4,
    Status,
    expire_ms_of,
    period_ns_of,
    unpack_payload,
)
from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import SubscriptionRecord

REGISTER_V4: Final = 4
"""Method RegisterForNotifications of version 4."""
_ROUTED: Final = (Status.SUBSCRIBED, Status.SUBSCRIBE_PENDING)
"""As in our own service: publications that arrive before the answer of another device are routed already."""


class Page(NamedTuple):
    """A part of the list. `length` includes entries that are not routed; `skipped` are those that cannot be read.

    `first` and `last` identify its entries at the ends, in version 3.
    """

    subscriptions: tuple[SubscriptionRecord, ...]
    length: int
    skipped: int
    has_more: bool
    first: bytes = b""
    last: bytes = b""


class ListedChange(NamedTuple):
    """A subscription, and whether it is in force."""

    entry: SubscriptionRecord
    is_routed: bool


def fetch_request(version: int, offset: int, topic: UUri | None = None) -> Message:
    """A request for all subscriptions, or in version 3 for those of one topic. Version 4 has no pages."""
    if version == VERSION_4:
        return pb4.FetchSubscriptionsRequest()
    if topic is not None:
        return pb3.FetchSubscriptionsRequest(topic=topic.to_pb())
    return pb3.FetchSubscriptionsRequest(offset=offset) if offset else pb3.FetchSubscriptionsRequest()


def page_in(response: UMessage, version: int, authority: str) -> Page:
    """The part of the list in a response. INVALID_ARGUMENT if it cannot be decoded as a whole."""
    payload, payload_format = response.payload, response.attributes.payload_format
    found: list[ListedChange] = []
    ends = b"", b""
    if version == VERSION_4:
        list_v4 = unpack_payload(pb4.FetchSubscriptionsResponse, payload, payload_format)
        count, has_more = len(list_v4.subscriptions), False
        for each_v4 in list_v4.subscriptions:
            found += _listed(lambda each=each_v4: _change_v4(each, authority))  # type: ignore[misc]
    else:
        list_v3 = unpack_payload(pb3.FetchSubscriptionsResponse, payload, payload_format)
        count, has_more = len(list_v3.subscriptions), list_v3.has_more_records
        for each_v3 in list_v3.subscriptions:
            found += _listed(lambda each=each_v3: _change_v3(each, authority))  # type: ignore[misc]
        if count:
            ends = _identity(list_v3.subscriptions[0]), _identity(list_v3.subscriptions[-1])
    routed = tuple(each.entry for each in found if each.is_routed)
    return Page(routed, count, count - len(found), has_more, *ends)


def _identity(entry: pb3.Subscription) -> bytes:
    """Equal for entries with the same topic and subscriber."""
    return entry.topic.SerializeToString() + b"\0" + entry.subscriber.uri.SerializeToString()


def change_in(message: UMessage, authority: str) -> ListedChange | None:
    """The change in an update; None if it cannot be read."""
    attributes = message.attributes
    try:
        if attributes.source.ue_version_major == VERSION_4:
            return _change_v4(
                unpack_payload(pb4.Subscription, message.payload, attributes.payload_format), authority
            )
        return _change_v3(unpack_payload(pb3.Update, message.payload, attributes.payload_format), authority)
    except (UStatusError, ValueError):
        return None


def _listed(read: Callable[[], ListedChange]) -> Iterator[ListedChange]:
    """The entry that `read` decodes; none if it cannot be decoded."""
    try:
        yield read()
    except (UStatusError, ValueError):  # one entry that cannot be read must not hide the others
        return


def _change_v3(found: pb3.Subscription | pb3.Update, authority: str) -> ListedChange:
    attributes = found.attributes
    entry = SubscriptionRecord(
        _topic(found.topic, authority),
        _address(found.subscriber.uri, authority),
        period_ns_of(attributes),
        expire_ms_of(attributes.expire) if attributes.HasField("expire") else None,
    )
    return ListedChange(entry, Status(found.status.state) in _ROUTED)


def _change_v4(found: pb4.Subscription, authority: str) -> ListedChange:
    entry = SubscriptionRecord(
        _topic(found.topic, authority),
        _address(found.subscriber, authority),
        found.sample_period * NS_PER_MS,
        expire_ms_of(found.expiration) if found.HasField("expiration") else None,
        version=VERSION_4,
    )
    return ListedChange(entry, Status(found.status - 1) in _ROUTED)


def _address(message: uri.UUri, authority: str) -> UUri:
    return UUri.from_pb(message).with_authority(authority).with_resource(0)


def _topic(message: uri.UUri, authority: str) -> UUri:
    topic = UUri.from_pb(message).with_authority(authority)
    if not topic.is_topic:
        raise ValueError(f"{topic}: expected a topic")
    return topic
