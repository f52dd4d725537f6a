# SPDX-License-Identifier: Apache-2.0
"""The operations of core.usubscription version 3, as tables by (version, method).

Decisions only: a change is drafted, a question is answered from the directory. Who calls when, and what has to happen
between a draft and its answer, is the service's business.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Literal, TypeVar

from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION, Status
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb.ustatus import UStatus
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.model.subscription import Changed, Observer, Tracked
from ustreamer_usubscription.requests import operations
from ustreamer_usubscription.requests.operations import Change, Question
from ustreamer_usubscription.requests.policy import Policy
from ustreamer_usubscription.requests.requests import Call, attributes_of, specific, topic_of, track, unpack
from ustreamer_usubscription.store.transaction import Draft, State

T = TypeVar("T")

VERSION: Final = 3

# --- changes ----------------------------------------------------------------------------------------------------------


def subscribe(call: Call, draft: Draft) -> pb.SubscriptionResponse:
    """Method 1. The caller becomes a subscriber of the topic, or its subscription becomes what it now asks for.

    [impl->dsn~usubscription-subscribe-protobuf~1] [impl->req~usubscription-subscribe~1]
    [impl->req~usubscription-subscribe-multiple~1] [impl->req~usubscription-subscribe-expiration-extension~1]
    [impl->req~usubscription-subscribe-no-expiration~1] [impl->dsn~usubscription-subscribe-invalid-topic~1]
    """
    request = unpack(pb.SubscriptionRequest, call)
    topic = _topic(request, call)
    _refuse_impostor(request, call)
    status, why = operations.subscribe(track(topic, call.caller, request.attributes), call, draft)
    return pb.SubscriptionResponse(
        status=pb.SubscriptionStatus(state=int(status), message=why),
        topic=topic.to_pb(),
        config=call.policy.delivery_of(topic),
    )


def unsubscribe(call: Call, draft: Draft) -> pb.UnsubscribeResponse:
    """Method 2. The caller is no subscriber of the topic any more; an empty answer says UNSUBSCRIBED (X-3).

    [impl->dsn~usubscription-unsubscribe-protobuf~1] [impl->req~usubscription-unsubscribe~1]
    [impl->req~usubscription-unsubscribe-multiple~1] [impl->dsn~usubscription-unsubscribe-invalid-topic~1]
    """
    request = unpack(pb.UnsubscribeRequest, call)
    topic = _topic(request, call)
    _refuse_impostor(request, call)
    draft.remove((topic, call.caller))
    return pb.UnsubscribeResponse()


def register_for_notifications(call: Call, draft: Draft) -> pb.NotificationsResponse:
    """Method 6. The caller is told of every change of the topic's subscriptions from now on.

    [impl->dsn~usubscription-register-notifications-protobuf~1] [impl->req~usubscription-register-notifications~1]
    [impl->dsn~usubscription-register-notifications-invalid-topic~1]
    """
    request = unpack(pb.NotificationsRequest, call)
    topic = _topic(request, call)
    _refuse_impostor(request, call)
    operations.register(Observer(topic, call.caller, VERSION), call, draft)
    return pb.NotificationsResponse()


def unregister_for_notifications(call: Call, draft: Draft) -> pb.NotificationsResponse:
    """Method 7. The caller is told of no more changes of the topic's subscriptions; always succeeds.

    [impl->dsn~usubscription-unregister-notifications-protobuf~1] [impl->req~usubscription-unregister-notifications~1]
    [impl->dsn~usubscription-unregister-notifications-invalid-topic~1]
    """
    request = unpack(pb.NotificationsRequest, call)
    topic = _topic(request, call)
    _refuse_impostor(request, call)
    draft.unregister((topic, call.caller))
    return pb.NotificationsResponse()


def reset(call: Call, draft: Draft) -> pb.ResetResponse:
    """Method 9. All subscriptions and then all registrations end, in memory and in the store (X-21: `before` is ignored).

    [impl->dsn~usubscription-reset-protobuf~1] [impl->req~usubscription-reset~1]
    [impl->req~usubscription-reset-only-usubscription~1] `caller` can be believed. A message is accepted only from the
    endpoint behind which its source's authority lives, and ue_id 0 at an authority that this streamer serves lives in
    this process: from outside, the core refuses it as spoofed. So the caller is the uSubscription of a peer, or we;
    whoever lives at an authority that the configuration does not name could be anybody, and is refused.
    """
    request = unpack(pb.ResetRequest, call)
    operations.check_peer(call, is_usubscription=call.caller.ue_id == USUBSCRIPTION)
    operations.reset(call, draft, request.reason.message)
    return pb.ResetResponse()


def create_topic(call: Call, draft: Draft) -> UStatus:
    """Method 4, which the standard had until 2024-04-09. The caller declares one of its topics.

    [impl->LIF-1] [impl->LIF-4] [impl->LIF-9]
    """
    operations.create_topic(_topic(unpack(pb.CreateTopicRequest, call), call), call, draft)
    return UStatus()


def deprecate_topic(call: Call, draft: Draft) -> UStatus:
    """Method 5, which the standard had until 2024-04-09. A topic of the caller's takes no new subscriptions any more.

    [impl->LIF-4] [impl->LIF-6] [impl->LIF-9]
    """
    operations.deprecate_topic(_topic(unpack(pb.DeprecateTopicRequest, call), call), call, draft)
    return UStatus()


# --- questions --------------------------------------------------------------------------------------------------------


def fetch_subscriptions(call: Call, state: State, limit: int) -> pb.FetchSubscriptionsResponse:
    """Method 3. The subscriptions of a topic or of a subscriber; of everybody if neither is named (X-27).

    [impl->dsn~usubscription-fetch-subscriptions-protobuf~1]
    [impl->req~usubscription-fetch-subscriptions-by-topic~1]
    [impl->req~usubscription-fetch-subscriptions-by-subscriber~1]
    [impl->dsn~usubscription-fetch-subscriptions-invalid-topic~1]
    [impl->dsn~usubscription-fetch-subscriptions-invalid-subscriber~1]
    [impl->req~usubscription-fetch-subscriptions-stable-sorting~1]
    [impl->req~usubscription-fetch-subscriptions-offset~1]
    [impl->req~usubscription-fetch-subscriptions-has-more-records~1]
    """
    request = unpack(pb.FetchSubscriptionsRequest, call)
    entries, more = _page(_asked_for(request, call, state.directory), request.offset, limit)
    return pb.FetchSubscriptionsResponse(
        subscriptions=[_subscription(entry, state, call.policy) for entry in entries], has_more_records=more
    )


def _asked_for(request: pb.FetchSubscriptionsRequest, call: Call, directory: Directory) -> Iterable[Tracked]:
    match request.WhichOneof("request"):
        case "topic":
            return directory.subscribers(topic_of(request.topic, call))
        case "subscriber":
            if not request.subscriber.HasField("uri"):
                raise invalid("subscriber: its uri is missing")
            return directory.subscribed_by(specific("subscriber", request.subscriber.uri, call))
        case _:
            return directory


def fetch_subscribers(call: Call, state: State, limit: int) -> pb.FetchSubscribersResponse:
    """Method 8. The subscribers of a topic.

    [impl->dsn~usubscription-fetch-subscribers-protobuf~1] [impl->req~usubscription-fetch-subscribers~1]
    [impl->dsn~usubscription-fetch-subscribers-invalid-topic~1]
    [impl->req~usubscription-fetch-subscribers-stable-sorting~1]
    [impl->req~usubscription-fetch-subscribers-offset~1]
    [impl->req~usubscription-fetch-subscribers-has-more-records~1]
    """
    request = unpack(pb.FetchSubscribersRequest, call)
    # Whoever subscribed the topic of every instance as well is one subscriber.
    each = dict.fromkeys(entry.subscriber for entry in state.directory.subscribers(_topic(request, call)))
    subscribers, more = _page(each, request.offset, limit)
    return pb.FetchSubscribersResponse(
        subscribers=[_subscriber(subscriber) for subscriber in subscribers], has_more_records=more
    )


CHANGES: Final[Mapping[tuple[int, int], Change]] = {
    (VERSION, 1): subscribe,
    (VERSION, 2): unsubscribe,
    (VERSION, 6): register_for_notifications,
    (VERSION, 7): unregister_for_notifications,
    (VERSION, 9): reset,
}
LIFECYCLE: Final[Mapping[tuple[int, int], Change]] = {
    (VERSION, 4): create_topic,
    (VERSION, 5): deprecate_topic,
}
"""Changes that there are only where a topic lifecycle is kept: today's standard has no method 4 and 5."""

