# SPDX-License-Identifier: Apache-2.0
"""ECUs that subscribe to offered event groups, as subscribers of the own core.usubscription. No I/O.

    SubscribeEventgroup      a Subscribe for each event of the group, by a uEntity that represents the ECU's endpoint
    all events granted       Ack; one refused event: Nack
    end, for any reason      an Unsubscribe for each event that no other group of this endpoint contains

The uEntity is //<authority>/<n << 16 | service>/<major>/0, like that of a configured receiver; n continues after the
configured ones. The uEntity keeps its address until the uSubscription has released it, so that events in flight are
sent and do not become dead letters.

A `SubscriptionReconciler` compares the desired lease of each topic of a uEntity with the acknowledged one. Desired leases
are set when requests are due: an ECU that stops and subscribes again in one message causes no request.

    first Subscribe    refused: Nack; no answer: Nack and an Unsubscribe
    renewal            at half of the lease; no answer: repeated; not delivered: repeated after a pause; refused: Nack
    Unsubscribe        failed or no answer: not repeated, the lease ends

A field keeper is a subscriber without an ECU (`docs/decisions/0032-fields.md`). Fields of this device reach it by the
configuration. It subscribes other fields when the first ECU subscribes, and never unsubscribes them. Its calls are
repeated until they are granted.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeGuard

from ustreamer.core.base.clock import Clock
from ustreamer.core.routing.subscription_reconciler import (
    ReconcilerPolicy,
    SubscriptionEntry,
    SubscriptionReconciler,
)
from ustreamer.core.routing.usubscription_codec import (
    NOT_DELIVERED,
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
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MIN_LEASE_S: Final = 60
"""Minimum requested lease: each renewal is a disk commit of the uSubscription.

