# SPDX-License-Identifier: Apache-2.0
"""The uEntity core.usubscription: requests in, commits, answers out.

One thread owns the subscriptions. It takes what has queued up while the last commit waited for the disk, decides it all
on a draft, commits the draft in one transaction, brings the directory up to date, and answers in the order of arrival.
So an acknowledged change is on disk and is routed by, a question sees every change that was committed with it, and the
disk's 2 to 8 ms for a commit are shared by all who wait.

Where a shared commit fails, each of its requests is tried alone: one that needs no room is not refused for its neighbour.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Final, TypeAlias

from google.protobuf.message import Message

from ustreamer.hookspecs import PluginContext
from ustreamer.uprotocol.uattributes import UMessageType, is_expired
from ustreamer.uprotocol.umessage import UMessage, error_response, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError, invalid
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, ANY_VERSION, UUri
from ustreamer_usubscription import v3
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import Directory, Draft
from ustreamer_usubscription.inbox import Inbox
from ustreamer_usubscription.messages import Call, pack
from ustreamer_usubscription.store import Store, delete, put
from ustreamer_usubscription.tracked import Pair

ENTITY: Final = 0
"""ue_id of core.usubscription: type 0, instance 0."""

STORE: Final = "usubscription"
"""The directory of the store in state_dir."""

MAX_REQUEST: Final = 16_384
"""Bytes of a request's payload at most, which bounds the queue in bytes; the largest that makes sense has about 5 000."""

# The wall clock may jump, the timer's does not: look at the wall clock this often while any subscription is to end.
_LONGEST_WAIT_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000

Outcome: TypeAlias = Message | UStatus
log = logging.getLogger("ustreamer.usubscription")


