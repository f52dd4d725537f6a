# SPDX-License-Identifier: Apache-2.0
"""The uEntity core.usubscription: requests in, commits, answers and updates out.

One thread owns the subscriptions. It takes what has queued up while the last commit waited for the disk, decides it all
on a draft, commits the draft in one transaction, brings the directory up to date, answers in the order of arrival, and
tells whom it concerns what has changed.
So an acknowledged change is on disk and is routed by, a question sees every change that was committed with it, and the
disk's 2 to 8 ms for a commit are shared by all who wait.

Where a shared commit fails, each of its requests is tried alone: one that needs no room is not refused for its neighbour.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Final, NamedTuple

from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION, Status, is_change
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError, invalid
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, ANY_VERSION, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.inbox import MAX_BATCH, Inbox
from ustreamer_usubscription.model.subscription import Changed, Tracked
from ustreamer_usubscription.outbox import Outbox, Outcome
from ustreamer_usubscription.remote.remote_topics import Upstream
from ustreamer_usubscription.requests import v3, v4
from ustreamer_usubscription.requests.policy import Policy
from ustreamer_usubscription.requests.requests import Call
from ustreamer_usubscription.store.committer import Writer
from ustreamer_usubscription.store.store import Store
from ustreamer_usubscription.store.transaction import Draft, State

ENTITY: Final = USUBSCRIPTION

STORE: Final = "usubscription"
"""The directory of the store in state_dir."""

MAX_PAYLOAD: Final = 16_384
"""Bytes of a payload at most, which bounds the queue in bytes; the largest that makes sense has about 5 000."""

_PAUSE_MS: Final = 100

# The wall clock may jump, the timer's does not: look at the wall clock this often while any subscription is to end.
_LONGEST_WAIT_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000

_NEVER_NS: Final = 1 << 62

log = logging.getLogger("ustreamer.usubscription")


class Received(NamedTuple):
    """A message that waits, and until when on the monotonic clock a request may: no leap of the wall clock moves that."""

    message: UMessage
    deadline_ns: int = _NEVER_NS


class UsubscriptionService:
    """core.usubscription at every authority that the streamer serves. A `ustreamer.hooks.Service`.

    [impl->req~usubscription-service_name~1]
    """

    _bus: UTransport  # from `start` on

    def __init__(self, config: UsubscriptionConfig, context: PluginContext, directory: Directory) -> None:
        self._config = config
        self._context = context
        self._directory = directory
        self._serves = frozenset({context.authority, *context.serves})
        self._state = State(self._serves, directory)
        self._policy = Policy(config, context.authority, context.serves, context.authorities)
        lifecycle = {} if config.topic_lifecycle == "off" else v3.LIFECYCLE
        self._changes = {**v3.CHANGES, **lifecycle, **v4.CHANGES}
        self._questions = {**v3.QUESTIONS, **v4.QUESTIONS}
        self._store = Store(
            context.state_dir / STORE,
            config.map_size_mb << 20,
            damaged=config.damaged,
            history=config.history,
            wall_ms=context.clock.wall_ms,
        )
        self._inbox: Inbox[Received] = Inbox(config.max_queued_requests)
        self._expiry = Expiry(context.clock)
        self._ids = UuidSource(context.clock.wall_ms)
        self._upstream = Upstream(self._state, context.authority, context.links, self._ids, config)
        self._decisions: Mapping[UMessageType, Callable[[UMessage, Draft], Outcome | None]] = {
            UMessageType.REQUEST: self._decide,
            UMessageType.RESPONSE: self._upstream.hear,
            UMessageType.NOTIFICATION: self._consider,
        }
        self._thread: Thread | None = None
        self._running = ExitStack()
        self._writer = Writer(self._store, config.history)
        self._outbox = Outbox(self._send, context.authority, self._ids.next)
        self._unsettled: set[UUri] = set()  # remote topics whose subscriptions changed without a draft
        self._armed_ns: int | None = None
        self._heard = False  # whether there are endpoints by which updates would reach anybody
        # On the listener's thread, with ids and counters of its own.
        self._refusals = Outbox(self._send, context.authority, UuidSource(context.clock.wall_ms).next)

    @property
    def entities(self) -> Sequence[UUri]:
        return [UUri(authority, ENTITY, ANY_VERSION) for authority in sorted(self._serves)]

    @property
    def config(self) -> UsubscriptionConfig:
        return self._config

    def use(self, config: UsubscriptionConfig) -> None:
        """Answer by these bounds from the next request on; every other key is read once, at the start."""
        self._config = config

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, bus: UTransport) -> None:
        """Open the store, load the directory, listen. Raises what `Store.open` raises.

        [impl->req~usubscription-subscribe~1] [impl->req~usubscription-subscribe-persistency~1] What was acknowledged
        before a restart is routed by before the first message.
        """
        with ExitStack() as undo:
            undo.callback(self._store.close)
            self._store.open()
            stored = self._store.take()
            self._directory.load(stored)
            self._state.observers.load(self._store.observers())
            self._state.topics.load(self._store.topics())
            self._state.remotes.load(self._store.remotes())
            self._upstream.load()
            # The configuration may have changed who is remote; and a salvaged store may have lost one record of two.
            self._unsettled.update(self._state.remotes, stored.topics_elsewhere(self._serves))
            self._bus = bus
            self._end_undeclared()
            self._serve([])  # what ended while nobody was here
            # A daemon, so that an owner who forgets `stop` can still exit; what is not committed is not acknowledged.
            self._thread = Thread(target=self._run, name="usubscription", daemon=True)
            self._thread.start()
            undo.callback(self._finish)
            for entity in self.entities:
                everything = entity.with_resource(ANY_RESOURCE)
                bus.register_listener(ANY, everything, self._receive)
                undo.callback(bus.unregister_listener, ANY, everything, self._receive)
            self._context.links.watch(self._link_turned)
            self._running = undo.pop_all()
        log.info(
            "usubscription.started",
            extra={"store": str(self._store.path), "subscriptions": self._directory.count},
        )

    def endpoints_up(self) -> None:
        """What ended while nobody was here can be told now. Safe from any thread."""
        self._heard = True
        self._inbox.wake()

    def _link_turned(self) -> None:
        self._upstream.link_turned()
        self._inbox.wake()

    def stop(self) -> None:
        """Finish what was accepted, answer it, close the store. May be repeated, and called without `start`."""
        self._running.close()

    def _finish(self) -> None:
        self._inbox.close()
        if self._thread is not None:
            self._thread.join()
        self._outbox.close()

    # --- the listener's thread ----------------------------------------------------------------------------------------

    def _receive(self, message: UMessage) -> None:
        match message.attributes.type:
            case UMessageType.REQUEST:
                self._receive_request(message)
            case UMessageType.RESPONSE if self._upstream.expects(message):
                self._receive_other(message, reserve=MAX_BATCH)
            case UMessageType.NOTIFICATION if is_change(message):
                self._receive_other(message)
            case _:
                self._refusals.counts["ignored"] += 1

    def _receive_other(self, message: UMessage, reserve: int = 0) -> None:
        """Nobody waits for a word about these; a Response that finds no room is asked for again, later."""
        try:
            _check_size(message)
            self._inbox.put_nowait(Received(message), reserve=reserve)
        except UStatusError:
            self._refusals.counts["ignored"] += 1

    def _receive_request(self, message: UMessage) -> None:
        try:
            _check_size(message)
            now_ns = self._context.clock.monotonic_ns()
            self._inbox.put_nowait(Received(message, self._expiry.deadline_ns(message, now_ns, _NEVER_NS)))
        except UStatusError as refused:
            self._refusals.answer(message, refused.status)

    def _send(self, message: UMessage) -> None:
        self._bus.send(message)

    # --- the service's own thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._inbox.wait_batch()) is not None:
                self._heard |= bool(batch)
                self._serve(batch)
            self._send_updates()
        finally:
            self._inbox.close()  # should this thread ever fail, callers are told instead of being left waiting

    def _serve(self, batch: Sequence[Received]) -> None:
        """Decide, commit, apply, answer, tell, call: in this order and all of `batch` together."""
        now_ms = self._context.clock.wall_ms()
        self._end_expired(now_ms)
        if batch and self._unsettled:
            self._serve([])  # in a transaction of its own: should that find no room, nobody is refused for it
        draft = Draft(self._state, self._config, now_ms)
        for topic in () if batch else self._unsettled:
            draft.settle(topic)
        outcomes = [self._decided(each, draft) for each in batch]
        failure = self._writer.save(draft)
        if failure is None:
            self._state.apply(draft)
            self._outbox.tell(draft.events)
            self._unsettled.difference_update(draft.settled)
        self._upstream.follow(draft, self._context.clock.monotonic_ns(), committed=failure is None)
        if failure is not None and len(batch) > 1:
            for each in batch:
                self._serve([each])
            return
        for (message, _), outcome in zip(batch, outcomes, strict=True):
            if message.attributes.type is UMessageType.REQUEST:
                self._outbox.answer(message, self._ask(message) if outcome is None else failure or outcome)
        self._send_updates()
        self._call_others()
        self._arm()

    def _decided(self, received: Received, draft: Draft) -> Outcome | None:
        message = received.message
        if self._context.clock.monotonic_ns() > received.deadline_ns:
            text = f"ttl of {message.attributes.ttl} ms ran out in the queue"
            return UStatus(UCode.DEADLINE_EXCEEDED, text)
        return self._decisions[message.attributes.type](message, draft)

    def _decide(self, message: UMessage, draft: Draft) -> Outcome | None:
        """Draft a change and give its answer, true after the commit; None for a question, which comes after it."""
        method = _method(message)
        try:
            if method in self._questions:
                return None
            if method not in self._changes:
                raise self._unknown(*method)
            return self._changes[method](self._call(message), draft)
        except UStatusError as error:
            return error.status

    def _consider(self, message: UMessage, _draft: Draft) -> None:
        self._upstream.consider(message, self._context.clock.monotonic_ns())

    def _unknown(self, version: int, method: int) -> UStatusError:
        methods = [*self._changes, *self._questions]
        known = sorted(number for of, number in methods if of == version)
        if not known:
            speaks = " and ".join(str(each) for each in sorted({of for of, _ in methods}))
            text = f"core.usubscription version {version}: this streamer speaks version {speaks}"
        else:
            text = f"method {method} of core.usubscription version {version}: this streamer has {known}"
        return UStatusError(UCode.UNIMPLEMENTED, text)

    def _ask(self, message: UMessage) -> Outcome:
        try:
            question = self._questions[_method(message)]
            return question(self._call(message), self._state, self._config.page_size)
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
            attributes.permission_level,
            self._policy,
        )

    def _send_updates(self) -> None:
        if self._heard:
            self._outbox.send_updates()

    def _call_others(self) -> None:
        """Make the calls to other devices that are due; before the endpoints are up, none would leave the house."""
        if self._heard:
            self._upstream.call(self._bus.send, self._context.clock.monotonic_ns())

    # --- the end of subscriptions -------------------------------------------------------------------------------------

    def _end_expired(self, now_ms: int) -> None:
        """Drop what has ended from memory now, to be told at once; the next commit drops it from the store.

        [impl->req~usubscription-subscribe-expiration~1]
        """
        ended = self._directory.pop_expired(now_ms)
        self._end([(entry, f"expire, {entry.expire_ms} ms, has passed") for entry in ended], now_ms)

    def _end_undeclared(self) -> None:
        """In mode `enforce`, end what was subscribed before it was switched on, if nobody has created the topic.

        [impl->LIF-7]
        """
        if self._policy.lifecycle != "enforce":
            return
        now_ms = self._context.clock.wall_ms()
        draft = Draft(self._state, self._config, now_ms)
        undeclared = [
            (entry, "its producer has not called CreateTopic")
            for entry in self._directory
            if not self._state.is_remote(entry.topic) and not draft.topic_states(entry.topic)
        ]
        self._end(undeclared, now_ms)

    def _end(self, ended: Sequence[tuple[Tracked, str]], now_ms: int) -> None:
        """Take subscriptions out of memory now, each for a reason, and with the next commit out of the store."""
        of = self._state.observers.of
        changes = [Changed(entry, Status.UNSUBSCRIBED, of(entry.topic), why) for entry, why in ended]
        self._directory.apply(dict.fromkeys(entry.pair for entry, _ in ended))
        self._outbox.tell(changes)
        self._writer.forget(changes, now_ms)
        self._unsettled.update(entry.topic for entry, _ in ended if self._state.is_remote(entry.topic))

    def _arm(self) -> None:
        """Have this thread woken when the next subscription ends or call is due, to save what is not saved, or to tell on."""
        clock = self._context.clock
        now_ns = clock.monotonic_ns()
        if self._armed_ns is not None and self._armed_ns <= now_ns:
            self._armed_ns = None  # that timer has fired
        waits_ms = [_LONGEST_WAIT_MS] if self._writer.is_behind or self._unsettled else []
        next_ms = self._directory.next_expiry_ms()
        if next_ms is not None:
            waits_ms.append(next_ms + 1 - clock.wall_ms())
        if self._outbox and self._heard:
            waits_ms.append(_PAUSE_MS)
        whens_ns = [now_ns + min(max(min(waits_ms), 0), _LONGEST_WAIT_MS) * _NS_PER_MS] if waits_ms else []
        if self._heard and (call_ns := self._upstream.next_ns()) is not None:
            whens_ns.append(call_ns)
        if not whens_ns:
            return
        when_ns = min(whens_ns)
        if self._armed_ns is None or when_ns < self._armed_ns:
            self._armed_ns = when_ns
            self._context.schedule(when_ns, self._inbox.wake)

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """Counters of this moment, and the sizes of things.

        `answered`, `ignored`, `unsent` (answers), one `refused_<code>` each, `updates` (changes told), `updates_unsent`.
        """
        return {
            **(Counter(dict(self._outbox.counts)) + Counter(dict(self._refusals.counts))),
            "subscriptions": self._directory.count,
            "registrations": self._state.observers.count,
            "topics": self._state.topics.count,
            "remote_topics": self._state.remotes.count,
            **self._upstream.statistics(),
            "updates_waiting": len(self._outbox),
            "queued": len(self._inbox),
            **self._store.statistics(),
        }


def _method(message: UMessage) -> tuple[int, int]:
    """(version, method) that a request calls."""
    sink = message.attributes.sink
    assert sink is not None  # the listener's filter has seen to it
    return sink.ue_version_major, sink.resource_id


def _check_size(message: UMessage) -> None:
    if len(message.payload) > MAX_PAYLOAD:
        raise invalid(f"payload of {len(message.payload)} bytes: expected at most {MAX_PAYLOAD}")
