# SPDX-License-Identifier: Apache-2.0
"""Remote topics: what is said to the uSubscriptions of other devices, and what their answers mean.

Speaks as core.usubscription of this device, whoever the clients are: then a publication crosses once, and is spread to
them here [impl->dsn~usubscription-subscribe-remote-subscriber-change~1]
[impl->dsn~usubscription-unsubscribe-remote-subscriber-change~1] [impl->LIF-15].
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ustreamer.core.base.links import Links
from ustreamer.core.routing.subscriptions import fastest
from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION, Status, told_in
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.model.lifecycle import Event
from ustreamer_usubscription.model.subscription import Tracked
from ustreamer_usubscription.remote.remote_calls import TIMEOUT_MS, Calls, Errand, Method
from ustreamer_usubscription.requests.remote_codec import LANGUAGES, status_in, version_for
from ustreamer_usubscription.requests.requests import MAX_DETAILS
from ustreamer_usubscription.store.transaction import Draft, State

NOT_DELIVERED: Final = frozenset({UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED})
"""What a dispatcher on the way may answer; every other code comes from the uSubscription and is its last word (X-26)."""

MAX_REASON: Final = 256
"""Characters of another device's words that are passed on, to everybody who subscribes the topic."""

MAX_STRAYS: Final = 1_000
"""Calls under way above which nothing is unsubscribed that only the other side knows of."""

_MS_PER_S: Final = 1000
_WANTED: Final = (Status.SUBSCRIBE_PENDING, Status.SUBSCRIBED)

_MEANING: Final[Mapping[Status, Event]] = {
    Status.SUBSCRIBED: Event.GRANTED,
    Status.SUBSCRIBE_PENDING: Event.DEFERRED,
    Status.UNSUBSCRIBED: Event.REFUSED,
}
_OUTCOME: Final[Mapping[Event, Status]] = {
    Event.GRANTED: Status.SUBSCRIBED,
    Event.DEFERRED: Status.SUBSCRIBE_PENDING,
}
"""The state of a topic to which nothing but this answer has happened; none after all other answers."""

log = logging.getLogger("ustreamer.usubscription")


class Reply(NamedTuple):
    """What an answer means: an event for the topic and why, or (None) that the call has to be made again."""

    event: Event | None
    why: str = ""


class _Hint(NamedTuple):
    """What a notification said of a topic, and when."""

    status: Status
    now_ns: int
    jitter: float


