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
from ustreamer_wamp.errors import Refusal
from ustreamer_wamp.realm import Done
from ustreamer_wamp.vehicle.usubscription_codec import (
    failure_in,
    refusal_of,
    stands,
    subscribe,
    subscribed_in,
    unsubscribe,
    update_in,
    version_for,
)

WINDOW: Final = 256
"""Calls under way at most; whoever comes next waits for an answer."""
TTL_MS: Final = 5_000
PATIENCE_MS: Final = 500
"""How long clients wait while no call was answered since the last one that was given up: there may be no uSubscription."""
_NS_PER_MS: Final = 1_000_000
ENTITY_TYPE: Final = 0x8001
"""Type of the uEntities that sessions are; their instance is the number of the session, and 0 is the plugin itself."""
_PAUSE_NS: Final = 1_000_000_000
_TRIES: Final = 60
_SUBSCRIBE, _UNSUBSCRIBE, _FETCH = 1, 2, 3
_CHANGE: Final = 0x8000
_NOT_DELIVERED: Final = frozenset({UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED})
"""What somebody on the way answers for a uSubscription that is not there (X-26)."""


class Wish:
    """One session's wish for one topic: what it is, and what uSubscription has been told. None: no subscription."""

    __slots__ = (
        "asked",
        "asking",
        "doubt",
        "due_ns",
        "entity",
        "failures",
        "open",
        "since_ns",
        "told",
        "topic",
        "waiting",
        "wanted",
    )

    def __init__(self, entity: UUri, topic: UUri) -> None:
        self.entity = entity
        self.topic = topic
        self.wanted: int | None = None  # period in ns, 0 for every message
        self.told: int | None = None
        self.asked: int | None = None
        self.open: UUID | None = None
        self.due_ns = 0  # when the open call is given up, or the next one may be made
        self.since_ns = 0  # when the first of those who wait for an answer came
        self.failures = 0
        self.doubt: str | None = None  # why it is said to have ended, which is not sure yet
        self.asking = False  # whether the open call is the question if it has
        self.waiting: list[Done] = []


