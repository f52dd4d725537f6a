# SPDX-License-Identifier: Apache-2.0
"""Messages in: one subscriber with a bounded channel and a thread per pair of filters.

The thread drains the channel and calls the listeners itself: of the ways to receive that were measured, the fastest
whose queue is bounded (a forwarder to UDP made 153 000 msg/s; 36 000 with a callback on Zenoh's own thread).
"""

import logging
from collections.abc import Sequence
from itertools import islice
from threading import RLock, Thread, current_thread
from typing import Final, NamedTuple, cast

import zenoh
from zenoh.handlers import FifoChannel

from ustreamer.transports.zenoh.decoder import InboundReader, Reason, Refusal
from ustreamer.transports.zenoh.keys import NO_SINK, filter_key
from ustreamer.transports.zenoh.retransmit import Answered
from ustreamer.uprotocol.batch import MANY, Run
from ustreamer.uprotocol.struct_columns import FULL
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.utransport import Listener, for_many
from ustreamer.uprotocol.uuri import ANY, UUri

log = logging.getLogger("ustreamer.zenoh")

_HELPING: Final = FULL
_KEPT: Final = 4_096  # sources and sinks of which it is remembered whether filters match them
_PUBLICATION: Final = f"/{NO_SINK}"


class Filters(NamedTuple):
    """What a listener asks for; without a sink, publications."""

    source: UUri
    sink: UUri | None

    def match(self, message: UMessage) -> bool:
        sink = message.attributes.sink
        if self.sink is None or sink is None:
            return self.sink is sink and self.source.matches(message.attributes.source)
        return self.sink.matches(sink) and self.source.matches(message.attributes.source)


class Given:
    """Filters of which a listener has already been given what they match: asked once per source and sink."""

    __slots__ = ("_filters", "_known")

    def __init__(self, filters: tuple[Filters, ...] = ()) -> None:
        self._filters = filters
        self._known: dict[tuple[UUri, UUri | None], bool] = {}

    def __len__(self) -> int:
        """How many filters."""
        return len(self._filters)

    def has(self, message: UMessage) -> bool:
        """Whether one of them matches. For one thread, the receiving one."""
        ends = message.attributes.source, message.attributes.sink
        known = self._known.get(ends)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[ends] = any(each.match(message) for each in self._filters)
        return known

    def without(self, messages: Sequence[UMessage]) -> Sequence[UMessage]:
        """Those that have not been given."""
        if type(messages) is Run:
            return [] if self.has(messages[0]) else messages
        return [each for each in messages if not self.has(each)]


class _Came(NamedTuple):
    """Samples that were taken out of the channel together: the key, attachment and payload of each; of a delete no payload."""

    keys: list[zenoh.KeyExpr]
    headers: list[bytes | None]
    payloads: list[bytes | None]


def _columns(samples: Sequence[zenoh.Sample]) -> _Came:
    """A comprehension for each column: 0.2 us a sample less than one loop for all."""
    attachments = [each.attachment for each in samples]
    payloads: list[bytes | None] = [each.payload.to_bytes() for each in samples]
    if b"" in payloads:
        for number, each in enumerate(samples):
            if each.kind == zenoh.SampleKind.DELETE:
                payloads[number] = None
    return _Came(
        [each.key_expr for each in samples],
        [None if each is None else each.to_bytes() for each in attachments],
        payloads,
    )


class Call(NamedTuple):
    """A listener, and what it has already been given by other filters of its own."""

    listener: Listener
    given: Given