class Upstream:
    """Keeps the uSubscriptions of other devices told of what is wanted here. Belongs to the service's thread.

    An answer is taken in in two steps, `hear` before the commit and `follow` after it: only what is on disk is done with.
    """

    def __init__(
        self, state: State, authority: str, links: Links, ids: UuidSource, config: UsubscriptionConfig
    ) -> None:
        self._state = state
        self._authority = authority
        self._ids = ids
        self._name_subscriber = config.legacy_subscriber_field
        self._calls = Calls(links.of, config.remote_refresh_s * _MS_PER_S)
        self._heard: list[tuple[Errand, Reply, UUID]] = []
        self._hints: dict[UUri, _Hint] = {}  # the last one for each topic about which a call is under way
        self._counts: Counter[str] = Counter()

    # --- what comes in ------------------------------------------------------------------------------------------------

    def expects(self, message: UMessage) -> bool:
        """Whether a Response answers a call that is under way. Safe from any thread."""
        reqid = message.attributes.reqid
        return reqid is not None and self._calls.is_open(reqid)

    def hear(self, message: UMessage, draft: Draft) -> None:
        """Draft what a Response to one of our calls changes, for everybody who subscribes the topic."""
        reqid, source = message.attributes.reqid, message.attributes.source
        errand = None
        if reqid is not None and _may_answer(message):
            errand = self._calls.answered(reqid, source.authority_name)
        if reqid is None or errand is None:
            self._counts["remote_late"] += 1
            return
        try:
            reply = _meaning(errand, message)
        except UStatusError as error:
            self._count_and_say("remote_unreadable", "usubscription.unreadable_answer", errand.topic, error)
            reply = Reply(None)
        self._heard.append((errand, reply, reqid))
        if reply.event is not None:
            draft.hear(errand.topic, reply.event, reply.why)

    def consider(self, message: UMessage, now_ns: int) -> None:
        """Look at a notification from another device: where it says something else than we know, `follow` asks again.

        It is not taken at its word, for it may be older than the last answer, which came by another priority. What it can
        tell is that the other side was reset, ended our subscription, has got by now what it waited for, or has one of ours
        that nobody here wants.
        """
        told = told_in(message)
        if told is None or told.topic.authority_name != message.attributes.source.authority_name:
            return
        if told.subscriber.with_resource(0) != self._own(version_for(told.topic)):
            return
        if self._state.is_remote(told.topic):
            self._hints[told.topic] = _Hint(told.status, now_ns, _jitter(message.id))

    # --- what is to be said -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """After a start, say everything anew: pending work goes on, and what was granted is confirmed."""
        for topic in self._state.remotes:
            self._require(topic)

    def follow(self, draft: Draft, now_ns: int, *, committed: bool) -> None:
        """Take over what a draft has changed if it is `committed`, and be done with the answers that led to it."""
        if committed:
            for topic in self._concerned(draft):
                # Whoever left and came back within one draft waits for an answer like anybody else.
                self._require(topic, again=draft.remotes.changes.get(topic) is Status.SUBSCRIBE_PENDING)
        for errand, reply, reqid in self._heard:
            if committed and reply.event is not None:
                pending, news = reply.event is Event.DEFERRED, errand.topic in draft.remotes.changes
                self._calls.succeeded(errand, now_ns, _jitter(reqid), pending=pending, news=news)
                # Whoever came or left in the draft of the answer has had none, though the draft may look unchanged.
                if self._state.remotes.find(errand.topic) is not _OUTCOME.get(reply.event):
                    self._require(errand.topic, again=True)
                elif self._state.remotes.find(errand.topic) is None:
                    self._calls.release(errand.topic)
            else:
                self._calls.failed(errand, now_ns, _jitter(reqid))
        self._heard.clear()
        self._follow_hints()

    def _follow_hints(self) -> None:
        """Ask again where a hint contradicts what we know by now.

        One that came during a call, or together with its answer, is compared with what is answered.
        """
        for topic in [each for each in self._hints if not self._calls.awaits(each)]:
            hint, known = self._hints.pop(topic), self._state.remotes.find(topic)
            if known in _WANTED and known is not hint.status:
                awaited = known is Status.SUBSCRIBE_PENDING
                self._calls.doubt(topic, hint.now_ns, hint.jitter, awaited=awaited)
            elif known is None and hint.status in _WANTED and self._calls.open < MAX_STRAYS:
                # A Subscribe that came late, after the Unsubscribe that was to undo it: two methods have no order.
                self._calls.require(topic, None)

    def _concerned(self, draft: Draft) -> Iterable[UUri]:
        subscribed = (topic for topic, _ in draft.subscriptions.changes if self._state.is_remote(topic))
        return dict.fromkeys([*draft.settled, *draft.remotes.changes, *subscribed])

    def _require(self, topic: UUri, *, again: bool = False) -> None:
        status = self._state.remotes.find(topic)
        if status is None:
            self._calls.release(topic)
        elif status is Status.UNSUBSCRIBE_PENDING or not self._state.directory.exactly(topic):
            # A salvaged store may know of a topic and not of who subscribed it, until that is settled.
            self._calls.require(topic, None, again=again)
        else:
            self._calls.require(topic, self._wish(topic), again=again)

    def _wish(self, topic: UUri) -> Tracked:
        """What all who subscribe `topic` want together: the fastest rate, the latest end, the details of each.

        [impl->LIF-20]
        """
        entries = self._state.directory.exactly(topic)
        ends = [entry.expire_ms for entry in entries]
        details = b""
        for each in sorted({entry.details for entry in entries}):
            # To put two of them in a row is to merge them.
            details += each if len(details) + len(each) <= MAX_DETAILS else b""
        return Tracked(
            topic,
            self._own(version_for(topic)),
            fastest(entry.period_ns for entry in entries),
            None if None in ends else max(end for end in ends if end is not None),
            details,
        )

    def _own(self, version: int) -> UUri:
        return UUri(self._authority, USUBSCRIPTION, version, 0)

    # --- calling ------------------------------------------------------------------------------------------------------

    def call(self, send: Callable[[UMessage], None], now_ns: int) -> None:
        """Make the calls that are due. `send` raises UStatusError.

        [impl->req~usubscription-subscribe-remote~1] [impl->req~usubscription-unsubscribe-last-remote~1]
        """
        for errand in self._calls.due(now_ns):
            message = self._request(errand)
            self._hints.pop(errand.topic, None)  # it was said before we ask
            self._calls.called(errand, message.id, now_ns)
            try:
                send(message)
            except UStatusError as error:
                self._count_and_say("remote_unsent", "usubscription.call_not_sent", errand.topic, error)
                self._calls.failed(errand, now_ns, _jitter(message.id))

    def _request(self, errand: Errand) -> UMessage:
        topic, wish = errand.topic, errand.wish
        version = version_for(topic)
        own, language = self._own(version), LANGUAGES[version]
        asked = language.unsubscribe(topic) if wish is None else language.subscribe(wish)
        if self._name_subscriber and isinstance(asked, pb.SubscriptionRequest | pb.UnsubscribeRequest):
            asked.subscriber.uri.CopyFrom(own.to_pb())
        sink = UUri(topic.authority_name, USUBSCRIPTION, version, errand.method)
        payload = asked.SerializeToString()
        return request(self._ids.next(), own, sink, payload, UPayloadFormat.PROTOBUF, ttl=TIMEOUT_MS)

    def link_turned(self) -> None:
        """Some link has changed: `call` is to be asked. Safe from any thread."""
        self._calls.link_turned()

    def next_ns(self) -> int | None:
        """When something is due by the monotonic clock."""
        return self._calls.next_ns()

    def statistics(self) -> Mapping[str, int]:
        """`remote_calls`, `remote_open` of them, `remote_timeouts`, `remote_retries` after a pause, `remote_late` answers.

        `remote_unsent` are calls that no transport took, `remote_unreadable` are answers that say nothing.
        """
        return {**self._calls.counts, **self._counts, "remote_open": self._calls.open}

    def _count_and_say(self, count: str, what: str, topic: UUri, error: UStatusError) -> None:
        # Said once, always counted: there may be as many as there are remote topics.
        if not self._counts[count]:
            log.warning(what, extra={"topic": str(topic), "why": str(error)})
        self._counts[count] += 1


