# SPDX-License-Identifier: Apache-2.0
"""Rig: `PossibleLosses` of one sender behind a router, with several receivers, on a clock that the test moves.

The code under test is real. The router, the receivers and the Zenoh publishers are a model: no session and no thread.
A message, a receipt and a declaration need some milliseconds each. A router that dies loses what is on its way.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from types import SimpleNamespace
from typing import Final, NamedTuple

import zenoh

from ustreamer.core.base.clock import ManualClock
from ustreamer.testing.durable_contract import RecordedSentStore
from ustreamer.testing.messages import ALPHA, TOPIC, new_id
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh.connected_node import MARGIN_NS, ConnectedNode
from ustreamer.transports.zenoh.decoder import HEAD, ID_TAG, VERSION_AND_TAGS
from ustreamer.transports.zenoh.link_monitor import LinkMonitor
from ustreamer.transports.zenoh.possible_losses import PossibleLosses
from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts
from ustreamer.transports.zenoh.receipts.receipt_keys import (
    ReceiptGiverId,
    receipt_id,
    receipt_key,
    token_key,
)
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, Origin, RetransmitConfig
from ustreamer.transports.zenoh.route_publishers import RoutePublisher, RoutePublishers, route_of
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.uprotocol.umessage import UMessage, publish

MS: Final = 1_000_000
TICK_MS: Final = 50
TOPICS: Final = tuple(TOPIC.with_resource(0x8000 + n) for n in range(2))


class RouterNode(ConnectedNode):
    """The router as its sender sees it: all puts before its last sign of life have arrived."""

    alive_ns = 0
    frozen = False

    @property
    def confirmed_ns(self) -> int:
        return self.alive_ns - MARGIN_NS

    def is_suspect(self, now_ns: int) -> bool:
        return now_ns - self.alive_ns > 300 * MS

    def _lost_since_ns(self, now_ns: int) -> int:
        return self.confirmed_ns


class Receiver:
    """A streamer that gives receipts. A new process of it has the same name, and has received what had a receipt."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.processes = 0
        self.is_running = True
        self.wanted: set[int] = set()
        """The topics of its subscriptions."""
        self.subscribed: set[int] = set()
        """Those that the router knows."""
        self.taken: list[bytes] = []
        """Messages of which no receipt was given."""
        self.received: set[bytes] = set()
        self.subscribed_ns: dict[int, int] = {}
        """By topic: when the router learned of the subscription."""
        self.known_tokens: set[tuple[ReceiptGiverId, int]] = set()
        """The tokens that the sender knows: process and topic."""
        self.known_since_ns: dict[int, int] = {}
        """By topic: since when the sender knows of the receiver. A test removes what it does not expect to be kept."""

    @property
    def giver(self) -> ReceiptGiverId:
        return ReceiptGiverId(f"cloud{self.number}", "link", f"{self.number}{self.processes:04x}")


class Put(NamedTuple):
    at_ns: int
    topic: int
    id: bytes


