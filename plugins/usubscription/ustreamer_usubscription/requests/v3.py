# SPDX-License-Identifier: Apache-2.0
"""The operations of core.usubscription version 3, as tables by (version, method).

Decisions only: a change is applied to a transaction, a query is answered from the directory. The service calls the
operations, commits and sends.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Literal, TypeVar

from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION, Status
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb.ustatus import UStatus
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord, SubscriptionStatusChange
from ustreamer_usubscription.requests import operations
from ustreamer_usubscription.requests.operations import MutationHandler, QueryHandler
from ustreamer_usubscription.requests.policy import SubscriptionPolicy
from ustreamer_usubscription.requests.requests import (
    CallContext,
    specific_uuri,
    subscribe_attributes_of,
    subscription_record,
    topic_uuri,
    unpack_request,
)
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

T = TypeVar("T")

VERSION: Final = 3

# --- changes ----------------------------------------------------------------------------------------------------------


def subscribe(call: CallContext, transaction: Transaction) -> pb.SubscriptionResponse:
    """Method 1. Subscribe the caller to the topic, or change its subscription.

    [impl->dsn~usubscription-subscribe-protobuf~1] [impl->req~usubscription-subscribe~1]
    [impl->req~usubscription-subscribe-multiple~1] [impl->req~usubscription-subscribe-expiration-extension~1]
    [impl->req~usubscription-subscribe-no-expiration~1] [impl->dsn~usubscription-subscribe-invalid-topic~1]
    """
    request = unpack_request(pb.SubscriptionRequest, call)
    topic = _requested_topic(request, call)
    _check_subscriber_is_caller(request, call)
    status, reason = operations.subscribe(
        subscription_record(topic, call.caller, request.attributes), call, transaction
    )
    return pb.SubscriptionResponse(
        status=pb.SubscriptionStatus(state=int(status), message=reason),
        topic=topic.to_pb(),
        config=call.policy.delivery_config_of(topic),
    )


def unsubscribe(call: CallContext, transaction: Transaction) -> pb.UnsubscribeResponse:
    """Method 2. End the caller's subscription of the topic; an empty response means UNSUBSCRIBED (X-3).

    [impl->dsn~usubscription-unsubscribe-protobuf~1] [impl->req~usubscription-unsubscribe~1]
    [impl->req~usubscription-unsubscribe-multiple~1] [impl->dsn~usubscription-unsubscribe-invalid-topic~1]
    """
    request = unpack_request(pb.UnsubscribeRequest, call)
    topic = _requested_topic(request, call)
    _check_subscriber_is_caller(request, call)
    transaction.remove_subscription((topic, call.caller))
    return pb.UnsubscribeResponse()


def register_for_notifications(call: CallContext, transaction: Transaction) -> pb.NotificationsResponse:
    """Method 6. Notify the caller of every change of the topic's subscriptions.

    [impl->dsn~usubscription-register-notifications-protobuf~1] [impl->req~usubscription-register-notifications~1]
    [impl->dsn~usubscription-register-notifications-invalid-topic~1]
    """
    request = unpack_request(pb.NotificationsRequest, call)
    topic = _requested_topic(request, call)
    _check_subscriber_is_caller(request, call)
    operations.register(Observer(topic, call.caller, VERSION), call, transaction)
    return pb.NotificationsResponse()


def unregister_for_notifications(call: CallContext, transaction: Transaction) -> pb.NotificationsResponse:
    """Method 7. End the notifications of method 6; always succeeds.

    [impl->dsn~usubscription-unregister-notifications-protobuf~1] [impl->req~usubscription-unregister-notifications~1]
    [impl->dsn~usubscription-unregister-notifications-invalid-topic~1]
    """
    request = unpack_request(pb.NotificationsRequest, call)
    topic = _requested_topic(request, call)
    _check_subscriber_is_caller(request, call)
    transaction.unregister_observer((topic, call.caller))
    return pb.NotificationsResponse()


def reset(call: CallContext, transaction: Transaction) -> pb.ResetResponse:
    """Method 9.

    End all subscriptions and then all registrations, in memory and in the store (X-21: ignores `before`).

    [impl->dsn~usubscription-reset-protobuf~1] [impl->req~usubscription-reset~1]
    [impl->req~usubscription-reset-only-usubscription~1] `caller` is authentic: a message is accepted only from the
    endpoint of its source's authority, and ue_id 0 at an authority that this streamer serves is in this process, so the
    core refuses it from outside as spoofed. So the caller is the uSubscription of a peer, or this one. A caller at an
    authority that is not configured is refused.
    """
    request = unpack_request(pb.ResetRequest, call)
    operations.check_reset_caller(call, is_usubscription=call.caller.ue_id == USUBSCRIPTION)
    operations.reset(call, transaction, request.reason.message)
    return pb.ResetResponse()


def create_topic(call: CallContext, transaction: Transaction) -> UStatus:
    """Method 4, which the standard had until 2024-04-09. The caller declares one of its topics.

    [impl->LIF-1] [impl->LIF-4] [impl->LIF-9]
    """
    operations.create_topic(
        _requested_topic(unpack_request(pb.CreateTopicRequest, call), call), call, transaction
    )
    return UStatus()


def deprecate_topic(call: CallContext, transaction: Transaction) -> UStatus:
    """Method 5, which the standard had until 2024-04-09. Refuse new subscriptions of a topic of the caller.

    [impl->LIF-4] [impl->LIF-6] [impl->LIF-9]
    """
    operations.deprecate_topic(
        _requested_topic(unpack_request(pb.DeprecateTopicRequest, call), call), call, transaction
    )
    return UStatus()


# --- queries ----------------------------------------------------------------------------------------------------------


def fetch_subscriptions(call: CallContext, state: ServiceState, limit: int) -> pb.FetchSubscriptionsResponse:
    """Method 3. The subscriptions of a topic or of a subscriber; all if neither is given (X-27).

    [impl->dsn~usubscription-fetch-subscriptions-protobuf~1]
    [impl->req~usubscription-fetch-subscriptions-by-topic~1]
    [impl->req~usubscription-fetch-subscriptions-by-subscriber~1]
    [impl->dsn~usubscription-fetch-subscriptions-invalid-topic~1]
    [impl->dsn~usubscription-fetch-subscriptions-invalid-subscriber~1]
    [impl->req~usubscription-fetch-subscriptions-stable-sorting~1]
    [impl->req~usubscription-fetch-subscriptions-offset~1]
    [impl->req~usubscription-fetch-subscriptions-has-more-records~1]
    """
    request = unpack_request(pb.FetchSubscriptionsRequest, call)
    entries, more = _page(_requested_subscriptions(request, call, state.directory), request.offset, limit)
    return pb.FetchSubscriptionsResponse(
        subscriptions=[_subscription_message(entry, state, call.policy) for entry in entries],
        has_more_records=more,
    )


def _requested_subscriptions(
    request: pb.FetchSubscriptionsRequest, call: CallContext, directory: InMemoryDirectory
) -> Iterable[SubscriptionRecord]:
    match request.WhichOneof("request"):
        case "topic":
            return directory.subscribers(topic_uuri(request.topic, call))
        case "subscriber":
            if not request.subscriber.HasField("uri"):
                raise invalid_argument("subscriber: its uri is missing")
            return directory.subscribed_by(specific_uuri("subscriber", request.subscriber.uri, call))
        case _:
            return directory


def fetch_subscribers(call: CallContext, state: ServiceState, limit: int) -> pb.FetchSubscribersResponse:
    """Method 8. The subscribers of a topic.

    [impl->dsn~usubscription-fetch-subscribers-protobuf~1] [impl->req~usubscription-fetch-subscribers~1]
    [impl->dsn~usubscription-fetch-subscribers-invalid-topic~1]
    [impl->req~usubscription-fetch-subscribers-stable-sorting~1]
    [impl->req~usubscription-fetch-subscribers-offset~1]
    [impl->req~usubscription-fetch-subscribers-has-more-records~1]
    """
    request = unpack_request(pb.FetchSubscribersRequest, call)
    # A subscriber of the topic and of its every instance counts once.
    each = dict.fromkeys(
        entry.subscriber for entry in state.directory.subscribers(_requested_topic(request, call))
    )
    subscribers, more = _page(each, request.offset, limit)
    return pb.FetchSubscribersResponse(
        subscribers=[_subscriber_info(subscriber) for subscriber in subscribers], has_more_records=more
    )


MUTATIONS: Final[Mapping[tuple[int, int], MutationHandler]] = {
    (VERSION, 1): subscribe,
    (VERSION, 2): unsubscribe,
    (VERSION, 6): register_for_notifications,
    (VERSION, 7): unregister_for_notifications,
    (VERSION, 9): reset,
}
LIFECYCLE_MUTATIONS: Final[Mapping[tuple[int, int], MutationHandler]] = {
    (VERSION, 4): create_topic,
    (VERSION, 5): deprecate_topic,
}
"""Only with a topic lifecycle: the current standard has no methods 4 and 5."""

QUERIES: Final[Mapping[tuple[int, int], QueryHandler]] = {
    (VERSION, 3): fetch_subscriptions,
    (VERSION, 8): fetch_subscribers,
}


# --- Updates ----------------------------------------------------------------------------------------------------------


def encode_update(change: SubscriptionStatusChange) -> pb.Update:
    """The payload of topic SubscriptionChange.

    [impl->dsn~usubscription-change-notification-type~1]
    """
    entry = change.entry
    message = pb.Update(
        topic=entry.topic.to_pb(),
        subscriber=_subscriber_info(entry.subscriber),
        status=pb.SubscriptionStatus(state=int(change.status), message=change.reason),
    )
    attributes = subscribe_attributes_of(entry)
    if change.status is not Status.UNSUBSCRIBED and attributes.ByteSize():
        message.attributes.CopyFrom(attributes)
    return message


# --- parts of requests and responses ----------------------------------------------------------------------------------


def _requested_topic(
    request: pb.SubscriptionRequest
    | pb.UnsubscribeRequest
    | pb.NotificationsRequest
    | pb.FetchSubscribersRequest
    | pb.CreateTopicRequest
    | pb.DeprecateTopicRequest,
    call: CallContext,
) -> UUri:
    if not request.HasField("topic"):
        raise invalid_argument("topic: missing")
    return topic_uuri(request.topic, call)


def _check_subscriber_is_caller(
    request: pb.SubscriptionRequest | pb.UnsubscribeRequest | pb.NotificationsRequest, call: CallContext
) -> None:
    """PERMISSION_DENIED if the legacy field `subscriber` names an entity other than the caller (X-4)."""
    if not request.subscriber.HasField("uri"):
        return
    named = UUri.from_pb(request.subscriber.uri).with_authority(call.authority)
    if named != call.caller:
        raise UStatusError(
            UCode.PERMISSION_DENIED,
            f"subscriber {named}: the caller is {call.caller}, and may act only for itself",
        )


def _page(entries: Iterable[T], offset: int, limit: int) -> tuple[list[T], Literal[True] | None]:
    """At most `limit` of `entries` from `offset` on, and True if there are more (else the field stays unset, X-6)."""
    rest = iter(islice(entries, offset, None))
    page = list(islice(rest, limit))
    return page, True if next(rest, None) is not None else None


def _subscriber_info(subscriber: UUri) -> pb.SubscriberInfo:
    return pb.SubscriberInfo(uri=subscriber.to_pb())


def _subscription_message(
    entry: SubscriptionRecord, state: ServiceState, policy: SubscriptionPolicy
) -> pb.Subscription:
    return pb.Subscription(
        topic=entry.topic.to_pb(),
        subscriber=_subscriber_info(entry.subscriber),
        status=pb.SubscriptionStatus(state=int(state.subscription_status(entry.topic))),
        attributes=subscribe_attributes_of(entry),
        config=policy.delivery_config_of(entry.topic),
    )