def _meaning(errand: Errand, answer: UMessage) -> Reply:
    """What an answer means; one from somebody on the way means nothing. INVALID_ARGUMENT if it says nothing.

    [impl->req~usubscription-remote-retry-indefinitely~1] [impl->LIF-19]
    """
    code = answer.attributes.commstatus or UCode.OK
    if code in NOT_DELIVERED:
        return Reply(None)
    if errand.method is Method.UNSUBSCRIBE:
        return Reply(Event.RELEASED)
    who = f"core.usubscription of {errand.topic.authority_name!r}"
    if code is not UCode.OK:
        return Reply(Event.REFUSED, f"{who}: {code.name}: {_text(answer)}")
    event = _MEANING.get(status_in(answer, errand.topic))
    return Reply(event, f"{who} answered UNSUBSCRIBED" if event is Event.REFUSED else "")


def _may_answer(answer: UMessage) -> bool:
    """Whoever is on the way may say that a call was not delivered; the rest is for a uSubscription to say."""
    attributes = answer.attributes
    return attributes.source.ue_id == USUBSCRIPTION or attributes.commstatus in NOT_DELIVERED


def _text(answer: UMessage) -> str:
    try:
        return decode_status(answer.payload).message[:MAX_REASON]
    except UStatusError:
        return "without a reason"


def _jitter(id: UUID) -> float:
    """A number from 0 to 1 that differs from device to device: the last bits of an id are random."""
    return (id.lsb & 0xFFFF) / 0xFFFF
