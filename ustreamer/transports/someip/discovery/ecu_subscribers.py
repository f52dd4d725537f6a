# SPDX-License-Identifier: Apache-2.0
"""ECUs that subscribe event groups of what we offer, as subscribers of our own core.usubscription. No I/O.

    SubscribeEventgroup      a Subscribe for each event of the group, by a uEntity that stands for the ECU's endpoint
    all of them granted      Ack; one of them refused: Nack
    over, for any reason     an Unsubscribe for each event that no other group of this endpoint has

The uEntity is //<authority>/<n << 16 | service>/<major>/0, as that of a configured receiver; n counts on behind those. It keeps
its address until our uSubscription has let it go, so that what is on its way meanwhile is sent and not a dead letter.

What is wanted and what our uSubscription was told are kept apart, and `requests` says what lies between them: an ECU that stops
and subscribes again in one message is no change.

    told      | wanted                        not wanted
    ----------+--------------------------------------------------------
    NOTHING   | Subscribe sent: ASKED         forgotten
    ASKED     | -                             Unsubscribe sent: ENDING
    HELD      | renewed at half of its time   Unsubscribe sent: ENDING
    ENDING    | Subscribe sent: ASKED         answered: NOTHING
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.keyed_deadlines import Deadlines
from ustreamer.core.routing.usubscription_codec import (
    USUBSCRIPTION,
    VERSION_3,
    Method,
    Status,
    Wish,
    is_change,
    status_in,
    subscribe_request,
    told_in,
    unsubscribe_request,
)
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.actions import Subscription
from ustreamer.transports.someip.sd.codec import FOREVER
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

LEAST_LEASE_S: Final = 60
"""What is asked of our uSubscription at least: each renewal is a commit to its disk. Who is over sooner is unsubscribed."""

CALL_TTL_MS: Final = 5_000
"""How long our uSubscription may take to answer; the ECU is told Nack before that (`decision_timeout_ms`)."""

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


class Told(Enum):
    """What our uSubscription knows of one topic of one receiver."""

    NOTHING = auto()
    ASKED = auto()
    HELD = auto()
    ENDING = auto()


class Place(NamedTuple):
    """Where an ECU wants events of one service: over UDP, over TCP, or both."""

    service: ServiceKey
    udp: Address | None
    tcp: Address | None


class Verdicts(NamedTuple):
    """What service discovery is to be told of subscriptions."""

    accepted: list[Subscription]
    refused: list[Subscription]


class _Topic:
    def __init__(self) -> None:
        self.told = Told.NOTHING
        self.holders: dict[Subscription, None] = {}
        self.lease_s: int | None = 0
        self.call: UUID | None = None
        self.renew = False


class Receiver:
    """One place and the uEntity that stands for it."""

    def __init__(self, place: Place, subscriber: UUri) -> None:
        self.place = place
        self.subscriber = subscriber
        self.topics: dict[UUri, _Topic] = {}


_Key = tuple[UUri, UUri]
"""The uEntity of a receiver, and a topic."""

_NOT_DELIVERED: Final = frozenset({UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED})
"""Answers that say nothing about a subscription that stands."""


class EcuSubscribers:
    """Belongs to one thread. What is to be sent is in `requests`, which is asked after each turn."""

    def __init__(
        self,
        authority: str,
        own_authority: str,
        clock: Clock,
        next_id: Callable[[], UUID],
        taken: Mapping[ServiceKey, int],
    ) -> None:
        """`taken` says from which n on a service has uEntities to give away: those before are its configured receivers'."""
        self._authority = authority
        self._usubscription = UUri(own_authority, USUBSCRIPTION, VERSION_3)
        self._clock = clock
        self._next_id = next_id
        self._next: dict[ServiceKey, int] = dict(taken)
        self._free: dict[ServiceKey, list[int]] = {}
        self._receivers: dict[Place, Receiver] = {}
        self._by_subscriber: dict[UUri, Receiver] = {}
        self._topics_of: dict[Subscription, tuple[UUri, ...]] = {}
        self._undecided: set[Subscription] = set()
        self._calls: dict[UUID, _Key] = {}
        self._dirty: dict[_Key, None] = {}
        self._deadlines: Deadlines[_Key] = Deadlines()
        self._late: Deadlines[UUID] = Deadlines()
        self._verdicts = Verdicts([], [])
        self._gone: list[Receiver] = []
        self._strays: list[_Key] = []

    # --- what service discovery says ----------------------------------------------------------------------------------

    def asked(self, subscription: Subscription, topics: Iterable[UUri], ttl_s: int) -> Receiver | None:
        """An ECU subscribes the event group that has `topics`; None if no uEntity is left to stand for it."""
        place = Place(subscription.key, subscription.udp, subscription.tcp)
        receiver = self._receivers.get(place) or self._new(place)
        if receiver is None:
            self._verdicts.refused.append(subscription)
            return None
        self._topics_of[subscription] = tuple(topics)
        self._undecided.add(subscription)
        for name in self._topics_of[subscription]:
            topic = receiver.topics.setdefault(name, _Topic())
            topic.holders[subscription] = None
            lease_s = _longer(topic.lease_s, None if ttl_s == FOREVER else max(ttl_s, LEAST_LEASE_S))
            topic.renew |= lease_s != topic.lease_s
            topic.lease_s = lease_s
            self._dirty[receiver.subscriber, name] = None
        self._decide(receiver)
        return receiver

    def _new(self, place: Place) -> Receiver | None:
        free, n = self._free.get(place.service), self._next.get(place.service, 0)
        if free:
            n = free.pop()
        elif n > 0xFFFE:
            return None
        else:
            self._next[place.service] = n + 1
        subscriber = UUri(self._authority, n << 16 | place.service.service, place.service.major, 0)
        receiver = Receiver(place, subscriber)
        self._receivers[place] = self._by_subscriber[subscriber] = receiver
        return receiver

    def ended(self, subscription: Subscription) -> None:
        """A subscription is over."""
        names = self._topics_of.pop(subscription, ())
        self._undecided.discard(subscription)
        receiver = self._receivers.get(Place(subscription.key, subscription.udp, subscription.tcp))
        if receiver is None:
            return
        for name in names:
            topic = receiver.topics.get(name)
            if topic is not None:
                topic.holders.pop(subscription, None)
                self._dirty[receiver.subscriber, name] = None

    def let_go(self, subscriber: UUri, topic: UUri) -> None:
        """Our uSubscription has a subscription that is none of ours: it was made by a streamer that was killed since."""
        if subscriber.authority_name == self._authority and subscriber not in self._by_subscriber:
            self._strays.append((subscriber, topic))

    # --- what our uSubscription says ----------------------------------------------------------------------------------

    def concerns(self, message: UMessage) -> bool:
        """Whether a Response or a Notification is for one of our uEntities, or was. Safe from any thread."""
        attributes = message.attributes
        if attributes.type is UMessageType.NOTIFICATION:
            return is_change(message)
        return attributes.source.with_resource(0) == self._usubscription

    def answered(self, message: UMessage) -> None:
        """Take in the answer to one of `requests`."""
        reqid = message.attributes.reqid
        key = None if reqid is None else self._calls.pop(reqid, None)
        if key is None or reqid is None:
            return
        self._late.cancel(reqid)
        receiver = self._by_subscriber.get(key[0])
        topic = None if receiver is None else receiver.topics.get(key[1])
        if receiver is None or topic is None or topic.call != reqid:
            return  # asked otherwise since
        topic.call = None
        if topic.told is Told.ENDING:
            topic.told = Told.NOTHING
            self._dirty[key] = None
        elif _granted(message):
            topic.told = Told.HELD
            if topic.lease_s is not None:
                self._deadlines.set(key, self._clock.monotonic_ns() + topic.lease_s * _NS_PER_S // 2)
            self._decide(receiver)
        elif topic.told is Told.HELD and message.attributes.commstatus in _NOT_DELIVERED:
            self._deadlines.set(key, self._clock.monotonic_ns() + CALL_TTL_MS * _NS_PER_MS)
        else:
            topic.told = Told.NOTHING
            self._refuse(receiver, key[1])

    def told(self, message: UMessage) -> None:
        """Take in a notification of change: our uSubscription, or another one behind it, may end what it granted."""
        told = told_in(message)
        if told is None or message.attributes.source.with_resource(0) != self._usubscription:
            return
        receiver = self._by_subscriber.get(told.subscriber.with_resource(0))
        topic = None if receiver is None else receiver.topics.get(told.topic)
        if receiver is None or topic is None or told.status is not Status.UNSUBSCRIBED:
            return
        if topic.told is Told.HELD:  # else it is about what was before
            topic.told = Told.NOTHING
            self._refuse(receiver, told.topic)

    def _refuse(self, receiver: Receiver, name: UUri) -> None:
        """The groups with this topic are refused; the ECU may subscribe again."""
        self._deadlines.cancel((receiver.subscriber, name))
        for subscription in list(receiver.topics[name].holders):
            self.ended(subscription)
            self._verdicts.refused.append(subscription)
        self._dirty[receiver.subscriber, name] = None

    def _decide(self, receiver: Receiver) -> None:
        """Accept what has all its topics."""
        held = {name for name, topic in receiver.topics.items() if topic.told is Told.HELD}
        waiting = {s for topic in receiver.topics.values() for s in topic.holders if s in self._undecided}
        for subscription in sorted(waiting, key=lambda each: each.eventgroup):
            if held.issuperset(self._topics_of[subscription]):
                self._undecided.discard(subscription)
                self._verdicts.accepted.append(subscription)

    def take_verdicts(self) -> Verdicts:
        """What has been decided, once."""
        accepted, refused = self._verdicts
        self._verdicts = Verdicts([], [])
        # One message may subscribe and stop again: what is over has no verdict any more.
        return Verdicts([each for each in dict.fromkeys(accepted) if each in self._topics_of], refused)

    # --- what is to be said to it -------------------------------------------------------------------------------------

    def requests(self) -> list[UMessage]:
        """What our uSubscription is to be told now."""
        requests = [
            self._unsubscribe(*stray) for stray in self._strays if stray[0] not in self._by_subscriber
        ]
        self._strays.clear()
        for key in list(self._dirty):
            del self._dirty[key]
            receiver = self._by_subscriber.get(key[0])
            topic = None if receiver is None else receiver.topics.get(key[1])
            if receiver is None or topic is None:
                continue
            if topic.holders and topic.told in {Told.NOTHING, Told.ENDING}:
                topic.told = Told.ASKED
                requests.append(self._subscribe(key, topic))
            elif topic.holders and topic.told is Told.HELD and topic.renew:
                requests.append(self._subscribe(key, topic))
            elif not topic.holders and topic.told in {Told.ASKED, Told.HELD}:
                topic.told, topic.lease_s = Told.ENDING, 0
                self._deadlines.cancel(key)
                requests.append(
                    self._call(
                        key, topic, Method.UNSUBSCRIBE, unsubscribe_request(key[1]).SerializeToString()
                    )
                )
            elif not topic.holders and topic.told is Told.NOTHING:
                self._forget(receiver, key[1])
        return requests

    def _unsubscribe(self, subscriber: UUri, topic: UUri) -> UMessage:
        payload = unsubscribe_request(topic).SerializeToString()
        sink = self._usubscription.with_resource(Method.UNSUBSCRIBE)
        return request(self._next_id(), subscriber, sink, payload, UPayloadFormat.PROTOBUF, ttl=CALL_TTL_MS)

    def _subscribe(self, key: _Key, topic: _Topic) -> UMessage:
        topic.renew = False
        expire_ms = None if topic.lease_s is None else self._clock.wall_ms() + topic.lease_s * 1_000
        asked = subscribe_request(Wish(key[1], expire_ms))
        return self._call(key, topic, Method.SUBSCRIBE, asked.SerializeToString())

    def _call(self, key: _Key, topic: _Topic, method: Method, payload: bytes) -> UMessage:
        id = self._next_id()
        topic.call = id
        self._calls[id] = key
        self._late.set(id, self._clock.monotonic_ns() + CALL_TTL_MS * _NS_PER_MS)
        sink = self._usubscription.with_resource(method)
        return request(id, key[0], sink, payload, UPayloadFormat.PROTOBUF, ttl=CALL_TTL_MS)

    def _forget(self, receiver: Receiver, name: UUri) -> None:
        del receiver.topics[name]
        self._deadlines.cancel((receiver.subscriber, name))
        if not receiver.topics:
            del self._receivers[receiver.place], self._by_subscriber[receiver.subscriber]
            self._gone.append(receiver)
            self._free.setdefault(receiver.place.service, []).append(receiver.subscriber.ue_instance)

    # --- time ---------------------------------------------------------------------------------------------------------

    def on_timer(self, now_ns: int) -> None:
        """Renew what is half over, and give up calls without an answer."""
        while (key := self._deadlines.pop_due(now_ns)) is not None:
            self._by_subscriber[key[0]].topics[key[1]].renew = True
            self._dirty[key] = None
        while (id := self._late.pop_due(now_ns)) is not None:
            self._give_up(id)

    def _give_up(self, id: UUID) -> None:
        key = self._calls.pop(id)
        receiver = self._by_subscriber.get(key[0])
        topic = None if receiver is None else receiver.topics.get(key[1])
        if receiver is None or topic is None or topic.call != id:
            return
        topic.call = None
        if topic.told is Told.ENDING:
            topic.told = Told.NOTHING  # it ends by itself there, when its time is over
            self._dirty[key] = None
        elif topic.told is Told.HELD:
            topic.renew = True
            self._dirty[key] = None
        else:
            self._refuse(receiver, key[1])  # and unsubscribed: it may have been granted all the same

    @property
    def next_deadline_ns(self) -> int | None:
        both = (self._deadlines.next_ns, self._late.next_ns)
        return min((each for each in both if each is not None), default=None)

    def take_gone(self) -> list[Receiver]:
        """Receivers that our uSubscription has let go, once."""
        gone, self._gone = self._gone, []
        return gone

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """`sd_receivers`: endpoints of ECUs that are sent events; `sd_undecided` subscriptions."""
        return {"sd_receivers": len(self._by_subscriber), "sd_undecided": len(self._undecided)}


def _granted(answer: UMessage) -> bool:
    """Pending counts: our uSubscription has it, and asks elsewhere. Should that come to nothing, it says so."""
    if (answer.attributes.commstatus or UCode.OK) is not UCode.OK:
        return False
    try:
        status = status_in(VERSION_3, answer.payload, answer.attributes.payload_format)
    except UStatusError:
        return False
    return status in {Status.SUBSCRIBED, Status.SUBSCRIBE_PENDING}


def _longer(one: int | None, other: int | None) -> int | None:
    """The longer of two times in s, None being for ever."""
    return None if one is None or other is None else max(one, other)
