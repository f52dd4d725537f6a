# SPDX-License-Identifier: Apache-2.0
"""A simulated Zenoh link over TCP, from a session of the streamer to its router.

    put -> queue of the session -> send buffer of our kernel -> receive buffer of the router's kernel -> router

Measured behaviour of Zenoh 1.10 that the model has (docs/decisions/0011-zenoh-retransmit.md):

* A link that is dead takes messages and loses them, until Zenoh reports its end up to 2.5 s later.
* A put that has no room waits; after 5 s Zenoh closes the link and loses what waits. The file of an endpoint may set
  another time: in half of the random stories 15 s.
* A silent router is lost after the lease of 10 s. Its kernel acknowledges bytes while its buffer has room.
* After such a put, Zenoh sometimes forgets the next connection: it stays open, takes messages and loses them.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.scheduler import NS_PER_MS, NS_PER_S
from ustreamer.transports.zenoh.tcp_info import LinkEnd, TcpState

if TYPE_CHECKING:
    from tests.simulation.zenoh_network import SimNetwork
    from tests.simulation.zenoh_session import SimSession

LEASE_NS: Final = 10 * NS_PER_S
PUT_WAIT_NS: Final = 5 * NS_PER_S
LEASE_IS_OVER: Final = "lease"
_KEEPALIVE_NS: Final = LEASE_NS // 4
_KEEPALIVE_BYTES: Final = 3
_QUERY_BYTES: Final = 36
_ANSWER_BYTES: Final = 13
_MAX_REPORT_NS: Final = 2_500 * NS_PER_MS
_FRAME_BYTES: Final = 20


class WireMessage(NamedTuple):
    """A message on a link. `id` is the one of the uProtocol message."""

    key: str
    payload: bytes
    attachment: bytes
    id: bytes
    size: int
    on_answer: Callable[[], None] | None = None
    """For a query: called with its answer."""


def wire_message(key: str, payload: bytes, attachment: bytes, id: bytes) -> WireMessage:
    """A message with its size on a link."""
    return WireMessage(key, payload, attachment, id, len(payload) + len(attachment) + _FRAME_BYTES)


class LinkSizes(NamedTuple):
    """Bytes of the session's queue and of the two kernels' buffers."""

    queue: int
    send: int
    receive: int


class Buffer:
    """Messages in order, with the sum of their sizes."""

    def __init__(self) -> None:
        self.messages: deque[WireMessage] = deque()
        self.bytes = 0

    def append(self, message: WireMessage) -> None:
        self.messages.append(message)
        self.bytes += message.size

    def popleft(self) -> WireMessage:
        message = self.messages.popleft()
        self.bytes -= message.size
        return message

    def clear(self) -> list[WireMessage]:
        messages, self.messages, self.bytes = list(self.messages), deque(), 0
        return messages

    def move_to(self, other: "Buffer", limit: int) -> int:
        """Move messages while `other` has less than `limit` bytes; returns the moved bytes."""
        moved = 0
        while self.messages and other.bytes < limit:
            message = self.popleft()
            moved += message.size
            other.append(message)
        return moved


class SimLink:
    """One connection. `dead`: it carries nothing any more. `reported`: the session knows that."""

    def __init__(self, network: "SimNetwork", session: "SimSession", sizes: LinkSizes) -> None:
        self.network = network
        self.session = session
        self.sizes = sizes
        self.zid = network.zid
        self.queue, self.sent, self.received = Buffer(), Buffer(), Buffer()
        self.downlink: deque[WireMessage] = deque()
        self.cut = False
        self.dead = False
        self.reported = False
        self.is_held = False
        """True if the process has a second descriptor: then the end of the session does not wait for the kernel."""
        self.on_room: list[Callable[[], None]] = []
        self._scheduler = network.scheduler
        self._opened_ns = self._scheduler.now_ns
        self._acked = self._unacked_at_end = self._answers = 0
        self._answered_ns = self._opened_ns
        self._has_fin = False
        self._silent_since_ns: int | None = None
        self.is_broken = False
        """True if messages in this connection were lost."""
        self._is_established = True
        self._is_closed_here = False
        self._closes_late = False
        """True if Zenoh reports the end of the stream before it closes its socket."""
        self.is_reported_twice = False
        """True if Zenoh reports the end again after the next connection to the same router."""
        self.is_closed_by_put = False
        """True if Zenoh closed the connection because a put had waited too long."""
        self.is_forgotten = False
        """True if Zenoh does not list this connection, and loses what it takes."""
        self._pumping = self._is_full = False

    # --- towards the router -------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return not self.queue.messages or self.queue.bytes < self.sizes.queue

    def put(self, message: WireMessage) -> None:
        if self.is_forgotten:
            self.network.note(f"{self.session.name} took messages for a forgotten connection, and lost them")
            return
        self.queue.append(message)
        self.pump()

    def pump(self) -> None:
        """Move messages on: into the kernel now, over the wire after a moment."""
        if self.dead or self.session.is_frozen:
            return
        if self.queue.move_to(self.sent, self.sizes.send) and self.has_room:
            waiting, self.on_room = self.on_room, []
            for wake in waiting:
                wake()
        if self.sent.messages and not self._pumping:
            self._pumping = True
            self._scheduler.call_after(self.network.latency_ns(), self._arrive)

    def _arrive(self) -> None:
        self._pumping = False
        if self.cut or (self.dead and not self.session.is_gone):
            return
        moved = self.sent.move_to(self.received, self.sizes.receive)
        self._acked += moved
        self.read()
        if moved or not self.sent.messages:
            self._is_full = False
        elif not self._is_full:
            self._is_full = True
            self.network.full_ns.append(self._scheduler.now_ns)
        if moved:
            self.pump()
            if self.dead and self.sent.messages:  # the kernel of a gone process still sends
                self._pumping = True
                self._scheduler.call_after(self.network.latency_ns(), self._arrive)

    def read(self) -> None:
        """The router reads what has arrived."""
        while self.received.messages and self.network.can_read:
            message = self.received.popleft()
            if message.on_answer is None:
                self.network.route(message, self.session)
            else:
                self._scheduler.call_after(
                    self.network.latency_ns(), partial(self._answer, message.on_answer)
                )
        if self.sent.messages and self.network.can_read and not self._pumping and not self.cut:
            self._pumping = True
            self._scheduler.call_after(self.network.latency_ns(), self._arrive)

    def query(self, on_answer: Callable[[], None]) -> None:
        """Ask the router, after all messages before. Lost if it has no room."""
        if not self.dead and self.has_room:
            self.put(WireMessage("", b"", b"", b"", _QUERY_BYTES, on_answer))

    def _answer(self, on_answer: Callable[[], None]) -> None:
        if not (self.cut or self.dead):
            self._answers += 1
            self._answered_ns = self._scheduler.now_ns
            on_answer()

    # --- what the kernel says ----------------------------------------------------------------------------------------

    def send_window(self) -> int:
        return 0 if self._is_closed_here else max(0, self.sizes.send - self.sent.bytes)

    @property
    def is_closed(self) -> bool:
        """Whether Zenoh has closed its socket. The state can be read nevertheless."""
        return self._is_closed_here

    def shut_down(self) -> None:
        """Then Zenoh reports the end again before the next connection, which has no effect. A forgotten one ends."""
        self.is_reported_twice = False
        if self.is_forgotten:
            self.reset()

    def release(self) -> None:
        """The second descriptor is closed."""

    def state(self) -> TcpState | None:
        last_ns = self._last_received_ns()
        keepalives = (self._last_keepalive_ns() - self._opened_ns) // _KEEPALIVE_NS
        now_ns = self._scheduler.now_ns
        return TcpState(
            self._is_established,
            self._acked,
            self._unacked_at_end or self.sent.bytes,
            (now_ns - last_ns) // NS_PER_MS,
            100 + keepalives * _KEEPALIVE_BYTES + self._answers * _ANSWER_BYTES + self._has_fin,
        )

    def _last_received_ns(self) -> int:
        return max(self._last_keepalive_ns(), self._answered_ns)

    def _last_keepalive_ns(self) -> int:
        until_ns = self._scheduler.now_ns if self._silent_since_ns is None else self._silent_since_ns
        return until_ns - (until_ns - self._opened_ns) % _KEEPALIVE_NS

    def hold(self) -> "SimLink | None":
        """A second descriptor; None if the connection is gone."""
        if self._is_closed_here or self.dead:
            return None
        self.is_held = True
        return self

    @property
    def is_read(self) -> bool:
        """Whether the router has read everything and ended its stream."""
        if self.is_forgotten or self.is_broken or self._is_silent:  # Zenoh closes no forgotten connection
            return False
        return not (self.sent.messages or self.received.messages)

    @property
    def _is_silent(self) -> bool:
        return self.cut or not self.network.is_running

    def abort(self) -> None:
        """Reset the connection. The router can still read what its kernel has received."""
        self.sent.clear()
        self.is_broken = True

    # --- faults -------------------------------------------------------------------------------------------------------

    def update_silence(self) -> None:
        """The router became silent, or speaks again: call after each change."""
        if self.dead:
            return
        if not self._is_silent:
            self._silent_since_ns = None
            self.pump()
            self.read()
            self.flush_downlink()
        elif self._silent_since_ns is None:
            self._silent_since_ns = since_ns = self._scheduler.now_ns
            self._scheduler.call_at(self._last_received_ns() + LEASE_NS, lambda: self._on_lease(since_ns))

    def _on_lease(self, since_ns: int) -> None:
        if self._silent_since_ns != since_ns or self.dead:
            return
        if self.session.is_frozen:
            self.session.do_at_thaw(lambda: self._on_lease(since_ns))
        else:
            self.close_here(LEASE_IS_OVER)

    def close_here(self, why: str, report_ns: int | None = None) -> None:
        """Zenoh closes the link on our side. Messages in our buffers are lost; the session learns of it later."""
        if self.dead:
            return
        self.dead = self.is_broken = True
        self.is_reported_twice = self.is_closed_by_put = (
            why != LEASE_IS_OVER
        )  # measured after such a put only
        self._unacked_at_end = self.sent.bytes  # as long as the socket is open, its kernel has them
        lost = self.queue.clear() + self.sent.clear()
        self.network.note(f"link of {self.session.name} closed ({why}): {len(lost)} messages lost in it")
        self.network.orphans.append(self)
        if not self._unacked_at_end or self.network.rng.random() < 0.5:
            self._is_closed_here = True
        self._release_waiting()
        if report_ns is None:
            report_ns = self.network.rng.randrange(_MAX_REPORT_NS)
        self._scheduler.call_after(report_ns, self.report)

    def reset(self) -> None:
        """The router's process ended: its kernel closes the connection. The session learns of it at once, or soon."""
        self.is_broken = True
        if self.dead:
            return
        self.dead = True
        unread = self.received.clear()
        self.network.on_unread(unread)
        lost = self.queue.clear() + self.sent.clear() + unread
        self.network.note(f"router of {self.session.name} ended: {len(lost)} messages lost in the link")
        self._is_established = False
        self._has_fin = not unread  # after unread data the kernel sends a RST
        self._release_waiting()
        delay_ms = self.network.rng.randrange(1, 20)
        self._closes_late = delay_ms % 2 == 0
        self._scheduler.call_after(delay_ms * NS_PER_MS, self.report)

    def report(self) -> None:
        if self.session.is_frozen:
            self.session.do_at_thaw(self.report)
        elif not self.reported:
            self.reported = True
            if self._closes_late:
                self._scheduler.call_after(50 * NS_PER_MS, self._close_socket)
            else:
                self._is_closed_here = True
            self.session.on_link_lost(self)

    def _close_socket(self) -> None:
        self._is_closed_here = True

    def _release_waiting(self) -> None:
        waiting, self.on_room = self.on_room, []
        for wake in waiting:
            wake()
        self.downlink.clear()

    def leave(self) -> None:
        """The session is closed, or its process ended. The kernel still sends what it has."""
        if not self.dead:
            self.dead = self.reported = True
            self.is_broken |= bool(self.queue.clear())
            self.network.orphans.append(self)
            self._scheduler.call_after(self.network.latency_ns(), self._arrive)

    # --- towards the session ------------------------------------------------------------------------------------------

    def send_down(self, message: WireMessage) -> None:
        self.downlink.append(message)
        if len(self.downlink) == 1:
            self._scheduler.call_after(self.network.latency_ns(), self.flush_downlink)

    def flush_downlink(self) -> None:
        while self.downlink and not (self.cut or self.dead or self.session.is_frozen):
            if not self.session.deliver(self.downlink[0]):
                return  # no room: the session calls again
            self.downlink.popleft()


def wait_link_end(held: SimLink, end_ns: int, monotonic_ns: Callable[[], int]) -> LinkEnd:
    """How the router ended the connection before the end of the time; see `tcp_info`."""
    while monotonic_ns() < end_ns and not held.is_broken:
        if held.is_read:
            return LinkEnd.READ
        held.network.scheduler.sleep(2 * NS_PER_MS)
    has_ended = held.is_broken
    held.abort()
    return LinkEnd.UNREAD if has_ended else LinkEnd.NONE
