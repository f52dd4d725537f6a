# SPDX-License-Identifier: Apache-2.0
"""Receives messages. Each pair of source and sink filter has a Zenoh subscriber, a bounded channel and a thread.

In: Zenoh samples. Out: calls of the listeners on the receiving thread, with single messages or batches.

The thread drains the channel and calls the listeners. This was the fastest of the measured methods with a bounded
queue: four times as fast as a callback on Zenoh's own thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from threading import Event, RLock, Thread, current_thread
from typing import Final, NamedTuple, cast

import zenoh
from zenoh.handlers import FifoChannel

from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.transport_port import ReceivingThread
from ustreamer.transports.zenoh.decoder import SampleDecoder, SampleRefusal, SampleRefusalReason
from ustreamer.transports.zenoh.keys import NO_SINK, filter_key
from ustreamer.transports.zenoh.retransmit import AnsweredRequests
from ustreamer.uprotocol.batch import MAX_BATCH, MIN_BATCH, MessageBatch
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.utransport import Listener, batch_listener_of
from ustreamer.uprotocol.uuri import ANY, UUri

log = logging.getLogger("ustreamer.zenoh")

_MAX_SAMPLES: Final = MAX_BATCH
_MAX_CACHED_MATCHES: Final = 32_768  # pairs of source and sink with a cached match
_AWAY_POLL_S: Final = 1.0  # in case that a sample comes before its node is known
_MAX_ACTIONS: Final = 64  # other streamers choose how many, while no sample comes
_PUBLICATION: Final = f"/{NO_SINK}"


class ListenerFilters(NamedTuple):
    """A source filter and a sink filter. Without a sink filter only publications match."""

    source: UUri
    sink: UUri | None

    def matches(self, message: UMessage) -> bool:
        return self.match_route(message.attributes.source, message.attributes.sink)

    def match_route(self, source: UUri, sink: UUri | None) -> bool:
        """Whether messages from `source` to `sink` match; None is the sink of a publication."""
        if self.sink is None or sink is None:
            return self.sink is sink and self.source.matches(source)
        return self.sink.matches(sink) and self.source.matches(source)


class CoveredFilters:
    """Filters of the same listener at earlier subscriptions. What they match reaches the listener there, not here.

    The result is cached per source and sink.
    """

    __slots__ = ("_cached", "filters")

    def __init__(self, filters: tuple[ListenerFilters, ...] = ()) -> None:
        self.filters = filters
        self._cached: BoundedCache[tuple[UUri, UUri | None], bool] = BoundedCache(_MAX_CACHED_MATCHES)

    def is_covered(self, message: UMessage) -> bool:
        """True if one of the filters matches. Called on the receiving thread only."""
        route = message.attributes.source, message.attributes.sink
        cached = self._cached.get(route)
        if cached is None:
            cached = any(each.matches(message) for each in self.filters)
            self._cached.add(route, cached)
        return cached

    def uncovered(self, messages: Sequence[UMessage]) -> Sequence[UMessage]:
        """The messages that no earlier filter matches."""
        if type(messages) is MessageBatch:
            return [] if self.is_covered(messages[0]) else messages
        return [each for each in messages if not self.is_covered(each)]


class ListenerEntry(NamedTuple):
    """A listener, and its earlier filters that overlap with those of this subscription."""

    listener: Listener
    covered: CoveredFilters


class ZenohSubscription:
    """The subscriber of one pair of filters. Only its thread writes `received`, `refused` and `listener_errors`."""

    def __init__(
        self,
        filters: ListenerFilters,
        endpoint: str,
        authority: str,
        queue_samples: int,
        answered_requests: AnsweredRequests,
        connected: Event,
    ) -> None:
        """`answered_requests` records the responses that are received; `connected` is set while a node is connected."""
        self.filters = filters
        self._answered_requests = answered_requests
        self._connected = connected
        self.received = 0
        self.listener_errors = 0
        self.turns = 0
        """Even while the thread waits for samples, odd while it processes them."""
        self.refused = dict.fromkeys(SampleRefusalReason, 0)
        self._listeners: tuple[ListenerEntry, ...] = ()
        self._key = filter_key(filters.source, filters.sink, authority)
        # `*` also matches the chunks {} of a publication. Another subscription receives the publications.
        self._skips_publications = filters.sink == ANY
        self._endpoint = endpoint
        self._queue = queue_samples
        self._decoder = SampleDecoder()
        self._reported: set[type[BaseException]] = set()
        self._delivery_lock = RLock()
        self._when_read: deque[Callable[[], None]] = deque()
        self._subscriber: zenoh.Subscriber[zenoh.Handler[zenoh.Sample]] | None = None
        self._thread: Thread | None = None

    def start(self, session: zenoh.Session) -> None:
        """Declare the subscriber and start the thread. Raises zenoh.ZError if the session is closed."""
        # The annotation is for the type checker only: the class cannot be subscripted at run time.
        channel: FifoChannel[zenoh.Sample] = FifoChannel(self._queue)
        self._subscriber = session.declare_subscriber(
            self._key, channel, allowed_origin=zenoh.Locality.REMOTE
        )
        name = f"zenoh {self._endpoint} {self._key}"
        self._thread = Thread(target=self._run, args=(self._subscriber.handler,), name=name, daemon=True)
        self._thread.start()

    def set_listeners(self, listeners: tuple[ListenerEntry, ...]) -> None:
        """Replace the listeners, from the next message on."""
        self._listeners = listeners

    def call_when_read(self, action: Callable[[], None]) -> None:
        """Call `action` on the receiving thread when it has delivered the samples that are in the channel now.

        It is called after the next samples: without any, the thread waits in Zenoh and cannot see an empty channel.
        """
        if len(self._when_read) < _MAX_ACTIONS:
            self._when_read.append(action)

    def receiving_thread(self) -> ReceivingThread | None:
        """The progress of the thread; None before `start` and after `stop`. From any thread."""
        if self._thread is None or self._subscriber is None:
            return None
        turns = self.turns
        return ReceivingThread(self._thread.name, turns, waiting=turns % 2 == 0 and self._thread.is_alive())

    def stop(self) -> None:
        """Undeclare the subscriber; the thread ends after the queued samples. May be repeated."""
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.undeclare()  # type: ignore[no-untyped-call]
            self._connected.set()  # wakes the thread; too early for others, which then wait in `recv`

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread; returns at once on that thread."""
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(timeout_s)

    def wait_call_done(self, timeout_s: float) -> None:
        """Wait for a listener call in progress; returns at once on the receiving thread."""
        if self._delivery_lock.acquire(timeout=timeout_s):
            self._delivery_lock.release()

    # --- on the receiving thread --------------------------------------------------------------------------------------

    def _run(self, samples: "zenoh.Handler[zenoh.Sample]") -> None:
        recv, try_recv, has_node = samples.recv, samples.try_recv, self._connected.is_set
        open = True
        while open:
            received: list[zenoh.Sample] = []
            actions = 0
            try:
                received.append(recv() if has_node() else self._wait_without_node(samples))
                actions = len(self._when_read)  # before the channel is emptied
                # On an error `extend` keeps the samples received before it.
                received.extend(islice(iter(try_recv, None), _MAX_SAMPLES - 1))
            except zenoh.ZError:  # undeclared or session closed, and the channel is empty
                open = False
            self.turns += 1
            batch = self._decode_batch(received) if len(received) >= MIN_BATCH else None
            self._deliver(batch or self._decode(received))
            if actions and len(received) < _MAX_SAMPLES:  # else the channel may not be empty
                for _ in range(actions):
                    self._run_action(self._when_read.popleft())
            self.turns += 1

    def _run_action(self, action: Callable[[], None]) -> None:
        try:
            action()
        except FOREIGN_ERRORS as error:  # as in `_deliver`
            self._listener_failed(None, error)

    def _wait_without_node(self, samples: "zenoh.Handler[zenoh.Sample]") -> zenoh.Sample:
        """As `recv`, which wakes ten times a second, but sleeps until a node is connected. Before, no sample comes."""
        while not self._connected.wait(_AWAY_POLL_S):
            sample = samples.try_recv()
            if sample is not None:
                return sample
        return samples.recv()

    # Fast path of _decode, which is its oracle; compared by
    # tests/transports/zenoh/test_subscriber.py::test_all_received_samples_are_delivered_wherever_the_channel_ends
    def _decode_batch(self, samples: Sequence[zenoh.Sample]) -> MessageBatch | None:
        """Decode samples of one key as columns; None if the samples must be decoded one by one.

        That is so for samples that differ in more than id, reqid and payload.
        """
        # Most mixed traffic ends at the second comparison.
        if samples[0].key_expr != samples[-1].key_expr:
            return None
        keys, key = [each.key_expr for each in samples], str(samples[0].key_expr)
        if keys.count(keys[0]) < len(keys) or (self._skips_publications and key.endswith(_PUBLICATION)):
            return None
        headers = [
            None if each is None else each.to_bytes() for each in [each.attachment for each in samples]
        ]
        payloads = [each.payload.to_bytes() for each in samples]
        if None in headers or (b"" in payloads and any(map(_is_delete, samples))):
            return None
        batch = self._decoder.decode_batch(key, cast("list[bytes]", headers), payloads)
        if batch is not None:
            self.received += len(batch)
            if batch.reqids is not None:
                self._answered_requests.add_reqids(batch.reqids)
        return batch

    def _decode(self, samples: Sequence[zenoh.Sample]) -> list[UMessage]:
        """Decode samples one by one; without those that are refused or that another subscription receives."""
        decode, skips_publications = self._decoder.decode, self._skips_publications
        messages: list[UMessage] = []
        for each in samples:
            key, attachment, payload = str(each.key_expr), each.attachment, each.payload.to_bytes()
            if skips_publications and key.endswith(_PUBLICATION):
                continue
            message = decode(key, None if attachment is None else attachment.to_bytes(), payload)
            if type(message) is SampleRefusal:
                self._refuse(message)
            elif not payload and _is_delete(each):
                self._refuse(
                    SampleRefusal(SampleRefusalReason.DELETE, f"a delete of {key!r}; messages are puts")
                )
            else:
                messages.append(message)
                reqid = message.attributes.reqid
                if reqid is not None:
                    self._answered_requests.add_reqids((reqid,))
        self.received += len(messages)
        return messages

    def _deliver(self, messages: Sequence[UMessage]) -> None:
        """Call the listeners: one listener that takes batches with all messages, others with each message."""
        listeners = self._listeners
        if len(messages) > 1 and len(listeners) == 1:
            listener, covered = listeners[0]
            on_batch = batch_listener_of(listener)
            if on_batch is not None:
                if covered.filters:
                    messages = covered.uncovered(messages)
                    if not messages:
                        return
                with self._delivery_lock:
                    try:
                        on_batch(messages)
                    except FOREIGN_ERRORS as error:  # as below; `on_batch` must not raise
                        self._listener_failed(messages[0], error)
                return
        for message in messages:
            with self._delivery_lock:
                for listener, covered in self._listeners:
                    if covered.filters and covered.is_covered(message):
                        continue
                    try:
                        listener(message)
                    # Foreign code must not end the receiving thread: counted each time, logged once per type.
                    except FOREIGN_ERRORS as error:
                        self._listener_failed(message, error)

    def _listener_failed(self, message: UMessage | None, error: BaseException) -> None:
        """`message` is None if an action of `call_when_read` failed."""
        self.listener_errors += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            id = "" if message is None else str(message.id)
            extra = {"endpoint": self._endpoint, "key": self._key, "message_id": id}
            log.error("zenoh.listener_failed", extra=extra, exc_info=error)

    def _refuse(self, refusal: SampleRefusal) -> None:
        self.refused[refusal.reason] += 1
        if self.refused[refusal.reason] == 1:
            extra = {
                "endpoint": self._endpoint,
                "key": self._key,
                "reason": refusal.reason,
                "why": refusal.text,
            }
            log.warning("zenoh.sample_refused", extra=extra)


def _is_delete(sample: zenoh.Sample) -> bool:
    return sample.kind == zenoh.SampleKind.DELETE
