# SPDX-License-Identifier: Apache-2.0
"""The uSubscription of an authority whose ECUs have none: maps subscriptions to event groups. No I/O.

    Subscribe       an EventgroupRequest for the event group of the topic; answered immediately
    Unsubscribe     the event group is released with its last subscribed event
    Ack             Update SUBSCRIBED to all subscribers of topics of the group
    Nack            Update UNSUBSCRIBED, also to a later subscriber; the next Offer retries
    lost            Update SUBSCRIBE_PENDING: stopped, expired or rebooted; service discovery subscribes again

A topic of a dynamic service requests that service (`dynamic_services.py`).

A topic with a configured source address has no event group: its state is SUBSCRIBED immediately. Version 4 may name
every
instance of a service; the state of such a topic is the best state of the instances.

The usual subscriber is the own core.usubscription, which distributes events to its clients. Any other subscriber is the
uSubscription of another device: `subscribers` reports it to the router.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.core.routing.usubscription_codec import (
    CHANGE_RESOURCE,
    USUBSCRIPTION,
    VERSION_3,
    VERSION_4,
    Status,
    UsubscriptionMethod,
    pack_payload,
    subscribe_in,
    subscribe_response,
    unsubscribe_in,
    unsubscribe_response,
    update_message,
)
from ustreamer.transports.someip.config import ServiceConfig
from ustreamer.transports.someip.discovery.dynamic_services import DynamicServices
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.uattributes import UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

MAX_SUBSCRIBERS: Final = 64
"""Limit of subscribers of one topic: one uSubscription of each device."""

UPDATE_TTL_MS: Final = 10_000
"""The ttl of an Update; an older Update is obsolete and not a dead letter."""

_NS_PER_MS: Final = 1_000_000
_VERSIONS: Final = (VERSION_3, VERSION_4)


class EcuSubscriptionState(StrEnum):
    """The state of a subscription to an event group."""

    PENDING = "pending"
    SUBSCRIBED = "subscribed"
    REFUSED = "refused"


class EventgroupKey(NamedTuple):
    """An event group of a service that must be found."""

    service: ServiceKey
    eventgroup: int


class EventgroupRequest(NamedTuple):
    """Subscribe to an event group, or (`wanted` is False) unsubscribe.

    `reliable`: it has events over TCP. `mixed`: and others over UDP.
    """

    group: EventgroupKey
    wanted: bool
    reliable: bool
    mixed: bool = False


class _Group:
    def __init__(self, reliable: bool) -> None:
        self.reliable = reliable
        self.state = EcuSubscriptionState.PENDING
        self.topics: set[UUri] = set()
        """The topics as subscribed, by any subscriber."""


class _Subscriber(Struct):
    version: int
    period_ns: int
    notified: Status
    expire_ms: int | None


_STATUS: Final[Mapping[EcuSubscriptionState, Status]] = {
    EcuSubscriptionState.PENDING: Status.SUBSCRIBE_PENDING,
    EcuSubscriptionState.SUBSCRIBED: Status.SUBSCRIBED,
    EcuSubscriptionState.REFUSED: Status.UNSUBSCRIBED,
}


# [impl->RPC-732, RPC-354, SD-430]
class EcuUsubscription:
    """The core.usubscription at `authority`. Belongs to one thread, except `subscribers`."""

    def __init__(
        self,
        authority: str,
        own_authority: str,
        services: Iterable[ServiceConfig],
        clock: Clock,
        next_id: Callable[[], UUID],
        dynamic: DynamicServices | None = None,
    ) -> None:
        """`services` are all configured services.

        Those without a remote must be found. `dynamic` permits further services.
        """
        self._authority = authority
        self._monotonic_ns, self._expiry = clock.monotonic_ns, Expiry(clock)
        self._next_id = next_id
        self._own_usubscriptions = {UUri(own_authority, USUBSCRIPTION, version) for version in _VERSIONS}
        self._eventgroup_of: dict[UUri, EventgroupKey | None] = {}
        self._eventgroup_choices: dict[UUri, tuple[EventgroupKey, ...]] = {}
        """Topics in several event groups; `_eventgroup_of` has the selected group."""
        self._reliable: set[EventgroupKey] = set()
        self._unreliable: set[EventgroupKey] = set()
        """The groups with events over UDP, of configured services."""
        self._dynamic = dynamic
        self._resubscribed: set[EventgroupKey] = set()  # over another transport protocol
        self._dynamic_topics: set[UUri] = set()  # topics of dynamic services
        for service in services:
            self.add_service(service)
        self._groups: dict[EventgroupKey, _Group] = {}
        self._subscribers: dict[UUri, dict[UUri, _Subscriber]] = {}
        self._deadlines: DeadlineQueue[tuple[UUri, UUri]] = DeadlineQueue()
        self._foreign_subscriptions: dict[
            UUri, tuple[Subscription, ...]
        ] = {}  # replaced as a whole: other threads read it
        self._group_requests: list[EventgroupRequest] = []
        self._subscribe_watches: list[Callable[[Subscription], None]] = []
        self.version = 0
        """Counts the changes of `subscribers`."""

    def add_service(self, service: ServiceConfig) -> None:
        """Accept subscriptions to the events of a configured service."""
        key = ServiceKey(service.service, service.instance, service.major)
        for event in service.events:
            topic = UUri(self._authority, service.ue_id, service.major, event.id)
            groups = tuple(EventgroupKey(key, group) for group in event.eventgroup_ids)
            (self._reliable if service.protocol_of(event) == "tcp" else self._unreliable).update(groups)
            self._eventgroup_of[topic] = groups[0] if service.needs_discovery else None
            if service.needs_discovery and len(groups) > 1:
                self._eventgroup_choices[topic] = groups

    # --- requests -----------------------------------------------------------------------------------------------------

    def on_request(self, message: UMessage) -> list[UMessage]:
        """Return the responses to a Request to this uSubscription; changes are in `pop_eventgroup_requests`."""
        sink, payload_format = message.attributes.sink, message.attributes.payload_format
        assert sink is not None  # a valid Request
        try:
            self._check(sink)
            if sink.resource_id == UsubscriptionMethod.SUBSCRIBE:
                return [self._subscribe(message, sink.ue_version_major)]
            topic = self._with_own_authority(
                unsubscribe_in(sink.ue_version_major, message.payload, payload_format)
            )
            self._remove_subscriber(topic, message.attributes.source)
            answer = pack_payload(unsubscribe_response(sink.ue_version_major), payload_format)
            return [response(self._next_id(), message, *answer)]
        except UStatusError as error:
            return [error_response(self._next_id(), message, error.status)]

    def _check(self, sink: UUri) -> None:
        if sink.ue_version_major not in _VERSIONS or sink.resource_id not in set(UsubscriptionMethod):
            raise UStatusError(
                UCode.UNIMPLEMENTED,
                f"{sink}: the ECUs of {self._authority!r} can be subscribed (1) and unsubscribed (2), in version 3 or 4",
            )

    def _with_own_authority(self, topic: UUri) -> UUri:
        return topic.with_authority(self._authority)

    def _subscribe(self, message: UMessage, version: int) -> UMessage:
        attributes = message.attributes
        subscribe_request = subscribe_in(version, message.payload, attributes.payload_format)
        topic, caller = self._with_own_authority(subscribe_request.topic), attributes.source
        self._check_topic(topic)
        status, why = self._add_subscriber(
            topic, caller, version, subscribe_request.expire_ms, subscribe_request.period_ns
        )
        answer = pack_payload(subscribe_response(version, topic, status, why), attributes.payload_format)
        return response(self._next_id(), message, *answer)

    def _check_topic(self, topic: UUri) -> None:
        if topic.authority_name != self._authority:
            raise invalid_argument(f"topic {topic}: expected one of {self._authority!r}")
        if not self._matching(topic) and (self._dynamic is None or topic.ue_instance == ANY_INSTANCE):
            raise UStatusError(
                UCode.NOT_FOUND, f"topic {topic}: no such event is configured for a service there"
            )

    def _matching(self, topic: UUri) -> Sequence[UUri]:
        if topic.ue_instance != ANY_INSTANCE:
            return (topic,) if topic in self._eventgroup_of else ()
        return [
            each for each in self._eventgroup_of if topic.matches(each) and each not in self._dynamic_topics
        ]

    # --- subscribers --------------------------------------------------------------------------------------------------

    def _add_subscriber(
        self, topic: UUri, caller: UUri, version: int, expire_ms: int | None, period_ns: int
    ) -> tuple[Status, str]:
        if expire_ms is not None and expire_ms < self._expiry.earliest_wall_ms():
            self._remove_subscriber(topic, caller)
            return Status.UNSUBSCRIBED, f"expire, {expire_ms} ms, has passed"
        known = self._subscribers.get(topic, {})
        if caller not in known and len(known) >= MAX_SUBSCRIBERS:
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED, f"topic {topic}: {MAX_SUBSCRIBERS} subscribers, the limit"
            )
        if not known:
            self._request_eventgroups(topic)
            self._subscribers[topic] = known
        status = self.status_of(topic)
        if status is Status.UNSUBSCRIBED:
            # The ECU refused an earlier subscription. A new subscriber gets the refusal, and the next one restarts.
            self._remove_subscriber(topic, caller)
            return status, "the ECU has refused the event group (Nack), or offers no endpoint for it"
        known[caller] = _Subscriber(version, period_ns, status, expire_ms)
        pair = (topic, caller)
        if expire_ms is None:
            self._deadlines.cancel(pair)
        else:
            left_ms = expire_ms - self._expiry.earliest_wall_ms() + 1
            self._deadlines.schedule(pair, self._monotonic_ns() + left_ms * _NS_PER_MS)
        self._update_foreign(topic)
        if caller not in self._own_usubscriptions:
            for on_subscribe in self._subscribe_watches:
                on_subscribe(Subscription(topic, caller, period_ns))
        return status, ""

    def _remove_subscriber(self, topic: UUri, caller: UUri) -> None:
        known = self._subscribers.get(topic)
        if known is None:
            return
        known.pop(caller, None)
        self._deadlines.cancel((topic, caller))
        if not known:
            del self._subscribers[topic]
            self._release_eventgroups(topic)
        self._update_foreign(topic)

    def _request_eventgroups(self, topic: UUri) -> None:
        if self._dynamic is not None and not self._matching(topic):
            self._request_dynamic(topic, self._dynamic)
        for each in self._matching(topic):
            self._choose_eventgroup(each)
            key = self._eventgroup_of[each]
            if key is None:
                continue
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(key in self._reliable)
                mixed = group.reliable and key in self._unreliable
                self._group_requests.append(EventgroupRequest(key, True, group.reliable, mixed))
            group.topics.add(topic)

    def _choose_eventgroup(self, topic: UUri) -> None:
        """Prefer a group that is already subscribed: a second group would deliver each event twice."""
        choices, chosen = self._eventgroup_choices.get(topic), self._eventgroup_of[topic]
        known = None if chosen is None else self._groups.get(chosen)
        if choices is None or (known is not None and any(each.matches(topic) for each in known.topics)):
            return
        subscribed = (key for key in choices if key in self._groups)
        granted = (key for key in subscribed if self._groups[key].state is not EcuSubscriptionState.REFUSED)
        self._eventgroup_of[topic] = next(granted, choices[0])

    def _request_dynamic(self, topic: UUri, dynamic: DynamicServices) -> None:
        group = EventgroupKey(dynamic.request_for_topic(topic), topic.resource_id)
        self._eventgroup_of[topic] = group
        self._dynamic_topics.add(topic)
        if group.service in dynamic.over_tcp:
            self._reliable.add(group)

    def _release_dynamic(self, topic: UUri) -> None:
        group = self._eventgroup_of.pop(topic)
        self._dynamic_topics.remove(topic)
        if group is not None:
            self._reliable.discard(group)
        if self._dynamic is not None:
            self._dynamic.release_topic(topic)

    def _release_eventgroups(self, topic: UUri) -> None:
        for each in self._matching(topic):
            key = self._eventgroup_of[each]
            group = None if key is None else self._groups.get(key)
            if key is None or group is None:
                continue
            group.topics.discard(topic)
            if not group.topics:
                del self._groups[key]
                self._group_requests.append(EventgroupRequest(key, False, group.reliable))
        if topic in self._dynamic_topics:
            self._release_dynamic(topic)

    def set_uses_tcp(self, service: ServiceKey, *, tcp: bool) -> None:
        """Store the transport protocol of a located service.

        A dynamic service's event groups subscribe again on a change.
        """
        if self._dynamic is not None:
            self._dynamic.set_uses_tcp(service, tcp=tcp)
        for topic in self._dynamic_topics:
            key = self._eventgroup_of[topic]
            group = None if key is None else self._groups.get(key)
            if key is None or group is None or key.service != service or group.reliable is tcp:
                continue
            group.reliable = tcp
            (self._reliable.add if tcp else self._reliable.discard)(key)
            self._group_requests += [
                EventgroupRequest(key, False, not tcp),
                EventgroupRequest(key, True, tcp),
            ]
            self._resubscribed.add(key)

    def pop_eventgroup_requests(self) -> list[EventgroupRequest]:
        """Return the pending eventgroup requests in order, each once."""
        requests, self._group_requests = self._group_requests, []
        self._resubscribed.clear()
        return requests

    def expire_subscriptions(self, now_ns: int) -> None:
        """Remove expired subscriptions. A subscriber renews its subscription before the expiry."""
        while (pair := self._deadlines.pop_due(now_ns)) is not None:
            expire_ms = self._subscribers[pair[0]][pair[1]].expire_ms or 0
            left_ms = expire_ms - self._expiry.earliest_wall_ms() + 1
            if left_ms > 0:  # the clock was stepped back
                self._deadlines.schedule(pair, now_ns + left_ms * _NS_PER_MS)
            else:
                self._remove_subscriber(*pair)

    @property
    def next_deadline_ns(self) -> int | None:
        return self._deadlines.next_due

    # --- from service discovery ---------------------------------------------------------------------------------------

    def on_eventgroup_state(self, key: EventgroupKey, state: EcuSubscriptionState) -> list[UMessage]:
        """Process a state change of an event group; returns the Updates to send."""
        group = self._groups.get(key)
        if group is None or key in self._resubscribed:
            return []  # a newer request is pending; this state is obsolete
        group.state = state
        return [update for topic in sorted(group.topics) for update in self._updates(topic)]

    def status_of(self, topic: UUri) -> Status:
        """The subscription status of `topic`; for every instance, the best status of the instances."""
        keys = [self._eventgroup_of[each] for each in self._matching(topic)]
        states = {EcuSubscriptionState.SUBSCRIBED if key is None else self._state_of(key) for key in keys}
        for state in (EcuSubscriptionState.SUBSCRIBED, EcuSubscriptionState.PENDING):
            if state in states:
                return _STATUS[state]
        return Status.UNSUBSCRIBED

    def _state_of(self, key: EventgroupKey) -> EcuSubscriptionState:
        group = self._groups.get(key)
        return EcuSubscriptionState.PENDING if group is None else group.state

    def _updates(self, topic: UUri) -> list[UMessage]:
        status, updates = self.status_of(topic), []
        for caller, known in self._subscribers.get(topic, {}).items():
            if known.notified is status:
                continue
            known.notified = status
            updates.append(
                notification(
                    self._next_id(),
                    UUri(self._authority, USUBSCRIPTION, known.version, CHANGE_RESOURCE),
                    caller,
                    update_message(
                        known.version, topic, caller, status, _STATUS_REASONS[status]
                    ).SerializeToString(),
                    UPayloadFormat.PROTOBUF,
                    priority=UPriority.CS2,
                    ttl=UPDATE_TTL_MS,
                )
            )
        return updates

    # --- for the router -----------------------------------------------------------------------------------------------

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        """The remote subscribers of `topic` here. Thread-safe."""
        if not self._foreign_subscriptions:
            return ()
        found = [*self._foreign_subscriptions.get(topic, ())]
        return [*found, *self._foreign_subscriptions.get(_of_every_instance(topic), ())]

    def watch_subscribes(self, on_subscribe: Callable[[Subscription], None]) -> None:
        """Report each Subscribe of another device."""
        self._subscribe_watches.append(on_subscribe)

    def _update_foreign(self, topic: UUri) -> None:
        others = tuple(
            Subscription(topic, caller, known.period_ns)
            for caller, known in self._subscribers.get(topic, {}).items()
            if caller not in self._own_usubscriptions
        )
        if others == self._foreign_subscriptions.get(topic, ()):
            return
        changed = {**self._foreign_subscriptions, topic: others}
        if not others:
            del changed[topic]
        self._foreign_subscriptions = changed
        self.version += 1

    def statistics(self) -> dict[str, int]:
        """`sd_topics`: subscribed topics. `sd_eventgroups`: their event groups that must be found."""
        return {"sd_topics": len(self._subscribers), "sd_eventgroups": len(self._groups)}


def _of_every_instance(topic: UUri) -> UUri:
    ue_id = ANY_INSTANCE << 16 | topic.ue_type
    return UUri(topic.authority_name, ue_id, topic.ue_version_major, topic.resource_id)


_STATUS_REASONS: Final[Mapping[Status, str]] = {
    Status.SUBSCRIBED: "",
    Status.SUBSCRIBE_PENDING: "the ECU is away; it is subscribed again when it offers its service",
    Status.UNSUBSCRIBED: "the ECU has refused the event group (Nack), or offers no endpoint for it",
}
