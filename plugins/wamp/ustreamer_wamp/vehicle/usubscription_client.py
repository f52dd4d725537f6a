# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of WAMP sessions at uSubscription, requested by its RPC like those of any other subscriber.

No I/O.

In: desired subscriptions of sessions, Responses and Updates, the time. Out: Requests, and results for the
sessions. Each rate is a uEntity, which the sessions at this rate share. A `SubscriptionReconciler` orders the calls
about one topic of one rate. At most one call is pending; a value that changes meanwhile is requested after its response.

uSubscription announces the end of a subscription (rejected by another device, expired, reset) by an Update. The
response to a newer Subscribe can overtake the Update. So an Update causes a FetchSubscriptions, and its response
decides.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from ustreamer.core.routing.subscription_reconciler import (
    ReconcilerPolicy,
    SubscriptionEntry,
    SubscriptionReconciler,
)
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri, any_at
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.realm import SubscribeCallback
from ustreamer_wamp.vehicle.batch import rate_entity
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
"""Pending calls at most; further ones wait for an answer."""
TTL_MS: Final = 5_000
UNRESPONSIVE_WAIT_MS: Final = 500
"""How long clients wait while the last call was not answered: there may be no uSubscription."""
_NS_PER_MS: Final = 1_000_000
_CALL_TIMEOUT_MS: Final = TTL_MS + 500
"""Longer than the ttl, because a response can arrive at the end of the ttl."""
_RETRY_DELAY_MS: Final = 1_000
_MAX_UNSUBSCRIBE_ATTEMPTS: Final = 60
_SUBSCRIBE, _UNSUBSCRIBE, _FETCH = 1, 2, 3
_CHANGE: Final = 0x8000
_NOT_DELIVERED: Final = frozenset({UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED})
"""Answers of a dispatcher in place of a uSubscription that is not there (X-26)."""
_POLICY: Final = ReconcilerPolicy(
    call_timeout_ms=_CALL_TIMEOUT_MS,
    max_in_flight=MAX_PENDING_CALLS,
    initial_backoff_ms=_RETRY_DELAY_MS,
    max_backoff_ms=_RETRY_DELAY_MS,
)

_Key: TypeAlias = tuple[UUri, UUri]
"""The uEntity of a rate, and a topic."""
_Entry: TypeAlias = SubscriptionEntry[_Key, int, UUID]
"""Its values are periods in ns, 0 for every message."""


class ClientSubscription:
    """One topic of one rate: the callers that wait for its result, and whether its end was announced."""

    __slots__ = ("callbacks", "is_repeated", "is_revalidating", "suspected_reason", "waiting_since_ns")

    def __init__(self) -> None:
        self.callbacks: list[SubscribeCallback] = []
        self.waiting_since_ns = 0  # of the first callback
        self.suspected_reason: str | None = None  # the reason of an Update that is not confirmed yet
        self.is_repeated = False  # a further Subscribe is due, with the acknowledged period
        self.is_revalidating = False  # the pending call is a FetchSubscriptions


