# SPDX-License-Identifier: Apache-2.0
"""The uSubscription of an authority whose ECUs have none: what others subscribe there becomes event groups. No I/O.

    Subscribe       a Wish for the event group of the topic; answered at once
    Unsubscribe     the Wish is over when nobody wants an event of the group any more
    Ack             Update SUBSCRIBED to everybody who subscribed a topic of the group
    Nack            Update UNSUBSCRIBED, and so is whoever asks again; with the next Offer it is tried anew
    lost            Update SUBSCRIBE_PENDING: stopped, expired or rebooted; service discovery subscribes again by itself

A topic of a service that is not listed makes that service be looked for (unlisted.py), and so does each that follows.

A topic whose place the configuration fixes has no group to be subscribed: it is SUBSCRIBED at once. Version 4 may name every
instance of a service; such a topic is what the best of them is.

Who subscribes here is nearly always our own core.usubscription, which spreads what comes to its clients. A subscriber of its own
right is another device's: `subscribers` tells the router of those.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.keyed_deadlines import Deadlines
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.core.routing.usubscription_codec import (
    CHANGE,
    USUBSCRIPTION,
    VERSION_3,
    VERSION_4,
    Method,
    Status,
    change,
    pack,
    subscribe_answer,
    subscribe_in,
    unsubscribe_answer,
    unsubscribe_in,
)
from ustreamer.transports.someip.config import Service
from ustreamer.transports.someip.discovery.dynamic_services import UnlistedServices
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService
from ustreamer.uprotocol.uattributes import UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

MAX_SUBSCRIBERS: Final = 64
"""Of one topic: one uSubscription of each device that has one."""

UPDATE_TTL_MS: Final = 10_000
"""How long a subscriber has to hear of a change; after that it is old news and no dead letter."""

_NS_PER_MS: Final = 1_000_000
_VERSIONS: Final = (VERSION_3, VERSION_4)


class State(StrEnum):
    """What service discovery knows of our subscription to an event group."""

    PENDING = "pending"
    SUBSCRIBED = "subscribed"
    REFUSED = "refused"


class GroupKey(NamedTuple):
    """An event group of a service that has to be found."""

    service: ServiceKey
    eventgroup: int

    @property
    def wanted(self) -> WantedService:
        return WantedService(self.service.service, self.service.instance, self.service.major)


class Wish(NamedTuple):
    """Subscribe (or not any more) an event group."""

    group: GroupKey
    wanted: bool
    reliable: bool


class _Group:
    def __init__(self, reliable: bool) -> None:
        self.reliable = reliable
        self.state = State.PENDING
        self.topics: set[UUri] = set()
        """As they were subscribed, by anybody."""


class _Subscriber(Struct):
    version: int
    period_ns: int
    told: Status


_STATUS: Final[Mapping[State, Status]] = {
    State.PENDING: Status.SUBSCRIBE_PENDING,
    State.SUBSCRIBED: Status.SUBSCRIBED,
    State.REFUSED: Status.UNSUBSCRIBED,
}


class EcuSubscriptions:
    """core.usubscription at `authority`. Belongs to one thread, but for `subscribers`."""

    def __init__(
        self,
        authority: str,
        own_authority: str,
        services: Iterable[Service],
        clock: Clock,
        next_id: Callable[[], UUID],
        unlisted: UnlistedServices | None = None,
    ) -> None:
        """`services` are all that are listed; those without a remote have to be found. None of others without `unlisted`."""
        self._authority = authority
        self._clock = clock
        self._next_id = next_id
        self._own = {UUri(own_authority, USUBSCRIPTION, version) for version in _VERSIONS}
        self._group_of: dict[UUri, GroupKey | None] = {}
        self._choices: dict[UUri, tuple[GroupKey, ...]] = {}
        """The event groups of those topics that are in several, of which `_group_of` has the one that is subscribed."""
        self._reliable: set[GroupKey] = set()
        self._unlisted = unlisted
        self._anew: set[GroupKey] = set()  # those that `_wishes` has subscribed another way
        self._sought: set[UUri] = set()  # those topics of `_group_of` that are of no listed service
        for service in services:
            self._add(service)
        self._groups: dict[GroupKey, _Group] = {}
        self._subscribers: dict[UUri, dict[UUri, _Subscriber]] = {}
        self._deadlines: Deadlines[tuple[UUri, UUri]] = Deadlines()
        self._foreign: dict[UUri, tuple[Subscription, ...]] = {}  # replaced as a whole: other threads read it
        self._wishes: list[Wish] = []
        self.version = 0
        """Counts the changes of what `subscribers` answers."""

    def _add(self, service: Service) -> None:
        key = ServiceKey(service.service, service.instance, service.major)
        for event in service.events:
            topic = UUri(self._authority, service.ue_id, service.major, event.id)
            groups = tuple(GroupKey(key, group) for group in event.groups)
            # Where one event of a group goes over TCP, all do: one Subscribe has one endpoint here.
            if service.protocol_of(event) == "tcp":
                self._reliable.update(groups)
            self._group_of[topic] = groups[0] if service.to_be_found else None
            if service.to_be_found and len(groups) > 1:
                self._choices[topic] = groups

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(self, message: UMessage) -> list[UMessage]:
        """The answer to a Request to this uSubscription. What it changes is in `take_wishes`."""
        sink, asked_in = message.attributes.sink, message.attributes.payload_format
        assert sink is not None  # a valid Request
        try:
            self._check(sink)
            if sink.resource_id == Method.SUBSCRIBE:
                return [self._subscribe(message, sink.ue_version_major)]
            topic = self._named(unsubscribe_in(sink.ue_version_major, message.payload, asked_in))
            self._remove(topic, message.attributes.source)
            answer = pack(unsubscribe_answer(sink.ue_version_major), asked_in)
            return [response(self._next_id(), message, *answer)]
        except UStatusError as error:
            return [error_response(self._next_id(), message, error.status)]

    def _check(self, sink: UUri) -> None:
        if sink.ue_version_major not in _VERSIONS or sink.resource_id not in set(Method):
            raise UStatusError(
                UCode.UNIMPLEMENTED,
                f"{sink}: the ECUs of {self._authority!r} can be subscribed (1) and unsubscribed (2), in version 3 or 4",
            )

    def _named(self, topic: UUri) -> UUri:
        return topic.with_authority(self._authority)

    def _subscribe(self, message: UMessage, version: int) -> UMessage:
        attributes = message.attributes
        wish = subscribe_in(version, message.payload, attributes.payload_format)
        topic, caller = self._named(wish.topic), attributes.source
        self._check_topic(topic)
        status, why = self._put(topic, caller, version, wish.expire_ms, wish.period_ns)
        answer = pack(subscribe_answer(version, topic, status, why), attributes.payload_format)
        return response(self._next_id(), message, *answer)

    def _check_topic(self, topic: UUri) -> None:
        if topic.authority_name != self._authority:
            raise invalid(f"topic {topic}: expected one of {self._authority!r}")
        if not self._matching(topic) and (self._unlisted is None or topic.ue_instance == ANY_INSTANCE):
            raise UStatusError(
                UCode.NOT_FOUND, f"topic {topic}: no such event is configured for a service there"
            )

    def _matching(self, topic: UUri) -> Sequence[UUri]:
        if topic.ue_instance != ANY_INSTANCE:
            return (topic,) if topic in self._group_of else ()
        return [each for each in self._group_of if topic.matches(each) and each not in self._sought]

    # --- who subscribes -----------------------------------------------------------------------------------------------

    def _put(
        self, topic: UUri, caller: UUri, version: int, expire_ms: int | None, period_ns: int
    ) -> tuple[Status, str]:
        if expire_ms is not None and expire_ms < self._clock.wall_ms():
            self._remove(topic, caller)
            return Status.UNSUBSCRIBED, f"expire, {expire_ms} ms, has passed"
        known = self._subscribers.get(topic, {})
        if caller not in known and len(known) >= MAX_SUBSCRIBERS:
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED, f"topic {topic}: {MAX_SUBSCRIBERS} subscribers, the limit"
            )
        if not known:
            self._want(topic)
            self._subscribers[topic] = known
        status = self.status_of(topic)
        if status is Status.UNSUBSCRIBED:
            # Somebody wanted it before and it was refused. Who asks again is told so, and may start anew.
            self._remove(topic, caller)
            return status, "the ECU has refused the event group (Nack), or offers no endpoint for it"
        known[caller] = _Subscriber(version, period_ns, status)
        pair = (topic, caller)
        if expire_ms is None:
            self._deadlines.cancel(pair)
        else:
            left_ms = expire_ms - self._clock.wall_ms() + 1
            self._deadlines.set(pair, self._clock.monotonic_ns() + left_ms * _NS_PER_MS)
        self._note_foreign(topic)
        return status, ""

    def _remove(self, topic: UUri, caller: UUri) -> None:
        known = self._subscribers.get(topic)
        if known is None:
            return
        known.pop(caller, None)
        self._deadlines.cancel((topic, caller))
        if not known:
            del self._subscribers[topic]
            self._want_no_more(topic)
        self._note_foreign(topic)

    def _want(self, topic: UUri) -> None:
        if self._unlisted is not None and not self._matching(topic):
            self._seek(topic, self._unlisted)
        for each in self._matching(topic):
            self._choose_group(each)
            key = self._group_of[each]
            if key is None:
                continue
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(key in self._reliable)
                self._wishes.append(Wish(key, True, group.reliable))
            group.topics.add(topic)

    def _choose_group(self, topic: UUri) -> None:
        """Of the groups of a topic that nobody wants yet, take one that is subscribed anyway: another brings its events twice."""
        choices, chosen = self._choices.get(topic), self._group_of[topic]
        known = None if chosen is None else self._groups.get(chosen)
        if choices is None or (known is not None and any(each.matches(topic) for each in known.topics)):
            return
        subscribed = (key for key in choices if key in self._groups)
        granted = (key for key in subscribed if self._groups[key].state is not State.REFUSED)
        self._group_of[topic] = next(granted, choices[0])

    def _seek(self, topic: UUri, unlisted: UnlistedServices) -> None:
        group = GroupKey(unlisted.subscribe(topic), topic.resource_id)
        self._group_of[topic] = group
        self._sought.add(topic)
        if group.service in unlisted.over_tcp:
            self._reliable.add(group)

    def _seek_no_more(self, topic: UUri) -> None:
        group = self._group_of.pop(topic)
        self._sought.remove(topic)
        if group is not None:
            self._reliable.discard(group)
        if self._unlisted is not None:
            self._unlisted.unsubscribe(topic)

    def _want_no_more(self, topic: UUri) -> None:
        for each in self._matching(topic):
            key = self._group_of[each]
            group = None if key is None else self._groups.get(key)
            if key is None or group is None:
                continue
            group.topics.discard(topic)
            if not group.topics:
                del self._groups[key]
                self._wishes.append(Wish(key, False, group.reliable))
        if topic in self._sought:
            self._seek_no_more(topic)

    def goes_over(self, service: ServiceKey, *, tcp: bool) -> None:
        """How a service was found. Of one that is not listed, event groups are subscribed that way, anew if it was another."""
        if self._unlisted is not None:
            self._unlisted.goes_over(service, tcp=tcp)
        for topic in self._sought:
            key = self._group_of[topic]
            group = None if key is None else self._groups.get(key)
            if key is None or group is None or key.service != service or group.reliable is tcp:
                continue
            group.reliable = tcp
            (self._reliable.add if tcp else self._reliable.discard)(key)
            self._wishes += [Wish(key, False, not tcp), Wish(key, True, tcp)]
            self._anew.add(key)

    def take_wishes(self) -> list[Wish]:
        """What service discovery is to be told, in order; each once."""
        wishes, self._wishes = self._wishes, []
        self._anew.clear()
        return wishes

    def expire(self, now_ns: int) -> None:
        """Let go whose subscriptions have ended. A uSubscription that wants more says so before."""
        while (pair := self._deadlines.pop_due(now_ns)) is not None:
            self._remove(*pair)

    @property
    def next_deadline_ns(self) -> int | None:
        return self._deadlines.next_ns

    # --- what service discovery says ----------------------------------------------------------------------------------

    def turned(self, key: GroupKey, state: State) -> list[UMessage]:
        """Our subscription to an event group has another state: what is told of it."""
        group = self._groups.get(key)
        if group is None or key in self._anew:
            return []  # it is asked anew, and this is about what was asked before
        group.state = state
        return [update for topic in sorted(group.topics) for update in self._updates(topic)]

    def status_of(self, topic: UUri) -> Status:
        """What a subscriber of `topic` is: of every instance, what the best of them is."""
        keys = [self._group_of[each] for each in self._matching(topic)]
        states = {State.SUBSCRIBED if key is None else self._state_of(key) for key in keys}
        for state in (State.SUBSCRIBED, State.PENDING):
            if state in states:
                return _STATUS[state]
        return Status.UNSUBSCRIBED

    def _state_of(self, key: GroupKey) -> State:
        group = self._groups.get(key)
        return State.PENDING if group is None else group.state

    def _updates(self, topic: UUri) -> list[UMessage]:
        status, updates = self.status_of(topic), []
        for caller, known in self._subscribers.get(topic, {}).items():
            if known.told is status:
                continue
            known.told = status
            updates.append(
                notification(
                    self._next_id(),
                    UUri(self._authority, USUBSCRIPTION, known.version, CHANGE),
                    caller,
                    change(known.version, topic, caller, status, _WHY[status]).SerializeToString(),
                    UPayloadFormat.PROTOBUF,
                    priority=UPriority.CS2,
                    ttl=UPDATE_TTL_MS,
                )
            )
        return updates

    # --- for the router -----------------------------------------------------------------------------------------------

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        """Other devices that subscribe `topic` here. Safe from any thread."""
        if not self._foreign:
            return ()
        found = [*self._foreign.get(topic, ())]
        return [*found, *self._foreign.get(_of_every_instance(topic), ())]

    def _note_foreign(self, topic: UUri) -> None:
        others = tuple(
            Subscription(topic, caller, known.period_ns)
            for caller, known in self._subscribers.get(topic, {}).items()
            if caller not in self._own
        )
        if others == self._foreign.get(topic, ()):
            return
        changed = {**self._foreign, topic: others}
        if not others:
            del changed[topic]
        self._foreign = changed
        self.version += 1

    def statistics(self) -> dict[str, int]:
        """`sd_topics` that somebody subscribed here, and `sd_eventgroups` that they are in and that have to be found."""
        return {"sd_topics": len(self._subscribers), "sd_eventgroups": len(self._groups)}


def _of_every_instance(topic: UUri) -> UUri:
    ue_id = ANY_INSTANCE << 16 | topic.ue_type
    return UUri(topic.authority_name, ue_id, topic.ue_version_major, topic.resource_id)


_WHY: Final[Mapping[Status, str]] = {
    Status.SUBSCRIBED: "",
    Status.SUBSCRIBE_PENDING: "the ECU is away; it is subscribed again when it offers its service",
    Status.UNSUBSCRIBED: "the ECU has refused the event group (Nack), or offers no endpoint for it",
}