class UsubscriptionService:
    """core.usubscription at every authority that the streamer serves. A `ustreamer.hookspecs.Service`."""

    _bus: UTransport  # from `start` on

    def __init__(self, config: UsubscriptionConfig, context: PluginContext, directory: Directory) -> None:
        self._config = config
        self._context = context
        self._directory = directory
        self._serves = frozenset({context.authority, *context.serves})
        self._store = Store(
            context.state_dir / STORE,
            config.map_size_mb << 20,
            damaged=config.damaged,
            wall_ms=context.clock.wall_ms,
        )
        self._inbox = Inbox(config.max_queued_requests)
        self._ids = UuidSource(context.clock.wall_ms)
        self._refusal_ids = UuidSource(context.clock.wall_ms)  # the listener's thread is another one
        self._thread: Thread | None = None
        self._running = ExitStack()
        # Ended subscriptions that the store may still have: memory drops them at once, whatever the disk says.
        self._unsaved: set[Pair] = set()
        self._armed_ns: int | None = None
        self._counts: Counter[str] = Counter()
        self._turned_away: Counter[str] = Counter()  # as _counts, on the listener's thread

    @property
    def entities(self) -> Sequence[UUri]:
        return [UUri(authority, ENTITY, ANY_VERSION) for authority in sorted(self._serves)]

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, bus: UTransport) -> None:
        """Open the store, load the directory, listen. Raises what `Store.open` raises.

        [impl->req~usubscription-subscribe~1] What was acknowledged before a restart is routed by before the first message.
        """
        with ExitStack() as undo:
            undo.callback(self._store.close)
            self._store.open()
            self._directory.load(self._store.take())
            self._bus = bus
            self._serve([])  # what ended while nobody was here
            # A daemon, so that an owner who forgets `stop` can still exit; what is not committed is not acknowledged.
            self._thread = Thread(target=self._run, name="usubscription", daemon=True)
            self._thread.start()
            undo.callback(self._finish)
            for entity in self.entities:
                everything = entity.with_resource(ANY_RESOURCE)
                bus.register_listener(ANY, everything, self._receive)
                undo.callback(bus.unregister_listener, ANY, everything, self._receive)
            self._running = undo.pop_all()
        log.info(
            "usubscription.started",
            extra={"store": str(self._store.path), "subscriptions": self._directory.count},
        )

    def stop(self) -> None:
        """Finish what was accepted, answer it, close the store. May be repeated, and called without `start`."""
        self._running.close()

    def _finish(self) -> None:
        self._inbox.close()
        if self._thread is not None:
            self._thread.join()

    # --- the listener's thread ----------------------------------------------------------------------------------------

    def _receive(self, message: UMessage) -> None:
        if message.attributes.type is not UMessageType.REQUEST:
            self._turned_away["ignored"] += 1
            return
        try:
            if len(message.payload) > MAX_REQUEST:
                raise invalid(f"payload of {len(message.payload)} bytes: a request has at most {MAX_REQUEST}")
            self._inbox.put_nowait(message)
        except UStatusError as refused:
            self._turned_away[_refusal(refused.code)] += 1
            self._send(error_response(self._refusal_ids.next(), message, refused.status), self._turned_away)

    # --- the service's own thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._inbox.wait_batch()) is not None:
                self._serve(batch)
        finally:
            self._inbox.close()  # should this thread ever fail, callers are told instead of being left waiting

    def _serve(self, batch: Sequence[UMessage]) -> None:
        """Decide, commit, apply, answer: in this order and all of `batch` together."""
        now_ms = self._context.clock.wall_ms()
        self._end_expired(now_ms)
        draft = Draft(self._directory, self._config.max_subscriptions, now_ms)
        outcomes = [self._decide(message, draft) for message in batch]
        failure = self._save(draft)
        if failure is None:
            self._directory.apply(draft.changes)
        elif len(batch) > 1:
            for message in batch:
                self._serve([message])
            return
        for message, outcome in zip(batch, outcomes, strict=True):
            self._answer(message, failure or (self._ask(message) if outcome is None else outcome))
        self._arm()

    def _decide(self, message: UMessage, draft: Draft) -> Outcome | None:
        """Draft a change and give its answer, true after the commit; None for a question, which comes after it."""
        attributes = message.attributes
        method = _method(message)
        try:
            if is_expired(message.id.time_ms, attributes.ttl, draft.now_ms):
                raise UStatusError(
                    UCode.DEADLINE_EXCEEDED, f"ttl of {attributes.ttl} ms ran out in the queue"
                )
            if method in v3.QUESTIONS:
                return None
            if method not in v3.CHANGES:
                raise _unknown(*method)
            return v3.CHANGES[method](self._call(message), draft)
        except UStatusError as error:
            return error.status

    def _ask(self, message: UMessage) -> Outcome:
        try:
            question = v3.QUESTIONS[_method(message)]
            return question(self._call(message), self._directory, self._config.page_size)
        except UStatusError as error:
            return error.status

    def _call(self, message: UMessage) -> Call:
        attributes = message.attributes
        assert attributes.sink is not None  # the listener's filter has seen to it
        own = self._context.authority
        return Call(
            attributes.source.with_authority(own),
            attributes.sink.authority_name or own,
            self._serves,
            message.payload,
            attributes.payload_format,
        )

    def _save(self, draft: Draft) -> UStatus | None:
        """Commit the draft, and with it what is still to be deleted; the reason if the draft is not on disk now."""
        changes = dict.fromkeys(self._unsaved) | draft.changes
        if not changes:
            return None
        try:
            self._store.commit(
                [delete(*pair) if entry is None else put(entry) for pair, entry in changes.items()]
            )
        except UStatusError as error:
            return error.status if draft.changes else None
        self._unsaved.clear()
        return None

    def _answer(self, message: UMessage, outcome: Outcome) -> None:
        id = self._ids.next()
        if isinstance(outcome, UStatus):
            self._counts[_refusal(outcome.code)] += 1
            answer = error_response(id, message, outcome)
        else:
            self._counts["answered"] += 1
            answer = response(id, message, *pack(outcome, message.attributes.payload_format))
        self._send(answer, self._counts)

    def _send(self, answer: UMessage, counts: Counter[str]) -> None:
        try:
            self._bus.send(answer)
        except UStatusError as error:
            if not counts["unsent"]:  # said once, always counted
                extra = {"to": str(answer.attributes.sink), "reason": str(error)}
                log.warning("usubscription.answer_not_sent", extra=extra)
            counts["unsent"] += 1

    # --- the end of subscriptions -------------------------------------------------------------------------------------

    def _end_expired(self, now_ms: int) -> None:
        """Drop what has ended from memory now; the next commit drops it from the store.

        [impl->req~usubscription-subscribe-expiration~1]
        """
        ended = [entry.pair for entry in self._directory.pop_expired(now_ms)]
        self._directory.apply(dict.fromkeys(ended))
        self._unsaved.update(ended)

    def _arm(self) -> None:
        """Have this thread woken when the next subscription ends, or to try again what could not be saved."""
        clock = self._context.clock
        now_ns = clock.monotonic_ns()
        if self._armed_ns is not None and self._armed_ns <= now_ns:
            self._armed_ns = None  # that timer has fired
        next_ms = self._directory.next_expiry_ms()
        if next_ms is None and not self._unsaved:
            return
        until_end_ms = _LONGEST_WAIT_MS if next_ms is None else next_ms + 1 - clock.wall_ms()
        when_ns = now_ns + min(max(until_end_ms, 0), _LONGEST_WAIT_MS) * _NS_PER_MS
        if self._armed_ns is None or when_ns < self._armed_ns:
            self._armed_ns = when_ns
            self._context.schedule(when_ns, self._inbox.wake)

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """Counters of this moment: `answered`, `ignored`, `unsent`, one `refused_<code>` each, and the sizes of things."""
        return {
            **(Counter(dict(self._counts)) + Counter(dict(self._turned_away))),
            "subscriptions": self._directory.count,
            "queued": len(self._inbox),
            **self._store.statistics(),
        }


def _method(message: UMessage) -> tuple[int, int]:
    """(version, method) that a request calls."""
    sink = message.attributes.sink
    assert sink is not None  # the listener's filter has seen to it
    return sink.ue_version_major, sink.resource_id


def _unknown(version: int, method: int) -> UStatusError:
    known = sorted(number for of, number in {**v3.CHANGES, **v3.QUESTIONS} if of == version)
    if not known:
        text = f"core.usubscription version {version}: this streamer speaks version {v3.VERSION}"
    else:
        text = f"method {method} of core.usubscription version {version}: this streamer has {known}"
    return UStatusError(UCode.UNIMPLEMENTED, text)


def _refusal(code: UCode) -> str:
    return f"refused_{code.name.lower()}"
