# SPDX-License-Identifier: Apache-2.0
"""What sessions want of the vehicle, said to its uSubscription: by its RPC, like any other subscriber. Does no I/O.

Each session is a uEntity of its own. For each of its topics there is one `Wish`; at most one call about it is under way,
and what is wanted by the time of the answer is called for next. So calls about a topic keep their order, and the last
word wins.

uSubscription tells a subscriber when a subscription of its has ended otherwise: refused by another device, expired, reset.
Such an Update may be overtaken by the answer to a newer Subscribe, so it is a reason to ask, and what is answered counts.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri, any_at
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.realm import SubscribeCallback
from ustreamer_wamp.vehicle.usubscription_codec import (
    call_failure_in,
    encode_subscribe,
    encode_unsubscribe,
    refusal_of,
    status_update_in,
    subscribed_topic_in,
    subscription_exists,
    version_for,
)

MAX_PENDING_CALLS: Final = 256
"""Calls under way at most; whoever comes next waits for an answer."""
TTL_MS: Final = 5_000
UNRESPONSIVE_WAIT_MS: Final = 500
"""How long clients wait while no call was answered since the last one that was given up: there may be no uSubscription."""
_NS_PER_MS: Final = 1_000_000
ENTITY_TYPE: Final = 0x8001
"""Type of the uEntities that sessions are; their instance is the number of the session, and 0 is the plugin itself."""
_RETRY_DELAY_NS: Final = 1_000_000_000
_MAX_UNSUBSCRIBE_ATTEMPTS: Final = 60
_SUBSCRIBE, _UNSUBSCRIBE, _FETCH = 1, 2, 3
_CHANGE: Final = 0x8000
_NOT_DELIVERED: Final = frozenset({UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED})
"""What somebody on the way answers for a uSubscription that is not there (X-26)."""


class ClientSubscription:
    """One session's wish for one topic: what it is, and what uSubscription has been told. None: no subscription."""

    __slots__ = (
        "callbacks",
        "confirmed_ns",
        "deadline_ns",
        "desired_ns",
        "entity",
        "failures",
        "is_revalidating",
        "pending_call",
        "requested_ns",
        "suspected_reason",
        "topic",
        "waiting_since_ns",
    )

    def __init__(self, entity: UUri, topic: UUri) -> None:
        self.entity = entity
        self.topic = topic
        self.desired_ns: int | None = None  # period in ns, 0 for every message
        self.confirmed_ns: int | None = None
        self.requested_ns: int | None = None
        self.pending_call: UUID | None = None
        self.deadline_ns = 0  # when the open call is given up, or the next one may be made
        self.waiting_since_ns = 0  # when the first of those who wait for an answer came
        self.failures = 0
        self.suspected_reason: str | None = None  # why it is said to have ended, which is not sure yet
        self.is_revalidating = False  # whether the open call is the question if it has
        self.callbacks: list[SubscribeCallback] = []


