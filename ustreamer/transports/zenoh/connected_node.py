# SPDX-License-Identifier: Apache-2.0
"""A connected Zenoh node: up to which time its puts have arrived, and what is lost with it.

In: the kernel's state of its TCP link, at each sample. Out: `confirmed_ns`, the state of the node, and `NodeLoss` at its
end. `link_monitor.py` says what the kernel shows of each kind of loss.
"""

from collections import deque
from math import ceil
from threading import Lock
from time import clock_getres
from typing import Final

import msgspec

from ustreamer.transports.zenoh.tcp_info import TcpLink, TcpState

_NS_PER_MS: Final = 1_000_000
_NEVER_NS: Final = 1 << 62
_MARK_NS: Final = 40_000_000
"""The least time between two marks (`_Mark`)."""
MARGIN_NS: Final = 100_000_000
"""The longest time for which Zenoh holds a put before the kernel has its bytes: 5 ms, more on a busy machine."""
_ACKED_NS: Final = 300_000_000
"""If the newest acknowledged put is older, the node did not keep up. Delayed acknowledgements take 40 ms."""
DEFAULT_LEASE_NS: Final = 10_000_000_000
SAME_OUTAGE_NS: Final = 1_000_000_000
"""The maximum time between a publisher losing its subscribers and the session losing the node."""
DETECTION_NS: Final = 2 * SAME_OUTAGE_NS
"""After this time the publishers of a lost node have dropped what it has read: a node that left has read all."""
_MAX_CHECKS: Final = 40
"""Ticks in which a new node is searched in Zenoh's list of transports."""
_CLOSE_BYTES: Final = 5
"""Bytes of Zenoh's Close message and of the end of the stream. After a keep-alive message a kill has 4: 3 and 1.

So has a node that closes with unread data: its kernel resets the connection.
"""
_ACTIVE_NS: Final = 300_000_000
_CLOCK_MONOTONIC_COARSE: Final = 6  # Linux; its resolution is the tick of the kernel, 4 ms at 250 Hz
_KERNEL_TICK_MS: Final = ceil(clock_getres(_CLOCK_MONOTONIC_COARSE) * 1_000)
_STALL_NS: Final = 4_000_000_000
"""Time without progress while data waits; below the 5 s after which Zenoh closes the link."""
_UNREAD_NS: Final = 1_000_000_000
"""Time without a read although data of the node waits, after which its end counts as that of a node that gave up. A put
waits for 5 s unless the node's configuration has another time (`wait_before_close`)."""
_SUSPECT_NS: Final = 300_000_000
"""Time without progress while data waits, after which a node may be frozen."""
_REPORTED_SUSPECT_NS: Final = 1_000_000_000
"""As `_SUSPECT_NS`, for people: a node that a busy machine delays reads again within this time."""
_PIPELINE_BYTES: Final = 2 << 20
"""More than Zenoh's own queues hold (16 batches of 64 KB): a put is in the kernel after so many further bytes."""
_MAX_MARKS: Final = 1_024


class _Mark(msgspec.Struct, frozen=True):
    """Bytes written at one moment; `caught_up` if all bytes of the previous mark had arrived by then."""

    at_ns: int
    written: int
    caught_up: bool


class NodeLoss:
    """A lost node: since when puts may be lost, and until when publishers may still detect the loss."""

    __slots__ = (
        "acked_ns",
        "at_ns",
        "has_ended",
        "has_stopped",
        "is_receiver_gone",
        "is_router",
        "seen_ns",
        "since_ns",
        "until_ns",
    )

    def __init__(
        self,
        at_ns: int,
        since_ns: int,
        *,
        is_receiver_gone: bool,
        is_router: bool = False,
        acked_ns: int = 0,
        has_ended: bool = False,
        has_stopped: bool = False,
    ) -> None:
        self.at_ns = self.until_ns = at_ns
        self.seen_ns = at_ns
        """When its first sign was seen; `at_ns` is later if the monitor had to wait."""
        self.is_router = is_router
        self.acked_ns = acked_ns
        self.since_ns = since_ns
        self.is_receiver_gone = is_receiver_gone
        """True if the process that was to receive the puts has ended or left, and not only a router before it."""
        self.has_ended = has_ended
        """True if the process of the node has ended or left its session, also that of a router."""
        self.has_stopped = has_stopped
        """True if the process of the node did nothing, although its kernel did."""

    @property
    def possible_since_ns(self) -> int:
        """The earliest time since which puts may be lost: also if the node did not leave, although it seems so."""
        return min(self.since_ns, self.acked_ns - MARGIN_NS) if self.is_receiver_gone else self.since_ns

    def set_not_left(self) -> None:
        """The node did not leave: it may not have read everything."""
        self.is_receiver_gone = self.has_ended = False
        self.since_ns = min(self.since_ns, self.acked_ns - MARGIN_NS)

    def distance_ns(self, noticed_ns: int) -> int:
        return max(self.at_ns - noticed_ns, noticed_ns - self.until_ns, 0)


