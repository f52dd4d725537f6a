# SPDX-License-Identifier: Apache-2.0
"""Follows the uSubscription of the streamer's authority, which is another process.

Three sources, so that the directory is right with any uSubscription:

* **the list** (FetchSubscriptions) every `poll_ns`, which grows with its length and with the time of an answer.
  It is the truth: what it lacks ends, also after that process restarted with another store or with none. Entries can
  move while the pages of a list are read (`paged_list.py`). So what such a list lacks ends when the next one lacks it,
  too. One whose entries moved ends nothing, nor one with updates between its pages. Without any other list for 30 s,
  the topics that it lacks are listed.
* **updates** on its change topic `0/3/8000` and `0/4/8000`: a Subscribe there takes effect within milliseconds.
* **notifications**, for which this service registers in version 4, where one registration covers all topics. A process
  that restarts loses it. So the service registers again after a silence, after a node has joined, and after a list with
  a change that no update announced. A second registration changes nothing there.

Where a list of everything is refused (as by the one in Rust), each known topic is listed instead: a subscription that
began before this start is not found, and one that ended is. A process that refuses its list with any other code (in
version 4 RESOURCE_EXHAUSTED means too long) answers: it is followed by its updates, and both versions are requested.

An update that arrives during a request is applied again after the list, which may be older. While that process does not
answer, the last known subscriptions stay, and updates do not count: any entity of that network could have sent them.
Their topics are listed when it answers. At the start nothing is known, so nothing is forwarded.

Redundant streamers have the same caller here, so each receives the answers to all. Answers are matched by request id.
Until the streamers know each other, each denies the requests of the other: they bear the address of its own service.
So a denial is no answer: that of the uSubscription may still follow.

Other devices' uSubscriptions are the business of that process. Authorities without a uSubscription, such as ECUs, are
served here: a Subscribe of it for their topics is granted.
"""

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Thread
from typing import Final

from ustreamer.core.base.log_limit import limited
from ustreamer.core.routing.subscriptions import NO_ANSWER, ServiceOutage
from ustreamer.core.routing.usubscription_codec import (
    CHANGE_RESOURCE,
    NS_PER_MS,
    USUBSCRIPTION,
    VERSION_3,
    VERSION_4,
    Status,
    UsubscriptionMethod,
    is_update,
    pack_payload,
    subscribe_in,
    subscribe_response,
    unsubscribe_response,
)
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, ANY_VERSION, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.external.codec import (
    REGISTER_V4,
    change_in,
    fetch_request,
    page_in,
)
from ustreamer_usubscription.external.list_requests import TTL_NS, ListRequests
from ustreamer_usubscription.external.paged_list import PagedList
from ustreamer_usubscription.inbox import ServiceInbox
from ustreamer_usubscription.model.subscription import SubscriptionRecord, TopicEntityPair
from ustreamer_usubscription.operator_changes import OperatorChange
from ustreamer_usubscription.remote.peer_versions import OTHER_VERSION
from ustreamer_usubscription.requests.remote_codec import FETCH_SUBSCRIPTIONS

CLIENT: Final = 0x1_0004
"""Instance 1 of core.ustreamer: the entity that asks."""

POLL_NS: Final = 500_000_000
"""The shortest time between two lists."""
POLL_NS_PER_SUBSCRIPTION: Final = 50_000
"""So a list of 100 000 is requested every 5.5 s."""
UNANSWERED: Final = 4
"""Requests without an answer, after which a process that has never answered is reported."""
MAX_TOPICS: Final = 64
"""Topics that are listed one by one between two lists of everything, where those are refused."""
REFUSALS: Final = 2
"""Refused lists of everything, after which topics are listed: between them the other version is tried."""
QUIET_LIST_NS: Final = 30_000_000_000
"""After this time without a list in pages that no update disturbed, the missing topics are listed one by one."""
MAX_CHANGES: Final = 10_000
"""Updates that are remembered during a request; with more, the list is requested again."""

_UNDELIVERED: Final = (UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED)
"""Reported by this streamer, too, in the name of the method. So they are no answers."""
_OF_OTHER_VERSION: Final = (UCode.UNIMPLEMENTED, UCode.INVALID_ARGUMENT)
"""Refusals after which the other version is tried alone."""

_MAX_MESSAGES: Final = 10_000

log = logging.getLogger("ustreamer.usubscription")


