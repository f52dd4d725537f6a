# SPDX-License-Identifier: Apache-2.0
"""Sends the long messages of a SOME/IP endpoint: a `TpSegmenter`, a lock, and the calling threads.

The caller's thread sends the first segment, so that its egress queue learns at once of an unreachable receiver. The
receiving thread of the endpoint sends the others when they are due. The message then counts as sent, like a datagram
that the kernel accepted. A segment that the kernel rejects is tried again for as long as a receiver waits for it.
"""

import logging
from collections.abc import Callable, Hashable
from threading import Event, Lock

from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.protocol.addresses import Address, format_address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, decode
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation
from ustreamer.transports.someip.protocol.tp_segmenter import DueSegment, TpQueueFull, TpSegmenter, TpStream
from ustreamer.uprotocol.ustatus import invalid_argument

log = logging.getLogger("ustreamer.someip")

_MAX_SEGMENTS_PER_TICK = 64  # segments between two reads of the sockets, 0.3 ms
_NS_PER_S = 1_000_000_000


class TpSender:
    """`send` is called from any thread, `on_tick` from the receiving thread, `flush` after the end of that thread."""

    def __init__(
        self,
        limits: TpLimits,
        sendto: Callable[[bytes, Address], object],
        monotonic_ns: Callable[[], int],
        wake: Callable[[int], None],
    ) -> None:
        """`wake` receives the monotonic time of the next `on_tick`."""
        self._limits = limits
        self._sendto = sendto
        self._monotonic_ns = monotonic_ns
        self._wake = wake
        self._on_route_opened: Callable[[Hashable], None] = _no_route_watcher
        self._lock = Lock()
        self._segmenter = TpSegmenter(limits.waiting_bytes, limits.waiting_messages)
        self._blocked_routes: set[Hashable] = set()  # blocked routes: at most as many as events and methods
        self._has_room_again = False  # whether a message was completed or dropped since
        self._segmented = self._unsent = 0
        self.next_deadline_ns: int | None = None
        """The time of the next `on_tick` with due segments; None if nothing waits."""

    def watch_routes(self, on_route_opened: Callable[[Hashable], None]) -> None:
        """As `EndpointTransport.watch_routes`, for routes that `send` reported as unavailable."""
        self._on_route_opened = on_route_opened

    # --- any thread ---------------------------------------------------------------------------------------------------

    def send(
        self,
        datagram: bytes,
        address: Address,
        segmentation: TpSegmentation,
        expires_ns: int | None = None,
    ) -> None:
        """Send a whole message, in segments if it is too long, behind the waiting ones of its stream.

        A message whose first segment waits longer than `expires_ns` (monotonic) is dropped, and counted.

        Raises OSError if the message, or its first segment, cannot be sent; RouteUnavailable if too much waits;
        UStatusError(INVALID_ARGUMENT) if it exceeds the limit. In each case nothing of it was sent.
        """
        size = len(datagram) - HEADER_LENGTH
        stream = (address, int.from_bytes(datagram[:4], "big"))
        with self._lock:
            is_pending = self._segmenter.is_pending(stream)
            if size <= segmentation.segment_bytes and not is_pending:
                self._sendto(datagram, address)
                return
            now_ns = self._monotonic_ns()
            self._enqueue(datagram, address, segmentation, now_ns, expires_ns)
            if not is_pending:
                self._send_first(stream, now_ns)
            self._segmented += size > segmentation.segment_bytes
            deadline_ns = self.next_deadline_ns = self._segmenter.next_deadline_ns
        if deadline_ns is not None:
            self._wake(deadline_ns)

    def _enqueue(
        self,
        datagram: bytes,
        address: Address,
        segmentation: TpSegmentation,
        now_ns: int,
        expires_ns: int | None,
    ) -> None:
        message, _ = decode(datagram)
        size = len(message.payload)
        if size > self._limits.waiting_bytes:
            raise invalid_argument(
                f"payload of {size} bytes for {format_address(address)}: "
                f"at most {self._limits.waiting_bytes} are sent in segments (tp.waiting_bytes)"
            )
        try:
            self._segmenter.put_nowait(message, address, segmentation, now_ns, expires_ns)
        except TpQueueFull as error:
            route = ("segments", address, message.message_id)
            self._blocked_routes.add(route)
            raise RouteUnavailable(route, f"{format_address(address)}: {error}") from error

    def _send_first(self, stream: TpStream, now_ns: int) -> None:
        """Send the first segment of a stream; an OSError removes the message again."""
        due = self._segmenter.next_segment(stream)
        try:
            self._sendto(due.datagram, due.address)
        except OSError:
            self._segmenter.drop_message(due, now_ns)
            raise
        self._segmenter.on_sent(due, self._monotonic_ns())

    # --- the receiving thread -----------------------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Send due segments, at most _MAX_SEGMENTS_PER_TICK, so that input is read in between."""
        if self.next_deadline_ns is None:
            return  # the usual case: the receiving thread calls this in every round
        opened: set[Hashable] = set()
        with self._lock:
            self._send_due(self._monotonic_ns())
            self.next_deadline_ns = self._segmenter.next_deadline_ns
            if self._has_room_again:
                opened, self._blocked_routes, self._has_room_again = self._blocked_routes, set(), False
        for route in opened:  # not under the lock: the notified egress queue holds its own lock when it sends
            self._on_route_opened(route)

    def _send_due(self, now_ns: int) -> None:
        for _ in range(_MAX_SEGMENTS_PER_TICK):
            expired = self._segmenter.expired
            due = self._segmenter.next_due(now_ns)
            self._has_room_again |= self._segmenter.expired > expired
            if due is None:
                return
            try:
                self._sendto(due.datagram, due.address)
            except OSError as error:
                if not self._segmenter.on_send_blocked(due, now_ns):
                    self._abandon(due, error)
            else:
                # Not `now_ns`: the thread may have been delayed, and the pause starts when the segment was sent.
                self._has_room_again |= self._segmenter.on_sent(due, self._monotonic_ns())

    def _abandon(self, due: DueSegment, error: OSError) -> None:
        self._has_room_again = True
        self._unsent += 1
        if self._unsent == 1:  # the first one shows the cause; the others are counted
            log.warning(
                "someip.segments_abandoned",
                extra={"receiver": format_address(due.address), "reason": error.strerror},
            )

    # --- flush and statistics -----------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> int:
        """Send the waiting segments at their pace after the last `on_tick`; after `timeout_s` the rest is abandoned.

        Returns the number of abandoned messages.
        """
        until_ns = self._monotonic_ns() + int(timeout_s * _NS_PER_S)
        pause = Event()
        while self._segmenter.pending[1] and (now_ns := self._monotonic_ns()) < until_ns:
            left_ns = min(self.next_deadline_ns or now_ns, until_ns) - now_ns
            if left_ns > 0:
                pause.wait(left_ns / _NS_PER_S)
            self.on_tick()
        with self._lock:
            abandoned = self._segmenter.drop_all()
        self._unsent += abandoned
        return abandoned

    def statistics(self) -> dict[str, int]:
        """Waiting messages, and counters since the start; names as in `SomeipTransport.statistics`."""
        pending_bytes, pending = self._segmenter.pending
        return {
            "tp_waiting": pending,
            "tp_waiting_bytes": pending_bytes,
            "tp_segmented": self._segmented,
            "tp_unsent": self._unsent,
            "tp_expired": self._segmenter.expired,
        }


def _no_route_watcher(route: Hashable) -> None:
    """The default: no watcher."""