class UsubscriptionClient:
    """The subscriptions of all sessions. Belongs to one thread."""

    def __init__(
        self,
        authority: str,
        ids: UuidSource,
        send: Callable[[UMessage], None],
        monotonic_ns: Callable[[], int],
        counts: Counter[str],
    ) -> None:
        """`authority` is the streamer's own.

        `send` takes a Request and never raises. The Response is passed to `on_response`.
        """
        self._service = UUri(authority, 0, 3, 0)
        self._updates = frozenset(UUri(authority, 0, version, _CHANGE) for version in (3, 4))
        self._ids = ids
        self._send = send
        self._monotonic_ns = monotonic_ns
        self._counts = counts
        self.on_subscription_ended: Callable[[UUri, UUri, str], None] = lambda entity, topic, why: None
        """Called with the reason when a desired subscription of an entity has ended."""
        self._is_unresponsive = False  # the last call was not answered
        self._reconciler: SubscriptionReconciler[_Key, int, UUID] = SubscriptionReconciler(_POLICY)
        self._subscriptions: dict[_Key, ClientSubscription] = {}
        self._topics_of: dict[UUri, dict[UUri, None]] = {}
        self._fetch_call: UUID | None = None
        self._fetch_deadline_ns = 0

    # --- desired subscriptions ------------------------------------------------------------------------------

    def subscribe(
        self,
        entity: UUri,
        topic: UUri,
        period_ns: int,
        done: SubscribeCallback = lambda refusal: None,
        *,
        again: bool = False,
    ) -> None:
        """Subscribe `entity` to `topic`; `done` gets the refusal or None, at once if the period is acknowledged.

        With `again` uSubscription is called in any case. A field sends its value after each Subscribe.
        """
        key = (entity, topic)
        if key not in self._subscriptions:
            if self._is_unresponsive and self._reconciler.in_flight_count >= MAX_PENDING_CALLS:
                done(refusal_of(_NO_RESPONSE))  # a bound: entries are added faster than they time out
                return
            self._add(key, acknowledged_ns=None)
        subscription = self._subscriptions[key]
        if not subscription.callbacks:
            subscription.waiting_since_ns = self._monotonic_ns()
        subscription.callbacks.append(done)
        if again:
            subscription.is_repeated = True
            self._reconciler.set_desired(key, period_ns, force=True)
        self._set_desired(key, period_ns)

    def unsubscribe(self, entity: UUri, topic: UUri) -> None:
        """Unsubscribe `entity`; callers that wait for the topic are called, as if it had been answered."""
        key = (entity, topic)
        subscription = self._subscriptions.get(key)
        if subscription is not None:
            self._notify_callbacks(subscription, None)
            self._set_desired(key, None)

    def subscribe_nowait(self, entity: UUri, topic: UUri, period_ns: int) -> None:
        """As `subscribe`, without a callback. Callbacks that wait for the topic are called as after a response."""
        self.subscribe(entity, topic, period_ns)
        subscription = self._subscriptions.get((entity, topic))
        if subscription is not None:
            self._notify_callbacks(subscription, None)

    def has_subscriptions(self, entity: UUri) -> bool:
        """Whether `entity` has a subscription, or one to be ended."""
        return entity in self._topics_of

    def __len__(self) -> int:
        return len(self._subscriptions)

    def _add(self, key: _Key, acknowledged_ns: int | None) -> None:
        self._subscriptions[key] = ClientSubscription()
        self._topics_of.setdefault(key[0], {})[key[1]] = None
        self._reconciler.assume_acknowledged(key, acknowledged_ns)

    def _remove(self, key: _Key) -> None:
        self._reconciler.forget(key)
        if self._subscriptions.pop(key, None) is not None:
            entity, topic = key
            topics = self._topics_of[entity]
            del topics[topic]
            if not topics:
                del self._topics_of[entity]

    # --- calls ----------------------------------------------------------------------------------------------

    def _set_desired(self, key: _Key, desired_ns: int | None) -> None:
        self._reconciler.set_desired(key, desired_ns)
        self._update(key)
        self._send_due()

    def _update(self, key: _Key) -> None:
        """Finish without a call: notify the callers, and remove the subscription or have its end verified."""
        entry, subscription = self._reconciler.find(key), self._subscriptions.get(key)
        if entry is None or subscription is None or not entry.confirmed:
            return
        self._notify_callbacks(subscription, None)
        if entry.desired is None:
            self._remove(key)
        elif subscription.suspected_reason is not None:
            self._reconciler.set_desired(key, entry.desired, force=True)

    def _send_due(self) -> None:
        for entry in self._reconciler.pop_ready():
            subscription = self._subscriptions[entry.key]
            subscription.is_revalidating = False
            if entry.desired == entry.acknowledged:
                is_suspected = subscription.suspected_reason is not None
                if entry.desired is None or not (is_suspected or subscription.is_repeated):
                    self._reconciler.settle(entry)  # the value was changed back before a call
                    self._update(entry.key)
                    continue
                subscription.is_revalidating = is_suspected
            subscription.is_repeated = False
            self._send_call(entry, subscription)

    def _send_call(self, entry: _Entry, subscription: ClientSubscription) -> None:
        entity, topic = entry.key
        id = self._ids.next()
        self._reconciler.begin_call(entry, id, self._monotonic_ns())
        self._counts["calls"] += 1
        version = version_for(topic)
        if subscription.is_revalidating:
            fetch_request = pb4.FetchSubscriptionsRequest(
                topic_filter=topic.to_pb(), subscriber_filter=entity.to_pb()
            )
            message = self._build_request(id, entity, _FETCH, fetch_request.SerializeToString(), version=4)
        elif entry.desired is None:
            message = self._build_request(id, entity, _UNSUBSCRIBE, encode_unsubscribe(topic), version)
        else:
            payload = encode_subscribe(topic, entry.desired)
            message = self._build_request(id, entity, _SUBSCRIBE, payload, version)
        self._send(message)

    def _build_request(
        self, id: UUID, entity: UUri, method: int, payload: bytes, version: int = 3
    ) -> UMessage:
        sink = UUri(self._service.authority_name, 0, version, method)
        return request(id, entity, sink, payload, UPayloadFormat.PROTOBUF, ttl=TTL_MS)

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
        entry = self._reconciler.on_response(reqid)
        if entry is None:
            self._on_late_response(message)
            return
        if self._subscriptions[entry.key].is_revalidating:
            self._on_revalidated(entry, message)
        else:
            is_subscribe = entry.requested is not None
            self._on_result(entry, call_failure_in(message, entry.key[1], is_subscribe=is_subscribe))
        self._send_due()

    def _on_result(self, entry: _Entry, failure: UStatus | None) -> None:
        """A failed Subscribe is final and refused to the client; a failed Unsubscribe is repeated for a minute."""
        now_ns = self._monotonic_ns()
        if failure is None:
            self._reconciler.on_success(entry, now_ns)
        elif entry.requested is not None:
            self._counts["calls_failed"] += 1
            if entry.desired is not None:
                self._reconciler.revert_desired(entry.key)
                self._notify_callbacks(self._subscriptions[entry.key], refusal_of(failure))
            self._reconciler.settle(entry)
        else:
            self._counts["calls_failed"] += 1
            if entry.desired is not None:
                self._reconciler.settle(entry)
            elif entry.failures + 1 >= _MAX_UNSUBSCRIBE_ATTEMPTS:
                self._reconciler.on_success(entry, now_ns)  # abandoned
            else:
                # Not at once: the cause of this failure is likely to last.
                self._reconciler.on_failure(entry, now_ns)
        self._update(entry.key)

    def _on_late_response(self, message: UMessage) -> None:
        """End a subscription that was granted after its client got a refusal."""
        attributes = message.attributes
        if attributes.commstatus or attributes.source.resource_id != _SUBSCRIBE or attributes.sink is None:
            return
        topic, entity = subscribed_topic_in(message), attributes.sink.with_resource(0)
        if topic is not None and (entity, topic) not in self._subscriptions:
            self._counts["calls_answered_late"] += 1
            self._end_orphan((entity, topic))

    def _end_orphan(self, key: _Key) -> None:
        """Unsubscribe the subscriptions in uSubscription that no session desires."""
        self._add(key, acknowledged_ns=0)
        self._set_desired(key, None)

    # --- announced ends -------------------------------------------------------------------------------------

    def is_subscription_update(self, message: UMessage) -> bool:
        """Whether a Notification is an Update of uSubscription."""
        return message.attributes.source in self._updates

    def on_subscription_update(self, message: UMessage) -> None:
        """Take an Update. Only the end of a desired and acknowledged subscription has an effect."""
        sink, update = message.attributes.sink, status_update_in(message)
        if sink is None or update is None or not update.has_ended:
            return
        key = (sink, update.topic)
        entry, subscription = self._reconciler.find(key), self._subscriptions.get(key)
        if entry is None or subscription is None or entry.desired is None or entry.acknowledged is None:
            return
        subscription.suspected_reason = update.why or "it has ended at uSubscription"
        self._update(key)
        self._send_due()

    def _on_revalidated(self, entry: _Entry, message: UMessage | None) -> None:
        """Take the answer to a FetchSubscriptions; without an answer (None), the Update counts."""
        subscription = self._subscriptions[entry.key]
        why, subscription.suspected_reason = subscription.suspected_reason, None
        exists = message is not None and subscription_exists(message)
        if why is not None and entry.desired is not None and not exists:
            self._counts["subscriptions_ended"] += 1
            # An Unsubscribe follows: it does no harm where nothing is subscribed, and an answer may have been lost.
            entry.desired = None
            self._notify_callbacks(subscription, WampRefusal(f"up.error.{UCode.NOT_FOUND.name.lower()}", why))
            self.on_subscription_ended(*entry.key, why)
        self._reconciler.settle(entry)
        self._update(entry.key)

    def tick(self, now_ns: int) -> None:
        """Abandon calls without a response, and send the calls that are due."""
        if self._fetch_call is not None and now_ns >= self._fetch_deadline_ns:
            self._fetch_call = None
            self._is_unresponsive = True
        for entry in self._reconciler.pop_timeouts(now_ns):
            self._is_unresponsive = True
            if self._subscriptions[entry.key].is_revalidating:
                self._on_revalidated(entry, None)
            else:
                self._on_result(entry, _NO_RESPONSE)
        self._send_due()
        if self._is_unresponsive:
            self._fail_waiting(now_ns - UNRESPONSIVE_WAIT_MS * _NS_PER_MS)

    def _fail_waiting(self, before_ns: int) -> None:
        """Refuse subscriptions that have waited since then. A later grant is undone."""
        for key, subscription in list(self._subscriptions.items()):
            if subscription.callbacks and subscription.waiting_since_ns <= before_ns:
                self._reconciler.revert_desired(key)
                self._notify_callbacks(subscription, refusal_of(_NO_RESPONSE))

    def _notify_callbacks(self, subscription: ClientSubscription, refusal: WampRefusal | None) -> None:
        callbacks, subscription.callbacks = subscription.callbacks, []
        for done in callbacks:
            done(refusal)

    # --- sessions of an earlier process ---------------------------------------------------------------------

    def unsubscribe_stale_sessions(self, authority: str) -> None:
        """Unsubscribe the sessions of a process that was killed. Called before the first session of this process."""
        self._fetch_call = self._ids.next()
        self._fetch_deadline_ns = self._monotonic_ns() + _CALL_TIMEOUT_MS * _NS_PER_MS
        fetch_request = pb4.FetchSubscriptionsRequest(
            subscriber_filter=any_at(authority).with_resource(0).to_pb()
        )
        entity = rate_entity(authority, 0)
        self._send(
            self._build_request(
                self._fetch_call, entity, _FETCH, fetch_request.SerializeToString(), version=4
            )
        )

    def _on_stale_sessions(self, message: UMessage) -> None:
        if message.attributes.commstatus:
            return  # uSubscription is absent, or its queue is full
        found = pb4.FetchSubscriptionsResponse()
        try:
            found.ParseFromString(message.payload)
        except DecodeError:
            return
        for each in found.subscriptions:
            entity, topic = UUri.from_pb(each.subscriber), UUri.from_pb(each.topic)
            if (entity, topic) not in self._subscriptions:
                self._counts["stale_subscriptions_removed"] += 1
                self._end_orphan((entity, topic))


_NO_RESPONSE: Final = UStatus(UCode.DEADLINE_EXCEEDED, "no answer from uSubscription")