An Unsubscribe ends a subscription whose ttl is shorter.
"""

FIELD_KEEPER: Final = 0xFFFE
"""The n of a field keeper."""

CALL_TTL_MS: Final = 5_000
"""Timeout of a call to the uSubscription. The ECU gets a Nack earlier (`decision_timeout_ms`)."""
_NS_PER_MS: Final = 1_000_000

_POLICY: Final = ReconcilerPolicy(
    call_timeout_ms=CALL_TTL_MS,
    max_in_flight=sys.maxsize,  # one call for each topic of the subscriptions that `SdLimits` permits
    initial_backoff_ms=CALL_TTL_MS,
    max_backoff_ms=CALL_TTL_MS,
    opposite_supersedes=True,
)


class EventDestination(NamedTuple):
    """The addresses for events of one service to an ECU: UDP, TCP or both."""

    service: ServiceKey
    udp: Address | None
    tcp: Address | None


class SubscriptionDecisions(NamedTuple):
    """The decided subscriptions, for service discovery."""

    accepted: list[SdSubscription]
    refused: list[SdSubscription]


class EventSink:
    """One destination and the uEntity that represents it."""

    def __init__(self, destination: EventDestination, subscriber: UUri) -> None:
        self.destination = destination
        self.subscriber = subscriber
        self.topics: dict[UUri, dict[SdSubscription, int]] = {}
        """For each topic, the subscriptions that contain it, with their leases in s."""


_Key: TypeAlias = tuple[UUri, UUri]
"""The uEntity of a sink, and a topic."""

_Entry: TypeAlias = SubscriptionEntry[_Key, int, UUID]
"""Its values are leases in s."""


def field_keeper(authority: str, service: ServiceKey) -> UUri:
    """The uEntity that keeps the fields of an offered service."""
    return UUri(authority, FIELD_KEEPER << 16 | service.service, service.major, 0)


class EcuSubscribers:
    """Belongs to one thread. After each tick, `pop_requests` returns the requests to send."""

    def __init__(
        self,
        authority: str,
        own_authority: str,
        clock: Clock,
        next_id: Callable[[], UUID],
        first_free: Mapping[ServiceKey, int],
        serves: Iterable[str] = (),
    ) -> None:
        """`first_free` maps a service to the first n for dynamic uEntities; smaller numbers are configured receivers.

        `serves` are the other authorities whose uSubscription is the own one.
        """
        self._authority = authority
        self._served_authorities = {own_authority, *serves}
        self._usubscription = UUri(own_authority, USUBSCRIPTION, VERSION_3)
        self._clock = clock
        self._next_id = next_id
        # By service and major version: the instances of a service share its uEntities.
        self._next_number: Counter[tuple[int, int]] = Counter()
        for key, n in first_free.items():
            self.add_receivers(key, n)
        self._free_numbers: dict[tuple[int, int], list[int]] = {}
        self._sinks: dict[EventDestination, EventSink] = {}
        self._by_subscriber: dict[UUri, EventSink] = {}
        self._topics_of: dict[SdSubscription, tuple[UUri, ...]] = {}
        self._kept: set[_Key] = set()
        """The fields of field keepers."""
        self._undecided: set[SdSubscription] = set()
        self._reconciler: SubscriptionReconciler[_Key, int, UUID] = SubscriptionReconciler(_POLICY)
        self._unsubscribed_ns: dict[_Key, int] = {}
        """When the Unsubscribe of each was sent whose Update has not come, oldest first."""
        self._changed: dict[_Key, None] = {}
        """The topics whose subscriptions have changed since the last `pop_requests`."""
        self._decisions = SubscriptionDecisions([], [])
        self._released_sinks: list[EventSink] = []

    def add_receivers(self, service: ServiceKey, number: int) -> None:
        """Reserve the first numbers for configured receivers of a service that no ECU has subscribed yet."""
        self._next_number[service.service, service.major] += number

    # --- from service discovery ---------------------------------------------------------------------------------------

    # [impl->SD-1170]
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
        for topic in self._topics_of[subscription]:
            # TTL_FOREVER is the longest ttl.
            sink.topics.setdefault(topic, {})[subscription] = max(ttl_s, MIN_LEASE_S)
            self._changed[sink.subscriber, topic] = None
        self._decide(sink)
        return sink

    def _new_sink(self, destination: EventDestination) -> EventSink | None:
        service = (destination.service.service, destination.service.major)
        free, n = self._free_numbers.get(service), self._next_number[service]
        if free:
            n = free.pop()
        elif n >= FIELD_KEEPER:
            return None
        else:
            self._next_number[service] = n + 1
        subscriber = UUri(
            self._authority, n << 16 | destination.service.service, destination.service.major, 0
        )
        sink = EventSink(destination, subscriber)
        self._sinks[destination] = self._by_subscriber[subscriber] = sink
        return sink

    def keep_fields(self, service: ServiceKey, fields: Iterable[UUri]) -> None:
        """Keep those of `fields` that come from other devices subscribed for the field keeper of `service`."""
        keeper = field_keeper(self._authority, service)
        remote = (each for each in fields if each.authority_name not in self._served_authorities)
        added = {(keeper, topic) for topic in remote} - self._kept
        self._kept |= added
        self._changed.update(dict.fromkeys(sorted(added)))

    def on_subscription_ended(self, subscription: SdSubscription) -> None:
        """A subscription has ended."""
        topics = self._topics_of.pop(subscription, ())
        self._undecided.discard(subscription)
        sink = self._sinks.get(EventDestination(subscription.key, subscription.udp, subscription.tcp))
        if sink is None:
            return
        for topic in topics:
            if sink.topics.get(topic, {}).pop(subscription, None) is not None:
                self._changed[sink.subscriber, topic] = None

    def unsubscribe_orphan(self, subscriber: UUri, topic: UUri) -> None:
        """Unsubscribe an orphaned subscription: a killed streamer created it at the uSubscription."""
        if subscriber.authority_name == self._authority and subscriber not in self._by_subscriber:
            self._reconciler.set_desired((subscriber, topic), None)

    # --- from uSubscription -------------------------------------------------------------------------------------------

    def is_from_usubscription(self, message: UMessage) -> bool:
        """Whether this is a subscription update or a Response of the uSubscription, for whatever sink. Thread-safe."""
        attributes = message.attributes
        if attributes.type is UMessageType.NOTIFICATION:
            return is_update(message)
        return attributes.source.with_resource(0) == self._usubscription

    def on_response(self, message: UMessage) -> None:
        """Process the response to one of the requests."""
        reqid = message.attributes.reqid
        entry = None if reqid is None else self._reconciler.on_response(reqid)
        if entry is None:
            return  # a newer request replaced this one
        now_ns, lease_s = self._clock.monotonic_ns(), entry.requested
        if lease_s is None:
            self._forget(entry.key)
        elif _granted(message):
            renewal_ms = 0 if lease_s == TTL_FOREVER else lease_s * 500
            self._reconciler.on_success(entry, now_ns, refresh_ms=renewal_ms)
            if entry.key not in self._kept:
                self._decide(self._by_subscriber[entry.key[0]])
        elif entry.key in self._kept or (
            entry.acknowledged is not None and message.attributes.commstatus in NOT_DELIVERED
        ):
            self._reconciler.on_failure(entry, now_ns)
        else:
            self._forget(entry.key)
            self._refuse(entry.key)

    def on_update(self, message: UMessage) -> None:
        """Process an Update: the own or a remote uSubscription may end a granted subscription.

        The Update of an own Unsubscribe can come after the Response to the next Subscribe: they use two threads.
        """
        update = subscription_update_in(message)
        if update is None or message.attributes.source.with_resource(0) != self._usubscription:
            return
        key = update.subscriber.with_resource(0), update.topic
        self._drop_old_unsubscribed(self._clock.monotonic_ns())
        if update.status is not Status.UNSUBSCRIBED or self._unsubscribed_ns.pop(key, None) is not None:
            return
        entry = self._reconciler.find(key)
        if not _is_acknowledged(entry):
            return  # an obsolete Update
        if entry.key in self._kept:
            self._reconciler.suspect(entry.key, self._clock.monotonic_ns())
            return
        if entry.pending_call is None:  # else the renewal may be granted, and an Unsubscribe follows
            self._forget(entry.key)
        self._refuse(entry.key)

    def _drop_old_unsubscribed(self, now_ns: int) -> None:
        """Expect no Update of an Unsubscribe whose call is over: it may have ended nothing."""
        while self._unsubscribed_ns:
            key, at_ns = next(iter(self._unsubscribed_ns.items()))
            if now_ns - at_ns < CALL_TTL_MS * _NS_PER_MS:
                break
            del self._unsubscribed_ns[key]

    def _forget(self, key: _Key) -> None:
        """uSubscription has no subscription, or its lease ends."""
        self._reconciler.forget(key)
        self._changed[key] = None

    def _refuse(self, key: _Key) -> None:
        """Refuse the event groups with this topic; the ECU may subscribe again."""
        for subscription in list(self._leases(key)):
            self.on_subscription_ended(subscription)
            self._decisions.refused.append(subscription)

    def _leases(self, key: _Key) -> Mapping[SdSubscription, int]:
        """The subscriptions of a sink that contain a topic, with their leases in s."""
        sink = self._by_subscriber.get(key[0])
        return {} if sink is None else sink.topics.get(key[1], {})

    def _decide(self, sink: EventSink) -> None:
        """Accept the event groups with all topics granted."""
        granted = {
            topic
            for topic in sink.topics
            if _is_acknowledged(self._reconciler.find((sink.subscriber, topic)))
        }
        waiting = {each for leases in sink.topics.values() for each in leases if each in self._undecided}
        for subscription in sorted(waiting, key=lambda each: each.eventgroup):
            if granted.issuperset(self._topics_of[subscription]):
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
        changed, self._changed = self._changed, {}
        for key in changed:
            self._set_desired(key)
        return [self._call(entry) for entry in self._reconciler.pop_ready()]

    def _set_desired(self, key: _Key) -> None:
        """Desire the longest lease. A topic that no subscription contains is unsubscribed and then removed."""
        if key in self._kept:
            self._reconciler.set_desired(key, TTL_FOREVER)
            return
        entry, leases = self._reconciler.find(key), self._leases(key)
        if leases:
            # Never shorter: a shorter lease would be one more disk commit.
            known_s = 0 if entry is None or entry.desired is None else entry.desired
            self._reconciler.set_desired(key, max(known_s, *leases.values()))
        elif entry is not None:
            self._reconciler.set_desired(key, None)
        else:
            self._remove_topic(key)

    def _call(self, entry: _Entry) -> UMessage:
        id, (subscriber, topic), lease_s = self._next_id(), entry.key, entry.desired
        now_ns = self._clock.monotonic_ns()
        self._reconciler.begin_call(entry, id, now_ns)
        if lease_s is None:
            self._drop_old_unsubscribed(now_ns)
            self._unsubscribed_ns.pop(entry.key, None)
            self._unsubscribed_ns[entry.key] = now_ns
            method, payload = UsubscriptionMethod.UNSUBSCRIBE, unsubscribe_request(topic).SerializeToString()
        else:
            expire_ms = None if lease_s == TTL_FOREVER else self._clock.wall_ms() + lease_s * 1_000
            method = UsubscriptionMethod.SUBSCRIBE
            payload = subscribe_request(SubscribeRequest(topic, expire_ms)).SerializeToString()
        callee = self._usubscription.with_resource(method)
        return request(id, subscriber, callee, payload, UPayloadFormat.PROTOBUF, ttl=CALL_TTL_MS)

    def _remove_topic(self, key: _Key) -> None:
        sink = self._by_subscriber.get(key[0])
        if sink is None or sink.topics.pop(key[1], None) is None or sink.topics:
            return
        del self._sinks[sink.destination], self._by_subscriber[sink.subscriber]
        self._released_sinks.append(sink)
        service = (sink.destination.service.service, sink.destination.service.major)
        self._free_numbers.setdefault(service, []).append(sink.subscriber.ue_instance)

    # --- timers -------------------------------------------------------------------------------------------------------

    def on_timer(self, now_ns: int) -> None:
        """Renew at half of the lease, and abandon calls without a response."""
        for entry in self._reconciler.pop_timeouts(now_ns):
            if entry.requested is None:
                self._forget(entry.key)
            elif entry.acknowledged is not None or entry.key in self._kept:
                self._reconciler.retry(entry)
            else:
                self._reconciler.set_desired(entry.key, None)  # uSubscription may have granted the request
                self._refuse(entry.key)

    @property
    def next_deadline_ns(self) -> int | None:
        return self._reconciler.next_due_ns()

    def pop_released_sinks(self) -> list[EventSink]:
        """Return the sinks that uSubscription has released since the last call."""
        released, self._released_sinks = self._released_sinks, []
        return released

    # --- statistics ---------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """`sd_receivers`: ECU endpoints that receive events. `sd_undecided`: undecided subscriptions."""
        return {"sd_receivers": len(self._by_subscriber), "sd_undecided": len(self._undecided)}


def _is_acknowledged(entry: _Entry | None) -> TypeGuard[_Entry]:
    return entry is not None and entry.acknowledged is not None


def _granted(answer: UMessage) -> bool:
    """Pending counts as granted: uSubscription forwards the request, and reports a later failure."""
    if (answer.attributes.commstatus or UCode.OK) is not UCode.OK:
        return False
    try:
        status = status_in(VERSION_3, answer.payload, answer.attributes.payload_format)
    except UStatusError:
        return False
    return status in {Status.SUBSCRIBED, Status.SUBSCRIBE_PENDING}