class Reception:
    """The subscriber of one pair of filters. `received`, `refused` and `listener_errors` have one writer, its thread."""

    def __init__(
        self, filters: Filters, endpoint: str, authority: str, queue: int, answered: Answered
    ) -> None:
        """`answered` is told of the answers that come."""
        self.filters = filters
        self._answered = answered
        self.received = 0
        self.listener_errors = 0
        self.refused = dict.fromkeys(Reason, 0)
        self._calls: tuple[Call, ...] = ()
        self._key = filter_key(filters.source, filters.sink, authority)
        # The chunks {} of a publication are matched by * like any other, and publications are somebody else's.
        self._skips_publications = filters.sink == ANY
        self._endpoint = endpoint
        self._queue = queue
        self._reader = InboundReader()
        self._reported: set[type[Exception]] = set()
        self._calling = RLock()
        self._subscriber: zenoh.Subscriber[zenoh.Handler[zenoh.Sample]] | None = None
        self._thread: Thread | None = None

    def start(self, session: zenoh.Session) -> None:
        """Declare the subscriber and begin. Raises zenoh.ZError if the session is closed."""
        # The annotation is for the type checker only: the class cannot be subscripted at run time.
        channel: FifoChannel[zenoh.Sample] = FifoChannel(self._queue)
        self._subscriber = session.declare_subscriber(
            self._key, channel, allowed_origin=zenoh.Locality.REMOTE
        )
        name = f"zenoh {self._endpoint} {self._key}"
        self._thread = Thread(target=self._run, args=(self._subscriber.handler,), name=name, daemon=True)
        self._thread.start()

    def use(self, calls: tuple[Call, ...]) -> None:
        """Make these calls from the next message on."""
        self._calls = calls

    def end(self) -> None:
        """Undeclare the subscriber; the thread ends after what is queued. May be repeated."""
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.undeclare()  # type: ignore[no-untyped-call]

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread; called on it, return at once."""
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(timeout_s)

    def wait_call_done(self, timeout_s: float) -> None:
        """Wait for a call in progress on the receiving thread; called on it, return at once."""
        if self._calling.acquire(timeout=timeout_s):
            self._calling.release()

    # --- on the receiving thread --------------------------------------------------------------------------------------

    def _run(self, samples: "zenoh.Handler[zenoh.Sample]") -> None:
        recv, try_recv = samples.recv, samples.try_recv
        open = True
        while open:
            came: list[zenoh.Sample] = []
            try:
                came.append(recv())
                came.extend(
                    islice(iter(try_recv, None), _HELPING - 1)
                )  # which keeps what it has got if it fails
            except zenoh.ZError:  # undeclared or session closed, and nothing left in the channel
                open = False
            columns = _columns(came)
            self._deliver_all(self._run_of(columns) or self._messages(columns))

    def _run_of(self, came: "_Came") -> Run | None:
        """What samples are that are alike, without looking at each; None if they are not."""
        keys, headers, payloads = came
        if len(keys) < MANY or keys.count(keys[0]) < len(keys) or None in headers or None in payloads:
            return None
        key = str(keys[0])
        if self._skips_publications and key.endswith(_PUBLICATION):
            return None
        run = self._reader.run(key, cast("list[bytes]", headers), cast("list[bytes]", payloads))
        if run is not None:
            self.received += len(run)
            if run.reqids is not None:
                self._answered.note(run.reqids)
        return run

    def _messages(self, came: "_Came") -> list[UMessage]:
        taken = map(self._take, map(str, came.keys), came.headers, came.payloads)
        return [message for message in taken if message is not None]

    def _deliver_all(self, messages: Sequence[UMessage]) -> None:
        calls = self._calls
        if len(messages) > 1 and len(calls) == 1:
            listener, given = calls[0]
            take_all = for_many(listener)
            if take_all is not None:
                if given:
                    messages = given.without(messages)
                    if not messages:
                        return
                with self._calling:
                    try:
                        take_all(messages)
                    except Exception as error:  # noqa: BLE001  # as below; it should have raised nothing
                        self._listener_failed(messages[0], error)
                return
        for message in messages:
            self._deliver(message)

    def _take(self, key: str, header: bytes | None, payload: bytes | None) -> UMessage | None:
        """The message that a sample is, if it is one; a delete has no payload."""
        if self._skips_publications and key.endswith(_PUBLICATION):
            return None
        message = self._reader.read(key, header, payload or b"")
        if type(message) is Refusal:
            self._refuse(message)
        elif payload is None:
            self._refuse(Refusal(Reason.DELETE, f"a delete of {key!r}; messages are puts"))
        else:
            self.received += 1
            reqid = message.attributes.reqid
            if reqid is not None:
                self._answered.note((reqid,))
            return message
        return None

    def _deliver(self, message: UMessage) -> None:
        with self._calling:
            for listener, given in self._calls:
                if given and given.has(message):
                    continue
                try:
                    listener(message)
                # Foreign code must not end the thread that everybody's messages come in on: said once, always counted.
                except Exception as error:  # noqa: BLE001
                    self._listener_failed(message, error)

    def _listener_failed(self, message: UMessage, error: Exception) -> None:
        self.listener_errors += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            extra = {"endpoint": self._endpoint, "key": self._key, "message_id": str(message.id)}
            log.error("zenoh.listener_failed", extra=extra, exc_info=error)

    def _refuse(self, refusal: Refusal) -> None:
        self.refused[refusal.reason] += 1
        if self.refused[refusal.reason] == 1:
            extra = {
                "endpoint": self._endpoint,
                "key": self._key,
                "reason": refusal.reason,
                "why": refusal.text,
            }
            log.warning("zenoh.refused", extra=extra)