class ConnectedNode:
    """A connected node, and the time up to which all puts are known to have arrived."""

    def __init__(self, now_ns: int, *, is_router: bool, lease_ns: int = DEFAULT_LEASE_NS) -> None:
        self.link: TcpLink | None = None
        self._is_released = False
        self._link_lock = Lock()
        self.is_router = is_router
        self.resumed: NodeLoss | None = None
        """What a router may have lost when it resumed after a long silence."""
        self._lease_ns = lease_ns
        self.closed = False
        """True after Zenoh has closed the connection."""
        self.end_seen_ns = _NEVER_NS
        """When the end of the connection was first seen."""
        self.searches = 0
        self._checks = 0
        self.missed_since_ns = 0
        """Since when Zenoh has no transport to this node; 0 if it had one at the last check."""
        self.joined_ns = now_ns
        """When Zenoh reported this connection."""
        self.received_ns = now_ns
        self.acked_ns = now_ns
        self._distrusted_until_ns = 0
        self._last_ack_ns = 0
        self.has_ended = False
        """True after the node's kernel has ended the connection."""
        self.is_aborted = False
        """True if the node's kernel ended the connection without a Close message."""
        self.unread = 0
        """The bytes that this streamer had not read for `_UNREAD_NS` when the node ended the connection."""
        self._read = 0
        self._read_ns = now_ns
        self._was_reset = False
        self._received = self._newest = 0
        self._active_since_ns = self._active_ns = now_ns
        self._mark = _Mark(now_ns, 0, caught_up=True)
        self._marks: deque[_Mark] = deque(maxlen=_MAX_MARKS)
        self._acked = 0
        self._progress_ns = now_ns
        self._sampled_ns = now_ns

    def sample(self, now_ns: int) -> None:
        """Read the kernel's state: periodically, and at the first sign of a loss."""
        if self.link is None:
            return
        self.closed = self.link.is_closed  # before the state, which may be of a later time
        state = self.link.state()
        if self.closed or (state is not None and not state.peer_open):
            self.end_seen_ns = min(self.end_seen_ns, now_ns)
        if state is None or self.has_ended or (self.closed and state.peer_open):
            return  # what waited in Zenoh is gone: a later acknowledgement is none of it
        self._sampled_ns = now_ns
        self.has_ended = not state.peer_open
        if self.has_ended:
            self.unread = state.unread if now_ns - self._read_ns >= _UNREAD_NS else 0
            self._judge_end(state, now_ns)
            return
        if not state.unread or state.received - state.unread != self._read:
            self._read, self._read_ns = state.received - state.unread, now_ns
        if state.received != self._received:
            self._newest = state.received - self._received
            if now_ns - self._active_ns > _ACTIVE_NS:
                self._active_since_ns = now_ns
            self._active_ns = now_ns
        self._received = state.received
        received_ns = now_ns - state.received_ago_ms * _NS_PER_MS
        if self.is_router and received_ns - self.received_ns > self._lease_ns // 2:  # a quarter is usual
            self.resumed = NodeLoss(now_ns, self.confirmed_ns, is_receiver_gone=False, is_router=True)
        self.received_ns = received_ns
        self._last_ack_ns = now_ns - state.acked_ago_ms * _NS_PER_MS
        self._update_acked(state, now_ns)

    def _judge_end(self, state: TcpState, now_ns: int) -> None:
        """Distinguish a node that has closed the connection from one that was killed."""
        new = state.received - self._received
        self._was_reset = not new  # the end of a stream counts as a byte
        if new == 1:
            new += self._newest  # a Close message may have come before the previous sample
        if new == _CLOSE_BYTES:
            return
        # With other bytes before it a Close message has no known length. Then the end of a router counts as a kill: it
        # may have been killed just after an answer. That of a client or peer counts as a close if it was not sending
        # continuously and has sent just now.
        active = now_ns - self._active_ns < _ACTIVE_NS < self._active_ns - self._active_since_ns
        is_late = state.received_ago_ms > _KERNEL_TICK_MS
        self.is_aborted = self.is_router or active or is_late or new < _CLOSE_BYTES

    def _update_acked(self, state: TcpState, now_ns: int) -> None:
        """Update the time up to which the node's kernel has acknowledged all puts. The node may not have read them.

        After an outage the backlog leaves step by step, and most of it still waits inside Zenoh. So one acknowledgement
        proves little. Every 40 ms a mark says how many bytes were written. All puts before a mark are acknowledged when
        that mark is, and the mark before it was.
        """
        if state.acked != self._acked or not state.unacked:
            self._acked, self._progress_ns = state.acked, now_ns
        if now_ns < self._distrusted_until_ns:
            return
        mark = self._mark
        acknowledged = state.acked >= mark.written
        if acknowledged and mark.caught_up:
            self.acked_ns = max(self.acked_ns, mark.at_ns if state.unacked else now_ns)
        # A node that is always behind acknowledges no mark in time. But what was in Zenoh at an old mark has left since.
        while self._marks and state.acked >= self._marks[0].written + _PIPELINE_BYTES:
            self.acked_ns = max(self.acked_ns, self._marks.popleft().at_ns)
        if now_ns - mark.at_ns >= _MARK_NS:
            self._mark = _Mark(now_ns, state.acked + state.unacked, acknowledged)
            self._marks.append(self._mark)

    def distrust_acks(self, until_ns: int) -> None:
        """Trust no acknowledgement until then."""
        self._distrusted_until_ns = until_ns

    @property
    def is_to_check(self) -> bool:
        """Whether `check_transport` is due: this node is new, or was missed."""
        return self._checks < _MAX_CHECKS or bool(self.missed_since_ns)

    def check_transport(self, now_ns: int, *, is_listed: bool) -> None:
        """Note whether Zenoh has a transport to this node."""
        self._checks += 1
        if is_listed:
            self.missed_since_ns = 0
        elif not self.missed_since_ns:
            self.missed_since_ns = now_ns

    def set_link(self, link: TcpLink) -> None:
        """Keep `link`, or release it if the node has one or was released: two threads may look for it."""
        with self._link_lock:
            if self.link is None and not self._is_released:
                self.link = link
                return
        link.release()

    def release(self) -> None:
        """Close our descriptor of the connection."""
        with self._link_lock:
            self._is_released = True
        if self.link is not None:
            self.link.release()

    def is_stalled(self, now_ns: int) -> bool:
        """True if the node has read nothing for `_STALL_NS` although data waits."""
        return self.link is not None and now_ns - self._progress_ns > _STALL_NS

    def has_stopped(self, now_ns: int) -> bool:
        """True if the process of the node does nothing, although its kernel does: the node is not cut off.

        Its kernel acknowledged something after the node itself last read or sent anything.
        """
        if self.is_stalled(now_ns):
            return self._last_ack_ns > self._progress_ns
        return self._is_silent(now_ns) and self._last_ack_ns - self.received_ns > self._lease_ns // 2

    @property
    def confirmed_ns(self) -> int:
        """All puts before this time have arrived; 0 if unknown."""
        if self.link is None:
            return 0
        arrived_ns = min(self.acked_ns, self.received_ns) - MARGIN_NS
        return min(arrived_ns, self.joined_ns) if self.missed_since_ns else arrived_ns

    def is_suspect(self, now_ns: int) -> bool:
        """True if the node may be frozen or cut off: it reads nothing although data waits, or sends nothing."""
        if self.link is None:
            return False
        return now_ns - self._progress_ns > _SUSPECT_NS or self._is_silent(now_ns)

    def _is_silent(self, now_ns: int) -> bool:
        return now_ns - self.received_ns > self._lease_ns // 3  # a live node sends every quarter of the lease

    def suspicion(self) -> str:
        """What a suspect node does not do, by the last sample; empty for any other node.

        Times end at the sample: a late sample is no fault of the node.
        """
        stuck_ns, silent_ns = self._sampled_ns - self._progress_ns, self._sampled_ns - self.received_ns
        if self.link is None or self.has_ended:
            return ""
        if stuck_ns > _REPORTED_SUSPECT_NS:
            return f"has acknowledged no data for {stuck_ns / 1e9:.1f} s although data waits"
        if silent_ns > self._lease_ns // 2:  # a quarter is usual
            return f"has sent no sign of life for {silent_ns / 1e9:.1f} s"
        return ""

    def loss(self, now_ns: int) -> NodeLoss:
        """What is lost with this node, lost at `now_ns`."""
        has_ended = not (self._is_silent(now_ns) or self.is_stalled(now_ns))
        since_ns = self._lost_since_ns(now_ns)
        return NodeLoss(
            now_ns,
            since_ns,
            is_receiver_gone=has_ended and not self.is_router,
            is_router=self.is_router,
            acked_ns=self.acked_ns,
            has_ended=has_ended,
            has_stopped=self.has_stopped(now_ns),
        )

    def _lost_since_ns(self, now_ns: int) -> int:
        """The time since which puts may be lost with this node; 0 if unknown."""
        if self.link is None:
            return 0
        if self._is_silent(now_ns):
            # It may have frozen just after its last sign of life. Its kernel then acknowledged what nothing has read.
            return self.confirmed_ns
        kept_up = self._sampled_ns - self.acked_ns <= _ACKED_NS
        if kept_up and not self.is_aborted:
            return now_ns  # the node closed its session
        if self._was_reset and self.is_router:
            # Killed with unread data: it may have been frozen since it last sent something.
            return self.confirmed_ns
        # Killed: a busy machine may detect it late, so not from now. Or Zenoh closed the link because the node read
        # nothing for 5 s, and discarded all data for it.
        return self.acked_ns - MARGIN_NS