class Wishes:
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
        self.ended: Callable[[UUri, UUri, str], None] = lambda entity, topic, why: None
        """Called when a subscription of an entity has ended that is still wanted, with the reason."""
        self._silent = False  # the last call was not answered
        self._wishes: dict[tuple[UUri, UUri], Wish] = {}
        self._by_entity: dict[UUri, dict[UUri, Wish]] = {}
        self._open: dict[UUID, Wish] = {}
        self._ready: deque[Wish] = deque()
        self._fetch: UUID | None = None
        self._fetch_due_ns = 0

    # --- what is wanted -----------------------------------------------------------------------------------------------

    def want(self, entity: UUri, topic: UUri, period_ns: int, done: Done) -> None:
        """Have `entity` subscribe `topic`; `done` is called with the answer, or with None if it is told already."""
        wish = self._wishes.get((entity, topic))
        if wish is None:
            if self._silent and len(self._open) >= WINDOW:
                done(refusal_of(_NO_ANSWER))  # what is refused in time would pile up here
                return
            wish = self._new(entity, topic)
        wish.wanted = period_ns
        wish.failures = 0
        if not wish.waiting:
            wish.since_ns = self._monotonic_ns()
        wish.waiting.append(done)
        self._look_at(wish)

    def forget(self, entity: UUri, topic: UUri) -> None:
        """Have `entity` unsubscribe; whoever waits for the topic is called, as if it had been answered."""
        wish = self._wishes.get((entity, topic))
        if wish is None:
            return
        wish.wanted = None
        wish.failures = 0
        self._tell(wish, None)
        self._look_at(wish)

    def keep(self, entity: UUri, topic: UUri, period_ns: int) -> None:
        """As `want`, for nobody who waits; and whoever waits for the topic is called, as if it had been answered."""
        self.want(entity, topic, period_ns, lambda refusal: None)
        wish = self._wishes.get((entity, topic))
        if wish is not None:
            self._tell(wish, None)

    def forget_all(self, entity: UUri) -> None:
        """Have `entity` unsubscribe all that it wants."""
        for topic in list(self._by_entity.get(entity, {})):
            self.forget(entity, topic)

    def _new(self, entity: UUri, topic: UUri) -> Wish:
        wish = self._wishes[entity, topic] = Wish(entity, topic)
        self._by_entity.setdefault(entity, {})[topic] = wish
        return wish

    def _drop(self, wish: Wish) -> None:
        if self._wishes.pop((wish.entity, wish.topic), None) is not None:
            topics = self._by_entity[wish.entity]
            del topics[wish.topic]
            if not topics:
                del self._by_entity[wish.entity]

    def is_known(self, entity: UUri) -> bool:
        """Whether anything is still to be said for `entity`."""
        return entity in self._by_entity

    def __len__(self) -> int:
        return len(self._wishes)

    # --- calling ------------------------------------------------------------------------------------------------------

    def _look_at(self, wish: Wish) -> None:
        if wish.open is not None:
            return  # its answer leads here again
        if wish.wanted == wish.told:
            self._tell(wish, None)
            if wish.wanted is None:
                self._drop(wish)
                return
            if wish.doubt is None:
                return
        if len(self._open) >= WINDOW:
            self._ready.append(wish)
        else:
            self._call(wish)

    def _call(self, wish: Wish) -> None:
        wish.asked = wish.wanted
        wish.asking = wish.wanted is not None and wish.wanted == wish.told
        id = self._ids.next()
        wish.open = id
        wish.due_ns = self._due_ns()
        self._open[id] = wish
        self._counts["calls"] += 1
        if wish.asking:
            asked = pb4.FetchSubscriptionsRequest(
                topic_filter=wish.topic.to_pb(), subscriber_filter=wish.entity.to_pb()
            )
            self._send(self._request(id, wish.entity, _FETCH, asked.SerializeToString(), version=4))
        elif wish.asked is None:
            payload, version = unsubscribe(wish.topic), version_for(wish.topic)
            self._send(self._request(id, wish.entity, _UNSUBSCRIBE, payload, version))
        else:
            payload, version = subscribe(wish.topic, wish.asked), version_for(wish.topic)
            self._send(self._request(id, wish.entity, _SUBSCRIBE, payload, version))

    def _request(self, id: UUID, entity: UUri, method: int, payload: bytes, version: int = 3) -> UMessage:
        sink = UUri(self._service.authority_name, 0, version, method)
        return request(id, entity, sink, payload, UPayloadFormat.PROTOBUF, ttl=TTL_MS)

    def _due_ns(self) -> int:
        """When a call that is made now is given up: some time after its ttl, whose end may be answered, too."""
        return self._monotonic_ns() + (TTL_MS + 500) * _NS_PER_MS

    def answered(self, message: UMessage) -> None:
        """Take the Response to a call; others are ignored."""
        reqid = message.attributes.reqid
        if message.attributes.type is not UMessageType.RESPONSE or reqid is None:
            return
        self._silent = message.attributes.commstatus in _NOT_DELIVERED
        if reqid == self._fetch:
            self._fetch = None
            self._end_those_of_before(message)
            return
        wish = self._open.pop(reqid, None)
        if wish is None:
            self._answered_late(message)
            return
        wish.open = None
        if wish.asking:
            self._answered_doubt(wish, message)
            return
        failure = failure_in(message, wish.topic, is_subscribe=wish.asked is not None)
        if failure is None:
            wish.told = wish.asked
            wish.failures = 0
        else:
            self._failed(wish, failure)
        self._look_at(wish)
        self._next()

    def _failed(self, wish: Wish, failure: UStatus) -> None:
        """A Subscribe that failed is over, and the client told; an Unsubscribe is tried again, for a minute."""
        self._counts["calls_failed"] += 1
        if wish.asked is not None:
            if wish.wanted is not None:
                wish.wanted = wish.told
                self._tell(wish, refusal_of(failure))
            return
        wish.failures += 1
        if wish.failures >= _TRIES:
            wish.told = None
            return
        if wish.wanted is None:
            # Not now: whoever refused this is likely to refuse the next one, too.
            wish.open = _LATER
            wish.due_ns = self._monotonic_ns() + _PAUSE_NS

    def _answered_late(self, message: UMessage) -> None:
        """End a subscription that came after its client had been told that there is none."""
        attributes = message.attributes
        if attributes.commstatus or attributes.source.resource_id != _SUBSCRIBE or attributes.sink is None:
            return
        topic, entity = subscribed_in(message), attributes.sink.with_resource(0)
        if topic is not None and (entity, topic) not in self._wishes:
            self._counts["calls_answered_late"] += 1
            wish = self._new(entity, topic)
            wish.told = 0
            self._look_at(wish)

    # --- what ends by itself ------------------------------------------------------------------------------------------

    def is_update(self, message: UMessage) -> bool:
        """Whether a Notification is one by which uSubscription tells that a subscription has changed."""
        return message.attributes.source in self._updates

    def changed(self, message: UMessage) -> None:
        """Take such a one; what says nothing is ignored."""
        sink, update = message.attributes.sink, update_in(message)
        wish = None if sink is None or update is None else self._wishes.get((sink, update.topic))
        if update is None or wish is None or wish.wanted is None or wish.told is None:
            return  # it says nothing, or what it was asked to do
        if update.has_ended:
            wish.doubt = update.why or "it has ended at uSubscription"
            self._look_at(wish)

    def _answered_doubt(self, wish: Wish, message: UMessage | None) -> None:
        """Take the answer to the question whether a subscription stands; where there is none, the Update is believed."""
        why, wish.doubt, wish.asking = wish.doubt, None, False
        if why is not None and wish.wanted is not None and (message is None or not stands(message)):
            self._counts["subscriptions_ended"] += 1
            wish.wanted = None
            # What is told stays: an Unsubscribe of what is not there does no harm, and an answer may have been lost.
            self._tell(wish, Refusal(f"up.error.{UCode.NOT_FOUND.name.lower()}", why))
            self.ended(wish.entity, wish.topic, why)
        self._look_at(wish)
        self._next()

    def _next(self) -> None:
        while self._ready and len(self._open) < WINDOW:
            wish = self._ready.popleft()
            if self._wishes.get((wish.entity, wish.topic)) is wish:
                self._look_at(wish)

    def tick(self, now_ns: int) -> None:
        """Give up calls that were not answered, and make those again that are due."""
        if self._fetch is not None and now_ns >= self._fetch_due_ns:
            self._fetch = None
            self._silent = True
        for wish in [
            each for each in self._wishes.values() if each.open is not None and now_ns >= each.due_ns
        ]:
            if wish.open is not None and wish.open != _LATER:
                self._open.pop(wish.open, None)
                wish.open = None
                self._silent = True
                if wish.asking:
                    self._answered_doubt(wish, None)
                    continue
                self._failed(wish, _NO_ANSWER)
            else:
                wish.open = None
            if wish.open is None:
                self._look_at(wish)
        self._next()
        if self._silent:
            self._lose_patience(now_ns - PATIENCE_MS * _NS_PER_MS)

    def _lose_patience(self, before_ns: int) -> None:
        """Tell who has waited since then that there is no answer. Should one come yet, what it says is undone."""
        for wish in list(self._wishes.values()):
            if wish.waiting and wish.since_ns <= before_ns:
                wish.wanted = wish.told
                self._tell(wish, refusal_of(_NO_ANSWER))

    def _tell(self, wish: Wish, refusal: Refusal | None) -> None:
        waiting, wish.waiting = wish.waiting, []
        for done in waiting:
            done(refusal)

    # --- those of before ----------------------------------------------------------------------------------------------

    def end_those_of_before(self, authority: str) -> None:
        """Unsubscribe for all sessions of a process that ended without doing so; before the first session of this one."""
        self._fetch = self._ids.next()
        self._fetch_due_ns = self._due_ns()
        asked = pb4.FetchSubscriptionsRequest(subscriber_filter=any_at(authority).with_resource(0).to_pb())
        entity = UUri(authority, ENTITY_TYPE, 1, 0)
        self._send(self._request(self._fetch, entity, _FETCH, asked.SerializeToString(), version=4))

    def _end_those_of_before(self, message: UMessage) -> None:
        if message.attributes.commstatus:
            return  # there is no uSubscription, or it is too full to be asked
        found = pb4.FetchSubscriptionsResponse()
        try:
            found.ParseFromString(message.payload)
        except DecodeError:
            return
        for each in found.subscriptions:
            entity, topic = UUri.from_pb(each.subscriber), UUri.from_pb(each.topic)
            if (entity, topic) not in self._wishes:
                wish = self._new(entity, topic)
                wish.told = 0
                self._counts["ended_those_of_before"] += 1
                self._look_at(wish)


_NO_ANSWER: Final = UStatus(UCode.DEADLINE_EXCEEDED, "no answer from uSubscription")
_LATER: Final = UUID(0, 0)
"""Stands for an open call while one is waited with."""
