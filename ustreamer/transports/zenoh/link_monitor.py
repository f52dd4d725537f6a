# SPDX-License-Identifier: Apache-2.0
"""Monitors the Zenoh nodes that a session is connected to, and determines which messages a lost link may have lost.

In: transport and link events of Zenoh, its list of transports, and the kernel's state of each TCP link. Out: `up`,
watcher calls, `lost_since_ns`, and `confirmed_ns`: the time before which all puts have arrived. The TCP connection of a
node that is gone is shut down.

Without a connected node Zenoh accepts a put and loses it silently (measured: 50 of 50 in an outage of its router, no
exception). So the sender checks `up` first and raises UNAVAILABLE, and the egress queue keeps the message.

A lost link loses the messages that were put and not read. Zenoh does not report how many:

* A node that closes its session has read all: nothing is lost. A busy machine may detect the close too late to know
  it from a kill: then the last messages are put again.
* A node reads nothing for 5 s while messages wait: Zenoh closes the link on this side and loses all waiting messages.
  Until Zenoh reports it, seconds later, it accepts puts and loses them (measured: 7 000 messages in 2.4 s). So the link
  counts as down when no node has read anything for 4 s although data waits.
* Zenoh removes its transport to a node twice if several puts had waited for 5 s. It searches the transport by the id of
  the node, so the second time can remove the next transport to it. Such a connection is *forgotten*: it stays open, and
  Zenoh takes puts and sends nothing. The node gets keep-alives and never connects again. The second removal waits for
  the end of the old connection. So that one is shut down after the first report: the second follows within 2 ms.
  Nevertheless each node is searched in the list of transports for 2 s, and a forgotten connection is shut down.
* A killed node: its kernel ends the connection at once (detected in 2 ms). Milliseconds of messages are lost.
* A frozen node, or a cut link: detected when the lease is over (10 s). All messages since its last sign of life may be
  lost. Zenoh then closes the connection but may accept messages for another lease (measured: 12.5 s and 22.5 s after a
  cut). So a node counts as gone as soon as its connection is closed.
* This process was frozen, or the machine suspended, for most of a lease. As it resumes, the nodes or Zenoh here close
  the connections. In these milliseconds Zenoh takes puts and loses them. The ends look as if the nodes had left. So for
  2 s no acknowledgement is trusted, and no node counts as one that left.
* One of several nodes is lost and returns. No publisher detects that if the other nodes have the same subscribers. The
  messages that were sent meanwhile are counted.
* Two peers that connect to each other have two links, and Zenoh sends everything over the first one. If that one
  breaks, Zenoh uses the other one and reports nothing. What the first one may have lost is put again.
* A router that resumes after most of a lease drops its clients that were silent meanwhile, and then reads what waits
  for them. They connect again at once (measured: 8 ms). So what it had not read counts as lost with it. If this session
  has just connected to it, it announces their subscriptions for a moment. So if a subscriber is lost within a second
  after a router has connected, all puts to it since the connection count as lost.
* A node whose kernel restarts (an ECU reset): detected after seconds, by a TCP reset. All messages since its last
  acknowledgement are lost.

The local kernel can distinguish these cases. It is polled every 50 ms (`TcpLink.state`), and once more at the end.
After a close the node's Close message came last, or Zenoh has closed the link on this side. After a kill nothing came.

A put has arrived if the kernel of its node has acknowledged it, and the node has sent something after that. The kernel
of a frozen node acknowledges too, so an acknowledgement alone proves nothing. At a stop our session closes first: a
node that has read everything, the Close message included, then ends its stream (in 5 ms).

The other direction: a node whose put waits for 5 s, because this streamer reads nothing, closes its link. What it held
is lost on its side (measured: 57 654 of 60 000 messages). The kernel here then still has unread data of the node. Such
an end is counted and logged, and so is the end of a link to a node that had stalled.

Keep-alives come every 2.5 s. So under traffic, and once in each pause, routers are asked for a sign of life: they end a
query at once, after all puts before it. A client or peer that is connected directly does not receive the query.
"""

