# SPDX-License-Identifier: Apache-2.0
"""ECUs that subscribe to offered event groups, as subscribers of the own core.usubscription. No I/O.

    SubscribeEventgroup      a Subscribe for each event of the group, by a uEntity that represents the ECU's endpoint
    all events granted       Ack; one refused event: Nack
    end, for any reason      an Unsubscribe for each event that no other group of this endpoint contains

The uEntity is //<authority>/<n << 16 | service>/<major>/0, like that of a configured receiver; n continues after the
configured ones. The uEntity keeps its address until the uSubscription has released it, so that events in flight are
sent and do not become dead letters.

The desired subscriptions and the state at the uSubscription are separate. `pop_requests` sends the difference: an ECU
that stops and subscribes again in one message causes no request.

    at uSubscription | desired                         not desired
    -----------------+---------------------------------------------------------------
    UNSUBSCRIBED     | Subscribe sent: SUBSCRIBING     removed
    SUBSCRIBING      | -                               Unsubscribe sent: UNSUBSCRIBING
    SUBSCRIBED       | renewed at half of its time     Unsubscribe sent: UNSUBSCRIBING
    UNSUBSCRIBING    | Subscribe sent: SUBSCRIBING     answered: UNSUBSCRIBED
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.routing.usubscription_codec import (
    USUBSCRIPTION,
    VERSION_3,
    Status,
    SubscribeRequest,
    UsubscriptionMethod,
    is_update,
    status_in,
    subscribe_request,
    subscription_update_in,
    unsubscribe_request,
)
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.actions import SdSubscription
from ustreamer.transports.someip.sd.codec import TTL_FOREVER
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MIN_LEASE_S: Final = 60
"""Minimum requested lease: each renewal is a disk commit of the uSubscription.