class ExternalUsubscription:
    """The directory of another process's uSubscription. A `ustreamer.hooks.HostedService`."""

    def __init__(
        self, config: UsubscriptionConfig, context: PluginContext, directory: InMemoryDirectory
    ) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self._context = context
        self._directory = directory
        self._authority = context.authority
        self._client = UUri(context.authority, CLIENT, 1, 0)
        self._ids = UuidSource(context.clock.wall_ms)
        self._inbox: ServiceInbox[tuple[UMessage, int]] = ServiceInbox(
            _MAX_MESSAGES
        )  # each with its arrival time
        self._bus: UTransport | None = None
        self._running = ExitStack()
        self._version = VERSION_3
        self._requests = ListRequests()
        self._next_poll_ns = self._timer_ns = self._requested_ns = 0
        self._list = PagedList()
        self._missing: set[TopicEntityPair] = set()  # in the last quiet list, which had several pages
        self._quiet_ns = 0  # the time of the last list that no update disturbed
        self._is_started = self._is_known = False
        self._is_answering = self._is_reported = self._is_denied = False
        self._unanswered = self._refused = 0
        self._refusal: UCode | None = None  # of the awaited page, which the other version may still answer
        self._is_registered = False
        self._up_count = 0  # of the link to that process
        self._topics_in_silence: dict[UUri, None] = {}  # of updates while there was no answer
        self._topics: deque[UUri] = deque()  # to list in this round, the asked one first
        self._later: deque[UUri] = deque()  # in the next rounds
        self._listed_topics: set[UUri] = set()
        # So that the router brings the updates here.
        self._own = {
            each.pair: each
            for each in (
                SubscriptionRecord(
                    UUri(self._authority, USUBSCRIPTION, version, CHANGE_RESOURCE), self._client
                )
                for version in OTHER_VERSION
            )
        }

    def set_config(self, config: UsubscriptionConfig) -> None:
        """Apply `max_subscriptions`."""
        self.config = config

    def change(self, change: OperatorChange) -> int:
        """Raises UNIMPLEMENTED: the subscriptions belong to another process."""
        raise UStatusError(
            UCode.UNIMPLEMENTED, "core.usubscription is another process (external = true); change them there"
        )

    @property
    def entities(self) -> Sequence[UUri]:
        served = sorted(set(self._context.serves) - {self._authority})
        return [self._client, *(UUri(each, USUBSCRIPTION, ANY_VERSION) for each in served)]

    def statistics(self) -> Mapping[str, int]:
        """`subscriptions` that are followed, and what did not count, by reason."""
        return {"subscriptions": self._known_count, "answering": int(self._is_answering), **self.counts}

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, bus: UTransport) -> None:
        """Listen; the first request follows when the endpoints are up."""
        self._bus = bus
        with ExitStack() as undo:
            self._directory.apply(self._own)
            thread = Thread(target=self._run, name="usubscription", daemon=True)
            thread.start()
            undo.callback(thread.join)
            undo.callback(self._inbox.close)
            changes = UUri(self._authority, USUBSCRIPTION, ANY_VERSION, CHANGE_RESOURCE)
            filters: list[tuple[UUri, UUri | None]] = [(changes, None)]
            filters += [(ANY, entity.with_resource(ANY_RESOURCE)) for entity in self.entities]
            for source, sink in filters:
                bus.register_listener(source, sink, self._on_message)
                undo.callback(bus.unregister_listener, source, sink, self._on_message)
            self._context.links.watch(self._inbox.wake)
            self._running = undo.pop_all()

    def on_endpoints_up(self) -> None:
        """Request the list from now on. Safe from any thread."""
        self._next_poll_ns = self._context.clock.monotonic_ns()
        self._set_outage(NO_ANSWER)  # before the first answer can end it
        self._is_started = True
        self._inbox.wake()

    def stop(self) -> None:
        """May be repeated, and called without `start`."""
        self._running.close()

    def _on_message(self, message: UMessage) -> None:
        try:
            self._inbox.put_nowait((message, self._context.clock.monotonic_ns()))
        except UStatusError:  # what was lost comes with the next list
            self.counts["ignored"] += 1

    def _run(self) -> None:
        while (batch := self._inbox.wait_batch()) is not None:
            for message, arrived_ns in batch:
                self._process(message, arrived_ns)
            self._poll()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        now_ns = self._context.clock.monotonic_ns()
        if not self._is_started:
            return
        self._end_expired()
        self._check_link(now_ns)
        if now_ns >= self._next_poll_ns:
            if self._requests.is_awaiting:
                self._unanswered += 1
                self._on_no_answer()
                self._refusal = None
            else:
                self._begin_list()
            self._request_page(now_ns)
        if self._timer_ns <= now_ns or self._next_poll_ns < self._timer_ns:
            self._timer_ns = self._next_poll_ns
            self._context.schedule(self._timer_ns, self._inbox.wake)

    def _check_link(self, now_ns: int) -> None:
        """A node has joined the network of that process, which may have restarted: advance the next request.

        Not in a silence: then a request waits for it.
        """
        up_count = self._context.links.state_of(self._authority).up_count
        if up_count != self._up_count:
            self._up_count, self._is_registered = up_count, False
            if not self._unanswered:
                soon_ns = max(now_ns, self._requested_ns + self._requests.pause_ns(0))
                self._next_poll_ns = min(self._next_poll_ns, soon_ns)

    def _begin_list(self) -> None:
        self._requests.begin_list()
        self._list.begin()
        self._refusal = None
        self._topics.clear()
        self._listed_topics.clear()

    def _request_page(self, now_ns: int) -> None:
        # After a silence it may listen at the methods of the other version only.
        versions = OTHER_VERSION if self._unanswered else (self._version,)
        pause_ns = max(self._poll_ns(), self._requests.pause_ns(self._unanswered))
        ttl_ns = self._requests.ttl_ns(pause_ns)
        for version in versions:
            if self._requests.is_outstanding(version, now_ns):
                continue
            topic = self._topics[0] if self._topics else None
            payload = fetch_request(version, self._list.next_offset, topic).SerializeToString()
            message = self._request(version, FETCH_SUBSCRIPTIONS, payload, ttl_ns)
            if self._send(message):
                self._requests.add(message.id, version, now_ns)
        self._requested_ns = now_ns
        self._next_poll_ns = now_ns + pause_ns

    def _request(self, version: int, method: int, payload: bytes, ttl_ns: int = TTL_NS) -> UMessage:
        sink = UUri(self._authority, USUBSCRIPTION, version, method)
        ttl = ttl_ns // NS_PER_MS
        return request(self._ids.next(), self._client, sink, payload, UPayloadFormat.PROTOBUF, ttl=ttl)

    def _poll_ns(self) -> int:
        return POLL_NS + (POLL_NS_PER_SUBSCRIPTION * self._directory.count if self._is_known else 0)

    def _send(self, message: UMessage) -> bool:
        assert self._bus is not None
        try:
            self._bus.send(message)
        except UStatusError:
            self.counts["unsent"] += 1
            return False
        return True

    def _on_no_answer(self) -> None:
        """Nor the end of a refused request in the other version. A late one counts."""
        if self._refusal is not None:
            self._lost(self._refusal.name)
        else:
            self._is_answering = self._is_registered = False
            self._lost(UCode.PERMISSION_DENIED.name if self._is_denied else NO_ANSWER)
        self._is_denied = False
        if self._list.length or self._topics:  # they may be of a process that has gone
            self._requests.end_page()
            self._begin_list()

    def _lost(self, why: str) -> None:
        never_listed = not self._is_reported and self._unanswered >= UNANSWERED
        if self._is_known or never_listed:
            self._is_reported = True
            log.warning(
                "usubscription.external_lost",
                extra={"why": why, "subscriptions": self._known_count, **limited(self._authority)},
            )
        self._is_known = False
        self._set_outage(why)

    def _set_outage(self, why: str) -> None:
        known = self._directory.outage()
        since_ms = self._context.clock.wall_ms() if known is None else known.since_ms
        method = UUri(self._authority, USUBSCRIPTION, self._version, FETCH_SUBSCRIPTIONS)
        self._directory.set_outage(ServiceOutage(method, since_ms, why))

    @property
    def _known_count(self) -> int:
        return self._directory.count - len(self._own)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _process(self, message: UMessage, arrived_ns: int) -> None:
        attributes = message.attributes
        if attributes.type is UMessageType.REQUEST:
            self._answer_for_served(message)
        elif attributes.type is UMessageType.RESPONSE:
            self._on_response(message, arrived_ns)
        elif is_update(message) and attributes.source.authority_name == self._authority:
            self._on_update(message)

    def _on_update(self, message: UMessage) -> None:
        change = change_in(message, self._authority)
        if change is None:
            self.counts["unreadable"] += 1
            return
        if not self._is_answering:
            self.counts["updates_in_silence"] += 1
            if not self._topics_in_silence:  # it may have returned
                self._next_poll_ns = min(self._next_poll_ns, self._requested_ns + TTL_NS)
            if len(self._topics_in_silence) < MAX_TOPICS:
                self._topics_in_silence[change.entry.topic] = None
            return
        if self._requests.is_awaiting:
            if len(self._list.changes) >= MAX_CHANGES:  # too many to repeat: the next list has them
                self._requests.end_page()
            self._list.changes.append(change)
        self._apply({change.entry.pair: change.entry if change.is_routed else None})

    def _on_response(self, message: UMessage, arrived_ns: int) -> None:
        """Its code; one to an earlier request only shows how long the process takes."""
        code, reqid = message.attributes.commstatus or UCode.OK, message.attributes.reqid
        version = self._requests.version_of(reqid)
        if code in _UNDELIVERED:
            self._requests.remove(reqid)
            if version is not None:
                self._on_no_answer()
            return
        if code is UCode.PERMISSION_DENIED:
            if version is not None:
                self._is_denied = True
                self.counts["denied"] += 1
            return
        if code is UCode.UNIMPLEMENTED:
            self._requests.remove(reqid)  # a refusal takes no time
            if self._refusal or (version is not None and self._requests.is_awaiting_other(version)):
                return
        else:
            self._requests.on_answer(reqid, arrived_ns)
        if version is None:
            if not self._requests.is_awaiting:
                # After a pause of the whole process the next answers come at once.
                now_ns = self._context.clock.monotonic_ns()
                self._next_poll_ns = min(self._next_poll_ns, self._poll_after_answer_ns(now_ns))
            return
        self._version, self._is_denied, self._is_answering = version, False, True
        ends_page = code in (UCode.OK, *_OF_OTHER_VERSION) or self._topics
        if not ends_page or (code is UCode.INVALID_ARGUMENT and version == VERSION_4 and self._unanswered):
            self._refusal = code  # applied at the next poll
            if not self._is_registered:
                self._register()
            return
        self._requests.end_page()
        self._unanswered, now_ns = 0, self._context.clock.monotonic_ns()
        self._on_list(message, code, now_ns)
        if not self._requests.is_awaiting:
            self._next_poll_ns = self._poll_after_answer_ns(now_ns)

    def _poll_after_answer_ns(self, now_ns: int) -> int:
        return max(self._requested_ns + self._poll_ns(), now_ns + self._requests.rest_ns)

    def _on_list(self, message: UMessage, code: UCode, now_ns: int) -> None:
        if self._topics:
            self._on_topic(message, now_ns)
            return
        if code is not UCode.OK:
            self._on_refusal(code, now_ns)
            return
        try:
            page = self._list.page_in(
                message.payload, self._version, lambda: page_in(message, self._version, self._authority)
            )
        except UStatusError:
            self.counts["unreadable"] += 1
            return
        self.counts["unreadable"] += page.skipped
        is_last = self._list.add_page(page)
        if not is_last and self._list.length < self.config.max_subscriptions:
            self._request_page(now_ns)
            return
        self._on_last_page(now_ns, is_only=self._list.length == page.length)

    def _on_last_page(self, now_ns: int, *, is_only: bool) -> None:
        self._list.keep_decoded()
        self._refused = 0
        self._topics_in_silence.clear()
        known = {each.pair: each for each in self._directory if each.pair not in self._own}
        if is_only and not self._list.has_moved:
            self._quiet_ns = now_ns
            self._on_complete(known)
            return
        if self._list.changes or self._list.has_moved:
            self._on_disturbed(known, now_ns)
            return
        self._quiet_ns = now_ns
        is_second = bool(self._missing)
        self._on_complete(known, missing_before=self._missing)
        if self._missing and not is_second:
            self._begin_list()
            self._request_page(now_ns)

    def _on_disturbed(self, known: dict[TopicEntityPair, SubscriptionRecord], now_ns: int) -> None:
        """Add what a list has whose pages moved while they were read. It may lack any entry, each time the same one."""
        before = self._missing
        self._on_complete(known, missing_before=set())
        missing, self._missing = self._missing, self._missing & before
        if missing and now_ns - self._quiet_ns >= QUIET_LIST_NS:
            self._begin_list()
            self._list_topics(dict.fromkeys(topic for topic, _ in missing), now_ns)
            if not self._later:
                self._quiet_ns = now_ns

    def _on_refusal(self, code: UCode, now_ns: int) -> None:
        """Try the other version, then list topics one by one."""
        if code is UCode.INVALID_ARGUMENT and self._version == VERSION_3:
            self._refused += 1
            if self._refused >= REFUSALS:
                self._later.extendleft(self._topics_in_silence)
                self._topics_in_silence.clear()
                self._list_topics(self._known_topics(), now_ns)
                return
        self._lost(code.name)
        self._version = OTHER_VERSION[self._version]

    def _register(self) -> None:
        if self._version == VERSION_4:
            self._is_registered = True
            payload = pb4.NotificationsRequest().SerializeToString()
            self._send(self._request(VERSION_4, REGISTER_V4, payload))

    def _known_topics(self) -> dict[UUri, None]:
        return {each.topic: None for each in self._directory if each.pair not in self._own}

    def _list_topics(self, topics: dict[UUri, None], now_ns: int) -> None:
        """List the topics that a round before left over, else `topics`."""
        self._later = self._later or deque(topics)
        self._topics = deque(self._later.popleft() for _ in range(min(len(self._later), MAX_TOPICS)))
        self._request_topic(now_ns)

    def _request_topic(self, now_ns: int) -> None:
        """The next one, or apply what was listed."""
        if self._topics:
            self._request_page(now_ns)
            return
        listed = self._listed_topics
        known = {
            each.pair: each for each in self._directory if each.topic in listed and each.pair not in self._own
        }
        self._on_complete(known)

    def _on_topic(self, message: UMessage, now_ns: int) -> None:
        """Its subscriptions. Where they are refused, incomplete or cannot be read, the known ones stay."""
        topic = self._topics.popleft()
        if (message.attributes.commstatus or UCode.OK) is UCode.OK:
            with suppress(UStatusError):
                page = page_in(message, self._version, self._authority)
                if not page.has_more and not page.skipped:
                    self._listed_topics.add(topic)
                self._list.add(each for each in page.subscriptions if each.topic == topic)
        self._request_topic(now_ns)

    def _on_complete(
        self,
        known: dict[TopicEntityPair, SubscriptionRecord],
        missing_before: set[TopicEntityPair] | None = None,
    ) -> None:
        """Those of `known` that are not listed end; with `missing_before`, only those of them that it has, too."""
        listed = self._list.pop_entries()
        missing = known.keys() - listed.keys()
        ending = missing if missing_before is None else missing & missing_before
        self._missing = missing - ending
        ended: dict[TopicEntityPair, SubscriptionRecord | None] = dict.fromkeys(ending)
        changes = ended | {pair: each for pair, each in listed.items() if known.get(pair) != each}
        if self._apply(changes):
            self._is_registered = False  # an update would have announced them
        if not self._is_known:
            self._is_known, self._is_reported = True, False
            self._directory.set_outage(None)
            log.info(
                "usubscription.external_found",
                extra={
                    "version": self._version,
                    "subscriptions": self._known_count,
                    **limited(self._authority),
                },
            )
        if not self._is_registered:
            self._register()

    def _apply(self, changes: dict[TopicEntityPair, SubscriptionRecord | None]) -> bool:
        """Change the directory; whether that took any change."""
        wanted = {pair: each for pair, each in changes.items() if pair not in self._own}
        room = self.config.max_subscriptions - self._known_count + list(wanted.values()).count(None)
        new = [
            pair for pair, each in wanted.items() if each is not None and self._directory.find(pair) is None
        ]
        for pair in new[max(0, room) :]:
            del wanted[pair]
            self.counts["over_limit"] += 1
        if wanted:
            self._directory.apply(wanted)
        return bool(wanted)

    def _end_expired(self) -> None:
        ended = self._directory.pop_expired(self._context.clock.wall_ms())
        if ended:
            self._directory.apply(dict.fromkeys(each.pair for each in ended))

    # --- authorities without a uSubscription --------------------------------------------------------------------------

    def _answer_for_served(self, message: UMessage) -> None:
        sink, source = message.attributes.sink, message.attributes.source
        assert sink is not None
        try:
            if sink.authority_name == self._authority or sink.ue_version_major not in OTHER_VERSION:
                raise UStatusError(UCode.UNIMPLEMENTED, "core.usubscription is another process")
            if source.authority_name != self._authority or source.ue_id != USUBSCRIPTION:
                text = f"only core.usubscription of {self._authority!r} may subscribe here"
                raise UStatusError(UCode.PERMISSION_DENIED, text)
            version = sink.ue_version_major
            if sink.resource_id == UsubscriptionMethod.SUBSCRIBE:
                asked = subscribe_in(version, message.payload, message.attributes.payload_format)
                body = subscribe_response(version, asked.topic, Status.SUBSCRIBED)
            elif sink.resource_id == UsubscriptionMethod.UNSUBSCRIBE:
                body = unsubscribe_response(version)
            else:
                raise UStatusError(UCode.UNIMPLEMENTED, "core.usubscription is another process")
        except UStatusError as error:
            self._send(error_response(self._ids.next(), message, UStatus(error.code, error.message)))
            return
        self._send(
            response(self._ids.next(), message, *pack_payload(body, message.attributes.payload_format))
        )
