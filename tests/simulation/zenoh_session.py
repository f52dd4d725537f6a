# SPDX-License-Identifier: Apache-2.0
"""A simulated Zenoh session: the calls that the Zenoh transport makes, on the links of `zenoh_link`."""

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import zenoh

from tests.simulation import primitives
from tests.simulation.scheduler import NS_PER_MS, Process, Task
from tests.simulation.zenoh_link import (
    LEASE_IS_OVER,
    LEASE_NS,
    PUT_WAIT_NS,
    SimLink,
    WireMessage,
    wire_message,
)
from ustreamer.transports.zenoh.decoder import HEAD

if TYPE_CHECKING:
    from tests.simulation.zenoh_network import SimNetwork

_RETRY_MS: Final = 1_000
_DROP_WAIT_NS: Final = NS_PER_MS
"""A put with congestion control DROP waits so long for room. Measured: 1.1 ms while the other node is frozen."""
_PUT_NS: Final = 25_000
"""The time from one put to the next, with all computing in between: 40 000 messages/s at most."""
_THAW_MS: Final = 20
"""In this time after a freeze Zenoh reports what happened meanwhile."""


class _Bytes:
    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def to_bytes(self) -> bytes:
        return self._data


class SimSample:
    """A received sample."""

    __slots__ = ("attachment", "key_expr", "kind", "payload")

    def __init__(self, message: WireMessage) -> None:
        self.key_expr = message.key
        self.payload = _Bytes(message.payload)
        self.attachment = _Bytes(message.attachment)
        self.kind = zenoh.SampleKind.PUT