A shorter subscription is unsubscribed.
"""

CALL_TTL_MS: Final = 5_000
"""Timeout of a call to the uSubscription. The ECU gets a Nack earlier (`decision_timeout_ms`)."""

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


class SubscriptionState(Enum):
    """The state of one topic of one event sink at the uSubscription."""

    UNSUBSCRIBED = auto()
    SUBSCRIBING = auto()
    SUBSCRIBED = auto()
    UNSUBSCRIBING = auto()


class EventDestination(NamedTuple):
    """The addresses for events of one service to an ECU: UDP, TCP or both."""

    service: ServiceKey
    udp: Address | None
    tcp: Address | None


class SubscriptionDecisions(NamedTuple):
    """The decided subscriptions, for service discovery."""

    accepted: list[SdSubscription]
    refused: list[SdSubscription]


class _Topic:
    def __init__(self) -> None:
        self.state = SubscriptionState.UNSUBSCRIBED
        self.holders: dict[SdSubscription, None] = {}
        self.lease_s: int | None = 0
        self.pending_call: UUID | None = None
        self.renew = False


class EventSink:
    """One destination and the uEntity that represents it."""

    def __init__(self, destination: EventDestination, subscriber: UUri) -> None:
        self.destination = destination
        self.subscriber = subscriber
        self.topics: dict[UUri, _Topic] = {}


_Key = tuple[UUri, UUri]
"""The uEntity of a sink, and a topic."""

_NOT_DELIVERED: Final = frozenset({UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED})
"""Error responses that do not change an existing subscription."""


class EcuSubscribers:
    """Belongs to one thread. After each tick, `pop_requests` returns the requests to send."""

    def __init__(
        self,
        authority: str,
        own_authority: str,
        clock: Clock,
        next_id: Callable[[], UUID],
        first_free: Mapping[ServiceKey, int],
    ) -> None:
        """`first_free` maps a service to the first n for dynamic uEntities; smaller numbers are configured receivers."""
        self._authority = authority
        self._usubscription = UUri(own_authority, USUBSCRIPTION, VERSION_3)
        self._clock = clock
        self._next_id = next_id
        self._next_number: dict[ServiceKey, int] = dict(first_free)
        self._free_numbers: dict[ServiceKey, list[int]] = {}
        self._sinks: dict[EventDestination, EventSink] = {}
        self._by_subscriber: dict[UUri, EventSink] = {}
        self._topics_of: dict[SdSubscription, tuple[UUri, ...]] = {}
        self._undecided: set[SdSubscription] = set()
        self._calls: dict[UUID, _Key] = {}
        self._dirty: dict[_Key, None] = {}
        self._renewals: DeadlineQueue[_Key] = DeadlineQueue()
        self._call_deadlines: DeadlineQueue[UUID] = DeadlineQueue()
        self._decisions = SubscriptionDecisions([], [])
        self._released_sinks: list[EventSink] = []
        self._orphans: list[_Key] = []

    # --- from service discovery ---------------------------------------------------------------------------------------

    def on_subscribe(
        self, subscription: SdSubscription, topics: Iterable[UUri], ttl_s: int
    ) -> EventSink | None:
        """Process a Subscribe of an ECU to the event group with `topics`; None if no uEntity number is left."""
        destination = EventDestination(subscription.key, subscription.udp, subscription.tcp)
        sink = self._sinks.get(destination) or self._new_sink(destination)
        if sink is None:
            self._decisions.refused.append(subscription)
            return None
        self._topics_of[subscription] = tuple(topics)
        self._undecided.add(subscription)
        for name in self._topics_of[subscription]:
            topic = sink.topics.setdefault(name, _Topic())
            topic.holders[subscription] = None
            lease_s = _longer_lease(topic.lease_s, None if ttl_s == TTL_FOREVER else max(ttl_s, MIN_LEASE_S))
            topic.renew |= lease_s != topic.lease_s
            topic.lease_s = lease_s
            self._dirty[sink.subscriber, name] = None
        self._decide(sink)
        return sink

    def _new_sink(self, destination: EventDestination) -> EventSink | None:
        free, n = self._free_numbers.get(destination.service), self._next_number.get(destination.service, 0)
        if free:
            n = free.pop()
        elif n > 0xFFFE:
            return None
        else:
            self._next_number[destination.service] = n + 1
        subscriber = UUri(
            self._authority, n << 16 | destination.service.service, destination.service.major, 0
        )
        sink = EventSink(destination, subscriber)
        self._sinks[destination] = self._by_subscriber[subscriber] = sink
        return sink

    def on_subscription_ended(self, subscription: SdSubscription) -> None:
        """A subscription has ended."""
        names = self._topics_of.pop(subscription, ())
        self._undecided.discard(subscription)
        sink = self._sinks.get(EventDestination(subscription.key, subscription.udp, subscription.tcp))
        if sink is None:
            return
        for name in names:
            topic = sink.topics.get(name)
            if topic is not None:
                topic.holders.pop(subscription, None)
                self._dirty[sink.subscriber, name] = None

    def unsubscribe_orphan(self, subscriber: UUri, topic: UUri) -> None:
        """Unsubscribe an orphaned subscription: a killed streamer created it at the uSubscription."""
        if subscriber.authority_name == self._authority and subscriber not in self._by_subscriber:
            self._orphans.append((subscriber, topic))

    # --- from uSubscription -------------------------------------------------------------------------------------------

    def is_for_ecu(self, message: UMessage) -> bool:
        """Whether a Response or a Notification is for a current or former uEntity of an ECU. Thread-safe."""
        attributes = message.attributes
        if attributes.type is UMessageType.NOTIFICATION:
            return is_update(message)
        return attributes.source.with_resource(0) == self._usubscription

    def on_response(self, message: UMessage) -> None:
        """Process the response to one of the requests."""
        reqid = message.attributes.reqid
        key = None if reqid is None else self._calls.pop(reqid, None)
        if key is None or reqid is None:
            return
        self._call_deadlines.cancel(reqid)
        sink = self._by_subscriber.get(key[0])
        topic = None if sink is None else sink.topics.get(key[1])
        if sink is None or topic is None or topic.pending_call != reqid:
            return  # a newer request replaced this one
        topic.pending_call = None
        if topic.state is SubscriptionState.UNSUBSCRIBING:
            topic.state = SubscriptionState.UNSUBSCRIBED
            self._dirty[key] = None
        elif _granted(message):
            topic.state = SubscriptionState.SUBSCRIBED
            if topic.lease_s is not None:
                self._renewals.schedule(key, self._clock.monotonic_ns() + topic.lease_s * _NS_PER_S // 2)
            self._decide(sink)
        elif topic.state is SubscriptionState.SUBSCRIBED and message.attributes.commstatus in _NOT_DELIVERED:
            self._renewals.schedule(key, self._clock.monotonic_ns() + CALL_TTL_MS * _NS_PER_MS)
        else:
            topic.state = SubscriptionState.UNSUBSCRIBED
            self._refuse(sink, key[1])

    def on_update(self, message: UMessage) -> None:
        """Process an Update: the own or a remote uSubscription may end a granted subscription."""
        update = subscription_update_in(message)
        if update is None or message.attributes.source.with_resource(0) != self._usubscription:
            return
        sink = self._by_subscriber.get(update.subscriber.with_resource(0))
        topic = None if sink is None else sink.topics.get(update.topic)
        if sink is None or topic is None or update.status is not Status.UNSUBSCRIBED:
            return
        if topic.state is SubscriptionState.SUBSCRIBED:  # in any other state the Update is obsolete
            topic.state = SubscriptionState.UNSUBSCRIBED
            self._refuse(sink, update.topic)

    def _refuse(self, sink: EventSink, name: UUri) -> None:
        """Refuse the event groups with this topic; the ECU may subscribe again."""
        self._renewals.cancel((sink.subscriber, name))
        for subscription in list(sink.topics[name].holders):
            self.on_subscription_ended(subscription)
            self._decisions.refused.append(subscription)
        self._dirty[sink.subscriber, name] = None

    def _decide(self, sink: EventSink) -> None:
        """Accept the event groups with all topics granted."""
        subscribed = {
            name for name, topic in sink.topics.items() if topic.state is SubscriptionState.SUBSCRIBED
        }
        waiting = {s for topic in sink.topics.values() for s in topic.holders if s in self._undecided}
        for subscription in sorted(waiting, key=lambda each: each.eventgroup):
            if subscribed.issuperset(self._topics_of[subscription]):
                self._undecided.discard(subscription)
                self._decisions.accepted.append(subscription)

    def pop_decisions(self) -> SubscriptionDecisions:
        """Return the decisions since the last call."""
        accepted, refused = self._decisions
        self._decisions = SubscriptionDecisions([], [])
        # One message may subscribe and stop again: an ended subscription has no decision.
        return SubscriptionDecisions(
            [each for each in dict.fromkeys(accepted) if each in self._topics_of], refused
        )

    # --- requests to uSubscription ------------------------------------------------------------------------------------

    def pop_requests(self) -> list[UMessage]:
        """Return the requests that uSubscription needs now."""
        requests = [
            self._unsubscribe(*orphan) for orphan in self._orphans if orphan[0] not in self._by_subscriber
        ]
        self._orphans.clear()
        for key in list(self._dirty):
            del self._dirty[key]
            sink = self._by_subscriber.get(key[0])
            topic = None if sink is None else sink.topics.get(key[1])
            if sink is None or topic is None:
                continue
            if topic.holders and topic.state in {
                SubscriptionState.UNSUBSCRIBED,
                SubscriptionState.UNSUBSCRIBING,
            }:
                topic.state = SubscriptionState.SUBSCRIBING
                requests.append(self._subscribe(key, topic))
            elif topic.holders and topic.state is SubscriptionState.SUBSCRIBED and topic.renew:
                requests.append(self._subscribe(key, topic))
            elif not topic.holders and topic.state in {
                SubscriptionState.SUBSCRIBING,
                SubscriptionState.SUBSCRIBED,
            }:
                topic.state, topic.lease_s = SubscriptionState.UNSUBSCRIBING, 0
                self._renewals.cancel(key)
                requests.append(
                    self._call(
                        key,
                        topic,
                        UsubscriptionMethod.UNSUBSCRIBE,
                        unsubscribe_request(key[1]).SerializeToString(),
                    )
                )
            elif not topic.holders and topic.state is SubscriptionState.UNSUBSCRIBED:
                self._remove_topic(sink, key[1])
        return requests

    def _unsubscribe(self, subscriber: UUri, topic: UUri) -> UMessage:
        payload = unsubscribe_request(topic).SerializeToString()
        sink = self._usubscription.with_resource(UsubscriptionMethod.UNSUBSCRIBE)
        return request(self._next_id(), subscriber, sink, payload, UPayloadFormat.PROTOBUF, ttl=CALL_TTL_MS)

    def _subscribe(self, key: _Key, topic: _Topic) -> UMessage:
        topic.renew = False
        expire_ms = None if topic.lease_s is None else self._clock.wall_ms() + topic.lease_s * 1_000
        subscribe = subscribe_request(SubscribeRequest(key[1], expire_ms))
        return self._call(key, topic, UsubscriptionMethod.SUBSCRIBE, subscribe.SerializeToString())

    def _call(self, key: _Key, topic: _Topic, method: UsubscriptionMethod, payload: bytes) -> UMessage:
        id = self._next_id()
        topic.pending_call = id
        self._calls[id] = key
        self._call_deadlines.schedule(id, self._clock.monotonic_ns() + CALL_TTL_MS * _NS_PER_MS)
        sink = self._usubscription.with_resource(method)
        return request(id, key[0], sink, payload, UPayloadFormat.PROTOBUF, ttl=CALL_TTL_MS)

    def _remove_topic(self, sink: EventSink, name: UUri) -> None:
        del sink.topics[name]
        self._renewals.cancel((sink.subscriber, name))
        if not sink.topics:
            del self._sinks[sink.destination], self._by_subscriber[sink.subscriber]
            self._released_sinks.append(sink)
            self._free_numbers.setdefault(sink.destination.service, []).append(sink.subscriber.ue_instance)

    # --- timers -------------------------------------------------------------------------------------------------------

    def on_timer(self, now_ns: int) -> None:
        """Renew at half of the lease, and abandon calls without a response."""
        while (key := self._renewals.pop_due(now_ns)) is not None:
            self._by_subscriber[key[0]].topics[key[1]].renew = True
            self._dirty[key] = None
        while (id := self._call_deadlines.pop_due(now_ns)) is not None:
            self._on_call_timeout(id)

    def _on_call_timeout(self, id: UUID) -> None:
        key = self._calls.pop(id)
        sink = self._by_subscriber.get(key[0])
        topic = None if sink is None else sink.topics.get(key[1])
        if sink is None or topic is None or topic.pending_call != id:
            return
        topic.pending_call = None
        if topic.state is SubscriptionState.UNSUBSCRIBING:
            topic.state = SubscriptionState.UNSUBSCRIBED  # the lease at the uSubscription ends by its expiry
            self._dirty[key] = None
        elif topic.state is SubscriptionState.SUBSCRIBED:
            topic.renew = True
            self._dirty[key] = None
        else:
            self._refuse(sink, key[1])  # and unsubscribe: the uSubscription may have granted the request

    @property
    def next_deadline_ns(self) -> int | None:
        both = (self._renewals.next_due, self._call_deadlines.next_due)
        return min((each for each in both if each is not None), default=None)

    def pop_released_sinks(self) -> list[EventSink]:
        """Return the sinks that uSubscription has released since the last call."""
        released, self._released_sinks = self._released_sinks, []
        return released

    # --- statistics ---------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """`sd_receivers`: ECU endpoints that receive events. `sd_undecided`: undecided subscriptions."""
        return {"sd_receivers": len(self._by_subscriber), "sd_undecided": len(self._undecided)}


def _granted(answer: UMessage) -> bool:
    """Pending counts as granted: uSubscription forwards the request, and reports a later failure."""
    if (answer.attributes.commstatus or UCode.OK) is not UCode.OK:
        return False
    try:
        status = status_in(VERSION_3, answer.payload, answer.attributes.payload_format)
    except UStatusError:
        return False
    return status in {Status.SUBSCRIBED, Status.SUBSCRIBE_PENDING}


def _longer_lease(one: int | None, other: int | None) -> int | None:
    """The longer of two leases in s; None is unlimited."""
    return None if one is None or other is None else max(one, other)
