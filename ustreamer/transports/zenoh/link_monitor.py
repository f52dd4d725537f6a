# SPDX-License-Identifier: Apache-2.0
"""Whether anybody is there: the Zenoh nodes a session is connected to, and what may have been lost with one that went.

Zenoh takes a put and loses it in silence when no node is connected (measured: 50 of 50 in an outage of its router, no
exception). So a send asks here first, and answers UNAVAILABLE, which makes the lane keep the message.

A link that is lost takes with it what was put into it and not read. How much that is, Zenoh does not say:

* a node that says goodbye: nothing, it has read all;
* a node that takes nothing for 5 s while messages wait: Zenoh closes the link from this side, and all that waits is lost.
  Until it says so, seconds later, it takes what is put and loses it (measured: 7 000 messages in 2.4 s). So when no node has
  taken anything for 4 s although something waits, the link counts as down;
* a node that was killed: its kernel ends the connection at once (noticed in 2 ms); milliseconds' worth is lost;
* a node that was frozen, or cut off: noticed when its lease is over (10 s); all since it was last heard of may be lost.
  Zenoh closes the connection then, but may go on to take messages for another lease (measured: 12.5 s and 22.5 s after a
  cut), so that the node counts as gone when its connection is;
* a node whose kernel went and came back (an ECU that resets): noticed after seconds, by a reset; all since its last
  acknowledgement is lost.

The kernel of this side tells them apart, so it is asked every 50 ms (`TcpLink.state`), and once more at the end: after a
goodbye Zenoh has closed its socket, or its Close message was the last that came; after a kill nothing has come.
"""

import json
import logging
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, NamedTuple

import zenoh
from zenoh.handlers import Callback

from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh.tcp_info import TcpLink, TcpState, find_link

log = logging.getLogger("ustreamer.zenoh")

_NS_PER_MS: Final = 1_000_000
_SETTLING_FIRST_NS: Final = 1_000_000_000  # the first link: a node's subscriptions come milliseconds after it
_SETTLING_NS: Final = 5_000_000_000  # after an outage: those who lost a router too try again every 4 s
_SAMPLE_S: Final = 0.05
_MARK_NS: Final = 40_000_000
_MARGIN_NS: Final = 100_000_000
"""On the way to the other side's reading at any time: measured below 5 ms, and a busy machine may stall."""
_ACKED_NS: Final = 300_000_000
"""An acknowledgement this old is none that is merely delayed (40 ms) or sampled late."""
_SAME_OUTAGE_NS: Final = 1_000_000_000
"""Between a publisher's losing its subscribers and the session's losing the node."""
_CLOSE_BYTES: Final = (4, 5)
"""Bytes of Zenoh's Close message since the look before; the end of the stream counts as one."""
_ACTIVE_NS: Final = 300_000_000
_KERNEL_TICK_MS: Final = 4  # one tick of a kernel at 250 Hz
_STALL_NS: Final = 4_000_000_000
"""Without progress though something waits: less than what a put waits before Zenoh closes the link (5 s)."""
_MAX_LOSSES: Final = 64
_NEVER_NS: Final = 1 << 62
_MIN_SAMPLE_INTERVAL_NS: Final = 1_000_000
_MAX_SEARCHES: Final = 40  # samples in which a node's connection is looked for; others than TCP have none
_JOIN_S: Final = 5.0


class _Mark(NamedTuple):
    """How much had been written at one moment; `calm` if all that was written at the mark before had arrived by then."""

    at_ns: int
    written: int
    caught_up: bool


class _NodeLoss:
    """A node that went, from when on what was put may be lost with it, and until when that may still be noticed."""

    __slots__ = ("at_ns", "since_ns", "until_ns")

    def __init__(self, at_ns: int, since_ns: int) -> None:
        self.at_ns = self.until_ns = at_ns
        self.since_ns = since_ns

    def distance_ns(self, noticed_ns: int) -> int:
        return max(self.at_ns - noticed_ns, noticed_ns - self.until_ns, 0)