class Network:
    """The sender under test, its router, and the receivers."""

    def __init__(self, receivers: int, memory: int, window_ms: int, store: RecordedSentStore | None) -> None:
        self.clock = ManualClock()
        self.clock.advance(ms=1_000_000)
        self.latency_ms: Callable[[], int] = lambda: 5
        self.reconnect_ms: Callable[[], int] = lambda: 5
        self.store = store
        self.counted_before = 0
        """What earlier processes of the sender counted as missing or not put again."""
        self.unsent: list[UMessage] = []
        """What waits on disk for a route to open, or was left there by an earlier process."""
        self.on_unsent_put: Callable[[Put], None] = lambda put: None
        """Called when one of them is put."""
        self._sent_from_disk: dict[bytes, tuple[int, UMessage]] = {}
        """Of these, what was sent, with its time: its record stays until the receipt, 1 s at most."""
        self._retransmit = RetransmitConfig(ms=window_ms, bytes=memory)
        self._sender_processes = 0
        self._create_sender()
        self.receivers = [Receiver(number) for number in range(receivers)]
        self.plain = Receiver(-1)
        """A subscriber that gives no receipts, and that is promised nothing."""
        self.puts: list[Put] = []
        self.last_put_ns: dict[bytes, int] = {}
        """When each message was put last."""
        self.drops_receipts = False
        self._known_subscribers: defaultdict[int, set[Receiver]] = defaultdict(set)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._last_due: dict[str, int] = {}
        self._connections = 0
        """The number of connections of the sender to a router. What is on its way belongs to one."""
        self._waiting: list[Callable[[], None]] = []
        """The messages and receipts that arrived at a frozen router."""
        self._next_tick_ns = self._next_receipts_ns = self.now_ns
        self.router: RouterNode | None = None
        self.start_router()
        self._declare_all()

    def _create_sender(self) -> None:
        context = EndpointContext("backbone", ALPHA, self.clock.clock())
        self.links = LinkMonitor(context)
        self.awaited = AwaitedReceipts("own", self._now_ns, self._retransmit.ms * MS)
        self.publishers = RoutePublishers(None, context, 10, self.awaited)  # type: ignore[arg-type]
        self.losses = PossibleLosses(
            context,
            self.links,
            self.publishers,
            Lock(),
            self._put_again,
            lambda route: None,
            self._retransmit,
            AnsweredRequests(0),
            self.store,
            self.awaited,
        )

    def _declare_all(self) -> None:
        self._publishers = [self._declare(topic) for topic in range(len(TOPICS))]

    def restart_sender(self, *, is_killed: bool) -> None:
        """Stop or kill the durable sender, and start it. What is on its way to or from it is lost.

        The router is not frozen then, and a tick has just written what has changed.
        """
        assert self.store is not None
        self.resume_router()
        self.advance(TICK_MS)
        self._tick()
        self._expire_sent_from_disk()
        on_disk = {
            message.id: message
            for message in (*self.unsent, *self.store.on_disk.values(), *self.store.messages())
        }
        if not is_killed:
            end = self.losses.unconfirmed()
            stored = frozenset(end.stored)
            waiting = {each.id for each in self.unsent}
            on_disk = {id: each for id, each in on_disk.items() if id in stored or id in waiting}
            on_disk |= {each.id: each for each in end.messages}
        self.unsent = sorted(on_disk.values(), key=lambda each: (each.id.msb, each.id.lsb))
        self._sent_from_disk.clear()
        self.counted_before += self.awaited.missing + self.losses.not_retransmitted
        receivers, self.store = self.store.receivers(), RecordedSentStore()
        self.store.keep_receivers(receivers)
        self._connections += 1
        self._sender_processes += 1
        self._known_subscribers.clear()
        self._create_sender()
        if self.router is not None:
            self._connect_sender()
        self._declare_all()
        for each in (*self.receivers, self.plain):
            each.known_tokens.clear()
            each.known_since_ns = dict.fromkeys(each.known_since_ns, self.now_ns)
            for topic in sorted(each.subscribed):
                self._send_declaration(each, topic)

    def _expire_sent_from_disk(self) -> None:
        if self.store is None:
            return
        since_ns = self.now_ns - 1_000 * MS
        self._sent_from_disk = {
            id: each
            for id, each in self._sent_from_disk.items()
            if each[0] > since_ns and self.awaited.is_awaited(id)
        }
        self.store.on_disk = {each.id: each for _, each in self._sent_from_disk.values()}

    def _send_unsent(self) -> None:
        self._expire_sent_from_disk()
        waiting, self.unsent = self.unsent, []
        for each in waiting:
            topic = TOPICS.index(each.attributes.source)
            if self.is_open(topic):
                self._sent_from_disk[receipt_id(each.id)] = self.now_ns, each
                if self.store is not None:
                    self.store.on_disk[each.id] = each
                self._put(topic, each)
                self.on_unsent_put(Put(self.now_ns, topic, receipt_id(each.id)))
            else:
                self.unsent.append(each)

    def _now_ns(self) -> int:
        return self.clock.clock().monotonic_ns()

    @property
    def now_ns(self) -> int:
        return self._now_ns()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _after(self, stream: str, latency_ms: int, event: Callable[[], None]) -> None:
        """Call `event` later, after the earlier ones of the same stream if it has a name."""
        due_ns = max(self.now_ns + latency_ms * MS, self._last_due.get(stream, 0))
        if stream:
            self._last_due[stream] = due_ns
        heappush(self._events, (due_ns, next(self._order), event))

    def advance(self, ms: int, *, monitor: bool = True) -> None:
        """Let time pass. Without `monitor` its thread waits for a put."""
        end_ns = self.now_ns + ms * MS
        while True:
            due_ns = self._events[0][0] if self._events else end_ns + 1
            tick_ns = self._next_tick_ns if monitor else end_ns + 1
            next_ns = min(due_ns, tick_ns, self._next_receipts_ns)
            if next_ns > end_ns:
                break
            if next_ns > self.now_ns:
                self.clock.advance(ms=(next_ns - self.now_ns) // MS)
            if next_ns == due_ns:
                heappop(self._events)[2]()
            elif next_ns == self._next_receipts_ns:
                self._next_receipts_ns += TICK_MS * MS
                self._give_receipts()
            else:
                self._next_tick_ns = self.now_ns + TICK_MS * MS
                self._tick()
            if monitor:
                self._run_tasks()
        self.clock.advance(ms=(end_ns - self.now_ns) // MS)

    def _run_tasks(self) -> None:
        while not self.links.is_idle:
            task = self.links._tasks.get()
            assert task is not None
            task()

    def _tick(self) -> None:
        if self.router is not None and not self.router.frozen:
            self.router.alive_ns = self.now_ns
        self.links._tick(self.now_ns)
        self.losses.on_tick()
        self._send_unsent()

    # --- the router ---------------------------------------------------------------------------------------------------

    _NODE: Final = ("router", False)

    def start_router(self) -> None:
        """The receivers connect to it later, and declare their subscribers again."""
        self._connect_sender()
        for each in (*self.receivers, self.plain):
            self._after("", self.reconnect_ms(), partial(self._connect, each))

    def _connect_sender(self) -> None:
        event = SimpleNamespace(
            kind=zenoh.SampleKind.PUT,
            transport=SimpleNamespace(zid=self._NODE[0], is_multicast=False, whatami=zenoh.WhatAmI.ROUTER),
        )
        self.links._apply_event(event, self.now_ns)  # type: ignore[arg-type]
        self.router = self.links._nodes[self._NODE] = RouterNode(self.now_ns, is_router=True)
        self.router.alive_ns = self.now_ns
        self.router.searches = 1_000_000

    def freeze_router(self) -> None:
        """It reads nothing, and its kernel acknowledges."""
        if self.router is not None:
            self.router.frozen = True

    def resume_router(self) -> None:
        """It reads what waited."""
        if self.router is None or not self.router.frozen:
            return
        self.router.frozen = False
        waiting, self._waiting = self._waiting, []
        for arrive in waiting:
            arrive()

    def kill_router(self) -> None:
        """What is on its way is lost. The sender learns of lost tokens and subscribers one by one."""
        if self.router is None:
            return
        self.router = None
        self._connections += 1
        self._waiting.clear()
        self.links._remove_node(self._NODE, self.now_ns)
        for each in (*self.receivers, self.plain):
            self._disconnect(each)

    # --- the receivers ------------------------------------------------------------------------------------------------

    def _connect(self, receiver: Receiver) -> None:
        if self.router is None or not receiver.is_running:
            return
        for topic in sorted(receiver.wanted - receiver.subscribed):
            self._announce(receiver, topic)

    def _announce(self, receiver: Receiver, topic: int) -> None:
        receiver.subscribed.add(topic)
        receiver.subscribed_ns[topic] = self.now_ns
        self._send_declaration(receiver, topic)
        if receiver is self.plain:
            return
        latency_ms = max(self._last_due["tokens"], self._last_due["subscribers"]) - self.now_ns
        self._send_receipt(receiver, b"", latency_ms // MS)

    def _send_declaration(self, receiver: Receiver, topic: int) -> None:
        giver = receiver.giver
        if receiver is not self.plain:
            self._deliver_to_sender("tokens", lambda: self._learn_token(receiver, giver, topic))
        self._deliver_to_sender("subscribers", lambda: self._learn_subscriber(receiver, topic))

    def _deliver_to_sender(self, stream: str, event: Callable[[], None]) -> None:
        """Call `event` later, unless another process of the sender runs then."""
        process = self._sender_processes

        def arrive() -> None:
            if process == self._sender_processes:
                event()

        self._after(stream, self.latency_ms(), arrive)

    def _disconnect(self, receiver: Receiver) -> None:
        for topic in sorted(receiver.subscribed):
            self._withdraw(receiver, topic)

    def _withdraw(self, receiver: Receiver, topic: int) -> None:
        receiver.subscribed.discard(topic)
        giver = receiver.giver
        if receiver is not self.plain:
            self._deliver_to_sender("tokens", lambda: self._lose_token(receiver, giver, topic))
        self._deliver_to_sender("subscribers", lambda: self._lose_subscriber(receiver, topic))

    def subscribe(self, receiver: Receiver, topic: int) -> None:
        receiver.wanted.add(topic)
        self._connect(receiver)

    def unsubscribe(self, receiver: Receiver, topic: int) -> None:
        receiver.wanted.discard(topic)
        if topic in receiver.subscribed:
            self._withdraw(receiver, topic)

    def kill(self, receiver: Receiver) -> None:
        """What it took without a receipt is lost with it."""
        if receiver.is_running:
            receiver.is_running = False
            receiver.taken.clear()
            self._disconnect(receiver)

    def start(self, receiver: Receiver) -> None:
        if not receiver.is_running:
            receiver.is_running = True
            receiver.processes += 1
            self._connect(receiver)

    def _give_receipts(self) -> None:
        for each in self.receivers:
            if each.taken and each.is_running and self.router is not None:
                each.received.update(each.taken)
                payload, each.taken = b"".join(each.taken), []
                if not self.drops_receipts:
                    self._send_receipt(each, payload, self.latency_ms())

    def _send_receipt(self, receiver: Receiver, payload: bytes, latency_ms: int) -> None:
        connection, key = self._connections, receipt_key(receiver.giver)

        def arrive() -> None:
            if connection != self._connections or self.router is None:
                return
            if self.router.frozen:
                self._waiting.append(arrive)
            else:
                self.awaited.on_receipt(key, payload)

        self._after(f"receipts of {receiver.number}", latency_ms, arrive)

    # --- what the sender learns ---------------------------------------------------------------------------------------

    def _learn_token(self, receiver: Receiver, giver: ReceiptGiverId, topic: int) -> None:
        receiver.known_tokens.add((giver, topic))
        receiver.known_since_ns[topic] = self.now_ns
        self.awaited.on_token(_token(giver, topic), is_present=True)

    def _lose_token(self, receiver: Receiver, giver: ReceiptGiverId, topic: int) -> None:
        receiver.known_tokens.discard((giver, topic))
        self.awaited.on_token(_token(giver, topic), is_present=False)

    def _learn_subscriber(self, receiver: Receiver, topic: int) -> None:
        known = self._known_subscribers[topic]
        known.add(receiver)
        if len(known) == 1:
            self._notify(topic, matching=True)

    def _lose_subscriber(self, receiver: Receiver, topic: int) -> None:
        known = self._known_subscribers[topic]
        if known == {receiver}:
            known.clear()
            self._notify(topic, matching=False)
        known.discard(receiver)

    def _notify(self, topic: int, *, matching: bool) -> None:
        self.losses._on_matching_status(self._publishers[topic], matching)

    # --- the sender ---------------------------------------------------------------------------------------------------

    def _declare(self, topic: int) -> RoutePublisher:
        publisher = RoutePublisher(route_of(publish(new_id(), TOPICS[topic], b"").attributes), self.now_ns)
        known = self._known_subscribers[topic]

        class Declared:
            @property
            def matching_status(self) -> SimpleNamespace:
                return SimpleNamespace(matching=bool(known))

        publisher.zenoh = Declared()  # type: ignore[assignment]
        publisher.opened_ns = self.now_ns
        self.publishers.add(publisher)
        return publisher

    def is_open(self, topic: int) -> bool:
        return self._publishers[topic].open and self.links.up

    def opened_ns(self, topic: int) -> int:
        return self._publishers[topic].opened_ns

    def enqueue(self, topic: int) -> None:
        """A new message waits on disk until its route is open."""
        self.unsent.append(publish(new_id(), TOPICS[topic], b""))

    def put(self, topic: int) -> Put:
        """Put a new message. The route is open."""
        self._send_unsent()
        message = publish(new_id(), TOPICS[topic], b"")
        put = Put(self.now_ns, topic, receipt_id(message.id))
        self.puts.append(put)
        self._put(topic, message)
        return put

    def _put_again(self, put_ns: int, message: UMessage) -> bool:
        self._put(TOPICS.index(message.attributes.source), message)
        return True

    def _put(self, topic: int, message: UMessage) -> None:
        id, publisher, connection = receipt_id(message.id), self._publishers[topic], self._connections
        for each in publisher.receivers:
            each.puts.append((self.now_ns, id))
        self.last_put_ns[id] = self.now_ns
        head = HEAD.pack(VERSION_AND_TAGS, message.id.msb, ID_TAG, message.id.lsb)
        origin = Origin(publisher, message.attributes)
        self.losses.append((origin,), self.now_ns, (head,), (message.payload,))

        def arrive() -> None:
            if connection != self._connections or self.router is None:
                return
            if self.router.frozen:
                self._waiting.append(arrive)
                return
            for each in self.receivers:
                if topic in each.subscribed:
                    each.taken.append(id)

        self._after("puts", self.latency_ms(), arrive)


def _token(giver: ReceiptGiverId, topic: int) -> str:
    return token_key(giver, ListenerFilters(TOPICS[topic], None))