class UsubscriptionClient:
    """All wishes of all sessions. Belongs to one thread."""

    def __init__(
        self,
        authority: str,
        ids: UuidSource,
        send: Callable[[UMessage], None],
        monotonic_ns: Callable[[], int],
        counts: Counter[str],
    ) -> None:
        """`authority` is the streamer's own. `send` takes a request and never raises; answers go to `answered`."""
        self._service = UUri(authority, 0, 3, 0)
        self._updates = frozenset(UUri(authority, 0, version, _CHANGE) for version in (3, 4))
        self._ids = ids
        self._send = send
        self._monotonic_ns = monotonic_ns
        self._counts = counts
        self.on_subscription_ended: Callable[[UUri, UUri, str], None] = lambda entity, topic, why: None
        """Called when a subscription of an entity has ended that is still wanted, with the reason."""
        self._is_unresponsive = False  # the last call was not answered
        self._subscriptions: dict[tuple[UUri, UUri], ClientSubscription] = {}
        self._by_entity: dict[UUri, dict[UUri, ClientSubscription]] = {}
        self._pending_calls: dict[UUID, ClientSubscription] = {}
        self._waiting_calls: deque[ClientSubscription] = deque()
        self._fetch_call: UUID | None = None
        self._fetch_deadline_ns = 0

    # --- what is wanted -----------------------------------------------------------------------------------------------

    def subscribe(self, entity: UUri, topic: UUri, period_ns: int, done: SubscribeCallback) -> None:
        """Have `entity` subscribe `topic`; `done` is called with the answer, or with None if it is told already."""
        subscription = self._subscriptions.get((entity, topic))
        if subscription is None:
            if self._is_unresponsive and len(self._pending_calls) >= MAX_PENDING_CALLS:
                done(refusal_of(_NO_RESPONSE))  # what is refused in time would pile up here
                return
            subscription = self._add(entity, topic)
        subscription.desired_ns = period_ns
        subscription.failures = 0
        if not subscription.callbacks:
            subscription.waiting_since_ns = self._monotonic_ns()
        subscription.callbacks.append(done)
        self._reconcile(subscription)

    def unsubscribe(self, entity: UUri, topic: UUri) -> None:
        """Have `entity` unsubscribe; whoever waits for the topic is called, as if it had been answered."""
        subscription = self._subscriptions.get((entity, topic))
        if subscription is None:
            return
        subscription.desired_ns = None
        subscription.failures = 0
        self._notify_callbacks(subscription, None)
        self._reconcile(subscription)

    def subscribe_nowait(self, entity: UUri, topic: UUri, period_ns: int) -> None:
        """As `want`, for nobody who waits; and whoever waits for the topic is called, as if it had been answered."""
        self.subscribe(entity, topic, period_ns, lambda refusal: None)
        subscription = self._subscriptions.get((entity, topic))
        if subscription is not None:
            self._notify_callbacks(subscription, None)

    def unsubscribe_all(self, entity: UUri) -> None:
        """Have `entity` unsubscribe all that it wants."""
        for topic in list(self._by_entity.get(entity, {})):
            self.unsubscribe(entity, topic)

    def _add(self, entity: UUri, topic: UUri) -> ClientSubscription:
        subscription = self._subscriptions[entity, topic] = ClientSubscription(entity, topic)
        self._by_entity.setdefault(entity, {})[topic] = subscription
        return subscription

    def _remove(self, subscription: ClientSubscription) -> None:
        if self._subscriptions.pop((subscription.entity, subscription.topic), None) is not None:
            topics = self._by_entity[subscription.entity]
            del topics[subscription.topic]
            if not topics:
                del self._by_entity[subscription.entity]

    def has_subscriptions(self, entity: UUri) -> bool:
        """Whether anything is still to be said for `entity`."""
        return entity in self._by_entity

    def __len__(self) -> int:
        return len(self._subscriptions)

    # --- calling ------------------------------------------------------------------------------------------------------

    def _reconcile(self, subscription: ClientSubscription) -> None:
        if subscription.pending_call is not None:
            return  # its answer leads here again
        if subscription.desired_ns == subscription.confirmed_ns:
            self._notify_callbacks(subscription, None)
            if subscription.desired_ns is None:
                self._remove(subscription)
                return
            if subscription.suspected_reason is None:
                return
        if len(self._pending_calls) >= MAX_PENDING_CALLS:
            self._waiting_calls.append(subscription)
        else:
            self._send_call(subscription)

    def _send_call(self, subscription: ClientSubscription) -> None:
        subscription.requested_ns = subscription.desired_ns
        subscription.is_revalidating = (
            subscription.desired_ns is not None and subscription.desired_ns == subscription.confirmed_ns
        )
        id = self._ids.next()
        subscription.pending_call = id
        subscription.deadline_ns = self._call_deadline_ns()
        self._pending_calls[id] = subscription
        self._counts["calls"] += 1
        if subscription.is_revalidating:
            fetch_request = pb4.FetchSubscriptionsRequest(
                topic_filter=subscription.topic.to_pb(), subscriber_filter=subscription.entity.to_pb()
            )
            self._send(
                self._build_request(
                    id, subscription.entity, _FETCH, fetch_request.SerializeToString(), version=4
                )
            )
        elif subscription.requested_ns is None:
            payload, version = encode_unsubscribe(subscription.topic), version_for(subscription.topic)
            self._send(self._build_request(id, subscription.entity, _UNSUBSCRIBE, payload, version))
        else:
            payload, version = (
                encode_subscribe(subscription.topic, subscription.requested_ns),
                version_for(subscription.topic),
            )
            self._send(self._build_request(id, subscription.entity, _SUBSCRIBE, payload, version))

    def _build_request(
        self, id: UUID, entity: UUri, method: int, payload: bytes, version: int = 3
    ) -> UMessage:
        sink = UUri(self._service.authority_name, 0, version, method)
        return request(id, entity, sink, payload, UPayloadFormat.PROTOBUF, ttl=TTL_MS)

    def _call_deadline_ns(self) -> int:
        """When a call that is made now is given up: some time after its ttl, whose end may be answered, too."""
        return self._monotonic_ns() + (TTL_MS + 500) * _NS_PER_MS

    def on_response(self, message: UMessage) -> None:
        """Take the Response to a call; others are ignored."""
        reqid = message.attributes.reqid
        if message.attributes.type is not UMessageType.RESPONSE or reqid is None:
            return
        self._is_unresponsive = message.attributes.commstatus in _NOT_DELIVERED
        if reqid == self._fetch_call:
            self._fetch_call = None
            self._on_stale_sessions(message)
            return
        subscription = self._pending_calls.pop(reqid, None)
        if subscription is None:
            self._on_late_response(message)
            return
        subscription.pending_call = None
        if subscription.is_revalidating:
            self._on_revalidated(subscription, message)
            return
        failure = call_failure_in(
            message, subscription.topic, is_subscribe=subscription.requested_ns is not None
        )
        if failure is None:
            subscription.confirmed_ns = subscription.requested_ns
            subscription.failures = 0
        else:
            self._on_failure(subscription, failure)
        self._reconcile(subscription)
        self._send_waiting_calls()

    def _on_failure(self, subscription: ClientSubscription, failure: UStatus) -> None:
        """A Subscribe that failed is over, and the client told; an Unsubscribe is tried again, for a minute."""
        self._counts["calls_failed"] += 1
        if subscription.requested_ns is not None:
            if subscription.desired_ns is not None:
                subscription.desired_ns = subscription.confirmed_ns
                self._notify_callbacks(subscription, refusal_of(failure))
            return
        subscription.failures += 1
        if subscription.failures >= _MAX_UNSUBSCRIBE_ATTEMPTS:
            subscription.confirmed_ns = None
            return
        if subscription.desired_ns is None:
            # Not now: whoever refused this is likely to refuse the next one, too.
            subscription.pending_call = _RETRY_PENDING
            subscription.deadline_ns = self._monotonic_ns() + _RETRY_DELAY_NS

    def _on_late_response(self, message: UMessage) -> None:
        """End a subscription that came after its client had been told that there is none."""
        attributes = message.attributes
        if attributes.commstatus or attributes.source.resource_id != _SUBSCRIBE or attributes.sink is None:
            return
        topic, entity = subscribed_topic_in(message), attributes.sink.with_resource(0)
        if topic is not None and (entity, topic) not in self._subscriptions:
            self._counts["calls_answered_late"] += 1
            subscription = self._add(entity, topic)
            subscription.confirmed_ns = 0
            self._reconcile(subscription)

    # --- what ends by itself ------------------------------------------------------------------------------------------

    def is_subscription_update(self, message: UMessage) -> bool:
        """Whether a Notification is one by which uSubscription tells that a subscription has changed."""
        return message.attributes.source in self._updates

    def on_subscription_update(self, message: UMessage) -> None:
        """Take such a one; what says nothing is ignored."""
        sink, update = message.attributes.sink, status_update_in(message)
        subscription = (
            None if sink is None or update is None else self._subscriptions.get((sink, update.topic))
        )
        if (
            update is None
            or subscription is None
            or subscription.desired_ns is None
            or subscription.confirmed_ns is None
        ):
            return  # it says nothing, or what it was asked to do
        if update.has_ended:
            subscription.suspected_reason = update.why or "it has ended at uSubscription"
            self._reconcile(subscription)

    def _on_revalidated(self, subscription: ClientSubscription, message: UMessage | None) -> None:
        """Take the answer to the question whether a subscription stands; where there is none, the Update is believed."""
        why, subscription.suspected_reason, subscription.is_revalidating = (
            subscription.suspected_reason,
            None,
            False,
        )
        if (
            why is not None
            and subscription.desired_ns is not None
            and (message is None or not subscription_exists(message))
        ):
            self._counts["subscriptions_ended"] += 1
            subscription.desired_ns = None
            # What is told stays: an Unsubscribe of what is not there does no harm, and an answer may have been lost.
            self._notify_callbacks(subscription, WampRefusal(f"up.error.{UCode.NOT_FOUND.name.lower()}", why))
            self.on_subscription_ended(subscription.entity, subscription.topic, why)
        self._reconcile(subscription)
        self._send_waiting_calls()

    def _send_waiting_calls(self) -> None:
        while self._waiting_calls and len(self._pending_calls) < MAX_PENDING_CALLS:
            subscription = self._waiting_calls.popleft()
            if self._subscriptions.get((subscription.entity, subscription.topic)) is subscription:
                self._reconcile(subscription)

    def tick(self, now_ns: int) -> None:
        """Give up calls that were not answered, and make those again that are due."""
        if self._fetch_call is not None and now_ns >= self._fetch_deadline_ns:
            self._fetch_call = None
            self._is_unresponsive = True
        for subscription in [
            each
            for each in self._subscriptions.values()
            if each.pending_call is not None and now_ns >= each.deadline_ns
        ]:
            if subscription.pending_call is not None and subscription.pending_call != _RETRY_PENDING:
                self._pending_calls.pop(subscription.pending_call, None)
                subscription.pending_call = None
                self._is_unresponsive = True
                if subscription.is_revalidating:
                    self._on_revalidated(subscription, None)
                    continue
                self._on_failure(subscription, _NO_RESPONSE)
            else:
                subscription.pending_call = None
            if subscription.pending_call is None:
                self._reconcile(subscription)
        self._send_waiting_calls()
        if self._is_unresponsive:
            self._fail_waiting(now_ns - UNRESPONSIVE_WAIT_MS * _NS_PER_MS)

    def _fail_waiting(self, before_ns: int) -> None:
        """Tell who has waited since then that there is no answer. Should one come yet, what it says is undone."""
        for subscription in list(self._subscriptions.values()):
            if subscription.callbacks and subscription.waiting_since_ns <= before_ns:
                subscription.desired_ns = subscription.confirmed_ns
                self._notify_callbacks(subscription, refusal_of(_NO_RESPONSE))

    def _notify_callbacks(self, subscription: ClientSubscription, refusal: WampRefusal | None) -> None:
        callbacks, subscription.callbacks = subscription.callbacks, []
        for done in callbacks:
            done(refusal)

    # --- those of before ----------------------------------------------------------------------------------------------

    def unsubscribe_stale_sessions(self, authority: str) -> None:
        """Unsubscribe for all sessions of a process that ended without doing so; before the first session of this one."""
        self._fetch_call = self._ids.next()
        self._fetch_deadline_ns = self._call_deadline_ns()
        fetch_request = pb4.FetchSubscriptionsRequest(
            subscriber_filter=any_at(authority).with_resource(0).to_pb()
        )
        entity = UUri(authority, ENTITY_TYPE, 1, 0)
        self._send(
            self._build_request(
                self._fetch_call, entity, _FETCH, fetch_request.SerializeToString(), version=4
            )
        )

    def _on_stale_sessions(self, message: UMessage) -> None:
        if message.attributes.commstatus:
            return  # there is no uSubscription, or it is too full to be asked
        found = pb4.FetchSubscriptionsResponse()
        try:
            found.ParseFromString(message.payload)
        except DecodeError:
            return
        for each in found.subscriptions:
            entity, topic = UUri.from_pb(each.subscriber), UUri.from_pb(each.topic)
            if (entity, topic) not in self._subscriptions:
                subscription = self._add(entity, topic)
                subscription.confirmed_ns = 0
                self._counts["stale_subscriptions_removed"] += 1
                self._reconcile(subscription)


_NO_RESPONSE: Final = UStatus(UCode.DEADLINE_EXCEEDED, "no answer from uSubscription")
_RETRY_PENDING: Final = UUID(0, 0)
"""Stands for an open call while one is waited with."""