class SimFifoChannel:
    """The bounded channel of a subscriber."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity


class SimSubscriber:
    """A declared subscriber; its own handler."""

    def __init__(self, session: "SimSession", key: str, capacity: int) -> None:
        self.key = key
        self.handler = self
        self.samples: deque[WireMessage] = deque()
        self.capacity = capacity
        self._session = session
        self._closed = False
        self._receivers: list[Task] = []

    def append(self, message: WireMessage) -> None:
        self.samples.append(message)
        self.wake()

    def wake(self) -> None:
        if self._receivers:
            self._session.scheduler.make_ready(self._receivers.pop())

    def recv(self) -> SimSample:
        scheduler = self._session.scheduler
        scheduler.check_killed()
        while not self.samples:
            if self._closed or self._session.closed:
                raise zenoh.ZError("the channel is closed")
            self._receivers.append(scheduler.current)
            scheduler.block()
        return self._take()

    def try_recv(self) -> SimSample | None:
        if not self.samples:
            if self._closed or self._session.closed:
                raise zenoh.ZError("the channel is closed")
            return None
        return self._take()

    def _take(self) -> SimSample:
        message = self.samples.popleft()
        self._session.on_taken(message)
        return SimSample(message)

    def undeclare(self) -> None:
        self._session.scheduler.check_killed()
        self._closed = True
        self._session.remove_subscriber(self)
        self.wake()


class SimCallback:
    """A liveliness subscriber, or a token of the streamer, which no simulated application reads."""

    def __init__(self, callback: Callable[[Any], None] = lambda _: None) -> None:
        self.callback = callback

    def undeclare(self) -> None:
        self.callback = lambda _: None


class SimCallbackSubscriber(SimSubscriber):
    """A subscriber with a callback on the thread of Zenoh."""

    def __init__(self, session: "SimSession", key: str, callback: Callable[[Any], None]) -> None:
        super().__init__(session, key, capacity=1)
        self._callback = callback

    def append(self, message: WireMessage) -> None:
        self._session.callbacks.put_unlocked(lambda: self._callback(SimSample(message)))


class SimPublisher:
    """A declared publisher. `matching` is the session's view, which follows the network late.

    The streamer is informed of a change when its callback has returned.
    """

    def __init__(self, session: "SimSession", key: str, *, drops: bool) -> None:
        """`drops`: congestion control DROP, so a put without room is lost. Otherwise it waits."""
        self.key = key
        self.matching = self._reported = session.sees_subscriber(key)
        self._drops = drops
        self._session = session
        self._on_status: Callable[[Any], None] | None = None

    @property
    def key_expr(self) -> str:
        return self.key

    @property
    def matching_status(self) -> SimpleNamespace:
        self._session.scheduler.check_killed()
        return SimpleNamespace(matching=self.matching)

    def declare_matching_listener(self, callback: Any) -> None:
        self._on_status = callback.callback
        if self.matching:
            self._report(True)

    def update(self, *, matching: bool) -> None:
        if matching is not self.matching:
            self.matching = matching
            self._report(matching)

    def _report(self, matching: bool) -> None:
        on_status = self._on_status
        if on_status is None:
            self._reported = matching
            return

        def call() -> None:
            on_status(SimpleNamespace(matching=matching))
            self._reported = matching

        self._session.callbacks.put_unlocked(call)

    def put(self, payload: bytes, *, attachment: bytes = b"") -> None:
        if not (self.matching or self._reported):
            self._session.network.put_without_subscriber.add(attachment[: HEAD.size])
        message = wire_message(self.key, payload, attachment, attachment[: HEAD.size])
        self._session.put(message, drops=self._drops)

    def undeclare(self) -> None:
        self._session.publishers.pop(self, None)


class SimSession:
    """The session of one endpoint."""

    def __init__(self, network: "SimNetwork", process: Process) -> None:
        self.network = network
        self.scheduler = network.scheduler
        self.process = process
        self.name = f"{process.name} {network.name}"
        self.closed = False
        self.is_gone = False
        """True after the end of the session or of its process: the kernel owns the connection."""
        self.link: SimLink | None = None
        self.is_frozen = False
        """True while the process is frozen: its kernel goes on, and Zenoh does nothing."""
        self._frozen_ns = 0
        self._at_thaw: list[Callable[[], None]] = []
        self.publishers: dict[SimPublisher, None] = {}
        self.subscribers: list[SimSubscriber] = []
        self.callbacks = primitives.SimQueue()
        self.info = self
        self._on_event: Callable[[Any], None] | None = None
        self._last_link: SimLink | None = None
        self._tokens: set[str] = set()
        self._token_subscriber = SimCallback()
        self.scheduler.spawn(f"{self.name} zenoh", self._run_callbacks, process)
        network.add_session(self)
        self.connect()

    def _run_callbacks(self) -> None:
        """The thread of Zenoh that calls the callbacks."""
        while (callback := self.callbacks.get()) is not None:
            callback()

    def is_closed(self) -> bool:
        return self.closed

    # --- the link -----------------------------------------------------------------------------------------------------

    @property
    def waits_for_router(self) -> bool:
        """Whether it has no link, and tries to connect."""
        return self.link is None and not (self.closed or self.is_gone or self.is_frozen)

    def connect(self) -> None:
        """Connect now, or try again later."""
        if self.closed or self.is_gone or self.link is not None:
            return
        if self.is_frozen:
            self.do_at_thaw(self.connect)
            return
        if not self.network.is_running or self.network.is_cut:
            retry_ms = _RETRY_MS + self.network.rng.randrange(_RETRY_MS)
            self.scheduler.call_after(retry_ms * NS_PER_MS, self.connect)
            return
        self.link = link = SimLink(self.network, self, self.network.sizes)
        self._post_event(zenoh.SampleKind.PUT, link.zid)
        last, self._last_link = self._last_link, None
        if last is not None and last.zid == link.zid:
            if last.is_reported_twice:
                self._post_event(zenoh.SampleKind.DELETE, link.zid)
            link.is_forgotten = last.is_closed_by_put and self.network.forgets_connection()
        self.network.on_topology_change()

    def on_link_lost(self, link: SimLink) -> None:
        """Zenoh reports the end of the link: to publishers and the listener, in any order."""
        if self.link is not link:
            return
        self.link, self._last_link = None, link
        self.network.on_topology_change()
        reports = [lambda: self._post_event(zenoh.SampleKind.DELETE, link.zid), self.refresh_matching]
        self.network.rng.shuffle(reports)
        for report in reports:
            report()
        retry_ms = 10 + self.network.rng.randrange(_RETRY_MS)
        self.scheduler.call_after(retry_ms * NS_PER_MS, self.connect)

    def _post_event(self, kind: Any, zid: str) -> None:
        on_event = self._on_event
        if on_event is not None:
            event = self._event(kind, zid)
            self.callbacks.put_unlocked(lambda: on_event(event))

    @staticmethod
    def _event(kind: Any, zid: str) -> Any:
        return SimpleNamespace(
            kind=kind, transport=SimpleNamespace(zid=zid, is_multicast=False, whatami=zenoh.WhatAmI.ROUTER)
        )

    def declare_transport_events_listener(self, callback: Any, *, history: bool) -> "SimSession":
        self._on_event = callback.callback
        if self.link is not None:
            self._on_event(self._event(zenoh.SampleKind.PUT, self.link.zid))
        return self

    def undeclare(self) -> None:
        """End of the listener for transport events."""
        self._on_event = None

    def declare_link_events_listener(self, _callback: Any, *, history: bool) -> SimCallback:
        assert history
        return SimCallback()

    def transports(self) -> list[Any]:
        if self.link is None or self.link.is_forgotten:
            return []
        return [SimpleNamespace(zid=self.link.zid, is_multicast=False)]

    def links(self) -> list[Any]:
        if self.link is None or self.link.reported:
            return []
        return [SimpleNamespace(zid=self.link.zid, src=self.name, dst=self.network.name)]

    # --- sending ------------------------------------------------------------------------------------------------------

    def declare_publisher(self, key: str, *, congestion_control: Any, **_: object) -> SimPublisher:
        self._check_open()
        drops = congestion_control == zenoh.CongestionControl.DROP
        publisher = SimPublisher(self, key, drops=drops)
        self.publishers[publisher] = None
        return publisher

    def sees_subscriber(self, key: str) -> bool:
        return self.link is not None and self.network.has_subscriber(key, self)

    def declare_token(self, _: str) -> SimCallback:
        self._check_open()
        return SimCallback()

    def refresh_tokens(self) -> None:
        """Report the tokens of applications that have appeared or are gone, if a subscriber asks for them."""
        present = set() if self.link is None else self.network.see_tokens(self.process)
        kinds = (
            (zenoh.SampleKind.PUT, present - self._tokens),
            (zenoh.SampleKind.DELETE, self._tokens - present),
        )
        for kind, keys in kinds:
            for key in sorted(keys):
                sample = SimpleNamespace(key_expr=key, kind=kind)
                self.callbacks.put_unlocked(lambda sample=sample: self._token_subscriber.callback(sample))
        self._tokens = present

    def refresh_matching(self) -> None:
        self.refresh_tokens()
        for publisher in list(self.publishers):
            publisher.update(matching=self.sees_subscriber(publisher.key))

    def put(self, message: WireMessage, *, drops: bool) -> None:
        """Take a message. Without a working link it is lost silently; with `drops` also without room."""
        self._check_open()
        self.scheduler.interrupt()
        self.scheduler.spend(_PUT_NS)
        self.network.on_put(message, self.process)
        link, begin_ns = self.link, self.scheduler.now_ns
        deadline_ns = begin_ns + (_DROP_WAIT_NS if drops else self.network.put_wait_ns)
        while link is not None and not link.dead and not link.has_room:
            wake = partial(self.scheduler.make_ready, self.scheduler.current)
            link.on_room.append(wake)
            if self.scheduler.block(deadline_ns):
                continue
            if drops:
                if wake in link.on_room:
                    link.on_room.remove(wake)
                self.network.note(f"{self.name} dropped puts without room")
                return
            link.close_here("a put waited too long")
        self.network.on_put_end(begin_ns, self.process)
        if link is None or link.dead:
            self.network.note(f"{self.name} took messages without a working link, and lost them")
        else:
            link.put(message)

    def get(self, key: str, handler: Any, *, timeout: float, **_: object) -> None:
        """Ask for a key without data: the router ends the query, or its timeout does."""
        self._check_open()
        waiting = [handler.drop]

        def end() -> None:
            for drop in waiting:
                self.callbacks.put_unlocked(drop)
            waiting.clear()

        self.scheduler.call_after(round(timeout * 1_000) * NS_PER_MS, end)
        if self.link is not None:
            self.link.query(end)

    def _check_open(self) -> None:
        self.scheduler.check_killed()
        if self.closed:
            raise zenoh.ZError("the session is closed")

    # --- receiving ----------------------------------------------------------------------------------------------------

    def declare_subscriber(
        self, key: str, handler: Any, *, history: bool = False, **_: object
    ) -> "SimSubscriber | SimCallback":
        self._check_open()
        if history:
            self._token_subscriber = SimCallback(handler.callback)
            self.refresh_tokens()
            return self._token_subscriber
        subscriber: SimSubscriber
        if isinstance(handler, SimFifoChannel):
            subscriber = SimSubscriber(self, key, handler.capacity)
        else:
            subscriber = SimCallbackSubscriber(self, key, handler.callback)
        self.subscribers.append(subscriber)
        self.network.on_topology_change()
        return subscriber

    def remove_subscriber(self, subscriber: SimSubscriber) -> None:
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)
            self.network.on_topology_change()

    def deliver(self, message: WireMessage) -> bool:
        """Put a message into the channels; false if one has no room."""
        matching = [each for each in self.subscribers if self.network.matches(each.key, message.key)]
        if any(len(each.samples) >= each.capacity for each in matching):
            return False
        for each in matching:
            each.append(message)
        return True

    def on_taken(self, message: WireMessage) -> None:
        self.network.on_taken(message, self.process)
        if self.link is not None and self.link.downlink:
            self.link.flush_downlink()

    # --- a freeze of the process --------------------------------------------------------------------------------------

    def on_frozen(self) -> None:
        self.is_frozen, self._frozen_ns = True, self.scheduler.now_ns
        link = self.link
        if link is not None and not link.dead:
            silent_ns = self.network.freeze_rng.randrange(LEASE_NS // 4)
            self.scheduler.call_after(LEASE_NS - silent_ns, lambda: self._expire(link))

    def _expire(self, link: SimLink) -> None:
        """The router has received nothing for a lease."""
        if self.is_frozen and self.network.is_running and not (link.dead or self.network.is_cut):
            link.reset()

    def on_thawed(self) -> None:
        """SIGCONT. Zenoh may close a link because its own timer has expired, although data of the router waits."""
        rng = self.network.freeze_rng
        self.is_frozen = False
        self.network.on_session_thawed()
        actions, self._at_thaw = self._at_thaw, []
        for action in actions:
            self.scheduler.call_after(rng.randrange(1, _THAW_MS) * NS_PER_MS, action)
        link, frozen_ns = self.link, self.scheduler.now_ns - self._frozen_ns
        if link is None or link.dead:
            return
        if frozen_ns + rng.randrange(LEASE_NS // 4) > LEASE_NS and rng.random() < 0.5:
            link.close_here(LEASE_IS_OVER, rng.randrange(1, _THAW_MS) * NS_PER_MS)
        else:
            link.pump()
            link.flush_downlink()

    def do_at_thaw(self, action: Callable[[], None]) -> None:
        """Do this in the first milliseconds after the freeze."""
        self._at_thaw.append(action)

    # --- life ---------------------------------------------------------------------------------------------------------

    def liveliness(self) -> "SimSession":
        return self

    def close(self) -> None:
        """Send what waits, for 10 s at most, and close."""
        self._check_open()
        link, deadline_ns = self.link, self.scheduler.now_ns + 2 * PUT_WAIT_NS
        while link and not link.dead and (link.queue.messages or (link.sent.messages and not link.is_held)):
            self.scheduler.block(min(deadline_ns, self.scheduler.now_ns + 10 * NS_PER_MS))
            if self.scheduler.now_ns >= deadline_ns:
                if not link.is_held:
                    link.sent.clear()
                break
        self._leave()
        self.callbacks.put_unlocked(None)

    def on_killed(self) -> None:
        """The process ended."""
        if not self.closed:
            self._leave()

    def _leave(self) -> None:
        self.closed = self.is_gone = True
        if self.link is not None:
            self.link.leave()
        self.link = None
        for subscriber in self.subscribers:
            subscriber.wake()
        self.subscribers = []
        self.network.on_topology_change()


def network_of(config: zenoh.Config) -> str:
    """The name of the network in a configuration: the host of its only address."""
    (locator,) = json.loads(config.get_json("connect/endpoints"))
    return str(locator).removeprefix("tcp/").split(":")[0]