QUESTIONS: Final[Mapping[tuple[int, int], Question]] = {
    (VERSION, 3): fetch_subscriptions,
    (VERSION, 8): fetch_subscribers,
}


# --- changes, as they are told ----------------------------------------------------------------------------------------


def update(changed: Changed) -> pb.Update:
    """What topic SubscriptionChange carries.

    [impl->dsn~usubscription-change-notification-type~1]
    """
    entry = changed.entry
    message = pb.Update(
        topic=entry.topic.to_pb(),
        subscriber=_subscriber(entry.subscriber),
        status=pb.SubscriptionStatus(state=int(changed.status), message=changed.why),
    )
    attributes = attributes_of(entry)
    if changed.status is not Status.UNSUBSCRIBED and attributes.ByteSize():
        message.attributes.CopyFrom(attributes)
    return message


# --- parts of requests and answers ------------------------------------------------------------------------------------


def _topic(
    request: pb.SubscriptionRequest
    | pb.UnsubscribeRequest
    | pb.NotificationsRequest
    | pb.FetchSubscribersRequest
    | pb.CreateTopicRequest
    | pb.DeprecateTopicRequest,
    call: Call,
) -> UUri:
    if not request.HasField("topic"):
        raise invalid("topic: missing")
    return topic_of(request.topic, call)


def _refuse_impostor(
    request: pb.SubscriptionRequest | pb.UnsubscribeRequest | pb.NotificationsRequest, call: Call
) -> None:
    """PERMISSION_DENIED if the legacy field `subscriber` names somebody else than the caller (X-4)."""
    if not request.subscriber.HasField("uri"):
        return
    named = UUri.from_pb(request.subscriber.uri).with_authority(call.authority)
    if named != call.caller:
        raise UStatusError(
            UCode.PERMISSION_DENIED,
            f"subscriber {named}: the caller is {call.caller}, and may act for nobody else",
        )


def _page(entries: Iterable[T], offset: int, limit: int) -> tuple[list[T], Literal[True] | None]:
    """At most `limit` of `entries` from `offset` on, and True if there are more (else the field stays unset, X-6)."""
    rest = iter(islice(entries, offset, None))
    page = list(islice(rest, limit))
    return page, True if next(rest, None) is not None else None


def _subscriber(subscriber: UUri) -> pb.SubscriberInfo:
    return pb.SubscriberInfo(uri=subscriber.to_pb())


def _subscription(entry: Tracked, state: State, policy: Policy) -> pb.Subscription:
    return pb.Subscription(
        topic=entry.topic.to_pb(),
        subscriber=_subscriber(entry.subscriber),
        status=pb.SubscriptionStatus(state=int(state.status_of(entry.topic))),
        attributes=attributes_of(entry),
        config=policy.delivery_of(entry.topic),
    )