class _PeerNode:
    """A node that is connected, and until when what was put is known to have arrived at it."""

    def __init__(self, now_ns: int) -> None:
        self.link: TcpLink | None = None
        self.closed = False
        """Whether Zenoh has closed its connection."""
        self.searches = 0
        self.received_ns = now_ns
        self.acked_ns = now_ns
        self.is_aborted = False
        """Whether its kernel has ended the connection, without a goodbye of its own."""
        self._received = 0
        self._active_since_ns = self._active_ns = now_ns
        self._mark = _Mark(now_ns, 0, caught_up=True)
        self._acked = 0
        self._progress_ns = now_ns
        self._sampled_ns = now_ns

    def sample(self, now_ns: int) -> None:
        """See how it is: every now and then, and at the first sign of its going."""
        if self.link is None:
            return
        state = self.link.state()
        if state is None:
            self.closed = True
        if state is None or self.is_aborted:
            return
        self._sampled_ns = now_ns
        if not state.established:
            new = state.received - self._received
            # With other bytes before it a goodbye cannot be told by its length: then it is one if the node was not talking
            # all the time, and has spoken just now.
            active = now_ns - self._active_ns < _ACTIVE_NS < self._active_ns - self._active_since_ns
            self.is_aborted = new not in _CLOSE_BYTES and (
                active or state.received_ago_ms > _KERNEL_TICK_MS or not new
            )
            return
        if state.received != self._received:
            if now_ns - self._active_ns > _ACTIVE_NS:
                self._active_since_ns = now_ns
            self._active_ns = now_ns
        self._received = state.received
        self.received_ns = now_ns - state.received_ago_ms * _NS_PER_MS
        self._update_acked(state, now_ns)

    def _update_acked(self, state: TcpState, now_ns: int) -> None:
        """Until when all that was put has arrived.

        That something is acknowledged does not mean that all is: after an outage what waits arrives bit by bit, and most of
        it is not even written but waits with Zenoh. So it counts only where the connection has kept up since the mark before.
        """
        if state.acked != self._acked or not state.unacked:
            self._acked, self._progress_ns = state.acked, now_ns
        mark = self._mark
        arrived = state.acked >= mark.written
        if arrived and mark.caught_up:
            self.acked_ns = max(self.acked_ns, mark.at_ns if state.unacked else now_ns)
        if now_ns - mark.at_ns >= _MARK_NS:
            self._mark = _Mark(now_ns, state.acked + state.unacked, arrived)

    def is_stalled(self, now_ns: int) -> bool:
        """Whether it has taken nothing for long of what waits for it."""
        return self.link is not None and now_ns - self._progress_ns > _STALL_NS

    def lost_since_ns(self, now_ns: int, lease_ns: int) -> int:
        """From when on what was put may be lost with this node, which went at `now_ns`; 0 if nothing is known of it."""
        if self.link is None:
            return 0
        if now_ns - self.received_ns > lease_ns // 3:  # who lives speaks every quarter of the lease
            # Cut off while it lived: from then on, nothing was acknowledged. Frozen: its kernel went on to acknowledge.
            was_alive = self.acked_ns - self.received_ns < lease_ns // 3
            return (self.acked_ns if was_alive else self.received_ns) - _MARGIN_NS
        kept_up = self._sampled_ns - self.acked_ns <= _ACKED_NS
        if kept_up and not self.is_aborted:
            return now_ns  # it has said goodbye
        # Killed: a busy machine may notice late, so not from now. Or closed by Zenoh itself, because it took nothing for as long as
        # a put may wait (5 s), with all that Zenoh had for it.
        return self.acked_ns - _MARGIN_NS


