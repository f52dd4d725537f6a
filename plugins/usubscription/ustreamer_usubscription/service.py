# SPDX-License-Identifier: Apache-2.0
"""The uEntity core.usubscription: Requests in; commits, Responses and Updates out.

One thread owns the subscriptions. It takes the batch of Requests that queued up during the last commit, applies them
to a transaction, commits it, updates the directory, responds in the order of arrival and sends Updates. So an
acknowledged change is on disk and in effect for routing. A query sees every change that was committed with it. All
Requests of a batch share the 2 to 8 ms of a commit.

When a shared commit fails, each of its Requests is tried alone: a Request that needs no space is not refused because
of another one.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Thread
from typing import TYPE_CHECKING, Final

import msgspec

from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION, Status, is_update
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError, invalid_argument
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, ANY_VERSION, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.inbox import MAX_BATCH, ServiceInbox
from ustreamer_usubscription.model.subscription import SubscriptionRecord, SubscriptionStatusChange
from ustreamer_usubscription.outbox import RequestOutcome, ServiceOutbox
from ustreamer_usubscription.remote.remote_topics import RemoteTopics
from ustreamer_usubscription.requests import v3, v4
from ustreamer_usubscription.requests.policy import SubscriptionPolicy
from ustreamer_usubscription.requests.requests import CallContext
from ustreamer_usubscription.store.committer import Committer
from ustreamer_usubscription.store.store import SubscriptionStore
from ustreamer_usubscription.store.transaction import ServiceState, ShareExhausted, Transaction

# An operator changes subscriptions by hand, so the first change imports its module.
if TYPE_CHECKING:
    from ustreamer_usubscription.operator_changes import OperatorChange, PendingChange

ENTITY: Final = USUBSCRIPTION

STORE_DIRECTORY: Final = "usubscription"
"""The directory of the store in state_dir."""

MAX_PAYLOAD: Final = 16_384
"""Bytes of a payload at most, which bounds the inbox in bytes; the largest useful one has about 5 000."""

_QUERY_WEIGHT: Final = MAX_BATCH // 4
"""At most 4 queries in a batch. A query can list all subscriptions, and a request that arrives waits for the batch."""

_UPDATE_INTERVAL_MS: Final = 100
_CHANGE_TIMEOUT_S: Final = 60.0

# The wall clock may step, the timer's clock does not: poll the wall clock this often while any subscription may
# expire.
_MAX_WAIT_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000

_NEVER_NS: Final = 1 << 62

log = logging.getLogger("ustreamer.usubscription")


class InboxMessage(msgspec.Struct, frozen=True):
    """A queued message and its deadline on the monotonic clock, which no step of the wall clock moves."""

    message: UMessage
    deadline_ns: int = _NEVER_NS


class UsubscriptionService:
    """core.usubscription at every authority that the streamer serves. A `ustreamer.hooks.HostedService`.

    [impl->req~usubscription-service_name~1]
    """

    _bus: UTransport  # from `start` on

    def __init__(
        self, config: UsubscriptionConfig, context: PluginContext, directory: InMemoryDirectory
    ) -> None:
        self._config = config
        self._context = context
        self._directory = directory
        self._served_authorities = frozenset({context.authority, *context.serves})
        self._state = ServiceState(self._served_authorities, directory)
        self._policy = SubscriptionPolicy(
            config, context.authority, context.serves, context.authorities, context.links
        )
        lifecycle = {} if config.topic_lifecycle == "off" else v3.LIFECYCLE_MUTATIONS
        self._mutations = {**v3.MUTATIONS, **lifecycle, **v4.MUTATIONS}
        self._queries = {**v3.QUERIES, **v4.QUERIES}
        self._store = SubscriptionStore(
            context.state_dir / STORE_DIRECTORY,
            config.map_size_mb << 20,
            damaged=config.damaged,
            history=config.history,
            wall_ms=context.clock.wall_ms,
            states=context.stores,
        )
        self._inbox: ServiceInbox[InboxMessage] = ServiceInbox(
            config.max_queued_requests, config.max_queued_requests_per_authority
        )
        self._expiry = Expiry(context.clock)
        self._ids = UuidSource(context.clock.wall_ms)
        self._remote_topics = RemoteTopics(
            self._state,
            context.authority,
            context.links,
            self._ids,
            config,
            context.state_dir / f"{STORE_DIRECTORY}.via",
        )
        self._deciders: Mapping[UMessageType, Callable[[UMessage, Transaction], RequestOutcome | None]] = {
            UMessageType.REQUEST: self._decide_request,
            UMessageType.RESPONSE: self._on_response,
            UMessageType.NOTIFICATION: self._on_notification,
        }
        self._started_ns = context.clock.monotonic_ns()
        self._thread: Thread | None = None
        self._running = ExitStack()
        self._committer = Committer(self._store, config.history)
        self._outbox = ServiceOutbox(self._send, context.authority, self._ids.next)
        self._topics_to_reconcile: set[UUri] = (
            set()
        )  # remote topics whose subscriptions changed outside a transaction
        self._timer_ns: int | None = None
        self._operator_changes: deque[PendingChange] = deque()
        self._endpoints_up = False  # no Update reaches a subscriber before
        # For the listener's thread: an outbox with its own ids and counters.
        self._refusal_outbox = ServiceOutbox(
            self._send, context.authority, UuidSource(context.clock.wall_ms).next
        )

    @property
    def entities(self) -> Sequence[UUri]:
        return [UUri(authority, ENTITY, ANY_VERSION) for authority in sorted(self._served_authorities)]

    @property
    def config(self) -> UsubscriptionConfig:
        return self._config

    def set_config(self, config: UsubscriptionConfig) -> None:
        """Apply these bounds from the next Request on; every other key is read once, at the start."""
        self._config = config

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, bus: UTransport) -> None:
        """Open the store, load the directory, listen. Raises the errors of `SubscriptionStore.open`.

        [impl->req~usubscription-subscribe~1] [impl->req~usubscription-subscribe-persistency~1] Subscriptions that were
        acknowledged before a restart are in effect before the first message.
        """
        with ExitStack() as undo:
            undo.callback(self._store.close)
            self._store.open()
            stored = self._store.take_subscriptions()
            self._directory.load_stored(stored)
            self._state.observers.load(self._store.load_observers())
            self._state.declared_topics.load(self._store.load_declared_topics())
            self._state.remote_states.load(self._store.load_remote_states())
            self._remote_topics.load_stored()
            # The configuration may have changed which topics are remote; a salvaged store may have lost one record of
            # two.
            self._topics_to_reconcile.update(
                self._state.remote_states, stored.topics_of_other_authorities(self._served_authorities)
            )
            self._bus = bus
            self._end_undeclared()
            self._process_batch([])  # for subscriptions that expired while the streamer was down
            # A daemon: a process without `stop` can still exit. Uncommitted changes are not acknowledged.
            self._thread = Thread(target=self._run, name="usubscription", daemon=True)
            self._thread.start()
            undo.callback(self._finish)
            for entity in self.entities:
                everything = entity.with_resource(ANY_RESOURCE)
                bus.register_listener(ANY, everything, self._on_message)
                undo.callback(bus.unregister_listener, ANY, everything, self._on_message)
            self._context.links.watch(self._on_link_changed)
            self._running = undo.pop_all()
        log.info(
            "usubscription.started",
            extra={"store": str(self._store.path), "subscriptions": self._directory.count},
        )

    def on_endpoints_up(self) -> None:
        """Send Updates and remote calls from now on. Safe from any thread."""
        self._endpoints_up = True
        self._inbox.wake()

    def _on_link_changed(self) -> None:
        self._remote_topics.on_link_changed()
        self._inbox.wake()

    def stop(self) -> None:
        """Process and answer accepted Requests, then close the store. May be repeated, and called without `start`."""
        self._running.close()

    def _finish(self) -> None:
        self._inbox.close()
        if self._thread is not None:
            self._thread.join()
        self._outbox.close()

    # --- the listener's thread ----------------------------------------------------------------------------------------

    def _on_message(self, message: UMessage) -> None:
        match message.attributes.type:
            case UMessageType.REQUEST:
                self._enqueue_request(message)
            case UMessageType.RESPONSE if self._remote_topics.expects(message):
                self._enqueue_unanswered(message, reserve=MAX_BATCH)
            case UMessageType.NOTIFICATION if is_update(message):
                self._enqueue_unanswered(message)
            case _:
                self._refusal_outbox.counts["ignored"] += 1

    def _enqueue_unanswered(self, message: UMessage, reserve: int = 0) -> None:
        """Enqueue a Response or a Notification. One that does not fit is dropped: the call is repeated later."""
        try:
            _check_payload_size(message)
            self._inbox.put_nowait(InboxMessage(message), reserve=reserve)
        except UStatusError:
            self._refusal_outbox.counts["ignored"] += 1

    def _enqueue_request(self, message: UMessage) -> None:
        try:
            _check_payload_size(message)
            now_ns = self._context.clock.monotonic_ns()
            self._inbox.put_nowait(
                InboxMessage(message, self._expiry.deadline_ns(message, now_ns, _NEVER_NS)),
                message.attributes.source.authority_name,
                weight=_QUERY_WEIGHT if _method_of(message) in self._queries else 1,
            )
        except UStatusError as error:
            self._refusal_outbox.send_response(message, error.status)

    def _send(self, message: UMessage) -> None:
        self._bus.send(message)

    # --- the service's own thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._inbox.wait_batch()) is not None:
                self._endpoints_up |= bool(batch)
                if not batch:
                    self._store.retry()
                self._process_batch(batch)
                if self._operator_changes:
                    self._process_operator_changes()
            self._send_updates()
        finally:
            self._inbox.close()  # if this thread fails, callers get UNAVAILABLE instead of a timeout
            self._refuse_operator_changes()

    def _process_batch(self, batch: Sequence[InboxMessage]) -> None:
        """Decide, commit, apply, respond, send Updates, call other devices: in this order, for the whole batch."""
        now_ms, earliest_ms = self._context.clock.wall_ms(), self._expiry.earliest_wall_ms()
        self._end_expired(now_ms, earliest_ms)
        if batch and self._topics_to_reconcile:
            self._process_batch([])  # in a separate transaction: a full store then refuses no Request
        transaction = Transaction(self._state, self._config, now_ms, earliest_ms)
        for topic in () if batch else self._topics_to_reconcile:
            transaction.reconcile_topic(topic)
        outcomes = [self._outcome_of(each, transaction) for each in batch]
        failure = self._commit(transaction)
        if failure is not None and len(batch) > 1:
            for each in batch:
                self._process_batch([each])
            return
        for each, outcome in zip(batch, outcomes, strict=True):
            message = each.message
            if message.attributes.type is UMessageType.REQUEST:
                self._outbox.send_response(
                    message, self._answer_query(message) if outcome is None else failure or outcome
                )
        self._send_updates()
        self._send_remote_calls()
        self._arm_timer()

    def _commit(self, transaction: Transaction) -> UStatus | None:
        """Commit and apply a transaction; the error if it is not on disk."""
        failure = self._committer.commit_transaction(transaction)
        if failure is None:
            self._directory.add_changes(transaction.subscription_changes, transaction.now_ms)
            self._state.apply(transaction)
            self._outbox.enqueue_changes(transaction.subscription_changes)
            self._topics_to_reconcile.difference_update(transaction.reconciled_topics)
        self._remote_topics.on_transaction_end(
            transaction, self._context.clock.monotonic_ns(), committed=failure is None
        )
        return failure

    def change(self, change: "OperatorChange") -> int:
        """Change subscriptions; returns how many when that is on disk. From any thread but the service's own.

        Raises UStatusError: UNAVAILABLE if the service does not run, and the errors of a commit.
        """
        if self._thread is None or not self._thread.is_alive():
            raise UStatusError(UCode.UNAVAILABLE, "core.usubscription has stopped")
        from ustreamer_usubscription.operator_changes import PendingChange

        pending = PendingChange(change)
        self._operator_changes.append(pending)
        self._inbox.wake()
        if self._inbox.closed:  # the thread may have refused the others already
            self._refuse_operator_changes()
        try:
            return pending.done.result(_CHANGE_TIMEOUT_S)
        except TimeoutError as error:
            raise UStatusError(UCode.DEADLINE_EXCEEDED, "the disk has not answered") from error

    def _pop_operator_changes(self) -> "Iterator[PendingChange]":
        """Each once: two threads may call this."""
        with suppress(IndexError):
            while True:
                yield self._operator_changes.popleft()

    def _refuse_operator_changes(self) -> None:
        for pending in self._pop_operator_changes():
            stopped = UStatusError(UCode.UNAVAILABLE, "core.usubscription has stopped")
            pending.done.set_exception(stopped)

    def _process_operator_changes(self) -> None:
        for pending in self._pop_operator_changes():
            transaction = Transaction(self._state, self._config, self._context.clock.wall_ms())
            try:
                changed = pending.change.apply(self._state, transaction)
            except UStatusError as error:
                pending.done.set_exception(error)
                continue
            failure = self._commit(transaction)
            if failure is None:
                pending.done.set_result(changed)
            else:
                pending.done.set_exception(UStatusError(failure.code, failure.message))
            self._send_updates()
            self._send_remote_calls()
            self._arm_timer()

    def _outcome_of(self, received: InboxMessage, transaction: Transaction) -> RequestOutcome | None:
        message = received.message
        if self._context.clock.monotonic_ns() > received.deadline_ns:
            text = f"ttl of {message.attributes.ttl} ms ran out in the queue"
            return UStatus(UCode.DEADLINE_EXCEEDED, text)
        return self._deciders[message.attributes.type](message, transaction)

    def _decide_request(self, message: UMessage, transaction: Transaction) -> RequestOutcome | None:
        """Apply a change to the transaction; its response is valid after the commit. None for a query."""
        method = _method_of(message)
        try:
            if method in self._queries:
                return None
            if method not in self._mutations:
                raise self._unknown_method(*method)
            return self._mutations[method](self._call_context(message), transaction)
        except ShareExhausted as error:
            self._outbox.counts["refused_share"] += 1
            return error.status
        except UStatusError as error:
            return error.status

    def _on_notification(self, message: UMessage, _transaction: Transaction) -> None:
        self._remote_topics.on_notification(message, self._context.clock.monotonic_ns())

    def _on_response(self, message: UMessage, transaction: Transaction) -> None:
        self._remote_topics.on_response(message, transaction, self._context.clock.monotonic_ns())

    def _unknown_method(self, version: int, method: int) -> UStatusError:
        methods = [*self._mutations, *self._queries]
        known = sorted(number for of, number in methods if of == version)
        if not known:
            supported = " and ".join(str(each) for each in sorted({of for of, _ in methods}))
            text = f"core.usubscription version {version}: this streamer speaks version {supported}"
        else:
            text = f"method {method} of core.usubscription version {version}: this streamer has {known}"
        return UStatusError(UCode.UNIMPLEMENTED, text)

    def _answer_query(self, message: UMessage) -> RequestOutcome:
        try:
            query = self._queries[_method_of(message)]
            return query(self._call_context(message), self._state, self._config.page_size)
        except UStatusError as error:
            return error.status

    def _call_context(self, message: UMessage) -> CallContext:
        attributes = message.attributes
        assert attributes.sink is not None  # by the listener's filter
        own, clock = self._context.authority, self._context.clock
        return CallContext(
            message.id,
            attributes.source.with_authority(own),
            attributes.sink.authority_name or own,
            self._served_authorities,
            message.payload,
            attributes.payload_format,
            attributes.permission_level,
            self._policy,
            clock.wall_ms() - (clock.monotonic_ns() - self._started_ns) // _NS_PER_MS,
            self._context.peer_of,
        )

    def _send_updates(self) -> None:
        if self._endpoints_up:
            self._outbox.send_updates()

    def _send_remote_calls(self) -> None:
        """Make the calls to other devices that are due; before the endpoints are up, none would leave this process."""
        if self._endpoints_up:
            self._remote_topics.send_due_calls(self._bus.send, self._context.clock.monotonic_ns())

    # --- the end of subscriptions -------------------------------------------------------------------------------------

    def _end_expired(self, now_ms: int, earliest_ms: int) -> None:
        """Remove expired subscriptions from memory now, with Updates at once; the next commit deletes their records.

        [impl->req~usubscription-subscribe-expiration~1] A clock that steps forward ends none before its grace period.
        """
        if ended := self._directory.pop_expired(earliest_ms):
            self._end_subscriptions(
                [(entry, f"expire, {entry.expire_ms} ms, has passed") for entry in ended], now_ms
            )

    def _end_undeclared(self) -> None:
        """In mode `enforce`, end subscriptions of topics that no producer has created: made before the mode was set.

        [impl->LIF-7]
        """
        if self._policy.lifecycle != "enforce":
            return
        now_ms = self._context.clock.wall_ms()
        transaction = Transaction(self._state, self._config, now_ms)
        undeclared = [
            (entry, "its producer has not called CreateTopic")
            for entry in self._directory
            if not self._state.is_remote(entry.topic) and not transaction.declared_states(entry.topic)
        ]
        self._end_subscriptions(undeclared, now_ms)

    def _end_subscriptions(self, ended: Sequence[tuple[SubscriptionRecord, str]], now_ms: int) -> None:
        """Remove subscriptions from memory now, each with a reason; the next commit deletes their records."""
        observers_of = self._state.observers.observers_of
        changes = [
            SubscriptionStatusChange(entry, Status.UNSUBSCRIBED, observers_of(entry.topic), reason)
            for entry, reason in ended
        ]
        self._directory.add_changes(changes, now_ms)
        self._directory.apply(dict.fromkeys(entry.pair for entry, _ in ended))
        self._outbox.enqueue_changes(changes)
        self._committer.delete_with_next_commit(changes, now_ms)
        self._topics_to_reconcile.update(
            entry.topic for entry, _ in ended if self._state.is_remote(entry.topic)
        )

    def _arm_timer(self) -> None:
        """Wake this thread for the next expiry or call, for what the disk refused, and for Updates that still wait."""
        clock = self._context.clock
        now_ns = clock.monotonic_ns()
        if self._timer_ns is not None and self._timer_ns <= now_ns:
            self._timer_ns = None  # that timer has fired
        polls = self._committer.has_pending_deletes or self._topics_to_reconcile or self._store.is_degraded
        waits_ms = [_MAX_WAIT_MS] if polls else []
        next_ms = self._directory.next_expiry_ms()
        if next_ms is not None:
            waits_ms.append(next_ms + 1 - self._expiry.earliest_wall_ms())
        if self._outbox and self._endpoints_up:
            waits_ms.append(_UPDATE_INTERVAL_MS)
        whens_ns = [now_ns + min(max(min(waits_ms), 0), _MAX_WAIT_MS) * _NS_PER_MS] if waits_ms else []
        if self._endpoints_up and (call_ns := self._remote_topics.next_due_ns()) is not None:
            whens_ns.append(call_ns)
        if not whens_ns:
            return
        when_ns = min(whens_ns)
        if self._timer_ns is None or when_ns < self._timer_ns:
            self._timer_ns = when_ns
            self._context.schedule(when_ns, self._inbox.wake)

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """A snapshot of counters and sizes.

        `answered`, `ignored`, `unsent` (Responses), one `refused_<code>` each, `updates` (changes sent),
        `updates_unsent`, `pending_without_endpoint` and `pending_link_down` (Subscribes that wait, with the reason).
        """
        return {
            **(Counter(dict(self._outbox.counts)) + Counter(dict(self._refusal_outbox.counts))),
            "subscriptions": self._directory.count,
            "registrations": self._state.observers.count,
            "topics": self._state.declared_topics.count,
            "remote_topics": self._state.remote_states.count,
            **self._remote_topics.statistics(),
            **self._policy.counts,
            "updates_waiting": len(self._outbox),
            "queued": len(self._inbox),
            **self._store.statistics(),
        }


def _method_of(message: UMessage) -> tuple[int, int]:
    """(version, method) that a request calls."""
    sink = message.attributes.sink
    assert sink is not None  # by the listener's filter
    return sink.ue_version_major, sink.resource_id


def _check_payload_size(message: UMessage) -> None:
    if len(message.payload) > MAX_PAYLOAD:
        raise invalid_argument(f"payload of {len(message.payload)} bytes: expected at most {MAX_PAYLOAD}")
