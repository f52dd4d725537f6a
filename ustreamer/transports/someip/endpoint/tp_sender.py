# SPDX-License-Identifier: Apache-2.0
"""Long messages of a SOME/IP endpoint on their way out: a `TpSegmenter`, a lock, and whoever calls.

The first segment leaves on the caller's thread, so that a receiver that is away is known at once and to the lane; the
others leave when they are due, on the endpoint's receiving thread. From then on the message counts as sent, as one does
that the kernel has taken. What the kernel does not take is tried again, for as long as a receiver waits for it.
"""

import logging
from collections.abc import Callable, Hashable
from threading import Event, Lock

from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, decode
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation
from ustreamer.transports.someip.protocol.tp_segmenter import DueSegment, TpQueueFull, TpSegmenter, TpStream
from ustreamer.uprotocol.ustatus import invalid_argument

log = logging.getLogger("ustreamer.someip")

_MAX_SEGMENTS_PER_TICK = 64  # segments between two looks at what comes in, 0.3 ms
_NS_PER_S = 1_000_000_000


class TpSender:
    """`send` is called from any thread, `run` from the receiving one, `flush` when that has ended."""

    def __init__(
        self,
        limits: TpLimits,
        sendto: Callable[[bytes, Address], object],
        monotonic_ns: Callable[[], int],
        wake: Callable[[int], None],
    ) -> None:
        """`wake` is called with the monotonic time at which `run` has something to do."""
        self._limits = limits
        self._sendto = sendto
        self._monotonic_ns = monotonic_ns
        self._wake = wake
        self._on_route_opened: Callable[[Hashable], None] = _no_route_watcher
        self._lock = Lock()
        self._segmenter = TpSegmenter(limits.waiting_bytes, limits.waiting_messages)
        self._blocked_routes: set[Hashable] = (
            set()
        )  # routes that found no room: no more than there are events and methods
        self._has_room_again = False  # whether there is some again
        self._segmented = self._unsent = 0
        self.next_deadline_ns: int | None = None
        """When `run` has something to do; None if nothing waits."""

    def watch_routes(self, on_route_opened: Callable[[Hashable], None]) -> None:
        """As `EndpointTransport.watch_routes`, for what found no room."""
        self._on_route_opened = on_route_opened

    # --- any thread -----------------------------------------------------------------------------------------------------

    def send(self, datagram: bytes, address: Address, segmentation: TpSegmentation) -> None:
        """Send a whole message, in segments if it is too long for one, behind those of its stream that still wait.

        Raises OSError if it, or its first segment, cannot be sent; RouteUnavailable if too much waits, and
        UStatusError(INVALID_ARGUMENT) if it is more than may ever wait: then nothing of it was sent.
        """
        size = len(datagram) - HEADER_LENGTH
        stream = (address, int.from_bytes(datagram[:4], "big"))
        with self._lock:
            is_pending = self._segmenter.is_pending(stream)
            if size <= segmentation.segment_bytes and not is_pending:
                self._sendto(datagram, address)
                return
            now_ns = self._monotonic_ns()
            self._enqueue(datagram, address, segmentation, now_ns)
            if not is_pending:
                self._send_first(stream, now_ns)
            self._segmented += size > segmentation.segment_bytes
            deadline_ns = self.next_deadline_ns = self._segmenter.next_deadline_ns
        if deadline_ns is not None:
            self._wake(deadline_ns)

    def _enqueue(self, datagram: bytes, address: Address, segmentation: TpSegmentation, now_ns: int) -> None:
        message, _ = decode(datagram)
        size = len(message.payload)
        if size > self._limits.waiting_bytes:
            raise invalid_argument(
                f"payload of {size} bytes for {address[0]}:{address[1]}: "
                f"at most {self._limits.waiting_bytes} are sent in segments (tp.waiting_bytes)"
            )
        try:
            self._segmenter.put_nowait(message, address, segmentation, now_ns)
        except TpQueueFull as error:
            route = ("segments", address, message.message_id)
            self._blocked_routes.add(route)
            raise RouteUnavailable(route, f"{address[0]}:{address[1]}: {error}") from error

    def _send_first(self, stream: TpStream, now_ns: int) -> None:
        """Send the first segment of a stream; an OSError takes it out again."""
        due = self._segmenter.next_segment(stream)
        try:
            self._sendto(due.datagram, due.address)
        except OSError:
            self._segmenter.drop_message(due, now_ns)
            raise
        self._segmenter.on_sent(due, self._monotonic_ns())

    # --- the receiving thread -------------------------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Send what is due, and no more at once than lets what comes in be looked at."""
        if self.next_deadline_ns is None:
            return  # nearly always: this is asked in every round of the receiving thread
        opened: set[Hashable] = set()
        with self._lock:
            self._send_due(self._monotonic_ns())
            self.next_deadline_ns = self._segmenter.next_deadline_ns
            if self._has_room_again:
                opened, self._blocked_routes, self._has_room_again = self._blocked_routes, set(), False
        for route in opened:  # not under the lock: the lane that is told holds its own when it sends
            self._on_route_opened(route)

    def _send_due(self, now_ns: int) -> None:
        for _ in range(_MAX_SEGMENTS_PER_TICK):
            due = self._segmenter.next_due(now_ns)
            if due is None:
                return
            try:
                self._sendto(due.datagram, due.address)
            except OSError as error:
                if not self._segmenter.on_send_blocked(due, now_ns):
                    self._abandon(due, error)
            else:
                # Not `now_ns`: this thread may have been held up in between, and the pause counts from when it went.
                self._has_room_again |= self._segmenter.on_sent(due, self._monotonic_ns())

    def _abandon(self, due: DueSegment, error: OSError) -> None:
        self._has_room_again = True
        self._unsent += 1
        if self._unsent == 1:  # the first shows what it is about; the others are in the counter
            log.warning(
                "someip.segments_abandoned",
                extra={"receiver": f"{due.address[0]}:{due.address[1]}", "reason": error.strerror},
            )

    # --- the end, and reading -------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> None:
        """Send what still waits, at its pace, when `run` is not called any more; what is left then is given up."""
        until_ns = self._monotonic_ns() + int(timeout_s * _NS_PER_S)
        pause = Event()
        while self._segmenter.pending[1] and (now_ns := self._monotonic_ns()) < until_ns:
            left_ns = min(self.next_deadline_ns or now_ns, until_ns) - now_ns
            if left_ns > 0:
                pause.wait(left_ns / _NS_PER_S)
            self.on_tick()
        self._unsent += self._segmenter.pending[1]

    def statistics(self) -> dict[str, int]:
        """What waits now, and counters since the start; names as in `SomeipTransport.statistics`."""
        pending_bytes, pending = self._segmenter.pending
        return {
            "tp_waiting": pending,
            "tp_waiting_bytes": pending_bytes,
            "tp_segmented": self._segmented,
            "tp_unsent": self._unsent,
        }


def _no_route_watcher(route: Hashable) -> None:
    """Nobody watches routes."""