import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import CLOCK_BOOTTIME, CLOCK_MONOTONIC, clock_gettime_ns
from typing import Final

import msgspec
import zenoh
from zenoh.handlers import Callback

from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh.absent_nodes import AbsentNode, AbsentNodes, SentTotals
from ustreamer.transports.zenoh.connected_node import (
    DEFAULT_LEASE_NS,
    DETECTION_NS,
    SAME_OUTAGE_NS,
    ConnectedNode,
    NodeLoss,
)
from ustreamer.transports.zenoh.tcp_info import LinkEnd, TcpLink, find_link, wait_link_end

log = logging.getLogger("ustreamer.zenoh")

_NS_PER_MS: Final = 1_000_000
_SETTLING_FIRST_NS: Final = 1_000_000_000  # first link: subscriptions follow milliseconds later
_SETTLING_NS: Final = 5_000_000_000  # after an outage: other nodes of a lost router reconnect every 4 s
_SAMPLE_S: Final = 0.05
_SAMPLE_NS: Final = round(_SAMPLE_S * 1e9)
_MAX_LOSSES: Final = 64
_NEVER_NS: Final = 1 << 62
_CLOSE_TIMEOUT_S: Final = 2.0
"""For a live node to read everything after a stop. On a busy machine: 0.3 s."""
_MIN_SAMPLE_INTERVAL_NS: Final = 1_000_000
_MAX_SEARCHES: Final = 40  # samples in which a node's connection is searched; only TCP has one
_FORGOTTEN_NS: Final = 100_000_000
"""The least time without a transport. Zenoh reports the end of a connection before it removes the transport."""
_JOIN_S: Final = 5.0
_QUERY_KEY: Final = "@up-streamer/alive"
"""A key without data: `**` matches no chunk that begins with `@`. So a router ends the query at once."""
_QUERY_INTERVAL_NS: Final = 250_000_000  # a query costs 0.6 ms of CPU
_QUERY_TIMEOUT_S: Final = 1.0


class UnconfirmedSpan(msgspec.Struct, frozen=True):
    """Puts from `begin_ns` to `end_ns` are not known to have arrived.

    Not for publishers that lost their subscribers at `excluded_from_ns` or later: `PossibleLosses.unconfirmed` judges the
    puts of each by its own `lost_ns`.
    """

    begin_ns: int
    end_ns: int
    excluded_from_ns: int


