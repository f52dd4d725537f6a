# SPDX-License-Identifier: Apache-2.0
"""The operations of core.usubscription version 4, as tables by (version, method), over the same state as version 3.

Differences to version 3: a topic may be that of every instance of an entity, and needs an authority (X-16, X-18);
a registration is for every topic; filters may have wildcards; the methods 4 to 6 differ.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from ustreamer.core.routing.usubscription_codec import (
    NS_PER_MS,
    USUBSCRIPTION,
    Status,
    expire_ms_of,
    sample_period_ms_of,
    timestamp_of,
)
from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.pb import usubscription_v4 as pb
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord, SubscriptionStatusChange
from ustreamer_usubscription.requests import operations
from ustreamer_usubscription.requests.operations import MutationHandler, QueryHandler
from ustreamer_usubscription.requests.requests import CallContext, check_topic_resource, unpack_request
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

VERSION: Final = 4

# --- changes ----------------------------------------------------------------------------------------------------------


def subscribe(call: CallContext, transaction: Transaction) -> pb.SubscribeResponse:
    """Method 1. Subscribe the caller to the topic, or change its subscription.

    [impl->req~usubscription-subscribe-method_id~1] [impl->req~usubscription-subscribe-request-signature~1]
    [impl->req~usubscription-subscribe-response-signature~1] [impl->dsn~usubscription-subscribe-valid-topic-uuris~1]
    [impl->req~usubscription-past-subscription-expiration~1]
    [impl->req~usubscription-subscribe-expiration-extension-past~1]
    [impl->dsn~usubscription-subscription-expiration-datatype~1] [impl->dsn~usubscription-sample-period-datatype~1]
    [impl->req~usubscription-subscribe~1] [impl->req~usubscription-subscribe-multiple~1]
    [impl->req~usubscription-subscribe-expiration-extension~1]
    """
    request = unpack_request(pb.SubscribeRequest, call)
    topic = _requested_topic(request)
    expire_ms = expire_ms_of(request.expiration) if request.HasField("expiration") else None
    entry = SubscriptionRecord(topic, call.caller, request.sample_period * NS_PER_MS, expire_ms, b"", VERSION)
    status, _ = operations.subscribe(entry, call, transaction)
    return pb.SubscribeResponse(topic=topic.to_pb(), status=_status_number(status))


def unsubscribe(call: CallContext, transaction: Transaction) -> pb.UnsubscribeResponse:
    """Method 2. End the caller's subscription of the topic; always succeeds. The caller is not notified of the end.

    [impl->req~usubscription-unsubscribe-notifications~1]
    [impl->req~usubscription-unsubscribe-method_id~1] [impl->req~usubscription-unsubscribe-request-signature~1]
    [impl->req~usubscription-unsubscribe-response-signature~1]
    [impl->dsn~usubscription-unsubscribe-valid-topic-uuris~1] [impl->req~usubscription-unsubscribe~1]
    """
    topic = _requested_topic(unpack_request(pb.UnsubscribeRequest, call))
    transaction.remove_subscription((topic, call.caller), notifies_subscriber=False)
    return pb.UnsubscribeResponse()


def register_for_notifications(call: CallContext, transaction: Transaction) -> pb.NotificationsResponse:
    """Method 4. Notify the caller of every change of any subscription.

    [impl->req~usubscription-register-notifications-method_id~1]
    [impl->req~usubscription-register-notifications-request-signature~1]
    [impl->req~usubscription-register-notifications-response-signature~1]
    [impl->req~usubscription-register-notifications~1]
    """
    unpack_request(pb.NotificationsRequest, call)
    operations.register(Observer(ANY, call.caller, VERSION), call, transaction)
    return pb.NotificationsResponse()


def unregister_for_notifications(call: CallContext, transaction: Transaction) -> pb.NotificationsResponse:
    """Method 5. Undoes method 4; always succeeds.

    [impl->req~usubscription-unregister-notifications-method_id~1]
    [impl->req~usubscription-unregister-notifications-request-signature~1]
    [impl->req~usubscription-unregister-notifications-response-signature~1]
    [impl->req~usubscription-unregister-notifications~1]
    """
    unpack_request(pb.NotificationsRequest, call)
    transaction.unregister_observer((ANY, call.caller))
    return pb.NotificationsResponse()


def reset(call: CallContext, transaction: Transaction) -> pb.ResetResponse:
    """Method 6. End all subscriptions and then all registrations, those of version 3, too.

    [impl->req~usubscription-reset-method_id~1] [impl->req~usubscription-reset-request-signature~1]
    [impl->req~usubscription-reset-response-signature~1] [impl->req~usubscription-reset~1]
    [impl->req~usubscription-reset-only-usubscription~1]
    Of the caller's ue_id only the type counts (X-20). The source is authentic as in version 3, with one exception: at
    a served authority only ue_id 0 is this service; another instance of type 0 there may be any process.
    """
    unpack_request(pb.ResetRequest, call)
    caller = call.caller
    of_type = caller.ue_type == USUBSCRIPTION
    known = caller.ue_id == USUBSCRIPTION or caller.authority_name not in call.serves
    operations.check_reset_caller(call, is_usubscription=of_type and known)
    operations.reset(call, transaction, "")
    return pb.ResetResponse()


# --- queries ----------------------------------------------------------------------------------------------------------


def fetch_subscriptions(call: CallContext, state: ServiceState, limit: int) -> pb.FetchSubscriptionsResponse:
    """Method 3. The subscriptions that both filters match. More than `limit` of them are RESOURCE_EXHAUSTED.

    Version 4 has no offset and no mark of an incomplete list, so every list is complete.

    [impl->req~usubscription-fetch-subscriptions-method_id~1] [impl->req~usubscription-fetch-subscriptions~1]
    [impl->req~usubscription-fetch-subscriptions-request-signature~1]
    [impl->req~usubscription-fetch-subscriptions-response-signature~1]
    [impl->req~usubscription-fetch-subscriptions-topic-filter~1]
    [impl->dsn~usubscription-fetch-subscriptions-invalid-topic-filter~1]
    [impl->dsn~usubscription-fetch-subscriptions-invalid-subscriber-filter~1]
    """
    request = unpack_request(pb.FetchSubscriptionsRequest, call)
    topics = _filter_pattern(request.topic_filter, call) if request.HasField("topic_filter") else ANY
    subscribers = (
        _filter_pattern(request.subscriber_filter, call) if request.HasField("subscriber_filter") else ANY
    )
    matching = (
        each
        for each in _candidates(topics, subscribers, state.directory)
        if topics.matches(each.topic) and subscribers.matches(each.subscriber)
    )
    found = list(islice(matching, limit + 1))
    if len(found) > limit:
        raise UStatusError(
            UCode.RESOURCE_EXHAUSTED,
            f"more than {limit} subscriptions match, page_size; use narrower filters",
        )
    return pb.FetchSubscriptionsResponse(
        subscriptions=[_subscription_message(each, state.subscription_status(each.topic)) for each in found]
    )


def _candidates(
    topics: UUri, subscribers: UUri, directory: InMemoryDirectory
) -> Iterable[SubscriptionRecord]:
    if topics.wildcard() is None:
        return directory.exact_subscriptions(topics)
    if subscribers.wildcard() is None:
        return directory.subscribed_by(subscribers)
    return directory


MUTATIONS: Final[Mapping[tuple[int, int], MutationHandler]] = {
    (VERSION, 1): subscribe,
    (VERSION, 2): unsubscribe,
    (VERSION, 4): register_for_notifications,
    (VERSION, 5): unregister_for_notifications,
    (VERSION, 6): reset,
}
QUERIES: Final[Mapping[tuple[int, int], QueryHandler]] = {(VERSION, 3): fetch_subscriptions}


# --- Updates ----------------------------------------------------------------------------------------------------------


def encode_change(change: SubscriptionStatusChange) -> pb.Subscription:
    """The payload on topic 0x8000.

    [impl->req~usubscription-change-message-type~1]
    """
    return _subscription_message(change.entry, change.status)


# --- parts of requests and responses ------------------------------------------------------------------------


def _requested_topic(request: pb.SubscribeRequest | pb.UnsubscribeRequest) -> UUri:
    """The topic that a request names; INVALID_ARGUMENT naming the part that is not as it must be (X-16 to X-19)."""
    if not request.HasField("topic"):
        raise invalid_argument("topic: missing")
    topic = UUri.from_pb(request.topic)
    if not topic.authority_name:
        raise invalid_argument(f"topic {topic}: its authority is empty, expected a name")
    one_instance = UUri(topic.authority_name, topic.ue_type, topic.ue_version_major, topic.resource_id)
    part = one_instance.wildcard()
    if part is not None:
        raise invalid_argument(f"topic {topic}: its {part} is a wildcard, expected a specific one")
    check_topic_resource(topic)
    return topic


def _filter_pattern(message: uri.UUri, call: CallContext) -> UUri:
    return UUri.from_pb(message).with_authority(call.authority)


def _status_number(status: Status) -> int:
    return status + 1  # version 3 has no UNSPECIFIED


def _subscription_message(entry: SubscriptionRecord, status: Status) -> pb.Subscription:
    """A subscription, with its attributes unless it has ended; a period below 1 ms is left out, as in version 3."""
    message = pb.Subscription(
        topic=entry.topic.to_pb(), subscriber=entry.subscriber.to_pb(), status=_status_number(status)
    )
    if status is Status.UNSUBSCRIBED:
        return message
    if entry.expire_ms is not None:
        message.expiration.CopyFrom(timestamp_of(entry.expire_ms))
    sample_period = sample_period_ms_of(entry.period_ns)
    if sample_period is not None:
        message.sample_period = sample_period
    return message