class LinkMonitor:
    """The nodes a session is connected to, kept up to date by a thread of its own."""

    def __init__(self, context: EndpointContext) -> None:
        self.up = False
        self.settled_ns = 0
        """Monotonic time until which subscribers may be on their way: a put that nobody matches yet had better wait."""
        self.multicast = False
        """Whether a node is reached by multicast: what it subscribes is not known, everything goes there."""
        self._context = context
        self._monotonic_ns = context.clock.monotonic_ns
        self._watchers: list[Callable[[bool], None]] = []
        self._reported: set[type[Exception]] = set()
        self._nodes: dict[tuple[str, bool], _PeerNode] = {}
        self._losses: deque[_NodeLoss] = deque(maxlen=_MAX_LOSSES)
        # Nodes whose connection has gone, of which Zenoh has not said so yet. It will: they are as many as it keeps.
        self._unreported: dict[tuple[str, bool], _NodeLoss] = {}
        self._stalled = False
        self._lease_ns = 0
        self._next_tick_ns = self._sampled_ns = 0
        self._session: zenoh.Session | None = None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._listener: zenoh.TransportEventsListener[None] | None = None
        self._thread: Thread | None = None

    def add_watcher(self, on_change: Callable[[bool], None]) -> None:
        """Have `changed(up)` called when `watch` has found out how it is, and whenever a node comes or the last one goes."""
        self._watchers.append(on_change)

    def run_on_monitor(self, task: Callable[[], None]) -> None:
        """Have `call` made on the thread that watches the links, in the order of posting."""
        self._tasks.put(task)

    def start(self, session: zenoh.Session, lease_ms: int = 10_000) -> None:
        """Begin; nodes that are connected already count before this returns. `lease_ms` is that of the nodes."""
        self._session = session
        self._lease_ns = lease_ms * _NS_PER_MS
        events: SimpleQueue[tuple[zenoh.TransportEvent, int]] = SimpleQueue()

        def on_transport_event(event: zenoh.TransportEvent) -> None:
            now_ns = self._monotonic_ns()
            self._sample_nodes(now_ns)
            events.put((event, now_ns))
            self.run_on_monitor(lambda: self._on_event(events))

        self._listener = session.info.declare_transport_events_listener(
            Callback(on_transport_event, indirect=False), history=True
        )
        while not events.empty():
            self._apply_event(*events.get())
        self._notify_watchers()
        self._thread = Thread(target=self._run, name=f"zenoh {self._context.name} links", daemon=True)
        self._thread.start()

    def _on_event(self, events: SimpleQueue[tuple[zenoh.TransportEvent, int]]) -> None:
        try:
            event, at_ns = events.get_nowait()
        except Empty:  # noted before the thread began
            return
        if self._apply_event(event, at_ns):
            self._notify_watchers()

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_SAMPLE_S)
                if task is None:
                    return
                task()
            except Empty:
                pass
            now_ns = self._monotonic_ns()
            if now_ns >= self._next_tick_ns:
                self._next_tick_ns = now_ns + round(_SAMPLE_S * 1e9)
                self._tick(now_ns)

    def _apply_event(self, event: zenoh.TransportEvent, now_ns: int) -> bool:
        """Count a node that came or went at `now_ns`; whether that is to be told: one has come, or the last one has gone."""
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
            # Nobody was there: what was noticed meanwhile is of that outage.
            self._losses[-1].until_ns = now_ns
        self._nodes[node] = _PeerNode(now_ns)
        self._next_tick_ns = 0
        self._stalled = False
        return self._update_state() or joined

    def _remove_node(self, node: tuple[str, bool], now_ns: int) -> _NodeLoss:
        loss = _NodeLoss(now_ns, self._nodes.pop(node).lost_since_ns(now_ns, self._lease_ns))
        self._losses.append(loss)
        if not self._nodes:
            loss.until_ns = _NEVER_NS
        self._update_state()
        return loss

    def _update_state(self) -> bool:
        """See whether anybody is there, and takes what is sent; whether that has changed."""
        self.multicast = any(is_multicast for _, is_multicast in self._nodes)
        if self.up is (bool(self._nodes) and not self._stalled):
            return False
        self._set_up(up=not self.up)
        return True

    def _set_up(self, *, up: bool) -> None:
        if up:
            settling_ns = _SETTLING_NS if self.settled_ns else _SETTLING_FIRST_NS
            self.settled_ns = self._monotonic_ns() + settling_ns
        self.up = up
        log.info("zenoh.link_up" if up else "zenoh.link_down", extra={"endpoint": self._context.name})

    def _notify_watchers(self) -> None:
        for on_change in self._watchers:
            try:
                on_change(self.up)
            # Foreign code must end neither the thread that notices outages nor the opening: said once per kind.
            except Exception as error:
                if type(error) not in self._reported:
                    self._reported.add(type(error))
                    log.exception("zenoh.link_watcher_failed", extra={"endpoint": self._context.name})

    def send_window(self) -> int:
        """Bytes that every link's kernel has room for: so much is put without waiting. 0 if it is not known of one."""
        if self.multicast:
            return 0
        links = [node.link for node in tuple(self._nodes.values())]
        return min((link.send_window() if link is not None else 0 for link in links), default=0)

    def sample(self) -> None:
        """Something has happened, perhaps to a link: see how they are. Called on threads of Zenoh's; cheap."""
        now_ns = self._monotonic_ns()
        if (
            now_ns - self._sampled_ns > _MIN_SAMPLE_INTERVAL_NS
        ):  # all publishers lose their subscribers at once
            self._sampled_ns = now_ns
            self._sample_nodes(now_ns)

    def _sample_nodes(self, now_ns: int) -> None:
        for node in tuple(self._nodes.values()):
            node.sample(now_ns)

    # --- what may have been lost ----------------------------------------------------------------------------------------

    def _tick(self, now_ns: int) -> None:
        for key, node in tuple(self._nodes.items()):
            if node.link is None and node.searches < _MAX_SEARCHES:
                node.searches += 1
                node.link = self._link_to(key[0])
            node.sample(now_ns)
            if node.closed:
                was_up = self.up
                self._unreported[key] = self._remove_node(key, now_ns)
                if was_up and not self.up:
                    self._notify_watchers()
        # One of several that takes nothing holds nobody up for longer than a put waits.
        self._stalled = bool(self._nodes) and all(node.is_stalled(now_ns) for node in self._nodes.values())
        if self._update_state():
            self._notify_watchers()

    def _link_to(self, zid: str) -> TcpLink | None:
        assert self._session is not None
        try:
            ends = [(each.src, each.dst) for each in self._session.info.links() if str(each.zid) == zid]
        except zenoh.ZError:  # the session is closing
            return None
        # With several links to one node it is not known which one a message takes.
        return find_link(*ends[0]) if len(ends) == 1 else None

    def lost_since_ns(self, noticed_ns: int) -> int:
        """From when on a message may be lost to a subscriber that was gone by `noticed_ns`; 0 if that is not known.

        It was behind the node that went nearest to that time: as long as another has subscribers, there are some. If none did,
        the subscriber was behind one that is still there: what that has taken is its own.
        """
        distance_ns, since_ns = min(
            ((each.distance_ns(noticed_ns), each.since_ns) for each in self._losses),
            default=(_SAME_OUTAGE_NS, 0),
        )
        return since_ns if distance_ns < _SAME_OUTAGE_NS else noticed_ns

    def __len__(self) -> int:
        return len(self._nodes)

    def close(self) -> None:
        """End the thread; nobody counts as connected from here on."""
        if self._listener is not None:
            self._listener.undeclare()  # type: ignore[no-untyped-call]
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(_JOIN_S)
        self.up = False


def lease_ms(config: zenoh.Config) -> int:
    """After which silence a node counts as gone: our own lease, which its own is taken to be like."""
    lease = json.loads(config.get_json("transport/link/tx/lease"))
    return lease if isinstance(lease, int) else 10_000