class LinkMonitor:
    """The connected nodes of a session, maintained by one monitor thread."""

    def __init__(self, context: EndpointContext) -> None:
        self.up = False
        self.connected = Event()
        """Set while a node is connected, even one that reads nothing."""
        self.settled_ns = 0
        """Monotonic time until which subscriptions may still arrive: a put without subscriber should wait for it."""
        self.multicast = False
        """True if a node is reached by multicast: its subscriptions are unknown, so it receives everything."""
        self.confirmed_ns = 0
        """All puts before this time have arrived, or their loss was detected; 0 if unknown for one node."""
        self.all_suspect = False
        """True if each connected node may be frozen or cut off."""
        self.any_suspect = False
        """True if any node may be frozen or cut off, or was lost and publishers may not have detected it yet."""
        self.closed_unread = 0
        """Links that a node ended while its data waited here: what it held is lost on its side."""
        self.closed_stalled = 0
        """Links that ended when a node had acknowledged nothing for 4 s although data waited."""
        self.sent_while_node_lost = 0
        """The messages that were sent while a lost node was absent and another one connected. It may lack them."""
        self.count_sent: Callable[[], int] = int
        """Returns the number of messages that were sent."""
        self.down_by_stopped_nodes = False
        """True if the link is down because nodes have stopped, also after Zenoh has closed their links."""
        self._context = context
        self._monotonic_ns = context.clock.monotonic_ns
        self._watchers: list[Callable[[bool], None]] = []
        self._ticks: list[Callable[[], None]] = []
        self._link_watchers: list[Callable[[int], None]] = []
        self._reported: set[tuple[str, type[BaseException]]] = set()
        self._nodes: dict[tuple[str, bool], ConnectedNode] = {}
        self._losses: deque[NodeLoss] = deque(maxlen=_MAX_LOSSES)
        self._stopped: deque[NodeLoss] = deque(maxlen=_MAX_LOSSES)
        # Nodes with a closed connection that Zenoh has not reported yet. Bounded by Zenoh, which reports each.
        self._unreported: dict[tuple[str, bool], NodeLoss] = {}
        self._absent = AbsentNodes(DEFAULT_LEASE_NS)
        self._sent_totals = SentTotals(DEFAULT_LEASE_NS)
        # The two addresses of each node's newest link. Zenoh does not list the link of a forgotten connection.
        self._addresses: dict[str, tuple[str, str]] = {}
        self._all_stalled = False
        self._lease_ns = DEFAULT_LEASE_NS
        self._next_tick_ns = self._sampled_ns = self._tick_until_ns = 0
        self._observed_ns, self._suspended_ns = self._monotonic_ns(), _total_suspended_ns()
        self._thawed_ns = -DETECTION_NS
        """When this process resumed after a freeze, or the machine after a suspension."""
        self._session: zenoh.Session | None = None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._held: list[tuple[socket.socket, int, bool]] = []
        self._ask_at_ns = 0
        self._listener: zenoh.TransportEventsListener[None] | None = None
        self._link_listener: zenoh.LinkEventsListener[None] | None = None
        self._thread: Thread | None = None

    def add_watcher(self, on_change: Callable[[bool], None]) -> None:
        """Call `on_change(up)` at `start`, whenever a node connects, and when the last one is lost."""
        self._watchers.append(on_change)

    def add_tick(self, on_tick: Callable[[], None]) -> None:
        """Call `on_tick()` on the monitor thread every 50 ms, while a node is connected and for 2 s after that."""
        self._ticks.append(on_tick)

    def add_link_watcher(self, on_replaced: Callable[[int], None]) -> None:
        """Call `on_replaced(at_ns)` on the monitor thread when a node lost a link at that time and has another one."""
        self._link_watchers.append(on_replaced)

    def run_on_monitor(self, task: Callable[[], None]) -> None:
        """Run `task` on the monitor thread, in order of submission."""
        self._tasks.put(task)

    @property
    def is_idle(self) -> bool:
        """True if no task waits."""
        return self._tasks.empty()

    def start(self, session: zenoh.Session, lease_ms: int = 10_000) -> None:
        """Start; nodes that are already connected count before this returns. `lease_ms` is the lease of the nodes."""
        self._session = session
        self._lease_ns = lease_ms * _NS_PER_MS
        self._absent = AbsentNodes(self._lease_ns)
        self._sent_totals = SentTotals(self._lease_ns)
        events: SimpleQueue[tuple[zenoh.TransportEvent, int]] = SimpleQueue()

        def on_transport_event(event: zenoh.TransportEvent) -> None:
            now_ns = self._monotonic_ns()
            self._sample_nodes(now_ns)
            events.put((event, now_ns))
            self.run_on_monitor(lambda: self._on_event(events))

        self._listener = session.info.declare_transport_events_listener(
            Callback(on_transport_event, indirect=False), history=True
        )
        self._link_listener = session.info.declare_link_events_listener(
            Callback(self._on_link_event, indirect=False), history=True
        )
        while not events.empty():
            self._apply_event(*events.get())
        self._notify_watchers()
        self._thread = Thread(target=self._run, name=f"zenoh {self._context.name} links", daemon=True)
        self._thread.start()

    def _on_link_event(self, event: zenoh.LinkEvent) -> None:
        """Note the addresses of a link, or delete those of one that ended. Called on Zenoh's threads."""
        zid, addresses = str(event.link.zid), (event.link.src, event.link.dst)
        if event.kind == zenoh.SampleKind.PUT:
            self._addresses[zid] = addresses
        elif self._addresses.get(zid) == addresses:
            self._addresses.pop(zid, None)

    def _on_event(self, events: SimpleQueue[tuple[zenoh.TransportEvent, int]]) -> None:
        try:
            event, at_ns = events.get_nowait()
        except Empty:  # applied before the thread started
            return
        if self._apply_event(event, at_ns):
            self._notify_watchers()

    def _run(self) -> None:
        while True:
            ticks = self._nodes or self._unreported or self._monotonic_ns() < self._tick_until_ns
            with suppress(Empty):
                task = self._tasks.get(timeout=_SAMPLE_S if ticks else None)
                if task is None:
                    return
                self._run_contained(task)
            now_ns = self._monotonic_ns()
            if now_ns >= self._next_tick_ns:
                self._next_tick_ns = now_ns + _SAMPLE_NS
                for on_tick in (lambda: self._tick(self._monotonic_ns()), *self._ticks):
                    self._run_contained(on_tick)

    def _run_contained(self, call: Callable[[], None]) -> None:
        """Call `call`: what it raises does not end the thread."""
        try:
            call()
        except FOREIGN_ERRORS as error:
            if self._is_first("task", error):
                log.exception("zenoh.link_monitor_failed", extra={"endpoint": self._context.name})

    def _is_first(self, part: str, error: BaseException) -> bool:
        """Whether it is the first error of its type in this part: each type is logged once."""
        known = (part, type(error)) in self._reported
        self._reported.add((part, type(error)))
        return not known

    def _apply_event(self, event: zenoh.TransportEvent, now_ns: int) -> bool:
        """Apply a transport event; True if watchers must be notified: a node connected, or the last one is lost."""
        node = str(event.transport.zid), event.transport.is_multicast
        unreported = self._unreported.pop(node, None)
        if unreported is not None:
            unreported.until_ns = max(unreported.until_ns, now_ns)
        if event.kind != zenoh.SampleKind.PUT:
            if node not in self._nodes:
                return False
            was_up = self.up
            self._remove_node(node, now_ns)
            return was_up and not self.up
        joined = node not in self._nodes
        if self._losses and not self._nodes:
            # No node was connected: losses detected meanwhile belong to that outage.
            self._losses[-1].until_ns = now_ns
        is_router = event.transport.whatami == zenoh.WhatAmI.ROUTER
        if joined and not node[1]:
            self._absent.on_connected(node[0], now_ns)
        if not joined:
            self._nodes[node].release()
        self._nodes[node] = ConnectedNode(now_ns, is_router=is_router, lease_ns=self._lease_ns)
        self._next_tick_ns = 0
        self._all_stalled = self.down_by_stopped_nodes = False
        return self._update_state() or joined

    def _remove_node(self, node: tuple[str, bool], now_ns: int) -> NodeLoss:
        removed = self._nodes.pop(node)
        loss = self._loss_of(removed, now_ns)
        loss.seen_ns = min(loss.at_ns, removed.end_seen_ns)
        if not node[1]:
            self._absent.add(node[0], loss, has_others=bool(self._nodes))
        self._report_end(node[0], removed, now_ns)
        self._shut_down_connection(node[0], removed)
        removed.release()
        if removed.resumed is not None:
            self._losses.append(removed.resumed)
        self._losses.append(loss)
        if loss.has_stopped:
            self._stopped.append(loss)
        if not self._nodes:
            self.down_by_stopped_nodes = loss.has_stopped
        self._tick_until_ns = now_ns + DETECTION_NS
        if not self._nodes:
            loss.until_ns = _NEVER_NS
        self._update_state()
        return loss

    def _loss_of(self, node: ConnectedNode, now_ns: int) -> NodeLoss:
        loss = node.loss(now_ns)
        if self._was_frozen(now_ns):
            loss.set_not_left()
        return loss

    def _shut_down_connection(self, zid: str, node: ConnectedNode) -> None:
        """Shut down the TCP connection of a removed node: Zenoh may have forgotten it, or wait for its end.

        If this thread is late, it can be the next connection. Then the node connects once more.
        """
        if self._held:
            return  # a stop waits for the ends of the connections
        addresses = self._addresses.get(zid)
        if node.link is None and addresses is not None and (link := find_link(*addresses)) is not None:
            node.set_link(link)
        if node.link is not None:
            node.link.shut_down()

    def _report_end(self, zid: str, node: ConnectedNode, now_ns: int) -> None:
        """Count and log a link that was blocked when it ended: `up` may not change, as with a second node."""
        name = self._context.name
        if node.unread:
            self.closed_unread += 1
            extra = {"endpoint": name, "node": zid, "unread_bytes": node.unread}
            log.warning("zenoh.link_closed_unread", extra={**extra, **limited(name)})
        elif node.is_stalled(now_ns):
            self.closed_stalled += 1
            log.warning("zenoh.link_closed_stalled", extra={"endpoint": name, "node": zid, **limited(name)})

    def _update_state(self) -> bool:
        """Update `connected`, and `up`: a node is connected and reads. True if `up` changed."""
        if self._nodes:
            self.connected.set()
        else:
            self.connected.clear()
        self.multicast = any(is_multicast for _, is_multicast in self._nodes)
        if self.up is (bool(self._nodes) and not self._all_stalled):
            return False
        self._set_up(up=not self.up)
        return True

    def _set_up(self, *, up: bool) -> None:
        if up:
            settling_ns = _SETTLING_NS if self.settled_ns else _SETTLING_FIRST_NS
            self.settled_ns = self._monotonic_ns() + settling_ns
        self.up = up
        name = self._context.name
        log.info("zenoh.link_up" if up else "zenoh.link_down", extra={"endpoint": name, **limited(name)})

    def _notify_watchers(self) -> None:
        for on_change in self._watchers:
            try:
                on_change(self.up)
            except FOREIGN_ERRORS as error:  # must stop neither the thread nor `start`
                if self._is_first("watcher", error):
                    log.exception("zenoh.link_watcher_failed", extra={"endpoint": self._context.name})

    def suspicion(self) -> str:
        """See `EndpointTransport.link_suspicion`: the first suspect node. From any thread."""
        nodes = tuple(self._nodes.values())
        found = [text for node in nodes if (text := node.suspicion())]
        who = "the node" if len(nodes) == 1 else f"{len(found)} of {len(nodes)} nodes"
        return f"{who} {found[0]}" if found else ""

    def send_window(self) -> int:
        """Bytes that every link's kernel buffer can take: such a put does not wait. 0 if unknown for one link."""
        if self.multicast:
            return 0
        links = [node.link for node in tuple(self._nodes.values())]
        return min((link.send_window() if link is not None else 0 for link in links), default=0)

    def sample(self) -> None:
        """Sample all links after an event that may come from a lost link. Called on Zenoh's threads; cheap."""
        now_ns = self._monotonic_ns()
        # Limited, because all publishers lose their subscribers at once.
        if now_ns - self._sampled_ns > _MIN_SAMPLE_INTERVAL_NS:
            self._sampled_ns = now_ns
            self._sample_nodes(now_ns)

    def ask_routers(self) -> bool:
        """Ask the routers for a sign of life. False if none is connected, or if they were asked just now.

        The query has the lowest priority, so a router reads it after all earlier puts. It does not wait for room.
        """
        session, now_ns = self._session, self._monotonic_ns()
        has_router = any(each.is_router for each in self._nodes.values())
        if session is None or not has_router or now_ns < self._ask_at_ns:
            return False
        self._ask_at_ns = now_ns + _QUERY_INTERVAL_NS
        on_reply: Callback[zenoh.Reply] = Callback(lambda _: None, self._on_query_end, indirect=False)
        with suppress(zenoh.ZError):  # the session is closing
            session.get(
                _QUERY_KEY,
                on_reply,
                priority=zenoh.Priority.BACKGROUND,
                congestion_control=zenoh.CongestionControl.DROP,
                timeout=_QUERY_TIMEOUT_S,
            )
        return True

    def _on_query_end(self) -> None:
        """The router has answered, or the time is over. Called on a Zenoh thread."""
        # A sample now: a Close message with further bytes before it would not be known as one.
        self.run_on_monitor(lambda: self._sample_nodes(self._monotonic_ns()))

    def _sample_nodes(self, now_ns: int) -> None:
        self._detect_freeze(now_ns)
        for node in tuple(self._nodes.values()):
            node.sample(now_ns)

    def _detect_freeze(self, now_ns: int) -> None:
        """Trust no acknowledgement for 2 s if this process was frozen: nothing was observed for most of a lease.

        A put of another thread can block the monitor thread for 5 s, half of the usual lease. With a lease of less than
        7 s that looks like a freeze: messages may come twice. Two threads may detect the same freeze.
        """
        suspended_ns = _total_suspended_ns()
        unobserved_ns = now_ns - self._observed_ns + suspended_ns - self._suspended_ns
        if self._nodes and unobserved_ns > self._lease_ns * 7 // 10:
            self._thawed_ns = now_ns
            for node in tuple(self._nodes.values()):
                node.distrust_acks(now_ns + DETECTION_NS)
        # Last: until here another thread must detect it too.
        self._observed_ns, self._suspended_ns = now_ns, suspended_ns

    def _was_frozen(self, now_ns: int) -> bool:
        return now_ns - self._thawed_ns < DETECTION_NS

    # --- losses -------------------------------------------------------------------------------------------------------

    def _tick(self, now_ns: int) -> None:
        self._detect_freeze(now_ns)
        for key, node in tuple(self._nodes.items()):
            if node.link is None and node.searches < _MAX_SEARCHES:
                node.searches += 1
                self._find_link(key[0], node)
            node.sample(now_ns)
            if node.closed:
                was_up = self.up
                self._unreported[key] = self._remove_node(key, now_ns)
                if was_up and not self.up:
                    self._notify_watchers()
        self._check_transports(now_ns)
        for key in tuple(self._unreported):
            self._rejoin_by_further_link(key, now_ns)
        self._sent_totals.add(now_ns, self.count_sent())
        self._count_missed(self._absent.pop_returned(now_ns))
        nodes = self._nodes.values()
        self.confirmed_ns = self._confirmed_ns(now_ns)
        suspects = [node.is_suspect(now_ns) for node in nodes]
        self.all_suspect = bool(suspects) and all(suspects)
        losses = self._recent_losses(now_ns)
        self.any_suspect = any(suspects) or any(each.since_ns < each.at_ns for each in losses)
        # With several nodes a stalled one delays the others no longer than one put waits.
        self._all_stalled = bool(nodes) and all(node.is_stalled(now_ns) for node in nodes)
        if nodes:
            self.down_by_stopped_nodes = self._all_stalled and all(node.has_stopped(now_ns) for node in nodes)
        if self._update_state():
            self._notify_watchers()

    def _check_transports(self, now_ns: int) -> None:
        """Search each node that has connected just now in Zenoh's list of transports. Multicast is not forgotten."""
        new = [(key, each) for key, each in self._nodes.items() if each.is_to_check and not key[1]]
        if not new or self._session is None or self._held:
            return
        try:
            listed = {str(each.zid) for each in self._session.info.transports() if not each.is_multicast}
        except zenoh.ZError:  # the session is closing
            return
        for key, node in new:
            node.check_transport(now_ns, is_listed=key[0] in listed)
            # A task can be the report of its end.
            if node.missed_since_ns and now_ns - node.missed_since_ns >= _FORGOTTEN_NS and self.is_idle:
                self._remove_forgotten(key, node, now_ns)

    def _remove_forgotten(self, key: tuple[str, bool], node: ConnectedNode, now_ns: int) -> None:
        """Shut down a connection that Zenoh has forgotten, so that the node connects again."""
        name = self._context.name
        log.warning("zenoh.link_forgotten", extra={"endpoint": name, "node": key[0], **limited(name)})
        was_up = self.up
        loss = self._remove_node(key, now_ns)
        # The node is alive, and any put since it connected may be lost.
        loss.is_receiver_gone = loss.has_ended = False
        loss.since_ns = node.joined_ns  # `AbsentNodes` has the time of an earlier loss
        if was_up and not self.up:
            self._notify_watchers()

    def _rejoin_by_further_link(self, key: tuple[str, bool], now_ns: int) -> None:
        """Follow a node whose connection is closed, and to which Zenoh has another one: it sends over that from now on.

        The node's subscribers stay, so no publisher detects the loss of the closed connection.
        """
        link = None if self._held else self._link_to(key[0])  # a held socket is none of Zenoh's
        if link is None:
            return
        if link.is_closed:
            link.release()
            return
        loss = self._unreported.pop(key)
        loss.until_ns = now_ns
        loss.set_not_left()
        self._absent.discard(key[0])
        self._nodes[key] = node = ConnectedNode(now_ns, is_router=loss.is_router, lease_ns=self._lease_ns)
        node.set_link(link)
        node.sample(now_ns)
        for on_replaced in self._link_watchers:  # before new messages
            on_replaced(loss.at_ns)
        self._update_state()
        self._notify_watchers()

    def _count_missed(self, absent: list[AbsentNode]) -> None:
        """Count and log the messages that these nodes may lack."""
        name = self._context.name
        for node in absent:
            number = self._sent_totals.sent_since(node.since_ns)
            if number:
                self.sent_while_node_lost += number
                extra = {"endpoint": name, "node": node.zid, "messages": number, **limited(name)}
                log.warning("zenoh.node_was_lost", extra=extra)

    def _find_link(self, zid: str, node: ConnectedNode) -> None:
        link = self._link_to(zid)
        if link is not None:
            node.set_link(link)

    def _link_to(self, zid: str) -> TcpLink | None:
        if self._session is None:
            return None
        try:
            ends = [(each.src, each.dst) for each in self._session.info.links() if str(each.zid) == zid]
        except zenoh.ZError:  # the session is closing
            return None
        # Two peers that connect to each other can have two links. Zenoh sends everything over the first one.
        return find_link(*ends[0]) if ends else None

    def lost_since_ns(self, noticed_ns: int) -> int:
        """The time since which messages to a subscriber that was gone by `noticed_ns` may be lost; 0 if unknown.

        The subscriber was behind the node lost nearest to that time. If no node was lost then, the subscriber was
        behind a connected node, which has received all messages. A router is an exception that has just connected, or
        has just resumed after a long silence.
        """
        loss = self._nearest_loss(noticed_ns)
        return noticed_ns if loss is None else loss.since_ns

    def is_receiver_gone(self, noticed_ns: int) -> bool:
        """Whether a subscriber that was gone by `noticed_ns` has ended or left, with what it had not read."""
        loss = self._nearest_loss(noticed_ns)
        return loss is not None and loss.is_receiver_gone

    def stopped_ns(self, noticed_ns: int) -> int | None:
        """When a node was lost that had stopped, and with it a subscriber that was gone by `noticed_ns`; None: neither.

        From any thread.
        """
        found = (each.at_ns for each in tuple(self._stopped) if each.distance_ns(noticed_ns) < SAME_OUTAGE_NS)
        return next(found, None)

    def _nearest_loss(self, noticed_ns: int) -> NodeLoss | None:
        losses = [*self._losses, *self._resumed()]
        nearest = min(losses, key=lambda each: each.distance_ns(noticed_ns), default=None)
        if nearest is not None and nearest.distance_ns(noticed_ns) < SAME_OUTAGE_NS:
            return nearest
        # This thread may have waited for a put, and then detected the loss late.
        late = [each for each in losses if each.seen_ns - SAME_OUTAGE_NS < noticed_ns <= each.at_ns]
        if late:
            return min(late, key=lambda each: abs(each.seen_ns - noticed_ns))
        return min(self._lost_by_new_routers(noticed_ns), key=attrgetter("since_ns"), default=None)

    def _confirmed_ns(self, now_ns: int) -> int:
        """All puts before this time have arrived, or their loss was detected long ago."""
        nodes = [node.confirmed_ns for node in self._nodes.values()]
        losses = [each.possible_since_ns for each in self._recent_losses(now_ns)]
        return min(nodes + losses, default=0)

    def _recent_losses(self, now_ns: int) -> list[NodeLoss]:
        """The losses that publishers may still detect."""
        unreported = self._unreported.values()
        losses = [*self._losses, *self._resumed(), *self._lost_by_new_routers(now_ns)]
        recent = (each for each in losses if now_ns - each.until_ns < SAME_OUTAGE_NS)
        return [*(each for each in recent if each not in unreported), *unreported]

    def _resumed(self) -> list[NodeLoss]:
        """What connected routers may have lost when they resumed after a long silence."""
        return [each.resumed for each in tuple(self._nodes.values()) if each.resumed is not None]

    def _lost_by_new_routers(self, now_ns: int) -> list[NodeLoss]:
        """What routers that have connected within the last second may have lost: they may have resumed just then."""
        return [
            NodeLoss(each.joined_ns, each.joined_ns, is_receiver_gone=False, is_router=True)
            for each in tuple(self._nodes.values())
            if each.is_router and 0 <= now_ns - each.joined_ns < SAME_OUTAGE_NS
        ]

    # --- the end ------------------------------------------------------------------------------------------------------

    def hold_links(self) -> None:
        """Keep the sockets of live nodes open. Call before the session closes, and `unconfirmed_spans` after it."""
        now_ns = self._monotonic_ns()
        for (zid, _), node in tuple(self._nodes.items()):
            if node.link is None:
                self._find_link(zid, node)
            if node.link is None:
                continue
            node.sample(now_ns)
            held = None if node.closed or node.has_ended else node.link.hold()
            if held is None:
                loss = self._loss_of(node, now_ns)
                loss.until_ns = _NEVER_NS
                self._losses.append(loss)
            else:
                self._held.append((held, node.confirmed_ns, node.is_router))

    def unconfirmed_spans(self) -> list[UnconfirmedSpan]:
        """The times of puts that are not known to have arrived, after the session has closed.

        Waits up to 2 s for nodes that do not end their stream. A node that is not connected by TCP counts as alive.
        What a client or peer had not read when it ended is gone with it. Behind a router are others, which miss it.
        """
        now_ns = self._monotonic_ns()
        end_ns = now_ns + round(_CLOSE_TIMEOUT_S * 1e9)
        self._sent_totals.add(now_ns, self.count_sent())
        self._count_missed(self._absent.pop_all(now_ns))
        spans = []
        for loss in self._recent_losses(now_ns):
            until_ns = _NEVER_NS if loss in self._unreported.values() else loss.until_ns
            if loss.since_ns < until_ns and not loss.is_receiver_gone:
                spans.append(UnconfirmedSpan(loss.since_ns, until_ns, loss.at_ns - SAME_OUTAGE_NS))
        held, self._held = self._held, []
        for each, confirmed_ns, is_router in held:
            # Another node may have used up the time. Then the end of this one is here by now.
            least_ns = self._monotonic_ns() + _SAMPLE_NS
            end = wait_link_end(each, max(least_ns, end_ns), self._monotonic_ns)
            if end is LinkEnd.NONE or (end is LinkEnd.UNREAD and is_router):
                spans.append(UnconfirmedSpan(confirmed_ns, _NEVER_NS, _NEVER_NS))
        return spans

    def __len__(self) -> int:
        return len(self._nodes)

    def close(self) -> None:
        """End the thread; no node counts as connected from here on."""
        for listener in (self._listener, self._link_listener):
            if listener is not None:
                listener.undeclare()  # type: ignore[no-untyped-call]
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(_JOIN_S)
        for node in self._nodes.values():
            node.release()
        self._losses.extend(self._resumed())  # a stop reads the losses after this
        self._nodes.clear()
        self.connected.clear()
        self.up = False


def _total_suspended_ns() -> int:
    """For how long this machine has been suspended since its start. The monotonic clock stands still meanwhile."""
    return clock_gettime_ns(CLOCK_BOOTTIME) - clock_gettime_ns(CLOCK_MONOTONIC)


def lease_ms(config: zenoh.Config) -> int:
    """The silence after which a node counts as lost: our own lease, assuming that the node's is equal."""
    lease = msgspec.json.decode(config.get_json("transport/link/tx/lease"))
    return lease if isinstance(lease, int) else 10_000
