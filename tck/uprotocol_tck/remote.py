# SPDX-License-Identifier: Apache-2.0
"""The uSubscription of another device, played by the kit: it receives what the subject forwards and answers it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, NamedTuple

import zenoh

from uprotocol_tck.case import CaseFailed
from uprotocol_tck.probe import PAUSE_S, Entity, Inbox, Network, Received
from uprotocol_tck.protobuf import MalformedProtobuf
from uprotocol_tck.stop import Stop
from uprotocol_tck.uprotocol import ANY_RESOURCE, ANY_VERSION, ANYTHING, Code, Kind, Uri
from uprotocol_tck.usubscription import DIALECTS, Dialect, State, Subscription

ENTITY: Final = 0
"""The type of every uSubscription."""


class RemoteCall(NamedTuple):
    """A Subscribe or Unsubscribe of the subject."""

    received: Received
    dialect: Dialect
    wanted: Subscription
    """The topic, and for Subscribe the expiration and the period."""
    respond_with_repeats: "Callable[[RemoteCall, State, Code | None], object]"

    @property
    def is_subscribe(self) -> bool:
        sink = self.received.head.sink
        return sink is not None and sink.resource == self.dialect.methods.subscribe

    def answer(self, state: State = State.SUBSCRIBED) -> None:
        """A successful Response, also to each repeat so far and later. That of Unsubscribe is empty."""
        self.respond_with_repeats(self, state, None)

    def fail(self, code: Code) -> None:
        """A Response with an error, also to each repeat so far.

        Later repeats get it too, except after DEADLINE_EXCEEDED: the case answers those.
        """
        self.respond_with_repeats(self, State.UNSUBSCRIBED, code)


class RemoteUsubscription:
    """It grants every call at once, except those of topics that a case holds or that another run has."""

    def __init__(
        self, network: Network, authority: str, is_foreign: Callable[[Uri], bool] = lambda _: False
    ) -> None:
        """`is_foreign` is True for a topic of another run, which answers the calls about it."""
        self.authority = authority
        self.network = network
        self._is_foreign = is_foreign
        self._calls: list[RemoteCall] = []
        self._held: set[Uri] = set()
        # By topic, and whether the call is a Subscribe. A subject repeats its calls when the node of another run joins.
        self._answers_of_repeats: dict[tuple[Uri, bool], tuple[State, Code | None]] = {}
        self._changed = threading.Condition()
        self._queue: SimpleQueue[Received | None] = SimpleQueue()
        self._undeclare: Callable[[], object] = lambda: None
        self._is_closed = False
        self.listen()
        self._thread = threading.Thread(target=self._serve, name="remote uSubscription", daemon=True)
        self._thread.start()

    def listen(self) -> None:
        """Receive all requests to it; again after its network was away."""
        pattern = Uri(self.authority, ENTITY, ANY_VERSION, ANY_RESOURCE)
        self._undeclare = self.network.listen(ANYTHING, pattern, _Queued(self._queue, self.network.stop))

    def close(self) -> None:
        """Answer no further call, and wait for the thread: Python aborts if it ends while one is inside Zenoh."""
        self._is_closed = True
        self._queue.put(None)
        self._thread.join(self.network.deadline_s)

    def hold(self, topic: Uri) -> None:
        """Leave the calls about a topic to the case."""
        with self._changed:
            self._held.add(topic)
            for is_subscribe in (True, False):
                self._answers_of_repeats.pop((topic, is_subscribe), None)

    def release(self, topic: Uri) -> None:
        """Grant the calls about a topic that was held, those so far and later ones."""
        with self._changed:
            self._held.discard(topic)
            held = self.calls(topic)
        for each in held:
            self._respond(each, State.SUBSCRIBED)

    def calls(self, topic: Uri, *, subscribe: bool | None = None) -> list[RemoteCall]:
        """The calls about a topic so far."""
        with self._changed:
            return [
                each
                for each in self._calls
                if each.wanted.topic == topic and subscribe in {None, each.is_subscribe}
            ]

    def wait_call(self, topic: Uri, *, subscribe: bool, count: int = 1) -> RemoteCall:
        """Wait for the call of this number about a topic."""
        name = "Subscribe" if subscribe else "Unsubscribe"
        deadline_s = self.network.deadline_s
        until = time.monotonic() + deadline_s
        with self._changed:
            while len(found := self.calls(topic, subscribe=subscribe)) < count:
                self.network.stop.check()
                if time.monotonic() > until:
                    raise CaseFailed(
                        f"{name} of {topic} at the other device: {len(found)} of {count} within {deadline_s:g} s"
                    )
                self._changed.wait(PAUSE_S)
            return found[count - 1]

    def _serve(self) -> None:
        while (received := self._queue.get()) is not None and not self._is_closed:
            call = self._read(received)
            if call is None or self._is_foreign(call.wanted.topic):
                continue
            with self._changed:
                self._calls.append(call)
                answer = self._answers_of_repeats.get((call.wanted.topic, call.is_subscribe))
                if call.wanted.topic not in self._held:
                    answer = (State.SUBSCRIBED, None)
                self._changed.notify_all()
            if answer:
                with suppress(zenoh.ZError):  # its network is away, so the subject calls again
                    self._respond(call, *answer)

    def _respond_with_repeats(self, call: RemoteCall, state: State, code: Code | None) -> None:
        """Answer a held call, and its repeats: those so far and later ones."""
        topic, is_subscribe = call.wanted.topic, call.is_subscribe
        with self._changed:
            same = self.calls(topic, subscribe=is_subscribe)
            if code is not Code.DEADLINE_EXCEEDED:  # the case waits for the repeat after it
                self._answers_of_repeats[topic, is_subscribe] = (state, code)
        for each in same[same.index(call) :]:
            self._respond(each, state, code)

    def _read(self, received: Received) -> RemoteCall | None:
        """The call; None for what is no Subscribe and no Unsubscribe."""
        head = received.attributes
        if head is None or head.kind != Kind.REQUEST or head.sink is None:
            return None
        dialect = DIALECTS.get(head.sink.version)
        methods = dialect and dialect.methods
        if (
            dialect is None
            or not methods
            or head.sink.resource not in {methods.subscribe, methods.unsubscribe}
        ):
            return None
        try:
            wanted = dialect.read_request(received.payload)
        except MalformedProtobuf:
            return None
        return RemoteCall(received, dialect, wanted, self._respond_with_repeats)

    def _respond(self, call: RemoteCall, state: State, code: Code | None = None) -> None:
        sink = call.received.head.sink
        assert sink is not None
        has_state = call.is_subscribe and code is None
        payload = call.dialect.encode_subscribed(call.wanted.topic, state) if has_state else b""
        Entity.respond(_Responder(self.network, sink.at(0)), call.received, payload, commstatus=code)


class _Responder(Entity):
    """An entity that only sends."""

    def __init__(self, network: Network, address: Uri) -> None:
        self.network = network
        self.address = address


class _Queued(Inbox):
    """An inbox that passes on what it receives."""

    def __init__(self, queue: SimpleQueue[Received | None], stop: Stop) -> None:
        super().__init__("remote uSubscription", stop)
        self._queue = queue

    def append(self, item: Received) -> None:
        self._queue.put(item)
